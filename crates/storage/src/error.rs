//! What can go wrong with containers.

use crate::{Address, ContainerId};
use onefold_ground::GroundError;
use std::sync::Arc;

/// An error of the container storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// What is on disk is not what was written. Never wrong bytes: nothing of the frame is given out.
    #[error("{path}: container {container}{} is damaged: {why}", place(*frame, *slot))]
    Damaged {
        /// The file as a person knows it.
        path: String,
        /// The container.
        container: ContainerId,
        /// The frame, where one is concerned.
        frame: Option<u32>,
        /// The slot, where one is concerned.
        slot: Option<u16>,
        /// What does not fit.
        why: String,
    },
    /// A container is sound as far as is known, and does not have the chunk that somebody looks for in it.
    #[error("{path}: container {container} does not have the chunk with the address {address}: {why}")]
    NotThere {
        /// The file as a person knows it.
        path: String,
        /// The container that answers for the address.
        container: ContainerId,
        /// The address.
        address: Address,
        /// What does not fit.
        why: String,
    },
    /// Containers cannot be written now (no room, most often). What was appended stays in memory and is written again by the next
    /// [`prepare`](crate::ContainerStore::prepare); until that succeeds, nothing more is taken.
    #[error("containers cannot be written: {source}")]
    CannotWrite {
        /// What the ground said.
        source: Arc<GroundError>,
    },
    /// A sync failed, so that nobody knows what of the unlogged data is on disk: this opening of the store writes no more. What was
    /// committed is safe; opening the store again goes on from there.
    #[error("the store writes no more containers after an error: {why}. Acknowledged data is safe; open the store again")]
    Poisoned {
        /// The failure.
        why: Arc<str>,
    },
    /// Whether a merged container is whole cannot be told now, so what it was made of can neither go nor stay.
    #[error("{path}: cannot read container {container}, into which others were merged before a crash: {source}; nothing was changed")]
    MergedUnreadable {
        /// The file as a person knows it.
        path: String,
        /// The merged container.
        container: ContainerId,
        /// All files that it was made of are there still.
        may_be_moved: bool,
        /// What the ground said.
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
    /// An option is out of its range.
    #[error("{option} is {value}; it must be {allowed}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was given.
        value: String,
        /// What can be.
        allowed: &'static str,
    },
    /// A log record is not one of a container.
    #[error("log record of kind {kind}: {why}")]
    Record {
        /// The kind.
        kind: u8,
        /// What does not fit.
        why: String,
    },
    /// The log does not spell the whole content of a container that is not sealed.
    #[error("the log is damaged: container {container}: {why}")]
    Log {
        /// The container.
        container: ContainerId,
        /// What is missing or contradicts.
        why: String,
    },
    /// Containers cannot be merged as was asked; nothing was changed.
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
    /// The partition is not one of those that this opening has.
    #[error("this process has not opened container partition {partition}")]
    NotOpened {
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
    /// Whether there is no room on the device: nothing is lost, it may be tried again when there is.
    pub fn is_full(&self) -> bool {
        match self {
            StorageError::CannotWrite { source } => source.is_full(),
            StorageError::Ground(source) => source.is_full(),
            _ => false,
        }
    }

    /// Whether stored bytes are damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, StorageError::Damaged { .. } | StorageError::NotThere { .. })
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
