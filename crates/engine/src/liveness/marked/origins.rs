//! Sets of origins and of chunks, as bits.

use crate::liveness::slots::Slots;
use onefold_storage::{Address, ContainerId, ContainerSet, Origin};
use std::collections::HashMap;

/// A set of origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins(ContainerSet);

impl Origins {
    pub(crate) fn insert(&mut self, origin: Origin) {
        self.0.insert(container(origin));
    }

    pub(crate) fn remove(&mut self, origin: Origin) {
        self.0.remove(container(origin));
    }

    pub(crate) fn contains(&self, origin: Origin) -> bool {
        self.0.contains(container(origin))
    }

    /// Adds the origins of a partition from number `from` up to but not including `end`.
    pub(crate) fn insert_range(&mut self, partition: u16, from: u32, end: u32) {
        self.0.insert_range(partition, from.max(1), end);
    }

    /// Removes all origins of another set.
    pub(crate) fn subtract(&mut self, other: &Origins) {
        self.0.subtract(&other.0);
    }

    /// Returns the origins from `from` on, in order.
    pub(crate) fn from(&self, from: Origin) -> impl Iterator<Item = Origin> + '_ {
        self.0.iter_from(container(from)).map(Origin::from)
    }

    /// Returns all origins, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Origin> + '_ {
        self.0.iter().map(Origin::from)
    }
}

impl From<ContainerSet> for Origins {
    fn from(containers: ContainerSet) -> Origins {
        Origins(containers)
    }
}

fn container(origin: Origin) -> ContainerId {
    ContainerId::from_bits(origin.bits())
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

    fn origin(partition: u16, number: u32) -> Origin {
        Origin::from(ContainerId::new(partition, number))
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
