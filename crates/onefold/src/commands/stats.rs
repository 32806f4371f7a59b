//! `onefold stats`.

use super::scrub;
use crate::cli::Stats;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Output, Table};
use crate::session::{Session, StoreCommand, store_command};
use crate::store::Store;
use crate::units::{counted, duration, number, rate, size, times_less};
use onefold_engine::{ChunkStoreKind, Statistics, StoreProfile};
use onefold_storage::{LevelFigures, LevelsStore};
use onefold_upkeep::{Monitor, ScrubStatus, scrub_status};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The names of requests to a bucket begin with this, among the components.
const REQUEST: &str = "request ";

/// What volumes, backups and filesystems hold.
#[derive(Default)]
struct Contents {
    backups: u64,
    backup_bytes: u64,
    volumes: u64,
    volume_bytes: u64,
    filesystems: u64,
    filesystem_bytes: u64,
    files: u64,
}

impl Contents {
    /// Returns what they would have without deduplication, bytes.
    fn logical_bytes(&self) -> u64 {
        self.backup_bytes + self.volume_bytes + self.filesystem_bytes
    }
}

impl StoreCommand for Stats {
    store_command!("stats", far, reads, asks);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        run(self, session)
    }
}

/// Shows what is in the store and what it costs.
fn run(options: &Stats, session: &Session<'_>) -> Result<Exit> {
    let mut contents = Contents::default();
    session.catalog().visit(&mut |backup| {
        contents.backups += 1;
        contents.backup_bytes += backup.statistics.logical_bytes;
    })?;
    let volumes = session.volumes()?;
    for info in volumes.list() {
        if session.is_cancelled() {
            return Err(Failure::interrupted("stopped before all volumes were read"));
        }
        let bytes = volumes.get(&info.name).map_err(Failure::from).and_then(|volume| super::volume::data_bytes(&volume));
        match bytes {
            Ok(bytes) => {
                contents.volumes += 1;
                contents.volume_bytes += bytes;
            }
            // In a daemon, others may delete volumes meanwhile.
            Err(_) if volumes.get(&info.name).is_err() => {}
            Err(failure) => return Err(failure),
        }
    }
    let all = session.filesystems()?;
    for info in all.list() {
        // In a daemon, others may delete filesystems meanwhile. What is damaged is told by `check`.
        if let Ok(used) = all.usage(&info.name) {
            contents.filesystems += 1;
            contents.filesystem_bytes += used.used_bytes;
            contents.files += used.inodes;
        }
    }
    let statistics = session.store.engine.statistics()?;
    let scrubbed = scrub_status(&session.store.engine)?;
    let debt = merge_debt(session.store)?;
    let profile = session.store.engine.descriptor().profile;
    let mut output = session.output();
    if options.format.json {
        let mut value = to_json(&contents, &statistics, &scrubbed, debt);
        value["iscsi_sessions"] = iscsi_sessions(session).into();
        value["store_profile"] = profile.name().into();
        value["sampled_hooks"] = statistics.sampled_hooks.into();
        value["sampled_rate"] = statistics.sampled_rate.into();
        value["sampled_index_bytes"] = statistics.sampled_index_bytes.into();
        value["capacity_bytes"] = session.store.engine.descriptor().capacity_bytes.into();
        value["capacity_exceeded"] = session.store.engine.exceeded_capacity().is_some().into();
        value["missed_duplicates_estimate"] = statistics.missed_duplicates_estimate.into();
        if let Some(levels) = session.store.engine.levels() {
            value["levels"] = levels.levels().iter().map(level_to_json).collect();
            value["partition_bytes"] = levels.partition_bytes().into();
            let work = levels.work();
            value["compaction"] = json!({
                "flushed_bytes": work.flushed_bytes,
                "merge_read_bytes": work.merge_read_bytes,
                "merge_written_bytes": work.merge_written_bytes,
            });
        }
        output.json(&value)?;
    } else {
        let of_levels = session.store.engine.levels().map_or_else(Vec::new, |of| levels(of));
        print(&mut output, &contents, &statistics, profile, of_levels, &scrubbed, debt)?;
        if let Some(capacity_bytes) = session.store.engine.exceeded_capacity() {
            output.line(format_args!("\n{}", exceeds(capacity_bytes)))?;
        }
        if let Some(sessions) = iscsi_sessions(session) {
            output.line(format_args!("\n{} over iSCSI; `onefold session list` shows them", counted(sessions, "session", "sessions")))?;
        }
    }
    output.finish()?;
    Ok(Exit::Done)
}

fn level_to_json(level: &LevelFigures) -> Value {
    json!({
        "tables": level.tables,
        "chunks": level.chunks,
        "tombstones": level.tombstones,
        "raw_bytes": level.raw_bytes,
        "stored_bytes": level.stored_bytes,
        "capacity_bytes": level.capacity_bytes,
    })
}

/// Returns what is said of levels (M2.9).
fn levels(levels: &LevelsStore) -> Vec<(&'static str, String)> {
    let figures = levels.levels();
    let mut lines = Vec::new();
    for (number, level) in figures.iter().enumerate() {
        let name = if number == 0 { "levels" } else { "" };
        let tables = counted(level.tables, "table", "tables");
        lines.push((name, format!("{number}: {tables} with {} of {}", size(level.raw_bytes), size(level.capacity_bytes))));
    }
    lines.push((
        "",
        format!(
            "{} levels have room for {}, a further one for {}",
            figures.len(),
            size(levels.capacity_bytes(figures.len())),
            size(levels.capacity_bytes(figures.len() + 1))
        ),
    ));
    let work = levels.work();
    if work.flushed_bytes > 0 {
        let times = |bytes: u64| bytes as f64 / work.flushed_bytes as f64;
        lines.push((
            "",
            format!(
                "since the store was opened, compaction read {:.1} and wrote {:.1} bytes for each new one",
                times(work.merge_read_bytes),
                times(work.merge_written_bytes)
            ),
        ));
    }
    lines
}

/// Says that a store outgrew its capacity.
pub(super) fn exceeds(capacity_bytes: u64) -> String {
    format!(
        "more is stored than the capacity of {}: fewer chunks have a hook than planned, so more duplicates are stored again; \
         a larger `[memory] sampled_index` makes up for it",
        size(capacity_bytes)
    )
}

/// Returns the sessions of the daemon that runs this, if it serves iSCSI.
fn iscsi_sessions(session: &Session<'_>) -> Option<u64> {
    let iscsi = session.daemon()?.iscsi.as_deref()?;
    iscsi.server().map(|server| server.sessions().len() as u64)
}

fn ratio(whole: u64, part: u64) -> Option<f64> {
    (part > 0).then(|| whole as f64 / part as f64)
}

fn to_json(contents: &Contents, statistics: &Statistics, scrubbed: &ScrubStatus, debt: MergeDebt) -> Value {
    let logical = contents.logical_bytes();
    let profile: Map<String, Value> = statistics
        .activity
        .profile
        .iter()
        .map(|(name, usage)| (name.clone(), json!({"calls": usage.calls, "time_ns": usage.time_ns, "bytes": usage.bytes})))
        .collect();
    let filters: Map<String, Value> = statistics
        .activity
        .filters
        .iter()
        .map(|(name, [non_existing, weak_maybe, strong_maybe, existing])| {
            let verdicts =
                json!({"non_existing": non_existing, "weak_maybe": weak_maybe, "strong_maybe": strong_maybe, "existing": existing});
            (name.clone(), verdicts)
        })
        .collect();
    json!({
        "logical_bytes": logical,
        "backup_bytes": contents.backup_bytes,
        "volume_bytes": contents.volume_bytes,
        "filesystem_bytes": contents.filesystem_bytes,
        "unique_bytes": statistics.unique_bytes,
        "stored_bytes": statistics.stored_bytes,
        "unused_bytes": statistics.dead_bytes,
        "candidates": statistics.candidates,
        "candidates_complete": statistics.candidates_are_all,
        "quarantined_chunks": statistics.quarantined_chunks,
        "quarantined_bytes": statistics.quarantined_bytes,
        "merge_debt_bytes": debt.bytes,
        "merge_debt_containers": debt.containers,
        "disk_bytes": statistics.disk_bytes,
        "reserve_bytes": statistics.reserve_bytes,
        "reserve_in_use": statistics.reserve_in_use,
        "log_bytes": statistics.log_bytes,
        "chunks": statistics.chunks,
        "containers": statistics.containers,
        "dedup_ratio": ratio(logical, statistics.unique_bytes),
        "compression_ratio": ratio(statistics.unique_bytes, statistics.stored_bytes),
        "index_memory_bytes": statistics.index_memory_bytes,
        "index_filter_bytes": statistics.index_filter_bytes,
        "index_filter_limit_bytes": statistics.index_filter_limit_bytes,
        "index_filter_false_maybes": statistics.index_filter_false_maybes,
        "index_entries": statistics.index_entries,
        "index_cache_bytes": statistics.index_cache_bytes,
        "index_cache_limit_bytes": statistics.index_cache_limit_bytes,
        "index_cache_hits": statistics.index_cache_hits,
        "index_cache_misses": statistics.index_cache_misses,
        "backups": contents.backups,
        "volumes": contents.volumes,
        "filesystems": contents.filesystems,
        "filesystem_files": contents.files,
        "scrub": scrub::to_json(scrubbed),
        "parity_groups": statistics.parity_groups,
        "parity_containers": statistics.parity_containers,
        "repaired_containers": statistics.repaired_containers,
        "profile": profile,
        "filters": filters,
    })
}

/// Work that merging has left: containers that hold more unneeded data than the settings allow.
#[derive(Clone, Copy, Default)]
struct MergeDebt {
    containers: u64,
    /// Of all chunks in them, before compression.
    bytes: u64,
}

fn merge_debt(store: &Store) -> Result<MergeDebt> {
    let mut debt = MergeDebt::default();
    let fill = store.settings.reclamation.max_fill_percent;
    store.engine.for_each_dead(&mut |_, dead| {
        let needed = dead.of_bytes.saturating_sub(dead.bytes);
        if u128::from(needed) * 100 <= u128::from(dead.of_bytes) * u128::from(fill) {
            debt.containers += 1;
            debt.bytes += dead.of_bytes;
        }
    })?;
    Ok(debt)
}

fn parity(statistics: &Statistics) -> String {
    let covered = match statistics.parity_containers {
        0 => "none".to_owned(),
        covered => {
            format!(
                "{} of {}, in {}",
                number(covered),
                counted(statistics.containers, "container", "containers"),
                counted(statistics.parity_groups, "group", "groups")
            )
        }
    };
    match statistics.repaired_containers {
        0 => covered,
        repaired => format!("{covered}; {} rebuilt from it so far", counted(repaired, "container was", "containers were")),
    }
}

fn index_cache(statistics: &Statistics) -> String {
    let (used, limit) = (size(statistics.index_cache_bytes), size(statistics.index_cache_limit_bytes));
    let (hits, misses) = (statistics.index_cache_hits, statistics.index_cache_misses);
    let since = match hits + misses {
        0 => String::new(),
        _ => format!("; {} found in memory, {} read", counted(hits, "page", "pages"), number(misses)),
    };
    format!("{used} of {limit} for its pages{since}")
}

fn reserve(statistics: &Statistics) -> String {
    let in_use = if statistics.reserve_in_use == Some(true) {
        "; the disk is full: no new data is stored until the reserve is complete again"
    } else {
        ""
    };
    format!("{} for deleting on a full disk{in_use}", size(statistics.reserve_bytes))
}

fn damaged(scrubbed: &ScrubStatus) -> String {
    match scrubbed.damage_count {
        0 => String::new(),
        count => format!("; {} damaged, which `onefold scrub --status` lists", counted(count, "thing is", "things are")),
    }
}

/// Returns what is said of the index.
fn index(statistics: &Statistics, profile: StoreProfile) -> Vec<(&'static str, String)> {
    if !profile.is_exact() {
        let sample = match statistics.sampled_rate {
            0 => "one for each container".to_owned(),
            rate => format!("one of {} chunks is in the sample", number(rate)),
        };
        let hooks = counted(statistics.sampled_hooks, "hook", "hooks");
        return vec![
            ("index", format!("{hooks} in at most {} of memory; {sample}", size(statistics.sampled_index_bytes))),
            ("missed", format!("about {} of duplicates were not found", size(statistics.missed_duplicates_estimate))),
        ];
    }
    if profile.has_blocks() {
        let (entries, memory) = (counted(statistics.index_entries, "entry", "entries"), size(statistics.index_memory_bytes));
        return vec![("index", format!("{entries} on disk, {memory} of changes in memory"))];
    }
    vec![
        ("index", format!("{}, {} of memory", counted(statistics.index_entries, "entry", "entries"), size(statistics.index_memory_bytes))),
        ("", index_cache(statistics)),
        (
            "filter",
            format!(
                "{} of at most {}; about {:.2} % of new chunks read a page of the index",
                size(statistics.index_filter_bytes),
                size(statistics.index_filter_limit_bytes),
                statistics.index_filter_false_maybes * 100.0
            ),
        ),
    ]
}

fn print(
    output: &mut Output<'_>,
    contents: &Contents,
    statistics: &Statistics,
    profile: StoreProfile,
    of_levels: Vec<(&'static str, String)>,
    scrubbed: &ScrubStatus,
    debt: MergeDebt,
) -> Result<()> {
    let logical = contents.logical_bytes();
    let times = |whole, part| times_less(whole, part).map_or_else(String::new, |times| format!("  ({times})"));
    let (unique, stored) = (statistics.unique_bytes, statistics.stored_bytes);
    let has_containers = profile.has_containers();
    let in_containers = match profile.chunk_store() {
        ChunkStoreKind::Containers => format!(" in {}", counted(statistics.containers, "container", "containers")),
        ChunkStoreKind::Arena => ", a block each".to_owned(),
        ChunkStoreKind::Levels => String::new(),
    };
    let beginning = [
        (
            "logical",
            format!(
                "{}  (in {}, {} and {})",
                size(logical),
                counted(contents.backups, "backup", "backups"),
                counted(contents.volumes, "volume", "volumes"),
                counted(contents.filesystems, "filesystem", "filesystems")
            ),
        ),
        ("unique", format!("{}{}", size(unique), times(logical, unique))),
        ("stored", format!("{}{}", size(stored), times(unique, stored))),
        ("unused", format!("{} of unique, which `onefold prune` frees", size(statistics.dead_bytes))),
        (
            "to remove",
            format!(
                "{}{}",
                if statistics.candidates_are_all { "" } else { "at least " },
                counted(statistics.candidates, "chunk", "chunks")
            ),
        ),
        ("to merge", format!("{} in {}", size(debt.bytes), counted(debt.containers, "container", "containers"))),
        ("on disk", format!("{}, of it log {}", size(statistics.disk_bytes), size(statistics.log_bytes))),
        ("reserve", reserve(statistics)),
        ("chunks", format!("{}{in_containers}", number(statistics.chunks))),
    ];
    let end = [("parity", parity(statistics)), ("scrub", format!("{}{}", scrub::coverage(scrubbed), damaged(scrubbed)))];
    let lines = beginning.into_iter().chain(of_levels).chain(index(statistics, profile)).chain(end);
    for (name, value) in lines.filter(|(name, _)| has_containers || !["to merge", "parity"].contains(name)) {
        output.line(format_args!("{name:<9} {value}"))?;
    }
    if statistics.quarantined_chunks > 0 {
        let lost = counted(statistics.quarantined_chunks, "chunk", "chunks");
        output.line(format_args!("{:<9} {lost} in quarantine; `onefold check` says what needs them", "lost"))?;
    }
    if !statistics.activity.profile.is_empty() {
        output.line("\ntime by component, since the store was made")?;
        let mut table = Table::new(&["component", ">calls", ">time", ">bytes", ">rate"]);
        for (name, usage) in statistics.activity.profile.iter().filter(|(name, _)| !name.starts_with(REQUEST)) {
            let time = Duration::from_nanos(usage.time_ns);
            table.row(vec![name.clone(), number(usage.calls), duration(time), size(usage.bytes), rate(usage.bytes, time)]);
        }
        table.print(output)?;
    }
    let requests: Vec<_> =
        statistics.activity.profile.iter().filter_map(|(name, usage)| Some((name.strip_prefix(REQUEST)?, usage))).collect();
    if !requests.is_empty() {
        output.line("\nrequests to the bucket by processes that wrote, since the store was made")?;
        let mut table = Table::new(&["kind", ">requests", ">bytes"]);
        for (kind, usage) in requests {
            table.row(vec![kind.to_owned(), number(usage.calls), size(usage.bytes)]);
        }
        table.print(output)?;
    }
    if !statistics.activity.filters.is_empty() {
        output.line("\nverdicts of the filters")?;
        let mut table = Table::new(&["filter", ">non-existing", ">weak maybe", ">strong maybe", ">existing"]);
        for (name, verdicts) in &statistics.activity.filters {
            table.row(std::iter::once(name.clone()).chain(verdicts.iter().map(|count| number(*count))).collect());
        }
        table.print(output)?;
    }
    Ok(())
}
