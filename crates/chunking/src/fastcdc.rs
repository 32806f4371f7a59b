//! FastCDC (W. Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based Storage Systems", IEEE TPDS
//! 2020): a gear hash, no look at the first minimum of bytes, and normalised chunking at level 2.
//!
//! The hash is `h = 2 h + GEAR[byte]` from the minimum on. The chunk ends *before* the first byte after which the bits of the mask
//! are zero; the mask is four times as strict before the target as the target asks for, and four times as lax after it, which brings
//! the sizes near the target. The cuts are the same as those of the crate `fastcdc` (module `v2020`, normalisation 2), the
//! reference for other implementations; like it, bytes are tested in pairs, so the last one of a tail of odd length is not.

use crate::cut::cut_all;
use crate::gear::{GEAR, mask};
use crate::{Chunker, Kind, Limits, Sizes};

/// By how many bits the masks before and after the target differ from that of the target.
const NORMALISATION: u32 = 2;

/// The chunker of this module, for one choice of sizes.
#[derive(Debug)]
pub(crate) struct FastCdc {
    sizes: Sizes,
    /// Before the target.
    strict: u64,
    /// After the target.
    lax: u64,
}

impl FastCdc {
    /// `sizes` were checked.
    pub(crate) fn new(sizes: Sizes) -> FastCdc {
        let bits = sizes.target.ilog2();
        FastCdc { sizes, strict: mask(bits + NORMALISATION), lax: mask(bits - NORMALISATION) }
    }

    /// The length of the first chunk of `data`, unless more data could change it.
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

    fn name(&self) -> &'static str {
        Kind::FastCdc.name()
    }

    fn limits(&self) -> Limits {
        Limits { min: self.sizes.min, target: self.sizes.target, max: self.sizes.max }
    }
}

enum Scan {
    /// After the byte at this offset the hash meets the mask.
    Found(usize),
    /// The hash after the last byte.
    NotFound(u64),
}

/// Takes `data` into `hash`, up to the first byte after which `hash & mask` is zero.
#[inline]
fn scan(data: &[u8], mut hash: u64, mask: u64) -> Scan {
    // Two bytes a step, as in section 3.7 of the paper: a pair waits for one shift and one addition of the pair before it. A third
    // faster than byte by byte.
    let mut blocks = data.chunks_exact(8);
    let mut at = 0;
    for block in &mut blocks {
        let bytes = u64::from_le_bytes(block.try_into().expect("blocks have eight bytes"));
        for pair in 0..4 {
            let first = GEAR[(bytes >> (16 * pair)) as u8 as usize] << 1;
            let second = GEAR[(bytes >> (16 * pair + 8)) as u8 as usize];
            let middle = (hash << 2).wrapping_add(first);
            if middle & (mask << 1) == 0 {
                return Scan::Found(at + 2 * pair);
            }
            hash = (hash << 2).wrapping_add(first.wrapping_add(second));
            if hash & mask == 0 {
                return Scan::Found(at + 2 * pair + 1);
            }
        }
        at += 8;
    }
    for (offset, byte) in blocks.remainder().iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if hash & mask == 0 {
            return Scan::Found(at + offset);
        }
    }
    Scan::NotFound(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lengths that the reference implementation cuts.
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
