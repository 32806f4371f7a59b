//! A filesystem of the store, for writing, with its snapshots below `.snapshots`.
//!
//! The kernel checks permissions (`default_permissions`) and keeps names and attributes for as long as it likes: nobody
//! else changes them. A number of the kernel is the number of an inode.

mod attributes;
mod callers;
mod flags;
mod listing;
mod snapshots;
#[cfg(test)]
mod tests;

use crate::mount::Tree;
use attributes::unknown;
use flags::check_open;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use listing::Listing;
use onefold_fs::{
    APPEND_ONLY, Allocate, Changed, Create, Filesystems, FsError, Inode, Kind, MAX_NAME_BYTES, OpenFilesystem, ROOT, Rename, SetXattr,
};
use parking_lot::Mutex;
use snapshots::{DIRECTORY, NAME, NUMBER_BITS, Snapshots};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel keeps what it knows: nobody else changes it.
const ALWAYS: Duration = Duration::from_secs(365 * 86_400);
/// How long the kernel keeps the name of a snapshot.
const SNAPSHOT_TIME: Duration = Duration::from_secs(1);
/// The unit of statfs(2).
const UNIT_BYTES: u64 = 4096;
/// Files that can be made, for statfs(2): there is no such limit.
const FREE_INODES: u64 = 1 << 32;
/// Flags of fallocate(2).
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;
/// `whence` of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Flags of setxattr(2).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// Flags of open(2).
const APPEND: i32 = 0o2000;
const NOATIME: i32 = 0o1_000_000;

/// A filesystem, as the kernel asks for it.
#[derive(Debug)]
pub struct FileTree {
    files: OpenFilesystem,
    snapshots: Snapshots,
    notes_reads: bool,
    /// Tells the kernel what has changed that it does not expect.
    notices: Arc<OnceLock<Notifier>>,
    handles: AtomicU64,
    directories: Mutex<HashMap<u64, Arc<Mutex<Listing>>>>,
}

impl FileTree {
    /// Returns the face of a filesystem. It is closed when the face is dropped, unless others have it open.
    /// `notes_reads`: the times of reads are noted.
    pub fn new(files: OpenFilesystem, all: Arc<Filesystems>, notes_reads: bool) -> FileTree {
        let snapshots = Snapshots::new(all, files.space_number());
        FileTree { files, snapshots, notes_reads, notices: Arc::default(), handles: AtomicU64::new(1), directories: Mutex::default() }
    }

    fn make(&self, directory: INodeNo, name: &OsStr, kind: Kind, new: Create) -> Result<(u64, Inode), FsError> {
        let own = self.changed_name(directory, name)?;
        self.files.create(own, name.as_bytes(), kind, new)
    }

    /// Returns the number of a directory in which a name is to be changed.
    fn changed_name(&self, directory: INodeNo, name: &OsStr) -> Result<u64, FsError> {
        if directory.0 == ROOT && name.as_bytes() == NAME { Err(FsError::Exists) } else { FileTree::own(directory) }
    }

    fn reply_entry(&self, made: Result<(u64, Inode), FsError>, reply: ReplyEntry) {
        match made.and_then(|made| self.keep(INodeNo(made.0)).map(|()| made)) {
            Ok((number, inode)) => reply.entry(&ALWAYS, &self.attributes(number, &inode), Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn sync(&self, number: INodeNo) -> Result<(), FsError> {
        // Nothing of a snapshot changes.
        FileTree::own(number).map_or(Ok(()), |own| self.files.sync_file(own))
    }

    fn reply_attr(&self, number: u64, inode: Result<Inode, FsError>, reply: ReplyAttr) {
        match inode {
            Ok(inode) => reply.attr(&ALWAYS, &self.attributes(number, &inode)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Notes that the kernel read a file. What it has in its cache it reads without asking.
    fn was_read(&self, number: INodeNo) {
        if self.notes_reads
            && let Ok(own) = FileTree::own(number)
            && let Err(error) = self.files.was_read(own)
        {
            tracing::debug!(%error, "the time of a read is not noted");
        }
    }

    /// Notes that the kernel has a file open.
    fn opened(&self, number: INodeNo) -> Result<(), FsError> {
        FileTree::own(number).map_or(Ok(()), |own| self.files.opened(own))
    }

    /// Keeps a file although its last name goes, until the kernel has forgotten it: it may be open, or the directory of
    /// a process. The kernel counts how often it was told of each file.
    fn keep(&self, number: INodeNo) -> Result<(), FsError> {
        match FileTree::own(number) {
            Ok(own) => self.files.opened(own),
            Err(_) if number.0 == DIRECTORY => Ok(()),
            Err(_) => self.snapshots.told(number.0),
        }
    }

    /// Takes away what would run a file with the rights of others, before its content or its owner changes.
    fn drop_privileges(&self, request: &Request, number: u64, modes: bool) -> Result<(), FsError> {
        let is_member = |group| callers::may_keep_set_group(request, group);
        if self.files.drop_privileges(number, modes, &is_member)? {
            self.forget_attributes(INodeNo(number));
        }
        Ok(())
    }

    /// Has the kernel forget the attributes of a file, which it does not expect to have changed.
    fn forget_attributes(&self, number: INodeNo) {
        // An offset below 0: no content changed.
        if let Some(Err(error)) = self.notices.get().map(|notices| notices.inval_inode(number, -1, 0)) {
            tracing::warn!(%error, "the kernel shows old attributes of a file");
        }
    }

    /// Returns whether the kernel knows a file.
    fn is_known(&self, number: INodeNo) -> bool {
        FileTree::own(number).is_ok_and(|own| self.files.is_open(own))
    }

    fn forgotten(&self, number: INodeNo, times: u64) {
        let Ok(own) = FileTree::own(number) else { return self.snapshots.forgotten(number.0, times) };
        if let Err(error) = self.files.closed_times(own, times) {
            tracing::warn!(%error, "a file without names is not removed");
        }
    }
}

/// Returns the number for the kernel, and tells the log of what is the store's fault.
fn errno(error: &FsError) -> Errno {
    let number = error.errno();
    if number == rustix::io::Errno::IO {
        tracing::warn!(%error, "a filesystem could not do what a program asked for");
    }
    Errno::from_i32(number.raw_os_error())
}

fn reply_empty(done: Result<(), FsError>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Nanoseconds since 1970 of a time in a request. fuser makes a time before 1970 from seconds, which are negative, and
/// nanoseconds, which are not, and subtracts both.
fn ns(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            let (seconds, ns) = (before.duration().as_secs(), before.duration().subsec_nanos());
            i64::try_from(i128::from(ns) - i128::from(seconds) * 1_000_000_000).unwrap_or(i64::MIN)
        }
    }
}

fn create(request: &Request, mode: u32, umask: u32) -> Create {
    Create { mode: (mode & 0o7777) as u16, umask: (umask & 0o777) as u16, uid: request.uid(), gid: request.gid() }
}

impl Tree for FileTree {
    fn notices(&self) -> Option<Arc<OnceLock<Notifier>>> {
        Some(Arc::clone(&self.notices))
    }
}

impl Filesystem for FileTree {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
            // Otherwise the kernel asks for capabilities before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_readahead(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn destroy(&mut self) {
        // `close` has already reported this error.
        if let Err(error) = self.files.sync()
            && !matches!(error, FsError::Closed)
        {
            tracing::warn!(%error, "the last changes of a filesystem are not durable");
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.found(parent, name.as_bytes());
        match found.and_then(|found| self.keep(found.0.ino).map(|()| found)) {
            Ok((attributes, time)) => reply.entry(&time, &attributes, Generation(0)),
            // Number 0: the kernel keeps that there is none.
            Err(FsError::NotFound) if parent.0 >> NUMBER_BITS == 0 => match self.attributes_of(parent) {
                Ok(any) => reply.entry(&ALWAYS, &FileAttr { ino: INodeNo(0), ..any }, Generation(0)),
                Err(error) => reply.error(errno(&error)),
            },
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.forgotten(number, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes_of(number) {
            // The number of snapshots changes.
            Ok(attributes) => reply.attr(if number.0 == DIRECTORY { &SNAPSHOT_TIME } else { &ALWAYS }, &attributes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let moment = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => ns(time),
            TimeOrNow::Now => ns(SystemTime::now()),
        };
        let own = match FileTree::own(number) {
            Ok(own) => own,
            Err(error) => return reply.error(errno(&error)),
        };
        // Of what is only added to, the times can be set to now alone.
        let is_chosen = [atime, mtime].iter().any(|time| matches!(time, Some(TimeOrNow::SpecificTime(_))));
        if is_chosen && self.files.inode(own).is_ok_and(|inode| inode.flags & APPEND_ONLY != 0) {
            return reply.error(Errno::EPERM);
        }
        // Who is not root loses them by a truncation, and everybody by a change of the owner.
        let drops = size.is_some() || uid.is_some() || gid.is_some();
        let drops_modes = mode.is_none() && (uid.is_some() || gid.is_some() || request.uid() != 0);
        let dropped = if drops { self.drop_privileges(request, own, drops_modes) } else { Ok(()) };
        let truncated = dropped.and_then(|()| size.map(|size| self.files.truncate(own, size)).transpose());
        let changed = Changed {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            atime_ns: atime.map(moment),
            mtime_ns: mtime.map(moment),
            ctime_ns: ctime.map(ns),
        };
        let inode = truncated.and_then(|_| self.files.set(number.0, changed));
        self.reply_attr(number.0, inode, reply);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.was_read(number);
        match self.inode(number) {
            Ok(Inode { kind: Kind::Symlink { target }, .. }) => reply.data(&target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let kind = match mode & 0o170_000 {
            0o020_000 => Kind::CharacterDevice { device: rdev },
            0o060_000 => Kind::BlockDevice { device: rdev },
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            0o100_000 | 0 => Kind::File,
            _ => return reply.error(Errno::EINVAL),
        };
        self.reply_entry(self.make(parent, name, kind, create(request, mode, umask)), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let kind = Kind::Directory { parent: parent.0 };
        self.reply_entry(self.make(parent, name, kind, create(request, mode, umask)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let own = FileTree::own(parent);
        reply_empty(own.and_then(|own| self.files.unlink(own, name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let own = FileTree::own(parent);
        reply_empty(own.and_then(|own| self.files.remove_directory(own, name.as_bytes())), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = Kind::Symlink { target: target.as_os_str().as_bytes().to_vec() };
        self.reply_entry(self.make(parent, name, kind, create(request, 0o777, 0)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = if flags == RenameFlags::RENAME_EXCHANGE {
            Rename::Exchange
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Rename::NoReplace
        } else if flags.is_empty() {
            Rename::Replace
        } else {
            return reply.error(Errno::EINVAL);
        };
        let places = FileTree::own(parent).and_then(|from| Ok((from, self.changed_name(new_parent, new_name)?)));
        let renamed = places.and_then(|(from, to)| self.files.rename((from, name.as_bytes()), (to, new_name.as_bytes()), how));
        reply_empty(renamed, reply);
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let places = FileTree::own(number).and_then(|number| Ok((number, self.changed_name(parent, name)?)));
        let linked = places.and_then(|(number, to)| self.files.link(number, to, name.as_bytes()));
        self.reply_entry(linked.map(|inode| (number.0, inode)), reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let checked = self.at(number).and_then(|(files, own, _)| check_open(&files, own, flags.0));
        match checked.and_then(|()| self.opened(number)) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let made = self.make(parent, name, Kind::File, create(request, mode, umask));
        // The kernel is told of it, and has it open.
        let kept = made.and_then(|made| self.files.opened(made.0).and_then(|()| self.files.opened(made.0)).map(|()| made));
        match kept {
            Ok((number, inode)) => {
                let attributes = self.attributes(number, &inode);
                reply.created(&ALWAYS, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if flags.0 & NOATIME == 0 {
            self.was_read(number);
        }
        match self.at(number).and_then(|(files, own, _)| files.read(own, offset, size as usize)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        kind: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = FileTree::own(number).and_then(|own| {
            self.drop_privileges(request, own, kind.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID))?;
            self.files.write(own, offset, data, flags.0 & APPEND != 0)
        });
        match written {
            Ok(_) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel asks once and then never again: a close has nothing to wait for.
        reply.error(Errno::ENOSYS);
    }

    fn release(&self, _: &Request, number: INodeNo, _: FileHandle, _: OpenFlags, _: Option<LockOwner>, _: bool, reply: ReplyEmpty) {
        // Of a snapshot, no file goes.
        reply_empty(FileTree::own(number).map_or(Ok(()), |own| self.files.closed(own)), reply);
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.sync(number), reply);
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.sync(number), reply);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Snapshots come and go.
        let cached = if number.0 == DIRECTORY { FopenFlags::empty() } else { FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE };
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        let listing = Listing::new(number.0);
        self.directories.lock().insert(handle, Arc::new(Mutex::new(listing)));
        reply.opened(FileHandle(handle), cached);
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.was_read(number);
        let listed =
            self.list(handle, offset, &mut |number, next, kind, name| !reply.add(INodeNo(number), next, kind, OsStr::from_bytes(name)));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.was_read(number);
        let time = if number.0 == DIRECTORY { SNAPSHOT_TIME } else { ALWAYS };
        let (mut failed, mut has_entries) = (None, false);
        let listed = self.list(handle, offset, &mut |file, next, kind, name| match self.listed(number, INodeNo(file), name, next) {
            Ok(attributes) => {
                // The kernel counts all but these.
                let is_counted = next > 2 && self.keep(attributes.ino).is_ok();
                let is_full = reply.add(attributes.ino, next, OsStr::from_bytes(name), &time, &attributes, Generation(0));
                if is_full && is_counted {
                    self.forgotten(attributes.ino, 1);
                }
                has_entries |= !is_full;
                !is_full
            }
            // It was removed meanwhile.
            Err(FsError::NotFound) => true,
            // The kernel has attributes of it, and pages that it would drop.
            Err(error) if self.is_known(INodeNo(file)) => {
                failed = Some(errno(&error));
                false
            }
            Err(error) => {
                // The log says why, and programs get the error when they look at the file.
                let _ = errno(&error);
                !reply.add(INodeNo(file), next, OsStr::from_bytes(name), &Duration::ZERO, &unknown(file, kind), Generation(0))
            }
        });
        match failed.map_or(listed, Err) {
            // The kernel has to learn of what is counted. It asks for the rest, and gets the error then.
            Err(_) if has_entries => reply.ok(),
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.directories.lock().remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let used = self.files.usage();
        let (device, free) = self.files.device().unwrap_or((u64::MAX, 0));
        let (all, free) = match used.quota_bytes {
            Some(quota) => (quota.max(used.used_bytes), quota.saturating_sub(used.used_bytes).min(free)),
            None => (device.max(used.used_bytes), free),
        };
        let inodes = used.inodes + FREE_INODES;
        let units = |bytes: u64| bytes / UNIT_BYTES;
        reply.statfs(
            units(all),
            units(free),
            units(free),
            inodes,
            FREE_INODES,
            UNIT_BYTES as u32,
            MAX_NAME_BYTES as u32,
            UNIT_BYTES as u32,
        );
    }

    fn setxattr(&self, request: &Request, number: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        let how = match flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let set = FileTree::own(number).and_then(|own| {
            let keeps_set_group = callers::may_keep_set_group(request, self.files.inode(own)?.gid);
            self.files.set_xattr_for(own, name.as_bytes(), Some(value), how, keeps_set_group)
        });
        reply_empty(set, reply);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.inode(number) {
            Ok(inode) => match inode.xattr(name.as_bytes()) {
                Some(value) => crate::backups::answer(value, size, reply),
                None => reply.error(Errno::NO_XATTR),
            },
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.inode(number) {
            Ok(inode) => {
                let is_seen = |name: &[u8]| request.uid() == 0 || !name.starts_with(b"trusted.");
                let seen = inode.xattrs.iter().filter(|(name, _)| is_seen(name));
                let names: Vec<u8> = seen.flat_map(|(name, _)| name.iter().copied().chain([0])).collect();
                crate::backups::answer(&names, size, reply);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let own = FileTree::own(number);
        reply_empty(own.and_then(|own| self.files.set_xattr(own, name.as_bytes(), None, SetXattr::Any)), reply);
    }

    fn ioctl(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        data: &[u8],
        out_bytes: u32,
        reply: ReplyIoctl,
    ) {
        match self.ioctl_of(number, command, data) {
            Ok(mut out) => {
                out.truncate(out_bytes as usize);
                reply.ioctl(0, &out);
            }
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(&self, request: &Request, number: INodeNo, _: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let how = match mode {
            0 => Allocate::Extend,
            KEEP_SIZE => Allocate::Keep,
            mode if mode == PUNCH_HOLE | KEEP_SIZE => Allocate::Punch,
            ZERO_RANGE => Allocate::Zero { keeps_size: false },
            mode if mode == ZERO_RANGE | KEEP_SIZE => Allocate::Zero { keeps_size: true },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let allocated = FileTree::own(number).and_then(|own| {
            self.drop_privileges(request, own, request.uid() != 0)?;
            self.files.allocate(own, offset, length, how)
        });
        reply_empty(allocated, reply);
    }

    fn lseek(&self, _: &Request, number: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seeks_hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.at(number).and_then(|(files, own, _)| files.seek(own, offset, seeks_hole)) {
            Ok(Some(at)) => reply.offset(at as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The answer is a u32.
        let length = length.min(1 << 30);
        let (from, to) = match (FileTree::own(from), FileTree::own(to)) {
            (Ok(from), Ok(to)) => (from, to),
            // Programs then read and write.
            (Err(_), Ok(_)) => return reply.error(Errno::EXDEV),
            (_, Err(error)) => return reply.error(errno(&error)),
        };
        let dropped = self.drop_privileges(request, to, request.uid() != 0);
        match dropped.and_then(|()| self.files.copy((from, from_offset), (to, to_offset), length)) {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }
}
