//! What the server exports: the traits that the owner of the data implements.

use std::sync::Arc;

/// A disk that clients read and write. Calls come from many threads of the server at once, outside of any async runtime, and may block.
///
/// The server has checked `offset + length <= size()` and `read_only()` before each call; an export that shrinks or changes in
/// between answers [`ExportError::OutOfRange`] or [`ExportError::ReadOnly`] itself.
pub trait Export: Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> u64;

    /// Whether changes are refused.
    fn read_only(&self) -> bool;

    /// The size and alignment that requests should have to be fast, in bytes. Announced as a power of two between 512 bytes and
    /// [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES); other values are rounded into that range.
    fn preferred_block_bytes(&self) -> u32;

    /// Reads `out.len()` bytes.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ExportError>;

    /// Writes; with `fua` the data is durable on return.
    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), ExportError>;

    /// Everything whose write returned before this call, through any connection, is durable on return.
    fn flush(&self) -> Result<(), ExportError>;

    /// The client does not need the content of the range any more; what it reads afterwards is up to the export.
    fn trim(&self, offset: u64, length: u64, fua: bool) -> Result<(), ExportError>;

    /// Makes the range zeros. With `may_trim` its space may be given back, which must be quicker than writing zeros would be
    /// (`NBD_CMD_FLAG_FAST_ZERO`); without, later writes to the range should not fail for lack of space.
    fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool, fua: bool) -> Result<(), ExportError>;

    /// The client will read the range soon.
    fn cache(&self, offset: u64, length: u64) -> Result<(), ExportError>;

    /// How the range is allocated: up to `limit_extents` (at least 1) extents one behind the other, beginning at `offset`. They may end before the
    /// range does; the client asks again. Extents or parts of them behind the range, or of length 0, are dropped.
    fn status(&self, offset: u64, length: u64, limit_extents: usize) -> Result<Vec<Extent>, ExportError>;
}

/// A run of bytes of the same kind (`base:allocation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Nothing is allocated for it.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

/// Why an export cannot do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The store is full.
    #[error("no space left in the store")]
    NoSpace,
    /// The export cannot be changed.
    #[error("the export is read-only")]
    ReadOnly,
    /// Beyond the end of the export.
    #[error("beyond the end of the export")]
    OutOfRange,
    /// Reading or writing failed; the text is for the log of the server, clients do not see it.
    #[error("{0}")]
    Io(String),
    /// The store is being closed.
    #[error("the store is being closed")]
    ShuttingDown,
}

/// The exports of a server.
pub trait Exports: Send + Sync {
    /// All of them.
    fn list(&self) -> Vec<ExportInfo>;

    /// The one of that name; `""` is the default export: the one named so, or the only one.
    fn open(&self, name: &str) -> Option<Arc<dyn Export>>;
}

/// What a list of exports shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name; longer than 4096 bytes it cannot be asked for and is not listed.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
}
