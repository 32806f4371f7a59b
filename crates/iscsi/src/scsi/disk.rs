//! What a logical unit stands on.

/// A thin disk. Several threads use it at the same time; each call sees the changes of those that returned before it began.
pub trait Disk: Send + Sync {
    /// Its length, bytes.
    fn size(&self) -> u64;

    /// Whether changes are refused.
    fn read_only(&self) -> bool;

    /// The unit of mapping, bytes, a power of two: changes that cover whole ones are quick, and only whole ones are given back.
    fn block_bytes(&self) -> u32;

    /// Reads `out.len()` bytes.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DiskError>;

    /// Writes; with `fua` the data is durable on return.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), DiskError>;

    /// Reads, lets `change` change what was read, and writes it if `change` returns true: as one step for all who use the disk. Returns what
    /// `change` returned.
    fn update(&self, offset: u64, length: usize, fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool, DiskError>;

    /// Everything whose write returned before this call is durable on return.
    fn flush(&self) -> Result<(), DiskError>;

    /// Makes the range zeros and gives its space back.
    fn unmap(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// The range will be read soon.
    fn prefetch(&self, offset: u64, length: u64) -> Result<(), DiskError>;

    /// How the range is mapped: extents one behind the other from `offset` on, at least one, at most `limit`; they may end before the range does.
    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>, DiskError>;
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
    /// Reading or writing failed; the text is for the log of the target.
    #[error("{0}")]
    Io(String),
}
