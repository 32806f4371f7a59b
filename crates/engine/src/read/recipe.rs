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
    /// Returns the number of bytes that the piece spells.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Chunk { length, .. } => u64::from(*length),
            Piece::Zeros { length } => *length,
        }
    }

    /// Returns the chunk that the piece refers to.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        match self {
            Piece::Chunk { fingerprint, .. } => Some(*fingerprint),
            Piece::Zeros { .. } => None,
        }
    }
}

/// Smallest encoding of a piece: a tag and a varint.
const PIECE_MIN_BYTES: usize = 2;
/// The longest chunk, and so the longest piece of one. It bounds what a reader allocates for a piece before it sees the
/// chunk.
const MAX_CHUNK_BYTES: u64 = onefold_storage::MAX_CHUNK_BYTES as u64;
/// The deepest recipe that is written and read. At 24 pieces a level on average, this is far more than any file can
/// need.
pub const MAX_LEVEL: u8 = 8;

/// A run of bytes. At level 0 the pieces are the bytes. Above, they are recipe chunks that hold the pieces of the level
/// below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// Levels of recipe chunks between the pieces and the bytes.
    pub level: u8,
    /// Bytes spelled at level 0.
    pub length: u64,
    /// The pieces of this level.
    pub pieces: Vec<Piece>,
}

impl Recipe {
    /// Returns a recipe of level 0.
    pub fn flat(pieces: Vec<Piece>) -> Recipe {
        Recipe { level: 0, length: pieces.iter().map(Piece::length).sum(), pieces }
    }

    /// Appends the encoding. It keeps `digest_bytes` of each fingerprint.
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
        let piece = match reader.u8()? {
            0 => Piece::Chunk {
                fingerprint: Fingerprint::from_digest(reader.take(digest_bytes)?),
                address: Address::from_bits(reader.u64()?),
                offset: reader.varint_to("piece offset", MAX_CHUNK_BYTES)? as u32,
                length: reader.varint_to("piece length", MAX_CHUNK_BYTES)? as u32,
            },
            1 => Piece::Zeros { length: reader.varint()? },
            tag => return Err(WireError::OutOfRange { what: "piece tag", value: u64::from(tag), offset_bytes }),
        };
        // Pieces that spell nothing would let a few recipe chunks keep a reader busy for ever.
        if piece.length() == 0 {
            return Err(WireError::OutOfRange { what: "piece length", value: 0, offset_bytes });
        }
        pieces.push(piece);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece> {
        prop_oneof![
            (any::<[u8; 32]>(), any::<u64>(), 0..16u32 << 20, 1..=16u32 << 20).prop_map(|(digest, address, offset, length)| Piece::Chunk {
                fingerprint: Fingerprint::from_digest(&digest),
                address: Address::from_bits(address),
                offset,
                length
            }),
            (1..1u64 << 40).prop_map(|length| Piece::Zeros { length }),
        ]
    }

    #[test]
    fn pieces_of_no_length_or_longer_than_any_chunk_are_refused() {
        let chunk = |offset, length| Piece::Chunk {
            fingerprint: Fingerprint::from_digest(&[1; 32]),
            address: Address::from_bits(1),
            offset,
            length,
        };
        let longest = 16 << 20;
        let is_read = |piece| {
            let mut bytes = Vec::new();
            encode_pieces(&[piece], 32, &mut bytes);
            decode_pieces(&mut Reader::new(&bytes), 32).is_ok()
        };
        assert!(is_read(chunk(0, longest)) && is_read(chunk(longest - 1, 1)) && is_read(Piece::Zeros { length: u64::MAX }));
        assert!(!is_read(chunk(0, 0)) && !is_read(Piece::Zeros { length: 0 }));
        assert!(!is_read(chunk(0, longest + 1)) && !is_read(chunk(longest + 1, 1)));
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
