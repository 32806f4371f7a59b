//! The header and the journal's head of the linked index (`docs/format.md` section 6.2).

use super::page::{Layout, PageId};
use super::{Dia, Tag};
use crate::IndexError;
use crate::paged::{self, HeaderContent, PAGE_BYTES, u32_at, u64_at};
use onefold_fingerprint::Fingerprint;
use onefold_ground::checksum;

const MAGIC: &[u8; 8] = b"1FLDLNK1";
const VERSION: u32 = 2;
/// Bytes of the header before its checksum.
const CHECKED_BYTES: usize = 120;
/// Lowest `log2` of the number of slots.
pub const MIN_SLOTS_BITS: u32 = 4;
/// Highest `log2` of the number of slots.
pub const MAX_SLOTS_BITS: u32 = 44;
/// Most pages that a journal may claim to have. Steps have about 1,024.
const MOST_JOURNAL_PAGES: usize = 1 << 20;

/// What the pages are, and up to where they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sizes of records.
    pub layout: Layout,
    /// The epoch of its writer. Only grows.
    pub epoch: u64,
    /// Counts header writes.
    pub sequence: u64,
    /// Counts journals that are in place.
    pub step: u64,
    /// How often the table has doubled.
    pub generation: u8,
    /// `log2` of its number of slots.
    pub bits: u32,
    /// Families with homes before this one are in the table of the next generation. 0: the table does not grow.
    pub grown: u64,
    /// Records in the table.
    pub entries: u64,
    /// Lost ones among them.
    pub lost: u64,
    /// Records that the sweep brought to its target before their turn.
    pub early: u64,
    /// Blocks that have a record in the area: whole pages.
    pub blocks: u64,
    /// Log position up to which all pages are applied.
    pub applied: u64,
    /// Log position to which the current sweep brings the pages; 0: no sweep.
    pub target: u64,
    /// Chunks whose fingerprints begin below this are at the target.
    pub progress: u64,
}

/// A table: all slots of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its generation.
    pub generation: u8,
    /// `log2` of its number of slots.
    pub bits: u32,
}

impl Table {
    /// Returns the home of a fingerprint: its first bits.
    pub fn home(&self, fingerprint: &Fingerprint) -> u64 {
        fingerprint.prefix() >> (64 - self.bits)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        1 << self.bits
    }
}

impl Header {
    /// Returns the table of this generation.
    pub fn table(&self) -> Table {
        Table { generation: self.generation, bits: self.bits }
    }

    /// Returns the table of the next generation.
    pub fn next_table(&self) -> Table {
        Table { generation: self.generation + 1, bits: self.bits + 1 }
    }

    /// Returns the table that has a fingerprint's family.
    pub fn table_of(&self, fingerprint: &Fingerprint) -> Table {
        if self.table().home(fingerprint) < self.grown { self.next_table() } else { self.table() }
    }

    /// Returns whether the pages have the changes of a sweep to `target` for this fingerprint, apart from early
    /// records.
    pub fn has(&self, fingerprint: &Fingerprint, target: u64) -> bool {
        self.applied >= target || (self.target == target && fingerprint.prefix() < self.progress)
    }

    /// Returns the header once a journal is in place.
    pub fn after(&self, head: &JournalHead) -> Header {
        let next = Header { step: head.step, entries: head.entries, lost: head.lost, early: head.early, ..*self };
        match head.kind {
            StepKind::Sweep => Header { progress: head.progress, ..next },
            StepKind::SweepEnd => Header { applied: self.target, target: 0, progress: 0, ..next },
            StepKind::Growth => Header { grown: head.grown, ..next },
            StepKind::GrowthEnd => Header { generation: self.generation + 1, bits: self.bits + 1, grown: 0, ..next },
        }
    }
}

impl HeaderContent for Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let Layout { digest_bytes, tag, dia } = self.layout;
        bytes.extend_from_slice(&[digest_bytes as u8, u8::from(tag == Tag::Big), u8::from(dia == Dia::Slim), self.generation]);
        bytes.extend_from_slice(&self.bits.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        let values = [self.epoch, self.sequence, self.step, self.grown, self.entries, self.lost, self.early, self.blocks];
        for value in values.into_iter().chain([self.applied, self.target, self.progress, 0]) {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(PAGE_BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Header, &'static str> {
        if bytes.len() < CHECKED_BYTES + 8 {
            return Err("the header is too short");
        }
        if &bytes[..8] != MAGIC {
            return Err("not a header of a linked index");
        }
        if u64_at(bytes, CHECKED_BYTES) != checksum(&bytes[..CHECKED_BYTES]) {
            return Err("the header's checksum does not match");
        }
        if u32_at(bytes, 8) != VERSION {
            return Err("its format is not the one that this program reads; a rebuild makes it again");
        }
        let value = |number: usize| u64_at(bytes, 24 + 8 * number);
        let layout = Layout {
            digest_bytes: usize::from(bytes[12]),
            tag: if bytes[13] == 0 { Tag::Status } else { Tag::Big },
            dia: if bytes[14] == 0 { Dia::Large } else { Dia::Slim },
        };
        let header = Header {
            layout,
            epoch: value(0),
            sequence: value(1),
            step: value(2),
            generation: bytes[15],
            bits: u32_at(bytes, 16),
            grown: value(3),
            entries: value(4),
            lost: value(5),
            early: value(6),
            blocks: value(7),
            applied: value(8),
            target: value(9),
            progress: value(10),
        };
        let sound = (16..=32).contains(&header.layout.digest_bytes)
            && bytes[13] <= 1
            && bytes[14] <= 1
            && (MIN_SLOTS_BITS..=MAX_SLOTS_BITS).contains(&header.bits)
            && header.generation < 64
            && header.grown < 1 << header.bits
            && header.blocks.is_multiple_of(header.layout.blocks_per_page())
            && (header.target == 0 || header.target > header.applied);
        if sound { Ok(header) } else { Err("a field of the header is out of range") }
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn with_sequence(self, sequence: u64) -> Header {
        Header { sequence, ..self }
    }

    fn damaged(path: String, what: String) -> IndexError {
        IndexError::LinkedIndexDamaged { path, page: None, what }
    }
}

/// What a journal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Brings changes into pages.
    Sweep,
    /// The same, and they are the last ones of the sweep.
    SweepEnd,
    /// Moves families to the next generation.
    Growth,
    /// The same, and they are the last ones.
    GrowthEnd,
}

/// What a journal belongs to, and what the header says once its pages are in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// What it does.
    pub kind: StepKind,
    /// The header's generation before.
    pub generation: u32,
    /// The header's target.
    pub target: u64,
    /// Chunks whose fingerprints begin below this are then at the target.
    pub progress: u64,
    /// Number of this step: one more than the header's.
    pub step: u64,
    /// Families with homes before this one are then in the next generation.
    pub grown: u64,
    /// Records in the table then.
    pub entries: u64,
    /// Lost ones among them.
    pub lost: u64,
    /// Early ones among them.
    pub early: u64,
}

impl paged::JournalHead for JournalHead {
    type Number = PageId;
    const MAGIC: &'static [u8; 8] = b"1FLDLJN1";
    const VERSION: u32 = 1;
    const MOST_PAGES: usize = MOST_JOURNAL_PAGES;

    fn put(&self, block: &mut [u8]) {
        block[16..20].copy_from_slice(&(self.kind as u32).to_le_bytes());
        block[20..24].copy_from_slice(&self.generation.to_le_bytes());
        block[24..32].copy_from_slice(&self.target.to_le_bytes());
        block[32..40].copy_from_slice(&self.progress.to_le_bytes());
        let values = [self.step, self.grown, self.entries, self.lost, self.early];
        for (place, value) in block[48..].chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn get(block: &[u8]) -> JournalHead {
        JournalHead {
            kind: match u32_at(block, 16) {
                0 => StepKind::Sweep,
                1 => StepKind::SweepEnd,
                2 => StepKind::Growth,
                _ => StepKind::GrowthEnd,
            },
            generation: u32_at(block, 20),
            target: u64_at(block, 24),
            progress: u64_at(block, 32),
            step: u64_at(block, 48),
            grown: u64_at(block, 56),
            entries: u64_at(block, 64),
            lost: u64_at(block, 72),
            early: u64_at(block, 80),
        }
    }
}

/// A journal in memory.
pub type Journal = paged::Journal<JournalHead>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linked::page::PagedFile;
    use crate::paged::PageNumber;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            layout: Layout { digest_bytes: 20, tag: Tag::Big, dia: Dia::Slim },
            epoch: 2,
            sequence: 5,
            step: 17,
            generation: 4,
            bits: 9,
            grown: 300,
            entries: 400,
            lost: 3,
            early: 1,
            blocks: 510 * 3,
            applied: 77,
            target: 99,
            progress: 1 << 60,
        }
    }

    #[test]
    fn a_header_is_read_as_written_and_a_flipped_bit_is_refused() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes), Ok(header()));
        for bit in 0..(CHECKED_BYTES + 8) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err());
        }
    }

    #[test]
    fn a_journal_of_many_pages_of_several_files_is_read_as_written() {
        for pages in [0, 1, 512, 513, 1500] {
            let kind = StepKind::GrowthEnd;
            let head = JournalHead { kind, generation: 4, target: 99, progress: 7, step: 18, grown: 1, entries: 2, lost: 3, early: 4 };
            let mut journal = Journal::with_room(head, pages);
            for number in 0..pages as u64 {
                let file = [PagedFile::Blocks, PagedFile::Slots(4), PagedFile::Slots(5)][(number * 3) as usize / pages];
                journal.push(PageId { file, number }, |out| out.resize(out.len() + PAGE_BYTES, number as u8));
            }
            let bytes = journal.seal().to_vec();
            let read = Journal::decode(&bytes).unwrap();
            assert_eq!(read, journal);
            assert_eq!(read.runs().count(), pages.min(3));
            assert!(Journal::decode(&bytes[..bytes.len() - 1]).is_none());
        }
        assert!(!PageId { file: PagedFile::Blocks, number: 1 }.is_before(PageId { file: PagedFile::Units, number: 2 }));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            prop_assert!(Header::decode(&bytes).is_err());
            prop_assert!(Journal::decode(&bytes).is_none());
        }
    }
}
