//! Which partitions of a class an opening has, and the epoch of each ownership.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

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
///
/// The files of a partition have names by its number. So whoever makes or removes files of a partition that is not
/// opened has [reserved](PartitionSet::reserve) its number. This works only if nobody is left who uses a partition of
/// this number that was removed. Locks: `reserved`, then `gone`, then `now`.
#[derive(Debug)]
pub struct PartitionSet<P> {
    total: u32,
    now: RwLock<Arc<Partitions<P>>>,
    reserved: Arc<Mutex<BTreeSet<u32>>>,
    /// Partitions that were removed, as long as somebody may use them.
    gone: Mutex<BTreeMap<u32, Weak<P>>>,
}

/// The number of a partition that is not opened. Nobody else has it while this lives.
#[derive(Debug)]
pub struct ReservedPartition {
    number: u32,
    all: Arc<Mutex<BTreeSet<u32>>>,
}

impl ReservedPartition {
    /// Returns the number.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for ReservedPartition {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
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
        PartitionSet { total: ownership.total(), now, reserved: Arc::default(), gone: Mutex::default() }
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

    /// Reserves the number of a partition that is not opened. `None`: the store has none of this number, it is opened
    /// or reserved, or somebody still uses one that was removed.
    pub fn reserve(&self, number: u32) -> Option<ReservedPartition> {
        let mut reserved = self.reserved.lock();
        let mut gone = self.gone.lock();
        if gone.get(&number).is_some_and(|gone| gone.strong_count() > 0) {
            return None;
        }
        gone.remove(&number);
        (number < self.total && self.get(number).is_none() && reserved.insert(number))
            .then(|| ReservedPartition { number, all: self.reserved.clone() })
    }

    /// Adds a partition under the epoch of its ownership.
    pub fn add(&self, reserved: ReservedPartition, epoch: u64, partition: P) {
        let mut now = self.now.write();
        let place = now.ownership.owned.partition_point(|owned| owned.number < reserved.number);
        let mut changed = Partitions { ownership: now.ownership.clone(), opened: now.opened.clone() };
        changed.ownership.owned.insert(place, Owned { number: reserved.number, epoch });
        changed.opened.insert(place, Arc::new(partition));
        *now = Arc::new(changed);
        drop(now);
        // From now on it is opened.
        drop(reserved);
    }

    /// Removes a partition, and reserves its number. `None`: it is not opened.
    pub fn remove(&self, number: u32) -> Option<(Arc<P>, ReservedPartition)> {
        let mut reserved = self.reserved.lock();
        let mut gone = self.gone.lock();
        let mut now = self.now.write();
        let place = now.ownership.place(number)?;
        let mut changed = Partitions { ownership: now.ownership.clone(), opened: now.opened.clone() };
        changed.ownership.owned.remove(place);
        let removed = changed.opened.remove(place);
        *now = Arc::new(changed);
        gone.insert(number, Arc::downgrade(&removed));
        reserved.insert(number);
        Some((removed, ReservedPartition { number, all: self.reserved.clone() }))
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
        let reserved = set.reserve(3).unwrap();
        assert!([2, 3, 8].map(|number| set.reserve(number).is_none()).into_iter().all(|is_refused| is_refused));
        set.add(reserved, 7, "three");
        assert!(set.reserve(3).is_none());
        let (five, reserved) = set.remove(5).unwrap();
        assert_eq!((*five, reserved.number()), ("five", 5));
        assert!(set.remove(5).is_none() && set.get(5).is_none());
        let now = set.now();
        assert_eq!(now.numbered().map(|(number, name)| (number, **name)).collect::<Vec<_>>(), [(2, "two"), (3, "three")]);
        assert_eq!(now.ownership().owned()[1], Owned { number: 3, epoch: 7 });
        assert_eq!([0, 3, 4].map(|number| now.from(number).map(|(number, _)| number)), [Some(2), Some(3), None]);
        assert_eq!((before.get(5).map(|name| **name), before.get(3)), (Some("five"), None));
        assert_eq!(before.iter().len(), 2);
        // Nobody makes another one while this one is used or removed.
        drop(reserved);
        assert!(set.reserve(5).is_none());
        drop(before);
        assert!(set.reserve(5).is_none());
        drop(five);
        assert!(set.reserve(5).is_some() && set.reserve(5).is_some());
    }
}
