//! Growth: the hash table doubles while it is in use (M1.13), and the area grows with the highest block.
//!
//! # How the table doubles
//! 1. The file of the next generation is *made*: all its pages are empty and durable. The header does not know it yet.
//!    A crash leaves a file that the next opening removes.
//! 2. Steps *move families*, in the order of their homes. A step takes the next homes, and their records go from the
//!    old table to the new one. Their full fingerprints, from the area, say which of two homes they have there. A step
//!    happens as a whole, through the journal, and the header's `grown` says how far the homes have moved.
//! 3. With the last step the header names the next generation, and the old file goes.
//!
//! Meanwhile a family is in the table that `grown` says, as a whole. The two tables do not lead to each other. Each
//! obeys the rules of `family.rs` by itself: a record in the old table may be a stranger at a home that has moved,
//! wherever its list began before the end of the table. Families that have moved leave free slots behind, and others
//! may use them.
//!
//! # Room
//! The table grows at three quarters, counting what the sweep still brings. Steps of growth take turns with those of
//! the sweep. If the sweep brings more than there is room for, only growth goes on until there is. A sweep goes in the
//! order of the homes. In a table that is too small for all of it, its first chunks would fill the first slots to the
//! last one, and each search for a free slot would pass all of them.
//!
//! A step of growth moves many times more records than one of the sweep inserts. A step of the sweep may insert a few
//! records more than there is room for, because it does not end between chunks that share their first 64 bits. Digests
//! hardly ever do: some slots are kept for them.

use super::header::{Header, MAX_SLOTS_BITS, StepKind, Table};
use super::page::{Layout, PageId, PagedFile, UNITS_PER_PAGE, seal_page};
use super::step::Step;
use super::sweep::STEP_PAGES;
use super::{Files, LinkedIndex, UNIT_BLOCKS};
use crate::Result;
use crate::paged::PAGE_BYTES;
use onefold_ground::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots that stay free for chunks that go in one step with others.
const KEPT_SLOTS: u64 = 6;

/// A table that is being made.
#[derive(Debug)]
pub(super) struct Made {
    file: Arc<dyn File>,
    /// Pages that are there.
    pages: u64,
}

impl Header {
    /// Returns the number of records from which only growth goes on.
    pub fn most_entries(&self) -> u64 {
        let slots = self.table().slots();
        slots - (slots / 16).max(KEPT_SLOTS)
    }

    /// Returns the same for a device without room for growth.
    pub fn last_entries(&self) -> u64 {
        let slots = self.table().slots();
        slots - (slots / 64).max(KEPT_SLOTS)
    }
}

impl LinkedIndex {
    /// Returns whether the table has to grow for its records and so many more.
    pub(super) fn wants_growth(&self, files: &Files, more: u64) -> bool {
        let header = files.header.current();
        let is_due = header.entries + more > header.table().slots() / 4 * 3 || header.entries >= header.most_entries();
        header.grown > 0 || files.made.is_some() || (is_due && header.bits < MAX_SLOTS_BITS)
    }

    /// Returns whether a full device may wait with growth.
    pub(super) fn has_last_slots(&self, files: &Files) -> bool {
        let header = files.header.current();
        files.pending.is_none() && !files.header.is_in_doubt() && header.entries < header.last_entries()
    }

    /// Makes some pages of the next table, or moves some families there.
    pub(super) fn grow(&self, files: &mut Files) -> Result<()> {
        let header = files.header.current();
        let is_made = self.shown.read().next.is_some();
        if !is_made {
            return self.make(files, header.next_table());
        }
        files.made = None;
        let slots = header.table().slots();
        let mut step = Step::new(&self.shown, header);
        let mut home = header.grown;
        while home < slots && !step.is_full(STEP_PAGES) {
            step.move_family(home)?;
            home += 1;
        }
        let kind = if home < slots { StepKind::Growth } else { StepKind::GrowthEnd };
        let figures = step.figures;
        let journal = step.into_journal(kind, header.progress, home);
        self.counters.page_reads.fetch_add(figures.page_reads, Ordering::Relaxed);
        self.counters.growth_page_writes.fetch_add(journal.len() as u64, Ordering::Relaxed);
        self.commit(files, journal)
    }

    /// Makes some pages of the next table.
    fn make(&self, files: &mut Files, table: Table) -> Result<()> {
        let file = PagedFile::Slots(table.generation);
        let total = pages_of(&files.header.current().layout, table);
        let made = match &mut files.made {
            Some(made) => made,
            None => {
                let path = format!("{}/{file}", self.directory);
                // An earlier try may have left it.
                let handle = if self.ground.exists(&path)? {
                    self.ground.open(&path, onefold_ground::Access::ReadWrite)?
                } else {
                    self.ground.create(&path)?
                };
                files.made.insert(Made { file: handle, pages: 0 })
            }
        };
        let end = total.min(made.pages + STEP_PAGES as u64);
        write_empty(made.file.as_ref(), file, made.pages..end)?;
        self.counters.growth_page_writes.fetch_add(end - made.pages, Ordering::Relaxed);
        made.pages = end;
        if end == total {
            self.ground.sync_directory(&self.directory)?;
            self.shown.write().next = Some(made.file.clone());
        }
        Ok(())
    }

    /// Removes the table of an old generation. A failure does no harm: the next opening removes it.
    pub(super) fn remove_table(&self, generation: u8) {
        let path = format!("{}/{}", self.directory, PagedFile::Slots(generation));
        if let Err(error) = self.ground.remove(&path).and_then(|()| self.ground.sync_directory(&self.directory)) {
            tracing::warn!(%error, "the old table of a linked index was not removed; the next opening removes it");
        }
    }

    /// Makes room in the area for some more of the blocks before `end`.
    pub(super) fn extend(&self, files: &mut Files, end: u64) -> Result<()> {
        let header = files.header.current();
        let per_page = header.layout.blocks_per_page();
        let first = header.blocks / per_page;
        let last = end.div_ceil(per_page).min(first + STEP_PAGES as u64);
        let (blocks, units) = {
            let shown = self.shown.read();
            (shown.blocks.clone(), shown.units.clone())
        };
        write_empty(blocks.as_ref(), PagedFile::Blocks, first..last)?;
        let next = Header { blocks: last * per_page, ..header };
        let new_units = unit_pages(header.blocks)..unit_pages(next.blocks);
        if !new_units.is_empty() {
            write_empty(units.as_ref(), PagedFile::Units, new_units)?;
        }
        files.header.write(next)?;
        self.shown.write().header.blocks = next.blocks;
        Ok(())
    }
}

/// Returns the number of a table's pages.
pub(super) fn pages_of(layout: &Layout, table: Table) -> u64 {
    table.slots().div_ceil(layout.slots_per_page())
}

/// Returns the number of pages of units, for this many blocks.
pub(super) fn unit_pages(blocks: u64) -> u64 {
    blocks.div_ceil(UNIT_BLOCKS).div_ceil(UNITS_PER_PAGE)
}

/// Writes pages without records, durable on return. Reclamation needs them too, since it cannot record removals without
/// room in the table and the area. So they may use the reserve.
pub(super) fn write_empty(to: &dyn File, file: PagedFile, pages: Range<u64>) -> Result<()> {
    let offset = |number: u64| PageId { file, number }.offset();
    to.allocate_from_reserve(offset(pages.start), (pages.end - pages.start) * PAGE_BYTES as u64)?;
    let mut bytes = Vec::new();
    for number in pages.clone() {
        let start = bytes.len();
        bytes.resize(start + PAGE_BYTES, 0);
        seal_page(&mut bytes[start..], PageId { file, number });
        if bytes.len() == 256 * PAGE_BYTES || number + 1 == pages.end {
            to.write_at(offset(number + 1) - bytes.len() as u64, &bytes)?;
            bytes.clear();
        }
    }
    Ok(to.sync()?)
}
