//! A backup being made: the content of its files, its tree, its record.
//!
//! Whoever reads files or a connection calls this; it never knows which. Contents may be written by several threads,
//! each with a [`ContentWriter`]; one [`TreeWriter`] puts them into directories.
//!
//! # Invariants
//! * The record is committed last: an interrupted backup is not visible, and its chunks make the next one cheap.
//! * The chunks of the earlier backup, and of everything seen since, stay until the record is committed.

mod contents;
mod named;
mod recall;
mod tree;

pub use contents::{ContentWriter, SmallFile};
pub use tree::TreeWriter;

use crate::{Backup, BackupId, Catalog, CatalogError, Result, Statistics};
use named::NamedFiles;
use onefold_engine::{Engine, InFlight, Recipe, WriteStream};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// A backup that is not visible yet.
#[derive(Debug)]
pub struct Making {
    catalog: Catalog,
    id: BackupId,
    started_ns: i64,
    /// Bytes of the store's frames when it began.
    stored_before: u64,
    /// The metadata of all writers goes to one stream.
    metadata: Mutex<WriteStream>,
    named: Option<NamedFiles>,
    comparison: Arc<Comparison>,
}

/// What the record of a backup says beside what the store knows.
#[derive(Clone, Debug)]
pub struct Details {
    /// The backup group.
    pub name: String,
    /// The machine's name.
    pub host: String,
    /// The user's name.
    pub user: String,
    /// Tags, sorted, each once.
    pub tags: Vec<String>,
    /// The absolute paths that were backed up.
    pub paths: Vec<Vec<u8>>,
    /// The options it was made with, as JSON.
    pub options: String,
    /// What it counted.
    pub statistics: Statistics,
}

/// An earlier backup to compare with, found under a guard: its chunks stay.
#[derive(Debug)]
pub struct Comparison {
    in_flight: InFlight,
    /// The backup. `None`: there is none.
    pub earlier: Option<Backup>,
    /// Why an earlier backup could not be read. Without one, every file is read.
    pub damage: Option<CatalogError>,
}

impl Comparison {
    /// Finds the newest backup that `is_earlier` accepts.
    pub fn find(catalog: &Catalog, is_earlier: impl Fn(&Backup) -> bool) -> Result<Comparison> {
        // The guard comes first: the chunks of whatever is found must not go any more.
        let in_flight = catalog.engine().in_flight();
        match catalog.newest(is_earlier) {
            // Damage to an old backup must not prevent a new one.
            Err(error @ CatalogError::Damaged { .. }) => Ok(Comparison { in_flight, earlier: None, damage: Some(error) }),
            found => Ok(Comparison { in_flight, earlier: found?, damage: None }),
        }
    }
}

/// How much a backup added to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It is measured: the bytes of metadata are added to `added_bytes` of the statistics, and `stored_bytes` is how
    /// much the store's frames grew.
    Measured,
    /// The record says this instead: what was new to the store must not be known.
    Given {
        /// Bytes of chunks.
        added_bytes: u64,
        /// The same, compressed.
        stored_bytes: u64,
    },
}

impl Making {
    /// Begins a backup.
    pub fn begin(catalog: &Catalog, comparison: &Arc<Comparison>) -> Result<Making> {
        let engine = catalog.engine();
        let started_ns = engine.date_ns();
        let id = BackupId::from_bytes(onefold_engine::random_name()?);
        let (stored_before, metadata) = (engine.stored_bytes(), Mutex::new(engine.stream()));
        let (catalog, comparison) = (catalog.clone(), comparison.clone());
        Ok(Making { catalog, id, started_ns, stored_before, metadata, named: None, comparison })
    }

    /// Lets [`ContentWriter`]s take small files by their names.
    pub fn with_named_files(mut self) -> Result<Making> {
        self.named = NamedFiles::new(&self.catalog, self.id, &self.comparison.in_flight)?;
        Ok(self)
    }

    /// Returns the store.
    pub fn engine(&self) -> &Arc<Engine> {
        self.catalog.engine()
    }

    /// Returns the id that it will have.
    pub fn id(&self) -> BackupId {
        self.id
    }

    /// Returns the earlier backup that it is compared with.
    pub fn earlier(&self) -> Option<&Backup> {
        self.comparison.earlier.as_ref()
    }

    /// Returns when it began, nanoseconds since 1970.
    pub fn started_ns(&self) -> i64 {
        self.started_ns
    }

    /// Returns the stream that all metadata goes to.
    pub fn metadata(&self) -> MutexGuard<'_, WriteStream> {
        self.metadata.lock()
    }

    /// Makes the backup visible. It is durable on return. No writer may be left.
    pub fn commit(&self, root: Recipe, details: Details, growth: Growth) -> Result<Backup> {
        let engine = self.engine();
        if let Some(named) = &self.named {
            named.finish();
        }
        let Details { name, host, user, tags, paths, options, mut statistics } = details;
        match growth {
            Growth::Measured => {
                statistics.added_bytes += self.metadata().added_bytes();
                if statistics.added_bytes > 0 {
                    // The compressed size of the last frames is known when they are written.
                    engine.flush_all()?;
                }
                statistics.stored_bytes = engine.stored_bytes().saturating_sub(self.stored_before);
            }
            Growth::Given { added_bytes, stored_bytes } => {
                (statistics.added_bytes, statistics.stored_bytes) = (added_bytes, stored_bytes);
            }
        }
        let (id, started_ns, finished_ns) = (self.id, self.started_ns, engine.date_ns());
        let mut backup =
            Backup { id, sequence: 0, seen_ns: 0, name, host, user, started_ns, finished_ns, tags, paths, options, root, statistics };
        self.catalog.commit_backup(&mut backup)?;
        Ok(backup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::{Cursor, Descriptor, Engine, Hints, Mode, Settings};
    use onefold_ground::{Ground, LocalGround};
    use std::cell::Cell;

    #[test]
    fn what_an_earlier_backup_has_is_kept_from_before_it_is_looked_for() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("store")).unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path().join("store")).unwrap());
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        let settings = Settings { background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        let catalog = Catalog::new(engine.clone());
        let comparison = Arc::new(Comparison::find(&catalog, |_| false).unwrap());
        let making = Arc::new(Making::begin(&catalog, &comparison).unwrap());
        let details = Details {
            name: "group".to_owned(),
            host: String::new(),
            user: String::new(),
            tags: Vec::new(),
            paths: Vec::new(),
            options: String::new(),
            statistics: Statistics::default(),
        };
        making.commit(making.tree().finish().unwrap(), details, Growth::Measured).unwrap();
        drop((making, comparison));
        // A chunk that nothing refers to, and that would go if it could.
        engine.stream().write_runs(&[b"a chunk that no backup has"], Hints::default()).unwrap();
        engine.flush().unwrap();
        engine.maintain(true).unwrap();
        let (mut unused, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            let (found, next) = engine.candidates(from, 100, &mut Vec::new()).unwrap();
            unused.extend(found);
            cursor = next;
        }
        assert!(!unused.is_empty());
        let remove = || engine.remove_unused(&unused, &|_, _| Ok(Vec::new()), &|| false).unwrap();
        let was_asked = Cell::new(false);
        let is_earlier = |_: &Backup| {
            was_asked.set(true);
            assert!(remove().was_busy, "a chunk of the backup may go while it is looked for");
            true
        };
        let comparison = Arc::new(Comparison::find(&catalog, is_earlier).unwrap());
        assert!(was_asked.get() && comparison.earlier.is_some());
        assert!(remove().was_busy, "a chunk of the backup may go now that it is found");
        let making = Making::begin(&catalog, &comparison).unwrap();
        drop(comparison);
        assert!(remove().was_busy, "a chunk may go that the new backup may refer to");
        drop(making);
        assert_eq!(remove().chunks, unused.len() as u64);
    }
}
