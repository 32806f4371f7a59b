//! The pages of a partition in one file, a *generation*; growth makes the next one.
//!
//! Lookups read while a sweep writes in place. A single page is read without a lock: a read that saw a page half old and half new fails its
//! checksum and is repeated under the lock that the sweep holds while it writes. Both pages of a pair are read under that lock, because an entry
//! may move from one to the other, unless their positions show that they are of one moment (`lookup.rs`).
//!
//! Pages that could not be written in place (the device failed, or the index is open for reading) are read from memory, where the
//! journal's copy of them stays until they are.

use super::Counters;
use super::filter::Filter;
use super::journal::Journal;
use super::page::{PAGE_BYTES, Page, PageDamage, Place};
use super::page_cache::PageCache;
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, Ground, ReadRequest};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the pages of a partition lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Generation of the file.
    pub generation: u32,
    /// `log2` of the number of partitions.
    pub partition_bits: u32,
    /// `log2` of the number of pages.
    pub page_bits: u32,
    /// Bytes of a digest.
    pub digest_bytes: usize,
}

impl Shape {
    /// Number of pages.
    pub fn pages(&self) -> u64 {
        1 << self.page_bits
    }

    /// The page where a fingerprint is at home.
    pub fn home(&self, fingerprint: &Fingerprint) -> u32 {
        self.home_of(fingerprint.prefix())
    }

    /// The page where fingerprints with this prefix are at home.
    pub fn home_of(&self, prefix: u64) -> u32 {
        ((prefix << self.partition_bits) >> (64 - self.page_bits)) as u32
    }

    /// How far into its home's part of the fingerprints one is, in units of 2^-64: about that far into the page's entries it lies.
    pub fn fraction(&self, fingerprint: &Fingerprint) -> u64 {
        fingerprint.prefix() << (self.partition_bits + self.page_bits)
    }

    /// What page `page` says of itself.
    pub fn place(&self, page: u32) -> Place {
        Place { page, generation: self.generation, digest_bytes: self.digest_bytes }
    }
}

/// Bounds of the memory of a partition beside its changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Of the pages that are kept.
    pub cache_bytes: usize,
    /// Of the filter.
    pub filter_bytes: usize,
}

/// The file of a generation.
#[derive(Debug)]
pub(super) struct PageFile {
    /// Where its pages are.
    pub shape: Shape,
    /// What its pages may hold.
    pub filter: Filter,
    /// Pages of it in memory.
    pub cache: PageCache,
    file: Arc<dyn File>,
    path: String,
    /// Held for writing while pages are written in place. Holds the pages of a journal that are not in place.
    in_place: RwLock<HashMap<u32, Box<[u8]>>>,
    /// Whether there are any.
    has_overlay: AtomicBool,
    counters: Arc<Counters>,
}

impl PageFile {
    /// Takes an open file; `path` is how a person knows it.
    pub fn new(file: Arc<dyn File>, path: String, shape: Shape, memory: Memory, counters: Arc<Counters>) -> PageFile {
        let filter = Filter::new(shape.pages(), memory.filter_bytes);
        let cache = PageCache::new(memory.cache_bytes, shape.pages(), shape.digest_bytes);
        PageFile { shape, filter, cache, file, path, in_place: RwLock::default(), has_overlay: AtomicBool::new(false), counters }
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
            Some(page) => {
                let what = "it could not be written, and the journal that holds it cannot be read".to_string();
                Err(IndexError::ChunkIndexDamaged { path: self.path.clone(), page: Some(*page), what })
            }
            None => Ok(()),
        }
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
        self.file.read_at(offset(first), buffer)?;
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
        self.cache.begin_write();
        let written = self.write_runs(journal).and_then(|()| Ok(self.file.sync()?));
        // After an error too: some are in place, and all are in memory below.
        self.cache.end_write(journal.pages().map(|(page, _)| page));
        if written.is_err() {
            self.overlay(journal);
        } else if self.has_overlay.load(Ordering::Acquire) {
            self.in_place.write().clear();
            self.has_overlay.store(false, Ordering::Release);
        }
        written
    }

    fn write_runs(&self, journal: &Journal) -> Result<()> {
        let mut overlay = self.in_place.write();
        for (first, bytes) in journal.runs() {
            if let Err(error) = self.file.write_at(offset(first), bytes) {
                // Before the lock is given back: nobody may see a page that is half written.
                overlay.extend(journal.pages().map(|(page, bytes)| (page, bytes.into())));
                self.has_overlay.store(true, Ordering::Release);
                return Err(error.into());
            }
        }
        Ok(())
    }
}

/// Where a page starts.
pub(super) fn offset(page: u32) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}

/// The name of a generation's file in the partition's directory.
pub(super) fn file_name(generation: u32) -> String {
    format!("pages-{generation:08x}")
}

/// Removes the files of other generations, which a crash during growth leaves.
pub(super) fn remove_others(ground: &dyn Ground, directory: &str, generation: u32) -> Result<()> {
    for entry in ground.list(directory)? {
        if entry.name.starts_with("pages-") && entry.name != file_name(generation) && !entry.is_directory {
            ground.remove(&format!("{directory}/{}", entry.name))?;
        }
    }
    Ok(())
}
