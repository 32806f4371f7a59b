//! The traits for exported data. The owner of the data implements them.

use std::sync::Arc;

/// A disk that clients read and write. Many threads of the server call it at once, outside of any async runtime. Calls
/// may block.
///
/// The server checks `offset + length <= size()` and `read_only()` before each call. If the export shrinks or changes
/// in between, it returns [`ExportError::OutOfRange`] or [`ExportError::ReadOnly`] itself.
pub trait Export: Send + Sync {
    /// Returns the length in bytes.
    fn size(&self) -> u64;

    /// Returns whether changes are refused.
    fn read_only(&self) -> bool;

    /// Returns the size and alignment, in bytes, at which requests are fast. It is announced as a power of two between
    /// 512 bytes and [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES); other values are rounded into that range.
    fn preferred_block_bytes(&self) -> u32;

    /// Reads `out.len()` bytes.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ExportError>;

    /// Writes. With `fua` the data is durable on return.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), ExportError>;

    /// Makes every write durable that returned before this call, through any connection.
    fn flush(&self) -> Result<(), ExportError>;

    /// Discards a range that the client no longer needs. Later reads return whatever the export likes.
    fn trim(&self, offset: u64, length: u64, fua: bool) -> Result<(), ExportError>;

    /// Zeroes the range. With `may_trim` its space may be freed, which must be faster than writing zeros
    /// (`NBD_CMD_FLAG_FAST_ZERO`). Without it, later writes to the range should not fail for lack of space.
    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool, fua: bool) -> Result<(), ExportError>;

    /// Prepares for reading the range soon.
    fn cache(&self, offset: u64, length: u64) -> Result<(), ExportError>;

    /// Returns how the range is allocated: up to `limit_extents` (at least 1) consecutive extents, beginning at
    /// `offset`. They may end before the range does; then the client asks again. Extents of length 0, and parts beyond
    /// the range, are dropped.
    fn status(&self, offset: u64, length: u64, limit_extents: usize) -> Result<Vec<Extent>, ExportError>;
}

/// A run of bytes of the same kind (`base:allocation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Whether nothing is allocated for it.
    pub hole: bool,
    /// Whether it reads as zeros.
    pub zero: bool,
}

/// The reason why an export cannot execute a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The store is full.
    #[error("no space left in the store")]
    NoSpace,
    /// The export cannot be changed.
    #[error("the export is read-only")]
    ReadOnly,
    /// The request reaches beyond the end of the export.
    #[error("beyond the end of the export")]
    OutOfRange,
    /// Reading or writing failed. The text is for the server's log; clients do not see it.
    #[error("{0}")]
    Io(String),
    /// The store is being closed.
    #[error("the store is being closed")]
    ShuttingDown,
}

/// The exports of a server.
pub trait Exports: Send + Sync {
    /// Returns all exports.
    fn list(&self) -> Vec<ExportInfo>;

    /// Returns the export with this name. `""` is the default export: the one of that name, or the only one.
    fn open(&self, name: &str) -> Option<Arc<dyn Export>>;
}

/// What a list of exports shows of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name. A name longer than 4096 bytes cannot be requested and is not listed.
    pub name: String,
    /// A description for users; may be empty.
    pub description: String,
}
