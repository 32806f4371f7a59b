//! The limits that a store's spaces are opened with.

/// Limits of memory and threads, for all spaces of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpacesOptions {
    /// Limit of the write-back buffers in bytes. Writing out needs up to 2 MiB (or one block) more per thread.
    pub dirty_bytes: usize,
    /// Limit of the cache of block mappings in bytes.
    pub mapping_cache_bytes: usize,
    /// Writing streams of each space: threads that write out at the same time. At least 1.
    pub streams: usize,
    /// Whether reads compare the fingerprints of what they read. Checksums are always verified.
    pub verify: bool,
}

impl Default for SpacesOptions {
    fn default() -> SpacesOptions {
        SpacesOptions { dirty_bytes: 64 << 20, mapping_cache_bytes: 16 << 20, streams: 2, verify: false }
    }
}
