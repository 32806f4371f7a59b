//! A client that says anything: it speaks messages on channels, and knows nothing of the honest client.

#![allow(dead_code, reason = "each test uses a part")]

use onefold_catalog::{Attributes, Backup, Catalog, Content, DirectoryChunk, Entry, Of, Statistics};
use onefold_engine::{Descriptor, Engine, Mode, Piece, Recipe, Settings, StoreProfile, decode_pieces};
use onefold_fingerprint::{Algorithm, Fingerprint};
use onefold_ground::wire::{Reader, put_varint};
use onefold_ground::{Ground, LocalGround};
use onefold_remote::accounts::{AccountError, Accounts, Limits, Namespace, PermissionSet, Permissions, Quotas, Rate};
use onefold_remote::services::messages::{codes, *};
use onefold_remote::services::server::{Guest, Unfinished, Unobserved, serve};
use onefold_remote::transport::*;
use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const DIGEST: usize = 32;

/// Lets everybody in under the name that they give.
struct Anybody {
    accounts: Accounts,
    quotas: Quotas,
    unfinished: Arc<Unfinished>,
}

impl Door for Anybody {
    fn admit(&self, login: &Login, _: &Peer) -> Result<Arc<dyn Any + Send + Sync>, Refusal> {
        if login.account == "owner" {
            return Ok(Arc::new(Guest::owner(Box::new(Unobserved))));
        }
        let refused = |error: AccountError| Refusal::new(3, error.to_string());
        let account = self.accounts.get(&login.account).map_err(refused)?;
        let rate = Arc::new(Rate::new(account.limits.bytes_per_second));
        let guest = Guest::account(account, &self.accounts, &self.quotas, rate, Box::new(Unobserved));
        Ok(Arc::new(guest.map_err(refused)?.with_unfinished(&self.unfinished)))
    }
}

struct Backups(Catalog, Arc<AtomicUsize>);

impl Services for Backups {
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel) {
        let guest = visitor.account.downcast_ref::<Guest>().unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
        if !serve(&self.0, guest, service, &opening, &channel) {
            channel.cancel_with(codes::FORBIDDEN, "no such service");
        }
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A store with a server. Accounts: `victim`, `attacker` (each with its own namespace), `nobody` (no permission),
/// `writer` and `reader` (of the namespace `team`).
pub struct Place {
    pub catalog: Catalog,
    pub accounts: Accounts,
    pub address: SocketAddr,
    /// Channels that are served.
    pub serving: Arc<AtomicUsize>,
    trust: Trust,
    pub directory: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub fn grants(list: &[(&str, &str)]) -> Permissions {
    let mut permissions = Permissions::default();
    list.iter().for_each(|(namespace, set)| permissions.grant(namespace.parse().unwrap(), set.parse::<PermissionSet>().unwrap()));
    permissions
}

impl Place {
    pub fn new(profile: StoreProfile) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        std::fs::create_dir(&path).unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(&path).unwrap());
        let descriptor = Descriptor {
            profile,
            capacity_bytes: (profile == StoreProfile::Sampled).then_some(1 << 40),
            container_bytes: 256 << 10,
            frame_bytes: 64 << 10,
            sequential_frame_bytes: 64 << 10,
            ..Descriptor::new().unwrap()
        };
        Engine::create(&ground, &descriptor).unwrap();
        // Few hooks, and few catalogs at a time, as in a store of many terabytes.
        let settings = match profile {
            StoreProfile::Sampled => Settings { sampled_index_bytes: 512, catalog_cache_bytes: 8 << 10, ..Settings::default() },
            _ => Settings::default(),
        };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        let catalog = Catalog::new(engine.clone());
        let accounts = Accounts::new(engine.clone()).unwrap();
        for (name, permissions) in [
            ("victim", Permissions::own(Namespace::new("victim").unwrap())),
            ("attacker", Permissions::own(Namespace::new("attacker").unwrap())),
            ("nobody", Permissions::default()),
            ("writer", grants(&[("team", "backup")])),
            ("reader", grants(&[("team", "read")])),
        ] {
            let settings = onefold_remote::accounts::Settings { permissions: Some(permissions), ..Default::default() };
            accounts.create(name, settings).unwrap();
        }
        let unfinished = Arc::new(Unfinished::open(engine.clone()).unwrap());
        let door = Anybody { accounts: accounts.clone(), quotas: Quotas::new(engine), unfinished };
        let serving = Arc::new(AtomicUsize::new(0));
        let services = Arc::new(Backups(catalog.clone(), serving.clone()));
        let server = Server::new(ServerOptions::default(), Arc::new(door), services);
        let tls = ServerTls::self_signed(&["localhost".to_owned()], None).unwrap();
        let trust = Trust::Pinned(tls.fingerprint());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(server.run(vec![Listener::Tls(listener, tls)], stopped)).unwrap();
        });
        Place { catalog, accounts, address, serving, trust, directory, stop: Some(stop), thread: Some(thread) }
    }

    pub fn session(&self, account: &str) -> ClientSession {
        self.session_at(account, self.address).unwrap()
    }

    /// Returns the names of the backups that a session may list.
    pub fn lists(&self, session: &ClientSession) -> Vec<String> {
        let channel = session.open(services::LIST, Vec::new()).unwrap();
        let mut names = Vec::new();
        while let Some(message) = channel.receive().unwrap() {
            let Listed::Records(Records(records)) = Listed::decode(message.kind, &message.payload).unwrap() else { panic!() };
            names.extend(records.into_iter().map(|backup| {
                assert!(backup.root.pieces.is_empty() && backup.sequence == 0);
                backup.name
            }));
        }
        names
    }

    /// Waits until so many channels are served.
    pub fn serves(&self, channels: usize) {
        let until = Instant::now() + Duration::from_secs(5);
        while self.serving.load(Ordering::SeqCst) != channels {
            assert!(Instant::now() < until, "{:?} channels are served, not {channels}", self.serving);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Connects by another address.
    pub fn session_at(&self, account: &str, address: SocketAddr) -> Result<ClientSession, TransportError> {
        let target = Target::Tls { host: address.ip().to_string(), port: address.port(), trust: self.trust.clone(), identity: None };
        let credentials = Credentials { account: account.to_owned(), secret: Vec::new() };
        ClientSession::connect(ConnectOptions::new(target, credentials))
    }

    pub fn limit(&self, account: &str, limits: Limits) {
        self.accounts.set(account, |account| account.limits = limits).unwrap();
    }

    /// Has the victim store its files, and checks that they can be read.
    pub fn victim(&self, files: &[(&str, Vec<Vec<u8>>)]) -> Backup {
        let session = self.session("victim");
        let backup = back_up(&session, "victim/secret-group", files);
        session.close().unwrap();
        self.victim_is_whole(&backup, files);
        backup
    }

    pub fn victim_is_whole(&self, backup: &Backup, files: &[(&str, Vec<Vec<u8>>)]) {
        let expected: BTreeMap<String, Vec<u8>> = files.iter().map(|(name, chunks)| ((*name).to_owned(), chunks.concat())).collect();
        assert_eq!(read_all(&self.session("victim"), &Open::Backup(backup.id)), expected, "the victim's backup");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.thread.take().map(|thread| thread.join());
        self.catalog.engine().close().unwrap();
    }
}

/// How a channel ended: code and text of the server.
pub type Refused = (u16, String);

fn refused(error: ChannelError) -> Refused {
    match error {
        ChannelError::Cancelled { code, text, .. } => (code, text),
        error => panic!("the session fails: {error}"),
    }
}

pub fn receive(channel: &Channel) -> Result<Option<Message>, Refused> {
    channel.receive().map_err(refused)
}

/// Receives until the channel is refused.
pub fn refusal(channel: &Channel) -> Refused {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match channel.receive_until(until).map_err(refused) {
            Err(refused) => return refused,
            Ok(Received::Message(_)) => {}
            Ok(found) => panic!("the server took it: {found:?}"),
        }
    }
}

pub fn name_of(chunk: &[u8]) -> Fingerprint {
    let mut names = Vec::new();
    Algorithm::Blake3.fingerprint_many(&[chunk], &mut names);
    names[0]
}

/// Chunks that nobody else has.
pub fn random(seed: u64, count: usize, length: usize) -> Vec<Vec<u8>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..count).map(|_| (0..length).map(|_| next()).collect()).collect()
}

pub fn begin_with(session: &ClientSession, begin: &Begin) -> Result<(Channel, Began), Refused> {
    let channel = session.open(services::BACKUP, begin.encode()).map_err(refused)?;
    let message = receive(&channel)?.expect("an answer");
    let BackupAnswer::Began(began) = BackupAnswer::decode(message.kind, &message.payload).unwrap() else { panic!("another answer") };
    Ok((channel, *began))
}

pub fn beginning(name: &str) -> Begin {
    Begin { name: name.into(), host: "host".into(), paths: vec![b"/data".to_vec()], against: Against::Newest }
}

pub fn begin(session: &ClientSession, name: &str) -> Result<(Channel, Began), Refused> {
    begin_with(session, &beginning(name))
}

/// Begins a backup and starts it.
pub fn start(session: &ClientSession, name: &str) -> (Channel, Began) {
    let (channel, began) = begin(session, name).unwrap();
    say(&channel, &BackupRequest::Start);
    (channel, began)
}

pub fn say(channel: &Channel, request: &BackupRequest) {
    let (kind, payload) = request.encode();
    // The server may have refused already.
    let _ = channel.send(kind, payload);
}

pub fn contents(session: &ClientSession, number: u64) -> Channel {
    let mut opening = Vec::new();
    put_varint(&mut opening, number);
    session.open(services::CONTENTS, opening).unwrap()
}

pub fn put(channel: &Channel, request: &ContentsRequest) {
    let (kind, payload) = request.encode(DIGEST);
    let _ = channel.send(kind, payload);
}

pub fn file_of(ticket: u64, earlier: &str, chunks: &[Vec<u8>]) -> Vec<Offered> {
    let chunks = chunks.iter().map(|chunk| Offered::Chunk { fingerprint: name_of(chunk), length: chunk.len() as u32 });
    [Offered::Begin { ticket, earlier: earlier.as_bytes().to_vec() }].into_iter().chain(chunks).chain([Offered::End]).collect()
}

/// Offers things. Returns which chunks are wanted.
pub fn offer(channel: &Channel, items: Vec<Offered>) -> Result<Vec<bool>, Refused> {
    put(channel, &ContentsRequest::Offer(items));
    let message = receive(channel)?.expect("an answer");
    assert_eq!(message.kind, Wanted::KIND);
    Ok(Wanted::decode(&message.payload).unwrap().0)
}

pub fn supply_of(chunks: &[Vec<u8>]) -> ContentsRequest {
    let bytes = chunks.concat();
    ContentsRequest::Supply { chunks: chunks.len() as u64, codec: 0, raw_bytes: bytes.len() as u64, bytes }
}

/// Offers a file and supplies what is wanted of it. Returns which chunks were.
pub fn store(channel: &Channel, ticket: u64, earlier: &str, chunks: &[Vec<u8>]) -> Result<Vec<bool>, Refused> {
    let mut all = Vec::new();
    let items = file_of(ticket, earlier, chunks);
    let mut rest = chunks;
    for items in items.chunks(1000) {
        let wanted = offer(channel, items.to_vec())?;
        let (now, later) = rest.split_at(wanted.len());
        rest = later;
        let missing: Vec<Vec<u8>> = now.iter().zip(&wanted).filter(|(_, wanted)| **wanted).map(|(chunk, _)| chunk.clone()).collect();
        // A supply is at most twice a frame.
        missing.chunks(8).for_each(|chunks| put(channel, &supply_of(chunks)));
        all.extend(wanted);
    }
    Ok(all)
}

pub fn entry(name: &str, ticket: u64) -> Step {
    let content = Content::File { size_bytes: 0, recipe: Recipe::default() };
    let entry = Entry { name: name.as_bytes().to_vec(), attributes: Attributes::default(), content };
    Step::Put { entry, ticket: Some(ticket), earlier: None }
}

pub fn finish(channel: &Channel, steps: Vec<Step>) -> Result<BackupAnswer, Refused> {
    say(channel, &BackupRequest::Steps(steps));
    say(channel, &BackupRequest::Finish);
    let message = receive(channel)?.expect("an answer");
    Ok(BackupAnswer::decode(message.kind, &message.payload).unwrap())
}

pub fn no_details() -> Commit {
    Commit { user: "user".into(), tags: Vec::new(), options: "{}".into(), statistics: Statistics::default() }
}

pub fn commit(channel: &Channel, commit: Commit) -> Result<Backup, Refused> {
    say(channel, &BackupRequest::Commit(commit));
    let message = receive(channel)?.expect("an answer");
    let BackupAnswer::Committed(backup) = BackupAnswer::decode(message.kind, &message.payload).unwrap() else { panic!("another answer") };
    Ok(*backup)
}

/// Makes a backup of files, each given as its chunks, sorted by name.
pub fn back_up(session: &ClientSession, name: &str, files: &[(&str, Vec<Vec<u8>>)]) -> Backup {
    let (channel, began) = start(session, name);
    // Without files nothing would wait for the channel.
    let data = (!files.is_empty()).then(|| contents(session, began.number));
    for (data, (ticket, (_, chunks))) in data.iter().cycle().zip(files.iter().enumerate()) {
        store(data, ticket as u64, "", chunks).unwrap();
    }
    data.iter().for_each(Channel::finish);
    let steps = files.iter().enumerate().map(|(ticket, (name, _))| entry(name, ticket as u64)).collect();
    finish(&channel, steps).unwrap();
    let backup = commit(&channel, no_details()).unwrap();
    data.iter().for_each(|data| assert_eq!(receive(data), Ok(None)));
    backup
}

/// A backup that is read.
#[derive(Debug)]
pub struct Reading {
    pub channel: Channel,
    pub number: u64,
    pub backup: Backup,
}

pub fn open(session: &ClientSession, open: &Open) -> Result<Reading, Refused> {
    let channel = session.open(services::READ, open.encode()).map_err(refused)?;
    let message = receive(&channel)?.expect("an answer");
    let ReadAnswer::Opened { number, backup, .. } = ReadAnswer::decode(message.kind, &message.payload, DIGEST).unwrap() else {
        panic!("another answer")
    };
    Ok(Reading { channel, number, backup: *backup })
}

impl Reading {
    pub fn ask(&self, request: &ReadRequest) -> Result<ReadAnswer, Refused> {
        let (kind, payload) = request.encode(DIGEST);
        let _ = self.channel.send(kind, payload);
        let message = receive(&self.channel)?.expect("an answer");
        Ok(ReadAnswer::decode(message.kind, &message.payload, DIGEST).unwrap())
    }

    pub fn data(&self, pieces: &[Piece]) -> Result<ReadAnswer, Refused> {
        self.ask(&ReadRequest::Data { compresses: false, pieces: pieces.to_vec() })
    }

    pub fn metadata(&self, piece: &Piece, what: Metadata) -> Result<Vec<u8>, String> {
        match self.ask(&ReadRequest::Metadata { piece: *piece, what }).unwrap() {
            ReadAnswer::Metadata(mut chunks) => Ok(chunks.pop().unwrap().content),
            ReadAnswer::Failed(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    /// The pieces of level 0 that a recipe spells.
    pub fn pieces(&self, recipe: &Recipe, of: Of) -> Vec<Piece> {
        let (mut level, mut pieces) = (recipe.level, recipe.pieces.clone());
        while level > 0 {
            let read = |piece: &Piece| {
                let content = self.metadata(piece, Metadata::Recipe { level, of }).unwrap();
                decode_pieces(&mut Reader::new(&content), DIGEST).unwrap()
            };
            pieces = pieces.iter().flat_map(read).collect();
            level -= 1;
        }
        pieces
    }

    pub fn entries(&self, recipe: &Recipe) -> Vec<Entry> {
        let read = |piece: &Piece| {
            let content = self.metadata(piece, Metadata::Directory).unwrap();
            DirectoryChunk::decode(&content, DIGEST).unwrap().sent().unwrap().entries
        };
        self.pieces(recipe, Of::Directory).iter().flat_map(read).collect()
    }

    fn read_directory(&self, recipe: &Recipe, path: &str, out: &mut BTreeMap<String, Vec<u8>>) {
        for entry in self.entries(recipe) {
            let path = format!("{path}{}", String::from_utf8_lossy(&entry.name));
            match &entry.content {
                Content::File { recipe, .. } => {
                    let mut bytes = Vec::new();
                    for pieces in self.pieces(recipe, Of::File).chunks(8) {
                        let ReadAnswer::Data { codec: 0, bytes: part } = self.data(pieces).unwrap() else { panic!("{path} is not read") };
                        bytes.extend(part);
                    }
                    out.insert(path, bytes);
                }
                Content::Directory { recipe } => {
                    out.insert(format!("{path}/"), Vec::new());
                    self.read_directory(recipe, &format!("{path}/"), out);
                }
                _ => {}
            }
        }
    }

    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut out = BTreeMap::new();
        self.read_directory(&self.backup.root, "", &mut out);
        out
    }
}

/// Reads all files of a backup.
pub fn read_all(session: &ClientSession, which: &Open) -> BTreeMap<String, Vec<u8>> {
    open(session, which).unwrap().files()
}
