//! The file of an object-index partition: a redb database on pages with checksums (`docs/format.md` section 7).
//!
//! redb gives up a database after the first I/O error, even after a full disk. [`PartitionFile`] then reopens the file,
//! which rolls back the open transaction. So a failed transaction costs only itself.
//!
//! Every transaction saves redb's allocator state (`quick_repair`), so after a crash the file opens at once, however
//! large it is. That lets every end be like a crash: closing writes nothing, and an owner that ends late cannot disturb
//! the next owner of the partition.

use super::backend::{Direct, Fault, Overlay};
use super::blocks::{Blocks, Damage};
use super::tiers::Objects;
use crate::error::{IndexError, Result};
use onefold_ground::{Access, Ground};
use onefold_oplog::Position;
use parking_lot::RwLock;
use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const FORMAT: u64 = 1;
/// Cache size of a verification.
const VERIFY_CACHE_BYTES: usize = 4 << 20;
/// Objects per transaction on a full disk.
const STEP_OBJECTS: usize = 64;

/// Converts an error of redb. Reports damage found by the layer below as damage.
fn database_error(path: String, source: redb::Error) -> IndexError {
    match &source {
        redb::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<Damage>()) => {
            IndexError::ObjectIndexDamaged { path, what: error.to_string() }
        }
        redb::Error::Corrupted(what) => IndexError::ObjectIndexDamaged { path, what: what.clone() },
        _ => IndexError::Database { path, source },
    }
}

/// Notes whether an error is damage.
fn note(met_damage: &AtomicBool, error: IndexError) -> IndexError {
    if error.is_damage() {
        met_damage.store(true, Ordering::Relaxed);
    }
    error
}

/// The open file of one partition.
#[derive(Debug)]
pub(super) struct PartitionFile {
    ground: Arc<dyn Ground>,
    path: String,
    access: Access,
    epoch: u64,
    cache_bytes: usize,
    /// `None` while reopening after an error fails.
    current: RwLock<Option<Arc<Handle>>>,
    /// Whether damage was met.
    met_damage: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Handle {
    database: Database,
    fault: Fault,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fault.set();
    }
}

/// The database as of one moment.
pub(super) struct Snapshot {
    transaction: ReadTransaction,
    path: String,
    met_damage: Arc<AtomicBool>,
    // Dropped last: the transaction reads through it.
    handle: Arc<Handle>,
}

impl PartitionFile {
    /// Creates an empty partition, durable on return except for the file's name.
    pub(super) fn create(ground: &Arc<dyn Ground>, path: &str) -> Result<()> {
        let failed = |source: redb::Error| database_error(ground.describe(path), source);
        let backend = Direct::new(Blocks::create(ground.create(path)?), Fault::default());
        let database = Database::builder().create_with_backend(backend).map_err(|error| failed(error.into()))?;
        let initialise = || -> std::result::Result<(), redb::Error> {
            let mut transaction = database.begin_write()?;
            transaction.set_quick_repair(true);
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert("format", FORMAT)?;
                meta.insert("epoch", 0)?;
                meta.insert("position", 0)?;
                transaction.open_table(OBJECTS)?;
            }
            Ok(transaction.commit()?)
        };
        initialise().map_err(failed)
    }

    /// Opens a partition. Returns the log position up to which it is applied.
    pub(super) fn open(
        ground: &Arc<dyn Ground>,
        path: String,
        access: Access,
        epoch: u64,
        cache_bytes: usize,
    ) -> Result<(PartitionFile, Position)> {
        let file = PartitionFile {
            ground: ground.clone(),
            path,
            access,
            epoch,
            cache_bytes,
            current: RwLock::default(),
            met_damage: Arc::default(),
        };
        let format = file.meta("format")?;
        if format != FORMAT {
            return Err(file.damaged(format!("it has format {format}; this program reads format {FORMAT}")));
        }
        file.check_epoch(file.epoch()?)?;
        let position = file.position()?;
        Ok((file, position))
    }

    fn meta(&self, name: &'static str) -> Result<u64> {
        let snapshot = self.snapshot()?;
        let meta = snapshot.meta()?;
        let value = meta.get(name).map_err(|error| self.failed(error))?.map(|value| value.value());
        value.ok_or_else(|| self.damaged(format!("it has no {name}")))
    }

    /// Returns the log position up to which the file is applied.
    pub(super) fn position(&self) -> Result<Position> {
        Ok(Position(self.meta("position")?))
    }

    /// Returns the owner epoch in the file.
    pub(super) fn epoch(&self) -> Result<u64> {
        self.meta("epoch")
    }

    /// Returns the file's name for messages.
    pub(super) fn describe(&self) -> String {
        self.ground.describe(&self.path)
    }

    /// Returns whether damage was met.
    pub(super) fn has_met_damage(&self) -> bool {
        self.met_damage.load(Ordering::Relaxed)
    }

    fn failed(&self, error: impl Into<redb::Error>) -> IndexError {
        note(&self.met_damage, database_error(self.describe(), error.into()))
    }

    fn damaged(&self, what: String) -> IndexError {
        note(&self.met_damage, IndexError::ObjectIndexDamaged { path: self.describe(), what })
    }

    fn check_epoch(&self, stored_epoch: u64) -> Result<()> {
        if stored_epoch > self.epoch && self.access == Access::ReadWrite {
            return Err(IndexError::Fenced { path: self.describe(), stored_epoch, epoch: self.epoch });
        }
        Ok(())
    }

    /// Returns the database and reopens it if it failed.
    fn handle(&self) -> Result<Arc<Handle>> {
        let sound = |current: &Option<Arc<Handle>>| current.as_ref().filter(|handle| !handle.fault.is_set()).cloned();
        if let Some(handle) = sound(&self.current.read()) {
            return Ok(handle);
        }
        let mut current = self.current.write();
        if let Some(handle) = sound(&current) {
            return Ok(handle);
        }
        *current = None;
        let file = self.ground.open(&self.path, self.access)?;
        // redb would create a new database in an empty file, and a lost one would look empty. So refuse a file without
        // a header here.
        let blocks = Blocks::open(file, self.access).map_err(|error| self.failed(redb::Error::Io(error)))?;
        let fault = Fault::default();
        let mut builder = Database::builder();
        builder.set_cache_size(self.cache_bytes);
        let database = match self.access {
            Access::ReadWrite => builder.create_with_backend(Direct::new(blocks, fault.clone())),
            Access::Read => builder.create_with_backend(Overlay::new(blocks, fault.clone())),
        }
        .map_err(|error| self.failed(error))?;
        let handle = Arc::new(Handle { database, fault });
        *current = Some(handle.clone());
        Ok(handle)
    }

    /// Blocks all access to the database.
    #[cfg(test)]
    pub(super) fn hold(&self) -> impl Sized + '_ {
        self.current.write()
    }

    /// Returns whether the database failed since it was opened. Then the caller may retry the operation.
    pub(super) fn has_failed(&self) -> bool {
        self.current.read().as_ref().is_none_or(|handle| handle.fault.is_set())
    }

    /// Returns the database as of now.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let handle = self.handle()?;
        let transaction = handle.database.begin_read().map_err(|error| self.failed(error))?;
        Ok(Snapshot { transaction, path: self.describe(), met_damage: self.met_damage.clone(), handle })
    }

    /// Writes `objects` and the position that they reach in one transaction, durable on return. After an error either
    /// all or nothing is there.
    pub(super) fn write(&self, objects: &Objects, position: Position) -> Result<()> {
        self.transact(&mut objects.iter(), Some(position))
    }

    /// Does the same in many small transactions, removals first. Each finds the pages free that the one before
    /// released, so a few free pages are enough on a full disk. The last one writes the position. After an error or a
    /// crash some objects may be newer than the position; replaying the log from there writes the same again.
    pub(super) fn write_in_steps(&self, objects: &Objects, position: Position) -> Result<()> {
        let (written, removed): (Vec<_>, Vec<_>) = objects.iter().partition(|(_, value)| value.is_some());
        for step in removed.chunks(STEP_OBJECTS).chain(written.chunks(STEP_OBJECTS)) {
            self.transact(&mut step.iter().copied(), None)?;
        }
        self.transact(&mut std::iter::empty(), Some(position))
    }

    fn transact(&self, objects: &mut dyn Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)>, position: Option<Position>) -> Result<()> {
        if self.access == Access::Read {
            return Err(IndexError::ReadOnly { path: self.describe() });
        }
        let handle = self.handle()?;
        let mut transaction = handle.database.begin_write().map_err(|error| self.failed(error))?;
        transaction.set_quick_repair(true);
        {
            let mut meta = transaction.open_table(META).map_err(|error| self.failed(error))?;
            let stored_epoch = meta.get("epoch").map_err(|error| self.failed(error))?.map_or(0, |value| value.value());
            self.check_epoch(stored_epoch)?;
            meta.insert("epoch", self.epoch).map_err(|error| self.failed(error))?;
            if let Some(position) = position {
                meta.insert("position", position.0).map_err(|error| self.failed(error))?;
            }
            let mut table = transaction.open_table(OBJECTS).map_err(|error| self.failed(error))?;
            for (key, value) in objects {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice()).map(drop),
                    None => table.remove(key.as_slice()).map(drop),
                }
                .map_err(|error| self.failed(error))?;
            }
        }
        transaction.commit().map_err(|error| self.failed(error))
    }

    /// Returns the length of the file; 0 if it is unknown.
    pub(super) fn length_bytes(&self) -> u64 {
        self.ground.open(&self.path, Access::Read).and_then(|file| file.len()).unwrap_or(0)
    }

    /// Reads the whole file, bypassing all caches. Checks checksums, trees, and the position, which must be in `known`.
    /// Returns what is wrong, or `None`. Nothing may write meanwhile. Once `stop` is set, reading fails.
    pub(super) fn verify(&self, known: RangeInclusive<Position>, stop: Fault) -> Option<String> {
        match self.examine(known, stop) {
            Ok(found) => {
                self.met_damage.fetch_or(found.is_some(), Ordering::Relaxed);
                found
            }
            Err(IndexError::ObjectIndexDamaged { what, .. }) => Some(what),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Does the same, but returns unreadable data as an error, although it may be damage.
    pub(super) fn examine(&self, known: RangeInclusive<Position>, stop: Fault) -> Result<Option<String>> {
        {
            let file = self.ground.open(&self.path, Access::Read)?;
            file.drop_cached(0, file.len()?);
            let blocks = Blocks::open(file, Access::Read).map_err(|error| self.failed(redb::Error::Io(error)))?;
            let mut builder = Database::builder();
            builder.set_cache_size(self.cache_bytes.min(VERIFY_CACHE_BYTES));
            let backend = Overlay::new(blocks, stop.clone());
            let mut database = builder.create_with_backend(backend).map_err(|error| self.failed(error))?;
            if !database.check_integrity().map_err(|error| self.failed(error))? {
                return Ok(Some("its trees contradict each other".into()));
            }
            let transaction = database.begin_read().map_err(|error| self.failed(error))?;
            let meta = transaction.open_table(META).map_err(|error| self.failed(error))?;
            let position = meta.get("position").map_err(|error| self.failed(error))?.map(|value| Position(value.value()));
            let is_known = position.is_some_and(|position| known.contains(&position));
            Ok((!is_known).then(|| {
                format!(
                    "it has applied the log up to {position:?}, but must have applied it up to between {} and {}",
                    known.start().0,
                    known.end().0
                )
            }))
        }
    }
}

impl Snapshot {
    /// Returns the log position up to which it is applied.
    pub(super) fn position(&self) -> Result<Position> {
        let value = self.meta()?.get("position").map_err(|error| self.failed(error))?.map(|value| value.value());
        value.map(Position).ok_or_else(|| IndexError::ObjectIndexDamaged { path: self.path.clone(), what: "it has no position".into() })
    }

    /// Returns whether its database failed. Then reads may fail too.
    pub(super) fn has_failed(&self) -> bool {
        self.handle.fault.is_set()
    }

    fn failed(&self, error: impl Into<redb::Error>) -> IndexError {
        note(&self.met_damage, database_error(self.path.clone(), error.into()))
    }

    fn meta(&self) -> Result<ReadOnlyTable<&'static str, u64>> {
        self.transaction.open_table(META).map_err(|error| self.failed(error))
    }

    fn objects(&self) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>> {
        self.transaction.open_table(OBJECTS).map_err(|error| self.failed(error))
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.objects()?.get(key).map_err(|error| self.failed(error))?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    /// Returns the values of several objects.
    pub(super) fn get_many<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<Vec<Option<Vec<u8>>>> {
        let objects = self.objects()?;
        keys.map(|key| Ok(objects.get(key).map_err(|error| self.failed(error))?.map(|value| value.value().to_vec()))).collect()
    }

    /// Passes on the objects with `from <= key < to` in order until `visit` returns false.
    pub(super) fn range(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let objects = self.objects()?;
        for object in objects.range(from..to).map_err(|error| self.failed(error))? {
            let (key, value) = object.map_err(|error| self.failed(error))?;
            if !visit(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}
