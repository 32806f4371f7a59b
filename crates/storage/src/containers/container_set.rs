//! A set of containers in little memory: a bit for each number, in groups of 4,096 that exist only where they have one.
//!
//! A list of all containers of a large store fits: 125 million containers (500 TB in files of 4 MiB) take 17 MB if they
//! are numbered without gaps, and at most 2 GB if each of them is alone in its group.

use crate::ContainerId;
use crate::containers::file::FOLDER_BITS;
use std::collections::BTreeMap;
use std::fmt;

/// Words of bits in a group: one group for each folder of container files.
const WORDS: usize = (1 << FOLDER_BITS) / u64::BITS as usize;

/// Containers, ascending, each once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ContainerSet {
    /// By the bits of the containers above those of the place in a group. No group is empty.
    groups: BTreeMap<u64, Box<[u64; WORDS]>>,
    len: usize,
}

impl ContainerSet {
    /// Returns the group, the word and the bit of a container.
    fn place(container: ContainerId) -> (u64, usize, u64) {
        let at = container.bits() as usize & ((1 << FOLDER_BITS) - 1);
        (container.bits() >> FOLDER_BITS, at / u64::BITS as usize, 1 << (at as u32 % u64::BITS))
    }

    /// Adds a container. Returns whether it is new.
    pub fn insert(&mut self, container: ContainerId) -> bool {
        let (group, word, bit) = ContainerSet::place(container);
        let word = &mut self.groups.entry(group).or_insert_with(|| Box::new([0; WORDS]))[word];
        let is_new = *word & bit == 0;
        *word |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    /// Adds the containers of a partition with numbers from `from` up to but not including `end`.
    pub fn insert_range(&mut self, partition: u16, from: u32, end: u32) {
        let mut at = from;
        while at < end {
            let (group, word, bit) = ContainerSet::place(ContainerId::new(partition, at));
            let bits = u64::from(end - at).min(u64::from(u64::BITS - bit.trailing_zeros()));
            let word = &mut self.groups.entry(group).or_insert_with(|| Box::new([0; WORDS]))[word];
            let added = (u64::MAX >> (u64::from(u64::BITS) - bits)) << bit.trailing_zeros() & !*word;
            *word |= added;
            self.len += added.count_ones() as usize;
            at += bits as u32;
        }
    }

    /// Removes a container. Returns whether it was there.
    pub fn remove(&mut self, container: ContainerId) -> bool {
        let (group, word, bit) = ContainerSet::place(container);
        let Some(words) = self.groups.get_mut(&group).filter(|words| words[word] & bit != 0) else { return false };
        words[word] &= !bit;
        if words.iter().all(|word| *word == 0) {
            self.groups.remove(&group);
        }
        self.len -= 1;
        true
    }

    /// Removes all containers of another set.
    pub fn subtract(&mut self, other: &ContainerSet) {
        let mut removed = 0;
        self.groups.retain(|group, words| {
            let Some(others) = other.groups.get(group) else { return true };
            for (word, other) in words.iter_mut().zip(others.iter()) {
                removed += (*word & other).count_ones() as usize;
                *word &= !other;
            }
            words.iter().any(|word| *word != 0)
        });
        self.len -= removed;
    }

    /// Returns whether a container is in the set.
    pub fn contains(&self, container: ContainerId) -> bool {
        let (group, word, bit) = ContainerSet::place(container);
        self.groups.get(&group).is_some_and(|words| words[word] & bit != 0)
    }

    /// Returns how many containers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all containers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ContainerId> + '_ {
        self.iter_from(ContainerId::from_bits(0))
    }

    /// Returns the containers that are not below `first`, ascending.
    pub fn iter_from(&self, first: ContainerId) -> impl Iterator<Item = ContainerId> + '_ {
        let (group, word, bit) = ContainerSet::place(first);
        let words =
            self.groups.range(group..).flat_map(|(group, words)| words.iter().enumerate().map(move |(at, word)| (*group, at, *word)));
        let not_below = move |(of_group, at, bits): (u64, usize, u64)| match (of_group, at).cmp(&(group, word)) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some((of_group, at, bits & !(bit - 1))),
            std::cmp::Ordering::Greater => Some((of_group, at, bits)),
        };
        words.filter_map(not_below).flat_map(|(group, at, bits)| {
            let start = group << FOLDER_BITS | (at as u64 * u64::from(u64::BITS));
            Bits(bits).map(move |bit| ContainerId::from_bits(start + u64::from(bit)))
        })
    }

    /// Keeps only some containers. `keep` is asked in ascending order.
    pub fn retain(&mut self, mut keep: impl FnMut(ContainerId) -> bool) {
        for (group, words) in &mut self.groups {
            for (at, word) in words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
                let start = group << FOLDER_BITS | (at as u64 * u64::from(u64::BITS));
                for bit in Bits(*word) {
                    if !keep(ContainerId::from_bits(start + u64::from(bit))) {
                        *word &= !(1 << bit);
                        self.len -= 1;
                    }
                }
            }
        }
        self.groups.retain(|_, words| words.iter().any(|word| *word != 0));
    }
}

/// The places of the bits of a word that are set, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    }
}

impl Extend<ContainerId> for ContainerSet {
    fn extend<T: IntoIterator<Item = ContainerId>>(&mut self, containers: T) {
        for container in containers {
            self.insert(container);
        }
    }
}

impl FromIterator<ContainerId> for ContainerSet {
    fn from_iter<T: IntoIterator<Item = ContainerId>>(containers: T) -> ContainerSet {
        let mut set = ContainerSet::default();
        set.extend(containers);
        set
    }
}

impl fmt::Debug for ContainerSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Numbers near the ends of words and groups, and anywhere.
    fn container() -> impl Strategy<Value = ContainerId> {
        let number = prop_oneof![0..140u32, 4090..4102u32, 8190..8194u32, u32::MAX - 3..=u32::MAX, any::<u32>()];
        (prop_oneof![0..3u16, Just(u16::MAX)], number).prop_map(|(partition, number)| ContainerId::new(partition, number))
    }

    proptest! {
        #[test]
        fn m3_8_a_set_of_containers_has_what_a_sorted_set_has(
            steps in proptest::collection::vec((container(), any::<bool>()), 0..200),
            first in container(),
            length in prop_oneof![0..3u32, 60..70u32, 0..9000u32],
        ) {
            let (mut set, mut model) = (ContainerSet::default(), BTreeSet::new());
            for (container, is_added) in steps {
                if is_added {
                    prop_assert_eq!(set.insert(container), model.insert(container));
                } else {
                    prop_assert_eq!(set.remove(container), model.remove(&container));
                }
                prop_assert_eq!(set.contains(container), is_added);
            }
            set.insert_range(first.partition(), first.number(), first.number().saturating_add(length));
            model.extend((first.number()..first.number().saturating_add(length)).map(|number| ContainerId::new(first.partition(), number)));
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.iter_from(first).collect::<Vec<_>>(), model.range(first..).copied().collect::<Vec<_>>());
            let (mut rest, others) = (set.clone(), set.iter().filter(|container| container.number() % 2 == 0));
            rest.subtract(&others.chain([ContainerId::new(7, 7)]).collect());
            let odd: Vec<_> = model.iter().copied().filter(|container| container.number() % 2 == 1).collect();
            prop_assert_eq!((rest.len(), rest.iter().collect::<Vec<_>>()), (odd.len(), odd.clone()));
            prop_assert_eq!(&rest, &odd.into_iter().collect());
            set.retain(|container| container.number() % 3 == 0);
            model.retain(|container| container.number() % 3 == 0);
            prop_assert_eq!(&set, &model.iter().copied().collect());
            prop_assert_eq!(set.len(), model.len());
        }
    }

    #[test]
    fn m3_8_containers_without_gaps_take_a_bit_and_little_more() {
        let set: ContainerSet = (1..100_000).map(|number| ContainerId::new(2, number)).collect();
        let bytes = set.groups.len() * (size_of::<[u64; WORDS]>() + 2 * size_of::<u64>());
        assert!(bytes < 99_999 / 7, "{bytes}");
    }
}
