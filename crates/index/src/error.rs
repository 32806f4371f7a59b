//! Index errors, with the values in them.

use onefold_ground::GroundError;
use onefold_ground::wire::WireError;

/// An error of an index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A file operation failed.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// The database of an object-index partition failed. After a full disk or a failed device, the partition reopens it
    /// by itself. Applied changes stay in memory and in the log, so the caller may retry.
    #[error("object index {path}: {source}")]
    Database {
        /// The partition's file.
        path: String,
        /// The database's error.
        source: redb::Error,
    },
    /// An object-index partition violates its format.
    #[error("object index {path} is damaged: {what}")]
    ObjectIndexDamaged {
        /// The partition's file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The keys are lost: salvage could not read them, so nobody knows whether they have objects.
    #[error("object index {path}: the objects of {} are lost; objects written there again are readable", lost_keys(.from, .to))]
    Lost {
        /// The partition's file.
        path: String,
        /// The first key of the lost range.
        from: Vec<u8>,
        /// Its end.
        to: Vec<u8>,
    },
    /// Another owner has written to the partition since, so this one has lost it.
    #[error("{path} belongs to owner epoch {stored_epoch}; this process has epoch {epoch}")]
    Fenced {
        /// The partition's file.
        path: String,
        /// The epoch in the file.
        stored_epoch: u64,
        /// The epoch of this process.
        epoch: u64,
    },
    /// The index was opened read-only.
    #[error("{path} is open for reading only")]
    ReadOnly {
        /// The partition's file.
        path: String,
    },
    /// A file of a chunk-index partition violates its format. The index can be rebuilt from containers and recipes.
    #[error("chunk index {path}{} is damaged: {what}", .page.map_or(String::new(), |page| format!(" page {page}")))]
    ChunkIndexDamaged {
        /// The file.
        path: String,
        /// The page, if a page is damaged.
        page: Option<u32>,
        /// What is wrong.
        what: String,
    },
    /// A file of a linked index violates its format. The index can be rebuilt from the blocks and the recipes.
    #[error("linked index {path}{} is damaged: {what}", .page.map_or(String::new(), |page| format!(" page {page}")))]
    LinkedIndexDamaged {
        /// The file.
        path: String,
        /// The page, if a page is damaged.
        page: Option<u64>,
        /// What is wrong.
        what: String,
    },
    /// An index does not match the store's descriptor, or cannot be created with these values.
    #[error("{path}: {what} is {found}, not {expected}")]
    Mismatch {
        /// The file.
        path: String,
        /// What differs.
        what: &'static str,
        /// The actual value.
        found: u64,
        /// The expected value.
        expected: u64,
    },
    /// The fingerprints of a chunk-index partition share their first bits far beyond chance: doubling does not separate
    /// them.
    #[error("chunk index {path}: {entries} fingerprints are not spread evenly over {pages} pages, so they are not digests")]
    Skewed {
        /// The partition.
        path: String,
        /// Number of entries.
        entries: u64,
        /// Current number of pages.
        pages: u64,
    },
    /// No such partition exists.
    #[error("object-index partition {partition} does not exist: there are {partitions}")]
    NoPartition {
        /// The requested number.
        partition: u16,
        /// How many there are.
        partitions: u32,
    },
    /// The partition exists, but this opening does not have it. Another node may own it.
    #[error("this process has not opened partition {partition} of {path}")]
    NotOpened {
        /// The index.
        path: String,
        /// The partition.
        partition: u32,
    },
    /// The partition cannot be added to those that this opening has.
    #[error("partition {partition} cannot be added to {path}: it is there, somebody still uses it, or it is not one of {partitions}")]
    NotToBeAdded {
        /// The index.
        path: String,
        /// The partition.
        partition: u32,
        /// How many the store has.
        partitions: u32,
    },
    /// A record of the log violates its format.
    #[error("log record for the object index: {0}")]
    Record(#[from] WireError),
}

impl IndexError {
    /// Returns whether the device is full. Nothing is damaged, and the caller may retry.
    pub fn is_full(&self) -> bool {
        match self {
            IndexError::Ground(error) => error.is_full(),
            IndexError::Database { source: redb::Error::Io(source), .. } => {
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// Returns whether the error says something about stored data. Any other error may be gone on the next try.
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

    /// Returns whether a page of an index of chunks is damaged. Its other pages can still be used.
    pub fn is_damaged_page(&self) -> bool {
        matches!(self, IndexError::ChunkIndexDamaged { .. } | IndexError::LinkedIndexDamaged { .. })
    }

    /// Returns whether bytes of the index are damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            IndexError::ObjectIndexDamaged { .. }
            | IndexError::ChunkIndexDamaged { .. }
            | IndexError::LinkedIndexDamaged { .. }
            | IndexError::Lost { .. }
            | IndexError::Record(_) => true,
            IndexError::Database { source, .. } => matches!(source, redb::Error::Corrupted(_)),
            _ => false,
        }
    }
}

/// Formats a range of keys for people: the letter of their kind, the rest in hex.
fn lost_keys(from: &[u8], to: &[u8]) -> String {
    let text = |key: &[u8]| match key.split_first() {
        Some((kind, rest)) => rest.iter().fold(format!("{}:", char::from(*kind)), |text, byte| format!("{text}{byte:02x}")),
        None => "the first".to_owned(),
    };
    format!("keys {} to {}", text(from), text(to))
}

/// Result of index operations.
pub type Result<T> = std::result::Result<T, IndexError>;
