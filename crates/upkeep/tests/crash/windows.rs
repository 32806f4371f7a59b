//! The windows that crashes came in: what the process was doing, and which operation on which kind of file met the crash. Each name is a fault
//! point; the list of those that a full run must meet is the proof that none of them is left to chance.

use crate::model::{Model, SLOTS};
use crate::world::{Fault, Random, World, policy};
use crate::{forget, reopen, run, seeds, steps};
use onefold_ground::{CrashPolicy, CrashSite, SimulatedGround};
use onefold_upkeep::{NoMonitor, PruneOptions};
use std::collections::BTreeMap;

/// What must be met: by what was being done, operation and kind of file. Where a directory is synced, its files were created, renamed or removed before.
const NAMED: [(&str, &[&str]); 9] = [
    // Removing unused chunks: the sweep that finds them, the batch, and what it is written into later.
    ("remove", &["write log", "sync log", "write index", "sync index", "write objects"]),
    (
        "prune",
        &[
            // The new container, which nobody knows before the record is in the log.
            "create container",
            "write container",
            "sync container",
            "sync containers",
            "write log",
            "sync log",
            // Forwards come, then old files go; first of all what needs no forward.
            "create new forward",
            "write new forward",
            "sync new forward",
            "rename new forward",
            "remove forward",
            "remove container",
        ],
    ),
    ("delete volume", &["write log", "sync log"]),
    ("drop layers", &["write log", "sync log"]),
    ("snapshot", &["write log", "sync log"]),
    ("clone", &["write log", "sync log"]),
    ("rollback", &["write log", "sync log"]),
    ("forget", &["write log", "sync log"]),
    // What an interrupted merge left is finished by the next opening.
    ("open", &["create new forward", "rename new forward", "remove container", "sync containers"]),
];

/// How often a crash came in each window.
#[derive(Debug, Default)]
struct Windows(BTreeMap<(&'static str, String), u64>);

impl Windows {
    /// The crash that has happened while `doing`.
    fn note(&mut self, doing: &'static str, site: Option<CrashSite>) {
        if let Some(site) = site {
            *self.0.entry((doing, format!("{} {}", site.operation, kind(&site.path)))).or_default() += 1;
        }
    }

    /// Those that no crash came in.
    fn missed(&self) -> Vec<(&'static str, String)> {
        let all = NAMED.iter().flat_map(|(doing, sites)| sites.iter().map(move |site| (*doing, (*site).to_owned())));
        all.filter(|window| !self.0.contains_key(window)).collect()
    }
}

/// What is done again and again, each time with a crash at another operation.
type Scenario = fn(&mut World, &mut Model) -> Result<(), Fault>;

/// Space is given back: backups and a volume go, then what they had.
pub fn reclaiming(world: &mut World, model: &mut Model) -> Result<(), Fault> {
    let random = &mut Random(1);
    for _ in 0..3 {
        forget::by_id(world, model, random)?;
    }
    forget::by_policy(world, model, random)?;
    for slot in [0, 1] {
        steps::delete(world, model, slot)?;
    }
    world.doing = "drop layers";
    while !world.volumes.resume_deletions(&|| true)? {}
    world.doing = "remove";
    onefold_upkeep::remove_unused(&world.engine, &NoMonitor, &|| true)?;
    world.doing = "prune";
    onefold_upkeep::prune(&world.engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true)?;
    Ok(())
}

/// Volumes come of others, and become what others were.
pub fn deriving(world: &mut World, model: &mut Model) -> Result<(), Fault> {
    let random = &mut Random(2);
    steps::delete(world, model, SLOTS - 1)?;
    for round in 0..6 {
        let slot = round % SLOTS;
        steps::write(world, model, random, slot)?;
        steps::derive(world, model, random, slot)?;
        steps::rollback(world, model, random, slot)?;
        steps::delete(world, model, (slot + 2) % SLOTS)?;
    }
    Ok(())
}

/// A store with backups, volumes, snapshots and containers that were merged, at rest.
pub fn prepared(seed: u64) -> (SimulatedGround, Model) {
    let ground = World::create(seed);
    let mut model = Model::new("m");
    let mut world = World::open(&ground, seed).unwrap();
    let mut random = Random(seed);
    for _ in 0..3 {
        run(&mut world, &mut model, &mut random, 50);
        onefold_upkeep::prune(&world.engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    }
    world.volumes.flush().unwrap();
    model.all_flushed();
    drop(world);
    (ground.restart(CrashPolicy::KeepAll), model)
}

#[test]
fn m0_19_m0_20_m0_21_a_crash_in_every_window_of_reclamation_loses_nothing() {
    let mut windows = Windows::default();
    let all = seeds(2);
    let is_whole = all.end - all.start >= 2;
    // Which files an operation meets depends on how threads take turns: what the seeds did not meet, a few more do.
    let further = all.end..all.end + 6;
    for seed in all.chain(further.clone()) {
        if further.contains(&seed) && (!is_whole || windows.missed().is_empty()) {
            break;
        }
        let (base, known) = prepared(seed);
        let mut interrupted = Vec::new();
        for scenario in [reclaiming as Scenario, deriving] {
            let whole = base.snapshot(CrashPolicy::KeepAll);
            let mut world = World::open(&whole, seed).unwrap();
            scenario(&mut world, &mut known.clone()).unwrap();
            drop(world);
            for crash in 0..whole.operations() {
                let (ground, mut model) = (base.snapshot(CrashPolicy::KeepAll), known.clone());
                ground.crash_after_operations(crash);
                let mut doing = "open";
                if let Ok(mut world) = World::open(&ground, seed) {
                    drop(scenario(&mut world, &mut model));
                    doing = world.doing;
                }
                let is_merge = doing == "prune" && ground.crash_site().is_some_and(|site| site.path.contains(".forward"));
                windows.note(doing, ground.crash_site());
                let left = ground.restart(policy(seed + crash));
                if is_merge && interrupted.len() < 2 {
                    interrupted.push((left.snapshot(CrashPolicy::KeepAll), model.clone()));
                }
                reopen(&left, seed, &mut model, &format!("{doing}, crash at operation {crash}"));
            }
        }
        // Openings that finish what a crash has left of a merge, and are interrupted themselves.
        for (base, known) in interrupted {
            for crash in 0.. {
                let (ground, mut model) = (base.snapshot(CrashPolicy::KeepAll), known.clone());
                ground.crash_after_operations(crash);
                drop(World::open(&ground, seed));
                if !ground.is_crashed() {
                    break;
                }
                windows.note("open", ground.crash_site());
                reopen(&ground.restart(policy(seed + crash)), seed, &mut model, &format!("crash at operation {crash} of an opening"));
            }
        }
    }
    if is_whole {
        let missed = windows.missed();
        assert!(missed.is_empty(), "no crash came in {missed:?}, but in {:#?}", windows.0);
    }
}

fn kind(path: &str) -> &'static str {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["log", ..] => "log",
        ["index", ..] => "index",
        ["objects", ..] => "objects",
        ["containers", _, _, name] if name.ends_with(".forward.new") => "new forward",
        ["containers", _, _, name] if name.ends_with(".forward") => "forward",
        ["containers", _, _, _] => "container",
        ["containers", ..] => "containers",
        _ => "others",
    }
}
