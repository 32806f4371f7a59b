//! How many hooks a store of profile `sampled` has for its chunks when it is full (M3.5).
//!
//! The rate is `R_min = (M / E) / (C / S)`: M bytes of memory, E bytes for a hook, C bytes of capacity, S bytes of a
//! chunk. Each container needs one hook, or nothing leads to its chunks.

use crate::{Descriptor, EngineError, Result, Settings};
use onefold_ground::size::{GIB, KIB, MIB, size};
use onefold_index::sampled::Hooks;

/// The hooks of a full store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Chunks, if they do not compress.
    pub chunks: u64,
    /// Containers.
    pub containers: u64,
    /// Hooks that the memory has room for.
    pub hooks: u64,
}

impl Coverage {
    /// Returns the hooks of a store that stores `capacity_bytes`, with this memory for them.
    pub fn of(descriptor: &Descriptor, capacity_bytes: u64, memory_bytes: u64) -> Coverage {
        Coverage {
            chunks: capacity_bytes / descriptor.chunk_sizes.target as u64,
            containers: capacity_bytes.div_ceil(u64::from(descriptor.container_bytes)),
            hooks: Hooks::expected(memory_bytes),
        }
    }

    /// Returns N, where one chunk of N has a hook; at least 1. It is 1 / R_min.
    pub fn chunks_for_hook(&self) -> u64 {
        self.chunks.div_ceil(self.hooks.max(1)).max(1)
    }

    /// Returns whether this much memory is too little for one hook for each container.
    pub fn lacks_memory(&self, memory_bytes: u64) -> bool {
        memory_bytes < Hooks::minimum_bytes(self.containers)
    }

    /// Returns the least memory with which each container has a hook, rounded up to what is easy to write.
    pub fn needed_bytes(&self) -> u64 {
        let bytes = Hooks::minimum_bytes(self.containers);
        let unit = match bytes {
            0..MIB => 64 * KIB,
            MIB..GIB => MIB,
            _ if bytes < 8 * GIB => GIB / 4,
            _ => GIB,
        };
        bytes.next_multiple_of(unit)
    }
}

/// Refuses settings whose hooks are too few for the containers of this many stored bytes, if the settings say so. There
/// may be more containers: some are not full.
pub(crate) fn check_memory(descriptor: &Descriptor, settings: &Settings, stored_bytes: u64) -> Result<()> {
    let memory_bytes = settings.sampled_index_bytes as u64;
    let coverage = Coverage::of(descriptor, stored_bytes, memory_bytes);
    if descriptor.profile.is_exact() || !settings.hooks_each_container || !coverage.lacks_memory(memory_bytes) {
        return Ok(());
    }
    let why = format!(
        "{} is too small for one hook for each container of {} of stored data; it needs at least {}",
        size(memory_bytes),
        size(stored_bytes),
        size(coverage.needed_bytes())
    );
    Err(EngineError::Invalid { what: "memory.sampled_index".into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreProfile;

    fn sampled() -> Descriptor {
        Descriptor { profile: StoreProfile::Sampled, ..Descriptor::new().unwrap() }
    }

    #[test]
    fn m3_5_the_lowest_rate_follows_from_memory_capacity_and_chunk_size() {
        let coverage = Coverage::of(&sampled(), 500 << 40, 1 << 30);
        assert_eq!((coverage.chunks, coverage.containers), (500 << 27, 500 << 18));
        // M / E = 1 GiB / 6.9 bytes; C / S = 500 TiB / 8 KiB.
        let expected = (500u64 << 27) as f64 / ((1u64 << 30) as f64 / 6.9);
        let found = coverage.chunks_for_hook() as f64;
        assert!((found / expected - 1.0).abs() < 0.01, "{found} and {expected}");
        // 131 million containers at 7.1 bytes.
        assert_eq!(coverage.needed_bytes(), 889 * MIB);
        // Every chunk of a small store has a hook.
        assert_eq!(Coverage::of(&sampled(), 1 << 30, 256 << 20).chunks_for_hook(), 1);
    }

    #[test]
    fn m3_5_memory_without_a_hook_for_each_container_is_refused_with_what_is_needed() {
        let settings =
            |sampled_index_bytes, hooks_each_container| Settings { sampled_index_bytes, hooks_each_container, ..Settings::default() };
        let refused = check_memory(&sampled(), &settings(64 << 10, true), 100 << 30).unwrap_err().to_string();
        assert!(refused.contains("memory.sampled_index: 64KiB is too small") && refused.ends_with("at least 192KiB"), "{refused}");
        check_memory(&sampled(), &settings(192 << 10, true), 100 << 30).unwrap();
        check_memory(&sampled(), &settings(128, false), 100 << 30).unwrap();
        check_memory(&sampled(), &settings(128, true), 0).unwrap();
        check_memory(&Descriptor::new().unwrap(), &settings(128, true), 100 << 30).unwrap();
        for (containers, needed) in [(0, 64 * KIB), (1 << 18, 2 * MIB), (1 << 28, 2 * GIB), (1 << 31, 15 * GIB)] {
            let coverage = Coverage { chunks: 0, containers, hooks: 0 };
            assert_eq!(coverage.needed_bytes(), needed, "{containers}");
            assert!(!coverage.lacks_memory(needed) && coverage.lacks_memory(needed / 2) == (containers > 0));
        }
    }
}
