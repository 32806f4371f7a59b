//! What a node has of the chunk index now, and how it reaches the rest.

use crate::OtherNodes;
use crate::cluster::Share;
use onefold_fingerprint::Fingerprint;
use onefold_index::ChunkIndex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// How long a stream waits for a partition that comes or goes.
pub(crate) const MOVES_WITHIN: Duration = Duration::from_secs(15);
/// How often it looks meanwhile.
pub(crate) const LOOKED_AT_EVERY: Duration = Duration::from_millis(5);

/// This node among others.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its number.
    pub(crate) node: u32,
    /// The others.
    pub(crate) others: Arc<dyn OtherNodes>,
    /// By partition of the chunk index: a [`Right`].
    rights: Box<[AtomicU8]>,
    /// How often a partition came, went, or got an owner that asked for the claims of this node.
    moves: AtomicU64,
    /// Requests of this opening that have a number.
    requests: AtomicU64,
}

/// What a node may do with a partition of the chunk index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Right {
    /// Another node has it.
    None,
    /// What is logged of it is this node's. It gives no claims yet.
    Log,
    /// Everything.
    All,
}

impl Cluster {
    pub(crate) fn new(share: &Share) -> Cluster {
        let right = |number| share.chunk_index.place(number).map_or(Right::None, |_| Right::All);
        let rights = (0..share.chunk_index.total()).map(|number| AtomicU8::new(right(number) as u8)).collect();
        Cluster { node: share.node, others: share.others.clone(), rights, moves: AtomicU64::new(0), requests: AtomicU64::new(0) }
    }

    fn partition_of(&self, name: &Fingerprint) -> u32 {
        ChunkIndex::partition_of(name, self.rights.len() as u32)
    }

    fn right(&self, partition: u32) -> u8 {
        self.rights[partition as usize].load(Ordering::SeqCst)
    }

    /// Returns whether this node has a partition.
    pub(crate) fn has(&self, partition: u32) -> bool {
        self.right(partition) != Right::None as u8
    }

    /// Returns the partition that has a chunk, if it comes to this node, which gives no claims of it yet.
    pub(crate) fn coming_partition(&self, name: &Fingerprint) -> Option<u32> {
        let partition = self.partition_of(name);
        (self.right(partition) == Right::Log as u8).then_some(partition)
    }

    /// Returns the partition that has a chunk, if another node has it.
    pub(crate) fn foreign_partition(&self, name: &Fingerprint) -> Option<u32> {
        let partition = self.partition_of(name);
        (!self.has(partition)).then_some(partition)
    }

    /// Changes what this node may do with a partition. The caller keeps others from committing.
    pub(crate) fn set(&self, partition: u32, right: Right) {
        self.rights[partition as usize].store(right as u8, Ordering::SeqCst);
        self.moved();
    }

    /// Notes that an answer to a claim may be of a node that no longer has the partition.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of a request of the opening with that epoch. Those of later ones are greater.
    pub(crate) fn number_of_request(&self, epoch: u64) -> u64 {
        epoch << 32 | self.requests.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns how often something moved.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }
}
