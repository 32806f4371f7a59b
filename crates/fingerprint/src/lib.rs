//! Fingerprints: the cryptographic hashes that name chunks (M0.3).
//!
//! A store has one [`Algorithm`], chosen at `init`. [`Algorithm::fingerprint_many`] takes many chunks and fills the
//! lanes of the machine with them. The module `batch` has the hash functions and decides which chunk goes into which
//! lane; `lanes` has the instructions. An [`Implementation`] is chosen once for the machine.
//!
//! This crate must never know where a chunk comes from or where it is stored.

mod algorithm;
mod batch;
mod implementation;
// On other processors only tests use lanes, in plain Rust.
#[cfg(any(test, target_arch = "x86_64"))]
mod lanes;

pub use algorithm::Algorithm;
pub use implementation::{Implementation, SIMD_VARIABLE, UnknownImplementation};

use std::fmt;
use std::str::FromStr;

/// A text that is not a fingerprint, or not the name of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// No algorithm has this name.
    #[error("unknown fingerprint {name:?}: it is blake3, blake3-160, sha256 or sha1")]
    UnknownAlgorithm {
        /// The name asked for.
        name: String,
    },
    /// The text has neither 40 nor 64 characters.
    #[error("a fingerprint has 40 or 64 hexadecimal digits, not {length}")]
    HexLength {
        /// The number of characters.
        length: usize,
    },
    /// The text has a character that is not a hexadecimal digit.
    #[error("{character:?} is not a hexadecimal digit of a fingerprint")]
    HexDigit {
        /// The first such character.
        character: char,
    },
}

/// The name of a chunk: a digest of 20 bytes (SHA-1, the short BLAKE3) or 32 bytes (BLAKE3, SHA-256). It takes 32
/// bytes; a shorter digest is padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Takes the bytes of a digest, at most 32.
    pub fn from_digest(digest: &[u8]) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Fingerprint(bytes)
    }

    /// Returns all 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first `length` bytes, which formats store. `length` comes from [`Algorithm::digest_bytes`].
    pub fn digest(&self, length: usize) -> &[u8] {
        &self.0[..length]
    }

    /// Returns the first 64 bits as a big-endian number. This number sorts fingerprints as their bytes do. Partitions
    /// and pages are prefixes of it.
    pub fn prefix(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("eight of 32 bytes"))
    }

    /// Returns 64 bits that are independent of [`Fingerprint::prefix`], for filters and hash tables.
    pub fn hash_bits(&self) -> u64 {
        u64::from_le_bytes(self.0[8..16].try_into().expect("eight of 32 bytes"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..8] {
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    /// Reads the hexadecimal digits of a digest, 40 or 64, in upper or lower case.
    fn from_str(hex: &str) -> Result<Fingerprint, FingerprintError> {
        if let Some(character) = hex.chars().find(|character| !character.is_ascii_hexdigit()) {
            return Err(FingerprintError::HexDigit { character });
        }
        if hex.len() != 40 && hex.len() != 64 {
            return Err(FingerprintError::HexLength { length: hex.len() });
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = nibble(digits[0]) << 4 | nibble(digits[1]);
        }
        Ok(Fingerprint(bytes))
    }
}

/// Returns the value of a hexadecimal digit.
fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hexadecimal_digits_are_read_as_written(bytes: [u8; 32], short: bool) {
            let digest = if short { &bytes[..20] } else { &bytes[..] };
            let fingerprint = Fingerprint::from_digest(digest);
            let hex = fingerprint.to_string();
            prop_assert_eq!(hex.parse(), Ok(fingerprint));
            prop_assert_eq!(hex[..2 * digest.len()].to_uppercase().parse(), Ok(fingerprint));
        }

        #[test]
        fn sorted_by_prefix_is_sorted_as_bytes(left: [u8; 32], right: [u8; 32]) {
            let (left, right) = (Fingerprint::from_digest(&left), Fingerprint::from_digest(&right));
            if left.prefix() != right.prefix() {
                prop_assert_eq!(left.prefix().cmp(&right.prefix()), left.cmp(&right));
            }
        }

        #[test]
        fn any_text_is_refused_without_panic(text: String) {
            let _ = text.parse::<Fingerprint>();
        }
    }

    #[test]
    fn what_is_no_fingerprint_gets_an_error_that_says_why() {
        let message = |text: &str| text.parse::<Fingerprint>().unwrap_err().to_string();
        assert_eq!(message(""), "a fingerprint has 40 or 64 hexadecimal digits, not 0");
        assert_eq!(message("abc"), "a fingerprint has 40 or 64 hexadecimal digits, not 3");
        assert_eq!(message("xyz"), "'x' is not a hexadecimal digit of a fingerprint");
    }
}
