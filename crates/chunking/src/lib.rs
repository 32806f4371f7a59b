//! Chunkers: where a run of bytes is cut into the pieces that are stored once (M0.2).
//!
//! A [`Chunker`] looks at nothing but bytes. Four exist, [`Kind`] says which: [`Kind::Galois`] (the default, the fastest where there are vector instructions),
//! [`Kind::FastCdc`] (cuts as other programs do), [`Kind::Rabin`] (the dedupv1 paper's) and [`Kind::Fixed`]. [`chunker`] makes one from its [`Sizes`].
//!
//! # Example
//! A file is cut as it is read. What is left over is passed again, before what is read next.
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
//! - Chunks, one behind the other, spell the run: nothing is left out, nothing twice.
//! - Every chunk but the last of a run has a length within [`Chunker::limits`].
//! - Where a run is cut depends on its bytes alone, never on how callers slice it, nor on the processor. A boundary depends on the
//!   bytes of its own chunk (and for FastCDC on the byte behind it), so equal chunks at different places of the data are found again.
//!
//! This crate must never know what a store is: it stands alone and depends on no other part of onefold.

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

/// A way to cut runs of bytes. It has no state: many threads may use one.
pub trait Chunker: Send + Sync + Debug {
    /// Cuts `data`, which begins at a chunk boundary. Appends to `cuts` the end offset of every chunk whose end is certain, and
    /// returns the last of them: the bytes consumed (0 if there is none).
    ///
    /// With `last` the end of `data` is the end of the run, and everything is consumed. Without, a tail that could still become
    /// a longer chunk is left over; the caller passes it again at the front of more data. Of data of at least
    /// [`Limits::max`] bytes something is always consumed.
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize;

    /// Whether [`Chunker::cut`] would end the first chunk of `data` at `length`, for a caller who knows that no earlier boundary
    /// lies in it: `data[..length]` equals a chunk that this chunker cut before, perhaps as the tail of a run. So a caller who
    /// recognises a chunk need not scan it.
    ///
    /// True means that every run which begins with `data` has that boundary. False means that there is none, or that `data` does
    /// not tell: the caller cuts. The cost does not depend on `length`.
    fn confirms(&self, data: &[u8], length: usize) -> bool;

    /// The name in the store's descriptor.
    fn name(&self) -> &'static str;

    /// How long chunks are.
    fn limits(&self) -> Limits;
}

/// The chunker `kind` for `sizes`; an error says which sizes are allowed.
pub fn chunker(kind: Kind, sizes: Sizes) -> Result<Arc<dyn Chunker>, ChunkingError> {
    sizes.check(kind)?;
    Ok(match kind {
        Kind::Galois => Arc::new(Galois::new(sizes)?),
        Kind::FastCdc => Arc::new(fastcdc::FastCdc::new(sizes)),
        Kind::Rabin => Arc::new(rabin::Rabin::new(sizes)),
        Kind::Fixed => Arc::new(fixed::Fixed::new(sizes)),
    })
}

/// As [`chunker`], with boundaries that depend on a key; only [`Kind::Galois`] has them, others are refused. It cuts as fast.
///
/// # What a key hides, and what it does not
/// Without a key, the lengths of a file's chunks are known to whoever has the file, and tell whether a store holds it even if the
/// chunks are encrypted. With one, who sees nothing but lengths, and does not know what was stored, cannot compare them with those of a file.
///
/// It is no proof against more. The hash has 62 secret bits and is linear in them: whoever knows some data, and where about
/// five boundaries in it were cut, can compute them, and then knows the boundaries of all data. So it does not withstand those who
/// can have data of their choice stored and see the lengths of its chunks. The distribution of lengths, and that equal data has equal lengths, stay visible with any key.
/// The hash cannot be turned back into the key, so a key may be derived for it from the one that encrypts.
pub fn chunker_keyed(kind: Kind, sizes: Sizes, key: &[u8; 32]) -> Result<Arc<dyn Chunker>, ChunkingError> {
    match kind {
        Kind::Galois => Ok(Arc::new(Galois::keyed(sizes, key)?)),
        Kind::FastCdc | Kind::Rabin | Kind::Fixed => Err(ChunkingError::NotKeyed { kind }),
    }
}

/// The examples of the README are compiled and run.
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

    /// Passes `data` in slices that end at `ends`, what is left over carried to the front of the next.
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

    /// Whether `cut` ends the first chunk at `length` when that is not the end of the run.
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
                // Up to its own end no place of a chunk has an earlier boundary; a tail is a chunk that ends anywhere, by FastCDC even a byte behind
                // where a longer run would be cut.
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
