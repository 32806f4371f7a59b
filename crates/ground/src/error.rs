//! What can go wrong with a file, with the path and the operation in it.

use std::io;
use std::path::Path;

/// An error of the ground.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// The operating system refused an operation.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// What was tried, as a verb: `read`, `write`, `sync`.
        operation: &'static str,
        /// The file as a person knows it.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file is longer than such a file can be.
    #[error("{path} has {length_bytes} bytes, more than the {limit_bytes} that such a file can have")]
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
    /// The kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            GroundError::Io { source, .. } => source.kind(),
            GroundError::TooLong { .. } => io::ErrorKind::InvalidData,
        }
    }

    /// Whether there is no room on the device (or the quota is used up): nothing is damaged, the operation may be tried again.
    pub fn is_full(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether it says something of what is stored: the file or its end is missing, or the device or file system cannot give it. Anything else (too many
    /// open files, no memory, no room) may be over the next time.
    pub fn is_lasting(&self) -> bool {
        /// `EIO`, `ENODATA` (a bad sector), `EBADMSG` and `EUCLEAN` (checksums and structures of file systems), `EILSEQ` (protection information).
        const OF_THE_DEVICE: [i32; 5] = [5, 61, 74, 117, 84];
        let code = match self {
            GroundError::Io { source, .. } => source.raw_os_error(),
            GroundError::TooLong { .. } => None,
        };
        matches!(self.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
            || code.is_some_and(|code| OF_THE_DEVICE.contains(&code))
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

/// The system refused an operation on a path.
pub(crate) fn refused(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> GroundError {
    GroundError::Io { operation, path: path.display().to_string(), source: source.into() }
}

/// A result of the ground.
pub type Result<T> = std::result::Result<T, GroundError>;
