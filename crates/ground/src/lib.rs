//! The ground: what onefold stands on. Files in a directory, the bytes in them, the time they cost.
//!
//! * [`Ground`] and [`File`]: the few file operations that the parts use, so that the same part runs on a local
//!   directory ([`LocalGround`]) or on a simulated disk that crashes, tears and fills up ([`simulation`]).
//! * [`DelegatingGround`] and [`DelegatingFile`]: what stands on another one and does some things differently.
//! * [`ModelledGround`]: another ground's files with the time that devices would take which are not there, for experiments.
//! * [`Readers`]: many places read at once.
//! * [`reserve`]: room that is kept for freeing room, and a ground whose writes may use it.
//! * [`lock`]: who holds a store; [`permissions`]: who may open its files.
//! * [`wire`]: writing and bounded reading of the integers and byte strings that all formats are made of.
//! * [`profile`]: time and bytes by component (M0.22); [`histogram`]: quantiles of many numbers.
//! * [`size`], [`words`]: sizes as people write them, the word that they may have meant.
//! * [`fill_random`]: random numbers of the system; [`time`]: its clocks.
//!
//! This crate must never know what a chunk, a container or a log is.

mod delegating;
mod direct;
mod error;
pub mod histogram;
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

pub use delegating::{DelegatingFile, DelegatingGround};
pub use direct::ReadBuffer;
pub use error::{GroundError, Result};
pub use local::LocalGround;
pub use lock::{Holder, LockError, LockGuard};
pub use modelled::{DeviceModel, ModelledGround, ModelledPart, PartCounters};
pub use permissions::{Exposure, Permissions};
pub use random::fill_random;
pub use readers::{ReadRequest, Readers, Reading};
pub use reserve::{Reserve, ReservedGround};
pub use simulation::{CrashPolicy, CrashSite, SimulatedGround};

use std::fmt::Debug;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only; writing is an error.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The name, without the directory.
    pub name: String,
    /// Whether the name is a directory.
    pub is_directory: bool,
}

/// Room on the device below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process can still allocate.
    pub free_bytes: u64,
    /// Bytes of the whole device.
    pub total_bytes: u64,
}

/// What a file has that a copy of it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// When it was made, ns since 1970. Its number in the file system would add nothing: FAT and some network file systems give another one after each mount.
    pub born_ns: u64,
}

/// A directory tree that a store lives in.
///
/// Paths are relative, separated by `/`, without `.` and `..`. Operations on names (create, rename, remove) are
/// durable only after [`Ground::sync_directory`] of the directory that holds the name; contents only after
/// [`File::sync`]. Between two syncs a crash may keep any part of what was written, torn at 512 bytes.
pub trait Ground: Send + Sync + Debug {
    /// Creates a new file for reading and writing; an existing name is an error.
    fn create(&self, path: &str) -> Result<Arc<dyn File>>;
    /// Opens an existing file.
    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>>;
    /// Opens an existing file for reading what the device has, not what the system keeps of it in memory, and without putting anything there.
    /// Where the ground cannot do that it is an ordinary opening.
    fn open_past_cache(&self, path: &str) -> Result<Arc<dyn File>>;
    /// Returns whether the device is known to hold `data` at this place of a file: it was read from there, past what the system keeps in memory. False
    /// also where that cannot be done. Call only after a [`File::sync`]: what is held then is durable.
    fn device_holds(&self, path: &str, offset: u64, data: &[u8]) -> Result<bool>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
    /// Renames a file, replacing the target atomically.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, directory: &str) -> Result<Vec<DirectoryEntry>>;
    /// Creates a directory and those above it; existing ones are kept. The new names are durable on return.
    fn create_directory(&self, directory: &str) -> Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &str) -> Result<()>;
    /// Whether a file or directory exists.
    fn exists(&self, path: &str) -> Result<bool>;
    /// Room on the device.
    fn space(&self) -> Result<Space>;
    /// Takes the store's lock without waiting: exclusive for whoever writes, shared for those who only read. It is held until the
    /// guard is dropped or the process ends. `holder` is written down for the people (and processes) that find it taken.
    fn lock(&self, path: &str, exclusive: bool, holder: &Holder) -> std::result::Result<LockGuard, LockError>;
    /// What a file has that a copy of it does not: when it was made. `None`: the ground cannot tell.
    fn identity(&self, path: &str) -> Result<Option<Identity>>;
    /// What a person knows this place as, for messages: the absolute path of a local directory.
    fn describe(&self, path: &str) -> String;
    /// Returns how somebody beside the owner, and beside the group that the place is shared with, can open files here. Nobody can where
    /// there are no users.
    fn exposure(&self) -> Result<Option<Exposure>>;
}

/// An open file. Every method may be called from many threads at once.
pub trait File: Send + Sync + Debug {
    /// Reads exactly `buffer.len()` bytes; the end of the file before that is an error of kind `UnexpectedEof`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
    /// Reads like [`File::read_at`] if no device has to be waited for. False: one would have to be, and what is in the buffer means nothing.
    fn try_read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool>;
    /// Writes all of `data`; extends the file where needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Takes the time of a write, and writes nothing: for stores that keep no data. Only [modelled devices](ModelledGround) take any.
    fn pretend_write(&self, offset: u64, length: u64) -> Result<()>;
    /// The length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Bytes of the device that the file takes. Fewer than its length: it has holes, or is compressed.
    fn allocated_bytes(&self) -> Result<u64>;
    /// Truncates or extends with zeros.
    fn set_len(&self, length: u64) -> Result<()>;
    /// Makes contents and length durable (fdatasync).
    fn sync(&self) -> Result<()>;
    /// Reserves room so that writes into the range cannot fail for want of space; extends the length.
    fn allocate(&self, offset: u64, length: u64) -> Result<()>;
    /// The same for what the owner needs to give room back: it may use the [reserve](ReservedGround).
    fn allocate_from_reserve(&self, offset: u64, length: u64) -> Result<()>;
    /// Asks for the range, just written, to be written back soon, without waiting. A hint.
    fn start_writeback(&self, offset: u64, length: u64);
    /// Asks for the range to be read soon, without waiting. A hint.
    fn read_ahead(&self, offset: u64, length: u64);
    /// Asks the system to forget what it keeps of the range in memory, so that the next read comes from the device. A hint.
    fn drop_cached(&self, offset: u64, length: u64);
}

/// Reads a whole file of at most `limit_bytes`; a longer one is an error, so that a damaged length cannot eat memory.
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

/// Replaces a file so that after a crash either the old or the new content is there, whole; durable on return.
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

/// The directory part of a path; empty for a name at the top.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The checksum of every structure on disk and wire: XXH3, 64 bits. It finds accidents, not attackers.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
