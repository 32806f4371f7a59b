//! Container-cache filter (M0.10): chunks that were written together come back together. When a chunk is found, the fingerprints of its
//! container are loaded (the post-process step), and the chunks that follow it are found without the chunk index.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use crate::liveness::dead::DeadSlots;
use crate::write::reservation::FingerprintMap;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_index::ObjectIndex;
use onefold_storage::{Address, Catalog, ContainerId, ContainerStore};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

static COMPONENT: Component = Component::new("filter_container_cache");

/// Says STRONG-MAYBE of chunks of the containers that were used last, WEAK-MAYBE of others.
#[derive(Debug)]
pub struct ContainerCacheFilter {
    storage: Arc<ContainerStore>,
    /// Knows the dead slots: a catalog still lists chunks that are not stored any more.
    blocks: Arc<ObjectIndex>,
    limit_entries: usize,
    cache: Mutex<Cache>,
}

/// Least recently used containers and their fingerprints.
#[derive(Debug, Default)]
struct Cache {
    chunks: FingerprintMap<Address>,
    containers: HashMap<ContainerId, Loaded>,
    /// The containers that addresses name -> the one of `containers` that has their chunks: a merged one has those of many.
    homes: HashMap<ContainerId, ContainerId>,
    /// Last use -> container.
    ages: BTreeMap<u64, ContainerId>,
    clock: u64,
    /// Counts removals, and beginnings and ends of merges: what was loaded before one may have what is not stored any more.
    removals: u64,
    /// The commit of a merge is under way: it forgets the dead slots of its victims before their catalogs are replaced. What is loaded meanwhile may take a dead
    /// chunk for one that is stored.
    is_merging: bool,
    /// Chunks whose copy in some container was found damaged (or another one) and that were stored anew: the chunk index knows where.
    replaced: FingerprintMap<()>,
}

#[derive(Debug)]
struct Loaded {
    age: u64,
    fingerprints: Box<[Fingerprint]>,
    homes: Box<[ContainerId]>,
}

impl ContainerCacheFilter {
    /// Keeps at most about `limit_entries` fingerprints of containers of `storage`.
    pub fn new(storage: Arc<ContainerStore>, blocks: Arc<ObjectIndex>, limit_entries: usize) -> ContainerCacheFilter {
        ContainerCacheFilter { storage, blocks, limit_entries, cache: Mutex::default() }
    }
}

impl Cache {
    /// Marks the container that has the chunks of `home` as used; false if it is not here.
    fn touch(&mut self, home: ContainerId) -> bool {
        let Some(container) = self.homes.get(&home).copied() else { return false };
        let loaded = self.containers.get_mut(&container).expect("homes are those of the containers that are here");
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
        // What has these homes now was merged into this container since.
        for home in catalog.home_containers() {
            self.homes.get(home).copied().into_iter().for_each(|merged| self.forget(merged));
        }
        while self.chunks.len() + catalog.slots.len() > limit_entries {
            let Some((_, oldest)) = self.ages.first_key_value() else { break };
            self.forget(*oldest);
        }
        self.clock += 1;
        for (number, slot) in catalog.slots.iter().enumerate() {
            if !dead.contains(number) && !self.replaced.contains_key(&slot.fingerprint) {
                self.chunks.insert(slot.fingerprint, catalog.address(number));
            }
        }
        self.ages.insert(self.clock, catalog.container);
        self.homes.extend(catalog.home_containers().iter().map(|home| (*home, catalog.container)));
        let fingerprints = catalog.slots.iter().map(|slot| slot.fingerprint).collect();
        self.containers.insert(catalog.container, Loaded { age: self.clock, fingerprints, homes: catalog.home_containers().into() });
    }

    fn forget(&mut self, container: ContainerId) {
        let Some(loaded) = self.containers.remove(&container) else { return };
        self.ages.remove(&loaded.age);
        for fingerprint in &loaded.fingerprints {
            if self.chunks.get(fingerprint).is_some_and(|address| self.homes.get(&address.container()) == Some(&container)) {
                self.chunks.remove(fingerprint);
            }
        }
        for home in &loaded.homes {
            self.homes.remove(home);
        }
    }

    /// A chunk was stored although its container is here: what is here led the chain to a copy that is no good.
    fn replace(&mut self, fingerprint: &Fingerprint, address: Address, limit_entries: usize) {
        if self.chunks.get(fingerprint).is_some_and(|old| *old != address) {
            self.chunks.remove(fingerprint);
            if self.replaced.len() >= limit_entries {
                self.replaced.clear();
            }
            self.replaced.insert(*fingerprint, ());
        }
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
            let container = address.container();
            if last == Some(container) {
                continue;
            }
            last = Some(container);
            let removals = {
                let mut cache = self.cache.lock();
                if cache.touch(container) {
                    continue;
                }
                cache.removals
            };
            if !self.storage.is_sealed(container) {
                continue;
            }
            // The cache is a help, not a need: a container whose catalog is damaged is left to the other filters, and to `check`.
            let Ok(catalog) = self.storage.catalog(container) else { continue };
            let Ok(dead) = DeadSlots::read(&self.blocks, catalog.container) else { continue };
            let mut cache = self.cache.lock();
            if cache.removals == removals && !cache.is_merging {
                cache.insert(&catalog, &dead, self.limit_entries);
            }
        }
        Ok(())
    }
}
