//! 32 places at once with AVX2. With GFNI it works as [`avx512`](super::avx512) does. Without GFNI, AES computes the
//! S-box, and tables of half bytes compute the linear maps.

use super::field::{AES_CONSTANT, Linear, power};
use super::hash::{Condition, GENERATOR, Hash};
use super::vector::{self, Vector};
use std::arch::x86_64::*;

/// Does what [`vector::scan`] does.
///
/// # Safety
/// [`Implementation::Avx2Gfni`](super::Implementation::Avx2Gfni) must be available.
#[target_feature(enable = "avx2,gfni")]
pub(super) unsafe fn scan_gfni(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    // SAFETY: this function enables the features that the vector needs.
    unsafe { vector::scan::<Gfni>(hash, data, from, to, condition) }
}

/// Does what [`vector::scan`] does.
///
/// # Safety
/// [`Implementation::Avx2`](super::Implementation::Avx2) must be available.
#[target_feature(enable = "avx2,aes")]
pub(super) unsafe fn scan_aes(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    // SAFETY: this function enables the features that the vectors need.
    unsafe {
        if hash.is_public {
            vector::scan::<Aes<false>>(hash, data, from, to, condition)
        } else {
            vector::scan::<Aes<true>>(hash, data, from, to, condition)
        }
    }
}

/// Returns `current` moved by `16 - AT` bytes, with bytes of `previous` shifted in.
#[inline]
#[target_feature(enable = "avx2")]
fn moved<const AT: i32>(current: __m256i, previous: __m256i) -> __m256i {
    _mm256_alignr_epi8::<AT>(current, moved_by_window(current, previous))
}

/// Returns `current` moved by 16 bytes, with bytes of `previous` shifted in.
#[inline]
#[target_feature(enable = "avx2")]
fn moved_by_window(current: __m256i, previous: __m256i) -> __m256i {
    _mm256_permute2x128_si256::<0x21>(previous, current)
}

/// The constants of the condition as vectors, and the operations that both kinds of vector share.
#[derive(Clone, Copy)]
struct Bits {
    zeros: __m256i,
    newer: __m256i,
    older: __m256i,
}

impl Bits {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(hash: &Hash, condition: Condition) -> Bits {
        let bytes = |byte: u8| _mm256_set1_epi8(byte.cast_signed());
        Bits { zeros: bytes(hash.zeros), newer: bytes(condition.newer), older: bytes(condition.older) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn misses(&self, windows: __m256i, previous: __m256i) -> __m256i {
        let older = _mm256_andnot_si256(moved_by_window(windows, previous), self.older);
        _mm256_or_si256(_mm256_and_si256(windows, self.newer), older)
    }
}

/// Returns whether either vector has a zero byte.
#[inline]
#[target_feature(enable = "avx2")]
fn any_zero(first: __m256i, second: __m256i) -> bool {
    zeros(_mm256_min_epu8(first, second)) != 0
}

/// Returns a set bit for each zero byte.
#[inline]
#[target_feature(enable = "avx2")]
fn zeros(bytes: __m256i) -> u64 {
    u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())).cast_unsigned())
}

/// Places whose hashes GFNI computes.
#[derive(Clone, Copy)]
struct Gfni(__m256i);

#[derive(Clone, Copy)]
struct GfniConstants {
    /// The map from the inverse of a byte to the linear part of `s`, and `g` times that map.
    substitution: [__m256i; 2],
    /// Multiplication by `g^2`, `g^4`, `g^8`.
    powers: [__m256i; 3],
    bits: Bits,
}

impl Vector for Gfni {
    const BYTES: usize = 32;
    type Constants = GfniConstants;

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn constants(hash: &Hash, condition: Condition) -> GfniConstants {
        const POWERS: [i64; 3] = [
            Linear::times(power(GENERATOR, 2)).matrix(),
            Linear::times(power(GENERATOR, 4)).matrix(),
            Linear::times(power(GENERATOR, 8)).matrix(),
        ];
        GfniConstants {
            substitution: hash.inverse_matrices.map(|matrix| _mm256_set1_epi64x(matrix)),
            powers: POWERS.map(|matrix| _mm256_set1_epi64x(matrix)),
            bits: Bits::new(hash, condition),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn singles(constants: &GfniConstants, data: *const u8) -> Gfni {
        // SAFETY: the caller vouches for the 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(data.cast()) };
        Gfni(_mm256_gf2p8affineinv_epi64_epi8::<0>(bytes, constants.substitution[0]))
    }

    #[inline(always)]
    fn prefetch(data: *const u8) {
        // SAFETY: a prefetch has no visible effect and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn pairs(constants: &GfniConstants, data: *const u8, singles: Gfni, _: Gfni) -> Gfni {
        // SAFETY: the caller vouches for the 32 bytes and the byte before them.
        let before = unsafe { _mm256_loadu_si256(data.sub(1).cast()) };
        Gfni(_mm256_xor_si256(singles.0, _mm256_gf2p8affineinv_epi64_epi8::<0>(before, constants.substitution[1])))
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn fours(constants: &GfniConstants, pairs: Gfni, previous: Gfni) -> Gfni {
        let moved = moved::<14>(pairs.0, previous.0);
        Gfni(_mm256_xor_si256(pairs.0, _mm256_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[0])))
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn eights(constants: &GfniConstants, fours: Gfni, previous: Gfni) -> Gfni {
        let moved = moved::<12>(fours.0, previous.0);
        Gfni(_mm256_xor_si256(fours.0, _mm256_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[1])))
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn windows(constants: &GfniConstants, eights: Gfni, previous: Gfni) -> Gfni {
        let moved = moved::<8>(eights.0, previous.0);
        let weighed = _mm256_gf2p8affine_epi64_epi8::<0>(moved, constants.powers[2]);
        Gfni(_mm256_xor_si256(_mm256_xor_si256(eights.0, constants.bits.zeros), weighed))
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn misses(constants: &GfniConstants, windows: Gfni, previous: Gfni) -> Gfni {
        Gfni(constants.bits.misses(windows.0, previous.0))
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn any(_: &GfniConstants, [first, second]: [Gfni; 2]) -> bool {
        any_zero(first.0, second.0)
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    unsafe fn candidates(_: &GfniConstants, misses: Gfni) -> u64 {
        zeros(misses.0)
    }
}

/// Places whose hashes are computed without GFNI. Unless `KEYED`, the hash's `M` is the identity.
#[derive(Clone, Copy)]
struct Aes<const KEYED: bool>(__m256i);

/// A linear map as two tables: for the low halves of bytes and for the high halves. Each table fills both 128-bit
/// halves of its vector.
type Map = [__m256i; 2];

#[derive(Clone, Copy)]
struct AesConstants {
    /// `M`.
    matrix: Map,
    /// Multiplication by `g`, `g^2`, `g^4`.
    powers: [Map; 3],
    bits: Bits,
}

/// For each byte that AES's last round moves, the place to take it from. This undoes ShiftRows.
static ROWS_BACK: [u8; 16] = [0, 13, 10, 7, 4, 1, 14, 11, 8, 5, 2, 15, 12, 9, 6, 3];

#[inline]
#[target_feature(enable = "avx2")]
fn in_both_halves(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: the array has the 16 bytes that are loaded.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn map([low, high]: &[[u8; 16]; 2]) -> Map {
    [in_both_halves(low), in_both_halves(high)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn mapped(map: &Map, bytes: __m256i) -> __m256i {
    let half = _mm256_set1_epi8(0xf);
    let low = _mm256_shuffle_epi8(map[0], _mm256_and_si256(bytes, half));
    let high = _mm256_shuffle_epi8(map[1], _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half));
    _mm256_xor_si256(low, high)
}

impl<const KEYED: bool> Vector for Aes<KEYED> {
    const BYTES: usize = 32;
    type Constants = AesConstants;

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn constants(hash: &Hash, condition: Condition) -> AesConstants {
        const POWERS: [[[u8; 16]; 2]; 3] =
            [Linear::times(GENERATOR).halves(), Linear::times(power(GENERATOR, 2)).halves(), Linear::times(power(GENERATOR, 4)).halves()];
        AesConstants {
            matrix: map(&hash.matrix_halves),
            powers: [map(&POWERS[0]), map(&POWERS[1]), map(&POWERS[2])],
            bits: Bits::new(hash, condition),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn singles(constants: &AesConstants, data: *const u8) -> Aes<KEYED> {
        // SAFETY: the caller vouches for the 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(data.cast()) };
        let bytes = _mm256_shuffle_epi8(bytes, in_both_halves(&ROWS_BACK));
        // The key of the last round cancels the constant of the S-box.
        let key = _mm_set1_epi8(AES_CONSTANT.cast_signed());
        let low = _mm_aesenclast_si128(_mm256_castsi256_si128(bytes), key);
        let high = _mm_aesenclast_si128(_mm256_extracti128_si256::<1>(bytes), key);
        let linear = _mm256_set_m128i(high, low);
        Aes(if KEYED { mapped(&constants.matrix, linear) } else { linear })
    }

    #[inline(always)]
    fn prefetch(data: *const u8) {
        // SAFETY: a prefetch has no visible effect and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn pairs(constants: &AesConstants, _: *const u8, singles: Aes<KEYED>, previous: Aes<KEYED>) -> Aes<KEYED> {
        Aes(_mm256_xor_si256(singles.0, mapped(&constants.powers[0], moved::<15>(singles.0, previous.0))))
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn fours(constants: &AesConstants, pairs: Aes<KEYED>, previous: Aes<KEYED>) -> Aes<KEYED> {
        Aes(_mm256_xor_si256(pairs.0, mapped(&constants.powers[1], moved::<14>(pairs.0, previous.0))))
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn eights(constants: &AesConstants, fours: Aes<KEYED>, previous: Aes<KEYED>) -> Aes<KEYED> {
        Aes(_mm256_xor_si256(fours.0, mapped(&constants.powers[2], moved::<12>(fours.0, previous.0))))
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn windows(constants: &AesConstants, eights: Aes<KEYED>, previous: Aes<KEYED>) -> Aes<KEYED> {
        let moved = moved::<8>(eights.0, previous.0);
        // g^8 is 2: shift, and add the polynomial wherever a bit was shifted out.
        let overflow = _mm256_and_si256(_mm256_cmpgt_epi8(_mm256_setzero_si256(), moved), _mm256_set1_epi8(0x1b));
        let weighed = _mm256_xor_si256(_mm256_add_epi8(moved, moved), overflow);
        Aes(_mm256_xor_si256(_mm256_xor_si256(eights.0, constants.bits.zeros), weighed))
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn misses(constants: &AesConstants, windows: Aes<KEYED>, previous: Aes<KEYED>) -> Aes<KEYED> {
        Aes(constants.bits.misses(windows.0, previous.0))
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn any(_: &AesConstants, [first, second]: [Aes<KEYED>; 2]) -> bool {
        any_zero(first.0, second.0)
    }

    #[inline]
    #[target_feature(enable = "avx2,aes")]
    unsafe fn candidates(_: &AesConstants, misses: Aes<KEYED>) -> u64 {
        zeros(misses.0)
    }
}
