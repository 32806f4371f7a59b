//! The sweep: merging the changes of many log batches into the pages in one sorted pass (M0.14, M0.15).
//!
//! # Steps, and why a crash between any two is safe
//! 1. *Freeze.* The active changes, all of log positions in `(applied, target]`, become the frozen ones. Nothing on disk has changed.
//! 2. *Header: target, progress 0.* After a crash no page has the target yet: the log is replayed for all pages from `applied`.
//! 3. For each batch of pairs: *journal, sync.* A crash leaves a torn journal, which is ignored (pages in place are still whole, because
//!    those of the batch before were synced before this journal was begun), or a whole one, which is written in place at opening.
//! 4. *Pages in place, sync.* A crash tears pages at any sector; the journal has them all and is repeated at opening. Repeating it
//!    is harmless, it holds whole pages.
//! 5. *Header: progress, sync.* Now the journal is not needed and the next batch may overwrite it. Until then the journal's own progress
//!    counts. So at every instant the greater of both says exactly which pages are at the target and which at `applied`: replay applies each
//!    change to a page once.
//! 6. *Header: applied = target, no target.* All pages were synced. The log before the target is not needed any more.
//! 7. The frozen changes are dropped from memory. Lookups in between know by a page's own position whether it has them.
//!
//! An error at any step leaves the frozen changes where they are; the next sweep goes on with the same target, after repeating the journal.
//! When the log ends before the target of an interrupted sweep (it is being replayed), no sweep is made until it reaches it.

use super::header::Header;
use super::journal::{Journal, MAX_JOURNAL_PAGES};
use super::merge::{Merged, Pair, SortedChanges, merge};
use super::page::{PAGE_BYTES, PairLayout, encode_page, page_capacity};
use super::pages::PageFile;
use super::partition::{Files, Frozen, Partition, recover};
use super::{filter::PageRecord, grow};
use crate::{IndexError, Result};
use onefold_ground::Access;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Pairs of a batch: all their pages fit into a journal.
const BATCH_PAIRS: usize = MAX_JOURNAL_PAGES / 2;
/// Pages read at once at most.
const RUN_PAGES: usize = 128;
/// Pairs that do not change are read over up to this distance, rather than to begin another read.
const GAP_PAGES: u32 = 8;
/// The filter is saved at the end of a sweep that wrote at least one page in so many.
const SAVE_FILTER_SHARE: u64 = 8;

/// What a sweep has to do.
enum Task {
    Nothing,
    /// No changes: only the position moves.
    Advance(u64),
    Merge(Frozen, Arc<PageFile>),
}

impl Partition {
    /// Merges the changes so far into the pages; returns whether there was anything to do.
    pub fn sweep(&self) -> Result<bool> {
        if self.access == Access::Read {
            return Err(IndexError::ReadOnly { path: self.ground.describe(&self.directory) });
        }
        let mut files = self.files.lock();
        let result = self.sweep_files(&mut files);
        self.failed.store(result.is_err(), Ordering::Relaxed);
        result
    }

    fn sweep_files(&self, files: &mut Files) -> Result<bool> {
        match self.freeze() {
            Task::Nothing => Ok(false),
            Task::Advance(position) => {
                let header = files.header.current();
                files.header.write(Header { applied: position, ..header })?;
                self.state.write().applied = position;
                Ok(true)
            }
            Task::Merge(frozen, pages) => {
                if files.header.current().target == frozen.target {
                    recover(files, &pages)?;
                }
                let changes = SortedChanges::of(&frozen.changes);
                let written = self.merge_pages(files, &frozen, &changes, &pages)?;
                self.counters.sweeps.fetch_add(1, Ordering::Relaxed);
                match written {
                    Some(written) if written * SAVE_FILTER_SHARE < pages.shape.pages() => {}
                    // The filter only saves reads after a crash: that it cannot be saved now is no failure of the sweep.
                    _ => {
                        if let Err(error) = self.save_filter(files) {
                            tracing::warn!(%error, "the filter of a chunk-index partition was not saved");
                        }
                    }
                }
                Ok(true)
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
            self.note_load(&state);
        }
        match &state.frozen {
            Some(frozen) if state.last >= frozen.target => Task::Merge(frozen.clone(), state.pages.clone()),
            _ => Task::Nothing,
        }
    }

    /// Brings all pages to the target. Returns the number of pages written, `None` when the partition has grown.
    fn merge_pages(&self, files: &mut Files, frozen: &Frozen, changes: &SortedChanges<'_>, pages: &Arc<PageFile>) -> Result<Option<u64>> {
        let shape = pages.shape;
        let header = files.header.current();
        let mut at = changes.first_at(&shape, if header.target == frozen.target { header.progress } else { 0 });
        // A change whose page may hold the chunk is most likely to an entry that exists.
        let is_new = |at: &usize| {
            let fingerprint = &changes.get(*at).0;
            let answer = pages.filter.ask(shape.home(fingerprint), fingerprint);
            !answer.home && !answer.neighbour
        };
        let expected_entries = header.entries + (at..changes.len()).filter(is_new).count() as u64;
        if !grow::fits(expected_entries, shape.page_bits, page_capacity(shape.digest_bytes)) {
            match grow::grow(self, files, frozen, changes, pages, expected_entries) {
                // The pages may have room all the same: a pair that has none says so below.
                Err(error) if error.is_full() => {}
                grown => return grown.map(|()| None),
            }
        }
        if header.target != frozen.target {
            files.header.write(Header { target: frozen.target, progress: 0, ..header })?;
        }
        let mut batch = Batch::new(shape.generation, frozen.target);
        let mut written = 0;
        while at < changes.len() {
            let header = files.header.current();
            let pairs = next_pairs(changes, pages, at);
            at = pairs.last().map_or(changes.len(), |(_, range)| range.end);
            let Some(merged) = batch.fill(&pairs, changes, pages, header.applied)? else {
                grow::grow(self, files, frozen, changes, pages, expected_entries)?;
                return Ok(None);
            };
            let progress = if at < changes.len() { shape.home(&changes.get(at).0) & !1 } else { shape.pages() as u32 };
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
            written += batch.journal.len() as u64;
            self.counters.count_merge(merged, batch.journal.len() as u64);
        }
        let header = files.header.current();
        files.header.write(Header { applied: frozen.target, target: 0, progress: 0, ..header })?;
        let mut state = self.state.write();
        state.applied = frozen.target;
        state.frozen = None;
        self.note_load(&state);
        Ok(Some(written))
    }
}

/// The pairs of the next batch: left page and changes.
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

/// The pages of a batch while they are made, in buffers that serve all batches of a sweep.
struct Batch {
    journal: Journal,
    records: Vec<(u32, PageRecord)>,
    pair: Pair,
    merged: Vec<super::page::Entry>,
    bytes: Vec<u8>,
}

impl Batch {
    fn new(generation: u32, target: u64) -> Batch {
        let journal = Journal::new(generation, target);
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
        // Where one page spills, both change together: a lookup that reads both then sees one instant.
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

/// Ranges of pairs that are read at once.
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

/// First page and number of pages from the first to the last pair.
fn extent(pairs: &[(u32, Range<usize>)]) -> (u32, usize) {
    let (first, last) = (pairs[0].0, pairs[pairs.len() - 1].0);
    (first, (last - first) as usize + 2)
}
