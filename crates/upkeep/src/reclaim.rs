//! Giving back space: unused chunks are removed, containers of which little is needed are merged.

mod order;
mod prune;
mod rest;
mod unused;

pub use prune::{PruneOptions, PruneReport, prune};
pub use rest::Rests;
pub use unused::{RemovalReport, remove_unused};
