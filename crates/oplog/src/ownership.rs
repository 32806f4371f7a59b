//! Which partitions of a class an opening has, and the epoch of each ownership.

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
}
