//! The pages as readers see them.
//!
//! A step of the sweep changes many pages, and readers follow links from one page to another. So they must see either
//! all pages of a step or none. The step first puts its pages into the overlay, under the lock that readers hold while
//! they walk. Then it writes them in place without the lock, and nobody reads these places meanwhile.

use super::header::{Header, Journal, Table};
use super::page::{AreaRecord, Layout, PageDamage, PageId, PagedFile, Slot, check_page, unit_place};
use crate::paged::{Overlay, PAGE_BYTES, u32_at};
use crate::{IndexError, Result};
use onefold_ground::File;
use std::sync::Arc;

/// The files, their header, and the pages that are not in place.
#[derive(Debug)]
pub(super) struct Shown {
    /// The header that these pages belong to. It may be ahead of the durable one.
    pub header: Header,
    pub blocks: Arc<dyn File>,
    pub units: Arc<dyn File>,
    /// The table of the header's generation.
    pub slots: Arc<dyn File>,
    /// The table of the next generation, while the table grows.
    pub next: Option<Arc<dyn File>>,
    pub overlay: Overlay<PageId>,
    /// The directory, for messages.
    pub path: String,
}

impl Shown {
    /// Returns a file. Errors: there is no such table.
    pub fn file(&self, file: PagedFile) -> Result<&Arc<dyn File>> {
        match file {
            PagedFile::Blocks => Ok(&self.blocks),
            PagedFile::Units => Ok(&self.units),
            PagedFile::Slots(generation) if generation == self.header.generation => Ok(&self.slots),
            PagedFile::Slots(generation) => {
                let next = self.next.as_ref().filter(|_| generation == self.header.generation + 1);
                next.ok_or_else(|| self.damaged(PageId { file, number: 0 }, "the header names no such table"))
            }
        }
    }

    /// Reads a page.
    pub fn read(&self, id: PageId, buffer: &mut [u8; PAGE_BYTES]) -> Result<()> {
        match self.overlay.get(id) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => self.file(id.file)?.read_at(id.offset(), buffer)?,
        }
        check_page(buffer, id).map_err(|damage: PageDamage| self.damaged(id, damage))
    }

    /// Makes readers use the pages of a journal and the header that belongs to them.
    pub fn show(&mut self, header: Header, journal: &Journal) {
        self.overlay.cover(journal);
        if header.generation != self.header.generation
            && let Some(next) = self.next.take()
        {
            self.slots = next;
        }
        self.header = header;
    }

    /// Makes the error for a damaged page.
    pub fn damaged(&self, id: PageId, what: impl ToString) -> IndexError {
        damaged(&self.path, id, what)
    }

    /// Returns how many blocks of a unit are used.
    pub fn used_in_unit(&self, unit: u64) -> Result<u32> {
        let (id, place) = unit_place(unit);
        let mut page = [0; PAGE_BYTES];
        self.read(id, &mut page)?;
        Ok(u32_at(&page, place))
    }
}

/// Makes the error for a damaged page of an index in `directory`.
pub(super) fn damaged(directory: &str, id: PageId, what: impl ToString) -> IndexError {
    IndexError::LinkedIndexDamaged { path: format!("{directory}/{}", id.file), page: Some(id.number), what: what.to_string() }
}

/// Which record was read or written, as the paper counts them (M1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordAccess {
    ReadSlot(u64),
    WriteSlot(u64),
    ReadArea(u64),
    WriteArea(u64),
}

/// Where records are read from: pages that readers see, or those of a step that is being made.
pub(super) trait Pages {
    fn header(&self) -> &Header;
    fn page(&mut self, id: PageId) -> Result<&[u8; PAGE_BYTES]>;
    fn count(&mut self, access: RecordAccess);
    fn damaged(&self, id: PageId, what: String) -> IndexError;

    fn layout(&self) -> Layout {
        self.header().layout
    }

    /// Reads a slot of a table.
    fn slot(&mut self, table: Table, number: u64) -> Result<Slot> {
        let layout = self.layout();
        let (id, place) = layout.slot_place(table.generation, number);
        if number >= table.slots() {
            return Err(self.damaged(id, format!("a list leads to slot {number} of {}", table.slots())));
        }
        self.count(RecordAccess::ReadSlot(number));
        Ok(layout.slot(self.page(id)?, place))
    }

    /// Reads a block's record of the area; `None`: the block is free.
    fn area(&mut self, block: u64) -> Result<Option<AreaRecord>> {
        let layout = self.layout();
        let (id, place) = layout.area_place(block);
        if block >= self.header().blocks {
            return Err(self.damaged(id, format!("a record names block {block} of {}", self.header().blocks)));
        }
        self.count(RecordAccess::ReadArea(block));
        Ok(layout.area(self.page(id)?, place))
    }
}

/// Reads the pages that readers see. Keeps the last page of the table and of the area.
pub(super) struct Walker<'a> {
    shown: &'a Shown,
    table: Kept,
    area: Kept,
    /// Pages read.
    pub reads: u64,
    /// Records read: slots and records of the area.
    pub records: [u64; 2],
}

struct Kept {
    id: Option<PageId>,
    bytes: [u8; PAGE_BYTES],
}

impl<'a> Walker<'a> {
    pub fn new(shown: &'a Shown) -> Walker<'a> {
        let kept = || Kept { id: None, bytes: [0; PAGE_BYTES] };
        Walker { shown, table: kept(), area: kept(), reads: 0, records: [0; 2] }
    }
}

impl Pages for Walker<'_> {
    fn header(&self) -> &Header {
        &self.shown.header
    }

    fn page(&mut self, id: PageId) -> Result<&[u8; PAGE_BYTES]> {
        let kept = if matches!(id.file, PagedFile::Slots(_)) { &mut self.table } else { &mut self.area };
        if kept.id != Some(id) {
            kept.id = None;
            self.shown.read(id, &mut kept.bytes)?;
            kept.id = Some(id);
            self.reads += 1;
        }
        Ok(&kept.bytes)
    }

    fn count(&mut self, access: RecordAccess) {
        self.records[usize::from(matches!(access, RecordAccess::ReadArea(_)))] += 1;
    }

    fn damaged(&self, id: PageId, what: String) -> IndexError {
        self.shown.damaged(id, what)
    }
}
