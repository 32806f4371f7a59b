//! A disk in memory that crashes, tears, fills up and fails on demand, for tests.
//!
//! # What a crash leaves
//! The model is a journaling file system on a device that writes sectors of 512 bytes atomically, seen through
//! `fdatasync` and the `fsync` of directories, and no kinder than that:
//! * *Contents.* What a [`File::sync`] covered is there. Of the later changes each may be kept, dropped or torn, sector by
//!   sector and in any order; but a sector never holds a write to a part of it without the earlier ones to the same sector.
//! * *Names.* What a [`Ground::sync_directory`] covered is there. Of the later creations, renames and removals each
//!   directory keeps a prefix; a rename is atomic, also between directories. Syncing a file does not keep its name.
//! * *Names and contents* are independent: a name may be kept of a file whose bytes were lost. So a file that replaces another by
//!   rename must be synced before; then there is the old or the new content.
//! * A sync that fails leaves some of the changes on the device for good and loses the others, although readers see them
//!   until the restart and later syncs succeed.
//!
//! [`Ground::create_directory`] is durable when it returns. Locks end with the crash, and take no file.
//!
//! # Use
//! A test counts the syncs of a run ([`SimulatedGround::syncs`]), repeats it with
//! [`SimulatedGround::crash_after_syncs`] at each of them, and opens what [`SimulatedGround::restart`] leaves.

mod content;
mod random;

use crate::lock::Held;
use crate::{Access, DirectoryEntry, File, Ground, GroundError, Holder, LockError, LockGuard, Result, Space, parent};
use content::{Content, Inode, PAGE_BYTES};
use parking_lot::Mutex;
use random::Random;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

/// What survives of the changes that no sync covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// Nothing.
    DropAll,
    /// Everything: the process was killed, the machine went on.
    KeepAll,
    /// Some of it, as the module describes; the same seed keeps the same.
    Random {
        /// Chooses what survives.
        seed: u64,
    },
}

/// A simulated disk. Clones share it, so a test can hold one while a store uses the other.
#[derive(Clone)]
pub struct SimulatedGround {
    state: Arc<Mutex<State>>,
}

type SharedInode = Arc<Mutex<Inode>>;

struct State {
    random: Random,
    directories: BTreeSet<String>,
    names: BTreeMap<String, SharedInode>,
    durable_names: BTreeMap<String, SharedInode>,
    pending: Vec<NameChange>,
    locks: HashMap<String, Vec<(u64, bool, Holder)>>,
    next_lock: u64,
    capacity_pages: u64,
    used_pages: u64,
    operations: u64,
    syncs: u64,
    reads: u64,
    crash_operation: Option<u64>,
    crash_sync: Option<u64>,
    failing_operation: Option<(u64, io::ErrorKind)>,
    failing_read: Option<(u64, io::ErrorKind)>,
    is_crashed: bool,
    crash_site: Option<CrashSite>,
}

/// Which operation met the crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashSite {
    /// Its name, as errors say it: `write`, `sync`, `rename` ...
    pub operation: &'static str,
    /// The file or directory; of a rename, the old name.
    pub path: String,
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum NameChange {
    Create { path: String, inode: SharedInode },
    Rename { from: String, to: String, inode: SharedInode },
    Remove { path: String },
}

impl NameChange {
    fn directories(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            NameChange::Create { path, .. } | NameChange::Remove { path } => (path, None),
            NameChange::Rename { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(|path| parent(path))
    }

    fn apply(&self, names: &mut BTreeMap<String, SharedInode>) {
        match self {
            NameChange::Create { path, inode } => drop(names.insert(path.clone(), Arc::clone(inode))),
            NameChange::Rename { from, to, inode } => {
                names.remove(from);
                names.insert(to.clone(), Arc::clone(inode));
            }
            NameChange::Remove { path } => drop(names.remove(path)),
        }
    }
}

/// Why an operation is not carried out.
enum Fault {
    Crash,
    Injected(io::ErrorKind),
}

impl Fault {
    fn source(&self) -> io::Error {
        match self {
            Fault::Crash => io::Error::other("simulated crash"),
            Fault::Injected(kind) => io::Error::new(*kind, "simulated failure"),
        }
    }
}

impl State {
    /// Counts an operation that changes something, and decides whether it happens.
    fn begin(&mut self, is_sync: bool, operation: &'static str, path: &str) -> std::result::Result<(), Fault> {
        let is_due = self.crash_operation == Some(self.operations) || (is_sync && self.crash_sync == Some(self.syncs));
        if is_due && !self.is_crashed {
            self.is_crashed = true;
            self.crash_site = Some(CrashSite { operation, path: path.to_owned() });
        }
        if self.is_crashed {
            return Err(Fault::Crash);
        }
        let fault = self.failing_operation.take_if(|(operation, _)| *operation == self.operations);
        self.operations += 1;
        self.syncs += u64::from(is_sync);
        fault.map_or(Ok(()), |(_, kind)| Err(Fault::Injected(kind)))
    }

    fn begin_read(&mut self) -> std::result::Result<(), Fault> {
        if self.is_crashed {
            return Err(Fault::Crash);
        }
        let fault = self.failing_read.take_if(|(read, _)| *read == self.reads);
        self.reads += 1;
        fault.map_or(Ok(()), |(_, kind)| Err(Fault::Injected(kind)))
    }

    fn free_pages(&self, inode: &Inode) -> u64 {
        if inode.is_named { self.capacity_pages.saturating_sub(self.used_pages) } else { u64::MAX }
    }

    /// Changes a file and keeps the count of used pages.
    fn change<T>(&mut self, inode: &mut Inode, change: impl FnOnce(&mut Inode) -> T) -> T {
        let before = inode.room();
        let result = change(inode);
        if inode.is_named {
            self.used_pages = self.used_pages + inode.room() - before;
        }
        result
    }

    fn forget(&mut self, inode: &SharedInode) {
        let mut inode = inode.lock();
        self.used_pages -= inode.room();
        inode.is_named = false;
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending.push(change);
    }

    /// Makes the names of a directory durable, with all that came before them in the directories they were renamed from.
    fn sync_names(&mut self, directory: &str) {
        let mut directories = BTreeSet::from([directory.to_owned()]);
        let mut is_covered = vec![false; self.pending.len()];
        for (change, is_covered) in self.pending.iter().zip(&mut is_covered).rev() {
            if change.directories().any(|touched| directories.contains(touched)) {
                directories.extend(change.directories().map(str::to_owned));
                *is_covered = true;
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, is_covered) in pending.into_iter().zip(is_covered) {
            if is_covered {
                change.apply(&mut self.durable_names);
            } else {
                self.pending.push(change);
            }
        }
    }

    fn surviving_names(&self, policy: CrashPolicy, random: &mut Random) -> BTreeMap<String, SharedInode> {
        let mut names = self.durable_names.clone();
        let mut ended = BTreeSet::new();
        for change in &self.pending {
            let is_kept = match policy {
                CrashPolicy::DropAll => false,
                CrashPolicy::KeepAll => true,
                CrashPolicy::Random { .. } => random.below(4) > 0,
            };
            if is_kept && !change.directories().any(|directory| ended.contains(directory)) {
                change.apply(&mut names);
            } else {
                ended.extend(change.directories());
            }
        }
        names
    }
}

impl SimulatedGround {
    /// An empty disk without bounds. The seed decides what failing operations leave behind.
    pub fn new(seed: u64) -> SimulatedGround {
        SimulatedGround::with(Random::new(seed), BTreeSet::from([String::new()]), BTreeMap::new(), u64::MAX)
    }

    fn with(random: Random, directories: BTreeSet<String>, names: BTreeMap<String, SharedInode>, capacity_pages: u64) -> SimulatedGround {
        let state = State {
            random,
            directories,
            used_pages: names.values().map(|inode| inode.lock().room()).sum(),
            durable_names: names.clone(),
            names,
            pending: Vec::new(),
            locks: HashMap::new(),
            next_lock: 0,
            capacity_pages,
            operations: 0,
            syncs: 0,
            reads: 0,
            crash_operation: None,
            crash_sync: None,
            failing_operation: None,
            failing_read: None,
            is_crashed: false,
            crash_site: None,
        };
        SimulatedGround { state: Arc::new(Mutex::new(state)) }
    }

    /// Operations so far that change something, syncs included. Reading, listing and locking are none.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Syncs so far, of files and of directories; a created directory counts as one.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Reads of file contents so far.
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// Bytes that the files take, in pages of 4096.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_pages * PAGE_BYTES
    }

    /// Lets `count` more operations happen; the next one meets a crash, and everything fails from then on.
    pub fn crash_after_operations(&self, count: u64) {
        let mut state = self.state.lock();
        state.crash_operation = Some(state.operations + count);
    }

    /// Lets `count` more syncs happen; the next one meets a crash, and everything fails from then on. What was written before that
    /// sync is not durable.
    pub fn crash_after_syncs(&self, count: u64) {
        let mut state = self.state.lock();
        state.crash_sync = Some(state.syncs + count);
    }

    /// Whether the crash has happened.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().is_crashed
    }

    /// The operation that met the crash; `None` if there was none yet, or it came between two operations.
    pub fn crash_site(&self) -> Option<CrashSite> {
        self.state.lock().crash_site.clone()
    }

    /// Lets `count` more operations happen; the next one fails once, those after it do not. A write that fails has written a part; a
    /// sync that fails has made a part durable and lost the rest.
    pub fn fail_operation(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_operation = Some((state.operations + count, kind));
    }

    /// Lets `count` more reads of file contents happen; the next one fails once.
    pub fn fail_read(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_read = Some((state.reads + count, kind));
    }

    /// Bounds the disk: what does not fit is an error of kind `StorageFull`, after as much of it as does was written.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_pages = bytes / PAGE_BYTES;
    }

    /// Lets every reading of a file fail, as of bad sectors, until another one takes its name or the ground is restarted. An error if there is no such file.
    pub fn make_unreadable(&self, path: &str) -> Result<()> {
        let state = self.state.lock();
        let inode = state.names.get(path).ok_or_else(|| failure("make unreadable", path, io::ErrorKind::NotFound.into()))?;
        inode.lock().is_unreadable = true;
        Ok(())
    }

    /// Takes the lock file away from those who hold the lock: whoever comes next gets it too.
    pub fn lose_lock(&self, path: &str) {
        self.state.lock().locks.remove(path);
    }

    /// Damages a byte of a file, for good. An error if the file has no such byte.
    pub fn corrupt(&self, path: &str, offset: u64, xor: u8) -> Result<()> {
        let state = self.state.lock();
        let inode = state.names.get(path).ok_or_else(|| failure("corrupt", path, io::ErrorKind::NotFound.into()))?;
        let is_inside = inode.lock().flip(offset, xor);
        if is_inside { Ok(()) } else { Err(failure("corrupt", path, io::ErrorKind::UnexpectedEof.into())) }
    }

    /// What the next start finds after a crash at this moment. This disk fails from now on; it may be asked again, with another policy.
    pub fn restart(&self, policy: CrashPolicy) -> SimulatedGround {
        self.state.lock().is_crashed = true;
        self.snapshot(policy)
    }

    /// What the next start would find if the crash came at this moment; this disk goes on.
    pub fn snapshot(&self, policy: CrashPolicy) -> SimulatedGround {
        let state = self.state.lock();
        let mut random = match policy {
            CrashPolicy::Random { seed } => Random::new(seed),
            CrashPolicy::DropAll | CrashPolicy::KeepAll => state.random.clone(),
        };
        let mut names = state.surviving_names(policy, &mut random);
        for inode in names.values_mut() {
            let content = inode.lock().survivor(policy, &mut random);
            *inode = Arc::new(Mutex::new(Inode::with(content)));
        }
        SimulatedGround::with(random, state.directories.clone(), names, state.capacity_pages)
    }

    fn file(&self, path: &str, inode: SharedInode, access: Access) -> Arc<dyn File> {
        Arc::new(SimulatedFile { ground: self.clone(), path: path.to_owned(), inode, is_writable: access == Access::ReadWrite })
    }
}

impl fmt::Debug for SimulatedGround {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("SimulatedGround")
            .field("files", &state.names.len())
            .field("operations", &state.operations)
            .field("syncs", &state.syncs)
            .field("is_crashed", &state.is_crashed)
            .finish()
    }
}

fn failure(operation: &'static str, path: &str, source: io::Error) -> GroundError {
    GroundError::Io { operation, path: path.to_owned(), source }
}

impl Ground for SimulatedGround {
    fn create(&self, path: &str) -> Result<Arc<dyn File>> {
        let fail = |source: io::Error| failure("create", path, source);
        let mut state = self.state.lock();
        state.begin(false, "create", path).map_err(|fault| fail(fault.source()))?;
        if !state.directories.contains(parent(path)) {
            return Err(fail(io::ErrorKind::NotFound.into()));
        }
        if state.names.contains_key(path) || state.directories.contains(path) {
            return Err(fail(io::ErrorKind::AlreadyExists.into()));
        }
        let inode = Arc::new(Mutex::new(Inode::with(Content::default())));
        state.change_names(NameChange::Create { path: path.to_owned(), inode: Arc::clone(&inode) });
        Ok(self.file(path, inode, Access::ReadWrite))
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let state = self.state.lock();
        if state.is_crashed {
            return Err(failure("open", path, Fault::Crash.source()));
        }
        let inode = state.names.get(path).ok_or_else(|| failure("open", path, io::ErrorKind::NotFound.into()))?;
        Ok(self.file(path, Arc::clone(inode), access))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let fail = |source: io::Error| failure("remove", path, source);
        let mut state = self.state.lock();
        state.begin(false, "remove", path).map_err(|fault| fail(fault.source()))?;
        let inode = state.names.get(path).cloned().ok_or_else(|| fail(io::ErrorKind::NotFound.into()))?;
        state.forget(&inode);
        state.change_names(NameChange::Remove { path: path.to_owned() });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let fail = |source: io::Error| failure("rename", from, source);
        let mut state = self.state.lock();
        state.begin(false, "rename", from).map_err(|fault| fail(fault.source()))?;
        let inode = state.names.get(from).cloned().ok_or_else(|| fail(io::ErrorKind::NotFound.into()))?;
        if !state.directories.contains(parent(to)) {
            return Err(fail(io::ErrorKind::NotFound.into()));
        }
        if from == to {
            return Ok(());
        }
        if let Some(replaced) = state.names.get(to).cloned() {
            state.forget(&replaced);
        }
        state.change_names(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>> {
        let state = self.state.lock();
        if state.is_crashed {
            return Err(failure("list", directory, Fault::Crash.source()));
        }
        if !state.directories.contains(directory) {
            return Err(failure("list", directory, io::ErrorKind::NotFound.into()));
        }
        let inside = |path: &&String| !path.is_empty() && parent(path) == directory;
        let entry = |path: &String, is_directory| {
            let name = path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name).to_owned();
            DirectoryEntry { name, is_directory }
        };
        let files = state.names.keys().filter(inside).map(|path| entry(path, false));
        let directories = state.directories.iter().filter(inside).map(|path| entry(path, true));
        let mut entries: Vec<DirectoryEntry> = files.chain(directories).collect();
        entries.sort();
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> Result<()> {
        let fail = |source: io::Error| failure("create directory", directory, source);
        let mut state = self.state.lock();
        let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
        for made in ends.map(|end| &directory[..end]) {
            if state.names.contains_key(made) {
                return Err(fail(io::ErrorKind::AlreadyExists.into()));
            }
            if !state.directories.contains(made) {
                state.begin(true, "create directory", directory).map_err(|fault| fail(fault.source()))?;
                state.directories.insert(made.to_owned());
            }
        }
        if state.is_crashed { Err(fail(Fault::Crash.source())) } else { Ok(()) }
    }

    fn sync_directory(&self, directory: &str) -> Result<()> {
        let fail = |source: io::Error| failure("sync", directory, source);
        let mut state = self.state.lock();
        state.begin(true, "sync", directory).map_err(|fault| fail(fault.source()))?;
        if !state.directories.contains(directory) {
            return Err(fail(io::ErrorKind::NotFound.into()));
        }
        state.sync_names(directory);
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let state = self.state.lock();
        if state.is_crashed {
            return Err(failure("look for", path, Fault::Crash.source()));
        }
        Ok(state.names.contains_key(path) || state.directories.contains(path))
    }

    fn space(&self) -> Result<Space> {
        let state = self.state.lock();
        if state.is_crashed {
            return Err(failure("ask the free space of", "", Fault::Crash.source()));
        }
        let free_pages = state.capacity_pages.saturating_sub(state.used_pages);
        Ok(Space { free_bytes: free_pages.saturating_mul(PAGE_BYTES), total_bytes: state.capacity_pages.saturating_mul(PAGE_BYTES) })
    }

    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError> {
        let mut state = self.state.lock();
        if state.is_crashed {
            return Err(failure("lock", path, Fault::Crash.source()).into());
        }
        let number = state.next_lock;
        state.next_lock += 1;
        let held = state.locks.entry(path.to_owned()).or_default();
        if let Some((_, _, holder)) = held.iter().rev().find(|(_, is_exclusive, _)| exclusive || *is_exclusive) {
            return Err(LockError::Held { path: path.to_owned(), holder: Some(holder.clone()) });
        }
        held.push((number, exclusive, holder.clone()));
        Ok(LockGuard::new(SimulatedLock { ground: self.clone(), path: path.to_owned(), number }))
    }

    fn describe(&self, path: &str) -> String {
        path.to_owned()
    }
}

struct SimulatedLock {
    ground: SimulatedGround,
    path: String,
    number: u64,
}

impl Held for SimulatedLock {
    fn is_held(&self) -> Result<bool> {
        let state = self.ground.state.lock();
        if state.is_crashed {
            return Err(failure("look for", &self.path, Fault::Crash.source()));
        }
        Ok(state.locks.get(&self.path).is_some_and(|held| held.iter().any(|(number, ..)| *number == self.number)))
    }
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        if let Some(held) = self.ground.state.lock().locks.get_mut(&self.path) {
            held.retain(|(number, ..)| *number != self.number);
        }
    }
}

struct SimulatedFile {
    ground: SimulatedGround,
    path: String,
    inode: SharedInode,
    is_writable: bool,
}

impl fmt::Debug for SimulatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SimulatedFile {
    fn fail(&self, operation: &'static str, source: io::Error) -> GroundError {
        failure(operation, &self.path, source)
    }

    fn check_writable(&self, operation: &'static str, offset: u64, length: u64) -> Result<()> {
        if !self.is_writable {
            return Err(self.fail(operation, io::ErrorKind::PermissionDenied.into()));
        }
        if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
            return Err(self.fail(operation, io::ErrorKind::FileTooLarge.into()));
        }
        Ok(())
    }
}

impl File for SimulatedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut state = self.ground.state.lock();
        state.begin_read().map_err(|fault| self.fail("read", fault.source()))?;
        if self.inode.lock().is_unreadable {
            // EIO
            return Err(self.fail("read", io::Error::from_raw_os_error(5)));
        }
        let is_inside = self.inode.lock().read(offset, buffer);
        if is_inside { Ok(()) } else { Err(self.fail("read", io::ErrorKind::UnexpectedEof.into())) }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable("write", offset, data.len() as u64)?;
        let mut state = self.ground.state.lock();
        let fault = state.begin(false, "write", &self.path).err();
        let wanted = match fault {
            None => data.len(),
            Some(Fault::Crash) => 0,
            Some(Fault::Injected(_)) => state.random.below(data.len() as u64 + 1) as usize,
        };
        let mut inode = self.inode.lock();
        let free_pages = state.free_pages(&inode);
        let written = state.change(&mut inode, |inode| inode.write(offset, &data[..wanted], free_pages));
        match fault {
            Some(fault) => Err(self.fail("write", fault.source())),
            None if written < data.len() => Err(self.fail("write", io::ErrorKind::StorageFull.into())),
            None => Ok(()),
        }
    }

    fn len(&self) -> Result<u64> {
        let state = self.ground.state.lock();
        if state.is_crashed {
            return Err(self.fail("ask the length of", Fault::Crash.source()));
        }
        Ok(self.inode.lock().length())
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.check_writable("set the length of", 0, length)?;
        let mut state = self.ground.state.lock();
        state.begin(false, "set the length of", &self.path).map_err(|fault| self.fail("set the length of", fault.source()))?;
        state.change(&mut self.inode.lock(), |inode| inode.set_len(length));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.ground.state.lock();
        let fault = state.begin(true, "sync", &self.path).err();
        match fault {
            None => self.inode.lock().sync(),
            Some(Fault::Crash) => {}
            Some(Fault::Injected(_)) => self.inode.lock().fail_sync(&mut state.random),
        }
        fault.map_or(Ok(()), |fault| Err(self.fail("sync", fault.source())))
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable("reserve room in", offset, length)?;
        let mut state = self.ground.state.lock();
        state.begin(false, "reserve room in", &self.path).map_err(|fault| self.fail("reserve room in", fault.source()))?;
        let mut inode = self.inode.lock();
        let free_pages = state.free_pages(&inode);
        let reserved = state.change(&mut inode, |inode| inode.allocate(offset, length, free_pages));
        if reserved < length { Err(self.fail("reserve room in", io::ErrorKind::StorageFull.into())) } else { Ok(()) }
    }

    fn start_writeback(&self, _offset: u64, _length: u64) {}

    fn read_ahead(&self, _offset: u64, _length: u64) {}
}

#[cfg(test)]
mod tests;
