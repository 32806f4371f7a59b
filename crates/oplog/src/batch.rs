//! One batch: header, payload, padding (`docs/format.md` section 4).

use crate::{Position, Record};
use onefold_ground::wire::{Reader, WireError};
use xxhash_rust::xxh3::Xxh3;

/// The largest payload of a batch.
pub const BATCH_MAX_BYTES: u64 = 256 << 20;
/// Batches start at multiples of this and are padded to it: it is the write unit of page caches and disks. If two
/// batches shared a unit, writing the second would rewrite the first, which is already acknowledged
/// (`docs/decisions/0029-batches-are-aligned-to-4-kib.md`).
pub const ALIGNMENT_BYTES: u64 = 4096;
pub(crate) const HEADER_BYTES: usize = 64;
/// The part of the header that the checksum covers: everything before it.
const CHECKED_BYTES: usize = 56;
pub(crate) const MAGIC: u32 = 0x3147_4f4c;

/// A parsed batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The position in its header.
    pub position: Position,
    /// Everything before this was durable when the batch was written. At most `position`.
    pub durable: Position,
    /// The start of the store's name.
    pub store: [u8; 16],
    /// The epoch of the owner that wrote it.
    pub epoch: u64,
    /// Length with header and padding: the next batch is at `position` + this.
    pub length_bytes: u64,
    /// Its records.
    pub records: Vec<Record>,
}

/// Bytes that are not a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No batch header starts here.
    #[error("no batch starts here")]
    NoHeader,
    /// A header field has a value that is not possible here.
    #[error("the batch's {what} is {value}, which is impossible")]
    Header {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The bytes end before the batch does.
    #[error("the batch has {wanted_bytes} bytes, but only {left_bytes} bytes are left")]
    Truncated {
        /// Header and payload.
        wanted_bytes: u64,
        /// Bytes that are there.
        left_bytes: u64,
    },
    /// The checksum does not match the bytes.
    #[error("the batch's checksum is wrong")]
    Checksum,
    /// The bytes are intact, but this version does not know the records.
    #[error("the batch's records cannot be read: {0}")]
    Records(#[from] WireError),
}

/// Parses the batch at the start of `bytes` and ignores what follows. On any input it does not panic, nor allocate more
/// than a small multiple of `bytes`.
pub fn parse_batch(bytes: &[u8]) -> Result<Batch, BatchError> {
    let header = BatchHeader::parse(bytes)?;
    header.check(bytes)?;
    let payload = &bytes[HEADER_BYTES..HEADER_BYTES + header.payload_bytes as usize];
    let mut reader = Reader::new(payload);
    if header.records as usize > payload.len() / Record::MIN_BYTES {
        return Err(BatchError::Header { what: "number of records", value: u64::from(header.records) });
    }
    let records = (0..header.records).map(|_| Record::decode(&mut reader)).collect::<Result<Vec<_>, _>>()?;
    reader.end()?;
    Ok(Batch {
        position: header.position,
        durable: header.durable,
        store: header.store,
        epoch: header.epoch,
        length_bytes: header.length_bytes(),
        records,
    })
}

/// Decodes as many records as possible from a batch with a wrong checksum.
pub(crate) fn guess_batch(bytes: &[u8]) -> Vec<Record> {
    let mut reader = Reader::new(bytes.get(HEADER_BYTES..).unwrap_or_default());
    std::iter::from_fn(|| Record::decode(&mut reader).ok()).collect()
}

/// The header of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchHeader {
    records: u32,
    pub(crate) position: Position,
    pub(crate) durable: Position,
    payload_bytes: u64,
    pub(crate) store: [u8; 16],
    pub(crate) epoch: u64,
    checksum: u64,
}

impl BatchHeader {
    /// Parses a header and checks the fields that need no other data.
    pub(crate) fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let mut reader = Reader::new(bytes);
        if reader.u32() != Ok(MAGIC) || bytes.len() < HEADER_BYTES {
            return Err(BatchError::NoHeader);
        }
        let header = BatchHeader {
            records: reader.u32()?,
            position: Position(reader.u64()?),
            durable: Position(reader.u64()?),
            payload_bytes: reader.u64()?,
            store: reader.take(16)?.try_into().expect("16 bytes were taken"),
            epoch: reader.u64()?,
            checksum: reader.u64()?,
        };
        let wrong = |what, value| Err(BatchError::Header { what, value });
        if !header.position.0.is_multiple_of(ALIGNMENT_BYTES) {
            return wrong("position", header.position.0);
        }
        if header.durable > header.position {
            return wrong("durable position", header.durable.0);
        }
        if header.payload_bytes > BATCH_MAX_BYTES {
            return wrong("payload length", header.payload_bytes);
        }
        Ok(header)
    }

    /// Header and payload, without padding.
    pub(crate) fn unpadded_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.payload_bytes
    }

    /// Header, payload and padding.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.unpadded_bytes().next_multiple_of(ALIGNMENT_BYTES)
    }

    /// Verifies the checksum. `bytes` start with this header.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), BatchError> {
        let wanted_bytes = self.unpadded_bytes();
        if wanted_bytes > bytes.len() as u64 {
            return Err(BatchError::Truncated { wanted_bytes, left_bytes: bytes.len() as u64 });
        }
        if checksum(&bytes[..wanted_bytes as usize]) != self.checksum {
            return Err(BatchError::Checksum);
        }
        Ok(())
    }
}

/// Computes a batch's checksum over header and payload, without the checksum field.
fn checksum(unpadded: &[u8]) -> u64 {
    let mut state = Xxh3::new();
    state.update(&unpadded[..CHECKED_BYTES]);
    state.update(&unpadded[HEADER_BYTES..]);
    state.digest()
}

/// Appends a batch with padding to `out`. Everything before `position` must be durable. Returns the payload's length.
/// Do not write a batch with more than [`BATCH_MAX_BYTES`].
pub(crate) fn encode_batch(out: &mut Vec<u8>, records: &[Record], position: Position, store: &[u8; 16], epoch: u64) -> u64 {
    let start = out.len();
    let bound_bytes = records.iter().map(Record::length_bound_bytes).sum::<u64>() as usize;
    out.reserve(HEADER_BYTES + bound_bytes + ALIGNMENT_BYTES as usize);
    out.resize(start + HEADER_BYTES, 0);
    for record in records {
        record.encode(out);
    }
    let batch = &mut out[start..];
    let payload_bytes = (batch.len() - HEADER_BYTES) as u64;
    batch[..4].copy_from_slice(&MAGIC.to_le_bytes());
    batch[4..8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    batch[8..16].copy_from_slice(&position.0.to_le_bytes());
    batch[16..24].copy_from_slice(&position.0.to_le_bytes());
    batch[24..32].copy_from_slice(&payload_bytes.to_le_bytes());
    batch[32..48].copy_from_slice(store);
    batch[48..56].copy_from_slice(&epoch.to_le_bytes());
    let checksum = checksum(batch);
    batch[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    let length = batch.len().next_multiple_of(ALIGNMENT_BYTES as usize);
    out.resize(start + length, 0);
    payload_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Partition, PartitionClass};
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let class = prop_oneof![Just(PartitionClass::ChunkIndex), Just(PartitionClass::ObjectIndex), Just(PartitionClass::Container)];
        (any::<u8>(), class, any::<u16>(), proptest::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(kind, class, number, payload)| Record { kind, partition: Partition { class, number }, payload })
    }

    proptest! {
        #[test]
        fn a_batch_is_read_as_written(records in proptest::collection::vec(record(), 0..20), position: u32, epoch: u64, store: [u8; 16]) {
            let position = Position(u64::from(position) * ALIGNMENT_BYTES);
            let mut bytes = Vec::new();
            let payload_bytes = encode_batch(&mut bytes, &records, position, &store, epoch);
            prop_assert!(payload_bytes <= records.iter().map(Record::length_bound_bytes).sum::<u64>());
            let length_bytes = bytes.len() as u64;
            prop_assert_eq!(length_bytes % ALIGNMENT_BYTES, 0);
            bytes.extend([1; 100]);
            prop_assert_eq!(parse_batch(&bytes), Ok(Batch { position, durable: position, store, epoch, length_bytes, records }));
        }

        #[test]
        fn a_changed_byte_is_found(records in proptest::collection::vec(record(), 0..5), at: prop::sample::Index, xor in 1u8..) {
            let mut bytes = Vec::new();
            let payload_bytes = encode_batch(&mut bytes, &records, Position(ALIGNMENT_BYTES), &[1; 16], 3);
            bytes[at.index(HEADER_BYTES + payload_bytes as usize)] ^= xor;
            prop_assert!(parse_batch(&bytes).is_err());
        }

        #[test]
        fn a_cut_batch_is_refused(records in proptest::collection::vec(record(), 0..5), at: prop::sample::Index) {
            let mut bytes = Vec::new();
            let payload_bytes = encode_batch(&mut bytes, &records, Position(ALIGNMENT_BYTES), &[1; 16], 3);
            prop_assert!(parse_batch(&bytes[..at.index(HEADER_BYTES + payload_bytes as usize)]).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(mut bytes: Vec<u8>, with_magic: bool, with_checksum: bool) {
            if with_magic && bytes.len() >= HEADER_BYTES {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..24].fill(0);
                let payload_bytes = (bytes.len() - HEADER_BYTES) as u64;
                bytes[24..32].copy_from_slice(&payload_bytes.to_le_bytes());
                if with_checksum {
                    let checksum = checksum(&bytes);
                    bytes[CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
                }
            }
            let _ = parse_batch(&bytes);
        }
    }
}
