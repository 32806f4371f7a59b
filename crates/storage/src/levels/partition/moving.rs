//! Moves the tables of a partition to another home while the store is in use (M2.10).
//!
//! New tables go to the new home from the beginning on. The others are copied, one by one. A copy is synced and whole
//! before it gets its name, and only then the old file goes. So a crash leaves a table in one home or in both, and a
//! move goes on where it ended.

use super::{Partition, Progress, check_fence, table_path};
use crate::levels::table::Table;
use crate::{Result, StorageError};
use onefold_ground::{Space, parent};
use parking_lot::MutexGuard;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;
/// How often a move looks whether a compaction has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A copy of a table, durable and not in use. If this is dropped, it goes again.
#[must_use = "the copy goes if it is not installed"]
#[derive(Debug)]
pub struct Copied<'a> {
    partition: &'a Partition,
    /// No table is compacted or shrunk meanwhile.
    _alone: MutexGuard<'a, Progress>,
    old: Arc<Table>,
    /// Where the copy is, until it gets its name.
    new_path: String,
    path: String,
}

impl Copied<'_> {
    /// Puts the copy in the place of the table, durably, and removes the old file. Call it while no opening looks for
    /// tables. It does not take long. Returns the bytes that have moved.
    pub fn install(self) -> Result<u64> {
        let (partition, old) = (self.partition, &self.old);
        partition.put_in_place(old.copied_to(&*partition.ground, &self.new_path)?, &self.path)?;
        partition.forget_table(old);
        Ok(old.length_bytes)
    }
}

impl Drop for Copied<'_> {
    fn drop(&mut self) {
        // Once it has its name, it is not there.
        let _ = self.partition.ground.remove(&self.new_path);
    }
}

impl Partition {
    /// Makes another directory the home: new tables go there. `None`: the partition's own one. Call it while no opening
    /// looks for tables.
    pub(crate) fn go_to(&self, to: Option<&Path>) -> Result<()> {
        self.check_poison()?;
        if let Some(lost) = self.lost_tables().first() {
            let why = format!("{}: {}; run `onefold check --repair`, then move the partition", lost.path, lost.why);
            return Err(StorageError::Home { partition: self.number, directory: self.place(), why });
        }
        let epoch = self.state.lock().epoch;
        check_fence(&*self.ground, &self.directory, &self.options, epoch)?;
        // Nobody is writing a table.
        let _no_one = self.flushing.lock();
        let mut homes = self.homes.read().clone();
        homes.go_to(&*self.ground, to, &self.options, epoch)?;
        *self.homes.write() = homes;
        Ok(())
    }

    /// Returns where the home is, for people.
    pub(crate) fn place(&self) -> String {
        self.homes.read().current_place(&*self.ground)
    }

    /// Returns the space on the disk of the home.
    pub(crate) fn space(&self) -> Result<Space> {
        Ok(self.ground.space_in(&self.homes.read().current())?)
    }

    /// Returns the tables that are not in the home.
    pub(crate) fn elsewhere(&self) -> Vec<Arc<Table>> {
        let home = self.homes.read().current();
        self.version().levels.iter().flatten().filter(|table| parent(&table.path) != home).cloned().collect()
    }

    /// Waits until no table is compacted or shrunk. `None`: `go_on` ended it.
    fn alone(&self, go_on: &dyn Fn() -> bool) -> Option<MutexGuard<'_, Progress>> {
        while go_on() {
            if let Some(alone) = self.compacting.try_lock_for(LOOK_EVERY) {
                return Some(alone);
            }
        }
        None
    }

    /// Copies the next table that is not in the home. `None`: there is none that the log names, or `go_on` ended it.
    pub(crate) fn copy_next(&self, go_on: &dyn Fn() -> bool) -> Result<Option<Copied<'_>>> {
        self.check_poison()?;
        let Some(alone) = self.alone(go_on) else { return Ok(None) };
        let unlogged = self.unlogged();
        let Some(old) = self.elsewhere().into_iter().find(|table| !unlogged.contains(&table.id)) else { return Ok(None) };
        let path = table_path(&self.homes.read().current(), old.id);
        let copied = Copied { partition: self, _alone: alone, new_path: self.path_beside(&path), path, old };
        Ok(self.copy(&copied.old, &copied.new_path, go_on)?.then_some(copied))
    }

    /// Copies a table to a new file, which is synced. Returns false if `go_on` ended it.
    fn copy(&self, table: &Table, path: &str, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let full = StorageError::cannot_write;
        let file = self.ground.create(path).map_err(full)?;
        file.allocate(0, table.length_bytes).map_err(full)?;
        let mut bytes = Vec::new();
        for at in (0..table.length_bytes).step_by(COPY_BYTES as usize) {
            if !go_on() {
                return Ok(false);
            }
            bytes.resize(COPY_BYTES.min(table.length_bytes - at) as usize, 0);
            table.frames(at, &mut bytes)?;
            file.write_at(at, &bytes).map_err(full)?;
            file.start_writeback(at, bytes.len() as u64);
        }
        file.sync()?;
        Ok(true)
    }

    /// Ends a move: homes without tables are left. Returns false if there are still tables elsewhere. Call it while no
    /// opening looks for tables.
    pub(crate) fn leave_homes(&self) -> Result<bool> {
        let Some(_alone) = self.compacting.try_lock() else { return Ok(false) };
        let _no_one = self.flushing.lock();
        if !self.elsewhere().is_empty() {
            return Ok(false);
        }
        let mut homes = self.homes.read().clone();
        let left = homes.leave_empty(&*self.ground);
        *self.homes.write() = homes;
        left.map(|()| true)
    }
}
