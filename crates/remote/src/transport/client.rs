//! The client: connects, keeps its session over broken links, opens channels.

use super::budget::Budget;
use super::channel::Channel;
use super::core::{Core, Settings};
use super::error::{ChannelError, TransportError, codes};
use super::frame::{GREETING_BYTES, Limits, OPENING_BYTES, kinds};
use super::greeting::{Hello, Refusal, Resume, VERSION, Welcome};
use super::pump::{self, GOODBYE, Link, RAW_READ_BYTES, TLS_WRITE_BYTES};
use super::tls::{ClientIdentity, ClientTls, Trust};
use super::{Result, SessionId};
use parking_lot::Mutex;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};
use tokio::io::BufReader;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

/// How long a connection and its handshake may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the answer to a greeting may take. The server decides about two logins at a time.
const ANSWER: Duration = Duration::from_secs(30);
/// The first pause between attempts to reconnect, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long a session may take to end.
const DRAIN: Duration = Duration::from_secs(60);
/// The channels of a session that a server allows at least.
const CHANNELS: usize = 16;
/// The intervals of keep-alive that a server may ask for.
const KEEP_ALIVE_MS: (u32, u32) = (10, 3_600_000);
/// The windows that a server may name.
const WINDOWS: std::ops::RangeInclusive<u32> = (32 << 10)..=(16 << 20);

/// Where the server is.
#[derive(Debug, Clone)]
pub enum Target {
    /// TCP with TLS.
    Tls {
        /// The name or address of the host.
        host: String,
        /// The port.
        port: u16,
        /// How the server is known.
        trust: Trust,
        /// The certificate of the client, if it has one.
        identity: Option<ClientIdentity>,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Who the client is. Empty on a Unix socket.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The account: at most 256 bytes.
    pub account: String,
    /// Its secret: at most 256 bytes.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("account", &self.account).finish_non_exhaustive()
    }
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Where the server is.
    pub target: Target,
    /// Who the client is.
    pub credentials: Credentials,
    /// The extensions that the client knows: at most 32 names of at most 64 bytes.
    pub extensions: Vec<String>,
    /// How long to try to reconnect after the link broke. Zero: never.
    pub retry: Duration,
    /// The memory for windows.
    pub memory_bytes: u64,
}

impl ConnectOptions {
    /// Returns the usual options: five minutes of reconnecting, 128 MiB for windows.
    pub fn new(target: Target, credentials: Credentials) -> ConnectOptions {
        let retry = Duration::from_secs(300);
        ConnectOptions { target, credentials, extensions: Vec::new(), retry, memory_bytes: Budget::USUAL_BYTES }
    }
}

/// A session with a server. Dropping it ends the session at once; [`ClientSession::close`] waits for what was sent.
pub struct ClientSession {
    core: Arc<Core>,
    id: SessionId,
    extensions: Vec<String>,
    /// Disconnected when the link is closed.
    done: Mutex<mpsc::Receiver<()>>,
}

impl fmt::Debug for ClientSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientSession({})", self.id)
    }
}

/// Pumps the links of all clients of this process.
static RUNTIME: LazyLock<std::io::Result<Runtime>> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("onefold-link").enable_all().build());

impl ClientSession {
    /// Connects and logs in.
    pub fn connect(options: ConnectOptions) -> Result<ClientSession> {
        let runtime = match &*RUNTIME {
            Ok(runtime) => runtime,
            Err(error) => {
                let source = std::io::Error::new(error.kind(), error.to_string());
                return Err(TransportError::Io { action: "cannot start the threads of connections".to_owned(), source });
            }
        };
        let dialer = Dialer::new(&options)?;
        let (answer, answered) = mpsc::channel();
        runtime.spawn(async move {
            // The receiver waits for as long as this task lives.
            let _ = answer.send(begin(dialer, options).await);
        });
        answered.recv().unwrap_or_else(|_| Err(TransportError::Protocol { reason: "the connection was given up".to_owned() }))
    }

    /// Opens a channel to a service. The opening has at most 65,535 bytes.
    ///
    /// The server may still refuse: then the channel is cancelled.
    pub fn open(&self, service: u8, opening: Vec<u8>) -> Result<Channel, ChannelError> {
        let limit_bytes = OPENING_BYTES - 1;
        if opening.len() > limit_bytes {
            return Err(ChannelError::TooLarge { length_bytes: opening.len(), limit_bytes });
        }
        self.core.open(service, &opening)
    }

    /// Returns the name of the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the extensions that both ends know.
    pub fn extensions(&self) -> &[String] {
        &self.extensions
    }

    /// Returns the longest payload of a message.
    pub fn payload_limit(&self) -> usize {
        self.core.settings().payload_bytes
    }

    /// Returns the bytes of frames that were sent, with repetitions.
    pub fn sent_bytes(&self) -> u64 {
        self.core.sent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of frames that were received, with repetitions.
    pub fn received_bytes(&self) -> u64 {
        self.core.received_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether there is a link now. Without one, channels wait.
    pub fn is_linked(&self) -> bool {
        self.core.is_linked()
    }

    /// Returns why the session ended.
    pub fn ended(&self) -> Option<ChannelError> {
        self.core.ended()
    }

    /// Waits until the server has everything that was sent, at most a minute, and ends the session. Channels that are
    /// still open report [`ChannelError::Closed`].
    ///
    /// Errors: the session ended before.
    pub fn close(self) -> Result<(), ChannelError> {
        self.core.drain(Instant::now() + DRAIN);
        let before = self.core.ended();
        self.core.end(ChannelError::Closed, Some(GOODBYE));
        // It only disconnects.
        let _ = self.done.lock().recv_timeout(CONNECT);
        match before {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.core.end(ChannelError::Closed, Some(GOODBYE));
    }
}

/// Makes connections to one server.
struct Dialer {
    target: Target,
    tls: Option<ClientTls>,
}

impl Dialer {
    fn new(options: &ConnectOptions) -> Result<Dialer> {
        let tls = match &options.target {
            Target::Tls { host, trust, identity, .. } => Some(ClientTls::new(plain(host), trust, identity.as_ref())?),
            Target::Unix(_) => None,
        };
        Ok(Dialer { target: options.target.clone(), tls })
    }

    async fn dial(&self) -> Result<Link> {
        let dialed = timeout(CONNECT, self.connect()).await;
        dialed.unwrap_or(Err(TransportError::Timeout { seconds: CONNECT.as_secs() }))
    }

    async fn connect(&self) -> Result<Link> {
        match (&self.target, &self.tls) {
            (Target::Tls { host, port, .. }, Some(tls)) => {
                let action = || format!("cannot connect to {host} port {port}");
                let stream = TcpStream::connect((plain(host), *port)).await.map_err(TransportError::io(action()))?;
                stream.set_nodelay(true).map_err(TransportError::io(action()))?;
                let stream = BufReader::with_capacity(RAW_READ_BYTES, stream);
                let connector = TlsConnector::from(Arc::clone(&tls.config));
                let mut stream = connector.connect(tls.name.clone(), stream).await.map_err(|error| tls.error(error))?;
                if let Some(unknown) = tls.unknown() {
                    return Err(unknown);
                }
                stream.get_mut().1.set_buffer_limit(Some(TLS_WRITE_BYTES));
                Ok(Link::new(Box::new(stream)))
            }
            (Target::Unix(path), _) => {
                let stream = UnixStream::connect(path).await;
                Ok(Link::new(Box::new(stream.map_err(TransportError::io(format!("cannot connect to {}", path.display())))?)))
            }
            (Target::Tls { .. }, None) => Err(TransportError::Tls { reason: "there is no configuration".to_owned() }),
        }
    }

    /// Connects, greets, and waits for the welcome.
    async fn greet(&self, kind: u8, greeting: &[u8]) -> Result<(Link, Welcome)> {
        let mut link = self.dial().await?;
        let answer = async {
            link.greet(kind, greeting).await?;
            link.greeting(GREETING_BYTES).await
        };
        let answer = timeout(ANSWER, answer).await.map_err(|_| TransportError::Timeout { seconds: ANSWER.as_secs() })?;
        let wrong = |reason: &str| TransportError::Protocol { reason: reason.to_owned() };
        match answer.map_err(TransportError::io("the server does not answer"))? {
            Some((kinds::WELCOME, payload)) => {
                let welcome = Welcome::decode(&payload).ok_or_else(|| wrong("its welcome is malformed"))?;
                if welcome.version == 0 || welcome.version > VERSION {
                    return Err(wrong("it chose a version that nobody offered"));
                }
                Ok((link, welcome))
            }
            Some((kinds::REFUSAL, payload)) => {
                let Refusal { code, text } = Refusal::decode(&payload).ok_or_else(|| wrong("its refusal is malformed"))?;
                Err(TransportError::Refused { code, text })
            }
            _ => Err(wrong("it answers a greeting with something else")),
        }
    }
}

async fn begin(dialer: Dialer, options: ConnectOptions) -> Result<ClientSession> {
    let Credentials { account, secret } = options.credentials.clone();
    let hello = Hello { version: VERSION, extensions: options.extensions.clone(), account, secret };
    let hello = hello.checked().ok_or_else(|| TransportError::Refused {
        code: codes::GREETING,
        text: "a name, a secret or an extension is too long".to_owned(),
    })?;
    let (link, welcome) = dialer.greet(kinds::HELLO, &hello).await?;
    let payload_bytes = welcome.payload_bytes as usize;
    if !WINDOWS.contains(&welcome.window_bytes) || !Limits::PAYLOADS.contains(&payload_bytes) || welcome.received != 0 {
        return Err(TransportError::Protocol { reason: "its welcome has impossible numbers".to_owned() });
    }
    let settings = Settings {
        payload_bytes,
        window_bytes: u64::from(welcome.window_bytes),
        channels: CHANNELS,
        keep_alive: Duration::from_millis(u64::from(welcome.keep_alive_ms.clamp(KEEP_ALIVE_MS.0, KEEP_ALIVE_MS.1))),
        is_server: false,
    };
    let budget = Budget::new(options.memory_bytes.max(4 << 20), 1);
    let share = budget.admit().ok_or(TransportError::Protocol { reason: "there is no memory for windows".to_owned() })?;
    let core = Core::new(settings, share);
    let (sender, done) = mpsc::channel();
    let session =
        ClientSession { core: Arc::clone(&core), id: welcome.session, extensions: welcome.extensions.clone(), done: Mutex::new(done) };
    tokio::spawn(async move {
        keep(&core, &dialer, &options, link, welcome).await;
        drop(sender);
    });
    Ok(session)
}

/// Pumps one link after the other until the session ends.
async fn keep(core: &Arc<Core>, dialer: &Dialer, options: &ConnectOptions, link: Link, welcome: Welcome) {
    let mut next = Some((link, 0));
    while let Some((link, count)) = next {
        let Ok((generation, _)) = core.attach(count) else {
            let text = "the server says that it has frames which were never sent";
            core.end(ChannelError::Violated { code: codes::NUMBERS, text: text.to_owned() }, None);
            return;
        };
        let reason = pump::run(core, link, generation, &|_, _, _| {}).await;
        if !core.detach(generation) {
            return;
        }
        tracing::debug!(session = %welcome.session, reason, "the link broke");
        let resumed = tokio::select! {
            resumed = resume(core, dialer, options.retry, &welcome, reason) => resumed,
            () = core.until_ended() => return,
        };
        next = match resumed {
            Ok((link, welcome)) => Some((link, welcome.received)),
            Err(error) => {
                core.end(error, None);
                None
            }
        };
    }
}

/// Connects again until the server answers or the time is over.
async fn resume(
    core: &Core,
    dialer: &Dialer,
    retry: Duration,
    welcome: &Welcome,
    mut reason: String,
) -> Result<(Link, Welcome), ChannelError> {
    let start = Instant::now();
    let (mut pause, longest) = PAUSES;
    loop {
        // Between half of the pause and all of it, so that clients do not come together after the server was away.
        let wait = pause.mul_f64(0.5 + f64::from(random()) / 512.0);
        if start.elapsed() + wait > retry {
            return Err(ChannelError::LinkLost { reason });
        }
        sleep(wait).await;
        pause = (pause * 2).min(longest);
        let greeting =
            Resume { version: welcome.version, session: welcome.session, token: welcome.token.clone(), received: core.received() };
        match dialer.greet(kinds::RESUME, &greeting.encode()).await {
            Ok(answer) => return Ok(answer),
            Err(TransportError::Refused { code: codes::SESSION_UNKNOWN, .. }) => return Err(ChannelError::SessionLost),
            Err(error) if error.is_transient() => reason = error.to_string(),
            Err(error) => return Err(ChannelError::LinkLost { reason: error.to_string() }),
        }
    }
}

/// Returns an address of version 6 without its brackets.
fn plain(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn random() -> u8 {
    let mut byte = [0];
    // Without randomness there is no jitter.
    let _ = onefold_ground::fill_random(&mut byte);
    byte[0]
}
