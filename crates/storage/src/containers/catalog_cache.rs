//! The one cache of catalogs (M3.6), and the look-up of chunks by name in it (M0.10).
//!
//! A catalog is here once. Readers ask for it by its container. A catalog whose dead slots are known can also be
//! *opened*: from then on its living chunks are found by name. The look-up has 8 bytes for a chunk, which lead to its
//! slot; the catalog has the name itself.
//!
//! # Invariants
//! * Catalogs, look-up and order take at most the limit of bytes when a call returns.
//! * A name leads to one slot: that of the catalog that was opened last. `Cached::known` has a bit for each slot that a
//!   name leads to, and for no other. So the slot after the last one can be tried before the table is.
//! * Each origin has one open catalog. A merged container has the chunks of many origins: the catalogs that they had
//!   go.
//! * A chunk that was [forgotten](CatalogCache::forget_chunks) is not found until its catalog leaves and is opened
//!   again.

use crate::containers::eviction::{CachePolicy, ORDER_BYTES, Order};
use crate::{Address, Catalog, ContainerId, Origin};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use onefold_fingerprint::Fingerprint;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of an entry beside its catalog and order: its place, and two maps that lead to it, half full.
const ENTRY_BYTES: usize = size_of::<Option<Cached>>() + size_of::<u32>() + 2 * MAPPED_BYTES;
const MAPPED_BYTES: usize = 2 * (size_of::<(ContainerId, u32)>() + 1);
/// The table of the look-up shrinks when it has so many times the bytes of what is in it.
const SPARSE: usize = 8;

/// Where a chunk is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    entry: u32,
    slot: u16,
}

impl Place {
    /// Returns the place behind it, if a container can have so many slots.
    pub(crate) fn next(self) -> Option<Place> {
        Some(Place { slot: self.slot.checked_add(1)?, ..self })
    }
}

#[derive(Debug)]
struct Cached {
    catalog: Arc<Catalog>,
    cost_bytes: usize,
    /// A bit for each slot that its name leads to. `None`: the catalog is not open.
    known: Option<Box<[u64]>>,
}

impl Cached {
    fn is_known(&self, slot: u16) -> bool {
        let word = self.known.as_ref().and_then(|known| known.get(usize::from(slot / 64)));
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    fn set_known(&mut self, slot: u16, is_known: bool) {
        if let Some(word) = self.known.as_mut().and_then(|known| known.get_mut(usize::from(slot / 64))) {
            *word = *word & !(1 << (slot % 64)) | u64::from(is_known) << (slot % 64);
        }
    }
}

/// Catalogs by container, and chunks by name.
#[derive(Debug)]
pub(crate) struct CatalogCache {
    limit_bytes: usize,
    entries: Vec<Option<Cached>>,
    free: Vec<u32>,
    containers: HashMap<ContainerId, u32>,
    /// Origins of open catalogs.
    origins: HashMap<Origin, u32>,
    chunks: HashTable<Place>,
    order: Order,
    /// Of all entries.
    cost_bytes: usize,
}

/// Returns a catalog that is here.
fn catalog(entries: &[Option<Cached>], entry: u32) -> &Catalog {
    &entries[entry as usize].as_ref().expect("places lead to entries").catalog
}

fn name(entries: &[Option<Cached>], place: Place) -> &Fingerprint {
    &catalog(entries, place.entry).slots[usize::from(place.slot)].fingerprint
}

impl CatalogCache {
    pub(crate) fn new(limit_bytes: usize, policy: CachePolicy) -> CatalogCache {
        CatalogCache {
            limit_bytes,
            entries: Vec::new(),
            free: Vec::new(),
            containers: HashMap::new(),
            origins: HashMap::new(),
            chunks: HashTable::new(),
            order: Order::new(policy),
            cost_bytes: 0,
        }
    }

    /// Returns the memory that all of it takes.
    pub(crate) fn used_bytes(&self) -> usize {
        self.cost_bytes + self.chunks.allocation_size()
    }

    /// Returns the catalog of a container file, and counts that as a use.
    pub(crate) fn get(&mut self, container: ContainerId) -> Option<Arc<Catalog>> {
        let entry = *self.containers.get(&container)?;
        self.order.touch(entry, 1);
        self.entries[entry as usize].as_ref().map(|cached| cached.catalog.clone())
    }

    /// Keeps a catalog in the place of an earlier one of its container, if it is not too large.
    pub(crate) fn insert(&mut self, catalog: &Arc<Catalog>) {
        self.remove(catalog.container);
        let mapped = catalog.home_containers().len() * MAPPED_BYTES;
        let known_bytes = catalog.slots.len().div_ceil(64) * size_of::<u64>();
        let cost_bytes = catalog.memory_bytes() + known_bytes + ENTRY_BYTES + ORDER_BYTES + mapped;
        if cost_bytes > self.limit_bytes {
            return;
        }
        while self.used_bytes() + cost_bytes > self.limit_bytes && self.evict().is_some() {}
        let cached = Cached { catalog: catalog.clone(), cost_bytes, known: None };
        let entry = self.free.pop().unwrap_or(self.entries.len() as u32);
        if entry as usize == self.entries.len() {
            self.entries.push(Some(cached));
        } else {
            self.entries[entry as usize] = Some(cached);
        }
        self.cost_bytes += cost_bytes;
        self.containers.insert(catalog.container, entry);
        self.order.insert(entry, catalog.container, cost_bytes);
    }

    /// Drops the catalog of a container file.
    pub(crate) fn remove(&mut self, container: ContainerId) {
        if let Some(entry) = self.containers.get(&container).copied() {
            self.order.remove(entry);
            self.drop_entry(entry);
        }
    }

    /// Drops the catalogs of all container files of a partition.
    pub(crate) fn remove_partition(&mut self, partition: u16) {
        let these: Vec<ContainerId> = self.containers.keys().copied().filter(|container| container.partition() == partition).collect();
        these.into_iter().for_each(|container| self.remove(container));
    }

    /// Makes the chunks of a catalog known by name, except those that are not alive. Returns false if the catalog is
    /// not here, or there is no room for it.
    pub(crate) fn open(&mut self, catalog: &Arc<Catalog>, is_alive: &dyn Fn(usize) -> bool) -> bool {
        let Some(this) = self.containers.get(&catalog.container).copied() else { return false };
        match &self.entries[this as usize] {
            Some(cached) if !Arc::ptr_eq(&cached.catalog, catalog) => return false,
            Some(cached) if cached.known.is_some() => return true, // another stream was faster
            _ => {}
        }
        // Containers with these origins have been merged into this one since.
        for origin in catalog.origins() {
            if let Some(merged) = self.origins.get(&origin).copied() {
                self.order.remove(merged);
                self.drop_entry(merged);
            }
        }
        if let Some(cached) = &mut self.entries[this as usize] {
            cached.known = Some(vec![0; catalog.slots.len().div_ceil(64)].into());
        }
        for (number, slot) in catalog.slots.iter().enumerate().filter(|(number, _)| is_alive(*number)) {
            let place = Place { entry: this, slot: number as u16 };
            let entries = &self.entries;
            let found = self.chunks.entry(
                slot.fingerprint.hash_bits(),
                |known| *name(entries, *known) == slot.fingerprint,
                |known| name(entries, *known).hash_bits(),
            );
            let before = match found {
                Entry::Occupied(mut known) => Some(std::mem::replace(known.get_mut(), place)),
                Entry::Vacant(free) => {
                    free.insert(place);
                    None
                }
            };
            before.into_iter().for_each(|before| self.set_known(before, false));
            self.set_known(place, true);
        }
        self.origins.extend(catalog.origins().map(|origin| (origin, this)));
        while self.used_bytes() > self.limit_bytes {
            if self.evict() == Some(this) {
                return false;
            }
        }
        true
    }

    /// Notes that chunks of an origin were found so many times. Returns false if no open catalog has them.
    pub(crate) fn touch(&mut self, origin: Origin, hits: u32) -> bool {
        let Some(entry) = self.origins.get(&origin).copied() else { return false };
        self.order.touch(entry, hits);
        true
    }

    /// Returns the open catalog that has the chunks of an origin.
    pub(crate) fn open_catalog(&self, origin: Origin) -> Option<&Catalog> {
        self.origins.get(&origin).map(|entry| catalog(&self.entries, *entry))
    }

    /// Returns where an open catalog has a chunk.
    pub(crate) fn find(&self, chunk: &Fingerprint) -> Option<Place> {
        self.chunks.find(chunk.hash_bits(), |known| name(&self.entries, *known) == chunk).copied()
    }

    /// Returns whether [`find`](Self::find) returns this place for a chunk, without a look into the table.
    pub(crate) fn is_at(&self, place: Place, chunk: &Fingerprint) -> bool {
        let cached = self.entries.get(place.entry as usize).and_then(Option::as_ref);
        cached.is_some_and(|cached| cached.is_known(place.slot) && cached.catalog.slots[usize::from(place.slot)].fingerprint == *chunk)
    }

    /// Returns the address of the chunk at a place that was found.
    pub(crate) fn address(&self, place: Place) -> Address {
        catalog(&self.entries, place.entry).address(usize::from(place.slot))
    }

    fn set_known(&mut self, place: Place, is_known: bool) {
        if let Some(cached) = &mut self.entries[place.entry as usize] {
            cached.set_known(place.slot, is_known);
        }
    }

    /// Makes chunks unknown by name.
    pub(crate) fn forget_chunks(&mut self, chunks: &[Fingerprint]) {
        for chunk in chunks {
            if let Ok(known) = self.chunks.find_entry(chunk.hash_bits(), |known| name(&self.entries, *known) == chunk) {
                let (place, _) = known.remove();
                self.set_known(place, false);
            }
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let entry = self.order.evict()?;
        self.drop_entry(entry);
        Some(entry)
    }

    /// Drops an entry that has left the order.
    fn drop_entry(&mut self, entry: u32) {
        let Some(cached) = self.entries[entry as usize].take() else { return };
        let catalog = &cached.catalog;
        self.free.push(entry);
        self.containers.remove(&catalog.container);
        self.cost_bytes -= cached.cost_bytes;
        if cached.known.is_none() {
            return;
        }
        for (number, slot) in catalog.slots.iter().enumerate().filter(|(number, _)| cached.is_known(*number as u16)) {
            let place = Place { entry, slot: number as u16 };
            if let Ok(known) = self.chunks.find_entry(slot.fingerprint.hash_bits(), |known| *known == place) {
                known.remove();
            }
        }
        for origin in catalog.origins() {
            self.origins.remove(&origin);
        }
        if self.chunks.is_empty() {
            self.chunks = HashTable::new();
        } else if self.chunks.allocation_size() > SPARSE * self.chunks.len() * size_of::<Place>() {
            let entries = &self.entries;
            self.chunks.shrink_to(2 * self.chunks.len(), |known| name(entries, *known).hash_bits());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkKind, Codec, Frame, Homes, Slot};
    use proptest::prelude::*;

    /// Chunks are named by small numbers, so that containers share some.
    fn chunk(number: u16) -> Fingerprint {
        Fingerprint::from_digest(&onefold_ground::checksum(&number.to_le_bytes()).to_le_bytes().repeat(4))
    }

    fn container(number: u32) -> ContainerId {
        ContainerId::new(0, number)
    }

    /// A catalog of these chunks. `homes`: it is a merged container, and has them from these.
    fn made(number: u32, chunks: &[u16], homes: &[u32]) -> Arc<Catalog> {
        let mut catalog = Catalog::new(container(number));
        let slots: Vec<Slot> = chunks
            .iter()
            .map(|number| Slot { fingerprint: chunk(*number), kind: ChunkKind::Data, frame: 0, offset_bytes: 0, length_bytes: 8 })
            .collect();
        let frame = Frame {
            number: 0,
            first_slot: 0,
            slots: slots.len() as u32,
            offset_bytes: 64,
            stored_bytes: 8,
            raw_bytes: 8,
            codec: Codec::Plain,
            checksum: 0,
        };
        catalog.push(frame, &slots);
        if !homes.is_empty() {
            let home = |slot: usize| Address::new(container(homes[slot % homes.len()]), slot as u16);
            catalog.homes = Some(Homes::new((0..chunks.len()).map(home).collect()).unwrap());
        }
        Arc::new(catalog)
    }

    impl CatalogCache {
        fn find_address(&self, chunk: &Fingerprint) -> Option<Address> {
            self.find(chunk).map(|place| self.address(place))
        }

        /// Checks that the bits of slots and the table say the same.
        fn check_known(&self) {
            let places = self.entries.iter().enumerate().filter_map(|(entry, cached)| Some((entry, cached.as_ref()?)));
            let mut count = 0;
            for (entry, cached) in places {
                for (number, slot) in cached.catalog.slots.iter().enumerate() {
                    let place = Place { entry: entry as u32, slot: number as u16 };
                    let is_found = cached.known.is_some() && self.find(&slot.fingerprint) == Some(place);
                    assert_eq!(self.is_at(place, &slot.fingerprint), is_found);
                    assert!(!self.is_at(place, &chunk(999)));
                    count += usize::from(is_found);
                }
            }
            assert_eq!(count, self.chunks.len());
        }

        fn is_open(&self, container: ContainerId) -> bool {
            self.containers.get(&container).is_some_and(|entry| self.entries[*entry as usize].as_ref().unwrap().known.is_some())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Read, and kept.
        Insert(u32),
        /// Opened, without these slots.
        Open(u32, u64),
        Get(u32),
        Touch(u32, u32),
        Remove(u32),
        Forget(Vec<u16>),
    }

    const CONTAINERS: u32 = 12;

    fn step() -> impl Strategy<Value = Step> {
        let id = || 0..CONTAINERS;
        prop_oneof![
            3 => id().prop_map(Step::Insert),
            4 => (id(), any::<u64>()).prop_map(|(id, dead)| Step::Open(id, dead & dead >> 7)),
            1 => id().prop_map(Step::Get),
            2 => (id(), 1..9u32).prop_map(|(id, hits)| Step::Touch(id, hits)),
            1 => id().prop_map(Step::Remove),
            1 => proptest::collection::vec(0..200u16, 0..20).prop_map(Step::Forget),
        ]
    }

    /// Containers of 1 to 60 of 200 chunks. The last two are merged from some of the others.
    fn catalogs() -> impl Strategy<Value = Vec<Arc<Catalog>>> {
        proptest::collection::vec(proptest::collection::vec(0..200u16, 1..60), CONTAINERS as usize).prop_map(|all| {
            let homes = |number: u32| match number {
                10 => &[1, 2, 3][..],
                11 => &[3, 4],
                _ => &[],
            };
            all.iter().zip(0..).map(|(chunks, number)| made(number + 1, chunks, homes(number))).collect()
        })
    }

    proptest! {
        #[test]
        fn m3_6_chunks_of_open_catalogs_are_found_within_the_bound(
            policy in 0..3usize,
            limit_bytes in 0..40_000usize,
            catalogs in catalogs(),
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut cache = CatalogCache::new(limit_bytes, CachePolicy::ALL[policy]);
            // What may be found: names -> addresses of living chunks of open catalogs. Evictions may take any of it.
            let mut open: HashMap<u32, HashMap<Fingerprint, Vec<Address>>> = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(id) => {
                        let again = Arc::new((*catalogs[id as usize]).clone());
                        cache.insert(&again);
                        open.remove(&id);
                    }
                    Step::Open(id, dead) => {
                        let known = catalogs[id as usize].container;
                        let before = cache.is_open(known);
                        let Some(catalog) = cache.get(known) else {
                            prop_assert!(!cache.open(&catalogs[id as usize], &|_| true));
                            continue;
                        };
                        let is_alive = |slot: usize| dead >> (slot % 64) & 1 == 0;
                        let is_open = cache.open(&catalog, &is_alive);
                        if !before && is_open {
                            let alive = (0..catalog.slots.len()).filter(|slot| is_alive(*slot));
                            let mut chunks: HashMap<_, Vec<_>> = HashMap::new();
                            alive.for_each(|slot| chunks.entry(catalog.slots[slot].fingerprint).or_default().push(catalog.address(slot)));
                            let all_found = chunks.iter().all(|(name, places)| cache.find_address(name).is_some_and(|at| places.contains(&at)));
                            prop_assert!(all_found, "right after it was opened, all its living chunks are found in it");
                            let replaced = |other: u32| other != id && catalogs[other as usize].origins().any(|one| catalog.origins().any(|of| of == one));
                            let others = (0..CONTAINERS).filter(|other| replaced(*other));
                            let still_open = others.filter(|other| cache.is_open(catalogs[*other as usize].container)).count();
                            prop_assert_eq!(still_open, 0, "of a merged container and those it was merged from, one is open");
                            open.retain(|other, _| !replaced(*other));
                            open.insert(id, chunks);
                        }
                        prop_assert!(is_open || !cache.touch(catalog.origins().next().unwrap(), 1));
                    }
                    Step::Get(id) => {
                        let found = cache.get(catalogs[id as usize].container);
                        prop_assert!(found.is_none_or(|found| *found == *catalogs[id as usize]));
                    }
                    Step::Touch(id, hits) => {
                        let origin = Origin::from(container(id + 1));
                        let has_open = open.keys().any(|id| catalogs[*id as usize].origins().any(|one| one == origin));
                        prop_assert!(has_open || !cache.touch(origin, hits));
                    }
                    Step::Remove(id) => {
                        cache.remove(catalogs[id as usize].container);
                        open.remove(&id);
                        prop_assert!(cache.get(catalogs[id as usize].container).is_none());
                    }
                    Step::Forget(numbers) => {
                        let names: Vec<Fingerprint> = numbers.iter().map(|number| chunk(*number)).collect();
                        cache.forget_chunks(&names);
                        open.values_mut().for_each(|chunks| chunks.retain(|name, _| !names.contains(name)));
                        prop_assert!(names.iter().all(|name| cache.find(name).is_none()));
                    }
                }
                cache.check_known();
                prop_assert!(cache.used_bytes() <= limit_bytes, "{} of {limit_bytes} bytes", cache.used_bytes());
                prop_assert_eq!(cache.used_bytes() == 0, cache.containers.is_empty());
                for number in 0..200 {
                    if let Some(address) = cache.find_address(&chunk(number)) {
                        let is_right = open.values().any(|chunks| chunks.get(&chunk(number)).is_some_and(|places| places.contains(&address)));
                        prop_assert!(is_right, "chunk {number} at {address}");
                    }
                }
            }
        }
    }

    #[test]
    fn m3_6_a_cached_chunk_takes_less_than_seventy_bytes() {
        let chunks: Vec<u16> = (0..512).collect();
        let mut cache = CatalogCache::new(1 << 30, CachePolicy::Lru);
        let mut slots = 0;
        for number in 1..100u32 {
            let chunks: Vec<u16> = chunks.iter().map(|chunk| chunk + 512 * number as u16).collect();
            let mut catalog = (*made(number, &chunks, &[])).clone();
            catalog.slots.shrink_to_fit();
            let catalog = Arc::new(catalog);
            cache.insert(&catalog);
            assert!(cache.open(&catalog, &|_| true));
            slots += chunks.len();
        }
        let each = cache.used_bytes() / slots;
        assert!((44..70).contains(&each), "{each} bytes");
    }
}
