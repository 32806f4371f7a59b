//! Putting chunks in quarantine, and taking them out once they can be read again: the commits that change index, dead
//! slots and objects together ([`crate::lost::quarantine`] explains why).

pub(crate) mod parity;
pub(crate) mod quarantine;
pub(crate) mod rebuild;
pub(crate) mod rehearsal;
pub(crate) mod scrubbing;
pub(crate) mod store_salvage;

use crate::commit::Write;
use crate::commit::records::{encode_objects, encode_places};
use crate::liveness::dead::{self, DeadChanges, DeadSlots};
use crate::liveness::reference::{Facts, Stored};
use crate::lookup::redirects::RedirectChanges;
use crate::lost::quarantine::{Quarantined, now_ns};
use crate::{Candidate, Change, Contents, Engine, Result};
use onefold_fingerprint::Fingerprint;
use onefold_index::IndexEntry;
use onefold_oplog::Effects;
use onefold_storage::{Address, ChunkKind, ContainerId, FileFigures, Origin, Prepared, Slot};
use std::collections::{HashMap, HashSet};

/// The most bytes that one lost chunk takes in the log.
const LOST_BYTES: u64 = 192;
/// The most lost chunks of one batch.
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
    /// Whether the caller found something that refers to it. Otherwise a chunk that the index does not have was
    /// removed.
    pub is_needed: bool,
}

/// Ends a survey.
const CAME_BACK: &str = "lost chunks can be read again; the next run goes on";

/// The changes that a commit makes in the quarantine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) places: Vec<(Fingerprint, u64)>,
    /// Metadata chunks that are known again, and whose references were not counted.
    pub(crate) stored: Vec<Stored>,
    pub(crate) changes: Vec<Change>,
    /// Slots that die or live again.
    pub(crate) dead: DeadChanges,
    /// Changes of the number of chunks, and of the dead bytes beside those of `dead`.
    pub(crate) chunks: i64,
    pub(crate) dead_bytes: i64,
    /// The files of containers, if they were counted, or must be counted again: `Some(None)`.
    pub(crate) files: Option<Option<FileFigures>>,
    /// Where copies that count for themselves are now.
    pub(crate) redirects: RedirectChanges,
    /// Whether such a copy is somewhere else now.
    pub(crate) has_moved: bool,
    /// Why a survey that was made before must not be judged by any more, if so.
    pub(crate) outdates: Option<&'static str>,
}

/// A chunk in quarantine that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Its name.
    pub fingerprint: Fingerprint,
    /// Where it can be read.
    pub address: Address,
    /// Where it was when it was lost. Only asked for where each copy counts for itself.
    pub lost: Address,
    /// The chunks that it refers to, once for each reference.
    pub references: Vec<Fingerprint>,
}

impl Engine {
    /// Puts unreadable chunks in quarantine, and marks their slots as dead. Durable on return. Chunks that the index
    /// has elsewhere, or does not have, only lose their slots. Returns the lost chunks. If it is cut short, it has done
    /// this for some of them.
    pub fn quarantine(&self, lost: &[LostChunk]) -> Result<Vec<Quarantined>> {
        self.repairable()?;
        // Count what is on its way before looking at counts.
        self.flush_before_repair()?;
        let _one = self.reclaiming.alone();
        let mut done = Vec::new();
        for batch in lost.chunks(self.lost_in_a_batch()) {
            done.extend(self.quarantine_batch(batch)?);
        }
        Ok(done)
    }

    fn quarantine_batch(&self, lost: &[LostChunk]) -> Result<Vec<Quarantined>> {
        let since_ns = now_ns();
        let dead = self.dead_of(lost)?;
        let quarantine = &self.quarantine;
        // From now on writers of chunks ask the quarantine.
        quarantine.set_used();
        let names: Vec<Fingerprint> = lost.iter().map(|chunk| chunk.fingerprint).collect();
        let mut found = Vec::new();
        if !self.descriptor.profile.is_exact() {
            self.quarantine_copies(lost, &dead, &mut found)?;
            self.filters.removed(&names);
            return Ok(found);
        }
        let counts = self.descriptor.profile.counts();
        self.commit_settled(&mut || {
            found.clear();
            let mut settled = Settled { dead: dead.clone(), ..Settled::default() };
            let mut entries = Vec::with_capacity(names.len());
            self.lookup.index().map_or(Ok(0), |index| index.lookup(&names, &mut entries))?;
            let mut seen = HashSet::new();
            for (chunk, entry) in lost.iter().zip(entries) {
                let is_here = |address| address == chunk.address.bits() || address == 0;
                // Without counts, the index has nothing of a chunk that is nowhere.
                let nowhere = || (!counts && chunk.is_needed).then(IndexEntry::default);
                let entry = entry.or_else(nowhere).filter(|entry| is_here(entry.address) && seen.insert(chunk.fingerprint));
                let Some(entry) = entry else { continue };
                let known = quarantine.get(&chunk.fingerprint, chunk.address)?;
                if known.is_some_and(|known| known.address.bits() != 0 || chunk.address.bits() == 0) {
                    continue;
                }
                let now = Quarantined {
                    fingerprint: chunk.fingerprint,
                    address: chunk.address,
                    kind: chunk.slot.map(|(kind, _)| kind),
                    length_bytes: chunk.slot.map_or(0, |(_, length)| length),
                    // An entry without an address was made by counting the readable references.
                    is_counted: known.map_or(entry.address != 0, |known| known.is_counted),
                    is_unreachable: known.is_some_and(|known| known.is_unreachable),
                    since_ns: known.map_or(since_ns, |known| known.since_ns),
                };
                if entry.address != 0 {
                    settled.places.push((chunk.fingerprint, 0));
                }
                if entry.count > 0 || !counts || now.may_refer() {
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

    /// Does the same where each copy counts for itself: copies that are dead already were removed, or are here already.
    fn quarantine_copies(&self, lost: &[LostChunk], dead: &DeadChanges, found: &mut Vec<Quarantined>) -> Result<()> {
        let since_ns = now_ns();
        self.commit_settled(&mut || {
            found.clear();
            let mut settled = Settled { dead: dead.clone(), ..Settled::default() };
            let mut seen = HashSet::new();
            for chunk in lost {
                let is_known = self.quarantine.get(&chunk.fingerprint, chunk.address)?.is_some();
                if is_known || chunk.address.bits() == 0 || !seen.insert((chunk.fingerprint, chunk.address)) {
                    continue;
                }
                let copy = Candidate { address: chunk.address, fingerprint: chunk.fingerprint };
                let is_alive = self.alive_in(chunk.address.origin()).is_ok_and(|alive| alive.contains(&copy));
                if !is_alive && !chunk.is_needed {
                    continue;
                }
                if self.redirects.of(chunk.address)?.is_some() {
                    continue; // whoever has the address finds the chunk elsewhere
                }
                let now = Quarantined {
                    fingerprint: chunk.fingerprint,
                    address: chunk.address,
                    kind: chunk.slot.map(|(kind, _)| kind),
                    length_bytes: chunk.slot.map_or(0, |(_, length)| length),
                    is_counted: true,
                    is_unreachable: false,
                    since_ns,
                };
                settled.changes.push(self.quarantine.put(&now));
                found.push(now);
            }
            Ok(settled)
        })?;
        self.forget_copies(lost.iter().map(|chunk| (chunk.fingerprint, chunk.address)));
        Ok(())
    }

    /// Tells hooks that copies are not stored any more.
    pub(crate) fn forget_copies(&self, copies: impl Iterator<Item = (Fingerprint, Address)>) {
        if let Some(sampled) = self.lookup.sampled() {
            sampled.removed(copies);
        }
    }

    /// Returns the dead slots that lost chunks leave.
    fn dead_of(&self, lost: &[LostChunk]) -> Result<DeadChanges> {
        let mut dead = DeadChanges::default();
        if self.containers.is_none() {
            return Ok(dead);
        }
        let mut sorted: Vec<&LostChunk> = lost.iter().filter(|chunk| chunk.slot.is_some()).collect();
        sorted.sort_unstable_by_key(|chunk| chunk.address);
        for run in sorted.chunk_by(|one, next| one.address.origin() == next.address.origin()) {
            // Another file may have them. A file that cannot be read has no slots.
            let Ok((container, slots)) = self.storage.chunks_beside(run[0].address.origin()) else { continue };
            let of_bytes = bytes_of(&slots);
            let wanted: HashSet<(Address, Fingerprint)> = run.iter().map(|chunk| (chunk.address, chunk.fingerprint)).collect();
            for (number, (address, slot)) in slots.iter().enumerate() {
                if wanted.contains(&(*address, slot.fingerprint)) {
                    dead.set(container, of_bytes, number, slot.length_bytes, true);
                }
            }
        }
        Ok(dead)
    }

    /// Notes that the catalog of a container file cannot be read, so that none of its slots counts. Durable on return.
    /// First put the chunks that the index has in this container in quarantine. From then on no new container gets this
    /// number, whose slots are dead.
    pub fn give_up_container(&self, container: ContainerId) -> Result<()> {
        let _one = self.reclaiming.alone();
        if !self.is_rehearsal() {
            self.need_containers()?.keep_number(container)?;
        }
        self.commit_settled(&mut || {
            let dead = DeadSlots::read(&self.objects, container)?;
            let change =
                (!dead.is_given_up()).then(|| (self.objects.own_partition(), dead::key(container), Some(dead.given_up().encode())));
            Ok(Settled { changes: change.into_iter().collect(), ..Settled::default() })
        })
    }

    /// Takes back a container that was [given up](Self::give_up_container), if its catalog can be read again. Durable
    /// on return. Its slots are then dead as those of others are, and each chunk can be restored. Without a chunk index
    /// only what is in quarantine is dead: a lost chunk elsewhere may need any of the others. Returns false if it was
    /// not given up or still cannot be read.
    pub fn take_up_container(&self, container: ContainerId) -> Result<bool> {
        let _one = self.reclaiming.alone();
        let before = DeadSlots::read(&self.objects, container)?;
        if !before.is_given_up() {
            return Ok(false);
        }
        let Ok(catalog) = self.need_containers()?.catalog(container) else { return Ok(false) };
        let is_exact = self.descriptor.profile.is_exact();
        let mut dead = DeadSlots::default();
        let mut has_alive = false;
        // If another file has the chunks of this id, there is nothing to note.
        if catalog.container == container {
            let slots = self.storage.chunks_of(container)?;
            dead.of_bytes = bytes_of(&slots);
            for (number, (address, slot)) in slots.iter().enumerate() {
                if is_exact || self.quarantine.get(&slot.fingerprint, *address)?.is_some() {
                    dead.insert(number, slot.length_bytes);
                } else {
                    has_alive = true;
                }
            }
        }
        let dead_bytes = dead.bytes as i64 - before.bytes as i64;
        let change = (self.objects.own_partition(), dead::key(container), (dead.count() > 0).then(|| dead.encode()));
        self.commit_settled(&mut || {
            let outdates = has_alive.then_some(CAME_BACK);
            Ok(Settled { changes: vec![change.clone()], dead_bytes, has_moved: has_alive, outdates, ..Settled::default() })
        })?;
        Ok(true)
    }

    /// Has the files of containers counted by the next opening, unless [`recount`](Self::recount) does it before. A
    /// repair begins with it: it changes files, and may be killed.
    pub fn forget_file_figures(&self) -> Result<()> {
        self.commit_settled(&mut || Ok(Settled { files: Some(None), ..Settled::default() }))
    }

    /// Counts the files of containers, and the stored chunks where each copy counts for itself. A repair needs it at
    /// its end: nobody knows how many chunks were in a container that could not be read. Containers that cannot be read
    /// have none. Durable on return.
    pub fn recount(&self) -> Result<()> {
        self.flush_before_repair()?;
        let _one = self.reclaiming.alone();
        if self.descriptor.profile.is_exact() {
            return self.commit_settled(&mut || Ok(Settled { files: Some(self.count_files()?), ..Settled::default() }));
        }
        let mut count = 0;
        for container in self.storage.units()?.iter() {
            match self.contents(container) {
                Ok(Some(Contents { container: file, slots, dead })) if file == container => {
                    count += (0..slots.len()).filter(|slot| !dead.contains(*slot)).count() as i64;
                }
                Ok(_) => {}
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        self.commit_settled(&mut || {
            let (chunks, files) = (count - self.totals.lock().chunks as i64, Some(self.count_files()?));
            Ok(Settled { chunks, files, ..Settled::default() })
        })
    }

    /// Takes chunks that can be read again out of quarantine. Durable on return. Cheapest for many chunks of one
    /// container. Chunks that are stored elsewhere or no longer in quarantine are left alone. Returns how many were
    /// restored.
    ///
    /// If it is cut short, it has done this for some of them.
    pub fn restore_chunks(&self, chunks: &[Readable]) -> Result<u64> {
        self.repairable()?;
        self.flush_before_repair()?;
        let _one = self.reclaiming.alone();
        let mut restored = 0;
        let mut left = chunks;
        while !left.is_empty() {
            let (batch, rest) = left.split_at(self.restored_in_a_batch(left));
            restored += self.restore_batch(batch)?;
            left = rest;
        }
        Ok(restored)
    }

    fn restore_batch(&self, chunks: &[Readable]) -> Result<u64> {
        let mut places: HashMap<(Address, Fingerprint), (ContainerId, u64, usize, u32)> = HashMap::new();
        let origins: HashSet<Origin> = chunks.iter().map(|chunk| chunk.address.origin()).collect();
        for origin in origins {
            let (container, slots) = self.storage.chunks_beside(origin)?;
            let of_bytes = bytes_of(&slots);
            let numbered = slots.iter().enumerate().filter(|(_, (address, _))| address.origin() == origin);
            places.extend(
                numbered.map(|(number, (address, slot))| ((*address, slot.fingerprint), (container, of_bytes, number, slot.length_bytes))),
            );
        }
        let names: Vec<Fingerprint> = chunks.iter().map(|chunk| chunk.fingerprint).collect();
        let mut restored = 0;
        self.commit_settled(&mut || {
            let mut settled = Settled::default();
            restored = 0;
            let stored_at = self.places(&names)?;
            let is_exact = stored_at.is_some();
            let stored_at = stored_at.unwrap_or_else(|| vec![None; names.len()]);
            let mut seen = HashSet::new();
            for (chunk, stored_at) in chunks.iter().zip(stored_at) {
                let Some((container, of_bytes, slot, length_bytes)) = places.get(&(chunk.address, chunk.fingerprint)) else { continue };
                let known = self.quarantine.get(&chunk.fingerprint, chunk.lost)?;
                let mark = if is_exact { Address::from_bits(0) } else { chunk.lost };
                let Some(known) = known.filter(|_| seen.insert((chunk.fingerprint, mark))) else { continue };
                settled.changes.push(self.quarantine.take(&chunk.fingerprint, chunk.lost));
                if !is_exact && chunk.lost != chunk.address {
                    settled.redirects.set(chunk.lost, Some(chunk.address));
                    // Otherwise the two could lead to each other.
                    settled.redirects.set(chunk.address, None);
                    if self.quarantine.get(&chunk.fingerprint, chunk.address)?.is_some() {
                        settled.changes.push(self.quarantine.take(&chunk.fingerprint, chunk.address));
                    }
                }
                restored += 1;
                if !is_exact {
                    // A lost copy that serves here needs no place of its own.
                    seen.insert((chunk.fingerprint, chunk.address));
                    settled.dead.set(*container, *of_bytes, *slot, *length_bytes, false);
                    (settled.has_moved, settled.outdates) = (true, Some(CAME_BACK));
                } else if stored_at.is_none() {
                    settled.places.push((chunk.fingerprint, chunk.address.bits()));
                    settled.dead.set(*container, *of_bytes, *slot, *length_bytes, false);
                    if !known.is_counted {
                        settled.stored.push(Stored { fingerprint: chunk.fingerprint, references: chunk.references.clone() });
                    }
                }
            }
            if is_exact {
                settled.chunks = settled.places.len() as i64;
                restored = settled.places.len() as u64;
            }
            Ok(settled)
        })?;
        Ok(restored)
    }

    /// Calls `decide` under the commit lock, so that what it relies on still holds, and commits the result. Durable on
    /// return. The caller holds `reclaiming`.
    pub(crate) fn commit_settled(&self, decide: &mut dyn FnMut() -> Result<Settled>) -> Result<()> {
        // `None` means a trial: nothing is written.
        let mut commit = |write: Option<Write>| {
            let _guard = self.commits.alone();
            self.repairable()?;
            let Settled { places, stored, mut changes, dead, chunks, dead_bytes, files, redirects, has_moved, outdates } = decide()?;
            let (marked, marked_bytes, _) = dead.changes(&self.objects)?;
            changes.extend(marked);
            changes.extend(redirects.changes(&self.redirects)?);
            if places.is_empty() && changes.is_empty() && chunks == 0 && files.is_none() {
                return Ok(());
            }
            let mut totals = *self.totals.lock();
            totals.chunks = totals.chunks.saturating_add_signed(chunks);
            totals.dead_bytes = totals.dead_bytes.saturating_add_signed(dead_bytes + marked_bytes);
            totals.files = files.unwrap_or(totals.files);
            changes.push(totals.change(&self.objects));
            let mut records = Vec::new();
            if !places.is_empty() {
                records.push(encode_places(&places, self.digest_bytes()));
            }
            // Chunks that are lost keep their marks where they were.
            let has_moved = has_moved || places.iter().any(|(_, place)| *place != 0);
            let noted = self.liveness.note(&Facts { stored: &stored, has_moved, outdates, end: self.log.end(), ..Facts::default() })?;
            changes.extend(noted.changes);
            records.extend(noted.records);
            records.extend(encode_objects(&changes));
            let effects = Effects { places: &places, deltas: &noted.deltas, changes: &changes, ..Effects::default() };
            match write {
                Some(write) => drop(self.log_and_apply(write, Prepared::default(), &records, effects)?),
                None => self.rehearse_batch(effects)?,
            }
            self.liveness.committed();
            *self.totals.lock() = totals;
            Ok(())
        };
        if self.is_rehearsal() {
            return commit(None);
        }
        self.make_room_in_log();
        self.with_room_in_the_log(|write| commit(Some(write)))
    }

    /// Returns how many lost chunks fit into a batch. The log must take several batches.
    pub(crate) fn lost_in_a_batch(&self) -> usize {
        (self.settings.log_limit_bytes / 8 / LOST_BYTES).clamp(1, BATCH) as usize
    }

    /// Returns how many of these chunks fit into a batch, at least one.
    fn restored_in_a_batch(&self, chunks: &[Readable]) -> usize {
        let limit = (self.settings.log_limit_bytes / 8) as usize;
        let mut bytes = 0;
        let fitting = chunks.iter().take_while(|chunk| {
            bytes += LOST_BYTES as usize + chunk.references.len() * (self.digest_bytes() + 2);
            bytes <= limit
        });
        fitting.count().clamp(1, BATCH as usize).min(chunks.len())
    }
}

fn bytes_of(slots: &[(Address, Slot)]) -> u64 {
    slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum()
}
