//! The work that the walk hands to the readers.

use crate::repository::NewFile;
use onefold_engine::Recipe;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// A file to read.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: Vec<u8>,
    /// Path from the root, without the leading `/`.
    pub(crate) path: Vec<u8>,
    /// As the walk saw it.
    pub(crate) size_bytes: u64,
    /// A block device or FIFO whose content is wanted.
    pub(crate) is_special: bool,
    /// What the file had in the previous backup.
    pub(crate) earlier: Option<Recipe>,
}

impl Job {
    /// Returns the job as the repository knows it.
    pub(crate) fn new_file(&self) -> NewFile<'_> {
        NewFile { ticket: self.ticket, path: &self.path, earlier: self.earlier.as_ref() }
    }
}
