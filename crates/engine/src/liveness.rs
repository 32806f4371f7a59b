//! Which chunks are still needed, and what happens to the rest: removal of unneeded chunks, dead slots, merging.
//!
//! Creators of objects state [facts](reference): which group refers to which chunk. [`Liveness`] knows what follows
//! from them: by [counting](counted), or by [marking](marked). The rest of this folder asks the trait.

use crate::write::in_flight::{Guards, Watch};
use crate::{Address, Change, Engine, InFlight, Moment, Piece, Result};
use marked::{Reached, Roots};
use onefold_fingerprint::Fingerprint;
use onefold_index::UnusedCursor;
use onefold_oplog::Record;
use onefold_storage::{ChunkKind, Origin};
use parking_lot::{Mutex, MutexGuard};
use reference::Facts;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod counted;
pub(crate) mod dead;
pub(crate) mod joining;
pub(crate) mod marked;
pub(crate) mod merge;
pub(crate) mod recount;
pub(crate) mod reference;
pub(crate) mod removal;
pub(crate) mod slots;

/// Where a search for unneeded chunks goes on. Each kind of liveness has its own order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    partition: u32,
    place: u64,
}

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
    /// Objects that change with the batch.
    pub changes: Vec<Change>,
}

/// Which chunks are still needed. An answer holds for durable references only. So the caller flushes before, and keeps
/// off everybody who is about to refer to a chunk (`removal.rs`).
///
/// A chunk is *unneeded* when no group refers to it, directly or through metadata chunks. Liveness that counts also
/// keeps what a stored metadata chunk refers to, until that chunk is removed.
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

    /// Finds out what is needed now, so that [`candidates`](Liveness::candidates) has everything that is unneeded. It
    /// asks `go_on` between its steps.
    fn survey(&self, engine: &Engine, roots: &mut dyn Roots, go_on: &dyn Fn() -> bool, damaged: &mut Vec<String>) -> Result<Survey>;

    /// Takes in what was added since the survey. A removal calls it when everybody who was in flight is gone and
    /// everything submitted is durable.
    fn settle(&self, engine: &Engine, references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<()>;

    /// Appends unneeded chunks from `from` on: `max` or a few more. Returns where to continue. It may skip chunks that
    /// became unneeded after the last [`survey`](Liveness::survey).
    fn candidates(
        &self,
        engine: &Engine,
        from: Cursor,
        max: usize,
        out: &mut Vec<Candidate>,
        damaged: &mut Vec<String>,
    ) -> Result<Option<Cursor>>;

    /// Returns all unneeded chunks without changing anything. It reads everything once and holds 40 bytes for each of
    /// them: for dry runs.
    fn all_candidates(&self, engine: &Engine, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>>;

    /// Appends for each candidate whether it is unneeded and still at the same place.
    fn unneeded(&self, engine: &Engine, candidates: &[Candidate], out: &mut Vec<bool>, damaged: &mut Vec<String>) -> Result<()>;

    /// Returns for each place whether the last survey found that nobody needs the chunk that was there and is lost. Not
    /// asked where lost chunks have counts.
    fn nobody_needs(&self, places: &[Address]) -> Vec<bool>;

    /// Returns whether the last survey still tells what is unneeded: nothing has ended it since.
    fn is_surveyed(&self) -> bool {
        true
    }

    /// Returns whether places of an origin may be unneeded that were needed at the survey before the last one.
    fn may_have_lost(&self, _: Origin) -> bool {
        true
    }

    /// Returns for each of these places whether somebody may have added a reference to it since that survey, or to an
    /// address that leads to it. Asked under the commit lock: everything that was submitted is known. Not asked where
    /// lost chunks have counts.
    fn may_be_added(&self, engine: &Engine, places: &[Address]) -> Vec<bool>;

    /// Returns everything that can be reached as of a moment, if this liveness follows references. Appends to `wrong`
    /// what it kept and is not so. While it runs, no other survey does.
    fn reached(
        &self,
        engine: &Engine,
        moment: &Moment<'_>,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        wrong: &mut Vec<String>,
    ) -> Result<Option<Reached>>;

    /// Appends those of these chunks, each named once, that would be unneeded if that many more of their references
    /// went. For references that removed metadata chunks left behind, the number is 0: they are gone already. Dry runs
    /// pass the number that would go. Liveness that found these chunks in the survey already appends none.
    fn unneeded_without(&self, lost: &[(Fingerprint, u32)], out: &mut Vec<Candidate>, damaged: &mut Vec<String>) -> Result<()>;
}

/// Returns what a metadata chunk refers to, from its kind and content.
pub type ReferencesOf<'a> = &'a dyn Fn(ChunkKind, &[u8]) -> std::result::Result<Vec<Piece>, String>;

/// What a survey came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Why nothing may be removed before the next survey, if so.
    pub held: Option<String>,
    /// The disk has no room for all that the survey has to write, so some unneeded chunks may not be found.
    pub is_short_of_room: bool,
}

impl From<UnusedCursor> for Cursor {
    fn from(UnusedCursor { partition, page }: UnusedCursor) -> Cursor {
        Cursor { partition, place: page.into() }
    }
}

impl From<Cursor> for UnusedCursor {
    fn from(Cursor { partition, place }: Cursor) -> UnusedCursor {
        UnusedCursor { partition, page: place as u32 }
    }
}

impl From<Origin> for Cursor {
    fn from(origin: Origin) -> Cursor {
        Cursor { partition: 0, place: origin.bits() }
    }
}

impl From<Cursor> for Origin {
    fn from(cursor: Cursor) -> Origin {
        Origin::from_bits(cursor.place)
    }
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

    /// Returns a moment: guards that are made later are younger.
    pub(crate) fn moment(&self) -> u64 {
        self.guards.now()
    }

    /// Returns whether nobody is in flight who was before a moment.
    pub(crate) fn are_gone_before(&self, moment: u64) -> bool {
        self.guards.all_gone_before(moment)
    }

    /// Returns whether nobody is in flight who was before the call.
    pub(crate) fn is_nobody_in_flight(&self) -> bool {
        self.guards.all_gone_before(self.guards.now())
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
