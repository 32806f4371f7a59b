//! Log records of a levelled store (`docs/format.md` section 5.13).

use crate::containers::compression::decompress;
use crate::levels::key::address_of;
use crate::{ChunkKind, Codec, Compressor, Result, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_oplog::{Partition, PartitionClass, Record};
use std::sync::Arc;

/// Kind of a record: chunks are in a memtable, with their bytes.
pub const CHUNKS_HELD: u8 = 11;
/// Kind of a record: a memtable is a table.
pub const TABLE_WRITTEN: u8 = 12;
/// Kind of a record: chunks are no longer in the partition.
pub const CHUNKS_DROPPED: u8 = 13;
/// The most raw bytes of chunks in one record, but for a longer chunk.
const RECORD_BYTES: usize = 1 << 20;
/// The longest decompressed content that a record may claim: one chunk behind a full record.
const MAX_RAW_BYTES: u64 = (16 << 20) + RECORD_BYTES as u64;

/// A chunk that a record places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Fingerprint,
    pub(crate) kind: ChunkKind,
    pub(crate) is_sequential: bool,
    pub(crate) length_bytes: u32,
}

/// A decoded record.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) memtable: u64,
    pub(crate) named: Vec<Named>,
    /// Their bytes, one behind the other. `None`: they are in the table.
    pub(crate) bytes: Option<Arc<Vec<u8>>>,
}

fn partition(number: u16) -> Partition {
    Partition { class: PartitionClass::Container, number }
}

fn put_named(named: &[Named], digest_bytes: usize, out: &mut Vec<u8>) {
    put_varint(out, named.len() as u64);
    for Named { name, kind, is_sequential, length_bytes } in named {
        out.extend_from_slice(name.digest(digest_bytes));
        out.push(*kind as u8 | u8::from(*is_sequential) << 4);
        put_varint(out, u64::from(*length_bytes));
    }
}

/// Makes the records of chunks with their bytes. Returns the bytes after compression.
pub(crate) fn chunks_held(
    number: u16,
    memtable: u64,
    chunks: &[(Named, Slice)],
    digest_bytes: usize,
    compressor: &mut Compressor,
    records: &mut Vec<Record>,
) -> u64 {
    let (mut stored_bytes, mut left) = (0, chunks);
    while !left.is_empty() {
        let mut bytes = 0;
        let fits = |(_, slice): &&(Named, Slice)| {
            bytes += slice.len();
            bytes <= RECORD_BYTES
        };
        let count = left.iter().take_while(fits).count().max(1);
        let (part, rest) = left.split_at(count);
        left = rest;
        let raw: Vec<u8> = part.iter().flat_map(|(_, slice)| slice.iter().copied()).collect();
        let (codec, stored) = compressor.compress(&raw);
        let named: Vec<Named> = part.iter().map(|(named, _)| *named).collect();
        let mut payload = Vec::with_capacity(stored.len() + part.len() * (digest_bytes + 5) + 32);
        put_varint(&mut payload, memtable);
        put_named(&named, digest_bytes, &mut payload);
        payload.push(codec as u8);
        put_bytes(&mut payload, stored);
        stored_bytes += stored.len() as u64;
        records.push(Record { kind: CHUNKS_HELD, partition: partition(number), payload });
    }
    stored_bytes
}

/// Makes the record of a table, with its chunks that the log does not have.
pub(crate) fn table_written(number: u16, memtable: u64, named: &[Named], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(named.len() * (digest_bytes + 5) + 16);
    put_varint(&mut payload, memtable);
    put_named(named, digest_bytes, &mut payload);
    Record { kind: TABLE_WRITTEN, partition: partition(number), payload }
}

/// Makes the record of chunks that a partition no longer has.
pub(crate) fn chunks_dropped(number: u16, names: &[Fingerprint], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(names.len() * digest_bytes + 5);
    put_varint(&mut payload, names.len() as u64);
    names.iter().for_each(|name| payload.extend_from_slice(name.digest(digest_bytes)));
    Record { kind: CHUNKS_DROPPED, partition: partition(number), payload }
}

/// Reads it.
pub(crate) fn decode_dropped(record: &Record, digest_bytes: usize) -> Result<Vec<Fingerprint>> {
    let mut reader = Reader::new(&record.payload);
    let mut read = || -> std::result::Result<_, WireError> {
        let count = reader.count("dropped chunks", digest_bytes)?;
        let names = (0..count).map(|_| reader.take(digest_bytes).map(Fingerprint::from_digest)).collect::<std::result::Result<_, _>>()?;
        reader.end()?;
        Ok(names)
    };
    read().map_err(|error| StorageError::Record { kind: record.kind, why: error.to_string() })
}

/// Reads a record of chunks that are here.
pub(crate) fn decode(record: &Record, digest_bytes: usize, with_bytes: bool) -> Result<Decoded> {
    let refused = |why: String| StorageError::Record { kind: record.kind, why };
    let is_mine = matches!(record.kind, CHUNKS_HELD | TABLE_WRITTEN) && record.partition.class == PartitionClass::Container;
    if !is_mine {
        return Err(refused("it is no record of a levelled store".to_owned()));
    }
    let said = |error: WireError| refused(error.to_string());
    let mut reader = Reader::new(&record.payload);
    let memtable = reader.varint().map_err(said)?;
    let named = read_named(&mut reader, digest_bytes).map_err(said)?;
    let mut bytes = None;
    if record.kind == CHUNKS_HELD {
        let number = reader.u8().map_err(said)?;
        let codec = Codec::from_number(number).ok_or_else(|| refused(format!("it has an unknown codec {number}")))?;
        let stored = reader.bytes().map_err(said)?;
        let raw_bytes: u64 = named.iter().map(|named| u64::from(named.length_bytes)).sum();
        if raw_bytes > MAX_RAW_BYTES {
            return Err(refused(format!("it claims {raw_bytes} bytes")));
        }
        if with_bytes {
            bytes = Some(Arc::new(decompress(codec, stored, raw_bytes as usize).map_err(refused)?));
        }
    }
    reader.end().map_err(said)?;
    Ok(Decoded { memtable, named, bytes })
}

fn read_named(reader: &mut Reader<'_>, digest_bytes: usize) -> std::result::Result<Vec<Named>, WireError> {
    let count = reader.count("chunks", digest_bytes + 2)?;
    let mut named = Vec::with_capacity(count);
    for _ in 0..count {
        let name = Fingerprint::from_digest(reader.take(digest_bytes)?);
        let offset_bytes = reader.position();
        let number = reader.u8()?;
        let kind = ChunkKind::from_number(number & 0xf).filter(|_| number & 0xe0 == 0);
        let kind = kind.ok_or(WireError::OutOfRange { what: "chunk kind", value: u64::from(number), offset_bytes })?;
        let length_bytes = reader.varint_to("chunk length", 16 << 20)? as u32;
        named.push(Named { name, kind, is_sequential: number & 0x10 != 0, length_bytes });
    }
    Ok(named)
}

/// Appends the chunks that a record places, with their addresses.
pub(crate) fn named_chunks(record: &Record, digest_bytes: usize, chunks: &mut Vec<(Fingerprint, u64)>) -> Result<()> {
    if record.kind == CHUNKS_DROPPED {
        return decode_dropped(record, digest_bytes).map(drop);
    }
    let decoded = decode(record, digest_bytes, false)?;
    let number = record.partition.number;
    chunks.extend(decoded.named.iter().map(|named| (named.name, address_of(number, &named.name).bits())));
    Ok(())
}
