//! Volumes: thin block devices on the store (M0.1, M0.16).
//!
//! A volume is a [space](onefold_blocks::Space) with blocks from 0 up to its size. This crate adds the parts of a disk:
//! its size, the bounds of requests, what others may know of a volume, and the errors that users see. [`Volumes`] lists
//! the volumes; [`Volume`] reads and writes one at any alignment.
//!
//! Blocks, their layers, snapshots and clones are `onefold-blocks`. Which layers are in use is decided there, for
//! spaces of all kinds. [`Volumes`] shows only those that are volumes.
//!
//! This crate must never know the protocol of the requests (NBD, iSCSI), nor how a chunk is found or stored.

mod content;
mod diff;
mod error;
mod frozen;
mod info;
mod volume;
mod volumes;

pub use content::Content;
pub use error::{Result, VolumeError};
pub use frozen::Frozen;
pub use info::VolumeInfo;
pub use onefold_blocks::{
    Extent, Layer, MAX_BLOCK_BYTES, MAX_END_BYTES as MAX_VOLUME_BYTES, MAX_NAME_BYTES, MIN_BLOCK_BYTES, Merging, Origin,
    SpaceKind as VolumeKind, SpacesOptions as VolumesOptions,
};
pub use volume::Volume;
pub use volumes::Volumes;

/// The block size of a volume if the user asks for none.
pub const DEFAULT_BLOCK_BYTES: u32 = 256 << 10;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
