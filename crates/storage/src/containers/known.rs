//! Chunks that are known by name, without an index: those of open catalogs in the cache (`catalog_cache.rs`).

use crate::containers::catalog_cache::{CatalogCache, Place};
use crate::containers::store::ContainerStore;
use crate::{Address, Catalog, Origin};
use onefold_fingerprint::Fingerprint;
use parking_lot::MutexGuard;
use std::cell::Cell;
use std::sync::Arc;

/// The chunks of open catalogs. No catalog comes or goes while this is held, so hold it shortly.
pub struct KnownChunks<'a> {
    catalogs: MutexGuard<'a, CatalogCache>,
    /// The place behind the chunk that was found last: most likely that of the next one.
    expected: Cell<Option<Place>>,
}

impl KnownChunks<'_> {
    /// Returns where a chunk was when its catalog was opened.
    pub fn find(&self, name: &Fingerprint) -> Option<Address> {
        let expected = self.expected.get().filter(|place| self.catalogs.is_at(*place, name));
        let place = expected.or_else(|| self.catalogs.find(name))?;
        self.expected.set(place.next());
        Some(self.catalogs.address(place))
    }
}

/// Chunks of a container that have to be found one after the other before the container filled after it is expected.
const IN_ORDER: usize = 8;

impl KnownChunks<'_> {
    /// Returns the origin that is expected next, if these chunks run on in order to near the end of an open catalog:
    /// that of the container with the next number. The chunks have one origin.
    pub fn expected_after(&self, found: &[Address]) -> Option<Origin> {
        let last = *found.last().filter(|_| found.len() >= IN_ORDER)?;
        let is_in_order = found.windows(2).all(|pair| pair[0].bits() + 1 == pair[1].bits());
        let catalog = self.catalogs.open_catalog(last.origin()).filter(|_| is_in_order)?;
        // The next request may find as many, and the one after it too.
        let is_near_the_end = catalog.slots.len() - catalog.position(last)? <= 2 * found.len();
        last.origin().next().filter(|_| is_near_the_end)
    }
}

impl ContainerStore {
    /// Returns all chunks that are known by name.
    pub fn known_chunks(&self) -> KnownChunks<'_> {
        known(self.shared.caches.catalogs())
    }

    /// Notes that chunks of an origin were found so many times. `None`: no catalog that has them is open.
    pub fn touch_catalog(&self, origin: Origin, hits: u32) -> Option<KnownChunks<'_>> {
        let mut catalogs = self.shared.caches.catalogs();
        catalogs.touch(origin, hits).then(|| known(catalogs))
    }

    /// Opens a catalog: makes its chunks known by name, except those that are not alive. `None`: the cache has not kept
    /// it, or has no room.
    pub fn open_catalog(&self, catalog: &Arc<Catalog>, is_alive: &dyn Fn(usize) -> bool) -> Option<KnownChunks<'_>> {
        let mut catalogs = self.shared.caches.catalogs();
        catalogs.open(catalog, is_alive).then(|| known(catalogs))
    }

    /// Makes chunks unknown by name, until their catalogs leave the cache and are opened again.
    pub fn forget_chunks(&self, names: &[Fingerprint]) {
        self.shared.caches.catalogs().forget_chunks(names);
    }
}

fn known(catalogs: MutexGuard<'_, CatalogCache>) -> KnownChunks<'_> {
    KnownChunks { catalogs, expected: Cell::new(None) }
}
