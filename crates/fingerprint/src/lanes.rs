//! Vectors of 32-bit words. They do the same step of a hash function for many inputs at once, with one input in each
//! lane.
//!
//! The hash functions are written once, over the trait [`Lanes`]. A value of a type with this trait proves that the
//! machine has the instructions, because only the type's `new` creates it, after asking the machine. So all methods are
//! safe.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pair;
#[cfg(test)]
mod portable;

pub(crate) use pair::Pair;
#[cfg(test)]
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

/// The unit in which BLAKE3, SHA-1 and SHA-256 read their input.
pub(crate) type Block = [u8; 64];

/// The most lanes of any implementation. Tables with a row per lane have this many rows, and the first [`Lanes::COUNT`]
/// are used.
pub(crate) const MAX_LANES: usize = 32;

/// One 32-bit number per lane.
pub(crate) type Row = [u32; MAX_LANES];

/// The byte order of words in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    /// BLAKE3.
    Little,
    /// SHA-1 and SHA-256.
    Big,
}

/// Work for lanes. `run` is `#[inline(always)]` and has as few branches as possible. With branches and the hundreds of
/// words of a hash function, the compiler takes minutes.
pub(crate) trait Task {
    /// The result.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

/// What hash functions do with one word of each lane.
///
/// Use it inside [`Lanes::run`]. Elsewhere each method is a call through memory.
pub(crate) trait Lanes: Copy {
    /// One 32-bit word per lane.
    type Word: Copy;
    /// The number of lanes, at most [`MAX_LANES`].
    const COUNT: usize;

    /// Runs the task in a function compiled for the instructions, with all methods inlined.
    fn run<T: Task>(self, task: T) -> T::Output;

    /// Returns the same number in all lanes.
    fn splat(self, number: u32) -> Self::Word;
    /// Loads the first [`Lanes::COUNT`] numbers of `row`. It must have that many.
    fn load(self, row: &[u32]) -> Self::Word;
    /// Writes the number of each lane to the first [`Lanes::COUNT`] places of `row`. It must have that many.
    fn save(self, word: Self::Word, row: &mut [u32]);
    /// Returns the wrapping sum.
    fn add(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Returns the exclusive or of two words.
    fn xor(self, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Returns the exclusive or of three words.
    fn xor3(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word;
    /// Returns the bits of `a` where `mask` has ones, and the bits of `b` elsewhere.
    fn choose(self, mask: Self::Word, a: Self::Word, b: Self::Word) -> Self::Word;
    /// Returns the majority of three bits, for each bit.
    fn majority(self, a: Self::Word, b: Self::Word, c: Self::Word) -> Self::Word;
    /// Rotates right by `BITS`, which is in 1..32.
    fn rotate_right<const BITS: i32>(self, a: Self::Word) -> Self::Word;
    /// Shifts right by `BITS`, which is in 1..32.
    fn shift_right<const BITS: u32>(self, a: Self::Word) -> Self::Word;
    /// Returns words such that word `i` holds word `i` of the first [`Lanes::COUNT`] blocks. There must be that many.
    fn load_blocks(self, blocks: &[&Block], order: ByteOrder) -> [Self::Word; 16];
    /// Prefetches the cache line `ahead_bytes` after the start of `block`. The line need not exist.
    fn prefetch(self, block: &Block, ahead_bytes: usize);
    /// Writes word `i` of lane `j` to `out[j][i]`, for the first [`Lanes::COUNT`] rows of `out`. There must be that
    /// many.
    fn store(self, words: &[Self::Word; 8], out: &mut [[u32; 8]]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Does every operation of lanes once with random words, and returns the results lane by lane.
    fn everything<L: Lanes>(lanes: L, blocks: &[Block]) -> Vec<[u32; 8]> {
        let blocks: Vec<&Block> = blocks.iter().collect();
        let mut all = Vec::new();
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let w = lanes.load_blocks(&blocks, order);
            let numbers: Row = std::array::from_fn(|lane| lane as u32 * 0x0123_4567);
            let first: [L::Word; 8] = std::array::from_fn(|at| w[at]);
            let second: [L::Word; 8] = std::array::from_fn(|at| w[8 + at]);
            let third = [
                lanes.splat(0x89ab_cdef),
                lanes.load(&numbers),
                lanes.add(w[0], w[1]),
                lanes.xor(w[2], w[3]),
                lanes.xor3(w[4], w[5], w[6]),
                lanes.choose(w[7], w[8], w[9]),
                lanes.majority(w[10], w[11], w[12]),
                lanes.shift_right::<3>(w[13]),
            ];
            let fourth = [
                lanes.rotate_right::<2>(w[0]),
                lanes.rotate_right::<7>(w[1]),
                lanes.rotate_right::<8>(w[2]),
                lanes.rotate_right::<12>(w[3]),
                lanes.rotate_right::<16>(w[4]),
                lanes.rotate_right::<27>(w[5]),
                lanes.rotate_right::<31>(w[6]),
                lanes.shift_right::<10>(w[7]),
            ];
            for words in [first, second, third, fourth] {
                let mut row = [0; MAX_LANES];
                lanes.save(words[0], &mut row);
                let mut out = [[0; 8]; MAX_LANES];
                lanes.store(&words, &mut out);
                assert!(out[L::COUNT..].iter().all(|row| *row == [0; 8]), "rows of no lane are left alone");
                assert!(row.iter().zip(&out).all(|(number, row)| *number == row[0]));
                all.extend_from_slice(&out[..L::COUNT]);
            }
        }
        all
    }

    /// Computes in plain Rust what the lanes must compute.
    fn expected(blocks: &[Block], lanes: usize) -> Vec<[u32; 8]> {
        let mut all = Vec::new();
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let words = |lane: usize| -> [u32; 16] {
                std::array::from_fn(|at| {
                    let bytes = blocks[lane][4 * at..4 * at + 4].try_into().unwrap();
                    if order == ByteOrder::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
                })
            };
            all.extend((0..lanes).map(|lane| std::array::from_fn(|at| words(lane)[at])));
            all.extend((0..lanes).map(|lane| std::array::from_fn(|at| words(lane)[8 + at])));
            all.extend((0..lanes).map(|lane| {
                let w = words(lane);
                [
                    0x89ab_cdef,
                    lane as u32 * 0x0123_4567,
                    w[0].wrapping_add(w[1]),
                    w[2] ^ w[3],
                    w[4] ^ w[5] ^ w[6],
                    (w[7] & w[8]) | (!w[7] & w[9]),
                    (w[10] & w[11]) | (w[10] & w[12]) | (w[11] & w[12]),
                    w[13] >> 3,
                ]
            }));
            all.extend((0..lanes).map(|lane| {
                let w = words(lane);
                [
                    w[0].rotate_right(2),
                    w[1].rotate_right(7),
                    w[2].rotate_right(8),
                    w[3].rotate_right(12),
                    w[4].rotate_right(16),
                    w[5].rotate_right(27),
                    w[6].rotate_right(31),
                    w[7] >> 10,
                ]
            }));
        }
        all
    }

    fn check<L: Lanes>(lanes: L, blocks: &[Block]) {
        assert_eq!(everything(lanes, blocks), expected(blocks, L::COUNT));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn all_lanes_compute_what_plain_rust_does(seed: u64) {
            let mut state = seed | 1;
            let mut blocks = [[0; 64]; MAX_LANES];
            for byte in blocks.as_flattened_mut() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
            check(Portable, &blocks);
            check(Pair(Portable), &blocks);
            #[cfg(target_arch = "x86_64")]
            {
                Avx2::new().into_iter().for_each(|lanes| check(lanes, &blocks));
                Avx2::new().into_iter().for_each(|lanes| check(Pair(lanes), &blocks));
                Avx512::new().into_iter().for_each(|lanes| check(lanes, &blocks));
                Avx512::new().into_iter().for_each(|lanes| check(Pair(lanes), &blocks));
            }
        }
    }
}
