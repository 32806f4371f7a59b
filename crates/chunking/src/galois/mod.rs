//! The chunker `galois`: a polynomial hash over GF(2^8) of the last bytes, made for processors that compute with many bytes at once.
//!
//! # Definition
//! Bytes are elements of GF(2^8) with the polynomial `x^8 + x^4 + x^3 + x + 1`; `+` is the exclusive or, and multiplication that
//! of this field.
//! - `s(b) = M (S(b) + 0x63)`, with `S` the S-box of AES (FIPS 197). Without a key the linear map `M` is the identity. `s(0)` is 0.
//! - `h(i) = z +` the sum of `g^k s(byte[i - k])` for `k` from 0 to 15, with `g = 0xe4`: a hash of the 16 bytes up to `i`. That of
//!   zeros is `z`.
//! - Byte `i` meets a condition of `n` bits if the lowest `a` bits of `h(i)` are all zero, the lowest `b` bits of `h(i - 16)` are
//!   all one, and the lowest `n - a - b` bits of the mix are zero, where `a = min(8, n - 1)` and `b = min(8, n - a)`.
//! - The mix of the 32 bytes up to `i` is `f(w0 ^ k0, w1 ^ k1) ^ f(w2 ^ k2, w3 ^ k3)`. `w0` to `w3` are the bytes as 64-bit
//!   little-endian words, the oldest first; `f` is the upper half of the 128-bit product of two words, xor its lower half. Without a
//!   key, `k0` to `k3` are 0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0 and 0x082efa98ec4e6c89 (digits of pi). Only
//!   conditions of more than 16 bits ask for it.
//! - A chunk ends after the first byte with which it has at least the minimum length and meets the condition: the *strict* one of
//!   `log2(target) + 2` bits while it is shorter than the target, the *lax* one of `log2(target) - 2` bits from then on (normalised
//!   chunking as in FastCDC). It ends at the maximum at the latest. No minimum is below 64, so a boundary depends on its own chunk.
//! - `z` has the lowest `b` bits of the lax condition set, and no others.
//!
//! With a key, BLAKE3's `derive_key` with the context `onefold-chunking galois keyed hash, version 1` and the 32 bytes of the key
//! as material gives a stream of bytes: `k0` to `k3`, little-endian; then `M` as eight bytes, what it maps 0x01, 0x02, 0x04 ... 0x80
//! to, and eight others as long as that map is not invertible.
//!
//! # Why so
//! - From `h` of 1 byte to those of 2, 4, 8 and 16, each step is a move by whole bytes, a multiplication by a constant and a sum: few
//!   instructions for all bytes of a vector, and nothing waits for the place before, as in other rolling hashes.
//! - `h(i) = h(i - 16)` meets no condition, since the lowest bit would have to be zero and one. So input with a period of 16 bytes, or
//!   8, 4, 2 or 1, has no boundary whatever the key: zeros and filled tables give chunks of the maximum. Input of another period may have
//!   boundaries, then the same in every period: chunks of at least the minimum as always, that repeat each other and so are stored once.
//! - Sparse data (records between runs of zeros) has few different windows. Since `z` passes the lax condition, what follows 16
//!   zeros is tested by `a` bits only: chunks end soon after the target there, at the beginning of records, instead of at the maximum.
//! - The S-box keeps the hash from being linear in the data. Without it, equal differences would make equal boundaries.

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

/// By how many bits the conditions before and after the target differ from that of the target.
const NORMALISATION: u32 = 2;

/// The chunker [`Kind::Galois`], for those who want to choose its [`Implementation`]; for others there is
/// [`chunker`](crate::chunker).
pub struct Galois {
    sizes: Sizes,
    /// Before the target.
    strict: Condition,
    /// From the target on.
    lax: Condition,
    hash: Hash,
    implementation: Implementation,
}

impl Galois {
    /// For these sizes, by the best implementation that this processor runs.
    pub fn new(sizes: Sizes) -> Result<Galois, ChunkingError> {
        Galois::with_hash(sizes, Hash::public)
    }

    /// As [`Galois::new`], with boundaries that depend on a key; see [`chunker_keyed`](crate::chunker_keyed) for what it is worth.
    pub fn keyed(sizes: Sizes, key: &[u8; 32]) -> Result<Galois, ChunkingError> {
        Galois::with_hash(sizes, |zeros| Hash::keyed(key, zeros))
    }

    /// The same cuts, by another implementation; an error if this processor does not run it.
    pub fn by(self, implementation: Implementation) -> Result<Galois, ChunkingError> {
        if implementation.is_available() {
            Ok(Galois { implementation, ..self })
        } else {
            Err(ChunkingError::Unavailable { implementation })
        }
    }

    /// The implementation in use.
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

    /// The length of the first chunk of `data`, unless more data could change it.
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

    /// The first place among `from .. to` that meets the condition. `from` is 63 at least, and `to` inside of `data`.
    fn scan(&self, data: &[u8], from: usize, to: usize, condition: Condition) -> Option<usize> {
        if from >= to {
            return None;
        }
        match self.implementation {
            // SAFETY: `by` and `best` choose none that is not available.
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
    /// Without what was made of the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Galois").field("sizes", &self.sizes).field("implementation", &self.implementation).finish_non_exhaustive()
    }
}
