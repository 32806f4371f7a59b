//! Freeing space at all nodes: each removes chunks of its own partitions of the index, and merges its own containers.
//! Whoever is asked by an operator asks the others.

use crate::{Engine, Result};
use std::time::Duration;

/// When to merge containers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PruneOptions {
    /// The share of all stored bytes (0 to 1, before compression) that may stay unused.
    pub max_unused: f64,
    /// Containers of which a greater share is needed are not merged (0 to 1).
    pub max_fill: f64,
    /// Only report what would be done.
    pub dry_run: bool,
}

impl Default for PruneOptions {
    fn default() -> PruneOptions {
        PruneOptions { max_unused: 0.05, max_fill: 1.0, dry_run: false }
    }
}

/// What pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Chunks removed.
    pub chunks: u64,
    /// Their bytes before compression.
    pub chunk_bytes: u64,
    /// Container files removed.
    pub containers_before: u64,
    /// Container files created.
    pub containers_after: u64,
    /// Bytes of container files that were freed. For a dry run this is an estimate, by the mean compression of the
    /// store.
    pub freed_bytes: u64,
    /// Unused bytes, before compression, that remain in containers.
    pub unused_bytes: u64,
    /// Bytes of all chunks in containers, before compression.
    pub raw_bytes: u64,
    /// What could not be examined or merged, with the reason, one sentence each.
    pub problems: Vec<String>,
    /// The reader that unused chunks are kept for, if any.
    pub kept_for: Option<String>,
    /// Whether all unused chunks were removed and no container is left to merge.
    pub is_complete: bool,
    /// Of a dry run of a store in a bucket: about what it would request.
    pub requests: Option<PruneRequests>,
}

/// Requests by kind, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneRequests {
    /// Puts.
    pub puts: u64,
    /// Gets, and questions for a length.
    pub gets: u64,
    /// Pages of lists.
    pub lists: u64,
    /// Deletions.
    pub deletions: u64,
    /// Bytes of containers that would be read.
    pub read_bytes: u64,
    /// Bytes of containers that would be written.
    pub written_bytes: u64,
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
    pub fn prune_elsewhere(&self, options: PruneOptions, go_on: &dyn Fn() -> bool) -> Result<PruneReport> {
        let mut sum = PruneReport { is_complete: true, ..PruneReport::default() };
        let Some(cluster) = &self.cluster else { return Ok(sum) };
        let request = cluster.number_of_request(self.log.epoch());
        let mut open = cluster.others.everybody()?.nodes;
        loop {
            let mut failed = Vec::new();
            open.retain(|node| match cluster.others.reclaim(*node, request, options) {
                Ok(None) => true,
                Ok(Some(report)) => {
                    sum.add_beside(report);
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

impl PruneReport {
    /// Adds what another node has freed at the same time.
    pub fn add_beside(&mut self, other: PruneReport) {
        self.add_freed(&other);
        self.unused_bytes = self.unused_bytes.saturating_add(other.unused_bytes);
        self.raw_bytes = self.raw_bytes.saturating_add(other.raw_bytes);
        self.problems.extend(other.problems);
        self.kept_for = self.kept_for.take().or(other.kept_for);
        self.is_complete &= other.is_complete;
        if let Some(theirs) = other.requests {
            self.requests.get_or_insert_default().add(theirs);
        }
    }

    /// Adds the report of a later pruning. What the later one says is left replaces what this one says.
    pub fn add_later(&mut self, mut later: PruneReport) {
        later.add_freed(self);
        *self = later;
    }

    fn add_freed(&mut self, other: &PruneReport) {
        self.chunks = self.chunks.saturating_add(other.chunks);
        self.chunk_bytes = self.chunk_bytes.saturating_add(other.chunk_bytes);
        self.containers_before = self.containers_before.saturating_add(other.containers_before);
        self.containers_after = self.containers_after.saturating_add(other.containers_after);
        self.freed_bytes = self.freed_bytes.saturating_add(other.freed_bytes);
    }
}

impl PruneRequests {
    fn add(&mut self, other: PruneRequests) {
        self.puts = self.puts.saturating_add(other.puts);
        self.gets = self.gets.saturating_add(other.gets);
        self.lists = self.lists.saturating_add(other.lists);
        self.deletions = self.deletions.saturating_add(other.deletions);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }
}
