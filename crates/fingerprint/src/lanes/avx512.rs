//! Sixteen lanes in the 512-bit registers of AVX-512.

use super::{Block, ByteOrder, Lanes, Task};
use std::arch::x86_64::*;

/// Proof that the machine has AVX-512 F and BW.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Returns `None` if the machine lacks the instructions.
    pub(crate) fn new() -> Option<Avx512> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")).then_some(Avx512(()))
    }
}

/// Runs AVX-512 F and BW instructions in a method of [`Avx512`].
macro_rules! run {
    ($instructions:expr) => {
        // SAFETY: the method has an `Avx512`, which exists only where the machine has these instructions.
        unsafe { $instructions }
    };
}

const COUNT: usize = 16;

#[target_feature(enable = "avx512f,avx512bw")]
fn run<T: Task>(task: T) -> T::Output {
    task.run()
}

impl Lanes for Avx512 {
    type Word = __m512i;
    const COUNT: usize = COUNT;

    fn run<T: Task>(self, task: T) -> T::Output {
        run!(run(task))
    }

    #[inline(always)]
    fn splat(self, number: u32) -> __m512i {
        run!(_mm512_set1_epi32(number as i32))
    }

    #[inline(always)]
    fn load(self, row: &[u32]) -> __m512i {
        let row: &[u32; COUNT] = row.first_chunk().expect("a number for each lane");
        // SAFETY: reads the 64 bytes of `row`. The load needs no alignment. `run` says why the instruction is
        // available.
        unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
    }

    #[inline(always)]
    fn save(self, word: __m512i, row: &mut [u32]) {
        let row: &mut [u32; COUNT] = row.first_chunk_mut().expect("a number for each lane");
        // SAFETY: writes the 64 bytes of `row`. The store needs no alignment. `run` says why the instruction is
        // available.
        unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), word) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        run!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        run!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        run!(_mm512_ternarylogic_epi32::<0x96>(a, b, c))
    }

    #[inline(always)]
    fn choose(self, mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
        run!(_mm512_ternarylogic_epi32::<0xca>(mask, a, b))
    }

    #[inline(always)]
    fn majority(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        run!(_mm512_ternarylogic_epi32::<0xe8>(a, b, c))
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32>(self, a: __m512i) -> __m512i {
        run!(_mm512_ror_epi32::<BITS>(a))
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m512i) -> __m512i {
        run!(_mm512_srli_epi32::<BITS>(a))
    }

    /// Transposes 16 by 16: interleaves pairs of rows, then fours, within 128 bits, then swaps the 128-bit parts.
    #[inline(always)]
    fn load_blocks(self, blocks: &[&Block], order: ByteOrder) -> [__m512i; 16] {
        let blocks: &[&Block; COUNT] = blocks.first_chunk().expect("a block for each lane");
        let mut rows = [self.splat(0); 16];
        for lane in 0..COUNT {
            // SAFETY: reads the 64 bytes of the block. The load needs no alignment. `run` says why the instruction is
            // available.
            rows[lane] = unsafe { _mm512_loadu_si512(blocks[lane].as_ptr().cast()) };
        }
        // fours[4 * i + j] holds in its 128-bit part q: words 4q + j of lanes 4i..4i + 4.
        let mut fours = [self.splat(0); 16];
        for i in 0..4 {
            let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
            let (ab_low, ab_high) = run!((_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)));
            let (cd_low, cd_high) = run!((_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)));
            fours[4 * i] = run!(_mm512_unpacklo_epi64(ab_low, cd_low));
            fours[4 * i + 1] = run!(_mm512_unpackhi_epi64(ab_low, cd_low));
            fours[4 * i + 2] = run!(_mm512_unpacklo_epi64(ab_high, cd_high));
            fours[4 * i + 3] = run!(_mm512_unpackhi_epi64(ab_high, cd_high));
        }
        let mut words = [self.splat(0); 16];
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            // Of lanes 0..8 and 8..16: words j and 8 + j, then words 4 + j and 12 + j.
            let (ab_even, ab_odd) = run!((_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)));
            let (cd_even, cd_odd) = run!((_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d)));
            words[j] = run!(_mm512_shuffle_i32x4::<0x88>(ab_even, cd_even));
            words[8 + j] = run!(_mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even));
            words[4 + j] = run!(_mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd));
            words[12 + j] = run!(_mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd));
        }
        if order == ByteOrder::Big {
            let reversed = run!(_mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203));
            for word in &mut words {
                *word = run!(_mm512_shuffle_epi8(*word, reversed));
            }
        }
        words
    }

    #[inline(always)]
    fn prefetch(self, block: &Block, ahead_bytes: usize) {
        // SAFETY: a prefetch has no visible effect, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(ahead_bytes).cast()) }
    }

    /// Transposes 8 by 16, in the other direction.
    #[inline(always)]
    fn store(self, words: &[__m512i; 8], out: &mut [[u32; 8]]) {
        let out: &mut [[u32; 8]; COUNT] = out.first_chunk_mut().expect("a row for each lane");
        // fours[j] and fours[4 + j] hold in their 128-bit part q: words 0..4 and 4..8 of lane 4q + j.
        let mut fours = [self.splat(0); 8];
        for half in 0..2 {
            let [a, b, c, d] = [words[4 * half], words[4 * half + 1], words[4 * half + 2], words[4 * half + 3]];
            let (ab_low, ab_high) = run!((_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)));
            let (cd_low, cd_high) = run!((_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)));
            fours[4 * half] = run!(_mm512_unpacklo_epi64(ab_low, cd_low));
            fours[4 * half + 1] = run!(_mm512_unpackhi_epi64(ab_low, cd_low));
            fours[4 * half + 2] = run!(_mm512_unpacklo_epi64(ab_high, cd_high));
            fours[4 * half + 3] = run!(_mm512_unpackhi_epi64(ab_high, cd_high));
        }
        for j in 0..4 {
            let (low, high) = (fours[j], fours[4 + j]);
            // Lane 4q + j is assembled from 128 bits of each.
            let rows = run!({
                let even = _mm512_shuffle_i32x4::<0x88>(low, high);
                let odd = _mm512_shuffle_i32x4::<0xdd>(low, high);
                let (even, odd) = (_mm512_shuffle_i32x4::<0xd8>(even, even), _mm512_shuffle_i32x4::<0xd8>(odd, odd));
                [
                    _mm512_castsi512_si256(even),
                    _mm512_castsi512_si256(odd),
                    _mm512_extracti64x4_epi64::<1>(even),
                    _mm512_extracti64x4_epi64::<1>(odd),
                ]
            });
            for q in 0..4 {
                // SAFETY: writes the 32 bytes of the row. The store needs no alignment. `run` says why the instruction
                // is available.
                unsafe { _mm256_storeu_si256(out[4 * q + j].as_mut_ptr().cast(), rows[q]) };
            }
        }
    }
}
