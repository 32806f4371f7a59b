//! Container-cache filter (M0.10): chunks that were written together come back together. When a chunk is found, the
//! fingerprints of its container are loaded (the post-process step). Then the chunks after it are found without the
//! chunk index.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use crate::liveness::dead::DeadSlots;
use crate::write::reservation::FingerprintMap;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_index::ObjectIndex;
use onefold_storage::{Address, Catalog, ContainerId, ContainerStore, Origin};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

static COMPONENT: Component = Component::new("filter_container_cache");

/// Says STRONG-MAYBE to chunks of the most recently used containers, WEAK-MAYBE to others.
#[derive(Debug)]
pub struct ContainerCacheFilter {
    storage: Arc<ContainerStore>,
    /// Holds the dead slots: a catalog still lists chunks that are not stored any more.
    blocks: Arc<ObjectIndex>,
    limit_entries: usize,
    cache: Mutex<Cache>,
}

/// Recently used containers and their fingerprints. The least recently used go first.
#[derive(Debug, Default)]
struct Cache {
    chunks: FingerprintMap<Address>,
    containers: HashMap<ContainerId, Loaded>,
    /// Origins -> the one in `containers` that has their chunks. A merged container has the chunks of many.
    origins: HashMap<Origin, ContainerId>,
    /// Last use -> container.
    ages: BTreeMap<u64, ContainerId>,
    clock: u64,
    /// Counts removals, and starts and ends of merges. A catalog loaded before one of these may list chunks that are
    /// not stored any more.
    removals: u64,
    /// The commit of a merge is under way: it forgets the dead slots of its victims before their catalogs are replaced.
    /// A catalog loaded meanwhile may show a dead chunk as stored.
    is_merging: bool,
    /// Chunks that were stored again because their copy in some container was damaged or another chunk, and where they
    /// are since: older copies of them are left out.
    replaced: FingerprintMap<Address>,
}

/// What became of loading a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogState {
    /// It was here already.
    Here,
    /// It was read.
    Read,
    /// There is no container any more with chunks of this origin.
    Gone,
    /// It cannot be read, or is changing just now, or is still being filled.
    Unknown,
}

#[derive(Debug)]
struct Loaded {
    age: u64,
    fingerprints: Box<[Fingerprint]>,
    origins: Box<[Origin]>,
}

impl ContainerCacheFilter {
    /// Returns a cache of at most about `limit_entries` fingerprints of containers of `storage`.
    pub fn new(storage: Arc<ContainerStore>, blocks: Arc<ObjectIndex>, limit_entries: usize) -> ContainerCacheFilter {
        ContainerCacheFilter { storage, blocks, limit_entries, cache: Mutex::default() }
    }
}

impl Cache {
    /// Marks the container that has the chunks of an origin as used. Returns false if it is not here.
    fn touch(&mut self, origin: Origin) -> bool {
        let Some(container) = self.origins.get(&origin).copied() else { return false };
        let loaded = self.containers.get_mut(&container).expect("origins are those of the containers that are here");
        if loaded.age != self.clock {
            self.clock += 1;
            self.ages.remove(&loaded.age);
            loaded.age = self.clock;
            self.ages.insert(self.clock, container);
        }
        true
    }

    fn insert(&mut self, catalog: &Catalog, dead: &DeadSlots, limit_entries: usize) {
        if self.containers.contains_key(&catalog.container) {
            return; // another stream was faster
        }
        // Containers with these origins have been merged into this one since.
        for origin in catalog.origins() {
            self.origins.get(&origin).copied().into_iter().for_each(|merged| self.forget(merged));
        }
        while self.chunks.len() + catalog.slots.len() > limit_entries {
            let Some((_, oldest)) = self.ages.first_key_value() else { break };
            self.forget(*oldest);
        }
        self.clock += 1;
        for (number, slot) in catalog.slots.iter().enumerate() {
            let address = catalog.address(number);
            if !dead.contains(number) && self.replaced.get(&slot.fingerprint).is_none_or(|now| *now == address) {
                self.chunks.insert(slot.fingerprint, address);
            }
        }
        self.ages.insert(self.clock, catalog.container);
        self.origins.extend(catalog.origins().map(|origin| (origin, catalog.container)));
        let fingerprints = catalog.slots.iter().map(|slot| slot.fingerprint).collect();
        self.containers.insert(catalog.container, Loaded { age: self.clock, fingerprints, origins: catalog.origins().collect() });
    }

    fn forget(&mut self, container: ContainerId) {
        let Some(loaded) = self.containers.remove(&container) else { return };
        self.ages.remove(&loaded.age);
        for fingerprint in &loaded.fingerprints {
            if self.chunks.get(fingerprint).is_some_and(|address| self.origins.get(&address.origin()) == Some(&container)) {
                self.chunks.remove(fingerprint);
            }
        }
        for origin in &loaded.origins {
            self.origins.remove(origin);
        }
    }

    /// Notes that a chunk was stored although its container is here: the entry here led the chain to a bad copy.
    fn replace(&mut self, fingerprint: &Fingerprint, address: Address, limit_entries: usize) {
        if self.chunks.get(fingerprint).is_some_and(|old| *old != address) {
            self.chunks.remove(fingerprint);
            if self.replaced.len() >= limit_entries {
                self.replaced.clear();
            }
            self.replaced.insert(*fingerprint, address);
        }
    }
}

impl ContainerCacheFilter {
    /// Passes all chunks of the catalogs that are here to `ask`.
    pub(crate) fn ask(&self, ask: &mut dyn FnMut(&FingerprintMap<Address>)) {
        ask(&self.cache.lock().chunks);
    }

    /// Loads the catalog that has the chunk at an address, if it is not here. Then asks as [`ask`](Self::ask), before
    /// the catalog has to make room for another.
    pub(crate) fn load(&self, address: Address, ask: &mut dyn FnMut(&FingerprintMap<Address>)) -> CatalogState {
        let removals = {
            let mut cache = self.cache.lock();
            if cache.touch(address.origin()) {
                ask(&cache.chunks);
                return CatalogState::Here;
            }
            cache.removals
        };
        // The cache is optional: a container with a damaged catalog is left to other look-ups, and to `check`.
        let catalog = match self.storage.sealed_catalog_of(address) {
            Ok(Some(catalog)) => catalog,
            Ok(None) => return CatalogState::Unknown,
            Err(_) if matches!(self.storage.has_file(address.origin()), Ok(false)) => return CatalogState::Gone,
            Err(_) => return CatalogState::Unknown,
        };
        let Ok(dead) = DeadSlots::read(&self.blocks, catalog.container) else { return CatalogState::Unknown };
        let mut cache = self.cache.lock();
        if cache.removals != removals || cache.is_merging {
            return CatalogState::Unknown;
        }
        cache.insert(&catalog, &dead, self.limit_entries);
        ask(&cache.chunks);
        CatalogState::Read
    }
}

impl Filter for ContainerCacheFilter {
    fn name(&self) -> &'static str {
        "container-cache"
    }

    fn max(&self) -> Verdict {
        Verdict::StrongMaybe
    }

    fn component(&self) -> &'static Component {
        &COMPONENT
    }

    fn check(&self, _request: &Request<'_>, lookups: &mut [Lookup<'_>], active: &[usize]) -> Result<()> {
        let cache = self.cache.lock();
        for at in active {
            if let Some(address) = cache.chunks.get(&lookups[*at].fingerprint) {
                lookups[*at].found(Verdict::StrongMaybe, *address);
            }
        }
        Ok(())
    }

    fn update(&self, stored: &[(Fingerprint, Address)]) {
        let mut cache = self.cache.lock();
        for (fingerprint, address) in stored {
            cache.replace(fingerprint, *address, self.limit_entries);
        }
    }

    fn removed(&self, chunks: &[Fingerprint]) {
        let mut cache = self.cache.lock();
        cache.removals += 1;
        for chunk in chunks {
            cache.chunks.remove(chunk);
        }
    }

    fn merging(&self, is_under_way: bool) {
        let mut cache = self.cache.lock();
        cache.removals += 1;
        cache.is_merging = is_under_way;
    }

    fn post_process(&self, found: &[Address]) -> Result<()> {
        let mut last = None;
        for address in found {
            let origin = address.origin();
            if last != Some(origin) {
                last = Some(origin);
                self.load(*address, &mut |_| {});
            }
        }
        Ok(())
    }
}
