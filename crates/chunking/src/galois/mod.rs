//! The chunker `galois`: a polynomial hash over GF(2^8) of the last bytes, designed for vector instructions.
//!
//! # Definition
//! Bytes are elements of GF(2^8) with the polynomial `x^8 + x^4 + x^3 + x + 1`. `+` is exclusive or, and multiplication
//! is that of this field.
//! - `s(b) = M (S(b) + 0x63)`, with `S` the S-box of AES (FIPS 197). Without a key the linear map `M` is the identity.
//!   `s(0)` is 0.
//! - `h(i) = z +` the sum of `g^k s(byte[i - k])` for `k` from 0 to 15, with `g = 0xe4`: a hash of the 16 bytes up to
//!   `i`. The hash of zeros is `z`.
//! - Byte `i` meets a condition of `n` bits if the lowest `a` bits of `h(i)` are all zero, the lowest `b` bits of
//!   `h(i - 16)` are all one, and the lowest `n - a - b` bits of the mix are zero. Here `a = min(8, n - 1)` and
//!   `b = min(8, n - a)`.
//! - The mix of the 32 bytes up to `i` is `f(w0 ^ k0, w1 ^ k1) ^ f(w2 ^ k2, w3 ^ k3)`. `w0` to `w3` are the bytes as
//!   64-bit little-endian words, the oldest first. `f` is the upper half of the 128-bit product of two words, xor its
//!   lower half. Without a key, `k0` to `k3` are 0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0 and
//!   0x082efa98ec4e6c89 (digits of pi). Only conditions of more than 16 bits use the mix.
//! - A chunk ends after the first byte at which it has at least the minimum length and meets the condition. While it is
//!   shorter than the target, this is the *strict* condition of `log2(target) + 2` bits. From the target on, it is the
//!   *lax* condition of `log2(target) - 2` bits (normalised chunking as in FastCDC). A chunk ends at the maximum at the
//!   latest. No minimum is below 64, so a boundary depends only on its own chunk.
//! - `z` has the lowest `b` bits of the lax condition set, and no other bits.
//!
//! With a key, BLAKE3's `derive_key` gives a stream of bytes. Its context is
//! `onefold-chunking galois keyed hash, version 1`, its material the 32 bytes of the key. The stream begins with `k0`
//! to `k3`, little-endian. Then comes `M` as eight bytes: the images of 0x01, 0x02, 0x04 ... 0x80. While that map is
//! not invertible, the next eight bytes replace it.
//!
//! # Why this design
//! - From `h` of 1 byte to `h` of 2, 4, 8 and 16 bytes, each step moves whole bytes, multiplies by a constant and adds.
//!   That is few instructions for all bytes of a vector, and no place waits for the previous one, unlike in other
//!   rolling hashes.
//! - If `h(i) = h(i - 16)`, no condition holds, because the lowest bit would have to be both zero and one. So input
//!   with a period of 16, 8, 4, 2 or 1 bytes has no boundary, whatever the key: zeros and filled tables give chunks of
//!   the maximum. Input with another period may have boundaries, which are then the same in every period. Its chunks
//!   have at least the minimum length as always, but they repeat, so they are stored once.
//! - Sparse data (records between runs of zeros) has few different windows. `z` passes the lax condition, so only `a`
//!   bits are tested for the data that follows 16 zeros. Chunks there end soon after the target, at the beginning of
//!   records, instead of at the maximum.
//! - The S-box keeps the hash from being linear in the data. Without it, equal differences would give equal boundaries.

mod field;
mod hash;
mod implementation;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

#[cfg(test)]
mod tests;

pub use implementation::{Implementation, SIMD_VARIABLE};

use crate::cut::cut_all;
use crate::{Chunker, ChunkingError, Kind, Limits, Sizes};
use hash::{Condition, Hash, MEMORY};
use std::fmt;

/// The conditions before and after the target differ from the target's own condition by this many bits.
const NORMALISATION: u32 = 2;

/// The chunker [`Kind::Galois`] with a choice of [`Implementation`]. Without that choice, use
/// [`chunker`](crate::chunker).
pub struct Galois {
    sizes: Sizes,
    /// The condition before the target.
    strict: Condition,
    /// The condition from the target on.
    lax: Condition,
    hash: Hash,
    implementation: Implementation,
}

impl Galois {
    /// Returns a chunker for these sizes, with the best implementation that this processor can run.
    pub fn new(sizes: Sizes) -> Result<Galois, ChunkingError> {
        Galois::with_hash(sizes, Hash::public)
    }

    /// Returns a chunker whose boundaries depend on a key. [`chunker_keyed`](crate::chunker_keyed) says what the key
    /// hides.
    pub fn keyed(sizes: Sizes, key: &[u8; 32]) -> Result<Galois, ChunkingError> {
        Galois::with_hash(sizes, |zeros| Hash::keyed(key, zeros))
    }

    /// Switches to another implementation, with the same cuts. Errors: this processor cannot run it.
    pub fn by(self, implementation: Implementation) -> Result<Galois, ChunkingError> {
        if implementation.is_available() {
            Ok(Galois { implementation, ..self })
        } else {
            Err(ChunkingError::Unavailable { implementation })
        }
    }

    /// Returns the implementation in use.
    pub fn implementation(&self) -> Implementation {
        self.implementation
    }

    fn with_hash(sizes: Sizes, hash: impl FnOnce(u8) -> Hash) -> Result<Galois, ChunkingError> {
        sizes.check(Kind::Galois)?;
        let bits = sizes.target.ilog2();
        let lax = Condition::new(bits - NORMALISATION);
        Ok(Galois {
            sizes,
            strict: Condition::new(bits + NORMALISATION),
            lax,
            hash: hash(lax.older),
            implementation: Implementation::best(),
        })
    }

    /// Returns the length of the first chunk of `data`, or `None` if more data could change it.
    fn next(&self, data: &[u8]) -> Option<usize> {
        let Sizes { min, target, max } = self.sizes;
        // A chunk of `length` bytes ends after byte `length - 1`. At the maximum there is nothing to test.
        let end = data.len().min(max - 1);
        if end >= min {
            let centre = end.min(target - 1);
            let found = self.scan(data, min - 1, centre, self.strict).or_else(|| self.scan(data, centre, end, self.lax));
            if let Some(last_byte) = found {
                return Some(last_byte + 1);
            }
        }
        (data.len() >= max).then_some(max)
    }

    /// Returns the first place in `from .. to` that meets the condition. `from` is at least 63, and `to` is at most the
    /// length of `data`.
    fn scan(&self, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
        if from >= to {
            return None;
        }
        match self.implementation {
            // SAFETY: `by` and `best` only choose implementations that are available.
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx512 => unsafe { avx512::scan(&self.hash, data, from, to, condition) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2Gfni => unsafe { avx2::scan_gfni(&self.hash, data, from, to, condition) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Implementation::Avx2 => unsafe { avx2::scan_aes(&self.hash, data, from, to, condition) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Implementation::Neon => unsafe { neon::scan(&self.hash, data, from, to, condition) },
            _ => scalar::scan(&self.hash, data, from, to, condition),
        }
    }
}

impl Chunker for Galois {
    fn cut(&self, data: &[u8], last: bool, cuts: &mut Vec<usize>) -> usize {
        cut_all(data, last, cuts, |rest| self.next(rest))
    }

    fn confirms(&self, data: &[u8], length: usize) -> bool {
        let Sizes { min, target, max } = self.sizes;
        if length < min || length > data.len().min(max) {
            return false;
        }
        let condition = if length < target { self.strict } else { self.lax };
        length == max || condition.holds(&self.hash, &data[length - MEMORY..length])
    }

    fn name(&self) -> &'static str {
        Kind::Galois.name()
    }

    fn limits(&self) -> Limits {
        Limits { min: self.sizes.min, target: self.sizes.target, max: self.sizes.max }
    }
}

impl fmt::Debug for Galois {
    /// Leaves out whatever derives from the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Galois").field("sizes", &self.sizes).field("implementation", &self.implementation).finish_non_exhaustive()
    }
}
