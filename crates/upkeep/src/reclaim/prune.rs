//! Frees space: removes unused chunks, then merges containers of which little is needed (M0.19, M0.20).
//!
//! Containers that free the most space are merged first, until at most the wanted share of all bytes is unused.
//! Containers merged into one are neighbours by number, because chunks that were written together are read together.
//! Inside, chunks are sorted as the newest backup reads them, then as the volumes do (`order.rs`). So restores get
//! faster with age.

use super::order::ReadingOrder;
use super::requests::estimate;
use super::unused::{RemovalReport, remove_unused};
use crate::Monitor;
use crate::{Result, UpkeepError};
use onefold_engine::{ContainerId, DeadSlots, Engine, EngineError, PruneOptions, PruneReport};
use onefold_storage::StorageError;
use std::collections::HashSet;
use std::sync::Arc;

/// The most slots that containers merged into one may have in total. A container can have 65,535.
const MAX_SLOTS: usize = 60_000;

/// The most rounds over all nodes of a cluster.
const MAX_ROUNDS: usize = 64;

/// A container with unused chunks.
#[derive(Clone, Debug)]
struct Victim {
    container: ContainerId,
    dead_bytes: u64,
    live_bytes: u64,
}

/// Removes unused chunks and merges containers. Calls `go_on` between steps; finished steps are durable. With `dry_run`
/// nothing is changed. If several nodes have the store open, all of them do it.
pub fn prune(engine: &Arc<Engine>, options: PruneOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<PruneReport> {
    let mut here = prune_here(engine, options, monitor, go_on)?;
    if !engine.is_of_cluster() {
        return Ok(here);
    }
    let go_on = || go_on() && !monitor.is_cancelled();
    let mut elsewhere = PruneReport::default();
    // A chunk that was needed by removed metadata chunks alone may be any node's: each round goes a level down.
    for _ in 0..MAX_ROUNDS {
        let once = engine.prune_elsewhere(options, &go_on)?;
        let chunks = once.chunks;
        elsewhere.add_later(once);
        if options.dry_run || chunks == 0 || !go_on() {
            break;
        }
        here.add_later(prune_here(engine, options, monitor, &go_on)?);
    }
    here.add_beside(elsewhere);
    Ok(here)
}

/// Does what a node can do by itself: it removes chunks of its partitions of the index, and merges its containers.
pub fn prune_here(engine: &Arc<Engine>, options: PruneOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<PruneReport> {
    let mut report = PruneReport::default();
    loop {
        let (once, is_short_of_room) = prune_once(engine, options, monitor, go_on)?;
        let has_got_on = once.freed_bytes > 0 || once.chunks > 0;
        report.add_later(once);
        if !is_short_of_room {
            // What other nodes can remove now, they know when they have heard of it.
            if !options.dry_run
                && engine.is_of_cluster()
                && let Err(error) = engine.flush().and_then(|()| engine.deliver())
            {
                report.problems.push(format!("other nodes do not know yet what was removed: {error}"));
                report.is_complete = false;
            }
            return Ok(report);
        }
        report.is_complete = false;
        if !has_got_on {
            let place = engine.ground().describe("");
            return if report.freed_bytes > 0 { Ok(report) } else { Err(UpkeepError::Engine(EngineError::Full { place })) };
        }
        // The space freed may be what was missing. Retry.
    }
}

/// Prunes once. Also returns whether work is left because the disk has no space for a larger index or a merged
/// container.
fn prune_once(engine: &Arc<Engine>, options: PruneOptions, monitor: &dyn Monitor, go_on: &dyn Fn() -> bool) -> Result<(PruneReport, bool)> {
    let go_on = || go_on() && !monitor.is_cancelled();
    let mut report = PruneReport::default();
    let mut is_short = false;
    let table_bytes_before = table_bytes(engine);
    let mut found;
    if options.dry_run {
        monitor.step("unused chunks", 0);
        let would = super::unused::would_remove(engine, &go_on)?;
        (report.chunks, report.chunk_bytes, report.problems, report.is_complete) =
            (would.chunks, would.bytes, would.damaged, would.is_complete);
        found = Found::new(engine, options)?;
        would.dead.into_iter().for_each(|(container, slots)| found.add(container, &slots));
    } else {
        drop(engine.permit_deletion("prune")?);
        monitor.step("unused chunks", 0);
        let RemovalReport { chunks, bytes, damaged, kept_for, is_complete, is_short_of_room } = match remove_unused(engine, monitor, &go_on)
        {
            Err(UpkeepError::Engine(error)) if error.is_full() => RemovalReport { is_short_of_room: true, ..RemovalReport::default() },
            removed => removed?,
        };
        is_short = is_short_of_room;
        (report.chunks, report.chunk_bytes, report.problems, report.is_complete) = (chunks, bytes, damaged, is_complete);
        report.kept_for = kept_for;
        if let Err(error) = super::named::forget_useless(engine, chunks, &go_on) {
            tracing::warn!(%error, "files that are known by their names were left as they are");
        }
        found = Found::new(engine, options)?;
        engine.for_each_dead(&mut |container, slots| found.add(container, &slots))?;
    }
    if let Some(levels) = engine.levels().filter(|_| !options.dry_run) {
        monitor.step("compaction", 0);
        match engine.compact_all(&go_on) {
            Err(error) if error.is_full() => is_short = true,
            compacted => compacted?,
        }
        // Some of it came back while chunks were removed.
        report.freed_bytes = table_bytes_before.saturating_sub(table_bytes(engine));
        let damaged = levels.damaged_tables().into_iter();
        report.problems.extend(damaged.map(|path| format!("table {path} has damage and is not compacted; run `onefold check`")));
    }
    report.raw_bytes = engine.unique_bytes();
    report.unused_bytes = found.unused_bytes;
    let wanted = chosen(found.victims, report.unused_bytes, report.raw_bytes, options);
    let compression = engine.stored_bytes() as f64 / report.raw_bytes.max(1) as f64;
    let groups = groups(engine, wanted, compression);
    monitor.step("containers", groups.iter().map(|group| group.len() as u64).sum());
    if options.dry_run {
        for candidate in groups.iter().flatten() {
            report.containers_before += 1;
            report.unused_bytes -= candidate.dead_bytes;
            report.freed_bytes += (candidate.dead_bytes as f64 * compression) as u64;
        }
        report.containers_after = groups.iter().filter(|group| group.iter().any(|candidate| candidate.live_bytes > 0)).count() as u64;
        let live: Vec<Vec<u64>> = groups.iter().map(|group| group.iter().map(|candidate| candidate.live_bytes).collect()).collect();
        report.requests = estimate(engine, report.chunks, &live, compression)?;
        return Ok((report, false));
    }
    let moving = groups.iter().flatten().filter(|candidate| candidate.live_bytes > 0);
    let order = ReadingOrder::of(engine, moving.map(|candidate| candidate.container), &go_on)?;
    for group in &groups {
        if !go_on() {
            report.is_complete = false;
            break;
        }
        is_short |= !merge(engine, group, &order, &mut report)?;
        monitor.advance(group.len() as u64);
    }
    // The files of a merge may have waited for space.
    match engine.maintain(false) {
        Err(error) if error.is_full() => is_short = true,
        maintained => maintained?,
    }
    Ok((report, is_short))
}

/// Returns the bytes of the tables of a store with levels.
fn table_bytes(engine: &Engine) -> u64 {
    engine.levels().map_or(0, |levels| levels.levels().iter().map(|level| level.stored_bytes).sum())
}

/// The containers that may be merged.
struct Found<'a> {
    engine: &'a Engine,
    max_fill: f64,
    quarantined: HashSet<ContainerId>,
    /// Those that are empty enough: all others stay, whatever the store needs.
    victims: Vec<Victim>,
    /// Bytes of unused chunks, in all containers.
    unused_bytes: u64,
}

impl<'a> Found<'a> {
    fn new(engine: &'a Engine, options: PruneOptions) -> Result<Found<'a>> {
        let quarantined = engine.quarantined_containers()?;
        Ok(Found { engine, max_fill: options.max_fill, quarantined, victims: Vec::new(), unused_bytes: 0 })
    }

    /// Adds a container with unused chunks. Only sealed ones are merged. Chunks in quarantine stay where they are.
    fn add(&mut self, container: ContainerId, dead: &DeadSlots) {
        self.unused_bytes += dead.bytes;
        let victim = Victim { container, dead_bytes: dead.bytes, live_bytes: dead.of_bytes.saturating_sub(dead.bytes) };
        let is_empty_enough = victim.live_bytes == 0 || victim.fill() <= self.max_fill;
        if is_empty_enough
            && !dead.is_given_up()
            && !self.quarantined.contains(&container)
            && self.engine.containers().is_some_and(|containers| containers.is_sealed(container))
        {
            self.victims.push(victim);
        }
    }
}

impl Victim {
    /// Returns the share that is needed, from 0 to 1.
    fn fill(&self) -> f64 {
        self.live_bytes as f64 / (self.live_bytes + self.dead_bytes).max(1) as f64
    }
}

/// Returns the containers to merge: those that free the most first, until little enough of the `raw` bytes of the store
/// is `unused`. Containers without any needed chunk are always included.
fn chosen(mut candidates: Vec<Victim>, mut unused: u64, mut raw: u64, options: PruneOptions) -> Vec<Victim> {
    candidates.sort_by(|one, other| one.fill().total_cmp(&other.fill()).then(one.container.cmp(&other.container)));
    candidates.retain(|candidate| {
        let is_too_much = unused as f64 > options.max_unused * raw as f64;
        let is_wanted = candidate.live_bytes == 0 || (is_too_much && candidate.fill() <= options.max_fill);
        if is_wanted {
            unused = unused.saturating_sub(candidate.dead_bytes);
            raw = raw.saturating_sub(candidate.dead_bytes);
        }
        is_wanted
    });
    candidates
}

/// Returns groups of containers that become one: neighbours of a partition, as many as fill a container. Containers
/// without needed chunks form groups of their own. `compression` is stored bytes divided by raw bytes.
fn groups(engine: &Engine, mut wanted: Vec<Victim>, compression: f64) -> Vec<Vec<Victim>> {
    let room = (f64::from(engine.descriptor().container_bytes) / compression.max(1e-3)) as u64;
    wanted.sort_by_key(|candidate| (candidate.live_bytes > 0, candidate.container));
    let mut groups: Vec<Vec<Victim>> = Vec::new();
    let (mut live, mut slots) = (0, 0);
    for candidate in wanted {
        // Containers that cannot be read are left to the merge, which reports them.
        let own = engine.storage().chunks_of(candidate.container).map_or(0, |slots| slots.len());
        let fits = |group: &Vec<Victim>| {
            let first = &group[0];
            let is_alike =
                first.container.partition() == candidate.container.partition() && (first.live_bytes > 0) == (candidate.live_bytes > 0);
            is_alike && live + candidate.live_bytes <= room && slots + own <= MAX_SLOTS
        };
        if !groups.last().is_some_and(fits) {
            groups.push(Vec::new());
            (live, slots) = (0, 0);
        }
        live += candidate.live_bytes;
        slots += own;
        groups.last_mut().expect("there is one").push(candidate);
    }
    groups
}

/// Merges a group. A container that cannot be merged is reported and left alone, and the others are merged without it.
/// Returns false if some are left because the disk has no space for the merged container.
fn merge(engine: &Engine, group: &[Victim], order: &ReadingOrder, report: &mut PruneReport) -> Result<bool> {
    let victims: Vec<ContainerId> = group.iter().map(|candidate| candidate.container).collect();
    match engine.merge_containers(&victims, &|address| order.rank(address)) {
        Ok(None) => Ok(true),
        Ok(Some(merged)) => {
            report.containers_before += merged.files_before.containers;
            report.containers_after += merged.files_after.containers;
            report.freed_bytes += merged.stored_bytes_before.saturating_sub(merged.stored_bytes_after);
            report.unused_bytes = report.unused_bytes.saturating_sub(group.iter().map(|candidate| candidate.dead_bytes).sum());
            report.raw_bytes = (report.raw_bytes + merged.raw_bytes_after).saturating_sub(merged.raw_bytes_before);
            Ok(true)
        }
        Err(error) if is_of_one_container(&error) || error.is_full() => {
            if let [only] = group {
                report.is_complete = false;
                if !error.is_full() {
                    report.problems.push(format!("container {} is skipped: {error}", only.container));
                }
                return Ok(!error.is_full());
            }
            // There may be space for the container with the least needed data. What it frees may be enough for the next
            // one.
            let mut alone: Vec<&Victim> = group.iter().collect();
            alone.sort_by_key(|candidate| candidate.live_bytes);
            alone.into_iter().try_fold(true, |all, candidate| Ok(merge(engine, std::slice::from_ref(candidate), order, report)? && all))
        }
        Err(error) => Err(UpkeepError::Engine(error)),
    }
}

/// Returns whether the error concerns only these containers, so that others can still be merged.
fn is_of_one_container(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Wire { .. }
            | EngineError::Storage(StorageError::Damaged { .. } | StorageError::NotThere { .. } | StorageError::Merge { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW_BYTES: u64 = 10_000;

    /// Containers 1, 2, ... of 1000 bytes with so many dead.
    fn containers(dead: &[u64]) -> Vec<Victim> {
        let candidate = |(number, dead_bytes): (u32, &u64)| Victim {
            container: ContainerId::new(0, number),
            dead_bytes: *dead_bytes,
            live_bytes: 1000 - dead_bytes,
        };
        (1..).zip(dead).map(candidate).collect()
    }

    fn numbers(dead: &[u64], max_unused: f64, max_fill: f64) -> Vec<u32> {
        let options = PruneOptions { max_unused, max_fill, dry_run: false };
        let chosen = chosen(containers(dead), dead.iter().sum(), RAW_BYTES, options);
        chosen.iter().map(|candidate| candidate.container.number()).collect()
    }

    #[test]
    fn m0_20_the_most_profitable_are_merged_until_little_enough_is_unused() {
        let dead = [100, 900, 300, 600];
        assert_eq!(numbers(&dead, 0.0, 1.0), [2, 4, 3, 1]);
        // 1900 of 10000; without the first 1000 of 9100, without the second too 400 of 8500.
        assert_eq!(numbers(&dead, 0.19, 1.0), [0; 0]);
        assert_eq!(numbers(&dead, 0.18, 1.0), [2]);
        assert_eq!(numbers(&dead, 0.11, 1.0), [2]);
        assert_eq!(numbers(&dead, 0.10, 1.0), [2, 4]);
        assert_eq!(numbers(&dead, 0.04, 1.0), [2, 4, 3]);
    }

    #[test]
    fn m0_20_containers_above_the_fill_are_left_alone() {
        let dead = [100, 900, 300, 600, 500];
        assert_eq!(numbers(&dead, 0.0, 0.5), [2, 4, 5]);
        assert_eq!(numbers(&dead, 0.0, 0.49), [2, 4]);
        assert_eq!(numbers(&dead, 0.0, 0.0), [0; 0]);
    }

    #[test]
    fn m0_20_containers_without_any_needed_chunk_always_go() {
        assert_eq!(numbers(&[1000, 100, 1000], 1.0, 0.0), [1, 3]);
        // What they give back counts.
        assert_eq!(numbers(&[1000, 900], 0.1, 1.0), [1]);
    }
}
