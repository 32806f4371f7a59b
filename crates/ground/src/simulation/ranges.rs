//! Sets of pages and of sectors.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers, as disjoint ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    /// Start of each range -> its end.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl Ranges {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns how many numbers of `range` are in the set.
    pub(super) fn overlap(&self, range: &Range<u64>) -> u64 {
        self.ranges
            .range(..range.end)
            .rev()
            .take_while(|(_, end)| **end > range.start)
            .map(|(start, end)| (*end).min(range.end) - (*start).max(range.start))
            .sum()
    }

    /// Returns how many numbers of `range` are not in the set.
    fn missing(&self, range: &Range<u64>) -> u64 {
        range.end - range.start - self.overlap(range)
    }

    /// Shortens `range` so that at most `free` of its numbers are missing from the set.
    pub(super) fn fitting(&self, range: Range<u64>, free: u64) -> Range<u64> {
        if self.missing(&range) <= free {
            return range;
        }
        let mut left = free;
        let end = range.clone().find(|number| {
            let is_new = self.missing(&(*number..*number + 1)) > 0;
            let is_over = is_new && left == 0;
            left -= u64::from(is_new && !is_over);
            is_over
        });
        range.start..end.unwrap_or(range.end)
    }

    pub(super) fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.ranges.range(..=range.end).next_back().map(|(start, end)| (*start, *end)) {
            if end < range.start {
                break;
            }
            self.ranges.remove(&start);
            self.count -= end - start;
            range = range.start.min(start)..range.end.max(end);
        }
        self.count += range.end - range.start;
        self.ranges.insert(range.start, range.end);
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        while let Some((start, end)) = self.ranges.range(..range.end).next_back().map(|(start, end)| (*start, *end)) {
            if end <= range.start || range.is_empty() {
                break;
            }
            self.ranges.remove(&start);
            self.count -= end - start;
            self.insert(start..range.start.max(start));
            self.insert(range.end.min(end)..end);
        }
    }

    /// Removes all numbers from `first` on.
    pub(super) fn cut(&mut self, first: u64) {
        self.remove(first..u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_those_of_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0..60u64, 0..9u64), 0..20),
            cut in 0..70u64,
            free in 0..9u64,
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (is_insertion, start, length) in steps {
                if is_insertion {
                    ranges.insert(start..start + length);
                    model.extend(start..start + length);
                } else {
                    ranges.remove(start..start + length);
                    model.retain(|number| !(start..start + length).contains(number));
                }
                prop_assert_eq!(ranges.count(), model.len() as u64);
            }
            ranges.cut(cut);
            model.retain(|number| *number < cut);
            prop_assert_eq!(ranges.count(), model.len() as u64);
            let fitting = ranges.fitting(10..40, free);
            prop_assert_eq!(ranges.missing(&fitting), fitting.clone().filter(|number| !model.contains(number)).count() as u64);
            prop_assert!(ranges.missing(&fitting) <= free);
            prop_assert!(fitting.end == 40 || ranges.missing(&(10..fitting.end + 1)) == free + 1);
        }
    }
}
