//! What can be wrong with a backup of a filesystem.

use onefold_blocks::SpaceError;
use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use onefold_fs::FsError;

/// An error that ends a backup of a filesystem.
#[derive(Debug, thiserror::Error)]
pub enum FsBackupError {
    /// The filesystem or its space failed.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// The catalog refused, or found damage.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// No file can have the name of the filesystem.
    #[error("no directory can be called {name:?}, so the filesystem of this name cannot be backed up")]
    Name {
        /// The name.
        name: String,
    },
    /// The filesystem was deleted meanwhile.
    #[error("the filesystem {name:?} was deleted meanwhile")]
    Deleted {
        /// Its name.
        name: String,
    },
    /// The monitor asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// A result of this crate.
pub type Result<T, E = FsBackupError> = std::result::Result<T, E>;

impl From<SpaceError> for FsBackupError {
    fn from(error: SpaceError) -> FsBackupError {
        FsBackupError::Filesystem(error.into())
    }
}

impl From<EngineError> for FsBackupError {
    fn from(error: EngineError) -> FsBackupError {
        FsBackupError::Catalog(error.into())
    }
}
