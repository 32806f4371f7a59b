//! The errors of the catalog.

use crate::BackupId;
use onefold_engine::EngineError;
use onefold_ground::wire::WireError;

/// An error of the catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The engine refused or found damage.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A structure does not follow its format.
    #[error("{what} is damaged: {source}")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// What is wrong with it.
        source: WireError,
    },
    /// What of an entry is stored outside of its directory is lost.
    #[error("the attributes or the target of {name:?} are lost: {why}")]
    Rest {
        /// The name of the entry, converted to text.
        name: String,
        /// What is damaged.
        why: String,
        /// Whether what is damaged would refer to other chunks.
        refers: bool,
    },
    /// A recipe does not spell as many bytes as its file has.
    #[error("its recipe does not describe {length_bytes} bytes")]
    DoesNotSpell {
        /// The length of the file.
        length_bytes: u64,
    },
    /// The store is behind a connection, and something there cannot be read.
    #[error("the server cannot read it: {why}")]
    Remote {
        /// What the server says.
        why: String,
    },
    /// The store is behind a connection, which is lost.
    #[error("{why}")]
    Unreachable {
        /// What happened to the connection.
        why: String,
    },
    /// A structure claims a length beyond its limit.
    #[error("{what} has {length_bytes} bytes; the limit is {limit_bytes} bytes")]
    TooLong {
        /// The structure.
        what: &'static str,
        /// Its length.
        length_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Entries of a directory were pushed out of order, or a name was pushed twice.
    #[error("entry {name:?} does not sort after the previous entry")]
    Disordered {
        /// The name, converted to text.
        name: String,
    },
    /// No backup matches.
    #[error("no backup {asked:?}; {}", known(.candidates))]
    UnknownBackup {
        /// The name or id asked for.
        asked: String,
        /// The newest existing backups, as `id (group)`.
        candidates: Vec<String>,
    },
    /// More than one backup has this prefix.
    #[error("several backups begin with {asked:?}: {}", .candidates.join(", "))]
    AmbiguousBackup {
        /// The prefix asked for.
        asked: String,
        /// The matching backups, as `id (group)`.
        candidates: Vec<String>,
    },
    /// The backup is protected.
    #[error("backup {} of {name:?} is protected and cannot be forgotten yet", .id.short())]
    Protected {
        /// Its id.
        id: BackupId,
        /// Its backup group.
        name: String,
        /// The end of its protection, nanoseconds since 1970.
        until_ns: i64,
    },
    /// The backup has no such path.
    #[error("this backup has no {path:?}")]
    PathNotFound {
        /// The path, converted to text.
        path: String,
    },
    /// A path leads through something that is not a directory.
    #[error("{path:?} is not a directory in this backup")]
    NotADirectory {
        /// The path, converted to text.
        path: String,
    },
}

/// A result of the catalog.
pub type Result<T> = std::result::Result<T, CatalogError>;

fn known(candidates: &[String]) -> String {
    if candidates.is_empty() { "the store has none".to_owned() } else { format!("the newest are {}", candidates.join(", ")) }
}
