//! Compactions of a partition (M2.8): choosing one, doing it, and installing it.
//!
//! A compaction has two phases. The first one is long: it reads tables and writes new ones. Nothing refers to these
//! yet. The second one is short: the manifest is replaced, then the version, then the old tables go. The engine holds
//! its lock of the views for it, so that no opening reads the manifest before and looks for a table behind it.

use super::damage::given_up;
use super::{Partition, Progress, table_path};
use crate::levels::compaction::{Output, Task, merge};
use crate::levels::table::Table;
use crate::levels::version::Version;
use crate::{Result, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::GroundError;
use onefold_oplog::Pressure;
use parking_lot::MutexGuard;
use std::collections::BTreeSet;
use std::sync::Arc;

/// With so many times the tables from which level 0 is compacted, writers wait.
const FULL: usize = 64;

/// A compaction whose tables are written and durable, and not in use. If this is dropped, they go again.
#[must_use = "its tables go if it is not installed"]
#[derive(Debug)]
pub struct Merged<'a> {
    partition: &'a Partition,
    /// No other compaction of this partition runs meanwhile.
    progress: MutexGuard<'a, Progress>,
    task: Task,
    tables: Vec<Arc<Table>>,
    /// Whether a manifest on disk may have the tables.
    is_listed: bool,
}

impl<'a> Merged<'a> {
    pub(super) fn new(partition: &'a Partition, progress: MutexGuard<'a, Progress>, task: Task, tables: Vec<Arc<Table>>) -> Self {
        Merged { partition, progress, task, tables, is_listed: false }
    }

    /// Puts the new tables in the place of the old ones, durably, and removes the old files. Call it while no opening
    /// reads the partition. It writes a small file, and does not take long.
    ///
    /// Errors: the old tables stay in use. A manifest on disk may have the new ones, so their files stay too, until the
    /// next opening.
    pub fn install(mut self) -> Result<()> {
        let (partition, task) = (self.partition, &self.task);
        let _one = partition.listing.lock();
        self.is_listed = true;
        partition.write_manifest(|version| task.replace(version, &self.tables))?;
        {
            let _state = partition.state.lock();
            partition.change(|version| task.replace(version, &self.tables));
        }
        task.move_on(&mut self.progress.cursors);
        let kept: BTreeSet<u64> = self.tables.iter().map(|table| table.id).collect();
        for table in task.inputs().filter(|table| !kept.contains(&table.id)) {
            match partition.damaged.lock().remove(&table.id) {
                true => partition.keep_for_people(table),
                false => partition.forget_table(table),
            }
        }
        Ok(())
    }
}

impl Drop for Merged<'_> {
    fn drop(&mut self) {
        if !self.is_listed {
            let inputs: BTreeSet<u64> = self.task.inputs().map(|table| table.id).collect();
            let new = self.tables.iter().filter(|table| !inputs.contains(&table.id));
            new.for_each(|table| self.partition.forget_table(table));
        }
    }
}

impl Partition {
    /// Returns how urgent a compaction is. It is never urgent if none can be done.
    pub(crate) fn compaction_pressure(&self) -> Pressure {
        let version = self.version();
        if self.choose(&version, &[]).is_none() {
            return Pressure::Idle;
        }
        let young = version.levels.first().map_or(0, Vec::len);
        if young >= FULL * self.options.tables as usize { Pressure::Full } else { Pressure::Behind }
    }

    /// Returns how many young tables wait, from memory alone: due from once the tables of an option on, late from
    /// [`FULL`] times on.
    pub(crate) fn backlog(&self) -> Pressure {
        let young = self.version().levels.first().map_or(0, Vec::len);
        match young / self.options.tables as usize {
            0 => Pressure::Idle,
            1..FULL => Pressure::Behind,
            // Writers must not wait for what cannot be done.
            _ => self.compaction_pressure(),
        }
    }

    /// Returns how many young tables there are beyond those from which writers wait.
    pub(crate) fn excess(&self) -> usize {
        let young = self.version().levels.first().map_or(0, Vec::len);
        young.saturating_sub(FULL * self.options.tables as usize)
    }

    fn choose(&self, version: &Version, cursors: &[Fingerprint]) -> Option<Task> {
        let damaged = self.damaged.lock().clone();
        Task::choose(version, &self.unlogged(), &damaged, &self.options, cursors)
    }

    pub(super) fn unlogged(&self) -> BTreeSet<u64> {
        self.state.lock().unlogged.iter().map(|one| one.table.id).collect()
    }

    /// Does the long part of a compaction. `None`: nothing is due, another thread does one here, or `go_on` ended it.
    ///
    /// Errors: among others, the disk has no space for new tables beside the old ones.
    pub(crate) fn merge(&self, go_on: &dyn Fn() -> bool) -> Result<Option<Merged<'_>>> {
        self.check_poison()?;
        let Some(progress) = self.compacting.try_lock() else { return Ok(None) };
        let version = self.version();
        let Some(task) = self.choose(&version, &progress.cursors) else { return Ok(None) };
        let tables = match task.moved(&version, &self.options) {
            Some(table) => vec![table],
            None => {
                self.check_space(&task)?;
                match self.write_merged(&task, &version, &BTreeSet::new(), go_on)? {
                    Some(tables) => tables,
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(Merged::new(self, progress, task, tables)))
    }

    /// Refuses a merge that the disk has no space for, before the work.
    fn check_space(&self, task: &Task) -> Result<()> {
        // Frames are estimated, and a little more.
        let needed = task.inputs().map(|table| table.length_bytes).sum::<u64>() / 8 * 9;
        let home = self.homes.read().current();
        if self.ground.space_in(&home)?.free_bytes >= needed {
            return Ok(());
        }
        let path = self.ground.describe(&home);
        let source = std::io::ErrorKind::StorageFull.into();
        Err(StorageError::cannot_write(GroundError::Io { operation: "compact tables in", path, source }))
    }

    /// Merges tables. The new ones are synced. `None`: `go_on` ended it.
    pub(super) fn write_merged(
        &self,
        task: &Task,
        version: &Version,
        known_damage: &BTreeSet<u64>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Arc<Table>>>> {
        let Some(mut tables) = self.with_output(known_damage, |output| merge(output, task, version, go_on))? else { return Ok(None) };
        self.sync(tables.iter())?;
        tables.sort_unstable_by_key(|table| table.first);
        Ok(Some(tables.into_iter().map(Arc::new).collect()))
    }

    /// Passes `write` where new tables go.
    pub(super) fn with_output<T>(&self, known_damage: &BTreeSet<u64>, write: impl FnOnce(&Output<'_>) -> T) -> T {
        write(&Output {
            ground: &*self.ground,
            options: &self.options,
            room: &self.room,
            counters: &self.counters,
            new_id: &|| self.state.lock().take_number(),
            path_of: &|id| self.new_table_path(id),
            damaged: &|table| self.note_damaged(table),
            known_damage,
        })
    }

    /// Moves the file of a damaged table out of the way.
    fn keep_for_people(&self, table: &Table) {
        let directory = given_up(&table.path);
        let kept = self.ground.create_directory(&directory);
        if let Err(error) = kept.and_then(|()| self.ground.rename(&table.path, &table_path(&directory, table.id))) {
            tracing::warn!(%error, "the file of a damaged table stays until the next opening");
        }
    }

    pub(super) fn forget_table(&self, table: &Table) {
        self.give_up(&table.path);
    }
}
