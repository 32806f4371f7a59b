//! The chunk index: fingerprint -> address and usage count (M0.13).
//!
//! It is a view of the operations log, in partitions by fingerprint prefix. Each partition is a paged hash table on
//! disk, and arithmetic finds a page. In memory it has an *auxiliary index* with the log's changes beyond the pages
//! (M0.14), and a filter that saves misses from reading. Applying a batch writes nothing to the pages (M0.15): the log
//! makes it safe to wait. [`ChunkIndex::sweep`] merges many batches in one sorted pass while lookups go on.
//!
//! Invariants:
//! * A lookup returns the result of all batches applied so far, whichever of them are in pages.
//! * [`ChunkIndex::position`] covers only what is durable in the pages of every partition. The log has the rest.
//! * A change of a count takes effect exactly once, however often sweeps are interrupted (`sweep.rs` has the argument).
//! * A step of background work takes as long as some pages take, and no longer ([`ChunkIndex::step`]). This includes
//!   growth.
//! * A damaged page gives an error that names it, never an answer.
//!
//! The files:
//! * `header.rs` and `journal.rs`: which pages count, and which are being written.
//! * `page.rs` and `pages.rs`: entries.
//! * `auxiliary.rs`, `filter.rs` and `page_cache.rs`: memory.
//! * `partition.rs`: opening and applying.
//! * `lookup.rs`: lookups.
//! * `sweep.rs`, `grow.rs` and `merge.rs`: bringing changes into pages.
//! * `held.rs` and `visit.rs`: checks.

mod adopting;
mod auxiliary;
mod expected;
mod filter;
mod grow;
pub mod header;
mod held;
pub mod journal;
mod lookup;
mod merge;
pub mod page;
mod page_cache;
mod pages;
mod partition;
mod sweep;
mod visit;

#[cfg(test)]
mod adopting_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod lookup_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod torn_tests;
#[cfg(test)]
mod trials;

use crate::{IndexError, Result};
use filter::FilterFigures;
use merge::Merged;
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, Readers};
use onefold_oplog::{Owned, Ownership, PartitionSet, Partitions, Position};
use pages::{Memory, Shape};
use parking_lot::Mutex;
use partition::{Opening, Partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sweep::Stepped;

pub use adopting::{NewPartition, RemovedPartition};
pub use held::Held;
pub use visit::{DamagedPage, VerifiedRun};

/// Highest number of partitions: their names have four hex digits.
const MAX_PARTITIONS: u32 = 1 << 16;
/// Pages that may be read ahead of look-ups, for each read that may be in flight: 4 MiB with 64.
const EXPECTED_FOR_EACH_READER: usize = 32;

/// How the chunk index uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkIndexOptions {
    /// Bound of the auxiliary index over all partitions, bytes. At three quarters of it the index wants a sweep. Above
    /// it, [`ChunkIndex::is_over_limit`] asks writers to wait.
    pub auxiliary_bytes: usize,
    /// Bound of the page cache, bytes; 0: no cache.
    pub page_cache_bytes: usize,
    /// Bound of the filter, bytes. At the bound the filter becomes coarser and saves fewer misses from reading a page.
    pub filter_bytes: usize,
    /// Page reads in flight, over all lookups; 0 or 1: each lookup reads page after page.
    pub reads_in_flight: usize,
}

impl Default for ChunkIndexOptions {
    fn default() -> ChunkIndexOptions {
        ChunkIndexOptions { auxiliary_bytes: 64 << 20, page_cache_bytes: 16 << 20, filter_bytes: 256 << 20, reads_in_flight: 64 }
    }
}

/// The index's entry for a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its address; 0: only changes of its count are known.
    pub address: u64,
    /// Number of references. `u32::MAX` stays: the true count is no longer known.
    pub count: u32,
}

/// One log batch's changes to chunks. They take effect in the order of the fields, so the other fields still apply to a
/// chunk that the same batch removes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkBatch<'a> {
    /// Chunks that are no longer stored: their entries go.
    pub removals: &'a [Fingerprint],
    /// Chunks with a new address, or with none (0). Their counts stay.
    pub places: &'a [(Fingerprint, u64)],
    /// Newly stored chunks and their addresses (never 0).
    pub inserts: &'a [(Fingerprint, u64)],
    /// What an index with room for it keeps with each of these. Empty: nothing.
    pub notes: &'a [u32],
    /// Changes of counts.
    pub deltas: &'a [(Fingerprint, i64)],
}

/// A position in the search for unused chunks. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnusedCursor {
    /// The partition.
    pub partition: u32,
    /// A page of it.
    pub page: u32,
}

/// Figures of the index since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkIndexStatistics {
    /// Entries in pages.
    pub entries: u64,
    /// Chunks in the auxiliary index. Some have entries in pages too.
    pub auxiliary_entries: u64,
    /// Memory of the auxiliary index.
    pub auxiliary_bytes: u64,
    /// Memory of the filter.
    pub filter_bytes: u64,
    /// Bound of the filter's memory.
    pub filter_limit_bytes: u64,
    /// Expected number of absent chunks that the filter passes, per million. Pages that it does not know yet pass
    /// everything.
    pub filter_false_maybes_ppm: u32,
    /// Memory of the page cache.
    pub page_cache_bytes: u64,
    /// Bound of the page cache ([`ChunkIndexOptions::page_cache_bytes`]).
    pub page_cache_limit_bytes: u64,
    /// Pages that lookups found in the cache.
    pub page_cache_hits: u64,
    /// Pages that lookups had to read.
    pub page_cache_misses: u64,
    /// Bytes that the pages take on disk, including those of pages that have moved away. Holes of a growing file do not
    /// count.
    pub page_bytes: u64,
    /// Pages read.
    pub page_reads: u64,
    /// Changes that sweeps merged into pages.
    pub swept_changes: u64,
    /// Pages that sweeps wrote. The more changes per page, the better.
    pub sweep_page_writes: u64,
    /// Pages that growth wrote.
    pub growth_page_writes: u64,
    /// Lookups that the filter answered without a page.
    pub filter_negatives: u64,
    /// Lookups that read a page without finding the chunk.
    pub filter_false_positives: u64,
    /// Sweeps of a partition.
    pub sweeps: u64,
    /// Doublings of a partition.
    pub growths: u64,
    /// Counts that would have fallen below zero. Some references are wrong; `check` finds them.
    pub count_underflows: u64,
}

#[derive(Debug, Default)]
struct Counters {
    page_reads: AtomicU64,
    page_cache_hits: AtomicU64,
    page_cache_misses: AtomicU64,
    /// Memory of all changes.
    auxiliary_bytes: AtomicUsize,
    swept_changes: AtomicU64,
    sweep_page_writes: AtomicU64,
    growth_page_writes: AtomicU64,
    filter_negatives: AtomicU64,
    filter_false_positives: AtomicU64,
    sweeps: AtomicU64,
    growths: AtomicU64,
    count_underflows: AtomicU64,
    /// Whether a page was damaged.
    met_damage: AtomicBool,
}

impl Counters {
    fn count_merge(&self, merged: Merged, changes: u64, pages_written: u64) {
        self.swept_changes.fetch_add(changes, Ordering::Relaxed);
        self.sweep_page_writes.fetch_add(pages_written, Ordering::Relaxed);
        self.count_underflows.fetch_add(u64::from(merged.underflows), Ordering::Relaxed);
    }
}

impl ChunkIndexOptions {
    /// Returns the memory of each of some partitions. Fingerprints are uniform: all need the same amount.
    fn of_each(&self, partitions: usize) -> Memory {
        let of_each = |bytes: usize| bytes / partitions.max(1);
        Memory {
            cache_bytes: of_each(self.page_cache_bytes),
            filter_bytes: of_each(self.filter_bytes),
            expected_pages: of_each(EXPECTED_FOR_EACH_READER * self.reads_in_flight).max(self.reads_in_flight),
        }
    }
}

/// The open chunk index of a store.
#[derive(Debug)]
pub struct ChunkIndex {
    /// Its path, for messages.
    path: String,
    ground: Arc<dyn Ground>,
    directory: String,
    /// Of a new partition.
    shape: Shape,
    access: Access,
    partitions: PartitionSet<Partition>,
    options: ChunkIndexOptions,
    counters: Arc<Counters>,
    /// Reads the pages of lookups.
    readers: Readers,
    /// Allows one step at a time, so that its buffers exist only once (about 6 MiB). Holds the number of the partition
    /// whose sweep is unfinished.
    sweeping: Mutex<Option<u32>>,
}

impl ChunkIndex {
    /// Creates an empty index, durable on return. `partitions` is a power of two up to 65,536. `digest_bytes` is 16 to
    /// 32.
    pub fn create(ground: &Arc<dyn Ground>, directory: &str, partitions: u32, digest_bytes: usize) -> Result<()> {
        let shape = shape(ground, directory, partitions, digest_bytes)?;
        for number in 0..partitions {
            let directory = partition_directory(directory, number);
            ground.create_directory(&directory)?;
            Partition::create(ground.as_ref(), &directory, shape, number)?;
        }
        Ok(())
    }

    /// Opens some partitions of an index and makes an interrupted sweep safe. The caller must then
    /// [apply](ChunkIndex::apply) the log from [`ChunkIndex::position`] on. With [`Access::Read`] it never writes, and
    /// epochs do not matter. Otherwise it refuses a partition that a later owner has opened.
    pub fn open(
        ground: &Arc<dyn Ground>,
        directory: &str,
        ownership: &Ownership,
        digest_bytes: usize,
        options: ChunkIndexOptions,
        access: Access,
    ) -> Result<ChunkIndex> {
        let shape = shape(ground, directory, ownership.total(), digest_bytes)?;
        let counters = Arc::new(Counters::default());
        let memory = options.of_each(ownership.owned().len());
        let open = |Owned { number, epoch }: &Owned| {
            let opening = Opening { access, epoch: *epoch, memory };
            Partition::open(ground, partition_directory(directory, *number), shape, *number, opening, &counters)
        };
        let partitions = ownership.owned().iter().map(open).collect::<Result<Vec<_>>>()?;
        let readers = Readers::new(options.reads_in_flight);
        let (path, partitions) = (ground.describe(directory), PartitionSet::new(ownership, partitions));
        let (ground, directory, sweeping) = (ground.clone(), directory.to_owned(), Mutex::new(None));
        Ok(ChunkIndex { path, ground, directory, shape, access, partitions, options, counters, readers, sweeping })
    }

    /// Applies one batch of the log that ends at `end`, as far as it concerns opened partitions: new addresses (never
    /// 0) and changes of counts. Their order within the batch does not matter. Batches must come in the order of the
    /// log, from one thread, and only once they are durable there. A partition skips what it already has, so a replay
    /// may start at or before [`ChunkIndex::position`].
    ///
    /// A new address of a known chunk replaces the old one and keeps the count. The count of an unknown chunk starts at
    /// 0.
    pub fn apply(&self, end: Position, inserts: &[(Fingerprint, u64)], deltas: &[(Fingerprint, i64)]) -> Result<()> {
        self.apply_batch(end, ChunkBatch { inserts, deltas, ..ChunkBatch::default() })
    }

    /// Applies a batch like [`ChunkIndex::apply`], with all kinds of changes.
    pub fn apply_batch(&self, end: Position, batch: ChunkBatch<'_>) -> Result<()> {
        let ChunkBatch { removals, places, inserts, deltas, .. } = batch;
        let partitions = self.partitions.now();
        let mut removals_by_partition = by_partition(&partitions, removals.iter()).into_iter();
        let mut places_by_partition = by_partition(&partitions, places.iter().map(|(fingerprint, _)| fingerprint)).into_iter();
        let inserts_by_partition = by_partition(&partitions, inserts.iter().map(|(fingerprint, _)| fingerprint));
        let deltas_by_partition = by_partition(&partitions, deltas.iter().map(|(fingerprint, _)| fingerprint));
        for (partition, (inserted, changed)) in partitions.iter().zip(inserts_by_partition.into_iter().zip(deltas_by_partition)) {
            let inserted = inserted.iter().map(|at| inserts[*at as usize]);
            let changed = changed.iter().map(|at| deltas[*at as usize]);
            let removed = removals_by_partition.next().unwrap_or_default();
            let removed = removed.iter().map(|at| removals[*at as usize]);
            let placed = places_by_partition.next().unwrap_or_default();
            let placed = placed.iter().map(|at| places[*at as usize]);
            partition.apply(end.0, removed, placed, inserted, changed);
        }
        Ok(())
    }

    /// Returns the position before which everything is durable in all partitions. The log may be trimmed up to here,
    /// and a replay starts here. Without partitions it needs no log.
    pub fn position(&self) -> Position {
        self.partitions.now().iter().map(|partition| Position(partition.state.read().applied)).min().unwrap_or(Position::MAX)
    }

    /// Returns the position that the log must reach: some pages are applied up to it. A log that ends before it has
    /// lost its tail.
    pub fn required_end(&self) -> Position {
        Position(self.partitions.now().iter().map(|partition| partition.state.read().floor()).max().unwrap_or(0))
    }

    /// Returns whether to call [`ChunkIndex::step`].
    pub fn wants_sweep(&self) -> bool {
        let bytes = self.counters.auxiliary_bytes.load(Ordering::Relaxed);
        bytes > self.options.auxiliary_bytes / 4 * 3 && self.partitions.now().iter().any(|partition| partition.yield_of_sweep().is_some())
    }

    /// Returns whether the auxiliary index is over its bound, so that writers should wait for a sweep. Takes no lock.
    pub fn is_over_limit(&self) -> bool {
        self.counters.auxiliary_bytes.load(Ordering::Relaxed) > self.options.auxiliary_bytes
    }

    /// Does a bounded piece of a sweep: writes at most 1,024 pages, with three to seven syncs. It continues the
    /// unfinished sweep, or picks the partition with the most changes per page written. Lookups and batches go on
    /// meanwhile. Returns whether there was work. After an error nothing is lost: the next call tries another partition
    /// first, and this one later.
    pub fn step(&self) -> Result<bool> {
        Ok(self.step_of_sweep()? != Stepped::Nothing)
    }

    /// [Steps](ChunkIndex::step) until the sweep of one partition ends. Returns whether there was one.
    pub fn sweep(&self) -> Result<bool> {
        loop {
            match self.step_of_sweep()? {
                Stepped::Nothing => return Ok(false),
                Stepped::UnderWay => {}
                Stepped::Ended => return Ok(true),
            }
        }
    }

    fn step_of_sweep(&self) -> Result<Stepped> {
        let mut under_way = self.sweeping.lock();
        let partitions = self.partitions.now();
        let yields = || partitions.numbered().filter_map(|(number, partition)| Some((number, partition, partition.yield_of_sweep()?)));
        let best = || {
            let first = |(_, partition, gain): &(u32, &Arc<Partition>, f64)| (!partition.failed.load(Ordering::Relaxed), *gain);
            yields()
                .max_by(|one, other| first(one).partial_cmp(&first(other)).unwrap_or(std::cmp::Ordering::Equal))
                .map(|(number, ..)| number)
        };
        // The one that it stopped in may have gone.
        let next = under_way.take().filter(|number| partitions.get(*number).is_some()).or_else(best);
        let Some((number, partition)) = next.and_then(|number| Some((number, partitions.get(number)?))) else {
            return Ok(Stepped::Nothing);
        };
        let stepped = partition.step()?;
        *under_way = (stepped == Stepped::UnderWay).then_some(number);
        Ok(stepped)
    }

    /// Merges all changes applied before the call into the pages, so that [`ChunkIndex::position`] reaches them. If one
    /// partition fails, it still sweeps the others. Returns the first error.
    pub fn sweep_all(&self) -> Result<()> {
        self.sweep_all_while(&|| true)
    }

    /// Does the same as long as `go_on`, which is asked before each bounded piece.
    pub(crate) fn sweep_all_while(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let partitions = self.partitions.now();
        let goals: Vec<u64> = partitions.iter().map(|partition| partition.state.read().last).collect();
        let swept = partitions.numbered().zip(goals).map(|((number, partition), goal)| self.sweep_to(number, partition, goal, go_on));
        swept.fold(Ok(()), Result::and)
    }

    fn sweep_to(&self, number: u32, partition: &Partition, goal: u64, go_on: &dyn Fn() -> bool) -> Result<()> {
        let is_behind = || partition.state.read().applied < goal;
        // If an interrupted sweep must end first, another one follows.
        while is_behind() && go_on() {
            let mut under_way = self.sweeping.lock();
            if is_behind() {
                let stepped = partition.step();
                under_way.take_if(|other| *other == number && !matches!(stepped, Ok(Stepped::UnderWay)));
                if stepped? == Stepped::Nothing {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Saves the filter, so that the next opening knows the pages without reading them. Call it last, before dropping
    /// the index. Without it the next opening only takes longer.
    pub fn close(&self) -> Result<()> {
        let _one = self.sweeping.lock();
        for partition in self.partitions.now().iter().filter(|partition| partition.access == Access::ReadWrite) {
            let mut files = partition.files.lock();
            if files.is_removed {
                continue;
            }
            partition.save_filter(&mut files)?;
            files.release_journal();
        }
        Ok(())
    }

    /// Returns the numbers of the opened partitions, ascending.
    pub fn partitions(&self) -> Vec<u32> {
        self.partitions.now().ownership().numbers().collect()
    }

    /// Returns the opened partition of this number. Errors: it is not opened.
    fn opened(&self, number: u32) -> Result<Arc<Partition>> {
        self.partitions.get(number).ok_or_else(|| self.not_opened(number))
    }

    fn not_opened(&self, number: u32) -> IndexError {
        IndexError::NotOpened { path: self.path.clone(), partition: number }
    }

    /// Returns how many bits of a fingerprint choose its partition.
    fn partition_bits(&self) -> u32 {
        self.partitions.total().trailing_zeros()
    }

    /// Visits all entries of a partition, ascending by fingerprint: pages and auxiliary index together, as of the call.
    /// No sweep of the partition runs meanwhile. Errors: the partition is not one of [`ChunkIndex::partitions`].
    pub fn for_each(&self, partition: u32, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()> {
        self.opened(partition)?.for_each(visit)
    }

    /// Appends unused chunks (count 0) and their addresses from `cursor` on: at least `limit`, if there are as many.
    /// Returns where to continue. Skips chunks that only the auxiliary index has: a [sweep](ChunkIndex::sweep_all)
    /// before the call brings them all into pages. Also skips chunks in unreadable pages, and appends those pages to
    /// `damaged`.
    pub fn unused(
        &self,
        cursor: UnusedCursor,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<UnusedCursor>> {
        let partitions = self.partitions.now();
        let Some((partition, current)) = partitions.from(cursor.partition) else { return Ok(None) };
        // The one that it stopped in may have gone.
        let page = if partition == cursor.partition { cursor.page } else { 0 };
        match current.unused(page, limit, out, damaged)? {
            Some(page) => Ok(Some(UnusedCursor { partition, page })),
            None => Ok(partitions.from(partition + 1).map(|(partition, _)| UnusedCursor { partition, page: 0 })),
        }
    }

    /// Counts the unused chunks (count 0). Makes at most `runs` reads of some pages that may have one. Returns the
    /// count and whether it is complete.
    pub fn count_unused(&self, runs: usize) -> Result<(u64, bool)> {
        let (mut count, mut left) = (0, runs);
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for partition in self.partitions.now().iter() {
            let mut next = Some(0);
            while let Some(first) = next {
                if left == 0 {
                    return Ok((count, false));
                }
                found.clear();
                next = partition.unused_of_run(first, &mut found, &mut damaged)?;
                // If no page may have an unused chunk, it read nothing.
                left -= usize::from(next.is_some() || !found.is_empty());
                count += found.len() as u64;
            }
        }
        Ok((count, damaged.is_empty()))
    }

    /// Reads every page and lists the damaged ones.
    pub fn verify(&self) -> Result<Vec<DamagedPage>> {
        Ok(self.verify_while(&mut || true))
    }

    /// Does the same as long as `go_on` returns true; it asks about every MiB. The list covers the pages read until
    /// then.
    pub fn verify_while(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage> {
        self.partitions.now().iter().flat_map(|partition| partition.verify(go_on)).collect()
    }

    /// Reads some pages of one partition from the device. `place` is 0 or where an earlier run stopped. Returns the
    /// damaged pages and where to continue.
    pub fn verify_run(&self, partition: u32, place: u32) -> VerifiedRun {
        self.opened(partition).map_or_else(|_| VerifiedRun::default(), |partition| partition.verify_run(place, true))
    }

    /// Returns whether a page was damaged that somebody asked for through the seam
    /// ([`CountedIndex`](crate::CountedIndex)).
    pub(crate) fn has_met_damage(&self) -> bool {
        self.counters.met_damage.load(Ordering::Relaxed)
    }

    /// Notes that this many pages are damaged.
    pub(crate) fn note_pages(&self, damaged: usize) {
        if damaged > 0 {
            self.counters.met_damage.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether a page is damaged.
    pub(crate) fn note<T>(&self, done: Result<T>) -> Result<T> {
        self.note_pages(usize::from(done.as_ref().is_err_and(IndexError::is_damaged_page)));
        done
    }

    /// Returns the figures.
    pub fn statistics(&self) -> ChunkIndexStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut statistics = ChunkIndexStatistics {
            page_reads: get(&counters.page_reads),
            page_cache_limit_bytes: self.options.page_cache_bytes as u64,
            page_cache_hits: get(&counters.page_cache_hits),
            page_cache_misses: get(&counters.page_cache_misses),
            swept_changes: get(&counters.swept_changes),
            sweep_page_writes: get(&counters.sweep_page_writes),
            growth_page_writes: get(&counters.growth_page_writes),
            auxiliary_bytes: counters.auxiliary_bytes.load(Ordering::Relaxed) as u64,
            filter_negatives: get(&counters.filter_negatives),
            filter_false_positives: get(&counters.filter_false_positives),
            sweeps: get(&counters.sweeps),
            growths: get(&counters.growths),
            count_underflows: get(&counters.count_underflows),
            ..ChunkIndexStatistics::default()
        };
        let mut filter = FilterFigures::default();
        for partition in self.partitions.now().iter() {
            let state = partition.state.read();
            statistics.entries += state.entries;
            statistics.auxiliary_entries += (state.active.len() + state.frozen.as_ref().map_or(0, |frozen| frozen.changes.len())) as u64;
            filter.add(state.pages.filter.figures(state.pages.shape.pages()));
            statistics.page_cache_bytes += state.pages.cache.bytes() as u64;
            statistics.page_bytes += state.pages.shape.allocated() * page::PAGE_BYTES as u64;
        }
        statistics.filter_bytes = filter.bytes as u64;
        statistics.filter_limit_bytes = self.options.filter_bytes as u64;
        statistics.filter_false_maybes_ppm = (filter.false_pages / filter.pages as f64 * 1e6).round() as u32;
        statistics
    }
}

/// Groups the indexes of a batch's fingerprints by opened partition, each group ascending by fingerprint. Equal
/// fingerprints keep the order of the batch.
fn by_partition<'a>(partitions: &Partitions<Partition>, fingerprints: impl Iterator<Item = &'a Fingerprint>) -> Vec<Vec<u32>> {
    let order = order_of(fingerprints);
    let bits = partitions.ownership().total().trailing_zeros();
    let mut rest: &[(u64, u32)] = &order;
    let mut split = |is_before: &dyn Fn(u32) -> bool| {
        let (before, others) = rest.split_at(rest.partition_point(|(prefix, _)| is_before(partition_of(*prefix, bits))));
        rest = others;
        before
    };
    let take = |number: u32| {
        split(&|of| of < number);
        split(&|of| of <= number).iter().map(|(_, number)| *number).collect()
    };
    partitions.ownership().numbers().map(take).collect()
}

/// Returns the prefixes and indexes of a batch's fingerprints, ascending.
fn order_of<'a>(fingerprints: impl Iterator<Item = &'a Fingerprint>) -> Vec<(u64, u32)> {
    let mut order: Vec<(u64, u32)> = fingerprints.enumerate().map(|(number, fingerprint)| (fingerprint.prefix(), number as u32)).collect();
    order.sort_unstable();
    order
}

impl ChunkIndex {
    /// Returns the partition of a chunk in a store with so many partitions, a power of 2.
    pub fn partition_of(fingerprint: &Fingerprint, partitions: u32) -> u32 {
        partition_of(fingerprint.prefix(), partitions.trailing_zeros())
    }
}

fn partition_of(prefix: u64, bits: u32) -> u32 {
    prefix.checked_shr(64 - bits).unwrap_or(0) as u32
}

fn partition_directory(directory: &str, number: u32) -> String {
    format!("{directory}/{number:04x}")
}

fn shape(ground: &Arc<dyn Ground>, directory: &str, partitions: u32, digest_bytes: usize) -> Result<Shape> {
    let mismatch = |what, found, expected| Err(IndexError::Mismatch { path: ground.describe(directory), what, found, expected });
    if !partitions.is_power_of_two() || partitions > MAX_PARTITIONS {
        return mismatch("number of partitions (a power of two)", u64::from(partitions), u64::from(MAX_PARTITIONS));
    }
    if !(16..=32).contains(&digest_bytes) {
        return mismatch("bytes of a digest", digest_bytes as u64, 32);
    }
    Ok(Shape::whole(0, partitions.trailing_zeros(), 1, digest_bytes))
}
