//! Time and bytes by component (M0.22): where the wall time of the data path goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Component {
    /// Reading what is backed up.
    Source,
    /// Finding chunk boundaries.
    Chunking,
    /// Hashing.
    Fingerprint,
    /// Hashing chunks that were expected, and were right: nothing was scanned for them.
    Prediction,
    /// Waiting for another stream that stores the same chunk.
    Reservation,
    /// Zero-chunk filter.
    FilterZero,
    /// Block-index filter.
    FilterBlockIndex,
    /// Bloom filter.
    FilterBloom,
    /// Container-cache filter.
    FilterContainerCache,
    /// Chunk-index filter.
    FilterChunkIndex,
    /// Byte-compare filter.
    FilterByteCompare,
    /// Chunk index: applying and sweeping, in the background.
    ChunkIndex,
    /// Object index: looking up and persisting.
    ObjectIndex,
    /// Compressing frames.
    Compress,
    /// Writing and syncing containers.
    StorageWrite,
    /// Reading containers.
    StorageRead,
    /// Decompressing frames.
    Decompress,
    /// Writing and syncing the operations log.
    Log,
    /// Waiting for locks of blocks.
    Lock,
    /// Making damaged containers anew from parity: a call for each.
    Repair,
}

impl Component {
    /// All of them, in the order of the data path.
    pub const ALL: [Component; 20] = [
        Component::Source,
        Component::Chunking,
        Component::Fingerprint,
        Component::Prediction,
        Component::Reservation,
        Component::FilterZero,
        Component::FilterBlockIndex,
        Component::FilterBloom,
        Component::FilterContainerCache,
        Component::FilterChunkIndex,
        Component::FilterByteCompare,
        Component::ChunkIndex,
        Component::ObjectIndex,
        Component::Compress,
        Component::StorageWrite,
        Component::StorageRead,
        Component::Decompress,
        Component::Log,
        Component::Lock,
        Component::Repair,
    ];

    /// The name in `stats`.
    pub fn name(self) -> &'static str {
        match self {
            Component::Source => "source",
            Component::Chunking => "chunking",
            Component::Fingerprint => "fingerprint",
            Component::Prediction => "prediction",
            Component::Reservation => "reservation",
            Component::FilterZero => "filter_zero_chunk",
            Component::FilterBlockIndex => "filter_block_index",
            Component::FilterBloom => "filter_bloom",
            Component::FilterContainerCache => "filter_container_cache",
            Component::FilterChunkIndex => "filter_chunk_index",
            Component::FilterByteCompare => "filter_byte_compare",
            Component::ChunkIndex => "chunk_index",
            Component::ObjectIndex => "object_index",
            Component::Compress => "compress",
            Component::StorageWrite => "storage_write",
            Component::StorageRead => "storage_read",
            Component::Decompress => "decompress",
            Component::Log => "log",
            Component::Lock => "lock",
            Component::Repair => "repair",
        }
    }
}

/// The sums of one component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Calls.
    pub calls: u64,
    /// Wall time, nanoseconds.
    pub time_ns: u64,
    /// Bytes handled.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Cell {
    calls: AtomicU64,
    time_ns: AtomicU64,
    bytes: AtomicU64,
}

/// Sums for all components of one store. Cheap enough to stay on: two clock reads per batch.
#[derive(Debug, Default)]
pub struct Profile {
    cells: [Cell; Component::ALL.len()],
}

impl Profile {
    /// Runs `work` and adds its time and `bytes` to `component`.
    pub fn time<T>(&self, component: Component, bytes: u64, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(component, start.elapsed().as_nanos() as u64, bytes);
        result
    }

    /// Adds one call.
    pub fn add(&self, component: Component, time_ns: u64, bytes: u64) {
        let cell = &self.cells[component as usize];
        cell.calls.fetch_add(1, Ordering::Relaxed);
        cell.time_ns.fetch_add(time_ns, Ordering::Relaxed);
        cell.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The sums so far.
    pub fn usage(&self, component: Component) -> Usage {
        let cell = &self.cells[component as usize];
        Usage {
            calls: cell.calls.load(Ordering::Relaxed),
            time_ns: cell.time_ns.load(Ordering::Relaxed),
            bytes: cell.bytes.load(Ordering::Relaxed),
        }
    }

    /// All components with at least one call.
    pub fn report(&self) -> Vec<(&'static str, Usage)> {
        Component::ALL.iter().map(|component| (component.name(), self.usage(*component))).filter(|(_, usage)| usage.calls > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_22_time_and_bytes_are_summed_by_component() {
        let profile = Profile::default();
        assert_eq!(profile.time(Component::Chunking, 100, || 7), 7);
        profile.add(Component::Chunking, 5, 50);
        let usage = profile.usage(Component::Chunking);
        assert_eq!((usage.calls, usage.bytes), (2, 150));
        assert!(usage.time_ns >= 5);
        assert_eq!(profile.report().len(), 1);
    }

    #[test]
    fn every_component_stands_at_its_own_place() {
        for (place, component) in Component::ALL.iter().enumerate() {
            assert_eq!(*component as usize, place);
        }
    }
}
