//! What two paged hash tables on disk share: the chunk index and the linked index.
//!
//! * `header.rs`: which pages count, in two slots written in turn.
//! * `journal.rs`: the pages that are being written in place.
//! * `overlay.rs`: the same pages in memory, until they are in place.
//! * `changes.rs`: changes of chunks that are in the log but not yet in pages.

mod changes;
mod header;
mod journal;
mod overlay;

pub(crate) use changes::Changes;
pub use header::HeaderContent;
pub(crate) use header::HeaderFile;
pub(crate) use journal::JournalFile;
pub use journal::{Journal, JournalHead, PageNumber};
pub(crate) use overlay::Overlay;

/// Bytes of a page, of a header slot, and of a block of the journal.
pub const PAGE_BYTES: usize = 4096;

/// Returns the little-endian integer at `offset`. The caller has checked the length.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// Returns the little-endian integer at `offset`. The caller has checked the length.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}
