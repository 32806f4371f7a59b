//! The command's side: hands the command to the daemon and shows its output as if it had run here.

use super::WHEN_BUSY;
use super::kinds::Kind;
use super::message::{Call, Ended, Progress};
use super::socket::{self, Address};
use crate::commands::Request;
use crate::console::Console;
use crate::failure::{Exit, Failure, Result};
use crate::progress::is_shown;
use crate::talk::Talk;
use onefold_client::repository::Remote;
use onefold_remote::services::messages::services::COMMAND;
use onefold_remote::transport::{
    Channel, ChannelError, ClientSession, ConnectOptions, Credentials, Message, Received, Target, TransportError, codes,
};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it checks for a signal while the daemon is silent.
const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// A session with the daemon of a store, on this machine or another one.
#[derive(Debug)]
pub struct Client {
    /// `None`: it is closed.
    session: Option<Arc<ClientSession>>,
    /// Where trees of backups are cached.
    cache: Option<PathBuf>,
    is_far: bool,
    /// A server that an account logged in to, not the daemon of a store of this machine.
    is_server: bool,
    _address: Option<Address>,
}

/// How a command ended that a daemon was asked to run.
#[derive(Debug)]
pub enum Ran {
    /// It ended so.
    Done(Exit),
    /// The daemon is ending, and has not run it.
    NotBegun(Box<Request>),
}

/// Connects to the daemon that has the store open; `None` if none listens, or if it is ending.
pub fn connect(directory: &Path) -> Result<Option<Client>> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::cannot_run(format!("the daemon has the store open, and its socket cannot be used: {error}"))
    };
    let Some(address) = socket::address(directory).map_err(|error| cannot(&error))? else { return Ok(None) };
    let mut options = ConnectOptions::new(Target::Unix(address.path.clone()), Credentials::default());
    // The daemon keeps no session for a client that is gone.
    options.retry = Duration::ZERO;
    let error = match ClientSession::connect(options) {
        Ok(session) => {
            let session = Some(Arc::new(session));
            return Ok(Some(Client { session, cache: None, is_far: false, is_server: false, _address: Some(address) }));
        }
        Err(error) => error,
    };
    Err(match error {
        TransportError::Refused { code: codes::DENIED, text } => Failure::cannot_run(text).advise("run the command as that user"),
        TransportError::Refused { code: codes::BUSY, text } => {
            Failure::failed(format!("the daemon takes no more clients: {text}")).advise(WHEN_BUSY)
        }
        TransportError::Refused { code: codes::SHUTDOWN, .. } => return Ok(None),
        TransportError::Refused { .. } | TransportError::Protocol { .. } => of_another_version(),
        TransportError::Io { source, .. } => match source.kind() {
            // It does not exist, or a killed daemon left it.
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => return Ok(None),
            ErrorKind::PermissionDenied => cannot(&source).advise("run the command as the user who runs the daemon, or as root"),
            // It closed the connection. If it still listens, it does not understand the greeting.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => match socket::connect(directory) {
                Ok(Some(_)) => of_another_version(),
                _ => return Ok(None),
            },
            _ => cannot(&source),
        },
        error => cannot(&error),
    })
}

fn of_another_version() -> Failure {
    Failure::cannot_run("the daemon that has the store open is of another version")
        .advise("restart the daemon with this onefold, or use the onefold that it runs")
}

fn broken_off() -> Failure {
    Failure::failed("the daemon ended before the command did").advise("see its log for the reason, then run the command again")
}

impl Client {
    /// Returns the client of a server, perhaps on another machine (`is_far`).
    pub(crate) fn of_server(session: Arc<ClientSession>, cache: Option<PathBuf>, is_far: bool) -> Client {
        Client { session: Some(session), cache, is_far, is_server: true, _address: None }
    }

    /// Returns the session.
    pub fn session(&self) -> &Arc<ClientSession> {
        self.session.as_ref().expect("only its end takes it")
    }

    /// Returns the store behind the daemon.
    pub fn repository(&self) -> Remote {
        Remote::new(Arc::clone(self.session()), self.cache.clone(), self.is_far)
    }

    /// Has the daemon run a command, and ends as the command did.
    pub fn run(&self, command: Request, talk: Talk, terminal: &dyn Console) -> Result<Ran> {
        let call = Call::new(command, talk.quiet, is_shown(talk), crate::console::can_ask());
        let payload = call.encode().map_err(|error| Failure::failed(format!("the command cannot be sent: {error}")))?;
        let done = match self.session().open(COMMAND, Vec::new()) {
            Ok(channel) => {
                // A daemon that refuses says why. Its message is still read.
                let _ = channel.send(Kind::Request as u8, payload);
                let done = self.follow(&channel, terminal);
                terminal.end_progress();
                channel.finish();
                done
            }
            Err(ChannelError::Ended { code: codes::SHUTDOWN, .. }) => Ok(None),
            Err(error) => Err(self.lost(error)),
        };
        Ok(done?.map_or_else(|| Ran::NotBegun(Box::new(call.command)), Ran::Done))
    }

    /// Returns the failure for a session that ended.
    fn lost(&self, error: ChannelError) -> Failure {
        match error {
            ChannelError::Cancelled { code, text } if code >= codes::SERVICES => Failure::failed(text),
            ChannelError::Cancelled { code: codes::BUSY, text } => Failure::failed(text).advise(WHEN_BUSY),
            error if self.is_server => {
                Failure::failed(format!("the server did not finish the command: {error}")).advise("run the command again")
            }
            _ => broken_off(),
        }
    }

    /// Returns the failure for an answer that ends too early or makes no sense.
    fn no_result(&self) -> Failure {
        if self.is_server { Failure::failed("the server did not finish the command").advise("run the command again") } else { broken_off() }
    }

    /// Shows what the daemon sends. `None`: it is ending, and has not begun the command.
    fn follow(&self, channel: &Channel, terminal: &dyn Console) -> Result<Option<Exit>> {
        let (mut cancelled, mut shown) = (false, Progress::default());
        loop {
            if terminal.is_cancelled() && !cancelled {
                cancelled = true;
                let _ = channel.send(Kind::Cancel as u8, Vec::new());
            }
            let Message { kind, payload } = match channel.receive_until(Instant::now() + SIGNAL_STEP) {
                Ok(Received::Message(message)) => message,
                Ok(Received::Timeout) => continue,
                Ok(Received::Finished) => return Err(self.no_result()),
                Err(ChannelError::Cancelled { code: codes::SHUTDOWN, .. }) => return Ok(None),
                Err(error) => return Err(self.lost(error)),
            };
            match Kind::of(kind) {
                Some(Kind::Output) => {
                    let mut out = terminal.out();
                    out.write_all(&payload).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))?;
                }
                Some(Kind::Note) => terminal.note(&String::from_utf8_lossy(&payload)),
                Some(Kind::Progress) => {
                    let now: Progress = serde_json::from_slice(&payload).map_err(|_| self.no_result())?;
                    show(terminal, &shown, &now);
                    shown = now;
                }
                Some(Kind::EndOfProgress) => {
                    terminal.end_progress();
                    shown = Progress::default();
                }
                Some(Kind::Result) => {
                    let ended: Ended = serde_json::from_slice(&payload).map_err(|_| self.no_result())?;
                    return ended.result().unwrap_or_else(|| Err(self.no_result())).map(Some);
                }
                Some(Kind::Question) => {
                    let is_yes = terminal.ask(&String::from_utf8_lossy(&payload))? == Some(true);
                    let _ = channel.send(Kind::Answer as u8, vec![u8::from(is_yes)]);
                }
                Some(Kind::Request | Kind::Cancel | Kind::Answer) | None => return Err(self.no_result()),
            }
        }
    }
}

impl Drop for Client {
    /// Ends the session, and waits until the server knows: otherwise it would keep the session for a while.
    fn drop(&mut self) {
        // If somebody else still has the session, its end ends it.
        if let Some(session) = self.session.take().and_then(Arc::into_inner) {
            let _ = session.close();
        }
    }
}

/// Updates the terminal from one state of the progress to the next.
fn show(terminal: &dyn Console, before: &Progress, now: &Progress) {
    if (&now.step, now.total) == (&before.step, before.total) && now.done >= before.done {
        terminal.advance(now.done - before.done);
    } else {
        terminal.step(&now.step, now.total);
        terminal.advance(now.done);
    }
}
