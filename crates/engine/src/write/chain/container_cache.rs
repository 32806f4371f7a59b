//! Container-cache filter (M0.10, M3.6): chunks that were written together come back together. When a chunk is found,
//! the catalog of its container is opened (the post-process step). Then the chunks after it are found without the chunk
//! index.
//!
//! The catalogs, and the look-up of their chunks, are those of the [`ContainerStore`]: there is one cache of them. Here
//! are the rules that keep a catalog from answering for chunks that are not stored any more.

use super::{Filter, Lookup, Request, Verdict};
use crate::Result;
use crate::liveness::dead::DeadSlots;
use crate::write::reservation::FingerprintMap;
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_index::ObjectIndex;
use onefold_storage::{Address, Catalog, ContainerStore, Origin};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

static COMPONENT: Component = Component::new("filter_container_cache");

/// Chunks stored again that are remembered. Beyond, all are forgotten: whoever compares bytes finds the bad copies
/// again.
const MOST_REPLACED: usize = 4096;

/// Says STRONG-MAYBE to chunks of the catalogs that are open, WEAK-MAYBE to others.
#[derive(Debug)]
pub struct ContainerCacheFilter {
    storage: Arc<ContainerStore>,
    /// Holds the dead slots: a catalog still lists chunks that are not stored any more.
    blocks: Arc<ObjectIndex>,
    /// Several nodes have the store open: dead slots may be noted late (`cluster/removing.rs`). So only what this
    /// opening has put into a container is believed.
    is_of_cluster: bool,
    rules: Mutex<Rules>,
}

/// What may be opened. Catalogs are opened, and chunks forgotten, while this is locked.
#[derive(Debug, Default)]
struct Rules {
    /// Counts removals, and starts and ends of merges. A catalog loaded before one of these may list chunks that are
    /// not stored any more.
    removals: u64,
    /// The commit of a merge is under way: it forgets the dead slots of its victims before their catalogs are replaced.
    /// A catalog loaded meanwhile may show a dead chunk as stored.
    is_merging: bool,
    /// Chunks that were stored again because their copy in some container was damaged or another chunk, and where they
    /// are since: older copies of them are left out.
    replaced: FingerprintMap<Address>,
    /// Origins of chunks that another node has removed.
    doubted: BTreeSet<Origin>,
}

/// What became of loading a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogState {
    /// It was open already.
    Here,
    /// It was opened.
    Read,
    /// There is no container any more with chunks of this origin.
    Gone,
    /// It cannot be read, or is changing just now, or is still being filled.
    Unknown,
}

/// Finds chunks by name.
pub(crate) type Find<'a> = dyn Fn(&Fingerprint) -> Option<Address> + 'a;

impl ContainerCacheFilter {
    /// Returns a filter over the catalogs that `storage` has in memory.
    pub fn new(storage: Arc<ContainerStore>, blocks: Arc<ObjectIndex>, is_of_cluster: bool) -> ContainerCacheFilter {
        ContainerCacheFilter { storage, blocks, is_of_cluster, rules: Mutex::default() }
    }

    /// Passes the look-up in all open catalogs to `ask`.
    pub(crate) fn ask(&self, ask: &mut dyn FnMut(&Find<'_>)) {
        let known = self.storage.known_chunks();
        ask(&|name| known.find(name));
    }

    /// Opens the catalog that has the chunk at an address, if it is not open, and counts `hits` uses. Then asks as
    /// [`ask`](Self::ask), before the catalog has to make room for another.
    pub(crate) fn load(&self, address: Address, hits: u32, ask: &mut dyn FnMut(&Find<'_>)) -> CatalogState {
        // Another node's container may be in the bucket before its owner's log names its chunks, and they may never be
        // in it. Only the owner of their index partition knows.
        if !self.storage.has_partition_of(address) || self.is_of_cluster && !self.storage.is_of_this_opening(address.origin()) {
            return CatalogState::Unknown;
        }
        let removals = self.rules.lock().removals;
        if let Some(known) = self.storage.touch_catalog(address.origin(), hits) {
            ask(&|name| known.find(name));
            return CatalogState::Here;
        }
        // The cache is optional: a container with a damaged catalog is left to other look-ups, and to `check`.
        let catalog = match self.storage.sealed_catalog_of(address) {
            Ok(Some(catalog)) => catalog,
            Ok(None) => return CatalogState::Unknown,
            Err(_) if matches!(self.storage.has_file(address.origin()), Ok(false)) => return CatalogState::Gone,
            Err(_) => return CatalogState::Unknown,
        };
        let Ok(dead) = DeadSlots::read(&self.blocks, catalog.container) else { return CatalogState::Unknown };
        let rules = self.rules.lock();
        if rules.removals != removals || rules.is_merging {
            return CatalogState::Unknown;
        }
        // A merge may have brought older ones into the file.
        let is_doubtful = |origin: &Origin| !self.storage.is_of_this_opening(*origin) || rules.doubted.contains(origin);
        // Ascending.
        let doubtful: Vec<Origin> = catalog.origins().filter(|origin| self.is_of_cluster && is_doubtful(origin)).collect();
        let is_believed = |slot: usize| doubtful.is_empty() || doubtful.binary_search(&catalog.address(slot).origin()).is_err();
        let is_alive = |slot: usize| rules.is_alive(&catalog, &dead, slot) && is_believed(slot);
        match self.storage.open_catalog(&catalog, &is_alive) {
            Some(known) => ask(&|name| known.find(name)),
            // The cache has no room for it: it answers only this once.
            None => ask(&|name| {
                let slots = catalog.slots.iter().enumerate();
                let found = slots.filter(|(slot, of)| of.fingerprint == *name && is_alive(*slot)).map(|(slot, _)| slot).next();
                found.map(|slot| catalog.address(slot))
            }),
        }
        CatalogState::Read
    }
}

impl Rules {
    fn is_alive(&self, catalog: &Catalog, dead: &DeadSlots, slot: usize) -> bool {
        !dead.contains(slot) && self.replaced.get(&catalog.slots[slot].fingerprint).is_none_or(|now| *now == catalog.address(slot))
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
        let known = self.storage.known_chunks();
        for at in active {
            if let Some(address) = known.find(&lookups[*at].fingerprint) {
                lookups[*at].found(Verdict::StrongMaybe, address);
            }
        }
        Ok(())
    }

    /// Forgets chunks that were stored although their container is open: what is known led the chain to a bad copy.
    fn update(&self, stored: &[(Fingerprint, Address)]) {
        let is_bad = {
            let known = self.storage.known_chunks();
            let is_bad = |(name, address): &&(Fingerprint, Address)| known.find(name).is_some_and(|old| old != *address);
            stored.iter().filter(is_bad).copied().collect::<Vec<_>>()
        };
        if is_bad.is_empty() {
            return;
        }
        let mut rules = self.rules.lock();
        for (name, address) in is_bad {
            self.storage.forget_chunks(&[name]);
            if rules.replaced.len() >= MOST_REPLACED {
                rules.replaced.clear();
            }
            rules.replaced.insert(name, address);
        }
    }

    fn removed(&self, chunks: &[Fingerprint]) {
        let mut rules = self.rules.lock();
        rules.removals += 1;
        self.storage.forget_chunks(chunks);
    }

    fn doubt(&self, origins: &[Origin]) {
        let mut rules = self.rules.lock();
        rules.removals += 1;
        rules.doubted.extend(origins);
    }

    fn merging(&self, is_under_way: bool) {
        let mut rules = self.rules.lock();
        rules.removals += 1;
        rules.is_merging = is_under_way;
    }

    fn post_process(&self, found: &[Address]) -> Result<()> {
        for together in found.chunk_by(|one, next| one.origin() == next.origin()) {
            self.load(together[0], together.len() as u32, &mut |_| {});
            let expected = self.storage.known_chunks().expected_after(together);
            if let Some(next) = expected {
                self.load(next.address(0), 0, &mut |_| {});
            }
        }
        Ok(())
    }
}
