//! Positions, partitions and records, and how a batch encodes records.

use onefold_ground::wire::{Reader, WireError, put_bytes};

/// A position in the log. It counts the batch bytes before it since the store was created, plus the positions that the
/// log [jumped](crate::Log::jump_to) over. Positions are always batch boundaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Behind everything.
    pub const MAX: Position = Position(u64::MAX);
}

/// The kinds of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PartitionClass {
    /// Chunk index, by fingerprint prefix.
    ChunkIndex = 1,
    /// Object index: volumes and backup groups.
    ObjectIndex = 2,
    /// Containers.
    Container = 3,
}

/// The partition that a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// Its class.
    pub class: PartitionClass,
    /// Its number, or [`Partition::ANY`].
    pub number: u16,
}

impl Partition {
    /// The number in a record for all partitions of the class. Each partition takes its own share (chunk index: by
    /// fingerprint).
    pub const ANY: u16 = u16::MAX;
}

/// One record. The log keeps `kind` and `payload` as they are. The parts that write and read them define their meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The type, from the table in `docs/format.md`.
    pub kind: u8,
    /// Its partition.
    pub partition: Partition,
    /// Its content.
    pub payload: Vec<u8>,
}

impl Record {
    /// Smallest record: kind, class, partition, length.
    pub(crate) const MIN_BYTES: usize = 5;

    /// Upper bound of the bytes that [`Record::encode`] appends.
    pub(crate) fn length_bound_bytes(&self) -> u64 {
        self.payload.len() as u64 + 14
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind);
        out.push(self.partition.class as u8);
        out.extend_from_slice(&self.partition.number.to_le_bytes());
        put_bytes(out, &self.payload);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> std::result::Result<Record, WireError> {
        let kind = reader.u8()?;
        let offset_bytes = reader.position();
        let class = match reader.u8()? {
            1 => PartitionClass::ChunkIndex,
            2 => PartitionClass::ObjectIndex,
            3 => PartitionClass::Container,
            value => return Err(WireError::OutOfRange { what: "partition class", value: u64::from(value), offset_bytes }),
        };
        let number = reader.u16()?;
        Ok(Record { kind, partition: Partition { class, number }, payload: reader.bytes()?.to_vec() })
    }
}
