//! What of a container cannot be read, slot by slot: for `repair`, which must know it exactly.

use crate::Result;
use crate::reading::{Looked, look_into};
use onefold_engine::{Address, ContainerId, Engine, LostChunk};
use onefold_fingerprint::Fingerprint;
use onefold_storage::{ChunkKind, Slice};
use std::sync::Arc;

/// What is wrong with a container.
#[derive(Clone, Debug)]
pub(crate) enum Suspects {
    /// Nothing that counts.
    None,
    /// These chunks cannot be read, or are not what their names say.
    Chunks { lost: Vec<LostChunk>, why: String },
    /// Its catalog cannot be read.
    All { why: String },
}

/// Whether something in a container is not as it should be.
pub(crate) fn is_suspect(looked: &Looked) -> bool {
    !looked.wrong.is_empty() || !looked.found.as_ref().is_ok_and(|found| found.damage.is_empty())
}

/// Reads a container, and what seems to be wrong once more by itself, as an error of a device may pass.
pub(crate) fn of(engine: &Arc<Engine>, container: ContainerId) -> Result<Suspects> {
    let looked = look_into(engine, container, true);
    if !is_suspect(&looked) {
        return Ok(Suspects::None);
    }
    let found = looked.found;
    let mut why = match &found {
        Ok(found) => found.damage.first().map(|damage| damage.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let slots = match engine.storage().slots(container) {
        Ok(slots) => slots,
        Err(error) => return Ok(Suspects::All { why: why.unwrap_or_else(|| error.to_string()) }),
    };
    let dead = engine.dead_slots(container)?;
    let mut lost = Vec::new();
    for (_, (address, slot)) in slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)) {
        if content(engine, *address, &slot.fingerprint, slot.kind).is_none() {
            why.get_or_insert_with(|| format!("chunk {} at {address} has bytes of another fingerprint", slot.fingerprint));
            lost.push(LostChunk { fingerprint: slot.fingerprint, address: *address, slot: Some((slot.kind, slot.length_bytes)) });
        }
    }
    let why = why.unwrap_or_default();
    Ok(if lost.is_empty() { Suspects::None } else { Suspects::Chunks { lost, why } })
}

/// The bytes of a chunk, if they can be read and are what its name says.
pub(crate) fn content(engine: &Arc<Engine>, address: Address, fingerprint: &Fingerprint, kind: ChunkKind) -> Option<Slice> {
    let mut slices = Vec::new();
    engine.storage().load(&[(address, *fingerprint)], &mut slices).ok()?;
    let content = slices.pop()?;
    let algorithm = engine.descriptor().fingerprint;
    let name = if kind == ChunkKind::Data { algorithm.fingerprint(&content) } else { algorithm.metadata(&content) };
    (name == *fingerprint).then_some(content)
}
