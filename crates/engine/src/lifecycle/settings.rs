//! Settings: choices that may differ from one opening of a store to the next.

use crate::cluster::Share;
use crate::lifecycle::descriptor::Descriptor;
use onefold_ground::Bucket;
use onefold_ground::time::TimeSource;
use onefold_oplog::{Owned, Ownership, PartitionClass};
use onefold_storage::CachePolicy;
use std::sync::Arc;

/// Bounds of memory and log, and the filter chain. The sum of the memory bounds is what the engine uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Auxiliary chunk index: entries that are not in the pages yet, bytes.
    pub auxiliary_index_bytes: usize,
    /// Pages of the chunk index kept for look-ups, bytes.
    pub chunk_index_cache_bytes: usize,
    /// Filter before the chunk index, bytes.
    pub chunk_index_filter_bytes: usize,
    /// Hooks of a sampled index, bytes.
    pub sampled_index_bytes: usize,
    /// Marks of a group while they are made, where liveness is marked, bytes. More of them go through a file.
    pub marks_bytes: usize,
    /// Whether a store opens for writing only if its hooks have room for one of each container. Tests use less memory.
    pub hooks_each_container: bool,
    /// Pages of the chunk index read in parallel. 1: a look-up reads one after the other.
    pub chunk_index_reads: usize,
    /// Filters of the tables of a levelled store, bytes. Tables without one are asked by reading a page.
    pub levels_filter_bytes: usize,
    /// By how much each level of such a store is larger than the one before, 2 to 100.
    pub levels_ratio: u32,
    /// Tables of its first level, and tables' worth of bytes, from which it is compacted, 2 to 1000.
    pub levels_tables: u32,
    /// The share of the time that compaction of levels takes while the store is in use, percent, 1 to 100. More if it
    /// falls behind.
    pub compaction_percent: u32,
    /// Decompressed frames kept for reading, bytes.
    pub frame_cache_bytes: usize,
    /// Catalogs of containers kept, for reading and for the container-cache filter, bytes.
    pub catalog_cache_bytes: usize,
    /// Which of them go first.
    pub catalog_cache_policy: CachePolicy,
    /// Frames on their way to compression and disk, bytes.
    pub in_flight_bytes: usize,
    /// Cache of the object index's database, bytes.
    pub object_index_cache_bytes: usize,
    /// Objects that are durable in the log but not in the database yet, bytes.
    pub object_index_pending_bytes: usize,
    /// Size of the Bloom filter (used only if the chain has one), bytes.
    pub bloom_bytes: usize,
    /// Names of the filters, in order.
    pub chain: Vec<String>,
    /// Size of a segment of the log, bytes.
    pub log_segment_bytes: u64,
    /// Log that may wait to be applied: bounds the time to open after a crash, bytes.
    pub log_limit_bytes: u64,
    /// Written data that may wait for its sync, bytes.
    pub commit_bytes: u64,
    /// The longest time that written data waits for its sync if nobody asks for one, milliseconds.
    pub commit_interval_ms: u64,
    /// Threads that compress.
    pub workers: usize,
    /// Containers that share one parity file, 2 to 16. 0: no parity is made. Existing parity is used and maintained in
    /// any case.
    pub parity_group: usize,
    /// The most space reserved for freeing space on a full disk, bytes; never more than a fiftieth of the device. 0:
    /// none.
    pub reserve_bytes: u64,
    /// Whether the store keeps no data: [`crate::Descriptor::discards_data`]. A store opens only if both agree.
    pub discards_data: bool,
    /// Whether background threads commit, sweep and persist. Without them, this happens only in
    /// [`crate::Engine::flush`] and [`crate::Engine::maintain`]: for tests that count every operation.
    pub background: bool,
    /// The clocks. Tests bring their own.
    pub time: TimeSource,
    /// What this opening owns, if several nodes have the store open. `None`: everything.
    pub share: Option<Share>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            auxiliary_index_bytes: 64 << 20,
            chunk_index_cache_bytes: 16 << 20,
            chunk_index_filter_bytes: 256 << 20,
            sampled_index_bytes: 256 << 20,
            marks_bytes: 64 << 20,
            hooks_each_container: false,
            chunk_index_reads: 64,
            levels_filter_bytes: 64 << 20,
            levels_ratio: 10,
            levels_tables: 10,
            compaction_percent: 25,
            frame_cache_bytes: 64 << 20,
            catalog_cache_bytes: 32 << 20,
            catalog_cache_policy: CachePolicy::default(),
            in_flight_bytes: 16 << 20,
            object_index_cache_bytes: 16 << 20,
            object_index_pending_bytes: 32 << 20,
            bloom_bytes: 16 << 20,
            chain: ["zero-chunk", "block-index", "container-cache", "chunk-index"].map(String::from).to_vec(),
            log_segment_bytes: 8 << 20,
            log_limit_bytes: 256 << 20,
            commit_bytes: 64 << 20,
            commit_interval_ms: 5000,
            workers: std::thread::available_parallelism().map_or(2, usize::from),
            parity_group: 0,
            reserve_bytes: 0,
            discards_data: false,
            background: true,
            time: TimeSource::default(),
            share: None,
        }
    }
}

impl Settings {
    /// Returns what this opening owns of a class, of which the store has `total` partitions. If it owns everything,
    /// under the epoch of the opening.
    pub(crate) fn ownership(&self, class: PartitionClass, total: u32, epoch: u64) -> Ownership {
        self.share.as_ref().map_or_else(|| Ownership::all(total, epoch), |share| share.of_class(class).clone())
    }

    /// Returns the partitions of objects that this opening has. Each node of several has the partition of its notes. It
    /// has the same number in the log of each: it goes to nobody.
    pub(crate) fn objects(&self, descriptor: &Descriptor, epoch: u64) -> Ownership {
        let Some(share) = &self.share else { return Ownership::all(descriptor.all_object_partitions().into(), epoch) };
        let partitions = u32::from(descriptor.object_partitions);
        let own = Owned { number: partitions, epoch };
        let owned = share.objects.owned().iter().copied().filter(|owned| owned.number < partitions).chain([own]);
        Ownership::of(partitions + 1, owned.collect()).expect("they ascend, and the own one is the last")
    }

    /// Returns the part of a store's bucket that only this node writes to.
    pub(crate) fn own_part(&self, bucket: Arc<dyn Bucket>) -> Arc<dyn Bucket> {
        match &self.share {
            Some(share) => share.own_part(bucket),
            None => bucket,
        }
    }
}
