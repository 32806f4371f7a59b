//! Block mappings: the chunks of one block (`docs/format.md` sections 7 and 8.1).

use crate::entry::{ENTRIES, entries_end, entry_key};
use crate::error::{Result, SpaceError};
use crate::record::{VERSION, check_version};
use onefold_engine::{Group, Piece, Recipe};
use onefold_ground::wire::Reader;

/// The families of objects under a map, by the first byte of their keys: block mappings and entries. The number of the
/// map follows. All belong to the layer that has the map: they are shown, hidden, moved and dropped together.
pub(crate) const FAMILIES: [u8; 2] = [b'm', ENTRIES];

/// Returns the first key and the end of the keys of each family under a map.
pub(crate) fn keys_under(map: u32) -> [(Vec<u8>, Vec<u8>); FAMILIES.len()] {
    [(mapping_key(map, 0), mappings_end(map)), (entry_key(map, &[]), entries_end(map))]
}

/// The key of a block's mapping in a map.
pub(crate) fn mapping_key(map: u32, block: u64) -> Vec<u8> {
    [b"m".as_slice(), &map.to_be_bytes(), &block.to_be_bytes()].concat()
}

/// Returns the end of the keys of a map's mappings.
pub(crate) fn mappings_end(map: u32) -> Vec<u8> {
    let mut key = mapping_key(map, u64::MAX);
    key.push(0);
    key
}

/// The block in the key of a mapping.
pub(crate) fn mapping_block(key: &[u8]) -> Result<u64> {
    let block = (key.len() == 13).then(|| key[5..].try_into().ok()).flatten().map(u64::from_be_bytes);
    block
        .ok_or_else(|| SpaceError::Damaged { object: format!("the key {key:02x?} of a mapping"), reason: "it is not 13 bytes long".into() })
}

/// Returns the block of the first possible mapping at or after the key `bound`, which begins with the number of the
/// map.
pub(crate) fn first_mapping_block(bound: &[u8]) -> u64 {
    let mut block = [0; 8];
    let digits = bound.get(5..).unwrap_or_default();
    let length = digits.len().min(8);
    block[..length].copy_from_slice(&digits[..length]);
    u64::from_be_bytes(block).saturating_add(u64::from(digits.len() > 8))
}

/// A mapping as a value.
pub(crate) fn encode_mapping(pieces: &[Piece], digest_bytes: usize) -> Vec<u8> {
    let mut out = vec![VERSION];
    Recipe::flat(pieces.to_vec()).encode(digest_bytes, &mut out);
    out
}

/// Reads a mapping: the level-0 pieces of a whole block, empty for zeros.
pub(crate) fn decode_mapping(value: &[u8], digest_bytes: usize, block_bytes: u32) -> std::result::Result<Vec<Piece>, String> {
    let mut reader = Reader::new(value);
    let recipe = check_version(&mut reader)
        .and_then(|()| Recipe::decode(&mut reader, digest_bytes))
        .and_then(|recipe| reader.end().map(|()| recipe))
        .map_err(|error| error.to_string())?;
    if recipe.level != 0 || recipe.length != u64::from(block_bytes) {
        return Err(format!("it has {} bytes at level {}; a block has {block_bytes} bytes at level 0", recipe.length, recipe.level));
    }
    let is_zeros = recipe.pieces.iter().all(|piece| piece.fingerprint().is_none());
    Ok(if is_zeros { Vec::new() } else { recipe.pieces })
}

/// Encodes a mapping of zeros, which hides the layers below.
pub(crate) fn encode_zeros(block_bytes: u32, digest_bytes: usize) -> Vec<u8> {
    encode_mapping(&[Piece::Zeros { length: u64::from(block_bytes) }], digest_bytes)
}

/// Returns the group of the references of a map's mappings. A layer has one map, and a second one only while it takes
/// in its parent. So a layer that takes in another need not restate the references of either. A mapping that moves
/// between maps changes its group in the same transaction.
pub(crate) const fn group(map: u32) -> Group {
    Group::new(b'm', map as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{MIN_BLOCK_BYTES, NEXT_NUMBER_KEY};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode_mapping(&bytes, 32, MIN_BLOCK_BYTES);
            let _ = mapping_block(&bytes);
        }
    }

    #[test]
    fn m0_16_keys_sort_by_map_then_block_and_are_read_back() {
        let keys =
            [mapping_key(1, 0), mapping_key(1, 255), mapping_key(1, 256), mappings_end(1), mapping_key(2, 0), mappings_end(u32::MAX)];
        assert!(keys.is_sorted());
        assert!(keys[5].as_slice() < NEXT_NUMBER_KEY);
        assert_eq!(mapping_block(&keys[2]).unwrap(), 256);
    }

    #[test]
    fn m0_7_a_mapping_of_zeros_is_a_mapping() {
        let value = encode_zeros(MIN_BLOCK_BYTES, 20);
        assert_eq!(decode_mapping(&value, 20, MIN_BLOCK_BYTES).unwrap(), []);
    }

    #[test]
    fn a_mapping_of_another_length_is_refused() {
        let value = encode_mapping(&[Piece::Zeros { length: 65_535 }], 32);
        assert!(decode_mapping(&value, 32, 65_536).unwrap_err().contains("65535"));
    }
}
