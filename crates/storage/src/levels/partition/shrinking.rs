//! Frees space on a full disk: see [`shadowed`](crate::levels::compaction::shadowed).
//!
//! The new file of a table takes the name of the old one, with one rename. Both have everything that counts, so neither
//! the manifest nor the log has to know, and a crash leaves either. Who has the old file open goes on reading it.

use super::Partition;
use crate::levels::compaction::{WORTH, shadowed};
use crate::levels::table::Table;
use crate::{Result, StorageError};
use onefold_ground::parent;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The end of the names of files that are not in use yet.
pub(super) const NEW: &str = ".new";

impl Partition {
    /// Shrinks the next table for which that is worth while, the oldest level first. Returns whether there was one.
    pub(crate) fn shrink(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.check_poison()?;
        let Some(mut progress) = self.compacting.try_lock() else { return Ok(false) };
        let version = self.version();
        if !version.lost.is_empty() {
            return Ok(false);
        }
        // Counted before the tables are looked at.
        let (tombstones, mut unusable) = {
            let state = self.state.lock();
            (state.tombstones, state.unlogged.iter().map(|one| one.table.id).collect::<BTreeSet<u64>>())
        };
        unusable.extend(self.damaged.lock().iter());
        let known: BTreeSet<u64> = version.levels.iter().flatten().map(|table| table.id).collect();
        progress.barren.retain(|id, _| known.contains(id));
        let mut full = None;
        let levels = version.levels.iter().enumerate().rev();
        for (level, table) in levels.flat_map(|(level, tables)| tables.iter().map(move |table| (level, table))) {
            if unusable.contains(&table.id) || progress.barren.get(&table.id).is_some_and(|until| tombstones < *until) {
                continue;
            }
            let new_path = self.path_beside(&table.path);
            let shrunk = self.with_output(&BTreeSet::new(), |output| {
                let Some(shadowed) = shadowed(output, &version, level, table, &unusable, go_on)? else { return Ok(None) };
                if shadowed.is_worth(self.options.key_bytes()) {
                    return shadowed.write(output, &new_path, go_on);
                }
                // About so many more have to be removed before it may be.
                let missing = (table.entries / WORTH).saturating_sub(shadowed.entries) / 4;
                progress.barren.insert(table.id, tombstones + missing.max(1));
                Ok(None)
            });
            match shrunk {
                Ok(Some(new)) => {
                    // If it was renamed, it is not there.
                    self.put_in_place(new, &table.path).inspect_err(|_| self.give_up(&new_path))?;
                    return Ok(true);
                }
                Ok(None) if go_on() => {}
                Ok(None) => break,
                // A smaller one may find space. This one is not looked at again before more is removed.
                Err(error) if error.is_full() => {
                    progress.barren.insert(table.id, tombstones + 1);
                    full.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        full.map_or(Ok(false), |error: StorageError| Err(error))
    }

    /// Gives a table its path, durably, and uses it in the place of the one with the same number from then on.
    pub(super) fn put_in_place(&self, mut new: Table, path: &str) -> Result<()> {
        self.check_fence()?;
        new.rename(&*self.ground, path)?;
        self.ground.sync_directory(parent(path))?;
        let _state = self.state.lock();
        self.change(|version| version.put_in_place(Arc::new(new)));
        Ok(())
    }
}
