//! Options of a restore.

use crate::damage::Damaged;
use std::path::PathBuf;

/// What happens to existing files that differ. All modes except [`Overwrite::Always`] keep an equal file. A directory
/// is never replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// They stay, and are listed as errors.
    #[default]
    Never,
    /// They are replaced. An equal file gets its attributes. For root, a file with another owner is not equal.
    IfChanged,
    /// Everything is replaced.
    Always,
}

/// What to restore, and to where.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The directory to write to; created if it does not exist.
    pub target: PathBuf,
    /// Paths from the root of the backup, or patterns where the backup has no such path. Empty: everything.
    pub paths: Vec<Vec<u8>>,
    /// Patterns of which one must match, if there are any.
    pub include: Vec<String>,
    /// Patterns of names to leave out.
    pub exclude: Vec<String>,
    /// Number of components to remove from the front of each path. Shorter paths are left out.
    pub strip_components: usize,
    /// What happens to existing files.
    pub overwrite: Overwrite,
    /// How to treat files with an unreadable part.
    pub damaged: Damaged,
    /// Delete names from the restored directories that the backup does not have.
    pub delete: bool,
    /// Change nothing: count, and tell the monitor what would be done.
    pub dry_run: bool,
    /// The store's directory, which stays as it is.
    pub store_directory: Option<PathBuf>,
}
