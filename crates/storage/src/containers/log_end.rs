//! Where the log ends, as the containers know it.

use onefold_oplog::Position;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Where the log ends, as far as is known here: at most one batch behind the truth.
#[derive(Debug, Default)]
pub(crate) struct LogEnd(AtomicU64);

impl LogEnd {
    pub(crate) fn get(&self) -> Position {
        Position(self.0.load(Relaxed))
    }

    /// Notes that the log ends here: the caller commits or replays its last batch.
    pub(crate) fn set(&self, end: Position) {
        self.0.store(end.0, Relaxed);
    }

    /// Notes that the log ends here, or further on: other batches may be committed meanwhile.
    pub(crate) fn reach(&self, end: Position) {
        self.0.fetch_max(end.0, Relaxed);
    }
}
