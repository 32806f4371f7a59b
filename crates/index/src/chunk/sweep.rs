//! The sweep: merges the changes of many log batches into the pages in one sorted pass (M0.14, M0.15).
//!
//! # Steps, and why a crash between any two is safe
//! 1. *Freeze.* The active changes, all at log positions in `(applied, target]`, become the frozen ones. Nothing on
//!    disk has changed.
//! 2. *Header: target, progress 0.* After a crash no page has the target yet: the log is replayed for all pages from
//!    `applied`.
//! 3. For each batch of pairs: *journal, sync.* A crash leaves a torn or an intact journal. A torn one is ignored: the
//!    pages in place are intact, because the previous batch's pages were synced before this journal was begun. An
//!    opening writes an intact one in place.
//! 4. *Pages in place, sync.* A crash tears pages at any sector. The journal has them all, and an opening repeats it.
//!    That is harmless, since it holds whole pages.
//! 5. *Header: progress, sync.* Now the journal is not needed, and the next batch may overwrite it. Until then the
//!    journal's own progress counts. So at every instant the greater of both says exactly which pages are at the target
//!    and which at `applied`. Replay applies each change to a page once.
//! 6. *Header: applied = target, no target.* All pages are synced. The log before the target is no longer needed.
//! 7. The sweep drops the frozen changes from memory. Lookups in between know by a page's own position whether it has
//!    them.
//!
//! Between two batches, pages may move to the next generation (`grow.rs`). Each step does one batch or one such move.
//!
//! An error at any step leaves the frozen changes where they are. The next sweep continues with the same target after
//! it repeats the journal. If a replayed log ends before the target of an interrupted sweep, no sweep runs until the
//! log reaches it.

use super::header::Header;
use super::journal::{Journal, MAX_JOURNAL_PAGES, new_journal};
use super::merge::{Merged, Pair, SortedChanges, merge};
use super::page::{PAGE_BYTES, PairLayout, encode_page, page_capacity};
use super::pages::{PageFile, Shape};
use super::partition::{Files, Frozen, Partition, Work};
use super::{filter::PageRecord, grow};
use crate::{IndexError, Result};
use onefold_ground::Access;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pairs per batch: all their pages fit into a journal. In tests there are few, so that small partitions take many
/// batches. Their number is odd, so that growth moves pages that the last batch wrote.
const BATCH_PAIRS: usize = if cfg!(test) { 43 } else { MAX_JOURNAL_PAGES / 2 };
/// Most pages per read.
const RUN_PAGES: usize = 128;
/// A read continues across unchanged pairs up to this distance instead of starting another read.
const GAP_PAGES: u32 = 8;
/// A sweep saves the filter at its end if it wrote at least one page in this many.
const SAVE_FILTER_SHARE: u64 = 8;

/// The work of a sweep.
enum Task {
    Nothing,
    /// No changes: only the position moves.
    Advance(u64),
    Merge(Frozen, Arc<PageFile>),
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepped {
    /// There was nothing to do.
    Nothing,
    /// The sweep has not ended.
    UnderWay,
    /// The sweep has ended.
    Ended,
}

impl Partition {
    /// Does a bounded piece of the current sweep, or starts one. It merges some pages, or moves some if the partition
    /// must grow first.
    pub fn step(&self) -> Result<Stepped> {
        if self.access == Access::Read {
            return Err(IndexError::ReadOnly { path: self.ground.describe(&self.directory) });
        }
        let mut files = self.files.lock();
        if files.is_removed {
            return Ok(Stepped::Nothing);
        }
        let result = self.step_files(&mut files);
        files.has_failed = result.is_err();
        self.failed.store(result.is_err(), Ordering::Relaxed);
        result
    }

    fn step_files(&self, files: &mut Files) -> Result<Stepped> {
        if files.has_failed {
            files.work = None;
            self.recover(files)?;
        }
        match self.freeze() {
            Task::Nothing => Ok(Stepped::Nothing),
            Task::Advance(position) => {
                let header = files.header.current();
                files.header.write(Header { applied: position, ..header })?;
                self.state.write().applied = position;
                Ok(Stepped::Ended)
            }
            Task::Merge(frozen, pages) => {
                let mut work = match files.work.take() {
                    Some(work) if work.target == frozen.target => work,
                    _ => work_of(&frozen, &pages, &files.header.current()),
                };
                let has_ended = self.merge_step(files, &mut work, &frozen, &pages)?;
                if !has_ended {
                    files.work = Some(work);
                    return Ok(Stepped::UnderWay);
                }
                self.counters.sweeps.fetch_add(1, Ordering::Relaxed);
                if work.written * SAVE_FILTER_SHARE >= pages.shape.pages() {
                    // The filter only saves reads after a crash, so failing to save it now does not fail the sweep.
                    if let Err(error) = self.save_filter(files) {
                        tracing::warn!(%error, "the filter of a chunk-index partition could not be saved; after a crash, look-ups read \
                            more pages");
                    }
                }
                Ok(Stepped::Ended)
            }
        }
    }

    fn freeze(&self) -> Task {
        let mut state = self.state.write();
        if state.frozen.is_none() {
            if state.active.is_empty() {
                return if state.last > state.applied { Task::Advance(state.last) } else { Task::Nothing };
            }
            let changes = Arc::new(std::mem::take(&mut state.active));
            state.frozen = Some(Frozen { changes, target: state.last, progress: 0 });
            self.count_memory(&state);
        }
        match &state.frozen {
            Some(frozen) if state.last >= frozen.target => Task::Merge(frozen.clone(), state.pages.clone()),
            _ => Task::Nothing,
        }
    }

    /// Moves some pages, or brings some to the target. Returns whether all pages are there.
    fn merge_step(&self, files: &mut Files, work: &mut Work, frozen: &Frozen, pages: &Arc<PageFile>) -> Result<bool> {
        let shape = pages.shape;
        let most_entries = files.header.current().entries + frozen.changes.len() as u64;
        if grow::is_due(work.expected_entries, &shape) {
            match self.grow(files, most_entries) {
                // The pages may have room all the same: a pair without room says so below. But once the last pages have
                // begun to move, their journal is the only copy of them. It must be repeated before anything else is
                // written.
                Err(error) if error.is_full() && !files.header.is_in_doubt() && self.state.read().pages.shape == shape => {}
                grown => return grown.map(|()| false),
            }
        }
        let header = files.header.current();
        if header.target != frozen.target {
            files.header.write(Header { target: frozen.target, progress: 0, ..header })?;
        }
        let header = files.header.current();
        let changes = SortedChanges::ordered(&frozen.changes, work.order.clone());
        let mut at = changes.first_at(&shape, header.progress);
        if at < changes.len() {
            let mut batch = Batch::new(&shape, frozen.target);
            let pairs = next_pairs(&changes, pages, at);
            let first = at;
            at = pairs.last().map_or(changes.len(), |(_, range)| range.end);
            let Some(merged) = batch.fill(&pairs, &changes, pages, header.applied)? else {
                // Until this doubling has ended, no step needs to look for room in vain.
                work.expected_entries = work.expected_entries.max(grow::more_than_fit(&shape));
                return self.grow(files, most_entries).map(|()| false);
            };
            let progress = if at < changes.len() { shape.home(&changes.get(at).0) & !1 } else { shape.end() as u32 };
            batch.journal.head.progress = u64::from(progress);
            batch.journal.head.added_entries = merged.balance();
            let entries = header.entries.saturating_add_signed(i64::from(merged.balance()));
            files.journal.write(&mut batch.journal)?;
            pages.write_in_place(&batch.journal)?;
            pages.filter.set(&batch.records);
            files.header.write(Header { progress: u64::from(progress), entries, ..files.header.current() })?;
            {
                let mut state = self.state.write();
                state.entries = entries;
                if let Some(frozen) = &mut state.frozen {
                    frozen.progress = progress;
                }
            }
            work.written += batch.journal.len() as u64;
            self.counters.count_merge(merged, (at - first) as u64, batch.journal.len() as u64);
            if at < changes.len() {
                return Ok(false);
            }
        }
        let header = files.header.current();
        files.header.write(Header { applied: frozen.target, target: 0, progress: 0, ..header })?;
        let merged = {
            let mut state = self.state.write();
            state.applied = frozen.target;
            let merged = state.frozen.take();
            self.count_memory(&state);
            merged
        };
        // It may be large. Free it when nobody waits for it.
        drop(merged);
        Ok(true)
    }
}

/// Returns a sweep that begins with these changes, or continues where the header says.
fn work_of(frozen: &Frozen, pages: &PageFile, header: &Header) -> Work {
    let changes = SortedChanges::of(&frozen.changes);
    let at = changes.first_at(&pages.shape, if header.target == frozen.target { header.progress } else { 0 });
    // If its page may hold the chunk, the change most likely belongs to an existing entry.
    let is_new = |at: &usize| {
        let fingerprint = &changes.get(*at).0;
        let answer = pages.filter.ask(pages.shape.home(fingerprint), fingerprint);
        !answer.home && !answer.neighbour
    };
    let expected_entries = header.entries + (at..changes.len()).filter(is_new).count() as u64;
    Work { target: frozen.target, order: changes.order(), expected_entries, written: 0 }
}

/// Returns the pairs of the next batch: left page and changes.
fn next_pairs(changes: &SortedChanges<'_>, pages: &PageFile, mut at: usize) -> Vec<(u32, Range<usize>)> {
    let mut pairs = Vec::new();
    while at < changes.len() && pairs.len() < BATCH_PAIRS {
        let left = pages.shape.home(&changes.get(at).0) & !1;
        let end = changes.end_of(&pages.shape, at, left + 1);
        pairs.push((left, at..end));
        at = end;
    }
    pairs
}

/// The pages of a batch while it is built, in buffers that all batches of a sweep share.
struct Batch {
    journal: Journal,
    records: Vec<(u32, PageRecord)>,
    pair: Pair,
    merged: Vec<super::page::Entry>,
    bytes: Vec<u8>,
}

impl Batch {
    fn new(shape: &Shape, target: u64) -> Batch {
        let journal = new_journal(shape.generation, shape.moved_from, target);
        Batch { journal, records: Vec::new(), pair: Pair::default(), merged: Vec::new(), bytes: Vec::new() }
    }

    /// Reads the pairs and merges their changes into the journal. `None`: a pair has no room.
    fn fill(
        &mut self,
        pairs: &[(u32, Range<usize>)],
        changes: &SortedChanges<'_>,
        pages: &PageFile,
        applied: u64,
    ) -> Result<Option<Merged>> {
        self.journal.clear();
        self.journal.head.added_entries = 0;
        self.records.clear();
        let runs: Vec<_> = runs(pairs).collect();
        if runs.len() > 1 {
            for run in &runs {
                let (first, length) = extent(&pairs[run.clone()]);
                pages.read_ahead(first, length);
            }
        }
        let mut total = Merged::default();
        for run in runs {
            let (first, length) = extent(&pairs[run.clone()]);
            let mut bytes = std::mem::take(&mut self.bytes);
            pages.read_run(first, length, &mut bytes)?;
            for (left, range) in &pairs[run] {
                let start = (left - first) as usize * PAGE_BYTES;
                self.pair.read(pages, *left, &bytes[start..start + 2 * PAGE_BYTES], applied, self.journal.head.target)?;
                match self.merge_pair(*left, changes, range.clone(), pages) {
                    Some(merged) => total.add(merged),
                    None => return Ok(None),
                }
            }
            self.bytes = bytes;
        }
        Ok(Some(total))
    }

    fn merge_pair(&mut self, left: u32, changes: &SortedChanges<'_>, range: Range<usize>, pages: &PageFile) -> Option<Merged> {
        let shape = pages.shape;
        let middle = changes.end_of(&shape, range.start, left);
        let mut halves = [range.start..middle, middle..range.end];
        for (half, is_merged) in halves.iter_mut().zip(self.pair.is_merged) {
            if is_merged {
                half.end = half.start;
            }
        }
        let is_touched = halves.clone().map(|half| !half.is_empty());
        let [to_left, to_right] = halves;
        self.merged.clear();
        let merged = merge(&self.pair.entries, changes.range(to_left).chain(changes.range(to_right)), &mut self.merged);
        let left_entries = self.merged.partition_point(|entry| shape.home(&entry.fingerprint) <= left);
        let layout = PairLayout::of(left_entries, self.merged.len() - left_entries, page_capacity(shape.digest_bytes))?;
        // If one page spills, both change together: then a lookup that reads both sees one instant.
        let together = is_touched.contains(&true) && (self.pair.spills || layout.left_flags | layout.right_flags != 0);
        let (for_left, for_right) = self.merged.split_at(layout.left_entries);
        let sides = [(left, layout.left_flags, for_left), (left + 1, layout.right_flags, for_right)];
        for ((page, flags, entries), is_touched) in sides.into_iter().zip(is_touched) {
            if is_touched || together {
                let target = self.journal.head.target;
                self.journal.push(page, |out| encode_page(out, shape.place(page), target, flags, entries));
                self.records.push((page, PageRecord::of_entries(entries, flags)));
            }
        }
        Some(merged)
    }
}

/// Groups pairs into ranges that are read at once.
fn runs(pairs: &[(u32, Range<usize>)]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = pairs.get(start)?.0;
        let mut end = start + 1;
        while end < pairs.len() && pairs[end].0 - pairs[end - 1].0 <= GAP_PAGES && (pairs[end].0 - first) as usize + 2 <= RUN_PAGES {
            end += 1;
        }
        let run = start..end;
        start = end;
        Some(run)
    })
}

/// Returns the first page and the number of pages, from the first to the last pair.
fn extent(pairs: &[(u32, Range<usize>)]) -> (u32, usize) {
    let (first, last) = (pairs[0].0, pairs[pairs.len() - 1].0);
    (first, (last - first) as usize + 2)
}
