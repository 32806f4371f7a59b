//! Where a mount gets its backups from: a store that this process opens, the daemon that has it open, or a server.
//!
//! A store that is opened here is read as of a moment, so for a newer list it is opened again. It is closed when nobody
//! has used it for a while. While it is open, the backups of its list stay, whoever forgets them.

use super::super::place::{self, Place, Wanted};
use crate::cli::Mount;
use crate::console::Terminal;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::remote::Server;
use crate::talk::Talk;
use onefold_catalog::Backup;
use onefold_client::Reading;
use onefold_engine::Mode;
use onefold_fuse::{Backups, Opened};
use std::error::Error;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a request waits for a server that cannot be reached, unless `--retry` says something else. Programs that
/// look at files should not hang for minutes.
const RETRY: Duration = Duration::from_secs(20);
/// After an attempt to open it failed, nobody tries again for so long: many requests wait for one.
const PAUSE: Duration = Duration::from_secs(1);
/// How old a store that is opened here may be for a list.
const FRESH: Duration = Duration::from_secs(1);

type Failed = Box<dyn Error + Send + Sync>;

/// The store of a mount.
pub(super) struct Source {
    directory: PathBuf,
    server: Option<Mutex<Server>>,
    interrupt: Interrupt,
    talk: Talk,
    open: Mutex<Option<Arc<Open>>>,
    /// When the last attempt to open it failed, and why.
    opening: Mutex<Option<(Instant, String)>>,
}

/// A store that is open, or a connection.
struct Open {
    place: Option<Place>,
    /// `None`: not asked for yet.
    backups: Mutex<Option<Vec<Backup>>>,
    since: Instant,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(Err(failure)) = self.place.take().map(Place::close) {
            tracing::warn!("{}", failure.message);
        }
    }
}

impl Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// What keeps a backup readable.
struct Kept {
    _reading: Reading,
    _open: Arc<Open>,
}

impl Debug for Kept {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl Source {
    /// Opens the store, or connects.
    pub(super) fn open(options: &Mount, interrupt: &Interrupt, talk: Talk) -> Result<Source> {
        let mut connection = options.store.connection.clone();
        connection.retry.get_or_insert(RETRY);
        let directory = options.store.directory.clone();
        let mut server = place::server(&directory, &connection)?;
        let place = match &mut server {
            // It may ask whether it is the right one.
            Some(server) => Place::There(server.connect(&Terminal::stopped_by(talk, interrupt.clone()))?),
            None => here(&directory, interrupt, talk)?,
        };
        let directory = if server.is_some() { directory } else { std::path::absolute(&directory).unwrap_or(directory) };
        let source = Source {
            directory,
            server: server.map(Mutex::new),
            interrupt: interrupt.clone(),
            talk,
            open: Mutex::default(),
            opening: Mutex::default(),
        };
        source.listed(&source.keep(place)).map_err(|error| Failure::failed(format!("the backups cannot be listed: {error}")))?;
        Ok(source)
    }

    /// Returns what it is, for `mount`.
    pub(super) fn name(&self) -> String {
        // A comma would end the option.
        self.directory.display().to_string().replace(',', "_")
    }

    fn keep(&self, place: Place) -> Arc<Open> {
        let open = Arc::new(Open { place: Some(place), backups: Mutex::default(), since: Instant::now() });
        *lock(&self.open) = Some(Arc::clone(&open));
        open
    }

    /// Returns the open store, or opens it. `is_fresh`: as of now.
    fn now(&self, is_fresh: bool) -> std::result::Result<Arc<Open>, Failed> {
        let asked = Instant::now();
        let is_usable = |open: &Arc<Open>| match &open.place {
            Some(Place::There(client)) => client.session().ended().is_none(),
            Some(Place::Here(..)) => !is_fresh || open.since.elapsed() < FRESH,
            None => false,
        };
        let usable = || lock(&self.open).clone().filter(is_usable);
        if let Some(open) = usable() {
            return Ok(open);
        }
        // One opens it for all who wait, and if that fails, it fails for all.
        let mut opening = lock(&self.opening);
        if let Some(open) = usable() {
            return Ok(open);
        }
        if let Some((_, why)) = opening.as_ref().filter(|(failed, _)| *failed >= asked || failed.elapsed() < PAUSE) {
            return Err(why.clone().into());
        }
        let opened = match &self.server {
            Some(server) => {
                let mut server = lock(server);
                let until = Instant::now() + server.retry();
                server.connect_again(until, &self.interrupt).map(Place::There)
            }
            None => here(&self.directory, &self.interrupt, self.talk),
        };
        match opened {
            Ok(place) => Ok(self.keep(place)),
            Err(failure) => {
                *opening = Some((Instant::now(), failure.message.clone()));
                Err(failure.message.into())
            }
        }
    }

    fn listed(&self, open: &Open) -> std::result::Result<Vec<Backup>, Failed> {
        let mut backups = lock(&open.backups);
        match &open.place {
            Some(Place::Here(_, catalog)) => {
                if backups.is_none() {
                    let (sound, damage) = catalog.list_sound()?;
                    if let Some(error) = damage {
                        tracing::warn!("not all backups are shown: {error}");
                    }
                    catalog.hold(&sound.iter().collect::<Vec<_>>())?;
                    *backups = Some(sound);
                }
                Ok(backups.clone().unwrap_or_default())
            }
            Some(Place::There(client)) => {
                let (backups, is_missing) = client.repository().list()?;
                if is_missing {
                    tracing::warn!("not all backups are shown: the records of some are damaged");
                }
                Ok(backups)
            }
            None => Ok(Vec::new()),
        }
    }
}

fn here(directory: &std::path::Path, interrupt: &Interrupt, talk: Talk) -> Result<Place> {
    Place::open(&Wanted { directory, mode: Mode::Snapshot, command: "mount", wait: None }, interrupt, talk, &|text| note(text))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backups for Source {
    fn list(&self) -> std::result::Result<Vec<Backup>, Failed> {
        self.listed(&*self.now(true)?)
    }

    fn open(&self, backup: &Backup) -> std::result::Result<Opened, Failed> {
        for is_fresh in [false, true] {
            let open = self.now(is_fresh)?;
            let Some(place) = &open.place else { continue };
            // A store that is opened here holds the backups of its list, and no others.
            if matches!(place, Place::Here(..)) && !self.listed(&open)?.iter().any(|listed| listed.id == backup.id) {
                continue;
            }
            let of_list = lock(&open.backups).as_ref().and_then(|list| list.iter().find(|listed| listed.id == backup.id).cloned());
            let reading = place.repository().read(of_list.as_ref().unwrap_or(backup))?;
            let (chunks, root) = (Arc::clone(reading.chunks()), reading.backup().root.clone());
            return Ok(Opened { chunks, root, guard: Box::new(Kept { _reading: reading, _open: Arc::clone(&open) }) });
        }
        Err(format!("backup {} is gone", backup.id.short()).into())
    }

    fn rest(&self) {
        let mut open = lock(&self.open);
        // A connection costs nothing.
        let is_idle = |open: &mut Arc<Open>| matches!(open.place, Some(Place::Here(..))) && open.since.elapsed() > FRESH;
        drop(open.take_if(is_idle));
    }
}
