//! Repairs that are tried and not made, for dry runs: a store that is open for reading takes what a repair commits into memory, as if the log had it.
//! So every later step of the repair, and the check at its end, finds what it would find after the steps before.

use crate::{Engine, Mode, Result};
use onefold_oplog::{Effects, Position};
use std::sync::atomic::{AtomicU64, Ordering};

/// Batches of repairs that were only tried, counted from 1; 0: repairs are made.
#[derive(Debug, Default)]
pub(crate) struct Rehearsal(AtomicU64);

impl Engine {
    /// From now on repairs change what this opening sees, and nothing else: quarantine and what comes out of it, containers made anew from parity, headers
    /// and forwards of containers. Memory grows by about 500 bytes for each chunk that is put in quarantine or restored. Only in a store that is open
    /// for reading; elsewhere it does nothing.
    pub fn rehearse(&self) {
        if self.mode == Mode::ReadOnly {
            self.rehearsal.0.fetch_max(1, Ordering::SeqCst);
            self.storage.rehearse();
        }
    }

    pub(crate) fn is_rehearsal(&self) -> bool {
        self.rehearsal.0.load(Ordering::SeqCst) > 0
    }

    /// Whether repairs can be made, or are rehearsed.
    pub(crate) fn repairable(&self) -> Result<()> {
        if self.is_rehearsal() { Ok(()) } else { self.writable() }
    }

    /// What is on its way is in the indexes when this returns.
    pub(crate) fn flush_before_repair(&self) -> Result<()> {
        if self.is_rehearsal() { Ok(()) } else { self.flush() }
    }

    /// Takes a batch into the indexes as if it stood behind the end of the log. The caller holds the lock of commits.
    pub(crate) fn rehearse_batch(&self, effects: Effects<'_>) -> Result<()> {
        let end = Position(self.log.end().0 + self.rehearsal.0.fetch_add(1, Ordering::SeqCst));
        self.indexes().into_iter().try_for_each(|(_, view)| view.apply(end, &effects))
    }
}
