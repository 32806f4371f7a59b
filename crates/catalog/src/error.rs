//! What can go wrong in the catalog.

use crate::BackupId;
use onefold_engine::EngineError;
use onefold_ground::wire::WireError;

/// An error of the catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The store below refused or found damage.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A structure that was read does not follow its format.
    #[error("{what} is damaged: {source}")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// What is wrong with it.
        source: WireError,
    },
    /// A structure says that it is longer than it can be.
    #[error("{what} has {length_bytes} bytes, more than the {limit_bytes} that it can have")]
    TooLong {
        /// The structure.
        what: &'static str,
        /// Its length.
        length_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Entries of a directory were pushed out of order, or one name twice.
    #[error("entry {name:?} does not come after the one before it")]
    Disordered {
        /// The name, as far as it is text.
        name: String,
    },
    /// No backup answers to this name.
    #[error("no backup {asked:?}; {}", known(.candidates))]
    UnknownBackup {
        /// What was asked for.
        asked: String,
        /// The newest backups there are, as `id (group)`.
        candidates: Vec<String>,
    },
    /// More than one backup answers to this prefix.
    #[error("{asked:?} is the beginning of several backups: {}", .candidates.join(", "))]
    AmbiguousBackup {
        /// What was asked for.
        asked: String,
        /// Those that it could be, as `id (group)`.
        candidates: Vec<String>,
    },
    /// A backup must not be removed yet.
    #[error("backup {} of {name:?} is protected and cannot be forgotten yet", .id.short())]
    Protected {
        /// Its id.
        id: BackupId,
        /// Its backup group.
        name: String,
        /// The moment from which on it can be, nanoseconds since 1970.
        until_ns: i64,
    },
    /// There is no such path in the backup.
    #[error("no {path:?} in this backup")]
    PathNotFound {
        /// The path, as far as it is text.
        path: String,
    },
    /// A path goes through something that is not a directory.
    #[error("{path:?} is not a directory in this backup")]
    NotADirectory {
        /// The path, as far as it is text.
        path: String,
    },
}

/// A result of the catalog.
pub type Result<T> = std::result::Result<T, CatalogError>;

fn known(candidates: &[String]) -> String {
    if candidates.is_empty() { "the store has none".to_owned() } else { format!("the newest are {}", candidates.join(", ")) }
}
