//! The bytes of one simulated file: what a reader sees, what is durable, and the changes between the two.
//!
//! Contents are maps of shared pages, so that syncing and restarting cost what was changed, not what is there: an allocated
//! segment of 64 MiB is one number.

use super::CrashPolicy;
use super::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What the device writes at once: a crash leaves a sector old or new, never mixed.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The unit of memory and of the capacity.
pub(super) const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// A set of page numbers, as disjoint ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub(super) struct PageSet {
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl PageSet {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn overlap(&self, pages: &Range<u64>) -> u64 {
        self.ranges
            .range(..pages.end)
            .rev()
            .take_while(|(_, end)| **end > pages.start)
            .map(|(start, end)| (*end).min(pages.end) - (*start).max(pages.start))
            .sum()
    }

    /// How many of `pages` are not in the set.
    fn missing(&self, pages: &Range<u64>) -> u64 {
        pages.end - pages.start - self.overlap(pages)
    }

    /// Cuts `pages` short so that at most `free` of them are missing.
    fn fitting(&self, pages: Range<u64>, free: u64) -> Range<u64> {
        if self.missing(&pages) <= free {
            return pages;
        }
        let mut left = free;
        let end = pages.clone().find(|page| {
            let is_new = self.missing(&(*page..*page + 1)) > 0;
            let is_over = is_new && left == 0;
            left -= u64::from(is_new && !is_over);
            is_over
        });
        pages.start..end.unwrap_or(pages.end)
    }

    fn insert(&mut self, mut pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        while let Some((start, end)) = self.ranges.range(..=pages.end).next_back().map(|(start, end)| (*start, *end)) {
            if end < pages.start {
                break;
            }
            self.ranges.remove(&start);
            self.count -= end - start;
            pages = pages.start.min(start)..pages.end.max(end);
        }
        self.count += pages.end - pages.start;
        self.ranges.insert(pages.start, pages.end);
    }

    /// Removes all pages from `first` on.
    fn cut(&mut self, first: u64) {
        while let Some((start, end)) = self.ranges.last_key_value().map(|(start, end)| (*start, *end)) {
            if end <= first {
                break;
            }
            self.ranges.remove(&start);
            self.count -= end - start;
            if start < first {
                self.insert(start..first);
            }
        }
    }
}

fn pages_of(offset: u64, length: u64) -> Range<u64> {
    offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES)
}

/// The bytes of a file at one moment. A page that is not there is zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    length: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    /// Pages that take room on the device.
    room: PageSet,
}

impl Content {
    /// The part of `offset .. offset + length` that is in one page, for each page: page number, place in it, place in the range.
    fn split(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
        pages_of(offset, length).map(move |page| {
            let start = offset.max(page * PAGE_BYTES);
            let end = (offset + length).min((page + 1) * PAGE_BYTES);
            let place = |at: u64, origin: u64| (at - origin) as usize;
            (page, place(start, page * PAGE_BYTES)..place(end, page * PAGE_BYTES), place(start, offset)..place(end, offset))
        })
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) {
        for (page, inside, outside) in Content::split(offset, buffer.len() as u64) {
            match self.pages.get(&page) {
                Some(bytes) => buffer[outside].copy_from_slice(&bytes[inside]),
                None => buffer[outside].fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        for (page, inside, outside) in Content::split(offset, data.len() as u64) {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(bytes)[inside].copy_from_slice(&data[outside]);
        }
        self.room.insert(pages_of(offset, data.len() as u64));
        self.length = self.length.max(offset + data.len() as u64);
    }

    fn set_len(&mut self, length: u64) {
        if length < self.length {
            self.pages.split_off(&length.div_ceil(PAGE_BYTES));
            self.room.cut(length.div_ceil(PAGE_BYTES));
            if let Some(bytes) = self.pages.get_mut(&(length / PAGE_BYTES)) {
                Arc::make_mut(bytes)[(length % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.length = length;
    }

    fn allocate(&mut self, offset: u64, length: u64) {
        self.room.insert(pages_of(offset, length));
        self.length = self.length.max(offset + length);
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, data } => self.write(*offset, data),
            Change::SetLen { length } => self.set_len(*length),
            Change::Allocate { offset, length } => self.allocate(*offset, *length),
        }
    }

    fn flip(&mut self, offset: u64, xor: u8) {
        if let Some(bytes) = self.pages.get_mut(&(offset / PAGE_BYTES)) {
            Arc::make_mut(bytes)[(offset % PAGE_BYTES) as usize] ^= xor;
        } else {
            self.write(offset, &[xor]);
        }
    }
}

/// A change of contents that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    SetLen { length: u64 },
    Allocate { offset: u64, length: u64 },
}

/// One file: contents and what happened to them since the last sync.
#[derive(Debug, Default)]
pub(super) struct Inode {
    durable: Content,
    current: Content,
    pending: Vec<Change>,
    /// Whether a name leads here; without one, the bytes are not counted as used.
    pub(super) is_named: bool,
    /// Whether the device cannot read it.
    pub(super) is_unreadable: bool,
}

impl Inode {
    /// A file whose content is durable.
    pub(super) fn with(content: Content) -> Inode {
        Inode { durable: content.clone(), current: content, pending: Vec::new(), is_named: true, is_unreadable: false }
    }

    pub(super) fn length(&self) -> u64 {
        self.current.length
    }

    /// Pages that take room.
    pub(super) fn room(&self) -> u64 {
        self.current.room.count()
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let is_inside = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.current.length);
        if is_inside {
            self.current.read(offset, buffer);
        }
        is_inside
    }

    /// Writes as much as fits into `free` more pages; returns how many bytes that was.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], free: u64) -> usize {
        let fits = self.fits(offset, data.len() as u64, free) as usize;
        if fits > 0 {
            self.change(Change::Write { offset, data: data[..fits].to_vec() });
        }
        fits
    }

    /// Reserves as much as fits into `free` more pages; returns how many bytes that was.
    pub(super) fn allocate(&mut self, offset: u64, length: u64, free: u64) -> u64 {
        let fits = self.fits(offset, length, free);
        if fits > 0 {
            self.change(Change::Allocate { offset, length: fits });
        }
        fits
    }

    pub(super) fn set_len(&mut self, length: u64) {
        self.change(Change::SetLen { length });
    }

    fn fits(&self, offset: u64, length: u64, free: u64) -> u64 {
        let fitting = self.current.room.fitting(pages_of(offset, length), free);
        (fitting.end * PAGE_BYTES).clamp(offset, offset + length) - offset
    }

    fn change(&mut self, change: Change) {
        self.current.apply(&change);
        self.pending.push(change);
    }

    /// Makes everything durable. Whole pages are written, as a page cache does.
    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write { offset, data } => {
                    for page in pages_of(offset, data.len() as u64) {
                        self.share(page);
                    }
                }
                // What was cut off may have been extended and written again since: the current page decides.
                Change::SetLen { length } => {
                    self.durable.pages.split_off(&length.div_ceil(PAGE_BYTES));
                    self.share(length / PAGE_BYTES);
                }
                Change::Allocate { .. } => {}
            }
        }
        self.durable.length = self.current.length;
        self.durable.room = self.current.room.clone();
    }

    fn share(&mut self, page: u64) {
        match self.current.pages.get(&page) {
            Some(bytes) => self.durable.pages.insert(page, Arc::clone(bytes)),
            None => self.durable.pages.remove(&page),
        };
    }

    /// A sync that failed: some of the changes are on the device, the others never will be, although readers see them until the
    /// restart and later syncs succeed. That is what Linux file systems do.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        self.durable = self.survivor(CrashPolicy::Random { seed: random.next() }, random);
        self.pending.clear();
    }

    /// The content after a crash.
    pub(super) fn survivor(&self, policy: CrashPolicy, random: &mut Random) -> Content {
        let mut content = self.durable.clone();
        match policy {
            CrashPolicy::DropAll => {}
            CrashPolicy::KeepAll => self.pending.iter().for_each(|change| content.apply(change)),
            CrashPolicy::Random { .. } => self.keep_some(&mut content, random),
        }
        content
    }

    /// Each change is kept, dropped or torn. A sector that lost a write takes no later one that covers only a part of it: it would
    /// be a state that the page cache never had.
    fn keep_some(&self, content: &mut Content, random: &mut Random) {
        let mut lost = BTreeSet::new();
        for change in &self.pending {
            let (keep, torn) = (random.below(3) > 0, random.below(3) == 0);
            match change {
                Change::Write { offset, data } => {
                    let end = offset + data.len() as u64;
                    for sector in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
                        let (first, last) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
                        let (from, to) = (first.max(*offset), last.min(end));
                        let is_whole = to - from == SECTOR_BYTES;
                        let keep = if torn { random.below(2) == 0 } else { keep };
                        if keep && (is_whole || !lost.contains(&sector)) {
                            lost.remove(&sector);
                            content.write(from, &data[(from - offset) as usize..(to - offset) as usize]);
                        } else {
                            lost.insert(sector);
                        }
                    }
                }
                // A change of length or room is one record of the file system's journal.
                Change::SetLen { .. } | Change::Allocate { .. } if keep => content.apply(change),
                Change::SetLen { .. } | Change::Allocate { .. } => {}
            }
        }
    }

    /// Damages a byte, now and after any crash. False beyond the end.
    pub(super) fn flip(&mut self, offset: u64, xor: u8) -> bool {
        let is_inside = offset < self.current.length;
        if is_inside {
            self.current.flip(offset, xor);
            if offset < self.durable.length {
                self.durable.flip(offset, xor);
            }
        }
        is_inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
        Allocate(u64, u64),
        Sync,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..20_000u64, proptest::collection::vec(1u8.., 0..6_000)).prop_map(|(offset, data)| Step::Write(offset, data)),
            1 => (0..26_000u64).prop_map(Step::SetLen),
            1 => (0..20_000u64, 0..9_000u64).prop_map(|(offset, length)| Step::Allocate(offset, length)),
            2 => Just(Step::Sync),
        ]
    }

    fn bytes(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.length as usize];
        content.read(0, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn contents_are_those_of_a_vector_and_syncs_keep_them(steps in proptest::collection::vec(step(), 1..30), seed: u64) {
            let (mut inode, mut model, mut synced) = (Inode::default(), Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Write(offset, data) => {
                        let end = offset as usize + data.len();
                        if !data.is_empty() {
                            model.resize(model.len().max(end), 0);
                            model[offset as usize..end].copy_from_slice(&data);
                        }
                        prop_assert_eq!(inode.write(offset, &data, u64::MAX), data.len());
                    }
                    Step::SetLen(length) => {
                        model.resize(length as usize, 0);
                        inode.set_len(length);
                    }
                    Step::Allocate(offset, length) => {
                        if length > 0 {
                            model.resize(model.len().max((offset + length) as usize), 0);
                        }
                        inode.allocate(offset, length, u64::MAX);
                    }
                    Step::Sync => {
                        inode.sync();
                        synced = model.clone();
                    }
                }
                let mut random = Random::new(seed);
                prop_assert_eq!(bytes(&inode.current), &model[..]);
                prop_assert_eq!(bytes(&inode.survivor(CrashPolicy::DropAll, &mut random)), &synced[..]);
                prop_assert_eq!(bytes(&inode.survivor(CrashPolicy::KeepAll, &mut random)), &model[..]);
                inode.survivor(CrashPolicy::Random { seed }, &mut random);
            }
        }

        #[test]
        fn a_page_set_counts_each_page_once(inserts in proptest::collection::vec((0..60u64, 0..9u64), 0..20), cut in 0..70u64, free in 0..9u64) {
            let (mut set, mut model) = (PageSet::default(), BTreeSet::new());
            for (start, length) in inserts {
                set.insert(start..start + length);
                model.extend(start..start + length);
                prop_assert_eq!(set.count(), model.len() as u64);
            }
            set.cut(cut);
            model.retain(|page| *page < cut);
            prop_assert_eq!(set.count(), model.len() as u64);
            let fitting = set.fitting(10..40, free);
            prop_assert_eq!(set.missing(&fitting), fitting.clone().filter(|page| !model.contains(page)).count() as u64);
            prop_assert!(set.missing(&fitting) <= free);
            prop_assert!(fitting.end == 40 || set.missing(&(10..fitting.end + 1)) == free + 1);
        }
    }

    #[test]
    fn a_torn_write_leaves_each_sector_old_or_new() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 8192], u64::MAX);
        inode.sync();
        inode.write(100, &[2; 5000], u64::MAX);
        let mut mixtures = BTreeSet::new();
        for seed in 0..200 {
            let content = bytes(&inode.survivor(CrashPolicy::Random { seed }, &mut Random::new(seed)));
            let new: Vec<bool> = content.chunks(512).map(|sector| sector.contains(&2)).collect();
            for (sector, is_new) in content.chunks(512).zip(&new) {
                assert!(!is_new || sector.iter().filter(|byte| **byte == 1).count() < 512);
            }
            assert!(content[..100].iter().chain(&content[5100..]).all(|byte| *byte == 1));
            mixtures.insert(new);
        }
        assert!(mixtures.len() > 20, "old, new and many mixtures: {}", mixtures.len());
    }

    #[test]
    fn after_a_failed_sync_a_later_one_does_not_bring_the_data_back() {
        let lost = (0..50).any(|seed| {
            let mut inode = Inode::default();
            inode.write(0, &[7; 512], u64::MAX);
            inode.fail_sync(&mut Random::new(seed));
            inode.sync();
            assert_eq!(bytes(&inode.current), [7; 512], "the page cache still shows it");
            bytes(&inode.survivor(CrashPolicy::KeepAll, &mut Random::new(0))) != [7; 512]
        });
        assert!(lost);
    }
}
