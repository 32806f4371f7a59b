//! Moves the tables of a partition to another home while the store is in use (M2.10).
//!
//! New tables go to the new home from the beginning on. The others are copied, one by one. A copy is synced and whole
//! before it gets its name, and only then the old file goes. So a crash leaves a table in one home or in both, and a
//! move goes on where it ended.

use super::{Partition, Progress, State, table_path};
use crate::levels::filter::Room;
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
    old: Option<Arc<Table>>,
    /// Where the copy is, until it gets its name.
    new_path: String,
    path: String,
}

impl Copied<'_> {
    /// Puts the copy in the place of the table, durably, and removes the old file. Call it while no opening looks for
    /// tables. It does not take long. Returns the bytes that have moved.
    pub fn install(self) -> Result<u64> {
        let (partition, Some(old)) = (self.partition, &self.old) else { return Ok(0) };
        partition.put_in_place(old.copied_to(&*partition.ground, &self.new_path)?, &self.path)?;
        // Another owner may have moved it back.
        partition.check_fence()?;
        partition.forget_table(old);
        Ok(old.length_bytes)
    }
}

impl Drop for Copied<'_> {
    fn drop(&mut self) {
        // Once it has its name, it is not there.
        if self.old.is_some() {
            self.partition.give_up(&self.new_path);
        }
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
        let State { epoch, log_end, .. } = *self.state.lock();
        self.check_fence()?;
        // Nobody is writing a table, and none has its file in the former home.
        let _no_one = self.flushing.lock();
        let _no_space = self.give_space_back();
        let mut homes = self.homes.read().clone();
        let gone = homes.go_to(&*self.ground, to, &self.options, epoch, log_end);
        // A link that was made stays known, whatever came after it.
        *self.homes.write() = homes;
        gone
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
        let mut copied = Copied { partition: self, _alone: alone, old: None, new_path: String::new(), path: String::new() };
        loop {
            let mut passed_over = self.unlogged();
            passed_over.extend(self.damaged.lock().iter());
            let Some(old) = self.elsewhere().into_iter().find(|table| !passed_over.contains(&table.id)) else { return Ok(None) };
            copied.path = table_path(&self.homes.read().current(), old.id);
            copied.new_path = self.path_beside(&copied.path);
            match self.copy(&old, &copied.new_path, go_on) {
                Ok(is_whole) => {
                    copied.old = Some(old);
                    return Ok(is_whole.then_some(copied));
                }
                // It stays where it is. The others need not wait for it.
                Err(error) if error.is_damage() => {
                    self.give_up(&copied.new_path);
                    self.note_damaged(old.id);
                    tracing::warn!(%error, "a table with damage does not move");
                }
                Err(error) => {
                    self.give_up(&copied.new_path);
                    return Err(error);
                }
            }
        }
    }

    /// Copies a table to a new file, which is synced, and verifies the copy. Returns false if `go_on` ended it.
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
        // The old file goes: what was read wrong once would stay wrong.
        Table::open(&*self.ground, path, table.id, &self.options, &Room::new(0))?.verify(go_on)
    }

    /// Ends a move: homes without tables are left. Returns false if there are still tables elsewhere. Call it while no
    /// opening looks for tables.
    pub(crate) fn leave_homes(&self) -> Result<bool> {
        let Some(_alone) = self.compacting.try_lock() else { return Ok(false) };
        let _no_one = self.flushing.lock();
        let elsewhere = self.elsewhere();
        let damaged = self.damaged.lock().clone();
        if !elsewhere.is_empty() && elsewhere.iter().all(|table| damaged.contains(&table.id)) {
            let tables = elsewhere.iter().map(|table| self.ground.describe(&table.path)).collect::<Vec<_>>().join(", ");
            let why = format!("all that can be read has moved. Damage keeps {tables}; run `onefold check --repair`, then move again");
            return Err(StorageError::Home { partition: self.number, directory: self.place(), why });
        }
        if !elsewhere.is_empty() {
            return Ok(false);
        }
        let mut homes = self.homes.read().clone();
        let left = homes.leave_empty(&*self.ground);
        *self.homes.write() = homes;
        match left?.into_iter().next() {
            None => Ok(true),
            Some(directory) => {
                let why =
                    "a file of a table that has moved could not be removed there. Open the store again, then move the partition again";
                Err(StorageError::Home { partition: self.number, directory, why: why.to_owned() })
            }
        }
    }
}
