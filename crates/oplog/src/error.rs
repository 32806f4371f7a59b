//! What can go wrong with the log.

use crate::Position;
use onefold_ground::GroundError;

/// An error of the operations log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file operation failed. When the disk is full ([`GroundError::is_full`]) nothing has changed and the same may be tried again.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The log is not what was written: bytes that were durable are missing or changed.
    #[error("the operations log is damaged: {path} at byte {offset_bytes}: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// Where in the file.
        offset_bytes: u64,
        /// What is wrong there.
        why: String,
    },
    /// There is a log already where one was to be created.
    #[error("there is an operations log in {path} already")]
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
    /// A sync failed before, so what is on disk is not known. Reopen the store.
    #[error("an earlier sync of the operations log failed; the store must be reopened")]
    Poisoned,
    /// The log was opened for reading.
    #[error("the operations log was opened for reading only")]
    ReadOnly,
    /// The log has reached its hard limit: nothing was written. Trimming makes room.
    #[error("the operations log is full: {used_bytes} bytes, its limit is {limit_bytes}")]
    Full {
        /// Bytes from start to end.
        used_bytes: u64,
        /// The hard limit.
        limit_bytes: u64,
    },
    /// A batch is larger than any batch may be: nothing was written.
    #[error("a batch of {length_bytes} bytes is more than the {limit_bytes} that one may have")]
    TooLarge {
        /// Payload of the batch.
        length_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A position before the start of the log: its records were trimmed, or the log's first segments are lost.
    #[error("the log starts at {}, after position {}", .start.0, .from.0)]
    BeforeStart {
        /// The position asked for.
        from: Position,
        /// The start.
        start: Position,
    },
    /// A position after the end of the log: whoever has it applied batches that are lost.
    #[error("the log ends at {}, before position {}: its tail is lost", .end.0, .from.0)]
    PastEnd {
        /// The position asked for.
        from: Position,
        /// The end.
        end: Position,
    },
    /// A position at which no batch starts.
    #[error("no batch of the log starts at position {}", .from.0)]
    NotABoundary {
        /// The position asked for.
        from: Position,
    },
}

impl LogError {
    /// Whether there is no room, on the device or in the log: nothing has changed and the same may be tried again.
    pub fn is_full(&self) -> bool {
        match self {
            LogError::Ground(error) => error.is_full(),
            LogError::Full { .. } => true,
            _ => false,
        }
    }
}

/// A result of the operations log.
pub type Result<T> = std::result::Result<T, LogError>;
