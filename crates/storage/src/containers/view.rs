//! The containers as a [`View`] of the log.
//!
//! They are the only view that the log's records are made from. [`prepare`](ContainerStore::prepare) writes chunks
//! first and says what the log must hold, and [`committed`](ContainerStore::committed) hears of it. So a live batch
//! brings nothing new here; only a replay does.

use crate::StorageError;
use crate::containers::store::ContainerStore;
use onefold_oplog::{Effects, PartitionClass, Position, Pressure, View};

impl<E: From<StorageError>> View<E> for ContainerStore {
    fn apply(&self, _end: Position, effects: &Effects<'_>) -> Result<(), E> {
        let own = effects.replayed.iter().filter(|record| record.partition.class == PartitionClass::Container);
        for record in own {
            self.replay(effects.start, record)?;
        }
        Ok(())
    }

    /// Returns the start of the oldest batch that is needed here. [`ContainerStore::trim_point`] has the last word, as
    /// a merge may begin meanwhile.
    fn position(&self) -> Position {
        self.oldest_needed().unwrap_or_else(|| View::<E>::required_end(self))
    }

    fn required_end(&self) -> Position {
        self.shared.log_end.get()
    }

    fn pressure(&self) -> Pressure {
        if self.has_pending_merges() { Pressure::Behind } else { Pressure::Idle }
    }

    /// Replaces the files of merged containers. If that fails (a full disk), only the log waits for it, and a later
    /// step retries it.
    fn step(&self) -> Result<bool, E> {
        self.shared.finish_or_warn();
        Ok(false)
    }

    /// Does nothing: steps do everything that can be done here. Open containers advance through the log, by
    /// [`ContainerStore::checkpoint_before`].
    fn catch_up(&self, _: &dyn Fn() -> bool) -> Result<(), E> {
        Ok(())
    }
}
