//! The log record of an arena (`docs/format.md` section 5.12).

use crate::arena::block::{MAX_BLOCK_BYTES, MAX_BLOCKS, address_of_block, encode_note};
use crate::{ChunkKind, Result, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_varint};
use onefold_oplog::{Partition, PartitionClass, Record};

/// Kind of a record: chunks are in blocks of the arena, synced.
pub const BLOCKS_STORED: u8 = 10;
/// A record names at most this many chunks.
pub(crate) const RECORD_CHUNKS: usize = 4096;
/// All blocks are in one partition.
const PARTITION: Partition = Partition { class: PartitionClass::Container, number: 0 };

/// A chunk and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) block: u64,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: ChunkKind,
    pub(crate) length_bytes: u32,
}

impl Stored {
    /// Returns what the block table keeps of the chunk beside its name.
    pub(crate) fn note(&self) -> u32 {
        encode_note(self.kind, self.length_bytes)
    }
}

/// Makes the records of these chunks. Their blocks ascend.
pub(crate) fn blocks_stored(stored: &[Stored], digest_bytes: usize) -> Vec<Record> {
    stored.chunks(RECORD_CHUNKS).map(|part| record(part, digest_bytes)).collect()
}

fn record(stored: &[Stored], digest_bytes: usize) -> Record {
    let runs = || stored.chunk_by(|left, right| left.block + 1 == right.block);
    let mut payload = Vec::with_capacity(16 + stored.len() * (digest_bytes + 3));
    put_varint(&mut payload, runs().count() as u64);
    let mut end = 0;
    for run in runs() {
        put_varint(&mut payload, run[0].block - end);
        put_varint(&mut payload, run.len() as u64);
        for Stored { fingerprint, kind, length_bytes, .. } in run {
            payload.extend_from_slice(fingerprint.digest(digest_bytes));
            payload.push(*kind as u8);
            put_varint(&mut payload, u64::from(*length_bytes));
        }
        end = run[0].block + run.len() as u64;
    }
    Record { kind: BLOCKS_STORED, partition: PARTITION, payload }
}

/// Appends the chunks of a record with their addresses, and their notes.
pub(crate) fn stored_blocks(
    record: &Record,
    digest_bytes: usize,
    chunks: &mut Vec<(Fingerprint, u64)>,
    notes: &mut Vec<u32>,
) -> Result<()> {
    let refused = |why: String| StorageError::Record { kind: record.kind, why };
    if record.kind != BLOCKS_STORED || record.partition != PARTITION {
        return Err(refused("it is no record of an arena".to_owned()));
    }
    let stored = decode(&record.payload, digest_bytes).map_err(|error| refused(error.to_string()))?;
    chunks.extend(stored.iter().map(|stored| (stored.fingerprint, address_of_block(stored.block).bits())));
    notes.extend(stored.iter().map(Stored::note));
    Ok(())
}

fn decode(payload: &[u8], digest_bytes: usize) -> std::result::Result<Vec<Stored>, WireError> {
    let mut reader = Reader::new(payload);
    let item_bytes = digest_bytes + 2;
    let runs = reader.count("runs", 2 + item_bytes)?;
    let mut stored = Vec::with_capacity(payload.len() / item_bytes);
    let mut next = 0u64;
    for _ in 0..runs {
        let offset_bytes = reader.position();
        let gap = reader.varint_to("gap before a run", MAX_BLOCKS)?;
        let count = reader.count("blocks of a run", item_bytes)?;
        let first = next + gap;
        // Runs that touch are one run, so that there is one way to write them.
        let is_joined = gap == 0 && next > 0;
        if count == 0 || is_joined || first + count as u64 > MAX_BLOCKS {
            return Err(WireError::OutOfRange { what: "run of blocks", value: first, offset_bytes });
        }
        next = first + count as u64;
        for block in first..next {
            let fingerprint = Fingerprint::from_digest(reader.take(digest_bytes)?);
            let offset_bytes = reader.position();
            let number = reader.u8()?;
            let kind = ChunkKind::from_number(number);
            let kind = kind.ok_or(WireError::OutOfRange { what: "chunk kind", value: u64::from(number), offset_bytes })?;
            let offset_bytes = reader.position();
            let length_bytes = reader.varint_to("chunk length", u64::from(MAX_BLOCK_BYTES))? as u32;
            if length_bytes == 0 {
                return Err(WireError::OutOfRange { what: "chunk length", value: 0, offset_bytes });
            }
            stored.push(Stored { block, fingerprint, kind, length_bytes });
        }
    }
    reader.end()?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::block::{block_of_address, decode_note};
    use crate::{Address, stored_chunks};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn chunks() -> impl Strategy<Value = BTreeMap<u64, (u8, u32)>> {
        let block = prop_oneof![0..40u64, 65_530..65_545u64, MAX_BLOCKS - 4..MAX_BLOCKS];
        proptest::collection::btree_map(block, (0..3u8, 1..=65_536u32), 1..60)
    }

    fn stored_of(chunks: &BTreeMap<u64, (u8, u32)>, digest_bytes: usize) -> Vec<Stored> {
        let stored = |(block, (kind, length_bytes)): (&u64, &(u8, u32))| Stored {
            block: *block,
            fingerprint: Fingerprint::from_digest(&[(block % 251) as u8; 32][..digest_bytes]),
            kind: ChunkKind::from_number(*kind).unwrap(),
            length_bytes: *length_bytes,
        };
        chunks.iter().map(stored).collect()
    }

    proptest! {
        #[test]
        fn m1_5_records_are_read_as_written(chunks in chunks(), is_short: bool) {
            let digest_bytes = if is_short { 20 } else { 32 };
            let stored = stored_of(&chunks, digest_bytes);
            let records = blocks_stored(&stored, digest_bytes);
            prop_assert_eq!(records.len(), 1);
            let (mut blocks, mut notes) = (Vec::new(), Vec::new());
            stored_chunks(&records[0], digest_bytes, &mut blocks, &mut notes).unwrap();
            prop_assert_eq!((blocks.len(), notes.len()), (stored.len(), stored.len()));
            for (((fingerprint, address), note), expected) in blocks.iter().zip(&notes).zip(&stored) {
                prop_assert_eq!(*fingerprint, expected.fingerprint);
                prop_assert_eq!(block_of_address(Address::from_bits(*address)), Some(expected.block));
                prop_assert_eq!(decode_note(*note), Some((expected.kind, expected.length_bytes)));
            }
            // Every shorter one is refused.
            let record = &records[0];
            for length in 0..record.payload.len() {
                let cut = Record { payload: record.payload[..length].to_vec(), ..record.clone() };
                prop_assert!(stored_chunks(&cut, digest_bytes, &mut Vec::new(), &mut Vec::new()).is_err());
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let record = Record { kind: BLOCKS_STORED, partition: PARTITION, payload };
            let _ = stored_chunks(&record, 32, &mut Vec::new(), &mut Vec::new());
        }
    }

    #[test]
    fn many_chunks_take_several_records_and_a_run_little_more_than_its_names() {
        let chunks: BTreeMap<u64, (u8, u32)> = (7..10_007).map(|block| (block, (0, 4096))).collect();
        let stored = stored_of(&chunks, 32);
        let records = blocks_stored(&stored, 32);
        assert_eq!(records.len(), 3);
        let mut blocks = Vec::new();
        records.iter().for_each(|record| stored_chunks(record, 32, &mut blocks, &mut Vec::new()).unwrap());
        assert_eq!(blocks.len(), 10_000);
        assert!(records.iter().map(|record| record.payload.len()).sum::<usize>() < 10_000 * 35 + 100);
        assert!(blocks_stored(&[], 32).is_empty());
    }

    #[test]
    fn records_of_other_kinds_are_refused() {
        let record = Record { kind: 3, partition: PARTITION, payload: vec![1; 8] };
        assert!(matches!(stored_blocks(&record, 32, &mut Vec::new(), &mut Vec::new()), Err(StorageError::Record { kind: 3, .. })));
        let elsewhere = Partition { number: 1, ..PARTITION };
        let record = Record { kind: BLOCKS_STORED, partition: elsewhere, payload: vec![0] };
        assert!(stored_chunks(&record, 32, &mut Vec::new(), &mut Vec::new()).is_err());
        for (payload, why) in [(&[1u8, 0, 0][..], "a run without blocks"), (&[0, 0], "bytes behind the end")] {
            let record = Record { kind: BLOCKS_STORED, partition: PARTITION, payload: payload.to_vec() };
            assert!(stored_chunks(&record, 32, &mut Vec::new(), &mut Vec::new()).is_err(), "{why}");
        }
    }
}
