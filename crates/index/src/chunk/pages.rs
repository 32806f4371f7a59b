//! The pages of a partition in one file. Growth moves them in it, from one *generation* to the next (`grow.rs`).
//!
//! Lookups read while a sweep writes in place. A single page is read without a lock: a read that saw a page half old and half new fails its
//! checksum and is repeated under the lock that the sweep holds while it writes. Both pages of a pair are read under that lock, because an entry
//! may move from one to the other, unless their positions show that they are of one moment (`lookup.rs`).
//!
//! Pages that could not be written in place (the device failed, or the index is open for reading) are read from memory, where the
//! journal's copy of them stays until they are.

use super::Counters;
use super::expected::ExpectedPages;
use super::filter::Filter;
use super::journal::Journal;
use super::page::{PAGE_BYTES, Page, PageDamage, Place};
use super::page_cache::PageCache;
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, ReadRequest};
use parking_lot::RwLock;
use std::collections::HashMap;
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
    /// `log2` of the number of pages before those that have moved.
    pub page_bits: u32,
    /// Pages from here on have moved: page `i` to `2i` and `2i + 1` of the next generation. The number of pages: none has (`grow.rs`).
    pub moved_from: u32,
    /// Bytes of a digest.
    pub digest_bytes: usize,
}

impl Shape {
    /// A shape of which no page has moved.
    pub fn whole(generation: u32, partition_bits: u32, page_bits: u32, digest_bytes: usize) -> Shape {
        Shape { generation, partition_bits, page_bits, moved_from: 1 << page_bits, digest_bytes }
    }

    /// Whether some pages have moved.
    pub fn is_growing(&self) -> bool {
        self.moved_from < 1 << self.page_bits
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        (2 << self.page_bits) - u64::from(self.moved_from)
    }

    /// Behind the number of the last page. Between those that have moved and those that have not are numbers that are no pages.
    pub fn end(&self) -> u64 {
        (1 << self.page_bits) << u32::from(self.is_growing())
    }

    /// Pages for which the file has room on the device: those of before the growth, of which some are no pages any more and pages come there again, and those that
    /// have moved behind them. What lies between is a hole.
    pub fn allocated(&self) -> u64 {
        let before = 1 << self.page_bits;
        before + self.end().saturating_sub(before.max(2 * u64::from(self.moved_from)))
    }

    /// The pages from `first` up to but not `end`, as ranges of their numbers. Both are even.
    pub fn ranges(&self, first: u64, end: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let moved_from = u64::from(self.moved_from);
        let ranges = [first..end.min(moved_from), first.max(2 * moved_from)..end.min(self.end())];
        ranges.into_iter().filter(|range| !range.is_empty())
    }

    /// The page where a fingerprint is at home.
    pub fn home(&self, fingerprint: &Fingerprint) -> u32 {
        self.home_of(fingerprint.prefix())
    }

    /// The page where fingerprints with this prefix are at home.
    pub fn home_of(&self, prefix: u64) -> u32 {
        let own = prefix << self.partition_bits;
        let home = (own >> (64 - self.page_bits)) as u32;
        if home < self.moved_from { home } else { (own >> (63 - self.page_bits)) as u32 }
    }

    /// How far into its home's part of the fingerprints one is, in units of 2^-64: about that far into the page's entries it lies.
    pub fn fraction(&self, fingerprint: &Fingerprint) -> u64 {
        let own = fingerprint.prefix() << self.partition_bits;
        let has_moved = (own >> (64 - self.page_bits)) as u32 >= self.moved_from;
        own << (self.page_bits + u32::from(has_moved))
    }

    /// What page `page` says of itself.
    pub fn place(&self, page: u32) -> Place {
        let generation = self.generation.wrapping_add(u32::from(page >= self.moved_from));
        Place { page, generation, digest_bytes: self.digest_bytes }
    }

    /// When the pages from `moved_from` on have moved. At 0 all have, and the next generation is whole.
    pub fn moved(&self, moved_from: u32) -> Shape {
        match moved_from {
            0 => Shape::whole(self.generation.wrapping_add(1), self.partition_bits, self.page_bits + 1, self.digest_bytes),
            _ => Shape { moved_from, ..*self },
        }
    }

    /// What a page number up to which a sweep has come is then. Never a greater one: pages would be passed over. (A smaller one would only cost time, as
    /// each page says itself how far it is.)
    pub fn moved_progress(&self, progress: u64, moved_from: u32) -> u64 {
        if progress > u64::from(moved_from) && progress <= u64::from(self.moved_from) { 2 * progress } else { progress }
    }

    /// The beginning of a page's fingerprints, as a 32-bit fraction of all in the partition.
    pub fn fraction_of_page(&self, page: u32) -> u32 {
        ((u64::from(page) << 32) >> (self.page_bits + u32::from(page >= self.moved_from))) as u32
    }

    /// The page that has this fraction.
    pub fn page_at(&self, fraction: u32) -> u32 {
        let page = (u64::from(fraction) << self.page_bits) >> 32;
        if page < u64::from(self.moved_from) { page as u32 } else { ((u64::from(fraction) << (self.page_bits + 1)) >> 32) as u32 }
    }
}

/// Bounds of the memory of a partition beside its changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Of the pages that are kept.
    pub cache_bytes: usize,
    /// Of the filter.
    pub filter_bytes: usize,
    /// Pages that are read for look-ups to come.
    pub expected_pages: usize,
}

/// The file of pages, and where they are in it at one time.
#[derive(Debug)]
pub(super) struct PageFile {
    /// Where its pages are.
    pub shape: Shape,
    kept: Arc<Kept>,
}

/// What stays when pages move.
#[derive(Debug)]
pub(super) struct Kept {
    /// What its pages may hold.
    pub filter: Filter,
    /// Pages of it in memory.
    pub cache: PageCache,
    /// Pages of it that are being read for look-ups to come.
    pub expected: ExpectedPages,
    file: Arc<dyn File>,
    path: String,
    /// Held for writing while pages are written in place. Holds the pages of a journal that are not in place.
    in_place: RwLock<HashMap<u32, Box<[u8]>>>,
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
    /// Takes an open file; `path` is how a person knows it.
    pub fn new(file: Arc<dyn File>, path: String, shape: Shape, memory: Memory, counters: Arc<Counters>) -> PageFile {
        let filter = Filter::new(shape.end(), memory.filter_bytes);
        let cache = PageCache::new(memory.cache_bytes, shape.end(), shape.digest_bytes);
        let expected = ExpectedPages::new(memory.expected_pages);
        let kept = Kept { filter, cache, expected, file, path, in_place: RwLock::default(), has_overlay: AtomicBool::new(false), counters };
        PageFile { shape, kept: Arc::new(kept) }
    }

    /// The same file when pages have moved.
    pub fn reshaped(&self, shape: Shape) -> PageFile {
        PageFile { shape, kept: self.kept.clone() }
    }

    /// Has memory for so many pages.
    pub fn expect_pages(&self, pages: u64) {
        self.filter.extend(pages);
        self.cache.extend(pages);
    }

    /// Has memory and room on the device for the pages of a journal. A full device says so here, before they are in the journal.
    pub fn expect_journal(&self, journal: &Journal) -> Result<()> {
        let Some(last) = journal.pages().last().map(|(page, _)| u64::from(page)) else { return Ok(()) };
        if last >= self.shape.end() {
            self.expect_pages(last + 1);
            self.file.allocate_from_reserve(offset(last as u32 + 1) / 2, offset(last as u32 + 1) / 2)?;
        }
        Ok(())
    }

    /// Writes pages that nobody looks at yet, from page `first` on; durable on return.
    pub fn write_moved(&self, first: u32, bytes: &[u8]) -> Result<()> {
        // A full device says so here. Without growing, nothing that was removed could be noted either.
        self.file.allocate_from_reserve(offset(first), bytes.len() as u64)?;
        self.cache.begin_write();
        let written = self.file.write_at(offset(first), bytes).and_then(|()| self.file.sync());
        self.cache.end_write(first..first + (bytes.len() / PAGE_BYTES) as u32);
        Ok(written?)
    }

    /// Reads the pages of `journal` instead of those in the file.
    pub fn overlay(&self, journal: &Journal) {
        let mut overlay = self.in_place.write();
        overlay.extend(journal.pages().map(|(page, bytes)| (page, bytes.into())));
        self.has_overlay.store(true, Ordering::Release);
    }

    /// How a person knows the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// An error if pages are only in memory: the journal that had them on the device is gone, and the sweep cannot end.
    pub fn nothing_in_memory(&self) -> Result<()> {
        match self.in_place.read().keys().next() {
            Some(page) => Err(self.lost_journal(*page)),
            None => Ok(()),
        }
    }

    /// The error of a page that only a journal has which cannot be read.
    pub fn lost_journal(&self, page: u32) -> IndexError {
        let what = "it could not be written, and the journal that holds it cannot be read".to_string();
        IndexError::ChunkIndexDamaged { path: self.path.clone(), page: Some(page), what }
    }

    /// A damage of page `page`.
    pub fn damaged(&self, page: u32, damage: &PageDamage) -> IndexError {
        IndexError::ChunkIndexDamaged { path: self.path.clone(), page: Some(page), what: damage.to_string() }
    }

    /// Has the next read of a run of pages come from the device.
    pub fn drop_cached(&self, first: u32, count: usize) {
        self.file.drop_cached(u64::from(first) * PAGE_BYTES as u64, (count * PAGE_BYTES) as u64);
    }

    /// Where page `page` lies, for a read whose bytes go to [`PageFile::take`].
    pub fn request(&self, page: u32) -> ReadRequest {
        ReadRequest { file: self.file.clone(), offset: offset(page), length_bytes: PAGE_BYTES }
    }

    /// Takes page `page` out of `bytes`, which were read without a lock, or reads it again. It is kept in memory if no page was written since `writes` was asked for.
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

    /// Reads one page into `buffer`, while none is written in place.
    pub fn read<'a>(&self, page: u32, buffer: &'a mut [u8; PAGE_BYTES]) -> Result<Page<'a>> {
        self.counters.page_reads.fetch_add(1, Ordering::Relaxed);
        {
            let overlay = self.in_place.read();
            match overlay.get(&page) {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => self.file.read_at(offset(page), buffer)?,
            }
        }
        let read = self.decode(page, buffer)?;
        self.filter.learn(page, &read);
        Ok(read)
    }

    /// Reads `pages` consecutive pages from an even `first` on, as they are together at one time. Not decoded.
    pub fn read_run(&self, first: u32, pages: usize, buffer: &mut Vec<u8>) -> Result<()> {
        self.counters.page_reads.fetch_add(pages as u64, Ordering::Relaxed);
        buffer.resize(pages * PAGE_BYTES, 0);
        let overlay = self.in_place.read();
        // Where all are in memory, the file may not have them yet.
        if overlay.is_empty() || !(first..).take(pages).all(|page| overlay.contains_key(&page)) {
            self.file.read_at(offset(first), buffer)?;
        }
        if !overlay.is_empty() {
            for (page, bytes) in (first..).zip(buffer.chunks_exact_mut(PAGE_BYTES)) {
                if let Some(overlay) = overlay.get(&page) {
                    bytes.copy_from_slice(overlay);
                }
            }
        }
        Ok(())
    }

    /// Decodes page `page` from bytes of [`PageFile::read_run`].
    pub fn decode<'a>(&self, page: u32, bytes: &'a [u8]) -> Result<Page<'a>> {
        Page::decode(bytes, self.shape.place(page)).map_err(|damage| self.damaged(page, &damage))
    }

    /// Says that `pages` pages from `first` on will be read soon.
    pub fn read_ahead(&self, first: u32, pages: usize) {
        self.file.read_ahead(offset(first), (pages * PAGE_BYTES) as u64);
    }

    /// Writes the pages of a journal in place; durable on return. After an error they are read from memory until it is repeated.
    pub fn write_in_place(&self, journal: &Journal) -> Result<()> {
        self.move_in_place(journal, || ())
    }

    /// The same; `then` is done before anybody reads one of these pages, whether they could be written or not.
    pub fn move_in_place(&self, journal: &Journal, then: impl FnOnce()) -> Result<()> {
        self.cache.begin_write();
        let written = self.write_runs(journal, then).and_then(|()| Ok(self.file.sync()?));
        // After an error too: some are in place, and all are in memory below.
        self.cache.end_write(journal.pages().map(|(page, _)| page));
        if written.is_err() {
            self.overlay(journal);
        } else if self.has_overlay.load(Ordering::Acquire) {
            let mut overlay = self.in_place.write();
            journal.pages().for_each(|(page, _)| drop(overlay.remove(&page)));
            self.has_overlay.store(!overlay.is_empty(), Ordering::Release);
        }
        written
    }

    fn write_runs(&self, journal: &Journal, then: impl FnOnce()) -> Result<()> {
        let mut overlay = self.in_place.write();
        let written = journal.runs().try_for_each(|(first, bytes)| self.file.write_at(offset(first), bytes));
        if written.is_err() {
            // Before the lock is given back: nobody may see a page that is half written.
            overlay.extend(journal.pages().map(|(page, bytes)| (page, bytes.into())));
            self.has_overlay.store(true, Ordering::Release);
        }
        then();
        Ok(written?)
    }
}

/// Where a page starts.
pub(super) fn offset(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

/// The name of the file in the partition's directory.
pub(super) const FILE_NAME: &str = "pages-00000000";
