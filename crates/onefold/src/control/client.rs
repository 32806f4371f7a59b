//! The command's side: hands the command to the daemon and shows its output as if it had run here.

use super::frame::{Found, Frame, GREETING_BYTES, Kind, Reader, VERSION, encode, greeting, version};
use super::message::{Call, Ended, Progress};
use super::socket;
use crate::commands::Request;
use crate::console::Console;
use crate::failure::{Exit, Failure, Result};
use crate::progress::is_shown;
use crate::talk::Talk;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How often it checks for a signal while the daemon is silent.
const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// A connection to the daemon of a store.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

/// Connects to the daemon that has the store open; `None` if none listens.
pub fn connect(directory: &Path) -> Result<Option<Client>> {
    match socket::connect(directory) {
        Ok(stream) => Ok(stream.map(|stream| Client { stream })),
        Err(error) => {
            let failure = Failure::cannot_run(format!("the daemon has the store open, and its socket cannot be used: {error}"));
            Err(match error.kind() {
                ErrorKind::PermissionDenied => failure.advise("run the command as the user who runs the daemon, or as root"),
                _ => failure,
            })
        }
    }
}

fn broken_off() -> Failure {
    Failure::failed("the daemon ended before the command did").advise("see its log for the reason, then run the command again")
}

impl Client {
    /// Has the daemon run a command, and ends as the command did.
    pub fn run(self, command: Request, talk: Talk, terminal: &dyn Console) -> Result<Exit> {
        let call = Call::new(command, talk.quiet, is_shown(talk), crate::console::can_ask());
        let call = call.encode().map_err(|error| Failure::failed(format!("the command cannot be sent to the daemon: {error}")))?;
        // A daemon that refuses says why and closes the connection. Its message is still read.
        let _ = (&self.stream).write_all(&greeting()).and_then(|()| (&self.stream).write_all(&encode(Kind::Request, &call)));
        self.greeted()?;
        let done = self.follow(terminal);
        terminal.end_progress();
        done
    }

    fn greeted(&self) -> Result<()> {
        let mut theirs = [0; GREETING_BYTES];
        (&self.stream).read_exact(&mut theirs).map_err(|_| broken_off())?;
        match version(&theirs) {
            Some(VERSION) => Ok(()),
            _ => Err(Failure::cannot_run("the daemon that has the store open is of another version")
                .advise("restart the daemon with this onefold, or use the onefold that it runs")),
        }
    }

    fn follow(&self, terminal: &dyn Console) -> Result<Exit> {
        let mut reader = Reader::default();
        let (mut cancelled, mut shown) = (false, Progress::default());
        self.stream.set_read_timeout(Some(SIGNAL_STEP)).map_err(Failure::failed)?;
        loop {
            if terminal.is_cancelled() && !cancelled {
                cancelled = true;
                let _ = (&self.stream).write_all(&encode(Kind::Cancel, &[]));
            }
            let Frame { kind, payload } = match reader.next(&self.stream) {
                Ok(Found::Frame(frame)) => frame,
                Ok(Found::Nothing) => continue,
                Ok(Found::End) | Err(_) => return Err(broken_off()),
            };
            match kind {
                Kind::Output => {
                    let mut out = terminal.out();
                    out.write_all(&payload).and_then(|()| out.flush()).map_err(|error| Failure::output(&error))?;
                }
                Kind::Note => terminal.note(&String::from_utf8_lossy(&payload)),
                Kind::Progress => {
                    let now: Progress = serde_json::from_slice(&payload).map_err(|_| broken_off())?;
                    show(terminal, &shown, &now);
                    shown = now;
                }
                Kind::EndOfProgress => {
                    terminal.end_progress();
                    shown = Progress::default();
                }
                Kind::Result => {
                    let ended: Ended = serde_json::from_slice(&payload).map_err(|_| broken_off())?;
                    return ended.result().unwrap_or_else(|| Err(broken_off()));
                }
                Kind::Question => {
                    let is_yes = terminal.ask(&String::from_utf8_lossy(&payload))? == Some(true);
                    let _ = (&self.stream).write_all(&encode(Kind::Answer, &[u8::from(is_yes)]));
                }
                Kind::Request | Kind::Cancel | Kind::Answer => return Err(broken_off()),
            }
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
