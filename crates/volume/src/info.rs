//! What others may know of a volume: its record, with names that users see.

use crate::error::Result;
use onefold_blocks::{Origin, Record, SpaceKind};

/// The info of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its size, bytes.
    pub size: u64,
    /// Its block size, bytes.
    pub block_size: u32,
    /// Its number. No other volume ever has it, whatever the names.
    pub number: u32,
    /// The layer where the search for blocks begins.
    pub layer: u32,
    /// What kind of volume it is.
    pub kind: SpaceKind,
    /// Whether it never changes.
    pub is_read_only: bool,
    /// What it was created from, if it was not created empty.
    pub origin: Option<Origin>,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: i64,
    /// Its own filter chain. `None`: the store's.
    pub chain: Option<String>,
}

impl VolumeInfo {
    /// Reads the record of volume `number` from the object index.
    pub fn decode(number: u32, value: &[u8]) -> Result<VolumeInfo> {
        Ok(VolumeInfo::of(number, &Record::decode(number, value)?))
    }

    pub(crate) fn of(number: u32, record: &Record) -> VolumeInfo {
        VolumeInfo {
            name: record.name.clone(),
            size: record.end_bytes.unwrap_or_default(),
            block_size: record.block_bytes,
            number,
            layer: record.layer,
            kind: record.kind,
            is_read_only: record.is_read_only,
            origin: record.origin.clone(),
            created_ns: record.created_ns,
            chain: (!record.chain.is_empty()).then(|| record.chain.clone()),
        }
    }
}
