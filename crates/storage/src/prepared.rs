//! What a chunk store makes durable in one batch of the log.

use crate::{Address, ChunkKind, FileFigures, containers, levels};
use onefold_fingerprint::Fingerprint;
use onefold_oplog::Record;

/// What to make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All chunks. Those of open frames go into the log with their bytes. For a flush.
    Everything,
    /// Full frames only. For the background, to bound the unsynced data. In a store with whole files: full containers
    /// only, so that nothing is sent twice.
    FullFrames,
}

/// Records for one log batch, and the chunks that they make durable. It is either
/// [committed](crate::ChunkStore::committed) or [abandoned](crate::ChunkStore::abandoned). Dropping it abandons it.
#[derive(Debug, Default)]
#[must_use]
pub struct Prepared {
    /// For the log: all in one batch, in this order.
    pub records: Vec<Record>,
    /// The chunks that the log did not have before.
    pub chunks: Vec<(Fingerprint, Address, ChunkKind)>,
    /// What is to be kept with each of these in the index ([`Effects::notes`](onefold_oplog::Effects::notes)). Empty:
    /// nothing.
    pub notes: Vec<u32>,
    /// Bytes of the full frames that the log did not have before, before compression.
    pub raw_bytes: u64,
    /// Bytes of these frames after compression.
    pub stored_bytes: u64,
    /// The files of the containers that it seals.
    pub sealed: FileFigures,
    /// Chunks in the files of the sealed containers that no batch ever named: an earlier owner put the file and got no
    /// further. Nobody knows what they refer to, so nobody may ever use them. They are dead from the beginning.
    pub surplus: Vec<(Fingerprint, Address, ChunkKind)>,
    /// In a store with whole files: up to which numbers the batch calls containers used.
    pub(crate) numbers: Vec<containers::Used>,
    /// What the log will have of containers.
    pub(crate) changes: Vec<containers::Change>,
    /// What the log will have of an arena: blocks, and the serial numbers of their chunks.
    pub(crate) blocks: Vec<(u64, u64)>,
    /// What the log will have of levels.
    pub(crate) levels: Vec<levels::Change>,
}

impl Prepared {
    /// Returns whether there is nothing to log.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}
