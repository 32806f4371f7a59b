//! The record of a space in the object index, and the limits of spaces (`docs/format.md` sections 7 and 7.1).
//!
//! Spaces of all kinds have one family of records. Whoever opens a store reads all of them, so the users of every layer
//! are known. A record of an unknown kind counts as damage, and then no layer is given up.

use crate::error::{Result, SpaceError};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed};

/// Longest name of a space, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Smallest block, bytes.
pub const MIN_BLOCK_BYTES: u32 = 64 << 10;
/// Largest block, bytes.
pub const MAX_BLOCK_BYTES: u32 = 1 << 20;
/// The furthest end of a space, bytes: the size of the largest volume.
pub const MAX_END_BYTES: u64 = 1 << 60;
/// Longest description of a filter chain, bytes.
pub(crate) const MAX_CHAIN_BYTES: usize = 1024;

/// Version byte of all values.
pub(crate) const VERSION: u8 = 1;
/// The key of the next number to use. Spaces, layers and maps share one sequence.
pub(crate) const NEXT_NUMBER_KEY: &[u8] = b"n";
/// The partition of that key.
pub(crate) const NEXT_NUMBER_PARTITION: u16 = 0;
/// The first key of all spaces.
pub(crate) const SPACES_FROM: &[u8] = b"v";
/// The end of the keys of spaces.
pub(crate) const SPACES_TO: &[u8] = b"w";

/// What kind of space it is: whose blocks these are, and how it came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceKind {
    /// A volume, created empty.
    Volume,
    /// The state of another volume at one moment. Never changes.
    Snapshot,
    /// Created as a copy of another volume or a snapshot.
    Clone,
    /// A filesystem, created empty. It has no end.
    Filesystem,
    /// The state of another filesystem at one moment. Never changes.
    FilesystemSnapshot,
    /// Created as a copy of another filesystem or of its snapshot.
    FilesystemClone,
}

impl SpaceKind {
    /// Returns the word used in lists and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SpaceKind::Volume => "volume",
            SpaceKind::Filesystem => "filesystem",
            SpaceKind::Snapshot | SpaceKind::FilesystemSnapshot => "snapshot",
            SpaceKind::Clone | SpaceKind::FilesystemClone => "clone",
        }
    }

    /// Returns whose spaces have this kind.
    pub fn owner(self) -> Owner {
        match self {
            SpaceKind::Volume | SpaceKind::Snapshot | SpaceKind::Clone => Owner::Volumes,
            SpaceKind::Filesystem | SpaceKind::FilesystemSnapshot | SpaceKind::FilesystemClone => Owner::Filesystems,
        }
    }

    /// Returns the kind of a snapshot of such a space.
    pub(crate) fn of_snapshot(self) -> SpaceKind {
        match self.owner() {
            Owner::Volumes => SpaceKind::Snapshot,
            Owner::Filesystems => SpaceKind::FilesystemSnapshot,
        }
    }

    /// Returns the kind of a clone of such a space.
    pub(crate) fn of_clone(self) -> SpaceKind {
        match self.owner() {
            Owner::Volumes => SpaceKind::Clone,
            Owner::Filesystems => SpaceKind::FilesystemClone,
        }
    }

    /// Returns what messages call such a space.
    pub(crate) fn called(self, number: u32) -> String {
        format!("{} {number}", self.owner().noun())
    }

    /// Returns whether the record says what the space was created from.
    fn has_origin(self) -> bool {
        !matches!(self, SpaceKind::Volume | SpaceKind::Filesystem)
    }
}

/// The crate that gives the blocks of a space a meaning. Each has names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// `onefold-volume`.
    Volumes,
    /// The crate of filesystems.
    Filesystems,
}

impl Owner {
    /// Returns the word for a space of this owner.
    pub fn noun(self) -> &'static str {
        match self {
            Owner::Volumes => "volume",
            Owner::Filesystems => "filesystem",
        }
    }
}

/// What a snapshot or a clone was created from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of that space or snapshot. It may have been deleted since. Numbers are never reused.
    pub number: u32,
    /// Its name at that time.
    pub name: String,
}

/// The record of a space (7.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name. No other space of its owner has it.
    pub name: String,
    /// The byte at which it ends. Every volume has an end. A filesystem has none, so it has all blocks.
    pub end_bytes: Option<u64>,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The layer where the search for blocks begins. A writable space is its only user.
    pub layer: u32,
    /// What kind of space it is.
    pub kind: SpaceKind,
    /// Whether it never changes.
    pub is_read_only: bool,
    /// What it was created from. `None` for [`SpaceKind::Volume`] and [`SpaceKind::Filesystem`].
    pub origin: Option<Origin>,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: i64,
    /// The filter chain. Empty: the store's.
    pub chain: String,
}

impl Record {
    /// Returns the first block after the end.
    pub(crate) fn end_block(&self) -> u64 {
        self.end_bytes.map_or(u64::MAX, |end_bytes| end_bytes.div_ceil(u64::from(self.block_bytes)))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.end_bytes.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.extend_from_slice(&self.layer.to_le_bytes());
        out.push(match self.kind {
            SpaceKind::Volume => 0,
            SpaceKind::Snapshot => 1,
            SpaceKind::Clone => 2,
            SpaceKind::Filesystem => 3,
            SpaceKind::FilesystemSnapshot => 4,
            SpaceKind::FilesystemClone => 5,
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

    /// Reads the record of space `number`, as the object index has it.
    pub fn decode(number: u32, value: &[u8]) -> Result<Record> {
        let damaged = |reason: String| SpaceError::Damaged { object: format!("the record of {}", called(number)), reason };
        let record = Record::read(value).map_err(|error| damaged(error.to_string()))?;
        let damaged = |reason: String| SpaceError::Damaged { object: format!("the record of {}", record.kind.called(number)), reason };
        check_name(&record.name).map_err(|error| damaged(error.to_string()))?;
        check_block_size(record.block_bytes).map_err(|error| damaged(error.to_string()))?;
        check_end(record.kind, record.end_bytes).map_err(|error| damaged(error.to_string()))?;
        Ok(record)
    }

    fn read(value: &[u8]) -> std::result::Result<Record, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader)?;
        let name = text(&mut reader, "name")?;
        let end_bytes = Some(reader.u64()?).filter(|end_bytes| *end_bytes > 0);
        let block_bytes = reader.u32()?;
        let layer = reader.u32()?;
        let kind = match choice(&mut reader, "kind", 5)? {
            0 => SpaceKind::Volume,
            1 => SpaceKind::Snapshot,
            2 => SpaceKind::Clone,
            3 => SpaceKind::Filesystem,
            4 => SpaceKind::FilesystemSnapshot,
            _ => SpaceKind::FilesystemClone,
        };
        let is_read_only = choice(&mut reader, "read-only", 1)? == 1;
        let origin = match kind.has_origin() {
            false => None,
            true => Some(Origin { number: reader.u32()?, name: text(&mut reader, "name of the origin")? }),
        };
        let created_ns = reader.signed()?;
        let chain = text(&mut reader, "filter chain")?;
        reader.end()?;
        Ok(Record { name, end_bytes, block_bytes, layer, kind, is_read_only, origin, created_ns, chain })
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
    number.map_err(|error| SpaceError::Damaged { object: "the next number of volumes and layers".into(), reason: error.to_string() })
}

/// The key of a space.
pub(crate) fn space_key(number: u32) -> Vec<u8> {
    [SPACES_FROM, &number.to_be_bytes()].concat()
}

/// The number in the key of a space.
pub(crate) fn space_number(key: &[u8]) -> Result<u32> {
    let number = key.strip_prefix(SPACES_FROM).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
    number.ok_or_else(|| SpaceError::Damaged { object: format!("the key {key:02x?} of a volume"), reason: "it is not 5 bytes long".into() })
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
    Err(SpaceError::Name { name: name.to_owned(), reason })
}

pub(crate) fn check_block_size(block_bytes: u32) -> Result<()> {
    if block_bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block_bytes) {
        return Ok(());
    }
    Err(SpaceError::BlockSize { block_bytes })
}

/// Every volume has an end, and no filesystem has one.
pub(crate) fn check_end(kind: SpaceKind, end_bytes: Option<u64>) -> Result<()> {
    let fits = match kind.owner() {
        Owner::Volumes => end_bytes.is_some_and(|end_bytes| (1..=MAX_END_BYTES).contains(&end_bytes)),
        Owner::Filesystems => end_bytes.is_none(),
    };
    if fits { Ok(()) } else { Err(SpaceError::End { end_bytes: end_bytes.unwrap_or(0) }) }
}

/// Returns what messages call a space of unknown kind: its record cannot be read.
fn called(number: u32) -> String {
    format!("volume {number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_written(name in "[^/\\p{Cc}]{1,60}", size_bytes in 1..=MAX_END_BYTES, shift in 16u32..=20, layer: u32, kind in 0usize..6, is_read_only: bool, number: u32, created_ns: i64, chain: String) {
            use SpaceKind::{Clone, Filesystem, FilesystemClone, FilesystemSnapshot, Snapshot, Volume};
            let kind = [Volume, Snapshot, Clone, Filesystem, FilesystemSnapshot, FilesystemClone][kind];
            let origin = (![Volume, Filesystem].contains(&kind)).then(|| Origin { number, name: name.clone() });
            let end_bytes = (kind.owner() == Owner::Volumes).then_some(size_bytes);
            let record = Record { name, end_bytes, block_bytes: 1 << shift, layer, kind, is_read_only, origin, created_ns, chain };
            prop_assert_eq!(Record::decode(1, &record.encode()).unwrap(), record);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Record::decode(1, &bytes);
            let _ = decode_number(&bytes);
            let _ = space_number(&bytes);
        }
    }

    #[test]
    fn volumes_have_an_end_and_filesystems_have_none() {
        let (volume, filesystem) = (SpaceKind::Snapshot, SpaceKind::FilesystemSnapshot);
        assert!(check_end(volume, Some(1)).is_ok() && check_end(filesystem, None).is_ok());
        assert!(check_end(volume, None).is_err() && check_end(volume, Some(0)).is_err() && check_end(volume, Some(u64::MAX)).is_err());
        assert!(check_end(filesystem, Some(1)).is_err());
    }

    #[test]
    fn keys_and_numbers_are_read_back() {
        assert_eq!(space_number(&space_key(77)).unwrap(), 77);
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
