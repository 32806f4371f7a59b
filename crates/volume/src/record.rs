//! The record of a volume in the object index, and the limits of volumes (`docs/format.md` sections 7 and 7.1).

use crate::error::{Result, VolumeError};
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
pub(crate) const VERSION: u8 = 1;
/// The key of the next number to use. Volumes, layers and maps share one sequence.
pub(crate) const NEXT_NUMBER_KEY: &[u8] = b"n";
/// The partition of that key.
pub(crate) const NEXT_NUMBER_PARTITION: u16 = 0;
/// The first key of all volumes.
pub(crate) const VOLUMES_FROM: &[u8] = b"v";
/// The end of the keys of volumes.
pub(crate) const VOLUMES_TO: &[u8] = b"w";

/// What kind of volume it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// Created empty.
    Volume,
    /// The state of another volume at one moment. Never changes.
    Snapshot,
    /// Created as a copy of another volume or a snapshot.
    Clone,
}

impl VolumeKind {
    /// Returns the word used in lists and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            VolumeKind::Volume => "volume",
            VolumeKind::Snapshot => "snapshot",
            VolumeKind::Clone => "clone",
        }
    }
}

/// What a snapshot or a clone was created from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of that volume or snapshot. It may have been deleted since. Numbers are never reused.
    pub number: u32,
    /// Its name at that time.
    pub name: String,
}

/// The record of a volume (7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    /// The layer where the search for blocks begins. A writable volume is its only user.
    pub(crate) layer: u32,
    pub(crate) kind: VolumeKind,
    pub(crate) is_read_only: bool,
    /// `None` for [`VolumeKind::Volume`].
    pub(crate) origin: Option<Origin>,
    /// Nanoseconds since 1970.
    pub(crate) created_ns: i64,
    /// The filter chain. Empty: the store's.
    pub(crate) chain: String,
}

impl Record {
    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> u64 {
        self.size_bytes.div_ceil(u64::from(self.block_bytes))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.extend_from_slice(&self.layer.to_le_bytes());
        out.push(match self.kind {
            VolumeKind::Volume => 0,
            VolumeKind::Snapshot => 1,
            VolumeKind::Clone => 2,
        });
        out.push(u8::from(self.is_read_only));
        if let Some(origin) = &self.origin {
            out.extend_from_slice(&origin.number.to_le_bytes());
            put_bytes(&mut out, origin.name.as_bytes());
        }
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
        let layer = reader.u32()?;
        let kind = match choice(&mut reader, "kind", 2)? {
            0 => VolumeKind::Volume,
            1 => VolumeKind::Snapshot,
            _ => VolumeKind::Clone,
        };
        let is_read_only = choice(&mut reader, "read-only", 1)? == 1;
        let origin = match kind {
            VolumeKind::Volume => None,
            _ => Some(Origin { number: reader.u32()?, name: text(&mut reader, "name of the origin")? }),
        };
        let created_ns = reader.signed()?;
        let chain = text(&mut reader, "filter chain")?;
        reader.end()?;
        Ok(Record { name, size_bytes, block_bytes, layer, kind, is_read_only, origin, created_ns, chain })
    }
}

/// A byte from 0 to `last`.
pub(crate) fn choice(reader: &mut Reader<'_>, what: &'static str, last: u8) -> std::result::Result<u8, WireError> {
    let offset_bytes = reader.position();
    match reader.u8()? {
        value if value <= last => Ok(value),
        value => Err(WireError::OutOfRange { what, value: u64::from(value), offset_bytes }),
    }
}

pub(crate) fn check_version(reader: &mut Reader<'_>) -> std::result::Result<(), WireError> {
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
    number.map_err(|error| VolumeError::Damaged { object: "the next number of volumes and layers".into(), reason: error.to_string() })
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
        fn a_record_is_read_as_written(name in "[^/\\p{Cc}]{1,60}", size_bytes in 1..=MAX_VOLUME_BYTES, shift in 16u32..=20, layer: u32, kind in 0usize..3, is_read_only: bool, number: u32, created_ns: i64, chain: String) {
            let kind = [VolumeKind::Volume, VolumeKind::Snapshot, VolumeKind::Clone][kind];
            let origin = (kind != VolumeKind::Volume).then(|| Origin { number, name: name.clone() });
            let record = Record { name, size_bytes, block_bytes: 1 << shift, layer, kind, is_read_only, origin, created_ns, chain };
            prop_assert_eq!(Record::decode(1, &record.encode()).unwrap(), record);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Record::decode(1, &bytes);
            let _ = decode_number(&bytes);
            let _ = volume_number(&bytes);
        }
    }

    #[test]
    fn keys_and_numbers_are_read_back() {
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
}
