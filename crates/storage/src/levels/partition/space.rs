//! Space on the disk for what waits in memory.
//!
//! A memtable gets the space of its table before it takes its first chunk, in a file that the table is written into.
//! So new data finds the disk full before it is accepted, and what was accepted is written without the reserve. Only
//! removals, and chunks that a replay brought, may use the reserve.

use super::shrinking::NEW;
use super::{Partition, table_path};
use crate::levels::memtable::{KEY_BYTES, Memtable};
use crate::{Result, StorageError};
use onefold_ground::File;
use parking_lot::MutexGuard;
use std::collections::HashMap;
use std::sync::Arc;

/// The file of a table that is not written yet.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) file: Arc<dyn File>,
    /// Where it is until the table is complete.
    pub(super) new_path: String,
    /// Where the table goes.
    pub(super) path: String,
    /// How much of it is allocated.
    pub(super) bytes: u64,
}

/// Returns about the most that a table of a memtable of this weight takes: names are twice in it, and chunks may not
/// compress.
fn table_bytes(weight_bytes: u64) -> u64 {
    weight_bytes + weight_bytes / 4 + (64 << 10)
}

impl Partition {
    /// Gets the space for another chunk of the open memtable. Errors: the disk is full.
    pub(super) fn get_space(&self, chunk_bytes: u64) -> Result<()> {
        let mut spaces = self.spaces.lock();
        let (id, weight_bytes) = {
            let state = self.state.lock();
            (state.open.id, state.open.weight_bytes() + chunk_bytes + KEY_BYTES)
        };
        // A long chunk may come last.
        let weight_bytes = weight_bytes.max(u64::from(self.options.memtable_bytes));
        let bytes = table_bytes(weight_bytes);
        match spaces.get_mut(&id) {
            Some(space) if space.bytes >= bytes => {}
            Some(space) => {
                space.file.allocate(0, bytes).map_err(StorageError::cannot_write)?;
                space.bytes = bytes;
            }
            None => {
                let home = self.homes.read().current();
                let space = self.new_space(&home, id, bytes, |file| file.allocate(0, bytes))?;
                spaces.insert(id, space);
            }
        }
        let mut state = self.state.lock();
        if state.open.id == id {
            state.space = weight_bytes;
        }
        Ok(())
    }

    /// Returns the file for the table of a memtable. If it has none, it gets one from the reserve.
    pub(super) fn take_space(&self, memtable: &Memtable) -> Result<Space> {
        if let Some(space) = self.spaces.lock().remove(&memtable.id) {
            return Ok(space);
        }
        let bytes = table_bytes(memtable.weight_bytes());
        let home = self.homes.read().current();
        match self.new_space(&home, memtable.id, bytes, |file| file.allocate_from_reserve(0, bytes)) {
            // The reserve is on the store's own disk. The table moves on with the next move.
            Err(error) if error.is_full() && home != self.directory => {
                self.new_space(&self.directory, memtable.id, bytes, |file| file.allocate_from_reserve(0, bytes))
            }
            space => space,
        }
    }

    fn new_space(&self, home: &str, id: u64, bytes: u64, allocate: impl FnOnce(&dyn File) -> onefold_ground::Result<()>) -> Result<Space> {
        let path = table_path(home, id);
        let new_path = self.path_beside(&path);
        let file = self.ground.create(&new_path).map_err(StorageError::cannot_write)?;
        if let Err(error) = allocate(&*file) {
            self.give_up(&new_path);
            return Err(StorageError::cannot_write(error));
        }
        Ok(Space { file, new_path, path, bytes })
    }

    /// Gives back what is not used: the store is closed, or tables go elsewhere. Returns the lock of the spaces: nobody
    /// gets another one as long as it is held.
    pub(crate) fn give_space_back(&self) -> MutexGuard<'_, HashMap<u64, Space>> {
        let mut spaces = self.spaces.lock();
        self.state.lock().space = 0;
        spaces.drain().for_each(|(_, space)| self.give_up(&space.new_path));
        spaces
    }

    /// Returns a path for a file that is to become a table with this path.
    pub(super) fn path_beside(&self, path: &str) -> String {
        format!("{}.{:016x}{NEW}", path.trim_end_matches(".table"), self.state.lock().take_number())
    }

    /// Removes a file that nobody uses, if it is there.
    pub(super) fn give_up(&self, path: &str) {
        if let Err(error) = self.ground.remove(path) {
            tracing::debug!(%error, "a file that nobody uses stays until the next opening");
        }
    }
}
