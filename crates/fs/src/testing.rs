//! A filesystem in memory, for tests: what a real one must be, and what a crash may leave of it. For the tests of this
//! crate, and for those that crash whole stores.
//!
//! * [`TreeModel`]: names, attributes and bytes. [`TreeModel::of`] reads them from a filesystem.
//! * [`FileStep`]: what a program does, by choices that fit any tree.
//! * [`History`]: the trees since the last commit. It takes steps together with a filesystem, and judges what a crash
//!   left by what `docs/filesystem.md` promises.

mod history;
mod step;
mod tree;

pub use history::{History, Left};
pub use step::FileStep;
pub use tree::{FileModel, TreeModel};

use crate::{Filesystem, keys};
use onefold_blocks::Space;

/// Returns whether a crash ended the making of a filesystem: the first who opens it makes it empty, without a quota.
pub fn is_unmade(space: &Space) -> bool {
    Filesystem::is_unmade(space).unwrap_or(false)
}

/// Returns whether the space of a filesystem has a removed file whose blocks are to be freed.
pub fn has_removed_files(space: &Space) -> bool {
    let (from, to) = keys::orphans();
    space.entries(&from, &to, 1).is_ok_and(|(entries, _)| !entries.is_empty())
}
