//! The snapshots of a filesystem, below `.snapshots` in its root.
//!
//! The directory is found by its name and not listed, so that `find`, `rsync` and `rm -r` do not walk into it. A number
//! of the kernel has the place of the snapshot above [`NUMBER_BITS`] and the number of the inode below.
//!
//! # What stays in memory
//! A place stays as long as its snapshot exists or the kernel knows a file of it: a few bytes. Snapshots are opened
//! when they are read. At most [`VIEWS`] stay open, and only as long as the kernel knows a file of them.

use onefold_fs::{Filesystem, FilesystemInfo, Filesystems, FsError};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The name of the directory.
pub(super) const NAME: &[u8] = b".snapshots";
/// Inodes have numbers below 2 to the power of this.
pub(super) const NUMBER_BITS: u32 = 35;
/// The number of the directory.
pub(super) const DIRECTORY: u64 = 1 << 63;
/// Places are below this.
const PLACES: u64 = DIRECTORY >> NUMBER_BITS;
/// Snapshots that are open at a time.
pub(super) const VIEWS: usize = 8;

/// The snapshots of a filesystem.
#[derive(Debug)]
pub(super) struct Snapshots {
    all: Arc<Filesystems>,
    /// The number of the filesystem.
    of: u32,
    known: Mutex<Known>,
}

/// The snapshots that the kernel may know.
#[derive(Debug, Default)]
struct Known {
    /// By their places.
    snapshots: HashMap<u64, Snapshot>,
    /// Their places, by their numbers.
    places: HashMap<u32, u64>,
    /// The last place that was taken. None is taken twice.
    last: u64,
    /// Those that are open, by their places. The last one was used last.
    views: Vec<(u64, Arc<Filesystem>)>,
}

#[derive(Clone, Copy, Debug)]
struct Snapshot {
    number: u32,
    /// How often the kernel was told of a file in it, and has not forgotten it.
    told: u64,
}

impl Snapshots {
    pub(super) fn new(all: Arc<Filesystems>, of: u32) -> Snapshots {
        Snapshots { all, of, known: Mutex::default() }
    }

    /// Returns the snapshots, sorted by name.
    pub(super) fn list(&self) -> Vec<FilesystemInfo> {
        let mut known = self.known.lock();
        let all = self.all.snapshots_of(self.of);
        if known.places.len() > all.len() {
            let existing: HashSet<u32> = all.iter().map(|info| info.number).collect();
            known.snapshots.retain(|_, snapshot| snapshot.told > 0 || existing.contains(&snapshot.number));
            let Known { snapshots, places, .. } = &mut *known;
            places.retain(|_, place| snapshots.contains_key(place));
        }
        all
    }

    /// Returns the number of inode 0 of the snapshot with a name.
    pub(super) fn find(&self, name: &[u8]) -> Result<u64, FsError> {
        self.base(&self.list().into_iter().find(|info| info.name.as_bytes() == name).ok_or(FsError::NotFound)?)
    }

    /// Returns the number of inode 0 of a snapshot.
    pub(super) fn base(&self, info: &FilesystemInfo) -> Result<u64, FsError> {
        let mut known = self.known.lock();
        let place = match known.places.get(&info.number) {
            Some(place) => *place,
            None => {
                let place = known.last + 1;
                if place >= PLACES {
                    return Err(FsError::NoSpace);
                }
                known.last = place;
                known.places.insert(info.number, place);
                known.snapshots.insert(place, Snapshot { number: info.number, told: 0 });
                place
            }
        };
        Ok(place << NUMBER_BITS)
    }

    /// Returns the snapshot that a number of the kernel belongs to. Errors: it was deleted.
    pub(super) fn of_number(&self, number: u64) -> Result<Arc<Filesystem>, FsError> {
        let place = number >> NUMBER_BITS;
        let mut known = self.known.lock();
        let view = match known.views.iter().position(|(own, _)| *own == place) {
            Some(at) => known.views.remove(at).1,
            None => self.all.view(known.snapshots.get(&place).ok_or(FsError::NotFound)?.number)?,
        };
        if known.views.len() >= VIEWS {
            known.views.remove(0);
        }
        known.views.push((place, Arc::clone(&view)));
        Ok(view)
    }

    /// The kernel is told of a file. Errors: the snapshot was deleted.
    pub(super) fn told(&self, number: u64) -> Result<(), FsError> {
        let mut known = self.known.lock();
        known.snapshots.get_mut(&(number >> NUMBER_BITS)).ok_or(FsError::NotFound)?.told += 1;
        Ok(())
    }

    /// The kernel has forgotten a file of which it was told so often.
    pub(super) fn forgotten(&self, number: u64, times: u64) {
        let place = number >> NUMBER_BITS;
        let mut known = self.known.lock();
        let Some(snapshot) = known.snapshots.get_mut(&place) else { return };
        snapshot.told = snapshot.told.saturating_sub(times);
        if snapshot.told == 0 {
            known.views.retain(|(own, _)| *own != place);
        }
    }

    /// Returns how many are open.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.known.lock().views.len()
    }
}
