//! A store whose log lost a part: what the repair says of it, also if it is cut short, and that nothing is destroyed
//! for it.

use crate::scene::{Scene, VOLUME, look, noise, open, settings, settle};
use onefold_catalog::Catalog;
use onefold_engine::{Engine, Mode, SalvageOptions, Settings, Transaction};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_oplog::{Log, LogOptions, Opening, Position, SegmentLog};
use onefold_upkeep::{
    CheckOptions, NoMonitor, PruneOptions, RepairOptions, check, prune, rebuild_chunk_index, repair as repair_all, salvage,
};
use onefold_volume::{Volumes, VolumesOptions};
use std::sync::Arc;

const LAYERS_KEPT: &str = "objects/layers-kept";

fn end_of_log(ground: &SimulatedGround) -> Position {
    let store = open(ground, Mode::ReadOnly).unwrap().descriptor().store;
    let options = LogOptions { segment_bytes: settings().log_segment_bytes, limit_bytes: settings().log_limit_bytes };
    SegmentLog::open(Arc::new(ground.clone()), "log", store, options, Opening::ReadOnly).unwrap().end()
}

/// Zeros a part of the log.
fn lose(ground: &SimulatedGround, from: Position, to: Position) {
    let entries = ground.list("log").unwrap();
    let starts: Vec<u64> = entries.iter().filter_map(|entry| u64::from_str_radix(entry.name.strip_suffix(".log")?, 16).ok()).collect();
    for at in (from.0..to.0).step_by(512) {
        let start = starts.iter().rfind(|start| **start <= at).unwrap();
        let file = ground.open(&format!("log/{start:016x}.log"), Access::ReadWrite).unwrap();
        file.write_at(4096 + at - start, &[0; 512]).unwrap();
    }
}

fn repair(ground: &SimulatedGround) -> Result<Vec<String>, String> {
    repair_with(ground, &settings())
}

fn repair_with(ground: &SimulatedGround, settings: &Settings) -> Result<Vec<String>, String> {
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let options = SalvageOptions { dry_run: false, may_lose: true };
    salvage(&shared, settings, options, "test", &NoMonitor).map(|done| done.sentences).map_err(|error| error.to_string())
}

/// What would be lost, for which a repair does nothing; `None`: it repaired.
fn refused(ground: &SimulatedGround) -> Option<Vec<String>> {
    let ground = ground.snapshot(CrashPolicy::KeepAll);
    let before = ground.operations();
    let options = RepairOptions { dry_run: false, may_lose: false, memory_bytes: 16 << 20 };
    let losses = repair_all(Arc::new(ground.clone()), settings(), options, "test", &NoMonitor).unwrap().refused?;
    assert_eq!(ground.operations(), before, "a refused repair wrote");
    Some(losses.sentences)
}

/// A store in which the part of the log is lost that says that a snapshot was made, and the volume was written to
/// afterwards.
fn without_a_snapshot(scene: &Scene) -> SimulatedGround {
    let ground = scene.copy();
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volume = volumes.get(VOLUME).unwrap();
    engine.maintain(true).unwrap();
    let position = || end_of_log(&ground.snapshot(CrashPolicy::KeepAll));
    let before = position();
    volumes.snapshot(VOLUME, "snapshot").unwrap();
    engine.flush().unwrap();
    let after = position();
    volume.write(300_000, &noise(91, 9000)).unwrap();
    volume.flush().unwrap();
    drop((volume, volumes, engine));
    let ground = ground.restart(CrashPolicy::KeepAll);
    lose(&ground, before, after);
    settle(&ground);
    ground
}

#[test]
fn m0_21_a_layer_without_volume_stays_after_a_hole_in_the_log_until_a_person_says_otherwise() {
    let scene = Scene::new();
    let ground = without_a_snapshot(&scene);
    let said = repair(&ground).unwrap();
    assert!(said.iter().any(|sentence| sentence.contains(LAYERS_KEPT)), "{said:?}");
    let has_unused_layer = || {
        let engine = open(&ground, Mode::ReadWrite).unwrap();
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        assert!(volumes.resume_deletions(&|| true).unwrap());
        assert!(volumes.get("snapshot").is_err());
        engine.flush().unwrap();
        let report = check(&engine, CheckOptions::default(), &NoMonitor).unwrap();
        report.problems.iter().any(|problem| problem.what.contains("is used by no volume"))
    };
    assert!(has_unused_layer());
    assert!(has_unused_layer());
    ground.remove(LAYERS_KEPT).unwrap();
    assert!(!has_unused_layer());
    // The volume is as it was before the snapshot.
    let found = look(&ground, Mode::ReadWrite, scene.states.last().unwrap());
    assert!(found.agrees(scene.states.last().unwrap()) && found.volume.iter().all(|(_, bytes)| bytes.is_some()));
    assert!(!found.is_found(), "{:?} {:?}", found.refused, found.report.problems);
}

#[test]
fn m0_21_a_new_log_starts_where_a_log_can_whatever_the_sizes_of_segments_and_log_are() {
    let scene = Scene::new();
    for (log_segment_bytes, log_limit_bytes) in [(10_000_000, 256 << 20), (8 << 20, 300_000_000)] {
        let settings = Settings { log_segment_bytes, log_limit_bytes, ..settings() };
        let ground = scene.copy();
        let open = |mode| Engine::open(Arc::new(ground.clone()), settings.clone(), mode, "test");
        let engine = open(Mode::ReadWrite).unwrap();
        let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
        let volume = volumes.get(VOLUME).unwrap();
        let before = end_of_log(&ground.snapshot(CrashPolicy::KeepAll));
        for seed in [91, 92] {
            volume.write(300_000, &noise(seed, 90_000)).unwrap();
            volume.flush().unwrap();
        }
        drop((volume, volumes, engine));
        let ground = ground.restart(CrashPolicy::KeepAll);
        lose(&ground, before, Position(before.0 + 512));
        repair_with(&ground, &settings).unwrap();
        let engine = Engine::open(Arc::new(ground.clone()), settings.clone(), Mode::ReadWrite, "test").unwrap();
        engine.close().unwrap();
        drop(engine);
        assert_eq!(repair_with(&ground, &settings).unwrap(), [] as [String; 0]);
    }
}

#[test]
fn what_was_deleted_before_the_log_was_replaced_does_not_come_back_when_the_object_index_is_lost_then() {
    let scene = Scene::new();
    let ground = scene.copy();
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volume = volumes.get(VOLUME).unwrap();
    engine.maintain(true).unwrap();
    engine.object_index().copy_objects().unwrap();
    let catalog = Catalog::new(engine.clone());
    let backups = catalog.list().unwrap();
    catalog.remove_backups(&backups[..1]).unwrap();
    engine.flush().unwrap();
    let before = end_of_log(&ground.snapshot(CrashPolicy::KeepAll));
    for seed in [91, 92] {
        volume.write(300_000, &noise(seed, 9000)).unwrap();
        volume.flush().unwrap();
    }
    drop((volume, volumes, catalog, engine));
    let ground = ground.restart(CrashPolicy::KeepAll);
    lose(&ground, before, Position(before.0 + 512));
    repair(&ground).unwrap();
    ground.remove("objects/0000.redb").unwrap();
    repair(&ground).unwrap();
    let left = Catalog::new(open(&ground, Mode::ReadOnly).unwrap()).list().unwrap();
    assert!(left.iter().map(|backup| backup.id).eq(backups[1..].iter().map(|backup| backup.id)));
}

#[test]
fn the_figures_of_a_store_are_set_right_when_its_chunk_index_is_made_anew() {
    let scene = Scene::new();
    let ground = scene.copy();
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let catalog = Catalog::new(engine.clone());
    catalog.remove_backups(&catalog.list().unwrap()).unwrap();
    // Some containers are merged, others have dead chunks.
    let options = PruneOptions { max_unused: 0.05, ..PruneOptions::default() };
    prune(&engine, options, &NoMonitor, &|| true).unwrap();
    // The log gets on until nothing in it says the figures.
    for round in 0..40 {
        engine.submit(Transaction { changes: vec![(0, b"z".to_vec(), Some(noise(round, 8 << 10)))], references: Vec::new() }).unwrap();
        engine.flush().unwrap();
        engine.maintain(true).unwrap();
    }
    drop((catalog, engine));
    let figures = |ground: &SimulatedGround| {
        let found = open(ground, Mode::ReadWrite).unwrap().statistics().unwrap();
        (found.chunks, found.dead_bytes, found.unique_bytes, found.stored_bytes)
    };
    let before = figures(&ground);
    assert!(before.1 > 0);
    rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
    assert_eq!(figures(&ground), before);
    // They are lost with the object index, and so is what is dead.
    ground.remove("objects/0000.redb").unwrap();
    repair(&ground).unwrap();
    let after = figures(&ground);
    assert_eq!((after.1, after.2, after.3), (0, before.2, before.3));
    assert!(after.0 >= before.0);
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let moment = engine.moment(None).unwrap();
    assert_eq!(moment.wrong_totals().unwrap(), None);
}

#[test]
fn a_repair_of_the_log_that_was_cut_short_says_the_next_time_what_was_lost() {
    let scene = Scene::new();
    let damaged = without_a_snapshot(&scene);
    let whole = damaged.snapshot(CrashPolicy::KeepAll);
    let before = whole.syncs();
    let said = repair(&whole).unwrap();
    let syncs = whole.syncs() - before;
    let lost = said.iter().find(|sentence| sentence.contains("is lost (")).unwrap();
    let mut told_again = 0;
    for sync in 0..syncs {
        let ground = damaged.snapshot(CrashPolicy::KeepAll);
        ground.crash_after_syncs(sync);
        assert!(repair(&ground).is_err());
        let ground = ground.restart(CrashPolicy::DropAll);
        // Until the new log is there, a repair that may lose nothing asks again.
        let asked = refused(&ground);
        let again = repair(&ground).unwrap();
        if again.iter().any(|sentence| sentence.contains("operations log")) {
            assert!(again.contains(lost), "sync {sync} of {syncs}: {again:?}");
            assert!(asked.is_some_and(|asked| asked.contains(lost)), "sync {sync} of {syncs}");
            told_again += u32::from(again.iter().any(|sentence| sentence.contains("an earlier repair")));
        } else {
            // The new log is there: what was found is kept with the old one.
            let kept = ground.list("log").unwrap().into_iter().filter(|entry| entry.is_directory);
            let reports = kept.filter(|entry| ground.exists(&format!("log/{}/report", entry.name)).unwrap()).count();
            assert_eq!(reports, 1, "sync {sync} of {syncs}");
        }
        assert_eq!(repair(&ground).unwrap(), [] as [String; 0]);
    }
    assert!(told_again > 2, "{told_again}");
}
