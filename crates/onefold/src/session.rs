//! What a command that needs nothing but an open store runs with.

use crate::console::Console;
use crate::daemon::Daemon;
use crate::failure::{Exit, Result};
use crate::output::Output;
use crate::store::Store;
use onefold_engine::{EngineError, Mode};
use onefold_reclaim::Monitor;
use onefold_volume::Volumes;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A command that needs nothing but an open store: no file and no environment of whoever typed it. So it does the same in a process of its
/// own and in a daemon that has the store open already.
pub trait StoreCommand {
    /// As it is typed, for whoever finds the store locked by it.
    fn name(&self) -> &'static str;
    /// The store that it was typed for. In a daemon this means nothing.
    fn directory(&self) -> &Path;
    /// How it opens the store.
    fn mode(&self) -> Mode;
    /// Whether it looks at [`Session::is_cancelled`] and then ends at a clean place. Else a signal ends it at once.
    fn ends_early(&self) -> bool {
        false
    }
    /// Whether it takes so much memory or so much of the disk that a daemon does one such command at a time.
    fn is_heavy(&self) -> bool {
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
}

impl<'a> Session<'a> {
    /// In a process of its own.
    pub fn new(store: &'a Store, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        Session { store, quiet, console, volumes: OnceLock::new(), daemon: None }
    }

    /// In the daemon, beside the clients of its volumes.
    pub fn beside(store: &'a Store, daemon: &'a Daemon, console: &'a dyn Console, quiet: bool) -> Session<'a> {
        Session { store, quiet, console, volumes: OnceLock::from(daemon.volumes().clone()), daemon: Some(daemon) }
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

    /// The other end.
    pub fn console(&self) -> &dyn Console {
        self.console
    }

    /// Standard output, for results.
    pub fn output(&self) -> Output<'_> {
        Output::to(self.console.out())
    }

    /// Says something beside the result.
    pub fn note(&self, text: impl Display) {
        self.console.note(&text.to_string());
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
