//! Maintains a store, using all its parts: `check`, `scrub`, `repair`, and `reclaim`, which frees space.
//!
//! No write or read may ever need this crate.

mod check;
mod clock;
mod monitor;
mod reading;
mod reclaim;
mod references;
mod repair;
mod scrub;

pub use check::{CheckOptions, CheckReport, Problem, ProblemKind, check};
pub use clock::{Clock, SystemClock};
pub use monitor::{Monitor, NoMonitor};
pub use reclaim::{
    DedupOptions, DedupReport, PruneOptions, PruneReport, PruneRequests, RemovalReport, Rests, dedup, prune, prune_here, remove_unused,
};
pub use references::{StoreRoots, references_of};
pub use repair::{Losses, ObjectMeaning, RepairOptions, RepairReport, rebuild_chunk_index, repair, salvage};
pub use scrub::{ScrubOptions, ScrubRate, ScrubReport, ScrubStatus, scrub, scrub_by, scrub_status};

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use onefold_index::IndexError;
use onefold_storage::StorageError;

/// The reason why maintenance work could not finish. Damage is a finding, not an error.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The indexes.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The containers.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// A result of maintenance work.
pub type Result<T> = std::result::Result<T, UpkeepError>;
