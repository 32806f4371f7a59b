//! The header of a chunk-index partition: which pages it has, and up to where they are applied (`docs/format.md`
//! section 6).

use super::page::PAGE_BYTES;
use crate::IndexError;
use crate::paged::{self, HeaderContent, u32_at, u64_at};
use onefold_ground::checksum;

const MAGIC: &[u8; 8] = b"1FLDIDX1";
const VERSION: u32 = 2;
/// Bytes of one of the two slots.
pub const SLOT_BYTES: usize = PAGE_BYTES;
/// Bytes of the header before its checksum.
const CHECKED_BYTES: usize = 88;
/// Highest `log2` of the number of pages: page numbers are 32 bits.
pub const MAX_PAGE_BITS: u32 = 31;

/// A partition's shape, and up to where it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a digest.
    pub digest_bytes: u8,
    /// This partition's number.
    pub partition: u32,
    /// Total number of partitions, a power of two.
    pub partitions: u32,
    /// The epoch of its writer. Only grows.
    pub epoch: u64,
    /// Counts header writes.
    pub sequence: u64,
    /// How often the pages have doubled.
    pub generation: u32,
    /// `log2` of the number of pages before any moved, 1 to [`MAX_PAGE_BITS`].
    pub page_bits: u32,
    /// Pages from here on have moved to the next generation (growth). Equal to the number of pages if none has.
    pub moved_from: u64,
    /// Log position up to which all pages are applied.
    pub applied: u64,
    /// Entries in all pages.
    pub entries: u64,
    /// Log position to which the current sweep brings the pages; 0: no sweep.
    pub target: u64,
    /// Pages before this one are applied up to the target.
    pub progress: u64,
}

impl Header {
    /// Encodes a slot.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[self.digest_bytes, 0, 0, 0]);
        bytes.extend_from_slice(&self.partition.to_le_bytes());
        bytes.extend_from_slice(&self.partitions.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.page_bits.to_le_bytes());
        for value in [self.applied, self.entries, self.target, self.progress, self.moved_from] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(SLOT_BYTES, 0);
        bytes
    }

    /// Decodes a slot. The error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Header, &'static str> {
        if bytes.len() < CHECKED_BYTES + 8 {
            return Err("the header is too short");
        }
        if &bytes[..8] != MAGIC {
            return Err("not a header of a chunk-index partition");
        }
        if u64_at(bytes, CHECKED_BYTES) != checksum(&bytes[..CHECKED_BYTES]) {
            return Err("the header's checksum does not match");
        }
        if u32_at(bytes, 8) != VERSION {
            return Err("the format is newer than this program reads");
        }
        let header = Header {
            digest_bytes: bytes[12],
            partition: u32_at(bytes, 16),
            partitions: u32_at(bytes, 20),
            epoch: u64_at(bytes, 24),
            sequence: u64_at(bytes, 32),
            generation: u32_at(bytes, 40),
            page_bits: u32_at(bytes, 44),
            applied: u64_at(bytes, 48),
            entries: u64_at(bytes, 56),
            target: u64_at(bytes, 64),
            progress: u64_at(bytes, 72),
            moved_from: u64_at(bytes, 80),
        };
        let sound = (16..=32).contains(&header.digest_bytes)
            && (1..=MAX_PAGE_BITS).contains(&header.page_bits)
            && header.partitions.is_power_of_two()
            && header.partition < header.partitions
            && (2..=1 << header.page_bits).contains(&header.moved_from)
            && header.moved_from.is_multiple_of(2)
            && (header.moved_from == 1 << header.page_bits || header.page_bits < MAX_PAGE_BITS)
            && header.progress <= header.end()
            && header.progress.is_multiple_of(2)
            && (header.target == 0 || header.target > header.applied);
        if sound { Ok(header) } else { Err("a field of the header is out of range") }
    }

    /// Returns the end of the page numbers: one past the last.
    pub fn end(&self) -> u64 {
        (1 << self.page_bits) << u32::from(self.moved_from < 1 << self.page_bits)
    }
}

impl HeaderContent for Header {
    fn encode(&self) -> Vec<u8> {
        Header::encode(self)
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Header, &'static str> {
        Header::decode(bytes)
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn with_sequence(self, sequence: u64) -> Header {
        Header { sequence, ..self }
    }

    fn damaged(path: String, what: String) -> IndexError {
        IndexError::ChunkIndexDamaged { path, page: None, what }
    }
}

/// The open header file.
pub(super) type HeaderFile = paged::HeaderFile<Header>;

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Access, CrashPolicy, Ground, LocalGround, SimulatedGround};
    use proptest::prelude::*;
    use std::io::ErrorKind;

    fn header() -> Header {
        Header {
            digest_bytes: 20,
            partition: 3,
            partitions: 16,
            epoch: 2,
            sequence: 1,
            generation: 4,
            page_bits: 5,
            moved_from: 32,
            applied: 77,
            entries: 100,
            target: 99,
            progress: 8,
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
    fn a_torn_header_leaves_the_one_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        HeaderFile::create(&ground, "header", header()).unwrap();
        let mut file = HeaderFile::open(&ground, "header", Access::ReadWrite).unwrap();
        file.write(Header { target: 0, progress: 0, applied: 99, ..header() }).unwrap();
        assert_eq!(HeaderFile::open(&ground, "header", Access::Read).unwrap().current().applied, 99);
        // Sequence 2 lies in the first slot.
        ground.open("header", Access::ReadWrite).unwrap().write_at(50, &[0xff]).unwrap();
        let mut file = HeaderFile::open(&ground, "header", Access::ReadWrite).unwrap();
        assert_eq!(file.current(), header());
        file.write(header()).unwrap();
        ground.open("header", Access::ReadWrite).unwrap().write_at(0, &[0; 2 * SLOT_BYTES]).unwrap();
        assert!(HeaderFile::open(&ground, "header", Access::Read).is_err());
    }

    #[test]
    fn a_header_whose_write_failed_does_not_count_once_it_is_settled() {
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll] {
            let disk = SimulatedGround::new(1);
            HeaderFile::create(&disk, "header", header()).unwrap();
            disk.sync_directory("").unwrap();
            let mut file = HeaderFile::open(&disk, "header", Access::ReadWrite).unwrap();
            // The write itself succeeds.
            disk.fail_operation(1, ErrorKind::Other);
            assert!(file.write(Header { moved_from: 16, ..header() }).is_err() && file.is_in_doubt());
            assert_eq!(HeaderFile::open(&disk, "header", Access::Read).unwrap().current().moved_from, 16);
            file.settle().unwrap();
            assert!(!file.is_in_doubt());
            // An opening finds the header before it, whatever the sequence.
            let found = HeaderFile::open(&disk.restart(policy), "header", Access::Read).unwrap().current();
            assert_eq!(Header { sequence: 1, ..found }, header());
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }
}
