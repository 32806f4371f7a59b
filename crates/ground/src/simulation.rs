//! An in-memory disk that crashes, tears, fills up and fails on demand, for tests.
//!
//! # What a power cut leaves
//! The model is a journaling file system on a device that writes sectors of 512 bytes atomically. It behaves as
//! `fdatasync` and the `fsync` of directories promise, and no better:
//! * *Contents.* Everything that a [`File::sync`] covered survives. A later change may be kept, dropped or torn, sector
//!   by sector and in any order. But if a write covers only part of a sector, that sector holds it only together with
//!   the earlier writes to the same sector.
//! * *Names*, of files and directories. Everything that a [`Ground::sync_directory`](crate::Ground::sync_directory)
//!   covered survives. Of the later creations, renames and removals each directory keeps a prefix. A rename is atomic,
//!   also between directories. Syncing a file does not keep its name, and syncing a directory does not keep the
//!   directory's own name: losing that loses everything below.
//! * *Names and contents* are independent: a name may survive while the file's bytes are lost. So sync a file before it
//!   replaces another by rename. Then either the old or the new content is there.
//!
//! Locks end with the process and take no file.
//!
//! # What a killed process leaves
//! The next process sees everything ([`CrashPolicy::KeepAll`]). But nothing became durable by that: a later power cut
//! may still lose it.
//!
//! # What else the disk does
//! * A failed sync leaves some of the changes on the device for good and loses the others, although later syncs
//!   succeed. Page by page, readers see either the lost changes, until the machine restarts, or the old bytes. The same
//!   happens when the system's own writeback fails ([`SimulatedGround::fail_writeback`]). Then the next sync of the
//!   file reports it, once.
//! * Reads and writes are not atomic to each other. A write of several sectors takes two steps, and a concurrent reader
//!   may see only one of them ([`SimulatedGround::during_writes`]).
//! * Sectors become unreadable until they are overwritten ([`SimulatedGround::make_unreadable`]). A write to a part of
//!   such a sector fails too.
//! * Every query may fail ([`SimulatedGround::fail_query`]): reads, opens, listings.
//!
//! # Use
//! A test counts the syncs of a run ([`SimulatedGround::syncs`]). It repeats the run with
//! [`SimulatedGround::crash_after_syncs`] at each of them, and opens what [`SimulatedGround::restart`] leaves. The
//! module [`trials`] has the trials that every writer must pass; [`seeds`] has the seeds of randomized tests.

mod content;
mod file;
mod ground;
mod inode;
mod names;
mod random;
mod ranges;
pub mod seeds;
mod state;
pub mod trials;

use crate::{Access, File, GroundError, Result};
use content::PAGE_BYTES;
use file::SimulatedFile;
use inode::Inode;
use names::Names;
use parking_lot::Mutex;
use random::Random;
use state::{InDirectory, State};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Which unsynced changes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// Nothing.
    DropAll,
    /// Everything: only the process was killed. What was not durable still is not.
    KeepAll,
    /// Nothing, and worse: every sector that the drive was about to write holds zeros, including durable parts. It was
    /// about to write pages with changed bytes, and pages in the middle of which a file was cut.
    LoseSectors {
        /// How much the drive writes at once.
        sector_bytes: u64,
    },
    /// Some of it, as the module describes. The same seed keeps the same changes.
    Random {
        /// Decides what survives.
        seed: u64,
    },
}

/// A simulated disk. Clones share it, so a test can hold one while a store uses the other.
#[derive(Clone)]
pub struct SimulatedGround {
    state: Arc<Mutex<State>>,
}

type SharedInode = Arc<Mutex<Inode>>;

/// Which operation hit the crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashSite {
    /// Its name, as errors show it: `write`, `sync`, `rename` ...
    pub operation: &'static str,
    /// The file or directory; for a rename, the old name.
    pub path: String,
}

impl SimulatedGround {
    /// Creates an empty disk without limits. The seed decides what failing operations leave behind.
    pub fn new(seed: u64) -> SimulatedGround {
        SimulatedGround::with(State::new(Random::new(seed), Names::default(), u64::MAX))
    }

    fn with(state: State) -> SimulatedGround {
        SimulatedGround { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the number of operations so far that change something, including syncs. Reads, listings and locks do not
    /// count.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Returns the number of syncs so far, of files and directories. Making a directory durable counts as one.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Returns the number of reads of file contents so far.
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// Returns the number of queries so far: everything that changes nothing, such as reads, opens, listings, length
    /// queries.
    pub fn queries(&self) -> u64 {
        self.state.lock().queries
    }

    /// Returns the bytes that the files take, in pages of 4096.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_pages * PAGE_BYTES
    }

    /// Lets `count` more operations succeed. The next one hits a crash, and from then on everything fails.
    pub fn crash_after_operations(&self, count: u64) {
        let mut state = self.state.lock();
        state.crash_operation = Some(state.operations + count);
    }

    /// Lets `count` more syncs succeed. The next one hits a crash, and from then on everything fails. Writes before
    /// that sync are not durable.
    pub fn crash_after_syncs(&self, count: u64) {
        let mut state = self.state.lock();
        state.crash_sync = Some(state.syncs + count);
    }

    /// Lets `count` more operations on `directory` or in it succeed. The next one there hits a crash, and from then on
    /// everything fails.
    pub fn crash_after_operations_in(&self, directory: &str, count: u64) {
        self.state.lock().crash_in = Some(InDirectory { directory: directory.to_owned(), left: count });
    }

    /// Returns whether the crash has happened.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().is_crashed
    }

    /// Returns the operation that hit the crash. `None`: no crash yet, or it came between two operations.
    pub fn crash_site(&self) -> Option<CrashSite> {
        self.state.lock().crash_site.clone()
    }

    /// Lets `count` more operations succeed. Only the next one fails. A failed write has written a part; a failed sync
    /// has made a part durable and lost the rest.
    pub fn fail_operation(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_operation = Some((state.operations + count, kind));
    }

    /// Lets `count` more operations on `directory` or in it succeed. Only the next one there fails, as with
    /// [`SimulatedGround::fail_operation`].
    pub fn fail_operation_in(&self, directory: &str, count: u64, kind: io::ErrorKind) {
        self.state.lock().failing_in = Some((InDirectory { directory: directory.to_owned(), left: count }, kind));
    }

    /// Lets `count` more reads of file contents succeed. Only the next one fails.
    pub fn fail_read(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_read = Some((state.reads + count, kind));
    }

    /// Lets `count` more queries succeed. Only the next one fails, with this error number of the system.
    pub fn fail_query(&self, count: u64, code: i32) {
        let mut state = self.state.lock();
        state.failing_query = Some((state.queries + count, code));
    }

    /// Lets `count` more operations succeed. Then the next write happens, and the writeback of its file fails: a part
    /// of its changes and of earlier ones is lost. The next sync of that file reports it, once.
    pub fn fail_writeback(&self, count: u64) {
        let mut state = self.state.lock();
        state.failing_writeback = Some(state.operations + count);
    }

    /// Cancels all faults that have not happened yet, including the crash.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        (state.crash_operation, state.crash_sync, state.crash_in) = (None, None, None);
        (state.failing_operation, state.failing_in, state.failing_writeback) = (None, None, None);
        (state.failing_read, state.failing_query) = (None, None);
    }

    /// Calls `look` with the path of the file in the middle of every write of several sectors. At that moment readers
    /// see one part of it and not the other.
    pub fn during_writes(&self, look: impl Fn(&str) + Send + Sync + 'static) {
        self.state.lock().during_writes = Some(Arc::new(look));
    }

    /// Limits the disk. A write that does not fit writes as much as does, then fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_pages = bytes / PAGE_BYTES;
    }

    /// Makes a block device of this length, full of zeros, that a name leads to. Errors: the name exists.
    pub fn make_device(&self, path: &str, length: u64) -> Result<()> {
        let device = crate::Ground::create(self, path)?;
        device.set_len(length)?;
        device.sync()?;
        crate::Ground::sync_directory(self, crate::parent(path))?;
        self.state.lock().devices.insert(path.to_owned());
        Ok(())
    }

    /// Makes all sectors of a file unreadable, until each is overwritten as a whole. Errors: no such file.
    pub fn make_unreadable(&self, path: &str) -> Result<()> {
        self.make_range_unreadable(path, 0..u64::MAX)
    }

    /// Makes a range of a file's sectors unreadable, until each is overwritten as a whole. Errors: no such file.
    pub fn make_range_unreadable(&self, path: &str, range: Range<u64>) -> Result<()> {
        self.inode_of("make unreadable", path)?.lock().make_unreadable(range);
        Ok(())
    }

    /// Makes all of a file readable again, with its old content: the cable was loose. Errors: no such file.
    pub fn make_readable(&self, path: &str) -> Result<()> {
        self.inode_of("make readable", path)?.lock().make_readable();
        Ok(())
    }

    /// Takes the lock file away from the lock's holders, so that the next process gets the lock too.
    pub fn lose_lock(&self, path: &str) {
        self.state.lock().locks.remove(path);
    }

    /// Damages a byte of a file for good. Errors: the file has no such byte.
    pub fn corrupt(&self, path: &str, offset: u64, xor: u8) -> Result<()> {
        let is_inside = self.inode_of("corrupt", path)?.lock().flip(offset, xor);
        if is_inside { Ok(()) } else { Err(failure("corrupt", path, io::ErrorKind::UnexpectedEof.into())) }
    }

    fn inode_of(&self, operation: &'static str, path: &str) -> Result<SharedInode> {
        let state = self.state.lock();
        state.names.file(path).cloned().ok_or_else(|| failure(operation, path, io::ErrorKind::NotFound.into()))
    }

    /// Returns what the next process finds after a crash at this moment. From now on this disk fails. A test may call
    /// it again with another policy.
    pub fn restart(&self, policy: CrashPolicy) -> SimulatedGround {
        self.state.lock().is_crashed = true;
        self.snapshot(policy)
    }

    /// Returns what the next process would find after a crash at this moment. This disk goes on.
    pub fn snapshot(&self, policy: CrashPolicy) -> SimulatedGround {
        SimulatedGround::with(self.state.lock().survivor(policy))
    }

    fn file(&self, path: &str, inode: SharedInode, access: Access) -> Arc<dyn File> {
        Arc::new(SimulatedFile { ground: self.clone(), path: path.to_owned(), inode, is_writable: access == Access::ReadWrite })
    }
}

impl fmt::Debug for SimulatedGround {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("SimulatedGround")
            .field("files", &state.names.files().count())
            .field("operations", &state.operations)
            .field("syncs", &state.syncs)
            .field("is_crashed", &state.is_crashed)
            .finish()
    }
}

fn failure(operation: &'static str, path: &str, source: io::Error) -> GroundError {
    GroundError::Io { operation, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
