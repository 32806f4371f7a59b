//! Which keys a log has the truth of, and since when. Nodes of a cluster have a log each, and keys move between them.
//!
//! A partition's *lineage* is a list of logs: what they say of its keys, one after the other, is what is true
//! (`docs/cluster.md`). A log may have said something of the same keys earlier, when its node had the partition before.
//! That must never come back, and must not be mixed with what the log says since. So whoever keeps or reads effects of
//! a log asks here whether they count.

use crate::Position;

/// Keys that a log has the truth of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The first of them.
    pub from: Vec<u8>,
    /// The first one behind them. `None`: there is none.
    pub to: Option<Vec<u8>>,
    /// What the log says of them before does not count.
    pub since: Position,
    /// Whether no other log comes before this one.
    pub is_first: bool,
}

impl Holding {
    fn has(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.to.as_ref().is_none_or(|to| *key < **to)
    }
}

/// What a log holds, by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings(Vec<Holding>);

impl Holdings {
    /// Holds all keys, as a log does that is the only one of its store.
    pub fn all() -> Holdings {
        Holdings(vec![Holding { from: Vec::new(), to: None, since: Position(0), is_first: true }])
    }

    /// Holds these. `None`: their keys do not ascend, or overlap.
    pub fn of(holdings: Vec<Holding>) -> Option<Holdings> {
        let ascends = holdings.windows(2).all(|pair| pair[0].to.as_ref().is_some_and(|to| *to <= pair[1].from));
        let is_right = |holding: &Holding| holding.to.as_ref().is_none_or(|to| holding.from < *to);
        (ascends && holdings.iter().all(is_right)).then_some(Holdings(holdings))
    }

    /// Returns whether everything counts.
    pub(super) fn are_all(&self) -> bool {
        matches!(&self.0[..], [Holding { from, to: None, since: Position(0), .. }] if from.is_empty())
    }

    /// Returns the holding of a key, if the part of the log that ends at `end` counts for it.
    pub(super) fn counting(&self, key: &[u8], end: Position) -> Option<&Holding> {
        let behind = self.0.partition_point(|holding| *holding.from <= *key);
        let holding = behind.checked_sub(1).and_then(|at| self.0.get(at))?;
        (holding.has(key) && end > holding.since).then_some(holding)
    }

    /// Returns whether a part of the log that ends at `end` counts for a key from `first` on, before `behind`. `None`:
    /// there is no end of the keys.
    pub(super) fn count_between(&self, first: &[u8], behind: Option<&[u8]>, end: Position) -> bool {
        let overlaps =
            |holding: &Holding| behind.is_none_or(|behind| *holding.from < *behind) && holding.to.as_ref().is_none_or(|to| **to > *first);
        self.0.iter().any(|holding| end > holding.since && overlaps(holding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(from: u8, to: Option<u8>, since: u64) -> Holding {
        Holding { from: vec![from], to: to.map(|to| vec![to]), since: Position(since), is_first: true }
    }

    #[test]
    fn keys_are_found_by_range_and_wrong_lists_are_refused() {
        let some = Holdings::of(vec![holding(2, Some(4), 0), holding(4, Some(5), 8192), holding(7, None, 4096)]).unwrap();
        let counts = |key: &[u8], end| some.counting(key, Position(end)).is_some();
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 255].map(|key| counts(&[key], 12288)), [false, true, true, true, false, false, true, true]);
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 255].map(|key| counts(&[key], 8192)), [false, true, true, false, false, false, true, true]);
        assert!(counts(&[3, 9, 9], 4096) && !counts(&[], 12288) && !counts(&[7, 0], 4096));
        let between = |first: u8, behind: Option<&[u8]>, end| some.count_between(&[first], behind, Position(end));
        assert!(between(0, Some(&[3]), 1) && !between(0, Some(&[2]), 9000) && between(3, Some(&[9]), 1));
        assert!(between(4, Some(&[6]), 9000) && !between(4, Some(&[6]), 8192) && !between(5, Some(&[7]), 9000));
        assert!(between(5, None, 9000) && Holdings::all().are_all() && !some.are_all());
        for wrong in [
            vec![holding(3, Some(2), 0)],
            vec![holding(2, Some(2), 0)],
            vec![holding(2, Some(4), 0), holding(3, None, 0)],
            vec![holding(2, None, 0), holding(3, None, 0)],
        ] {
            assert_eq!(Holdings::of(wrong), None);
        }
        assert!(Holdings::of(Vec::new()).unwrap().counting(&[1], Position(4096)).is_none());
    }
}
