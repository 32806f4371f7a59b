//! What the numbers of the kernel stand for, and the attributes of files.

use super::snapshots::{DIRECTORY, NAME, NUMBER_BITS};
use super::{ALWAYS, FileTree, SNAPSHOT_TIME};
use crate::backups::time;
use fuser::{FileAttr, FileType, INodeNo};
use onefold_fs::{Filesystem as Files, FsError, Inode, Kind, ROOT};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The size in which programs should read and write.
const BLOCK_BYTES: u32 = 128 << 10;

impl FileTree {
    /// Returns the filesystem or the snapshot that a number belongs to, the number of the inode in it, and that of the
    /// kernel's for inode 0.
    pub(super) fn at(&self, number: INodeNo) -> Result<(Arc<Files>, u64, u64), FsError> {
        let number = number.0;
        let own = number & ((1 << NUMBER_BITS) - 1);
        if number == own {
            return Ok((Arc::clone(&self.files), own, 0));
        }
        Ok((self.snapshots.of_number(number)?, own, number - own))
    }

    /// Returns the number of an inode that can be changed: it is in no snapshot.
    pub(super) fn own(number: INodeNo) -> Result<u64, FsError> {
        if number.0 >> NUMBER_BITS == 0 { Ok(number.0) } else { Err(FsError::ReadOnly) }
    }

    /// Returns an inode.
    pub(super) fn inode(&self, number: INodeNo) -> Result<Inode, FsError> {
        if number.0 == DIRECTORY {
            return Ok(Inode { xattrs: Vec::new(), ..self.files.inode(ROOT)? });
        }
        let (files, number, _) = self.at(number)?;
        files.inode(number)
    }

    pub(super) fn attributes_of(&self, number: INodeNo) -> Result<FileAttr, FsError> {
        if number.0 == DIRECTORY {
            // It looks like the root, but nobody can write there.
            let root = self.attributes(ROOT, &self.files.inode(ROOT)?);
            let links = u32::try_from(self.snapshots.list().len()).unwrap_or(u32::MAX).saturating_add(2);
            return Ok(FileAttr { ino: number, perm: 0o555, nlink: links, size: 0, ..root });
        }
        let (files, own, _) = self.at(number)?;
        Ok(self.attributes_in(&files, number.0, &files.inode(own)?))
    }

    pub(super) fn found(&self, parent: INodeNo, name: &[u8]) -> Result<(FileAttr, Duration), FsError> {
        if parent.0 == ROOT && name == NAME {
            return Ok((self.attributes_of(INodeNo(DIRECTORY))?, ALWAYS));
        }
        if parent.0 == DIRECTORY {
            let base = self.snapshots.find(name)?;
            // It may be deleted, and another one get its name.
            return Ok((self.attributes_of(INodeNo(base + ROOT))?, SNAPSHOT_TIME));
        }
        let (files, directory, base) = self.at(parent)?;
        let (number, inode) = files.lookup(directory, name)?;
        Ok((self.attributes_in(&files, base + number, &inode), ALWAYS))
    }

    pub(super) fn attributes(&self, number: u64, inode: &Inode) -> FileAttr {
        self.attributes_in(&self.files, number, inode)
    }

    fn attributes_in(&self, files: &Files, number: u64, inode: &Inode) -> FileAttr {
        let (kind, rdev) = match inode.kind {
            Kind::File => (FileType::RegularFile, 0),
            Kind::Directory { .. } => (FileType::Directory, 0),
            Kind::Symlink { .. } => (FileType::Symlink, 0),
            Kind::CharacterDevice { device } => (FileType::CharDevice, device),
            Kind::BlockDevice { device } => (FileType::BlockDevice, device),
            Kind::Fifo => (FileType::NamedPipe, 0),
            Kind::Socket => (FileType::Socket, 0),
        };
        let stored =
            if kind == FileType::RegularFile { files.stored_bytes(number & ((1 << NUMBER_BITS) - 1)).unwrap_or(inode.size) } else { 0 };
        FileAttr {
            ino: INodeNo(number),
            size: inode.size,
            blocks: stored.div_ceil(512),
            atime: time(inode.atime_ns),
            mtime: time(inode.mtime_ns),
            ctime: time(inode.ctime_ns),
            crtime: time(inode.born_ns),
            kind,
            perm: inode.mode,
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev,
            blksize: BLOCK_BYTES,
            flags: inode.flags,
        }
    }
}

/// Returns what a directory lists of a file whose attributes cannot be read. The kernel keeps them for no time: whoever
/// looks at the file has it looked up again, and gets the error. fuser cannot list a file without attributes.
pub(super) fn unknown(number: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}
