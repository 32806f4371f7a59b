//! Putting chunks in quarantine, and taking those out that can be read again: the commits that change index, dead slots and
//! objects together ([`crate::quarantine`] says what that is for).

use crate::commit::Effects;
use crate::dead::{self, DeadSlots};
use crate::quarantine::{Quarantined, now_ns};
use crate::records::{encode_deltas, encode_objects, encode_places};
use crate::{Change, Engine, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, ContainerId, Prepared};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

/// What the log takes for one lost chunk, at most.
const LOST_BYTES: u64 = 192;
/// Most lost chunks of one batch.
const BATCH: u64 = 4096;

/// A chunk that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostChunk {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Where it should be.
    pub address: Address,
    /// Its kind and length, if the catalog of its container can be read.
    pub slot: Option<(ChunkKind, u32)>,
}

/// What a commit does to the quarantine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) places: Vec<(Fingerprint, u64)>,
    pub(crate) deltas: Vec<(Fingerprint, i64)>,
    pub(crate) changes: Vec<Change>,
    /// How many more chunks, and dead bytes, there are.
    pub(crate) chunks: i64,
    pub(crate) dead_bytes: i64,
}

impl Engine {
    /// Puts chunks that cannot be read in quarantine, and marks their slots dead; durable on return. Those that the index has elsewhere, or that it
    /// does not have, only lose their slots. Returns those that are lost. Cut short, it has done it for some of them.
    pub fn quarantine(&self, lost: &[LostChunk]) -> Result<Vec<Quarantined>> {
        self.writable()?;
        // What is on its way is counted before counts are looked at.
        self.flush()?;
        let _one = self.reclaiming.lock();
        let mut done = Vec::new();
        for batch in lost.chunks(self.lost_in_a_batch()) {
            done.extend(self.quarantine_batch(batch)?);
        }
        Ok(done)
    }

    fn quarantine_batch(&self, lost: &[LostChunk]) -> Result<Vec<Quarantined>> {
        let since_ns = now_ns();
        let (dead, dead_bytes) = self.dead_changes(lost)?;
        let quarantine = &self.quarantine;
        // From now on whoever stores chunks asks.
        quarantine.set_used();
        let names: Vec<Fingerprint> = lost.iter().map(|chunk| chunk.fingerprint).collect();
        let mut found = Vec::new();
        self.commit_settled(&mut || {
            found.clear();
            let mut settled = Settled { changes: dead.clone(), dead_bytes: dead_bytes as i64, ..Settled::default() };
            let mut entries = Vec::with_capacity(names.len());
            self.index.lookup(&names, &mut entries)?;
            let mut seen = HashSet::new();
            for (chunk, entry) in lost.iter().zip(entries) {
                let is_here = |address| address == chunk.address.bits() || address == 0;
                let Some(entry) = entry.filter(|entry| is_here(entry.address) && seen.insert(chunk.fingerprint)) else { continue };
                let known = quarantine.get(&chunk.fingerprint)?;
                if known.is_some_and(|known| known.address.bits() != 0 || chunk.address.bits() == 0) {
                    continue;
                }
                let now = Quarantined {
                    fingerprint: chunk.fingerprint,
                    address: chunk.address,
                    kind: chunk.slot.map(|(kind, _)| kind),
                    length_bytes: chunk.slot.map_or(0, |(_, length)| length),
                    // An entry without an address was made by counting what can be read.
                    is_counted: known.map_or(entry.address != 0, |known| known.is_counted),
                    is_unreachable: known.is_some_and(|known| known.is_unreachable),
                    since_ns: known.map_or(since_ns, |known| known.since_ns),
                };
                if entry.address != 0 {
                    settled.places.push((chunk.fingerprint, 0));
                }
                if entry.count > 0 || now.may_refer() {
                    settled.changes.push(quarantine.put(&now));
                    found.push(now);
                }
            }
            settled.chunks = -(settled.places.len() as i64);
            Ok(settled)
        })?;
        self.filters.removed(&names);
        Ok(found)
    }

    /// Changes of dead slots that mark those of lost chunks, and how many bytes that are.
    fn dead_changes(&self, lost: &[LostChunk]) -> Result<(Vec<Change>, u64)> {
        let mut by_container: BTreeMap<ContainerId, (DeadSlots, u64)> = BTreeMap::new();
        let mut sorted: Vec<&LostChunk> = lost.iter().filter(|chunk| chunk.slot.is_some()).collect();
        sorted.sort_unstable_by_key(|chunk| chunk.address);
        for run in sorted.chunk_by(|one, next| one.address.container() == next.address.container()) {
            // The file that has them may be another one. One that cannot be read has no slots.
            let Ok(slots) = self.storage.slots(run[0].address.container()) else { continue };
            let container = self.storage.current(run[0].address.container())?;
            let (dead, bytes) = match by_container.entry(container) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert((DeadSlots::read(&self.blocks, container)?, 0)),
            };
            let before = dead.bytes;
            let wanted: HashSet<(Address, Fingerprint)> = run.iter().map(|chunk| (chunk.address, chunk.fingerprint)).collect();
            for (number, (address, slot)) in slots.iter().enumerate() {
                if wanted.contains(&(*address, slot.fingerprint)) {
                    dead.insert(number, slot.length_bytes);
                }
            }
            dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
            *bytes += dead.bytes - before;
        }
        by_container.retain(|_, (_, bytes)| *bytes > 0);
        let bytes = by_container.values().map(|(_, bytes)| bytes).sum();
        let change = |(container, (dead, _)): (ContainerId, (DeadSlots, u64))| (dead::PARTITION, dead::key(container), Some(dead.encode()));
        Ok((by_container.into_iter().map(change).collect(), bytes))
    }

    /// Notes that the catalog of a container file cannot be read, so that none of its slots counts; durable on return. What the index has in it is to be put
    /// in quarantine first.
    pub fn give_up_container(&self, container: ContainerId) -> Result<()> {
        let _one = self.reclaiming.lock();
        let dead = DeadSlots::read(&self.blocks, container)?;
        if dead.is_given_up() {
            return Ok(());
        }
        let change = (dead::PARTITION, dead::key(container), Some(dead.given_up().encode()));
        self.commit_settled(&mut || Ok(Settled { changes: vec![change.clone()], ..Settled::default() }))
    }

    /// Of a container that was [given up](Self::give_up_container) and whose catalog can be read again: its slots are dead as those of others are, and each
    /// chunk can be restored; durable on return. False if it was not given up or still cannot be read.
    pub fn take_up_container(&self, container: ContainerId) -> Result<bool> {
        let _one = self.reclaiming.lock();
        let before = DeadSlots::read(&self.blocks, container)?;
        if !before.is_given_up() {
            return Ok(false);
        }
        let Ok(catalog) = self.storage.catalog(container) else { return Ok(false) };
        let mut dead = DeadSlots::default();
        // Of an id whose chunks another file has nothing is to be noted.
        if catalog.container == container {
            let slots = self.storage.slots(container)?;
            slots.iter().enumerate().for_each(|(number, (_, slot))| dead.insert(number, slot.length_bytes));
            dead.of_bytes = dead.bytes;
        }
        let dead_bytes = dead.bytes as i64 - before.bytes as i64;
        let change = (dead::PARTITION, dead::key(container), (dead.count() > 0).then(|| dead.encode()));
        self.commit_settled(&mut || Ok(Settled { changes: vec![change.clone()], dead_bytes, ..Settled::default() }))?;
        Ok(true)
    }

    /// Takes a chunk that can be read again out of quarantine; durable on return. `references` is what it refers to. False if it is stored elsewhere
    /// or was in quarantine no more.
    pub fn restore_chunk(&self, chunk: &Quarantined, references: &[Fingerprint]) -> Result<bool> {
        self.flush()?;
        let _one = self.reclaiming.lock();
        let container = self.storage.current(chunk.address.container())?;
        let slots = self.storage.slots(container)?;
        let Some(number) = slots.iter().position(|(address, slot)| *address == chunk.address && slot.fingerprint == chunk.fingerprint)
        else {
            return Ok(false);
        };
        let mut dead = DeadSlots::read(&self.blocks, container)?;
        let before = dead.bytes;
        dead.remove(number, slots[number].1.length_bytes);
        dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        let dead_change = (dead::PARTITION, dead::key(container), (dead.count() > 0).then(|| dead.encode()));
        let mut is_restored = false;
        self.commit_settled(&mut || {
            let mut settled = Settled::default();
            let mut entries = Vec::new();
            self.index.lookup(&[chunk.fingerprint], &mut entries)?;
            let entry = entries.pop().flatten();
            let Some(known) = self.quarantine.get(&chunk.fingerprint)? else { return Ok(settled) };
            settled.changes.push(self.quarantine.take(&chunk.fingerprint));
            is_restored = entry.is_none_or(|entry| entry.address == 0);
            if is_restored {
                settled.places.push((chunk.fingerprint, chunk.address.bits()));
                settled.changes.push(dead_change.clone());
                settled.chunks = 1;
                settled.dead_bytes = dead.bytes as i64 - before as i64;
                if !known.is_counted {
                    let mut sums: BTreeMap<Fingerprint, i64> = BTreeMap::new();
                    references.iter().for_each(|reference| *sums.entry(*reference).or_default() += 1);
                    settled.deltas.extend(sums);
                }
            }
            Ok(settled)
        })?;
        Ok(is_restored)
    }

    /// Commits what is decided, under the lock of commits, so that what it was decided on still holds; durable on return. The caller holds `reclaiming`.
    pub(crate) fn commit_settled(&self, decide: &mut dyn FnMut() -> Result<Settled>) -> Result<()> {
        self.make_room_in_log();
        self.with_room_in_the_log(|write| {
            let _guard = self.committing.lock();
            self.writable()?;
            let Settled { places, deltas, mut changes, chunks, dead_bytes } = decide()?;
            if places.is_empty() && changes.is_empty() {
                return Ok(());
            }
            let mut totals = *self.totals.lock();
            totals.chunks = totals.chunks.saturating_add_signed(chunks);
            totals.dead_bytes = totals.dead_bytes.saturating_add_signed(dead_bytes);
            changes.push(totals.change());
            let mut records = Vec::new();
            if !places.is_empty() {
                records.push(encode_places(&places, self.digest_bytes()));
            }
            if !deltas.is_empty() {
                records.push(encode_deltas(&deltas, self.digest_bytes()));
            }
            records.extend(encode_objects(&changes));
            let effects = Effects { places: &places, deltas: &deltas, changes: &changes, ..Effects::default() };
            self.log_and_apply(write, Prepared::default(), &records, effects)?;
            *self.totals.lock() = totals;
            Ok(())
        })
    }

    /// Lost chunks for which a batch has room, several of which must fit into the log.
    pub(crate) fn lost_in_a_batch(&self) -> usize {
        (self.settings.log_limit_bytes / 8 / LOST_BYTES).clamp(1, BATCH) as usize
    }
}
