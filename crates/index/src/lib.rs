//! The indexes: views of the operations log.
//!
//! * [`ChunkIndex`]: fingerprint -> address and usage count, a paged hash table (M0.13).
//! * [`BlockIndex`]: objects (block mappings, volumes, backups), an ordered map (M0.16).
//!
//! This crate must never know what an object means or what the bytes of a chunk are.

pub mod block;
pub mod chunk;
mod error;

pub use block::{BlockIndex, BlockIndexOptions, Change, decode_changes, encode_changes};
pub use chunk::{
    ChunkBatch, ChunkIndex, ChunkIndexOptions, ChunkIndexStatistics, DamagedPage, Held, IndexEntry, UnusedCursor, VerifiedRun,
};
pub use error::{IndexError, Result};
