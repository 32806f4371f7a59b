//! The journal holds the pages of the current sweep batch, so that an opening can repeat a torn write (`docs/format.md`
//! section 6).
//!
//! A sweep syncs the journal before it writes the pages in place. It syncs the pages and the header's progress before
//! the next journal. So at any time either the journal or the pages in place are intact.

use super::page::{PAGE_BYTES, u32_at, u64_at};
use crate::Result;
use onefold_ground::{Access, File, Ground, checksum};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"1FLDJRN1";
const VERSION: u32 = 2;
const CHECKSUM_OFFSET: usize = 40;
/// Highest number of pages in a journal: their numbers fill one block.
pub const MAX_JOURNAL_PAGES: usize = 1024;
/// Bytes before the first page: header and page numbers.
const PAGES_OFFSET: usize = 2 * PAGE_BYTES;

/// What a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Generation of the pages.
    pub generation: u32,
    /// Which of them had moved to the next generation. A journal is stale once more have moved.
    pub moved_from: u32,
    /// Whether these are the last pages that move, rather than those of a sweep.
    pub is_growth: bool,
    /// How many more entries these pages have than those they replace; may be negative.
    pub added_entries: i32,
    /// Target of the sweep.
    pub target: u64,
    /// Once this journal is applied, pages before this one are.
    pub progress: u64,
}

/// A journal in memory: being built, or read and found intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// What it belongs to.
    pub head: JournalHead,
    numbers: Vec<u32>,
    /// The whole journal as in the file.
    bytes: Vec<u8>,
}

impl Journal {
    /// Creates an empty journal.
    pub fn new(generation: u32, moved_from: u32, target: u64) -> Journal {
        let head = JournalHead { generation, moved_from, is_growth: false, added_entries: 0, target, progress: 0 };
        Journal { head, numbers: Vec::new(), bytes: vec![0; PAGES_OFFSET] }
    }

    /// Starts the next batch in the same buffers.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.bytes.truncate(PAGES_OFFSET);
        self.head.added_entries = 0;
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Appends a page: `write` appends its [`PAGE_BYTES`] bytes. Numbers ascend, with at most [`MAX_JOURNAL_PAGES`] of
    /// them.
    pub fn push(&mut self, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.numbers.push(number);
        write(&mut self.bytes);
        assert_eq!(self.bytes.len(), PAGES_OFFSET + self.numbers.len() * PAGE_BYTES, "a page has its size");
    }

    /// Returns the pages with their numbers.
    pub fn pages(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.numbers.iter().copied().zip(self.bytes[PAGES_OFFSET..].chunks_exact(PAGE_BYTES))
    }

    /// Returns runs of pages with consecutive numbers: the first number, and the bytes.
    pub fn runs(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let pages = &self.bytes[PAGES_OFFSET..];
        self.numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next)).scan(0, move |at, run| {
            let start = *at;
            *at += run.len() * PAGE_BYTES;
            Some((run[0], &pages[start..*at]))
        })
    }

    /// Completes header and checksum. Returns the bytes for the file.
    pub fn seal(&mut self) -> &[u8] {
        assert!(self.numbers.len() <= MAX_JOURNAL_PAGES, "the caller bounds its batches");
        self.bytes[..PAGES_OFFSET].fill(0);
        self.bytes[..8].copy_from_slice(MAGIC);
        self.bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&(self.numbers.len() as u32).to_le_bytes());
        self.bytes[16..20].copy_from_slice(&self.head.generation.to_le_bytes());
        self.bytes[20..24].copy_from_slice(&self.head.added_entries.to_le_bytes());
        self.bytes[24..32].copy_from_slice(&self.head.target.to_le_bytes());
        self.bytes[32..40].copy_from_slice(&self.head.progress.to_le_bytes());
        self.bytes[48..52].copy_from_slice(&self.head.moved_from.to_le_bytes());
        self.bytes[52..56].copy_from_slice(&u32::from(self.head.is_growth).to_le_bytes());
        for (place, number) in self.bytes[PAGE_BYTES..].chunks_exact_mut(4).zip(&self.numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&self.bytes);
        self.bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].copy_from_slice(&sum.to_le_bytes());
        &self.bytes
    }

    /// Decodes a journal from the bytes of the whole file or more. `None`: it is not intact, as after a crash during
    /// its write.
    pub fn decode(bytes: &[u8]) -> Option<Journal> {
        let total = journal_bytes(bytes)?;
        let mut bytes = bytes.get(..total)?.to_vec();
        let stored = u64_at(&bytes, CHECKSUM_OFFSET);
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].fill(0);
        if checksum(&bytes) != stored {
            return None;
        }
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].copy_from_slice(&stored.to_le_bytes());
        let pages = u32_at(&bytes, 12) as usize;
        let numbers: Vec<u32> = (0..pages).map(|number| u32_at(&bytes, PAGE_BYTES + 4 * number)).collect();
        let head = JournalHead {
            generation: u32_at(&bytes, 16),
            added_entries: u32_at(&bytes, 20) as i32,
            target: u64_at(&bytes, 24),
            progress: u64_at(&bytes, 32),
            moved_from: u32_at(&bytes, 48),
            is_growth: u32_at(&bytes, 52) != 0,
        };
        let sound = numbers.windows(2).all(|two| two[0] < two[1]);
        sound.then_some(Journal { head, numbers, bytes })
    }
}

/// Returns the bytes of the journal that starts here, if its first block is valid.
fn journal_bytes(block: &[u8]) -> Option<usize> {
    if block.len() < PAGE_BYTES || &block[..8] != MAGIC || u32_at(block, 8) != VERSION {
        return None;
    }
    let pages = u32_at(block, 12) as usize;
    (pages <= MAX_JOURNAL_PAGES).then_some(PAGES_OFFSET + pages * PAGE_BYTES)
}

/// The open journal file.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: Arc<dyn File>,
}

impl JournalFile {
    /// Creates an empty file. The caller makes the name durable.
    pub fn create(ground: &dyn Ground, path: &str) -> Result<()> {
        ground.create(path)?.sync()?;
        Ok(())
    }

    /// Opens the file.
    pub fn open(ground: &dyn Ground, path: &str, access: Access) -> Result<JournalFile> {
        Ok(JournalFile { file: ground.open(path, access)? })
    }

    /// Writes a journal, durable on return.
    pub fn write(&self, journal: &mut Journal) -> Result<()> {
        self.file.write_at(0, journal.seal())?;
        self.file.sync()?;
        Ok(())
    }

    /// Frees its space. Call only when all its pages are durable in place and the header says so.
    pub fn release(&self) {
        // This needs no sync. If the journal is still there after a crash, it is repeated no more often than before.
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!(%error, "the space of a chunk-index journal was not released");
        }
    }

    /// Reads the journal, if it is intact.
    pub fn read(&self) -> Result<Option<Journal>> {
        let length = self.file.len()?;
        if length < PAGE_BYTES as u64 {
            return Ok(None);
        }
        let mut block = vec![0; PAGE_BYTES];
        self.file.read_at(0, &mut block)?;
        match journal_bytes(&block) {
            Some(total) if total as u64 <= length => {
                let mut bytes = vec![0; total];
                self.file.read_at(0, &mut bytes)?;
                Ok(Journal::decode(&bytes))
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn journal(numbers: &[u32]) -> Journal {
        let mut journal = Journal::new(3, 16, 900);
        journal.head.progress = 40;
        journal.head.added_entries = 7;
        for number in numbers {
            journal.push(*number, |out| out.resize(out.len() + PAGE_BYTES, *number as u8));
        }
        journal
    }

    #[test]
    fn a_journal_is_read_as_written() {
        let mut written = journal(&[2, 3, 4, 9, 11, 12]);
        let bytes = written.seal().to_vec();
        let read = Journal::decode(&bytes).unwrap();
        assert_eq!(read, written);
        let runs: Vec<_> = read.runs().map(|(first, bytes)| (first, bytes.len() / PAGE_BYTES, bytes[0])).collect();
        assert_eq!(runs, [(2, 3, 2), (9, 1, 9), (11, 2, 11)]);
        assert_eq!(read.pages().map(|(number, _)| number).collect::<Vec<_>>(), [2, 3, 4, 9, 11, 12]);
    }

    #[test]
    fn a_torn_journal_is_refused() {
        let bytes = journal(&[1, 2]).seal().to_vec();
        let other = journal(&[5, 6, 7]).seal().to_vec();
        for sector in 0..bytes.len() / 512 {
            let mut torn = bytes.clone();
            torn[sector * 512..].copy_from_slice(&other[sector * 512..bytes.len()]);
            assert!(Journal::decode(&torn).is_none() || torn == bytes || torn == other[..bytes.len()]);
            let mut torn = bytes.clone();
            torn.truncate(sector * 512);
            assert!(Journal::decode(&torn).is_none());
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(Journal::decode(&bytes).is_none());
            let mut likely = bytes;
            if likely.len() >= 16 {
                likely[..8].copy_from_slice(MAGIC);
                likely[8..12].copy_from_slice(&VERSION.to_le_bytes());
                prop_assert!(Journal::decode(&likely).is_none());
            }
        }
    }
}
