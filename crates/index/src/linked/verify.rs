//! Checks an index in pieces: every page, and that table, area and units agree.
//!
//! * *Table.* Each record's block has a chunk of the record's family, and a lookup of that chunk finds this very
//!   record. So every record is in its family's list, and no list has another family's records.
//! * *Area.* A lookup of each block's chunk finds the block.
//! * *Units.* The used blocks of a unit are as many as its count says.

use super::LinkedIndex;
use super::family::{chunk_of, find, named, walk};
use super::header::Table;
use super::page::{Layout, Occupant, PageId, PagedFile};
use super::pages::{Pages, Shown, Walker};
use super::{UNIT_BLOCKS, grow::pages_of};
use crate::paged::PAGE_BYTES;
use crate::{IndexError, Result};

/// Pages of the table in a piece.
const PIECE_PAGES: u64 = 256;

/// A page that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedDamage {
    /// The file.
    pub path: String,
    /// Its number.
    pub page: u64,
    /// What is wrong.
    pub why: String,
}

/// A place in the check. The default is the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkedPlace {
    /// A page of the table.
    Table(u64),
    /// A page of the table of the next generation.
    Next(u64),
    /// A unit of blocks.
    Unit(u64),
}

impl Default for LinkedPlace {
    fn default() -> LinkedPlace {
        LinkedPlace::Table(0)
    }
}

/// The result of checking a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedPiece {
    /// What is damaged.
    pub damaged: Vec<LinkedDamage>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Where to continue; `None`: this was the last piece.
    pub next: Option<LinkedPlace>,
}

impl LinkedIndex {
    /// Checks some pages, few enough that waiting sweeps hardly notice. With `from_device`, first drops these pages
    /// from the system's cache.
    pub fn verify(&self, from: LinkedPlace, from_device: bool) -> VerifiedPiece {
        let _files = self.files.lock();
        let shown = self.shown.read();
        let header = shown.header;
        let mut check = Check { shown: &shown, walker: Walker::new(&shown), damaged: Vec::new(), from_device };
        let next = match from {
            LinkedPlace::Table(page) => {
                let next = check.table(header.table(), page).map(LinkedPlace::Table);
                next.or((header.grown > 0).then_some(LinkedPlace::Next(0))).or((header.blocks > 0).then_some(LinkedPlace::Unit(0)))
            }
            LinkedPlace::Next(page) => {
                let next = if header.grown > 0 { check.table(header.next_table(), page) } else { None };
                next.map(LinkedPlace::Next).or((header.blocks > 0).then_some(LinkedPlace::Unit(0)))
            }
            LinkedPlace::Unit(unit) => {
                check.unit(unit);
                (unit + 1 < header.blocks.div_ceil(UNIT_BLOCKS)).then_some(LinkedPlace::Unit(unit + 1))
            }
        };
        VerifiedPiece { read_bytes: check.walker.reads * PAGE_BYTES as u64, damaged: check.damaged, next }
    }

    /// Checks everything.
    pub fn verify_all(&self) -> Vec<LinkedDamage> {
        let (mut damaged, mut next) = (Vec::new(), Some(LinkedPlace::default()));
        while let Some(place) = next {
            let piece = self.verify(place, false);
            damaged.extend(piece.damaged);
            next = piece.next;
        }
        damaged
    }
}

struct Check<'a> {
    shown: &'a Shown,
    walker: Walker<'a>,
    damaged: Vec<LinkedDamage>,
    from_device: bool,
}

impl Check<'_> {
    /// Checks some pages of a table. Returns the page to continue with.
    fn table(&mut self, table: Table, first: u64) -> Option<u64> {
        let layout = self.shown.header.layout;
        let end = pages_of(&layout, table).min(first + PIECE_PAGES);
        self.drop_cached(PagedFile::Slots(table.generation), first..end);
        for number in first..end {
            let id = PageId { file: PagedFile::Slots(table.generation), number };
            let mut bytes = [0; PAGE_BYTES];
            if let Err(error) = self.shown.read(id, &mut bytes) {
                self.report(id, error);
                continue;
            }
            let slots = number * layout.slots_per_page()..((number + 1) * layout.slots_per_page()).min(table.slots());
            for slot in slots {
                if let Err(error) = self.slot(table, slot) {
                    self.report(id, error);
                    // One report of a page is enough.
                    break;
                }
            }
        }
        (end < pages_of(&layout, table)).then_some(end)
    }

    fn slot(&mut self, table: Table, number: u64) -> Result<()> {
        let walker = &mut self.walker;
        let slot = walker.slot(table, number)?;
        let (id, _) = walker.layout().slot_place(table.generation, number);
        if slot.occupant == Occupant::Own && slot.family.is_some() {
            return Err(walker.damaged(id, format!("slot {number} has a record of its own and another list")));
        }
        if slot.occupant == Occupant::Free && slot.family.is_none() {
            return Ok(());
        }
        // The list that begins here leads to its end.
        walk(walker, table, number, |walker, member| {
            let chunk = named(walker, member)?;
            let is_of_family = table == walker.header().table_of(&chunk.fingerprint) && table.home(&chunk.fingerprint) == number;
            if is_of_family && member.slot.route == Layout::route_of(&chunk.fingerprint) {
                Ok(None::<()>)
            } else {
                Err(walker.damaged(id, format!("the family of slot {number} has chunk {}", chunk.fingerprint)))
            }
        })?;
        if slot.occupant == Occupant::Free {
            return Ok(());
        }
        let chunk = match chunk_of(walker, slot.block)? {
            Some((chunk, _)) => chunk.fingerprint,
            None => return Err(walker.damaged(id, format!("slot {number} has block {}, which is free", slot.block))),
        };
        match find(walker, &chunk)? {
            Some(found) if found.member.number == number && found.member.table == table => Ok(()),
            _ => Err(walker.damaged(id, format!("slot {number} has block {}, but no list leads from its chunk to it", slot.block))),
        }
    }

    fn unit(&mut self, unit: u64) {
        let header = self.shown.header;
        let per_page = header.layout.blocks_per_page();
        let blocks = unit * UNIT_BLOCKS..((unit + 1) * UNIT_BLOCKS).min(header.blocks);
        self.drop_cached(PagedFile::Blocks, blocks.start / per_page..blocks.end.div_ceil(per_page));
        let mut used = 0;
        let mut reported = None;
        for block in blocks {
            let (id, _) = header.layout.area_place(block);
            match self.block(block) {
                Ok(is_used) => used += u32::from(is_used),
                Err(error) => {
                    if reported != Some(id) {
                        self.report(id, error);
                    }
                    reported = Some(id);
                }
            }
        }
        let (id, _) = super::page::unit_place(unit);
        match self.shown.used_in_unit(unit) {
            Ok(counted) if counted == used || reported.is_some() => {}
            Ok(counted) => self.report(id, self.shown.damaged(id, format!("unit {unit} has {used} used blocks, not {counted}"))),
            Err(error) => self.report(id, error),
        }
    }

    /// Returns whether the block is used.
    fn block(&mut self, block: u64) -> Result<bool> {
        let walker = &mut self.walker;
        let Some((chunk, _)) = chunk_of(walker, block)? else { return Ok(false) };
        match find(walker, &chunk.fingerprint)? {
            Some(found) if found.entry.block == block => Ok(true),
            _ => {
                let (id, _) = walker.layout().area_place(block);
                Err(walker.damaged(id, format!("block {block} has chunk {}, but the table does not lead to it", chunk.fingerprint)))
            }
        }
    }

    fn report(&mut self, id: PageId, error: IndexError) {
        self.damaged.push(match error {
            IndexError::LinkedIndexDamaged { path, page, what } => LinkedDamage { path, page: page.unwrap_or(id.number), why: what },
            error => LinkedDamage { path: format!("{}/{}", self.shown.path, id.file), page: id.number, why: error.to_string() },
        });
    }

    fn drop_cached(&self, file: PagedFile, pages: std::ops::Range<u64>) {
        if self.from_device
            && let Ok(handle) = self.shown.file(file)
        {
            let offset = |number: u64| PageId { file, number }.offset();
            handle.drop_cached(offset(pages.start), offset(pages.end) - offset(pages.start));
        }
    }
}
