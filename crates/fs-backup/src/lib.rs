//! Backups of a filesystem of the same store (decision 0064). A backup copies recipes: no data is read, none is
//! written, and its chunks are those that the filesystem has.
//!
//! ```text
//! fs: names, inodes, pieces --walk--> catalog: contents, tree --> record of the backup
//!        ^                                   ^
//!   frozen: as of one moment            the earlier backup, and what changed since its snapshot
//! ```
//!
//! # Invariants
//! * What the new backup refers to stays: an in-flight guard is taken before the first mapping is read, and the frozen
//!   layers have a user, both until the record is durable.
//! * Only what a layer between two snapshots has is taken for changed. No time that a file shows is trusted.
//! * A snapshot that the next backup is compared with is made after the record is durable. So a crash leaves none
//!   without its backup; at worst the next backup is compared with an older one, or looks at every file.
//!
//! This crate must never know how a filesystem stores names, nor how a backup is read.

mod backup;
mod error;
mod snapshots;
mod walk;

pub use backup::{Options, Outcome, backup, is_of_filesystem};
pub use error::{FsBackupError, Result};
pub use snapshots::tidy;

/// Watches a backup of a filesystem.
pub trait Monitor {
    /// A file or directory cannot be backed up.
    fn problem(&self, path: &[u8], reason: &str);
    /// A file of any kind, or a directory, is done.
    fn visited(&self);
    /// Returns whether to stop: then nothing of the backup is seen.
    fn is_cancelled(&self) -> bool;
}

#[cfg(test)]
mod tests;
