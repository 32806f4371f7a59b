//! What a logical unit stands on.

use std::any::Any;
use std::sync::Arc;

/// A thin disk. Several threads use it at the same time; each call sees the changes of those that returned before it began.
pub trait Disk: Send + Sync {
    /// Its length, bytes. It is asked with every command, by whom many others wait for: it must answer at once, whatever is done to the disk.
    fn size(&self) -> u64;

    /// Whether changes are refused.
    fn read_only(&self) -> bool;

    /// The unit of mapping, bytes, a power of two: changes that cover whole ones are quick, and only whole ones are given back.
    fn block_bytes(&self) -> u32;

    /// Reads `out.len()` bytes. Without an error all of `out` is written, whatever was in it before.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError>;

    /// Writes; with `fua` the data is durable on return.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), DiskError>;

    /// Reads, lets `change` change what was read, and writes it if `change` returns true: as one step for all who use the disk. Returns what
    /// `change` returned.
    fn update(&self, offset: u64, length: usize, fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError>;

    /// Everything whose write returned before this call is durable on return.
    fn flush(&self) -> Result<(), DiskError>;

    /// Makes the range zeros and gives its space back.
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// The range is not needed any more: gives its space back. What has no room to become zeros may stay as it is.
    fn unmap(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.zero(offset, length)
    }

    /// The range will be read soon.
    fn prefetch(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// How the range is mapped: extents one behind the other from `offset` on, at least one, at most `limit`; they may end before the range does.
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DiskError>;

    /// The room of the store, if it can be told. It is asked often and must answer at once.
    fn space(&self) -> Option<Space> {
        None
    }

    /// What the range is now, to be written somewhere else. Unless a disk knows better, that are the bytes.
    fn capture(&self, offset: u64, length: u64) -> Result<Arc<dyn Content>, DiskError> {
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| DiskError::OutOfRange)?];
        self.read(offset, &mut bytes)?;
        Ok(Arc::new(Captured(bytes)))
    }

    /// Writes `length` bytes of a content, from byte `from` of it on, to `offset`. Unless a disk knows better, they are read and written.
    fn place(&self, offset: u64, content: &dyn Content, from: u64, length: u64) -> Result<(), DiskError> {
        place_bytes(self, offset, content, from, length)
    }
}

/// Writes `length` bytes of a content, from byte `from` of it on, to `offset`, by reading them.
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

/// Room of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that are taken.
    pub used_bytes: u64,
    /// Bytes that are free.
    pub available_bytes: u64,
    /// With fewer free bytes than this, initiators are warned.
    pub low_bytes: u64,
}

/// Bytes that are read and written at a time where nothing better is known.
const PLACE_BYTES: u64 = 1 << 20;

/// What a range of a disk was at one moment, whatever became of the disk since.
pub trait Content: Any + Send + Sync + std::fmt::Debug {
    /// Its length, bytes.
    fn length(&self) -> u64;

    /// Memory that it takes, bytes.
    fn memory_bytes(&self) -> usize;

    /// Fills `out` from byte `from` on.
    fn read(&self, from: u64, out: &mut [u8]) -> Result<(), DiskError>;
}

/// The bytes themselves.
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
    /// Whether something is stored for it; else it reads as zeros.
    pub mapped: bool,
}

/// Why a disk cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The store is full.
    #[error("no space left in the store")]
    NoSpace,
    /// The disk cannot be changed.
    #[error("the disk is read-only")]
    ReadOnly,
    /// Beyond the end of the disk, which may have been made smaller.
    #[error("beyond the end of the disk")]
    OutOfRange,
    /// What was stored is lost or damaged; the text is for the log of the target.
    #[error("{0}")]
    Damaged(String),
    /// The store failed; the text is for the log of the target.
    #[error("{0}")]
    Io(String),
}
