//! The manifest of a partition: what it lists, and from where on the log is needed beside it.

use super::{Partition, State, check_fence};
use crate::Result;
use crate::levels::manifest::Manifest;
use crate::levels::table::Table;
use crate::levels::version::Version;
use onefold_oplog::Position;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many tables wait for the manifest.
const UNLISTED: usize = 8;

impl State {
    /// Returns the position before which a replay finds nothing new, once all logged tables are listed.
    ///
    /// Such a batch was committed, for the position is at most the end of what is. Take any of its records:
    /// * *Bytes of a memtable.* A memtable that is no logged table needs its batches. So it is one.
    /// * *A table.* It is logged, and so it is listed.
    /// * *A removal.* If it left a tombstone, the memtable with it needs the log from before the batch on. So that is a
    ///   logged table. If it left none, the chunk was only in the open memtable. If the log had its bytes, they are
    ///   older: they are passed over too, or that memtable would still need them.
    fn needed(&self) -> Position {
        let sealed = self.sealed.values().filter_map(|(_, needs)| *needs);
        let unlogged = self.unlogged.iter().filter_map(|one| one.needs);
        let removing = self.removing.values().copied();
        sealed.chain(unlogged).chain(removing).chain(self.open.needs).fold(self.log_end, Position::min)
    }
}

impl Partition {
    /// Returns the start of the oldest batch that is needed here.
    pub(crate) fn position(&self) -> Position {
        let state = self.state.lock();
        state.unlisted.iter().map(|(_, start)| *start).fold(state.needed(), Position::min)
    }

    pub(crate) fn required_end(&self) -> Position {
        self.state.lock().listed_end
    }

    /// Returns whether enough tables wait for the manifest.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.lock().unlisted.len() >= UNLISTED
    }

    /// Writes the manifest, if a table waits for it.
    pub(crate) fn list(&self) -> Result<bool> {
        let _one = self.listing.lock();
        if self.state.lock().unlisted.is_empty() {
            return Ok(false);
        }
        self.write_manifest(|_| {})?;
        Ok(true)
    }

    /// Writes the manifest of the version as `edit` changes it. Call only with `listing` held.
    ///
    /// Errors: among others, a later owner has opened the partition meanwhile.
    pub(super) fn write_manifest(&self, edit: impl FnOnce(&mut Version)) -> Result<()> {
        self.check_poison()?;
        let (manifest, listed) = {
            let state = self.state.lock();
            let mut version = (*self.version()).clone();
            edit(&mut version);
            let is_logged = |table: &&Arc<Table>| state.unlogged.iter().all(|one| one.table.id != table.id);
            let numbers = |tables: &Vec<Arc<Table>>| tables.iter().filter(is_logged).map(|table| table.id).collect();
            let mut levels: Vec<Vec<u64>> = version.levels.iter().map(numbers).collect();
            for lost in &version.lost {
                levels.resize(levels.len().max(lost.level + 1), Vec::new());
                levels[lost.level].push(lost.number);
            }
            if let Some(young) = levels.first_mut() {
                young.sort_unstable_by_key(|number| Reverse(*number));
            }
            let State { epoch, flushed, next, log_end, .. } = *state;
            let manifest = Manifest { epoch, flushed, next, log_end, needed: state.needed(), unordered: version.unordered, levels };
            (manifest, state.unlisted.iter().map(|(id, _)| *id).collect::<BTreeSet<u64>>())
        };
        check_fence(&*self.ground, &self.directory, &self.options, manifest.epoch)?;
        manifest.write(&*self.ground, &self.directory, &self.options)?;
        let mut state = self.state.lock();
        state.unlisted.retain(|(id, _)| !listed.contains(id));
        state.listed_end = manifest.log_end;
        Ok(())
    }
}
