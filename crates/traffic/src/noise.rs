//! Pseudo-random numbers at any place: word `n` of a key is a function of both. So nothing is stored, and any part can
//! be generated on its own.
//!
//! The function is SplitMix64 on a counter: two multiplications for eight bytes. Words do not depend on each other, so
//! a core works on several at once.

/// The name of an endless sequence of bytes. Equal keys name equal sequences.
///
/// A key has two words. Sequences with only one equal word have no common stretch of more than 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    start: u64,
    mask: u64,
}

/// 2^64 divided by the golden ratio, made odd, so the counter takes all values before it repeats.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline(always)]
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Key {
    /// Returns the key that these numbers name.
    pub(crate) fn derive(names: &[u64]) -> Key {
        let absorb = |begin: u64| names.iter().fold(begin, |state, name| mix(state.wrapping_add(STEP) ^ mix(name.wrapping_add(begin))));
        Key { start: absorb(0x243f_6a88_85a3_08d3), mask: absorb(0x1319_8a2e_0370_7344) }
    }

    #[inline(always)]
    pub(crate) fn word(self, index: u64) -> u64 {
        mix(self.start.wrapping_add(index.wrapping_mul(STEP))) ^ self.mask
    }

    /// Fills `out` with the bytes of the sequence from `at` on.
    pub(crate) fn fill(self, at: u64, out: &mut [u8]) {
        let (mut index, within) = (at / 8, (at % 8) as usize);
        let mut rest = out;
        if within > 0 {
            let word = self.word(index).to_le_bytes();
            let (head, tail) = rest.split_at_mut(rest.len().min(8 - within));
            head.copy_from_slice(&word[within..within + head.len()]);
            rest = tail;
            index += 1;
        }
        let (words, tail) = rest.as_chunks_mut::<8>();
        for (nth, word) in words.iter_mut().enumerate() {
            *word = self.word(index.wrapping_add(nth as u64)).to_le_bytes();
        }
        let last = self.word(index.wrapping_add(words.len() as u64)).to_le_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
    }
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    key: Key,
    next: u64,
}

impl Draws {
    pub(crate) fn new(key: Key) -> Draws {
        Draws { key, next: 0 }
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn unit(&mut self) -> f64 {
        let word = self.key.word(self.next);
        self.next += 1;
        unit(word)
    }
}

/// Returns a float from 0 to 1, made of 53 bits of the word.
pub(crate) fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_a_sequence_can_be_made_alone() {
        let key = Key::derive(&[1, 2, 3]);
        let mut whole = vec![0; 300];
        key.fill(0, &mut whole);
        for begin in 0..40 {
            for length in [0, 1, 5, 7, 8, 9, 16, 17, 200] {
                let mut part = vec![0; length];
                key.fill(begin as u64, &mut part);
                assert_eq!(part, &whole[begin..begin + length], "{begin} {length}");
            }
        }
    }

    #[test]
    fn the_bytes_of_a_key_never_change() {
        // Published figures name a seed. A change of this sequence would change what they measured.
        let mut out = [0; 16];
        Key::derive(&[42, 1, 2, 3]).fill(4, &mut out);
        assert_eq!(out, [100, 155, 16, 121, 55, 2, 114, 44, 145, 8, 35, 8, 232, 7, 102, 53]);
    }

    #[test]
    fn every_name_counts() {
        let mut keys: Vec<(u64, u64)> = Vec::new();
        for a in 0..20 {
            for b in 0..20 {
                let key = Key::derive(&[a, b]);
                keys.push((key.start, key.mask));
            }
        }
        for half in [|key: &(u64, u64)| key.0, |key: &(u64, u64)| key.1] {
            let mut halves: Vec<u64> = keys.iter().map(half).collect();
            halves.sort_unstable();
            halves.dedup();
            assert_eq!(halves.len(), keys.len());
        }
    }
}
