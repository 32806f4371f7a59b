//! Repair, as in `repair`, of stores whose chunks are in levels of sorted tables (M2.6). The same after a crash at any
//! sync of a repair, and on a full disk.

#[path = "../repair/common.rs"]
mod common;
#[path = "../damage/merging.rs"]
mod merging;
#[allow(dead_code, reason = "shared with the tests of damage")]
#[path = "../damage/scene.rs"]
mod scene;

use common::{Damage, crash_at_any_sync, files, list, meet_errors_and_full_disks, must_be_sound, repaired, run};
use onefold_engine::{Engine, Mode, Settings, StoreProfile};
use onefold_ground::{Ground, SimulatedGround};
use onefold_storage::ChunkStore;
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, PruneOptions, check, prune, rebuild_chunk_index};
use scene::{Scene, open, settings};
use std::sync::Arc;

const PROFILE: StoreProfile = StoreProfile::Leveled;

fn tables(scene: &Scene) -> Vec<String> {
    files(scene, |path| path.ends_with(".table"))
}

#[test]
fn a_store_without_damage_is_left_as_it_is() {
    assert!(repaired(&Scene::new(), &[]).report.is_clean());
}

#[test]
fn m2_6_damage_of_a_table_costs_the_chunks_that_it_meets() {
    let scene = Scene::new();
    for (number, path) in tables(&scene).iter().enumerate() {
        let length = scene.length(path);
        for (turn, at) in (0..length).step_by(3001 + 89 * number).enumerate() {
            let damage = if turn % 3 == 0 { Damage::Zero(at, 64.min(length - at)) } else { Damage::Flip(at) };
            repaired(&scene, &[(path, damage)]);
        }
    }
}

#[test]
fn m2_6_a_table_that_is_gone_or_cut_costs_its_chunks_and_nothing_else() {
    let scene = Scene::new();
    let mut lost = 0;
    for path in tables(&scene) {
        let length = scene.length(&path);
        for damage in
            [Damage::Cut(0), Damage::Cut(5000), Damage::Cut(length / 2), Damage::Cut(length - 1), Damage::Zero(0, 96), Damage::Delete]
        {
            let problems = repaired(&scene, &[(&path, damage)]).report.problems;
            lost += problems.iter().filter(|problem| problem.kind == ProblemKind::Quarantined).count();
        }
    }
    assert!(lost > 0);
}

#[test]
fn m0_13_a_damaged_index_is_made_anew_from_tables_and_references_and_nothing_is_lost() {
    let scene = Scene::new();
    let pages = files(&scene, |path| path.contains("/pages-"));
    let mut cases: Vec<Vec<(&str, Damage)>> = vec![pages.iter().map(|path| (path.as_str(), Damage::Delete)).collect()];
    for path in &pages {
        cases.extend([Damage::Flip(50), Damage::Cut(100), Damage::Delete].map(|damage| vec![(path.as_str(), damage)]));
    }
    for case in cases {
        assert!(repaired(&scene, &case).report.is_clean(), "{case:?}");
    }
    let problems = rebuild_chunk_index(Arc::new(scene.copy()), settings(), "test", &NoMonitor).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn m2_8_a_damaged_manifest_is_written_again_and_nothing_is_lost() {
    let scene = Scene::new();
    for path in files(&scene, |path| path.ends_with("/manifest") || path.ends_with("/manifest-copy")) {
        let length = scene.length(&path);
        let both = path.replace("manifest-copy", "manifest");
        for damage in [Damage::Flip(3), Damage::Flip(length - 1), Damage::Cut(0), Damage::Cut(length / 2), Damage::Delete] {
            let ground = scene.copy();
            damage.apply(&ground, &path);
            if both != path {
                damage.apply(&ground, &both);
            }
            run(&ground, false).unwrap_or_else(|error| panic!("{path} {damage:?}: {error}"));
            assert!(must_be_sound(&ground, &scene, &format!("{path} {damage:?}")).report.is_clean());
            nothing_is_without_entry(&ground, &format!("{path} {damage:?}"));
        }
    }
}

#[test]
fn m2_8_removed_chunks_that_a_repair_brings_back_are_freed_by_the_next_prune() {
    let scene = Scene::new();
    let ground = scene.copy();
    // Nothing is compacted because of the number of its tables.
    let settings = Settings { levels_tables: 1000, ..settings() };
    let engine = Engine::open(Arc::new(ground.clone()), settings, Mode::ReadWrite, "test").unwrap();
    let volumes = onefold_volume::Volumes::open(engine.clone(), onefold_volume::VolumesOptions::default()).unwrap();
    volumes.create("gone", 64 << 10, 64 << 10, None).unwrap();
    let volume = volumes.get("gone").unwrap();
    let bytes = |seed: u64| (0..64u64 << 10).map(|at| onefold_ground::checksum(&(at + seed).to_le_bytes()) as u8).collect::<Vec<u8>>();
    volume.write(0, &bytes(0)[..8 << 10]).unwrap();
    volume.flush().unwrap();
    engine.compact_all(&|| true).unwrap();
    drop(volume);
    volumes.delete("gone").unwrap();
    while !volumes.resume_deletions(&|| true).unwrap() {}
    prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
    assert!(engine.levels().unwrap().levels().iter().map(|level| level.tombstones).sum::<u64>() > 0, "they are not compacted yet");
    // More is stored, until the log does not say any more what was removed.
    volumes.create("more", 64 << 10, 64 << 10, None).unwrap();
    let volume = volumes.get("more").unwrap();
    for number in 0..40u64 {
        volume.write(number << 9, &bytes(1_000_000 * (1 + number))[..512]).unwrap();
        volume.flush().unwrap();
    }
    drop(volume);
    engine.compact_all(&|| true).unwrap();
    engine.maintain(true).unwrap();
    let unique_bytes = engine.unique_bytes();
    drop(volumes);
    engine.close().unwrap();
    drop(engine);
    for path in files(&scene, |path| path.contains("/manifest")) {
        Damage::Cut(0).apply(&ground, &path);
    }
    run(&ground, false).unwrap();
    nothing_is_without_entry(&ground, "repaired");
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    assert!(engine.unique_bytes() > unique_bytes);
    prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
    assert!(engine.unique_bytes() < unique_bytes, "what is not needed has gone, that of the other volume too");
    engine.close().unwrap();
    drop(engine);
    must_be_sound(&ground, &scene, "pruned");
}

/// The index has all chunks of the tables: removed ones that came back too, so that the next prune frees them.
fn nothing_is_without_entry(ground: &SimulatedGround, what: &str) {
    let engine = open(ground, Mode::ReadOnly).unwrap();
    let levels = engine.levels().unwrap();
    for unit in levels.units().unwrap().iter() {
        let names: Vec<_> = levels.chunks_of(unit).unwrap().into_iter().map(|(_, slot)| slot.fingerprint).collect();
        let mut entries = Vec::new();
        engine.index().unwrap().lookup(&names, &mut entries).unwrap();
        let without = entries.iter().filter(|entry| entry.is_none()).count();
        assert_eq!(without, 0, "{what}: of {} chunks", names.len());
    }
}

#[test]
fn m2_6_a_damaged_log_costs_what_only_it_had() {
    let scene = Scene::new();
    let logs = files(&scene, |path| path.ends_with(".log"));
    for (number, path) in logs.into_iter().enumerate() {
        let length = scene.length(&path);
        for damage in [Damage::Zero(4096, 512), Damage::Flip(4096 + 70), Damage::Flip(length / 2), Damage::Cut(4096), Damage::Delete] {
            let what = format!("{path} {damage:?}");
            let ground = scene.copy();
            damage.apply(&ground, &path);
            let did = run(&ground, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            let again = run(&ground, false).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(again.actions, Vec::<String>::new(), "{what}: nothing is left to repair after {:?}", did.actions);
            let engine = open(&ground, Mode::ReadWrite).unwrap_or_else(|error| panic!("{what}: {error}"));
            let report = check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
            assert!(report.problems.iter().all(common::is_known_lost), "{what}: {:?}{}", did.actions, list(&report.problems));
            // Tables have what is behind the first batch, or later batches do.
            assert!(report.is_clean() || number > 0 || matches!(damage, Damage::Cut(_) | Damage::Delete), "{what}: {:?}", did.actions);
        }
    }
}

#[test]
fn what_can_be_read_again_is_restored() {
    let scene = Scene::new();
    for path in tables(&scene) {
        let ground = scene.copy();
        let length = scene.length(&path);
        let at = length - length / 4;
        Damage::Zero(at, length / 8).apply(&ground, &path);
        let lost = run(&ground, false).unwrap().quarantined_chunks;
        if lost == 0 || !ground.exists(&path).unwrap() {
            continue;
        }
        must_be_sound(&ground, &scene, "lost");
    }
}

/// A page of the index, a frame, a header, a manifest.
fn damaged(scene: &Scene, with_index: bool) -> SimulatedGround {
    let (ground, tables) = (scene.copy(), tables(scene));
    let largest = tables.iter().max_by_key(|path| scene.length(path)).unwrap();
    Damage::Flip(scene.length(largest) - 1000).apply(&ground, largest);
    let other = tables.iter().find(|path| *path != largest).unwrap();
    Damage::Flip(20).apply(&ground, other);
    Damage::Flip(30).apply(&ground, &files(scene, |path| path.ends_with("/manifest"))[0]);
    if with_index {
        Damage::Flip(60).apply(&ground, &files(scene, |path| path.contains("/pages-"))[0]);
    }
    ground
}

#[test]
fn a_repair_that_crashes_at_any_sync_is_ended_by_the_next() {
    let scene = Scene::new();
    for with_index in [false, true] {
        crash_at_any_sync(&scene, &|| damaged(&scene, with_index), &format!("index damaged too: {with_index}"));
    }
}

#[test]
fn a_repair_that_meets_errors_or_a_full_disk_is_ended_by_the_next() {
    let scene = Scene::new();
    meet_errors_and_full_disks(&scene, &|| damaged(&scene, true), 60);
}
