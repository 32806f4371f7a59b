//! The pages of a partition in one file. Growth moves them within it, from one *generation* to the next (`grow.rs`).
//!
//! Lookups read while a sweep writes in place. They read a single page without a lock. If a read sees a page half old
//! and half new, its checksum fails. Then the lookup repeats the read under the lock that the sweep holds while it
//! writes.
//!
//! Lookups read both pages of a pair under that lock, because an entry may move from one to the other. They skip the
//! lock if the positions show that both pages are of one moment (`lookup.rs`).
//!
//! Sometimes pages cannot be written in place: the device failed, or the index is open read-only. Then readers use the
//! journal's copy, which stays in memory until the pages are written.

use super::Counters;
use super::expected::ExpectedPages;
use super::filter::Filter;
use super::journal::Journal;
use super::page::{PAGE_BYTES, Page, PageDamage, Place};
use super::page_cache::PageCache;
use crate::paged::Overlay;
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, ReadRequest};
use parking_lot::RwLock;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the pages of a partition lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Generation of the file.
    pub generation: u32,
    /// `log2` of the number of partitions.
    pub partition_bits: u32,
    /// `log2` of the number of pages before any moved.
    pub page_bits: u32,
    /// Pages from here on have moved: page `i` to `2i` and `2i + 1` of the next generation. Equal to the number of
    /// pages if none has (`grow.rs`).
    pub moved_from: u32,
    /// Bytes of a digest.
    pub digest_bytes: usize,
}

impl Shape {
    /// Returns a shape in which no page has moved.
    pub fn whole(generation: u32, partition_bits: u32, page_bits: u32, digest_bytes: usize) -> Shape {
        Shape { generation, partition_bits, page_bits, moved_from: 1 << page_bits, digest_bytes }
    }

    /// Returns whether some pages have moved.
    pub fn is_growing(&self) -> bool {
        self.moved_from < 1 << self.page_bits
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        (2 << self.page_bits) - u64::from(self.moved_from)
    }

    /// Returns the end of the page numbers. The numbers between moved and unmoved pages are unused.
    pub fn end(&self) -> u64 {
        (1 << self.page_bits) << u32::from(self.is_growing())
    }

    /// Returns how many pages of space the file has on the device. They are all places from before the growth, and the
    /// moved pages after those. Some of the old places hold no page any more, but pages will come there again. In
    /// between is a hole.
    pub fn allocated(&self) -> u64 {
        let before = 1 << self.page_bits;
        before + self.end().saturating_sub(before.max(2 * u64::from(self.moved_from)))
    }

    /// Returns the pages from `first` up to but not including `end`, as ranges of their numbers. Both are even.
    pub fn ranges(&self, first: u64, end: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let moved_from = u64::from(self.moved_from);
        let ranges = [first..end.min(moved_from), first.max(2 * moved_from)..end.min(self.end())];
        ranges.into_iter().filter(|range| !range.is_empty())
    }

    /// Returns the home page of a fingerprint.
    pub fn home(&self, fingerprint: &Fingerprint) -> u32 {
        self.home_of(fingerprint.prefix())
    }

    /// Returns the home page of fingerprints with this prefix.
    pub fn home_of(&self, prefix: u64) -> u32 {
        let own = prefix << self.partition_bits;
        let home = (own >> (64 - self.page_bits)) as u32;
        if home < self.moved_from { home } else { (own >> (63 - self.page_bits)) as u32 }
    }

    /// Returns how far a fingerprint is into its home page's range, in units of 2^-64. It lies about as far into the
    /// page's entries.
    pub fn fraction(&self, fingerprint: &Fingerprint) -> u64 {
        let own = fingerprint.prefix() << self.partition_bits;
        let has_moved = (own >> (64 - self.page_bits)) as u32 >= self.moved_from;
        own << (self.page_bits + u32::from(has_moved))
    }

    /// Returns what page `page` says about itself.
    pub fn place(&self, page: u32) -> Place {
        let generation = self.generation.wrapping_add(u32::from(page >= self.moved_from));
        Place { page, generation, digest_bytes: self.digest_bytes }
    }

    /// Returns the shape after the pages from `moved_from` on have moved. At 0 all have, and the next generation is
    /// complete.
    pub fn moved(&self, moved_from: u32) -> Shape {
        match moved_from {
            0 => Shape::whole(self.generation.wrapping_add(1), self.partition_bits, self.page_bits + 1, self.digest_bytes),
            _ => Shape { moved_from, ..*self },
        }
    }

    /// Translates a sweep's progress, which is a page number. Never returns a greater number: the sweep would skip
    /// pages. A smaller one would only cost time, as each page knows its own position.
    pub fn moved_progress(&self, progress: u64, moved_from: u32) -> u64 {
        if progress > u64::from(moved_from) && progress <= u64::from(self.moved_from) { 2 * progress } else { progress }
    }

    /// Returns the start of a page's fingerprints, as a 32-bit fraction of the partition.
    pub fn fraction_of_page(&self, page: u32) -> u32 {
        ((u64::from(page) << 32) >> (self.page_bits + u32::from(page >= self.moved_from))) as u32
    }

    /// Returns the page at this fraction.
    pub fn page_at(&self, fraction: u32) -> u32 {
        let page = (u64::from(fraction) << self.page_bits) >> 32;
        if page < u64::from(self.moved_from) { page as u32 } else { ((u64::from(fraction) << (self.page_bits + 1)) >> 32) as u32 }
    }
}

/// Memory bounds of a partition, apart from its changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Bound of the page cache.
    pub cache_bytes: usize,
    /// Bound of the filter.
    pub filter_bytes: usize,
    /// Pages that are read for look-ups to come.
    pub expected_pages: usize,
}

/// The file of pages, and where they lie in it at one time.
#[derive(Debug)]
pub(super) struct PageFile {
    /// Where its pages lie.
    pub shape: Shape,
    kept: Arc<Kept>,
}

/// The part that stays when pages move.
#[derive(Debug)]
pub(super) struct Kept {
    /// Knows which fingerprints its pages may hold.
    pub filter: Filter,
    /// Caches its pages.
    pub cache: PageCache,
    /// Pages of it that are being read for look-ups to come.
    pub expected: ExpectedPages,
    file: Arc<dyn File>,
    path: String,
    /// Held for writing while pages are written in place. Holds the journal's pages that are not in place.
    in_place: RwLock<Overlay<u32>>,
    /// Whether there are any.
    has_overlay: AtomicBool,
    counters: Arc<Counters>,
}

impl Deref for PageFile {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl PageFile {
    /// Wraps an open file. `path` is its name for messages.
    pub fn new(file: Arc<dyn File>, path: String, shape: Shape, memory: Memory, counters: Arc<Counters>) -> PageFile {
        let filter = Filter::new(shape.end(), memory.filter_bytes);
        let cache = PageCache::new(memory.cache_bytes, shape.end(), shape.digest_bytes);
        let expected = ExpectedPages::new(memory.expected_pages);
        let kept = Kept { filter, cache, expected, file, path, in_place: RwLock::default(), has_overlay: AtomicBool::new(false), counters };
        PageFile { shape, kept: Arc::new(kept) }
    }

    /// Returns the same file after pages have moved.
    pub fn reshaped(&self, shape: Shape) -> PageFile {
        PageFile { shape, kept: self.kept.clone() }
    }

    /// Changes the bound of its memory.
    pub fn bound(&self, memory: Memory) {
        self.filter.bound(memory.filter_bytes);
        self.cache.bound(memory.cache_bytes, self.shape.end());
    }

    /// Makes memory for this many pages.
    pub fn expect_pages(&self, pages: u64) {
        self.filter.extend(pages);
        self.cache.extend(pages);
    }

    /// Makes memory and space on the device for the pages of a journal. A full device fails here, before the pages are
    /// in the journal.
    pub fn expect_journal(&self, journal: &Journal) -> Result<()> {
        let Some(last) = journal.pages().last().map(|(page, _)| u64::from(page)) else { return Ok(()) };
        if last >= self.shape.end() {
            self.expect_pages(last + 1);
            self.file.allocate_from_reserve(offset(last as u32 + 1) / 2, offset(last as u32 + 1) / 2)?;
        }
        Ok(())
    }

    /// Writes pages that nobody uses yet, from page `first` on. Durable on return.
    pub fn write_moved(&self, first: u32, bytes: &[u8]) -> Result<()> {
        // A full device fails here. Reclamation needs growth too: without it, nobody could even record removals.
        self.file.allocate_from_reserve(offset(first), bytes.len() as u64)?;
        self.cache.begin_write();
        let written = self.file.write_at(offset(first), bytes).and_then(|()| self.file.sync());
        self.cache.end_write(first..first + (bytes.len() / PAGE_BYTES) as u32);
        Ok(written?)
    }

    /// Makes readers use the pages of `journal` instead of those in the file.
    pub fn overlay(&self, journal: &Journal) {
        let mut overlay = self.in_place.write();
        overlay.cover(journal);
        self.has_overlay.store(true, Ordering::Release);
    }

    /// Returns the file's name for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Fails if pages are only in memory: the journal that had them on the device is gone, so the sweep cannot end.
    pub fn nothing_in_memory(&self) -> Result<()> {
        match self.in_place.read().any() {
            Some(page) => Err(self.lost_journal(page)),
            None => Ok(()),
        }
    }

    /// Makes the error for a page that only an unreadable journal has.
    pub fn lost_journal(&self, page: u32) -> IndexError {
        let what = "it could not be written, and the journal that has it cannot be read".to_string();
        IndexError::ChunkIndexDamaged { path: self.path.clone(), page: Some(page), what }
    }

    /// Makes the error for a damaged page.
    pub fn damaged(&self, page: u32, damage: &PageDamage) -> IndexError {
        IndexError::ChunkIndexDamaged { path: self.path.clone(), page: Some(page), what: damage.to_string() }
    }

    /// Makes the next read of a run of pages go to the device.
    pub fn drop_cached(&self, first: u32, count: usize) {
        self.file.drop_cached(u64::from(first) * PAGE_BYTES as u64, (count * PAGE_BYTES) as u64);
    }

    /// Returns the read request for a page. Its bytes go to [`PageFile::take`].
    pub fn request(&self, page: u32) -> ReadRequest {
        ReadRequest { file: self.file.clone(), offset: offset(page), length_bytes: PAGE_BYTES }
    }

    /// Decodes a page from `bytes`, which were read without a lock, or reads it again. Caches it if no page was written
    /// since `writes` was asked.
    pub fn take<'a>(
        &self,
        page: u32,
        bytes: &'a [u8],
        read: onefold_ground::Result<()>,
        writes: u64,
        again: &'a mut [u8; PAGE_BYTES],
    ) -> Result<Page<'a>> {
        if !self.has_overlay.load(Ordering::Acquire) {
            read?;
            if let (Ok(found), Ok(bytes)) = (Page::decode(bytes, self.shape.place(page)), bytes.try_into()) {
                self.counters.page_reads.fetch_add(1, Ordering::Relaxed);
                self.filter.learn(page, &found);
                self.cache.insert(page, bytes, writes);
                return Ok(found);
            }
        }
        self.read(page, again)
    }

    /// Reads one page into `buffer` while nothing writes in place.
    pub fn read<'a>(&self, page: u32, buffer: &'a mut [u8; PAGE_BYTES]) -> Result<Page<'a>> {
        self.counters.page_reads.fetch_add(1, Ordering::Relaxed);
        {
            let overlay = self.in_place.read();
            match overlay.get(page) {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => self.file.read_at(offset(page), buffer)?,
            }
        }
        let read = self.decode(page, buffer)?;
        self.filter.learn(page, &read);
        Ok(read)
    }

    /// Reads `pages` consecutive pages from an even `first` on, as of one time. Does not decode them.
    pub fn read_run(&self, first: u32, pages: usize, buffer: &mut Vec<u8>) -> Result<()> {
        self.counters.page_reads.fetch_add(pages as u64, Ordering::Relaxed);
        buffer.resize(pages * PAGE_BYTES, 0);
        let overlay = self.in_place.read();
        // If all of them are in memory, the file may not have them yet.
        if overlay.is_empty() || !(first..).take(pages).all(|page| overlay.get(page).is_some()) {
            self.file.read_at(offset(first), buffer)?;
        }
        if !overlay.is_empty() {
            for (page, bytes) in (first..).zip(buffer.chunks_exact_mut(PAGE_BYTES)) {
                if let Some(overlay) = overlay.get(page) {
                    bytes.copy_from_slice(overlay);
                }
            }
        }
        Ok(())
    }

    /// Decodes a page from bytes of [`PageFile::read_run`].
    pub fn decode<'a>(&self, page: u32, bytes: &'a [u8]) -> Result<Page<'a>> {
        Page::decode(bytes, self.shape.place(page)).map_err(|damage| self.damaged(page, &damage))
    }

    /// Announces that `pages` pages from `first` on will be read soon.
    pub fn read_ahead(&self, first: u32, pages: usize) {
        self.file.read_ahead(offset(first), (pages * PAGE_BYTES) as u64);
    }

    /// Writes the pages of a journal in place, durable on return. After an error, readers use memory until a repeat
    /// succeeds.
    pub fn write_in_place(&self, journal: &Journal) -> Result<()> {
        self.move_in_place(journal, || ())
    }

    /// Does the same and runs `then` before anybody reads one of these pages, whether or not the write succeeds.
    pub fn move_in_place(&self, journal: &Journal, then: impl FnOnce()) -> Result<()> {
        self.cache.begin_write();
        let written = self.write_runs(journal, then).and_then(|()| Ok(self.file.sync()?));
        // Also after an error: some pages are in place, and all are in memory below.
        self.cache.end_write(journal.pages().map(|(page, _)| page));
        if written.is_err() {
            self.overlay(journal);
        } else if self.has_overlay.load(Ordering::Acquire) {
            let mut overlay = self.in_place.write();
            overlay.uncover(journal);
            self.has_overlay.store(!overlay.is_empty(), Ordering::Release);
        }
        written
    }

    fn write_runs(&self, journal: &Journal, then: impl FnOnce()) -> Result<()> {
        let mut overlay = self.in_place.write();
        let written = journal.runs().try_for_each(|(first, bytes)| self.file.write_at(offset(first), bytes));
        if written.is_err() {
            // Do it before releasing the lock: nobody may see a half-written page.
            overlay.cover(journal);
            self.has_overlay.store(true, Ordering::Release);
        }
        then();
        Ok(written?)
    }
}

/// Returns where a page starts.
pub(super) fn offset(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

/// The file's name in the partition's directory.
pub(super) const FILE_NAME: &str = "pages-00000000";
