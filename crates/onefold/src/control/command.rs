//! A command of a client: reads the request, runs it, sends its output.

use super::host::{Caller, Host, Identity, Live, lock};
use super::kinds::{Kind, MAX_REQUEST_BYTES, MAX_TEXT_BYTES, cut};
use super::message::{Call, Ended, Progress};
use crate::console::Console;
use crate::failure::{Exit, Failure, Result};
use crate::session::Session;
use crate::units::set_local_zone;
use onefold_engine::Mode;
use onefold_remote::transport::{Channel, ChannelError, Received, Visitor, codes};
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to read the rest of the output and the result, when the command has ended.
const END_TIME: Duration = Duration::from_secs(60);
/// How often it checks whether a client that was asked has gone.
const ANSWER_STEP: Duration = Duration::from_millis(100);
/// How often progress is sent.
const PROGRESS_STEP: Duration = Duration::from_millis(100);

/// Serves a channel of a command.
pub(super) fn serve(host: &Host, caller: &Caller, visitor: &Visitor, channel: &Channel) {
    let call = match request(channel) {
        Ok(call) => call,
        Err(why) => {
            tracing::debug!("a client sent no request: {why}");
            return channel.cancel_with(codes::SERVICES, "a request comes first");
        }
    };
    let turn = match host.begin(channel, visitor.session, &caller.identity) {
        Ok(turn) => turn,
        Err(why) => {
            tracing::warn!("a command was refused: {why}");
            return channel.cancel_with(codes::BUSY, &why);
        }
    };
    let call = match call {
        Ok(call) => call,
        Err(why) => {
            tracing::debug!("invalid request: {why}");
            let host = caller.identity.host_word();
            let failure = Failure::cannot_run(format!("the {host} does not know this command or one of its options"));
            end(channel, Err(failure.advise(format!("{host} and command are of different versions: restart the {host}"))));
            // Until the client has read it.
            let _ = channel.receive_until(Instant::now() + END_TIME);
            return;
        }
    };
    let console = Remote { can_ask: call.can_ask, ..Remote::new(&turn.live) };
    // A command that was stopped before it began does not run.
    match channel.try_receive() {
        Ok(Received::Message(message)) => console.hear(message.kind, &message.payload),
        Ok(Received::Timeout) => {}
        Ok(Received::Finished) | Err(_) => console.live.cut(),
    }
    std::thread::scope(|scope| {
        // Ends the other threads, however the command ends.
        let over = Over { console: &console, is_done: AtomicBool::new(false) };
        scope.spawn(|| listen(&console));
        if call.progress {
            scope.spawn(|| tell_progress(&console));
        }
        let done = work(host, caller, &call, &console);
        console.is_over.store(true, Ordering::Relaxed);
        console.changed.notify_all();
        end(channel, done);
        over.is_done.store(true, Ordering::Relaxed);
    });
}

/// Cuts a conversation whose command panicked.
struct Over<'a> {
    console: &'a Remote<'a>,
    is_done: AtomicBool,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.console.is_over.store(true, Ordering::Relaxed);
        self.console.changed.notify_all();
        if !self.is_done.load(Ordering::Relaxed) {
            self.console.live.cut();
        }
    }
}

/// Reads the request. The inner error: it is not one of this version.
fn request(channel: &Channel) -> std::result::Result<std::result::Result<Call, String>, String> {
    match channel.receive_until(Instant::now() + REQUEST_TIME).map_err(|error| error.to_string())? {
        Received::Message(message) if Kind::of(message.kind) != Some(Kind::Request) => Err("another message".to_owned()),
        Received::Message(message) if message.payload.len() > MAX_REQUEST_BYTES => Err("it is too long".to_owned()),
        Received::Message(message) => Ok(Call::decode(&message.payload)),
        Received::Finished | Received::Timeout => Err("no message".to_owned()),
    }
}

fn end(channel: &Channel, result: Result<Exit>) {
    // Texts in UTF-8 always have a JSON form. A client that is gone needs no result.
    if let Ok(payload) = serde_json::to_vec(&Ended::new(result)) {
        let _ = channel.send(Kind::Result as u8, payload);
    }
    channel.finish();
}

/// Returns the refusal of something that only the daemon's user and root may do.
pub(super) fn only_owner(what: &str) -> Failure {
    let own = rustix::process::geteuid();
    let why = format!("only the user with number {}, as whom the daemon runs, and root may use {what}", own.as_raw());
    Failure::cannot_run(why).advise("run the command as that user")
}

/// Runs the command.
fn work(host: &Host, caller: &Caller, call: &Call, console: &Remote<'_>) -> Result<Exit> {
    let command = call.command.command();
    let session = Session::beside(&host.store, &host.daemon, console, call.quiet);
    let session = match &caller.identity {
        Identity::Local { user, .. } => session.of_user(*user),
        Identity::Account(presence) => session.of_account(presence, &caller.guest, &call.command, console.live.session)?,
    };
    if command.is_for_owner() && !caller.identity.is_owner() {
        return Err(only_owner(&format!("`{}` beside it", command.name())));
    }
    let _heavy = if command.is_heavy() { Some(host.heavy(command.name(), &caller.identity)?) } else { None };
    set_local_zone(call.zone());
    tracing::info!("`{}` for a client", command.name());
    let done = command.run(&session);
    // This comes before the client learns that the command is done.
    let shown = if command.mode() == Mode::ReadWrite { host.daemon.changed() } else { Ok(()) };
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

/// Listens to the client until it has finished: it has read the result then.
fn listen(console: &Remote<'_>) {
    let mut ended: Option<Instant> = None;
    loop {
        match console.live.channel.receive_until(Instant::now() + Duration::from_secs(1)) {
            Ok(Received::Message(message)) => console.hear(message.kind, &message.payload),
            Ok(Received::Timeout) if console.is_over.load(Ordering::Relaxed) => {
                if ended.get_or_insert_with(Instant::now).elapsed() > END_TIME {
                    return console.live.cut();
                }
            }
            Ok(Received::Timeout) => {}
            // The client is gone, or the command has ended.
            Ok(Received::Finished) if console.is_over.load(Ordering::Relaxed) => return,
            Ok(Received::Finished) | Err(_) => return console.live.cut(),
        }
    }
}

/// Sends the progress now and then until the command ends. It may wait for the client; nobody waits for it.
fn tell_progress(console: &Remote<'_>) {
    let mut sent = None;
    while !console.is_over.load(Ordering::Relaxed) {
        let asked = lock(&console.answer);
        drop(console.changed.wait_timeout(asked, PROGRESS_STEP));
        if console.send_progress(&mut sent).is_err() {
            return;
        }
    }
}

/// The console of a client.
struct Remote<'a> {
    live: &'a Live,
    /// The step and its units, and how many were done of those counted when it began.
    progress: Mutex<Option<Progress>>,
    done: AtomicU64,
    /// Whether a person is at the other end.
    can_ask: bool,
    /// The user's answer.
    answer: Mutex<Option<bool>>,
    /// The user answered, or the command ended.
    changed: Condvar,
    is_over: AtomicBool,
}

impl<'a> Remote<'a> {
    fn new(live: &'a Live) -> Remote<'a> {
        Remote {
            live,
            progress: Mutex::new(None),
            done: AtomicU64::new(0),
            can_ask: false,
            answer: Mutex::new(None),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        }
    }
}

impl Remote<'_> {
    fn send(&self, kind: Kind, payload: Vec<u8>) -> std::result::Result<(), ChannelError> {
        self.live.channel.send(kind as u8, payload)
    }

    /// Takes a message of the client.
    fn hear(&self, kind: u8, payload: &[u8]) {
        match Kind::of(kind) {
            Some(Kind::Cancel) => self.live.cancelled.store(true, Ordering::Relaxed),
            Some(Kind::Answer) => {
                *lock(&self.answer) = Some(payload == [1]);
                self.changed.notify_all();
            }
            _ => self.live.cut(),
        }
    }

    /// Sends the progress, unless nothing has changed.
    fn send_progress(&self, sent: &mut Option<Progress>) -> std::result::Result<(), ChannelError> {
        let Some(mut now) = lock(&self.progress).clone() else { return Ok(()) };
        now.done = self.done.load(Ordering::Relaxed);
        if sent.as_ref() != Some(&now)
            && let Ok(payload) = serde_json::to_vec(&now)
        {
            self.send(Kind::Progress, payload)?;
            *sent = Some(now);
        }
        Ok(())
    }
}

/// Standard output of a command: the client's.
struct Out<'a>(&'a Remote<'a>);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(MAX_TEXT_BYTES)];
        // Whatever the reason, the reader is gone.
        self.0.send(Kind::Output, part.to_vec()).map_err(|_| ErrorKind::BrokenPipe)?;
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
        let _ = self.send(Kind::Note, cut(text));
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
            let _ = self.send(Kind::EndOfProgress, Vec::new());
        }
    }

    fn is_cancelled(&self) -> bool {
        self.live.cancelled.load(Ordering::Relaxed)
    }

    fn ask(&self, question: &str) -> Result<Option<bool>> {
        if !self.can_ask {
            return Ok(None);
        }
        let mut answer = lock(&self.answer);
        *answer = None;
        let asked = self.send(Kind::Question, cut(question));
        asked.map_err(|error| Failure::failed(format!("cannot ask for confirmation: {error}")))?;
        while answer.is_none() {
            if self.is_cancelled() {
                return Err(Failure::interrupted("stopped by a signal; nothing was done"));
            }
            answer = self.changed.wait_timeout(answer, ANSWER_STEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(*answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
