//! Errors that end a backup or a restore. A [`Problem`](crate::Problem) concerns one path and does not end it.

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use onefold_ground::wire::WireError;
use onefold_remote::transport::ChannelError;
use std::io;

/// An error of the client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The catalog or the store refused, or found damage.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store refused, or found damage.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server refused, or the connection to it is lost.
    #[error(transparent)]
    Connection(#[from] ChannelError),
    /// The server's answer makes no sense.
    #[error("the server breaks the protocol: {0}")]
    Protocol(String),
    /// The cached tree of the earlier backup is not the server's. It was removed.
    #[error("the cached tree of the earlier backup is not the server's; it was removed, so the next run does without it")]
    Stale,
    /// The operating system refused something essential.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// Its object.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// An invalid pattern.
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
    /// The requested path is not a regular file.
    #[error("{path:?} is a {kind}, not a file")]
    NotAFile {
        /// The path.
        path: String,
        /// Its kind.
        kind: &'static str,
    },
    /// A part of a file cannot be read, and nothing may replace it.
    #[error("{path}: {reason}")]
    Lost {
        /// The file, as far as its name is text.
        path: String,
        /// Which bytes, and why.
        reason: String,
    },
    /// The request would do harm.
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

impl From<WireError> for ClientError {
    fn from(error: WireError) -> ClientError {
        ClientError::Protocol(error.to_string())
    }
}

impl ClientError {
    pub(crate) fn io(operation: &'static str, path: impl AsRef<[u8]>, source: impl Into<io::Error>) -> ClientError {
        ClientError::Io { operation, path: String::from_utf8_lossy(path.as_ref()).into_owned(), source: source.into() }
    }
}
