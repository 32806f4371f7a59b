//! Counts what a levelled store does, for its write and read amplification.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a levelled store has done since it was opened. Bytes are those of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelsWork {
    /// Bytes of the tables that memtables became.
    pub flushed_bytes: u64,
    /// Bytes that compactions read: pages of keys, and frames.
    pub merge_read_bytes: u64,
    /// Bytes of the tables that compactions wrote.
    pub merge_written_bytes: u64,
    /// Chunks that were asked for.
    pub gets: u64,
    /// Pages of keys that were read for them, or ahead.
    pub page_reads: u64,
    /// Reads of frames for them, of one or several each.
    pub frame_reads: u64,
}

/// The counters behind [`LevelsWork`]. They order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merge_read_bytes: AtomicU64,
    pub(crate) merge_written_bytes: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) page_reads: AtomicU64,
    pub(crate) frame_reads: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn work(&self) -> LevelsWork {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LevelsWork {
            flushed_bytes: of(&self.flushed_bytes),
            merge_read_bytes: of(&self.merge_read_bytes),
            merge_written_bytes: of(&self.merge_written_bytes),
            gets: of(&self.gets),
            page_reads: of(&self.page_reads),
            frame_reads: of(&self.frame_reads),
        }
    }
}
