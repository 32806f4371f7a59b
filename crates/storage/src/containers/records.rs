//! The log records of containers (`docs/format.md` sections 4, 5.3 to 5.5, and 5.14).

use crate::address::decode_container;
use crate::containers::catalog::{MAX_FRAME_BYTES, MAX_FRAMES, MAX_SLOTS, decode_frame, decode_slots, encode_frame, encode_slots};
use crate::containers::numbers::{NUMBERS_RESERVED, NUMBERS_USED, decode_numbers, decode_reserved};
use crate::{Address, Catalog, ChunkKind, ContainerId, Frame, Result, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use onefold_oplog::{Partition, PartitionClass, Position, Record};

/// Kind of a record: a full frame is in its container, synced.
pub const FRAME_COMMITTED: u8 = 1;
/// Kind of a record: chunks of a frame that is still open, with their bytes.
pub const FRAME_DATA: u8 = 2;
/// Kind of a record: catalog and footer are in the file, synced.
pub const CONTAINER_SEALED: u8 = 3;
/// Kind of a record: all that the log must know of an open container.
pub const CONTAINER_CHECKPOINT: u8 = 4;
/// Kind of a record: containers were merged.
pub const CONTAINERS_MERGED: u8 = 8;
/// Kind of a record: a full frame, with its bytes.
pub const FRAME_STORED: u8 = 14;

/// Chunks of a frame that is still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenChunks {
    /// The frame's number.
    pub frame: u32,
    /// The first of the slots.
    pub first_slot: u32,
    /// The chunks. Their offsets count from the first of them.
    pub slots: Vec<Slot>,
    /// Their bytes, one after the other.
    pub raw: Vec<u8>,
}

impl OpenChunks {
    fn encode(&self, digest_bytes: usize, out: &mut Vec<u8>) {
        encode_open(self.frame, self.first_slot, &self.slots, &self.raw, digest_bytes, out);
    }

    fn decode(reader: &mut Reader<'_>, digest_bytes: usize) -> std::result::Result<OpenChunks, WireError> {
        let frame = reader.varint_to("frame number", MAX_FRAMES as u64 - 1)? as u32;
        let first_slot = reader.varint_to("first slot", MAX_SLOTS as u64)? as u32;
        let slots = decode_slots(reader, frame, first_slot, 0, digest_bytes)?;
        let length: usize = slots.iter().map(|slot| slot.length_bytes as usize).sum();
        debug_assert!(length <= MAX_FRAME_BYTES, "decode_slots bounds it");
        Ok(OpenChunks { frame, first_slot, slots, raw: reader.take(length)?.to_vec() })
    }
}

/// A decoded record of the container class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerRecord {
    /// A full frame is in its container (5.3).
    FrameCommitted {
        /// The container.
        container: ContainerId,
        /// Earlier FrameData records placed this many of its first chunks.
        known: u32,
        /// The frame.
        frame: Frame,
        /// Its chunks.
        slots: Vec<Slot>,
        /// The bytes that the frame has in the container: the record is a FrameStored (5.4). `None`: they are synced.
        stored: Option<Vec<u8>>,
    },
    /// Chunks of a frame that is still open (5.4).
    FrameData {
        /// The container.
        container: ContainerId,
        /// The chunks added since the last such record.
        chunks: OpenChunks,
    },
    /// The container is sealed.
    ContainerSealed {
        /// The container.
        container: ContainerId,
    },
    /// Replaces all earlier records of the container (5.5).
    ContainerCheckpoint {
        /// The frames so far.
        catalog: Catalog,
        /// The open frame, whole.
        open: OpenChunks,
    },
    /// From now on the chunks of containers are in another one, or nobody needed them (5.9). All are in one partition.
    ContainersMerged {
        /// The new container, sealed; `None`: no chunk was left.
        target: Option<ContainerId>,
        /// When this record was made, all merges in batches that start before this had their files replaced.
        finished: Position,
        /// Containers to which the new container answers from now on, ascending.
        forwarded: Vec<ContainerId>,
        /// Containers to which nothing answers from now on, ascending.
        removed: Vec<ContainerId>,
    },
}

impl ContainerRecord {
    /// Returns the container. For a merge it is the new one, or else the first that went.
    pub fn container(&self) -> ContainerId {
        match self {
            ContainerRecord::FrameCommitted { container, .. }
            | ContainerRecord::FrameData { container, .. }
            | ContainerRecord::ContainerSealed { container } => *container,
            ContainerRecord::ContainerCheckpoint { catalog, .. } => catalog.container,
            ContainerRecord::ContainersMerged { target, removed, .. } => {
                target.or(removed.first().copied()).unwrap_or(ContainerId::from_bits(0))
            }
        }
    }

    /// Encodes it as a record of the log.
    pub fn encode(&self, digest_bytes: usize) -> Record {
        let mut payload = Vec::new();
        let kind = match self {
            ContainerRecord::FrameCommitted { container, known, frame, slots, stored } => {
                return match stored {
                    None => frame_committed(*container, *known, frame, slots, digest_bytes),
                    Some(stored) => frame_stored(*container, *known, frame, slots, stored, digest_bytes),
                };
            }
            ContainerRecord::FrameData { container, chunks } => {
                return frame_data(*container, chunks.frame, chunks.first_slot, &chunks.slots, &chunks.raw, digest_bytes);
            }
            ContainerRecord::ContainerSealed { container } => {
                payload.extend_from_slice(&container.bits().to_le_bytes());
                CONTAINER_SEALED
            }
            ContainerRecord::ContainerCheckpoint { catalog, open } => {
                payload.extend_from_slice(&catalog.container.bits().to_le_bytes());
                let mut encoded = Vec::new();
                catalog.encode(digest_bytes, &mut encoded);
                put_bytes(&mut payload, &encoded);
                open.encode(digest_bytes, &mut payload);
                CONTAINER_CHECKPOINT
            }
            ContainerRecord::ContainersMerged { target, finished, forwarded, removed } => {
                payload.extend_from_slice(&target.map_or(0, ContainerId::bits).to_le_bytes());
                payload.extend_from_slice(&finished.0.to_le_bytes());
                for list in [forwarded, removed] {
                    put_varint(&mut payload, list.len() as u64);
                    list.iter().for_each(|container| payload.extend_from_slice(&container.bits().to_le_bytes()));
                }
                CONTAINERS_MERGED
            }
        };
        record(kind, self.container(), payload)
    }

    /// Reads a record of the log.
    pub fn decode(record: &Record, digest_bytes: usize) -> Result<ContainerRecord> {
        let refused = |why: String| StorageError::Record { kind: record.kind, why };
        if record.partition.class != PartitionClass::Container {
            return Err(refused("it is for another class of partitions".to_owned()));
        }
        let mut reader = Reader::new(&record.payload);
        let decoded = Self::decode_payload(record.kind, &mut reader, digest_bytes).map_err(|error| refused(error.to_string()))?;
        reader.end().map_err(|error| refused(error.to_string()))?;
        if decoded.container().partition() != record.partition.number {
            return Err(refused(format!("container {} is not in partition {}", decoded.container(), record.partition.number)));
        }
        Ok(decoded)
    }

    fn decode_payload(kind: u8, reader: &mut Reader<'_>, digest_bytes: usize) -> std::result::Result<ContainerRecord, WireError> {
        if kind == CONTAINERS_MERGED {
            return decode_merged(reader);
        }
        let container = decode_container(reader)?;
        Ok(match kind {
            FRAME_COMMITTED | FRAME_STORED => {
                let (known, frame, slots) = decode_full_frame(reader, digest_bytes)?;
                // A frame has at most as many stored bytes as raw ones, and the record has all of them.
                let stored = (kind == FRAME_STORED).then(|| reader.take(frame.stored_bytes as usize).map(<[u8]>::to_vec)).transpose()?;
                ContainerRecord::FrameCommitted { container, known, frame, slots, stored }
            }
            FRAME_DATA => ContainerRecord::FrameData { container, chunks: OpenChunks::decode(reader, digest_bytes)? },
            CONTAINER_SEALED => ContainerRecord::ContainerSealed { container },
            CONTAINER_CHECKPOINT => {
                let offset_bytes = reader.position();
                let mut inner = Reader::new(reader.bytes()?);
                let catalog = Catalog::decode(&mut inner, digest_bytes)?;
                inner.end()?;
                let open = OpenChunks::decode(reader, digest_bytes)?;
                let follows = open.frame as usize == catalog.frames.len() && open.first_slot as usize == catalog.slots.len();
                if catalog.container != container || !follows {
                    return Err(WireError::OutOfRange { what: "open frame", value: u64::from(open.frame), offset_bytes });
                }
                ContainerRecord::ContainerCheckpoint { catalog, open }
            }
            _ => return Err(WireError::OutOfRange { what: "record kind", value: u64::from(kind), offset_bytes: 0 }),
        })
    }

    /// Returns the chunks that the record is the first to place: a chunk index takes these from it. Chunks that an
    /// earlier record placed may have been removed since, or stored elsewhere.
    pub fn chunks(&self) -> Vec<(Fingerprint, Address, ChunkKind)> {
        let place = |container: ContainerId, first_slot: u32, slots: &[Slot]| {
            let address = |at: usize| Address::new(container, (first_slot as usize + at) as u16);
            slots.iter().enumerate().map(|(at, slot)| (slot.fingerprint, address(at), slot.kind)).collect::<Vec<_>>()
        };
        match self {
            ContainerRecord::FrameCommitted { container, known, frame, slots, .. } => {
                place(*container, frame.first_slot + known, &slots[*known as usize..])
            }
            ContainerRecord::FrameData { container, chunks } => place(*container, chunks.first_slot, &chunks.slots),
            // Merging changes no address, and a checkpoint repeats earlier records.
            ContainerRecord::ContainerSealed { .. }
            | ContainerRecord::ContainerCheckpoint { .. }
            | ContainerRecord::ContainersMerged { .. } => Vec::new(),
        }
    }
}

/// Appends the chunks that a record of a container is the first to place, with their addresses.
pub(crate) fn stored_chunks(record: &Record, digest_bytes: usize, out: &mut Vec<(Fingerprint, u64)>) -> Result<()> {
    match record.kind {
        NUMBERS_USED => return decode_numbers(record).map(drop),
        NUMBERS_RESERVED => return decode_reserved(record).map(drop),
        _ => {}
    }
    let chunks = ContainerRecord::decode(record, digest_bytes)?.chunks();
    out.extend(chunks.into_iter().map(|(fingerprint, address, _)| (fingerprint, address.bits())));
    Ok(())
}

/// Reads what FrameCommitted and FrameStored say of a frame: the number of its known chunks, the frame, its chunks.
fn decode_full_frame(reader: &mut Reader<'_>, digest_bytes: usize) -> std::result::Result<(u32, Frame, Vec<Slot>), WireError> {
    let offset_bytes = reader.position();
    let known = reader.varint_to("known slots", MAX_SLOTS as u64)? as u32;
    let (frame, slots) = decode_frame(reader, digest_bytes)?;
    if known as usize > slots.len() {
        return Err(WireError::OutOfRange { what: "known slots", value: u64::from(known), offset_bytes });
    }
    Ok((known, frame, slots))
}

/// Reads the payload of ContainersMerged.
fn decode_merged(reader: &mut Reader<'_>) -> std::result::Result<ContainerRecord, WireError> {
    let start = reader.position();
    let out_of_range = |what, value| WireError::OutOfRange { what, value, offset_bytes: start };
    let bits = reader.u64()?;
    let target = if bits == 0 { None } else { Some(decode_container(&mut Reader::new(&bits.to_le_bytes()))?) };
    let finished = Position(reader.u64()?);
    let mut list = || {
        let count = reader.count("merged containers", 8)?;
        let mut containers = Vec::with_capacity(count);
        for _ in 0..count {
            let container = decode_container(reader)?;
            if containers.last().is_some_and(|before| *before >= container) {
                return Err(out_of_range("merged container", container.bits()));
            }
            containers.push(container);
        }
        Ok(containers)
    };
    let (forwarded, removed) = (list()?, list()?);
    let mut all = target.iter().chain(&forwarded).chain(&removed);
    let first = all.next().ok_or(out_of_range("merged containers", 0))?;
    let is_elsewhere = all.any(|container| container.partition() != first.partition());
    let is_twice = forwarded.iter().any(|container| removed.binary_search(container).is_ok());
    let is_itself = target.is_some_and(|target| forwarded.contains(&target) || removed.contains(&target));
    if is_elsewhere || is_twice || is_itself || target.is_some() == forwarded.is_empty() {
        return Err(out_of_range("merge", bits));
    }
    Ok(ContainerRecord::ContainersMerged { target, finished, forwarded, removed })
}

/// Makes the record of a full frame, without a copy of its slots.
pub(crate) fn frame_committed(container: ContainerId, known: u32, frame: &Frame, slots: &[Slot], digest_bytes: usize) -> Record {
    record(FRAME_COMMITTED, container, encode_full_frame(container, known, frame, slots, &[], digest_bytes))
}

/// Makes the record of a full frame with its bytes.
pub(crate) fn frame_stored(
    container: ContainerId,
    known: u32,
    frame: &Frame,
    slots: &[Slot],
    stored: &[u8],
    digest_bytes: usize,
) -> Record {
    debug_assert_eq!(stored.len(), frame.stored_bytes as usize);
    record(FRAME_STORED, container, encode_full_frame(container, known, frame, slots, stored, digest_bytes))
}

fn encode_full_frame(container: ContainerId, known: u32, frame: &Frame, slots: &[Slot], stored: &[u8], digest_bytes: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(64 + slots.len() * (digest_bytes + 4) + stored.len());
    payload.extend_from_slice(&container.bits().to_le_bytes());
    put_varint(&mut payload, u64::from(known));
    encode_frame(frame, slots, digest_bytes, &mut payload);
    payload.extend_from_slice(stored);
    payload
}

/// Makes the record of new chunks of an open frame, without another copy of them.
pub(crate) fn frame_data(container: ContainerId, frame: u32, first_slot: u32, slots: &[Slot], raw: &[u8], digest_bytes: usize) -> Record {
    let mut payload = Vec::with_capacity(32 + slots.len() * (digest_bytes + 4) + raw.len());
    payload.extend_from_slice(&container.bits().to_le_bytes());
    encode_open(frame, first_slot, slots, raw, digest_bytes, &mut payload);
    record(FRAME_DATA, container, payload)
}

fn encode_open(frame: u32, first_slot: u32, slots: &[Slot], raw: &[u8], digest_bytes: usize, out: &mut Vec<u8>) {
    put_varint(out, u64::from(frame));
    put_varint(out, u64::from(first_slot));
    encode_slots(slots, digest_bytes, out);
    out.extend_from_slice(raw);
}

pub(crate) fn record(kind: u8, container: ContainerId, payload: Vec<u8>) -> Record {
    Record { kind, partition: Partition { class: PartitionClass::Container, number: container.partition() }, payload }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::catalog::tests::catalog;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn m0_12_records_are_read_as_written(catalog in catalog(), length in 0..500u32) {
            let container = catalog.container;
            let slot = Slot { fingerprint: Fingerprint::from_digest(&[5; 32]), kind: ChunkKind::Recipe, frame: catalog.frames.len() as u16, offset_bytes: 0, length_bytes: length };
            let open = OpenChunks { frame: catalog.frames.len() as u32, first_slot: catalog.slots.len() as u32, slots: vec![slot], raw: vec![3; length as usize] };
            let mut records = vec![
                ContainerRecord::FrameData { container, chunks: open.clone() },
                ContainerRecord::ContainerSealed { container },
            ];
            if let Some(frame) = catalog.frames.last() {
                let slots = catalog.slots_of(frame).to_vec();
                let known = length.min(slots.len() as u32);
                let stored = vec![7; frame.stored_bytes as usize];
                for stored in [None, Some(stored)] {
                    records.push(ContainerRecord::FrameCommitted { container, known, frame: frame.clone(), slots: slots.clone(), stored });
                    prop_assert_eq!(records.last().unwrap().chunks().len() as u32, frame.slots - known);
                }
            }
            let ids = |numbers: [u32; 2]| numbers.map(|number| ContainerId::new(container.partition(), number)).to_vec();
            records.push(ContainerRecord::ContainersMerged { target: Some(container), finished: Position(length.into()), forwarded: ids([3, 900]), removed: ids([1, 4]) });
            records.push(ContainerRecord::ContainersMerged { target: None, finished: Position(0), forwarded: vec![], removed: ids([1, 4]) });
            records.push(ContainerRecord::ContainerCheckpoint { catalog, open });
            prop_assert_eq!(records.last().unwrap().chunks().len(), 0);
            for record in records {
                prop_assert_eq!(ContainerRecord::decode(&record.encode(32), 32).unwrap(), record);
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(kind in 0..16u8, number: u16, payload: Vec<u8>) {
            let partition = Partition { class: PartitionClass::Container, number };
            let _ = ContainerRecord::decode(&Record { kind, partition, payload }, 32);
        }

        #[test]
        fn a_damaged_record_never_panics(catalog in catalog(), at: usize, value: u8) {
            let open = OpenChunks { frame: catalog.frames.len() as u32, first_slot: catalog.slots.len() as u32, slots: vec![], raw: vec![] };
            let mut record = ContainerRecord::ContainerCheckpoint { catalog, open }.encode(32);
            let at = at % record.payload.len();
            record.payload[at] = value;
            let _ = ContainerRecord::decode(&record, 32);
        }
    }

    #[test]
    fn m0_20_merges_that_cannot_be_are_refused() {
        let id = |number| ContainerId::new(1, number);
        let merge = |target, forwarded: &[ContainerId], removed: &[ContainerId]| {
            let (forwarded, removed) = (forwarded.to_vec(), removed.to_vec());
            let record = ContainerRecord::ContainersMerged { target, finished: Position(7), forwarded, removed };
            ContainerRecord::decode(&record.encode(32), 32).is_ok()
        };
        assert!(merge(Some(id(9)), &[id(1), id(2)], &[id(3)]) && merge(None, &[], &[id(3)]));
        assert!(!merge(None, &[], &[]), "nothing");
        assert!(!merge(None, &[id(1)], &[]) && !merge(Some(id(9)), &[], &[id(1)]), "a forward to nothing, a container for nothing");
        assert!(!merge(Some(id(9)), &[id(2), id(1)], &[]) && !merge(Some(id(9)), &[id(2), id(2)], &[]), "not ascending");
        assert!(!merge(Some(id(9)), &[id(1)], &[id(1)]) && !merge(Some(id(9)), &[id(9)], &[]), "one in two places");
        assert!(!merge(Some(id(9)), &[ContainerId::new(2, 1)], &[]), "another partition");
        assert!(!merge(Some(id(9)), &[id(0)], &[]), "number 0");
    }
}
