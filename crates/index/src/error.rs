//! What can go wrong with an index, with the values in it.

use onefold_ground::GroundError;
use onefold_ground::wire::WireError;

/// An error of an index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A file operation failed.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The database of an object-index partition failed. After a full disk or a failed device the partition opens it anew by itself; what was
    /// applied stays in memory and in the log, so the operation may be tried again.
    #[error("object index {path}: {source}")]
    Database {
        /// The partition's file.
        path: String,
        /// What the database said.
        source: redb::Error,
    },
    /// An object-index partition does not hold what the format says.
    #[error("object index {path} is damaged: {what}")]
    ObjectIndexDamaged {
        /// The partition's file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// What the object index said of a key is lost with damage that was repaired: there may have been an object or not.
    #[error("object index {path}: what it said of {} is lost; what is written there anew can be read again", lost_keys(.from, .to))]
    Lost {
        /// The partition's file.
        path: String,
        /// The first key of the lost range.
        from: Vec<u8>,
        /// Its end.
        to: Vec<u8>,
    },
    /// Another owner wrote to the partition since: this one has lost it.
    #[error("{path} belongs to owner epoch {stored_epoch}, this process has {epoch}")]
    Fenced {
        /// The partition's file.
        path: String,
        /// The epoch in the file.
        stored_epoch: u64,
        /// The epoch of this process.
        epoch: u64,
    },
    /// The index was opened for reading.
    #[error("{path} is open for reading only")]
    ReadOnly {
        /// The partition's file.
        path: String,
    },
    /// A file of a chunk-index partition does not hold what the format says. The index can be rebuilt from containers and recipes.
    #[error("chunk index {path}{} is damaged: {what}", .page.map_or(String::new(), |page| format!(" page {page}")))]
    ChunkIndexDamaged {
        /// The file.
        path: String,
        /// The page, if it is one.
        page: Option<u32>,
        /// What is wrong.
        what: String,
    },
    /// An index is not the one that the store's descriptor speaks of, or cannot be made like this.
    #[error("{path}: {what} is {found}, not {expected}")]
    Mismatch {
        /// The file.
        path: String,
        /// What differs.
        what: &'static str,
        /// What is there.
        found: u64,
        /// What should be.
        expected: u64,
    },
    /// The fingerprints of a chunk-index partition share their first bits far beyond chance: doubling does not part them.
    #[error("chunk index {path}: {entries} fingerprints are not spread evenly over {pages} pages; they are no digests")]
    Skewed {
        /// The partition.
        path: String,
        /// Entries.
        entries: u64,
        /// Pages now.
        pages: u64,
    },
    /// There is no such partition.
    #[error("object-index partition {partition} of {partitions}")]
    NoPartition {
        /// The number asked for.
        partition: u16,
        /// How many there are.
        partitions: u32,
    },
    /// The partition is there, but this opening does not have it: somebody else may own it.
    #[error("partition {partition} of {path} is not opened here")]
    NotOpened {
        /// The index.
        path: String,
        /// The partition.
        partition: u32,
    },
    /// A record of the log does not hold what the format says.
    #[error("log record for the object index: {0}")]
    Record(#[from] WireError),
}

impl IndexError {
    /// Whether there is no room on the device: nothing is damaged, the operation may be tried again.
    pub fn is_full(&self) -> bool {
        match self {
            IndexError::Ground(error) => error.is_full(),
            IndexError::Database { source: redb::Error::Io(source), .. } => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// Whether it says something of what is stored. Otherwise it may be over the next time.
    pub fn is_lasting(&self) -> bool {
        match self {
            IndexError::Ground(error) => error.is_lasting(),
            IndexError::Database { source: redb::Error::Io(source), .. } => {
                let of_ground = source.get_ref().and_then(|inner| inner.downcast_ref::<GroundError>());
                of_ground.is_none_or(GroundError::is_lasting)
            }
            IndexError::Database { .. } => true,
            error => error.is_damage(),
        }
    }

    /// Whether bytes of the index are damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            IndexError::ObjectIndexDamaged { .. }
            | IndexError::ChunkIndexDamaged { .. }
            | IndexError::Lost { .. }
            | IndexError::Record(_) => true,
            IndexError::Database { source, .. } => matches!(source, redb::Error::Corrupted(_)),
            _ => false,
        }
    }
}

/// A range of keys for people: the letter of their kind, the rest in hex.
fn lost_keys(from: &[u8], to: &[u8]) -> String {
    let text = |key: &[u8]| match key.split_first() {
        Some((kind, rest)) => rest.iter().fold(format!("{}:", char::from(*kind)), |text, byte| format!("{text}{byte:02x}")),
        None => "the first".to_owned(),
    };
    format!("keys {} to {}", text(from), text(to))
}

/// A result of an index.
pub type Result<T> = std::result::Result<T, IndexError>;
