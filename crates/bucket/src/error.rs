//! Errors of object storage, as errors of the ground.

use onefold_ground::GroundError;
use std::io;

/// Makes the error for an operation on an object or file.
pub(crate) fn failed(operation: &'static str, path: &str, source: impl Into<io::Error>) -> GroundError {
    GroundError::Io { operation, path: path.to_owned(), source: source.into() }
}

/// Makes the error for an operation, with its reason in words.
pub(crate) fn failed_because(operation: &'static str, path: &str, kind: io::ErrorKind, why: impl Into<String>) -> GroundError {
    failed(operation, path, io::Error::new(kind, why.into()))
}
