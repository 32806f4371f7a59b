//! FastCDC (W. Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage Systems",
//! IEEE TPDS 2020): a gear hash that skips the first minimum of bytes, with normalised chunking at level 2.
//!
//! From the minimum on, the hash is `h = 2 h + GEAR[byte]`. The chunk ends *before* the first byte after which all bits
//! of the mask are zero. Before the target, the mask is four times as strict as the target asks for; after it, four
//! times as lax. This brings the sizes near the target.
//!
//! The cuts are the same as in the crate `fastcdc` (module `v2020`, normalisation 2), the reference for other
//! implementations. Like that crate, this module tests bytes in pairs, so it does not test the last byte of a tail of
//! odd length.
//!
//! Each step waits for the one before. The hash only remembers the last 64 bytes, so two places of a chunk are scanned
//! at once. If both find a boundary, the first one counts, so the cuts are the same as in a single scan.

use crate::cut::cut_all;
use crate::gear::{GEAR, mask};
use crate::{Chunker, Kind, Limits, Sizes};

/// The masks before and after the target differ from the target's own mask by this many bits.
const NORMALISATION: u32 = 2;

/// After this many shifts, a byte has left the hash.
const MEMORY: usize = 64;
/// Bytes per lane: long compared with the [`MEMORY`] that the second lane first takes in, short compared with a chunk.
const LANE: usize = 512;

/// The FastCDC chunker for one choice of sizes.
#[derive(Debug)]
pub(crate) struct FastCdc {
    sizes: Sizes,
    /// The mask before the target.
    strict: u64,
    /// The mask after the target.
    lax: u64,
}

impl FastCdc {
    /// Call only with `sizes` that were checked.
    pub(crate) fn new(sizes: Sizes) -> FastCdc {
        let bits = sizes.target.ilog2();
        FastCdc { sizes, strict: mask(bits + NORMALISATION), lax: mask(bits - NORMALISATION) }
    }

    /// Returns the length of the first chunk of `data`, or `None` if more data could change it.
    fn next(&self, data: &[u8]) -> Option<usize> {
        let Sizes { min, target, max } = self.sizes;
        let end = data.len().min(max) & !1;
        if end > min {
            let centre = end.min(target);
            let (before, after) = (&data[min..centre], &data[centre..end]);
            let hash = match scan(before, 0, self.strict) {
                Scan::Found(at) => return Some(min + at),
                Scan::NotFound(hash) => hash,
            };
            if let Scan::Found(at) = scan(after, hash, self.lax) {
                return Some(centre + at);
            }
        }
        (data.len() >= max).then_some(max)
    }
}

impl Chunker for FastCdc {
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize {
        cut_all(data, last, cuts, |rest| self.next(rest))
    }

    fn confirms(&self, data: &[u8], length: usize) -> bool {
        let Sizes { min, target, max } = self.sizes;
        // The byte after the chunk decides. The last byte of data of odd length is not tested.
        if length < min || length >= data.len().min(max) & !1 {
            return length == max && data.len() >= max;
        }
        let mask = if length < target { self.strict } else { self.lax };
        let is_boundary = |length: usize| {
            let remembered = min.max(length.saturating_sub(MEMORY - 1));
            data[remembered..=length].iter().fold(0, |hash, byte| step(hash, *byte)) & mask == 0
        };
        // A tail of odd length was cut without testing its last byte, so there may be a boundary before that byte.
        // (The target is even, so the mask is the same.)
        is_boundary(length) && (length.is_multiple_of(2) || !is_boundary(length - 1))
    }

    fn name(&self) -> &'static str {
        Kind::FastCdc.name()
    }

    fn limits(&self) -> Limits {
        Limits { min: self.sizes.min, target: self.sizes.target, max: self.sizes.max }
    }
}

enum Scan {
    /// The hash meets the mask after the byte at this offset.
    Found(usize),
    /// No byte matched. Holds the hash after the last byte.
    NotFound(u64),
}

/// Adds the bytes of `data` to `hash`, up to the first byte after which `hash & mask` is zero.
fn scan(data: &[u8], mut hash: u64, mask: u64) -> Scan {
    let mut stripes = data.chunks_exact(2 * LANE);
    let mut at = 0;
    for stripe in &mut stripes {
        match scan_lanes(stripe.try_into().expect("stripes have two lanes"), hash, mask) {
            Scan::Found(offset) => return Scan::Found(at + offset),
            Scan::NotFound(after) => hash = after,
        }
        at += 2 * LANE;
    }
    match scan_pairs(stripes.remainder(), hash, mask) {
        Scan::Found(offset) => Scan::Found(at + offset),
        not_found => not_found,
    }
}

/// Does what [`scan`] does, in two lanes at once. A single lane spends half its time waiting for its own additions.
fn scan_lanes(stripe: &[u8; 2 * LANE], hash: u64, mask: u64) -> Scan {
    let (left, right) = stripe.split_at(LANE);
    let mut hashes = [hash, stripe[LANE - MEMORY..LANE].iter().fold(0, |hash, byte| step(hash, *byte))];
    for (index, (left_pair, right_pair)) in left.chunks_exact(2).zip(right.chunks_exact(2)).enumerate() {
        let at = 2 * index;
        let (middle, after) = pair(hashes[0], left_pair[0], left_pair[1]);
        let (right_middle, right_after) = pair(hashes[1], right_pair[0], right_pair[1]);
        if middle & (mask << 1) == 0 {
            return Scan::Found(at);
        }
        if after & mask == 0 {
            return Scan::Found(at + 1);
        }
        hashes = [after, right_after];
        let in_right = if right_middle & (mask << 1) == 0 {
            at
        } else if right_after & mask == 0 {
            at + 1
        } else {
            continue;
        };
        // A boundary that is still to come in the left lane takes priority.
        return match scan_pairs(&left[at + 2..], after, mask) {
            Scan::Found(offset) => Scan::Found(at + 2 + offset),
            Scan::NotFound(_) => Scan::Found(LANE + in_right),
        };
    }
    Scan::NotFound(hashes[1])
}

/// Does what [`scan`] does, one pair of bytes after the other.
fn scan_pairs(data: &[u8], mut hash: u64, mask: u64) -> Scan {
    let mut pairs = data.chunks_exact(2);
    for (index, bytes) in (&mut pairs).enumerate() {
        let (middle, after) = pair(hash, bytes[0], bytes[1]);
        if middle & (mask << 1) == 0 {
            return Scan::Found(2 * index);
        }
        if after & mask == 0 {
            return Scan::Found(2 * index + 1);
        }
        hash = after;
    }
    debug_assert!(pairs.remainder().is_empty(), "all sizes are even");
    Scan::NotFound(hash)
}

/// Returns twice the hash after the first byte, and the hash after both bytes. The second result then waits for only
/// one shift and one addition (section 3.7 of the paper).
#[inline]
fn pair(hash: u64, first: u8, second: u8) -> (u64, u64) {
    let first = GEAR[usize::from(first)] << 1;
    let middle = (hash << 2).wrapping_add(first);
    (middle, (hash << 2).wrapping_add(first.wrapping_add(GEAR[usize::from(second)])))
}

/// Returns the hash after one more byte.
#[inline]
fn step(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the lengths that the reference implementation cuts.
    fn reference(data: &[u8], sizes: Sizes) -> Vec<usize> {
        let chunker =
            ::fastcdc::v2020::FastCDC::with_level(data, sizes.min, sizes.target, sizes.max, ::fastcdc::v2020::Normalization::Level2);
        chunker.map(|chunk| chunk.offset + chunk.length).collect()
    }

    fn ours(data: &[u8], sizes: Sizes) -> Vec<usize> {
        let mut cuts = Vec::new();
        assert_eq!(FastCdc::new(sizes).cut(data, true, &mut cuts), data.len());
        cuts
    }

    #[test]
    fn m0_2_the_cuts_are_those_of_the_reference_for_all_targets() {
        let data = crate::testing::mixed(3 << 20, 1);
        for bits in 8..=20 {
            let sizes = Sizes::around(1 << bits);
            for length in [data.len(), data.len() - 1, data.len() - 4321] {
                assert_eq!(ours(&data[..length], sizes), reference(&data[..length], sizes), "target 2^{bits}, {length} bytes");
            }
        }
    }

    #[test]
    fn m0_2_the_untested_last_byte_of_an_odd_tail_is_tested_when_the_tail_is_recognised() {
        // Two boundaries one byte apart. A run that ends between them is cut at neither, because the byte that decides
        // about the first is the last byte of an odd length. A longer run is cut at the first boundary, so it has no
        // chunk equal to the short run's tail.
        let sizes = Sizes { min: 64, target: 256, max: 1024 };
        let chunker = FastCdc::new(sizes);
        let data = crate::testing::mixed(4 << 20, 2);
        let first = |data: &[u8]| chunker.next(data);
        let place = (0..data.len() - sizes.max).find(|at| {
            let rest = &data[*at..at + sizes.max];
            let length = first(rest).unwrap_or(0) + 1;
            let start = length.saturating_sub(MEMORY).max(sizes.min);
            let hash = |end: usize| rest[start..=end].iter().fold(0, |hash, byte| step(hash, *byte));
            length % 2 == 1 && length > sizes.target && length < sizes.max && hash(length) & chunker.lax == 0
        });
        let rest = &data[place.unwrap()..][..sizes.max];
        let cut = first(rest).unwrap();
        assert_eq!(ours(&rest[..cut + 1], sizes), [cut + 1], "a tail");
        assert!(chunker.confirms(rest, cut));
        assert!(!chunker.confirms(rest, cut + 1));
    }

    proptest! {
        #[test]
        fn m0_2_the_cuts_are_those_of_the_reference(
            seed: u64, length in 0..60_000usize, bits in 8..13u32, min in 32..64usize, max in 512..9000usize
        ) {
            let sizes = Sizes { min: 2 * min, target: 1 << bits, max: 2 * max };
            prop_assume!(sizes.check(Kind::FastCdc).is_ok());
            let data = crate::testing::mixed(length, seed);
            prop_assert_eq!(ours(&data, sizes), reference(&data, sizes));
        }
    }
}
