//! Sets of origins and of chunks, as bits: a bit for each container number, or for each slot.

use crate::liveness::slots::Slots;
use onefold_storage::{Address, ContainerId, Origin};
use std::collections::{BTreeMap, HashMap};

/// A set of origins. Takes a bit for each container number of a partition, up to the greatest one in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins(BTreeMap<u16, Vec<u64>>);

impl Origins {
    pub(crate) fn insert(&mut self, origin: Origin) {
        let (partition, number) = parts(origin);
        let words = self.0.entry(partition).or_default();
        words.resize(words.len().max(number / 64 + 1), 0);
        words[number / 64] |= 1 << (number % 64);
    }

    pub(crate) fn remove(&mut self, origin: Origin) {
        let (partition, number) = parts(origin);
        if let Some(word) = self.0.get_mut(&partition).and_then(|words| words.get_mut(number / 64)) {
            *word &= !(1 << (number % 64));
        }
    }

    pub(crate) fn contains(&self, origin: Origin) -> bool {
        let (partition, number) = parts(origin);
        self.0.get(&partition).and_then(|words| words.get(number / 64)).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Adds the origins of a partition from number `from` up to but not including `end`.
    pub(crate) fn insert_range(&mut self, partition: u16, from: u32, end: u32) {
        for number in from.max(1)..end {
            self.insert(Origin::from(ContainerId::new(partition, number)));
        }
    }

    /// Returns the origins from `from` on, in order.
    pub(crate) fn from(&self, from: Origin) -> impl Iterator<Item = Origin> + '_ {
        let (first, number) = parts(from);
        self.0.range(first..).flat_map(move |(partition, words)| {
            let start = if *partition == first { number } else { 0 };
            let of_word = move |(at, word): (usize, &u64)| {
                let word = if at == start / 64 { word & (u64::MAX << (start % 64)) } else { *word };
                (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| (at * 64 + bit) as u32)
            };
            let numbers = words.iter().enumerate().skip(start / 64).filter(|(_, word)| **word != 0).flat_map(of_word);
            numbers.map(|number| Origin::from(ContainerId::new(*partition, number)))
        })
    }

    /// Returns all origins, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Origin> + '_ {
        self.from(Origin::from_bits(0))
    }
}

fn parts(origin: Origin) -> (u16, usize) {
    let container = ContainerId::from_bits(origin.bits());
    (container.partition(), container.number() as usize)
}

/// A set of chunks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunks {
    by_origin: HashMap<Origin, Slots>,
    bytes: usize,
}

/// Memory of an origin in a set of chunks beside its bits, about.
const ORIGIN_BYTES: usize = 96;

impl Chunks {
    /// Adds a chunk. Returns whether it is new.
    pub(crate) fn insert(&mut self, address: Address) -> bool {
        let slots = self.by_origin.entry(address.origin()).or_insert_with(|| {
            self.bytes += ORIGIN_BYTES;
            Slots::default()
        });
        let before = slots.bits().len();
        let is_new = slots.insert(usize::from(address.slot()));
        self.bytes += slots.bits().len() - before;
        is_new
    }

    pub(crate) fn contains(&self, address: Address) -> bool {
        self.of(address.origin()).is_some_and(|slots| slots.contains(usize::from(address.slot())))
    }

    pub(crate) fn of(&self, origin: Origin) -> Option<&Slots> {
        self.by_origin.get(&origin)
    }

    /// Adds chunks of an origin.
    pub(crate) fn add(&mut self, origin: Origin, slots: &Slots) {
        let before = self.by_origin.get(&origin).map_or(0, |slots| slots.bits().len() + ORIGIN_BYTES);
        let all = self.by_origin.entry(origin).or_default();
        all.add(slots);
        self.bytes += all.bits().len() + ORIGIN_BYTES - before;
    }

    /// Returns the origins and their chunks, in order.
    pub(crate) fn sorted(&self) -> Vec<(Origin, &Slots)> {
        let mut all: Vec<_> = self.by_origin.iter().map(|(origin, slots)| (*origin, slots)).collect();
        all.sort_unstable_by_key(|(origin, _)| *origin);
        all
    }

    /// Returns about how much memory the set takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn origin(partition: u16, number: u32) -> Origin {
        Origin::from(ContainerId::new(partition, number))
    }

    proptest! {
        #[test]
        fn origins_are_a_sorted_set(all: BTreeSet<(u8, u16)>, gone: BTreeSet<(u8, u16)>, from: (u8, u16)) {
            let mut origins = Origins::default();
            let mut model: BTreeSet<Origin> = BTreeSet::new();
            for (partition, number) in &all {
                origins.insert(origin((*partition).into(), (*number).into()));
                model.insert(origin((*partition).into(), (*number).into()));
            }
            for (partition, number) in &gone {
                origins.remove(origin((*partition).into(), (*number).into()));
                model.remove(&origin((*partition).into(), (*number).into()));
            }
            prop_assert_eq!(origins.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            let from = origin(from.0.into(), from.1.into());
            prop_assert_eq!(origins.from(from).collect::<Vec<_>>(), model.range(from..).copied().collect::<Vec<_>>());
            prop_assert!(model.iter().all(|one| origins.contains(*one)));
            prop_assert_eq!(origins.contains(from), model.contains(&from));
        }
    }

    #[test]
    fn a_range_has_no_container_0() {
        let mut origins = Origins::default();
        origins.insert_range(2, 0, 3);
        assert_eq!(origins.iter().collect::<Vec<_>>(), [origin(2, 1), origin(2, 2)]);
    }

    #[test]
    fn chunks_are_counted_in_bytes_once() {
        let mut chunks = Chunks::default();
        let address = origin(0, 7).address(9);
        assert!(chunks.insert(address) && !chunks.insert(address) && chunks.contains(address));
        let bytes = chunks.bytes();
        let more = Slots::first(10);
        chunks.add(origin(0, 7), &more);
        assert_eq!(chunks.bytes(), bytes);
        chunks.add(origin(0, 3), &more);
        assert_eq!(chunks.bytes(), 2 * bytes);
        assert_eq!(chunks.sorted(), [(origin(0, 3), &more), (origin(0, 7), &more)]);
    }
}
