//! The store of a command that reads or writes files of its own process: opened here, behind the daemon that has it
//! open, or behind a server.

use super::chosen::{chosen, say_what_is_meant};
use super::clocks::Clocks;
use super::{Request, in_use_by_another};
use crate::cli::{Connection, Wait};
use crate::clocks;
use crate::console::{Keeping, Terminal};
use crate::control::{self, Client};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::remote::{Server, is_url};
use crate::store::{SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::talk::Talk;
use crate::waiting::{InUse, Waiting};
use onefold_catalog::{Backup, Catalog};
use onefold_client::{Reading, Repository};
use onefold_engine::{Engine, EngineError, InFlight, Mode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a lost connection is looked for after a signal.
const SIGNAL_STEP: Duration = Duration::from_millis(100);

/// A store.
pub(super) enum Place {
    /// Open in this process.
    Here(Box<Store>, Catalog),
    /// Behind a connection.
    There(Client),
}

/// What a place is opened for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub directory: &'a Path,
    pub mode: Mode,
    pub command: &'static str,
    pub wait: Option<Wait>,
}

/// A backup that stays readable.
pub(super) struct Meant {
    pub backup: Backup,
    _kept: Kept,
}

#[allow(dead_code, reason = "it is held")]
enum Kept {
    Here(InFlight),
    There(Box<Reading>),
}

impl Place {
    /// Opens the store, or connects to the daemon that has it open. `say` takes what is worth knowing.
    pub(super) fn open(wanted: &Wanted<'_>, interrupt: &Interrupt, talk: Talk, say: &dyn Fn(&str)) -> Result<Place> {
        let ground = ground(wanted.directory)?;
        // A member of the store's group may be able to use the daemon, but not to read its settings.
        let settings = match read_settings(&wanted.directory.join(SETTINGS_FILE), true) {
            Ok(settings) => settings,
            Err(unread) => return control::connect(wanted.directory).ok().flatten().map(Place::There).ok_or(unread),
        };
        let mut waiting = Waiting::until(wanted.wait, interrupt, talk.quiet);
        loop {
            let opened = match wanted.mode {
                Mode::Snapshot => Store::open_as_of_now(ground.clone(), settings.clone(), wanted.command, say),
                mode => Engine::open(ground.clone(), settings.engine.clone(), mode, wanted.command)
                    .map(|engine| Store { engine, settings: settings.clone() }),
            };
            let error = match opened {
                Ok(store) => {
                    store.keep_no_unfinished(wanted.mode)?;
                    let catalog = Catalog::new(store.engine.clone());
                    return Ok(Place::Here(Box::new(store), catalog));
                }
                Err(error) => error,
            };
            if error.holder().is_some()
                && let Some(daemon) = control::connect(wanted.directory)?
            {
                return Ok(Place::There(daemon));
            }
            if !waiting.outlasts(&error) {
                return Err(waiting.interruption(&error).unwrap_or_else(|| not_opened(error, wanted.mode)));
            }
        }
    }

    /// Returns the store.
    pub(super) fn repository(&self) -> Box<dyn Repository + '_> {
        match self {
            Place::Here(_, catalog) => Box::new(catalog.clone()),
            Place::There(client) => Box::new(client.repository()),
        }
    }

    /// Finds the backup that a user means, and keeps it readable.
    pub(super) fn find(&self, asked: &str, say: &dyn Fn(&str)) -> Result<Meant> {
        match self {
            Place::Here(store, catalog) => {
                let kept = Kept::Here(store.engine.in_flight());
                Ok(Meant { backup: chosen(catalog, asked, say)?, _kept: kept })
            }
            Place::There(client) => {
                let reading = client.repository().find(asked)?;
                say_what_is_meant(reading.backup(), reading.newer_partial(), say);
                Ok(Meant { backup: reading.backup().clone(), _kept: Kept::There(Box::new(reading)) })
            }
        }
    }

    /// Goes on with only this backup.
    pub(super) fn hold(&self, backup: &Backup) -> Result<()> {
        match self {
            Place::Here(_, catalog) => Ok(catalog.hold(&[backup])?),
            Place::There(_) => Ok(()),
        }
    }

    /// Returns what a new backup should warn of about clocks.
    pub(super) fn doubt(&self, talk: Talk) -> Option<String> {
        match self {
            Place::Here(_, catalog) => clocks::doubt_of_backup(catalog),
            Place::There(client) => {
                let terminal = Terminal::new(Talk { quiet: true, ..talk });
                let keeping = Keeping::new(&terminal);
                // A server that does not say it is none the worse for a backup.
                client.run(Request::Clocks(Clocks::default()), Talk { quiet: true, ..talk }, &keeping).ok()?;
                let text = String::from_utf8(keeping.take()).ok()?;
                Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
            }
        }
    }

    /// Ends the process at the first signal while the connection is lost: nothing else would notice the signal.
    pub(super) fn watch(&self, interrupt: &Interrupt, what: &'static str) -> Watching {
        let is_over = Arc::new(AtomicBool::new(false));
        if let Place::There(client) = self {
            let (session, interrupt, over) = (Arc::downgrade(client.session()), interrupt.clone(), Arc::clone(&is_over));
            // Without the thread a second signal ends it.
            let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(SIGNAL_STEP);
                    let is_lost = || session.upgrade().is_some_and(|session| !session.is_linked() && session.ended().is_none());
                    if interrupt.came() && is_lost() {
                        note(Failure::interrupted(what));
                        std::process::exit(crate::failure::Exit::Interrupted as i32);
                    }
                }
            });
        }
        Watching(is_over)
    }

    /// Closes the store, or the connection.
    pub(super) fn close(self) -> Result<()> {
        match self {
            Place::Here(store, catalog) => {
                drop(catalog);
                store.close()
            }
            Place::There(client) => {
                drop(client);
                Ok(())
            }
        }
    }
}

/// Ends the watch of [`Place::watch`] when it is dropped.
pub(super) struct Watching(Arc<AtomicBool>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn not_opened(error: EngineError, mode: Mode) -> Failure {
    if error.holder().is_some() {
        return in_use_by_another(error, mode);
    }
    cannot_open(error)
}

/// Returns the server of a store that is behind one.
pub(super) fn server(store: &Path, connection: &Connection) -> Result<Option<Server>> {
    if is_url(store) { Server::new(store, connection).map(Some) } else { Ok(None) }
}

/// Returns the directory of a store that is on this machine: it is never backed up into itself.
pub(super) fn local_directory(store: &Path) -> Option<PathBuf> {
    (!is_url(store)).then(|| store.to_owned())
}
