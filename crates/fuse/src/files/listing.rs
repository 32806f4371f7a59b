//! Reading directories: names in pages, from wherever the kernel goes on.

use super::snapshots::DIRECTORY;
use super::{FileTree, errno};
use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use onefold_fs::{FsError, Kind, Name, ROOT};

/// Takes the number of a file, the offset behind it, what it is, and its name. Returns false if there is no room.
type Add<'a> = dyn FnMut(u64, u64, FileType, &[u8]) -> bool + 'a;

/// A directory that is being read.
#[derive(Debug)]
pub(super) struct Listing {
    /// The number of the directory.
    number: u64,
    /// The names of the last page that were not returned.
    names: Vec<Name>,
    /// Where the next page begins. `None`: there is none.
    next: Option<u64>,
    /// The offset that the next request has if nobody seeks.
    at: u64,
}

impl Listing {
    /// Begins to read a directory.
    pub(super) fn new(number: u64) -> Listing {
        Listing { number, names: Vec::new(), next: None, at: u64::MAX }
    }
}

impl FileTree {
    /// Returns the attributes of a file whose name was read from a directory a moment ago. `next`: the offset behind
    /// the name.
    pub(super) fn listed(&self, directory: INodeNo, number: INodeNo, name: &[u8], next: u64) -> Result<FileAttr, FsError> {
        match self.attributes_of(number) {
            // If the name is still there, this is damage, or another file has the name now.
            Err(FsError::NotFound) if next > 2 => Ok(self.found(directory, name)?.0),
            attributes => attributes,
        }
    }

    /// Passes names of a directory from an offset on to `add` until that returns false.
    pub(super) fn list(&self, handle: FileHandle, from: u64, add: &mut Add<'_>) -> Result<(), Errno> {
        let listing = self.directories.lock().get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        let mut listing = listing.lock();
        let number = listing.number;
        if from < 1 && !add(number, 1, FileType::Directory, b".") {
            return Ok(());
        }
        if number == DIRECTORY {
            if from < 2 && !add(ROOT, 2, FileType::Directory, b"..") {
                return Ok(());
            }
            let all = self.snapshots.list();
            for (place, info) in all.iter().enumerate().skip(from.saturating_sub(2) as usize) {
                let base = self.snapshots.base(info).map_err(|error| errno(&error))?;
                if !add(base + ROOT, place as u64 + 3, FileType::Directory, info.name.as_bytes()) {
                    break;
                }
            }
            return Ok(());
        }
        let (files, own, base) = self.at(INodeNo(number)).map_err(|error| errno(&error))?;
        if from < 2 {
            let above = match files.inode(own).map_err(|error| errno(&error))?.kind {
                _ if own == ROOT && base > 0 => DIRECTORY,
                Kind::Directory { parent } => base + parent,
                _ => number,
            };
            if !add(above, 2, FileType::Directory, b"..") {
                return Ok(());
            }
        }
        if listing.at != from || from <= 2 {
            listing.names.clear();
            listing.next = Some(from.saturating_add(1));
        }
        loop {
            if listing.names.is_empty() {
                let Some(next) = listing.next else { return Ok(()) };
                let (mut names, next) = files.names(own, next).map_err(|error| errno(&error))?;
                names.reverse();
                (listing.names, listing.next) = (names, next);
                if listing.names.is_empty() && listing.next.is_none() {
                    return Ok(());
                }
                continue;
            }
            let Some(name) = listing.names.last().cloned() else { continue };
            if !add(base + name.number, name.hash, kind_of(name.kind), &name.name) {
                return Ok(());
            }
            listing.at = name.hash;
            listing.names.pop();
        }
    }
}

fn kind_of(kind: u8) -> FileType {
    match kind {
        1 => FileType::Directory,
        2 => FileType::Symlink,
        3 => FileType::CharDevice,
        4 => FileType::BlockDevice,
        5 => FileType::NamedPipe,
        6 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}
