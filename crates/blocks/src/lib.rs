//! Blocks: what volumes and filesystems stand on (decision 0060).
//!
//! A [`Space`] is a map from block numbers to blocks of one size. Each stored block has a *block mapping*: its recipe.
//! [`Spaces`] lists the spaces of a store; [`Space`] reads and writes one at any alignment. Writes gather in a
//! write-back buffer until a block is whole, memory is needed, or the owner flushes. So chunks are cut within aligned
//! blocks, and the same data deduplicates the same way however it is cut into requests.
//!
//! Beside its blocks a space has *entries*: a map from keys to small opaque values ([`Space::entry`]).
//!
//! Mappings and entries belong to *layers*, one on top of the other ([`Layer`]). A snapshot or a clone is a new layer
//! and shares all layers below it.
//!
//! A space has an *owner*: the crate that gives its blocks a meaning. A volume has blocks from 0 up to its size. Other
//! owners put each of several byte sequences at a *base block* of its own. So requests say [where](At) they begin. What
//! an owner's sequences are, and how long, is the owner's business.
//!
//! This crate must never know what the blocks mean, nor how a chunk is found or stored.

mod at;
mod buffer;
mod cells;
mod changed;
mod cleaning;
mod copy;
mod diff;
mod dirty;
mod end;
mod entries;
mod entry;
mod error;
mod frozen;
mod layer;
mod layers;
mod mapping;
mod options;
mod pieces;
mod record;
mod shared;
mod snapshots;
mod space;
mod spaces;
mod sparse;
mod streams;
mod update;
mod write_out;

pub use at::At;
pub use copy::Content;
pub use entry::{MAX_ENTRY_KEY_BYTES, MAX_ENTRY_VALUE_BYTES};
pub use error::{Result, SpaceError};
pub use frozen::Frozen;
pub use layer::{Layer, Merging};
pub use options::SpacesOptions;
pub use record::{MAX_BLOCK_BYTES, MAX_END_BYTES, MAX_NAME_BYTES, MIN_BLOCK_BYTES, Origin, Owner, Record, SpaceKind};
pub use space::Space;
pub use spaces::{NewSpace, SpaceInfo, Spaces};
pub use sparse::Extent;

#[cfg(test)]
mod base_tests;
#[cfg(test)]
mod disks;
#[cfg(test)]
mod entries_model;
#[cfg(test)]
mod entries_tests;
#[cfg(test)]
mod snapshot_model;
#[cfg(test)]
mod snapshot_tests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod write_out_tests;
