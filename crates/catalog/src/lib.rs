//! The catalog: backups as immutable trees of files, each with a recipe (`docs/format.md` section 8; M3.2, M3.3).
//!
//! * [`Entry`]: one name in a directory, with everything that a restore needs.
//! * [`DirectoryWriter`] and [`DirectoryReader`]: turn entries into metadata chunks and back, chunk by chunk.
//! * [`Making`]: a backup being made, with [`ContentWriter`] and [`TreeWriter`].
//! * [`Chunks`]: where readers get chunks from, an open store or a connection.
//! * [`PieceReader`]: the pieces of a file of any size in bounded memory. [`FileReader`]: any part of a file.
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
mod chunks;
mod diff;
mod directory;
mod directory_chunk;
mod entry;
mod error;
mod files;
mod keys;
mod making;
mod protect;
mod protection;
mod random_access;
mod recipes;
pub mod retention;
mod together;
mod tree;

pub use backup::{Backup, BackupId, NotAnId, Statistics, is_valid_tag};
pub use catalog::{Catalog, Found, Scope};
pub use chunks::{Chunks, Of};
pub use diff::{Change, Difference, diff};
pub use directory::{DirectoryReader, DirectoryWriter};
pub use directory_chunk::{DirectoryChunk, Listed, encode_directory_chunk, put_rest};
pub use entry::{Attributes, CHATTR_FLAGS, Content, Entry, MAX_ENTRY_BYTES, is_valid_name};
pub use error::{CatalogError, Result};
pub use files::{FileName, NamedFile};
pub use making::{Comparison, ContentWriter, Details, Growth, Making, SmallFile, TreeWriter};
pub use protection::Now;
pub use random_access::{DataRun, FileReader};
pub use recipes::PieceReader;
pub use together::{SideBySide, Version, side_by_side};
pub use tree::{MAX_DEPTH, TreeWalk, WalkItem, components, join, lookup};

#[cfg(test)]
mod testing;
