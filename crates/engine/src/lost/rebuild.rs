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
use onefold_storage::{Address, ContainerId, ContainerStore, Repair, Slot};
use std::sync::Arc;

/// This file is in the directory of the chunk index while the index is incomplete.
pub(crate) const MARKER: &str = "index/rebuilding";

/// A store whose chunk index knows all places again, but no usage counts yet. It can be read.
#[derive(Debug)]
pub struct Rebuild {
    engine: Arc<Engine>,
    containers: Arc<ContainerStore>,
    /// Counts up. To the index each step looks like a batch of the log, before all real ones that it does not have.
    step: u64,
    /// What the containers hold.
    found: Recounted,
}

impl Rebuild {
    /// Throws the chunk index away and fills a new one with the places of all chunks in all containers. Containers that
    /// cannot be read are passed to `damaged`; their chunks are not in the new index.
    pub fn start(ground: Arc<dyn Ground>, settings: Settings, command: &str, damaged: &mut dyn FnMut(String)) -> Result<Rebuild> {
        let engine = Engine::open(ground, settings, Mode::Rebuild, command)?;
        // Of several copies of a chunk, the new index may name another one.
        forget_marks(&*engine.ground)?;
        let containers = engine.need_containers()?.clone();
        let mut rebuild = Rebuild { engine, containers, step: 0, found: Recounted::default() };
        // First rebuild from parity: chunks in missing containers would not be in the index, and their references would
        // not be counted.
        match rebuild.containers.repair_lost(&|| true) {
            Ok((_, lost)) => {
                for (container, _) in lost {
                    // Nobody needs anything from a container that is given up.
                    if !rebuild.engine.dead_slots(container)?.is_given_up() {
                        damaged(format!("container {container} is missing, and parity cannot rebuild it"));
                    }
                }
            }
            Err(error) => damaged(format!("missing containers could not be rebuilt from parity: {error}")),
        }
        let storage = rebuild.containers.clone();
        let containers = storage.containers()?;
        let answering = storage.answering(&containers, &storage.forwards()?)?;
        for container in containers.iter() {
            match rebuild.slots(container) {
                Ok(slots) => {
                    for frame in &storage.catalog(container)?.frames {
                        rebuild.found.raw_bytes += u64::from(frame.raw_bytes);
                        rebuild.found.stored_bytes += u64::from(frame.stored_bytes);
                    }
                    // Removed chunks are not stored any more: their references are not counted, and what they refer to
                    // may be gone.
                    let dead = rebuild.engine.dead_slots(container)?;
                    let counting = answering.origins(container, &slots)?;
                    let alive = slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number));
                    let alive = alive.filter(|(_, (address, _))| counting.contains(&address.origin()));
                    let inserts: Vec<_> = alive.map(|(_, (address, slot))| (slot.fingerprint, address.bits())).collect();
                    rebuild.found.chunks += inserts.len() as u64;
                    rebuild.apply(&inserts, &[])?;
                }
                Err(error) if error.is_damage() => damaged(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(rebuild)
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

    /// Returns the slots of a container, rebuilding it from parity if necessary.
    fn slots(&self, container: ContainerId) -> onefold_storage::Result<Vec<(Address, Slot)>> {
        let storage = &self.containers;
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
