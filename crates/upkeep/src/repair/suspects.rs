//! Finds out exactly, slot by slot, what cannot be read in a container. `repair` must know it precisely.

use crate::Result;
use crate::reading::{Looked, look_into};
use onefold_engine::{Address, ContainerId, Engine, LostChunk};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use onefold_storage::{ChunkKind, ContainerReport, Slice, Slot, StorageError};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How often to read undamaged data before it is taken for lost, and the pause before each retry.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What is wrong with a container.
#[derive(Clone, Debug)]
pub(crate) enum Suspects {
    /// Nothing that counts.
    None,
    /// These chunks cannot be read, or have other bytes than their names say.
    Chunks { lost: Vec<LostChunk>, why: String },
    /// Its catalog cannot be read.
    All { why: String },
}

/// Returns whether something is wrong with a container.
pub(crate) fn is_suspect(looked: &Looked) -> bool {
    !looked.wrong.is_empty() || !looked.found.as_ref().is_ok_and(|found| found.damage.is_empty())
}

/// Reads a container, and reads suspicious parts again one by one, because an error of a device may pass.
pub(crate) fn of(engine: &Arc<Engine>, container: ContainerId) -> Result<Suspects> {
    let looked = look_into(engine, container, true, &mut ReadBuffer::default());
    if !is_suspect(&looked) {
        return Ok(Suspects::None);
    }
    let found = looked.found;
    let mut why = match &found {
        Ok(found) => found.damage.first().map(|damage| damage.to_string()),
        Err(error) => Some(error.to_string()),
    };
    let (is_of_levels, mut part) = (engine.levels().is_some(), Vec::new());
    let mut slots = match lasting(|| match is_of_levels {
        // What its damaged pages had is missing elsewhere.
        true => engine.storage().known_chunks_of(container, &mut part),
        false => engine.storage().chunks_of(container),
    })? {
        Ok(slots) => slots,
        Err(error) => return Ok(Suspects::All { why: why.unwrap_or_else(|| error.to_string()) }),
    };
    if is_of_levels {
        slots.extend(elsewhere(engine, container, &found, &looked.wrong)?);
    }
    let dead = engine.dead_slots(container)?;
    let mut lost = Vec::new();
    for (_, (address, slot)) in slots.iter().enumerate().filter(|(number, _)| !dead.contains(*number)) {
        // A block keeps its lost chunk. A container has dead slots.
        let is_known = || engine.quarantined(&slot.fingerprint, *address).map(|known| known.is_some_and(|known| known.address == *address));
        if content(engine, *address, &slot.fingerprint, slot.kind)?.is_none() && !is_known()? {
            why.get_or_insert_with(|| format!("the bytes of chunk {} at {address} do not match its fingerprint", slot.fingerprint));
            lost.push(LostChunk {
                fingerprint: slot.fingerprint,
                address: *address,
                slot: Some((slot.kind, slot.length_bytes)),
                is_needed: false,
            });
        }
    }
    let why = why.unwrap_or_default();
    Ok(if lost.is_empty() { Suspects::None } else { Suspects::Chunks { lost, why } })
}

/// Returns the chunks of other units that look bad: a unit of levels reads whole tables.
fn elsewhere(
    engine: &Engine,
    unit: ContainerId,
    found: &onefold_storage::Result<ContainerReport>,
    wrong: &[(Address, Fingerprint)],
) -> Result<Vec<(Address, Slot)>> {
    let damage = found.iter().flat_map(|report| &report.damage);
    let damaged = damage.filter_map(|damage| match damage {
        StorageError::ChunkDamaged { address, fingerprint, .. } => Some((*address, *fingerprint)),
        _ => None,
    });
    let mut names: BTreeMap<ContainerId, HashSet<Fingerprint>> = BTreeMap::new();
    for (address, name) in damaged.chain(wrong.iter().copied()) {
        names.entry(engine.storage().unit_of(address.origin())?).or_default().insert(name);
    }
    names.remove(&unit);
    let mut slots = Vec::new();
    for (unit, names) in names {
        let chunks = engine.storage().known_chunks_of(unit, &mut Vec::new())?;
        slots.extend(chunks.into_iter().filter(|(_, slot)| names.contains(&slot.fingerprint)));
    }
    Ok(slots)
}

/// Returns the bytes of a chunk, if they can be read and match its name. Errors: those that say nothing about the
/// stored data.
pub(crate) fn content(engine: &Arc<Engine>, address: Address, fingerprint: &Fingerprint, kind: ChunkKind) -> Result<Option<Slice>> {
    let load = || {
        let mut slices = Vec::new();
        engine.storage().load(&[(address, *fingerprint)], &mut slices).map(|()| slices.pop())
    };
    let Ok(Some(content)) = lasting(load)? else { return Ok(None) };
    let algorithm = engine.descriptor().fingerprint;
    let name = if kind == ChunkKind::Data { algorithm.fingerprint(&content) } else { algorithm.metadata(&content) };
    Ok((name == *fingerprint).then_some(content))
}

/// Reads something whose loss has consequences. Retries failures other than damage, after a pause. The inner error
/// means damage, or that the device refuses every time. The outer error is any other. If the whole device is gone, the
/// log cannot be written either, so nothing is put in quarantine because of that.
pub(crate) fn lasting<T>(mut read: impl FnMut() -> onefold_storage::Result<T>) -> Result<std::result::Result<T, StorageError>> {
    for _ in 1..ATTEMPTS {
        match read() {
            Ok(found) => return Ok(Ok(found)),
            Err(error) if error.is_damage() => return Ok(Err(error)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    match read() {
        Ok(found) => Ok(Ok(found)),
        Err(error) if error.is_damage() || matches!(&error, StorageError::Ground(ground) if ground.is_lasting()) => Ok(Err(error)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::GroundError;
    use std::io;

    #[test]
    fn only_what_the_device_refuses_every_time_is_lost() {
        let error = |source| StorageError::Ground(GroundError::Io { operation: "read", path: "a".into(), source });
        // ENOMEM, EMFILE and EIO that are over the next time.
        for code in [12, 24, 5] {
            let mut calls = 0;
            let read = || {
                calls += 1;
                if calls == 1 { Err(error(io::Error::from_raw_os_error(code))) } else { Ok(calls) }
            };
            assert_eq!(lasting(read).unwrap().unwrap(), 2, "{code}");
        }
        let fails = |code: i32| lasting(|| Err::<(), _>(error(io::Error::from_raw_os_error(code))));
        assert!(fails(12).is_err() && fails(24).is_err());
        assert!(fails(5).unwrap().is_err());
    }
}
