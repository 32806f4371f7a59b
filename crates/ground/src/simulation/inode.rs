//! One simulated file: what a reader sees, what is durable, and the changes between the two.

use super::CrashPolicy;
use super::content::{FileBytes, PAGE_BYTES, SECTOR_BYTES, pages_of};
use super::random::Random;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A change of contents that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    SetLen { length: u64 },
    Allocate { offset: u64, length: u64 },
    PunchHole { offset: u64, length: u64 },
}

impl Change {
    fn apply(&self, content: &mut FileBytes) {
        match self {
            Change::Write { offset, data } => content.write(*offset, data),
            Change::SetLen { length } => content.set_len(*length),
            Change::Allocate { offset, length } => content.allocate(*offset, *length),
            Change::PunchHole { offset, length } => content.punch_hole(*offset, *length),
        }
    }
}

/// One file: its contents and the changes since the last sync.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    durable: FileBytes,
    current: FileBytes,
    pending: Vec<Change>,
    /// Whether a writeback failed and no sync has reported it yet.
    has_lost_changes: bool,
    /// Whether a name leads here. Without a name, its bytes do not count as used.
    pub(super) is_named: bool,
}

impl Inode {
    /// Creates a file with durable content.
    pub(super) fn with(content: FileBytes) -> Inode {
        Inode { durable: content.clone(), current: content, pending: Vec::new(), has_lost_changes: false, is_named: true }
    }

    pub(super) fn length(&self) -> u64 {
        self.current.length
    }

    /// Returns how many pages take space.
    pub(super) fn room(&self) -> u64 {
        self.current.room.count()
    }

    pub(super) fn is_inside(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.current.length)
    }

    pub(super) fn is_readable(&self, offset: u64, length: u64) -> bool {
        self.current.is_readable(offset, length)
    }

    pub(super) fn is_writable(&self, offset: u64, length: u64) -> bool {
        self.current.is_writable(offset, length)
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        self.current.read(offset, buffer);
    }

    /// Writes as many bytes as fit into `free` more pages. Returns how many those were.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], free: u64) -> usize {
        let fits = self.fits(offset, data.len() as u64, free) as usize;
        if fits > 0 {
            self.change(Change::Write { offset, data: data[..fits].into() });
        }
        fits
    }

    /// Reserves as many bytes as fit into `free` more pages. Returns how many those were.
    pub(super) fn allocate(&mut self, offset: u64, length: u64, free: u64) -> u64 {
        let fits = self.fits(offset, length, free);
        if fits > 0 {
            self.change(Change::Allocate { offset, length: fits });
        }
        fits
    }

    pub(super) fn punch_hole(&mut self, offset: u64, length: u64) {
        self.change(Change::PunchHole { offset, length });
    }

    pub(super) fn set_len(&mut self, length: u64) {
        self.change(Change::SetLen { length });
    }

    fn fits(&self, offset: u64, length: u64, free: u64) -> u64 {
        let fitting = self.current.room.fitting(pages_of(offset, length), free);
        (fitting.end * PAGE_BYTES).clamp(offset, offset + length) - offset
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Makes everything durable that is not lost. Writes whole pages, like a page cache. Returns false if changes were
    /// lost since the last sync: as in Linux, exactly one sync reports the loss.
    pub(super) fn sync(&mut self) -> bool {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write { offset, data } => {
                    for page in pages_of(offset, data.len() as u64) {
                        self.durable.take_page(page, &self.current);
                    }
                }
                // The cut part may have been extended and written again since. The current page decides.
                Change::SetLen { length } => self.durable.cut_as(length, &self.current),
                // A page may have been written again since.
                Change::PunchHole { offset, length } => {
                    pages_of(offset, length).for_each(|page| self.durable.take_page(page, &self.current))
                }
                Change::Allocate { .. } => {}
            }
        }
        self.durable.length = self.current.length;
        self.durable.room = self.current.room.clone();
        !std::mem::take(&mut self.has_lost_changes)
    }

    /// Simulates a failed writeback. Some of the changes are on the device; the others never will be, although later
    /// syncs succeed. Readers see some pages with the lost changes until the machine restarts. The system has dropped
    /// the other pages, so readers see the device's bytes there. Linux file systems do the same.
    fn lose_changes(&mut self, random: &mut Random) {
        self.durable = self.survivor(CrashPolicy::Random { seed: random.next() }, random);
        self.pending.clear();
        for page in self.current.differing_pages(&self.durable) {
            if random.below(2) == 0 {
                self.current.take_page(page, &self.durable);
            }
        }
    }

    /// Fails a sync that reports its failure.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        self.lose_changes(random);
        self.has_lost_changes = false;
    }

    /// Fails the system's own writeback. The next sync reports it.
    pub(super) fn fail_writeback(&mut self, random: &mut Random) {
        self.lose_changes(random);
        self.has_lost_changes = true;
    }

    /// Returns the content after a power cut.
    pub(super) fn survivor(&self, policy: CrashPolicy, random: &mut Random) -> FileBytes {
        let mut content = self.durable.clone();
        match policy {
            CrashPolicy::DropAll => {}
            CrashPolicy::KeepAll => content = self.current.clone(),
            CrashPolicy::LoseSectors { sector_bytes } => self.lose_sectors(&mut content, sector_bytes),
            CrashPolicy::Random { .. } => self.keep_some(&mut content, random),
        }
        content
    }

    /// Zeros every sector that a pending change writes, as far as the content has it. If a length ends within a page,
    /// the file system writes that page: it zeros the bytes past the length. When any change extends a file, XFS does
    /// the same with the page in which the file ended.
    fn lose_sectors(&self, content: &mut FileBytes, sector_bytes: u64) {
        let page_of = |length: u64| (length / PAGE_BYTES * PAGE_BYTES, length.next_multiple_of(PAGE_BYTES));
        let mut length_before = self.durable.length;
        for change in &self.pending {
            let (written, length) = match change {
                Change::Write { offset, data } => {
                    let end = offset + data.len() as u64;
                    ((*offset, end), length_before.max(end))
                }
                Change::SetLen { length } => (page_of(*length), *length),
                Change::Allocate { offset, length } => ((0, 0), length_before.max(offset + length)),
                Change::PunchHole { offset, length } => ((*offset, offset + length), length_before),
            };
            let extended = if length > length_before { page_of(length_before) } else { (0, 0) };
            length_before = length;
            for (start, end) in [written, extended] {
                if start < end {
                    let first = start / sector_bytes * sector_bytes;
                    let end = end.next_multiple_of(sector_bytes).min(content.length);
                    content.write(first, &vec![0; end.saturating_sub(first) as usize]);
                }
            }
        }
    }

    /// Returns whether the device has these bytes, whatever readers see.
    pub(super) fn device_holds(&self, offset: u64, data: &[u8]) -> bool {
        let mut bytes = vec![0; data.len()];
        let is_inside = offset + data.len() as u64 <= self.durable.length && self.durable.is_readable(offset, data.len() as u64);
        if is_inside {
            self.durable.read(offset, &mut bytes);
        }
        is_inside && bytes == data
    }

    /// Keeps, drops or tears each change. A sector that lost a write takes no later partial write: the page cache never
    /// had that state.
    fn keep_some(&self, content: &mut FileBytes, random: &mut Random) {
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
                // A change of length or allocation is one record of the file system's journal.
                Change::SetLen { .. } | Change::Allocate { .. } | Change::PunchHole { .. } if keep => change.apply(content),
                // The page cache has zeros, which a later partial write does not bring to the device.
                Change::PunchHole { offset, length } => lost.extend(offset / SECTOR_BYTES..(offset + length) / SECTOR_BYTES),
                Change::SetLen { .. } | Change::Allocate { .. } => {}
            }
        }
    }

    /// Damages a byte, now and after any crash. Returns false past the end.
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

    /// Makes the sectors of these bytes unreadable, until each is overwritten as a whole.
    pub(super) fn make_unreadable(&mut self, range: Range<u64>) {
        let length = range.end.min(self.current.length).saturating_sub(range.start);
        self.current.make_unreadable(range.start, length);
        self.durable.make_unreadable(range.start, length);
    }

    pub(super) fn make_readable(&mut self) {
        self.current.make_readable();
        self.durable.make_readable();
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
                        prop_assert!(inode.sync());
                        synced = model.clone();
                    }
                }
                let mut random = Random::new(seed);
                prop_assert_eq!(inode.current.bytes(), &model[..]);
                prop_assert_eq!(inode.survivor(CrashPolicy::DropAll, &mut random).bytes(), &synced[..]);
                prop_assert_eq!(inode.survivor(CrashPolicy::KeepAll, &mut random).bytes(), &model[..]);
                inode.survivor(CrashPolicy::Random { seed }, &mut random);
            }
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
            let content = inode.survivor(CrashPolicy::Random { seed }, &mut Random::new(seed)).bytes();
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
    fn after_a_failed_sync_readers_see_the_new_bytes_or_the_old_ones_and_later_syncs_bring_nothing_back() {
        let mut found = BTreeSet::new();
        for seed in 0..100 {
            let mut inode = Inode::default();
            inode.write(0, &[1; 512], u64::MAX);
            assert!(inode.sync());
            inode.write(0, &[2; 512], u64::MAX);
            inode.fail_sync(&mut Random::new(seed));
            assert!(inode.sync(), "it was said already");
            found.insert((inode.current.bytes()[0], inode.durable.bytes()[0]));
        }
        assert_eq!(found, BTreeSet::from([(1, 1), (2, 1), (2, 2)]));
    }

    #[test]
    fn changes_that_could_not_be_written_back_are_reported_by_one_sync_and_by_no_other() {
        let mut inode = Inode::default();
        inode.write(0, &[1; 512], u64::MAX);
        inode.fail_writeback(&mut Random::new(0));
        inode.write(512, &[2; 512], u64::MAX);
        assert!(!inode.sync());
        assert_eq!(inode.durable.bytes()[512..], [2; 512], "what was not lost is written");
        assert!(inode.sync());
    }
}
