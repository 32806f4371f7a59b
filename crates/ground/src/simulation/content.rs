//! The bytes of a simulated file at one moment.
//!
//! Contents are maps of shared pages. So the cost of syncs and restarts follows the changes, not the size: an allocated
//! segment of 64 MiB is one number.

use super::ranges::Ranges;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The device's write unit. A crash leaves a sector old or new, never mixed.
pub(super) const SECTOR_BYTES: u64 = 512;
/// The unit of memory and of the capacity.
pub(super) const PAGE_BYTES: u64 = 4096;
const SECTORS_OF_A_PAGE: u64 = PAGE_BYTES / SECTOR_BYTES;

type Page = [u8; PAGE_BYTES as usize];

pub(super) fn pages_of(offset: u64, length: u64) -> Range<u64> {
    offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES)
}

fn sectors_of(offset: u64, length: u64) -> Range<u64> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}

/// The bytes of a file. Missing pages are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct FileBytes {
    pub(super) length: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    /// Pages that take space on the device.
    pub(super) room: Ranges,
    /// Sectors that the device cannot read until they are overwritten.
    unreadable: Ranges,
}

impl FileBytes {
    /// Splits `offset .. offset + length` by page. Yields the page number, the range in the page, and the range in the
    /// input.
    fn split(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
        pages_of(offset, length).map(move |page| {
            let start = offset.max(page * PAGE_BYTES);
            let end = (offset + length).min((page + 1) * PAGE_BYTES);
            let place = |at: u64, origin: u64| (at - origin) as usize;
            (page, place(start, page * PAGE_BYTES)..place(end, page * PAGE_BYTES), place(start, offset)..place(end, offset))
        })
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) {
        for (page, inside, outside) in FileBytes::split(offset, buffer.len() as u64) {
            match self.pages.get(&page) {
                Some(bytes) => buffer[outside].copy_from_slice(&bytes[inside]),
                None => buffer[outside].fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        for (page, inside, outside) in FileBytes::split(offset, data.len() as u64) {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(bytes)[inside].copy_from_slice(&data[outside]);
        }
        let length = data.len() as u64;
        self.room.insert(pages_of(offset, length));
        self.unreadable.remove(offset.div_ceil(SECTOR_BYTES)..(offset + length) / SECTOR_BYTES);
        self.length = self.length.max(offset + length);
    }

    pub(super) fn set_len(&mut self, length: u64) {
        if length < self.length {
            self.pages.split_off(&length.div_ceil(PAGE_BYTES));
            self.room.cut(length.div_ceil(PAGE_BYTES));
            self.unreadable.cut(length.div_ceil(SECTOR_BYTES));
            if let Some(bytes) = self.pages.get_mut(&(length / PAGE_BYTES)) {
                Arc::make_mut(bytes)[(length % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.length = length;
    }

    pub(super) fn allocate(&mut self, offset: u64, length: u64) {
        self.room.insert(pages_of(offset, length));
        self.length = self.length.max(offset + length);
    }

    /// Zeros pages, which take no space then.
    pub(super) fn punch_hole(&mut self, offset: u64, length: u64) {
        let pages = pages_of(offset, length);
        pages.clone().for_each(|page| drop(self.pages.remove(&page)));
        self.room.remove(pages);
        self.unreadable.remove(sectors_of(offset, length));
    }

    pub(super) fn flip(&mut self, offset: u64, xor: u8) {
        if let Some(bytes) = self.pages.get_mut(&(offset / PAGE_BYTES)) {
            Arc::make_mut(bytes)[(offset % PAGE_BYTES) as usize] ^= xor;
        } else {
            self.write(offset, &[xor]);
        }
    }

    pub(super) fn make_unreadable(&mut self, offset: u64, length: u64) {
        self.unreadable.insert(sectors_of(offset, length));
    }

    pub(super) fn make_readable(&mut self) {
        self.unreadable = Ranges::default();
    }

    pub(super) fn is_readable(&self, offset: u64, length: u64) -> bool {
        self.unreadable.overlap(&sectors_of(offset, length)) == 0
    }

    /// Returns whether a write is possible. A sector that it covers only in part must be readable.
    pub(super) fn is_writable(&self, offset: u64, length: u64) -> bool {
        let is_open = |edge: u64| edge.is_multiple_of(SECTOR_BYTES) || self.is_readable(edge, 1);
        length == 0 || (is_open(offset) && is_open(offset + length))
    }

    /// Drops all pages from the one that holds the end of a file of `length`, and takes that one page from `from`.
    pub(super) fn cut_as(&mut self, length: u64, from: &FileBytes) {
        self.pages.split_off(&length.div_ceil(PAGE_BYTES));
        self.unreadable.cut(length.div_ceil(SECTOR_BYTES));
        self.take_page(length / PAGE_BYTES, from);
    }

    /// Copies a page from `from`.
    pub(super) fn take_page(&mut self, page: u64, from: &FileBytes) {
        match from.pages.get(&page) {
            Some(bytes) => self.pages.insert(page, Arc::clone(bytes)),
            None => self.pages.remove(&page),
        };
        for sector in page * SECTORS_OF_A_PAGE..(page + 1) * SECTORS_OF_A_PAGE {
            if from.unreadable.overlap(&(sector..sector + 1)) > 0 {
                self.unreadable.insert(sector..sector + 1);
            } else {
                self.unreadable.remove(sector..sector + 1);
            }
        }
    }

    /// Returns the pages that differ.
    pub(super) fn differing_pages(&self, other: &FileBytes) -> Vec<u64> {
        let is_same = |page: &u64| match (self.pages.get(page), other.pages.get(page)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two) || one == two,
            (one, two) => one.or(two).is_none(),
        };
        let mut pages: Vec<u64> = self.pages.keys().chain(other.pages.keys()).copied().filter(|page| !is_same(page)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        self.read(0, &mut bytes);
        bytes
    }
}
