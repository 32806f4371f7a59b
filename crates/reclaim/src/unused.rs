//! Removing all chunks that nothing refers to (M0.19): what a deleted backup or volume, an overwritten block, or a backup that was cut short
//! leaves behind. The engine decides on each chunk (`onefold_engine`, `removal.rs`); here it is decided which to ask about.
//!
//! A backup's root goes with its record; the chunks of its tree follow level by level, as each removed metadata chunk gives up what it refers to.
//! These are asked about at once, so one pass over the pages of the chunk index that have unused chunks is enough.

use crate::Result;
use crate::check::Monitor;
use crate::references::{MetadataChunk, of_chunk};
use onefold_engine::{Address, ContainerId, DeadSlots, Engine, MAX_CANDIDATES, Piece, Removed, UnusedCursor};
use onefold_fingerprint::Fingerprint;
use onefold_storage::ChunkKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Released chunks that wait for being asked about; more are left to the next pass over the index. Bounds memory.
const MAX_WAITING: usize = 8 * MAX_CANDIDATES;
/// Passes over the index in one call: later ones only have what the first had no room for.
const MAX_PASSES: usize = 64;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalReport {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Chunks that could not be judged, because a container cannot be read: one sentence each, the first hundred.
    pub damaged: Vec<String>,
    /// Whether all unused chunks are gone: not if writes in flight did not end, or the monitor cancelled.
    pub is_complete: bool,
}

/// Sentences that a report has at most.
const LISTED: usize = 100;

impl RemovalReport {
    fn add(&mut self, removed: &Removed) {
        self.chunks += removed.chunks;
        self.bytes += removed.bytes;
        let room = LISTED.saturating_sub(self.damaged.len());
        self.damaged.extend(removed.damaged.iter().take(room).cloned());
    }
}

/// Removes all chunks that nothing refers to; the space in their containers comes back with merging. `go_on` is asked while writes in flight are
/// waited for. What was removed is durable whatever comes after; after an error or a crash the next call goes on.
pub fn remove_unused(engine: &Arc<Engine>, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<RemovalReport> {
    let digest_bytes = engine.digest_bytes();
    let references = |kind, content: &[u8]| {
        let pieces = of_chunk(content, kind, digest_bytes).ok_or("its content is not what it should be")?;
        Ok(pieces.iter().filter_map(Piece::fingerprint).collect())
    };
    let go_on = || go_on() && !monitor.is_cancelled();
    let mut report = RemovalReport::default();
    // What was stored and never referred to is in the index only when it is durable.
    engine.flush()?;
    for _ in 0..MAX_PASSES {
        // Counts that only the memory knows are brought into the pages, where the search looks.
        engine.maintain(true)?;
        let mut was_left = false;
        let mut cursor = Some(UnusedCursor::default());
        while let Some(from) = cursor {
            let (mut waiting, next) = engine.unused(from, MAX_CANDIDATES)?;
            cursor = next;
            while !waiting.is_empty() {
                if !go_on() {
                    return Ok(report);
                }
                let candidates = waiting.split_off(waiting.len().saturating_sub(MAX_CANDIDATES));
                let removed = engine.remove_unused(&candidates, &references, &go_on)?;
                if removed.was_busy {
                    return Ok(report);
                }
                report.add(&removed);
                monitor.advance(removed.chunks);
                waiting.extend(removed.left);
                was_left |= waiting.len() + removed.released.len() > MAX_WAITING;
                let room = MAX_WAITING.saturating_sub(waiting.len());
                waiting.extend(removed.released.into_iter().take(room));
            }
        }
        if !was_left {
            report.is_complete = true;
            return Ok(report);
        }
    }
    Ok(report)
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
    engine.for_each_dead(&mut |container, dead| drop(would.dead.insert(container, dead)))?;
    let mut level: Vec<(Fingerprint, Address)> = Vec::new();
    for partition in 0..engine.index().partitions() {
        engine.index().for_each(partition, &mut |fingerprint, entry| {
            if entry.count == 0 && entry.address != 0 {
                level.push((*fingerprint, Address::from_bits(entry.address)));
            }
            Ok(())
        })?;
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
