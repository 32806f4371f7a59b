//! The objects of volumes: keys and values in the block index (`docs/format.md` sections 7, 7.1 and 8.1).

use crate::error::{Result, VolumeError};
use onefold_engine::{Piece, Recipe};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed};

/// Longest name of a volume, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Smallest block, bytes.
pub const MIN_BLOCK_BYTES: u32 = 64 << 10;
/// Largest block, bytes.
pub const MAX_BLOCK_BYTES: u32 = 1 << 20;
/// Largest volume, bytes.
pub const MAX_VOLUME_BYTES: u64 = 1 << 60;
/// Longest description of a filter chain, bytes.
pub(crate) const MAX_CHAIN_BYTES: usize = 1024;

/// Version byte of all values.
const VERSION: u8 = 1;
/// The key of the number that the next volume gets.
pub(crate) const NEXT_NUMBER_KEY: &[u8] = b"n";
/// The partition of that key.
pub(crate) const NEXT_NUMBER_PARTITION: u16 = 0;
/// All volumes are at or behind this key and before the next.
pub(crate) const VOLUMES_FROM: &[u8] = b"v";
/// End of the keys of volumes.
pub(crate) const VOLUMES_TO: &[u8] = b"w";

/// What is known of a volume (7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) is_deleted: bool,
    /// Nanoseconds since 1970.
    pub(crate) created_ns: i64,
    /// The filter chain; empty: the store's.
    pub(crate) chain: String,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.push(u8::from(self.is_deleted));
        put_signed(&mut out, self.created_ns);
        put_bytes(&mut out, self.chain.as_bytes());
        out
    }

    pub(crate) fn decode(number: u32, value: &[u8]) -> Result<Record> {
        let damaged = |reason: String| VolumeError::Damaged { object: format!("the record of volume {number}"), reason };
        let record = Record::read(value).map_err(|error| damaged(error.to_string()))?;
        check_name(&record.name).map_err(|error| damaged(error.to_string()))?;
        check_block_size(record.block_bytes).map_err(|error| damaged(error.to_string()))?;
        check_size(record.size_bytes).map_err(|error| damaged(error.to_string()))?;
        Ok(record)
    }

    fn read(value: &[u8]) -> std::result::Result<Record, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let name = text(&mut reader, "name")?;
        let size_bytes = reader.u64()?;
        let block_bytes = reader.u32()?;
        let offset_bytes = reader.position();
        let is_deleted = match reader.u8()? {
            0 => false,
            1 => true,
            state => return Err(WireError::OutOfRange { what: "state", value: u64::from(state), offset_bytes }),
        };
        let created_ns = reader.signed()?;
        let chain = text(&mut reader, "filter chain")?;
        reader.end()?;
        Ok(Record { name, size_bytes, block_bytes, is_deleted, created_ns, chain })
    }
}

fn check_version(reader: &mut Reader<'_>) -> std::result::Result<(), WireError> {
    match reader.u8()? {
        VERSION => Ok(()),
        version => Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
    }
}

fn text(reader: &mut Reader<'_>, what: &'static str) -> std::result::Result<String, WireError> {
    let offset_bytes = reader.position();
    let bytes = reader.bytes()?;
    String::from_utf8(bytes.to_vec()).map_err(|_| WireError::OutOfRange { what, value: bytes.len() as u64, offset_bytes })
}

/// The next number as a value.
pub(crate) fn encode_number(number: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&number.to_le_bytes());
    out
}

/// Reads the next number.
pub(crate) fn decode_number(value: &[u8]) -> Result<u32> {
    let mut reader = Reader::new(value);
    let number = check_version(&mut reader).and_then(|()| reader.u32()).and_then(|number| reader.end().map(|()| number));
    number.map_err(|error| VolumeError::Damaged { object: "the next number of a volume".into(), reason: error.to_string() })
}

/// The key of a volume.
pub(crate) fn volume_key(number: u32) -> Vec<u8> {
    [VOLUMES_FROM, &number.to_be_bytes()].concat()
}

/// The number in the key of a volume.
pub(crate) fn volume_number(key: &[u8]) -> Result<u32> {
    let number = key.strip_prefix(VOLUMES_FROM).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
    number
        .ok_or_else(|| VolumeError::Damaged { object: format!("the key {key:02x?} of a volume"), reason: "it is not 5 bytes long".into() })
}

/// The key of a block's mapping.
pub(crate) fn mapping_key(volume: u32, block: u64) -> Vec<u8> {
    [b"m".as_slice(), &volume.to_be_bytes(), &block.to_be_bytes()].concat()
}

/// The key behind all mappings of a volume.
pub(crate) fn mappings_end(volume: u32) -> Vec<u8> {
    let mut key = mapping_key(volume, u64::MAX);
    key.push(0);
    key
}

/// The block in the key of a mapping.
pub(crate) fn mapping_block(key: &[u8]) -> Result<u64> {
    let block = (key.len() == 13).then(|| key[5..].try_into().ok()).flatten().map(u64::from_be_bytes);
    block.ok_or_else(|| VolumeError::Damaged {
        object: format!("the key {key:02x?} of a mapping"),
        reason: "it is not 13 bytes long".into(),
    })
}

/// A mapping as a value.
pub(crate) fn encode_mapping(pieces: &[Piece], digest_bytes: usize) -> Vec<u8> {
    let mut out = vec![VERSION];
    Recipe::flat(pieces.to_vec()).encode(digest_bytes, &mut out);
    out
}

/// Reads a mapping: the level-0 pieces of a whole block.
pub(crate) fn decode_mapping(value: &[u8], digest_bytes: usize, block_bytes: u32) -> std::result::Result<Vec<Piece>, String> {
    let mut reader = Reader::new(value);
    let recipe = check_version(&mut reader)
        .and_then(|()| Recipe::decode(&mut reader, digest_bytes))
        .and_then(|recipe| reader.end().map(|()| recipe))
        .map_err(|error| error.to_string())?;
    if recipe.level != 0 || recipe.length != u64::from(block_bytes) {
        return Err(format!("it spells {} bytes at level {}, a block has {block_bytes} at level 0", recipe.length, recipe.level));
    }
    Ok(recipe.pieces)
}

/// Names have 1 to 255 bytes, no `/` and no control characters.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "it is longer than 255 bytes"
    } else if name.contains('/') {
        "it has a /"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else {
        return Ok(());
    };
    Err(VolumeError::Name { name: name.to_owned(), reason })
}

pub(crate) fn check_block_size(block_bytes: u32) -> Result<()> {
    if block_bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block_bytes) {
        return Ok(());
    }
    Err(VolumeError::BlockSize { block_bytes })
}

pub(crate) fn check_size(size_bytes: u64) -> Result<()> {
    if (1..=MAX_VOLUME_BYTES).contains(&size_bytes) { Ok(()) } else { Err(VolumeError::Size { size_bytes }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_written(name in "[^/\\p{Cc}]{1,60}", size_bytes in 1..=MAX_VOLUME_BYTES, shift in 16u32..=20, is_deleted: bool, created_ns: i64, chain: String) {
            let record = Record { name, size_bytes, block_bytes: 1 << shift, is_deleted, created_ns, chain };
            prop_assert_eq!(Record::decode(1, &record.encode()).unwrap(), record);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Record::decode(1, &bytes);
            let _ = decode_number(&bytes);
            let _ = decode_mapping(&bytes, 32, MIN_BLOCK_BYTES);
            let _ = volume_number(&bytes);
            let _ = mapping_block(&bytes);
        }
    }

    #[test]
    fn m0_16_keys_sort_by_volume_then_block_and_are_read_back() {
        let keys =
            [mapping_key(1, 0), mapping_key(1, 255), mapping_key(1, 256), mappings_end(1), mapping_key(2, 0), mappings_end(u32::MAX)];
        assert!(keys.is_sorted());
        assert!(keys[5].as_slice() < NEXT_NUMBER_KEY);
        assert_eq!(mapping_block(&keys[2]).unwrap(), 256);
        assert_eq!(volume_number(&volume_key(77)).unwrap(), 77);
        assert_eq!(decode_number(&encode_number(9)).unwrap(), 9);
    }

    #[test]
    fn names_that_would_confuse_are_refused() {
        for name in ["", "a/b", "a\nb", "\u{7f}", &"x".repeat(256)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["disk", "Büro 1", &"x".repeat(255)] {
            check_name(name).unwrap();
        }
    }

    #[test]
    fn a_mapping_of_another_length_is_refused() {
        let value = encode_mapping(&[Piece::Zeros { length: 65_535 }], 32);
        assert!(decode_mapping(&value, 32, 65_536).unwrap_err().contains("65535"));
    }
}
