//! Errors that end a copy, and errors of one part of it.

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use onefold_volume::VolumeError;

/// An error of a copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A part of the source cannot be read.
    #[error("{0}")]
    Source(String),
    /// The destination refused, or the source as a whole did.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A record cannot be written or read, or a directory cannot be written.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A volume cannot be written or read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The monitor asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// A result of a copy.
pub type Result<T> = std::result::Result<T, CopyError>;

/// Wraps an error of the source.
pub(crate) fn source(error: impl std::fmt::Display) -> CopyError {
    CopyError::Source(error.to_string())
}
