//! Fingerprints: the cryptographic hashes that name chunks (M0.3).
//!
//! One [`Algorithm`] per store, chosen at `init`. Every call takes many chunks, so that a faster implementation can
//! fill all lanes of the machine without a change of the callers.
//!
//! This crate must never know where a chunk comes from or where it is kept.

use std::fmt;

/// The name of a chunk: a digest of 20 bytes (SHA-1) or 32 bytes (BLAKE3, SHA-256). Kept in 32 bytes; a shorter digest is followed by zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Takes the bytes of a digest. `digest` has at most 32 bytes.
    pub fn from_digest(digest: &[u8]) -> Fingerprint {
        let mut bytes = [0; 32];
        bytes[..digest.len()].copy_from_slice(digest);
        Fingerprint(bytes)
    }

    /// All 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first `length` bytes: what formats store, with `length` from [`Algorithm::digest_bytes`].
    pub fn digest(&self, length: usize) -> &[u8] {
        &self.0[..length]
    }

    /// The first 64 bits as a big-endian number: fingerprints sorted by it are sorted as bytes. Partitions and pages are prefixes of it.
    pub fn prefix(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("eight of 32 bytes"))
    }

    /// 64 bits that are independent of [`Fingerprint::prefix`], for filters and hash tables.
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
