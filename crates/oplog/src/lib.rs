//! The operations log (M0.17): the write-ahead log of an owner.
//!
//! This crate must never know what a record means.

/// A place in the log: the number of batch bytes before it since the store was created. Positions are only taken at batch boundaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// The kinds of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartitionClass {
    /// Chunk index, by fingerprint prefix.
    ChunkIndex = 1,
    /// Block index: volumes and backup groups.
    BlockIndex = 2,
    /// Containers.
    Container = 3,
}

/// The partition that a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Its kind.
    pub class: PartitionClass,
    /// Its number, or [`Partition::ANY`].
    pub number: u16,
}

impl Partition {
    /// The number of a record for all partitions of the class; each takes what is its own (chunk index: by fingerprint).
    pub const ANY: u16 = u16::MAX;
}

/// One record. The log keeps `kind` and `payload` as they are; the parts that write and read them give them a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The type, from the table in `docs/format.md`.
    pub kind: u8,
    /// Whose it is.
    pub partition: Partition,
    /// What it says.
    pub payload: Vec<u8>,
}
