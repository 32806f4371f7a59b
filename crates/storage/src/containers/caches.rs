//! Keeps catalogs and open files of containers for reading. Frames have a cache of their own (`frame_cache.rs`).
//!
//! Data that a reader found on disk is kept only if no chunk has moved since the reader began to look. The check
//! happens under the lock of the cache. So what [`Caches::forget`] removes after a move was counted never comes back
//! (`forward.rs`). Each method takes its locks last and alone.

use crate::containers::cache::Lru;
use crate::containers::catalog_cache::CatalogCache;
use crate::containers::eviction::CachePolicy;
use crate::{Catalog, ContainerId};
use onefold_ground::File;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Files kept open for reading. More would use up the descriptors of a process.
const OPEN_FILES: usize = 128;

/// Catalogs and open files, by container.
#[derive(Debug)]
pub(crate) struct Caches {
    catalogs: Mutex<CatalogCache>,
    files: Mutex<Lru<ContainerId, Arc<dyn File>>>,
    catalog_hits: AtomicU64,
    catalog_misses: AtomicU64,
}

impl Caches {
    pub(crate) fn new(catalog_bytes: usize, policy: CachePolicy) -> Caches {
        Caches {
            catalogs: Mutex::new(CatalogCache::new(catalog_bytes, policy)),
            files: Mutex::new(Lru::new(OPEN_FILES)),
            catalog_hits: AtomicU64::new(0),
            catalog_misses: AtomicU64::new(0),
        }
    }

    /// Returns all catalogs.
    pub(crate) fn catalogs(&self) -> MutexGuard<'_, CatalogCache> {
        self.catalogs.lock()
    }

    /// Returns a catalog, counted as a hit.
    pub(crate) fn catalog(&self, container: ContainerId) -> Option<Arc<Catalog>> {
        let cached = self.catalogs.lock().get(container)?;
        self.catalog_hits.fetch_add(1, Relaxed);
        Some(cached)
    }

    /// Returns a catalog without counting it. Call only when the caller does not keep it.
    pub(crate) fn catalog_for_once(&self, container: ContainerId) -> Option<Arc<Catalog>> {
        self.catalogs.lock().get(container)
    }

    /// Counts a catalog that has to be read.
    pub(crate) fn miss_catalog(&self) {
        self.catalog_misses.fetch_add(1, Relaxed);
    }

    /// Keeps the catalog of a container that is being sealed right now.
    pub(crate) fn keep_catalog(&self, catalog: &Arc<Catalog>) {
        self.keep_catalog_if(catalog, || true);
    }

    /// Keeps a catalog that was read, if `is_current`.
    pub(crate) fn keep_catalog_if(&self, catalog: &Arc<Catalog>, is_current: impl FnOnce() -> bool) {
        let mut catalogs = self.catalogs.lock();
        if is_current() {
            catalogs.insert(catalog);
        }
    }

    /// Returns an open file.
    pub(crate) fn file(&self, container: ContainerId) -> Option<Arc<dyn File>> {
        self.files.lock().get(&container)
    }

    /// Keeps the file that a container is read from.
    pub(crate) fn keep_file(&self, container: ContainerId, file: Arc<dyn File>) {
        self.keep_file_if(container, file, || true);
    }

    /// Keeps a newly opened file, if `is_current`.
    pub(crate) fn keep_file_if(&self, container: ContainerId, file: Arc<dyn File>, is_current: impl FnOnce() -> bool) {
        let mut files = self.files.lock();
        if is_current() {
            files.insert(container, file, 1);
        }
    }

    /// Drops everything kept of a container.
    pub(crate) fn forget(&self, container: ContainerId) {
        self.catalogs.lock().remove(container);
        self.forget_file(container);
    }

    /// Drops everything kept of the containers of a partition.
    pub(crate) fn forget_partition(&self, partition: u16) {
        self.catalogs.lock().remove_partition(partition);
        let mut files = self.files.lock();
        let these: Vec<ContainerId> = files.keys().copied().filter(|container| container.partition() == partition).collect();
        these.iter().for_each(|container| files.remove(container));
    }

    /// Drops the open file of a container.
    pub(crate) fn forget_file(&self, container: ContainerId) {
        self.files.lock().remove(&container);
    }

    pub(crate) fn catalog_hits(&self) -> u64 {
        self.catalog_hits.load(Relaxed)
    }

    pub(crate) fn catalog_misses(&self) -> u64 {
        self.catalog_misses.load(Relaxed)
    }

    pub(crate) fn catalog_bytes(&self) -> usize {
        self.catalogs.lock().used_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Ground, SimulatedGround};

    #[test]
    fn what_moved_since_it_was_read_is_not_kept() {
        let (caches, id) = (Caches::new(1 << 20, CachePolicy::Lru), ContainerId::new(0, 1));
        let (catalog, file) = (Arc::new(Catalog::new(id)), SimulatedGround::new(1).create("file").unwrap());
        caches.keep_catalog_if(&catalog, || false);
        caches.keep_file_if(id, file.clone(), || false);
        assert!(caches.catalog(id).is_none() && caches.file(id).is_none());
        caches.keep_catalog_if(&catalog, || true);
        caches.keep_file_if(id, file, || true);
        assert!(caches.catalog(id).is_some() && caches.file(id).is_some());
        caches.forget(id);
        assert!(caches.catalog(id).is_none() && caches.file(id).is_none());
        assert_eq!((caches.catalog_hits(), caches.catalog_bytes()), (1, 0));
    }
}
