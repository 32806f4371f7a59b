//! Trial repairs for dry runs: an opening for reading takes the commits of a repair into memory, as if the log had
//! them. So every later step of the repair, and the check at its end, sees what it would see after a real repair.

use crate::{Engine, Mode, Result};
use onefold_oplog::{Effects, Position};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of trial batches, counted from 1. 0: repairs are real.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal(AtomicU64);

impl Engine {
    /// From now on repairs change only what this opening sees: quarantine and restored chunks, containers rebuilt from
    /// parity, headers and forwards of containers. Memory grows by about 500 bytes for each chunk that is put in
    /// quarantine or restored. Does nothing unless the store is open for reading.
    pub fn rehearse(&self) {
        if self.mode == Mode::ReadOnly {
            self.rehearsal.0.fetch_max(1, Ordering::SeqCst);
            self.containers.iter().for_each(|containers| containers.rehearse());
        }
    }

    pub(crate) fn is_rehearsal(&self) -> bool {
        self.rehearsal.0.load(Ordering::SeqCst) > 0
    }

    /// Checks that repairs can be made, or are rehearsed.
    pub(crate) fn repairable(&self) -> Result<()> {
        if self.is_rehearsal() { Ok(()) } else { self.writable() }
    }

    /// Waits until everything on its way is in the indexes.
    pub(crate) fn flush_before_repair(&self) -> Result<()> {
        if self.is_rehearsal() { Ok(()) } else { self.flush() }
    }

    /// Takes a batch into the indexes as if it followed the end of the log. The caller holds the commit lock.
    pub(crate) fn rehearse_batch(&self, effects: Effects<'_>) -> Result<()> {
        let end = Position(self.log.end().0 + self.rehearsal.0.fetch_add(1, Ordering::SeqCst));
        self.indexes().try_for_each(|(_, view)| view.apply(end, &effects))
    }
}
