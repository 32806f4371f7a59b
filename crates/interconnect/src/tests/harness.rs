//! What the tests share: a directory, an owner that notes what it is asked, gates, a line that can be cut, and a peer
//! that sends what it likes.

use crate::frame::{self, Frame};
use crate::greeting::{self, Hello, VERSION};
use crate::messages::{ClaimPart, Membership, Message};
use crate::tls::Identity;
use crate::{Directory, Interconnect, Options, Owner, Refusal, Server, Setup};
use onefold_engine::{Candidate, Claim, Delivery, Everybody, PruneOptions, PruneReport, RemovalAnswer, RemovalStep, Search, Wanted};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Partition, Position};
use onefold_remote::transport::CertificateFingerprint;
use onefold_storage::ContainerId;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub const STORE: [u8; 16] = *b"a store of tests";
pub const MINUTE: Duration = Duration::from_secs(60);
/// Partitions of the chunk index.
pub const INDEX: u32 = 8;

/// Waits for a condition.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + MINUTE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Closed until it is opened. Counts who stands before it.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().0 = true;
    }

    pub fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
    }

    pub fn waiting(&self) -> usize {
        self.state.lock().1
    }
}

/// Who is where. All partitions are node 1's unless a test says otherwise.
#[derive(Debug, Default)]
pub struct Book {
    pub fingerprints: RwLock<BTreeMap<u32, CertificateFingerprint>>,
    pub addresses: RwLock<BTreeMap<u32, String>>,
    pub owners: RwLock<BTreeMap<Partition, (u32, u64)>>,
    pub table: AtomicU64,
    pub heard: Mutex<Vec<u64>>,
}

impl Directory for Book {
    fn fingerprint(&self, node: u32) -> Option<CertificateFingerprint> {
        self.fingerprints.read().get(&node).copied()
    }

    fn address(&self, node: u32) -> Option<String> {
        self.addresses.read().get(&node).cloned()
    }

    fn nodes(&self) -> Vec<u32> {
        let owners = self.owners.read().values().map(|(owner, _)| *owner).collect::<Vec<_>>();
        let named: BTreeSet<u32> = self.addresses.read().keys().copied().chain(owners).collect();
        named.into_iter().collect()
    }

    fn table(&self) -> u64 {
        self.table.load(Ordering::SeqCst)
    }

    fn owner(&self, partition: Partition) -> Option<(u32, u64)> {
        Some(self.owners.read().get(&partition).copied().unwrap_or((1, 1)))
    }

    fn everybody(&self) -> Result<Everybody, String> {
        Ok(Everybody { table: self.table(), nodes: self.nodes(), gone: Vec::new() })
    }

    fn may_answer(&self) -> bool {
        true
    }

    fn heads(&self, table: u64) {
        self.heard.lock().push(table);
    }
}

/// What an owner was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Claim(u32, Vec<Fingerprint>),
    Release(u32, Vec<Fingerprint>),
    Wait(u32, Fingerprint),
    Hurry,
    Deliver(u32, u16, u64, Delivery),
    Begin(u32),
    Seal(ContainerId, u64),
    Collect(u32, u16, u64),
    Remove(u32, RemovalStep),
    Dead(u16, u64, Vec<Candidate>),
    Membership(u32, Membership),
}

/// An owner that notes what it is asked, when it has done it. It answers claims with [`Claim::Mine`].
#[derive(Debug, Default)]
pub struct Noting {
    pub asked: Mutex<Vec<Asked>>,
    pub claims: Gate,
    pub deliveries: Gate,
    pub waits: Gate,
    pub seals: Gate,
    /// What it answers to claims instead.
    pub refusal: Mutex<Option<Refusal>>,
    /// What it has claimed itself.
    pub claimed: Mutex<Vec<Fingerprint>>,
}

impl Noting {
    fn note(&self, asked: Asked) {
        self.asked.lock().push(asked);
    }

    pub fn has(&self, asked: &Asked) -> bool {
        self.asked.lock().contains(asked)
    }
}

impl Owner for Noting {
    fn claim(&self, from: u32, parts: &[ClaimPart], out: &mut Vec<Claim>) -> Result<(), Refusal> {
        self.claims.pass();
        let names: Vec<Fingerprint> = parts.iter().flat_map(|part| &part.wanted).map(|(name, _)| *name).collect();
        out.extend(names.iter().map(|_| Claim::Mine));
        self.note(Asked::Claim(from, names));
        self.refusal.lock().clone().map_or(Ok(()), Err)
    }

    fn release(&self, from: u32, names: &[Fingerprint]) {
        self.note(Asked::Release(from, names.to_vec()));
    }

    fn wait(&self, from: u32, _partition: u16, _epoch: u64, name: &Fingerprint, _until: Instant) -> Result<(), Refusal> {
        self.waits.pass();
        self.note(Asked::Wait(from, *name));
        Ok(())
    }

    fn hurry(&self) {
        self.note(Asked::Hurry);
    }

    fn deliver(&self, from: u32, partition: u16, epoch: u64, delivery: &Delivery) -> Result<Position, Refusal> {
        self.deliveries.pass();
        self.note(Asked::Deliver(from, partition, epoch, delivery.clone()));
        Ok(delivery.upto)
    }

    fn begin(&self, from: u32) -> Result<(), Refusal> {
        self.note(Asked::Begin(from));
        Ok(())
    }

    fn seal(&self, container: ContainerId, epoch: u64) -> Result<(), Refusal> {
        self.seals.pass();
        self.note(Asked::Seal(container, epoch));
        Ok(())
    }

    fn collect(&self, from: u32, partition: u16, epoch: u64) -> Result<Vec<Fingerprint>, Refusal> {
        self.note(Asked::Collect(from, partition, epoch));
        Ok(self.claimed.lock().clone())
    }

    fn remove(&self, from: u32, step: &RemovalStep) -> Result<RemovalAnswer, Refusal> {
        self.note(Asked::Remove(from, step.clone()));
        Ok(match step {
            RemovalStep::Doom { copies, .. } => RemovalAnswer::Doomed(copies.iter().map(|copy| copy.address.bits() > 7).collect()),
            RemovalStep::Settle { .. } => RemovalAnswer::NotYet,
            _ => RemovalAnswer::Permitted,
        })
    }

    fn dead(&self, partition: u16, epoch: u64, copies: &[Candidate]) -> Result<(), Refusal> {
        self.note(Asked::Dead(partition, epoch, copies.to_vec()));
        Ok(())
    }

    fn reclaim(&self, request: u64, _: PruneOptions) -> Result<Option<PruneReport>, Refusal> {
        Ok((request > 1).then(|| PruneReport { chunks: request, problems: vec!["one".to_owned()], ..PruneReport::default() }))
    }

    fn membership(&self, from: u32, message: Membership) {
        self.note(Asked::Membership(from, message));
    }
}

/// Returns options that wait for a minute, but for what a test is about.
pub fn patient() -> Options {
    Options { claim: MINUTE, deliver: MINUTE, seal: MINUTE, greeting: MINUTE, silence: MINUTE, ..Options::default() }
}

/// Returns a new certificate with the name of a node.
pub fn identity(node: u32) -> Identity {
    let (certificate, key) = Identity::make(node, &STORE).unwrap();
    Identity::from_pem(&certificate, &key).unwrap()
}

/// Starts a node that the book knows. It has opened its log.
pub fn node(book: &Arc<Book>, node: u32, options: Options) -> Interconnect {
    let identity = identity(node);
    book.fingerprints.write().insert(node, identity.fingerprint());
    with_identity(book, node, identity, options)
}

pub fn with_identity(book: &Arc<Book>, node: u32, identity: Identity, options: Options) -> Interconnect {
    let setup = Setup { store: STORE, digest_bytes: 32, node, identity, directory: book.clone(), options };
    let interconnect = Interconnect::new(setup, INDEX).unwrap();
    interconnect.opened(1);
    interconnect
}

/// Has a node answer, at an address that the book knows.
pub fn serve(book: &Arc<Book>, node: u32, interconnect: &Interconnect, owner: &Arc<Noting>) -> Server {
    let server = interconnect.serve(listener(), owner.clone()).unwrap();
    book.addresses.write().insert(node, server.address().to_string());
    server
}

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Two nodes: 0 asks, 1 answers.
pub struct Pair {
    pub book: Arc<Book>,
    pub asking: Interconnect,
    pub answering: Interconnect,
    pub owner: Arc<Noting>,
    pub server: Option<Server>,
}

pub fn pair(options: Options) -> Pair {
    let book = Arc::new(Book::default());
    let (asking, answering) = (node(&book, 0, options.clone()), node(&book, 1, options));
    let owner = Arc::new(Noting::default());
    let server = Some(serve(&book, 1, &answering, &owner));
    Pair { book, asking, answering, owner, server }
}

pub fn name(number: u64) -> Fingerprint {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    digest[8..16].copy_from_slice(&number.to_le_bytes());
    Fingerprint::from_digest(&digest)
}

pub fn names(numbers: std::ops::Range<u64>) -> Vec<Fingerprint> {
    numbers.map(name).collect()
}

pub fn wanted(names: &[Fingerprint]) -> Vec<Wanted> {
    names.iter().map(|name| Wanted { fingerprint: *name, search: Search::Stored }).collect()
}

/// A line to an address that can be cut, and that may lose what comes back.
pub struct Line {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sockets: Mutex<Vec<TcpStream>>,
    loses_answers: AtomicBool,
}

impl Line {
    pub fn to(target: String) -> Line {
        let listener = listener();
        let line = Line { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = line.shared.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(&target) else { continue };
                shared.sockets.lock().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let (back, forth) = ((far.try_clone().unwrap(), near.try_clone().unwrap()), (near, far));
                let of = shared.clone();
                std::thread::spawn(move || copy(forth.0, forth.1, || false));
                std::thread::spawn(move || copy(back.0, back.1, || of.loses_answers.load(Ordering::SeqCst)));
            }
        });
        line
    }

    /// Ends all connections. New ones are possible.
    pub fn cut(&self) {
        for socket in self.shared.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    pub fn lose_answers(&self, loses: bool) {
        self.shared.loses_answers.store(loses, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, is_lost: impl Fn() -> bool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !is_lost() && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A connection whose other end is a node, by hand.
pub struct Raw<S> {
    runtime: tokio::runtime::Runtime,
    stream: S,
}

pub type Client = tokio_rustls::client::TlsStream<tokio::net::TcpStream>;
pub type Accepted = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Connects to a node, without a greeting.
pub fn connect(identity: &Identity, book: &Book, node: u32) -> Raw<Client> {
    let (config, host) = identity.client(node, &STORE, book.fingerprint(node).unwrap()).unwrap();
    let address = book.address(node).unwrap();
    let runtime = runtime();
    let stream = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        TlsConnector::from(config).connect(host, stream).await.unwrap()
    });
    Raw { runtime, stream }
}

/// Waits for a node that connects, without a greeting.
pub fn accept(identity: &Identity, listener: TcpListener) -> Raw<Accepted> {
    let runtime = runtime();
    let acceptor = TlsAcceptor::from(identity.server().unwrap());
    let stream = runtime.block_on(async {
        listener.set_nonblocking(true).unwrap();
        let (stream, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        acceptor.accept(stream).await.unwrap()
    });
    Raw { runtime, stream }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Raw<S> {
    pub fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.put(&mut bytes);
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        use tokio::io::AsyncWriteExt;
        self.runtime.block_on(async {
            // The other end may have gone already.
            let _ = self.stream.write_all(bytes).await;
            let _ = self.stream.flush().await;
        });
    }

    /// Reads the next frame that is no ping. `None`: the connection is over.
    pub fn read(&mut self) -> Option<Frame> {
        loop {
            let frame = self.runtime.block_on(frame::read(&mut self.stream, MINUTE));
            match frame {
                Ok(frame) if frame.kind == greeting::kinds::PING => {}
                Ok(frame) => return Some(frame),
                Err(error) => {
                    assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "the connection goes on");
                    return None;
                }
            }
        }
    }

    pub fn request(&mut self, id: u32, message: &Message) {
        self.send(&Frame { kind: message.kind(), id, payload: message.encode(0, 32) });
    }

    pub fn hello(&mut self, hello: Hello) -> Frame {
        self.send(&Frame { kind: greeting::kinds::HELLO, id: 0, payload: hello.encode() });
        self.read().unwrap()
    }
}

/// Returns a greeting of node 0 to node 1.
pub fn hello(connection: u64) -> Hello {
    Hello { version: VERSION, store: STORE, from: 0, to: 1, opening: 1, connection }
}
