//! The seam between the engine and an index that knows every chunk: by name, with its address and usage count.

use crate::{ChunkBatch, ChunkIndex, ChunkIndexStatistics, DamagedPage, Held, IndexEntry, IndexError, Result, UnusedCursor, VerifiedRun};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Effects, Position, Pressure, View};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An index of all chunks by fingerprint, in partitions by prefix. It is a [`View`] of the log.
pub trait CountedIndex: Debug + Send + Sync {
    /// Applies the batch of the log that ends at `end`. Batches come in the order of the log, each only once it is
    /// durable there.
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<()>;

    /// Applies a batch that a rebuild makes.
    fn apply_batch(&self, end: Position, batch: ChunkBatch<'_>) -> Result<()>;

    /// Returns the position before which everything is durable in the pages.
    fn position(&self) -> Position;

    /// Returns the position that the log must reach: some pages are applied up to it.
    fn required_end(&self) -> Position;

    /// Returns how far the pages are behind.
    fn pressure(&self) -> Pressure;

    /// Does a bounded piece of bringing changes into the pages. Returns whether there was work.
    fn step(&self) -> Result<bool>;

    /// Brings everything applied before the call into the pages, as long as `go_on`.
    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<()>;

    /// Looks up chunks, one answer for each, in order. Returns for how many reads it waited.
    fn lookup(&self, names: &[Fingerprint], out: &mut Vec<Option<IndexEntry>>) -> Result<usize>;

    /// Begins the reads that a look-up of these chunks will wait for.
    fn expect(&self, names: &[Fingerprint]);

    /// Returns the index if its partitions can come and go.
    fn movable(&self) -> Option<&ChunkIndex> {
        None
    }

    /// Returns the numbers of the opened partitions, ascending.
    fn partitions(&self) -> Vec<u32>;

    /// Visits all entries of a partition, ascending by fingerprint, as of the call.
    fn for_each(&self, partition: u32, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()>;

    /// Visits the entries of a partition from a prefix on, ascending, until `visit` returns false.
    fn for_each_from(&self, partition: u32, prefix: u64, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> bool) -> Result<()>;

    /// Keeps sweeps from the entries with these prefixes, until they are read or the result is dropped.
    fn hold(&self, prefixes: RangeInclusive<u64>) -> Box<dyn HeldEntries + '_>;

    /// Appends unused chunks (count 0) and their addresses from `cursor` on: `limit` or a few more. Returns where to
    /// continue. Skips what is in no page yet, and unreadable pages, which it appends to `damaged`.
    fn unused(
        &self,
        cursor: UnusedCursor,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<UnusedCursor>>;

    /// Counts the unused chunks with at most `runs` reads. Returns the count and whether it is complete.
    fn count_unused(&self, runs: usize) -> Result<(u64, bool)>;

    /// Reads every page as long as `go_on`. Returns the damaged ones.
    fn verify_while(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage>;

    /// Reads some pages of a partition from the device. `place` is 0 or where an earlier run stopped.
    fn verify_run(&self, partition: u32, place: u32) -> VerifiedRun;

    /// Returns the figures.
    fn statistics(&self) -> ChunkIndexStatistics;

    /// Returns whether this opening met a damaged page.
    fn has_met_damage(&self) -> bool {
        false
    }

    /// Saves what makes the next opening faster. Call it last.
    fn close(&self) -> Result<()>;
}

/// Entries that no sweep changes.
pub trait HeldEntries {
    /// Makes this the moment of which the entries are read: copies the changes that are in no page.
    fn take(&mut self);

    /// Passes all entries to `visit`, and what cannot be read to `failed`.
    fn for_each(self: Box<Self>, visit: &mut dyn FnMut(&Fingerprint, IndexEntry), failed: &mut dyn FnMut(IndexError));
}

/// An index of all chunks as a [`View`].
#[derive(Clone, Debug)]
pub struct IndexView(pub Arc<dyn CountedIndex>);

impl<E: From<IndexError>> View<E> for IndexView {
    fn apply(&self, end: Position, effects: &Effects<'_>) -> std::result::Result<(), E> {
        Ok(self.0.apply(end, effects)?)
    }

    fn position(&self) -> Position {
        self.0.position()
    }

    fn required_end(&self) -> Position {
        self.0.required_end()
    }

    fn pressure(&self) -> Pressure {
        self.0.pressure()
    }

    fn step(&self) -> std::result::Result<bool, E> {
        Ok(self.0.step()?)
    }

    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> std::result::Result<(), E> {
        Ok(self.0.catch_up(go_on)?)
    }
}

impl CountedIndex for ChunkIndex {
    fn movable(&self) -> Option<&ChunkIndex> {
        Some(self)
    }

    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<()> {
        let Effects { removals, places, stored, deltas, .. } = *effects;
        ChunkIndex::apply_batch(self, end, ChunkBatch { removals, places, inserts: stored, deltas, ..ChunkBatch::default() })
    }

    fn apply_batch(&self, end: Position, batch: ChunkBatch<'_>) -> Result<()> {
        ChunkIndex::apply_batch(self, end, batch)
    }

    fn position(&self) -> Position {
        ChunkIndex::position(self)
    }

    fn required_end(&self) -> Position {
        ChunkIndex::required_end(self)
    }

    fn pressure(&self) -> Pressure {
        crate::view::pressure(self.is_over_limit(), || self.wants_sweep())
    }

    /// Sweeps some pages of a partition.
    fn step(&self) -> Result<bool> {
        self.note(ChunkIndex::step(self))
    }

    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        self.note(self.sweep_all_while(go_on))
    }

    fn lookup(&self, names: &[Fingerprint], out: &mut Vec<Option<IndexEntry>>) -> Result<usize> {
        self.note(ChunkIndex::lookup(self, names, out))
    }

    fn expect(&self, names: &[Fingerprint]) {
        ChunkIndex::expect(self, names);
    }

    fn partitions(&self) -> Vec<u32> {
        ChunkIndex::partitions(self)
    }

    fn for_each(&self, partition: u32, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()> {
        self.note(ChunkIndex::for_each(self, partition, visit))
    }

    fn for_each_from(&self, partition: u32, prefix: u64, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> bool) -> Result<()> {
        self.note(ChunkIndex::for_each_from(self, partition, prefix, visit))
    }

    fn hold(&self, prefixes: RangeInclusive<u64>) -> Box<dyn HeldEntries + '_> {
        Box::new(ChunkIndex::hold(self, prefixes))
    }

    fn unused(
        &self,
        cursor: UnusedCursor,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<UnusedCursor>> {
        let unused = self.note(ChunkIndex::unused(self, cursor, limit, out, damaged));
        self.note_pages(damaged.len());
        unused
    }

    fn count_unused(&self, runs: usize) -> Result<(u64, bool)> {
        self.note(ChunkIndex::count_unused(self, runs))
    }

    fn verify_while(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage> {
        let damaged = ChunkIndex::verify_while(self, go_on);
        self.note_pages(damaged.len());
        damaged
    }

    fn verify_run(&self, partition: u32, place: u32) -> VerifiedRun {
        let run = ChunkIndex::verify_run(self, partition, place);
        self.note_pages(run.damaged.len());
        run
    }

    fn statistics(&self) -> ChunkIndexStatistics {
        ChunkIndex::statistics(self)
    }

    fn has_met_damage(&self) -> bool {
        ChunkIndex::has_met_damage(self)
    }

    fn close(&self) -> Result<()> {
        self.note(ChunkIndex::close(self))
    }
}

impl HeldEntries for Held {
    fn take(&mut self) {
        Held::take(self);
    }

    fn for_each(self: Box<Self>, visit: &mut dyn FnMut(&Fingerprint, IndexEntry), failed: &mut dyn FnMut(IndexError)) {
        Held::for_each(*self, visit, failed);
    }
}
