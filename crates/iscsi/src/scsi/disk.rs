//! The disk below a logical unit.

use std::any::Any;
use std::sync::Arc;

/// A thin disk. Several threads use it at the same time. Each call sees the changes of all calls that returned before
/// it began.
pub trait Disk: Send + Sync {
    /// Returns the length in bytes. Every command calls this while many others wait, so it must return at once,
    /// whatever is happening to the disk.
    fn size(&self) -> u64;

    /// Returns whether changes are refused.
    fn read_only(&self) -> bool;

    /// Returns the unit of mapping in bytes, a power of two. Changes of whole units are fast, and only whole units are
    /// freed.
    fn block_bytes(&self) -> u32;

    /// Reads `out.len()` bytes. Without an error all of `out` is written, whatever was in it before.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError>;

    /// Writes. With `fua` the data is durable on return.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), DiskError>;

    /// Reads, lets `change` modify the data, and writes it if `change` returns true: one step for all users of the
    /// disk. Returns what `change` returned.
    fn update(&self, offset: u64, length: usize, fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError>;

    /// Makes every write durable that returned before this call.
    fn flush(&self) -> Result<(), DiskError>;

    /// Zeroes the range and frees its space.
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// Frees the space of a range that is no longer needed. Parts that cannot be zeroed for lack of space may stay as
    /// they are.
    fn unmap(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.zero(offset, length)
    }

    /// Prepares for reading the range soon.
    fn prefetch(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// Returns how the range is mapped: consecutive extents from `offset` on, at least one and at most `limit`. They
    /// may end before the range does.
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DiskError>;

    /// Returns the space of the store, if known. This is called often and must return at once.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Captures the content of the range, to write it elsewhere. By default this copies the bytes.
    fn capture(&self, offset: u64, length: u64) -> Result<Arc<dyn Content>, DiskError> {
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| DiskError::OutOfRange)?];
        self.read(offset, &mut bytes)?;
        Ok(Arc::new(Captured(bytes)))
    }

    /// Writes `length` bytes of a content, from its byte `from` on, to `offset`. By default this reads and writes the
    /// bytes.
    fn place(&self, offset: u64, content: &dyn Content, from: u64, length: u64) -> Result<(), DiskError> {
        place_bytes(self, offset, content, from, length)
    }
}

/// Writes `length` bytes of a content, from its byte `from` on, to `offset`, by reading them.
pub fn place_bytes<D: Disk + ?Sized>(disk: &D, offset: u64, content: &dyn Content, from: u64, length: u64) -> Result<(), DiskError> {
    let mut done = 0;
    while done < length {
        let mut bytes = vec![0; (length - done).min(PLACE_BYTES) as usize];
        content.read(from + done, &mut bytes)?;
        disk.write(offset + done, &bytes, false)?;
        done += bytes.len() as u64;
    }
    Ok(())
}

/// The space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Used bytes.
    pub used_bytes: u64,
    /// Free bytes.
    pub available_bytes: u64,
    /// Initiators are warned when fewer bytes than this are free.
    pub low_bytes: u64,
}

/// Bytes read and written at a time by default.
const PLACE_BYTES: u64 = 1 << 20;

/// The content of a range of a disk at one moment, whatever happens to the disk later.
pub trait Content: Any + Send + Sync + std::fmt::Debug {
    /// Its length, bytes.
    fn length(&self) -> u64;

    /// Returns the memory that it takes, in bytes.
    fn memory_bytes(&self) -> usize;

    /// Fills `out` from byte `from` on.
    fn read(&self, from: u64, out: &mut [u8]) -> Result<(), DiskError>;
}

/// A content as its bytes.
struct Captured(Vec<u8>);

impl std::fmt::Debug for Captured {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl Content for Captured {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn memory_bytes(&self) -> usize {
        self.0.len()
    }

    fn read(&self, from: u64, out: &mut [u8]) -> Result<(), DiskError> {
        let own = usize::try_from(from).ok().and_then(|from| self.0.get(from..)?.get(..out.len())).ok_or(DiskError::OutOfRange)?;
        out.copy_from_slice(own);
        Ok(())
    }
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Whether something is stored for it. Otherwise it reads as zeros.
    pub mapped: bool,
}

/// The reason why a disk cannot execute a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The store is full.
    #[error("no space left in the store")]
    NoSpace,
    /// The disk cannot be changed.
    #[error("the disk is read-only")]
    ReadOnly,
    /// The request reaches beyond the end of the disk, which may have shrunk.
    #[error("beyond the end of the disk")]
    OutOfRange,
    /// Stored data is lost or damaged. The text is for the target's log.
    #[error("{0}")]
    Damaged(String),
    /// The store failed. The text is for the target's log.
    #[error("{0}")]
    Io(String),
}
