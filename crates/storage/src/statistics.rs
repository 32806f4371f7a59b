//! The figures of a store, and the counters behind them while it is open.

use crate::store::ContainerStore;
use std::sync::atomic::Ordering::Relaxed;

/// Figures of a store since it was opened, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Container numbers given out since the store was created.
    pub containers: u64,
    /// Containers that are not sealed now.
    pub open_containers: u64,
    /// Containers created.
    pub created_containers: u64,
    /// Containers sealed.
    pub sealed_containers: u64,
    /// Frames compressed.
    pub frames: u64,
    /// Of these, frames stored plain.
    pub plain_frames: u64,
    /// Bytes of these frames before compression.
    pub raw_bytes: u64,
    /// Bytes of these frames after compression.
    pub stored_bytes: u64,
    /// Raw bytes of frames on their way to disk now.
    pub in_flight_bytes: u64,
    /// Raw bytes of frames that still take chunks.
    pub open_frame_bytes: u64,
    /// Raw bytes of full frames that no prepare has made durable yet.
    pub unsynced_bytes: u64,
    /// Frames that loads found in the cache.
    pub frame_hits: u64,
    /// Frames that loads had to read.
    pub frame_misses: u64,
    /// Bytes in the frame cache now.
    pub frame_cache_bytes: u64,
    /// Catalogs found in the cache.
    pub catalog_hits: u64,
    /// Catalogs that had to be read.
    pub catalog_misses: u64,
    /// Bytes in the catalog cache now.
    pub catalog_cache_bytes: u64,
}

impl ContainerStore {
    /// Returns the raw bytes of full frames that no [`prepare`](Self::prepare) has made durable yet. When there are
    /// many, it is time for one.
    pub fn unsynced_bytes(&self) -> u64 {
        self.shared.counters.unsynced_bytes()
    }

    /// Returns the store's figures.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        let counters = &shared.counters;
        let numbers = shared.placement.given_out_count();
        let open = shared.unsealed.all();
        let open_frame_bytes = open.iter().map(|container| container.state.lock().open.raw.len() as u64).sum();
        Statistics {
            containers: numbers,
            open_containers: open.len() as u64,
            created_containers: counters.created.load(Relaxed),
            sealed_containers: counters.sealed.load(Relaxed),
            frames: counters.frames.load(Relaxed),
            plain_frames: counters.plain_frames.load(Relaxed),
            raw_bytes: counters.raw_bytes.load(Relaxed),
            stored_bytes: counters.stored_bytes.load(Relaxed),
            in_flight_bytes: shared.flow.in_flight_bytes() as u64,
            open_frame_bytes,
            unsynced_bytes: counters.unsynced_bytes(),
            frame_hits: shared.frames.hits(),
            frame_misses: shared.frames.misses(),
            frame_cache_bytes: shared.frames.used_bytes() as u64,
            catalog_hits: shared.caches.catalog_hits(),
            catalog_misses: shared.caches.catalog_misses(),
            catalog_cache_bytes: shared.caches.catalog_bytes() as u64,
        }
    }
}
