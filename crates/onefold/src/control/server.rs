//! The daemon's side: accepts clients, runs their commands, each on a thread of its own, and sends their output.

use super::frame::{Found, GREETING_BYTES, Kind, MAX_TEXT_BYTES, Reader, VERSION, encode, greeting, send, version};
use super::message::{Call, Ended, Progress};
use super::{MAX_CLIENTS, socket};
use crate::console::Console;
use crate::daemon::Daemon;
use crate::failure::{Exit, Failure, Result};
use crate::session::Session;
use crate::store::Store;
use crate::units::set_local_zone;
use onefold_engine::Mode;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How often it checks whether a client that was asked has gone.
const ANSWER_STEP: Duration = Duration::from_millis(100);
/// How often progress is sent.
const PROGRESS_STEP: Duration = Duration::from_millis(100);
/// How long commands may take to end when the daemon ends. Then their connections are cut.
const STOP_TIME: Duration = Duration::from_secs(1);
/// How long it accepts nobody after accepting failed, for example because no file handles are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts commands for the daemon. Dropping it accepts no more, stops the running ones and waits for their end.
pub struct ControlServer {
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    directory: PathBuf,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    store: Store,
    /// Whether the store's group may use the daemon. Others cannot open the socket.
    is_open_to_group: bool,
    daemon: Daemon,
    stopping: AtomicBool,
    clients: Mutex<HashMap<u64, Arc<Connection>>>,
    client_ended: Condvar,
    /// The name of the heavy command that runs now. They run one at a time.
    heavy: Mutex<Option<&'static str>>,
}

/// A client.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// Whether the client is root or the user who runs the daemon.
    is_owner: bool,
    /// Whether its command is to stop early.
    cancelled: AtomicBool,
}

impl Connection {
    /// Ends the conversation: no read or write of the stream waits any more.
    fn cut(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is complete whenever its lock is free. A command that panicked has reported that.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlServer {
    /// Listens in the store's directory. The store is open for writing: the caller holds its lock alone.
    pub fn start(directory: &Path, store: Store, daemon: Daemon) -> io::Result<ControlServer> {
        let listener = Arc::new(socket::listen(directory)?);
        let shared = Arc::new(Shared {
            store,
            is_open_to_group: socket::is_shared(directory)?,
            daemon,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
            client_ended: Condvar::new(),
            heavy: Mutex::new(None),
        });
        let accepting = (Arc::clone(&shared), Arc::clone(&listener));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || accept(&accepting.0, &accepting.1))?;
        Ok(ControlServer { shared, listener, directory: directory.to_owned(), thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        let _ = rustix::net::shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = socket::remove(&self.directory) {
            tracing::warn!("cannot remove the socket {}: {error}", self.directory.join(socket::NAME).display());
        }
        let shared = &*self.shared;
        let mut clients = lock(&shared.clients);
        clients.values().for_each(|client| client.cancelled.store(true, Ordering::Relaxed));
        let until = Instant::now() + STOP_TIME;
        while !clients.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                clients.values().for_each(|client| client.cut());
                clients = shared.client_ended.wait(clients).unwrap_or_else(PoisonError::into_inner);
            } else {
                clients = shared.client_ended.wait_timeout(clients, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    for number in 0.. {
        let stream = match listener.accept() {
            _ if shared.stopping.load(Ordering::Relaxed) => return,
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a command: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if let Err(failure) = admit(shared, number, stream) {
            tracing::warn!("a command was refused: {}", failure.message);
        }
    }
}

/// Starts a thread for a client, or tells it why not.
fn admit(shared: &Arc<Shared>, number: u64, stream: UnixStream) -> Result<()> {
    let own = rustix::process::geteuid();
    let peer = rustix::net::sockopt::socket_peercred(&stream);
    let is_owner = peer.as_ref().is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
    let connection = Arc::new(Connection { stream, is_owner, cancelled: AtomicBool::new(false) });
    let refused = |failure: Failure| {
        // A new socket takes a few bytes without waiting for its reader.
        let _ = (&connection.stream).write_all(&greeting());
        end(&connection.stream, Err(failure.clone()));
        Err(failure)
    };
    match peer {
        Ok(_) if is_owner || shared.is_open_to_group => {}
        Ok(_) => return refused(only_owner(own, "it")),
        Err(error) => return refused(Failure::cannot_run(format!("the daemon cannot identify the client: {error}"))),
    }
    {
        let mut clients = lock(&shared.clients);
        if clients.len() >= MAX_CLIENTS {
            drop(clients);
            let why = format!("the daemon already runs {MAX_CLIENTS} commands, its limit");
            return refused(Failure::cannot_run(why).advise("run the command again when some of them have ended"));
        }
        clients.insert(number, Arc::clone(&connection));
    }
    let place = Place { shared: Arc::clone(shared), number };
    let client = Arc::clone(&connection);
    let work = move || {
        let place = place;
        converse(&place.shared, &client);
    };
    match std::thread::Builder::new().name(format!("command {number}")).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => refused(Failure::failed(format!("the daemon cannot start a thread: {error}"))),
    }
}

fn only_owner(own: rustix::process::Uid, what: &str) -> Failure {
    let why = format!("only the user with number {}, as whom the daemon runs, and root may use {what}", own.as_raw());
    Failure::cannot_run(why).advise("run the command as that user")
}

/// The place of a client in the list, until its thread ends.
struct Place {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.shared.clients).remove(&self.number);
        self.shared.client_ended.notify_all();
    }
}

fn end(stream: &UnixStream, result: Result<Exit>) {
    // Texts in UTF-8 always have a JSON form. A client that is gone needs no result.
    let _ = serde_json::to_vec(&Ended::new(result)).map(|payload| send(stream, Kind::Result, &payload));
}

/// A whole conversation.
fn converse(shared: &Shared, connection: &Connection) {
    let mut reader = Reader::default();
    let call = match request(&connection.stream, &mut reader) {
        Ok(Some(call)) => call,
        // The client speaks another version. It reads ours in the greeting.
        Ok(None) => return,
        Err(error) => {
            tracing::debug!("a client of the control socket broke the protocol: {error}");
            return;
        }
    };
    let call = match call {
        Ok(call) => call,
        Err(why) => {
            tracing::debug!("invalid request: {why}");
            let failure = Failure::cannot_run("the daemon does not know this command or one of its options");
            return end(&connection.stream, Err(failure.advise("daemon and command are of different versions: restart the daemon")));
        }
    };
    // A command that was stopped before it began does not run.
    connection.cancelled.store(asks_to_cancel(&connection.stream), Ordering::Relaxed);
    let _ = connection.stream.set_read_timeout(call.progress.then_some(PROGRESS_STEP));
    let console = Remote { can_ask: call.can_ask, ..Remote::new(connection) };
    std::thread::scope(|scope| {
        // Ends the watching thread, however the command ends.
        let _unwatched = Unwatched(connection);
        scope.spawn(|| watch(&console, reader));
        end(&connection.stream, work(shared, &call, &console));
    });
}

/// Returns whether a Cancel has come. It leaves it to be read.
fn asks_to_cancel(stream: &UnixStream) -> bool {
    let expected = encode(Kind::Cancel, &[]);
    let mut come = [0; 8];
    let seen = rustix::net::recv(stream, &mut come[..expected.len()], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    seen.is_ok_and(|(count, _)| come[..count] == expected)
}

struct Unwatched<'a>(&'a Connection);

impl Drop for Unwatched<'_> {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0.stream, Shutdown::Read);
    }
}

/// Greets, and reads the request. `None`: the client speaks another version.
fn request(mut stream: &UnixStream, reader: &mut Reader) -> io::Result<Option<std::result::Result<Call, String>>> {
    let until = Instant::now() + REQUEST_TIME;
    stream.set_read_timeout(Some(REQUEST_TIME))?;
    let in_time = || if Instant::now() < until { Ok(()) } else { Err(io::Error::from(ErrorKind::TimedOut)) };
    let (mut theirs, mut come) = ([0; GREETING_BYTES], 0);
    while come < GREETING_BYTES {
        match stream.read(&mut theirs[come..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => come += count,
        }
        in_time()?;
    }
    let theirs = version(&theirs).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "not a greeting"))?;
    stream.write_all(&greeting())?;
    if theirs != VERSION {
        return Ok(None);
    }
    loop {
        match reader.next(stream)? {
            Found::Frame(frame) if frame.kind == Kind::Request => return Ok(Some(Call::decode(&frame.payload))),
            Found::Frame(_) => return Err(io::Error::new(ErrorKind::InvalidData, "a request comes first")),
            Found::End => return Err(ErrorKind::UnexpectedEof.into()),
            Found::Nothing => in_time()?,
        }
    }
}

/// Runs the command.
fn work(shared: &Shared, call: &Call, console: &Remote<'_>) -> Result<Exit> {
    let command = call.command.command();
    if command.is_for_owner() && !console.connection.is_owner {
        return Err(only_owner(rustix::process::geteuid(), &format!("`{}` beside it", command.name())));
    }
    let _heavy = if command.is_heavy() { Some(Heavy::begin(shared, command.name())?) } else { None };
    set_local_zone(call.zone());
    tracing::info!("`{}` for a client", command.name());
    let done = command.run(&Session::beside(&shared.store, &shared.daemon, console, call.quiet));
    // This comes before the client learns that the command is done.
    let shown = if command.mode() == Mode::ReadWrite { shared.daemon.changed() } else { Ok(()) };
    with_shown(done, shown)
}

/// Combines the command's result with whether clients see its changes. Of two failures, both are reported.
fn with_shown(done: Result<Exit>, shown: Result<()>) -> Result<Exit> {
    let Err(shown) = shown else { return done };
    let advice = "restart the daemon when the reason is gone";
    match done {
        Ok(exit) => {
            let what = if exit == Exit::Done { "the command is done" } else { "the command is done in part" };
            let why = format!("{what}, but iSCSI does not serve that yet: {}", shown.message);
            Err(Failure { exit: if exit == Exit::Done { Exit::Failed } else { exit }, ..Failure::failed(why) }.advise(advice))
        }
        Err(failure) => {
            let beside = format!("iSCSI may not serve what the store says: {}; {advice}", shown.message);
            let message = if failure.message.is_empty() { beside } else { format!("{}; besides, {beside}", failure.message) };
            Err(Failure { message, ..failure })
        }
    }
}

/// The permission to run a heavy command.
struct Heavy<'a>(&'a Shared);

impl<'a> Heavy<'a> {
    fn begin(shared: &'a Shared, name: &'static str) -> Result<Heavy<'a>> {
        let mut heavy = lock(&shared.heavy);
        if let Some(other) = *heavy {
            let why = format!("the daemon is running `{other}`, and runs one such command at a time");
            return Err(Failure::cannot_run(why).advise("run the command again when that has ended"));
        }
        *heavy = Some(name);
        Ok(Heavy(shared))
    }
}

impl Drop for Heavy<'_> {
    fn drop(&mut self) {
        *lock(&self.0.heavy) = None;
    }
}

/// Listens to the client while its command runs, and sends it the progress.
fn watch(console: &Remote<'_>, mut reader: Reader) {
    let mut sent = None;
    loop {
        match reader.next(&console.connection.stream) {
            Ok(Found::Frame(frame)) if frame.kind == Kind::Cancel => console.connection.cancelled.store(true, Ordering::Relaxed),
            Ok(Found::Frame(frame)) if frame.kind == Kind::Answer => {
                *lock(&console.answer) = Some(frame.payload == [1]);
                console.answered.notify_all();
            }
            Ok(Found::Nothing) => console.send_progress(&mut sent),
            // The client is gone or sent garbage, or the command has ended.
            _ => return console.connection.cut(),
        }
    }
}

/// The console of a client.
struct Remote<'a> {
    connection: &'a Connection,
    /// Held while a frame is sent.
    sending: Mutex<()>,
    /// The step and its units, and how many were done of those counted when it began.
    progress: Mutex<Option<Progress>>,
    done: AtomicU64,
    /// Whether a person is at the other end.
    can_ask: bool,
    /// The user's answer.
    answer: Mutex<Option<bool>>,
    answered: Condvar,
}

impl<'a> Remote<'a> {
    fn new(connection: &'a Connection) -> Remote<'a> {
        Remote {
            connection,
            sending: Mutex::new(()),
            progress: Mutex::new(None),
            done: AtomicU64::new(0),
            can_ask: false,
            answer: Mutex::new(None),
            answered: Condvar::new(),
        }
    }
}

impl Remote<'_> {
    fn send(&self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let _sending = lock(&self.sending);
        send(&self.connection.stream, kind, payload)
    }

    /// Sends the progress, unless nothing has changed or the client does not keep up.
    fn send_progress(&self, sent: &mut Option<Progress>) {
        let Some(mut now) = lock(&self.progress).clone() else { return };
        now.done = self.done.load(Ordering::Relaxed);
        let Ok(_sending) = self.sending.try_lock() else { return };
        if sent.as_ref() == Some(&now) {
            return;
        }
        let Ok(payload) = serde_json::to_vec(&now) else { return };
        let frame = encode(Kind::Progress, &payload);
        // The socket takes so few bytes whole or not at all.
        match rustix::net::send(&self.connection.stream, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) if count == frame.len() => *sent = Some(now),
            Ok(_) => self.connection.cut(),
            Err(_) => {}
        }
    }
}

/// Standard output of a command: the client's.
struct Out<'a>(&'a Remote<'a>);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(MAX_TEXT_BYTES)];
        // Whatever the reason, the reader is gone.
        self.0.send(Kind::Output, part).map_err(|_| ErrorKind::BrokenPipe)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Console for Remote<'_> {
    fn out(&self) -> Box<dyn Write + '_> {
        Box::new(Out(self))
    }

    fn note(&self, text: &str) {
        let end = (0..=text.len().min(MAX_TEXT_BYTES)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let _ = self.send(Kind::Note, &text.as_bytes()[..end]);
    }

    fn step(&self, what: &str, total: u64) {
        let mut progress = lock(&self.progress);
        self.done.store(0, Ordering::Relaxed);
        *progress = Some(Progress { step: what.chars().take(100).collect(), total, done: 0 });
    }

    fn advance(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }

    fn end_progress(&self) {
        if lock(&self.progress).take().is_some() {
            let _ = self.send(Kind::EndOfProgress, &[]);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.connection.cancelled.load(Ordering::Relaxed)
    }

    fn ask(&self, question: &str) -> Result<Option<bool>> {
        if !self.can_ask {
            return Ok(None);
        }
        let end = (0..=question.len().min(MAX_TEXT_BYTES)).rev().find(|end| question.is_char_boundary(*end)).unwrap_or(0);
        let mut answer = lock(&self.answer);
        *answer = None;
        self.send(Kind::Question, &question.as_bytes()[..end]).map_err(|error| {
            Failure::failed(format!(
                "cannot ask for confirmation: \
            {error}"
            ))
        })?;
        while answer.is_none() {
            if self.is_cancelled() {
                return Err(Failure::interrupted("stopped by a signal; nothing was done"));
            }
            answer = self.answered.wait_timeout(answer, ANSWER_STEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(*answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frame::Frame;

    fn pair() -> (UnixStream, Connection) {
        let (client, stream) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        (client, Connection { stream, is_owner: true, cancelled: AtomicBool::new(false) })
    }

    fn remote(connection: &Connection) -> Remote<'_> {
        Remote::new(connection)
    }

    fn wait_until(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !what() {
            assert!(Instant::now() < until, "it does not happen");
            std::thread::yield_now();
        }
    }

    #[test]
    fn of_a_command_and_of_what_is_served_behind_it_both_outcomes_are_told() {
        let fails = || Err(Failure::failed("no room"));
        assert_eq!(with_shown(Ok(Exit::Partial), Ok(())), Ok(Exit::Partial));
        let done = with_shown(Ok(Exit::Done), fails()).unwrap_err();
        assert!(done.exit == Exit::Failed && done.message.contains("is done, but") && done.message.contains("no room"), "{done}");
        let partial = with_shown(Ok(Exit::Partial), fails()).unwrap_err();
        assert!(partial.exit == Exit::Partial && partial.message.contains("in part"), "{partial}");
        let own = Failure::cannot_run("there is no volume x").advise("make one");
        assert_eq!(with_shown(Err(own.clone()), Ok(())), Err(own.clone()));
        let both = with_shown(Err(own), fails()).unwrap_err();
        assert!(both.message.starts_with("there is no volume x; besides") && both.message.contains("no room"), "{both}");
        assert_eq!((both.exit, both.advice.as_deref()), (Exit::CannotRun, Some("make one")));
    }

    #[test]
    fn a_client_cancels_its_command_by_asking_by_leaving_and_by_nonsense() {
        for asks in [&encode(Kind::Cancel, &[])[..], b"", b"nonsense that is no frame"] {
            let (mut client, connection) = pair();
            let console = remote(&connection);
            std::thread::scope(|scope| {
                let _unwatched = Unwatched(&connection);
                scope.spawn(|| watch(&console, Reader::default()));
                assert!(!console.is_cancelled());
                client.write_all(asks).unwrap();
                if asks.is_empty() {
                    drop(client);
                }
                wait_until(|| console.is_cancelled());
            });
        }
    }

    #[test]
    fn progress_comes_without_its_sender_waiting() {
        let (client, connection) = pair();
        let console = remote(&connection);
        console.step("containers", 10);
        console.advance(3);
        let mut sent = None;
        console.send_progress(&mut sent);
        console.send_progress(&mut sent);
        console.advance(1);
        console.send_progress(&mut sent);
        let mut reader = Reader::default();
        for done in [3, 4] {
            let Found::Frame(Frame { kind: Kind::Progress, payload }) = reader.next(&client).unwrap() else { panic!("progress") };
            let expected = Progress { step: "containers".into(), total: 10, done };
            assert_eq!(serde_json::from_slice::<Progress>(&payload).unwrap(), expected);
        }
        // Nobody reads any more, so the rest is dropped.
        for _ in 0..100_000 {
            console.advance(1);
            console.send_progress(&mut sent);
        }
        assert!(sent.unwrap().done < 100_004);
    }
}
