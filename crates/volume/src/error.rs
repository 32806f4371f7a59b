//! The errors of volumes.

use onefold_blocks::SpaceError;
use onefold_engine::EngineError;

/// An error of a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A volume cannot have this name.
    #[error("{name:?} cannot be the name of a volume: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The name is taken.
    #[error("a volume {name:?} already exists")]
    Exists {
        /// The name.
        name: String,
    },
    /// No volume has the name.
    #[error("there is no volume {name:?}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The volume is read-only.
    #[error("volume {name:?} is read-only")]
    ReadOnly {
        /// The name.
        name: String,
    },
    /// A volume can only be rolled back to a snapshot, which never changes.
    #[error("volume {name:?} is not a snapshot")]
    NoSnapshot {
        /// The name.
        name: String,
    },
    /// A volume can only be rolled back to its own snapshots, or to snapshots of its origin.
    #[error("{snapshot:?} is not a snapshot of volume {name:?}")]
    Unrelated {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Two volumes cannot be compared.
    #[error(
        "volume {first:?} has blocks of {first_bytes} bytes, volume {second:?} of {second_bytes} bytes: volumes with different block \
            sizes cannot be compared"
    )]
    OtherBlocks {
        /// One volume.
        first: String,
        /// Its block size.
        first_bytes: u32,
        /// The other.
        second: String,
        /// Its block size.
        second_bytes: u32,
    },
    /// The volume was deleted while it was open.
    #[error("volume {name:?} is deleted")]
    Deleted {
        /// The name.
        name: String,
    },
    /// A volume cannot have this block size.
    #[error("the block size is {block_bytes} bytes; it must be a power of two from 64 KiB to 1 MiB")]
    BlockSize {
        /// The block size.
        block_bytes: u32,
    },
    /// A volume cannot have this size.
    #[error("the size is {size_bytes} bytes; it must be from 1 byte to 1 EiB")]
    Size {
        /// The size.
        size_bytes: u64,
    },
    /// A request reaches beyond the volume.
    #[error("a request for {length_bytes} bytes at offset {offset_bytes} exceeds volume {name:?}, which has {size_bytes} bytes")]
    OutOfRange {
        /// The volume.
        name: String,
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request.
        length_bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// The change is visible to all, but could not be made durable.
    #[error("volume {name:?} {what}, but this is not durable yet: {error}")]
    NotDurable {
        /// The volume.
        name: String,
        /// What was done to it.
        what: &'static str,
        /// Why it is not durable.
        #[source]
        error: Box<EngineError>,
    },
    /// No number is left for a new volume.
    #[error("the store has used all its volume numbers")]
    NoNumberLeft,
    /// An object of a volume does not follow the format.
    #[error("{object} is damaged: {reason}")]
    Damaged {
        /// Which object.
        object: String,
        /// What is wrong.
        reason: String,
    },
}

impl From<SpaceError> for VolumeError {
    fn from(error: SpaceError) -> VolumeError {
        match error {
            SpaceError::Engine(error) => VolumeError::Engine(error),
            SpaceError::Name { name, reason } => VolumeError::Name { name, reason },
            SpaceError::Exists { name } => VolumeError::Exists { name },
            SpaceError::NotFound { name } => VolumeError::NotFound { name },
            SpaceError::ReadOnly { name } => VolumeError::ReadOnly { name },
            SpaceError::NoSnapshot { name } => VolumeError::NoSnapshot { name },
            SpaceError::Unrelated { name, snapshot } => VolumeError::Unrelated { name, snapshot },
            SpaceError::OtherBlocks { first, first_bytes, second, second_bytes } => {
                VolumeError::OtherBlocks { first, first_bytes, second, second_bytes }
            }
            SpaceError::Deleted { name } => VolumeError::Deleted { name },
            SpaceError::BlockSize { block_bytes } => VolumeError::BlockSize { block_bytes },
            SpaceError::End { end_bytes } => VolumeError::Size { size_bytes: end_bytes },
            SpaceError::OutOfRange { name, offset_bytes, length_bytes, end_bytes } => {
                VolumeError::OutOfRange { name, offset_bytes, length_bytes, size_bytes: end_bytes }
            }
            SpaceError::NotDurable { name, what, error } => VolumeError::NotDurable { name, what, error },
            SpaceError::NoNumberLeft => VolumeError::NoNumberLeft,
            SpaceError::Damaged { object, reason } => VolumeError::Damaged { object, reason },
        }
    }
}

impl VolumeError {
    /// Returns whether the range was lost in a repair: it can be overwritten, but not read.
    pub fn is_lost(&self) -> bool {
        matches!(self, VolumeError::Engine(error) if error.is_lost())
    }

    /// Returns whether the disk is full. Nothing is lost, and the operation succeeds once there is space.
    pub fn is_full(&self) -> bool {
        match self {
            VolumeError::Engine(error) => error.is_full(),
            VolumeError::NotDurable { error, .. } => error.is_full(),
            _ => false,
        }
    }

    /// Returns whether bytes of the store are damaged or lost, so that a retry fails too.
    pub fn is_damage(&self) -> bool {
        match self {
            VolumeError::Engine(error) => error.is_damage(),
            VolumeError::Damaged { .. } => true,
            _ => false,
        }
    }
}

/// A result of a volume.
pub type Result<T> = std::result::Result<T, VolumeError>;
