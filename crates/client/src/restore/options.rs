//! What a restore is asked for.

use crate::damage::Damaged;
use std::path::PathBuf;

/// What happens to what exists and differs. What is equal is kept by all but [`Overwrite::Always`]; a directory is never replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// It stays, and is listed as an error.
    #[default]
    Never,
    /// It is replaced; what is equal gets its attributes. As root, what has another owner is not equal.
    IfChanged,
    /// Everything is replaced.
    Always,
}

/// What to restore, and where to.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The directory to write to; created if it is not there.
    pub target: PathBuf,
    /// What to restore: paths from the root of the backup, or patterns where it has no such path; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// Patterns of which one must match, if there are any.
    pub include: Vec<String>,
    /// Patterns of what is left out.
    pub exclude: Vec<String>,
    /// So many components are taken off the front of each path; what has no more is left out.
    pub strip_components: usize,
    /// What happens to what exists.
    pub overwrite: Overwrite,
    /// What becomes of files of which a part cannot be read.
    pub damaged: Damaged,
    /// Deletes from the directories that are restored what the backup has not.
    pub delete: bool,
    /// Changes nothing: counts, and tells the monitor what would be done.
    pub dry_run: bool,
    /// The directory of the store, which stays as it is.
    pub store_directory: Option<PathBuf>,
}
