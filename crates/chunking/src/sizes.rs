//! What users can choose about chunks: the kind of chunker and the sizes, with the allowed ranges.

use crate::Implementation;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Sizes, a name, a key or an implementation that a chunker cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkingError {
    /// No chunker has this name.
    #[error("unknown chunker {name:?}: it is galois, fastcdc, rabin or fixed")]
    UnknownKind {
        /// The name asked for.
        name: String,
    },
    /// A size is outside its range.
    #[error("the {which} chunk size is {size_bytes} bytes: it must be from {least_bytes} to {most_bytes}")]
    OutOfRange {
        /// `minimum`, `target` or `maximum`.
        which: &'static str,
        /// The size asked for.
        size_bytes: usize,
        /// The smallest allowed size.
        least_bytes: usize,
        /// The largest allowed size.
        most_bytes: usize,
    },
    /// The sizes do not grow from minimum to maximum.
    #[error(
        "chunk sizes are minimum {min_bytes}, target {target_bytes}, maximum {max_bytes} bytes: they must be minimum < target < maximum"
    )]
    Order {
        /// The minimum asked for.
        min_bytes: usize,
        /// The target asked for.
        target_bytes: usize,
        /// The maximum asked for.
        max_bytes: usize,
    },
    /// A content-defined chunker tests bits of a hash, so its target is a power of two.
    #[error("the target chunk size of {kind} is {size_bytes} bytes: it must be a power of two, such as {nearest_bytes}")]
    NotPowerOfTwo {
        /// The chunker.
        kind: Kind,
        /// The size asked for.
        size_bytes: usize,
        /// The next lower power of two.
        nearest_bytes: usize,
    },
    /// FastCDC looks at two bytes at a time, so its sizes are even.
    #[error("the {which} chunk size of {kind} is {size_bytes} bytes: it must be even")]
    Odd {
        /// The chunker.
        kind: Kind,
        /// `minimum` or `maximum`.
        which: &'static str,
        /// The size asked for.
        size_bytes: usize,
    },
    /// The chunker cannot use a key.
    #[error("the boundaries of {kind} cannot depend on a key: those of galois can")]
    NotKeyed {
        /// The chunker.
        kind: Kind,
    },
    /// The processor cannot run the implementation.
    #[error("this processor lacks the instructions of the implementation {implementation}")]
    Unavailable {
        /// The implementation asked for.
        implementation: Implementation,
    },
}

/// The kinds of chunkers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Content-defined by a hash over GF(2^8), with normalised sizes: the default, and the fastest where there are
    /// vector instructions.
    #[default]
    Galois,
    /// Content-defined by a gear hash, with normalised sizes (FastCDC, Xia et al. 2020): cuts as other programs do.
    FastCdc,
    /// Content-defined by Rabin's fingerprint of a 48-byte window, as in the dedupv1 paper.
    Rabin,
    /// Always [`Sizes::target`] bytes, for disk images, whose blocks do not shift.
    Fixed,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Galois, Kind::FastCdc, Kind::Rabin, Kind::Fixed];

    /// Returns the name in the store's descriptor and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Galois => "galois",
            Kind::FastCdc => "fastcdc",
            Kind::Rabin => "rabin",
            Kind::Fixed => "fixed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = ChunkingError;

    fn from_str(name: &str) -> Result<Kind, ChunkingError> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| ChunkingError::UnknownKind { name: name.to_owned() })
    }
}

/// The desired lengths of chunks, in bytes. A fixed chunker only uses the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// No chunk is shorter, except the last of a run. 64 B to 1 MiB.
    pub min: usize,
    /// The rough average. Galois and FastCDC come close to it, Rabin to minimum + target. 256 B to 4 MiB.
    pub target: usize,
    /// No chunk is longer. 1 KiB to 16 MiB.
    pub max: usize,
}

impl Default for Sizes {
    /// Returns 2 KiB, 8 KiB, 32 KiB.
    fn default() -> Sizes {
        Sizes { min: 2 << 10, target: 8 << 10, max: 32 << 10 }
    }
}

impl Sizes {
    /// The allowed values of [`Sizes::min`].
    pub const MIN_RANGE: RangeInclusive<usize> = 64..=1 << 20;
    /// The allowed values of [`Sizes::target`].
    pub const TARGET_RANGE: RangeInclusive<usize> = 256..=4 << 20;
    /// The allowed values of [`Sizes::max`].
    pub const MAX_RANGE: RangeInclusive<usize> = 1 << 10..=16 << 20;

    /// Returns the usual sizes around a target: a quarter of it and four times it.
    pub fn around(target: usize) -> Sizes {
        Sizes { min: target / 4, target, max: target.saturating_mul(4) }
    }

    /// Checks that chunker `kind` can have these sizes.
    pub fn check(&self, kind: Kind) -> Result<(), ChunkingError> {
        let Sizes { min, target, max } = *self;
        in_range("target", target, Sizes::TARGET_RANGE)?;
        if kind == Kind::Fixed {
            return Ok(());
        }
        in_range("minimum", min, Sizes::MIN_RANGE)?;
        in_range("maximum", max, Sizes::MAX_RANGE)?;
        if min >= target || target >= max {
            return Err(ChunkingError::Order { min_bytes: min, target_bytes: target, max_bytes: max });
        }
        if !target.is_power_of_two() {
            return Err(ChunkingError::NotPowerOfTwo { kind, size_bytes: target, nearest_bytes: 1 << target.ilog2() });
        }
        if kind == Kind::FastCdc {
            for (which, size_bytes) in [("minimum", min), ("maximum", max)] {
                if size_bytes % 2 != 0 {
                    return Err(ChunkingError::Odd { kind, which, size_bytes });
                }
            }
        }
        Ok(())
    }
}

fn in_range(which: &'static str, size_bytes: usize, range: RangeInclusive<usize>) -> Result<(), ChunkingError> {
    if range.contains(&size_bytes) {
        return Ok(());
    }
    Err(ChunkingError::OutOfRange { which, size_bytes, least_bytes: *range.start(), most_bytes: *range.end() })
}

/// The lengths of a chunker's chunks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The shortest chunk, except for the last of a run, which may have any length from 1.
    pub min: usize,
    /// The length that the chunker aims at.
    pub target: usize,
    /// The longest chunk. With a buffer of this many bytes, the chunker always makes progress.
    pub max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_others_refused() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "gear".parse::<Kind>().unwrap_err();
        assert_eq!(error.to_string(), "unknown chunker \"gear\": it is galois, fastcdc, rabin or fixed");
    }

    #[test]
    fn the_usual_sizes_are_allowed_over_the_whole_range_of_targets() {
        assert_eq!(Sizes::around(8192), Sizes::default());
        for bits in 8..=22 {
            for kind in Kind::ALL {
                assert_eq!(Sizes::around(1 << bits).check(kind), Ok(()));
            }
        }
    }

    #[test]
    fn bad_sizes_get_an_error_that_says_what_is_allowed() {
        let message = |kind, min, target, max| Sizes { min, target, max }.check(kind).unwrap_err().to_string();
        assert_eq!(message(Kind::FastCdc, 63, 256, 1024), "the minimum chunk size is 63 bytes: it must be from 64 to 1048576");
        assert_eq!(message(Kind::Rabin, 64, 128, 1024), "the target chunk size is 128 bytes: it must be from 256 to 4194304");
        assert_eq!(message(Kind::Rabin, 64, 256, 1 << 30), "the maximum chunk size is 1073741824 bytes: it must be from 1024 to 16777216");
        assert_eq!(
            message(Kind::FastCdc, 8192, 8192, 32768),
            "chunk sizes are minimum 8192, target 8192, maximum 32768 bytes: they must be minimum < target < maximum"
        );
        assert_eq!(
            message(Kind::Rabin, 2048, 10_000, 32768),
            "the target chunk size of rabin is 10000 bytes: it must be a power of two, such as 8192"
        );
        assert_eq!(message(Kind::FastCdc, 2047, 8192, 32768), "the minimum chunk size of fastcdc is 2047 bytes: it must be even");
        assert_eq!(Sizes { min: 2047, target: 8192, max: 32767 }.check(Kind::Rabin), Ok(()));
        assert_eq!(Sizes { min: 0, target: 4095, max: 0 }.check(Kind::Fixed), Ok(()));
    }
}
