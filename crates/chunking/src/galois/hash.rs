//! The hash of windows and the condition of a boundary, as the parent module defines them. All implementations follow
//! these.

use super::field::{AES_CONSTANT, Linear, aes_substitution, multiply, power};

/// Bytes in a window. The hash of a window is one byte.
pub(super) const WINDOW: usize = 16;
/// Bytes that a boundary depends on: two adjacent windows.
pub(super) const MEMORY: usize = 2 * WINDOW;
/// `g`. Its eighth power is 2, which is cheap to multiply by on every processor, and its first 51 powers differ.
pub(super) const GENERATOR: u8 = power(2, 32);

/// The words of the mix if there is no key: the first hexadecimal digits of the fraction of pi.
const PUBLIC_MIX: [u64; 4] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
/// The context from which BLAKE3 derives the keyed hash.
const KEY_CONTEXT: &str = "onefold-chunking galois keyed hash, version 1";

/// The S-box of AES.
static SUBSTITUTION: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = aes_substitution(byte as u8);
        byte += 1;
    }
    table
};

/// What a key chooses, and tables derived from it.
pub(super) struct Hash {
    /// The words of the mix.
    mix: [u64; 4],
    /// Whether there is no key: `M` is the identity.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) is_public: bool,
    /// `M` as tables of half bytes.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) matrix_halves: [[u8; 16]; 2],
    /// The map from the inverse of a byte to the linear part of `s`, and `g` times that map, in the form that GFNI
    /// takes.
    #[cfg(target_arch = "x86_64")]
    pub(super) inverse_matrices: [i64; 2],
    /// The hash of a window of bytes whose S-box value is 0.
    #[cfg(target_arch = "aarch64")]
    pub(super) offset: u8,
    /// `z`, the hash of a window of zeros.
    pub(super) zeros: u8,
    /// For each byte `b`, byte `k` is `g^k s(b)`, the lowest byte first.
    pub(super) powers: [u64; 256],
}

impl Hash {
    /// Returns the hash without a key. `zeros` is the hash of a window of zeros.
    pub(super) fn public(zeros: u8) -> Hash {
        Hash::new(Linear::IDENTITY, PUBLIC_MIX, zeros)
    }

    /// Returns the hash for a key. Use the key for nothing else.
    pub(super) fn keyed(key: &[u8; 32], zeros: u8) -> Hash {
        let mut stream = blake3::Hasher::new_derive_key(KEY_CONTEXT).update(key).finalize_xof();
        let mix = std::array::from_fn(|_| {
            let mut word = [0; 8];
            stream.fill(&mut word);
            u64::from_le_bytes(word)
        });
        // About three random matrices in ten are invertible.
        let mut matrix = Linear([0; 8]);
        while !matrix.is_invertible() {
            stream.fill(&mut matrix.0);
        }
        Hash::new(matrix, mix, zeros)
    }

    fn new(matrix: Linear, mix: [u64; 4], zeros: u8) -> Hash {
        let powers = std::array::from_fn(|byte| {
            let mut weighed = matrix.of(SUBSTITUTION[byte] ^ AES_CONSTANT);
            u64::from_le_bytes(std::array::from_fn(|_| {
                let this = weighed;
                weighed = multiply(weighed, GENERATOR);
                this
            }))
        });
        Hash {
            mix,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            is_public: matrix == Linear::IDENTITY,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            matrix_halves: matrix.halves(),
            #[cfg(target_arch = "x86_64")]
            inverse_matrices: [matrix.after_aes().matrix(), Linear::times(GENERATOR).after(matrix.after_aes()).matrix()],
            #[cfg(target_arch = "aarch64")]
            offset: (0..WINDOW).fold(0, |sum, _| multiply(sum, GENERATOR) ^ matrix.of(AES_CONSTANT)) ^ zeros,
            zeros,
            powers,
        }
    }

    /// Returns `h` of a window.
    pub(super) fn window(&self, bytes: &[u8]) -> u8 {
        debug_assert_eq!(bytes.len(), WINDOW, "a window");
        self.zeros ^ bytes.iter().fold(0, |sum, byte| multiply(sum, GENERATOR) ^ self.powers[usize::from(*byte)] as u8)
    }

    /// Returns the mix of the two windows.
    pub(super) fn mix(&self, bytes: &[u8]) -> u64 {
        let word = |index: usize| {
            let bytes = bytes[8 * index..8 * index + 8].try_into().expect("a slice of as many bytes as the array has");
            u64::from_le_bytes(bytes) ^ self.mix[index]
        };
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        fold(word(0), word(1)) ^ fold(word(2), word(3))
    }
}

/// The condition that makes a place a boundary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Condition {
    /// These bits are zero in the hash of the last 16 bytes.
    pub(super) newer: u8,
    /// These bits are one in the hash of the 16 bytes before. They are a subset of `newer`, with at least one bit.
    pub(super) older: u8,
    /// These bits are zero in the mix of all 32 bytes.
    mixed: u64,
}

impl Condition {
    /// Returns the condition that one place in `2^bits` meets on random bytes. `bits` is from 2 to 24.
    pub(super) fn new(bits: u32) -> Condition {
        let newer = (bits - 1).min(8);
        let older = (bits - newer).min(8);
        let ones = |count: u32| ((1u64 << count) - 1) as u8;
        Condition { newer: ones(newer), older: ones(older), mixed: (1 << (bits - newer - older)) - 1 }
    }

    /// Returns whether the hashes of the two windows make the place a candidate.
    #[inline]
    pub(super) fn admits(self, newer: u8, older: u8) -> bool {
        (newer & self.newer) | (!older & self.older) == 0
    }

    /// Returns whether the candidate that ends with these 32 bytes is a boundary.
    #[inline]
    pub(super) fn confirms(self, hash: &Hash, bytes: &[u8]) -> bool {
        self.mixed == 0 || hash.mix(bytes) & self.mixed == 0
    }

    /// Returns whether there is a boundary after these 32 bytes. This is the definition.
    pub(super) fn holds(self, hash: &Hash, bytes: &[u8]) -> bool {
        let (older, newer) = bytes.split_at(WINDOW);
        self.admits(hash.window(newer), hash.window(older)) && self.confirms(hash, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all conditions that the sizes allow.
    fn conditions() -> impl Iterator<Item = Condition> {
        (6..=24).map(Condition::new)
    }

    #[test]
    fn a_condition_asks_for_as_many_bits_as_it_is_told() {
        for (bits, condition) in (6..).zip(conditions()) {
            assert_eq!(condition.newer.count_ones() + condition.older.count_ones() + condition.mixed.count_ones(), bits);
            assert!(condition.older != 0 && condition.newer & condition.older == condition.older);
        }
    }

    #[test]
    fn windows_of_the_same_hash_never_make_a_candidate() {
        // So an input with a period of 16 bytes, or of a divisor of 16, is never cut, whatever its bytes and the key.
        for condition in conditions() {
            assert!((0..=255).all(|hash| !condition.admits(hash, hash)));
        }
    }

    #[test]
    fn the_powers_of_the_generator_are_different_and_the_eighth_is_two() {
        assert_eq!(power(GENERATOR, 8), 2);
        for exponent in 1..51 {
            assert_ne!(power(GENERATOR, exponent), 1);
        }
        assert_eq!(power(GENERATOR, 51), 1);
    }

    #[test]
    fn the_hash_is_defined_by_these_values() {
        // Values for other implementations to compare with; docs/format.md has them too.
        assert_eq!(GENERATOR, 0xe4);
        assert_eq!(Hash::public(7).window(&[0; 16]), 7);
        let bytes: Vec<u8> = (0..32).collect();
        let public = Hash::public(7);
        assert_eq!((public.window(&bytes[..16]), public.window(&bytes[16..]), public.mix(&bytes)), (0x68, 0x3d, 0xfee3_b180_8d4f_66c8));
        let keyed = Hash::keyed(&[7; 32], 7);
        assert_eq!((keyed.window(&bytes[..16]), keyed.window(&bytes[16..]), keyed.mix(&bytes)), (0xdf, 0xea, 0x8b1a_5020_662e_a52c));
    }

    #[test]
    fn keys_give_different_hashes_and_zero_is_a_key() {
        let bytes: Vec<u8> = (0..16).collect();
        let hashes: std::collections::BTreeSet<u8> = (0..64).map(|key| Hash::keyed(&[key; 32], 7).window(&bytes)).collect();
        assert!(hashes.len() > 32, "{} of 64 keys differ on a window", hashes.len());
        assert_ne!(Hash::keyed(&[0; 32], 7).powers, Hash::public(7).powers);
    }
}
