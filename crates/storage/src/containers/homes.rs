//! Homes: the addresses that the chunks of a merged container got when they were first stored, and keep forever (M0.20,
//! `docs/format.md` section 5.7). Recipes and indexes know a chunk by its home only.

use crate::{Address, ContainerId};
use onefold_ground::wire::{Reader, WireError, put_varint};

/// The home of each slot of a merged container.
///
/// Invariants, checked by every decoder: no home is there twice. All lie in the partition of the merged container, none
/// in the merged container itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Homes {
    /// The containers of the homes, ascending, each once.
    containers: Vec<ContainerId>,
    by_slot: Vec<Address>,
    /// Slots, by ascending home.
    order: Vec<u16>,
}

/// Smallest encoding of a home.
const HOME_MIN_BYTES: usize = 2;

impl Homes {
    /// Takes the homes of slots 0, 1, 2 ...; at most 65,536, the numbers that a slot can have. `Err`: this address is
    /// there twice.
    pub(crate) fn new(by_slot: Vec<Address>) -> Result<Homes, Address> {
        let mut order: Vec<u16> = (0..by_slot.len()).map(|slot| slot as u16).collect();
        order.sort_unstable_by_key(|slot| by_slot[usize::from(*slot)]);
        let address = |slot: &u16| by_slot[usize::from(*slot)];
        if let Some(pair) = order.windows(2).find(|pair| address(&pair[0]) == address(&pair[1])) {
            return Err(address(&pair[0]));
        }
        let mut containers: Vec<_> = order.iter().map(|slot| address(slot).container()).collect();
        containers.dedup();
        containers.shrink_to_fit();
        Ok(Homes { containers, by_slot, order })
    }

    /// Returns the containers that have homes here, ascending.
    pub fn containers(&self) -> &[ContainerId] {
        &self.containers
    }

    /// Returns the home of a slot.
    pub fn address(&self, slot: usize) -> Option<Address> {
        self.by_slot.get(slot).copied()
    }

    /// Returns the slot whose home is `address`.
    pub fn position(&self, address: Address) -> Option<usize> {
        let found = self.order.binary_search_by_key(&address, |slot| self.by_slot[usize::from(*slot)]);
        found.ok().map(|at| usize::from(self.order[at]))
    }

    /// Returns the bytes of heap memory that this takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.containers.capacity() * size_of::<ContainerId>()
            + self.by_slot.capacity() * size_of::<Address>()
            + self.order.capacity() * size_of::<u16>()
    }

    /// Appends the encoding (5.7).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.containers.len() as u64);
        let mut before = 0;
        for container in &self.containers {
            put_varint(out, u64::from(container.number() - before));
            before = container.number();
        }
        for address in &self.by_slot {
            let at = self.containers.binary_search(&address.container()).expect("the containers of all homes are in the list");
            put_varint(out, at as u64);
            put_varint(out, u64::from(address.slot()));
        }
    }

    /// Reads the homes of the `slots` slots of the merged container `merged`.
    pub(crate) fn decode(reader: &mut Reader<'_>, merged: ContainerId, slots: usize) -> Result<Homes, WireError> {
        let start = reader.position();
        let out_of_range = |what, value| WireError::OutOfRange { what, value, offset_bytes: start };
        let count = reader.count("home containers", 1)?;
        // Each is the home of a slot; and what follows needs at least so many bytes.
        if count > slots || reader.left() < slots.saturating_mul(HOME_MIN_BYTES) {
            return Err(out_of_range("home containers", count as u64));
        }
        let mut containers = Vec::with_capacity(count);
        let mut number = 0;
        for _ in 0..count {
            let step = reader.varint_to("home container", u64::from(u32::MAX - number))? as u32;
            number += step;
            if step == 0 || number == merged.number() {
                return Err(out_of_range("home container", u64::from(number)));
            }
            containers.push(ContainerId::new(merged.partition(), number));
        }
        let mut by_slot = Vec::with_capacity(slots);
        for _ in 0..slots {
            let at = reader.varint_to("home", (count as u64).saturating_sub(1))? as usize;
            let slot = reader.varint_to("home slot", u64::from(u16::MAX))? as u16;
            let container = containers.get(at).ok_or(out_of_range("home", at as u64))?;
            by_slot.push(Address::new(*container, slot));
        }
        let homes = Homes::new(by_slot).map_err(|twice| out_of_range("repeated home", twice.bits()))?;
        if homes.containers != containers {
            return Err(out_of_range("home containers", count as u64));
        }
        Ok(homes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MERGED: ContainerId = ContainerId::new(3, 77);

    /// Homes of this many slots, in any order.
    pub(crate) fn homes(slots: usize) -> impl Strategy<Value = Homes> {
        let address = (prop_oneof![1..9u32, 1000..u32::MAX], any::<u16>());
        let different = proptest::collection::btree_set(address, slots..=slots);
        different.prop_map(|all: BTreeSet<(u32, u16)>| all.into_iter().collect::<Vec<_>>()).prop_shuffle().prop_map(|all| {
            let address = |(number, slot): (u32, u16)| Address::new(ContainerId::new(MERGED.partition(), number), slot);
            Homes::new(all.into_iter().map(address).collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn m0_20_homes_are_read_as_written_and_found(homes in (0..50usize).prop_flat_map(homes)) {
            let mut bytes = Vec::new();
            homes.encode(&mut bytes);
            let mut reader = Reader::new(&bytes);
            let slots = homes.by_slot.len();
            let read = Homes::decode(&mut reader, MERGED, slots).unwrap();
            reader.end().unwrap();
            prop_assert_eq!(&read, &homes);
            for slot in 0..slots {
                let address = read.address(slot).unwrap();
                prop_assert_eq!(read.position(address), Some(slot));
                prop_assert!(read.containers().contains(&address.container()));
                let other = Address::new(address.container(), address.slot() ^ 0x5555);
                prop_assert_eq!(read.position(other), homes.by_slot.iter().position(|home| *home == other));
            }
            prop_assert!(Homes::decode(&mut Reader::new(&bytes), MERGED, slots + 1).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>, slots in 0..65_535usize) {
            if let Ok(homes) = Homes::decode(&mut Reader::new(&bytes), MERGED, slots) {
                prop_assert_eq!(homes.by_slot.len(), slots);
            }
        }
    }

    #[test]
    fn homes_that_cannot_be_are_refused() {
        let homes = [Address::new(ContainerId::new(3, 5), 1), Address::new(ContainerId::new(3, 9), 1)];
        assert_eq!(Homes::new(vec![homes[0], homes[1], homes[0]]), Err(homes[0]));
        for (slots, bytes, why) in [
            (1, &[1, 0, 0, 1][..], "container number 0"),
            (1, &[1, 77, 0, 1], "the merged container itself"),
            (2, &[2, 5, 0, 0, 1, 1, 1], "a container twice"),
            (1, &[1, 5, 1, 1], "no such container"),
            (2, &[2, 5, 4, 0, 1, 0, 2], "a container without a home"),
            (2, &[1, 5, 0, 1, 0, 1], "a home twice"),
            (1, &[1, 5, 0, 0x80, 0x80, 4], "slot 65,536"),
        ] {
            assert!(Homes::decode(&mut Reader::new(bytes), MERGED, slots).is_err(), "{why}");
        }
    }
}
