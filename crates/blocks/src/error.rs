//! The errors of spaces. They do not say whose blocks a space has: its owner makes errors of its own of them.

use onefold_engine::EngineError;

/// An error of a space.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A space cannot have this name.
    #[error("{name:?} cannot be a name: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The name is taken.
    #[error("{name:?} already exists")]
    Exists {
        /// The name.
        name: String,
    },
    /// No space has the name.
    #[error("there is no {name:?}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The space is read-only.
    #[error("{name:?} is read-only")]
    ReadOnly {
        /// The name.
        name: String,
    },
    /// A space can only be rolled back to a snapshot, which never changes.
    #[error("{name:?} is not a snapshot")]
    NoSnapshot {
        /// The name.
        name: String,
    },
    /// A space can only be rolled back to its own snapshots, or to snapshots of its origin.
    #[error("{snapshot:?} is not a snapshot of {name:?}")]
    Unrelated {
        /// The space.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Spaces with blocks of different sizes cannot be compared.
    #[error("{first:?} has blocks of {first_bytes} bytes, {second:?} of {second_bytes} bytes")]
    OtherBlocks {
        /// One space.
        first: String,
        /// Its block size.
        first_bytes: u32,
        /// The other.
        second: String,
        /// Its block size.
        second_bytes: u32,
    },
    /// The space was deleted while it was open.
    #[error("{name:?} is deleted")]
    Deleted {
        /// The name.
        name: String,
    },
    /// A space cannot have this block size.
    #[error("the block size is {block_bytes} bytes; it must be a power of two from 64 KiB to 1 MiB")]
    BlockSize {
        /// The block size.
        block_bytes: u32,
    },
    /// A space cannot end there.
    #[error("the size is {end_bytes} bytes; it must be from 1 byte to 1 EiB")]
    End {
        /// The end. 0 if there is none.
        end_bytes: u64,
    },
    /// A request reaches beyond the end of the space or of a content.
    #[error("a request for {length_bytes} bytes at offset {offset_bytes} exceeds {name:?}, which ends at byte {end_bytes}")]
    OutOfRange {
        /// The space.
        name: String,
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request.
        length_bytes: u64,
        /// The end.
        end_bytes: u64,
    },
    /// The change is visible to all, but could not be made durable.
    #[error("{name:?} {what}, but this is not durable yet: {error}")]
    NotDurable {
        /// The space.
        name: String,
        /// What was done to it.
        what: &'static str,
        /// Why it is not durable.
        #[source]
        error: Box<EngineError>,
    },
    /// No number is left for a new space.
    #[error("the store has used all its numbers of volumes")]
    NoNumberLeft,
    /// An object of a space does not follow the format.
    #[error("{object} is damaged: {reason}")]
    Damaged {
        /// Which object.
        object: String,
        /// What is wrong.
        reason: String,
    },
}

impl SpaceError {
    /// Returns whether the range was lost in a repair: it can be overwritten, but not read.
    pub fn is_lost(&self) -> bool {
        matches!(self, SpaceError::Engine(error) if error.is_lost())
    }

    /// Returns whether the disk is full. Nothing is lost, and the operation succeeds once there is space.
    pub fn is_full(&self) -> bool {
        match self {
            SpaceError::Engine(error) => error.is_full(),
            SpaceError::NotDurable { error, .. } => error.is_full(),
            _ => false,
        }
    }

    /// Returns whether bytes of the store are damaged or lost, so that a retry fails too.
    pub fn is_damage(&self) -> bool {
        match self {
            SpaceError::Engine(error) => error.is_damage(),
            SpaceError::Damaged { .. } => true,
            _ => false,
        }
    }
}

/// A result of a space.
pub type Result<T> = std::result::Result<T, SpaceError>;
