//! The auxiliary index: changes that are in the log but not yet in the pages (M0.14).
//! An entry costs 48 bytes, and 6 to 12 in the table.

use super::IndexEntry;
use crate::paged::Changes;
use onefold_fingerprint::Fingerprint;
use std::ops::Deref;

/// Extra bytes per entry of a sweep's sorted list while the entry is frozen.
pub(super) const SORTED_BYTES: usize = 16;

/// The log's changes to a chunk beyond its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// The newest address. 0: the log named none; [`NOWHERE`]: the chunk no longer has one. With [`REMOVED`], the
    /// page's entry is gone, and address and delta count from then on.
    address: u64,
    /// Sum of the changes of its count.
    delta: i64,
}

/// No address has this bit: partition numbers have at most 15 bits.
pub(super) const REMOVED: u64 = 1 << 63;
/// Means "no longer has an address". It is no real address: a container has at most 65,535 slots, so the last slot
/// number is never used.
const NOWHERE: u64 = REMOVED - 1;

impl Change {
    /// Returns the entry after the change, if there is one, and whether its count would have fallen below zero.
    pub fn apply(self, entry: Option<IndexEntry>) -> (Option<IndexEntry>, bool) {
        let before = entry.filter(|_| self.address & REMOVED == 0).unwrap_or_default();
        let named = self.address & !REMOVED;
        let address = match named {
            0 => before.address,
            NOWHERE => 0,
            address => address,
        };
        if before.count == u32::MAX {
            // A saturated count is no longer the true one. It stays saturated, so that nobody takes the chunk for
            // unused.
            return (Some(IndexEntry { address, count: u32::MAX }), false);
        }
        let count = i64::from(before.count).saturating_add(self.delta);
        let after = IndexEntry { address, count: count.clamp(0, i64::from(u32::MAX)) as u32 };
        // Without an address and references there is no entry.
        (Some(after).filter(|after| *after != IndexEntry::default()), count < 0)
    }
}

/// Changes by fingerprint.
#[derive(Clone, Debug, Default)]
pub(super) struct Auxiliary(Changes<Change>);

impl Deref for Auxiliary {
    type Target = Changes<Change>;

    fn deref(&self) -> &Changes<Change> {
        &self.0
    }
}

impl Auxiliary {
    /// Records an address and replaces an older one.
    pub fn insert(&mut self, fingerprint: &Fingerprint, address: u64) {
        debug_assert!(address & REMOVED == 0, "an address with the bit of removed chunks");
        let change = self.0.entry(fingerprint);
        change.address = address | (change.address & REMOVED);
    }

    /// Records the chunk's new address; 0: nowhere. Its count stays.
    pub fn place(&mut self, fingerprint: &Fingerprint, address: u64) {
        self.insert(fingerprint, if address == 0 { NOWHERE } else { address });
    }

    /// Records that the chunk is gone. Earlier changes no longer count.
    pub fn remove(&mut self, fingerprint: &Fingerprint) {
        *self.0.entry(fingerprint) = Change { address: REMOVED, delta: 0 };
    }

    /// Records a change of a count. Returns whether the count of a removed chunk would have fallen below zero. A chunk
    /// is removed at count 0, and nothing can refer to it, so such a change belongs to a reference that was never
    /// counted. It must be dropped. Otherwise it would cancel out the next reference, and the chunk would look unused.
    pub fn add(&mut self, fingerprint: &Fingerprint, delta: i64) -> bool {
        let change = self.0.entry(fingerprint);
        change.delta = change.delta.saturating_add(delta);
        let falls_below = change.address & REMOVED != 0 && change.delta < 0;
        if falls_below {
            change.delta = 0;
        }
        falls_below
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn m0_14_changes_are_summed_by_chunk(steps in proptest::collection::vec((0..900u16, 0..6u8, 1..100i64), 0..2000)) {
            let mut auxiliary = Auxiliary::default();
            let mut model: BTreeMap<Fingerprint, Change> = BTreeMap::new();
            for (chunk, step, value) in steps {
                let mut digest = [chunk as u8; 32];
                digest[15..17].copy_from_slice(&chunk.to_be_bytes());
                let fingerprint = Fingerprint::from_digest(&digest);
                let expected = model.entry(fingerprint).or_default();
                match step {
                    0 => {
                        auxiliary.remove(&fingerprint);
                        *expected = Change { address: REMOVED, delta: 0 };
                    }
                    1 | 2 => {
                        auxiliary.insert(&fingerprint, value as u64);
                        expected.address = value as u64 | (expected.address & REMOVED);
                    }
                    3 => {
                        auxiliary.place(&fingerprint, 0);
                        expected.address = NOWHERE | (expected.address & REMOVED);
                    }
                    _ => {
                        let falls_below = auxiliary.add(&fingerprint, value - 50);
                        expected.delta += value - 50;
                        prop_assert_eq!(falls_below, expected.address & REMOVED != 0 && expected.delta < 0);
                        expected.delta = if falls_below { 0 } else { expected.delta };
                    }
                }
            }
            prop_assert_eq!(auxiliary.len(), model.len());
            let sorted: Vec<_> = auxiliary.sorted().into_iter().map(|number| *auxiliary.slot(number)).collect();
            prop_assert_eq!(sorted, model.iter().map(|(fingerprint, change)| (*fingerprint, *change)).collect::<Vec<_>>());
            for (fingerprint, change) in &model {
                prop_assert_eq!(auxiliary.get(fingerprint), Some(*change));
            }
        }
    }

    #[test]
    fn m0_14_an_entry_costs_less_than_64_bytes_and_a_bit() {
        let mut auxiliary = Auxiliary::default();
        for chunk in 0..100_000u64 {
            let mut digest = [0; 32];
            digest[8..16].copy_from_slice(&chunk.to_le_bytes());
            auxiliary.insert(&Fingerprint::from_digest(&digest), 1);
        }
        assert!(auxiliary.bytes() < 66 * auxiliary.len(), "{}", auxiliary.bytes());
    }

    #[test]
    fn a_count_neither_falls_below_zero_nor_forgets_that_it_overflowed() {
        let entry = |count| Some(IndexEntry { address: 5, count });
        let change = |delta| Change { address: 0, delta };
        assert_eq!(change(-3).apply(entry(2)), (Some(IndexEntry { address: 5, count: 0 }), true));
        assert_eq!(change(i64::MAX).apply(entry(2)), (Some(IndexEntry { address: 5, count: u32::MAX }), false));
        assert_eq!(change(-3).apply(entry(u32::MAX)), (Some(IndexEntry { address: 5, count: u32::MAX }), false));
        assert_eq!(Change { address: 9, delta: 1 }.apply(None), (Some(IndexEntry { address: 9, count: 1 }), false));
    }

    #[test]
    fn m0_19_a_reference_to_a_removed_chunk_is_not_set_off_against_one_that_was_never_counted() {
        let mut auxiliary = Auxiliary::default();
        let chunk = Fingerprint::from_digest(&[1; 32]);
        auxiliary.remove(&chunk);
        assert!(auxiliary.add(&chunk, -1));
        auxiliary.insert(&chunk, 7);
        assert!(!auxiliary.add(&chunk, 1));
        let change = auxiliary.get(&chunk).unwrap();
        assert_eq!(change.apply(Some(IndexEntry { address: 5, count: 0 })), (Some(IndexEntry { address: 7, count: 1 }), false));
    }

    #[test]
    fn a_lost_chunk_keeps_its_count_and_gets_an_address_again() {
        let fingerprint = Fingerprint::from_digest(&[7; 32]);
        let entry = |address, count| Some(IndexEntry { address, count });
        let mut auxiliary = Auxiliary::default();
        auxiliary.place(&fingerprint, 0);
        let of = |auxiliary: &Auxiliary, before| auxiliary.get(&fingerprint).unwrap().apply(before).0;
        assert_eq!(of(&auxiliary, entry(5, 2)), entry(0, 2));
        assert_eq!(of(&auxiliary, entry(5, u32::MAX)), entry(0, u32::MAX));
        assert_eq!(of(&auxiliary, entry(5, 0)), None, "nobody needs it");
        auxiliary.add(&fingerprint, 1);
        assert_eq!(of(&auxiliary, entry(5, 2)), entry(0, 3));
        auxiliary.insert(&fingerprint, 9);
        assert_eq!(of(&auxiliary, entry(5, 2)), entry(9, 3));
        auxiliary.remove(&fingerprint);
        auxiliary.place(&fingerprint, 0);
        auxiliary.add(&fingerprint, 1);
        assert_eq!(of(&auxiliary, entry(5, 2)), entry(0, 1));
    }

    #[test]
    fn m0_19_a_removed_chunk_is_gone_until_it_is_stored_again() {
        let entry = Some(IndexEntry { address: 5, count: 2 });
        assert_eq!(Change { address: REMOVED, delta: 0 }.apply(entry), (None, false));
        assert_eq!(Change { address: REMOVED, delta: 0 }.apply(None), (None, false));
        assert_eq!(Change { address: REMOVED | 7, delta: 1 }.apply(entry), (Some(IndexEntry { address: 7, count: 1 }), false));
        assert_eq!(Change { address: REMOVED, delta: 1 }.apply(entry), (Some(IndexEntry { address: 0, count: 1 }), false));
    }
}
