//! The requests of other nodes: accepting connections, and doing what they ask.
//!
//! What strangers can take is bounded: so many connections that have not greeted, so long for a greeting. What a node
//! can take is bounded by the windows of its lanes: a request beyond them ends the connection. Requests of a lane are
//! at work on a few threads at most, so a delivery or a wait that takes long does not hold up claims.
//!
//! # Why nothing of an earlier connection is done behind a later one
//! A node that has lost its connection gives back on the next one what it may have claimed. If the owner took a claim
//! of the former connection after that, nobody would ever give it back. So each connection has a number that grows, and
//! the requests of the claims' lane are done under a lock that the next connection takes first ([`Turn`]).

use crate::connection::{READ_BYTES, Writer, greet};
use crate::frame::{self, Frame};
use crate::greeting::{Hello, VERSION, Welcome, codes, encode_refusal, kinds};
use crate::lanes::{LANES, Lane};
use crate::messages::{MOST_COLLECTED, Membership, Message};
use crate::owner::Owner;
use crate::setup::Context;
use crate::tls::{is_of, node_name};
use crate::{InterconnectError, Refusal, Result};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::server::TlsStream;

/// The longest wait of a request. The sender asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long the other end has to read a refusal.
const FAREWELL: Duration = Duration::from_secs(2);
/// The pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers to other nodes as long as it lives.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    accepting: JoinHandle<()>,
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(context: Arc<Context>, runtime: &Handle, listener: std::net::TcpListener, owner: Arc<dyn Owner>) -> Result<Server> {
        let failed = |source| InterconnectError::Io { action: "cannot listen", source };
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let acceptor = TlsAcceptor::from(context.setup.identity.server()?);
        let _entered = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let strangers = Arc::new(Semaphore::new(context.options().strangers));
        let service = Arc::new(Service { context, owner, peers: Mutex::default(), is_stopped: AtomicBool::new(false) });
        let accepting = runtime.spawn(accept(service.clone(), listener, acceptor, strangers));
        Ok(Server { service, accepting, address })
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    /// Ends all connections. What is at work goes on, and nobody hears of it. The owner is dropped with the last of it.
    fn drop(&mut self) {
        self.accepting.abort();
        self.service.is_stopped.store(true, Ordering::SeqCst);
        for turn in self.service.peers.lock().values() {
            turn.now.lock().end();
        }
    }
}

#[derive(Debug)]
struct Service {
    context: Arc<Context>,
    owner: Arc<dyn Owner>,
    peers: Mutex<HashMap<u32, Arc<Turn>>>,
    /// Nobody is let in any more. It is asked under the lock of a turn.
    is_stopped: AtomicBool,
}

/// Which connection of a node is the last one.
#[derive(Debug, Default)]
struct Turn {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// Its opening and number. Requests of the claims' lane are done under the lock, and only those of this one.
    newest: (u64, u64),
    connection: Option<Arc<Connection>>,
}

impl Now {
    fn end(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.end();
        }
    }
}

/// Why a greeting is refused.
type Refused = (u16, String);

async fn accept(service: Arc<Service>, listener: TcpListener, acceptor: TlsAcceptor, strangers: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => match strangers.clone().try_acquire_owned() {
                Ok(place) => {
                    let (service, acceptor) = (service.clone(), acceptor.clone());
                    tokio::spawn(async move {
                        let limit = service.context.options().greeting;
                        let greeted = timeout(limit, greeted(&service, stream, acceptor)).await;
                        drop(place);
                        match greeted {
                            Ok(Ok((stream, connection))) => connection.serve(stream).await,
                            Ok(Err(error)) => tracing::debug!(%address, %error, "a connection ended before it had greeted"),
                            Err(_) => tracing::debug!(%address, "a connection did not greet in time"),
                        }
                    });
                }
                Err(_) => tracing::warn!(%address, "a connection was dropped: too many have not greeted"),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits for the greeting, and answers it.
async fn greeted(service: &Arc<Service>, stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<(TlsStream<TcpStream>, Arc<Connection>)> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let first = frame::read(&mut stream, service.context.options().greeting).await?;
    let answer = match admit(service, &stream, &first).await {
        Ok(connection) => {
            let setup = &service.context.setup;
            let opening = service.context.opening.get().copied().unwrap_or_default();
            let welcome = Welcome { version: VERSION, store: setup.store, node: setup.node, opening };
            greet(&mut stream, &Frame { kind: kinds::WELCOME, id: 0, payload: welcome.encode() }).await?;
            return Ok((stream, connection));
        }
        Err(refused) => refused,
    };
    let (code, text) = answer;
    greet(&mut stream, &Frame { kind: kinds::REFUSAL, id: 0, payload: encode_refusal(code, &text) }).await?;
    // Closed at once, the refusal might not arrive.
    let _ = timeout(FAREWELL, async {
        let _ = stream.shutdown().await;
        let mut rest = [0; 256];
        while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    })
    .await;
    Err(io::Error::new(ErrorKind::PermissionDenied, format!("refused (code {code}): {text}")))
}

/// Decides who may send requests.
async fn admit(service: &Arc<Service>, stream: &TlsStream<TcpStream>, first: &Frame) -> Result<Arc<Connection>, Refused> {
    let setup = &service.context.setup;
    if first.kind != kinds::HELLO {
        return Err((codes::GREETING, "a greeting comes first".to_owned()));
    }
    let hello = Hello::decode(&first.payload).map_err(|version| match version {
        Some(version) => (codes::VERSION, format!("node {} speaks version {VERSION}, and the other end {version}", setup.node)),
        None => (codes::GREETING, "the greeting is malformed".to_owned()),
    })?;
    if hello.store != setup.store {
        return Err((codes::STORE, format!("node {} has another store open", setup.node)));
    }
    if hello.to != setup.node {
        return Err((codes::NODE, format!("this is node {}, not node {}", setup.node, hello.to)));
    }
    if hello.from == setup.node {
        return Err((codes::NODE, format!("node {} is here, it cannot come from elsewhere", setup.node)));
    }
    let (directory, from) = (setup.directory.clone(), hello.from);
    let expected = tokio::task::spawn_blocking(move || directory.fingerprint(from)).await.ok().flatten();
    let name = ServerName::try_from(node_name(hello.from, &setup.store)).map_err(|error| (codes::GREETING, error.to_string()))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    if !certificate.zip(expected).is_some_and(|(certificate, expected)| is_of(certificate, expected, &name)) {
        return Err((
            codes::CERTIFICATE,
            format!("the certificate is not that of node {}: its fingerprint or its name is another one", hello.from),
        ));
    }
    if service.context.opening.get().is_none() {
        return Err((codes::BUSY, "the node has not opened its log".to_owned()));
    }
    let taken = service.clone();
    let taking = tokio::task::spawn_blocking(move || take_turn(&taken, &hello));
    taking.await.unwrap_or_else(|error| Err((codes::BUSY, error.to_string())))
}

/// Makes this connection the last one of its node. What the one before has asked for, and is not done, is dropped.
fn take_turn(service: &Arc<Service>, hello: &Hello) -> Result<Arc<Connection>, Refused> {
    let turn = service.peers.lock().entry(hello.from).or_default().clone();
    let mut now = turn.now.lock();
    let number = (hello.opening, hello.connection);
    if number <= now.newest {
        let (opening, connection) = now.newest;
        return Err((codes::STALE, format!("node {} has greeted with opening {opening}, connection {connection}", hello.from)));
    }
    if service.is_stopped.load(Ordering::SeqCst) {
        return Err((codes::BUSY, "the node is stopping".to_owned()));
    }
    now.end();
    now.newest = number;
    let connection = Arc::new(Connection {
        from: hello.from,
        number,
        turn: turn.clone(),
        service: service.clone(),
        state: Mutex::default(),
        wake: Notify::new(),
        ended: Notify::new(),
    });
    now.connection = Some(connection.clone());
    Ok(connection)
}

/// A connection of another node.
#[derive(Debug)]
struct Connection {
    from: u32,
    number: (u64, u64),
    turn: Arc<Turn>,
    service: Arc<Service>,
    state: Mutex<State>,
    /// There is something to send.
    wake: Notify,
    /// It is over.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    work: [VecDeque<(u32, Message)>; LANES],
    at_work: [usize; LANES],
    answers: [VecDeque<Frame>; LANES],
    /// Requests that have no answer yet, which the peer's windows bound.
    unanswered: [usize; LANES],
    is_over: bool,
}

impl Connection {
    /// Serves until the connection ends.
    async fn serve(self: Arc<Connection>, stream: TlsStream<TcpStream>) {
        let (reading, writing) = split(stream);
        let options = self.service.context.options();
        let receive = async {
            let mut stream = BufReader::with_capacity(READ_BYTES, reading);
            loop {
                let frame = frame::read(&mut stream, options.silence).await?;
                if frame.kind != kinds::PING {
                    self.service.context.counters.received(&frame);
                    self.take(frame).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?;
                }
            }
        };
        let send = async {
            let mut writer = Writer::new(writing, options.ping, options.silence);
            loop {
                match self.next() {
                    Some(frame) => {
                        self.service.context.counters.sent(&frame);
                        writer.put(frame).await?;
                    }
                    None => writer.rest(self.wake.notified()).await?,
                }
            }
        };
        let result: io::Result<()> = tokio::select! {
            result = receive => result,
            result = send => result,
            () = self.ended.notified() => Ok(()),
        };
        if let Err(error) = result {
            tracing::debug!(node = self.from, %error, "a connection of a node ended");
        }
        self.end();
    }

    /// Ends the connection. What is at work goes on.
    fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.work = Default::default();
        state.answers = Default::default();
        drop(state);
        self.ended.notify_one();
    }

    /// Takes a request in. Errors: the peer breaks the protocol.
    fn take(self: &Arc<Connection>, frame: Frame) -> Result<(), String> {
        let lane = Lane::of(frame.kind).ok_or_else(|| format!("a message of kind {:#04x} is no request", frame.kind))?;
        let (table, message) = Message::decode(frame.kind, &frame.payload).map_err(|error| error.to_string())?;
        self.service.context.heard(table);
        let mut state = self.state.lock();
        if state.unanswered[lane as usize] >= lane.window() {
            return Err(format!("more requests than {} without an answer", lane.window()));
        }
        state.unanswered[lane as usize] += 1;
        state.work[lane as usize].push_back((frame.id, message));
        if state.at_work[lane as usize] < lane.width() {
            state.at_work[lane as usize] += 1;
            let connection = self.clone();
            tokio::task::spawn_blocking(move || connection.work(lane));
        }
        Ok(())
    }

    /// Returns the next answer, the most urgent one first.
    fn next(&self) -> Option<Frame> {
        let mut state = self.state.lock();
        let lane = Lane::ALL.into_iter().find(|lane| !state.answers[*lane as usize].is_empty())?;
        state.unanswered[lane as usize] -= 1;
        state.answers[lane as usize].pop_front()
    }

    /// Does what is asked in a lane, until there is nothing more.
    fn work(self: Arc<Connection>, lane: Lane) {
        let _broken = EndOnPanic(&self);
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.work[lane as usize].pop_front();
                if next.is_none() {
                    state.at_work[lane as usize] -= 1;
                }
                next
            };
            let Some((id, message)) = next else { return };
            let Some(answer) = self.answer(lane, message) else { continue };
            let setup = &self.service.context.setup;
            let frame = Frame { kind: answer.kind(), id, payload: answer.encode(setup.directory.table(), setup.digest_bytes) };
            let mut state = self.state.lock();
            if !state.is_over {
                state.answers[lane as usize].push_back(frame);
                drop(state);
                self.wake.notify_one();
            }
        }
    }

    /// Does what is asked. `None`: a later connection has its turn.
    fn answer(&self, lane: Lane, message: Message) -> Option<Message> {
        let turn = (lane == Lane::Claims).then(|| self.turn.now.lock());
        if turn.as_ref().is_some_and(|now| now.newest != self.number || now.connection.is_none()) {
            return None;
        }
        Some(self.done(message).unwrap_or_else(Message::Refused))
    }

    fn done(&self, message: Message) -> Result<Message, Refusal> {
        let owner = &self.service.owner;
        match message {
            Message::Claim(parts) => {
                let mut claims = Vec::new();
                owner.claim(self.from, &parts, &mut claims)?;
                return Ok(Message::Claimed(claims));
            }
            Message::Deliver { partition, epoch, delivery } => {
                return owner.deliver(self.from, partition, epoch, &delivery).map(Message::Delivered);
            }
            Message::Collect { partition, epoch, after } => {
                let mut names = owner.collect(self.from, partition, epoch)?;
                names.retain(|name| after.is_none_or(|after| *name > after));
                // They are in any order.
                names.sort_unstable();
                names.truncate(MOST_COLLECTED);
                return Ok(Message::Collected(names));
            }
            Message::Remove(step) => return owner.remove(self.from, &step).map(Message::Removing),
            Message::Reclaim { request, options } => return owner.reclaim(request, options).map(Message::Reclaimed),
            Message::Dead { partition, epoch, copies } => owner.dead(partition, epoch, &copies)?,
            Message::Release(names) => owner.release(self.from, &names),
            Message::Wait { partition, epoch, name, most_ms } => {
                let until = Instant::now() + LONGEST_WAIT.min(Duration::from_millis(most_ms.into()));
                owner.wait(self.from, partition, epoch, &name, until)?;
            }
            Message::Hurry => owner.hurry(),
            Message::Begin => owner.begin(self.from)?,
            Message::Seal { container, epoch } => owner.seal(container, epoch)?,
            Message::Membership(message) => {
                let says = match &message {
                    Membership::Report(report) => Some(report.node.0),
                    Membership::Prepared(prepared) => Some(prepared.node.0),
                    Membership::Order(_) => None,
                };
                if says.is_some_and(|node| node != self.from) {
                    return Err(Refusal::Refused("a node speaks for another one".to_owned()));
                }
                owner.membership(self.from, message);
            }
            Message::Claimed(_)
            | Message::Delivered(_)
            | Message::Collected(_)
            | Message::Removing(_)
            | Message::Reclaimed(_)
            | Message::Done
            | Message::Refused(_) => {
                return Err(Refusal::Refused("an answer is no request".to_owned()));
            }
        }
        Ok(Message::Done)
    }
}

/// Ends the connection if a request panics: its lane would stand still.
struct EndOnPanic<'a>(&'a Connection);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}
