//! Look-ups through hooks (M3.4, M3.5; `docs/decisions/0054-hooks.md`).
//!
//! A name is looked for in three places, one after the other:
//! 1. *recent* chunks: the durable ones of containers that are still being filled. Memory is bounded by these
//!    containers;
//! 2. the catalogs that are in memory: [`ContainerCacheFilter`];
//! 3. hooks. The catalog of a container that a hook leads to is loaded, and then asked for all names that are still
//!    missing: chunks that were stored together come back together.
//!
//! A container gets its hooks when it is sealed, and its recent chunks are forgotten afterwards. So at any time a
//! durable chunk is in one of the two, unless its hook was thinned out.
//!
//! # What is lost in a crash
//! Nothing. Recent chunks are those of the containers that the log names. Hooks are read from the last
//! [snapshot](Sampled::save), and those of containers that it does not cover from their catalogs, while the store is in
//! use ([`Sampled::fill`]). Until then some duplicates are stored again.

use crate::Result;
use crate::liveness::dead::DeadSlots;
use crate::lookup::figures::{Figures, Tally};
use crate::write::chain::{CatalogState, ContainerCacheFilter, Find};
use crate::write::reservation::FingerprintMap;
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, GroundError};
use onefold_index::ObjectIndex;
use onefold_index::sampled::Hooks;
use onefold_storage::{Address, CommittedSlots, ContainerId, ContainerStore, Origin};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Directory of the snapshots.
const HOOKS: &str = "hooks";
/// A snapshot has all the memory of the hooks. It is worth its while once it saves one catalog for each so many bytes.
const SNAPSHOT_BYTES_FOR_CATALOG: u64 = 64 << 10;

/// The durable chunks of containers that are still being filled.
#[derive(Debug, Default)]
struct Recent {
    chunks: FingerprintMap<Address>,
    containers: HashMap<Origin, Vec<Fingerprint>>,
}

impl Recent {
    fn insert(&mut self, name: Fingerprint, address: Address) {
        self.chunks.insert(name, address);
        self.containers.entry(address.origin()).or_default().push(name);
    }

    fn remove(&mut self, name: &Fingerprint, is_it: impl Fn(Address) -> bool) {
        if self.chunks.get(name).is_some_and(|address| is_it(*address)) {
            self.chunks.remove(name);
        }
    }
}

/// Finds chunks through hooks.
#[derive(Debug)]
pub(crate) struct Sampled {
    ground: Arc<dyn Ground>,
    storage: Arc<ContainerStore>,
    objects: Arc<ObjectIndex>,
    catalogs: Arc<ContainerCacheFilter>,
    hooks: Hooks,
    recent: Mutex<Recent>,
    /// Number of container partitions.
    partitions: u16,
    /// Whether the hooks of all earlier openings are here.
    is_filled: AtomicBool,
    /// Containers that got hooks since the last snapshot.
    unsaved: AtomicU64,
    /// Held while a snapshot is written.
    saving: Mutex<()>,
    /// What writers found, over all openings.
    tally: Mutex<Tally>,
}

impl Sampled {
    /// Begins without hooks. The containers have been recovered. `tally`: that of earlier openings.
    pub(crate) fn new(
        ground: Arc<dyn Ground>,
        storage: Arc<ContainerStore>,
        objects: Arc<ObjectIndex>,
        catalogs: Arc<ContainerCacheFilter>,
        memory_bytes: usize,
        partitions: u16,
        tally: Tally,
    ) -> Sampled {
        let mut recent = Recent::default();
        for origin in storage.committed_slots().growing() {
            // A container that cannot be read, or whose dead slots cannot, is of no use for look-ups.
            let Ok((container, slots)) = storage.slots_beside(origin) else { continue };
            let Ok(dead) = DeadSlots::read(&objects, container) else { continue };
            let alive = slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number));
            alive.for_each(|(_, (address, slot))| recent.insert(slot.fingerprint, *address));
        }
        Sampled {
            ground,
            storage,
            objects,
            catalogs,
            hooks: Hooks::new(memory_bytes),
            recent: Mutex::new(recent),
            partitions,
            is_filled: AtomicBool::new(false),
            unsaved: AtomicU64::new(0),
            saving: Mutex::default(),
            tally: Mutex::new(tally),
        }
    }

    /// Returns the number of a container in hooks. `None`: it has none, because its number is too great.
    fn code(&self, origin: Origin) -> Option<u32> {
        let container = ContainerId::from_bits(origin.bits());
        container.number().checked_mul(self.partitions.into())?.checked_add(container.partition().into())
    }

    fn origin(&self, code: u32) -> Origin {
        let partitions = u32::from(self.partitions);
        Origin::from(ContainerId::new((code % partitions) as u16, code / partitions))
    }

    /// Appends where each chunk is, as far as anybody knows. Returns how many catalogs it read.
    pub(crate) fn find(&self, names: &[Fingerprint], out: &mut Vec<Option<Address>>) -> usize {
        let begin = out.len();
        {
            let recent = self.recent.lock();
            out.extend(names.iter().map(|name| recent.chunks.get(name).copied()));
        }
        let found = &mut out[begin..];
        let mut missing: Vec<usize> = (0..names.len()).filter(|at| found[*at].is_none()).collect();
        let mut ask = |find: &Find<'_>, found: &mut [Option<Address>]| {
            missing.retain(|at| {
                found[*at] = find(&names[*at]);
                found[*at].is_none()
            });
            missing.is_empty()
        };
        self.catalogs.ask(&mut |find| {
            ask(find, found);
        });
        let places: Vec<usize> = (0..names.len()).filter(|at| found[*at].is_none()).collect();
        let asked: Vec<Fingerprint> = places.iter().map(|at| names[*at]).collect();
        let mut hooks = Vec::new();
        self.hooks.find(&asked, &mut hooks);
        let (mut seen, mut read) = (BTreeSet::new(), 0);
        for hook in hooks {
            let at = places[hook.at];
            if found[at].is_some() || !seen.insert(hook.container) {
                continue;
            }
            let mut is_done = false;
            let state = self.catalogs.load(self.origin(hook.container).address(0), 1, &mut |find| is_done = ask(find, found));
            read += usize::from(state == CatalogState::Read);
            if state == CatalogState::Gone {
                // All its chunks were removed.
                self.hooks.remove(hook.container, &names[at..=at]);
            }
            if is_done {
                break;
            }
        }
        read
    }

    /// Opens the catalogs of these origins.
    pub(crate) fn recall(&self, origins: impl Iterator<Item = Origin>) {
        let mut seen = BTreeSet::new();
        for origin in origins.filter(|origin| seen.insert(*origin)) {
            self.catalogs.load(origin.address(0), 0, &mut |_| {});
        }
    }

    /// Takes in chunks that have become durable, and gives containers that are sealed their hooks. Call before their
    /// claims end.
    pub(crate) fn durable(&self, chunks: impl Iterator<Item = (Fingerprint, Address)>) {
        let mut recent = self.recent.lock();
        chunks.for_each(|(name, address)| recent.insert(name, address));
    }

    /// Gives containers their hooks that were sealed since.
    pub(crate) fn hook_sealed(&self) {
        let sealed: Vec<(Origin, Vec<Fingerprint>)> = {
            let recent = self.recent.lock();
            let sealed = recent.containers.iter().filter(|(origin, _)| self.storage.is_sealed(ContainerId::from_bits(origin.bits())));
            sealed.map(|(origin, names)| (*origin, names.clone())).collect()
        };
        for (origin, names) in sealed {
            self.hook(origin, &names);
            let mut recent = self.recent.lock();
            recent.containers.remove(&origin);
            names.iter().for_each(|name| recent.remove(name, |address| address.origin() == origin));
        }
    }

    fn hook(&self, origin: Origin, names: &[Fingerprint]) {
        if let Some(code) = self.code(origin).filter(|code| *code > 0)
            && !self.hooks.add(code, names)
        {
            tracing::debug!(%origin, "no hook leads to a container: the memory for hooks is full");
        }
        self.unsaved.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets copies of chunks that are not stored any more.
    pub(crate) fn removed(&self, copies: impl Iterator<Item = (Fingerprint, Address)>) {
        let mut recent = self.recent.lock();
        for (name, address) in copies {
            recent.remove(&name, |known| known == address);
            if let Some(code) = self.code(address.origin()).filter(|code| *code > 0) {
                self.hooks.remove(code, &[name]);
            }
        }
    }

    /// Notes chunks that a writer found.
    pub(crate) fn tally(&self, known: &[Fingerprint]) {
        let (sampled, rate_log2) = self.hooks.count_sampled(known);
        self.tally.lock().add(known.len() as u64, sampled, rate_log2);
    }

    /// Forgets what writers found so far.
    pub(crate) fn forget_tally(&self) {
        *self.tally.lock() = Tally::default();
    }

    /// Returns the present figures.
    pub(crate) fn figures(&self) -> Figures {
        Figures { hooks: self.hooks.statistics(), tally: *self.tally.lock() }
    }

    /// Reads the hooks of earlier openings: the newest snapshot, then the catalogs of containers that it does not
    /// cover. It asks `go_on` between its steps. Errors: containers cannot be listed.
    pub(crate) fn fill(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let covered = self.read_snapshot(go_on);
        let end_of_covered = |partition: u16| covered.get(&partition).copied().unwrap_or(0);
        let mut files = self.storage.containers_from(&end_of_covered)?;
        // A merged container has chunks of others, too.
        for id in self.storage.forwards_from(&end_of_covered)?.iter() {
            files.extend(self.storage.forward_target(id));
        }
        for file in files.iter() {
            if !go_on() {
                return Ok(());
            }
            self.hook_file(file);
        }
        self.is_filled.store(true, Ordering::Release);
        Ok(())
    }

    /// Adds the hooks of all chunks in a container file, except dead ones. A file that cannot be read has none. After a
    /// removal, another hook of each container may have to be the one that stays.
    pub(crate) fn hook_file(&self, file: ContainerId) {
        let Ok(Some(catalog)) = self.storage.sealed_catalog_of(Origin::from(file).address(0)) else { return };
        let Ok(dead) = DeadSlots::read(&self.objects, catalog.container) else { return };
        let mut by_origin: BTreeMap<Origin, Vec<Fingerprint>> = BTreeMap::new();
        for (number, slot) in catalog.slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)) {
            by_origin.entry(catalog.address(number).origin()).or_default().push(slot.fingerprint);
        }
        by_origin.iter().for_each(|(origin, names)| self.hook(*origin, names));
    }

    /// Reads the newest snapshot that is of use. Returns which containers it covers, by partition.
    fn read_snapshot(&self, go_on: &dyn Fn() -> bool) -> HashMap<u16, u32> {
        let mut serials = self.serials().unwrap_or_default();
        while let Some(serial) = serials.pop_last() {
            let path = path(serial);
            let file = match self.ground.open(&path, Access::Read) {
                Ok(file) => file,
                Err(error) => {
                    tracing::warn!(%error, "a snapshot of hooks cannot be opened");
                    continue;
                }
            };
            let mut read = match self.hooks.read_snapshot(file, self.partitions.into()) {
                Ok(read) => read,
                Err(why) => {
                    tracing::warn!(path = self.ground.describe(&path), why, "the hooks are made again from catalogs");
                    continue;
                }
            };
            let mut lost = None;
            loop {
                match read.step() {
                    Ok(true) if go_on() => {}
                    Ok(_) => break,
                    Err(why) => lost = lost.or(Some(why)),
                }
            }
            // What could be read stays: a hook is a hint.
            if let Some(why) = lost {
                tracing::warn!(path = self.ground.describe(&path), why, "the hooks are made again from catalogs");
                continue;
            }
            return read.covered().iter().enumerate().map(|(partition, end)| (partition as u16, *end)).collect();
        }
        HashMap::new()
    }

    /// Returns whether the hooks of all earlier openings are here.
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    fn serials(&self) -> std::result::Result<BTreeSet<u64>, GroundError> {
        if !self.ground.exists(HOOKS)? {
            return Ok(BTreeSet::new());
        }
        Ok(self.ground.list(HOOKS)?.iter().filter_map(|entry| u64::from_str_radix(&entry.name, 16).ok()).collect())
    }

    /// Returns whether so many containers got hooks since the last snapshot that another one is worth its while.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        let least = (self.hooks.statistics().memory_bytes / SNAPSHOT_BYTES_FOR_CATALOG).max(1);
        self.is_filled() && self.unsaved.load(Ordering::Relaxed) >= least
    }

    /// Writes a snapshot, if it [is due](Self::is_snapshot_due). Durable on return. `go_on` ends it early, without a
    /// snapshot.
    pub(crate) fn save(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let _one = self.saving.lock();
        if !self.is_snapshot_due() {
            return Ok(());
        }
        let unsaved = self.unsaved.load(Ordering::Relaxed);
        let covered = self.covered();
        let before = self.serials()?;
        let serial = before.last().map_or(1, |last| last + 1);
        self.ground.create_directory(HOOKS)?;
        let file = self.ground.create(&path(serial))?;
        let is_whole = self.hooks.save(&*file, serial, &covered, go_on);
        if !matches!(is_whole, Ok(true)) {
            self.ground.remove(&path(serial))?;
            return Ok(is_whole.map(drop)?);
        }
        self.ground.sync_directory(HOOKS)?;
        self.unsaved.fetch_sub(unsaved, Ordering::Relaxed);
        for serial in before {
            self.ground.remove(&path(serial))?;
        }
        Ok(())
    }

    /// Returns by partition the number below which all containers have their hooks here.
    fn covered(&self) -> Vec<u32> {
        let recent = self.recent.lock();
        let committed: CommittedSlots = self.storage.committed_slots();
        let mut covered = vec![1; self.partitions.into()];
        for (partition, end) in committed.ends() {
            covered.iter_mut().skip(partition.into()).take(1).for_each(|covered| *covered = end);
        }
        for origin in committed.growing().chain(recent.containers.keys().copied()) {
            let container = ContainerId::from_bits(origin.bits());
            if let Some(covered) = covered.get_mut(usize::from(container.partition())) {
                *covered = (*covered).min(container.number());
            }
        }
        covered
    }
}

/// Removes all snapshots, so that the next opening makes the hooks from catalogs.
pub(crate) fn forget_hooks(ground: &dyn Ground) -> onefold_ground::Result<()> {
    if ground.exists(HOOKS)? {
        for entry in ground.list(HOOKS)? {
            ground.remove(&format!("{HOOKS}/{}", entry.name))?;
        }
        ground.sync_directory(HOOKS)?;
    }
    Ok(())
}

fn path(serial: u64) -> String {
    format!("{HOOKS}/{serial:016x}")
}
