//! The catalog: backups as immutable trees of files, each with a recipe (`docs/format.md` section 8; M3.2, M3.3).
//!
//! * [`Entry`]: one name in a directory, with everything that a restore needs.
//! * [`DirectoryWriter`] and [`DirectoryReader`]: turn entries into metadata chunks and back, chunk by chunk.
//! * [`PieceReader`]: the pieces of a file of any size in bounded memory.
//! * [`Backup`] and [`Catalog`]: the records of the backups, with commit, find, list, protect and remove.
//! * [`FileName`] and [`NamedFile`]: files that are known by their content, where there is no chunk index.
//! * [`retention`]: which backups a policy keeps.
//! * [`TreeWalk`], [`Catalog::lookup`] and [`diff()`]: the content of a backup, and the changes between two.
//!
//! # Invariants
//! * A backup is visible only once everything it refers to is durable: its record is committed last.
//! * Entries contain recipes, and recipes contain addresses (M3.3), so a restore needs no index.
//! * Equal directories have equal recipes, because their chunks are cut by content. So a diff skips unchanged
//!   directories.
//!
//! This crate must never know how a file is read from or written to a file system.

mod backup;
mod catalog;
mod diff;
mod directory;
mod entry;
mod error;
mod files;
mod keys;
mod protect;
mod protection;
mod recipes;
pub mod retention;
mod together;
mod tree;

pub use backup::{Backup, BackupId, NotAnId, Statistics, is_valid_tag};
pub use catalog::{Catalog, Found};
pub use diff::{Change, Difference, diff};
pub use directory::{DirectoryReader, DirectoryWriter, decode_directory_chunk, encode_directory_chunk};
pub use entry::{Attributes, CHATTR_FLAGS, Content, Entry, MAX_ENTRY_BYTES, is_valid_name};
pub use error::{CatalogError, Result};
pub use files::{FileName, NamedFile};
pub use protection::Now;
pub use recipes::PieceReader;
pub use together::{SideBySide, Version, side_by_side};
pub use tree::{MAX_DEPTH, TreeWalk, WalkItem, components, join};

#[cfg(test)]
mod testing;
