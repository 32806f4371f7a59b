//! Damaged tables of a partition.
//!
//! A table that cannot be opened is *lost*: see [`LostTable`]. One with a damaged page or frame is in use, and its
//! other chunks are found. Compactions leave it out, for they drop nothing that somebody might still read.

use super::compacting::Merged;
use super::homes::Homes;
use super::{COUNTER_BITS, Partition, directory_of, table_path};
use crate::Result;
use crate::levels::compaction::Task;
use crate::levels::manifest::Manifest;
use crate::levels::options::LevelsOptions;
use crate::levels::version::LostTable;
use onefold_ground::{Ground, parent};

/// Returns where the file of a table goes that a repair has replaced or given up.
pub(super) fn given_up(path: &str) -> String {
    format!("{}/given-up", parent(path))
}

impl Partition {
    pub(crate) fn lost_tables(&self) -> Vec<LostTable> {
        self.version().lost.clone()
    }

    /// Takes lost tables out of the manifest, and their files out of the way. Returns how many there were.
    pub(crate) fn give_up_lost_tables(&self) -> Result<u64> {
        let lost = self.lost_tables();
        if lost.is_empty() {
            return Ok(0);
        }
        let _one = self.listing.lock();
        self.check_poison()?;
        self.check_fence()?;
        let paths = self.homes.read().tables(&*self.ground)?;
        // First the files: the next opening would remove those that no manifest names.
        for table in &lost {
            for from in paths.get(&table.number).into_iter().flatten() {
                let given_up = given_up(from);
                self.ground.create_directory(&given_up)?;
                self.ground.rename(from, &table_path(&given_up, table.number))?;
                self.ground.sync_directory(&given_up)?;
                self.ground.sync_directory(parent(from))?;
            }
        }
        self.write_manifest(|version| version.lost.clear())?;
        let _state = self.state.lock();
        self.change(|version| version.lost.clear());
        Ok(lost.len() as u64)
    }

    /// Returns the tables that are known to have a damaged page or frame, for people.
    pub(crate) fn damaged_tables(&self) -> Vec<String> {
        let damaged = self.damaged.lock();
        let version = self.version();
        let tables = version.levels.iter().flatten().filter(|table| damaged.contains(&table.id));
        tables.map(|table| self.ground.describe(&table.path)).collect()
    }

    /// Notes that a table has a damaged page or frame.
    pub(crate) fn note_damaged(&self, table: u64) {
        self.damaged.lock().insert(table);
    }

    /// Writes tables again in which damage was met, without what cannot be read. Returns how many there were.
    pub(crate) fn compact_damaged(&self) -> Result<u64> {
        self.check_poison()?;
        let mut count = 0;
        loop {
            let progress = self.compacting.lock();
            let version = self.version();
            let damaged = self.damaged.lock().clone();
            let Some(task) = Task::of_damaged(&version, &self.unlogged(), &damaged) else { return Ok(count) };
            count += task.inputs().filter(|table| damaged.contains(&table.id)).count() as u64;
            let tables = self.write_merged(&task, &version, &damaged, &|| true)?.unwrap_or_default();
            Merged::new(self, progress, task, tables).install()?;
        }
    }

    /// Makes the manifests of a partition again if both are damaged. Returns the path for people if it did.
    ///
    /// All tables that are there go to level 0. Among them may be some that were merged or never logged: their chunks
    /// are there twice, or are garbage. Which of them are younger is not known, so their tombstones do not count. A
    /// removed chunk that comes back is garbage; a chunk that was stored again must not go.
    ///
    /// No memtable counts as flushed. So a replay takes all chunks whose bytes the log has.
    pub(crate) fn restore_manifest(
        ground: &dyn Ground,
        directory: &str,
        number: u16,
        options: &LevelsOptions,
        epoch: u64,
    ) -> Result<Option<String>> {
        let directory = directory_of(directory, number);
        match Manifest::read(ground, &directory, options) {
            Ok(_) => return Ok(None),
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
        }
        ground.create_directory(&directory)?;
        let homes = Homes::find(ground, &directory, number, options)?;
        let mut tables: Vec<u64> = homes.tables(ground)?.into_keys().filter(|id| *id > 0).collect();
        tables.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        let after = tables.first().map_or(1, |id| id.saturating_add(1));
        let next = after.max(epoch << COUNTER_BITS);
        Manifest { epoch, next, unordered: next, levels: vec![tables], ..Manifest::new() }.write(ground, &directory, options)?;
        Ok(Some(ground.describe(&directory)))
    }
}
