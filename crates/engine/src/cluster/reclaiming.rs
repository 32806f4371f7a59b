//! Freeing space at all nodes: each removes chunks of its own partitions of the index, and merges its own containers.
//! Whoever is asked by an operator asks the others.

use crate::{Engine, Result};
use std::time::Duration;

/// How much may stay unused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReclaimLimits {
    /// The share of all stored bytes (0 to 1, before compression) that may stay unused.
    pub max_unused: f64,
    /// Containers of which a greater share is needed are not merged (0 to 1).
    pub max_fill: f64,
    /// Only find out what would be done.
    pub dry_run: bool,
}

/// What nodes have freed, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub chunk_bytes: u64,
    /// Container files removed.
    pub containers_before: u64,
    /// Container files created.
    pub containers_after: u64,
    /// Bytes of container files that were freed.
    pub freed_bytes: u64,
    /// Unused bytes, before compression, that are left.
    pub unused_bytes: u64,
    /// Bytes of all chunks, before compression.
    pub raw_bytes: u64,
    /// What could not be done, a sentence each.
    pub problems: Vec<String>,
    /// The reader that unused chunks are kept for, if any.
    pub kept_for: Option<String>,
    /// Whether nothing is left to do.
    pub is_complete: bool,
}

/// How often it looks whether other nodes are done.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Engine {
    /// Returns whether other nodes may have a part of the store.
    pub fn is_of_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Returns whether all partitions of objects are opened here.
    pub fn has_all_objects(&self) -> bool {
        (0..self.descriptor.object_partitions).all(|partition| self.objects.has_partition(partition))
    }

    /// Has all other nodes free space, and waits for them while `go_on`. A node that cannot be asked is a problem in
    /// the report. Errors: it cannot be told which nodes there are.
    pub fn reclaim_elsewhere(&self, limits: ReclaimLimits, go_on: &dyn Fn() -> bool) -> Result<Reclaimed> {
        let mut sum = Reclaimed { is_complete: true, ..Reclaimed::default() };
        let Some(cluster) = &self.cluster else { return Ok(sum) };
        let request = cluster.number_of_request(self.log.epoch());
        let mut open = cluster.others.everybody()?.nodes;
        loop {
            let mut failed = Vec::new();
            open.retain(|node| match cluster.others.reclaim(*node, request, limits) {
                Ok(None) => true,
                Ok(Some(reclaimed)) => {
                    sum.add(reclaimed);
                    false
                }
                Err(error) => {
                    failed.push(error.to_string());
                    false
                }
            });
            sum.is_complete &= failed.is_empty();
            sum.problems.extend(failed);
            if open.is_empty() {
                return Ok(sum);
            }
            if !go_on() {
                sum.is_complete = false;
                return Ok(sum);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Reclaimed {
    /// Adds what another node has freed.
    fn add(&mut self, other: Reclaimed) {
        self.chunks += other.chunks;
        self.chunk_bytes += other.chunk_bytes;
        self.containers_before += other.containers_before;
        self.containers_after += other.containers_after;
        self.freed_bytes += other.freed_bytes;
        self.unused_bytes += other.unused_bytes;
        self.raw_bytes += other.raw_bytes;
        self.problems.extend(other.problems);
        self.kept_for = self.kept_for.take().or(other.kept_for);
        self.is_complete &= other.is_complete;
    }
}
