//! What becomes of a partition whose log is damaged: what is left of the log was replayed, and a new log begins behind.

use super::{Partition, open_one};
use crate::levels::manifest::Manifest;
use crate::{Result, StorageError};
use onefold_oplog::Position;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Partition {
    /// Takes tables that lost records named, makes a table of what is in memory, and lists all of it, so that nothing
    /// here needs the log before `start`. Returns how many tables it took.
    ///
    /// A table that no record names may have been written just before a crash: then nobody was told of its chunks, and
    /// they are garbage. Tables of compactions are not taken: the tables that they were made of are still listed, or
    /// newer ones.
    pub(crate) fn leave_log(&self, start: Position) -> Result<u64> {
        self.check_poison()?;
        let listed = Manifest::read(&*self.ground, &self.directory, &self.options)?;
        let mut taken = 0;
        {
            let mut state = self.state.lock();
            let version = self.version();
            let lost = version.lost.iter().map(|lost| lost.number);
            let known: BTreeSet<u64> = version.levels.iter().flatten().map(|table| table.id).chain(lost).collect();
            let home = self.homes.read().current();
            for (number, paths) in self.homes.read().tables(&*self.ground)? {
                // No number of a file is used again.
                state.next = state.next.max(number.saturating_add(1));
                if number <= listed.flushed || known.contains(&number) {
                    continue;
                }
                match open_one(&*self.ground, &home, Some(&paths), number, &self.options, &self.room) {
                    Ok(table) if table.is_merged => {}
                    Ok(table) => {
                        self.change(|version| version.add(Arc::new(table)));
                        taken += 1;
                    }
                    Err(StorageError::SortedTable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            self.change(|version| {
                if let Some(young) = version.levels.first_mut() {
                    young.sort_unstable_by_key(|table| std::cmp::Reverse(table.id));
                }
            });
            // A lost record may have stored any of these again. What comes back needlessly is garbage.
            let tombstones: Vec<_> = state.open.tombstones().collect();
            tombstones.iter().for_each(|name| state.open.revive(name));
            state.number_own();
            if state.open.keys() > 0 {
                self.seal(&mut state);
            }
        }
        self.write_sealed()?;
        let version = self.version();
        self.sync(version.levels.iter().flatten().map(|table| &**table))?;
        {
            let mut state = self.state.lock();
            state.flushed = version.levels.iter().flatten().map(|table| table.id).fold(state.flushed, u64::max);
            state.unlogged.clear();
            state.unlisted.clear();
            state.open.needs = None;
            state.log_end = start;
        }
        let _one = self.listing.lock();
        self.write_manifest(|_| {})?;
        Ok(taken)
    }
}
