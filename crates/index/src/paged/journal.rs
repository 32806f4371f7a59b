//! The journal holds the pages that are being written in place, so that an opening can repeat a torn write.
//!
//! A writer syncs the journal before it writes the pages in place. It syncs the pages and a header that says so before
//! the next journal. So at any time either the journal or the pages in place are intact.
//!
//! The file: a block with the head, the numbers of the pages in one block or more, then the pages.

use super::{PAGE_BYTES, u32_at, u64_at};
use crate::Result;
use onefold_ground::{Access, File, Ground, checksum};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

const CHECKSUM_OFFSET: usize = 40;

/// Which page of which file.
pub trait PageNumber: Copy + Ord + Hash + Debug {
    /// Bytes of a number in the journal.
    const BYTES: usize;
    /// Writes the number into [`PageNumber::BYTES`] bytes.
    fn put(self, out: &mut [u8]);
    /// Reads it back. `None`: no page has this number.
    fn get(bytes: &[u8]) -> Option<Self>;
    /// Returns whether `next` lies right behind this page in the same file.
    fn is_before(self, next: Self) -> bool;
}

impl PageNumber for u32 {
    const BYTES: usize = 4;

    fn put(self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Option<u32> {
        Some(u32_at(bytes, 0))
    }

    fn is_before(self, next: u32) -> bool {
        self.checked_add(1) == Some(next)
    }
}

/// What a journal belongs to.
pub trait JournalHead: Clone + PartialEq + Eq + Debug {
    /// How its pages are numbered.
    type Number: PageNumber;
    /// The first bytes of the file.
    const MAGIC: &'static [u8; 8];
    /// The format's version.
    const VERSION: u32;
    /// Highest number of pages, so that a damaged number cannot eat memory.
    const MOST_PAGES: usize;
    /// Writes its fields into the first block, from byte 16 on and without the checksum's bytes 40 to 47.
    fn put(&self, block: &mut [u8]);
    /// Reads them back.
    fn get(block: &[u8]) -> Self;
}

/// A journal in memory: being built, or read and found intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal<H: JournalHead> {
    /// What it belongs to.
    pub head: H,
    numbers: Vec<H::Number>,
    /// The whole journal as in the file.
    bytes: Vec<u8>,
    /// Bytes before the first page: head and page numbers.
    pages_offset: usize,
}

impl<H: JournalHead> Journal<H> {
    /// Creates an empty journal with room for the numbers of `pages` pages.
    pub fn with_room(head: H, pages: usize) -> Journal<H> {
        let pages_offset = pages_offset::<H>(pages);
        Journal { head, numbers: Vec::new(), bytes: vec![0; pages_offset], pages_offset }
    }

    /// Drops the pages, to fill the same buffers again.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.bytes.truncate(self.pages_offset);
    }

    /// Returns the number of pages.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Appends a page: `write` appends its [`PAGE_BYTES`] bytes. Numbers ascend, and there is room for them.
    pub fn push(&mut self, number: H::Number, write: impl FnOnce(&mut Vec<u8>)) {
        self.numbers.push(number);
        write(&mut self.bytes);
        assert_eq!(self.bytes.len(), self.pages_offset + self.numbers.len() * PAGE_BYTES, "a page has its size");
    }

    /// Returns the pages with their numbers.
    pub fn pages(&self) -> impl Iterator<Item = (H::Number, &[u8])> {
        self.numbers.iter().copied().zip(self.bytes[self.pages_offset..].chunks_exact(PAGE_BYTES))
    }

    /// Returns runs of pages with consecutive numbers: the first number, and the bytes.
    pub fn runs(&self) -> impl Iterator<Item = (H::Number, &[u8])> {
        let pages = &self.bytes[self.pages_offset..];
        self.numbers.chunk_by(|one, next| one.is_before(*next)).scan(0, move |at, run| {
            let start = *at;
            *at += run.len() * PAGE_BYTES;
            Some((run[0], &pages[start..*at]))
        })
    }

    /// Completes head and checksum. Returns the bytes for the file.
    pub fn seal(&mut self) -> &[u8] {
        assert!(self.numbers.len() <= H::MOST_PAGES, "the caller bounds its batches");
        assert_eq!(self.pages_offset, pages_offset::<H>(self.numbers.len()), "the caller knows how many pages there are");
        self.bytes[..self.pages_offset].fill(0);
        self.bytes[..8].copy_from_slice(H::MAGIC);
        self.bytes[8..12].copy_from_slice(&H::VERSION.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&(self.numbers.len() as u32).to_le_bytes());
        self.head.put(&mut self.bytes[..PAGE_BYTES]);
        for (place, number) in self.bytes[PAGE_BYTES..].chunks_exact_mut(H::Number::BYTES).zip(&self.numbers) {
            number.put(place);
        }
        let sum = checksum(&self.bytes);
        self.bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].copy_from_slice(&sum.to_le_bytes());
        &self.bytes
    }

    /// Decodes a journal from the bytes of the whole file or more. `None`: it is not intact, as after a crash during
    /// its write.
    pub fn decode(bytes: &[u8]) -> Option<Journal<H>> {
        let total = journal_bytes::<H>(bytes)?;
        let mut bytes = bytes.get(..total)?.to_vec();
        let stored = u64_at(&bytes, CHECKSUM_OFFSET);
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].fill(0);
        if checksum(&bytes) != stored {
            return None;
        }
        bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 8].copy_from_slice(&stored.to_le_bytes());
        let pages = u32_at(&bytes, 12) as usize;
        let numbers = bytes[PAGE_BYTES..].chunks_exact(H::Number::BYTES).take(pages);
        let numbers = numbers.map(H::Number::get).collect::<Option<Vec<_>>>()?;
        let head = H::get(&bytes[..PAGE_BYTES]);
        let sound = numbers.windows(2).all(|two| two[0] < two[1]);
        sound.then_some(Journal { head, numbers, bytes, pages_offset: pages_offset::<H>(pages) })
    }
}

/// Returns where the pages start in a journal of this many pages.
fn pages_offset<H: JournalHead>(pages: usize) -> usize {
    let blocks = (pages * H::Number::BYTES).div_ceil(PAGE_BYTES).max(1);
    (1 + blocks) * PAGE_BYTES
}

/// Returns the bytes of the journal that starts here, if its first block is valid.
fn journal_bytes<H: JournalHead>(block: &[u8]) -> Option<usize> {
    if block.len() < PAGE_BYTES || &block[..8] != H::MAGIC || u32_at(block, 8) != H::VERSION {
        return None;
    }
    let pages = u32_at(block, 12) as usize;
    (pages <= H::MOST_PAGES).then(|| pages_offset::<H>(pages) + pages * PAGE_BYTES)
}

/// The open journal file.
#[derive(Debug)]
pub(crate) struct JournalFile {
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
    pub fn write<H: JournalHead>(&self, journal: &mut Journal<H>) -> Result<()> {
        self.file.write_at(0, journal.seal())?;
        self.file.sync()?;
        Ok(())
    }

    /// Frees its space. Call only when all its pages are durable in place and the header says so.
    pub fn release(&self) {
        // This needs no sync. If the journal is still there after a crash, it is repeated no more often than before.
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!(%error, "the space of an index journal was not released");
        }
    }

    /// Reads the journal, if it is intact.
    pub fn read<H: JournalHead>(&self) -> Result<Option<Journal<H>>> {
        let length = self.file.len()?;
        if length < PAGE_BYTES as u64 {
            return Ok(None);
        }
        let mut block = vec![0; PAGE_BYTES];
        self.file.read_at(0, &mut block)?;
        match journal_bytes::<H>(&block) {
            Some(total) if total as u64 <= length => {
                let mut bytes = vec![0; total];
                self.file.read_at(0, &mut bytes)?;
                Ok(Journal::decode(&bytes))
            }
            _ => Ok(None),
        }
    }
}
