//! Sealed pieces: a client that reads must name chunks, and must learn nothing from their addresses.
//!
//! An address tells when a chunk was stored, and so whether it was there before the client supplied it. The name of a
//! metadata chunk is a hash of addresses, few enough to be guessed. So a piece is sealed: fingerprint and address are
//! encrypted together.
//!
//! The cipher is a Feistel network with keyed BLAKE3 as its round function, over the whole block: a pseudo-random
//! permutation. A sealed piece is as long as a piece, and nobody without the key can make one that opens to a chosen
//! chunk, or change one into another: it opens to a random fingerprint, which no chunk has. That matters, because a
//! reader that finds no chunk at an address looks for the fingerprint elsewhere.
//!
//! The key is random and lives as long as the reading. What it sealed means nothing to another one.

use super::messages::Metadata;
use onefold_engine::{Address, Piece};
use onefold_fingerprint::Fingerprint;

/// Rounds of the network. Four suffice for a pseudo-random permutation (Luby and Rackoff); two more are cheap.
const ROUNDS: u8 = 6;
/// The domain of pieces of data. Those of metadata have the numbers of what they are.
const DATA: u8 = 255;

/// Seals and opens the pieces of one reading.
pub struct Seal {
    key: [u8; 32],
    digest_bytes: usize,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Seal").finish_non_exhaustive()
    }
}

impl Seal {
    /// Returns a seal with this key, for fingerprints of `digest_bytes`.
    pub fn new(key: [u8; 32], digest_bytes: usize) -> Seal {
        Seal { key, digest_bytes }
    }

    /// Seals a piece of data.
    pub fn data(&self, piece: &Piece) -> Piece {
        self.turn(DATA, piece, false)
    }

    /// Opens a piece of data.
    pub fn open_data(&self, piece: &Piece) -> Piece {
        self.turn(DATA, piece, true)
    }

    /// Seals a piece of metadata.
    pub fn metadata(&self, piece: &Piece, what: Metadata) -> Piece {
        self.turn(what.number(), piece, false)
    }

    /// Opens a piece of metadata.
    pub fn open_metadata(&self, piece: &Piece, what: Metadata) -> Piece {
        self.turn(what.number(), piece, true)
    }

    fn turn(&self, domain: u8, piece: &Piece, opens: bool) -> Piece {
        let Piece::Chunk { fingerprint, address, offset, length } = *piece else { return *piece };
        let mut block = [0; 40];
        let block = &mut block[..self.digest_bytes + 8];
        block[..self.digest_bytes].copy_from_slice(fingerprint.digest(self.digest_bytes));
        block[self.digest_bytes..].copy_from_slice(&address.bits().to_le_bytes());
        let half = block.len() / 2;
        for round in 0..ROUNDS {
            let round = if opens { ROUNDS - 1 - round } else { round };
            let (left, right) = block.split_at_mut(half);
            let (from, to) = if round % 2 == 0 { (left, right) } else { (right, left) };
            let mut hasher = blake3::Hasher::new_keyed(&self.key);
            hasher.update(&[domain, round]).update(from);
            to.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(byte, mask)| *byte ^= mask);
        }
        let (digest, bits) = block.split_at(self.digest_bytes);
        let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes follow the digest"));
        Piece::Chunk { fingerprint: Fingerprint::from_digest(digest), address: Address::from_bits(bits), offset, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_catalog::Of;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece> {
        (any::<[u8; 32]>(), any::<u64>(), 0..1000u32, 1..1000u32).prop_map(|(digest, address, offset, length)| Piece::Chunk {
            fingerprint: Fingerprint::from_digest(&digest),
            address: Address::from_bits(address),
            offset,
            length,
        })
    }

    proptest! {
        #[test]
        fn m3_3_what_was_sealed_opens_with_the_same_key_and_kind_only(piece in piece(), key: [u8; 32], other: [u8; 32]) {
            let (seal, other) = (Seal::new(key, 32), Seal::new(other, 32));
            let recipe = Metadata::Recipe { level: 1, of: Of::File };
            prop_assert_eq!(seal.open_data(&seal.data(&piece)), piece);
            prop_assert_eq!(seal.open_metadata(&seal.metadata(&piece, recipe), recipe), piece);
            for wrong in [
                seal.data(&piece),
                other.open_data(&seal.data(&piece)),
                seal.open_data(&seal.metadata(&piece, recipe)),
                seal.open_metadata(&seal.data(&piece), recipe),
                seal.open_metadata(&seal.metadata(&piece, recipe), Metadata::Directory),
            ] {
                prop_assert_ne!(wrong.fingerprint(), piece.fingerprint());
            }
        }

        #[test]
        fn m3_3_a_forged_piece_opens_to_a_chunk_that_nobody_chose(piece in piece(), wanted in piece(), key: [u8; 32], bit in 0..320usize) {
            let seal = Seal::new(key, 32);
            // The name of a chunk, with any address.
            prop_assert_ne!(seal.open_data(&wanted).fingerprint(), wanted.fingerprint());
            // One bit of a piece that was sealed.
            let Piece::Chunk { fingerprint, address, offset, length } = seal.data(&piece) else { unreachable!() };
            let (mut digest, mut bits) = (*fingerprint.as_bytes(), address.bits());
            match bit.checked_sub(256) {
                Some(bit) => bits ^= 1 << bit,
                None => digest[bit / 8] ^= 1 << (bit % 8),
            }
            let (fingerprint, address) = (Fingerprint::from_digest(&digest), Address::from_bits(bits));
            let opened = seal.open_data(&Piece::Chunk { fingerprint, address, offset, length });
            prop_assert_ne!(opened.fingerprint(), piece.fingerprint());
        }
    }
}
