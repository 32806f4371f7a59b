//! Estimates the requests that a prune of a store in a bucket would send.
//!
//! Requests cost money at most services. The estimate follows from what a dry run found: batches of removed chunks,
//! containers that go, containers that are merged. It leaves out what any command that writes sends, and what other
//! commands do meanwhile. What is cached on this machine is not fetched, so fewer gets may come.

use crate::Result;
use onefold_engine::{Engine, MAX_CANDIDATES, PruneRequests};

/// Bytes of a get of a container, about.
const READ_BYTES: u64 = 8 << 20;
/// Names on a page of a list.
const PAGE: u64 = 1000;

/// Returns the requests of a removal of so many chunks, followed by merges of these groups of containers. A group has
/// the bytes that are needed of each of its containers; `compression` is stored bytes divided by raw bytes. `None`: the
/// store is not in a bucket.
pub(super) fn estimate(engine: &Engine, chunks: u64, groups: &[Vec<u64>], compression: f64) -> Result<Option<PruneRequests>> {
    if engine.ground().bucket().is_none() {
        return Ok(None);
    }
    let mut requests = PruneRequests::default();
    // Each removal is a batch, after one look for readers on other machines.
    let removals = chunks.div_ceil(MAX_CANDIDATES as u64);
    requests.puts += removals;
    requests.lists += removals;
    if !engine.descriptor().profile.counts() && chunks > 0 {
        // Marks and the list of what is swept, and the batches that name them.
        requests.puts += 4;
        requests.deletions += 1;
        let units = engine.storage().units()?.len() as u64;
        requests.lists += 1 + units.div_ceil(PAGE);
        requests.gets += units;
    }
    for group in groups {
        add_merge(&mut requests, group, compression);
    }
    Ok(Some(requests))
}

fn add_merge(requests: &mut PruneRequests, group: &[u64], compression: f64) {
    let stored = |raw: u64| (raw as f64 * compression) as u64;
    let moved: u64 = group.iter().map(|live| stored(*live)).sum();
    // The batch that records it.
    requests.puts += 1;
    for live in group {
        // Its catalog, its length, and that it goes.
        requests.gets += 2;
        requests.deletions += 1;
        if *live > 0 {
            requests.gets += stored(*live).div_ceil(READ_BYTES);
            // Its forward.
            requests.puts += 1;
        }
    }
    requests.puts += u64::from(moved > 0);
    requests.read_bytes += moved;
    requests.written_bytes += moved;
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_costs_reads_a_container_forwards_and_deletions() {
        let mut requests = PruneRequests::default();
        add_merge(&mut requests, &[0, 0, 0], 0.5);
        assert_eq!(requests, PruneRequests { puts: 1, gets: 6, deletions: 3, ..PruneRequests::default() });
        add_merge(&mut requests, &[10 << 20, 2 << 20], 0.5);
        let bytes = 6 << 20;
        let both = PruneRequests { puts: 5, gets: 12, deletions: 5, lists: 0, read_bytes: bytes, written_bytes: bytes };
        assert_eq!(requests, both);
    }
}
