//! What tests of repair do: damage a copy of a store, repair it, look at it.

use crate::scene::{Look, Scene, VOLUME, look, open, settings};
use onefold_engine::{Mode, Settings};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_upkeep::{NoMonitor, Problem, ProblemKind, RepairOptions, RepairReport, UpkeepError, repair};
use onefold_volume::{Volumes, VolumesOptions};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

pub fn run(ground: &SimulatedGround, dry_run: bool) -> Result<RepairReport, UpkeepError> {
    let options = RepairOptions { dry_run, may_lose: true, memory_bytes: 16 << 20 };
    repair(Arc::new(ground.clone()), Settings { ..settings() }, options, "test", &NoMonitor)
}

/// All files and their bytes.
pub fn content(ground: &SimulatedGround) -> BTreeMap<String, Vec<u8>> {
    fn walk(ground: &SimulatedGround, directory: &str, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in ground.list(directory).unwrap() {
            let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
            if entry.is_directory {
                walk(ground, &path, files);
            } else if path != "lock" {
                files.insert(path.clone(), onefold_ground::read_file(ground, &path, 1 << 30).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(ground, "", &mut files);
    files
}

pub fn is_known_lost(problem: &Problem) -> bool {
    matches!(problem.kind, ProblemKind::Quarantined | ProblemKind::Affected)
}

pub fn sorted(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by(|one, other| one.what.cmp(&other.what));
    problems
}

pub fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .filter(|problem| problem.kind != ProblemKind::Affected)
        .map(|problem| format!("\n  {:?} {}", problem.kind, problem.what))
        .collect()
}

/// What must hold after a repair: nothing is wrong but what is known to be lost, and nothing that is read is wrong.
pub fn must_be_sound(ground: &SimulatedGround, scene: &Scene, what: &str) -> Look {
    let found = look(ground, Mode::ReadWrite, scene.states.last().unwrap());
    assert!(found.refused.is_none(), "{what}: {:?}", found.refused);
    assert!(found.report.problems.iter().all(is_known_lost), "{what}:{}", list(&found.report.problems));
    assert!(found.agrees(scene.states.last().unwrap()), "{what}");
    found.assert_named(what);
    found
}

/// Writes the volume again, as its user would; then nothing of it is lost.
pub fn write_volume_again(ground: &SimulatedGround, scene: &Scene, what: &str) {
    let expected = &scene.states.last().unwrap().volume;
    {
        let engine = open(ground, Mode::ReadWrite).unwrap();
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        let volume = volumes.get(VOLUME).unwrap();
        volume.write(0, expected).unwrap();
        volume.flush().unwrap();
        drop((volume, volumes));
        onefold_upkeep::remove_unused(&engine, &NoMonitor, &|| true).unwrap();
        engine.close().unwrap();
    }
    let found = must_be_sound(ground, scene, what);
    assert!(found.volume.iter().all(|(_, bytes)| bytes.is_some()), "{what}");
    assert!(!found.report.problems.iter().any(|problem| problem.what.contains(&format!("{VOLUME:?}"))), "{what}");
}

#[derive(Clone, Copy, Debug)]
pub enum Damage {
    Flip(u64),
    Zero(u64, u64),
    Cut(u64),
    Delete,
}

impl Damage {
    /// Damages a file, durably: damage that a power cut would undo is none.
    pub fn apply(self, ground: &SimulatedGround, path: &str) {
        let open = || ground.open(path, Access::ReadWrite).unwrap();
        match self {
            Damage::Flip(at) => ground.corrupt(path, at, 0x20).unwrap(),
            Damage::Zero(at, length) => {
                let file = open();
                file.write_at(at, &vec![0; length as usize]).unwrap();
                file.sync().unwrap();
            }
            Damage::Cut(length) => {
                let file = open();
                file.set_len(length).unwrap();
                file.sync().unwrap();
            }
            Damage::Delete => {
                ground.remove(path).unwrap();
                ground.sync_directory(onefold_ground::parent(path)).unwrap();
            }
        }
    }
}

/// A dry run finds what the repair finds, where the repair rebuilds nothing that a dry run cannot keep in memory.
pub fn must_say_the_same(would: &RepairReport, did: &RepairReport, what: &str) {
    let is_left_out =
        |action: &String| action.starts_with("the chunk index") || action.contains("arena/header") || action.contains(".table");
    let is_rehearsed = !did.actions.iter().any(is_left_out);
    let actions = |report: &RepairReport| -> Vec<String> {
        let done = |action: &String| action.replace("would be", "was").replace("were", "was").replace("could be removed", "may be removed");
        report.actions.iter().map(done).collect()
    };
    if is_rehearsed {
        assert_eq!(actions(would), actions(did), "{what}");
        assert_eq!(sorted(would.check.problems.clone()), sorted(did.check.problems.clone()), "{what}");
        assert_eq!(would.quarantined_chunks, did.quarantined_chunks, "{what}");
        assert_eq!(would.restored_chunks, did.restored_chunks, "{what}");
        assert_eq!(would.check.repaired, did.check.repaired, "{what}");
    }
    assert_eq!(would.actions.is_empty(), did.actions.is_empty(), "{what}: {:?} {:?}", would.actions, did.actions);
}

/// Repairs a damaged copy in every way that must do the same.
pub fn repaired(scene: &Scene, damage: &[(&str, Damage)]) -> Look {
    let what = format!("{damage:?}");
    let ground = scene.copy();
    damage.iter().for_each(|(path, damage)| damage.apply(&ground, path));
    let before = content(&ground);
    let would = run(&ground, true).unwrap_or_else(|error| panic!("{what}: dry run: {error}"));
    assert!(content(&ground) == before, "{what}: a dry run changed something");
    let did = run(&ground, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    must_say_the_same(&would, &did, &what);
    assert!(did.check.problems.iter().all(is_known_lost), "{what}: {:?}{}", did.actions, list(&did.check.problems));
    let found = must_be_sound(&ground, scene, &what);
    let again = run(&ground, false).unwrap();
    assert_eq!(again.actions, Vec::<String>::new(), "{what}: the second time");
    assert_eq!(sorted(again.check.problems), sorted(did.check.problems), "{what}");
    write_volume_again(&ground, scene, &what);
    found
}

pub fn files(scene: &Scene, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let files: Vec<String> = scene.files().into_iter().filter(|path| wanted(path)).collect();
    assert!(!files.is_empty());
    files
}

/// Interrupts a repair at each of its syncs. The next one ends it, with the same losses.
pub fn crash_at_any_sync(scene: &Scene, damaged: &dyn Fn() -> SimulatedGround, what: &str) {
    let ground = damaged();
    let start = ground.syncs();
    run(&ground, false).unwrap();
    let expected = must_be_sound(&ground, scene, what).report.quarantined_chunks;
    assert!(expected > 0, "{what}");
    let syncs = ground.syncs() - start;
    assert!(syncs > 10, "{syncs}");
    for crash in 0..syncs {
        for policy in [CrashPolicy::DropAll, CrashPolicy::Random { seed: crash }, CrashPolicy::KeepAll] {
            let what = format!("crash at sync {crash} of {syncs}, {policy:?}, {what}");
            let ground = damaged();
            ground.crash_after_syncs(crash);
            let _ = run(&ground, false);
            let ground = ground.restart(policy);
            run(&ground, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = must_be_sound(&ground, scene, &what);
            assert_eq!(found.report.quarantined_chunks, expected, "{what}:{}", list(&found.report.problems));
        }
    }
}

/// Lets a repair meet errors and full disks, for so many seeds. The next one ends it.
pub fn meet_errors_and_full_disks(scene: &Scene, damaged: &dyn Fn() -> SimulatedGround, seeds: u64) {
    for seed in 0..seeds {
        let ground = damaged();
        if seed % 2 == 0 {
            ground.set_capacity(ground.used_bytes() + seed * 3000);
        } else {
            ground.fail_operation(seed * 7, ErrorKind::Other);
        }
        let _ = run(&ground, false);
        ground.set_capacity(u64::MAX);
        let ground = ground.restart(CrashPolicy::KeepAll);
        run(&ground, false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        must_be_sound(&ground, scene, &format!("seed {seed}"));
    }
}
