//! The free blocks of one unit, as a bitmap: where an arena gives out blocks now.
//!
//! Blocks are given out by next fit: from front to back, once. Then the arena moves to the unit that has the most to
//! offer, which may be this one again. So blocks that are freed one by one gather into runs before they are used.

use crate::arena::block::{UNIT_BLOCKS, first_block, unit_of_block};
use std::ops::Range;

const WORD_BITS: u64 = u64::BITS as u64;

/// A unit, and which of its blocks may be given out.
#[derive(Debug)]
pub(crate) struct Window {
    unit: u32,
    /// A bit for each block: 1 if it must not be given out. Blocks behind the end of the file have one too.
    taken: Vec<u64>,
    /// Blocks before this one in the unit are passed over.
    next: u64,
}

impl Window {
    /// Returns a window of a unit in which just these blocks are free.
    pub(crate) fn new(unit: u32, free: Range<u64>) -> Window {
        let mut window = Window { unit, taken: vec![u64::MAX; (UNIT_BLOCKS / WORD_BITS) as usize], next: 0 };
        free.for_each(|block| window.free(block));
        window
    }

    pub(crate) fn unit(&self) -> u32 {
        self.unit
    }

    fn is_taken(&self, at: u64) -> bool {
        self.taken[(at / WORD_BITS) as usize] & 1 << (at % WORD_BITS) != 0
    }

    fn clear(&mut self, at: u64) {
        self.taken[(at / WORD_BITS) as usize] &= !(1 << (at % WORD_BITS));
    }

    fn place(&self, block: u64) -> Option<u64> {
        (unit_of_block(block) == self.unit).then_some(block % UNIT_BLOCKS)
    }

    /// Notes that a block must not be given out. Blocks of other units are ignored.
    pub(crate) fn take(&mut self, block: u64) {
        if let Some(at) = self.place(block) {
            self.taken[(at / WORD_BITS) as usize] |= 1 << (at % WORD_BITS);
        }
    }

    /// Notes that a block may be given out. Blocks of other units are ignored.
    pub(crate) fn free(&mut self, block: u64) {
        if let Some(at) = self.place(block) {
            self.clear(at);
        }
    }

    /// Returns whether a block is left to give out.
    pub(crate) fn has_free(&self) -> bool {
        self.run_from(self.next, 1).is_some()
    }

    /// Returns the free runs of the unit.
    pub(crate) fn free_runs(&self) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some(run) = self.run_from(at, UNIT_BLOCKS) {
            at = run.end;
            runs.push(first_block(self.unit) + run.start..first_block(self.unit) + run.end);
        }
        runs
    }

    /// Takes the next run of free blocks, at most `most` of them. `None`: the unit is used up to its end.
    pub(crate) fn take_run(&mut self, most: u64) -> Option<Range<u64>> {
        let Some(run) = self.run_from(self.next, most) else {
            self.next = UNIT_BLOCKS;
            return None;
        };
        self.next = run.end;
        let blocks = first_block(self.unit) + run.start..first_block(self.unit) + run.end;
        blocks.clone().for_each(|block| self.take(block));
        Some(blocks)
    }

    /// Returns the first run of free places that begins at or behind a place.
    fn run_from(&self, at: u64, most: u64) -> Option<Range<u64>> {
        let mut start = at;
        loop {
            if start >= UNIT_BLOCKS {
                return None;
            }
            let free = !self.taken[(start / WORD_BITS) as usize] >> (start % WORD_BITS);
            if free != 0 {
                start += u64::from(free.trailing_zeros());
                break;
            }
            start = (start / WORD_BITS + 1) * WORD_BITS;
        }
        let mut end = start;
        while end < UNIT_BLOCKS && end - start < most && !self.is_taken(end) {
            end += 1;
        }
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn m1_9_a_window_gives_out_exactly_the_free_blocks_in_runs(
            blocks in prop_oneof![0..300u64, UNIT_BLOCKS - 70..=UNIT_BLOCKS],
            taken in proptest::collection::btree_set(prop_oneof![0..300u64, UNIT_BLOCKS - 70..UNIT_BLOCKS], 0..100),
            freed in proptest::collection::vec(0..300u64, 0..20),
            most in 1..70u64,
        ) {
            let base = first_block(5);
            let mut window = Window::new(5, base..base + blocks);
            let mut model: BTreeSet<u64> = (base..base + blocks).collect();
            for at in taken {
                window.take(base + at);
                model.remove(&(base + at));
            }
            for at in freed.into_iter().filter(|at| *at < blocks) {
                window.free(base + at);
                model.insert(base + at);
            }
            window.take(first_block(4));
            window.free(first_block(6) + 1);
            let runs = window.free_runs();
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(&runs.into_iter().flatten().collect::<BTreeSet<_>>(), &model);
            let mut given = BTreeSet::new();
            while let Some(run) = window.take_run(most) {
                prop_assert!(run.end - run.start <= most && run.start < run.end);
                for block in run {
                    prop_assert!(given.insert(block), "{} is given out twice", block);
                }
            }
            prop_assert_eq!(given, model);
            prop_assert!(window.take_run(1).is_none() && window.free_runs().is_empty());
        }
    }
}
