//! The requests of the kernel.

use super::held::{AllHeld, Backups, Opening};
use super::names::{Directory, Place};
use super::nodes::{self, Failed, Kind, Node, Nodes};
use super::reading::{Ahead, File};
use crate::mount::Tree;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyXattr, Request,
};
use onefold_catalog::{Attributes, Backup, CatalogError, Chunks, Content, DirectoryReader, Entry, FileReader, is_valid_name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::iter::Peekable;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the kernel keeps what is in a backup: a year stands for always.
const ALWAYS: Duration = Duration::from_secs(365 * 86_400);
/// How long the kernel keeps what is above the backups, and how old a list of backups may be.
const BRIEFLY: Duration = Duration::from_secs(1);
/// How often backups are closed that nobody reads.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// The longest name that the kernel takes.
const MAX_NAME_BYTES: usize = 255;
/// How long one request looks for holes. What is behind counts as data.
const SEEKS_FOR: Duration = Duration::from_secs(2);
/// The size in which programs should read.
const READ_BYTES: u32 = 128 << 10;
/// FS_IOC_GETFLAGS and its 32-bit form.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];

/// How backups are shown.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Memory for reading ahead, bytes.
    pub ahead_bytes: usize,
    /// Whether the kernel checks the permissions of files, for mounts that others than their owner see.
    pub checks_permissions: bool,
    /// The owner of the directories above the backups.
    pub owner: (u32, u32),
}

/// All backups as a tree.
#[derive(Debug)]
pub struct BackupTree(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: TreeOptions,
    source: Arc<dyn Backups>,
    held: AllHeld,
    nodes: Nodes,
    list: Mutex<Option<Listed>>,
    ahead: Ahead,
    handles: AtomicU64,
    files: Mutex<HashMap<u64, Arc<File>>>,
    directories: Mutex<HashMap<u64, Arc<Mutex<Listing>>>>,
    began: SystemTime,
}

#[derive(Debug)]
struct Listed {
    at: Instant,
    backups: HashMap<onefold_catalog::BackupId, Backup>,
    root: Directory,
}

/// A directory that is being read.
#[derive(Debug)]
struct Listing {
    node: Arc<Node>,
    /// How many entries were returned, and what follows. `None`: it was not begun, or begins again.
    position: Option<(u64, Entries)>,
}

#[derive(Debug)]
enum Entries {
    /// Above the backups.
    Above(Peekable<std::vec::IntoIter<(String, Kind)>>),
    /// Of a backup.
    Inside(Arc<Opening>, Box<Peekable<DirectoryReader<dyn Chunks>>>),
}

impl BackupTree {
    /// Returns a tree of these backups. Errors: no threads can be started.
    pub fn new(source: Arc<dyn Backups>, options: TreeOptions) -> std::io::Result<BackupTree> {
        let shared = Arc::new(Shared {
            options,
            held: AllHeld::new(source.clone()),
            source,
            nodes: Nodes::new(),
            list: Mutex::default(),
            ahead: Ahead::start(options.ahead_bytes)?,
            handles: AtomicU64::new(1),
            files: Mutex::default(),
            directories: Mutex::default(),
            began: SystemTime::now(),
        });
        let weak = Arc::downgrade(&shared);
        let tidy = move || {
            while let Some(shared) = weak.upgrade() {
                shared.tidy();
                drop(shared);
                std::thread::sleep(TIDY_EVERY);
            }
        };
        std::thread::Builder::new().name("tidy".to_owned()).spawn(tidy)?;
        Ok(BackupTree(shared))
    }
}

/// Returns the error for the kernel, and tells the log.
fn errno(what: &str, node: &Node, error: &Failed) -> Errno {
    if let Some(CatalogError::PathNotFound { .. }) = error.downcast_ref() {
        return Errno::ENOENT;
    }
    tracing::warn!(path = node.path(), "{what} is not possible: {error}");
    Errno::EIO
}

impl Shared {
    fn tidy(&self) {
        self.list.lock().take_if(|list| list.at.elapsed() > BRIEFLY);
        self.held.tidy();
    }

    fn node(&self, number: INodeNo) -> Result<Arc<Node>, Errno> {
        self.nodes.get(number.0).ok_or(Errno::ESTALE)
    }

    /// Returns what is in a directory above the backups.
    fn above<T>(&self, path: &str, look: impl FnOnce(&Listed, &Directory) -> T) -> Result<Option<T>, Failed> {
        let mut list = self.list.lock();
        if list.as_ref().is_none_or(|list| list.at.elapsed() > BRIEFLY) {
            let backups = self.source.list()?;
            let root = Directory::of(&backups);
            let backups = backups.into_iter().map(|backup| (backup.id, backup)).collect();
            *list = Some(Listed { at: Instant::now(), backups, root });
        }
        let Some(list) = &*list else { return Ok(None) };
        Ok(list.root.at(path).map(|directory| look(list, directory)))
    }

    /// Returns what a place above the backups is.
    fn kind(&self, list: &Listed, path: &str, name: &str, place: &Place) -> Option<Kind> {
        Some(match place {
            Place::Directory(_) => Kind::Above(format!("{path}/{name}")),
            Place::Link(target) => Kind::Link(target.clone()),
            Place::Backup(id) => Kind::Backup(self.held.get(list.backups.get(id)?)),
        })
    }

    fn find(&self, parent: &Arc<Node>, name: &[u8]) -> Result<Option<Arc<Node>>, Failed> {
        if let Kind::Above(path) = &parent.kind {
            let Ok(name) = std::str::from_utf8(name) else { return Ok(None) };
            let found =
                self.above(path, |list, directory| directory.entries.get(name).and_then(|place| self.kind(list, path, name, place)))?;
            return Ok(found.flatten().map(|kind| self.nodes.look_up(node_above(parent.number, name, kind))));
        }
        let Some(held) = parent.held() else { return Ok(None) };
        held.with_opening(&|opening| {
            let Some(directory) = parent.directory(opening)? else { return Ok(None) };
            let found = DirectoryReader::find(&opening.opened.chunks, &directory, name)?;
            found.map(|entry| Ok(self.nodes.look_up(nodes::inside(held, parent, opening, entry)?))).transpose()
        })
    }

    fn attributes(&self, node: &Node) -> FileAttr {
        match &node.kind {
            Kind::Above(_) => self.own(node.number, FileType::Directory, 0o555, self.began),
            Kind::Link(target) => FileAttr { size: target.len() as u64, ..self.own(node.number, FileType::Symlink, 0o777, self.began) },
            Kind::Backup(held) => {
                let time = time(held.backup.started_ns);
                self.own(node.number, FileType::Directory, 0o555, time)
            }
            Kind::In(inside) => attributes_of(node.number, &inside.entry()),
        }
    }

    fn own(&self, number: u64, kind: FileType, perm: u16, time: SystemTime) -> FileAttr {
        let (uid, gid) = self.options.owner;
        let nlink = if kind == FileType::Directory { 2 } else { 1 };
        let (ino, blksize) = (INodeNo(number), READ_BYTES);
        FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev: 0,
            blksize,
            flags: 0,
        }
    }

    /// Begins to read a directory.
    fn entries(&self, node: &Arc<Node>) -> Result<Entries, Failed> {
        if let Kind::Above(path) = &node.kind {
            let list = |list: &Listed, directory: &Directory| {
                let kinds = directory.entries.iter().filter_map(|(name, place)| Some((name.clone(), self.kind(list, path, name, place)?)));
                kinds.collect::<Vec<_>>()
            };
            let entries = self.above(path, list)?.ok_or_else(|| CatalogError::PathNotFound { path: path.clone() })?;
            return Ok(Entries::Above(entries.into_iter().peekable()));
        }
        let held = node.held().ok_or("it is no directory")?;
        held.with_opening(&|opening| {
            let directory = node.directory(opening)?.ok_or("it is no directory")?;
            let mut reader = DirectoryReader::new(&opening.opened.chunks, &directory).peekable();
            // If the connection is lost, this finds out.
            reader.peek();
            Ok(Entries::Inside(opening.clone(), Box::new(reader)))
        })
    }

    /// Passes the entries of a directory from a position on to `add` until that returns false.
    fn list(&self, handle: FileHandle, from: u64, add: &mut dyn FnMut(u64, &Shown<'_>) -> bool) -> Result<(), Errno> {
        let listing = self.directories.lock().get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        let mut listing = listing.lock();
        let node = listing.node.clone();
        let failed = |error: &Failed| errno("listing it", &node, error);
        if listing.position.as_ref().is_none_or(|(at, _)| *at > from) {
            listing.position = Some((0, self.entries(&node).map_err(|error| failed(&error))?));
        }
        let Some((position, entries)) = &mut listing.position else { return Ok(()) };
        let begin = *position;
        loop {
            // `.` and `..` come first. The kernel knows their numbers.
            let is_added = if *position < 2 {
                let name = if *position == 0 { "." } else { ".." };
                let shown = Shown { name: OsStr::new(name), number: node.number, kind: FileType::Directory, node: None };
                *position < from || add(*position + 1, &shown)
            } else {
                match entries {
                    Entries::Above(entries) => {
                        let Some((name, kind)) = entries.peek() else { return Ok(()) };
                        let made = node_above(node.number, name, kind.again());
                        let (number, kind) = (made.number, file_type_above(&made.kind));
                        let shown = Shown { name: OsStr::new(name), number, kind, node: Some(&|| Ok(self.nodes.look_up(made.again()))) };
                        let is_added = *position < from || add(*position + 1, &shown);
                        if is_added {
                            entries.next();
                        }
                        is_added
                    }
                    Entries::Inside(opening, entries) => {
                        let Some(entry) = entries.peek() else { return Ok(()) };
                        let held = node.held().ok_or(Errno::EIO)?;
                        let is_added = match entry {
                            // The entries of a damaged chunk are missing; the rest is there. Whoever lists hears of it.
                            // What was added in this call must reach the kernel first.
                            Err(_) if *position > begin => return Ok(()),
                            Err(error) => {
                                tracing::warn!(path = node.path(), "a part of the directory is damaged: {error}");
                                entries.next();
                                return Err(Errno::EIO);
                            }
                            Ok(entry) if !is_valid_name(&entry.name) || entry.name.len() > MAX_NAME_BYTES => {
                                tracing::warn!(path = node.path(), "a name that no file can have is left out");
                                true
                            }
                            Ok(entry) => {
                                let make = || Ok(self.nodes.look_up(nodes::inside(held, &node, opening, entry.clone())?));
                                let number = nodes::number_of_entry(held, node.number, entry);
                                let kind = file_type(&entry.content).unwrap_or(FileType::RegularFile);
                                let shown = Shown { name: OsStr::from_bytes(&entry.name), number, kind, node: Some(&make) };
                                *position < from || add(*position + 1, &shown)
                            }
                        };
                        if is_added {
                            entries.next();
                        }
                        is_added
                    }
                }
            };
            if !is_added {
                return Ok(());
            }
            *position += 1;
        }
    }
}

/// An entry of a directory, as it is listed.
struct Shown<'a> {
    name: &'a OsStr,
    number: u64,
    kind: FileType,
    /// Lets the kernel know it. `None`: it knows it.
    node: Option<&'a dyn Fn() -> Result<Arc<Node>, Failed>>,
}

impl Kind {
    /// Returns the same, of something above the backups.
    fn again(&self) -> Kind {
        match self {
            Kind::Above(path) => Kind::Above(path.clone()),
            Kind::Link(target) => Kind::Link(target.clone()),
            Kind::Backup(held) => Kind::Backup(held.clone()),
            Kind::In(_) => unreachable!("it is in a backup"),
        }
    }
}

impl Node {
    fn again(&self) -> Node {
        Node { number: self.number, kind: self.kind.again() }
    }
}

fn node_above(parent: u64, name: &str, kind: Kind) -> Node {
    match kind {
        Kind::Backup(held) => nodes::of_backup(held),
        kind => nodes::above(parent, name, kind),
    }
}

fn file_type_above(kind: &Kind) -> FileType {
    if matches!(kind, Kind::Link(_)) { FileType::Symlink } else { FileType::Directory }
}

/// Returns the kind of file. `None`: it is another name of one.
fn file_type(content: &Content) -> Option<FileType> {
    Some(match content {
        Content::File { .. } => FileType::RegularFile,
        Content::Directory { .. } => FileType::Directory,
        Content::Symlink { .. } => FileType::Symlink,
        Content::CharacterDevice { .. } => FileType::CharDevice,
        Content::BlockDevice { .. } => FileType::BlockDevice,
        Content::Fifo => FileType::NamedPipe,
        Content::Socket => FileType::Socket,
        Content::HardLink { .. } => return None,
    })
}

pub(crate) fn time(time_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(time_ns.unsigned_abs());
    let time = if time_ns < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

fn attributes_of(number: u64, entry: &Entry) -> FileAttr {
    let Attributes { mode, uid, gid, mtime_ns, ctime_ns, links, .. } = entry.attributes;
    let (size, blocks) = match &entry.content {
        Content::File { size_bytes, recipe } => {
            // Of a large file it takes a while to know how much is stored. One block less than all has programs ask for
            // holes.
            let less = (size_bytes / 512).saturating_sub(1);
            let blocks = FileReader::<dyn Chunks>::stored_bytes(recipe).map_or(less, |bytes| bytes.div_ceil(512));
            (*size_bytes, blocks)
        }
        Content::Symlink { target } => (target.len() as u64, 0),
        _ => (0, 0),
    };
    let rdev = match entry.content {
        Content::CharacterDevice { major, minor } | Content::BlockDevice { major, minor } => {
            (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
        }
        _ => 0,
    };
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks,
        atime: time(mtime_ns),
        mtime: time(mtime_ns),
        ctime: time(ctime_ns),
        crtime: time(ctime_ns),
        kind: file_type(&entry.content).unwrap_or(FileType::RegularFile),
        perm: mode & 0o7777,
        nlink: u32::try_from(links.max(1)).unwrap_or(u32::MAX),
        uid,
        gid,
        rdev,
        blksize: READ_BYTES,
        flags: 0,
    }
}

/// Returns how long the kernel keeps a node.
fn lifetime(node: &Node) -> &'static Duration {
    match node.kind {
        Kind::Above(_) | Kind::Link(_) => &BRIEFLY,
        // Its name may go, and what is in it never changes.
        Kind::Backup(_) => &BRIEFLY,
        Kind::In(_) => &ALWAYS,
    }
}

/// Answers a question for an extended attribute: its length, or the bytes.
pub(crate) fn answer(value: &[u8], size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

impl Tree for BackupTree {}

impl Filesystem for BackupTree {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ];
        if self.0.options.checks_permissions {
            wanted.push(InitFlags::FUSE_POSIX_ACL);
        }
        for flag in wanted {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_readahead(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match self.0.node(parent) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        match self.0.find(&node, name.as_bytes()) {
            Ok(Some(found)) => reply.entry(lifetime(&found), &self.0.attributes(&found), Generation(0)),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(error) => reply.error(errno("looking into it", &node, &error)),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.0.nodes.forget(number.0, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.node(number) {
            Ok(node) => reply.attr(lifetime(&node), &self.0.attributes(&node)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.0.node(number) {
            Ok(node) => match &node.kind {
                Kind::Link(target) => reply.data(target.as_bytes()),
                Kind::In(inside) => match &inside.entry().content {
                    Content::Symlink { target } => reply.data(target),
                    _ => reply.error(Errno::EINVAL),
                },
                _ => reply.error(Errno::EINVAL),
            },
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let node = match self.0.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let file = self.0.ahead.open(node.clone());
        // An error is better here than at a read.
        if let Err(error) = file.length() {
            return reply.error(errno("opening it", &node, &error));
        }
        let handle = self.0.handles.fetch_add(1, Ordering::Relaxed);
        self.0.files.lock().insert(handle, file);
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.0.files.lock().get(&handle.0).cloned() else { return reply.error(Errno::EBADF) };
        let read = file.length().and_then(|length| {
            let end = offset.saturating_add(u64::from(size)).min(length);
            if offset >= end { Ok(Vec::new()) } else { self.0.ahead.read(&file, offset..end) }
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno("reading it", file.node(), &error)),
        }
    }

    fn release(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, _: Option<LockOwner>, _: bool, reply: ReplyEmpty) {
        let file = self.0.files.lock().remove(&handle.0);
        reply.ok();
        drop(file);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let node = match self.0.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let flags = match &node.kind {
            Kind::Backup(_) | Kind::In(_) => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            Kind::Above(_) | Kind::Link(_) => FopenFlags::empty(),
        };
        let handle = self.0.handles.fetch_add(1, Ordering::Relaxed);
        self.0.directories.lock().insert(handle, Arc::new(Mutex::new(Listing { node, position: None })));
        reply.opened(FileHandle(handle), flags);
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.0.list(handle, offset, &mut |next, shown| !reply.add(INodeNo(shown.number), next, shown.kind, shown.name));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.0.list(handle, offset, &mut |next, shown| {
            let Some(make) = shown.node else {
                let attributes = self.0.own(shown.number, FileType::Directory, 0o555, self.0.began);
                return !reply.add(INodeNo(shown.number), next, shown.name, &Duration::ZERO, &attributes, Generation(0));
            };
            match make() {
                Ok(node) => {
                    let attributes = self.0.attributes(&node);
                    let is_full = reply.add(INodeNo(node.number), next, shown.name, lifetime(&node), &attributes, Generation(0));
                    if is_full {
                        self.0.nodes.forget(node.number, 1);
                    }
                    !is_full
                }
                // A name whose file is gone is listed: whoever looks it up hears why. Number 0: the kernel knows
                // nothing of it.
                Err(_) => {
                    let attributes = FileAttr { ino: INodeNo(0), ..self.0.own(shown.number, shown.kind, 0, self.0.began) };
                    !reply.add(INodeNo(0), next, shown.name, &Duration::ZERO, &attributes, Generation(0))
                }
            }
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let listing = self.0.directories.lock().remove(&handle.0);
        reply.ok();
        drop(listing);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let node = match self.0.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let Kind::In(inside) = &node.kind else { return reply.error(Errno::NO_XATTR) };
        let entry = inside.entry();
        match entry.attributes.xattrs.iter().find(|(own, _)| own == name.as_bytes()) {
            Some((_, value)) => answer(value, size, reply),
            None => reply.error(Errno::NO_XATTR),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let node = match self.0.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let mut names = Vec::new();
        if let Kind::In(inside) = &node.kind {
            inside.entry().attributes.xattrs.iter().for_each(|(name, _)| {
                names.extend_from_slice(name);
                names.push(0);
            });
        }
        answer(&names, size, reply);
    }

    fn ioctl(&self, _: &Request, number: INodeNo, _: FileHandle, _: IoctlFlags, command: u32, _: &[u8], size: u32, reply: ReplyIoctl) {
        let node = match self.0.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        match &node.kind {
            Kind::In(inside) if GET_FLAGS.contains(&command) => {
                let flags = u64::from(inside.entry().attributes.flags).to_le_bytes();
                reply.ioctl(0, &flags[..(size as usize).min(flags.len())]);
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Some(file) = self.0.files.lock().get(&handle.0).cloned() else { return reply.error(Errno::EBADF) };
        let seeks_zeros = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let found = u64::try_from(offset).map_err(|_| Errno::ENXIO).and_then(|offset| {
            let found = seek(&file, offset, seeks_zeros).map_err(|error| errno("looking for holes", file.node(), &error))?;
            found.ok_or(Errno::ENXIO)
        });
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(error),
        }
    }
}

/// `whence` of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Returns where the next data or zeros begin. At the end of a file is a hole.
fn seek(file: &File, offset: u64, seeks_zeros: bool) -> Result<Option<u64>, Failed> {
    let (mut at, begun) = (offset, Instant::now());
    while let Some(run) = file.run(at)? {
        if run.is_zeros == seeks_zeros || (!seeks_zeros && begun.elapsed() > SEEKS_FOR) {
            return Ok(Some(at));
        }
        if begun.elapsed() > SEEKS_FOR {
            return Ok(Some(file.length()?));
        }
        at = run.end;
    }
    Ok((seeks_zeros && offset < file.length()?).then_some(at))
}
