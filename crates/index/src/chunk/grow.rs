//! Growth by doubling (M2.3): page `i` goes to `2i` and `2i + 1` of the next generation, by the true fingerprint.
//!
//! Pages move within their file, from the last to the first, a few in each *step*. Between steps, the pages from
//! [`Shape::moved_from`] on are of the next generation, at `2i` and `2i + 1`. The others are where they were. Lookups,
//! sweeps and replay find both by arithmetic, so a partition may stay half-grown for any time.
//!
//! Growth follows the entries: each sweep first moves as many pages as it must. So the last page has moved by the time
//! the entries no longer fit into half of the pages. Nothing waits for more than a step.
//!
//! # Why a crash at any time is safe
//! A step moves the pages `to..from`. By then all pages from `from` on have left the old generation. A step changes no
//! entry and no position.
//! * While `2 to >= from`, the new places `2 to..2 from` are no pages: no header, lookup or journal refers to them. The
//!   step writes and syncs them. Then one header says that the pages have moved. Before that header the old pages
//!   count, and they are unchanged. After it the new ones count.
//! * The last pages (`to` is 0) overwrite themselves. The step writes them into the journal and syncs it, then writes
//!   them in place and syncs them. Then the header says that the next generation is complete. Between the synced
//!   journal and that header, an opening repeats the journal. The journal fits that header only, since it names the
//!   generation and `moved_from`.
//! * The journal of a sweep names them too. So an opening does not repeat a journal from before a step over pages that
//!   have moved since.
//! * A header whose write failed may be on the device. [`HeaderFile::settle`](super::header::HeaderFile) overwrites it
//!   with the one before, ahead of everything else: nothing writes old pages while it is unknown whether they count.
//! * A page keeps its position when it moves (a pair that spills has one position), and the same header translates the
//!   sweep's progress. So replay applies to each page exactly what it lacks. The position of the partition, up to which
//!   the log is trimmed, does not change.
//!
//! # Why lookups are right meanwhile
//! A lookup takes the changes and the shape at one instant, and asks the filter at the same one. Later it reads a page
//! at its old place:
//! * Either the page is as it was. A sweep that wrote it since shows in its position.
//! * Or a page of the next generation has overwritten it, at least in part. Then the shape has changed, and the lookup
//!   starts again.
//!
//! In the last step, the shape changes under the lock that keeps readers from half-written pages.

use super::filter::PageRecord;
use super::header::{Header, MAX_PAGE_BITS};
use super::journal::{Journal, MAX_JOURNAL_PAGES, new_journal};
use super::merge::check_position;
use super::page::{Entry, PAGE_BYTES, PairLayout, encode_page, page_capacity};
use super::pages::{PageFile, Shape};
use super::partition::{Files, Partition, State, moved, records_of, shape_of};
use crate::{IndexError, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Average fill at which a partition grows.
const FILL_LIMIT: f64 = 0.88;
/// Growth starts when all but this fraction of that many entries are there.
const EARLY_PART: u64 = 8;
/// If this many doublings more than for evenly spread fingerprints do not suffice, the keys are no fingerprints.
const SKEW_LIMIT_BITS: u32 = 6;
/// Pages moved per step: as many as fill half a journal, or fewer. Few in tests, so that small partitions take many
/// steps.
const STEP_PAGES: u32 = if cfg!(test) { 4 } else { 256 };
const _: () = assert!(2 * STEP_PAGES as usize <= MAX_JOURNAL_PAGES);

/// Returns whether this many entries fit into `2^page_bits` pages, in each pair of them. Fingerprints spread evenly:
/// the fullest of many pairs is some standard deviations above the mean.
pub(super) fn fits(entries: u64, page_bits: u32, capacity: usize) -> bool {
    let pairs = (1u64 << (page_bits - 1)) as f64;
    let mean = entries as f64 / pairs;
    let room = 2.0 * capacity as f64;
    let deviations = (2.0 * pairs.max(2.0).ln()).sqrt();
    mean <= FILL_LIMIT * room && mean + deviations * mean.sqrt() <= room
}

/// Returns the most entries that fit into `2^page_bits` pages.
fn most_entries(page_bits: u32, capacity: usize) -> u64 {
    let (mut fit, mut too_many) = (0, (capacity as u64) << page_bits);
    while too_many - fit > 1 {
        let middle = fit + (too_many - fit) / 2;
        if fits(middle, page_bits, capacity) { fit = middle } else { too_many = middle }
    }
    fit
}

/// Returns a number of entries for which growth is due in any shape with this many pages.
pub(super) fn more_than_fit(shape: &Shape) -> u64 {
    most_entries(shape.page_bits, page_capacity(shape.digest_bytes)) + 1
}

/// Returns whether a step is due before this many entries are in pages.
pub(super) fn is_due(entries: u64, shape: &Shape) -> bool {
    if shape.page_bits >= MAX_PAGE_BITS {
        return false;
    }
    let most = most_entries(shape.page_bits, page_capacity(shape.digest_bytes));
    let pages = 1u64 << shape.page_bits;
    // Growth that takes a single step can wait.
    let early = if pages <= u64::from(STEP_PAGES) { 0 } else { most / EARLY_PART };
    let moved = pages - u64::from(shape.moved_from);
    entries > most || (entries.saturating_sub(most - early)) * pages > moved * early.max(1)
}

/// Returns the end of the step that moves the pages before `from`. It writes `2 * to .. 2 * from` without a journal, so
/// that range may hold no page that has not moved. The last step (0) uses the journal.
fn step_end(from: u32) -> u32 {
    match from.saturating_sub(STEP_PAGES) {
        0 => 0,
        to => to.max(from.div_ceil(2).next_multiple_of(2)),
    }
}

impl Partition {
    /// Moves some pages. `most_entries` bounds the entries that the partition will soon have.
    pub fn grow(&self, files: &mut Files, most_entries: u64) -> Result<()> {
        let (old, target) = {
            let state = self.state.read();
            (state.pages.clone(), state.frozen.as_ref().map_or(0, |frozen| frozen.target))
        };
        let (shape, header) = (old.shape, files.header.current());
        let capacity = page_capacity(shape.digest_bytes);
        let needed_bits = (1..MAX_PAGE_BITS).find(|bits| fits(most_entries, *bits, capacity)).unwrap_or(MAX_PAGE_BITS);
        if shape.page_bits >= (needed_bits + SKEW_LIMIT_BITS).min(MAX_PAGE_BITS) {
            let path = self.ground.describe(&self.directory);
            return Err(IndexError::Skewed { path, entries: most_entries, pages: shape.pages() });
        }
        let from = shape.moved_from;
        let to = step_end(from);
        let next = moved(&header, shape, to);
        let pages = Arc::new(old.reshaped(shape_of(&next, shape)));
        let mut journal = new_journal(shape.generation, from, 0);
        journal.head.is_growth = true;
        let mut records = Vec::with_capacity(2 * (from - to) as usize);
        split(&old, to..from, &pages.shape, (header.applied, target), |page, flags, position, entries| {
            journal.push(page, |out| encode_page(out, pages.shape.place(page), position, flags, entries));
            records.push((page, PageRecord::of_entries(entries, flags)));
        })?;
        if to == 0 {
            old.expect_journal(&journal)?;
            files.journal.write(&mut journal)?;
            return self.finish_growth(files, next, &journal);
        }
        old.expect_pages(pages.shape.end());
        for (first, bytes) in journal.runs() {
            old.write_moved(first, bytes)?;
        }
        // Nobody asks for these pages yet.
        old.filter.set(&records);
        files.header.write(next)?;
        self.reshape(&pages, &next);
        // Nobody asks for these pages any more.
        old.filter.forget(to..from);
        self.counters.growth_page_writes.fetch_add(records.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the last pages that move in place, from a durable journal.
    pub fn finish_growth(&self, files: &mut Files, next: Header, journal: &Journal) -> Result<()> {
        let old = self.state.read().pages.clone();
        let pages = Arc::new(old.reshaped(shape_of(&next, old.shape)));
        let records = records_of(journal, &pages)?;
        pages.move_in_place(journal, || {
            let mut state = self.state.write();
            pages.filter.set(&records);
            set_shape(&mut state, &pages, &next);
        })?;
        files.header.write(next)?;
        self.counters.growths.fetch_add(1, Ordering::Relaxed);
        self.counters.growth_page_writes.fetch_add(records.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn reshape(&self, pages: &Arc<PageFile>, header: &Header) {
        set_shape(&mut self.state.write(), pages, header);
    }
}

fn set_shape(state: &mut State, pages: &Arc<PageFile>, header: &Header) {
    state.pages = pages.clone();
    if header.target > 0
        && let Some(frozen) = &mut state.frozen
    {
        frozen.progress = header.progress as u32;
    }
}

/// Splits the pages `range` of `old` into pages of `shape`. Passes each on: number, flags, position, entries.
/// `positions` are those that the pages may have.
fn split(
    old: &PageFile,
    range: Range<u32>,
    shape: &Shape,
    positions: (u64, u64),
    mut each: impl FnMut(u32, u16, u64, &[Entry]),
) -> Result<()> {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    old.read_run(range.start, range.len(), &mut bytes)?;
    for (left, both) in range.step_by(2).zip(bytes.chunks_exact(2 * PAGE_BYTES)) {
        let (one, other) = both.split_at(PAGE_BYTES);
        let both = [old.decode(left, one)?, old.decode(left + 1, other)?];
        entries.clear();
        for (number, page) in (left..).zip(both) {
            check_position(&page, positions.0, positions.1).map_err(|damage| old.damaged(number, &damage))?;
            entries.extend(page.entries());
        }
        let mut rest: &[Entry] = &entries;
        for (number, page) in (left..).zip(both) {
            let new_left = 2 * number;
            // The pages of a whole pair have room for the entries of one page and its neighbour.
            let (own, others) = rest.split_at(rest.partition_point(|entry| shape.home(&entry.fingerprint) <= new_left + 1));
            let left_entries = own.partition_point(|entry| shape.home(&entry.fingerprint) <= new_left);
            let layout = PairLayout::of(left_entries, own.len() - left_entries, page_capacity(shape.digest_bytes));
            let layout = layout.expect("two pages have no more entries than two pages");
            let (for_left, for_right) = own.split_at(layout.left_entries);
            each(new_left, layout.left_flags, page.position(), for_left);
            each(new_left + 1, layout.right_flags, page.position(), for_right);
            rest = others;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m2_3_a_partition_grows_at_a_good_fill() {
        let capacity = page_capacity(20);
        for page_bits in 1..24 {
            let pages = 1u64 << page_bits;
            let most =
                (1..100).map(|percent| pages * capacity as u64 * percent / 100).filter(|entries| fits(*entries, page_bits, capacity));
            let fill = most.max().unwrap() as f64 / (pages * capacity as u64) as f64;
            assert!((0.68..=0.9).contains(&fill), "2^{page_bits} pages: {fill}");
        }
    }
}
