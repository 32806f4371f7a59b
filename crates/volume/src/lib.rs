//! Volumes: thin block devices on the store (M0.1, M0.16).
//!
//! A volume is an ordered set of blocks. Each stored block has a *block mapping*: its recipe. [`Volumes`] lists the
//! volumes; [`Volume`] reads and writes one at any alignment. Writes gather in a write-back buffer until a block is
//! whole, memory is needed, or the client flushes. So chunks are cut within aligned blocks, and the same data
//! deduplicates the same way however clients cut it into requests.
//!
//! The mappings belong to *layers*, one on top of the other ([`Layer`]). A snapshot or a clone is a new layer and
//! shares all layers below it.
//!
//! This crate must never know the protocol of the requests (NBD, iSCSI), nor how a chunk is found or stored.

mod buffer;
mod cells;
mod cleaning;
mod copy;
mod diff;
mod dirty;
mod error;
mod frozen;
mod info;
mod layer;
mod layers;
mod mapping;
mod options;
mod record;
mod snapshots;
mod sparse;
mod streams;
mod update;
mod volume;
mod volumes;
mod write_out;

pub use copy::Content;
pub use error::{Result, VolumeError};
pub use frozen::Frozen;
pub use info::VolumeInfo;
pub use layer::{Layer, Merging};
pub use options::VolumesOptions;
pub use record::{MAX_BLOCK_BYTES, MAX_NAME_BYTES, MAX_VOLUME_BYTES, MIN_BLOCK_BYTES, Origin, VolumeKind};
pub use sparse::Extent;
pub use volume::Volume;
pub use volumes::Volumes;

/// The block size of a volume if the user asks for none.
pub const DEFAULT_BLOCK_BYTES: u32 = 256 << 10;

#[cfg(test)]
mod snapshot_model;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_out_tests;
