//! The manifest of a partition: what it lists, and from where on the log is needed beside it.

use super::Partition;
use crate::levels::manifest::Manifest;
use crate::levels::table::Table;
use crate::levels::version::Version;
use crate::{Result, StorageError};
use onefold_oplog::Position;
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many tables wait for the manifest.
const UNLISTED: usize = 8;

impl Partition {
    /// Returns the start of the oldest batch that is needed here.
    pub(crate) fn position(&self) -> Position {
        let state = self.state.lock();
        let sealed = state.sealed.values().filter_map(|(_, needs)| *needs);
        let unlogged = state.unlogged.iter().filter_map(|one| one.needs);
        let unlisted = state.unlisted.iter().map(|(_, start)| *start);
        let removing = state.removing.values().copied();
        sealed.chain(unlogged).chain(unlisted).chain(removing).chain(state.open.needs).min().unwrap_or(state.log_end).min(state.log_end)
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
            let levels = version.levels.iter().map(|level| level.iter().filter(is_logged).map(|table| table.id).collect()).collect();
            let manifest = Manifest { epoch: state.epoch, flushed: state.flushed, next: state.next, log_end: state.log_end, levels };
            (manifest, state.unlisted.iter().map(|(id, _)| *id).collect::<BTreeSet<u64>>())
        };
        match Manifest::read(&*self.ground, &self.directory, &self.options) {
            Ok(there) if there.epoch > manifest.epoch => {
                let path = self.ground.describe(&self.directory);
                return Err(StorageError::Fenced { path, stored_epoch: there.epoch, epoch: manifest.epoch });
            }
            // A damaged one is written again.
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
        manifest.write(&*self.ground, &self.directory, &self.options)?;
        let mut state = self.state.lock();
        state.unlisted.retain(|(id, _)| !listed.contains(id));
        state.listed_end = manifest.log_end;
        Ok(())
    }
}
