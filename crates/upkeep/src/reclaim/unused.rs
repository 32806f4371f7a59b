//! Removing all chunks that nothing refers to (M0.19): what a deleted backup or volume, an overwritten block, or a backup that was cut short
//! leaves behind. The engine decides on each chunk (`onefold_engine`, `removal.rs`); here it is decided which to ask about.
//!
//! A backup's root goes with its record; the chunks of its tree follow level by level, as each removed metadata chunk gives up what it refers to.
//! These are asked about at once, so one pass over the pages of the chunk index that have unused chunks is enough.

use crate::Monitor;
use crate::Result;
use crate::references::{MetadataChunk, of_chunk};
use onefold_engine::{Address, Candidate, ContainerId, DeadSlots, Engine, EngineError, MAX_CANDIDATES, Piece, Removed, UnusedCursor};
use onefold_fingerprint::Fingerprint;
use onefold_index::IndexError;
use onefold_storage::ChunkKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Candidates taken together, so that those of a container meet in one removal; 40 bytes each.
const GATHERED: usize = 16 * MAX_CANDIDATES;
/// Chunks that are removed on a full disk before containers are given back.
const AT_ONCE_ON_A_FULL_DISK: usize = 1024;
/// Passes over the index in one call: later ones only have what the first had no room for.
const MAX_PASSES: usize = 64;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// What could not be judged, because a container or a page of the index cannot be read, or why nothing may be removed: one sentence each, the first
    /// hundred.
    pub damaged: Vec<String>,
    /// Which reader they are kept for, if there is one: it reads what was removed.
    pub kept_for: Option<String>,
    /// Whether some are left because the disk has no room for it before containers are given back.
    pub is_short_of_room: bool,
    /// Whether all unused chunks are gone: not if some cannot be judged, if writes in flight did not end or asked for some, or the monitor cancelled.
    pub is_complete: bool,
}

/// Sentences that a report has at most.
const LISTED: usize = 100;

impl RemovalReport {
    fn add(&mut self, removed: &Removed) {
        self.chunks += removed.chunks;
        self.bytes += removed.bytes;
        removed.damaged.iter().for_each(|what| self.note(what.clone()));
    }

    /// Notes what could not be judged, once.
    fn note(&mut self, what: String) {
        if self.damaged.len() < LISTED && !self.damaged.contains(&what) {
            self.damaged.push(what);
        }
    }
}

/// Removes all chunks that nothing refers to; the space in their containers comes back with merging. `go_on` is asked while writes in flight are
/// waited for. What was removed is durable whatever comes after; after an error or a crash the next call goes on.
pub fn remove_unused(engine: &Arc<Engine>, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<RemovalReport> {
    // What was stored and never referred to is in the index only when it is durable.
    engine.flush()?;
    let mut removal = Removal { engine, monitor, report: RemovalReport::default(), was_left: false, was_in_use: false };
    match engine.settle_quarantine() {
        // What hangs on that is kept, and said to be.
        Ok(()) | Err(EngineError::Index(IndexError::ChunkIndexDamaged { .. })) => {}
        Err(error) => return Err(error.into()),
    }
    let go_on = || go_on() && !monitor.is_cancelled();
    for _ in 0..MAX_PASSES {
        removal.was_left = false;
        if !removal.pass(&go_on)? {
            return Ok(removal.report);
        }
        if !removal.was_left {
            removal.report.is_complete = !removal.was_in_use && removal.report.damaged.is_empty() && !removal.report.is_short_of_room;
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
    /// Some were released for which there was no room.
    was_left: bool,
    /// Some stay because somebody asked for them.
    was_in_use: bool,
}

impl Removal<'_> {
    /// One pass over the pages of the chunk index. Returns false if it was cut short.
    fn pass(&mut self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        // Counts that only the memory knows are brought into the pages, where the search looks.
        match self.engine.maintain(true) {
            Ok(()) => {}
            // A damaged page keeps its partition from being swept; what is in other pages can be removed all the same.
            Err(EngineError::Index(error @ IndexError::ChunkIndexDamaged { .. })) => self.report.note(error.to_string()),
            // So does one that has no room to grow on a full disk; what the others give may be what it needs.
            Err(EngineError::Index(error)) if error.is_full() => self.report.is_short_of_room = true,
            Err(error) => return Err(error.into()),
        }
        let mut cursor = Some(UnusedCursor::default());
        while let Some(from) = cursor {
            let mut damaged = Vec::new();
            let (candidates, next) = self.engine.unused(from, GATHERED, &mut damaged)?;
            damaged.into_iter().for_each(|what| self.report.note(what));
            cursor = next;
            if !self.levels(candidates, go_on)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes candidates, then those of what they referred to that nothing refers to any more, and so on.
    fn levels(&mut self, mut level: Vec<Candidate>, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let digest_bytes = self.engine.digest_bytes();
        let references = |kind, content: &[u8]| {
            let pieces = of_chunk(content, kind, digest_bytes).ok_or("its content is not what it should be")?;
            Ok(pieces.iter().filter_map(Piece::fingerprint).collect())
        };
        while !level.is_empty() {
            // By container: each is looked into once or twice, not once for each removal.
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
                let mut damaged = Vec::new();
                let released = self.engine.without_references(removed.released, &mut damaged)?;
                damaged.into_iter().for_each(|what| self.report.note(what));
                self.was_left |= next.len() + released.len() > GATHERED;
                let room = GATHERED.saturating_sub(next.len());
                next.extend(released.into_iter().take(room));
                if self.engine.is_reserve_in_use() && self.report.chunks >= AT_ONCE_ON_A_FULL_DISK as u64 {
                    // The reserve may not do for all of it. First the containers go of which nothing is needed any more.
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

/// Finds out what [`remove_unused`] would remove, changing nothing: the counts that would change are kept in memory, about 60 bytes for each
/// chunk that would lose a reference. The whole chunk index is read once.
pub(crate) fn would_remove(engine: &Arc<Engine>, go_on: &dyn Fn() -> bool) -> Result<WouldRemove> {
    let mut would = WouldRemove::default();
    would.damaged.extend(engine.why_nothing_is_removed()?);
    engine.for_each_dead(&mut |container, dead| drop(would.dead.insert(container, dead)))?;
    if !would.damaged.is_empty() {
        return Ok(would);
    }
    let mut level: Vec<(Fingerprint, Address)> = Vec::new();
    for partition in engine.index().partitions() {
        let read = engine.index().for_each(partition, &mut |fingerprint, entry| {
            if entry.count == 0 && entry.address != 0 {
                level.push((*fingerprint, Address::from_bits(entry.address)));
            }
            Ok(())
        });
        match read {
            Ok(()) => {}
            Err(error @ IndexError::ChunkIndexDamaged { .. }) => would.damaged.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    let mut lost: HashMap<Fingerprint, u32> = HashMap::new();
    while !level.is_empty() {
        level.sort_unstable_by_key(|(_, address)| *address);
        let mut touched: Vec<Fingerprint> = Vec::new();
        for run in level.chunk_by(|one, next| one.1.container() == next.1.container()) {
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
        let mut entries = Vec::with_capacity(touched.len());
        engine.index().lookup(&touched, &mut entries)?;
        let unused = touched.into_iter().zip(entries).filter_map(|(fingerprint, entry)| {
            let entry = entry.filter(|entry| entry.address != 0 && entry.count != u32::MAX)?;
            (lost.get(&fingerprint) == Some(&entry.count)).then(|| (fingerprint, Address::from_bits(entry.address)))
        });
        level = unused.collect();
    }
    would.is_complete = would.damaged.is_empty();
    Ok(would)
}

impl WouldRemove {
    /// Chunks of one container.
    fn add(&mut self, engine: &Arc<Engine>, run: &[(Fingerprint, Address)], release: &mut dyn FnMut(Fingerprint)) -> Result<()> {
        let container = engine.storage().catalog(run[0].1.container())?.container;
        let slots = engine.storage().slots(container)?;
        let places: HashMap<Address, usize> = slots.iter().enumerate().map(|(number, (address, _))| (*address, number)).collect();
        let dead = self.dead.entry(container).or_default();
        dead.of_bytes = slots.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum();
        for (fingerprint, address) in run {
            let Some((number, slot)) = places.get(address).map(|number| (*number, &slots[*number].1)) else {
                self.damaged.push(format!("chunk {fingerprint}: the index says that it is at {address}, where it is not"));
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
