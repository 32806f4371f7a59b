//! Addresses of a levelled store: they follow from the name of a chunk.
//!
//! A table is found by the key range that it has, so an address need not say where a chunk is: it says in which
//! partition, and repeats the first 47 bits of its name. So chunks that are stored again have the address that they had
//! before, and every reference to them finds them. Two chunks can have the same address; a name with an address is
//! always one.

use crate::{Address, ContainerId, Origin};
use onefold_fingerprint::Fingerprint;
use std::ops::RangeInclusive;

/// Bits of the name in an origin. What belongs to an origin is a range of keys.
const ORIGIN_BITS: u32 = 31;
/// Bits of the name in an address.
const ADDRESS_BITS: u32 = ORIGIN_BITS + 16;

/// Returns the address of a chunk in a partition. It is never 0.
pub(crate) fn address_of(partition: u16, name: &Fingerprint) -> Address {
    Address::from_bits(u64::from(partition) << 48 | 1 << ADDRESS_BITS | name.prefix() >> (64 - ADDRESS_BITS))
}

/// A range of keys of a partition whose chunks are looked at together. There are `2^bits` in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) partition: u16,
    number: u32,
    bits: u32,
}

impl Unit {
    pub(crate) fn all(partition: u16, bits: u32) -> impl Iterator<Item = Unit> {
        (0..1u64 << bits).map(move |number| Unit { partition, number: number as u32, bits })
    }

    /// Returns the unit that an origin belongs to. `None`: it is none of a levelled store.
    pub(crate) fn of(origin: Origin, bits: u32) -> Option<Unit> {
        let container = origin.container();
        let number = container.number().checked_sub(1 << ORIGIN_BITS)?;
        Some(Unit { partition: container.partition(), number: if bits == 0 { 0 } else { number >> (ORIGIN_BITS - bits) }, bits })
    }

    pub(crate) fn of_key(partition: u16, name: &Fingerprint, bits: u32) -> Unit {
        Unit { partition, number: if bits == 0 { 0 } else { (name.prefix() >> (64 - bits)) as u32 }, bits }
    }

    /// Returns its name: the first origin in it.
    pub(crate) fn id(self) -> ContainerId {
        ContainerId::new(self.partition, 1 << ORIGIN_BITS | if self.bits == 0 { 0 } else { self.number << (ORIGIN_BITS - self.bits) })
    }

    /// Returns the prefixes of the keys in it.
    pub(crate) fn prefixes(self) -> RangeInclusive<u64> {
        if self.bits == 0 {
            return 0..=u64::MAX;
        }
        let first = u64::from(self.number) << (64 - self.bits);
        first..=first | u64::MAX >> self.bits
    }
}

/// Returns into how many bits of units this many chunks are divided: a unit has 8,192 to 16,384 of them.
pub(crate) fn unit_bits(chunks: u64) -> u32 {
    const UNIT_CHUNKS: u64 = 8192;
    (chunks / UNIT_CHUNKS).checked_ilog2().unwrap_or(0).min(ORIGIN_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_belongs_to_the_unit_of_its_key(partition: u16, digest: [u8; 32], bits in 0..=ORIGIN_BITS) {
            let name = Fingerprint::from_digest(&digest);
            let address = address_of(partition, &name);
            prop_assert_ne!(address.bits(), 0);
            let unit = Unit::of(address.origin(), bits).unwrap();
            prop_assert_eq!(unit, Unit::of_key(partition, &name, bits));
            prop_assert!(unit.prefixes().contains(&name.prefix()));
            prop_assert_eq!(Unit::of(unit.id().into(), bits), Some(unit));
        }
    }

    #[test]
    fn units_cover_all_keys_once_and_grow_in_number_with_the_chunks() {
        for bits in [0, 1, 5] {
            let mut next = Some(0u64);
            for unit in Unit::all(3, bits) {
                assert_eq!(Some(*unit.prefixes().start()), next);
                next = unit.prefixes().end().checked_add(1);
            }
            assert_eq!(next, None);
        }
        assert_eq!([0, 8191, 16_383, 16_384, 1 << 20, u64::MAX].map(unit_bits), [0, 0, 0, 1, 7, 31]);
        assert_eq!(Unit::of(ContainerId::new(0, 7).into(), 3), None);
    }
}
