//! Which partitions of a class an opening has, and the epoch of each ownership.

use parking_lot::RwLock;
use std::sync::Arc;

/// An owned partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The partition's number, below the total.
    pub number: u32,
    /// The epoch of this ownership. Epochs only grow: an owner with a lower one has lost the partition.
    pub epoch: u64,
}

/// The opened partitions of a class, out of all that the store has. On one machine these are all, and each epoch is the
/// number of the opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    total: u32,
    owned: Vec<Owned>,
}

impl Ownership {
    /// Owns all `total` partitions under one epoch.
    pub fn all(total: u32, epoch: u64) -> Ownership {
        Ownership { total, owned: (0..total).map(|number| Owned { number, epoch }).collect() }
    }

    /// Owns some of `total` partitions. `None`: their numbers do not ascend, or one is not below the total.
    pub fn of(total: u32, owned: Vec<Owned>) -> Option<Ownership> {
        let ascends = owned.windows(2).all(|pair| pair[0].number < pair[1].number);
        (ascends && owned.last().is_none_or(|last| last.number < total)).then_some(Ownership { total, owned })
    }

    /// Returns how many partitions the store has, opened or not. Data is spread over this number.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the opened partitions, ascending.
    pub fn owned(&self) -> &[Owned] {
        &self.owned
    }

    /// Returns the numbers of the opened partitions, ascending.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.owned.iter().map(|owned| owned.number)
    }

    /// Returns the index of this number among the opened partitions. `None`: it is not opened.
    pub fn place(&self, number: u32) -> Option<usize> {
        self.owned.binary_search_by_key(&number, |owned| owned.number).ok()
    }
}

/// The opened partitions of a view. Some come and others go while the view is used.
#[derive(Debug)]
pub struct PartitionSet<P> {
    total: u32,
    now: RwLock<Arc<Partitions<P>>>,
}

/// The opened partitions of a view, as of a moment. One that goes is used until the last of those who have it let it
/// go.
#[derive(Debug)]
pub struct Partitions<P> {
    ownership: Ownership,
    /// In the order of their numbers.
    opened: Vec<Arc<P>>,
}

impl<P> PartitionSet<P> {
    /// Takes the partitions that an opening has, in the order of their numbers.
    pub fn new(ownership: &Ownership, opened: Vec<P>) -> PartitionSet<P> {
        let opened = opened.into_iter().map(Arc::new).collect();
        let now = RwLock::new(Arc::new(Partitions { ownership: ownership.clone(), opened }));
        PartitionSet { total: ownership.total(), now }
    }

    /// Returns how many partitions the store has, opened or not.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the partitions that are opened now.
    pub fn now(&self) -> Arc<Partitions<P>> {
        self.now.read().clone()
    }

    /// Returns the opened partition of a number.
    pub fn get(&self, number: u32) -> Option<Arc<P>> {
        self.now.read().get(number).cloned()
    }

    /// Adds a partition. False: the store has none of this number, or it is opened already.
    pub fn add(&self, owned: Owned, partition: P) -> bool {
        let mut now = self.now.write();
        let Err(place) = now.ownership.owned.binary_search_by_key(&owned.number, |owned| owned.number) else { return false };
        if owned.number >= self.total {
            return false;
        }
        let mut changed = Partitions { ownership: now.ownership.clone(), opened: now.opened.clone() };
        changed.ownership.owned.insert(place, owned);
        changed.opened.insert(place, Arc::new(partition));
        *now = Arc::new(changed);
        true
    }

    /// Removes a partition. `None`: it is not opened.
    pub fn remove(&self, number: u32) -> Option<Arc<P>> {
        let mut now = self.now.write();
        let place = now.ownership.place(number)?;
        let mut changed = Partitions { ownership: now.ownership.clone(), opened: now.opened.clone() };
        changed.ownership.owned.remove(place);
        let removed = changed.opened.remove(place);
        *now = Arc::new(changed);
        Some(removed)
    }
}

impl<P> Partitions<P> {
    /// Returns which they are.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Returns the partition of a number. `None`: it is not opened.
    pub fn get(&self, number: u32) -> Option<&Arc<P>> {
        self.ownership.place(number).map(|place| &self.opened[place])
    }

    /// Returns the first partition from a number on.
    pub fn from(&self, number: u32) -> Option<(u32, &Arc<P>)> {
        let place = self.ownership.owned.partition_point(|owned| owned.number < number);
        Some((self.ownership.owned.get(place)?.number, self.opened.get(place)?))
    }

    /// Returns the partitions in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<P>> {
        self.opened.iter()
    }

    /// Returns the partitions with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &Arc<P>)> {
        self.ownership.numbers().zip(&self.opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_found_by_their_numbers_and_wrong_lists_are_refused() {
        let own = |numbers: &[u32]| Ownership::of(8, numbers.iter().map(|number| Owned { number: *number, epoch: 3 }).collect());
        let some = own(&[1, 2, 7]).unwrap();
        assert_eq!([0, 1, 2, 3, 7, 8].map(|number| some.place(number)), [None, Some(0), Some(1), None, Some(2), None]);
        assert_eq!((some.total(), some.numbers().collect::<Vec<_>>()), (8, vec![1, 2, 7]));
        assert_eq!(own(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap(), Ownership::all(8, 3));
        assert_eq!(own(&[]).unwrap().owned(), []);
        for wrong in [&[2, 1][..], &[1, 1], &[8], &[0, 9]] {
            assert_eq!(own(wrong), None);
        }
    }
    #[test]
    fn partitions_come_and_go_and_stay_for_those_who_have_them() {
        let owned = |number| Owned { number, epoch: 1 };
        let set = PartitionSet::new(&Ownership::of(8, vec![owned(2), owned(5)]).unwrap(), vec!["two", "five"]);
        let before = set.now();
        assert!(set.add(owned(3), "three") && !set.add(owned(3), "again") && !set.add(owned(8), "eight"));
        assert_eq!(set.remove(5).as_deref(), Some(&"five"));
        assert!(set.remove(5).is_none() && set.get(5).is_none());
        let now = set.now();
        assert_eq!(now.numbered().map(|(number, name)| (number, **name)).collect::<Vec<_>>(), [(2, "two"), (3, "three")]);
        assert_eq!([0, 3, 4].map(|number| now.from(number).map(|(number, _)| number)), [Some(2), Some(3), None]);
        assert_eq!((before.get(5).map(|name| **name), before.get(3)), (Some("five"), None));
        assert_eq!(before.iter().len(), 2);
    }
}
