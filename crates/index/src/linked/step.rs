//! A step while it is made: the pages that it changes, in memory. They become a journal.

use super::changes::{Change, Entry, Memory};
use super::family::{self, Found, Link, Member, find, find_block, walk};
use super::header::{Header, Journal, JournalHead, StepKind, Table};
use super::page::{AnotherHome, AreaRecord, Backlink, Layout, Named, Occupant, PageId, PagedFile, Slot, seal_page, unit_place};
use super::pages::{Pages, RecordAccess, Shown, damaged};
use super::{Dia, UNIT_BLOCKS};
use crate::paged::{PAGE_BYTES, u32_at};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Pages of a step and those that it has read.
pub(super) struct Step<'a> {
    shown: &'a RwLock<Shown>,
    path: String,
    /// The header with the step's changes of its counts.
    pub header: Header,
    loaded: HashMap<PageId, Box<[u8; PAGE_BYTES]>>,
    changed: BTreeSet<PageId>,
    /// Records that the current change has read and written, each once.
    touched: Vec<RecordAccess>,
    pub figures: Figures,
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub underflows: u64,
    pub orphans: u64,
    pub page_reads: u64,
    /// Slots read and written, records of the area read and written.
    pub accesses: [u64; 4],
}

impl Pages for Step<'_> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn page(&mut self, id: PageId) -> Result<&[u8; PAGE_BYTES]> {
        if !self.loaded.contains_key(&id) {
            let mut bytes = Box::new([0; PAGE_BYTES]);
            self.shown.read().read(id, &mut bytes)?;
            self.figures.page_reads += 1;
            self.loaded.insert(id, bytes);
        }
        Ok(&self.loaded[&id])
    }

    fn count(&mut self, access: RecordAccess) {
        if !self.touched.contains(&access) {
            self.touched.push(access);
            let kind = match access {
                RecordAccess::ReadSlot(_) => 0,
                RecordAccess::WriteSlot(_) => 1,
                RecordAccess::ReadArea(_) => 2,
                RecordAccess::WriteArea(_) => 3,
            };
            self.figures.accesses[kind] += 1;
        }
    }

    fn damaged(&self, id: PageId, what: String) -> IndexError {
        damaged(&self.path, id, what)
    }
}

impl<'a> Step<'a> {
    /// Starts a step on the pages that readers see.
    pub fn new(shown: &'a RwLock<Shown>, header: Header) -> Step<'a> {
        let path = shown.read().path.clone();
        let (loaded, changed, touched) = (HashMap::new(), BTreeSet::new(), Vec::new());
        Step { shown, path, header, loaded, changed, touched, figures: Figures::default() }
    }

    /// Returns whether the step has as many pages as a journal should have, or has read twice as many.
    pub fn is_full(&self, most_pages: usize) -> bool {
        self.changed.len() >= most_pages || self.loaded.len() >= 2 * most_pages
    }

    /// Makes the journal.
    pub fn into_journal(mut self, kind: StepKind, progress: u64, grown: u64) -> Journal {
        // After the last step of growth nobody reads the old table.
        let dead = (kind == StepKind::GrowthEnd).then_some(PagedFile::Slots(self.header.generation));
        self.changed.retain(|id| Some(id.file) != dead);
        let Header { generation, target, step, entries, lost, early, .. } = self.header;
        let head = JournalHead { kind, generation: generation.into(), target, progress, step: step + 1, grown, entries, lost, early };
        let mut journal = Journal::with_room(head, self.changed.len());
        // Each page is freed once it is copied, so that the step and its journal are not both in memory.
        self.loaded.retain(|id, _| self.changed.contains(id));
        for id in &self.changed {
            if let Some(mut bytes) = self.loaded.remove(id) {
                seal_page(&mut bytes[..], *id);
                journal.push(*id, |out| out.extend_from_slice(&bytes[..]));
            }
        }
        journal
    }

    fn page_mut(&mut self, id: PageId) -> Result<&mut [u8; PAGE_BYTES]> {
        self.page(id)?;
        self.changed.insert(id);
        Ok(self.loaded.get_mut(&id).expect("it was loaded just now"))
    }

    fn put_slot(&mut self, table: Table, number: u64, slot: &Slot) -> Result<()> {
        let layout = self.layout();
        let (id, place) = layout.slot_place(table.generation, number);
        self.count(RecordAccess::WriteSlot(number));
        layout.put_slot(self.page_mut(id)?, place, slot);
        Ok(())
    }

    fn put_area(&mut self, block: u64, record: Option<AreaRecord>) -> Result<()> {
        let layout = self.layout();
        let (id, place) = layout.area_place(block);
        self.count(RecordAccess::WriteArea(block));
        layout.put_area(self.page_mut(id)?, place, record);
        Ok(())
    }

    fn count_block(&mut self, block: u64, change: i32) -> Result<()> {
        let (id, place) = unit_place(block / UNIT_BLOCKS);
        let page = self.page_mut(id)?;
        let Some(used) = u32_at(page, place).checked_add_signed(change) else {
            return Err(self.damaged(id, format!("block {block} is used, but its unit has no used block")));
        };
        page[place..place + 4].copy_from_slice(&used.to_le_bytes());
        Ok(())
    }

    /// Brings a chunk to the sweep's target. `gone` has the chunks that went before their turn.
    pub fn bring(&mut self, fingerprint: &Fingerprint, change: Change, frozen: &Memory, gone: &mut HashSet<Fingerprint>) -> Result<()> {
        self.touched.clear();
        let found = find(self, fingerprint)?;
        if let Some(Found { member, .. }) = found.filter(|found| found.member.slot.is_early) {
            self.header.early -= 1;
            return self.put_slot(member.table, member.number, &Slot { is_early: false, ..member.slot });
        }
        if gone.remove(fingerprint) {
            return Ok(());
        }
        let changed = change.apply(found.map(|found| found.entry));
        self.figures.underflows += u64::from(changed.is_underflow);
        self.figures.orphans += u64::from(changed.is_orphan);
        match (found, changed.entry) {
            (Some(found), Some(entry)) if entry.block == found.entry.block => self.rewrite(fingerprint, &found, entry),
            (found, entry) => {
                if let Some(found) = found {
                    self.take_out(fingerprint, &found)?;
                }
                match entry {
                    Some(entry) => self.settle(fingerprint, entry, frozen, gone),
                    None => Ok(()),
                }
            }
        }
    }

    /// Puts a chunk, which has no record, into its block. The chunk that is in the block on disk goes to the target
    /// first: the log has freed the block before it gave it away. That chunk's own block may be occupied in the same
    /// way, and so on.
    fn settle(&mut self, fingerprint: &Fingerprint, entry: Entry, frozen: &Memory, gone: &mut HashSet<Fingerprint>) -> Result<()> {
        let mut waiting = vec![(*fingerprint, entry, false)];
        while let Some((name, entry, is_early)) = waiting.last().copied() {
            let block = entry.block;
            let Some(other) = self.chunk_in(block)? else {
                self.put_in(&name, entry, is_early)?;
                waiting.pop();
                continue;
            };
            // Changes before this one are at the target already, so their chunks are there to stay.
            let change = frozen.changes.get(&other).filter(|_| other > *fingerprint);
            let found = find(self, &other)?.filter(|found| found.entry.block == block && !found.member.slot.is_early);
            let changed = change.zip(found).map(|(change, found)| (found, change.apply(Some(found.entry))));
            let Some((found, changed)) = changed.filter(|(_, changed)| changed.entry.is_none_or(|entry| entry.block != block)) else {
                let (id, _) = self.layout().area_place(block);
                return Err(self.damaged(id, format!("block {block} belongs to chunk {other} and, by the log, to chunk {name}")));
            };
            self.figures.underflows += u64::from(changed.is_underflow);
            self.take_out(&other, &found)?;
            match changed.entry {
                Some(entry) => waiting.push((other, entry, true)),
                None => drop(gone.insert(other)),
            }
        }
        Ok(())
    }

    /// Returns the chunk that is in a block. The page is written next, so this counts as a part of the write.
    fn chunk_in(&mut self, block: u64) -> Result<Option<Fingerprint>> {
        let (accesses, touched) = (self.figures.accesses, self.touched.len());
        let found = family::chunk_of(self, block)?;
        self.figures.accesses = accesses;
        self.touched.truncate(touched);
        Ok(found.map(|(named, _)| named.fingerprint))
    }

    fn put_in(&mut self, fingerprint: &Fingerprint, entry: Entry, is_early: bool) -> Result<()> {
        let layout = self.layout();
        let named = entry.named(fingerprint);
        let inside = if layout.dia == Dia::Slim { named } else { Named::default() };
        let Entry { block, is_lost, .. } = entry;
        let slot = Slot {
            block,
            is_lost,
            is_early,
            tag: layout.tag_of(fingerprint),
            route: Layout::route_of(fingerprint),
            inside,
            ..Slot::free(None)
        };
        let table = self.header.table_of(fingerprint);
        let number = self.insert(table, table.home(fingerprint), slot)?;
        let record = match layout.dia {
            Dia::Large => AreaRecord::Named(named),
            Dia::Slim => AreaRecord::Backlink(Backlink { generation: table.generation, slot: number }),
        };
        self.put_area(block, Some(record))?;
        self.count_block(block, 1)?;
        self.header.entries += 1;
        self.header.lost += u64::from(is_lost);
        self.header.early += u64::from(is_early);
        Ok(())
    }

    fn take_out(&mut self, fingerprint: &Fingerprint, found: &Found) -> Result<()> {
        let Entry { block, is_lost, .. } = found.entry;
        let table = self.header.table_of(fingerprint);
        self.remove(table, table.home(fingerprint), block)?;
        self.put_area(block, None)?;
        self.count_block(block, -1)?;
        self.header.entries -= 1;
        self.header.lost -= u64::from(is_lost);
        Ok(())
    }

    /// Changes an entry whose block stays.
    fn rewrite(&mut self, fingerprint: &Fingerprint, found: &Found, entry: Entry) -> Result<()> {
        let Found { member, entry: before } = found;
        let is_slim = self.layout().dia == Dia::Slim;
        let named = entry.named(fingerprint);
        let is_renamed = named != before.named(fingerprint);
        if is_renamed && !is_slim {
            self.put_area(entry.block, Some(AreaRecord::Named(named)))?;
        }
        if entry.is_lost != before.is_lost || (is_renamed && is_slim) {
            let inside = if is_slim { named } else { Named::default() };
            self.put_slot(member.table, member.number, &Slot { is_lost: entry.is_lost, inside, ..member.slot })?;
            self.header.lost = self.header.lost + u64::from(entry.is_lost) - u64::from(before.is_lost);
        }
        Ok(())
    }

    /// Links a record into a family (M1.4). Returns its slot.
    fn insert(&mut self, table: Table, home: u64, record: Slot) -> Result<u64> {
        let first = self.slot(table, home)?;
        let record = Slot { occupant: Occupant::Stranger, ..record };
        match first.occupant {
            Occupant::Free => {
                self.put_slot(table, home, &Slot { occupant: Occupant::Own, next: first.family, family: None, ..record })?;
                Ok(home)
            }
            Occupant::Own => {
                let (number, family) = self.free_behind(table, home)?;
                self.put_slot(table, number, &Slot { next: first.next, family, ..record })?;
                self.put_slot(table, home, &Slot { next: Some(number), ..first })?;
                Ok(number)
            }
            Occupant::Stranger => {
                let (number, family) = self.free_behind(table, home)?;
                self.put_slot(table, number, &Slot { next: first.family, family, ..record })?;
                self.put_slot(table, home, &Slot { family: Some(number), ..first })?;
                Ok(number)
            }
        }
    }

    /// Returns the next free slot behind a home, and the family whose home that slot is.
    fn free_behind(&mut self, table: Table, home: u64) -> Result<(u64, Option<u64>)> {
        let touched = self.touched.len();
        for distance in 1..table.slots() {
            let number = (home + distance) % table.slots();
            let slot = self.slot(table, number)?;
            // Each slot comes once. A long list of them would make every count slow.
            self.touched.truncate(touched);
            if slot.occupant == Occupant::Free {
                return Ok((number, slot.family));
            }
        }
        let (id, _) = self.layout().slot_place(table.generation, home);
        Err(self.damaged(id, format!("all {} slots are occupied, but there are {} records", table.slots(), self.header.entries)))
    }

    /// Takes a block's record out of a family.
    fn remove(&mut self, table: Table, home: u64, block: u64) -> Result<Slot> {
        let Member { number, link, slot, .. } = find_block(self, table, home, block)?;
        match link {
            Link::Home => self.put_slot(table, home, &Slot::free(slot.next))?,
            Link::Family => {
                let first = self.slot(table, home)?;
                self.put_slot(table, home, &Slot { family: slot.next, ..first })?;
                // The family whose home the slot is does not move.
                self.put_slot(table, number, &Slot::free(slot.family))?;
            }
            Link::After(before) => {
                let previous = self.slot(table, before)?;
                self.put_slot(table, before, &Slot { next: slot.next, ..previous })?;
                self.put_slot(table, number, &Slot::free(slot.family))?;
            }
        }
        Ok(slot)
    }

    /// Moves a family to the table of the next generation (M1.13).
    pub fn move_family(&mut self, home: u64) -> Result<()> {
        let (old, new) = (self.header.table(), self.header.next_table());
        loop {
            self.touched.clear();
            let first = walk(self, old, home, |_, member| Ok(Some(*member)))?;
            let Some(member) = first else { return Ok(()) };
            let next = match member.slot.next_home(old.bits, home) {
                Ok(Some(next)) => Ok(next),
                Ok(None) => {
                    let named = family::named(self, &member)?;
                    if old.home(&named.fingerprint) == home { Ok(new.home(&named.fingerprint)) } else { Err(AnotherHome) }
                }
                Err(error) => Err(error),
            };
            let Ok(next) = next else {
                let (id, _) = self.layout().slot_place(old.generation, member.number);
                return Err(self.damaged(id, format!("slot {} has a record of another family", member.number)));
            };
            let record = self.remove(old, home, member.slot.block)?;
            let number = self.insert(new, next, record)?;
            if self.layout().dia == Dia::Slim {
                self.put_area(record.block, Some(AreaRecord::Backlink(Backlink { generation: new.generation, slot: number })))?;
            }
        }
    }
}
