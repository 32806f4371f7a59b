//! What is still needed, and what is done with the rest: usage counts, removal of chunks with count 0, dead slots, merging.

use crate::InFlight;
use crate::write::in_flight::{Guards, Watch};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod dead;
pub(crate) mod merge;
pub(crate) mod recount;
pub(crate) mod removal;

/// What removal and merging share with those who refer to chunks.
#[derive(Debug, Default)]
pub(crate) struct Reclaiming {
    guards: Arc<Guards>,
    /// What the removal of unused chunks has its eye on.
    watch: Watch,
    /// Held while chunks are removed or containers merged: what is dead changes only then.
    running: Mutex<()>,
    /// Held by the one removal, also while it waits for writes in flight.
    removing: Mutex<()>,
}

impl Reclaiming {
    /// Keeps removals that begin later from taking chunks away.
    pub(crate) fn enter(&self) -> InFlight {
        self.guards.enter()
    }

    /// Returns the list of chunks that a removal would take.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Keeps others from removing chunks and merging containers.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }

    /// The same, if it can be had in this time.
    pub(crate) fn alone_within(&self, time: Duration) -> Option<MutexGuard<'_, ()>> {
        self.running.try_lock_for(time)
    }
}
