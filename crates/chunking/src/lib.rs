//! Chunkers: where to cut a run of bytes into the pieces that are stored once (M0.2).
//!
//! A [`Chunker`] looks at nothing but bytes. There are four, listed in [`Kind`]:
//! - [`Kind::Galois`]: the default, and the fastest where there are vector instructions.
//! - [`Kind::FastCdc`]: cuts as other programs do.
//! - [`Kind::Rabin`]: the chunker of the dedupv1 paper.
//! - [`Kind::Fixed`]: chunks of equal length.
//!
//! [`chunker`] creates one for its [`Sizes`].
//!
//! # Example
//! A file is cut as it is read. The rest of each buffer is passed again, before the next data.
//! ```
//! use onefold_chunking::{Kind, Sizes, chunker};
//! use std::io::Read;
//!
//! fn chunk_lengths(mut file: impl Read) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
//!     let chunker = chunker(Kind::default(), Sizes::around(8 << 10))?;
//!     // At least one chunk of the maximum, so that something is consumed each time.
//!     let mut buffer = vec![0; 256 << 10];
//!     let (mut filled, mut cuts, mut lengths) = (0, Vec::new(), Vec::new());
//!     loop {
//!         let read = file.read(&mut buffer[filled..])?;
//!         filled += read;
//!         let last = read == 0;
//!         cuts.clear();
//!         let consumed = chunker.cut(&buffer[..filled], last, &mut cuts);
//!         let mut start = 0;
//!         for end in &cuts {
//!             // Here is the chunk: buffer[start..*end].
//!             lengths.push(end - start);
//!             start = *end;
//!         }
//!         if last {
//!             return Ok(lengths);
//!         }
//!         buffer.copy_within(consumed..filled, 0);
//!         filled -= consumed;
//!     }
//! }
//!
//! let data: Vec<u8> = (0..1_000_000u64).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
//! let lengths = chunk_lengths(&data[..])?;
//! assert_eq!(lengths.iter().sum::<usize>(), data.len());
//! // All but the last are within the limits.
//! assert!(lengths[..lengths.len() - 1].iter().all(|length| (2 << 10..=32 << 10).contains(length)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - The chunks, one after the other, are the run: nothing is left out, and nothing appears twice.
//! - Every chunk but the last of a run has a length within [`Chunker::limits`].
//! - Where a run is cut depends only on its bytes, never on how callers slice it or on the processor. A boundary
//!   depends on the bytes of its own chunk (with FastCDC also on the next byte), so equal chunks are found again
//!   wherever they are.
//!
//! This crate must never know what a store is. It stands alone and depends on no other part of onefold.

mod cut;
mod fastcdc;
mod fixed;
mod galois;
mod gear;
mod rabin;
mod sizes;
#[cfg(test)]
mod testing;

pub use galois::{Galois, Implementation, SIMD_VARIABLE};
pub use sizes::{ChunkingError, Kind, Limits, Sizes};

use std::fmt::Debug;
use std::sync::Arc;

/// A way to cut runs of bytes. It has no state, so many threads can share one.
pub trait Chunker: Send + Sync + Debug {
    /// Cuts `data`, which begins at a chunk boundary. Appends to `cuts` the end offset of every chunk whose end is
    /// certain. Returns the last of these offsets, which is the number of bytes consumed (0 if there is none).
    ///
    /// If `last`, the end of `data` is the end of the run, and everything is consumed. Otherwise a tail that could
    /// still become a longer chunk is left over. The caller passes it again at the front of more data. If `data` has at
    /// least [`Limits::max`] bytes, something is always consumed.
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize;

    /// Returns whether [`Chunker::cut`] would end the first chunk of `data` at `length`. With this, a caller that
    /// recognises a chunk need not scan it. Call only when `data[..length]` is known to have no earlier boundary: it
    /// equals a chunk that this chunker cut before, perhaps as the tail of a run.
    ///
    /// `true` means that every run that begins with `data` has that boundary. `false` means that there is none, or that
    /// `data` is too short to tell; then the caller cuts. The cost does not depend on `length`.
    fn confirms(&self, data: &[u8], length: usize) -> bool;

    /// Returns the name in the store's descriptor.
    fn name(&self) -> &'static str;

    /// Returns how long chunks are.
    fn limits(&self) -> Limits;
}

/// Returns the chunker `kind` for `sizes`. Errors: the sizes are not allowed; the error says which are.
pub fn chunker(kind: Kind, sizes: Sizes) -> Result<Arc<dyn Chunker>, ChunkingError> {
    sizes.check(kind)?;
    Ok(match kind {
        Kind::Galois => Arc::new(Galois::new(sizes)?),
        Kind::FastCdc => Arc::new(fastcdc::FastCdc::new(sizes)),
        Kind::Rabin => Arc::new(rabin::Rabin::new(sizes)),
        Kind::Fixed => Arc::new(fixed::Fixed::new(sizes)),
    })
}

/// Returns a [`chunker`] whose boundaries depend on a key. It cuts as fast. Errors: as for [`chunker`], and any kind
/// other than [`Kind::Galois`] is refused.
///
/// # What a key hides, and what it does not
/// Without a key, anyone who has a file knows the lengths of its chunks. Those lengths reveal whether a store holds the
/// file, even if the chunks are encrypted. With a key, an observer who sees only lengths, and does not know what was
/// stored, cannot compare them with a file's.
///
/// A key does not protect against stronger attacks. The hash has 62 secret bits and is linear in them. An attacker who
/// knows some data, and roughly where five boundaries in it were cut, can compute these bits. That reveals the
/// boundaries of all data. So a key does not withstand attackers who can have chosen data stored and can see the
/// lengths of its chunks.
///
/// With any key, the distribution of lengths stays visible, and so does the fact that equal data has equal lengths. The
/// hash does not reveal the key, so a key for it may be derived from the encryption key.
pub fn chunker_keyed(kind: Kind, sizes: Sizes, key: &[u8; 32]) -> Result<Arc<dyn Chunker>, ChunkingError> {
    match kind {
        Kind::Galois => Ok(Arc::new(Galois::keyed(sizes, key)?)),
        Kind::FastCdc | Kind::Rabin | Kind::Fixed => Err(ChunkingError::NotKeyed { kind }),
    }
}

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mixed;
    use proptest::prelude::*;

    const KINDS: [Kind; 4] = Kind::ALL;

    fn cut_whole(chunker: &dyn Chunker, data: &[u8]) -> Vec<usize> {
        let mut cuts = Vec::new();
        assert_eq!(chunker.cut(data, true, &mut cuts), data.len());
        cuts
    }

    /// Passes `data` in slices that end at `ends`, carrying the rest of each to the front of the next.
    fn cut_in_slices(chunker: &dyn Chunker, data: &[u8], ends: &[usize]) -> Vec<usize> {
        let mut start = 0;
        let mut all = Vec::new();
        for (slice, end) in ends.iter().chain([&data.len()]).enumerate() {
            let mut cuts = Vec::new();
            let given = end - start;
            let consumed = chunker.cut(&data[start..*end], slice == ends.len(), &mut cuts);
            assert_eq!(consumed, cuts.last().copied().unwrap_or(0));
            assert!(consumed > 0 || given < chunker.limits().max, "{given} bytes, none consumed");
            all.extend(cuts.iter().map(|cut| start + cut));
            start += consumed;
        }
        assert_eq!(start, data.len());
        all
    }

    /// Returns whether `cut` ends the first chunk at `length` when that is not the end of the run.
    fn first_cut_is(chunker: &dyn Chunker, data: &[u8], length: usize) -> bool {
        let mut cuts = Vec::new();
        chunker.cut(data, false, &mut cuts);
        cuts.first() == Some(&length)
    }

    proptest! {
        #[test]
        fn a_boundary_is_confirmed_and_nothing_else(
            seed: u64, length in 0..30_000usize, kind in 0..KINDS.len(), bits in 8..12usize, beyond in 0..3usize
        ) {
            let chunker = chunker(KINDS[kind], Sizes::around(1 << bits)).unwrap();
            let data = mixed(length, seed);
            let whole = cut_whole(&*chunker, &data);
            let mut start = 0;
            for (index, end) in whole.iter().enumerate() {
                if index + 1 < whole.len() {
                    prop_assert!(chunker.confirms(&data[start..], end - start), "{} bytes at {start}", end - start);
                }
                // A chunk has no boundary before its own end. A tail is a chunk that ends anywhere, with FastCDC even
                // one byte after the cut of a longer run.
                let is_tail = |cut: &usize| cut_whole(&*chunker, &data[start..*cut]) == [*cut - start];
                for cut in (start..=*end).chain((end + 1..data.len().min(end + 3)).filter(is_tail)) {
                    let seen = &data[start..data.len().min(cut + beyond)];
                    if chunker.confirms(seen, cut - start) {
                        prop_assert_eq!(cut, *end);
                        prop_assert!(first_cut_is(&*chunker, seen, cut - start), "{} bytes at {start}, {} seen", cut - start, seen.len());
                    }
                }
                start = *end;
            }
        }
    }

    #[test]
    fn lengths_that_no_chunk_has_are_not_confirmed() {
        let data = [7; 5000];
        for kind in KINDS {
            let chunker = chunker(kind, Sizes::around(256)).unwrap();
            let limits = chunker.limits();
            assert!(chunker.confirms(&data, limits.max), "{kind}: the maximum is a boundary");
            for length in (0..limits.min).chain([limits.max + 1, data.len(), data.len() + 1, usize::MAX]) {
                assert!(!chunker.confirms(&data, length), "{kind}, {length} bytes");
            }
            assert!(!chunker.confirms(&data[..limits.max - 1], limits.max), "{kind}: {} bytes are not there", limits.max);
            assert!(!chunker.confirms(&[], 0));
        }
    }

    proptest! {
        #[test]
        fn m0_2_slices_are_cut_like_the_whole(
            seed: u64, length in 0..50_000usize, kind in 0..KINDS.len(), bits in 8..13usize, ends in proptest::collection::vec(0..50_000usize, 0..40)
        ) {
            let chunker = chunker(KINDS[kind], Sizes::around(1 << bits)).unwrap();
            let data = mixed(length, seed);
            let mut ends: Vec<usize> = ends.into_iter().map(|end| end.min(length)).collect();
            ends.sort_unstable();
            let whole = cut_whole(&*chunker, &data);
            prop_assert_eq!(&cut_in_slices(&*chunker, &data, &ends), &whole);
            let limits = chunker.limits();
            let mut start = 0;
            for (index, end) in whole.iter().enumerate() {
                prop_assert!(end - start <= limits.max && end > &start);
                prop_assert!(end - start >= limits.min || index + 1 == whole.len());
                start = *end;
            }
            prop_assert_eq!(start, length);
        }
    }

    #[test]
    fn m0_2_slices_of_any_length_up_to_two_chunks_are_cut_like_the_whole() {
        let data = mixed(20_000, 3);
        for kind in KINDS {
            let chunker = chunker(kind, Sizes::around(256)).unwrap();
            let whole = cut_whole(&*chunker, &data);
            for length in 1..=512 {
                let ends: Vec<usize> = (length..data.len()).step_by(length).collect();
                assert_eq!(cut_in_slices(&*chunker, &data, &ends), whole, "{kind} in slices of {length}");
            }
        }
    }

    #[test]
    fn m0_2_an_edit_moves_only_the_boundaries_near_it() {
        let data = mixed(2 << 20, 5);
        let mut edited = data.clone();
        edited.splice(1_000_000..1_000_000, *b"inserted");
        for kind in [Kind::Galois, Kind::FastCdc, Kind::Rabin] {
            let chunker = chunker(kind, Sizes::default()).unwrap();
            let from_end = |cuts: Vec<usize>, length: usize| cuts.into_iter().map(|cut| length - cut).collect::<Vec<_>>();
            let before = cut_whole(&*chunker, &data);
            let after = cut_whole(&*chunker, &edited);
            assert_eq!(
                before.iter().take_while(|cut| **cut < 999_000).collect::<Vec<_>>(),
                after.iter().take_while(|cut| **cut < 999_000).collect::<Vec<_>>()
            );
            let (before, after) = (from_end(before, data.len()), from_end(after, edited.len()));
            let moved = after.iter().filter(|cut| !before.contains(cut)).count();
            assert!(moved < 200, "{kind}: {moved} of {} boundaries are new", after.len());
            assert_eq!(before[before.len() - 20..], after[after.len() - 20..], "{kind}");
        }
    }

    #[test]
    fn m0_2_runs_of_one_byte_are_cut_into_long_chunks() {
        for kind in KINDS {
            let chunker = chunker(kind, Sizes::default()).unwrap();
            for byte in 0..=255 {
                let chunks = cut_whole(&*chunker, &vec![byte; 1 << 20]).len();
                let expected = (1 << 20) / chunker.limits().max;
                assert_eq!(chunks, expected, "{kind}, byte {byte:#x}");
            }
        }
    }

    #[test]
    fn m0_2_the_mean_length_is_near_the_target() {
        // Galois and FastCDC: near the target. Rabin: minimum + n, shortened a little by the maximum.
        let random: Vec<u8> = (0..4u64 << 20)
            .map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(index) >> 40) as u8)
            .collect();
        for (kind, least, most) in [(Kind::Galois, 7_500, 10_500), (Kind::FastCdc, 7_500, 10_500), (Kind::Rabin, 8_500, 11_000)] {
            let chunks = cut_whole(&*chunker(kind, Sizes::default()).unwrap(), &random).len();
            let mean = random.len() / chunks;
            assert!((least..most).contains(&mean), "{kind}: {mean}");
        }
    }

    #[test]
    fn only_galois_takes_a_key() {
        for kind in KINDS {
            let result = chunker_keyed(kind, Sizes::default(), &[1; 32]);
            match kind {
                Kind::Galois => assert_eq!(result.unwrap().name(), "galois"),
                _ => assert_eq!(result.unwrap_err(), ChunkingError::NotKeyed { kind }),
            }
        }
    }

    #[test]
    fn nothing_is_cut_into_nothing() {
        for kind in KINDS {
            let chunker = chunker(kind, Sizes::default()).unwrap();
            assert_eq!(cut_whole(&*chunker, &[]), []);
            assert_eq!(chunker.name(), kind.to_string());
        }
    }
}
