//! The search with vectors: as many places at once as a vector has bytes. The trait [`Vector`] says what a processor
//! must provide.
//!
//! The hash of a window grows by doubling. With `h_k(i)` the hash of the `k` bytes up to `i`,
//! `h_2k(i) = h_k(i) + g^k h_k(i - k)`. The bytes of a vector are adjacent places, so `h_k(i - k)` is the vector moved
//! by `k` bytes, with bytes of the previous vector shifted in. Nothing else depends on the previous block, so the
//! processor overlaps the blocks.

use super::hash::{Condition, Hash, MEMORY};

/// A vector of bytes, one per place, and the operations of the search.
///
/// # Safety
/// Call the methods only where the processor features of the implementation were detected.
pub(super) trait Vector: Copy {
    /// Places in a vector, at most 64.
    const BYTES: usize;
    /// The constants of the hash and of the condition, as vectors.
    type Constants: Copy;

    /// Returns the constants of a search.
    unsafe fn constants(hash: &Hash, condition: Condition) -> Self::Constants;

    /// Returns `s` of the [`Vector::BYTES`] bytes at `data`. All of them may have a constant added, if `windows`
    /// removes it.
    unsafe fn singles(constants: &Self::Constants, data: *const u8) -> Self;

    /// Prefetches the cache line of `data`, which may point anywhere.
    fn prefetch(data: *const u8);

    /// Returns `h_2`. There is a byte before `data`. `previous` holds the singles of the previous block.
    unsafe fn pairs(constants: &Self::Constants, data: *const u8, singles: Self, previous: Self) -> Self;

    /// Returns `h_4` from `h_2` of this block and the previous block.
    unsafe fn fours(constants: &Self::Constants, pairs: Self, previous: Self) -> Self;

    /// Returns `h_8` from `h_4`.
    unsafe fn eights(constants: &Self::Constants, fours: Self, previous: Self) -> Self;

    /// Returns `h_16`, the hash of windows, from `h_8`.
    unsafe fn windows(constants: &Self::Constants, eights: Self, previous: Self) -> Self;

    /// Returns the bits that keep places from being candidates, from the window up to each place and the window 16
    /// bytes before.
    unsafe fn misses(constants: &Self::Constants, windows: Self, previous: Self) -> Self;

    /// Returns whether one of the blocks has a candidate: a byte without misses.
    unsafe fn any(constants: &Self::Constants, misses: [Self; 2]) -> bool;

    /// Returns the candidates of a block, with its first place in the lowest bit.
    unsafe fn candidates(constants: &Self::Constants, misses: Self) -> u64;
}

/// The hashes of a block. The next block needs their ends.
#[derive(Clone, Copy)]
struct Block<V> {
    singles: V,
    pairs: V,
    fours: V,
    eights: V,
    windows: V,
}

/// Returns the first boundary among the places `from .. to` of `data`.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
pub(super) unsafe fn scan<V: Vector>(hash: &Hash, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
    let to = to.min(data.len());
    let mut spare = [0; SPARE];
    // SAFETY: the caller vouches for the features, here and below.
    let constants = unsafe { V::constants(hash, condition) };
    let first_boundary = |candidates: u64, at: usize| {
        let mut left = candidates;
        while left != 0 {
            let place = at + left.trailing_zeros() as usize;
            if condition.confirms(hash, &data[place + 1 - MEMORY..=place]) {
                return Some(place);
            }
            left &= left - 1;
        }
        None
    };

    let mut previous = None;
    for back in (1..=MEMORY.div_ceil(V::BYTES)).rev() {
        let bytes = bytes_at::<V>(data, from.cast_signed() - (back * V::BYTES).cast_signed(), &mut spare);
        // SAFETY: `bytes_at` points to a block and the byte before it.
        previous = Some(unsafe { hashes(&constants, bytes, previous) });
    }
    let mut previous = previous.expect("there is at least one block of the bytes that a window remembers");

    let mut at = from;
    while at + 2 * V::BYTES <= to {
        let bytes = data[at - 1..at + 2 * V::BYTES].as_ptr();
        for line in (0..2 * V::BYTES).step_by(LINE) {
            V::prefetch(bytes.wrapping_add(AHEAD + line));
        }
        // SAFETY: two blocks and the byte before them lie inside the slice just made.
        let (first, second) = unsafe {
            let first = hashes(&constants, bytes.add(1), Some(previous));
            (first, hashes(&constants, bytes.add(1 + V::BYTES), Some(first)))
        };
        // SAFETY: as above.
        unsafe {
            let misses = [V::misses(&constants, first.windows, previous.windows), V::misses(&constants, second.windows, first.windows)];
            if V::any(&constants, misses) {
                let found = first_boundary(V::candidates(&constants, misses[0]), at)
                    .or_else(|| first_boundary(V::candidates(&constants, misses[1]), at + V::BYTES));
                if found.is_some() {
                    return found;
                }
            }
        }
        previous = second;
        at += 2 * V::BYTES;
    }
    while at < to {
        let bytes = bytes_at::<V>(data, at.cast_signed(), &mut spare);
        // SAFETY: `bytes_at` points to a block and the byte before it.
        let (block, candidates) = unsafe {
            let block = hashes(&constants, bytes, Some(previous));
            (block, V::candidates(&constants, V::misses(&constants, block.windows, previous.windows)))
        };
        let found = first_boundary(candidates & u64::MAX >> (64 - (to - at).min(64)), at);
        if found.is_some() {
            return found;
        }
        previous = block;
        at += V::BYTES;
    }
    None
}

/// Returns all hashes of the block at `data`.
///
/// # Safety
/// The processor must have the features of `V`. The block and the byte before it must be readable.
#[inline(always)]
unsafe fn hashes<V: Vector>(constants: &V::Constants, data: *const u8, previous: Option<Block<V>>) -> Block<V> {
    // SAFETY: the caller vouches for both.
    unsafe {
        let singles = V::singles(constants, data);
        // There is nothing before the first block. Places whose hash would need it are not tested.
        let previous = previous.unwrap_or(Block { singles, pairs: singles, fours: singles, eights: singles, windows: singles });
        let pairs = V::pairs(constants, data, singles, previous.singles);
        let fours = V::fours(constants, pairs, previous.pairs);
        let eights = V::eights(constants, fours, previous.fours);
        let windows = V::windows(constants, eights, previous.eights);
        Block { singles, pairs, fours, eights, windows }
    }
}

/// Bytes in a cache line.
const LINE: usize = 64;
/// How far ahead of the search memory is prefetched. This reaches beyond the minimum of the next chunk, which the
/// search skips, so the processor cannot predict by itself where the search goes on.
const AHEAD: usize = 8 << 10;

/// One byte, and the longest vector.
const SPARE: usize = 1 + 64;

/// Returns a pointer to the block at `at`. The block and the byte before it are readable. Bytes outside `data` have any
/// value.
#[inline(always)]
fn bytes_at<V: Vector>(data: &[u8], at: isize, spare: &mut [u8; SPARE]) -> *const u8 {
    const { assert!(V::BYTES < SPARE) };
    if at >= 1 && at.cast_unsigned() + V::BYTES <= data.len() {
        // Not a slice from `at` on: the pointer must also be allowed to read the byte before.
        data[at.cast_unsigned() - 1..].as_ptr().wrapping_add(1)
    } else {
        copied(data, at, spare)
    }
}

#[cold]
fn copied(data: &[u8], at: isize, spare: &mut [u8; SPARE]) -> *const u8 {
    let first = at - 1;
    let (from, into) = (first.max(0).cast_unsigned(), first.min(0).unsigned_abs());
    let length = data.len().saturating_sub(from).min(SPARE - into);
    spare[into..into + length].copy_from_slice(&data[from..from + length]);
    spare.as_ptr().wrapping_add(1)
}
