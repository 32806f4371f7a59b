//! A disk in memory that crashes, tears, fills up and fails on demand, for tests.
//!
//! # What a power cut leaves
//! The model is a journaling file system on a device that writes sectors of 512 bytes atomically, seen through
//! `fdatasync` and the `fsync` of directories, and no kinder than that:
//! * *Contents.* What a [`File::sync`] covered is there. Of the later changes each may be kept, dropped or torn, sector
//!   by sector and in any order; but a sector never holds a write to a part of it without the earlier ones to the same
//!   sector.
//! * *Names*, also of directories. What a [`Ground::sync_directory`](crate::Ground::sync_directory) covered is there.
//!   Of the later creations, renames and removals each directory keeps a prefix; a rename is atomic, also between
//!   directories. Syncing a file does not keep its name, and syncing a directory does not keep the directory's own: if
//!   that is lost, everything below it is.
//! * *Names and contents* are independent: a name may be kept of a file whose bytes were lost. So a file that replaces
//!   another by rename must be synced before; then there is the old or the new content.
//!
//! Locks end with the process, and take no file.
//!
//! # What a killed process leaves
//! The next process sees everything ([`CrashPolicy::KeepAll`]), and no more of it is durable than before: a later power
//! cut may still take it away.
//!
//! # What else the disk does
//! * A sync that fails leaves some of the changes on the device for good and loses the others, although later syncs
//!   succeed. Readers may see the lost ones until the machine restarts, or the old bytes, page by page. The same
//!   happens when the system writes back on its own ([`SimulatedGround::fail_writeback`]); then the next sync of the
//!   file says so, once.
//! * Reads and writes are not atomic to each other. A write that covers several sectors is done in two steps; a reader
//!   beside it may see the one without the other ([`SimulatedGround::during_writes`]).
//! * Sectors become unreadable until they are overwritten ([`SimulatedGround::make_unreadable`]). A write to a part of
//!   such a sector fails too.
//! * Every query may fail ([`SimulatedGround::fail_query`]): readings, openings, listings.
//!
//! # Use
//! A test counts the syncs of a run ([`SimulatedGround::syncs`]), repeats it with
//! [`SimulatedGround::crash_after_syncs`] at each of them, and opens what [`SimulatedGround::restart`] leaves. What
//! everything that writes has to stand is in [`trials`].

mod content;
mod file;
mod ground;
mod inode;
mod names;
mod random;
mod ranges;
mod state;
pub mod trials;

use crate::{Access, File, GroundError, Result};
use content::PAGE_BYTES;
use file::SimulatedFile;
use inode::Inode;
use names::Names;
use parking_lot::Mutex;
use random::Random;
use state::State;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What survives of the changes that no sync covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPolicy {
    /// Nothing.
    DropAll,
    /// Everything: the process was killed, the machine went on. What was not durable still is not.
    KeepAll,
    /// Nothing, and worse: where the drive was about to write, all of the sector holds zeros, also what was durable in it.
    /// It was about to write pages with changed bytes, and pages in the middle of which a file was cut.
    LoseSectors {
        /// What the drive writes at once.
        sector_bytes: u64,
    },
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

/// Which operation met the crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashSite {
    /// Its name, as errors say it: `write`, `sync`, `rename` ...
    pub operation: &'static str,
    /// The file or directory; of a rename, the old name.
    pub path: String,
}

impl SimulatedGround {
    /// An empty disk without bounds. The seed decides what failing operations leave behind.
    pub fn new(seed: u64) -> SimulatedGround {
        SimulatedGround::with(State::new(Random::new(seed), Names::default(), u64::MAX))
    }

    fn with(state: State) -> SimulatedGround {
        SimulatedGround { state: Arc::new(Mutex::new(state)) }
    }

    /// Operations so far that change something, syncs included. Reading, listing and locking are none.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Syncs so far, of files and of directories; making a directory durable counts as one.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Reads of file contents so far.
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// Queries so far: whatever changes nothing, such as reads, openings, listings, questions for a length.
    pub fn queries(&self) -> u64 {
        self.state.lock().queries
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

    /// Lets `count` more syncs happen; the next one meets a crash, and everything fails from then on. What was written
    /// before that sync is not durable.
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

    /// Lets `count` more operations happen; the next one fails once, those after it do not. A write that fails has
    /// written a part; a sync that fails has made a part durable and lost the rest.
    pub fn fail_operation(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_operation = Some((state.operations + count, kind));
    }

    /// Lets `count` more reads of file contents happen; the next one fails once.
    pub fn fail_read(&self, count: u64, kind: io::ErrorKind) {
        let mut state = self.state.lock();
        state.failing_read = Some((state.reads + count, kind));
    }

    /// Lets `count` more queries happen; the next one fails once, with this error number of the system.
    pub fn fail_query(&self, count: u64, code: i32) {
        let mut state = self.state.lock();
        state.failing_query = Some((state.queries + count, code));
    }

    /// Lets `count` more operations happen. What the next write then leaves to be written back to its file, and what
    /// earlier ones left, is lost in part; the next sync of that file says so, once.
    pub fn fail_writeback(&self, count: u64) {
        let mut state = self.state.lock();
        state.failing_writeback = Some(state.operations + count);
    }

    /// Takes back whatever was told to fail and has not failed yet, and the crash if it has not come yet.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        (state.crash_operation, state.crash_sync) = (None, None);
        (state.failing_operation, state.failing_writeback) = (None, None);
        (state.failing_read, state.failing_query) = (None, None);
    }

    /// Calls `look` with the path of the file in the middle of every write that covers several sectors, when readers
    /// see one part of it and not the other.
    pub fn during_writes(&self, look: impl Fn(&str) + Send + Sync + 'static) {
        self.state.lock().during_writes = Some(Arc::new(look));
    }

    /// Bounds the disk: what does not fit is an error of kind `StorageFull`, after as much of it as does was written.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_pages = bytes / PAGE_BYTES;
    }

    /// Makes all sectors of a file unreadable, until each is overwritten as a whole. An error if there is no such file.
    pub fn make_unreadable(&self, path: &str) -> Result<()> {
        self.make_range_unreadable(path, 0..u64::MAX)
    }

    /// Makes the sectors of a range of a file unreadable, until each is overwritten as a whole. An error if there is no
    /// such file.
    pub fn make_range_unreadable(&self, path: &str, range: Range<u64>) -> Result<()> {
        self.inode_of("make unreadable", path)?.lock().make_unreadable(range);
        Ok(())
    }

    /// Makes all of a file readable again, as it was before: the cable was loose. An error if there is no such file.
    pub fn make_readable(&self, path: &str) -> Result<()> {
        self.inode_of("make readable", path)?.lock().make_readable();
        Ok(())
    }

    /// Takes the lock file away from those who hold the lock: whoever comes next gets it too.
    pub fn lose_lock(&self, path: &str) {
        self.state.lock().locks.remove(path);
    }

    /// Damages a byte of a file, for good. An error if the file has no such byte.
    pub fn corrupt(&self, path: &str, offset: u64, xor: u8) -> Result<()> {
        let is_inside = self.inode_of("corrupt", path)?.lock().flip(offset, xor);
        if is_inside { Ok(()) } else { Err(failure("corrupt", path, io::ErrorKind::UnexpectedEof.into())) }
    }

    fn inode_of(&self, operation: &'static str, path: &str) -> Result<SharedInode> {
        let state = self.state.lock();
        state.names.file(path).cloned().ok_or_else(|| failure(operation, path, io::ErrorKind::NotFound.into()))
    }

    /// What the next process finds after a crash at this moment. This disk fails from now on; it may be asked again,
    /// with another policy.
    pub fn restart(&self, policy: CrashPolicy) -> SimulatedGround {
        self.state.lock().is_crashed = true;
        self.snapshot(policy)
    }

    /// What the next process would find if the crash came at this moment; this disk goes on.
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
