//! The windows that crashes came in: what the process was doing, and which operation on which kind of file met the
//! crash. Each name is a fault point; the list of those that a full run must meet is the proof that none of them is
//! left to chance.

use onefold_crash_harness::scenes::{Scenario, deriving, prepared, reclaiming};
use onefold_crash_harness::{Case, EXACT, policy};
use onefold_ground::{CrashPolicy, CrashSite};
use std::collections::BTreeMap;

/// What must be met: by what was being done, operation and kind of file. Where a directory is synced, its files were
/// created, renamed or removed before.
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

#[test]
fn m0_19_m0_20_m0_21_a_crash_in_every_window_of_reclamation_loses_nothing() {
    let mut windows = Windows::default();
    let seeds = EXACT.each_case(2, |case| crash_everywhere(case, &mut windows));
    if !seeds.are_enough() {
        return;
    }
    // Which files an operation meets depends on how threads take turns: what the seeds did not meet, a few more do.
    seeds.further(6).each(|seed| {
        if !windows.missed().is_empty() {
            crash_everywhere(Case { profile: &EXACT, seed }, &mut windows);
        }
    });
    let missed = windows.missed();
    assert!(missed.is_empty(), "no crash came in {missed:?}, but in {:#?}", windows.0);
}

/// Crashes at every operation of both scenarios, and of openings that finish what a crash left of a merge.
fn crash_everywhere(case: Case, windows: &mut Windows) {
    let seed = case.seed;
    let (base, known) = prepared(case);
    let mut interrupted = Vec::new();
    for scenario in [reclaiming as Scenario, deriving] {
        let whole = base.snapshot(CrashPolicy::KeepAll);
        let mut world = case.open(&whole).unwrap();
        scenario(&mut world, &mut known.clone()).unwrap();
        drop(world);
        for crash in 0..whole.operations() {
            let (ground, mut model) = (base.snapshot(CrashPolicy::KeepAll), known.clone());
            ground.crash_after_operations(crash);
            let mut doing = "open";
            if let Ok(mut world) = case.open(&ground) {
                drop(scenario(&mut world, &mut model));
                doing = world.doing;
            }
            let is_merge = doing == "prune" && ground.crash_site().is_some_and(|site| site.path.contains(".forward"));
            windows.note(doing, ground.crash_site());
            let left = ground.restart(policy(seed + crash));
            if is_merge && interrupted.len() < 2 {
                interrupted.push((left.snapshot(CrashPolicy::KeepAll), model.clone()));
            }
            case.reopen(&left, &mut model, &format!("{doing}, crash at operation {crash}"));
        }
    }
    for (base, known) in interrupted {
        for crash in 0.. {
            let (ground, mut model) = (base.snapshot(CrashPolicy::KeepAll), known.clone());
            ground.crash_after_operations(crash);
            drop(case.open(&ground));
            if !ground.is_crashed() {
                break;
            }
            windows.note("open", ground.crash_site());
            case.reopen(&ground.restart(policy(seed + crash)), &mut model, &format!("crash at operation {crash} of an opening"));
        }
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
