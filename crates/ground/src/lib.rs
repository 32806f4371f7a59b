//! The ground that onefold stands on: files in a directory, their bytes, and the time they cost.
//!
//! * [`Ground`] and [`File`]: the few file operations that the parts use. The same part runs on a local directory
//!   ([`LocalGround`]) or on a simulated disk that crashes, tears and fills up ([`simulation`]).
//! * [`DelegatingGround`] and [`DelegatingFile`]: wrappers that change some operations and forward the rest.
//! * [`Bucket`]: object storage, as far as a store needs it. Crate `onefold-bucket` has it.
//! * [`ModelledGround`]: another ground's files with the timing of modelled devices, for experiments.
//! * [`Readers`]: many places read at once.
//! * [`reserve`]: space kept for reclamation, and a ground whose writes may use it.
//! * [`lock`]: who holds a store; [`permissions`]: who may open its files.
//! * [`wire`]: writing and bounded reading of the integers and byte strings that all formats are made of.
//! * [`profile`]: time and bytes by component (M0.22); [`histogram`]: quantiles of many numbers.
//! * [`size`], [`words`]: sizes as people write them, and the nearest known word to a typo.
//! * [`fill_random`]: the system's random numbers; [`time`]: its clocks.
//!
//! This crate must never know what a chunk, a container or a log is.

mod bucket;
mod delegating;
mod direct;
mod error;
pub mod histogram;
mod limits;
mod local;
pub mod lock;
mod modelled;
pub mod permissions;
pub mod profile;
mod random;
mod readers;
pub mod reserve;
pub mod simulation;
pub mod size;
pub mod time;
pub mod wire;
pub mod words;

pub use bucket::{Bucket, BucketPart, Listing, Put, Requests, list_after};
pub use delegating::{DelegatingFile, DelegatingGround};
pub use direct::ReadBuffer;
pub use error::{GroundError, Result};
pub use limits::raise_open_file_limit;
pub use local::LocalGround;
pub use lock::{Holder, LockError, LockGuard};
pub use modelled::{DeviceModel, ModelledGround, ModelledPart, PartCounters};
pub use permissions::{Exposure, Permissions};
pub use random::fill_random;
pub use readers::{ReadRequest, Readers, Reading};
pub use reserve::{Reserve, ReservedGround};
pub use simulation::{CrashPolicy, CrashSite, SimulatedGround};

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only. Writes fail.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Space on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process can still allocate.
    pub free_bytes: u64,
    /// Bytes of the whole device.
    pub total_bytes: u64,
}

/// What tells a file from a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Time of creation, ns since 1970. The inode number would add nothing: FAT and some network file systems assign
    /// new ones after each mount.
    pub born_ns: u64,
}

/// A directory tree that holds a store.
///
/// Paths are relative, separated by `/`, without `.` and `..`. Changes of names (create, rename, remove) become durable
/// with [`Ground::sync_directory`] of the directory that holds the name. Contents become durable with [`File::sync`].
/// Between two syncs a crash may keep any part of the writes, torn at 512 bytes.
pub trait Ground: Send + Sync + Debug {
    /// Creates a new file for reading and writing. Errors: the name exists.
    fn create(&self, path: &str) -> Result<Arc<dyn File>>;
    /// Opens an existing file.
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>>;
    /// Says that all of a file will be read soon. Does not wait. A hint.
    fn will_read(&self, _path: &str) {}
    /// Returns whether a file is on its way here because of [`will_read`](Ground::will_read). True ends by itself.
    fn is_coming(&self, _path: &str) -> bool {
        false
    }
    /// Forgets what is kept of a file that never changed under its name: somebody else has removed it.
    fn forget(&self, _path: &str) {}
    /// Opens an existing file for reads that bypass the page cache: they return what the device holds and cache
    /// nothing. A ground that cannot do that opens the file as usual.
    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>>;
    /// Opens the block device that a name leads to: a file of fixed length. `None`: the name leads to something else,
    /// or to nothing. While it is open with [`Access::ReadWrite`], nobody else can open it in this way, nor mount it.
    fn open_device(&self, path: &str, access: Access) -> Result<Option<Arc<dyn File>>>;
    /// Makes a new name that leads to a block device. Errors: `device` is none.
    fn link_device(&self, path: &str, device: &Path) -> Result<()>;
    /// Makes a new name that leads to a directory elsewhere, and that directory if only its own name is missing there.
    /// The name is durable on return. Errors: the name exists.
    fn link_directory(&self, path: &str, directory: &Path) -> Result<()>;
    /// Removes such a name, and the directory that it leads to if that is empty.
    fn unlink_directory(&self, path: &str) -> Result<()>;
    /// Returns where such a name leads. `None`: it is no such name, or the ground does not know.
    fn linked_directory(&self, path: &str) -> Result<Option<PathBuf>>;
    /// Returns whether the device is known to hold `data` at this place of a file, by a read that bypassed the page
    /// cache. Returns false if the ground cannot do that. Call only after a [`File::sync`]: then the data that it
    /// confirms is durable.
    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
    /// Renames a file and replaces the target atomically.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Lists the names in a directory, sorted.
    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>>;
    /// Creates a directory and its parents. Existing ones stay. The new names are durable on return.
    fn create_directory(&self, directory: &str) -> Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &str) -> Result<()>;
    /// Returns whether a file or directory exists.
    fn exists(&self, path: &str) -> Result<bool>;
    /// Returns the space on the device.
    fn space(&self) -> Result<Space>;
    /// Returns the space on the device of a directory, which a [link](Ground::link_directory) may have led to.
    fn space_in(&self, directory: &str) -> Result<Space>;
    /// Takes the store's lock without waiting: exclusive for writers, shared for readers. The guard holds it until it
    /// is dropped or the process ends. The lock file records `holder`, for people and processes that find the lock
    /// taken.
    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError>;
    /// Returns what tells a file from a copy of it: when it was created. `None`: the ground cannot tell.
    fn identity(&self, path: &str) -> Result<Option<Identity>>;
    /// Returns the name that people know this place by, for messages: the absolute path in a local directory.
    fn describe(&self, path: &str) -> String;
    /// Returns how users other than the owner and the group of the store can open files here. Returns `None` if nobody
    /// else can, or if the ground has no users.
    fn exposure(&self) -> Result<Option<Exposure>>;
    /// Returns the bucket that the store is in. `None`: it is in this directory.
    ///
    /// With a bucket, a sealed container is an object, and so is everything that is written once. The rest of the
    /// directory is derived from the log, which is in the bucket too: nothing is lost with it.
    fn bucket(&self) -> Option<Arc<dyn Bucket>>;
}

/// An open file. Any number of threads may call its methods at once.
pub trait File: Send + Sync + Debug {
    /// Reads exactly `buffer.len()` bytes. Errors: `UnexpectedEof` if the file ends before that.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Reads like [`File::read_at`], but only if that needs no wait for a device. False: it would have to wait, and the
    /// contents of the buffer mean nothing.
    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool>;
    /// Writes all of `data` and extends the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Takes the time of a write and writes nothing, for stores that keep no data. Only [modelled
    /// devices](ModelledGround) take any time.
    fn pretend_write(&self, offset: u64, length: u64) -> Result<()>;
    /// Returns the length in bytes.
    fn len(&self) -> Result<u64>;
    /// Returns whether the file is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Returns the bytes that the file takes on the device. They are fewer than its length if it has holes or is
    /// compressed.
    fn allocated_bytes(&self) -> Result<u64>;
    /// Truncates the file or extends it with zeros.
    fn set_len(&self, length: u64) -> Result<()>;
    /// Makes contents and length durable (fdatasync).
    fn sync(&self) -> Result<()>;
    /// Reserves space, so that later writes into the range cannot find the device full. Extends the length.
    fn allocate(&self, offset: u64, length: u64) -> Result<()>;
    /// Allocates like [`File::allocate`], for reclamation: it may use the [reserve](ReservedGround).
    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()>;
    /// Gives the space of whole 4 KiB pages of the file back to the device: they are zeros then. The length stays.
    /// Whole pages only. A file system without holes may keep the space, and the bytes.
    fn punch_hole(&self, offset: u64, length: u64) -> Result<()>;
    /// Asks the system to write back a freshly written range soon. Does not wait. A hint.
    fn start_writeback(&self, offset: u64, length: u64);
    /// Asks the system to read the range soon. Does not wait. A hint.
    fn read_ahead(&self, offset: u64, length: u64);
    /// Asks the system to drop the range from its cache, so that the next read goes to the device. A hint.
    fn drop_cached(&self, offset: u64, length: u64);
}

/// Reads a whole file of at most `limit_bytes`. Errors: the file is longer. So a damaged length cannot eat memory.
pub fn read_file(ground: &dyn Ground, path: &str, limit_bytes: u64) -> Result<Vec<u8>> {
    let file = ground.open(path, Access::Read)?;
    let length = file.len()?;
    if length > limit_bytes {
        return Err(GroundError::TooLong { path: ground.describe(path), length_bytes: length, limit_bytes });
    }
    let mut bytes = vec![0; length as usize];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Replaces a file atomically: after a crash it holds either all of the old content or all of the new. The new content
/// is durable on return.
pub fn replace_file(ground: &dyn Ground, path: &str, content: &[u8]) -> Result<()> {
    let temporary = format!("{path}.new");
    if ground.exists(&temporary)? {
        ground.remove(&temporary)?;
    }
    let file = ground.create(&temporary)?;
    file.write_at(0, content)?;
    file.sync()?;
    drop(file);
    ground.rename(&temporary, path)?;
    ground.sync_directory(parent(path))
}

/// Returns the directory part of a path; empty for a name at the top.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Returns the checksum of every structure on disk and wire: XXH3, 64 bits. It finds accidents, not attackers.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
