//! File errors, each with the path and the operation.

use std::io;
use std::path::Path;

/// An error of the ground.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// The operating system refused an operation.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// The operation, as a verb: `read`, `write`, `sync`.
        operation: &'static str,
        /// The file, named as users know it.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file is longer than this kind of file can be.
    #[error("{path} has {length_bytes} bytes; such a file has at most {limit_bytes} bytes")]
    TooLong {
        /// The file.
        path: String,
        /// Its length.
        length_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

impl GroundError {
    /// Returns the kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            GroundError::Io { source, .. } => source.kind(),
            GroundError::TooLong { .. } => io::ErrorKind::InvalidData,
        }
    }

    /// Returns whether the device is full or the quota is used up. Nothing is damaged, and the caller may retry.
    pub fn is_full(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Returns whether the error says something about stored data. Either the file or its end is missing, or the device
    /// or file system cannot read it. Any other error (too many open files, no memory, no space) may be gone on the
    /// next try.
    pub fn is_lasting(&self) -> bool {
        /// `EIO`, `ENODATA` (a bad sector), `EBADMSG` and `EUCLEAN` (checksums and structures of file systems),
        /// `EILSEQ` (protection information).
        const OF_THE_DEVICE: [i32; 5] = [5, 61, 74, 117, 84];
        let code = match self {
            GroundError::Io { source, .. } => source.raw_os_error(),
            GroundError::TooLong { .. } => None,
        };
        matches!(self.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
            || code.is_some_and(|code| OF_THE_DEVICE.contains(&code))
    }

    /// Returns whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

/// Makes the error for an operation that the system refused on a path.
pub(crate) fn refused(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> GroundError {
    GroundError::Io { operation, path: path.display().to_string(), source: source.into() }
}

/// Result of ground operations.
pub type Result<T> = std::result::Result<T, GroundError>;
