//! Frees space: removes unused chunks, and merges containers of which little is needed.

mod order;
mod prune;
mod rest;
mod unused;

pub use prune::{PruneOptions, PruneReport, prune};
pub use rest::Rests;
pub use unused::{RemovalReport, remove_unused};
