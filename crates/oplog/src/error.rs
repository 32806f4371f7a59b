//! Errors of the log.

use crate::Position;
use onefold_ground::GroundError;

/// An error of the operations log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file operation failed, other than a sync of an open log. If the disk is full ([`GroundError::is_full`]),
    /// nothing has changed and the caller may retry.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The log is damaged: bytes that were durable are missing or changed.
    #[error("the operations log is damaged: {path} at byte {offset_bytes}: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// Offset in the file.
        offset_bytes: u64,
        /// What is wrong there.
        why: String,
    },
    /// Another opening has taken the log over. Nothing was written, and never will be by this one.
    #[error("another process has opened the store for writing: {path} has batches of its own; nothing more is written here")]
    Fenced {
        /// The log.
        path: String,
    },
    /// Another node has taken everything over that this log had. Nobody writes to it any more.
    #[error("{path} was closed when another node took its partitions over; a node that comes back needs a new number")]
    Closed {
        /// The log.
        path: String,
    },
    /// Somebody trimmed the log while it was read. Open it again.
    #[error("{path} was replaced while it was read; try again")]
    Trimmed {
        /// What was read.
        path: String,
    },
    /// Several nodes share the store, and this opening is not one of them.
    #[error("several nodes share the store in {path}; only as one of them can a process open it")]
    Shared {
        /// The part of the bucket with the log.
        path: String,
    },
    /// A log exists where one was to be created.
    #[error("{path} already has an operations log")]
    Exists {
        /// The directory.
        path: String,
    },
    /// A later owner has written to the log.
    #[error("the log was opened with owner epoch {given}, but epoch {found} has written to it")]
    StaleEpoch {
        /// The epoch of this opening.
        given: u64,
        /// The greatest epoch in the log.
        found: u64,
    },
    /// A sync failed, also for want of space, so the state on disk is unknown. Reopen the store.
    #[error("{0}; the store must be reopened")]
    NotSynced(GroundError),
    /// An earlier sync failed, so the state on disk is unknown. Reopen the store.
    #[error("an earlier sync of the operations log failed; the store must be reopened")]
    Poisoned,
    /// The log was opened read-only.
    #[error("the operations log was opened for reading only")]
    ReadOnly,
    /// The log is at its hard limit. Nothing was written. Trimming makes room.
    #[error("the operations log is full: it has {used_bytes} bytes, its limit is {limit_bytes} bytes")]
    Full {
        /// Bytes from start to end.
        used_bytes: u64,
        /// The hard limit.
        limit_bytes: u64,
    },
    /// The batch is larger than the limit. Nothing was written.
    #[error("a batch has {length_bytes} bytes; the limit is {limit_bytes} bytes")]
    TooLarge {
        /// Payload of the batch.
        length_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The position is before the start of the log: its records were trimmed, or the log's first segments are lost.
    #[error("the log starts at {}, after position {}", .start.0, .from.0)]
    BeforeStart {
        /// The requested position.
        from: Position,
        /// The start of the log.
        start: Position,
    },
    /// The position is after the end of the log: its holder applied batches that are lost.
    #[error("the log ends at {}, before position {}: its tail is lost", .end.0, .from.0)]
    PastEnd {
        /// The requested position.
        from: Position,
        /// The end of the log.
        end: Position,
    },
    /// No batch starts at this position.
    #[error("no batch of the log starts at position {}", .from.0)]
    NotABoundary {
        /// The requested position.
        from: Position,
    },
}

impl LogError {
    /// Returns whether the device or the log is full. Nothing has changed, and the caller may retry.
    pub fn is_full(&self) -> bool {
        match self {
            LogError::Ground(error) => error.is_full(),
            LogError::Full { .. } => true,
            _ => false,
        }
    }
}

/// Result of log operations.
pub type Result<T> = std::result::Result<T, LogError>;
