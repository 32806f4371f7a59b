//! Which partitions of a class an opening has, and the number of each ownership.

/// A partition that somebody owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The partition, below the number of all.
    pub number: u32,
    /// The number of this ownership. It only grows: whoever has a lower one has lost the partition.
    pub epoch: u64,
}

/// The partitions of a class that are opened, out of all that the store has. On one machine these are all, and each epoch is the number of the opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    total: u32,
    owned: Vec<Owned>,
}

impl Ownership {
    /// All `total` partitions, by one epoch.
    pub fn all(total: u32, epoch: u64) -> Ownership {
        Ownership { total, owned: (0..total).map(|number| Owned { number, epoch }).collect() }
    }

    /// Some of `total` partitions. `None`: their numbers do not ascend, or one is not below the total.
    pub fn of(total: u32, owned: Vec<Owned>) -> Option<Ownership> {
        let ascends = owned.windows(2).all(|pair| pair[0].number < pair[1].number);
        (ascends && owned.last().is_none_or(|last| last.number < total)).then_some(Ownership { total, owned })
    }

    /// How many partitions the store has, opened or not: what is spread over them is spread over so many.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// The partitions that are opened, ascending.
    pub fn owned(&self) -> &[Owned] {
        &self.owned
    }

    /// The numbers of the partitions that are opened, ascending.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.owned.iter().map(|owned| owned.number)
    }

    /// Which of the opened partitions this number is; `None`: it is not opened.
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
