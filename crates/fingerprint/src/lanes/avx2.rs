//! Eight lanes in the 256-bit registers of AVX2.

use super::{Block, ByteOrder, Lanes, Task};
use std::arch::x86_64::*;

/// Proof that the machine has AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Returns `None` if the machine lacks the instructions.
    pub(crate) fn new() -> Option<Avx2> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }
}

/// Runs AVX2 instructions in a method of [`Avx2`].
macro_rules! run {
    ($instructions:expr) => {
        // SAFETY: the method has an `Avx2`, which exists only where the machine has these instructions.
        unsafe { $instructions }
    };
}

const COUNT: usize = 8;

impl Avx2 {
    /// Transposes 8 by 8: interleaves pairs of rows, then fours, within 128 bits, then swaps the 128-bit halves.
    #[inline(always)]
    fn transposed(self, rows: &[__m256i; 8]) -> [__m256i; 8] {
        let mut fours = [rows[0]; 8];
        for i in 0..2 {
            let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
            let (ab_low, ab_high) = run!((_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)));
            let (cd_low, cd_high) = run!((_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d)));
            fours[4 * i] = run!(_mm256_unpacklo_epi64(ab_low, cd_low));
            fours[4 * i + 1] = run!(_mm256_unpackhi_epi64(ab_low, cd_low));
            fours[4 * i + 2] = run!(_mm256_unpacklo_epi64(ab_high, cd_high));
            fours[4 * i + 3] = run!(_mm256_unpackhi_epi64(ab_high, cd_high));
        }
        let mut columns = fours;
        for j in 0..4 {
            columns[j] = run!(_mm256_permute2x128_si256::<0x20>(fours[j], fours[4 + j]));
            columns[4 + j] = run!(_mm256_permute2x128_si256::<0x31>(fours[j], fours[4 + j]));
        }
        columns
    }
}

#[target_feature(enable = "avx2")]
fn run<T: Task>(task: T) -> T::Output {
    task.run()
}

impl Lanes for Avx2 {
    type Word = __m256i;
    const COUNT: usize = COUNT;

    fn run<T: Task>(self, task: T) -> T::Output {
        run!(run(task))
    }

    #[inline(always)]
    fn splat(self, number: u32) -> __m256i {
        run!(_mm256_set1_epi32(number as i32))
    }

    #[inline(always)]
    fn load(self, row: &[u32]) -> __m256i {
        let row: &[u32; COUNT] = row.first_chunk().expect("a number for each lane");
        // SAFETY: reads the 32 bytes of `row`. The load needs no alignment. `run` says why the instruction is
        // available.
        unsafe { _mm256_loadu_si256(row.as_ptr().cast()) }
    }

    #[inline(always)]
    fn save(self, word: __m256i, row: &mut [u32]) {
        let row: &mut [u32; COUNT] = row.first_chunk_mut().expect("a number for each lane");
        // SAFETY: writes the 32 bytes of `row`. The store needs no alignment. `run` says why the instruction is
        // available.
        unsafe { _mm256_storeu_si256(row.as_mut_ptr().cast(), word) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        run!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        run!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn xor3(self, a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        self.xor(self.xor(a, b), c)
    }

    #[inline(always)]
    fn choose(self, mask: __m256i, a: __m256i, b: __m256i) -> __m256i {
        run!(_mm256_xor_si256(b, _mm256_and_si256(mask, _mm256_xor_si256(a, b))))
    }

    #[inline(always)]
    fn majority(self, a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        run!(_mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(c, _mm256_or_si256(a, b))))
    }

    #[inline(always)]
    fn rotate_right<const BITS: i32>(self, a: __m256i) -> __m256i {
        run!(match BITS {
            8 => _mm256_shuffle_epi8(
                a,
                _mm256_setr_epi8(
                    1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12
                )
            ),
            16 => _mm256_shuffle_epi8(
                a,
                _mm256_setr_epi8(
                    2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
                )
            ),
            _ => {
                let left = _mm256_sll_epi32(a, _mm_cvtsi32_si128(32 - BITS));
                _mm256_or_si256(_mm256_srli_epi32::<BITS>(a), left)
            }
        })
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m256i) -> __m256i {
        // The count is a constant, so the compiler puts it into the instruction.
        run!(_mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS as i32)))
    }

    #[inline(always)]
    fn load_blocks(self, blocks: &[&Block], order: ByteOrder) -> [__m256i; 16] {
        let blocks: &[&Block; COUNT] = blocks.first_chunk().expect("a block for each lane");
        let mut words = [self.splat(0); 16];
        for half in 0..2 {
            let mut rows = [self.splat(0); 8];
            for lane in 0..COUNT {
                let bytes = if half == 0 { &blocks[lane][..32] } else { &blocks[lane][32..] };
                // SAFETY: reads the 32 bytes of the half block. The load needs no alignment. `run` says why the
                // instruction is available.
                rows[lane] = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
            }
            let columns = self.transposed(&rows);
            words[8 * half..8 * half + 8].copy_from_slice(&columns);
        }
        if order == ByteOrder::Big {
            let reversed = run!(_mm256_set_epi32(
                0x0c0d_0e0f,
                0x0809_0a0b,
                0x0405_0607,
                0x0001_0203,
                0x0c0d_0e0f,
                0x0809_0a0b,
                0x0405_0607,
                0x0001_0203
            ));
            for word in &mut words {
                *word = run!(_mm256_shuffle_epi8(*word, reversed));
            }
        }
        words
    }

    #[inline(always)]
    fn prefetch(self, block: &Block, ahead_bytes: usize) {
        // SAFETY: a prefetch has no visible effect, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().wrapping_add(ahead_bytes).cast()) }
    }

    #[inline(always)]
    fn store(self, words: &[__m256i; 8], out: &mut [[u32; 8]]) {
        let out: &mut [[u32; 8]; COUNT] = out.first_chunk_mut().expect("a row for each lane");
        let rows = self.transposed(words);
        for lane in 0..COUNT {
            // SAFETY: writes the 32 bytes of the row. The store needs no alignment. `run` says why the instruction is
            // available.
            unsafe { _mm256_storeu_si256(out[lane].as_mut_ptr().cast(), rows[lane]) };
        }
    }
}
