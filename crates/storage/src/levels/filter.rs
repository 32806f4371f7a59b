//! The filter of a table: a Bloom filter over its keys. Names are random already, so their own bits are its hashes.

use onefold_fingerprint::Fingerprint;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const BITS_OF_KEY: u64 = 10;
/// Bits that a key sets: ln 2 times the bits of each key. One in 120 keys that are not there seems to be.
const PROBES: u64 = 7;

/// Room in memory for the filters of a store.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    used_bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
}

/// A part of the room. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Room,
    bytes: usize,
}

impl Room {
    pub(crate) fn new(limit_bytes: usize) -> Room {
        Room { used_bytes: Arc::default(), limit_bytes }
    }

    /// Takes room, if there is so much.
    pub(crate) fn take(&self, bytes: usize) -> Option<Taken> {
        let taken = Taken { room: self.clone(), bytes };
        // What is too much goes back at once.
        (self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.limit_bytes).then_some(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Filter(Vec<u64>);

impl Filter {
    /// Returns the bytes of the filter of this many keys.
    pub(crate) fn bytes_for(keys: u64) -> usize {
        ((keys * BITS_OF_KEY).div_ceil(64).max(1) * 8) as usize
    }

    pub(crate) fn new(keys: u64) -> Filter {
        Filter(vec![0; Filter::bytes_for(keys) / 8])
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Filter {
        Filter(bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8"))).collect())
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn bits(&self, name: &Fingerprint) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = self.0.len() as u64 * 64;
        // The prefix decides about the order of keys, the other bits about partitions of the index. Both are used.
        let (mut at, step) = (name.hash_bits() ^ name.prefix().rotate_left(32), name.prefix() | 1);
        (0..PROBES).map(move |_| {
            at = at.wrapping_add(step);
            let bit = ((u128::from(at) * u128::from(bits)) >> 64) as u64;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    pub(crate) fn insert(&mut self, name: &Fingerprint) {
        for (word, bit) in self.bits(name) {
            self.0[word] |= bit;
        }
    }

    pub(crate) fn may_have(&self, name: &Fingerprint) -> bool {
        self.bits(name).all(|(word, bit)| self.0[word] & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_fingerprint::Algorithm;

    #[test]
    fn room_is_given_back_and_never_given_twice() {
        let room = Room::new(100);
        let first = room.take(60).unwrap();
        assert!(room.take(41).is_none());
        let second = room.take(40).unwrap();
        drop(first);
        assert!(room.take(61).is_none() && room.take(60).is_some());
        drop(second);
        assert!(room.take(100).is_some());
    }

    #[test]
    fn a_filter_has_all_its_keys_and_few_others() {
        for algorithm in [Algorithm::Blake3, Algorithm::Sha1] {
            let name = |number: u32| algorithm.fingerprint(&number.to_le_bytes());
            let mut filter = Filter::new(10_000);
            (0..10_000).for_each(|number| filter.insert(&name(number)));
            let again = Filter::from_bytes(&filter.to_bytes());
            assert!((0..10_000).all(|number| again.may_have(&name(number))));
            let wrong = (10_000..60_000).filter(|number| again.may_have(&name(*number))).count();
            assert!(wrong < 50_000 / 80, "{wrong}");
        }
        assert!(!Filter::new(0).may_have(&Algorithm::Blake3.fingerprint(b"x")));
    }
}
