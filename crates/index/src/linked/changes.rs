//! The log's changes of chunks beyond the pages, as in the chunk index (M0.14), but with blocks and notes.

use super::page::Named;
use crate::paged::Changes;
use onefold_fingerprint::Fingerprint;
use std::collections::BTreeMap;

/// Memory of a block's entry in the map of blocks, with its share of the tree.
const BLOCK_ENTRY_BYTES: usize = 64;

/// What the index knows of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The chunk's block. A lost chunk keeps it.
    pub block: u64,
    /// Whether the chunk cannot be read any more.
    pub is_lost: bool,
    /// The caller's 24 bits.
    pub note: u32,
    /// Number of references.
    pub count: u32,
}

impl Entry {
    /// Returns the entry with its name.
    pub fn named(&self, fingerprint: &Fingerprint) -> Named {
        Named { fingerprint: *fingerprint, count: self.count, note: self.note }
    }
}

/// The changes of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// The newest block and its note; `None`: the log named none.
    place: Option<(u64, u32)>,
    /// The page's entry is gone. The other fields count from then on.
    is_removed: bool,
    /// The chunk was lost after it got its newest block.
    is_lost: bool,
    /// Sum of the changes of its count.
    delta: i64,
}

/// An entry after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    pub entry: Option<Entry>,
    /// The count would have fallen below zero.
    pub is_underflow: bool,
    /// References of a chunk that has no block: nothing can hold them.
    pub is_orphan: bool,
}

impl Change {
    /// Returns whether the log named a block.
    pub fn is_placed(&self) -> bool {
        self.place.is_some()
    }

    /// Returns the entry after the change.
    pub fn apply(self, entry: Option<Entry>) -> Changed {
        let before = entry.filter(|_| !self.is_removed);
        let count = before.map_or(0, |before| before.count);
        let sum = i64::from(count).saturating_add(self.delta);
        // A saturated count is no longer the true one. It stays saturated, so that nobody takes the chunk for unused.
        let is_saturated = count == u32::MAX;
        let count = if is_saturated { count } else { sum.clamp(0, i64::from(u32::MAX)) as u32 };
        let place = self.place.or(before.map(|before| (before.block, before.note)));
        let is_lost = self.is_lost || (self.place.is_none() && before.is_some_and(|before| before.is_lost));
        // A lost chunk that nobody needs has no entry.
        let entry = place.filter(|_| !is_lost || count > 0).map(|(block, note)| Entry { block, is_lost, note, count });
        Changed { entry, is_underflow: sum < 0 && !is_saturated, is_orphan: place.is_none() && sum > 0 }
    }
}

/// Combines pages and log into the entry.
pub(super) fn resolve(page: Option<Entry>, frozen: Option<Change>, active: Option<Change>) -> Option<Entry> {
    [frozen, active].into_iter().flatten().fold(page, |entry, change| change.apply(entry).entry)
}

/// Changes by fingerprint, and the blocks that they name.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub changes: Changes<Change>,
    /// The chunk that got a block last.
    pub blocks: BTreeMap<u64, Fingerprint>,
}

impl Memory {
    /// Returns its memory in bytes.
    pub fn bytes(&self) -> usize {
        self.changes.bytes() + self.blocks.len() * BLOCK_ENTRY_BYTES
    }

    /// Records that the chunk is gone. Earlier changes no longer count.
    pub fn remove(&mut self, fingerprint: &Fingerprint) {
        *self.changes.entry(fingerprint) = Change { is_removed: true, ..Change::default() };
    }

    /// Records the chunk's newest block; `None`: it is lost. Its count stays.
    pub fn place(&mut self, fingerprint: &Fingerprint, place: Option<(u64, u32)>) {
        let change = self.changes.entry(fingerprint);
        change.is_lost = place.is_none();
        if let Some((block, _)) = place {
            change.place = place;
            self.blocks.insert(block, *fingerprint);
        }
    }

    /// Records a change of a count. Returns whether the count of a removed chunk would have fallen below zero: such a
    /// change is dropped, as in the chunk index.
    pub fn add(&mut self, fingerprint: &Fingerprint, delta: i64) -> bool {
        let change = self.changes.entry(fingerprint);
        change.delta = change.delta.saturating_add(delta);
        let falls_below = change.is_removed && change.delta < 0;
        if falls_below {
            change.delta = 0;
        }
        falls_below
    }

    /// Returns the end of the blocks that changes name.
    pub fn end(&self) -> u64 {
        self.blocks.last_key_value().map_or(0, |(block, _)| block + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(block: u64, count: u32) -> Option<Entry> {
        Some(Entry { block, is_lost: false, note: 9, count })
    }

    fn name() -> Fingerprint {
        Fingerprint::from_digest(&[7; 32])
    }

    fn change(record: impl Fn(&mut Memory)) -> Change {
        let mut memory = Memory::default();
        record(&mut memory);
        memory.changes.get(&name()).unwrap()
    }

    #[test]
    fn a_count_neither_falls_below_zero_nor_forgets_that_it_overflowed() {
        let add = |delta| change(|memory| assert!(!memory.add(&name(), delta)));
        let changed = add(-3).apply(entry(5, 2));
        assert_eq!((changed.entry, changed.is_underflow), (entry(5, 0), true));
        assert_eq!(add(i64::MAX).apply(entry(5, 2)).entry, entry(5, u32::MAX));
        let changed = add(-3).apply(entry(5, u32::MAX));
        assert_eq!((changed.entry, changed.is_underflow), (entry(5, u32::MAX), false));
        let changed = add(1).apply(None);
        assert_eq!((changed.entry, changed.is_orphan), (None, true));
    }

    #[test]
    fn a_lost_chunk_keeps_its_block_and_count_and_gets_another_block() {
        let lost = change(|memory| memory.place(&name(), None));
        assert_eq!(lost.apply(entry(5, 2)).entry, Some(Entry { block: 5, is_lost: true, note: 9, count: 2 }));
        assert_eq!(lost.apply(entry(5, 0)).entry, None, "nobody needs it");
        assert_eq!(lost.apply(None).entry, None);
        let both = change(|memory| {
            memory.place(&name(), Some((6, 1)));
            memory.place(&name(), None);
            assert!(!memory.add(&name(), 1));
        });
        let expected = Entry { block: 6, is_lost: true, note: 1, count: 3 };
        assert_eq!(both.apply(entry(5, 2)).entry, Some(expected), "it was lost in its newest block");
        let found = change(|memory| {
            memory.place(&name(), None);
            memory.place(&name(), Some((8, 2)));
        });
        assert_eq!(found.apply(Some(expected)).entry, Some(Entry { block: 8, is_lost: false, note: 2, count: 3 }));
    }

    #[test]
    fn a_reference_to_a_removed_chunk_is_not_set_off_against_one_that_was_never_counted() {
        let again = change(|memory| {
            memory.place(&name(), Some((4, 0)));
            memory.remove(&name());
            assert!(memory.add(&name(), -1));
            memory.place(&name(), Some((7, 9)));
            assert!(!memory.add(&name(), 1));
        });
        assert_eq!(again.apply(entry(5, 3)).entry, entry(7, 1));
    }
}
