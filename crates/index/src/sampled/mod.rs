//! Hooks: the sampled index (M3.4, M3.5).
//!
//! An exact index knows every chunk. This one keeps a sample: a *hook* leads from a fingerprint to the container that
//! has the chunk. Chunks that were stored together come back together. So one hook is enough to find a container, and
//! the container's catalog has the names of all others.
//!
//! # The sample
//! A fingerprint is in the sample if the low bits of its tag are zero: one of T, and T is a power of two. T begins at
//! 1, so a small store finds everything. Each container also has one hook that is *forced*: it stays whatever T is. It
//! is that of the fingerprint whose tag ends with the most zeros, which would be the last to go anyway.
//!
//! # When memory is full
//! There is no sweep and no pause. A hook that finds no room doubles T. From then on about half of all hooks are
//! outside of the sample. They stay and are used until another hook needs their place. So the memory is always full of
//! hooks, and what is found falls off slowly between two doublings. The paper's index thins itself at once.
//!
//! # Memory
//! One block without pointers, of buckets of 64 bytes (a cache line) with ten hooks each: 32 bits of container, 15 of
//! tag, and one that says whether it is forced. A hook may be in two buckets, and moves to its other one to make room.
//! So 93 % of 256 MiB are full when T doubles first: 6.9 bytes for each hook (paper: 22 to 32). A look-up reads two
//! cache lines.
//!
//! # Hooks are advice
//! Two fingerprints may have one tag and bucket, so a hook may lead to a container that does not have the chunk. This
//! happens to one of 1,600 look-ups, whatever T is. A hook may also be stale. Whoever follows a hook looks into the
//! catalog before believing it. A lost hook costs a duplicate.

mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use snapshot::{HooksRead, decode_header};

use onefold_fingerprint::Fingerprint;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::{Key, Put, Table};

/// Containers that one look-up returns for a fingerprint, at most.
pub const MAX_FOUND: usize = 4;

/// Fingerprints that are looked up under one lock.
const BATCH: usize = 256;

/// A hook that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The place of the fingerprint in the question.
    pub at: usize,
    /// The container that the hook leads to.
    pub container: u32,
}

/// What hooks take and tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HooksStatistics {
    /// All hooks.
    pub hooks: u64,
    /// Of these, the hooks that stay whatever T is: one for each container.
    pub forced: u64,
    /// The sample is one of 2 to this power of all fingerprints. `None`: only forced hooks are taken any more.
    pub rate_log2: Option<u32>,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

/// The hooks of a store.
#[derive(Debug)]
pub struct Hooks {
    table: RwLock<Table>,
    /// Buckets below are in the snapshot that is being written. Forced hooks do not move between these and the others,
    /// or it would have them never or twice.
    saved: AtomicUsize,
}

impl Hooks {
    /// The least memory for this many containers, in bytes: each has a hook then.
    pub fn minimum_bytes(containers: u64) -> u64 {
        (containers * table::BUCKET_BYTES as u64 * 10 / (table::HOOKS_IN_BUCKET as u64 * 9)).max(2 * table::BUCKET_BYTES as u64)
    }

    /// Returns how many hooks this much memory has when the sample becomes smaller for the first time.
    pub fn expected(memory_bytes: u64) -> u64 {
        memory_bytes / table::BUCKET_BYTES as u64 * table::HOOKS_IN_BUCKET as u64 / 100 * 93
    }

    /// Returns hooks without any, in `memory_bytes`, rounded down to buckets of 64 bytes, but at least two. The system
    /// gives the memory when it is written to first.
    pub fn new(memory_bytes: usize) -> Hooks {
        Hooks { table: RwLock::new(Table::new(memory_bytes)), saved: AtomicUsize::new(0) }
    }

    /// Appends the containers that hooks of these fingerprints lead to: for each at most [`MAX_FOUND`], the highest
    /// number first.
    pub fn find(&self, names: &[Fingerprint], out: &mut Vec<Found>) {
        let mut of_one = Vec::new();
        for (batch, names) in names.chunks(BATCH).enumerate() {
            let table = self.table.read();
            table.touch(names);
            for (at, name) in names.iter().enumerate() {
                of_one.clear();
                table.find(Key::of(name, table.buckets()), &mut |container| of_one.push(container));
                of_one.sort_unstable_by_key(|container| std::cmp::Reverse(*container));
                of_one.dedup();
                out.extend(of_one.iter().take(MAX_FOUND).map(|container| Found { at: batch * BATCH + at, container: *container }));
            }
        }
    }

    /// Adds the hooks of a container that has these chunks. Adding them again changes nothing. Returns false if not
    /// even one hook has room, or there are no chunks: then no hook leads to the container.
    ///
    /// # Panics
    /// If `container` is 0, which stands for no hook.
    pub fn add(&self, container: u32, names: &[Fingerprint]) -> bool {
        assert_ne!(container, 0, "containers are numbered from 1");
        let mut table = self.table.write();
        let saved = self.saved.load(Ordering::Relaxed);
        let buckets = table.buckets();
        let keys = || names.iter().map(|name| Key::of(name, buckets));
        let Some(forced) = keys().max_by_key(|key| key.zeros()) else { return false };
        let is_kept = table.put(forced, container, true, saved) == Put::Kept;
        for key in keys().filter(|key| *key != forced) {
            table.put(key, container, false, saved);
        }
        is_kept
    }

    /// Removes what leads from these fingerprints to a container. Fingerprints without a hook do not matter.
    pub fn remove(&self, container: u32, names: &[Fingerprint]) {
        let mut table = self.table.write();
        let buckets = table.buckets();
        for name in names {
            table.remove(Key::of(name, buckets), container);
        }
    }

    /// Returns how many of these fingerprints are in the sample, and its rate: one of 2 to this power is.
    pub fn count_sampled(&self, names: &[Fingerprint]) -> (u64, Option<u32>) {
        let table = self.table.read();
        let sampled = names.iter().filter(|name| table.has_in_sample(Key::of(name, table.buckets())));
        (sampled.count() as u64, table.statistics().rate_log2)
    }

    /// Returns the present figures, from counters.
    pub fn statistics(&self) -> HooksStatistics {
        self.table.read().statistics()
    }
}
