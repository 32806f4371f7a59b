//! Errors of a filesystem, with the number that programs see.

use onefold_blocks::SpaceError;
use onefold_engine::EngineError;

/// An error of a filesystem.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The space or the store failed.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// An entry does not follow its format, or one is missing.
    #[error("{what} is damaged: {reason}")]
    Damaged {
        /// What.
        what: String,
        /// Why.
        reason: String,
    },
    /// There is no such file.
    #[error("there is no such file")]
    NotFound,
    /// A file of this name exists.
    #[error("a file of this name exists")]
    Exists,
    /// It is no directory.
    #[error("it is no directory")]
    NotADirectory,
    /// It is a directory.
    #[error("it is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory has entries")]
    NotEmpty,
    /// A name, path or value is longer than it can be.
    #[error("a name, a target or a value is too long")]
    TooLong,
    /// A file would be longer than one can be.
    #[error("the file would be too long")]
    TooLarge,
    /// A file has as many names as it can have.
    #[error("the file has as many names as it can have")]
    TooManyLinks,
    /// There is no such extended attribute.
    #[error("there is no such extended attribute")]
    NoAttribute,
    /// The quota is used up, or the file has no room for more attributes.
    #[error("there is no space left in the filesystem")]
    NoSpace,
    /// It makes no sense.
    #[error("it makes no sense")]
    Invalid,
    /// A directory cannot be moved below itself.
    #[error("a directory cannot be moved below itself")]
    Cycle,
    /// Nobody can do this.
    #[error("it is not permitted")]
    NotPermitted,
    /// Somebody has the filesystem open.
    #[error("filesystem {name:?} is in use")]
    InUse {
        /// Its name.
        name: String,
    },
    /// The filesystem was closed.
    #[error("the filesystem was closed")]
    Closed,
    /// The system gives no thread.
    #[error("cannot start a thread: {reason}")]
    Threads {
        /// Why not.
        reason: String,
    },
    /// There is nothing of this kind.
    #[error("it is not supported")]
    NotSupported,
    /// The filesystem is a snapshot.
    #[error("the filesystem cannot be changed")]
    ReadOnly,
}

/// The result of a request.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

impl From<EngineError> for FsError {
    fn from(error: EngineError) -> FsError {
        FsError::Space(error.into())
    }
}

impl FsError {
    /// Returns whether a part of the filesystem is lost that a repair could not recover. The rest may be sound.
    pub fn is_lost(&self) -> bool {
        matches!(self, FsError::Space(error) if error.is_lost())
    }

    /// Returns the number for programs (errno(3)).
    pub fn errno(&self) -> rustix::io::Errno {
        use rustix::io::Errno;
        match self {
            FsError::Space(error) if error.is_full() => Errno::NOSPC,
            FsError::Space(SpaceError::Deleted { .. }) => Errno::STALE,
            FsError::Space(_) | FsError::Damaged { .. } => Errno::IO,
            FsError::Closed => Errno::NOTCONN,
            FsError::InUse { .. } => Errno::BUSY,
            FsError::Threads { .. } => Errno::AGAIN,
            FsError::NotFound => Errno::NOENT,
            FsError::Exists => Errno::EXIST,
            FsError::NotADirectory => Errno::NOTDIR,
            FsError::IsADirectory => Errno::ISDIR,
            FsError::NotEmpty => Errno::NOTEMPTY,
            FsError::TooLong => Errno::NAMETOOLONG,
            FsError::TooLarge => Errno::FBIG,
            FsError::TooManyLinks => Errno::MLINK,
            FsError::NoAttribute => Errno::NODATA,
            FsError::NoSpace => Errno::NOSPC,
            FsError::Invalid | FsError::Cycle => Errno::INVAL,
            FsError::NotPermitted => Errno::PERM,
            FsError::NotSupported => Errno::OPNOTSUPP,
            FsError::ReadOnly => Errno::ROFS,
        }
    }
}
