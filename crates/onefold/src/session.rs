//! What a command that needs nothing but an open store runs with.

use crate::cli::Wait;
use crate::console::Console;
use crate::daemon::Daemon;
use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use crate::store::Store;
use onefold_engine::{EngineError, Mode};
use onefold_upkeep::Monitor;
use onefold_volume::Volumes;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A command that needs nothing but an open store: no file and no environment of whoever typed it. So it does the same in a process of its
/// own and in a daemon that has the store open already.
pub trait StoreCommand {
    /// As it is typed, for whoever finds the store locked by it.
    fn name(&self) -> &'static str;
    /// The store that it was typed for. In a daemon this means nothing.
    fn directory(&self) -> &Path;
    /// How it opens the store. With [`Mode::Snapshot`] it says what it reads ([`Engine::hold`](onefold_engine::Engine::hold)) as soon as it knows; what it says
    /// before is shown then, or at its end.
    fn mode(&self) -> Mode;
    /// How long it waits for another process that has the store.
    fn wait(&self) -> Option<Wait> {
        None
    }
    /// Whether a daemon does it that has the store open, though it could be done beside the daemon: only the daemon knows all.
    fn asks_the_daemon(&self) -> bool {
        false
    }
    /// Whether it looks at [`Session::is_cancelled`] and then ends at a clean place. Else a signal ends it at once.
    fn ends_early(&self) -> bool {
        false
    }
    /// Whether it takes so much memory or so much of the disk that a daemon does one such command at a time.
    fn is_heavy(&self) -> bool {
        false
    }
    /// Whether it uses rights of whoever runs the daemon beyond the store: then only that user and root may have the daemon do it.
    fn is_for_owner(&self) -> bool {
        false
    }
    /// Does it.
    fn run(&self, session: &Session<'_>) -> Result<Exit>;
    /// What it makes of a store that does not open; `None`: no more than the error.
    fn without_store(&self, _error: &EngineError, _console: &dyn Console, _quiet: bool) -> Option<Result<Exit>> {
        None
    }
}

/// An open store, and the other end of a command.
pub struct Session<'a> {
    /// The store.
    pub store: &'a Store,
    /// Whether to leave out everything but errors and what was asked for.
    pub quiet: bool,
    console: &'a dyn Console,
    volumes: OnceLock<Arc<Volumes>>,
    daemon: Option<&'a Daemon>,
    said: Mutex<Vec<Said>>,
}

/// What a command says while writers may have to wait for it: nobody who reads slowly shall hold them up.
#[derive(Debug)]
pub enum Said {
    /// For standard output.
    Output(Vec<u8>),
    /// Beside the result.
    Note(String),
}

impl Said {
    /// Shows it.
    pub fn show(self, console: &dyn Console) -> std::io::Result<()> {
        match self {
            Said::Output(bytes) => console.out().write_all(&bytes),
            Said::Note(text) => {
                console.note(&text);
                Ok(())
            }
        }
    }
}

impl<'a> Session<'a> {
    /// In a process of its own.
    pub fn new(store: &'a Store, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        Session { store, quiet, console, volumes: OnceLock::new(), daemon: None, said: Mutex::default() }
    }

    /// In the daemon, beside the clients of its volumes.
    pub fn beside(store: &'a Store, daemon: &'a Daemon, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        Session { store, quiet, console, volumes: OnceLock::from(daemon.volumes().clone()), daemon: Some(daemon), said: Mutex::default() }
    }

    /// The volumes of the store; those of the daemon where there is one, so that its clients see every change at once.
    pub fn volumes(&self) -> Result<&Volumes> {
        if let Some(volumes) = self.volumes.get() {
            return Ok(volumes);
        }
        let opened = Arc::new(Volumes::open(self.store.engine.clone(), self.store.volumes_options())?);
        opened.damaged().iter().for_each(|problem| self.note(format!("left out: {problem}")));
        Ok(self.volumes.get_or_init(|| opened))
    }

    /// Whether a daemon does this beside its clients. It also drops, in the background, what nobody needs any more.
    pub fn is_in_daemon(&self) -> bool {
        self.daemon.is_some()
    }

    /// The daemon that this runs in.
    pub fn daemon(&self) -> Option<&Daemon> {
        self.daemon
    }

    /// Does something that a client of the volume would not survive: it is refused while one is connected, and none connects meanwhile.
    pub fn on_unused_volume<T>(&self, name: &str, work: impl FnOnce(&Volumes) -> Result<T>) -> Result<T> {
        let volumes = self.volumes()?;
        match self.daemon {
            Some(daemon) => daemon.on_unused(name, || work(volumes)),
            None => work(volumes),
        }
    }

    /// Asks whether to go on with something that destroys data. `losses` says what will be gone; `is_confirmed`: `--yes` was given.
    pub fn confirm(&self, is_confirmed: bool, losses: impl Display) -> Result<()> {
        if is_confirmed {
            return Ok(());
        }
        match self.console.ask(&format!("{losses}. Go on?"))? {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::failed("nothing was done")),
            None => Err(Failure::cannot_run(format!("{losses}; there is no terminal to ask on, so nothing was done"))
                .advise("give --yes to do it without a question")),
        }
    }

    /// The other end.
    pub fn console(&self) -> &dyn Console {
        self.console
    }

    /// Standard output, for results.
    pub fn output(&self) -> Output<'_> {
        Output::to(Box::new(Later(self)))
    }

    /// Says something beside the result.
    pub fn note(&self, text: impl Display) {
        let said = Said::Note(text.to_string());
        // A remark that cannot be shown is lost.
        let _ = self.say(said);
    }

    /// Shows it, and before it what was said while writers might have had to wait.
    fn say(&self, what: Said) -> std::io::Result<()> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(what);
        if self.store.engine.is_looking() { Ok(()) } else { said.drain(..).try_for_each(|said| said.show(self.console)) }
    }

    /// What was said and is not shown yet, to be shown when the store is closed.
    pub fn take_said(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says something that the person may want to know, unless they asked for silence.
    pub fn advise(&self, text: impl Display) {
        if !self.quiet {
            self.note(text);
        }
    }

    /// Takes the progress away: the long work is over.
    pub fn end_progress(&self) {
        self.console.end_progress();
    }
}

impl Monitor for Session<'_> {
    fn step(&self, what: &str, total: u64) {
        self.console.step(what, total);
    }

    fn advance(&self, units: u64) {
        self.console.advance(units);
    }

    fn is_cancelled(&self) -> bool {
        self.console.is_cancelled()
    }
}

/// Standard output of a session.
struct Later<'a>(&'a Session<'a>);

impl Write for Later<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.store.engine.is_looking() {
            return self.0.say(Said::Output(bytes.to_vec())).map(|()| bytes.len());
        }
        self.0.take_said().into_iter().try_for_each(|said| said.show(self.0.console))?;
        self.0.console.out().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.0.store.engine.is_looking() { Ok(()) } else { self.0.console.out().flush() }
    }
}
