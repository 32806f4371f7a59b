//! Which instructions search for boundaries. All cut at the same places.

use std::fmt;
use std::sync::OnceLock;

/// A way to search for the boundaries of [`Galois`](crate::Galois), by the instructions it needs.
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
    /// Every processor.
    Scalar,
}

impl Implementation {
    /// All that there are, the fastest first.
    pub const ALL: [Implementation; 5] =
        [Implementation::Avx512, Implementation::Avx2Gfni, Implementation::Avx2, Implementation::Neon, Implementation::Scalar];

    /// Those that this processor runs, the fastest first. The last is [`Implementation::Scalar`].
    pub fn available() -> impl Iterator<Item = Implementation> {
        Implementation::ALL.into_iter().filter(|implementation| implementation.is_available())
    }

    /// The fastest one that this processor runs.
    pub fn best() -> Implementation {
        static BEST: OnceLock<Implementation> = OnceLock::new();
        *BEST.get_or_init(|| Implementation::available().next().unwrap_or(Implementation::Scalar))
    }

    /// Whether this processor runs it.
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
            // Of another kind of processor.
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// A short name, such as `avx2-gfni`.
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
