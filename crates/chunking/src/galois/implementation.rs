//! The choice of instructions that search for boundaries. All of them cut at the same places.

use std::fmt;
use std::sync::OnceLock;

/// The environment variable that caps the instructions of [`Implementation::best`] by name, such as `avx2`.
pub const SIMD_VARIABLE: &str = "ONEFOLD_SIMD";

/// A way to search for the boundaries of [`Galois`](crate::Galois), named after the instructions that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// x86-64 with AVX-512 (F, BW, VBMI) and GFNI: 64 places at once.
    Avx512,
    /// x86-64 with AVX2 and GFNI: 32 places at once.
    Avx2Gfni,
    /// x86-64 with AVX2 and AES: 32 places at once.
    Avx2,
    /// AArch64 with NEON and AES: 16 places at once.
    Neon,
    /// Any processor.
    Scalar,
}

impl Implementation {
    /// All implementations, the fastest first.
    pub const ALL: [Implementation; 5] =
        [Implementation::Avx512, Implementation::Avx2Gfni, Implementation::Avx2, Implementation::Neon, Implementation::Scalar];

    /// Returns the implementations that this processor can run, the fastest first. The last is
    /// [`Implementation::Scalar`].
    pub fn available() -> impl Iterator<Item = Implementation> {
        Implementation::ALL.into_iter().filter(|implementation| implementation.is_available())
    }

    /// Returns the fastest implementation that this processor can run and [`SIMD_VARIABLE`] allows. The first call
    /// decides.
    pub fn best() -> Implementation {
        static BEST: OnceLock<Implementation> = OnceLock::new();
        // An unknown name caps nothing: the cuts are the same, and this is no place to fail.
        *BEST.get_or_init(|| Implementation::best_below(std::env::var(SIMD_VARIABLE).ok().as_deref().and_then(Implementation::named)))
    }

    fn best_below(cap: Option<Implementation>) -> Implementation {
        let allowed = Implementation::ALL.into_iter().skip_while(|one| cap.is_some_and(|cap| *one != cap));
        allowed.into_iter().find(|one| one.is_available()).unwrap_or(Implementation::Scalar)
    }

    fn named(name: &str) -> Option<Implementation> {
        Implementation::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns whether this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("gfni")
            }
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2Gfni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("aes"),
            #[cfg(target_arch = "aarch64")]
            Implementation::Neon => std::arch::is_aarch64_feature_detected!("neon") && std::arch::is_aarch64_feature_detected!("aes"),
            Implementation::Scalar => true,
            // Needs another kind of processor.
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Returns a short name, such as `avx2-gfni`.
    pub fn name(self) -> &'static str {
        match self {
            Implementation::Avx512 => "avx512",
            Implementation::Avx2Gfni => "avx2-gfni",
            Implementation::Avx2 => "avx2",
            Implementation::Neon => "neon",
            Implementation::Scalar => "scalar",
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_never_exceeded_and_scalar_is_always_there() {
        let speed = |implementation| Implementation::ALL.iter().position(|one| *one == implementation);
        for cap in Implementation::ALL {
            let best = Implementation::best_below(Implementation::named(cap.name()));
            assert!(best.is_available() && speed(best) >= speed(cap), "{best} for {cap}");
        }
        assert_eq!(Implementation::best_below(Some(Implementation::Scalar)), Implementation::Scalar);
        assert_eq!(Some(Implementation::best_below(Implementation::named("sse"))), Implementation::available().next());
    }
}
