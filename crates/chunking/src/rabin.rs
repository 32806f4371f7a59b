//! Rabin's fingerprint over a sliding window (M. O. Rabin, 1981), as in LBFS and dedupv1: a boundary is where
//! `f mod n = c`.
//!
//! Bytes are polynomials over GF(2). The fingerprint of a window is its remainder modulo an irreducible [`POLYNOMIAL`]
//! of degree 63. One step appends a byte and removes the oldest one, each with a table lookup. A chunk ends *after* the
//! first byte, from the minimum on, at which the window of the last 48 bytes has `f mod n = c`. `n` is the target. The
//! window always lies inside the chunk.
//!
//! Each step waits for the one before. A fingerprint depends on its 48 bytes alone, so [`LANES`] places of a chunk are
//! scanned at once. Each lane first takes in the 48 bytes before it. The first lane with a boundary wins, so the cuts
//! are the same as with one lane.

use crate::cut::cut_all;
use crate::{Chunker, Kind, Limits, Sizes};

/// Bytes of the window (M0.2).
const WINDOW: usize = 48;
/// The irreducible polynomial of LBFS, of degree 63.
const POLYNOMIAL: u64 = 0xbfe6_b8a5_bf37_8d83;
/// Places scanned at once.
const LANES: usize = 4;
/// Bytes per lane: long compared with the 48 that each lane first takes in, short compared with a chunk.
const LANE: usize = 512;

/// The Rabin chunker for one choice of sizes.
#[derive(Debug)]
pub(crate) struct Rabin {
    sizes: Sizes,
    /// `n - 1`, for `f mod n`.
    mask: u64,
    /// `c`: all bits of the mask. It is not 0, because the fingerprint of zeros is 0, and long runs of zeros would be
    /// cut into chunks of the minimum.
    wanted: u64,
}

impl Rabin {
    /// Call only with `sizes` that were checked.
    pub(crate) fn new(sizes: Sizes) -> Rabin {
        let mask = sizes.target as u64 - 1;
        Rabin { sizes, mask, wanted: mask }
    }

    /// Returns the length of the first chunk of `data`, or `None` if more data could change it.
    fn next(&self, data: &[u8]) -> Option<usize> {
        let Sizes { min, max, .. } = self.sizes;
        // A chunk of `length` bytes ends after byte `length - 1`. At the maximum there is nothing to test.
        let end = data.len().min(max - 1);
        let mut at = min - 1;
        while at + LANES * LANE <= end {
            if let Some(last_byte) = self.scan_lanes(data, at) {
                return Some(last_byte + 1);
            }
            at += LANES * LANE;
        }
        if at < end
            && let Some(last_byte) = self.scan(data, at, end)
        {
            return Some(last_byte + 1);
        }
        (data.len() >= max).then_some(max)
    }

    fn is_boundary(&self, fingerprint: u64) -> bool {
        fingerprint & self.mask == self.wanted
    }

    /// Returns the first boundary among the bytes `at .. end`.
    fn scan(&self, data: &[u8], at: usize, end: usize) -> Option<usize> {
        let mut fingerprint = fingerprint(&data[at - WINDOW..at]);
        let (leaving, entering) = (&data[at - WINDOW..end - WINDOW], &data[at..end]);
        for (offset, (out, new)) in leaving.iter().zip(entering).enumerate() {
            fingerprint = slide(fingerprint, *out, *new);
            if self.is_boundary(fingerprint) {
                return Some(at + offset);
            }
        }
        None
    }

    /// Does what [`Rabin::scan`] does for the bytes `at .. at + LANES * LANE`, in all lanes at once.
    fn scan_lanes(&self, data: &[u8], at: usize) -> Option<usize> {
        // Each lane's window and bytes are an array, so that the compiler sees that all offsets are inside.
        let lanes: [&[u8; WINDOW + LANE]; LANES] = std::array::from_fn(|lane| {
            let start = at + lane * LANE - WINDOW;
            data[start..start + WINDOW + LANE].try_into().expect("a slice of as many bytes as the array has")
        });
        let mut fingerprints = lanes.map(|bytes| fingerprint(&bytes[..WINDOW]));
        let mut found = [None; LANES];
        for offset in 0..LANE {
            let mut any = false;
            for lane in 0..LANES {
                fingerprints[lane] = slide(fingerprints[lane], lanes[lane][offset], lanes[lane][WINDOW + offset]);
                any |= self.is_boundary(fingerprints[lane]);
            }
            if any {
                for lane in 0..LANES {
                    if found[lane].is_none() && self.is_boundary(fingerprints[lane]) {
                        found[lane] = Some(at + lane * LANE + offset);
                    }
                }
                if found[0].is_some() {
                    break;
                }
            }
        }
        found.into_iter().flatten().next()
    }
}

impl Chunker for Rabin {
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize {
        cut_all(data, last, cuts, |rest| self.next(rest))
    }

    fn confirms(&self, data: &[u8], length: usize) -> bool {
        let Sizes { min, max, .. } = self.sizes;
        if length < min || length > data.len().min(max) {
            return false;
        }
        length == max || self.is_boundary(fingerprint(&data[length - WINDOW..length]))
    }

    fn name(&self) -> &'static str {
        Kind::Rabin.name()
    }

    fn limits(&self) -> Limits {
        Limits { min: self.sizes.min, target: self.sizes.target, max: self.sizes.max }
    }
}

/// Returns the fingerprint of some bytes.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |fingerprint, byte| append(fingerprint, *byte))
}

/// Returns `fingerprint * x^8 + byte`, reduced.
#[inline]
fn append(fingerprint: u64, byte: u8) -> u64 {
    (fingerprint << 8 | u64::from(byte)) ^ REDUCE[(fingerprint >> 55) as u8 as usize]
}

/// Removes `out`, the first byte of the window, from its fingerprint and appends `new`.
#[inline]
fn slide(fingerprint: u64, out: u8, new: u8) -> u64 {
    append(fingerprint ^ LEAVE[usize::from(out)], new)
}

/// For the eight bits that a shift by eight moves to `x^63` and above: their remainder, plus the one of these bits that
/// still lies in the 64 bits, to clear it.
static REDUCE: [u64; 256] = reduce_table();
/// For each value of the first byte of a window: what that byte adds to the fingerprint.
static LEAVE: [u64; 256] = leave_table();

const fn reduce_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut remainder = bits as u64;
        let mut shift = 0;
        while shift < 63 {
            remainder = times_x(remainder);
            shift += 1;
        }
        table[bits] = remainder ^ (bits as u64) << 63;
        bits += 1;
    }
    table
}

const fn leave_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u64;
        let mut shift = 0;
        while shift < 8 * (WINDOW - 1) {
            remainder = times_x(remainder);
            shift += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// Returns `remainder * x`, reduced. `remainder` has a degree below 63.
const fn times_x(remainder: u64) -> u64 {
    let product = remainder << 1;
    if product >> 63 == 1 { product ^ POLYNOMIAL } else { product }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mixed;
    use proptest::prelude::*;

    /// Computes the fingerprint by its definition, bit by bit.
    fn remainder(bytes: &[u8]) -> u64 {
        let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| u64::from(byte >> bit & 1)));
        bits.fold(0, |remainder, bit| times_x(remainder) ^ bit)
    }

    /// Computes the cuts by their definition.
    fn model(data: &[u8], sizes: Sizes) -> Vec<usize> {
        let mut cuts = Vec::new();
        let mut start = 0;
        while start < data.len() {
            let longest = (data.len() - start).min(sizes.max);
            let is_end =
                |length: &usize| remainder(&data[start + length - WINDOW..start + length]) % sizes.target as u64 == sizes.target as u64 - 1;
            start += (sizes.min..longest).find(is_end).unwrap_or(longest);
            cuts.push(start);
        }
        cuts
    }

    #[test]
    fn sliding_a_window_gives_its_remainder() {
        let data = mixed(1000, 7);
        let mut sliding = fingerprint(&data[..WINDOW]);
        for at in WINDOW..data.len() {
            assert_eq!(sliding, remainder(&data[at - WINDOW..at]));
            sliding = slide(sliding, data[at - WINDOW], data[at]);
        }
    }

    #[test]
    fn m0_2_no_constant_byte_is_a_boundary_at_the_usual_target() {
        let rabin = Rabin::new(Sizes::default());
        for byte in 0..=255 {
            assert!(!rabin.is_boundary(remainder(&[byte; WINDOW])), "{byte:#x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn m0_2_the_cuts_are_those_of_the_definition(
            seed: u64, length in 0..20_000usize, bits in 8..12u32, min in 64..256usize, max in 1024..9000usize
        ) {
            let sizes = Sizes { min, target: 1 << bits, max };
            prop_assume!(sizes.check(Kind::Rabin).is_ok());
            let data = mixed(length, seed);
            let mut cuts = Vec::new();
            prop_assert_eq!(Rabin::new(sizes).cut(&data, true, &mut cuts), length);
            prop_assert_eq!(cuts, model(&data, sizes));
        }
    }
}
