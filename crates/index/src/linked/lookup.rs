//! Lookups by fingerprint and by block.
//!
//! A lookup takes the lock of the pages, then the log's changes at one instant, and then walks the families. Nobody
//! changes pages meanwhile. The header of the pages says which frozen changes they already have.

use super::changes::{Change, Entry, Memory, resolve};
use super::family::{chunk_of, find, find_block};
use super::header::Header;
use super::pages::{Shown, Walker};
use super::step::Figures;
use super::{Counters, FIRST_ADDRESS, LinkedEntry, LinkedIndex, State, UNIT_BLOCKS, verify::LinkedDamage};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use parking_lot::RwLock;
use std::ops::Range;

/// Fingerprints of one round: a sweep may take its turn between two rounds.
const ROUND: usize = 64;
/// Blocks of one round.
const ROUND_BLOCKS: u64 = 4096;

/// The chunk of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// The chunk.
    pub fingerprint: Fingerprint,
    /// The caller's 24 bits.
    pub note: u32,
    /// Number of references. `u32::MAX` stays.
    pub count: u32,
    /// The chunk cannot be read any more, but its block is not free.
    pub is_lost: bool,
}

/// The changes of a chunk, as of one instant.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    frozen: Option<Change>,
    active: Option<Change>,
}

/// Where changes are taken from.
enum Moment<'a> {
    /// The index, as of now.
    Now(&'a RwLock<State>),
    /// A copy.
    Copied(&'a State),
}

impl Moment<'_> {
    fn with<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        match self {
            Moment::Now(state) => look(&state.read()),
            Moment::Copied(state) => look(state),
        }
    }
}

impl Changes {
    fn of(header: &Header, state: &State, fingerprint: &Fingerprint) -> Changes {
        let frozen = state.frozen.as_ref().filter(|frozen| !header.has(fingerprint, frozen.target));
        Changes { frozen: frozen.and_then(|frozen| frozen.memory.changes.get(fingerprint)), active: state.active.changes.get(fingerprint) }
    }

    fn is_empty(&self) -> bool {
        self.frozen.is_none() && self.active.is_none()
    }
}

impl Entry {
    pub(super) fn linked(&self) -> LinkedEntry {
        LinkedEntry { address: if self.is_lost { 0 } else { self.block + FIRST_ADDRESS }, note: self.note, count: self.count }
    }

    fn of_block(&self, fingerprint: Fingerprint) -> BlockEntry {
        BlockEntry { fingerprint, note: self.note, count: self.count, is_lost: self.is_lost }
    }
}

/// Looks a chunk up in pages and changes.
fn look_up(walker: &mut Walker<'_>, fingerprint: &Fingerprint, changes: Changes) -> Result<Option<Entry>> {
    let found = find(walker, fingerprint)?;
    // The sweep has brought an early record to its target already.
    let frozen = changes.frozen.filter(|_| !found.is_some_and(|found| found.member.slot.is_early));
    Ok(resolve(found.map(|found| found.entry), frozen, changes.active))
}

impl Counters {
    fn add_walker(&self, walker: &Walker<'_>) {
        let [slots, area] = walker.records;
        self.add(&Figures { page_reads: walker.reads, accesses: [slots, 0, area, 0], ..Figures::default() });
    }
}

impl LinkedIndex {
    /// Looks up many chunks: `out` gets one answer for each of `fingerprints`. Any number of threads may call it at
    /// once. Returns how many pages it read from files.
    pub fn lookup(&self, fingerprints: &[Fingerprint], out: &mut Vec<Option<LinkedEntry>>) -> Result<usize> {
        out.clear();
        out.resize(fingerprints.len(), None);
        let mut order: Vec<(u64, u32)> = fingerprints.iter().zip(0..).map(|(fingerprint, at)| (fingerprint.prefix(), at)).collect();
        // Homes in order: several may be in one page.
        order.sort_unstable();
        let mut reads = 0;
        for round in order.chunks(ROUND) {
            // Homes lie anywhere in the table: the device works on all of them at once.
            self.read_ahead(round.iter().map(|(_, at)| &fingerprints[*at as usize]));
            let shown = self.shown.read();
            let changes: Vec<Changes> = {
                let state = self.state.read();
                round.iter().map(|(_, at)| Changes::of(&shown.header, &state, &fingerprints[*at as usize])).collect()
            };
            let mut walker = Walker::new(&shown);
            for ((_, at), changes) in round.iter().zip(changes) {
                out[*at as usize] = look_up(&mut walker, &fingerprints[*at as usize], changes)?.map(|entry| entry.linked());
            }
            self.counters.add_walker(&walker);
            reads += walker.reads as usize;
        }
        Ok(reads)
    }

    /// Returns which chunks `count` blocks from `first` on belong to, after all batches applied so far. `None`: the
    /// block is free.
    pub fn blocks(&self, first: u64, count: usize, out: &mut Vec<Option<BlockEntry>>) -> Result<()> {
        out.clear();
        let end = first.saturating_add(count as u64);
        let mut from = first;
        while from < end {
            let to = end.min(from + ROUND_BLOCKS);
            let shown = self.shown.read();
            self.blocks_of(&shown, &Moment::Now(&self.state), from..to, out)?;
            from = to;
        }
        Ok(())
    }

    /// Appends the chunks of some blocks.
    fn blocks_of(&self, shown: &Shown, moment: &Moment<'_>, range: Range<u64>, out: &mut Vec<Option<BlockEntry>>) -> Result<()> {
        let mut walker = Walker::new(shown);
        let header = &shown.header;
        // Only the table says that a record is lost or early. Nearly always there are none.
        let is_plain = header.lost == 0 && header.early == 0;
        let mut on_disk = Vec::with_capacity((range.end - range.start) as usize);
        for block in range.clone() {
            on_disk.push(if block < header.blocks { chunk_of(&mut walker, block)? } else { None });
        }
        let mut changed: Vec<(u64, Fingerprint, Changes)> = Vec::new();
        moment.with(|state| {
            let mut add = |block: u64, fingerprint: &Fingerprint| {
                let changes = Changes::of(header, state, fingerprint);
                if !changes.is_empty() {
                    changed.push((block, *fingerprint, changes));
                }
            };
            for (block, found) in range.clone().zip(&on_disk) {
                if let Some((named, _)) = found {
                    add(block, &named.fingerprint);
                }
            }
            let memories = [Some(&state.active), state.frozen.as_ref().map(|frozen| &*frozen.memory)];
            for memory in memories.into_iter().flatten() {
                memory.blocks.range(range.clone()).for_each(|(block, fingerprint)| add(*block, fingerprint));
            }
        });
        changed.sort_unstable_by_key(|(block, fingerprint, _)| (*block, *fingerprint));
        changed.dedup_by_key(|(block, fingerprint, _)| (*block, *fingerprint));
        let mut changed = changed.into_iter().peekable();
        for (block, found) in range.zip(on_disk) {
            let mut of_disk = found;
            let mut entry = None;
            while let Some((_, fingerprint, changes)) = changed.next_if(|(of, ..)| *of == block) {
                of_disk = of_disk.filter(|(named, _)| named.fingerprint != fingerprint);
                let now = look_up(&mut walker, &fingerprint, changes)?;
                entry = entry.or(now.filter(|now| now.block == block).map(|now| now.of_block(fingerprint)));
            }
            if let Some((named, slot)) = of_disk {
                let is_lost = match slot {
                    Some(slot) => slot.is_lost,
                    None if is_plain => false,
                    None => {
                        let table = header.table_of(&named.fingerprint);
                        find_block(&mut walker, table, table.home(&named.fingerprint), block)?.slot.is_lost
                    }
                };
                entry = entry.or(Some(BlockEntry { fingerprint: named.fingerprint, note: named.note, count: named.count, is_lost }));
            }
            out.push(entry);
        }
        self.counters.add_walker(&walker);
        Ok(())
    }

    /// Returns the end of the blocks that may belong to a chunk, after all batches applied so far.
    pub fn end_of_blocks(&self) -> u64 {
        let blocks = self.shown.read().header.blocks;
        let state = self.state.read();
        end_of(blocks, &state)
    }

    /// Returns the number of units of [`UNIT_BLOCKS`] blocks.
    pub fn units(&self) -> u64 {
        self.end_of_blocks().div_ceil(UNIT_BLOCKS)
    }

    /// Returns how many blocks of a unit are used in pages, and with them those that changes in memory name. So no more
    /// are used. Which ones, [`LinkedIndex::blocks`] knows.
    pub fn used_in_unit(&self, unit: u64) -> Result<u32> {
        let shown = self.shown.read();
        let range = unit.saturating_mul(UNIT_BLOCKS)..unit.saturating_add(1).saturating_mul(UNIT_BLOCKS);
        let named = {
            let state = self.state.read();
            let count = |memory: &Memory| memory.blocks.range(range.clone()).count();
            count(&state.active) + state.frozen.as_ref().map_or(0, |frozen| count(&frozen.memory))
        };
        let in_pages = if range.start < shown.header.blocks { shown.used_in_unit(unit)? } else { 0 };
        Ok((in_pages + named as u32).min(UNIT_BLOCKS as u32))
    }

    /// Appends unused chunks (count 0, not lost) and their addresses, from block `cursor` on: at least `limit`, if
    /// there are as many. Returns the block to continue with. Skips the blocks of unreadable pages, and appends those
    /// pages to `damaged`.
    pub fn unused(
        &self,
        cursor: u64,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<LinkedDamage>,
    ) -> Result<Option<u64>> {
        let enough = out.len().saturating_add(limit.max(1));
        let per_page = self.shown.read().header.layout.blocks_per_page();
        let mut found = Vec::new();
        let mut from = cursor;
        while from < self.end_of_blocks() {
            // Page by page, so that a damaged one costs only its own blocks.
            let to = (from / per_page + 1) * per_page;
            match self.blocks(from, (to - from) as usize, &mut found) {
                Ok(()) => {
                    let blocks = (from..).zip(&found).filter_map(|(block, entry)| Some((block, entry.as_ref()?)));
                    let unused = blocks.filter(|(_, entry)| entry.count == 0 && !entry.is_lost);
                    out.extend(unused.map(|(block, entry)| (entry.fingerprint, block + FIRST_ADDRESS)));
                }
                Err(IndexError::LinkedIndexDamaged { path, page, what }) => {
                    damaged.push(LinkedDamage { path, page: page.unwrap_or(0), why: what });
                }
                Err(error) => return Err(error),
            }
            from = to;
            if out.len() >= enough {
                break;
            }
        }
        Ok((from < self.end_of_blocks()).then_some(from))
    }

    /// Visits all entries in the order of their blocks: pages and changes together, as of the call. No sweep runs
    /// meanwhile.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Fingerprint, LinkedEntry) -> Result<()>) -> Result<()> {
        let _files = self.files.lock();
        let shown = self.shown.read();
        let state = self.state.read().clone();
        let end = end_of(shown.header.blocks, &state);
        let mut found = Vec::new();
        let mut from = 0;
        while from < end {
            let to = end.min(from + ROUND_BLOCKS);
            found.clear();
            self.blocks_of(&shown, &Moment::Copied(&state), from..to, &mut found)?;
            for (block, entry) in (from..).zip(&found) {
                if let Some(BlockEntry { fingerprint, note, count, is_lost }) = *entry {
                    visit(&fingerprint, Entry { block, is_lost, note, count }.linked())?;
                }
            }
            from = to;
        }
        Ok(())
    }
}

fn end_of(blocks: u64, state: &State) -> u64 {
    let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.memory.end());
    blocks.max(state.active.end()).max(frozen)
}
