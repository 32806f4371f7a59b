//! Frees space: removes unused chunks, joins copies of chunks that are stored twice, and merges containers of which
//! little is needed.

mod dedup;
mod named;
mod order;
mod prune;
mod requests;
mod rest;
mod unused;

pub use dedup::{DedupOptions, DedupReport, dedup};
pub use onefold_engine::{PruneOptions, PruneReport, PruneRequests};
pub use prune::{prune, prune_here};
pub use rest::Rests;
pub use unused::{RemovalReport, remove_unused};
