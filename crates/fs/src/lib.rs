//! A POSIX filesystem on the store.
//!
//! Names and inodes are entries of a layer; the content of a file is blocks of the same layer. So a snapshot of a
//! filesystem is a layer, as of a volume ([`onefold_blocks`]).
//!
//! * [`Filesystems`]: those of a store, by name.
//! * [`Filesystem`]: one that is open. Names and attributes (`filesystem.rs`), content (`content.rs`), and when they
//!   are durable (`commit.rs`).
//! * For those who back it up: the pieces of a file (`recipe.rs`), and what changed since a snapshot (`changes.rs`).
//!
//! # What is promised
//! * After [`Filesystem::sync_file`] has returned, the file, its attributes and its names survive a crash.
//! * A crash leaves names, inodes and lengths as they were at one moment: no check is needed.
//! * A rename is one step. Content that was synced before it is durable before it is.
//! * What is not synced is stored within the interval of commits.
//!
//! This crate must never know the protocol of the requests (FUSE), nor how a block is stored.

mod acl;
mod changes;
mod commit;
mod content;
mod error;
mod filesystem;
mod filesystems;
mod inode;
mod internal;
mod keys;
mod recipe;
mod state;
mod tree;

pub use changes::Changes;
pub use content::Allocate;
pub use error::{FsError, Result};
pub use filesystem::{Changed, Create, Filesystem, FsOptions, MAX_NAME_BYTES, ROOT, Rename, SetXattr};
pub use filesystems::{FilesystemInfo, Filesystems, OpenFilesystem};
pub use inode::{APPEND_ONLY, IMMUTABLE, Inode, Kind, NO_ATIME, NO_DUMP};
pub use internal::{backup_of_snapshot, snapshot_of_backup};
pub use state::Use;
pub use tree::Name;

#[cfg(test)]
mod model;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
