//! The indexes: views of the operations log.
//!
//! * [`BlockIndex`]: objects (block mappings, volumes, backups), an ordered map (M0.16).
//!
//! This crate must never know what an object means or what the bytes of a chunk are.

pub mod block;
mod error;

pub use block::{BlockIndex, BlockIndexOptions, Change, decode_changes, encode_changes};
pub use error::{IndexError, Result};
