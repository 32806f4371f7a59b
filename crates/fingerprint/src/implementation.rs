//! The choice of instructions that fingerprint a batch, made once per process.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that caps the instructions: `avx512`, `avx2` or `scalar`. Instructions that the machine
/// lacks are never used. `avx2-gfni` and `neon`, which exist for the crate `onefold-chunking`, mean `avx2` and `scalar`
/// here.
pub const SIMD_VARIABLE: &str = "ONEFOLD_SIMD";

/// The instructions that fingerprint a batch, from the least to the most. All give the same digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Implementation {
    /// Chunk by chunk with the crates `blake3`, `sha2` and `sha1`, which choose the best instructions for one chunk
    /// (SHA-NI, NEON, ...) themselves.
    Scalar,
    /// Many chunks at once in the lanes of AVX2.
    Avx2,
    /// Many chunks at once in the lanes of AVX-512 (F and BW).
    Avx512,
}

impl Implementation {
    /// All implementations, from the least to the most.
    pub const ALL: [Implementation; 3] = [Implementation::Scalar, Implementation::Avx2, Implementation::Avx512];

    /// Returns the implementations that this machine can run.
    pub fn available() -> impl Iterator<Item = Implementation> {
        Implementation::ALL.into_iter().filter(|implementation| implementation.is_available())
    }

    /// Returns whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Implementation::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2 => crate::lanes::Avx2::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx512 => crate::lanes::Avx512::new().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Implementation::Avx2 | Implementation::Avx512 => false,
        }
    }

    /// Returns the most that this machine can run and [`SIMD_VARIABLE`] allows. The first call decides.
    pub fn best() -> Implementation {
        static BEST: OnceLock<Implementation> = OnceLock::new();
        // An unknown name caps nothing: the digests are the same, and this is no place to fail.
        *BEST.get_or_init(|| Implementation::best_below(std::env::var(SIMD_VARIABLE).ok().and_then(|name| name.parse().ok())))
    }

    fn best_below(cap: Option<Implementation>) -> Implementation {
        Implementation::available().filter(|one| cap.is_none_or(|cap| *one <= cap)).last().unwrap_or(Implementation::Scalar)
    }

    /// Returns the name used in [`SIMD_VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Implementation::Scalar => "scalar",
            Implementation::Avx2 => "avx2",
            Implementation::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The text is not the name of an implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the instructions are avx512, avx2 or scalar")]
pub struct UnknownImplementation;

impl FromStr for Implementation {
    type Err = UnknownImplementation;

    fn from_str(name: &str) -> Result<Implementation, UnknownImplementation> {
        match name {
            "avx2-gfni" => Ok(Implementation::Avx2),
            "neon" => Ok(Implementation::Scalar),
            _ => Implementation::ALL.into_iter().find(|one| one.name() == name).ok_or(UnknownImplementation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_never_exceeded_and_scalar_is_always_there() {
        assert_eq!(Implementation::best_below(Some(Implementation::Scalar)), Implementation::Scalar);
        for cap in Implementation::ALL {
            assert!(Implementation::best_below(Some(cap)) <= cap);
            assert!(Implementation::best_below(Some(cap)).is_available());
        }
        assert_eq!(Some(Implementation::best_below(None)), Implementation::available().last());
    }

    #[test]
    fn names_are_read_as_written_and_others_refused() {
        for implementation in Implementation::ALL {
            assert_eq!(implementation.to_string().parse(), Ok(implementation));
        }
        assert_eq!("avx2-gfni".parse(), Ok(Implementation::Avx2));
        assert_eq!("neon".parse(), Ok(Implementation::Scalar));
        assert_eq!("sse".parse::<Implementation>(), Err(UnknownImplementation));
    }
}
