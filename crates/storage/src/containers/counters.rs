//! What the parts of the store count.

use crate::{Codec, Frame};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts containers and frames since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) created: AtomicU64,
    pub(crate) sealed: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) plain_frames: AtomicU64,
    pub(crate) came_frames: AtomicU64,
    pub(crate) raw_bytes: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
    unsynced_bytes: AtomicU64,
}

impl Counters {
    /// Counts a created container.
    pub(crate) fn created(&self) {
        self.created.fetch_add(1, Relaxed);
    }

    /// Counts a sealed container.
    pub(crate) fn sealed(&self) {
        self.sealed.fetch_add(1, Relaxed);
    }

    /// Counts a frame, which was compressed here or came compressed.
    pub(crate) fn compressed(&self, frame: &Frame, came: bool) {
        self.came_frames.fetch_add(u64::from(came), Relaxed);
        self.frames.fetch_add(1, Relaxed);
        self.plain_frames.fetch_add(u64::from(frame.codec == Codec::Plain), Relaxed);
        self.raw_bytes.fetch_add(u64::from(frame.raw_bytes), Relaxed);
        self.stored_bytes.fetch_add(u64::from(frame.stored_bytes), Relaxed);
    }

    /// Counts a full frame that was handed over.
    pub(crate) fn handed_over(&self, raw_bytes: u64) {
        self.unsynced_bytes.fetch_add(raw_bytes, Relaxed);
    }

    /// Counts full frames that were synced.
    pub(crate) fn synced(&self, raw_bytes: u64) {
        self.unsynced_bytes.fetch_sub(raw_bytes, Relaxed);
    }

    /// Returns what was handed over and is not synced yet.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.unsynced_bytes.load(Relaxed)
    }
}
