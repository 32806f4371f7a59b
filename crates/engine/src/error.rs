//! The errors of the engine.

use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::WireError;
use onefold_ground::{GroundError, LockError};
use onefold_index::IndexError;
use onefold_oplog::LogError;
use onefold_storage::{Address, StorageError};

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Another node did not answer, or refused. Nothing is lost; retry.
    #[error("another node cannot be asked: {why}")]
    OtherNode {
        /// What happened.
        why: String,
    },
    /// Another node has the partition of the chunk index.
    #[error("this node does not have partition {partition} of the chunk index; another one has it")]
    NotOwned {
        /// The partition.
        partition: u32,
    },
    /// A file operation failed.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// Another process holds the store.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The operations log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The chunk index or the object index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The containers.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// There is no store at this place.
    #[error("{place} is not a onefold store: it has no file `descriptor`")]
    NoStore {
        /// The directory.
        place: String,
    },
    /// There is no store below this prefix of a bucket.
    #[error("there is no onefold store at {place}: it has no object `store`")]
    NoStoreInBucket {
        /// The prefix.
        place: String,
    },
    /// The prefix for a new store is not free.
    #[error("there are objects at {place}: a store needs a prefix that nothing has yet")]
    PrefixNotFree {
        /// The prefix.
        place: String,
    },
    /// The place for a new store is not empty.
    #[error("{place} is not empty: a store needs an empty or new directory")]
    NotEmpty {
        /// The directory.
        place: String,
    },
    /// The store was written by a newer onefold.
    #[error("the store has format {found}; this onefold reads format {known}")]
    Newer {
        /// Format of the store.
        found: u64,
        /// The format known here.
        known: u64,
    },
    /// The store was written by an earlier onefold. This version would misread it.
    #[error("the store has format {found}; this onefold reads format {known}")]
    Older {
        /// Format of the store.
        found: u64,
        /// The format known here.
        known: u64,
    },
    /// The store keeps no data. Only the experiment that made it opens it.
    #[error("{place} keeps no data: an experiment made it, and nothing can be read from it")]
    KeepsNoData {
        /// The directory.
        place: String,
    },
    /// The descriptor is invalid.
    #[error("the store's descriptor {path} is damaged: {why}")]
    Descriptor {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A choice is not possible.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting.
        what: String,
        /// What is wrong with it, and what is allowed.
        why: String,
    },
    /// Parts of the store contradict each other.
    #[error("the store is damaged: {why}")]
    Inconsistent {
        /// What contradicts what.
        why: String,
    },
    /// The local state of a store in a bucket is of no use: it has to be made again.
    #[error("the local state of the store is out of date: {why}")]
    Outdated {
        /// What does not fit.
        why: String,
    },
    /// A structure kept in chunks or objects cannot be read.
    #[error("damaged {what}: {source}")]
    Wire {
        /// Which structure.
        what: String,
        /// What is wrong with its bytes.
        source: WireError,
    },
    /// The bytes of a chunk do not match its fingerprint.
    #[error("chunk {fingerprint} at {address} is damaged: its bytes do not match its fingerprint")]
    WrongChunk {
        /// Its name.
        fingerprint: String,
        /// Where it was read.
        address: Address,
    },
    /// Somebody supplied a chunk under a name that it does not have. None of the chunks was stored.
    #[error("chunk {index} of those supplied is {found}, not {expected}")]
    Misnamed {
        /// Its place among them.
        index: usize,
        /// The name that it was supplied under.
        expected: Fingerprint,
        /// Its name.
        found: Fingerprint,
    },
    /// A read reaches past the end of the recipe.
    #[error("a read wants bytes {start} to {end} of a run of {length} bytes")]
    PastEnd {
        /// First byte of the read.
        start: u64,
        /// End of the read.
        end: u64,
        /// Length of the run.
        length: u64,
    },
    /// The store was copied while it was open, or moved after a crash.
    #[error("{place} was copied while a process had the store open, or moved after a crash: its parts may be from different times")]
    Copied {
        /// The directory.
        place: String,
    },
    /// The engine holds some objects as of a moment, so it cannot look up others.
    #[error("the store is open as of a moment with a fixed set of objects, and a read asked for another object")]
    Held,
    /// The store was opened for reading.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// The store is in append-only mode: nothing can be deleted.
    #[error("the store is in append-only mode: nobody can {what}")]
    AppendOnly {
        /// The operation that was refused.
        what: &'static str,
    },
    /// This is not the secret with which append-only mode was switched on.
    #[error("the secret is wrong; append-only mode stays on")]
    WrongSecret,
    /// After an earlier error, memory and disk disagree. Nothing acknowledged is lost, but the store must be opened
    /// again.
    #[error("the store stopped after an error and must be opened again: {why}")]
    Stopped {
        /// The earlier error.
        why: String,
    },
    /// The space that is left is reserved for freeing space.
    #[error("the disk of {place} is full: only the reserve for freeing space is left, and no new data is stored")]
    Full {
        /// The store.
        place: String,
    },
    /// The consumers of the log do not make progress, so nothing more may be written.
    #[error("the operations log is full and cannot be emptied: {why}")]
    Behind {
        /// What holds them up.
        why: String,
    },
}

impl EngineError {
    /// Returns whether the local state of a store in a bucket is damaged or of no use, and nothing else.
    pub(crate) fn is_of_state(&self) -> bool {
        match self {
            EngineError::Outdated { .. } => true,
            EngineError::Index(_) | EngineError::Descriptor { .. } => self.is_damage(),
            _ => false,
        }
    }

    /// Returns whether another process has taken the store over.
    pub fn is_fenced(&self) -> bool {
        matches!(self, EngineError::Log(LogError::Fenced { .. }))
    }

    /// Returns whether the device is full. Nothing is lost, and the operation succeeds once there is space.
    pub fn is_full(&self) -> bool {
        match self {
            EngineError::Ground(error) => error.is_full(),
            EngineError::Log(error) => error.is_full(),
            EngineError::Index(error) => error.is_full(),
            EngineError::Storage(error) => error.is_full(),
            EngineError::Full { .. } | EngineError::Behind { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the request was for something that a repair could not restore.
    pub fn is_lost(&self) -> bool {
        matches!(self, EngineError::Index(IndexError::Lost { .. }))
    }

    /// Returns whether bytes of the store are damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            // In a store that has its descriptor, every file that is opened must exist.
            EngineError::Ground(error) | EngineError::Index(IndexError::Ground(error)) | EngineError::Log(LogError::Ground(error)) => {
                error.is_lasting()
            }
            EngineError::Storage(StorageError::Log { .. } | StorageError::Record { .. } | StorageError::Fenced { .. }) => true,
            EngineError::Storage(error) => error.is_damage(),
            // The number of openings went back: under the store's lock nobody else can have raised the others.
            EngineError::Index(IndexError::Fenced { .. }) | EngineError::Log(LogError::StaleEpoch { .. }) => true,
            EngineError::Index(error) => error.is_damage(),
            EngineError::Log(LogError::Damaged { .. } | LogError::PastEnd { .. } | LogError::BeforeStart { .. }) => true,
            EngineError::Wire { .. }
            | EngineError::WrongChunk { .. }
            | EngineError::Inconsistent { .. }
            | EngineError::Descriptor { .. } => true,
            _ => false,
        }
    }
}

/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;
