//! The header of a table, its pages of keys, and checksums that know their place.

use crate::ChunkKind;
use onefold_fingerprint::Fingerprint;
use onefold_ground::checksum;
use onefold_ground::wire::{Reader, WireError};

const MAGIC: &[u8; 8] = b"1FLDTAB1";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 96;
/// Keys lie in pages of this size, each with a checksum of its own.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The number of keys before, and the checksum behind them.
pub(super) const PAGE_OVERHEAD: usize = 2 + 8;
/// Kind, length, place of the frame, its length, and the place in it.
pub(crate) const PLACE_BYTES: usize = 1 + 4 + 6 + 4 + 4;
const TOMBSTONE: u8 = 0xff;
const SEQUENTIAL: u8 = 0x10;

/// Returns the checksum of a part of a table. It also depends on the number of the table and on the place of the part
/// in the file: a part that lies elsewhere, after a write to a wrong place, is damaged.
pub(super) fn placed_checksum(bytes: &[u8], table: u64, at: u64) -> u64 {
    checksum(bytes) ^ place_checksum(table, at)
}

pub(super) fn place_checksum(table: u64, at: u64) -> u64 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&table.to_le_bytes());
    place[8..].copy_from_slice(&at.to_le_bytes());
    checksum(&place)
}

/// Where the bytes of a chunk are in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) kind: ChunkKind,
    /// Whether it is read from beginning to end, with its stream.
    pub(crate) is_sequential: bool,
    pub(crate) length_bytes: u32,
    /// Where the frame begins in the file.
    pub(crate) frame: u64,
    /// The bytes of the frame with its header.
    pub(crate) frame_bytes: u32,
    /// Where the chunk begins in the decompressed frame.
    pub(crate) offset_bytes: u32,
}

/// A key of a table. `None`: a tombstone. The chunk was removed, and older tables may still have it.
pub(crate) type Entry = (Fingerprint, Option<Place>);

pub(super) fn encode_page(page: &mut [u8], entries: &[Entry], digest_bytes: usize, table: u64, at_bytes: u64) {
    page[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    let mut at = 2;
    let mut put = |bytes: &[u8]| {
        page[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for (name, place) in entries {
        put(name.digest(digest_bytes));
        match place {
            None => put(&[TOMBSTONE; PLACE_BYTES]),
            Some(place) => {
                put(&[place.kind as u8 | if place.is_sequential { SEQUENTIAL } else { 0 }]);
                put(&place.length_bytes.to_le_bytes());
                put(&place.frame.to_le_bytes()[..6]);
                put(&place.frame_bytes.to_le_bytes());
                put(&place.offset_bytes.to_le_bytes());
            }
        }
    }
    let sum = placed_checksum(&page[..PAGE_BYTES - 8], table, at_bytes);
    page[PAGE_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Reads a page; the error is for people.
pub(super) fn decode_page(page: &[u8], digest_bytes: usize, table: u64, at_bytes: u64) -> std::result::Result<Vec<Entry>, String> {
    let (bytes, sum) = page.split_at(PAGE_BYTES - 8);
    if placed_checksum(bytes, table, at_bytes).to_le_bytes() != sum {
        return Err("a page of keys has a wrong checksum".to_owned());
    }
    let decode = || -> std::result::Result<Vec<Entry>, WireError> {
        let mut reader = Reader::new(bytes);
        let count = usize::from(reader.u16()?);
        let mut entries = Vec::with_capacity(count.min(PAGE_BYTES / (digest_bytes + PLACE_BYTES)));
        for _ in 0..count {
            let name = Fingerprint::from_digest(reader.take(digest_bytes)?);
            let offset_bytes = reader.position();
            let mut place = Reader::new(reader.take(PLACE_BYTES)?);
            let kind = place.u8()?;
            if kind == TOMBSTONE {
                entries.push((name, None));
                continue;
            }
            let wrong = WireError::OutOfRange { what: "chunk kind", value: u64::from(kind), offset_bytes };
            let length_bytes = place.u32()?;
            let mut frame = [0; 8];
            frame[..6].copy_from_slice(place.take(6)?);
            entries.push((
                name,
                Some(Place {
                    kind: ChunkKind::from_number(kind & !SEQUENTIAL).ok_or(wrong)?,
                    is_sequential: kind & SEQUENTIAL != 0,
                    length_bytes,
                    frame: u64::from_le_bytes(frame),
                    frame_bytes: place.u32()?,
                    offset_bytes: place.u32()?,
                }),
            ));
        }
        Ok(entries)
    };
    decode().map_err(|error| error.to_string())
}

pub(super) struct Header {
    pub(super) digest_bytes: u8,
    pub(super) store: [u8; 16],
    /// Whether a compaction made the table.
    pub(super) is_merged: bool,
    pub(super) id: u64,
    pub(super) entries: u64,
    pub(super) tombstones: u64,
    pub(super) raw_bytes: u64,
    pub(super) length_bytes: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.digest_bytes;
        bytes[13] = u8::from(self.is_merged);
        bytes[16..32].copy_from_slice(&self.store);
        for (at, number) in [self.id, self.entries, self.tombstones, self.raw_bytes, self.length_bytes].into_iter().enumerate() {
            bytes[32 + at * 8..40 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header; the error is for people.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> std::result::Result<Header, String> {
        let said = |error: WireError| error.to_string();
        let mut reader = Reader::new(bytes);
        if reader.take(8).map_err(said)? != MAGIC {
            return Err("it is no table".to_owned());
        }
        if checksum(&bytes[..HEADER_BYTES - 8]).to_le_bytes() != bytes[HEADER_BYTES - 8..] {
            return Err("its header has a wrong checksum".to_owned());
        }
        let version = reader.u32().map_err(said)?;
        if version != VERSION {
            return Err(format!("it has version {version}; this program reads version {VERSION}"));
        }
        let digest_bytes = reader.u8().map_err(said)?;
        let is_merged = reader.u8().map_err(said)? != 0;
        reader.take(2).map_err(said)?;
        let mut store = [0; 16];
        store.copy_from_slice(reader.take(16).map_err(said)?);
        let mut number = || reader.u64().map_err(said);
        Ok(Header {
            digest_bytes,
            store,
            is_merged,
            id: number()?,
            entries: number()?,
            tombstones: number()?,
            raw_bytes: number()?,
            length_bytes: number()?,
        })
    }
}
