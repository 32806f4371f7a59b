//! Two sets of lanes as one.
//!
//! Each step of a hash function waits for the one before it. With two independent sets of lanes, the machine works on
//! one while the other waits.

use super::{Block, ByteOrder, Lanes, Task};

/// Twice the lanes: the first half in one word, the second half in the other.
#[derive(Clone, Copy)]
pub(crate) struct Pair<L>(pub(crate) L);

impl<L: Lanes> Lanes for Pair<L> {
    type Word = (L::Word, L::Word);
    const COUNT: usize = 2 * L::COUNT;

    fn run<T: Task>(self, task: T) -> T::Output {
        self.0.run(task)
    }

    #[inline(always)]
    fn splat(self, number: u32) -> Self::Word {
        (self.0.splat(number), self.0.splat(number))
    }

    #[inline(always)]
    fn load(self, row: &[u32]) -> Self::Word {
        (self.0.load(row), self.0.load(&row[L::COUNT..]))
    }

    #[inline(always)]
    fn save(self, word: Self::Word, row: &mut [u32]) {
        self.0.save(word.0, row);
        self.0.save(word.1, &mut row[L::COUNT..]);
    }

    #[inline(always)]
    fn add(self, a: Self::Word, b: Self::Word) -> Self::Word {
        (self.0.add(a.0, b.0), self.0.add(a.1, b.1))
    }

    #[inline(always)]
    fn xor(self, a: Self::Word, b: Self::Word) -> Self::Word {
        (self.0.xor(a.0, b.0), self.0.xor(a.1, b.1))
    }

    #[inline(always)]
    fn xor3(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word {
        (self.0.xor3(a.0, b.0, c.0), self.0.xor3(a.1, b.1, c.1))
    }

    #[inline(always)]
    fn choose(self, mask: Self::Word, a: Self::Word, b: Self::Word) -> Self::Word {
        (self.0.choose(mask.0, a.0, b.0), self.0.choose(mask.1, a.1, b.1))
    }

    #[inline(always)]
    fn majority(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word {
        (self.0.majority(a.0, b.0, c.0), self.0.majority(a.1, b.1, c.1))
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32>(self, a: Self::Word) -> Self::Word {
        (self.0.rotate_right::<BITS>(a.0), self.0.rotate_right::<BITS>(a.1))
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: Self::Word) -> Self::Word {
        (self.0.shift_right::<BITS>(a.0), self.0.shift_right::<BITS>(a.1))
    }

    #[inline(always)]
    fn load_blocks(self, blocks: &[&Block], order: ByteOrder) -> [Self::Word; 16] {
        let first = self.0.load_blocks(blocks, order);
        let second = self.0.load_blocks(&blocks[L::COUNT..], order);
        let mut words = [(first[0], second[0]); 16];
        let mut at = 1;
        while at < 16 {
            words[at] = (first[at], second[at]);
            at += 1;
        }
        words
    }

    #[inline(always)]
    fn prefetch(self, block: &Block, ahead_bytes: usize) {
        self.0.prefetch(block, ahead_bytes);
    }

    #[inline(always)]
    fn store(self, words: &[Self::Word; 8], out: &mut [[u32; 8]]) {
        let [a, b, c, d, e, f, g, h] = *words;
        self.0.store(&[a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0], out);
        self.0.store(&[a.1, b.1, c.1, d.1, e.1, f.1, g.1, h.1], &mut out[L::COUNT..]);
    }
}
