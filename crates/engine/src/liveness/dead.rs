//! Dead slots: the chunks of a container that nothing refers to any more (`docs/format.md` section 7.4). They tell
//! merging what to leave behind. They also keep readers of a catalog from taking dead chunks for stored ones.
//!
//! The object of a container changes in the batch that removes its chunks from the chunk index: after any crash the two
//! agree.

use crate::liveness::slots::Slots;
use crate::{Change, EngineError, Result};
use onefold_ground::wire::{Reader, put_bytes, put_varint};
use onefold_index::ObjectIndex;
use onefold_storage::{ContainerId, MAX_SLOTS};
use std::collections::BTreeMap;

/// First byte of the keys.
pub(crate) const PREFIX: u8 = b'd';
const VERSION: u8 = 1;

/// The dead slots of one container file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSlots {
    /// Sum of the lengths of the dead chunks, bytes.
    pub bytes: u64,
    /// Sum of the lengths of all chunks of the container when the last one died, bytes.
    pub of_bytes: u64,
    slots: Slots,
}

impl DeadSlots {
    /// Returns whether a slot is dead.
    pub fn contains(&self, slot: usize) -> bool {
        self.slots.contains(slot)
    }

    /// Returns the number of dead slots.
    pub fn count(&self) -> usize {
        self.slots.count()
    }

    /// Marks a slot whose chunk has this length. Marking it twice changes nothing.
    pub fn insert(&mut self, slot: usize, length_bytes: u32) {
        if self.slots.insert(slot) {
            self.bytes += u64::from(length_bytes);
        }
    }

    /// Removes a mark.
    fn remove(&mut self, slot: usize, length_bytes: u32) {
        if self.slots.remove(slot) {
            self.bytes = self.bytes.saturating_sub(u64::from(length_bytes));
        }
    }

    /// Returns whether all slots that a container can have are marked: its catalog could not be read, and nothing in it
    /// counts.
    pub fn is_given_up(&self) -> bool {
        self.count() >= MAX_SLOTS
    }

    /// Marks all slots. The sums stay: the lengths of the other slots are unknown.
    pub(crate) fn given_up(self) -> DeadSlots {
        DeadSlots { slots: Slots::first(MAX_SLOTS), ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_varint(&mut out, self.bytes);
        put_varint(&mut out, self.of_bytes);
        put_bytes(&mut out, self.slots.bits());
        out
    }

    /// Reads the object of a container.
    pub fn decode(value: &[u8]) -> Result<DeadSlots> {
        let read = || {
            let mut reader = Reader::new(value);
            let version = reader.u8()?;
            if version != VERSION {
                let what = "version of dead slots";
                return Err(onefold_ground::wire::WireError::OutOfRange { what, value: u64::from(version), offset_bytes: 0 });
            }
            let dead = DeadSlots { bytes: reader.varint()?, of_bytes: reader.varint()?, slots: Slots::from_bits(reader.bytes()?.to_vec()) };
            reader.end().map(|()| dead)
        };
        read().map_err(|source| EngineError::Wire { what: "dead slots of a container".into(), source })
    }

    /// Reads the dead slots of a container file.
    pub(crate) fn read(objects: &ObjectIndex, container: ContainerId) -> Result<DeadSlots> {
        objects.get(objects.own_partition(), &key(container))?.map_or_else(|| Ok(DeadSlots::default()), |value| DeadSlots::decode(&value))
    }
}

/// Slots that a batch marks dead or alive again. The other dead slots are read when the batch is committed, so that
/// those of others stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadChanges(BTreeMap<ContainerId, ChangesOfFile>);

#[derive(Clone, Debug, Default)]
struct ChangesOfFile {
    /// Sum of the lengths of all chunks of the file.
    of_bytes: u64,
    /// Slot, length of its chunk, whether it is dead.
    slots: Vec<(usize, u32, bool)>,
}

impl DeadChanges {
    /// Marks a slot of a container file whose chunks have `of_bytes` bytes in total.
    pub(crate) fn set(&mut self, container: ContainerId, of_bytes: u64, slot: usize, length_bytes: u32, is_dead: bool) {
        let file = self.0.entry(container).or_default();
        file.of_bytes = of_bytes;
        file.slots.push((slot, length_bytes, is_dead));
    }

    /// Returns whether all containers are as wanted.
    pub(crate) fn are_all(&self, is_wanted: impl Fn(ContainerId) -> bool) -> bool {
        self.0.keys().all(|container| is_wanted(*container))
    }

    /// Returns the changes of the objects, the change of the sum of all dead bytes, and that of the number of dead
    /// slots. The caller holds the commit lock.
    pub(crate) fn changes(&self, objects: &ObjectIndex) -> Result<(Vec<Change>, i64, i64)> {
        let (mut changes, mut dead_bytes, mut dead_slots) = (Vec::new(), 0, 0);
        for (container, file) in &self.0 {
            let before = DeadSlots::read(objects, *container)?;
            if before.is_given_up() {
                continue;
            }
            let mut dead = DeadSlots { of_bytes: file.of_bytes, ..before.clone() };
            for (slot, length_bytes, is_dead) in &file.slots {
                if *is_dead {
                    dead.insert(*slot, *length_bytes);
                } else {
                    dead.remove(*slot, *length_bytes);
                }
            }
            if dead.slots != before.slots {
                dead_bytes += dead.bytes as i64 - before.bytes as i64;
                dead_slots += dead.count() as i64 - before.count() as i64;
                changes.push((objects.own_partition(), key(*container), (dead.count() > 0).then(|| dead.encode())));
            }
        }
        Ok((changes, dead_bytes, dead_slots))
    }
}

pub(crate) fn key(container: ContainerId) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(&container.bits().to_be_bytes());
    key
}

/// Returns the container of a key.
pub fn container_of(key: &[u8]) -> Option<ContainerId> {
    let bits = key.strip_prefix(&[PREFIX])?.try_into().ok()?;
    Some(ContainerId::from_bits(u64::from_be_bytes(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m0_19_dead_slots_are_read_as_written_and_counted_once() {
        let mut dead = DeadSlots { of_bytes: 1000, ..DeadSlots::default() };
        dead.insert(9, 100);
        dead.insert(0, 10);
        dead.insert(9, 100);
        assert_eq!((dead.bytes, dead.count()), (110, 2));
        assert!(dead.contains(9) && dead.contains(0) && !dead.contains(8) && !dead.contains(4000));
        let encoded = dead.encode();
        assert_eq!(DeadSlots::decode(&encoded).unwrap(), dead);
        for length in 0..encoded.len() {
            assert!(DeadSlots::decode(&encoded[..length]).is_err());
        }
        let container = ContainerId::new(3, 77);
        assert_eq!(container_of(&key(container)), Some(container));
    }
}
