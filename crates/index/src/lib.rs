//! The indexes: views of the operations log.
//!
//! * [`ChunkIndex`]: fingerprint -> address and usage count, a paged hash table (M0.13).
//! * [`LinkedIndex`]: fingerprint -> block, note and usage count, on disk only (M1.2 to M1.8).
//! * [`ObjectIndex`]: objects (block mappings, volumes, backups), an ordered map (M0.16).
//!
//! This crate must never know what an object means or what the bytes of a chunk are.

pub mod chunk;
mod counted;
mod error;
pub mod linked;
pub mod objects;
mod paged;
pub mod sampled;
mod view;

pub use chunk::{
    ChunkBatch, ChunkIndex, ChunkIndexOptions, ChunkIndexStatistics, DamagedPage, Held, IndexEntry, NewPartition, RemovedPartition,
    UnusedCursor, VerifiedRun,
};
pub use counted::{CountedIndex, HeldEntries, IndexView};
pub use error::{IndexError, Result};
pub use linked::{
    BlockEntry, Dia, LinkedBatch, LinkedDamage, LinkedEntry, LinkedHeader, LinkedIndex, LinkedOptions, LinkedPlace, LinkedShape,
    LinkedStatistics, Tag, VerifiedPiece,
};
pub use objects::{Change, NewObjects, ObjectIndex, ObjectIndexOptions, RemovedObjects, decode_changes, encode_changes};
