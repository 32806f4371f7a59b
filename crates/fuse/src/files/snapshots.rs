//! The snapshots of a filesystem, below `.snapshots` in its root.
//!
//! The directory is found by its name and not listed, so that `find`, `rsync` and `rm -r` do not walk into it. A number
//! of the kernel has the place of the snapshot above [`NUMBER_BITS`] and the number of the inode below.

use onefold_fs::{Filesystem, FilesystemInfo, Filesystems, FsError};
use parking_lot::Mutex;
use std::sync::Arc;

/// The name of the directory.
pub(super) const NAME: &[u8] = b".snapshots";
/// Inodes have numbers below 2 to the power of this.
pub(super) const NUMBER_BITS: u32 = 35;
/// The number of the directory.
pub(super) const DIRECTORY: u64 = 1 << 63;

/// The snapshots of a filesystem.
#[derive(Debug)]
pub(super) struct Snapshots {
    all: Arc<Filesystems>,
    /// The number of the filesystem.
    of: u32,
    /// Those that the kernel has looked at, with their numbers. They stay here, so that each keeps its place.
    seen: Mutex<Vec<(u32, Arc<Filesystem>)>>,
}

impl Snapshots {
    pub(super) fn new(all: Arc<Filesystems>, of: u32) -> Snapshots {
        Snapshots { all, of, seen: Mutex::default() }
    }

    /// Returns the snapshots, sorted by name.
    pub(super) fn list(&self) -> Vec<FilesystemInfo> {
        self.all.snapshots_of(self.of)
    }

    /// Returns the snapshot with a name, and the number of its inode 0.
    pub(super) fn find(&self, name: &[u8]) -> Result<(u64, Arc<Filesystem>), FsError> {
        let info = self.list().into_iter().find(|info| info.name.as_bytes() == name).ok_or(FsError::NotFound)?;
        let mut seen = self.seen.lock();
        let place = match seen.iter().position(|(number, _)| *number == info.number) {
            Some(place) => place,
            None => {
                seen.push((info.number, self.all.view(&info.name)?));
                seen.len() - 1
            }
        };
        Ok(((place as u64 + 1) << NUMBER_BITS, Arc::clone(&seen[place].1)))
    }

    /// Returns the snapshot that a number of the kernel belongs to.
    pub(super) fn of_number(&self, number: u64) -> Option<Arc<Filesystem>> {
        let place = (number >> NUMBER_BITS).checked_sub(1)?;
        self.seen.lock().get(usize::try_from(place).ok()?).map(|(_, snapshot)| Arc::clone(snapshot))
    }
}
