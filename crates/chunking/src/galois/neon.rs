//! 16 places at once with NEON: AES computes the S-box, and tables of half bytes compute the linear maps.

use super::field::{Linear, power};
use super::hash::{Condition, GENERATOR, Hash};
use super::vector::{self, Vector};
use std::arch::aarch64::*;

/// Does what [`vector::scan`] does.
///
/// # Safety
/// [`Implementation::Neon`](super::Implementation::Neon) must be available.
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn scan(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    // SAFETY: this function enables the features that the vectors need.
    unsafe {
        if hash.is_public {
            vector::scan::<Places<false>>(hash, data, from, to, condition)
        } else {
            vector::scan::<Places<true>>(hash, data, from, to, condition)
        }
    }
}

/// Unless `KEYED`, the hash's `M` is the identity.
#[derive(Clone, Copy)]
struct Places<const KEYED: bool>(uint8x16_t);

/// A linear map as two tables: for the low halves of bytes and for the high halves.
type Map = [uint8x16_t; 2];

#[derive(Clone, Copy)]
struct Constants {
    /// `M`.
    matrix: Map,
    /// Multiplication by `g`, `g^2`, `g^4`.
    powers: [Map; 3],
    /// Turns the sum into `h`: adds `z` and removes the constant of the S-box.
    offset: uint8x16_t,
    newer: uint8x16_t,
    older: uint8x16_t,
    rows_back: uint8x16_t,
}

/// For each byte that a round of AES moves, the place to take it from. This undoes ShiftRows.
static ROWS_BACK: [u8; 16] = [0, 13, 10, 7, 4, 1, 14, 11, 8, 5, 2, 15, 12, 9, 6, 3];

#[inline]
#[target_feature(enable = "neon")]
fn loaded(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the array has the 16 bytes that are loaded.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn map([low, high]: &[[u8; 16]; 2]) -> Map {
    [loaded(low), loaded(high)]
}

#[inline]
#[target_feature(enable = "neon")]
fn mapped(map: &Map, bytes: uint8x16_t) -> uint8x16_t {
    let low = vqtbl1q_u8(map[0], vandq_u8(bytes, vdupq_n_u8(0xf)));
    veorq_u8(low, vqtbl1q_u8(map[1], vshrq_n_u8::<4>(bytes)))
}

impl<const KEYED: bool> Vector for Places<KEYED> {
    const BYTES: usize = 16;
    type Constants = Constants;

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn constants(hash: &Hash, condition: Condition) -> Constants {
        const POWERS: [[[u8; 16]; 2]; 3] =
            [Linear::times(GENERATOR).halves(), Linear::times(power(GENERATOR, 2)).halves(), Linear::times(power(GENERATOR, 4)).halves()];
        Constants {
            matrix: map(&hash.matrix_halves),
            powers: [map(&POWERS[0]), map(&POWERS[1]), map(&POWERS[2])],
            offset: vdupq_n_u8(hash.offset),
            newer: vdupq_n_u8(condition.newer),
            older: vdupq_n_u8(condition.older),
            rows_back: loaded(&ROWS_BACK),
        }
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn singles(constants: &Constants, data: *const u8) -> Places<KEYED> {
        // SAFETY: the caller vouches for the 16 bytes.
        let bytes = unsafe { vld1q_u8(data) };
        let substituted = vaeseq_u8(vqtbl1q_u8(bytes, constants.rows_back), vdupq_n_u8(0));
        Places(if KEYED { mapped(&constants.matrix, substituted) } else { substituted })
    }

    /// Does nothing: Rust has no stable prefetch for this processor.
    #[inline(always)]
    fn prefetch(_: *const u8) {}

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn pairs(constants: &Constants, _: *const u8, singles: Places<KEYED>, previous: Places<KEYED>) -> Places<KEYED> {
        Places(veorq_u8(singles.0, mapped(&constants.powers[0], vextq_u8::<15>(previous.0, singles.0))))
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn fours(constants: &Constants, pairs: Places<KEYED>, previous: Places<KEYED>) -> Places<KEYED> {
        Places(veorq_u8(pairs.0, mapped(&constants.powers[1], vextq_u8::<14>(previous.0, pairs.0))))
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn eights(constants: &Constants, fours: Places<KEYED>, previous: Places<KEYED>) -> Places<KEYED> {
        Places(veorq_u8(fours.0, mapped(&constants.powers[2], vextq_u8::<12>(previous.0, fours.0))))
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn windows(constants: &Constants, eights: Places<KEYED>, previous: Places<KEYED>) -> Places<KEYED> {
        let moved = vextq_u8::<8>(previous.0, eights.0);
        // g^8 is 2: shift, and add the polynomial wherever a bit was shifted out.
        let overflow = vandq_u8(vcltzq_s8(vreinterpretq_s8_u8(moved)), vdupq_n_u8(0x1b));
        let weighed = veorq_u8(vshlq_n_u8::<1>(moved), overflow);
        Places(veorq_u8(veorq_u8(eights.0, constants.offset), weighed))
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn misses(constants: &Constants, windows: Places<KEYED>, previous: Places<KEYED>) -> Places<KEYED> {
        // The windows 16 bytes back are the windows of the previous block. `a & !b` is `vbicq(a, b)`.
        let older = vbicq_u8(constants.older, previous.0);
        Places(vorrq_u8(vandq_u8(windows.0, constants.newer), older))
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn any(_: &Constants, [first, second]: [Places<KEYED>; 2]) -> bool {
        vminvq_u8(vminq_u8(first.0, second.0)) == 0
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn candidates(_: &Constants, misses: Places<KEYED>) -> u64 {
        // One bit per place: each is weighted, and each half is summed.
        let weights = loaded(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
        let bits = vandq_u8(vceqzq_u8(misses.0), weights);
        u64::from(vaddv_u8(vget_low_u8(bits))) | u64::from(vaddv_u8(vget_high_u8(bits))) << 8
    }
}
