//! Which chunks are still needed, and what happens to the rest: removal of unneeded chunks, dead slots, merging.
//!
//! Creators of objects state [facts](reference): which group refers to which chunk. [`Liveness`] knows what follows
//! from them. Today that is [counting](counted). The rest of this folder asks the trait and knows nothing of counts.

use crate::write::in_flight::{Guards, Watch};
use crate::{Address, InFlight, Result};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Record;
use parking_lot::{Mutex, MutexGuard};
use reference::Facts;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod counted;
pub(crate) mod dead;
pub(crate) mod merge;
pub(crate) mod recount;
pub(crate) mod reference;
pub(crate) mod removal;

pub use onefold_index::UnusedCursor as Cursor;

/// A chunk that looked unneeded when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Where it is.
    pub address: Address,
    /// Its name.
    pub fingerprint: Fingerprint,
}

/// What a batch must contain because of the facts in it.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// Records for the log.
    pub records: Vec<Record>,
    /// The changes that these records make in the chunk index.
    pub deltas: Vec<(Fingerprint, i64)>,
}

/// Which chunks are still needed. An answer holds for durable references only. So the caller flushes before, and keeps
/// off everybody who is about to refer to a chunk (`removal.rs`).
///
/// A chunk is *unneeded* when no group and no stored metadata chunk refers to it.
///
/// Chunks whose state cannot be read count as needed, and `damaged` gets a sentence for each such place.
pub trait Liveness: Send + Sync {
    /// Returns what the next batch must contain because of these facts. The caller holds the commit lock. The batch may
    /// fail: then these facts are void, and those of transactions come again with a later batch. So nothing in memory
    /// may change before [`committed`](Liveness::committed).
    fn note(&self, facts: &Facts<'_>) -> Result<Noted>;

    /// Notes that the batch of the last [`note`](Liveness::note) is durable and applied. The caller still holds the
    /// commit lock. Liveness that keeps nothing in memory has nothing to do.
    fn committed(&self) {}

    /// Appends unneeded chunks from `from` on: `max` or a few more. Returns where to continue. It may skip chunks whose
    /// state is only in memory. To include those, call [`Engine::maintain`](crate::Engine::maintain) before.
    fn candidates(&self, from: Cursor, max: usize, out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<Option<Cursor>>;

    /// Returns all unneeded chunks, including those whose state is only in memory. It reads everything once and holds
    /// 40 bytes for each of them: for dry runs.
    fn all_candidates(&self, damaged: &mut Vec<String>) -> Result<Vec<Candidate>>;

    /// Appends for each candidate whether it is unneeded and still at the same place.
    fn unneeded(&self, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()>;

    /// Appends those of these chunks, each named once, that would be unneeded if that many more of their references
    /// went. For references that removed metadata chunks left behind, the number is 0: they are gone already. Dry runs
    /// pass the number that would go.
    fn unneeded_without(&self, lost: &[(Fingerprint, u32)], out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()>;
}

/// The state that removal and merging share with those who refer to chunks.
#[derive(Debug, Default)]
pub(crate) struct Reclaiming {
    guards: Arc<Guards>,
    /// The chunks that the current removal watches.
    watch: Watch,
    /// Held while chunks are removed or containers merged: the set of dead chunks changes only then.
    running: Mutex<()>,
    /// Held by the one removal, even while it waits for writes in flight.
    removing: Mutex<()>,
}

impl Reclaiming {
    /// Returns a guard that keeps removals that begin later from taking chunks away.
    pub(crate) fn enter(&self) -> InFlight {
        self.guards.enter()
    }

    /// Returns the watch list of chunks that a removal would take.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Keeps others from removing chunks and merging containers.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.running.lock()
    }

    /// Does the same if it gets the lock within `time`.
    pub(crate) fn alone_within(&self, time: Duration) -> Option<MutexGuard<'_, ()>> {
        self.running.try_lock_for(time)
    }
}
