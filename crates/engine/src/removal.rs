//! Removing chunks that nothing refers to (M0.19). Ingest goes on meanwhile.
//!
//! # Why no chunk goes that somebody needs
//! A candidate is a chunk whose count in the index is 0. A piece that refers to it may be on its way all the same: in a transaction that is
//! submitted, or in the hands of somebody who has not submitted yet. The steps, of which each closes one gap:
//! 1. *Watch.* The candidates go on the watch list ([`Watch`](crate::in_flight::Watch)). From now on whoever asks for one, refers to one or
//!    changes its count takes it off.
//! 2. *Wait* until nobody is in flight who came before that: they may hold pieces that they got unwatched.
//! 3. *Flush.* Now the counts in the index have all that was submitted before, and by those who were waited for.
//! 4. *Reserve* each candidate. From here on whoever wants it waits for us. Those who came before us have taken it off the watch list before
//!    they reserved it. So: still watched and still 0 means that nobody has it and nobody can get it. What somebody else has reserved is left.
//! 5. *Commit*: the removals, -1 for each reference of a removed metadata chunk, and the dead slots of the containers, as one batch.
//! 6. The filters forget the chunks; then the reservations go, and whoever waited finds a chunk that is not stored.
//!
//! Could a chunk be reached through an object that became visible after step 1, whose count came and went again before step 4? Both changes are
//! submitted, and submitting takes the chunk off the list. Through a metadata chunk that itself has count 0? As long as that one is in the
//! index it counts its references, so they are no candidates.
//!
//! A crash before the commit is durable changes nothing; candidates are found again by their count.

use crate::dead::{self, DeadSlots};
use crate::reservation::Reservation;
use crate::{Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_index::UnusedCursor;
use onefold_storage::{Address, ChunkKind, ContainerId};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Most candidates of one removal: bounds its memory, about 300 bytes each and 32 for each reference of a metadata chunk.
pub const MAX_CANDIDATES: usize = 16 << 10;
/// How often it is looked whether those in flight are gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a metadata chunk refers to, from its kind and content.
pub type ReferencesOf<'a> = &'a dyn Fn(ChunkKind, &[u8]) -> std::result::Result<Vec<Fingerprint>, String>;

/// What a removal did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// What the removed metadata chunks referred to: these may have become unused.
    pub released: Vec<Fingerprint>,
    /// Candidates for which the batch had no room: to be asked about again.
    pub left: Vec<Fingerprint>,
    /// Candidates that could not be judged because their container cannot be read: one sentence each.
    pub damaged: Vec<String>,
    /// Those in flight did not end in time: nothing was removed, it is to be tried again later.
    pub was_busy: bool,
}

/// A chunk about to be removed.
struct Doomed {
    fingerprint: Fingerprint,
    container: ContainerId,
    slot: usize,
    length_bytes: u32,
    references: Vec<Fingerprint>,
}

/// Frees reservations, whatever way the removal ends.
struct Held<'a> {
    engine: &'a Engine,
    fingerprints: Vec<Fingerprint>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.engine.watch.end();
        for fingerprint in &self.fingerprints {
            self.engine.reservations.release(fingerprint);
        }
    }
}

impl Engine {
    /// Chunks that nothing refers to, from `cursor` on, `limit` or a few more of them, and where to go on. Only those that the chunk index has in its
    /// pages: [`Engine::maintain`] before makes all known.
    pub fn unused(&self, cursor: UnusedCursor, limit: usize) -> Result<(Vec<Fingerprint>, Option<UnusedCursor>)> {
        let mut found = Vec::new();
        let next = self.index.unused(cursor, limit, &mut found)?;
        Ok((found.into_iter().map(|(fingerprint, _)| fingerprint).collect(), next))
    }

    /// Removes those of `candidates` (at most [`MAX_CANDIDATES`]) that nothing refers to and that nobody is about to refer to; durable on return.
    /// `go_on` is asked while those in flight are waited for. One at a time: a second call waits.
    pub fn remove_unused(&self, candidates: &[Fingerprint], references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<Removed> {
        self.writable()?;
        drop(self.permit_deletion("remove unused chunks")?);
        let _one = loop {
            match self.removing.try_lock_for(LOOK_EVERY) {
                Some(one) => break one,
                None if go_on() => {}
                None => return Ok(Removed { was_busy: true, ..Removed::default() }),
            }
        };
        let candidates = self.without_references(candidates.iter().take(MAX_CANDIDATES).copied().collect())?;
        if candidates.is_empty() {
            return Ok(Removed::default());
        }
        let mut held = Held { engine: self, fingerprints: Vec::new() };
        self.watch.begin(candidates.iter().map(|(fingerprint, _)| *fingerprint));
        let moment = self.guards.now();
        while !self.guards.all_gone_before(moment) {
            if !go_on() {
                return Ok(Removed { was_busy: true, ..Removed::default() });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.flush()?;
        // Not before: whoever reads all containers one after the other would wait for those in flight too.
        let _reclaiming = self.reclaiming.lock();
        let mut reserved = Vec::with_capacity(candidates.len());
        for (fingerprint, _) in candidates {
            if self.reservations.reserve(&fingerprint) == Reservation::Owned {
                held.fingerprints.push(fingerprint);
                if self.watch.is_watched(&fingerprint) {
                    reserved.push(fingerprint);
                }
            }
        }
        let doomed = self.without_references(reserved)?;
        let mut removed = Removed::default();
        let mut doomed = self.look_at(&doomed, references, &mut removed);
        removed.left = self.what_a_batch_has_no_room_for(&mut doomed);
        if !doomed.is_empty() {
            // Not held while others are waited for: who switches append-only mode on would wait with us.
            let _permit = self.permit_deletion("remove unused chunks")?;
            self.commit_removal(doomed, &mut removed)?;
        }
        drop(held);
        Ok(removed)
    }

    /// Those that the index has with a count of 0, and where they are.
    fn without_references(&self, mut chunks: Vec<Fingerprint>) -> Result<Vec<(Fingerprint, Address)>> {
        chunks.sort_unstable();
        chunks.dedup();
        let mut entries = Vec::with_capacity(chunks.len());
        self.index.lookup(&chunks, &mut entries)?;
        let unused = chunks.into_iter().zip(entries).filter_map(|(fingerprint, entry)| match entry {
            Some(entry) if entry.count == 0 && entry.address != 0 => Some((fingerprint, Address::from_bits(entry.address))),
            _ => None,
        });
        Ok(unused.collect())
    }

    /// Finds slot and length of each chunk, and what metadata chunks refer to. What cannot be read stays: its references would stay counted for ever.
    fn look_at(&self, chunks: &[(Fingerprint, Address)], references: ReferencesOf<'_>, removed: &mut Removed) -> Vec<Doomed> {
        let mut order: Vec<&(Fingerprint, Address)> = chunks.iter().collect();
        order.sort_unstable_by_key(|(_, address)| *address);
        let mut doomed = Vec::with_capacity(order.len());
        let mut metadata = Vec::new();
        for run in order.chunk_by(|one, next| one.1.container() == next.1.container()) {
            // The file that has it now may be another one: merging keeps the addresses.
            let found = self.storage.catalog(run[0].1.container()).and_then(|catalog| {
                let slots = self.storage.slots(catalog.container)?;
                Ok((catalog.container, slots))
            });
            let (container, slots) = match found {
                Ok(found) => found,
                Err(error) => {
                    removed.damaged.push(error.to_string());
                    continue;
                }
            };
            let places: HashMap<Address, usize> = slots.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect();
            for (fingerprint, address) in run {
                let found = places.get(address).map(|slot| (*slot, &slots[*slot].1));
                let Some((slot, found)) = found.filter(|(_, found)| found.fingerprint == *fingerprint) else {
                    removed.damaged.push(format!("chunk {fingerprint}: the index says that it is at {address}, where it is not"));
                    continue;
                };
                if found.kind != ChunkKind::Data {
                    metadata.push((doomed.len(), found.kind, *address, *fingerprint));
                }
                let length_bytes = found.length_bytes;
                doomed.push(Doomed { fingerprint: *fingerprint, container, slot, length_bytes, references: Vec::new() });
            }
        }
        let mut unreadable = Vec::new();
        for (at, kind, address, fingerprint) in metadata {
            let mut slices = Vec::new();
            let read = self.storage.load(&[(address, fingerprint)], &mut slices).map_err(|error| error.to_string());
            let content = read.and_then(|()| slices.pop().ok_or_else(|| "it was not found".to_owned()));
            match content.and_then(|content| references(kind, &content)) {
                Ok(references) => doomed[at].references = references,
                Err(why) => {
                    removed.damaged.push(format!("metadata chunk {fingerprint} at {address} cannot be read: {why}"));
                    unreadable.push(at);
                }
            }
        }
        for at in unreadable.into_iter().rev() {
            doomed.remove(at);
        }
        doomed
    }

    /// Cuts off what would make the batch too large for the log, in which several must fit.
    fn what_a_batch_has_no_room_for(&self, doomed: &mut Vec<Doomed>) -> Vec<Fingerprint> {
        let limit = (self.settings.log_limit_bytes / 8) as usize;
        let mut bytes = 0;
        let fitting = doomed.iter().take_while(|chunk| {
            let first = bytes == 0;
            bytes += (1 + chunk.references.len()) * (self.digest_bytes() + 2) + 32;
            first || bytes <= limit
        });
        let fitting = fitting.count();
        doomed.split_off(fitting).into_iter().map(|chunk| chunk.fingerprint).collect()
    }

    fn commit_removal(&self, doomed: Vec<Doomed>, removed: &mut Removed) -> Result<()> {
        let mut deltas: HashMap<Fingerprint, i64> = HashMap::new();
        for reference in doomed.iter().flat_map(|chunk| &chunk.references) {
            *deltas.entry(*reference).or_default() -= 1;
        }
        let mut deltas: Vec<_> = deltas.into_iter().collect();
        deltas.sort_unstable();
        // Whoever watches these must hear of it as of any other change of their counts.
        self.watch.touch(deltas.iter().map(|(fingerprint, _)| fingerprint));
        let mut by_container: BTreeMap<ContainerId, Vec<&Doomed>> = BTreeMap::new();
        for chunk in &doomed {
            by_container.entry(chunk.container).or_default().push(chunk);
        }
        let mut changes = Vec::with_capacity(by_container.len() + 1);
        for (container, chunks) in by_container {
            let mut dead = DeadSlots::read(&self.blocks, container)?;
            let slots = self.storage.slots(container)?;
            dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
            for chunk in chunks {
                dead.insert(chunk.slot, chunk.length_bytes);
            }
            changes.push((dead::PARTITION, dead::key(container), Some(dead.encode())));
        }
        let removals: Vec<Fingerprint> = doomed.iter().map(|chunk| chunk.fingerprint).collect();
        let bytes = doomed.iter().map(|chunk| u64::from(chunk.length_bytes)).sum();
        self.commit_removals(&removals, &deltas, &changes, bytes)?;
        self.filters.removed(&removals);
        removed.chunks = removals.len() as u64;
        removed.bytes = bytes;
        removed.released = deltas.into_iter().map(|(fingerprint, _)| fingerprint).collect();
        Ok(())
    }

    /// The dead slots of a container file.
    pub fn dead_slots(&self, container: ContainerId) -> Result<DeadSlots> {
        DeadSlots::read(&self.blocks, container)
    }

    /// Passes the dead slots of every container that has some to `visit`.
    pub fn for_each_dead(&self, visit: &mut dyn FnMut(ContainerId, DeadSlots)) -> Result<()> {
        let mut damaged = None;
        self.for_each_object(dead::PREFIX, &mut |key, value| match (dead::container_of(key), DeadSlots::decode(value)) {
            (Some(container), Ok(dead)) => visit(container, dead),
            (_, Err(error)) => damaged = Some(error),
            (None, _) => {
                damaged = Some(EngineError::Inconsistent { why: "the block index has dead slots whose key cannot be read".into() })
            }
        })?;
        damaged.map_or(Ok(()), Err)
    }
}
