//! The records that the engine itself writes to the log: removals, places and counts of chunks, and objects
//! (`docs/format.md` section 4). This file also decodes everything that the records of a batch do to the views.

use crate::{Change, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};
use onefold_index::objects;
use onefold_oplog::{Effects, Partition, PartitionClass, Position, Record};
use onefold_storage::stored_chunks;

/// Type of the record ChunkDeltas (`docs/format.md` section 4).
pub const CHUNK_DELTAS: u8 = 5;
/// Type of the record ChunksRemoved.
pub const CHUNKS_REMOVED: u8 = 7;
/// Type of the record ChunksPlaced.
pub const CHUNKS_PLACED: u8 = 9;
/// Type of the record ObjectsWritten.
pub const OBJECTS_WRITTEN: u8 = 6;

pub(crate) fn encode_objects(changes: &[Change]) -> impl Iterator<Item = Record> {
    objects::encode_changes(changes).into_iter().map(|(number, payload)| Record {
        kind: OBJECTS_WRITTEN,
        partition: Partition { class: PartitionClass::ObjectIndex, number },
        payload,
    })
}

pub(crate) fn encode_removals(removals: &[Fingerprint], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(removals.len() * digest_bytes + 5);
    put_varint(&mut payload, removals.len() as u64);
    for fingerprint in removals {
        payload.extend_from_slice(fingerprint.digest(digest_bytes));
    }
    Record { kind: CHUNKS_REMOVED, partition: Partition { class: PartitionClass::ChunkIndex, number: Partition::ANY }, payload }
}

/// Reads a ChunksRemoved payload.
pub fn decode_removals(payload: &[u8], digest_bytes: usize) -> std::result::Result<Vec<Fingerprint>, WireError> {
    let mut reader = Reader::new(payload);
    let count = reader.count("removed chunks", digest_bytes)?;
    let removals = (0..count).map(|_| reader.take(digest_bytes).map(Fingerprint::from_digest)).collect::<std::result::Result<_, _>>()?;
    reader.end()?;
    Ok(removals)
}

pub(crate) fn encode_places(places: &[(Fingerprint, u64)], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(places.len() * (digest_bytes + 8) + 5);
    put_varint(&mut payload, places.len() as u64);
    for (fingerprint, address) in places {
        payload.extend_from_slice(fingerprint.digest(digest_bytes));
        payload.extend_from_slice(&address.to_le_bytes());
    }
    Record { kind: CHUNKS_PLACED, partition: Partition { class: PartitionClass::ChunkIndex, number: Partition::ANY }, payload }
}

/// Reads a ChunksPlaced payload.
pub fn decode_places(payload: &[u8], digest_bytes: usize) -> std::result::Result<Vec<(Fingerprint, u64)>, WireError> {
    let mut reader = Reader::new(payload);
    let count = reader.count("chunks with new places", digest_bytes + 8)?;
    let place = |reader: &mut Reader<'_>| Ok((Fingerprint::from_digest(reader.take(digest_bytes)?), reader.u64()?));
    let places = (0..count).map(|_| place(&mut reader)).collect::<std::result::Result<_, WireError>>()?;
    reader.end()?;
    Ok(places)
}

pub(crate) fn encode_deltas(deltas: &[(Fingerprint, i64)], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(deltas.len() * (digest_bytes + 1) + 5);
    put_varint(&mut payload, deltas.len() as u64);
    for (fingerprint, change) in deltas {
        payload.extend_from_slice(fingerprint.digest(digest_bytes));
        put_signed(&mut payload, *change);
    }
    Record { kind: CHUNK_DELTAS, partition: Partition { class: PartitionClass::ChunkIndex, number: Partition::ANY }, payload }
}

/// Reads a ChunkDeltas payload.
pub fn decode_deltas(payload: &[u8], digest_bytes: usize) -> std::result::Result<Vec<(Fingerprint, i64)>, WireError> {
    let mut reader = Reader::new(payload);
    let count = reader.count("chunk deltas", digest_bytes + 1)?;
    let mut deltas = Vec::with_capacity(count);
    for _ in 0..count {
        deltas.push((Fingerprint::from_digest(reader.take(digest_bytes)?), reader.signed()?));
    }
    reader.end()?;
    Ok(deltas)
}

/// The decoded effects that the records of one batch have on the views.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    removals: Vec<Fingerprint>,
    places: Vec<(Fingerprint, u64)>,
    stored: Vec<(Fingerprint, u64)>,
    notes: Vec<u32>,
    deltas: Vec<(Fingerprint, i64)>,
    changes: Vec<Change>,
}

impl Decoded {
    /// Reads the records of a batch. A record of an unknown type is an error: its batch cannot be applied as a whole.
    pub(crate) fn read(records: &[Record], digest_bytes: usize) -> Result<Decoded> {
        let mut decoded = Decoded::default();
        let damaged = |what: &str| {
            let what = format!("{what} record in the log");
            move |source| EngineError::Wire { what, source }
        };
        for record in records {
            let Record { kind, partition, payload } = record;
            match partition.class {
                PartitionClass::Container => stored_chunks(record, digest_bytes, &mut decoded.stored, &mut decoded.notes)?,
                PartitionClass::ChunkIndex if *kind == CHUNKS_REMOVED => {
                    decoded.removals.extend(decode_removals(payload, digest_bytes).map_err(damaged("ChunksRemoved"))?);
                }
                PartitionClass::ChunkIndex if *kind == CHUNKS_PLACED => {
                    decoded.places.extend(decode_places(payload, digest_bytes).map_err(damaged("ChunksPlaced"))?);
                }
                PartitionClass::ChunkIndex if *kind == CHUNK_DELTAS => {
                    decoded.deltas.extend(decode_deltas(payload, digest_bytes).map_err(damaged("ChunkDeltas"))?);
                }
                PartitionClass::ObjectIndex if *kind == OBJECTS_WRITTEN => {
                    decoded.changes.extend(objects::decode_changes(partition.number, payload).map_err(damaged("ObjectsWritten"))?);
                }
                class => {
                    let why = format!("the log has a record of unknown type {kind} for {class:?}; a newer version may have written it");
                    return Err(EngineError::Inconsistent { why });
                }
            }
        }
        Ok(decoded)
    }

    /// Returns the effects of the batch at `start`, whose records are `records`.
    pub(crate) fn effects<'a>(&'a self, start: Position, records: &'a [Record]) -> Effects<'a> {
        let Decoded { removals, places, stored, notes, deltas, changes } = self;
        Effects { start, replayed: records, removals, places, stored, notes, deltas, changes, sequence: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_are_read_as_written_and_garbage_is_refused() {
        let deltas = vec![(Fingerprint::from_digest(&[1; 20]), -3), (Fingerprint::from_digest(&[2; 20]), 1 << 40)];
        let record = encode_deltas(&deltas, 20);
        assert_eq!(decode_deltas(&record.payload, 20).unwrap(), deltas);
        for length in 0..record.payload.len() {
            assert!(decode_deltas(&record.payload[..length], 20).is_err());
        }
    }

    #[test]
    fn removals_are_read_as_written_and_garbage_is_refused() {
        let removals = vec![Fingerprint::from_digest(&[1; 20]), Fingerprint::from_digest(&[2; 20])];
        let record = encode_removals(&removals, 20);
        assert_eq!(decode_removals(&record.payload, 20).unwrap(), removals);
        for length in 0..record.payload.len() {
            assert!(decode_removals(&record.payload[..length], 20).is_err());
        }
    }

    #[test]
    fn places_are_read_as_written_and_garbage_is_refused() {
        let places = vec![(Fingerprint::from_digest(&[1; 20]), 0), (Fingerprint::from_digest(&[2; 20]), 1 << 40)];
        let record = encode_places(&places, 20);
        assert_eq!(decode_places(&record.payload, 20).unwrap(), places);
        for length in 0..record.payload.len() {
            assert!(decode_places(&record.payload[..length], 20).is_err());
        }
    }
}
