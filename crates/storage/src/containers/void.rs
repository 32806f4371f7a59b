//! Numbers of containers that are void: no batch names them, and none ever will (decision 0068).
//!
//! In a store with whole files a put may arrive when its owner has lost the store, or is dead. The file then lies
//! beside those of the store, and nobody refers to it. Its catalog must not be used either: what its metadata chunks
//! refer to may never have been stored. So an opening for writing notes which numbers earlier owners may have given out
//! without a batch that names them. Whoever lists containers leaves these out.

use crate::containers::replay::Recovery;
use crate::containers::store::ContainerStore;
use crate::{ContainerId, ContainerSet};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};

/// Void numbers of a partition that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoidNumbers {
    /// The first.
    pub first: ContainerId,
    /// The last, in the same partition.
    pub last: ContainerId,
}

/// All void numbers that are known.
#[derive(Debug, Default)]
pub(crate) struct Void {
    /// By the first number of a range: the last one.
    known: RwLock<BTreeMap<ContainerId, ContainerId>>,
    /// Those that this opening found.
    found: RwLock<Vec<VoidNumbers>>,
}

impl Void {
    /// Returns whether a number is void.
    pub(crate) fn has(&self, container: ContainerId) -> bool {
        self.known.read().range(..=container).next_back().is_some_and(|(_, last)| container <= *last)
    }

    /// Returns the void numbers of a partition that are known.
    pub(crate) fn of_partition(&self, partition: u16) -> Vec<VoidNumbers> {
        let known = self.known.read();
        let ranges = known.range(ContainerId::new(partition, 0)..=ContainerId::new(partition, u32::MAX));
        ranges.map(|(first, last)| VoidNumbers { first: *first, last: *last }).collect()
    }

    /// Forgets a partition.
    pub(crate) fn forget(&self, partition: u16) {
        self.known.write().retain(|first, _| first.partition() != partition);
    }

    /// Adds void numbers that somebody else has found.
    pub(crate) fn add(&self, void: Vec<VoidNumbers>) {
        self.known.write().extend(void.into_iter().map(|void| (void.first, void.last)));
    }

    /// Notes what an opening for writing found in the log, and in its list of files. `valid` are containers that the
    /// log need not name.
    pub(crate) fn find(&self, recovery: &Recovery, valid: impl Iterator<Item = ContainerId>) {
        let valid: BTreeSet<ContainerId> = valid.collect();
        let mut found = Vec::new();
        for partition in recovery.partitions() {
            let from = recovery.settled_upto(partition).saturating_add(1).max(recovery.examined_from(partition));
            let to = recovery.next_number(partition) - 1;
            let named = recovery.sealed.iter().chain(&valid).filter(|id| id.partition() == partition).map(|id| id.number());
            let named: BTreeSet<u32> = named.filter(|number| (from..=to).contains(number)).collect();
            let mut next = from;
            for end in named.into_iter().chain(std::iter::once(to.saturating_add(1))) {
                if next < end {
                    found.push(VoidNumbers { first: ContainerId::new(partition, next), last: ContainerId::new(partition, end - 1) });
                }
                next = end.saturating_add(1);
            }
        }
        self.known.write().extend(found.iter().map(|void| (void.first, void.last)));
        *self.found.write() = found;
    }
}

impl ContainerStore {
    /// Tells the store which numbers are void, from earlier openings.
    pub fn set_void(&self, void: impl IntoIterator<Item = VoidNumbers>) {
        self.shared.void.known.write().extend(void.into_iter().map(|void| (void.first, void.last)));
    }

    /// Returns all void numbers.
    pub fn void(&self) -> ContainerSet {
        let mut all = ContainerSet::default();
        for (first, last) in &*self.shared.void.known.read() {
            all.insert_range(first.partition(), first.number(), last.number().saturating_add(1));
        }
        all
    }

    /// Returns the void numbers that this opening found. Note them in its first batch behind the fence: a later one may
    /// say up to which number everything is settled.
    pub fn found_void(&self) -> Vec<VoidNumbers> {
        self.shared.void.found.read().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_void_from_the_first_to_the_last() {
        let id = |number| ContainerId::new(3, number);
        let void = Void::default();
        void.known.write().extend([(id(5), id(7)), (id(9), id(9)), (ContainerId::new(4, 1), ContainerId::new(4, 2))]);
        let found: Vec<u32> = (1..12).filter(|number| void.has(id(*number))).collect();
        assert_eq!(found, [5, 6, 7, 9]);
        assert!(!void.has(ContainerId::new(2, 6)) && void.has(ContainerId::new(4, 1)) && !void.has(ContainerId::new(4, 3)));
    }
}
