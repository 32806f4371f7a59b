//! 64 places at once with AVX-512 and GFNI: a linear map of GF(2^8) is one instruction, and so is the S-box.

use super::field::{Linear, power};
use super::hash::{Condition, GENERATOR, Hash};
use super::vector::{self, Vector};
use std::arch::x86_64::*;

/// Does what [`vector::scan`] does.
///
/// # Safety
/// [`Implementation::Avx512`](super::Implementation::Avx512) must be available.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(super) unsafe fn scan(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    // SAFETY: this function enables the features that the vector needs.
    unsafe { vector::scan::<Places>(hash, data, from, to, condition) }
}

#[derive(Clone, Copy)]
struct Places(__m512i);

#[derive(Clone, Copy)]
struct Constants {
    /// The map from the inverse of a byte to the linear part of `s`, and `g` times that map.
    substitution: [__m512i; 2],
    /// Multiplication by `g^2`, `g^4`, `g^8`.
    powers: [__m512i; 3],
    zeros: __m512i,
    newer: __m512i,
    older: __m512i,
    /// Picks the last two of 64 bytes, and the first 62 of the next 64.
    moved_by_two: __m512i,
}

/// For each byte, its index in two consecutive vectors when the second is moved by two.
static MOVED_BY_TWO: [u8; 64] = {
    let mut indices = [0; 64];
    let mut at = 0;
    while at < 64 {
        indices[at] = 62 + at as u8;
        at += 1;
    }
    indices
};

impl Vector for Places {
    const BYTES: usize = 64;
    type Constants = Constants;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn constants(hash: &Hash, condition: Condition) -> Constants {
        const POWERS: [i64; 3] = [
            Linear::times(power(GENERATOR, 2)).matrix(),
            Linear::times(power(GENERATOR, 4)).matrix(),
            Linear::times(power(GENERATOR, 8)).matrix(),
        ];
        let bytes = |byte: u8| _mm512_set1_epi8(byte.cast_signed());
        Constants {
            substitution: hash.inverse_matrices.map(|matrix| _mm512_set1_epi64(matrix)),
            powers: POWERS.map(|matrix| _mm512_set1_epi64(matrix)),
            zeros: bytes(hash.zeros),
            newer: bytes(condition.newer),
            older: bytes(condition.older),
            // SAFETY: the array has the 64 bytes that are loaded.
            moved_by_two: unsafe { _mm512_loadu_si512(MOVED_BY_TWO.as_ptr().cast()) },
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn singles(constants: &Constants, data: *const u8) -> Places {
        // SAFETY: the caller vouches for the 64 bytes.
        let bytes = unsafe { _mm512_loadu_si512(data.cast()) };
        Places(_mm512_gf2p8affineinv_epi64_epi8::<0>(bytes, constants.substitution[0]))
    }

    #[inline(always)]
    fn prefetch(data: *const u8) {
        // SAFETY: a prefetch has no visible effect and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn pairs(constants: &Constants, data: *const u8, singles: Places, _: Places) -> Places {
        // SAFETY: the caller vouches for the 64 bytes and the byte before them.
        let before = unsafe { _mm512_loadu_si512(data.sub(1).cast()) };
        Places(_mm512_xor_si512(singles.0, _mm512_gf2p8affineinv_epi64_epi8::<0>(before, constants.substitution[1])))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn fours(constants: &Constants, pairs: Places, previous: Places) -> Places {
        let moved = _mm512_permutex2var_epi8(previous.0, constants.moved_by_two, pairs.0);
        Places(_mm512_xor_si512(pairs.0, _mm512_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[0])))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn eights(constants: &Constants, fours: Places, previous: Places) -> Places {
        let moved = _mm512_alignr_epi32::<15>(fours.0, previous.0);
        Places(_mm512_xor_si512(fours.0, _mm512_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[1])))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn windows(constants: &Constants, eights: Places, previous: Places) -> Places {
        let moved = _mm512_alignr_epi64::<7>(eights.0, previous.0);
        let weighed = _mm512_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[2]);
        // The sum of three.
        Places(_mm512_ternarylogic_epi64::<0x96>(eights.0, weighed, constants.zeros))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn misses(constants: &Constants, windows: Places, previous: Places) -> Places {
        let older = _mm512_alignr_epi64::<6>(windows.0, previous.0);
        // `windows | (constants.older & !older)`. The tests below pick the bits of `newer`.
        Places(_mm512_ternarylogic_epi64::<0xf4>(windows.0, constants.older, older))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn any(constants: &Constants, misses: [Places; 2]) -> bool {
        let [first, second] = misses.map(|misses| _mm512_testn_epi8_mask(misses.0, constants.newer));
        first | second != 0
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
    unsafe fn candidates(constants: &Constants, misses: Places) -> u64 {
        _mm512_testn_epi8_mask(misses.0, constants.newer)
    }
}
