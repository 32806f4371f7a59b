//! Removes all chunks without references (M0.19): leftovers of deleted backups and volumes, overwritten blocks, and
//! interrupted backups. The engine decides about each chunk (`onefold_engine`, `removal.rs`). This module decides which
//! chunks to ask about.
//!
//! The root of a backup goes with its record. The chunks of its tree follow level by level, because each removed
//! metadata chunk releases the chunks it refers to. These are tried at once, so one pass over the pages of the chunk
//! index is enough.

use crate::Monitor;
use crate::Result;
use crate::references::{MetadataChunk, StoreRoots, references_of};
use onefold_engine::{Address, Candidate, ContainerId, Cursor, DeadSlots, Engine, EngineError, MAX_CANDIDATES, Piece, Removed};
use onefold_fingerprint::Fingerprint;
use onefold_storage::ChunkKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Candidates collected together, so that those of one container are removed together. 40 bytes each.
const GATHERED: usize = 16 * MAX_CANDIDATES;
/// Chunks removed on a full disk before containers are freed.
const AT_ONCE_ON_A_FULL_DISK: usize = 1024;
/// Passes over the index in one call. Later passes only handle what did not fit into the first.
const MAX_PASSES: usize = 64;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Chunks that could not be examined, because a container or a page of the index cannot be read, or the reason why
    /// nothing may be removed. One sentence each, the first hundred.
    pub damaged: Vec<String>,
    /// The reader that removed chunks are kept for, if any: it still reads them.
    pub kept_for: Option<String>,
    /// Whether chunks are left because the disk has no space to remove more before containers are freed.
    pub is_short_of_room: bool,
    /// Whether all unused chunks are gone. False if some cannot be examined, writes in flight did not end or used some,
    /// or the monitor cancelled.
    pub is_complete: bool,
}

/// The most sentences in a report.
const LISTED: usize = 100;

impl RemovalReport {
    fn add(&mut self, removed: &Removed) {
        self.chunks += removed.chunks;
        self.bytes += removed.bytes;
        removed.damaged.iter().for_each(|what| self.note(what.clone()));
    }

    /// Adds what could not be examined, once.
    fn note(&mut self, what: String) {
        if self.damaged.len() < LISTED && !self.damaged.contains(&what) {
            self.damaged.push(what);
        }
    }
}

/// Removes all chunks without references. Merging frees their space in containers later. Calls `go_on` while waiting
/// for writes in flight. Removals are durable whatever comes after. After an error or a crash, the next call continues.
pub fn remove_unused(engine: &Arc<Engine>, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<RemovalReport> {
    // Chunks that were stored but never referred to are in the index only once they are durable.
    engine.flush()?;
    let mut removal = Removal { engine, monitor, report: RemovalReport::default(), was_left: false, was_in_use: false };
    let go_on = || go_on() && !monitor.is_cancelled();
    for _ in 0..MAX_PASSES {
        removal.was_left = false;
        if !removal.pass(&go_on)? {
            return Ok(removal.report);
        }
        if !removal.was_left {
            removal.report.is_complete = !removal.was_in_use && removal.report.damaged.is_empty() && !removal.report.is_short_of_room;
            // Notes what was looked at, or the next process would look at all of it again.
            if removal.report.is_complete
                && !engine.descriptor().profile.counts()
                && let Err(error) = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &go_on, &mut Vec::new())
            {
                tracing::warn!(%error, "it could not be noted which containers have no unused chunks; the next search looks at them again");
            }
            break;
        }
    }
    Ok(removal.report)
}

/// A removal under way.
struct Removal<'a> {
    engine: &'a Arc<Engine>,
    monitor: &'a dyn Monitor,
    report: RemovalReport,
    /// Whether released chunks were left out for lack of memory.
    was_left: bool,
    /// Whether chunks stay because others used them meanwhile.
    was_in_use: bool,
}

impl Removal<'_> {
    /// Makes one pass over what is unneeded. Returns false if it was interrupted.
    fn pass(&mut self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut damaged = Vec::new();
        let survey = self.engine.survey(&mut StoreRoots::new(self.engine.digest_bytes()), go_on, &mut damaged)?;
        damaged.into_iter().for_each(|what| self.report.note(what));
        self.report.is_short_of_room |= survey.is_short_of_room;
        if let Some(why) = survey.held {
            if go_on() {
                self.report.note(why);
            }
            return Ok(false);
        }
        match self.engine.settle_quarantine() {
            // Chunks that depend on that are kept, and reported.
            Ok(()) => {}
            Err(EngineError::Index(error)) if error.is_damaged_page() => {}
            Err(error) if error.is_damage() => self.report.note(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let mut damaged = Vec::new();
            let (candidates, next) = self.engine.candidates(from, GATHERED, &mut damaged)?;
            damaged.into_iter().for_each(|what| self.report.note(what));
            cursor = next;
            if !self.levels(candidates, go_on)? {
                return Ok(false);
            }
        }
        // If somebody has ended the survey, the next one may find more.
        self.was_in_use |= !self.engine.is_surveyed();
        Ok(true)
    }

    /// Removes candidates, then the chunks that only they referred to, and so on.
    fn levels(&mut self, mut level: Vec<Candidate>, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let references = references_of(self.engine.digest_bytes());
        while !level.is_empty() {
            // Sorted by container, so that each is read once or twice and not for each removal.
            level.sort_unstable();
            level.dedup();
            let mut next = Vec::new();
            let at_once = if self.engine.is_reserve_in_use() { AT_ONCE_ON_A_FULL_DISK } else { MAX_CANDIDATES };
            for candidates in level.chunks(at_once) {
                if !go_on() {
                    return Ok(false);
                }
                let removed = match self.engine.remove_unused(candidates, &references, go_on) {
                    Err(error) if error.is_full() => {
                        self.report.is_short_of_room = true;
                        return Ok(false);
                    }
                    removed => removed?,
                };
                if let Some(why) = removed.held {
                    self.report.note(why);
                    return Ok(false);
                }
                if removed.kept_for.is_some() {
                    self.report.kept_for = removed.kept_for;
                    return Ok(false);
                }
                if removed.was_busy {
                    return Ok(false);
                }
                self.report.add(&removed);
                self.monitor.advance(removed.chunks);
                self.was_in_use |= removed.in_use > 0;
                next.extend(removed.left);
                self.was_left |= next.len() + removed.released.len() > GATHERED;
                let room = GATHERED.saturating_sub(next.len());
                next.extend(removed.released.into_iter().take(room));
                if self.engine.is_reserve_in_use() && self.report.chunks >= AT_ONCE_ON_A_FULL_DISK as u64 {
                    // The reserve may not suffice for all of it. First free the containers of which nothing is needed
                    // any more.
                    self.report.is_short_of_room = true;
                    return Ok(false);
                }
            }
            level = next;
        }
        Ok(true)
    }
}

/// What [`remove_unused`] would do.
#[derive(Debug, Default)]
pub(crate) struct WouldRemove {
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    pub(crate) damaged: Vec<String>,
    pub(crate) is_complete: bool,
    /// The dead slots that there would be.
    pub(crate) dead: BTreeMap<ContainerId, DeadSlots>,
}

/// Finds out what [`remove_unused`] would remove, without changing anything. Keeps the chunks that would lose
/// references in memory, about 60 bytes each. Reads the whole chunk index once.
pub(crate) fn would_remove(engine: &Arc<Engine>, go_on: &dyn Fn() -> bool) -> Result<WouldRemove> {
    let mut would = WouldRemove::default();
    would.damaged.extend(engine.why_nothing_is_removed()?);
    engine.for_each_dead(&mut |container, dead| drop(would.dead.insert(container, dead)))?;
    if !would.damaged.is_empty() {
        return Ok(would);
    }
    let mut level = engine.all_candidates(&mut StoreRoots::new(engine.digest_bytes()), &mut would.damaged)?;
    let mut lost: HashMap<Fingerprint, u32> = HashMap::new();
    while !level.is_empty() {
        level.sort_unstable();
        let mut touched: Vec<Fingerprint> = Vec::new();
        for run in level.chunk_by(|one, next| one.address.origin() == next.address.origin()) {
            if !go_on() {
                return Ok(would);
            }
            if let Err(error) = would.add(engine, run, &mut |reference| {
                *lost.entry(reference).or_default() += 1;
                touched.push(reference);
            }) {
                would.damaged.push(error.to_string());
            }
        }
        touched.sort_unstable();
        touched.dedup();
        let touched: Vec<_> = touched.into_iter().map(|fingerprint| (fingerprint, lost[&fingerprint])).collect();
        level = engine.unneeded_without(&touched, &mut would.damaged)?;
    }
    would.is_complete = would.damaged.is_empty();
    Ok(would)
}

impl WouldRemove {
    /// Adds chunks of one origin.
    fn add(&mut self, engine: &Arc<Engine>, run: &[Candidate], release: &mut dyn FnMut(Fingerprint)) -> Result<()> {
        let (container, slots) = engine.chunks_beside(run[0].address)?;
        let places: HashMap<Address, usize> = slots.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect();
        let dead = self.dead.entry(container).or_default();
        dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        for Candidate { address, fingerprint } in run {
            let Some((number, slot)) = places.get(address).map(|number| (*number, &slots[*number].1)) else {
                self.damaged.push(format!("chunk {fingerprint} is not at {address}, where the index places it"));
                continue;
            };
            let chunk = MetadataChunk { address: *address, fingerprint: *fingerprint, kind: slot.kind };
            let pieces = if slot.kind == ChunkKind::Data { Some(Vec::new()) } else { chunk.references(engine) };
            let Some(pieces) = pieces else {
                self.damaged.push(format!("metadata chunk {fingerprint} at {address} cannot be read"));
                continue;
            };
            pieces.iter().filter_map(Piece::fingerprint).for_each(&mut *release);
            dead.insert(number, slot.length_bytes);
            self.chunks += 1;
            self.bytes += u64::from(slot.length_bytes);
        }
        Ok(())
    }
}
