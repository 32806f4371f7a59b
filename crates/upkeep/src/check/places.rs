//! Finds out whether copies are where references say, where each copy counts for itself: one reference after the other,
//! with the catalogs that were asked last in memory. Neighbours in a recipe mostly lie in one container.
//!
//! So memory is bounded whatever the size of the store.

use super::Needed;
use crate::Result;
use onefold_engine::{DeadSlots, Engine};
use onefold_fingerprint::Fingerprint;
use onefold_storage::Origin;
use std::collections::HashMap;

/// Memory of a slot.
const SLOT_BYTES: usize = size_of::<Alive>();
/// Memory of an origin beside its slots, about.
const ORIGIN_BYTES: usize = 96;

/// A chunk that is alive.
#[derive(Clone, Copy, Debug)]
struct Alive {
    fingerprint: Fingerprint,
    slot: u16,
    length_bytes: u32,
}

/// The chunks of the origins that were asked for last.
#[derive(Debug)]
pub(super) struct Places<'a> {
    engine: &'a Engine,
    /// Half of the memory each. When the first half is full, it becomes the second one, which is forgotten.
    young: HashMap<Origin, Vec<Alive>>,
    old: HashMap<Origin, Vec<Alive>>,
    young_bytes: usize,
    half_bytes: usize,
}

impl<'a> Places<'a> {
    pub(super) fn within(engine: &'a Engine, memory_bytes: usize) -> Places<'a> {
        Places { engine, young: HashMap::new(), old: HashMap::new(), young_bytes: 0, half_bytes: memory_bytes / 2 }
    }

    /// Returns the length of a copy that is alive where reads look for it. `None`: it is not there. Errors: those that
    /// say nothing about the store.
    pub(super) fn length_of(&mut self, needed: &Needed) -> Result<Option<u32>> {
        let origin = needed.copy.origin();
        if !self.young.contains_key(&origin) {
            let alive = match self.old.remove(&origin) {
                Some(alive) => alive,
                None => self.load(origin)?,
            };
            self.keep(origin, alive);
        }
        let alive = self.young.get(&origin).map_or(&[][..], Vec::as_slice);
        let at = alive.partition_point(|alive| alive.slot < needed.copy.slot());
        let found = alive.get(at).filter(|alive| alive.slot == needed.copy.slot() && alive.fingerprint == needed.fingerprint);
        Ok(found.map(|alive| alive.length_bytes))
    }

    /// Has the chunks around a copy read again when they are asked for next.
    pub(super) fn forget(&mut self, needed: &Needed) {
        self.young.remove(&needed.copy.origin());
        self.old.remove(&needed.copy.origin());
    }

    fn keep(&mut self, origin: Origin, alive: Vec<Alive>) {
        if self.young_bytes >= self.half_bytes {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += ORIGIN_BYTES + alive.len() * SLOT_BYTES;
        self.young.insert(origin, alive);
    }

    fn load(&self, origin: Origin) -> Result<Vec<Alive>> {
        let (container, slots) = match self.engine.storage().chunks_beside(origin) {
            Ok(found) => found,
            // It was reported with the containers.
            Err(error) if error.is_damage() => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let dead = match self.engine.dead_slots(container) {
            Ok(dead) => dead,
            // All slots may be alive.
            Err(error) if error.is_damage() => DeadSlots::default(),
            Err(error) => return Err(error.into()),
        };
        let of_origin = slots.iter().enumerate().filter(|(number, (address, _))| address.origin() == origin && !dead.contains(*number));
        let mut alive: Vec<Alive> = of_origin
            .map(|(_, (address, slot))| Alive { fingerprint: slot.fingerprint, slot: address.slot(), length_bytes: slot.length_bytes })
            .collect();
        alive.sort_unstable_by_key(|alive| alive.slot);
        Ok(alive)
    }
}
