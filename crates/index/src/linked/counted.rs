//! The linked index as a [`CountedIndex`].

use super::{LinkedBatch, LinkedDamage, LinkedEntry, LinkedIndex, LinkedPlace};
use crate::{ChunkBatch, ChunkIndexStatistics, CountedIndex, DamagedPage, HeldEntries, IndexEntry, Result, UnusedCursor, VerifiedRun};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::{Effects, Position, Pressure};
use std::ops::RangeInclusive;

/// There is one partition.
const PARTITION: u32 = 0;
/// Bits of a place of a check that say what it is a place of.
const KIND_SHIFT: u32 = 30;
/// Pages of the area that a search for unused chunks reads at once.
const UNUSED_PAGES: u64 = 64;

impl From<LinkedEntry> for IndexEntry {
    fn from(LinkedEntry { address, count, .. }: LinkedEntry) -> IndexEntry {
        IndexEntry { address, count }
    }
}

impl From<LinkedDamage> for DamagedPage {
    fn from(LinkedDamage { path, page, why }: LinkedDamage) -> DamagedPage {
        DamagedPage { path, page: page as u32, why }
    }
}

impl LinkedPlace {
    /// Packs the place into 32 bits. A table of more pages would have more slots than blocks can have numbers.
    fn pack(self) -> u32 {
        let (kind, number) = match self {
            LinkedPlace::Table(page) => (0, page),
            LinkedPlace::Next(page) => (1, page),
            LinkedPlace::Unit(unit) => (2, unit),
        };
        kind << KIND_SHIFT | number.min((1 << KIND_SHIFT) - 1) as u32
    }

    fn unpack(place: u32) -> LinkedPlace {
        let number = u64::from(place & ((1 << KIND_SHIFT) - 1));
        match place >> KIND_SHIFT {
            0 => LinkedPlace::Table(number),
            1 => LinkedPlace::Next(number),
            _ => LinkedPlace::Unit(number),
        }
    }
}

impl LinkedIndex {
    /// Adds what the index needs to know of places beside their addresses: a chunk that is placed again is in the block
    /// that it had, and keeps its note.
    fn noted(&self, places: &[(Fingerprint, u64)]) -> Result<Vec<(Fingerprint, u64, u32)>> {
        let names: Vec<Fingerprint> = places.iter().map(|(name, _)| *name).collect();
        let mut found = Vec::new();
        if places.iter().any(|(_, address)| *address != 0) {
            self.lookup(&names, &mut found)?;
        }
        found.resize(places.len(), None);
        let with_note = |((name, address), entry): (&(Fingerprint, u64), Option<LinkedEntry>)| match entry {
            _ if *address == 0 => Some((*name, 0, 0)),
            Some(entry) => Some((*name, *address, entry.note)),
            None => None,
        };
        Ok(places.iter().zip(found).filter_map(with_note).collect())
    }

    fn apply_noted(&self, end: Position, batch: ChunkBatch<'_>) -> Result<()> {
        let ChunkBatch { removals, places, inserts, notes, deltas } = batch;
        let places = self.noted(places)?;
        let notes = notes.iter().copied().chain(std::iter::repeat(0));
        let inserts: Vec<_> = inserts.iter().zip(notes).map(|((name, address), note)| (*name, *address, note)).collect();
        self.apply_batch(end, LinkedBatch { removals, places: &places, inserts: &inserts, deltas })
    }

    fn blocks_per_page(&self) -> u64 {
        self.shown.read().header.layout.blocks_per_page()
    }
}

impl CountedIndex for LinkedIndex {
    fn apply(&self, end: Position, effects: &Effects<'_>) -> Result<()> {
        let Effects { removals, places, stored, notes, deltas, .. } = *effects;
        self.apply_noted(end, ChunkBatch { removals, places, inserts: stored, notes, deltas })
    }

    fn apply_batch(&self, end: Position, batch: ChunkBatch<'_>) -> Result<()> {
        self.apply_noted(end, batch)
    }

    fn position(&self) -> Position {
        LinkedIndex::position(self)
    }

    fn required_end(&self) -> Position {
        LinkedIndex::required_end(self)
    }

    fn pressure(&self) -> Pressure {
        crate::view::pressure(self.is_over_limit(), || self.wants_sweep())
    }

    fn step(&self) -> Result<bool> {
        LinkedIndex::step(self)
    }

    fn catch_up(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        LinkedIndex::catch_up(self, go_on)
    }

    fn lookup(&self, names: &[Fingerprint], out: &mut Vec<Option<IndexEntry>>) -> Result<usize> {
        let mut found = Vec::new();
        let waited = LinkedIndex::lookup(self, names, &mut found)?;
        out.extend(found.into_iter().map(|entry| entry.map(IndexEntry::from)));
        Ok(waited)
    }

    /// Does nothing: the page of a home is read with the look-up, and only that page says where the next one is.
    fn expect(&self, _names: &[Fingerprint]) {}

    fn partitions(&self) -> Vec<u32> {
        vec![PARTITION]
    }

    fn for_each(&self, _partition: u32, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> Result<()>) -> Result<()> {
        self.hold(0..=u64::MAX).visit(&mut |name, entry| visit(name, entry.into()).map(|()| true))
    }

    fn for_each_from(&self, _partition: u32, prefix: u64, visit: &mut dyn FnMut(&Fingerprint, IndexEntry) -> bool) -> Result<()> {
        self.hold(prefix..=u64::MAX).visit(&mut |name, entry| Ok(visit(name, entry.into())))
    }

    fn hold(&self, prefixes: RangeInclusive<u64>) -> Box<dyn HeldEntries + '_> {
        Box::new(LinkedIndex::hold(self, prefixes))
    }

    fn unused(
        &self,
        cursor: UnusedCursor,
        limit: usize,
        out: &mut Vec<(Fingerprint, u64)>,
        damaged: &mut Vec<DamagedPage>,
    ) -> Result<Option<UnusedCursor>> {
        let (per_page, mut pages) = (self.blocks_per_page(), Vec::new());
        let next = LinkedIndex::unused(self, u64::from(cursor.page) * per_page, limit, out, &mut pages)?;
        damaged.extend(pages.into_iter().map(DamagedPage::from));
        Ok(next.map(|block| UnusedCursor { partition: PARTITION, page: (block / per_page) as u32 }))
    }

    fn count_unused(&self, runs: usize) -> Result<(u64, bool)> {
        let step = self.blocks_per_page() * UNUSED_PAGES;
        let end = self.end_of_blocks();
        let (mut count, mut blocks) = (0, Vec::new());
        for from in (0..end).step_by(step as usize).take(runs) {
            self.blocks(from, step.min(end - from) as usize, &mut blocks)?;
            count += blocks.iter().flatten().filter(|entry| entry.count == 0 && !entry.is_lost).count() as u64;
        }
        Ok((count, end <= step.saturating_mul(runs as u64)))
    }

    fn verify_while(&self, go_on: &mut dyn FnMut() -> bool) -> Vec<DamagedPage> {
        let (mut damaged, mut next) = (Vec::new(), Some(LinkedPlace::default()));
        while let Some(place) = next.filter(|_| go_on()) {
            let piece = self.verify(place, false);
            damaged.extend(piece.damaged.into_iter().map(DamagedPage::from));
            next = piece.next;
        }
        damaged
    }

    fn verify_run(&self, _partition: u32, place: u32) -> VerifiedRun {
        let piece = self.verify(LinkedPlace::unpack(place), true);
        VerifiedRun {
            damaged: piece.damaged.into_iter().map(|damage| (place, damage.into())).collect(),
            read_bytes: piece.read_bytes,
            next: piece.next.map(LinkedPlace::pack),
        }
    }

    fn statistics(&self) -> ChunkIndexStatistics {
        let of = LinkedIndex::statistics(self);
        ChunkIndexStatistics {
            entries: of.entries,
            auxiliary_entries: of.auxiliary_entries,
            auxiliary_bytes: of.auxiliary_bytes,
            page_reads: of.page_reads,
            swept_changes: of.swept_changes,
            sweep_page_writes: of.sweep_page_writes,
            growth_page_writes: of.growth_page_writes,
            sweeps: of.sweeps,
            growths: of.growths,
            count_underflows: of.count_underflows + of.orphan_deltas,
            ..ChunkIndexStatistics::default()
        }
    }

    fn close(&self) -> Result<()> {
        LinkedIndex::close(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_check_are_read_as_written() {
        for place in [LinkedPlace::Table(0), LinkedPlace::Table(77), LinkedPlace::Next(1 << 29), LinkedPlace::Unit(5)] {
            assert_eq!(LinkedPlace::unpack(place.pack()), place);
        }
    }
}
