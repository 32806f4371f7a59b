//! Directories that declare themselves not worth a backup.

use crate::source::{self, Listing};
use rustix::fd::OwnedFd;

/// Which directories are left empty because of a file in them.
#[derive(Clone, Copy)]
pub(crate) struct Markers<'a> {
    /// Cache directories, by the file CACHEDIR.TAG with its signature (<https://bford.info/cachedir/>).
    pub(crate) caches: bool,
    /// Directories with a file of one of these names.
    pub(crate) names: &'a [Vec<u8>],
}

/// The file that marks a cache directory.
pub(crate) const CACHE_TAG: &str = "CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

impl<'a> Markers<'a> {
    /// Returns the file because of which everything else in a directory is left out.
    pub(crate) fn in_directory(&self, directory: &OwnedFd, listing: &Listing) -> Option<&'a [u8]> {
        // An unreadable file marks nothing: the directory is backed up.
        let is_cache = || source::begins_with(directory, CACHE_TAG.as_bytes(), CACHE_SIGNATURE).unwrap_or(false);
        if self.caches && listing.contains(CACHE_TAG.as_bytes()) && is_cache() {
            return Some(CACHE_TAG.as_bytes());
        }
        self.names.iter().map(Vec::as_slice).find(|name| listing.contains(name))
    }
}
