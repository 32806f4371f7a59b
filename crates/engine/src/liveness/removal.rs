//! Removing chunks that nothing refers to (M0.19). Ingest goes on meanwhile.
//!
//! # Why no chunk goes that somebody needs
//! A candidate is a chunk whose count in the index is 0. A piece that refers to it may be on its way all the same: in a transaction that is
//! submitted, or in the hands of somebody who has not submitted yet. The steps, of which each closes one gap:
//! 1. *Watch.* The candidates go on the watch list ([`Watch`](crate::write::in_flight::Watch)). From now on whoever asks for one, refers to one or
//!    changes its count takes it off.
//! 2. *Wait* until nobody is in flight who came before that: they may hold pieces that they got unwatched.
//! 3. *Flush.* Now the counts in the index have all that was submitted before, and by those who were waited for. Then readers in other processes
//!    are looked for that hold what is not there any more (`snapshot.rs`): as long as there is one, nothing is removed.
//! 4. *Look* where the candidates lie and what those that are metadata chunks refer to. This reads containers, so nobody is kept waiting yet.
//!    What is found stays true: slots never change, a name stands for one content, and no container is merged while `reclaiming` is held.
//! 5. *Claim and doom* each candidate. Whoever wants it from here on is told by the watch list not to ask a cache, and waits for our claim.
//!    Those who came before us have taken it off the watch list before they asked a cache or claimed it: then it cannot be doomed. So: doomed,
//!    still 0 and still at the address that was looked at means that nobody has it and nobody can get it.
//!    What somebody else has claimed or taken off the list is left.
//! 6. *Commit*: the removals, -1 for each reference of a removed metadata chunk, and the dead slots of the containers, as one batch.
//! 7. The filters forget the chunks; then the watch ends and the claims go, and whoever waited finds a chunk that is not stored.
//!
//! Could a chunk be reached through an object that became visible after step 1, whose count came and went again before step 5? Both changes are
//! submitted, and submitting takes the chunk off the list. Through a metadata chunk that itself has count 0? As long as that one is in the
//! index it counts its references, so they are no candidates.
//!
//! A crash before the commit is durable changes nothing; candidates are found again by their count.

use crate::liveness::dead::{self, DeadSlots, Marks};
use crate::write::claims::{Claim, Held, Search, Wanted};
use crate::write::in_flight::Watch;
use crate::{Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_index::{IndexEntry, IndexError, UnusedCursor};
use onefold_storage::{Address, ChunkKind, ContainerId, Slice};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// Most candidates of one removal: bounds its memory, about 300 bytes each and 32 for each reference of a metadata chunk.
pub const MAX_CANDIDATES: usize = 16 << 10;
/// Bytes of a removal in the log, about: a full disk must have room for one.
const BATCH_BYTES: usize = 4 << 20;
/// How often it is looked whether those in flight are gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a metadata chunk refers to, from its kind and content.
pub type ReferencesOf<'a> = &'a dyn Fn(ChunkKind, &[u8]) -> std::result::Result<Vec<Fingerprint>, String>;

/// A chunk that nothing referred to when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Where the index says that it is.
    pub address: Address,
    /// Its name.
    pub fingerprint: Fingerprint,
}

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
    pub left: Vec<Candidate>,
    /// Candidates that nothing refers to and that stay because somebody asked for them meanwhile or is writing them.
    pub in_use: u64,
    /// Candidates that could not be judged because a container or a page of the index cannot be read: one sentence each.
    pub damaged: Vec<String>,
    /// Which reader nothing was removed for: it reads what was removed before.
    pub kept_for: Option<String>,
    /// Why nothing was removed, if nothing may be: [`Engine::why_nothing_is_removed`].
    pub held: Option<String>,
    /// Those in flight did not end in time: nothing was removed, it is to be tried again later.
    pub was_busy: bool,
}

/// Chunks of one container file about to be removed.
struct Doomed {
    container: ContainerId,
    /// Its dead slots, before.
    dead: DeadSlots,
    chunks: Vec<DoomedChunk>,
}

struct DoomedChunk {
    candidate: Candidate,
    slot: usize,
    length_bytes: u32,
    references: Vec<Fingerprint>,
}

impl Doomed {
    /// What its dead slots take in a batch, at most, bytes.
    fn dead_bytes_after(&self) -> usize {
        self.dead.encode().len() + self.chunks.iter().map(|chunk| chunk.slot / 8).max().unwrap_or(0)
    }
}

/// Ends the watch, whatever way the removal ends.
struct Watching<'a>(&'a Watch);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Engine {
    /// Chunks that nothing refers to, from `cursor` on, `limit` or a few more of them, and where to go on. Only those that the chunk index has in its
    /// pages: [`Engine::maintain`] before makes all known. Pages that cannot be read are passed over, and named in `damaged`.
    pub fn unused(&self, cursor: UnusedCursor, limit: usize, damaged: &mut Vec<String>) -> Result<(Vec<Candidate>, Option<UnusedCursor>)> {
        let (mut found, mut pages) = (Vec::new(), Vec::new());
        let next = self.index.unused(cursor, limit, &mut found, &mut pages)?;
        damaged.extend(pages.into_iter().map(|page| format!("chunk index {} page {} is damaged: {}", page.path, page.page, page.why)));
        let candidate = |(fingerprint, address)| Candidate { address: Address::from_bits(address), fingerprint };
        Ok((found.into_iter().map(candidate).collect(), next))
    }

    /// Those of `chunks` that the index has with a count of 0. Of those in pages that cannot be read nobody knows; these are named in `damaged`.
    pub fn without_references(&self, mut chunks: Vec<Fingerprint>, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        chunks.sort_unstable();
        chunks.dedup();
        let mut unused = Vec::new();
        self.lookup_readable(&chunks, damaged, &mut |fingerprint, entry| {
            if entry.count == 0 && entry.address != 0 {
                unused.push(Candidate { address: Address::from_bits(entry.address), fingerprint: *fingerprint });
            }
        })?;
        Ok(unused)
    }

    /// Looks up `chunks`, which ascend, as far as their pages can be read.
    fn lookup_readable(
        &self,
        chunks: &[Fingerprint],
        damaged: &mut Vec<String>,
        found: &mut dyn FnMut(&Fingerprint, IndexEntry),
    ) -> Result<()> {
        let mut entries = Vec::with_capacity(chunks.len());
        match self.index.lookup(chunks, &mut entries) {
            Ok(()) => {
                let known = chunks.iter().zip(entries).filter_map(|(chunk, entry)| entry.map(|entry| (chunk, entry)));
                known.for_each(|(chunk, entry)| found(chunk, entry));
                Ok(())
            }
            Err(error @ IndexError::ChunkIndexDamaged { .. }) => {
                if chunks.len() > 1 {
                    // The chunks of a page are neighbours: few steps part them from the others.
                    let (one, other) = chunks.split_at(chunks.len() / 2);
                    self.lookup_readable(one, damaged, found)?;
                    return self.lookup_readable(other, damaged, found);
                }
                let what = error.to_string();
                if damaged.last() != Some(&what) {
                    damaged.push(what);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes those of `candidates` (at most [`MAX_CANDIDATES`], further ones are left) that nothing refers to and that nobody is about to refer to; durable
    /// on return. `go_on` is asked while those in flight are waited for. One at a time: a second call waits. Candidates that lie in few
    /// containers cost least.
    pub fn remove_unused(&self, candidates: &[Candidate], references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<Removed> {
        self.writable()?;
        drop(self.permit_deletion("remove unused chunks")?);
        let _one = loop {
            match self.reclaiming.removing.try_lock_for(LOOK_EVERY) {
                Some(one) => break one,
                None if go_on() => {}
                None => return Ok(Removed { was_busy: true, ..Removed::default() }),
            }
        };
        if let Some(why) = self.why_nothing_is_removed()? {
            return Ok(Removed { held: Some(why), ..Removed::default() });
        }
        let mut removed = Removed::default();
        let (candidates, further) = candidates.split_at(candidates.len().min(MAX_CANDIDATES));
        removed.left.extend(further);
        if candidates.is_empty() {
            return Ok(removed);
        }
        let mut held = Held::new(&*self.claims);
        // Declared behind them, so that it ends before they are free.
        let watching = Watching(self.reclaiming.watch());
        self.reclaiming.watch().begin(candidates.iter().map(|candidate| candidate.fingerprint));
        let moment = self.reclaiming.guards.now();
        while !self.reclaiming.guards.all_gone_before(moment) {
            if !go_on() {
                return Ok(Removed { was_busy: true, ..Removed::default() });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.flush()?;
        match self.kept_for_readers(go_on)? {
            Ok(None) => {}
            Ok(Some(whose)) => return Ok(Removed { kept_for: Some(whose), ..Removed::default() }),
            Err(()) => return Ok(Removed { was_busy: true, ..Removed::default() }),
        }
        // Not before: whoever reads all containers one after the other would wait for those in flight too.
        let _reclaiming = self.reclaiming.alone();
        let names = candidates.iter().map(|candidate| candidate.fingerprint).collect();
        let mut unused = self.without_references(names, &mut removed.damaged)?;
        let count = unused.len();
        unused.retain(|candidate| self.reclaiming.watch().is_watched(&candidate.fingerprint));
        removed.in_use += (count - unused.len()) as u64;
        let mut doomed = self.look_at(unused, references, &mut removed);
        self.leave_what_a_batch_has_no_room_for(&mut doomed, &mut removed);
        self.keep_only_what_is_ours(&mut doomed, &mut held, &mut removed)?;
        if !doomed.is_empty() {
            // Not held while others are waited for: who switches append-only mode on would wait with us.
            let _permit = self.permit_deletion("remove unused chunks")?;
            self.commit_removal(doomed, &mut removed)?;
        }
        drop(watching);
        drop(held);
        Ok(removed)
    }

    /// Finds slot and length of each chunk, and what metadata chunks refer to. What cannot be read stays: its references would stay counted for ever.
    fn look_at(&self, mut chunks: Vec<Candidate>, references: ReferencesOf<'_>, removed: &mut Removed) -> Vec<Doomed> {
        chunks.sort_unstable();
        // The file that has it now may be another one, as merging keeps the addresses; and one file may answer to many containers.
        let mut by_file: BTreeMap<ContainerId, Vec<Candidate>> = BTreeMap::new();
        for run in chunks.chunk_by(|one, next| one.address.container() == next.address.container()) {
            match self.storage.current(run[0].address.container()) {
                Ok(file) => by_file.entry(file).or_default().extend(run),
                Err(error) => removed.damaged.push(error.to_string()),
            }
        }
        let mut doomed = Vec::with_capacity(by_file.len());
        for (container, chunks) in by_file {
            match self.look_into(container, &chunks, references, removed) {
                Ok(found) => doomed.push(found),
                Err(error) => removed.damaged.push(error.to_string()),
            }
        }
        doomed
    }

    fn look_into(
        &self,
        container: ContainerId,
        chunks: &[Candidate],
        references: ReferencesOf<'_>,
        removed: &mut Removed,
    ) -> Result<Doomed> {
        let slots = self.storage.slots(container)?;
        let mut dead = DeadSlots::read(&self.objects, container)?;
        dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        let places: HashMap<Address, usize> = slots.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect();
        let mut doomed = Vec::with_capacity(chunks.len());
        for candidate in chunks {
            let Candidate { address, fingerprint } = *candidate;
            let found = places.get(&address).map(|slot| (*slot, &slots[*slot].1));
            let Some((slot, found)) = found.filter(|(_, found)| found.fingerprint == fingerprint) else {
                removed.damaged.push(format!("chunk {fingerprint}: the index says that it is at {address}, where it is not"));
                continue;
            };
            let references = match found.kind {
                ChunkKind::Data => Ok(Vec::new()),
                kind => self.content(candidate).and_then(|content| references(kind, &content)),
            };
            match references {
                Ok(references) => doomed.push(DoomedChunk { candidate: *candidate, slot, length_bytes: found.length_bytes, references }),
                Err(why) => removed.damaged.push(format!("metadata chunk {fingerprint} at {address} cannot be read: {why}")),
            }
        }
        Ok(Doomed { container, dead, chunks: doomed })
    }

    fn content(&self, chunk: &Candidate) -> std::result::Result<Slice, String> {
        let mut slices = Vec::new();
        self.storage.load(&[(chunk.address, chunk.fingerprint)], &mut slices).map_err(|error| error.to_string())?;
        slices.pop().ok_or_else(|| "it was not found".to_owned())
    }

    /// Cuts off what would make the batch too large for the log, in which several must fit.
    fn leave_what_a_batch_has_no_room_for(&self, doomed: &mut Vec<Doomed>, removed: &mut Removed) {
        let limit = BATCH_BYTES.min((self.settings.log_limit_bytes / 8) as usize);
        let (mut bytes, mut is_first) = (0, true);
        for of_container in doomed.iter_mut() {
            bytes += 64 + of_container.dead_bytes_after();
            let fitting = of_container.chunks.iter().take_while(|chunk| {
                bytes += (1 + chunk.references.len()) * (self.digest_bytes() + 2);
                std::mem::take(&mut is_first) || bytes <= limit
            });
            let fitting = fitting.count();
            removed.left.extend(of_container.chunks.split_off(fitting).iter().map(|chunk| chunk.candidate));
        }
        doomed.retain(|of_container| !of_container.chunks.is_empty());
    }

    /// Claims and dooms the chunks, and takes out those that somebody else has or wants.
    fn keep_only_what_is_ours(&self, doomed: &mut Vec<Doomed>, held: &mut Held<'_>, removed: &mut Removed) -> Result<()> {
        let candidates = doomed.iter().flat_map(|one| &one.chunks).map(|chunk| chunk.candidate);
        let wanted: Vec<_> =
            candidates.map(|candidate| Wanted { fingerprint: candidate.fingerprint, search: Search::Not(candidate.address) }).collect();
        let all: Vec<Fingerprint> = wanted.iter().map(|chunk| chunk.fingerprint).collect();
        let mut claims = Vec::with_capacity(all.len());
        self.claims.claim(&wanted, &mut claims)?;
        let mine = all.iter().zip(claims).filter(|(_, claim)| *claim == Claim::Mine);
        held.names.extend(mine.map(|(fingerprint, _)| *fingerprint));
        // Whoever asks for one of these from here on gets no answer from a cache.
        let ours: HashSet<_> = held.names.iter().copied().filter(|fingerprint| self.reclaiming.watch().doom(fingerprint)).collect();
        // From pages that were read a moment ago.
        let unused = self.without_references(all, &mut removed.damaged)?;
        let count = unused.len() as u64;
        let ours: HashSet<Candidate> = unused.into_iter().filter(|candidate| ours.contains(&candidate.fingerprint)).collect();
        doomed.iter_mut().for_each(|one| one.chunks.retain(|chunk| ours.contains(&chunk.candidate)));
        doomed.retain(|one| !one.chunks.is_empty());
        removed.in_use += count - doomed.iter().map(|one| one.chunks.len() as u64).sum::<u64>();
        Ok(())
    }

    fn commit_removal(&self, doomed: Vec<Doomed>, removed: &mut Removed) -> Result<()> {
        let chunks = || doomed.iter().flat_map(|one| &one.chunks);
        let mut deltas: HashMap<Fingerprint, i64> = HashMap::new();
        for reference in chunks().flat_map(|chunk| &chunk.references) {
            *deltas.entry(*reference).or_default() -= 1;
        }
        let mut deltas: Vec<_> = deltas.into_iter().collect();
        deltas.sort_unstable();
        // Whoever watches these must hear of it as of any other change of their counts.
        self.reclaiming.watch().touch(deltas.iter().map(|(fingerprint, _)| fingerprint));
        let mut marks = Marks::default();
        for one in &doomed {
            one.chunks.iter().for_each(|chunk| marks.set(one.container, one.dead.of_bytes, chunk.slot, chunk.length_bytes, true));
        }
        let removals: Vec<Fingerprint> = chunks().map(|chunk| chunk.candidate.fingerprint).collect();
        let bytes = chunks().map(|chunk| u64::from(chunk.length_bytes)).sum();
        self.commit_removals(&removals, &deltas, &marks)?;
        self.filters.removed(&removals);
        removed.chunks = removals.len() as u64;
        removed.bytes = bytes;
        removed.released = deltas.into_iter().map(|(fingerprint, _)| fingerprint).collect();
        Ok(())
    }

    /// The dead slots of a container file.
    pub fn dead_slots(&self, container: ContainerId) -> Result<DeadSlots> {
        DeadSlots::read(&self.objects, container)
    }

    /// Passes the dead slots of every container that has some to `visit`.
    pub fn for_each_dead(&self, visit: &mut dyn FnMut(ContainerId, DeadSlots)) -> Result<()> {
        let mut damaged = None;
        self.for_each_object(dead::PREFIX, &mut |key, value| match (dead::container_of(key), DeadSlots::decode(value)) {
            (Some(container), Ok(dead)) => visit(container, dead),
            (_, Err(error)) => damaged = Some(error),
            (None, _) => {
                damaged = Some(EngineError::Inconsistent { why: "the object index has dead slots whose key cannot be read".into() })
            }
        })?;
        damaged.map_or(Ok(()), Err)
    }
}
