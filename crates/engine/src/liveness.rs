//! What is still needed, and what is done with the rest: the removal of unneeded chunks, dead slots, merging.
//!
//! Those who make objects state [facts](reference): who refers to what. [`Liveness`] knows what follows from them. Today that
//! is [counting](counted); the rest of this folder asks the trait and knows nothing of counts.

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

/// A chunk that seemed to be unneeded when it was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Where it is.
    pub address: Address,
    /// Its name.
    pub fingerprint: Fingerprint,
}

/// What a batch has to say because of the facts in it.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// For the log.
    pub records: Vec<Record>,
    /// What these records do to the chunk index.
    pub deltas: Vec<(Fingerprint, i64)>,
}

/// Which chunks are still needed. An answer holds for what is durable: whoever asks flushes before, and keeps off those who are
/// about to refer to a chunk (`removal.rs`).
///
/// A chunk is *unneeded* when no group refers to it and no stored metadata chunk does.
///
/// Chunks of which something cannot be read are needed, and `damaged` gets a sentence for each such place.
pub trait Liveness: Send + Sync {
    /// Returns what the next batch has to say because of these facts. The caller holds the lock of commits. The batch may fail:
    /// then these facts are void, and those of transactions come again with a later batch. So nothing in memory may change
    /// before [`committed`](Liveness::committed).
    fn note(&self, facts: &Facts<'_>) -> Result<Noted>;

    /// The batch of the last [`note`](Liveness::note) is durable and applied. The caller still holds the lock of commits.
    /// Liveness that keeps nothing in memory has nothing to do.
    fn committed(&self) {}

    /// Appends chunks that are unneeded, from `from` on, `max` or a few more. Returns where to go on. What only memory knows may
    /// be passed over; [`Engine::maintain`](crate::Engine::maintain) before makes it known.
    fn candidates(&self, from: Cursor, max: usize, out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<Option<Cursor>>;

    /// Returns all chunks that are unneeded, those too that only memory knows. It reads everything once and holds 40 bytes for
    /// each of them: for dry runs.
    fn all_candidates(&self, damaged: &mut Vec<String>) -> Result<Vec<Candidate>>;

    /// Appends for each candidate whether it is unneeded, and still where it was found.
    fn unneeded(&self, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()>;

    /// Appends those of these chunks, each named once, that would be unneeded if so many of their references went, beside those
    /// that are gone: what removed metadata chunks leave behind (0), or would (dry runs).
    fn unneeded_without(&self, lost: &[(Fingerprint, u32)], out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()>;
}

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
