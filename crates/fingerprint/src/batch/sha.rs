//! SHA-1 and SHA-256 of many inputs at once (FIPS 180-4), with an input in each lane.
//!
//! The blocks of an input must follow one another in the same lane. A lane whose input ends takes the next one. The
//! longest inputs go first, so that all lanes end at about the same time. When too few lanes are left to pay off, the
//! crates `sha1` and `sha2` finish those inputs one by one, from where they are.
//!
//! The lanes advance together in *stretches*. A stretch is as many blocks as every lane has before its input ends or
//! reaches its padding.

use crate::Fingerprint;
use crate::lanes::{Block, ByteOrder, Lanes, MAX_LANES, Row, Task};
use std::cmp::Reverse;

/// A hash function that works on blocks of 16 big-endian words with the padding of FIPS 180-4, section 5.1.1.
pub(crate) trait Function {
    /// Words of the state and of the digest, at most 8.
    const WORDS: usize;
    /// The state before the first block. Words beyond [`Function::WORDS`] are not used.
    const INITIAL: [u32; 8];

    /// Updates the state with a block of each lane.
    fn step<L: Lanes>(lanes: L, state: &mut [L::Word; 8], words: [L::Word; 16]);

    /// Updates the state of one input with its blocks.
    fn finish(state: &mut [u32; 8], blocks: &[Block]);
}

/// Writes the fingerprints of `inputs` to `out`, which has the same length. Goes one by one when fewer than `worth`
/// lanes are in use.
pub(crate) fn fingerprint<F: Function, L: Lanes>(lanes: L, worth: usize, inputs: &[&[u8]], out: &mut [Fingerprint]) {
    // The limit keeps enough lanes in use as long as inputs wait.
    let worth = worth.clamp(1, L::COUNT);
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_unstable_by_key(|at| Reverse(inputs[*at].len()));
    let mut waiting = order.into_iter();
    let mut work = Work::new();
    loop {
        for lane in 0..L::COUNT {
            if work.inputs[lane].is_some_and(|input| input.blocks.is_empty() && input.tail_blocks == 0) {
                work.take_out::<F>(lane, out);
            }
            if work.inputs[lane].is_none()
                && let Some(at) = waiting.next()
            {
                work.put_in::<F>(lane, at, inputs[at]);
            }
        }
        let active = work.inputs.iter().flatten().count();
        if active < worth {
            break;
        }
        work.go_on::<F, L>(lanes);
    }
    for lane in 0..L::COUNT {
        if let Some(input) = work.inputs[lane] {
            let mut state = std::array::from_fn(|word| work.states[word][lane]);
            F::finish(&mut state, input.blocks);
            F::finish(&mut state, &work.tails[lane][2 - input.tail_blocks..]);
            (0..F::WORDS).for_each(|word| work.states[word][lane] = state[word]);
            work.take_out::<F>(lane, out);
        }
    }
}

/// How far ahead each lane prefetches. Batches from memory become 25 % (SHA-256) and 50 % (SHA-1) faster.
const AHEAD_BYTES: usize = 256;

/// The state of the lanes.
struct Work<'a> {
    inputs: [Option<Input<'a>>; MAX_LANES],
    /// The end of each lane's input with padding: the last one or two blocks.
    tails: [[Block; 2]; MAX_LANES],
    /// One row per word of the state.
    states: [Row; 8],
}

/// What is left of an input.
#[derive(Clone, Copy)]
struct Input<'a> {
    /// Its place in the batch.
    at: usize,
    blocks: &'a [Block],
    /// Blocks of the tail that are left. They are the last ones of the tail.
    tail_blocks: usize,
}

impl<'a> Work<'a> {
    fn new() -> Work<'a> {
        Work { inputs: [None; MAX_LANES], tails: [[[0; 64]; 2]; MAX_LANES], states: [[0; MAX_LANES]; 8] }
    }

    fn put_in<F: Function>(&mut self, lane: usize, at: usize, bytes: &'a [u8]) {
        let (blocks, rest) = bytes.as_chunks::<64>();
        // A one bit, zeros, and the length in bits as the last eight bytes.
        let tail_blocks = if rest.len() + 9 <= 64 { 1 } else { 2 };
        let tail = self.tails[lane][2 - tail_blocks..].as_flattened_mut();
        tail.fill(0);
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let length_at = tail.len() - 8;
        tail[length_at..].copy_from_slice(&(8 * bytes.len() as u64).to_be_bytes());
        self.inputs[lane] = Some(Input { at, blocks, tail_blocks });
        (0..8).for_each(|word| self.states[word][lane] = F::INITIAL[word]);
    }

    fn take_out<F: Function>(&mut self, lane: usize, out: &mut [Fingerprint]) {
        if let Some(input) = self.inputs[lane].take() {
            let mut digest = [0; 32];
            for (bytes, row) in digest.as_chunks_mut::<4>().0.iter_mut().zip(&self.states[..F::WORDS]) {
                *bytes = row[lane].to_be_bytes();
            }
            out[input.at] = Fingerprint::from_digest(&digest);
        }
    }

    /// Runs one stretch.
    fn go_on<F: Function, L: Lanes>(&mut self, lanes: L) {
        let nothing: &[Block] = &[];
        let mut blocks = [nothing; MAX_LANES];
        let mut length = usize::MAX;
        for ((blocks, input), tail) in blocks.iter_mut().zip(&self.inputs).zip(&self.tails) {
            let Some(input) = input else { continue };
            *blocks = if input.blocks.is_empty() { &tail[2 - input.tail_blocks..] } else { input.blocks };
            length = length.min(blocks.len());
        }
        lanes.run(Stretch::<F, L> { lanes, length, blocks: &blocks, states: &mut self.states, function: std::marker::PhantomData });
        for input in self.inputs.iter_mut().flatten() {
            if input.blocks.is_empty() {
                input.tail_blocks -= length;
            } else {
                input.blocks = &input.blocks[length..];
            }
        }
    }
}

/// Updates the states with `length` blocks of each lane.
struct Stretch<'a, F, L> {
    lanes: L,
    length: usize,
    /// Empty for lanes without an input.
    blocks: &'a [&'a [Block]; MAX_LANES],
    states: &'a mut [Row; 8],
    function: std::marker::PhantomData<F>,
}

/// Read by lanes without an input.
static NOTHING: Block = [0; 64];

impl<F: Function, L: Lanes> Task for Stretch<'_, F, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Stretch { lanes, length, blocks, states, .. } = self;
        let mut state = [lanes.load(&states[0]); 8];
        for word in 1..F::WORDS {
            state[word] = lanes.load(&states[word]);
        }
        for at in 0..length {
            let mut block = [&NOTHING; MAX_LANES];
            for lane in 0..L::COUNT {
                block[lane] = blocks[lane].get(at).unwrap_or(&NOTHING);
            }
            for block in &block[..L::COUNT] {
                lanes.prefetch(block, AHEAD_BYTES);
            }
            let words = lanes.load_blocks(&block, ByteOrder::Big);
            F::step(lanes, &mut state, words);
        }
        for word in 0..F::WORDS {
            lanes.save(state[word], &mut states[word]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;
    use crate::batch::{sha1::Sha1, sha256::Sha256};
    #[cfg(target_arch = "x86_64")]
    use crate::lanes::{Avx2, Avx512};
    use crate::lanes::{Pair, Portable};

    /// Checks that the digests are the same as from the crates, however many lanes must be in use.
    fn check<L: Lanes>(lanes: L, inputs: &[&[u8]]) {
        for worth in [0, 1, 3, L::COUNT, L::COUNT + 1] {
            let mut out = vec![Fingerprint::from_digest(&[]); inputs.len()];
            fingerprint::<Sha1, L>(lanes, worth, inputs, &mut out);
            assert!(out.iter().zip(inputs).all(|(found, input)| *found == Algorithm::Sha1.fingerprint(input)));
            fingerprint::<Sha256, L>(lanes, worth, inputs, &mut out);
            assert!(out.iter().zip(inputs).all(|(found, input)| *found == Algorithm::Sha256.fingerprint(input)));
        }
    }

    #[test]
    fn all_lanes_give_the_digests_of_the_crates() {
        let bytes: Vec<u8> = (0..4000u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let shortest = if cfg!(miri) { 53 } else { 0 };
        let mut inputs: Vec<&[u8]> = (shortest..66).chain([119, 120, 128]).map(|length| &bytes[length..2 * length]).collect();
        if !cfg!(miri) {
            inputs.extend([2000, 3000, 0, 777, 4000].map(|length| &bytes[..length]));
        }
        for inputs in [&inputs[..], &inputs[..1], &[]] {
            check(Portable, inputs);
            check(Pair(Portable), inputs);
            #[cfg(target_arch = "x86_64")]
            {
                Avx2::new().into_iter().for_each(|lanes| check(lanes, inputs));
                Avx512::new().into_iter().for_each(|lanes| check(lanes, inputs));
                Avx512::new().into_iter().for_each(|lanes| check(Pair(lanes), inputs));
            }
        }
    }
}
