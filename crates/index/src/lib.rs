//! The indexes: views of the operations log.
//!
//! * [`ChunkIndex`]: fingerprint -> address and usage count, a paged hash table (M0.13).
//! * [`ObjectIndex`]: objects (block mappings, volumes, backups), an ordered map (M0.16).
//!
//! This crate must never know what an object means or what the bytes of a chunk are.

pub mod chunk;
mod error;
pub mod objects;
mod paged;
pub mod sampled;
mod view;

pub use chunk::{
    ChunkBatch, ChunkIndex, ChunkIndexOptions, ChunkIndexStatistics, DamagedPage, Held, IndexEntry, UnusedCursor, VerifiedRun,
};
pub use error::{IndexError, Result};
pub use objects::{Change, ObjectIndex, ObjectIndexOptions, decode_changes, encode_changes};
