//! The bounds that a client keeps, beside servers that answer late.

use super::chunks::RemoteChunks;
use super::contents::{Cutter, RemoteContents, Supplied};
use crate::repository::{Contents, NewFile};
use onefold_catalog::{Backup, BackupId, Chunks, Statistics};
use onefold_engine::{Address, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use onefold_remote::services::messages::{
    ContentsRequest, MAX_QUEUED, MAX_WANTED, Method, Offered, Open, ReadAnswer, ReadRequest, Wanted, services,
};
use onefold_remote::transport::{
    Channel, ClientSession, ConnectOptions, Credentials, Door, Listener, Login, Message, Peer, Received, Refusal, Server, ServerOptions,
    Services, Target, Visitor,
};
use parking_lot::Mutex;
use std::any::Any;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A server has seen all that comes when nothing came for so long.
const SILENCE: Duration = Duration::from_millis(100);

struct Anybody;

impl Door for Anybody {
    fn admit(&self, _: &Login, _: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        Ok(Arc::new(()))
    }
}

struct Script<F>(F);

impl<F: Fn(u8, &Channel) + Send + Sync> Services for Script<F> {
    fn serve(&self, _: &Visitor, service: u8, _: Vec<u8>, channel: Channel) {
        (self.0)(service, &channel);
    }
}

/// Calls `work` with a session of a server.
fn with_server(serve: impl Fn(u8, &Channel) + Send + Sync + 'static, work: impl FnOnce(&Arc<ClientSession>)) {
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = Server::new(ServerOptions::default(), Arc::new(Anybody), Arc::new(Script(serve)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(async move { server.run(vec![Listener::Unix(listener)], std::future::pending()).await });
    let session = ClientSession::connect(ConnectOptions::new(Target::Unix(socket), Credentials::default())).unwrap();
    work(&Arc::new(session));
    runtime.shutdown_background();
}

/// Returns the next message. `None`: none came for a while. `Some(None)`: none will come.
fn next(channel: &Channel) -> Option<Option<Message>> {
    match channel.receive_until(Instant::now() + SILENCE) {
        Ok(Received::Message(message)) => Some(Some(message)),
        Ok(Received::Timeout) => None,
        _ => Some(None),
    }
}

fn method() -> Method {
    Method {
        chunker: "fastcdc".into(),
        chunk_sizes: [2 << 10, 8 << 10, 64 << 10],
        chunker_key: Vec::new(),
        fingerprint: "blake3".into(),
        fingerprint_key: Vec::new(),
        compression: "none".into(),
        frame_bytes: 1 << 20,
    }
}

/// The most that a server was owed at once.
#[derive(Default)]
struct Most {
    unanswered: usize,
    things: usize,
    chunks: u64,
}

/// Wants every chunk. Answers only when nothing more comes.
fn want_late(channel: &Channel, most: &Mutex<Most>) {
    // Offers: their things, and the chunks that were not supplied.
    let (mut offers, mut unanswered): (Vec<(usize, u64)>, Vec<usize>) = (Vec::new(), Vec::new());
    loop {
        match next(channel) {
            Some(Some(message)) => match ContentsRequest::decode(message.kind, &message.payload, 32).unwrap() {
                ContentsRequest::Offer(items) => {
                    let chunks = items.iter().filter(|item| matches!(item, Offered::Chunk { .. })).count();
                    offers.push((items.len(), chunks as u64));
                    unanswered.push(chunks);
                    let mut most = most.lock();
                    most.unanswered = most.unanswered.max(unanswered.len());
                    most.chunks = most.chunks.max(offers.iter().map(|(_, chunks)| chunks).sum());
                    most.things = most.things.max(offers.iter().map(|(things, _)| things).sum());
                }
                ContentsRequest::Supply { chunks: mut supplied, .. } => {
                    for (_, chunks) in &mut offers {
                        let now = supplied.min(*chunks);
                        (*chunks, supplied) = (*chunks - now, supplied - now);
                    }
                    let resolved = offers.iter().take_while(|(_, chunks)| *chunks == 0).count();
                    offers.drain(..resolved);
                }
            },
            Some(None) => return channel.finish(),
            None => {
                for chunks in unanswered.drain(..) {
                    channel.send(Wanted::KIND, Wanted(vec![true; chunks]).encode()).unwrap();
                }
            }
        }
    }
}

#[test]
fn offers_wait_for_answers_and_things_for_supplies() {
    let most = Arc::new(Mutex::new(Most::default()));
    let of_server = most.clone();
    let serve = move |service, channel: &Channel| {
        assert_eq!(service, services::CONTENTS);
        want_late(channel, &of_server);
    };
    with_server(serve, |session| {
        let (cutter, supplied) = (Cutter::new(&method()).unwrap(), Arc::new(Supplied::default()));
        let mut contents = RemoteContents::new(session, 0, &cutter, &supplied);
        let file = |ticket| NewFile { ticket, path: b"", earlier: None };
        for ticket in 0..600 {
            contents.begin(file(ticket)).unwrap();
            contents.write(&ticket.to_le_bytes(), true).unwrap();
            contents.finish().unwrap();
        }
        for batch in 0..200 {
            let bytes: Vec<[u8; 8]> = (0..256u64).map(|at| (1000 + batch * 256 + at).to_le_bytes()).collect();
            let files: Vec<(NewFile<'_>, &[u8])> = bytes.iter().map(|bytes| (file(u64::from_le_bytes(*bytes)), &bytes[..])).collect();
            contents.small(&files).unwrap();
        }
        Box::new(contents).close().unwrap();
        for ticket in (0..600).chain(1000..1000 + 200 * 256) {
            supplied.take(ticket).unwrap();
        }
    });
    let most = most.lock();
    assert!((200..=256).contains(&most.unanswered), "{} offers", most.unanswered);
    assert!(most.chunks <= MAX_WANTED as u64, "{} chunks", most.chunks);
    assert!((MAX_QUEUED / 2..=MAX_QUEUED).contains(&most.things), "{} things", most.things);
}

#[test]
fn the_tree_waits_for_a_file_until_its_content_is_supplied() {
    let most = Arc::new(Mutex::new(Most::default()));
    let serve = move |_, channel: &Channel| want_late(channel, &most);
    with_server(serve, |session| {
        let (cutter, supplied) = (Cutter::new(&method()).unwrap(), Arc::new(Supplied::default()));
        let mut contents = RemoteContents::new(session, 0, &cutter, &supplied);
        contents.begin(NewFile { ticket: 7, path: b"", earlier: None }).unwrap();
        contents.write(b"content", true).unwrap();
        contents.finish().unwrap();
        supplied.take(7).unwrap();
        assert_eq!(contents.added_bytes(), 7);
        // A file that nobody supplies any more.
        drop(contents);
        assert!(supplied.take(8).is_err());
    });
}

fn record() -> Backup {
    Backup {
        id: BackupId::from_bytes([7; 16]),
        sequence: 0,
        seen_ns: 0,
        name: "group".into(),
        host: String::new(),
        user: String::new(),
        started_ns: 0,
        finished_ns: 0,
        tags: vec![],
        paths: vec![],
        options: "{}".into(),
        root: Recipe::default(),
        statistics: Statistics::default(),
    }
}

#[test]
fn questions_for_tiny_pieces_fit_the_window_together() {
    let most = Arc::new(AtomicUsize::new(0));
    let of_server = most.clone();
    let serve = move |_, channel: &Channel| {
        let send = |answer: &ReadAnswer| {
            let (kind, payload) = answer.encode(32);
            channel.send(kind, payload).unwrap();
        };
        send(&ReadAnswer::Opened { number: 1, digest_bytes: 32, backup: Box::new(record()), newer_partial: None });
        let (mut asked, mut bytes) = (Vec::new(), 0);
        loop {
            match next(channel) {
                Some(Some(message)) => {
                    bytes += message.payload.len() + 64;
                    of_server.fetch_max(bytes, Ordering::Relaxed);
                    match ReadRequest::decode(message.kind, &message.payload, 32).unwrap() {
                        ReadRequest::Data { pieces, .. } => asked.push(pieces.iter().map(Piece::length).sum::<u64>()),
                        other => panic!("{other:?}"),
                    }
                }
                Some(None) => return,
                None => {
                    bytes = 0;
                    for length in asked.drain(..) {
                        send(&ReadAnswer::Data { codec: 0, bytes: vec![7; length as usize] });
                    }
                }
            }
        }
    };
    with_server(serve, |session| {
        let (chunks, _, _) = RemoteChunks::open(session, &Open::Meant("latest".into()), false).unwrap();
        let fingerprint = Fingerprint::from_digest(&[1; 32]);
        let pieces: Vec<Piece> =
            (0..5000).map(|_| Piece::Chunk { fingerprint, address: Address::from_bits(u64::MAX), offset: 0, length: 2 }).collect();
        let mut out = vec![0; 10_000];
        chunks.data(&pieces, &mut out).unwrap();
        assert!(out == [7; 10_000]);
    });
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 96 << 10, "{most} bytes of questions");
}
