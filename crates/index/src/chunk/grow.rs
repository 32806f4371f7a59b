//! Growth by doubling (M2.3): page `i` goes to `2i` and `2i + 1` of the next generation, by the true fingerprint.
//!
//! Growth is a sweep into a new file: old pages and frozen changes are merged into it in one sequential pass, it is synced with its name,
//! and then one header says that it counts, applied up to the target. Before that header the old generation counts and the new file is
//! a leftover that the next opening removes; after it the old one is. Lookups go on in the old file, which is not changed, until the
//! header is durable. Several doublings are made in one pass where they are needed.

use super::filter::PageRecord;
use super::header::{Header, MAX_PAGE_BITS};
use super::merge::{Merged, Pair, SortedChanges, merge};
use super::page::{Entry, PAGE_BYTES, PairLayout, encode_page, page_capacity};
use super::pages::{self, PageFile, Shape};
use super::partition::{Files, Frozen, Partition};
use crate::{IndexError, Result};
use onefold_ground::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Fill of all pages beyond which a partition grows.
const FILL_LIMIT: f64 = 0.88;
/// Doublings beyond what evenly spread fingerprints would need, after which they are not fingerprints.
const SKEW_LIMIT_BITS: u32 = 6;
/// Bytes read and written at once.
const STEP_BYTES: usize = 1 << 20;

/// Whether so many entries fit into `2^page_bits` pages, each pair of them. Fingerprints spread evenly: the fullest of many pairs is some
/// standard deviations above the mean.
pub(super) fn fits(entries: u64, page_bits: u32, capacity: usize) -> bool {
    let pairs = (1u64 << (page_bits - 1)) as f64;
    let mean = entries as f64 / pairs;
    let room = 2.0 * capacity as f64;
    let deviations = (2.0 * pairs.max(2.0).ln()).sqrt();
    mean <= FILL_LIMIT * room && mean + deviations * mean.sqrt() <= room
}

/// Moves the partition with its frozen changes to a generation that is large enough.
pub(super) fn grow(
    partition: &Partition,
    files: &mut Files,
    frozen: &Frozen,
    changes: &SortedChanges<'_>,
    old: &Arc<PageFile>,
    expected_entries: u64,
) -> Result<()> {
    let header = files.header.current();
    let capacity = page_capacity(old.shape.digest_bytes);
    let needed_bits = |entries| (1..=MAX_PAGE_BITS).find(|bits| fits(entries, *bits, capacity)).unwrap_or(MAX_PAGE_BITS);
    // Changes of pages that the filter does not know yet may be new chunks or not: when more are than expected, a pair runs full early in
    // the pass and the next size is tried. If all are new and even then far more pages do not part them, they are no digests.
    let most_entries = header.entries + changes.len() as u64;
    let most_bits = (needed_bits(most_entries) + SKEW_LIMIT_BITS).min(MAX_PAGE_BITS);
    let mut page_bits = needed_bits(expected_entries).max(old.shape.page_bits + 1);
    let generation = free_generation(partition, header.generation)?;
    let path = format!("{}/{}", partition.directory, pages::file_name(generation));
    loop {
        if page_bits > most_bits {
            return Err(IndexError::Skewed {
                path: partition.ground.describe(&partition.directory),
                entries: most_entries,
                pages: old.shape.pages(),
            });
        }
        let shape = Shape { generation, page_bits, ..old.shape };
        let rewritten = rewrite(partition, &path, frozen, changes, old, shape, header.applied);
        if !matches!(rewritten, Ok(Some(_))) {
            // No header names it: its room is given back.
            let _ = partition.ground.remove(&path);
        }
        let Some((pages, merged)) = rewritten? else {
            page_bits += 1;
            continue;
        };
        // When this fails the header may yet be on the device: the file stays, and the next try takes another name.
        files.header.write(Header {
            generation: shape.generation,
            page_bits,
            applied: frozen.target,
            entries: merged.entries,
            target: 0,
            progress: 0,
            ..header
        })?;
        {
            let mut state = partition.state.write();
            state.pages = Arc::new(pages);
            state.applied = frozen.target;
            state.entries = merged.entries;
            state.frozen = None;
            partition.note_load(&state);
        }
        partition.counters.growths.fetch_add(1, Ordering::Relaxed);
        partition.counters.count_merge(merged.merged, shape.pages());
        // A file that cannot be removed now is removed at the next opening.
        if let Err(error) = pages::remove_others(partition.ground.as_ref(), &partition.directory, shape.generation) {
            tracing::warn!(%error, "an old generation of a chunk-index partition was not removed");
        }
        return Ok(());
    }
}

/// The next generation whose name is free.
fn free_generation(partition: &Partition, after: u32) -> Result<u32> {
    let mut generation = after.wrapping_add(1);
    while partition.ground.exists(&format!("{}/{}", partition.directory, pages::file_name(generation)))? {
        generation = generation.wrapping_add(1);
    }
    Ok(generation)
}

/// What a rewrite made.
struct Rewritten {
    entries: u64,
    merged: Merged,
}

/// Writes the pages of `shape`, synced with their name. `None`: a pair has no room.
fn rewrite(
    partition: &Partition,
    path: &str,
    frozen: &Frozen,
    changes: &SortedChanges<'_>,
    old: &PageFile,
    shape: Shape,
    applied: u64,
) -> Result<Option<(PageFile, Rewritten)>> {
    let ground = partition.ground.as_ref();
    let file = ground.create(path)?;
    // A full device says so here, before the work. Without growing, nothing that was removed could be noted either.
    file.allocate_from_reserve(0, shape.pages() * PAGE_BYTES as u64)?;
    let new = PageFile::new(file.clone(), ground.describe(path), shape, partition.memory, partition.counters.clone());
    let mut writer = Writer {
        pages: &new,
        file: &file,
        target: frozen.target,
        left: 0,
        pair: Vec::new(),
        out: Vec::new(),
        offset: 0,
        records: Vec::new(),
    };

    let step_pages = (STEP_BYTES / PAGE_BYTES).min(old.shape.pages() as usize);
    let (mut bytes, mut pair, mut entries) = (Vec::new(), Pair::default(), Vec::new());
    let mut made = Rewritten { entries: 0, merged: Merged::default() };
    let mut at = 0;
    for first in (0..old.shape.pages()).step_by(step_pages) {
        old.read_run(first as u32, step_pages, &mut bytes)?;
        for (number, both) in bytes.chunks_exact(2 * PAGE_BYTES).enumerate() {
            let left = first as u32 + 2 * number as u32;
            pair.read(old, left, both, applied, frozen.target)?;
            let middle = changes.end_of(&old.shape, at, left);
            let end = changes.end_of(&old.shape, middle, left + 1);
            // An interrupted sweep has merged some pages already.
            let to_left = if pair.is_merged[0] { at..at } else { at..middle };
            let to_right = if pair.is_merged[1] { middle..middle } else { middle..end };
            at = end;
            entries.clear();
            made.merged.add(merge(&pair.entries, changes.range(to_left).chain(changes.range(to_right)), &mut entries));
            made.entries += entries.len() as u64;
            for entry in &entries {
                if !writer.push(*entry)? {
                    return Ok(None);
                }
            }
        }
    }
    if !writer.finish()? {
        return Ok(None);
    }
    file.sync()?;
    ground.sync_directory(&partition.directory)?;
    Ok(Some((new, made)))
}

/// Writes ascending entries as pages, one after the other.
struct Writer<'a> {
    pages: &'a PageFile,
    file: &'a Arc<dyn File>,
    target: u64,
    /// Left page of the pair being filled.
    left: u32,
    pair: Vec<Entry>,
    out: Vec<u8>,
    offset: u64,
    records: Vec<(u32, PageRecord)>,
}

impl Writer<'_> {
    /// Takes an entry; false: its pair has no room.
    fn push(&mut self, entry: Entry) -> Result<bool> {
        let left = self.pages.shape.home(&entry.fingerprint) & !1;
        while self.left < left {
            if !self.close_pair()? {
                return Ok(false);
            }
        }
        self.pair.push(entry);
        Ok(true)
    }

    /// Writes what is left; false: a pair has no room.
    fn finish(mut self) -> Result<bool> {
        while u64::from(self.left) < self.pages.shape.pages() {
            if !self.close_pair()? {
                return Ok(false);
            }
        }
        self.write_out()?;
        Ok(true)
    }

    fn close_pair(&mut self) -> Result<bool> {
        let shape = self.pages.shape;
        let left_entries = self.pair.partition_point(|entry| shape.home(&entry.fingerprint) <= self.left);
        let Some(layout) = PairLayout::of(left_entries, self.pair.len() - left_entries, page_capacity(shape.digest_bytes)) else {
            return Ok(false);
        };
        let (for_left, for_right) = self.pair.split_at(layout.left_entries);
        for (page, flags, entries) in [(self.left, layout.left_flags, for_left), (self.left + 1, layout.right_flags, for_right)] {
            encode_page(&mut self.out, shape.place(page), self.target, flags, entries);
            self.records.push((page, PageRecord::of_entries(entries, flags)));
        }
        self.pair.clear();
        self.left += 2;
        if self.out.len() >= STEP_BYTES {
            self.write_out()?;
        }
        Ok(true)
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_at(self.offset, &self.out)?;
        self.pages.filter.set(&self.records);
        self.offset += self.out.len() as u64;
        self.out.clear();
        self.records.clear();
        Ok(())
    }
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
