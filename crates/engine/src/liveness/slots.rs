//! A set of slots: a bit for each slot of a container.

/// A set of slots. Bytes at the end that would be 0 are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots(Vec<u8>);

impl Slots {
    /// Takes bits as formats store them: the lowest bit of the first byte stands for slot 0.
    pub(crate) fn from_bits(mut bits: Vec<u8>) -> Slots {
        let used = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bits.truncate(used);
        Slots(bits)
    }

    /// Returns the set of slots 0 to `count - 1`.
    pub(crate) fn first(count: usize) -> Slots {
        let mut bits = vec![u8::MAX; count.div_ceil(8)];
        if let (Some(last), over @ 1..) = (bits.last_mut(), count % 8) {
            *last >>= 8 - over;
        }
        Slots(bits)
    }

    pub(crate) fn bits(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / 8).is_some_and(|bits| bits >> (slot % 8) & 1 != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of slots in the set.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Adds a slot. Returns whether it is new.
    pub(crate) fn insert(&mut self, slot: usize) -> bool {
        if self.contains(slot) {
            return false;
        }
        self.0.resize(self.0.len().max(slot / 8 + 1), 0);
        self.0[slot / 8] |= 1 << (slot % 8);
        true
    }

    /// Removes a slot. Returns whether it was there.
    pub(crate) fn remove(&mut self, slot: usize) -> bool {
        if !self.contains(slot) {
            return false;
        }
        self.0[slot / 8] &= !(1 << (slot % 8));
        *self = Slots::from_bits(std::mem::take(&mut self.0));
        true
    }

    /// Adds all slots of another set.
    pub(crate) fn add(&mut self, other: &Slots) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(bits, more)| *bits |= more);
    }

    /// Returns the slots that are not in the other set.
    pub(crate) fn without(&self, other: &Slots) -> Slots {
        let bits = self.0.iter().enumerate().map(|(at, bits)| bits & !other.0.get(at).copied().unwrap_or(0));
        Slots::from_bits(bits.collect())
    }

    /// Returns whether all slots of this set are in the other one.
    pub(crate) fn is_within(&self, other: &Slots) -> bool {
        self.without(other).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(one: BTreeSet<u16>, other: BTreeSet<u16>, gone: BTreeSet<u16>) {
            let set = |from: &BTreeSet<u16>| {
                let mut slots = Slots::default();
                from.iter().for_each(|slot| assert!(slots.insert(usize::from(*slot))));
                slots
            };
            let (mut slots, more) = (set(&one), set(&other));
            prop_assert_eq!(slots.count(), one.len());
            prop_assert_eq!(slots.is_within(&more), one.is_subset(&other));
            slots.add(&more);
            let mut all: BTreeSet<u16> = one.union(&other).copied().collect();
            prop_assert_eq!(&slots, &set(&all));
            prop_assert!(more.is_within(&slots));
            for slot in &gone {
                prop_assert_eq!(slots.remove(usize::from(*slot)), all.remove(slot));
            }
            prop_assert_eq!(&slots, &set(&all));
            prop_assert_eq!(slots.is_empty(), all.is_empty());
            prop_assert_eq!(Slots::from_bits([slots.bits(), &[0, 0]].concat()), slots);
        }
    }

    #[test]
    fn the_first_slots_are_those_below_the_count() {
        for count in 0..40 {
            let slots = Slots::first(count);
            assert!((0..50).all(|slot| slots.contains(slot) == (slot < count)));
        }
    }
}
