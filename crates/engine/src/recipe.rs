//! Recipes: the pieces that spell a run of bytes, and their encoding (`docs/format.md` section 8.1).

use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_storage::Address;

/// One piece of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// `length` bytes from `offset` on of a stored chunk.
    Chunk {
        /// The chunk's name.
        fingerprint: Fingerprint,
        /// Where it is.
        address: Address,
        /// First byte within the chunk.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// Zeros; nothing is stored for them.
    Zeros {
        /// Number of bytes.
        length: u64,
    },
}

impl Piece {
    /// Bytes that the piece spells.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Chunk { length, .. } => u64::from(*length),
            Piece::Zeros { length } => *length,
        }
    }

    /// The chunk that the piece refers to.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        match self {
            Piece::Chunk { fingerprint, .. } => Some(*fingerprint),
            Piece::Zeros { .. } => None,
        }
    }
}

/// Smallest encoding of a piece: a tag and a varint.
const PIECE_MIN_BYTES: usize = 2;
/// Deepest recipe that is read: 512 pieces a level make this far more than any file can need.
pub const MAX_LEVEL: u8 = 8;

/// A run of bytes, spelled. At level 0 the pieces are the bytes; above, they are recipe chunks that hold the pieces of the level below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// How many levels of recipe chunks are between the pieces and the bytes.
    pub level: u8,
    /// Bytes spelled at level 0.
    pub length: u64,
    /// The pieces of this level.
    pub pieces: Vec<Piece>,
}

impl Recipe {
    /// A recipe of level 0.
    pub fn flat(pieces: Vec<Piece>) -> Recipe {
        Recipe { level: 0, length: pieces.iter().map(Piece::length).sum(), pieces }
    }

    /// Appends the encoding; `digest_bytes` of each fingerprint are kept.
    pub fn encode(&self, digest_bytes: usize, out: &mut Vec<u8>) {
        out.push(self.level);
        put_varint(out, self.length);
        encode_pieces(&self.pieces, digest_bytes, out);
    }

    /// Reads a recipe.
    pub fn decode(reader: &mut Reader<'_>, digest_bytes: usize) -> Result<Recipe, WireError> {
        let offset_bytes = reader.position();
        let level = reader.u8()?;
        if level > MAX_LEVEL {
            return Err(WireError::OutOfRange { what: "recipe level", value: u64::from(level), offset_bytes });
        }
        let length = reader.varint()?;
        let pieces = decode_pieces(reader, digest_bytes)?;
        let spelled = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.length()));
        if level == 0 && spelled != Some(length) {
            return Err(WireError::OutOfRange { what: "recipe length", value: length, offset_bytes });
        }
        Ok(Recipe { level, length, pieces })
    }
}

/// Appends a count and the pieces: the content of a recipe chunk.
pub fn encode_pieces(pieces: &[Piece], digest_bytes: usize, out: &mut Vec<u8>) {
    put_varint(out, pieces.len() as u64);
    for piece in pieces {
        match piece {
            Piece::Chunk { fingerprint, address, offset, length } => {
                out.push(0);
                out.extend_from_slice(fingerprint.digest(digest_bytes));
                out.extend_from_slice(&address.bits().to_le_bytes());
                put_varint(out, u64::from(*offset));
                put_varint(out, u64::from(*length));
            }
            Piece::Zeros { length } => {
                out.push(1);
                put_varint(out, *length);
            }
        }
    }
}

/// Reads a count and the pieces.
pub fn decode_pieces(reader: &mut Reader<'_>, digest_bytes: usize) -> Result<Vec<Piece>, WireError> {
    let count = reader.count("pieces", PIECE_MIN_BYTES)?;
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        let offset_bytes = reader.position();
        match reader.u8()? {
            0 => pieces.push(Piece::Chunk {
                fingerprint: Fingerprint::from_digest(reader.take(digest_bytes)?),
                address: Address::from_bits(reader.u64()?),
                offset: reader.varint_to("piece offset", u64::from(u32::MAX))? as u32,
                length: reader.varint_to("piece length", u64::from(u32::MAX))? as u32,
            }),
            1 => pieces.push(Piece::Zeros { length: reader.varint()? }),
            tag => return Err(WireError::OutOfRange { what: "piece tag", value: u64::from(tag), offset_bytes }),
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece> {
        prop_oneof![
            (any::<[u8; 32]>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(digest, address, offset, length)| Piece::Chunk {
                fingerprint: Fingerprint::from_digest(&digest),
                address: Address::from_bits(address),
                offset,
                length
            }),
            (0..1u64 << 40).prop_map(|length| Piece::Zeros { length }),
        ]
    }

    proptest! {
        #[test]
        fn a_recipe_is_read_as_written(pieces in proptest::collection::vec(piece(), 0..50)) {
            let recipe = Recipe::flat(pieces);
            let mut bytes = Vec::new();
            recipe.encode(32, &mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(Recipe::decode(&mut reader, 32).unwrap(), recipe);
            reader.end().unwrap();
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Recipe::decode(&mut Reader::new(&bytes), 20);
        }
    }
}
