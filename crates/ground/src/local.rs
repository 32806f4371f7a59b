//! A directory of the local file system.

use crate::direct::DirectFile;
use crate::error::refused;
use crate::lock::{Held, LINE_MAX_BYTES};
use crate::permissions::{self, Exposure, Permissions};
use crate::{Access, Bucket, DirectoryEntry, File, Ground, Holder, Identity, LockError, LockGuard, Result, Space};
use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, FallocateFlags, FlockOperation, Gid, OFlags, SeekFrom, StatxFlags, Uid};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::collections::HashSet;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The system's id of in-memory file systems (TMPFS_MAGIC).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A local directory as the ground of a store.
#[derive(Debug)]
pub struct LocalGround {
    root: PathBuf,
    permissions: Permissions,
    /// Owner of the files that root creates here, so that root's use of a store changes no owner. `None`: files belong
    /// to their creator.
    owner: Option<(Uid, Gid)>,
    /// Directories whose names this process knows to be durable.
    durable_directories: Mutex<HashSet<PathBuf>>,
}

impl LocalGround {
    /// Opens an existing directory as a ground.
    pub fn open(root: impl AsRef<Path>) -> Result<LocalGround> {
        let root = root.as_ref();
        let found = fs::metadata(root).map_err(|source| refused("open", root, source))?;
        if !found.is_dir() {
            return Err(refused("open", root, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let root = fs::canonicalize(root).map_err(|source| refused("open", root, source))?;
        let is_given = found.uid() != 0 && rustix::process::geteuid().is_root();
        let owner = is_given.then(|| (Uid::from_raw(found.uid()), Gid::from_raw(found.gid())));
        Ok(LocalGround { root, permissions: Permissions::below(&found), owner, durable_directories: Mutex::default() })
    }

    /// Returns the absolute path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, path: &str) -> PathBuf {
        debug_assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."), "paths are relative: {path}");
        self.root.join(path)
    }

    /// Gives a new file or directory at `path` to the owner of the store. If a link led out of the store, it gives
    /// nothing away, unless to a directory that has the same owner. A file system without owners is no error.
    fn give(&self, path: &Path) {
        let Some((user, group)) = self.owner else { return };
        let is_owners = |directory: &Path| fs::metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == user.as_raw());
        let above = path.ancestors().skip(1).take_while(|directory| directory.starts_with(&self.root));
        if above.into_iter().all(is_owners) {
            let _ = rustix::fs::chownat(rustix::fs::CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW);
        }
    }
}

impl Ground for LocalGround {
    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        let path = self.path(path);
        let file = create_file(&path, self.permissions.file).map_err(|source| refused("create", &path, source))?;
        self.give(&path);
        Ok(Arc::new(LocalFile::new(file, path)))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let path = self.path(path);
        // Do not block on a pipe that somebody put into a store.
        let file = fs::OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(&path)
            .map_err(|source| refused("open", &path, source))?;
        if !file.metadata().map_err(|source| refused("open", &path, source))?.is_file() {
            return Err(refused("open", &path, io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        Ok(Arc::new(LocalFile::new(file, path)))
    }

    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>> {
        let cached = self.open(path, Access::Read)?;
        Ok(DirectFile::open(&self.path(path), cached.clone()).map_or(cached, |direct| Arc::new(direct)))
    }

    fn open_device(&self, path: &str, access: Access) -> Result<Option<Arc<dyn File>>> {
        let path = self.path(path);
        let fail = |source| refused("open", &path, source);
        match fs::metadata(&path) {
            Ok(found) if found.file_type().is_block_device() => {}
            Ok(_) => return Ok(None),
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(fail(source)),
        }
        let writes = access == Access::ReadWrite;
        let exclusive = if writes { OFlags::EXCL } else { OFlags::empty() };
        let opened = fs::OpenOptions::new().read(true).write(writes).custom_flags(exclusive.bits() as i32).open(&path);
        let file = opened.map_err(|source| match source.kind() {
            kind @ io::ErrorKind::ResourceBusy => fail(io::Error::new(kind, "it is mounted, or another program uses it")),
            _ => fail(source),
        })?;
        // The name may lead elsewhere by now.
        if !file.metadata().map_err(fail)?.file_type().is_block_device() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it is no block device any more")));
        }
        let length = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|source| fail(source.into()))?;
        // Its node is in a file system in memory; its bytes are not.
        Ok(Some(Arc::new(LocalDevice { file: LocalFile { file, path, is_in_memory: false }, length })))
    }

    fn link_device(&self, path: &str, device: &Path) -> Result<()> {
        let fail = |source| refused("use", device, source);
        let device = std::path::absolute(device).map_err(fail)?;
        if !fs::metadata(&device).map_err(fail)?.file_type().is_block_device() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it is no block device")));
        }
        let path = self.path(path);
        std::os::unix::fs::symlink(&device, &path).map_err(|source| refused("create", &path, source))
    }

    fn link_directory(&self, path: &str, directory: &Path) -> Result<()> {
        let fail = |source| refused("use", directory, source);
        let directory = std::path::absolute(directory).map_err(fail)?;
        let store = fs::metadata(&self.root).map_err(fail)?;
        match create_directory(&directory, self.permissions.directory) {
            Ok(()) => {
                // Only root can change the owner. A file system without owners is no error.
                let (user, group) = (self.owner.map(|(user, _)| user), Gid::from_raw(store.gid()));
                let _ = rustix::fs::chownat(rustix::fs::CWD, &directory, user, Some(group), AtFlags::SYMLINK_NOFOLLOW);
                // Changing the group may take the bit away that hands it on.
                permissions::set_mode_of(&directory, self.permissions.directory).map_err(fail)?;
            }
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(&directory).map_err(fail)?;
                if !found.is_dir() || found.uid() != store.uid() && found.uid() != rustix::process::geteuid().as_raw() {
                    return Err(fail(io::Error::new(source.kind(), "it is there, and is no directory of the store's owner")));
                }
                permissions::set_mode_of(&directory, self.permissions.directory).map_err(fail)?;
            }
            Err(source) => return Err(fail(source)),
        }
        // Who made it may have died before its name was durable.
        sync_directory(directory.parent().unwrap_or(&directory))?;
        let path = self.path(path);
        std::os::unix::fs::symlink(&directory, &path).map_err(|source| refused("create", &path, source))?;
        sync_directory(path.parent().unwrap_or(&path))
    }

    fn unlink_directory(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        let fail = |source| refused("remove", &path, source);
        let directory = fs::read_link(&path).map_err(fail)?;
        fs::remove_file(&path).map_err(fail)?;
        // No link must lead to nothing.
        sync_directory(path.parent().unwrap_or(&path))?;
        // It stays if there is anything in it, and if it is not there nobody misses it.
        let _ = fs::remove_dir(directory);
        Ok(())
    }

    fn linked_directory(&self, path: &str) -> Result<Option<PathBuf>> {
        let path = self.path(path);
        match fs::read_link(&path) {
            Ok(directory) => Ok(Some(directory)),
            Err(source) if source.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(source) => Err(refused("read", &path, source)),
        }
    }

    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool> {
        let cached = self.open(path, Access::Read)?;
        Ok(DirectFile::open(&self.path(path), cached).is_some_and(|direct| direct.holds(offset, data)))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let path = self.path(path);
        fs::remove_file(&path).map_err(|source| refused("remove", &path, source))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let from = self.path(from);
        fs::rename(&from, self.path(to)).map_err(|source| refused("rename", &from, source))
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let path = self.path(directory);
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).map_err(|source| refused("list", &path, source))? {
            let entry = entry.map_err(|source| refused("list", &path, source))?;
            let is_directory = entry.file_type().map_err(|source| refused("list", &path, source))?.is_dir();
            // A name that is not UTF-8 is not ours.
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(DirectoryEntry { name, is_directory });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        let mut made = PathBuf::new();
        for part in Path::new(directory) {
            let above = self.root.join(&made);
            made.push(part);
            let path = self.root.join(&made);
            match create_directory(&path, self.permissions.directory) {
                Ok(()) => self.give(&path),
                // Its creator may have died before the name was durable.
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
                    if self.durable_directories.lock().contains(&path) {
                        continue;
                    }
                }
                Err(source) => return Err(refused("create directory", &path, source)),
            }
            sync_directory(&above)?;
            self.durable_directories.lock().insert(path);
        }
        Ok(())
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        sync_directory(&self.path(directory))
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let path = self.path(path);
        path.try_exists().map_err(|source| refused("look for", &path, source))
    }

    fn space(&self) -> Result<Space> {
        self.space_in("")
    }

    fn space_in(&self, directory: &str) -> Result<Space> {
        let path = self.path(directory);
        let found = rustix::fs::statvfs(&path).map_err(|source| refused("read the free space of", &path, source))?;
        Ok(Space { free_bytes: found.f_bavail.saturating_mul(found.f_frsize), total_bytes: found.f_blocks.saturating_mul(found.f_frsize) })
    }

    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError> {
        let path = self.path(path);
        let (file, writable) = open_lock(&path, exclusive, self.permissions.file).map_err(|source| refused("open", &path, source))?;
        let operation = if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder = read_holder(&file).filter(|holder| !holder.has_ended());
                // If several readers share the lock, the line names the last to come. When that one is gone, the system
                // knows the others.
                let holder = holder.or_else(|| file.metadata().ok().and_then(|found| Holder::of_lock_on(found.dev(), found.ino())));
                return Err(LockError::Held { path: path.display().to_string(), holder });
            }
            Err(source) => return Err(refused("lock", &path, source).into()),
        }
        self.give(&path);
        // No exclusive holder is alive now, so we may write the line. It is for people: failing to write it is no
        // error.
        if writable {
            let line = holder.line();
            let _ = file.write_all_at(&line, 0).and_then(|()| file.set_len(line.len() as u64));
        }
        Ok(LockGuard::new(LocalLock { file, path, exclusive }))
    }

    fn identity(&self, path: &str) -> Result<Option<Identity>> {
        let path = self.path(path);
        match rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::BTIME) {
            Ok(found) if found.stx_mask & StatxFlags::BTIME.bits() != 0 => {
                let born = found.stx_btime;
                let born_ns = u64::try_from(born.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(u64::from(born.tv_nsec));
                Ok(Some(Identity { born_ns }))
            }
            Ok(_) | Err(rustix::io::Errno::NOSYS) => Ok(None),
            Err(source) => Err(refused("ask about", &path, source)),
        }
    }

    fn describe(&self, path: &str) -> String {
        self.path(path).display().to_string()
    }

    fn exposure(&self) -> Result<Option<Exposure>> {
        permissions::exposure(&self.root).map_err(|source| refused("read the file modes in", &self.root, source))
    }

    fn bucket(&self) -> Option<Arc<dyn Bucket>> {
        None
    }
}

/// Creates a file that nobody else can open at any moment, then sets its mode.
fn create_file(path: &Path, mode: u32) -> io::Result<fs::File> {
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(Permissions::PRIVATE.file).open(path)?;
    if let Err(source) = permissions::set_mode(&file, mode) {
        // Otherwise a retry would find it.
        let _ = fs::remove_file(path);
        return Err(source);
    }
    Ok(file)
}

fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(Permissions::PRIVATE.directory).create(path)?;
    permissions::set_mode_of(path, mode)
}

/// Opens the lock file and creates it if needed. A reader without write permission locks it but leaves no name.
fn open_lock(path: &Path, exclusive: bool, mode: u32) -> io::Result<(fs::File, bool)> {
    let open = || match fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => match create_file(path, mode) {
            // Another process created it in between.
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => fs::OpenOptions::new().read(true).write(true).open(path),
            created => created,
        },
        opened => opened,
    };
    match open() {
        Err(source) if !exclusive && matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            Ok((fs::File::open(path)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

fn read_holder(file: &fs::File) -> Option<Holder> {
    let mut line = vec![0; LINE_MAX_BYTES];
    let length = file.read_at(&mut line, 0).ok()?;
    Holder::parse(&line[..length])
}

/// A held lock. Closing the file releases it.
#[derive(Debug)]
struct LocalLock {
    file: fs::File,
    path: PathBuf,
    exclusive: bool,
}

impl Held for LocalLock {
    fn is_held(&self) -> Result<bool> {
        let fail = |source| refused("look for", &self.path, source);
        match fs::metadata(&self.path) {
            Ok(named) => {
                // The open file keeps its inode number from being reused.
                let locked = self.file.metadata().map_err(fail)?;
                Ok((named.dev(), named.ino()) == (locked.dev(), locked.ino()))
            }
            Err(source) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(source) => Err(fail(source)),
        }
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        // With a shared lock, the line may name another holder. An exclusive holder is alone.
        if self.exclusive {
            let _ = self.file.set_len(0);
        }
    }
}

fn sync_directory(path: &Path) -> Result<()> {
    let directory = fs::File::open(path).map_err(|source| refused("open", path, source))?;
    directory.sync_all().map_err(|source| refused("sync", path, source))
}

#[derive(Debug)]
struct LocalFile {
    file: fs::File,
    path: PathBuf,
    /// Whether its file system has no device (tmpfs): then reads never wait.
    is_in_memory: bool,
}

impl LocalFile {
    fn new(file: fs::File, path: PathBuf) -> LocalFile {
        let is_in_memory = rustix::fs::fstatfs(&file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC));
        LocalFile { file, path, is_in_memory }
    }
}

impl File for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|source| refused("read", &self.path, source))
    }

    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        let length = buffer.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            // A short read: either the rest is not in memory, or the file ends. A read that waits will tell.
            Ok(read) => Ok(read == length),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if self.is_in_memory => self.read_at(offset, buffer).map(|()| true),
            // This includes systems that cannot tell: then we cannot know that a read would not wait.
            Err(_) => Ok(false),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, offset).map_err(|source| refused("write", &self.path, source))
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|source| refused("read the length of", &self.path, source))?.len())
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|source| refused("read the block count of", &self.path, source))?;
        Ok(metadata.blocks().saturating_mul(512))
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(|source| refused("set the length of", &self.path, source))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| refused("sync", &self.path, source))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, length) {
            Ok(()) => Ok(()),
            // The file system has no fallocate. Zeros written now guarantee space for later writes.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                let present = self.len()?;
                let zeros = vec![0; 1 << 16];
                let mut at = present.max(offset);
                while at < offset + length {
                    let step = zeros.len().min((offset + length - at) as usize);
                    self.write_at(at, &zeros[..step])?;
                    at += step as u64;
                }
                Ok(())
            }
            Err(source) => Err(refused("reserve space in", &self.path, source)),
        }
    }

    fn pretend_write(&self, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }

    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()> {
        self.allocate(offset, length)
    }

    fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(source) => Err(refused("make a hole in", &self.path, source)),
        }
    }

    fn start_writeback(&self, offset: u64, length: u64) {
        // sync_file_range needs `unsafe`: no crate wraps it. On Linux this advice starts writeback of the dirty pages,
        // does not wait, and keeps them cached meanwhile (100 us for 4 MiB). It evicts pages of the range that were
        // clean, so use it only for freshly written ranges. Elsewhere the sync that follows does all the work.
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), Advice::DontNeed);
        }
    }

    fn read_ahead(&self, offset: u64, length: u64) {
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), Advice::WillNeed);
        }
    }

    fn drop_cached(&self, offset: u64, length: u64) {
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(length), Advice::DontNeed);
        }
    }
}

/// A block device. The system says nothing of its length where it says that of a file.
#[derive(Debug)]
struct LocalDevice {
    file: LocalFile,
    length: u64,
}

impl crate::DelegatingFile for LocalDevice {
    fn below(&self) -> &dyn File {
        &self.file
    }

    fn len(&self) -> Result<u64> {
        Ok(self.length)
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(command: &str) -> Holder {
        Holder::this_process(command)
    }

    #[test]
    fn what_is_read_without_waiting_is_what_was_written() {
        for directory in [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter().filter(|directory| directory.is_dir()) {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let file = LocalGround::open(directory.path()).unwrap().create("file").unwrap();
            file.write_at(0, &[7; 10_000]).unwrap();
            let mut bytes = [0; 5000];
            // The range was just written, so it is in memory, unless the file system cannot tell.
            assert!(!file.try_read_at(3000, &mut bytes).unwrap() || bytes == [7; 5000]);
            assert!(!matches!(file.try_read_at(5001, &mut bytes), Ok(true)), "behind the end of the file");
        }
    }

    fn held_by(result: std::result::Result<LockGuard, LockError>) -> Option<String> {
        match result {
            Err(LockError::Held { holder, .. }) => holder.map(|holder| holder.command),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn a_hole_takes_no_room_until_it_is_allocated() {
        let directory = tempfile::tempdir().unwrap();
        let file = LocalGround::open(directory.path()).unwrap().create("file").unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(file.allocated_bytes().unwrap() < 1 << 20);
        file.allocate(0, 1 << 20).unwrap();
        assert!(file.allocated_bytes().unwrap() >= 1 << 20);
    }

    #[test]
    fn a_pipe_or_a_device_in_the_place_of_a_file_is_refused_and_nobody_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, directory.path().join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.path().join("zero")).unwrap();
        for name in ["pipe", "zero"] {
            for access in [Access::Read, Access::ReadWrite] {
                assert_eq!(ground.open(name, access).map(drop).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
            }
        }
    }

    #[test]
    fn what_root_makes_in_a_store_belongs_to_the_owner_of_the_store_and_nothing_behind_a_link_does() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root");
        }
        let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::chown(directory.path(), Some(12_345), Some(12_346)).unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        ground.create_directory("a/b").unwrap();
        ground.create("a/b/file").unwrap();
        drop(ground.lock("lock", true, &holder("restore")).unwrap());
        let owner = |path: &Path| fs::symlink_metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
        for name in ["a", "a/b", "a/b/file", "lock"] {
            assert_eq!(owner(&directory.path().join(name)), (12_345, 12_346), "{name}");
        }
        std::os::unix::fs::symlink(elsewhere.path(), directory.path().join("a/link")).unwrap();
        ground.create("a/link/file").unwrap();
        assert_eq!(owner(&elsewhere.path().join("file")).0, 0);
    }

    #[test]
    fn a_copy_of_a_file_has_another_identity() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        ground.create("one").unwrap();
        let Some(identity) = ground.identity("one").unwrap() else {
            return println!("skipped: the file system does not say when a file was made");
        };
        ground.rename("one", "two").unwrap();
        assert_eq!(ground.identity("two").unwrap(), Some(identity));
        // The clock of a file system ticks every few milliseconds; files made within one tick have the same time.
        let copied = || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let _ = std::fs::remove_file(directory.path().join("one"));
            std::fs::copy(directory.path().join("two"), directory.path().join("one")).unwrap();
            ground.identity("one").unwrap()
        };
        assert!((0..1000).any(|_| copied() != Some(identity)));
        assert!(ground.identity("three").unwrap_err().is_not_found());
    }

    #[test]
    fn an_exclusive_lock_keeps_everyone_out_and_names_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let guard = ground.lock("lock", true, &holder("serve")).unwrap();
        assert_eq!(held_by(ground.lock("lock", true, &holder("backup"))), Some("serve".into()));
        assert_eq!(held_by(ground.lock("lock", false, &holder("ls"))), Some("serve".into()));
        assert_eq!(held_by(ground.lock("lock", false, &holder("ls"))), Some("serve".into()), "a reader that is refused writes no line");
        drop(guard);
        ground.lock("lock", true, &holder("backup")).unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_or_replaced_is_not_held_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let guard = ground.lock("lock", true, &holder("serve")).unwrap();
        assert!(guard.is_held().unwrap());
        ground.rename("lock", "aside").unwrap();
        assert!(!guard.is_held().unwrap());
        ground.rename("aside", "lock").unwrap();
        assert!(guard.is_held().unwrap(), "it is the locked file again");
        ground.remove("lock").unwrap();
        assert!(!guard.is_held().unwrap());
        let second = ground.lock("lock", true, &holder("backup")).unwrap();
        assert!(second.is_held().unwrap());
        assert!(!guard.is_held().unwrap());
    }

    #[test]
    fn readers_share_a_lock_and_keep_a_writer_out() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let first = ground.lock("lock", false, &holder("ls")).unwrap();
        let second = ground.lock("lock", false, &holder("restore")).unwrap();
        assert_eq!(held_by(ground.lock("lock", true, &holder("serve"))), Some("restore".into()));
        drop(first);
        assert_eq!(held_by(ground.lock("lock", true, &holder("serve"))), Some("restore".into()));
        drop(second);
        ground.lock("lock", true, &holder("serve")).unwrap();
    }

    #[test]
    fn a_process_that_ended_is_not_named_but_one_that_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        let gone = Holder { pid: 0, ..holder("serve") };
        let _guard = ground.lock("lock", false, &gone).unwrap();
        let this_program = std::env::args().next().unwrap();
        let this_program = this_program.rsplit('/').next().unwrap();
        assert!(held_by(ground.lock("lock", true, &holder("backup"))).unwrap().starts_with(this_program));
    }

    /// A sync of files in `/proc` fails. A sync that never asked the system would succeed.
    fn that_cannot_be_synced() -> LocalGround {
        LocalGround::open("/proc/self").unwrap()
    }

    fn was_refused(result: Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
    }

    #[test]
    fn syncing_a_file_or_a_directory_asks_the_system() {
        let ground = that_cannot_be_synced();
        assert!(was_refused(ground.open("comm", Access::ReadWrite).unwrap().sync()));
        assert!(was_refused(ground.sync_directory("task")));
        assert!(was_refused(ground.sync_directory("")));
    }

    #[test]
    fn the_name_of_a_directory_that_exists_is_made_durable_once() {
        assert!(was_refused(that_cannot_be_synced().create_directory("task")), "a killed process may have made it");
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        fs::create_dir(directory.path().join("a")).unwrap();
        for _ in 0..2 {
            ground.create_directory("a/b").unwrap();
        }
        let durable: Vec<_> = ground.durable_directories.lock().iter().cloned().collect();
        assert_eq!(durable.len(), 2, "{durable:?}");
    }

    #[test]
    fn files_are_written_renamed_listed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let ground = LocalGround::open(directory.path()).unwrap();
        ground.create_directory("a/b").unwrap();
        let file = ground.create("a/b/one").unwrap();
        file.allocate(0, 10_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
        file.write_at(9_990, b"0123456789abc").unwrap();
        file.start_writeback(0, 10_003);
        file.sync().unwrap();
        ground.rename("a/b/one", "a/b/two").unwrap();
        ground.sync_directory("a/b").unwrap();
        let bytes = crate::read_file(&ground, "a/b/two", 1 << 20).unwrap();
        assert_eq!((bytes.len(), &bytes[9_990..]), (10_003, &b"0123456789abc"[..]));
        assert!(ground.open("a/b/two", Access::Read).unwrap().write_at(0, b"x").is_err());
        assert_eq!(ground.list("a").unwrap(), [DirectoryEntry { name: "b".into(), is_directory: true }]);
        ground.remove("a/b/two").unwrap();
        assert!(ground.list("a/b").unwrap().is_empty());
    }
}
