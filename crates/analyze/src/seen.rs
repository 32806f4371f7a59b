//! Which fingerprints were seen, in bounded memory.
//!
//! A fingerprint is kept as its first 64 bits. Of `n` different chunks about `n^2 / 2^65` pairs are then taken for
//! duplicates that are none: with 10^8 chunks there is one wrong chunk in one of 3,700 runs, with 10^9 in one of 37,
//! and a wrong chunk changes a sum by one part in `n`.
//!
//! When the bound is reached, only fingerprints that end with a zero bit are kept, then with two, and so on: a *sample*
//! that is as random as the fingerprints are, so that a chunk and all its duplicates are in it or none of them. Sums
//! over it, times `2^bits`, are estimates.
//!
//! # Invariants
//! * The keys of a shard fill at most four fifths of its slots, so that a search ends.
//! * All keys have at least `sampling_bits` zeros at their end. The first bits choose the slot, so that a sample is
//!   spread evenly.
//! * Sums are kept for each number of zeros apart: those of any sample can be told at any time, and nothing is lost
//!   when the sample shrinks.

/// Parts of the table, which grow one by one: less memory is needed while it grows. Chosen by the first bits of a key.
const SHARD_BITS: u32 = 4;
/// Slots of a shard in the beginning, or up to twice as many.
const FIRST_SLOTS: usize = 128;
/// Fingerprints of fewer bits than these are no sample any more.
const MOST_SAMPLING_BITS: u32 = 48;

/// Whether a chunk was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// For the first time.
    First,
    /// Seen before, in the same path or in another one.
    Again,
    /// Not in the sample: nobody knows.
    NotSampled,
}

/// What chunks of one number of zeros, or of all in the sample, add up to.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    chunks: u64,
    bytes: u64,
    /// Of the lengths, in bytes.
    squares: f64,
    /// Bytes of the chunks that were new to a path.
    path_bytes: u64,
}

/// Sums over different chunks; estimates where there is a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unique {
    /// Different chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// For each path the bytes of its different chunks, added up: a chunk that is in two paths counts twice.
    pub path_bytes: u64,
    /// The sample is one of so many fingerprints; 1: all, the figures are exact.
    pub one_in: u64,
    /// Of 20 estimates of `bytes` one is further away from the truth, as a share of it. 0: exact.
    pub error: f64,
}

/// A set of fingerprints, each with the path that had it last.
#[derive(Debug)]
pub struct Seen {
    shards: Vec<Shard>,
    /// Sums of the chunks whose keys have so many zeros at their end.
    sums: Vec<Sums>,
    sampling_bits: u32,
    has_paths: bool,
    /// Most slots of a shard.
    most_slots: usize,
}

#[derive(Debug, Default)]
struct Shard {
    /// 0 where a slot is free.
    keys: Vec<u64>,
    /// The path that had the key last; empty if there is only one.
    paths: Vec<u32>,
    used: usize,
}

enum Slot {
    Held(usize),
    Free(usize),
}

impl Seen {
    /// A set in at most `bound_bytes` of memory (and 4 KiB). Where there is one path only, it is not remembered.
    pub fn new(bound_bytes: u64, has_paths: bool) -> Seen {
        let entry_bytes = if has_paths { 12 } else { 8 };
        // One shard at a time is there twice while it grows.
        let most = (bound_bytes / ((1 << SHARD_BITS) + 1) / entry_bytes).max(FIRST_SLOTS as u64);
        let most_slots = usize::try_from(most).unwrap_or(usize::MAX);
        let mut first_slots = most_slots;
        while first_slots >= 2 * FIRST_SLOTS {
            // After as many doublings exactly the bound is used.
            first_slots = first_slots.div_ceil(2);
        }
        let shards = (0..1 << SHARD_BITS).map(|_| Shard::new(first_slots, has_paths)).collect();
        Seen { shards, sums: vec![Sums::default(); 64], sampling_bits: 0, has_paths, most_slots }
    }

    /// Notes a chunk of `bytes` bytes in path number `path`. Paths come one after the other.
    pub fn insert(&mut self, fingerprint: u64, path: u32, bytes: u64) -> Sight {
        // 0 is a free slot; nobody meets this fingerprint.
        let key = if fingerprint == 0 { 1 << 63 } else { fingerprint };
        let zeros = key.trailing_zeros();
        if zeros < self.sampling_bits {
            return Sight::NotSampled;
        }
        let number = (key >> (64 - SHARD_BITS)) as usize;
        let shard = &mut self.shards[number];
        let sums = &mut self.sums[zeros as usize];
        match shard.find(key) {
            Slot::Held(slot) => {
                if self.has_paths && shard.paths[slot] != path {
                    shard.paths[slot] = path;
                    sums.path_bytes += bytes;
                }
                Sight::Again
            }
            Slot::Free(slot) => {
                shard.put(slot, key, path);
                sums.chunks += 1;
                sums.bytes += bytes;
                sums.squares += (bytes as f64).powi(2);
                sums.path_bytes += bytes;
                if shard.is_full() {
                    self.make_room(number);
                }
                Sight::First
            }
        }
    }

    /// The sample is one of so many fingerprints.
    pub fn one_in(&self) -> u64 {
        1 << self.sampling_bits
    }

    /// What the different chunks add up to.
    pub fn unique(&self) -> Unique {
        let mut sample = Sums::default();
        for sums in &self.sums[self.sampling_bits as usize..] {
            sample.chunks += sums.chunks;
            sample.bytes += sums.bytes;
            sample.squares += sums.squares;
            sample.path_bytes += sums.path_bytes;
        }
        let one_in = self.one_in();
        // Each chunk is in the sample with the probability p: the sum of lengths / p has the variance sum of squares *
        // (1 - p) / p^2.
        let error = match sample.bytes {
            0 => 0.0,
            bytes => 1.96 * ((1.0 - 1.0 / one_in as f64) * sample.squares).sqrt() / bytes as f64,
        };
        Unique {
            chunks: sample.chunks.saturating_mul(one_in),
            bytes: sample.bytes.saturating_mul(one_in),
            path_bytes: sample.path_bytes.saturating_mul(one_in),
            one_in,
            error,
        }
    }

    /// Memory of the table, in bytes.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| 8 * shard.keys.capacity() + 4 * shard.paths.capacity()).sum()
    }

    fn make_room(&mut self, number: usize) {
        let shard = &mut self.shards[number];
        if shard.keys.len() < self.most_slots {
            shard.rebuild((2 * shard.keys.len()).min(self.most_slots), self.has_paths, 0);
            return;
        }
        while self.shards.iter().any(Shard::is_full) && self.sampling_bits < MOST_SAMPLING_BITS {
            self.sampling_bits += 1;
            for shard in &mut self.shards {
                shard.rebuild(shard.keys.len(), self.has_paths, self.sampling_bits);
            }
        }
    }
}

impl Shard {
    fn new(slots: usize, has_paths: bool) -> Shard {
        Shard { keys: vec![0; slots], paths: if has_paths { vec![0; slots] } else { Vec::new() }, used: 0 }
    }

    fn is_full(&self) -> bool {
        self.used > self.keys.len() / 5 * 4
    }

    fn find(&self, key: u64) -> Slot {
        // The bits behind those that chose the shard, spread over the slots.
        let mut slot = ((u128::from(key << SHARD_BITS) * self.keys.len() as u128) >> 64) as usize;
        loop {
            match self.keys[slot] {
                held if held == key => return Slot::Held(slot),
                0 => return Slot::Free(slot),
                _ => slot = if slot + 1 == self.keys.len() { 0 } else { slot + 1 },
            }
        }
    }

    fn put(&mut self, slot: usize, key: u64, path: u32) {
        self.keys[slot] = key;
        if let Some(last) = self.paths.get_mut(slot) {
            *last = path;
        }
        self.used += 1;
    }

    /// Rebuilds the table with `slots`, of the keys that end with `zeros` zeros.
    fn rebuild(&mut self, slots: usize, has_paths: bool, zeros: u32) {
        let old = std::mem::replace(self, Shard::new(slots, has_paths));
        for (at, key) in old.keys.into_iter().enumerate() {
            if key != 0
                && key.trailing_zeros() >= zeros
                && let Slot::Free(slot) = self.find(key)
            {
                self.put(slot, key, old.paths.get(at).copied().unwrap_or(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Numbers that are as random as fingerprints.
    fn mix(number: u64) -> u64 {
        let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    proptest! {
        #[test]
        fn sums_are_those_of_a_map(paths in proptest::collection::vec(proptest::collection::vec(0..3000u64, 0..2000), 1..5)) {
            let mut seen = Seen::new(1 << 20, paths.len() > 1);
            let mut model: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
            for (path, chunks) in (0u32..).zip(&paths) {
                for chunk in chunks {
                    let expected = if model.contains_key(chunk) { Sight::Again } else { Sight::First };
                    prop_assert_eq!(seen.insert(mix(*chunk), path, chunk + 1), expected);
                    model.entry(*chunk).or_default().insert(path);
                }
            }
            let expected = Unique {
                chunks: model.len() as u64,
                bytes: model.keys().map(|chunk| chunk + 1).sum(),
                path_bytes: model.iter().map(|(chunk, paths)| (chunk + 1) * paths.len() as u64).sum(),
                one_in: 1,
                error: 0.0,
            };
            prop_assert_eq!(seen.unique(), expected);
        }
    }

    #[test]
    fn a_sample_in_bounded_memory_estimates_the_sums() {
        let bound = 256 << 10;
        let mut seen = Seen::new(bound, true);
        // 400,000 chunks in two paths, half of them in both; a few of them very often.
        for (path, chunks) in [(0, 0..300_000u64), (1, 100_000..400_000)] {
            for chunk in chunks {
                seen.insert(mix(chunk), path, 4096 + chunk % 8192);
                seen.insert(mix(chunk % 100), path, 4096);
                assert!(seen.memory_bytes() as u64 <= bound);
            }
        }
        let unique = seen.unique();
        let exact: u64 = (0..400_000u64).map(|chunk| 4096 + chunk % 8192).sum();
        let path_exact = exact + (100_000..300_000u64).map(|chunk| 4096 + chunk % 8192).sum::<u64>();
        assert!(unique.one_in >= 16 && unique.error > 0.001 && unique.error < 0.05, "{unique:?}");
        let off = |estimate: u64, exact: u64| (estimate as f64 / exact as f64 - 1.0).abs();
        // One in 20 is outside of the stated error; twice the error is never met.
        assert!(off(unique.bytes, exact) < 2.0 * unique.error, "{unique:?} of {exact}");
        assert!(off(unique.path_bytes, path_exact) < 3.0 * unique.error, "{unique:?} of {path_exact}");
        assert!(off(unique.chunks, 400_000) < 2.0 * unique.error, "{unique:?}");
    }

    #[test]
    fn the_least_memory_is_enough_for_any_number_of_fingerprints() {
        let mut seen = Seen::new(0, false);
        for chunk in 0..1_000_000 {
            seen.insert(mix(chunk), 0, 1);
        }
        assert!(seen.memory_bytes() <= 32 << 10, "{}", seen.memory_bytes());
        assert!(seen.unique().bytes.abs_diff(1_000_000) < 200_000, "{:?}", seen.unique());
        for fingerprint in [0, 1, u64::MAX, 1 << 63] {
            seen.insert(fingerprint, 0, 1);
        }
    }
}
