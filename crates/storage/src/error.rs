//! What can go wrong with containers and arenas.

use crate::{Address, ContainerId};
use onefold_ground::GroundError;
use std::sync::Arc;

/// An error of the container storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The bytes on disk are not what was written. Wrong bytes are never returned: nothing of the frame is.
    #[error("{path}: container {container}{} is damaged: {why}", place(*frame, *slot))]
    Damaged {
        /// The file, in a form for people.
        path: String,
        /// The container.
        container: ContainerId,
        /// The frame, if the error is about one.
        frame: Option<u32>,
        /// The slot, if the error is about one.
        slot: Option<u16>,
        /// What does not fit.
        why: String,
    },
    /// A container is sound as far as known, but does not have the chunk that is looked for in it.
    #[error("{path}: container {container} does not have the chunk with the address {address}: {why}")]
    NotThere {
        /// The file, in a form for people.
        path: String,
        /// The container that answers for the address.
        container: ContainerId,
        /// The address.
        address: Address,
        /// What does not fit.
        why: String,
    },
    /// The bytes of a block are not what was written. Wrong bytes are never returned.
    #[error("{path}: block {block} is damaged: {why}")]
    BlockDamaged {
        /// The file, in a form for people.
        path: String,
        /// The block.
        block: u64,
        /// What does not fit.
        why: String,
    },
    /// A sorted table, or the manifest that lists them, is damaged: all of it, or a part that says where chunks are.
    #[error("{path} is damaged: {why}")]
    SortedTable {
        /// The file, in a form for people.
        path: String,
        /// What does not fit.
        why: String,
    },
    /// The log ends before what was written here knows it to end: its end is lost. Nothing was changed.
    #[error("{path} knows the log up to {known}, but it ends at {log_end}: the end of the log is lost")]
    LogTooShort {
        /// What knows more, in a form for people.
        path: String,
        /// A position up to which the log went.
        known: u64,
        /// Where it ends.
        log_end: u64,
    },
    /// The bytes of a chunk are not what was written. Wrong bytes are never returned.
    #[error("chunk {fingerprint} at {address} is damaged: {why}")]
    ChunkDamaged {
        /// Its address.
        address: Address,
        /// Its name.
        fingerprint: onefold_fingerprint::Fingerprint,
        /// What does not fit.
        why: String,
    },
    /// The table of blocks cannot be asked.
    #[error("{why}")]
    Table {
        /// What happened, as a sentence.
        why: String,
        /// Whether the table is damaged.
        is_damage: bool,
        /// Whether the device has no space.
        is_full: bool,
    },
    /// An arena has no free block and may not grow. Nothing is lost; retry when chunks were removed.
    #[error("{path} has no free block left: all {blocks} blocks are used, and its limit is {limit_blocks}")]
    ArenaFull {
        /// The file, in a form for people.
        path: String,
        /// The blocks that it has.
        blocks: u64,
        /// The blocks that it may have.
        limit_blocks: u64,
    },
    /// A block device cannot be used for the blocks of an arena. Nothing of the arena was changed.
    #[error("{path} cannot be used for the blocks of a store: {why}")]
    Device {
        /// The device, or the name that leads to it, in a form for people.
        path: String,
        /// What does not fit.
        why: String,
        /// Whether its headers are damaged. Otherwise it is another device, or somebody else uses it.
        is_damage: bool,
    },
    /// The header of an arena is damaged, or does not fit the store. Nothing was changed.
    #[error("{path}: the header of the arena cannot be used: {why}")]
    ArenaHeader {
        /// The file, in a form for people.
        path: String,
        /// What does not fit.
        why: String,
        /// Whether its bytes are damaged. Otherwise it is another one.
        is_damage: bool,
    },
    /// The file of an arena, which has all data of the store, is not there. Nothing was changed.
    #[error("{path}, which has the data of the store, is missing")]
    ArenaMissing {
        /// The file, in a form for people.
        path: String,
    },
    /// A block is to be retired or freed that is in no state for it. Nothing was changed.
    #[error("{path}: block {block} cannot be freed: {why}")]
    BlockState {
        /// The file, in a form for people.
        path: String,
        /// The block.
        block: u64,
        /// What does not fit.
        why: &'static str,
    },
    /// Containers cannot be written now, most often for lack of space. Appended data stays in memory, and the next
    /// [`prepare`](crate::ContainerStore::prepare) writes it again. Until that succeeds, no more data is taken.
    #[error("containers cannot be written: {source}")]
    CannotWrite {
        /// The error of the ground.
        source: Arc<GroundError>,
    },
    /// A sync failed, so it is unknown what of the unlogged data is on disk. This opening of the store writes no more.
    /// Committed data is safe; opening the store again goes on from there.
    #[error("the store writes no more containers after an error: {why}. Acknowledged data is safe; open the store again")]
    Poisoned {
        /// The failure.
        why: Arc<str>,
    },
    /// It cannot be told now whether a merged container is whole, so the files it was made of can neither go nor stay.
    #[error("{path}: cannot read container {container}, into which others were merged before a crash: {source}; nothing was changed")]
    MergedUnreadable {
        /// The file, in a form for people.
        path: String,
        /// The merged container.
        container: ContainerId,
        /// Whether all files that it was made of are still there.
        may_be_moved: bool,
        /// The error of the ground.
        source: GroundError,
    },
    /// A file operation failed.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// A chunk is longer than a container takes.
    #[error("a chunk has {length_bytes} bytes; the limit is {limit_bytes} bytes")]
    ChunkTooLong {
        /// Its length.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A chunk has no bytes, and the store keeps no such chunks.
    #[error("a chunk without bytes cannot be stored in an arena")]
    ChunkEmpty,
    /// An option is out of its range.
    #[error("{option} is {value}; it must be {allowed}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A log record is not a valid one of a container.
    #[error("log record of kind {kind}: {why}")]
    Record {
        /// The kind.
        kind: u8,
        /// What does not fit.
        why: String,
    },
    /// The log does not describe the whole content of an unsealed container.
    #[error("the log is damaged: container {container}: {why}")]
    Log {
        /// The container.
        container: ContainerId,
        /// What is missing or contradictory.
        why: String,
    },
    /// Containers cannot be merged as requested. Nothing was changed.
    #[error("containers cannot be merged: {why}")]
    Merge {
        /// What does not fit.
        why: String,
    },
    /// The store is open for reading only.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// A later owner has opened the partition for writing: this one has lost it.
    #[error("{path} belongs to owner epoch {stored_epoch}; this process has epoch {epoch}")]
    Fenced {
        /// The partition's directory.
        path: String,
        /// The epoch that is stored.
        stored_epoch: u64,
        /// The epoch of this process.
        epoch: u64,
    },
    /// A directory on another disk that has tables of a partition cannot be used.
    #[error("partition {partition} keeps tables in {directory}: {why}")]
    Home {
        /// The partition.
        partition: u16,
        /// The directory.
        directory: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The partition is not one of those that this opening owns.
    #[error("this process has not opened container partition {partition}")]
    NotOpened {
        /// The partition.
        partition: u16,
    },
    /// This opening has no partition for new containers: all of them went to other owners.
    #[error("this process has no container partition any more: all of them went to other owners")]
    NoPartition,
    /// The log has to name more numbers of containers before new ones are given out. Nothing is lost; commit and retry.
    #[error("container partition {partition} has used all numbers up to the next commit")]
    CommitFirst {
        /// The partition.
        partition: u16,
    },
    /// All 2^32 - 1 numbers of a partition are taken.
    #[error("container partition {partition} has used all its container numbers")]
    NumbersUsedUp {
        /// The partition.
        partition: u16,
    },
}

impl StorageError {
    /// Returns whether the device has no space. Then nothing is lost; retry when there is space.
    pub fn is_full(&self) -> bool {
        match self {
            StorageError::CannotWrite { source } => source.is_full(),
            StorageError::Ground(source) => source.is_full(),
            StorageError::Table { is_full, .. } => *is_full,
            StorageError::ArenaFull { .. } => true,
            _ => false,
        }
    }

    /// Returns whether stored bytes are damaged.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            StorageError::Damaged { .. }
                | StorageError::NotThere { .. }
                | StorageError::BlockDamaged { .. }
                | StorageError::SortedTable { .. }
                | StorageError::ChunkDamaged { .. }
                | StorageError::ArenaHeader { is_damage: true, .. }
                | StorageError::Device { is_damage: true, .. }
                | StorageError::Table { is_damage: true, .. }
        )
    }

    pub(crate) fn cannot_write(source: GroundError) -> StorageError {
        StorageError::CannotWrite { source: Arc::new(source) }
    }
}

fn place(frame: Option<u32>, slot: Option<u16>) -> String {
    let mut text = String::new();
    if let Some(frame) = frame {
        text.push_str(&format!(", frame {frame}"));
    }
    if let Some(slot) = slot {
        text.push_str(&format!(", slot {slot}"));
    }
    text
}

/// A result of the container storage.
pub type Result<T> = std::result::Result<T, StorageError>;
