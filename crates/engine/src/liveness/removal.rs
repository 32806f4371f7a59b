//! Removing chunks that nothing refers to (M0.19), while ingest goes on.
//!
//! # Why no chunk is removed that somebody needs
//! A candidate is a chunk that [`Liveness`](crate::Liveness) calls unneeded. A piece that refers to it may be on its
//! way all the same: in a submitted transaction, or in the hands of somebody who has not submitted yet. Each of these
//! steps closes one gap:
//! 1. *Watch.* The candidates go on the watch list ([`Watch`](crate::write::in_flight::Watch)). From now on, asking for
//!    a candidate or stating a reference to it takes it off the list.
//! 2. *Wait* until everybody in flight who came before step 1 is gone: they may hold pieces that they got unwatched.
//! 3. *Flush and settle.* Now liveness has everything that was submitted before, also by those who were waited for, and
//!    what that leads to. Then look for readers in other processes that hold something that is gone (`snapshot.rs`). As
//!    long as there is one, nothing is removed. As long as there is any reader, nothing is removed that is needed but
//!    has a redirect (`joining.rs`).
//! 4. *Look* where the candidates lie, and what those that are metadata chunks refer to. This reads containers, so
//!    nobody is kept waiting yet. The findings stay true: slots never change, a name stands for one content, and no
//!    container is merged while `reclaiming` is held.
//! 5. *Claim and doom* each candidate. From here on, the watch list tells everybody who wants it not to ask a cache,
//!    and to wait for our claim. Those who came before us took it off the watch list before they asked a cache or
//!    claimed it: then it cannot be doomed. So a chunk that is doomed, still unneeded and still at the address that was
//!    looked at is in nobody's hands, and nobody can get it. A chunk that somebody else claimed or took off the list is
//!    left alone.
//! 6. *Commit* as one batch: the removals, the references that removed metadata chunks gave up, and the dead slots of
//!    the containers. A chunk store without containers frees the space then.
//! 7. The filters forget the chunks. Then the watch ends and the claims go. Everybody who waited finds a chunk that is
//!    not stored.
//!
//! # Several levels in one batch
//! A tree goes from its root downwards: a chunk that only removed metadata chunks need is removed with them. Each batch
//! costs a flush and a look for readers, which are requests if the store is in a bucket. So before step 1 the removal
//! guesses the *levels* below the candidates, and watches them too. Steps 4 and 5 then go level by level. A chunk of a
//! lower level is taken only if all its references are of chunks that are doomed already: its count is their number.
//! * Nobody has it from before step 1, for the same reasons as a candidate.
//! * Whoever asks for it by name, or states a reference to it, takes it off the list, or finds it doomed and waits.
//! * Whoever comes to it along references comes through a doomed chunk. Nobody has that one, and nobody gets it.
//! * A reader in another process holds objects that are all there. None of them leads to a chunk whose count is 0, so
//!   none leads to the chunks below it.
//!
//! If one of its parents stays, its references stay, and so does the chunk. What a level leaves comes again as
//! released, in a removal of its own.
//!
//! Could somebody reach a chunk through an object that became visible after step 1, and whose reference came and went
//! before step 5? No: both changes are submitted, and submitting takes the chunk off the list. Through a metadata chunk
//! that is unneeded itself? With counts no: while that chunk is stored, what it refers to is needed, so it is either
//! removed with that chunk or not at all. With marks no either, for the reasons at the head of `marked.rs`.
//!
//! A crash before the commit is durable changes nothing; the candidates are found again.
//!
//! If several nodes have the store open, all of them take part: `cluster/removing.rs` says how.

use crate::cluster::{DeadElsewhere, Elsewhere, Ended, container_of};
use crate::liveness::dead::{self, DeadChanges, DeadSlots};
use crate::liveness::marked::{Reached, Roots, forget_marks};
use crate::liveness::reference::Stored;
use crate::liveness::{Candidate, Cursor, ReferencesOf, Survey};
use crate::write::claims::{Claim, Held, Search, Wanted};
use crate::write::in_flight::{Remover, Watch};
use crate::write::reservation::{FingerprintMap, FingerprintSet};
use crate::{Engine, EngineError, Moment, Piece, Result};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{Address, ChunkKind, ContainerId, Origin, Slice, Slot};
use parking_lot::MutexGuard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Most candidates of one removal. Bounds its memory: about 300 bytes each, and 32 for each reference of a metadata
/// chunk.
pub const MAX_CANDIDATES: usize = 16 << 10;
/// Approximate bytes of a removal in the log: a full disk must have space for one.
const BATCH_BYTES: usize = 4 << 20;
/// How often the removal checks whether those in flight are gone.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a removal did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Chunks that only the removed metadata chunks needed.
    pub released: Vec<Candidate>,
    /// Candidates for which the batch had no space. Try them again.
    pub left: Vec<Candidate>,
    /// Unneeded candidates that stay because somebody asked for them meanwhile or is writing them.
    pub in_use: u64,
    /// One sentence for each candidate that could not be judged because a container or a page of the index cannot be
    /// read.
    pub damaged: Vec<String>,
    /// The reader for which nothing was removed: it reads something that was removed before.
    pub kept_for: Option<String>,
    /// Why nothing may be removed, if so: [`Engine::why_nothing_is_removed`].
    pub held: Option<String>,
    /// Those in flight did not end in time. Nothing was removed; retry later.
    pub was_busy: bool,
}

/// Chunks of one container file that are about to be removed.
struct Doomed {
    container: ContainerId,
    /// Whether it was sealed when it was looked at: it has no more chunks than were found.
    is_sealed: bool,
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
    /// Returns the most bytes that its dead slots take in a batch.
    fn dead_bytes_after(&self) -> usize {
        self.dead.encode().len() + self.chunks.iter().map(|chunk| chunk.slot / 8).max().unwrap_or(0)
    }
}

/// Chunks that may go in one batch.
struct Levels {
    /// The candidates, then chunks that are needed by those of the level before and by no others.
    levels: Vec<Vec<Candidate>>,
    /// What was found of each level, as far as it was looked at.
    found: VecDeque<Vec<Doomed>>,
    /// Whether nothing else is needed only by these.
    are_all: bool,
}

/// How many references of chunks go, because the metadata chunks that have them are removed.
type Lost = FingerprintMap<u32>;

/// Adds the references of these chunks. Returns whose they are.
fn lose(doomed: &[Doomed], lost: &mut Lost) -> FingerprintSet {
    let references = || doomed.iter().flat_map(|one| &one.chunks).flat_map(|chunk| &chunk.references);
    references().for_each(|fingerprint| *lost.entry(*fingerprint).or_default() += 1);
    references().copied().collect()
}

/// Ends the watch when dropped, however the removal ends.
struct Watching<'a>(&'a Watch);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.end(Remover::Here);
    }
}

impl Engine {
    /// Finds out what is needed: [`Liveness::survey`](crate::Liveness::survey). It waits for a removal under way: one
    /// that settled with one survey must not judge by another.
    pub fn survey(&self, roots: &mut dyn Roots, go_on: &dyn Fn() -> bool, damaged: &mut Vec<String>) -> Result<Survey> {
        match self.only_remover(go_on) {
            Some(_one) => self.liveness.survey(self, roots, go_on, damaged),
            None => Ok(Survey { held: Some("it was cut short".to_owned()), ..Survey::default() }),
        }
    }

    /// Returns whether the last survey still tells what is unneeded: nothing has ended it since.
    pub fn is_surveyed(&self) -> bool {
        self.liveness.is_surveyed()
    }

    /// Waits until nobody removes chunks. `None`: `go_on` ended the wait.
    fn only_remover(&self, go_on: &dyn Fn() -> bool) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.reclaiming.removing.try_lock_for(LOOK_EVERY) {
                Some(one) => return Some(one),
                None if go_on() => {}
                None => return None,
            }
        }
    }

    /// Removes all marks of what is needed, so that the next survey makes them again.
    pub fn forget_marks(&self) -> Result<()> {
        self.repairable()?;
        Ok(forget_marks(&*self.ground)?)
    }

    /// Returns everything that can be reached, if that is known without counts:
    /// [`Liveness::reached`](crate::Liveness::reached).
    pub fn reached(
        &self,
        moment: &Moment<'_>,
        roots: &mut dyn Roots,
        go_on: &dyn Fn() -> bool,
        wrong: &mut Vec<String>,
    ) -> Result<Option<Reached>> {
        self.liveness.reached(self, moment, roots, go_on, wrong)
    }

    /// Returns unneeded chunks: [`Liveness::candidates`](crate::Liveness::candidates).
    pub fn candidates(&self, from: Cursor, max: usize, damaged: &mut Vec<String>) -> Result<(Vec<Candidate>, Option<Cursor>)> {
        let mut found = Vec::new();
        let next = self.liveness.candidates(self, from, max, &mut found, damaged)?;
        Ok((found, next))
    }

    /// Returns all unneeded chunks: [`Liveness::all_candidates`](crate::Liveness::all_candidates).
    pub fn all_candidates(&self, roots: &mut dyn Roots, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        self.liveness.all_candidates(self, roots, damaged)
    }

    /// Returns the chunks that would be unneeded if that many of their references went:
    /// [`Liveness::unneeded_without`](crate::Liveness::unneeded_without).
    pub fn unneeded_without(&self, lost: &[(Fingerprint, u32)], damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        // Of the others, their owners find out.
        let lost: Vec<_> = lost.iter().filter(|(name, _)| self.decides_on(name)).copied().collect();
        self.liveness.unneeded_without(&lost, &mut found, damaged)?;
        Ok(found)
    }

    /// Returns for each of these chunks whether it is unneeded: [`Liveness::unneeded`](crate::Liveness::unneeded).
    pub fn unneeded(&self, chunks: &[Candidate], damaged: &mut Vec<String>) -> Result<Vec<bool>> {
        let mut unneeded = Vec::with_capacity(chunks.len());
        self.liveness.unneeded(self, chunks, &mut unneeded, damaged)?;
        Ok(unneeded)
    }

    /// Returns the candidates that are unneeded now, or will be when the references that are `lost` are gone.
    fn still_unneeded(&self, candidates: &[Candidate], lost: &Lost, damaged: &mut Vec<String>) -> Result<Vec<Candidate>> {
        let (below, others): (Vec<Candidate>, Vec<Candidate>) = candidates.iter().partition(|one| lost.contains_key(&one.fingerprint));
        let unneeded = self.unneeded(&others, damaged)?;
        let mut found: Vec<Candidate> =
            others.into_iter().zip(unneeded).filter(|(_, is_unneeded)| *is_unneeded).map(|(candidate, _)| candidate).collect();
        if !below.is_empty() {
            let names: FingerprintSet = below.iter().map(|candidate| candidate.fingerprint).collect();
            let mut there: FingerprintSet<Candidate> = FingerprintSet::default();
            self.without(names.iter(), lost, damaged, &mut |candidate| there.extend([candidate]))?;
            // Only at the place that was looked at.
            found.extend(below.into_iter().filter(|candidate| there.contains(candidate)));
        }
        Ok(found)
    }

    /// Passes on those of these chunks, each named once, that are unneeded when the `lost` references are gone.
    fn without<'a>(
        &self,
        names: impl Iterator<Item = &'a Fingerprint>,
        lost: &Lost,
        damaged: &mut Vec<String>,
        found: &mut dyn FnMut(Candidate),
    ) -> Result<()> {
        let names: Vec<(Fingerprint, u32)> = names.map(|name| (*name, lost.get(name).copied().unwrap_or(0))).collect();
        self.unneeded_without(&names, damaged)?.into_iter().for_each(found);
        Ok(())
    }

    /// Guesses which chunks only these candidates need, which only those need, and so on, as far as one removal takes
    /// them. Nothing keeps others off yet, so it is only a guess.
    fn levels_below(&self, candidates: &[Candidate], references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Levels {
        let mut known: FingerprintSet = candidates.iter().map(|candidate| candidate.fingerprint).collect();
        let (mut levels, mut lost) =
            (Levels { levels: vec![candidates.to_vec()], found: VecDeque::new(), are_all: false }, Lost::default());
        // The removal itself reports what cannot be read.
        let mut unread = Removed::default();
        // Marks find all levels in the survey.
        let has_levels = self.descriptor().profile.counts();
        while has_levels && known.len() < MAX_CANDIDATES && go_on() {
            let level = levels.levels.last().cloned().unwrap_or_default();
            let found = self.look_at(level, references, &mut unread);
            let touched = lose(&found, &mut lost);
            levels.found.push_back(found);
            let mut next = Vec::new();
            let asked = self.without(touched.iter(), &lost, &mut unread.damaged, &mut |candidate| next.push(candidate));
            next.retain(|candidate| !known.contains(&candidate.fingerprint));
            next.truncate(MAX_CANDIDATES - known.len());
            if asked.is_err() || next.is_empty() {
                levels.are_all = asked.is_ok() && unread.damaged.is_empty();
                break;
            }
            known.extend(next.iter().map(|candidate| candidate.fingerprint));
            levels.levels.push(next);
        }
        levels
    }

    /// Removes those of `candidates` that are unneeded and that nobody is about to refer to. Durable on return. Takes
    /// at most [`MAX_CANDIDATES`] and leaves the rest. It asks `go_on` while it waits for those in flight.
    ///
    /// One removal runs at a time: a second call waits. Candidates that lie in few containers cost least.
    pub fn remove_unused(&self, candidates: &[Candidate], references: ReferencesOf<'_>, go_on: &dyn Fn() -> bool) -> Result<Removed> {
        self.writable()?;
        drop(self.permit_deletion("remove unused chunks")?);
        let Some(_one) = self.only_remover(go_on) else {
            return Ok(Removed { was_busy: true, ..Removed::default() });
        };
        if let Some(why) = self.why_nothing_is_removed()? {
            return Ok(Removed { held: Some(why), ..Removed::default() });
        }
        let mut removed = Removed::default();
        let (candidates, further) = candidates.split_at(candidates.len().min(MAX_CANDIDATES));
        removed.left.extend(further);
        let candidates: Vec<Candidate> = candidates.iter().filter(|candidate| self.decides_on(&candidate.fingerprint)).copied().collect();
        if candidates.is_empty() {
            return Ok(removed);
        }
        let Levels { levels, mut found, are_all } = self.levels_below(&candidates, references, go_on);
        let mut held = Held::new(&*self.claims);
        // Declared after the claims, so that the watch ends before they are free.
        let watching = Watching(self.reclaiming.watch());
        self.reclaiming.watch().begin(Remover::Here, levels.iter().flatten().map(|candidate| candidate.fingerprint));
        let moment = self.reclaiming.moment();
        let names = levels.iter().flatten().map(|candidate| candidate.fingerprint).collect();
        let ended = |ended| match ended {
            Ended::Busy => Removed { was_busy: true, ..Removed::default() },
            Ended::Kept(whom) => Removed { kept_for: Some(whom), ..Removed::default() },
            Ended::Held(why) => Removed { held: Some(why), ..Removed::default() },
        };
        // Whichever ends first, this or the watch here: until the claims go, nobody gets a chunk that is gone.
        let elsewhere = match Elsewhere::begin(self, names)? {
            Ok(elsewhere) => elsewhere,
            Err(why) => return Ok(ended(why)),
        };
        while !self.reclaiming.are_gone_before(moment) {
            if !go_on() {
                return Ok(Removed { was_busy: true, ..Removed::default() });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.flush()?;
        if let Some(Err(why)) = elsewhere.as_ref().map(|elsewhere| elsewhere.settle(go_on)).transpose()? {
            return Ok(ended(why));
        }
        self.liveness.settle(self, references, go_on)?;
        let Ok(readers) = self.readers(go_on)? else { return Ok(Removed { was_busy: true, ..Removed::default() }) };
        if readers.kept_for.is_some() {
            return Ok(Removed { kept_for: readers.kept_for, ..Removed::default() });
        }
        // Not earlier: a reader of all containers, one after the other, would then wait for those in flight too.
        let reclaiming = self.reclaiming.alone();
        let (mut doomed, mut lost, mut batch_bytes) = (Vec::new(), Lost::default(), 0);
        for (depth, level) in levels.iter().enumerate() {
            let mut unused = self.still_unneeded(level, &lost, &mut removed.damaged)?;
            let (count, was_in_use) = (unused.len(), removed.in_use);
            unused.retain(|candidate| self.reclaiming.watch().is_watched(&candidate.fingerprint));
            if readers.are_there {
                // They may have begun before it had a redirect.
                let mut superfluous = self.are_superfluous(&unused)?.into_iter();
                unused.retain(|_| superfluous.next() == Some(false));
            }
            removed.in_use += (count - unused.len()) as u64;
            let mut of_level = self.look_again(found.pop_front().unwrap_or_default(), unused, references, &mut removed);
            let has_room = self.leave_what_a_batch_has_no_room_for(&mut of_level, &mut batch_bytes, &mut removed);
            self.keep_only_what_is_ours(&mut of_level, &lost, &mut held, elsewhere.as_ref(), &mut removed)?;
            if depth > 0 {
                // Such a chunk is released, and tried again.
                removed.in_use = was_in_use;
            }
            lose(&of_level, &mut lost);
            doomed.extend(of_level);
            if !has_room {
                break;
            }
        }
        let took_all = are_all && doomed.iter().map(|one| one.chunks.len()).sum::<usize>() == levels.iter().map(Vec::len).sum::<usize>();
        let mut gone = Vec::new();
        if !doomed.is_empty()
            && let Some(elsewhere) = &elsewhere
            && !elsewhere.is_same_table()?
        {
            return Ok(Removed { was_busy: true, ..Removed::default() });
        }
        if !doomed.is_empty() {
            // Not held during the wait: a switch to append-only mode would wait with us.
            let _permit = self.permit_deletion("remove unused chunks")?;
            gone = match self.commit_removal(doomed, elsewhere.as_ref(), &mut removed) {
                Err(EngineError::NotOwned { .. }) => return Ok(Removed { was_busy: true, ..Removed::default() }),
                gone => gone?,
            };
        }
        drop(watching);
        drop(held);
        drop(reclaiming);
        drop(elsewhere);
        // There may be many of these, and nobody has to wait for this lookup. If it fails, the removal stands. If all
        // that only these chunks needed has gone with them, there is nothing to find, but for what others gave up since
        // the guess: the next survey finds that.
        if !took_all {
            match self.unneeded_without(&gone, &mut removed.damaged) {
                Ok(released) => removed.released = released,
                Err(error) => removed.damaged.push(error.to_string()),
            }
        }
        Ok(removed)
    }

    /// Finds slot and length of each chunk, and the references of metadata chunks. An unreadable chunk stays: otherwise
    /// its references would stay counted for ever.
    fn look_at(&self, mut chunks: Vec<Candidate>, references: ReferencesOf<'_>, removed: &mut Removed) -> Vec<Doomed> {
        chunks.sort_unstable();
        // The references of a metadata chunk are released once, however often it is named.
        chunks.dedup();
        // Another file may have the container now, as merging keeps the addresses. And one file may answer to many
        // containers.
        let mut by_file: BTreeMap<ContainerId, Vec<Candidate>> = BTreeMap::new();
        for run in chunks.chunk_by(|one, next| one.address.origin() == next.address.origin()) {
            match self.file_of(run[0].address) {
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

    /// Does the same for chunks of which some were found before: only a container that may be another one now, or may
    /// have got more chunks, is looked at again. Call it while nobody merges containers.
    fn look_again(&self, found: Vec<Doomed>, chunks: Vec<Candidate>, references: ReferencesOf<'_>, removed: &mut Removed) -> Vec<Doomed> {
        let mut left: FingerprintSet<Candidate> = chunks.into_iter().collect();
        let mut doomed = Vec::with_capacity(found.len());
        for mut one in found {
            let is_it = |origin: Origin| self.storage.unit_of(origin).is_ok_and(|file| file == one.container);
            let of_one_origin = |a: &DoomedChunk, b: &DoomedChunk| a.candidate.address.origin() == b.candidate.address.origin();
            if !one.is_sealed || !one.chunks.chunk_by(of_one_origin).all(|run| is_it(run[0].candidate.address.origin())) {
                continue;
            }
            let Ok(mut dead) = DeadSlots::read(&self.objects, one.container) else { continue };
            dead.of_bytes = one.dead.of_bytes;
            one.dead = dead;
            one.chunks.retain(|chunk| left.remove(&chunk.candidate));
            doomed.push(one);
        }
        doomed.extend(self.look_at(left.into_iter().collect(), references, removed));
        doomed.retain(|one| !one.chunks.is_empty());
        doomed
    }

    fn look_into(
        &self,
        container: ContainerId,
        chunks: &[Candidate],
        references: ReferencesOf<'_>,
        removed: &mut Removed,
    ) -> Result<Doomed> {
        let is_sealed = self.containers.as_ref().is_some_and(|containers| containers.is_sealed(container));
        let slots = self.storage.chunks_of(container)?;
        let mut dead = DeadSlots::read(&self.objects, container)?;
        dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        // Two chunks may share an address.
        let place = |(number, (address, slot)): (usize, &(Address, Slot))| (*address, slot.fingerprint, number);
        let mut places: Vec<(Address, Fingerprint, usize)> = slots.iter().enumerate().map(place).collect();
        places.sort_unstable();
        let mut doomed = Vec::with_capacity(chunks.len());
        for candidate in chunks {
            let Candidate { address, fingerprint } = *candidate;
            let found = places.binary_search_by_key(&(address, fingerprint), |(at, name, _)| (*at, *name)).ok();
            let Some((slot, found)) = found.map(|at| places[at].2).map(|slot| (slot, &slots[slot].1)) else {
                removed.damaged.push(format!("chunk {fingerprint} is not at {address}, where the index places it"));
                continue;
            };
            let references = match found.kind {
                ChunkKind::Data => Ok(Vec::new()),
                kind => self.content(candidate).and_then(|content| references(kind, &content)),
            };
            let references = references.map(|pieces| pieces.iter().filter_map(Piece::fingerprint).collect());
            match references {
                Ok(references) => doomed.push(DoomedChunk { candidate: *candidate, slot, length_bytes: found.length_bytes, references }),
                Err(why) => removed.damaged.push(format!("metadata chunk {fingerprint} at {address} cannot be read: {why}")),
            }
        }
        Ok(Doomed { container, is_sealed, dead, chunks: doomed })
    }

    /// Returns whether this node removes a chunk, if it is unneeded: it gives the claims of its partition.
    fn decides_on(&self, name: &Fingerprint) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.foreign_partition(name).or_else(|| cluster.coming_partition(name)).is_none())
    }

    /// Returns the file that has the chunk at an address, and its chunks with their addresses. If another node has not
    /// put it into the bucket yet, it does so now.
    pub fn chunks_beside(&self, address: Address) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        self.file_of(address)?;
        Ok(self.storage.chunks_beside(address.origin())?)
    }

    /// Returns the file that has the chunk at an address. If another node has not put it into the bucket yet, it does
    /// so now.
    fn file_of(&self, address: Address) -> Result<ContainerId> {
        let found = self.storage.unit_of(address.origin());
        let container = container_of(address);
        match (found, &self.cluster, &self.containers) {
            (Err(_), Some(cluster), Some(containers)) if !containers.has_partition(container.partition()) => {
                cluster.others.seal(container)?;
                Ok(self.storage.unit_of(address.origin())?)
            }
            (found, ..) => Ok(found?),
        }
    }

    /// Returns whether the container of an address is not another node's.
    pub fn has_containers_at(&self, address: Address) -> bool {
        self.has_containers_of(container_of(address).partition())
    }

    /// Returns whether a partition of containers is not another node's.
    pub(crate) fn has_containers_of(&self, partition: u16) -> bool {
        self.cluster.is_none() || self.containers.as_ref().is_some_and(|containers| containers.has_partition(partition))
    }

    fn content(&self, chunk: &Candidate) -> std::result::Result<Slice, String> {
        let mut slices = Vec::new();
        self.storage.load(&[(chunk.address, chunk.fingerprint)], &mut slices).map_err(|error| error.to_string())?;
        slices.pop().ok_or_else(|| "it was not found".to_owned())
    }

    /// Cuts the batch, which has `bytes` already, to a size of which the log can take several. Returns whether there is
    /// room for all.
    fn leave_what_a_batch_has_no_room_for(&self, doomed: &mut Vec<Doomed>, bytes: &mut usize, removed: &mut Removed) -> bool {
        let limit = BATCH_BYTES.min((self.settings.log_limit_bytes / 8) as usize);
        let (mut is_first, left_before) = (*bytes == 0, removed.left.len());
        for of_container in doomed.iter_mut() {
            *bytes += 64 + of_container.dead_bytes_after();
            let fitting = of_container.chunks.iter().take_while(|chunk| {
                *bytes += (1 + chunk.references.len()) * (self.digest_bytes() + 2) + self.digest_bytes() + 8;
                std::mem::take(&mut is_first) || *bytes <= limit
            });
            let fitting = fitting.count();
            removed.left.extend(of_container.chunks.split_off(fitting).iter().map(|chunk| chunk.candidate));
        }
        doomed.retain(|of_container| !of_container.chunks.is_empty());
        removed.left.len() == left_before
    }

    /// Claims and dooms the chunks, and takes out those that somebody else has or wants.
    fn keep_only_what_is_ours(
        &self,
        doomed: &mut Vec<Doomed>,
        lost: &Lost,
        held: &mut Held<'_>,
        elsewhere: Option<&Elsewhere<'_>>,
        removed: &mut Removed,
    ) -> Result<()> {
        let all: Vec<Candidate> = doomed.iter().flat_map(|one| &one.chunks).map(|chunk| chunk.candidate).collect();
        let wanted = |candidate: &Candidate| Wanted { fingerprint: candidate.fingerprint, search: Search::Unasked };
        let wanted: Vec<_> = all.iter().map(wanted).collect();
        let mut claims = Vec::with_capacity(all.len());
        self.claims.claim(&wanted, &mut claims)?;
        let mine = all.iter().zip(claims).filter(|(_, claim)| *claim == Claim::Mine);
        let first = held.names.len();
        held.names.extend(mine.map(|(candidate, _)| candidate.fingerprint));
        // From here on, nobody who asks for one of these gets an answer from a cache.
        let claimed = held.names[first..].iter().copied();
        let mut ours: FingerprintSet = claimed.filter(|fingerprint| self.reclaiming.watch().doom(Remover::Here, fingerprint)).collect();
        if let Some(elsewhere) = elsewhere {
            let copies = all.iter().filter(|copy| ours.contains(&copy.fingerprint)).copied().collect();
            ours = elsewhere.doom(copies)?.into_iter().map(|copy| copy.fingerprint).collect();
        }
        // These pages were read a moment ago.
        let unused = self.still_unneeded(&all, lost, &mut removed.damaged)?;
        let count = unused.len() as u64;
        let ours: FingerprintSet<Candidate> = unused.into_iter().filter(|candidate| ours.contains(&candidate.fingerprint)).collect();
        doomed.iter_mut().for_each(|one| one.chunks.retain(|chunk| ours.contains(&chunk.candidate)));
        doomed.retain(|one| !one.chunks.is_empty());
        removed.in_use += count - doomed.iter().map(|one| one.chunks.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Commits the removal. Returns what the removed metadata chunks referred to.
    fn commit_removal(
        &self,
        doomed: Vec<Doomed>,
        others: Option<&Elsewhere<'_>>,
        removed: &mut Removed,
    ) -> Result<Vec<(Fingerprint, u32)>> {
        let (mut dead, mut elsewhere) = (DeadChanges::default(), DeadElsewhere::default());
        let copies: Vec<Candidate> = doomed.iter().flat_map(|one| &one.chunks).map(|chunk| chunk.candidate).collect();
        let files: Vec<ContainerId> = doomed.iter().map(|one| one.container).collect();
        for one in doomed.iter().filter(|_| self.containers.is_some()) {
            match self.has_containers_of(one.container.partition()) {
                true => {
                    one.chunks.iter().for_each(|chunk| dead.set(one.container, one.dead.of_bytes, chunk.slot, chunk.length_bytes, true))
                }
                false => {
                    one.chunks.iter().for_each(|chunk| elsewhere.add(self.partition_of(&chunk.candidate.fingerprint), chunk.candidate));
                }
            }
        }
        removed.bytes = doomed.iter().flat_map(|one| &one.chunks).map(|chunk| u64::from(chunk.length_bytes)).sum();
        let stored = |chunk: DoomedChunk| Stored { fingerprint: chunk.candidate.fingerprint, references: chunk.references };
        let chunks: Vec<Stored> = doomed.into_iter().flat_map(|one| one.chunks).map(stored).collect();
        // Watchers of these references must see this change like any other.
        let released = || chunks.iter().flat_map(|chunk| &chunk.references);
        self.reclaiming.watch().touch(released());
        let places: Vec<(Address, Fingerprint)> = copies.iter().map(|copy| (copy.address, copy.fingerprint)).collect();
        let of_storage = self.storage.begin_removal(&places)?;
        if let Err(error) = self.commit_removals(&chunks, &of_storage, &dead, &elsewhere, others, removed.bytes) {
            self.storage.abandon_removal(&places);
            return Err(error);
        }
        // Nobody is left who has them: that is what the steps before were for.
        self.storage.removed(&places);
        if let Some(sampled) = self.lookup.sampled() {
            sampled.removed(copies.iter().map(|copy| (copy.fingerprint, copy.address)));
            files.iter().for_each(|file| sampled.hook_file(*file));
        }
        self.filters.removed(&chunks.iter().map(|chunk| chunk.fingerprint).collect::<Vec<_>>());
        removed.chunks = chunks.len() as u64;
        let released: BTreeSet<Fingerprint> = released().copied().collect();
        Ok(released.into_iter().map(|fingerprint| (fingerprint, 0)).collect())
    }

    /// Returns the dead slots of a container file.
    pub fn dead_slots(&self, container: ContainerId) -> Result<DeadSlots> {
        DeadSlots::read(&self.objects, container)
    }

    /// Passes the dead slots of every container that has some to `visit`.
    pub fn for_each_dead(&self, visit: &mut dyn FnMut(ContainerId, DeadSlots)) -> Result<()> {
        let mut damaged = None;
        let visit = &mut |key: &[u8], value: &[u8]| match (dead::container_of(key), DeadSlots::decode(value)) {
            // Notes of a partition that went to another node are left until it comes back.
            (Some(container), Ok(_)) if !self.has_containers_of(container.partition()) => {}
            (Some(container), Ok(dead)) => visit(container, dead),
            (_, Err(error)) => damaged = Some(error),
            (None, _) => damaged = Some(EngineError::Inconsistent { why: "the object index has dead slots with an unreadable key".into() }),
        };
        match &self.cluster {
            // Those of this node's containers are in its notes, and it may not have other objects.
            Some(_) => self.for_each_object_of(self.objects.own_partition(), dead::PREFIX, visit)?,
            None => self.for_each_object(dead::PREFIX, visit)?,
        }
        damaged.map_or(Ok(()), Err)
    }
}
