//! Cases in which more than one thing comes together.

use crate::scene::{Scene, open, settings};
use crate::{Damage, PROFILE, content, files, is_known_lost, is_sealed, list, must_be_sound, run, sorted, write_volume_again};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::{Ground, SimulatedGround};
use onefold_index::IndexEntry;
use onefold_storage::ChunkKind;
use onefold_upkeep::{CheckOptions, Monitor, NoMonitor, Problem, ProblemKind, RepairOptions, RepairReport, StoreRoots, check, repair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn put_back(ground: &SimulatedGround, scene: &Scene, path: &str) {
    let file = ground.create(path).unwrap();
    file.write_at(0, &scene.bytes(path)).unwrap();
    file.sync().unwrap();
    ground.sync_directory(onefold_ground::parent(path)).unwrap();
}

fn containers(scene: &Scene) -> Vec<String> {
    files(scene, |path| path.starts_with("containers/") && !path.ends_with(".forward"))
}

fn sealed(scene: &Scene) -> Vec<String> {
    files(scene, |path| path.starts_with("containers/") && !path.ends_with(".forward") && is_sealed(scene, path))
}

#[test]
fn a_chunk_whose_newer_copy_rots_is_read_from_the_container_where_it_was_lost_once() {
    let scene = Scene::new();
    let mut restored = 0;
    for (number, path) in sealed(&scene).iter().enumerate() {
        let ground = scene.copy();
        // 1. A container is lost with its catalog: nothing is known of its slots.
        ground.remove(path).unwrap();
        run(&ground, false).unwrap();
        // 2. What the volume lost is stored again, and is in quarantine no more.
        write_volume_again(&ground, &scene, path);
        // 3. The file comes back, with copies that the index does not name.
        put_back(&ground, &scene, path);
        // 4. The containers that were made meanwhile rot, with or without their catalogs.
        for (newer, bytes) in content(&ground).iter().filter(|(name, _)| name.starts_with("containers/")) {
            if !scene.ground.exists(newer).unwrap() && bytes.len() > 8192 {
                let length = if number % 2 == 0 { 4000 } else { bytes.len() as u64 - 64 };
                Damage::Zero(64, length).apply(&ground, newer);
            }
        }
        let would = run(&ground, true).unwrap();
        let did = run(&ground, false).unwrap();
        assert!(did.check.is_clean(), "{path}: {:?}{}", did.actions, list(&did.check.problems));
        let counts = |report: &RepairReport| (report.quarantined_chunks, report.restored_chunks, report.check.is_clean());
        assert_eq!(counts(&would), counts(&did), "{path}: {:?} {:?}", would.actions, did.actions);
        restored += did.restored_chunks;
        // 5. The check knows the same, and 6. everything can be read.
        let found = must_be_sound(&ground, &scene, path);
        assert!(found.report.is_clean() && found.volume.iter().all(|(_, bytes)| bytes.is_some()), "{path}");
        assert!(found.backups.unwrap().values().flatten().all(|(_, bytes)| bytes.is_some()), "{path}");
        assert_eq!(run(&ground, false).unwrap().actions, Vec::<String>::new(), "{path}");
    }
    assert!(restored > 20, "{restored}");
}

/// The kinds of the chunks in quarantine that are needed.
fn needed_kinds(engine: &Engine) -> Vec<Option<ChunkKind>> {
    let mut all = Vec::new();
    engine.for_each_quarantined(&mut |chunk| all.push(chunk)).unwrap();
    let names: Vec<_> = all.iter().map(|chunk| chunk.fingerprint).collect();
    let mut entries = Vec::new();
    let Some(index) = engine.index() else { return all.iter().map(|chunk| chunk.kind).collect() };
    index.lookup(&names, &mut entries).unwrap();
    let is_nowhere = |entry: &Option<IndexEntry>| entry.map_or(!PROFILE.counts(), |entry| entry.address == 0);
    let is_counted = |entry: &Option<IndexEntry>| !PROFILE.counts() || entry.is_some_and(|entry| entry.count > 0);
    let needed = all.iter().zip(entries).filter(|(_, entry)| is_nowhere(entry) && is_counted(entry));
    needed.map(|(chunk, _)| chunk.kind).collect()
}

#[test]
fn m0_19_removal_waits_only_for_lost_chunks_that_others_hang_on() {
    let (mut held, mut free) = (0, 0);
    for scene in [Scene::new(), Scene::merged()] {
        for path in containers(&scene) {
            let ground = scene.copy();
            ground.remove(&path).unwrap();
            // The chunk index is rebuilt: what lost directories and recipes refer to is not counted.
            if !PROFILE.is_exact() {
                // There are no marks either that say it.
                files(&scene, |path| path.starts_with("marks/")).iter().for_each(|path| ground.remove(path).unwrap());
            } else {
                Damage::Flip(60).apply(&ground, &files(&scene, |path| path.contains("/pages-"))[0]);
            }
            run(&ground, false).unwrap();
            let engine = open(&ground, Mode::ReadWrite).unwrap();
            let kinds = needed_kinds(&engine);
            assert!(!kinds.contains(&None), "{path}: who needs a lost chunk tells what it was: {kinds:?}");
            let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| true, &mut Vec::new()).unwrap();
            let is_held = engine.why_nothing_is_removed().unwrap().is_some() || survey.held.is_some();
            let has_metadata = kinds.iter().any(|kind| *kind != Some(ChunkKind::Data));
            assert_eq!(is_held, has_metadata, "{path}: {kinds:?}");
            held += usize::from(is_held);
            free += usize::from(!is_held && !kinds.is_empty());
            let removed = onefold_upkeep::remove_unused(&engine, &NoMonitor, &|| true).unwrap();
            assert!(!is_held || removed.chunks == 0, "{path}");
            engine.close().unwrap();
            drop(engine);
            must_be_sound(&ground, &scene, &path);
            // Nothing has gone that what is lost may need.
            put_back(&ground, &scene, &path);
            let did = run(&ground, false).unwrap();
            assert!(did.check.is_clean(), "{path}: {:?}{}", did.actions, list(&did.check.problems));
            let found = must_be_sound(&ground, &scene, &path);
            assert!(found.backups.unwrap().values().flatten().all(|(_, bytes)| bytes.is_some()), "{path}");
        }
    }
    assert!(held > 0 && free > 0, "{held} {free}");
}

#[test]
fn what_needs_a_lost_directory_is_named_though_the_directory_can_be_read_where_it_was() {
    let scene = Scene::new();
    let mut tried = 0;
    for path in containers(&scene) {
        let ground = scene.copy();
        ground.remove(&path).unwrap();
        run(&ground, false).unwrap();
        put_back(&ground, &scene, &path);
        let engine = open(&ground, Mode::ReadOnly).unwrap();
        let report = check(&engine, CheckOptions::default(), &NoMonitor).unwrap();
        let has = |kind| report.problems.iter().any(|problem| problem.kind == kind);
        // Nothing can be lost and needed by nobody: else a repair would take it for unreachable and let its children
        // go.
        assert_eq!(has(ProblemKind::Quarantined), has(ProblemKind::Affected), "{path}:{}", list(&report.problems));
        tried += usize::from(needed_kinds(&engine).iter().any(|kind| *kind != Some(ChunkKind::Data)));
    }
    assert!(tried > 0);
}

/// A copy of the scene whose containers have parity.
fn with_parity(scene: &Scene, group: usize) -> SimulatedGround {
    let ground = scene.copy();
    let protecting = Settings { parity_group: group, ..settings() };
    let engine = Engine::open(Arc::new(ground.clone()), protecting, Mode::ReadWrite, "test").unwrap();
    assert!(engine.make_parity(true, &|| true).unwrap() > 0);
    engine.close().unwrap();
    drop(engine);
    ground
}

#[test]
fn a_dry_run_loses_nothing_that_parity_gives_back() {
    let scene = Scene::merged();
    let protected = with_parity(&scene, 4);
    for path in sealed(&scene).into_iter().filter(|path| protected.exists(path).unwrap()) {
        let length = scene.length(&path);
        for damage in [Damage::Delete, Damage::Flip(length - 3), Damage::Zero(0, length / 2)] {
            let ground = protected.snapshot(onefold_ground::CrashPolicy::KeepAll);
            damage.apply(&ground, &path);
            let before = content(&ground);
            let would = run(&ground, true).unwrap();
            assert!(content(&ground) == before, "{path} {damage:?}: a dry run changed something");
            let did = run(&ground, false).unwrap();
            assert!(did.check.is_clean() && did.check.repaired == 1 && did.quarantined_chunks == 0, "{path} {damage:?}: {:?}", did.actions);
            assert!(
                would.check.is_clean() && would.check.repaired == 1 && would.quarantined_chunks == 0,
                "{path} {damage:?}: {:?}",
                would.actions
            );
            assert!(must_be_sound(&ground, &scene, &path).report.is_clean());
        }
    }
}

#[test]
fn a_container_that_cannot_be_made_anew_keeps_a_repair_from_none_of_the_others() {
    let scene = Scene::merged();
    let protected = with_parity(&scene, 2);
    let all: Vec<String> = sealed(&scene).into_iter().filter(|path| protected.exists(path).unwrap()).collect();
    // Of two groups: the parity of each gives back one container.
    let group = |path: &String| {
        let number = format!("-{}", path.rsplit('/').next().unwrap());
        content(&protected).into_keys().find(|file| file.contains("/parity/") && file.contains(&number))
    };
    let gone = &all[0];
    let rotten = all.iter().find(|path| group(path).is_some_and(|found| Some(found) != group(gone))).expect("two groups");
    let mut went_on = 0;
    for room in (0..300_000).step_by(32 << 10) {
        let ground = protected.snapshot(onefold_ground::CrashPolicy::KeepAll);
        ground.remove(gone).unwrap();
        Damage::Zero(64, scene.length(rotten) - 64).apply(&ground, rotten);
        ground.set_capacity(ground.used_bytes() + room);
        let did = run(&ground, false);
        ground.set_capacity(u64::MAX);
        if let Ok(did) = did
            && did.actions.iter().any(|action| action.contains(" could not be rebuilt from parity: "))
        {
            let is_known = |problem: &Problem| is_known_lost(problem) || problem.what.contains("could not be rebuilt");
            assert!(did.check.problems.iter().all(is_known), "{room}: {:?}{}", did.actions, list(&did.check.problems));
            went_on += 1;
        }
        // With room everything comes back.
        let did = run(&ground, false).unwrap();
        assert!(did.check.is_clean(), "{room}: {:?}{}", did.actions, list(&did.check.problems));
        assert!(must_be_sound(&ground, &scene, gone).report.is_clean());
    }
    assert!(went_on > 0, "no disk was so full that a container could not be rebuilt and nothing else failed");
}

#[test]
fn a_dry_run_without_memory_counts_all_that_is_lost() {
    let scene = Scene::new();
    let ground = scene.copy();
    sealed(&scene).iter().for_each(|path| ground.remove(path).unwrap());
    let options = RepairOptions { dry_run: true, may_lose: true, memory_bytes: 64 << 10 };
    let would = repair(Arc::new(ground.clone()), settings(), options, "test", &NoMonitor).unwrap();
    let did = run(&ground, false).unwrap();
    assert!(did.quarantined_chunks > 64, "{}", did.quarantined_chunks);
    assert_eq!(would.quarantined_chunks, did.quarantined_chunks, "{:?} {:?}", would.actions, did.actions);
    assert!(would.actions.last().unwrap().contains("more chunks are lost than"), "{:?}", would.actions);
}

/// Cancels after some questions.
struct Patience(AtomicU64);

impl Monitor for Patience {
    fn step(&self, _what: &str, _total: u64) {}
    fn advance(&self, _units: u64) {}
    fn is_cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1))).unwrap() == 0
    }
}

#[test]
fn a_repair_that_is_cancelled_anywhere_leaves_a_sound_store_and_the_next_one_goes_on() {
    let scene = Scene::merged();
    let all = crate::much_damage(&scene);
    let damaged = || {
        let ground = scene.copy();
        all.iter().for_each(|(path, damage)| damage.apply(&ground, path));
        ground
    };
    let ground = damaged();
    run(&ground, false).unwrap();
    let expected = run(&ground, false).unwrap();
    for patience in (0..30).step_by(3).chain((30..300).step_by(45)) {
        let ground = damaged();
        let options = RepairOptions { dry_run: false, may_lose: true, memory_bytes: 16 << 20 };
        // Where opening needs a repair that was stopped, the store stays closed.
        let _ = repair(Arc::new(ground.clone()), settings(), options, "test", &Patience(AtomicU64::new(patience)));
        run(&ground, false).unwrap_or_else(|error| panic!("{patience}: {error}"));
        must_be_sound(&ground, &scene, &format!("{patience}"));
        let again = run(&ground, false).unwrap();
        assert_eq!(again.actions, Vec::<String>::new(), "{patience}");
        assert_eq!(sorted(again.check.problems), sorted(expected.check.problems.clone()), "{patience}");
    }
}
