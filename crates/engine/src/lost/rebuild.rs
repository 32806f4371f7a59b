//! Rebuilding the chunk index. It is a view: everything in it can be had from the containers and from what refers to
//! chunks.
//!
//! The old index is not read. A marker file makes every other opening refuse the store until the new index is complete.
//! So a rebuild that is cut short is simply done again. Containers, log and object index are only read, except that
//! damaged or lost containers are first rebuilt from parity if possible.
//!
//! Where chunks are blocks, [`blocks`] does it.

pub(crate) mod blocks;

use crate::lifecycle::chunks::create_index;
use crate::lifecycle::layout::INDEX;
use crate::liveness::marked::forget_marks;
use crate::liveness::recount::Recounted;
use crate::lookup::sampled::forget_hooks;
use crate::{Descriptor, Engine, EngineError, Mode, Result, Settings};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, parent, replace_file};
use onefold_index::ChunkBatch;
use onefold_oplog::{Position, Pressure};
use onefold_storage::{Address, ChunkStore, ContainerId, ContainerStore, LevelsStore, Repair, Slot};
use std::collections::BTreeSet;
use std::sync::Arc;

/// This file is in the directory of the chunk index while the index is incomplete.
pub(crate) const MARKER: &str = "index/rebuilding";

/// A store whose chunk index knows all places again, but no usage counts yet. It can be read.
#[derive(Debug)]
pub struct Rebuild {
    engine: Arc<Engine>,
    /// Counts up. To the index each step looks like a batch of the log, before all real ones that it does not have.
    step: u64,
    /// What the chunk store holds.
    found: Recounted,
}

impl Rebuild {
    /// Throws the chunk index away and fills a new one with the places of all chunks. Containers and parts of levels
    /// that cannot be read are passed to `damaged`; their chunks are not in the new index.
    pub fn start(ground: Arc<dyn Ground>, settings: Settings, command: &str, damaged: &mut dyn FnMut(String)) -> Result<Rebuild> {
        let engine = Engine::open(ground, settings, Mode::Rebuild, command)?;
        // Of several copies of a chunk, the new index may name another one.
        forget_marks(&*engine.ground)?;
        let mut rebuild = Rebuild { engine, step: 0, found: Recounted::default() };
        match rebuild.engine.levels.clone() {
            Some(levels) => rebuild.places_in_levels(&levels, damaged)?,
            None => rebuild.places_in_containers(damaged)?,
        }
        Ok(rebuild)
    }

    fn places_in_levels(&mut self, levels: &LevelsStore, damaged: &mut dyn FnMut(String)) -> Result<()> {
        let mut found = Vec::new();
        for unit in levels.units()?.iter() {
            let chunks = levels.known_chunks_of(unit, &mut found)?;
            let mut inserts = Vec::with_capacity(chunks.len());
            for (address, slot) in &chunks {
                // A chunk in quarantine is still in its table.
                let lost = self.engine.quarantine.get(&slot.fingerprint, *address)?;
                if lost.is_none_or(|lost| lost.address != *address) {
                    inserts.push((slot.fingerprint, address.bits()));
                }
            }
            self.found.raw_bytes += chunks.iter().map(|(_, slot)| u64::from(slot.length_bytes)).sum::<u64>();
            self.found.chunks += inserts.len() as u64;
            self.apply(&inserts, &[])?;
        }
        let sentences: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        sentences.into_iter().for_each(damaged);
        // What their frames take cannot be told apart from what removed chunks take in them.
        self.found.stored_bytes = levels.usage(None)?.disk_bytes.min(self.found.raw_bytes);
        Ok(())
    }

    fn places_in_containers(&mut self, damaged: &mut dyn FnMut(String)) -> Result<()> {
        let storage = self.engine.need_containers()?.clone();
        // First rebuild from parity: chunks in missing containers would not be in the index, and their references would
        // not be counted.
        match storage.repair_lost(&|| true) {
            Ok((_, lost)) => {
                for (container, _) in lost {
                    // Nobody needs anything from a container that is given up.
                    if !self.engine.dead_slots(container)?.is_given_up() {
                        damaged(format!("container {container} is missing, and parity cannot rebuild it"));
                    }
                }
            }
            Err(error) => damaged(format!("missing containers could not be rebuilt from parity: {error}")),
        }
        let containers = storage.containers()?;
        let answering = storage.answering(&containers, &storage.forwards()?)?;
        for container in containers.iter() {
            match slots(&storage, container) {
                Ok(slots) => {
                    for frame in &storage.catalog(container)?.frames {
                        self.found.raw_bytes += u64::from(frame.raw_bytes);
                        self.found.stored_bytes += u64::from(frame.stored_bytes);
                    }
                    // Removed chunks are not stored any more: their references are not counted, and what they refer to
                    // may be gone.
                    let dead = self.engine.dead_slots(container)?;
                    let counting = answering.origins(container, &slots)?;
                    let alive = slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number));
                    let alive = alive.filter(|(_, (address, _))| counting.contains(&address.origin()));
                    let inserts: Vec<_> = alive.map(|(_, (address, slot))| (slot.fingerprint, address.bits())).collect();
                    self.found.chunks += inserts.len() as u64;
                    self.apply(&inserts, &[])?;
                }
                Err(error) if error.is_damage() => damaged(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the store, for reading what refers to chunks.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Adds references to the counts.
    pub fn count(&mut self, references: &[(Fingerprint, i64)]) -> Result<()> {
        self.apply(&[], references)
    }

    /// Makes unreadable chunks point nowhere, so that the next write of them stores them.
    pub fn lose(&mut self, chunks: &[Fingerprint]) -> Result<()> {
        let places: Vec<_> = chunks.iter().map(|fingerprint| (*fingerprint, 0)).collect();
        self.step += 1;
        let Some(index) = self.engine.index() else { return Ok(()) };
        Ok(index.apply_batch(Position(self.step), ChunkBatch { places: &places, ..ChunkBatch::default() })?)
    }

    /// Makes the new index durable, at the end of the log. Call when all references were counted.
    pub fn finish(self) -> Result<()> {
        let engine = &self.engine;
        if self.step >= engine.log.end().0 && self.step > 0 {
            return Err(EngineError::Inconsistent {
                why: "the log is too short for the stored data; the chunk index was not rebuilt".into(),
            });
        }
        match engine.index() {
            Some(index) => {
                index.apply_batch(engine.log.end(), ChunkBatch::default())?;
                index.catch_up(&|| true)?;
                index.close()?;
            }
            // The next opening makes them from catalogs.
            None => forget_hooks(&*engine.ground)?,
        }
        end_rebuild(engine, self.found)
    }

    fn apply(&mut self, inserts: &[(Fingerprint, u64)], deltas: &[(Fingerprint, i64)]) -> Result<()> {
        let Some(index) = self.engine.index() else { return Ok(()) };
        self.step += 1;
        index.apply_batch(Position(self.step), ChunkBatch { inserts, deltas, ..ChunkBatch::default() })?;
        while index.pressure() >= Pressure::Behind && index.step()? {}
        Ok(())
    }
}

impl Engine {
    /// Returns whether a rebuild of the chunk index was cut short. It must be repeated before the store opens.
    pub fn is_rebuild_cut_short(ground: &dyn Ground) -> Result<bool> {
        Ok(ground.exists(MARKER)?)
    }
}

/// Returns the slots of a container, rebuilding it from parity if necessary.
fn slots(storage: &ContainerStore, container: ContainerId) -> onefold_storage::Result<Vec<(Address, Slot)>> {
    match storage.slots(container) {
        Err(error) if error.is_damage() => match storage.repair(container) {
            Ok(Repair::Repaired | Repair::Whole) => storage.slots(container),
            Ok(Repair::Impossible) => Err(error),
            Err(of_repair) => {
                tracing::warn!(%container, error = %of_repair, "a damaged container could not be rebuilt");
                Err(error)
            }
        },
        slots => slots,
    }
}

/// Lets the store open again, with the new index.
fn end_rebuild(engine: &Engine, found: Recounted) -> Result<()> {
    // Before it opens: its next owner notes which chunks are counted and nowhere.
    Recounted { end: engine.log.end(), ..found }.write(&*engine.ground)?;
    engine.ground.remove(MARKER)?;
    Ok(engine.ground.sync_directory(parent(MARKER))?)
}

/// Notes that the index is incomplete from now on.
pub(crate) fn mark_index(ground: &Arc<dyn Ground>, directory: &str) -> Result<()> {
    ground.create_directory(directory)?;
    Ok(replace_file(&**ground, MARKER, b"the chunk index is being rebuilt\n")?)
}

/// Replaces the chunk index by an empty one, whatever is there. The marker comes first.
pub(crate) fn empty_index(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
    mark_index(ground, INDEX)?;
    for entry in ground.list(INDEX)? {
        let partition = format!("{INDEX}/{}", entry.name);
        if !entry.is_directory {
            continue;
        }
        for file in ground.list(&partition)? {
            ground.remove(&format!("{partition}/{}", file.name))?;
        }
        ground.sync_directory(&partition)?;
    }
    create_index(ground, descriptor)
}
