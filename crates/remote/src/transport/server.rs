//! The server: accepts links, asks the door who may come in, keeps sessions, starts services.
//!
//! What strangers can take is bounded: so many connections without a session, so long for a greeting, so many logins
//! that are decided at once.

use super::Result;
use super::budget::{Budget, FIRST_WINDOW_BYTES};
use super::channel::Channel;
use super::core::{Core, Settings};
use super::error::{ChannelError, TransportError, codes};
use super::frame::{GREETING_BYTES, Limits, kinds};
use super::greeting::{Hello, Refusal, Resume, SessionId, Token, VERSION, Welcome};
use super::pump::{self, Link, RAW_READ_BYTES, TLS_WRITE_BYTES};
use super::tls::{CertificateFingerprint, ServerTls};
use onefold_ground::fill_random;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// The pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long links have to tell clients that the server stops.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// The intervals of keep-alive that are possible.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));
/// The longest first frame of a client.
const FIRST_FRAME_BYTES: usize = GREETING_BYTES;

/// Where a client comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket, with the user at its other end. `None`: the system does not say.
    Unix(Option<u32>),
}

/// Who is at the other end of a link, apart from what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where it comes from.
    pub address: PeerAddress,
    /// The certificate that it proved to own, signed by the authorities of clients.
    pub certificate: Option<CertificateFingerprint>,
}

/// What a client says who it is.
#[derive(Clone)]
pub struct Login {
    /// The account.
    pub account: String,
    /// Its secret.
    pub secret: Vec<u8>,
    /// The extensions that both ends know.
    pub extensions: Vec<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Login").field("account", &self.account).finish_non_exhaustive()
    }
}

/// Decides who may log in.
pub trait Door: Send + Sync {
    /// Returns what services get to know about the client, or why it may not come in. It is dropped with the session.
    ///
    /// It may take its time: it has a thread of its own, and few are asked at once.
    fn admit(&self, greeting: &Login, peer: &Peer) -> std::result::Result<Arc<dyn Any + Send + Sync>, Refusal>;
}

/// A client that was admitted.
#[derive(Clone)]
pub struct Visitor {
    /// The session.
    pub session: SessionId,
    /// The name that it logged in with.
    pub name: String,
    /// What the door returned.
    pub account: Arc<dyn Any + Send + Sync>,
    /// The other end of the first link.
    pub peer: Peer,
    /// The extensions that both ends know.
    pub extensions: Vec<String>,
}

/// What channels are for.
pub trait Services: Send + Sync {
    /// Serves a channel, on a thread of its own. The channel is cancelled unless it was finished.
    fn serve(&self, visitor: &Visitor, service: u8, opening: Vec<u8>, channel: Channel);
}

/// The bounds of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// What clients may send.
    pub limits: Limits,
    /// The extensions that the server knows.
    pub extensions: Vec<String>,
    /// The memory for windows of all sessions.
    pub budget_bytes: u64,
    /// The most sessions. Each has 1 MiB of the budget for sure, but never more than three quarters of it together.
    pub sessions: usize,
    /// The most channels of a session, at least 16.
    pub channels: usize,
    /// The most threads that serve channels.
    pub threads: usize,
    /// The most connections that have no session.
    pub strangers: usize,
    /// The most logins that are decided at once.
    pub logins: usize,
    /// How long a handshake and a greeting may take together.
    pub greeting: Duration,
    /// How long a session without a link is kept.
    pub linger: Duration,
    /// Both ends send a ping after so long a silence, and give a link up after three times that.
    pub keep_alive: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            limits: Limits::default(),
            extensions: Vec::new(),
            budget_bytes: Budget::USUAL_BYTES,
            sessions: 64,
            channels: 16,
            threads: 512,
            strangers: 64,
            logins: 2,
            greeting: Duration::from_secs(10),
            linger: Duration::from_secs(120),
            keep_alive: Duration::from_secs(15),
        }
    }
}

/// Where a server listens.
pub enum Listener {
    /// TCP with TLS.
    Tls(std::net::TcpListener, ServerTls),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

impl Listener {
    /// Listens at an address.
    pub fn tls(address: SocketAddr, tls: ServerTls) -> Result<Listener> {
        let listener = std::net::TcpListener::bind(address).map_err(TransportError::io(format!("cannot listen at {address}")))?;
        Ok(Listener::Tls(listener, tls))
    }
}

/// A session, for people.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// Its name.
    pub id: SessionId,
    /// The account.
    pub name: String,
    /// The other end of the first link.
    pub peer: Peer,
    /// When it began.
    pub since: SystemTime,
    /// Whether the client is connected.
    pub is_linked: bool,
    /// Channels that are open.
    pub channels: usize,
    /// Bytes of frames to the client.
    pub sent_bytes: u64,
    /// Bytes of frames from the client.
    pub received_bytes: u64,
}

/// A server. Clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    options: ServerOptions,
    door: Arc<dyn Door>,
    services: Arc<dyn Services>,
    budget: Arc<Budget>,
    sessions: Mutex<HashMap<SessionId, Entry>>,
    /// No session begins any more. It is set and asked with the lock of the sessions.
    stops: AtomicBool,
    strangers: Arc<Semaphore>,
    logins: Semaphore,
    threads: Arc<AtomicUsize>,
}

/// A session that the server knows.
#[derive(Clone)]
struct Entry {
    core: Arc<Core>,
    visitor: Arc<Visitor>,
    version: u32,
    /// The hash of the token: hashes are compared in constant time, and memory does not show the secret.
    token: blake3::Hash,
    since: SystemTime,
}

impl Server {
    /// Creates a server that listens nowhere yet.
    pub fn new(mut options: ServerOptions, door: Arc<dyn Door>, services: Arc<dyn Services>) -> Server {
        options.keep_alive = options.keep_alive.clamp(KEEP_ALIVE.0, KEEP_ALIVE.1);
        options.limits = Limits::with_payload(options.limits.payload_bytes);
        Server(Arc::new(Shared {
            budget: Budget::new(options.budget_bytes, options.sessions),
            sessions: Mutex::default(),
            stops: AtomicBool::new(false),
            strangers: Arc::new(Semaphore::new(options.strangers)),
            logins: Semaphore::new(options.logins),
            threads: Arc::default(),
            options,
            door,
            services,
        }))
    }

    /// Returns the budget of windows.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Returns the sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let entries: Vec<Entry> = self.0.sessions.lock().values().cloned().collect();
        let info = |Entry { core, visitor, since, .. }: Entry| SessionInfo {
            id: visitor.session,
            name: visitor.name.clone(),
            peer: visitor.peer.clone(),
            since,
            is_linked: core.is_linked(),
            channels: core.channels(),
            sent_bytes: core.sent_bytes.load(Ordering::Relaxed),
            received_bytes: core.received_bytes.load(Ordering::Relaxed),
        };
        entries.into_iter().map(info).collect()
    }

    /// Ends a session. Returns `false` if there is none of that name.
    pub fn close(&self, session: SessionId) -> bool {
        let Some(entry) = self.0.sessions.lock().remove(&session) else { return false };
        entry.core.end(ChannelError::Closed, Some((codes::CLOSED, "the administrator of the server closed the session")));
        true
    }

    /// Refuses new sessions from now on. Those that there are go on.
    pub fn refuse_new(&self) {
        let _sessions = self.0.sessions.lock();
        self.0.stops.store(true, Ordering::Relaxed);
    }

    /// Refuses new sessions from now on if there are none. Returns whether it does.
    pub fn stop_if_idle(&self) -> bool {
        let sessions = self.0.sessions.lock();
        if sessions.is_empty() {
            self.0.stops.store(true, Ordering::Relaxed);
        }
        sessions.is_empty()
    }

    /// Serves until `shutdown` is ready, then ends all sessions.
    ///
    /// Errors: a listener cannot be used.
    pub async fn run(&self, listeners: Vec<Listener>, shutdown: impl Future<Output = ()>) -> Result<()> {
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        for listener in listeners {
            let listener = Accepting::new(listener).map_err(TransportError::io("cannot listen"))?;
            loops.spawn(accept(Arc::clone(&self.0), listener, stopped.clone()));
        }
        shutdown.await;
        let entries: Vec<Entry> = {
            let mut sessions = self.0.sessions.lock();
            self.0.stops.store(true, Ordering::Relaxed);
            sessions.drain().map(|(_, entry)| entry).collect()
        };
        stop.send_replace(true);
        for entry in entries {
            entry.core.end(ChannelError::Closed, Some((codes::SHUTDOWN, "the server stops")));
        }
        while loops.join_next().await.is_some() {}
        Ok(())
    }
}

enum Accepting {
    Tls(TcpListener, TlsAcceptor),
    Unix(UnixListener),
}

enum Accepted {
    Tls(TcpStream, SocketAddr, TlsAcceptor),
    Unix(UnixStream),
}

impl Accepting {
    fn new(listener: Listener) -> std::io::Result<Accepting> {
        Ok(match listener {
            Listener::Tls(listener, tls) => {
                listener.set_nonblocking(true)?;
                Accepting::Tls(TcpListener::from_std(listener)?, TlsAcceptor::from(tls.config))
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Accepting::Unix(UnixListener::from_std(listener)?)
            }
        })
    }

    async fn accept(&self) -> std::io::Result<Accepted> {
        Ok(match self {
            Accepting::Tls(listener, acceptor) => {
                let (stream, address) = listener.accept().await?;
                Accepted::Tls(stream, address, acceptor.clone())
            }
            Accepting::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
        })
    }
}

async fn accept(shared: Arc<Shared>, listener: Accepting, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = until_stopped(&mut stopped) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(accepted) => match Arc::clone(&shared.strangers).try_acquire_owned() {
                    Ok(place) => { connections.spawn(connection(Arc::clone(&shared), accepted, place)); }
                    Err(_) => tracing::warn!("a connection was dropped: too many have not logged in"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Whoever comes now is turned away, and need not wait for an answer.
    drop(listener);
    let _ = timeout(SHUTDOWN, async { while connections.join_next().await.is_some() {} }).await;
}

async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // The sender is dropped only when the server stops.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Serves one connection. `place` is given back once it has a session.
async fn connection(shared: Arc<Shared>, accepted: Accepted, place: OwnedSemaphorePermit) {
    let first = async {
        let (mut link, peer) = prepare(accepted).await?;
        let first = link.greeting(FIRST_FRAME_BYTES).await?;
        std::io::Result::Ok((link, peer, first))
    };
    let (mut link, peer, first) = match timeout(shared.options.greeting, first).await {
        Ok(Ok(first)) => first,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection ended before its greeting"),
        Err(_) => return tracing::debug!("a connection sent no greeting in time"),
    };
    let admitted = match first {
        Some((kinds::HELLO, payload)) => match Hello::decode(&payload) {
            Some(hello) => begin(&shared, hello, &peer).await,
            None => Err(malformed()),
        },
        Some((kinds::RESUME, payload)) => match Resume::decode(&payload) {
            Some(resume) => self::resume(&shared, &resume, &peer),
            None => Err(malformed()),
        },
        _ => Err(malformed()),
    };
    let answer = match &admitted {
        Ok(admitted) => timeout(shared.options.greeting, link.greet(kinds::WELCOME, &admitted.welcome.encode())).await,
        Err(refusal) => timeout(shared.options.greeting, link.greet(kinds::REFUSAL, &refusal.encode())).await,
    };
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => {
            tracing::debug!(code = refusal.code, refusal.text, ?peer, "a client was refused");
            return link.farewell().await;
        }
    };
    drop(place);
    let Admitted { entry, generation, .. } = admitted;
    if matches!(answer, Ok(Ok(()))) {
        let reason = pump::run(&entry.core, link, generation, &opener(&shared, &entry)).await;
        if !reason.is_empty() {
            tracing::debug!(session = %entry.visitor.session, reason, "the link broke");
        }
    } else {
        drop(link);
    }
    linger(&shared, &entry, generation).await;
}

/// Keeps a session without a link for a while, and forgets it when it ended.
async fn linger(shared: &Shared, entry: &Entry, generation: u64) {
    let core = &entry.core;
    if core.detach(generation) {
        let _ = timeout(shared.options.linger, core.until_ended()).await;
        if core.is_abandoned(generation) {
            core.end(ChannelError::Closed, None);
        }
    }
    if core.ended().is_some() {
        shared.sessions.lock().remove(&entry.visitor.session);
    }
}

/// Encrypts a connection, if it is not local.
async fn prepare(accepted: Accepted) -> std::io::Result<(Link, Peer)> {
    match accepted {
        Accepted::Tls(stream, address, acceptor) => {
            stream.set_nodelay(true)?;
            let mut stream = acceptor.accept(BufReader::with_capacity(RAW_READ_BYTES, stream)).await?;
            let connection = stream.get_mut().1;
            connection.set_buffer_limit(Some(TLS_WRITE_BYTES));
            let certificate = connection.peer_certificates().and_then(<[_]>::first).map(CertificateFingerprint::of);
            Ok((Link::new(Box::new(stream)), Peer { address: PeerAddress::Tcp(address), certificate }))
        }
        Accepted::Unix(stream) => {
            let user = stream.peer_cred().ok().map(|credentials| credentials.uid());
            Ok((Link::new(Box::new(stream)), Peer { address: PeerAddress::Unix(user), certificate: None }))
        }
    }
}

/// A client that has a session and a place in it for its link.
struct Admitted {
    entry: Entry,
    generation: u64,
    welcome: Welcome,
}

fn malformed() -> Refusal {
    Refusal::new(codes::GREETING, "the greeting is malformed")
}

/// Begins a session.
async fn begin(shared: &Arc<Shared>, hello: Hello, peer: &Peer) -> std::result::Result<Admitted, Refusal> {
    let options = &shared.options;
    let version = hello.version.min(VERSION);
    if version == 0 {
        return Err(Refusal::new(codes::VERSION, format!("the server speaks version {VERSION}")));
    }
    let extensions: Vec<String> = hello.extensions.into_iter().filter(|name| options.extensions.contains(name)).collect();
    let login = Login { account: hello.account, secret: hello.secret, extensions: extensions.clone() };
    let name = login.account.clone();
    let account = decide(shared, login, peer.clone()).await?;
    let share = shared.budget.admit().ok_or_else(|| Refusal::new(codes::BUSY, "the server has too many sessions"))?;
    let (mut session, mut token) = ([0; 16], [0; 32]);
    let random = fill_random(&mut session).and_then(|()| fill_random(&mut token));
    random.map_err(|error| Refusal::new(codes::BUSY, format!("the server has no randomness: {error}")))?;
    let session = SessionId(session);
    let settings = Settings {
        payload_bytes: options.limits.payload_bytes,
        window_bytes: FIRST_WINDOW_BYTES,
        channels: options.channels.max(16),
        keep_alive: options.keep_alive,
        is_server: true,
    };
    let core = Core::new(settings, share);
    let (generation, received) = core.attach(0).map_err(|error| Refusal::new(codes::NUMBERS, error.to_string()))?;
    let visitor = Arc::new(Visitor { session, name, account, peer: peer.clone(), extensions });
    let entry = Entry { core, visitor, version, token: blake3::hash(&token), since: SystemTime::now() };
    let welcome = welcome(options, &entry, Token(token), received);
    let mut sessions = shared.sessions.lock();
    if shared.stops.load(Ordering::Relaxed) {
        return Err(Refusal::new(codes::SHUTDOWN, "the server stops"));
    }
    sessions.insert(session, entry.clone());
    drop(sessions);
    Ok(Admitted { entry, generation, welcome })
}

/// Asks the door.
async fn decide(shared: &Arc<Shared>, login: Login, peer: Peer) -> std::result::Result<Arc<dyn Any + Send + Sync>, Refusal> {
    // The semaphore is never closed.
    let _turn = shared.logins.acquire().await;
    let door = Arc::clone(&shared.door);
    let decided = tokio::task::spawn_blocking(move || door.admit(&login, &peer)).await;
    decided.unwrap_or_else(|error| {
        tracing::error!(%error, "a login could not be decided");
        Err(Refusal::new(codes::DENIED, "the login could not be decided"))
    })
}

/// Gives a session a new link. The newest link wins.
fn resume(shared: &Shared, resume: &Resume, peer: &Peer) -> std::result::Result<Admitted, Refusal> {
    let unknown = || Refusal::new(codes::SESSION_UNKNOWN, "the server does not know the session");
    let entry = shared.sessions.lock().get(&resume.session).cloned().ok_or_else(unknown)?;
    let is_same = entry.token == blake3::hash(&resume.token.0)
        && entry.version == resume.version
        && entry.visitor.peer.certificate == peer.certificate
        && entry.core.ended().is_none();
    if !is_same {
        return Err(unknown());
    }
    let (generation, received) = entry.core.attach(resume.received).map_err(|error| Refusal::new(codes::NUMBERS, error.to_string()))?;
    let welcome = welcome(&shared.options, &entry, resume.token.clone(), received);
    Ok(Admitted { entry, generation, welcome })
}

fn welcome(options: &ServerOptions, entry: &Entry, token: Token, received: u64) -> Welcome {
    Welcome {
        version: entry.version,
        extensions: entry.visitor.extensions.clone(),
        session: entry.visitor.session,
        token,
        payload_bytes: options.limits.payload_bytes as u32,
        window_bytes: FIRST_WINDOW_BYTES as u32,
        keep_alive_ms: u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX),
        received,
    }
}

/// Starts a thread for each channel, within the bound of threads.
fn opener(shared: &Arc<Shared>, entry: &Entry) -> impl Fn(u8, Vec<u8>, Channel) + Send + Sync + 'static {
    let (shared, visitor) = (Arc::clone(shared), Arc::clone(&entry.visitor));
    move |service, opening, channel| {
        let Some(turn) = Turn::take(&shared.threads, shared.options.threads) else {
            return channel.cancel_with(codes::BUSY, "the server has too many channels");
        };
        let (services, visitor) = (Arc::clone(&shared.services), Arc::clone(&visitor));
        let serve = move || {
            let _turn = turn;
            services.serve(&visitor, service, opening, channel);
        };
        // If there is no thread, the channel is dropped, and so cancelled.
        if let Err(error) = std::thread::Builder::new().name(format!("service-{service}")).spawn(serve) {
            tracing::error!(%error, "a channel got no thread");
        }
    }
}

/// One of the threads that are allowed.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    fn take(threads: &Arc<AtomicUsize>, most: usize) -> Option<Turn> {
        let more = |count| if count < most { Some(count + 1) } else { None };
        threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Turn(Arc::clone(threads)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
