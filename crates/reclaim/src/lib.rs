//! Users of all parts that look after a store: `check` and repair, `scrub`, rebuilding the chunk index, the removal of unused chunks and the
//! merging of containers.
//!
//! This crate must never be needed by a write or a read.

mod affected;
mod check;
mod clock;
mod counts;
mod keeping;
mod order;
mod prune;
mod reading;
mod rebuild;
mod references;
mod repair;
mod rest;
mod salvage;
mod scrub;
mod suspects;
mod unused;
mod volumes;

pub use check::{CheckOptions, CheckReport, Monitor, NoMonitor, Problem, ProblemKind, check};
pub use clock::{Clock, SystemClock};
pub use prune::{PruneOptions, PruneReport, prune};
pub use rebuild::rebuild_chunk_index;
pub use repair::{RepairOptions, RepairReport, repair};
pub use rest::Rests;
pub use salvage::{Losses, salvage};
pub use scrub::{ScrubOptions, ScrubRate, ScrubReport, ScrubStatus, scrub, scrub_by, scrub_status};
pub use unused::{RemovalReport, remove_unused};

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;
use onefold_index::IndexError;
use onefold_storage::StorageError;

/// Why a check could not run to its end. Damage is not an error but a finding.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
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

/// A result of a check.
pub type Result<T> = std::result::Result<T, CheckError>;
