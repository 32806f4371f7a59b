//! What ends a backup or a restore. What concerns one path is a [`Problem`](crate::Problem) and does not end it.

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use std::io;

/// An error of the client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The catalog or the store refused or found damage.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store refused or found damage.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The operating system refused something that everything else needs.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A pattern that nothing can be told from.
    #[error("pattern {pattern:?}: {reason}")]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No path was given, or none of them exists.
    #[error("nothing to back up: {reason}")]
    NothingToBackUp {
        /// Why.
        reason: String,
    },
    /// What was asked for is not a regular file.
    #[error("{path:?} is a {kind}, not a file")]
    NotAFile {
        /// The path.
        path: String,
        /// What it is.
        kind: &'static str,
    },
    /// A part of a file cannot be read, and nothing is to take its place.
    #[error("{path}: {reason}")]
    Lost {
        /// The file, as far as its name is text.
        path: String,
        /// Which bytes, and why.
        reason: String,
    },
    /// What was asked for would do harm.
    #[error("refused: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// The monitor asked to stop.
    #[error("stopped on request")]
    Cancelled,
}

/// A result of the client.
pub type Result<T> = std::result::Result<T, ClientError>;

impl ClientError {
    pub(crate) fn io(operation: &'static str, path: impl AsRef<[u8]>, source: impl Into<io::Error>) -> ClientError {
        ClientError::Io { operation, path: String::from_utf8_lossy(path.as_ref()).into_owned(), source: source.into() }
    }
}
