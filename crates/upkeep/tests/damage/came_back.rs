//! Files of merged containers that came back, as after a power cut: each address counts once, and an index that is
//! rebuilt has all chunks where they are.

use crate::merging::merge;
use crate::scene::{Scene, open, settings};
use onefold_catalog::Catalog;
use onefold_client::{BackupOptions, Tally};
use onefold_engine::{Descriptor, Engine, Mode, Transaction};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround, read_file};
use onefold_oplog::{Log, LogOptions, Opening, Position, SegmentLog};
use onefold_storage::{ChunkKind, Compression, ContainerId};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, check, rebuild_chunk_index};
use std::io::ErrorKind;
use std::sync::Arc;

/// A store with a backup of so many files that its directory fills containers.
fn store_of_directories() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let sizes = Descriptor {
        container_bytes: 64 << 10,
        frame_bytes: 8 << 10,
        compression: Compression::None,
        sequential_frame_bytes: 8 << 10,
        sequential_compression: Compression::None,
        ..Descriptor::new().unwrap()
    };
    Engine::create(&(Arc::new(ground.clone()) as Arc<dyn Ground>), &sizes).unwrap();
    let source = tempfile::tempdir().unwrap();
    (0..1500).for_each(|number| std::fs::write(source.path().join(format!("{number:0100}")), [number as u8; 300]).unwrap());
    let engine = open(&ground, Mode::ReadWrite).unwrap();
    let paths = vec![source.path().to_path_buf()];
    let options = BackupOptions { name: "group".into(), host: "host".into(), user: "user".into(), paths, ..BackupOptions::default() };
    onefold_client::backup(&Catalog::new(engine.clone()), &options, &Tally::default()).unwrap();
    engine.close().unwrap();
    ground
}

/// Writes until the log has forgotten what is before `merged`.
fn forget_the_log(ground: &SimulatedGround, merged: Position) {
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor = Descriptor::read(&*shared).unwrap();
    for turn in 0u32.. {
        let options = LogOptions { segment_bytes: settings().log_segment_bytes, limit_bytes: settings().log_limit_bytes };
        if SegmentLog::open(shared.clone(), "log", descriptor.store, options, Opening::ReadOnly).unwrap().start() >= merged {
            return;
        }
        assert!(turn < 100, "the log is not trimmed");
        let engine = open(ground, Mode::ReadWrite).unwrap();
        let object = (0, b"x".to_vec(), Some(vec![turn as u8; 20_000]));
        engine.submit(Transaction { changes: vec![object], references: Vec::new() }).unwrap();
        engine.flush().unwrap();
        engine.maintain(true).unwrap();
    }
}

fn assert_clean(ground: &SimulatedGround, what: &str) {
    let engine = open(ground, Mode::ReadOnly).unwrap();
    let report = check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
    assert_eq!(report.quarantined_chunks, 0, "{what}");
}

#[test]
fn merged_containers_that_came_back_are_counted_once_and_a_rebuilt_index_is_right_without_them() {
    let ground = store_of_directories();
    let unmerged = ground.snapshot(CrashPolicy::KeepAll);
    let engine = open(&unmerged, Mode::ReadOnly).unwrap();
    merge(&ground, 0);
    let between = ground.snapshot(CrashPolicy::KeepAll);
    let merged = merge(&ground, 0);
    forget_the_log(&ground, merged);
    assert_clean(&ground, "merged");
    let path = |id: &ContainerId| format!("containers/0000/00000/{:08x}", id.number());
    let is_gone = |id: &ContainerId| !ground.exists(&path(id)).unwrap();
    let mut gone: Vec<ContainerId> = engine.containers().unwrap().containers().unwrap().iter().collect();
    gone.retain(is_gone);
    // It was merged from others and into another one, and has no forward: no address is its own.
    let newest = open(&between, Mode::ReadOnly).unwrap().containers().unwrap().containers().unwrap().iter().last().unwrap();
    assert!(is_gone(&newest) && !gone.contains(&newest) && !ground.exists(&format!("{}.forward", path(&newest))).unwrap());
    let has_metadata =
        |id: &ContainerId| engine.containers().unwrap().slots(*id).unwrap().iter().any(|(_, slot)| slot.kind != ChunkKind::Data);
    assert!(gone.len() >= 3 && gone.iter().any(has_metadata), "{gone:?}");
    // With and without the forwards, of which a power cut may have kept some.
    for keeps_forwards in [true, false] {
        let ground = ground.snapshot(CrashPolicy::KeepAll);
        let mut forwards = Vec::new();
        let bytes = read_file(&between, &path(&newest), 1 << 30).unwrap();
        ground.create(&path(&newest)).unwrap().write_at(0, &bytes).unwrap();
        for id in &gone {
            let bytes = read_file(&unmerged, &path(id), 1 << 30).unwrap();
            ground.create(&path(id)).unwrap().write_at(0, &bytes).unwrap();
            if !keeps_forwards {
                let forward = format!("{}.forward", path(id));
                forwards.push((forward.clone(), read_file(&ground, &forward, 1 << 20).unwrap()));
                ground.remove(&forward).unwrap();
            }
        }
        assert_clean(&ground, "they came back");
        rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
        drop(open(&ground, Mode::ReadWrite).unwrap());
        assert_clean(&ground, "the index was rebuilt");
        // And they may go again.
        gone.iter().chain([&newest]).for_each(|id| ground.remove(&path(id)).unwrap());
        forwards.iter().for_each(|(forward, bytes)| ground.create(forward).unwrap().write_at(0, bytes).unwrap());
        assert_clean(&ground, "they went");
    }
}

#[test]
fn a_read_that_fails_once_while_checking_is_an_error_and_no_finding() {
    let scene = Scene::merged();
    let mut errors = 0;
    for read in (0..).step_by(3) {
        let ground = scene.copy();
        let engine = open(&ground, Mode::ReadOnly).unwrap();
        ground.fail_read(read, ErrorKind::OutOfMemory);
        let before = ground.reads();
        match check(&engine, CheckOptions::default(), &NoMonitor) {
            Err(_) => errors += 1,
            Ok(report) => {
                // Of these files the device itself is named.
                let is_named =
                    |kind| matches!(kind, ProblemKind::Spare | ProblemKind::IndexPage | ProblemKind::ObjectIndex | ProblemKind::Object);
                let mut problems = report.problems.iter().filter(|problem| !is_named(problem.kind));
                assert!(problems.next().is_none(), "read {read}: {:?}", report.problems);
            }
        }
        if ground.reads() - before <= read {
            break;
        }
    }
    assert!(errors > 0);
}

#[test]
fn a_forward_that_the_device_cannot_read_is_damage_and_ends_neither_check_nor_rebuild() {
    let scene = Scene::merged();
    let ground = scene.copy();
    let storage = open(&ground, Mode::ReadOnly).unwrap().containers().unwrap().clone();
    let forward = storage.forwards().unwrap().iter().next().unwrap();
    ground.make_unreadable(&format!("containers/0000/00000/{:08x}.forward", forward.number())).unwrap();
    let engine = open(&ground, Mode::ReadOnly).unwrap();
    assert!(engine.containers().unwrap().container_of(forward).unwrap_err().is_damage());
    let report = check(&engine, CheckOptions::default(), &NoMonitor).unwrap();
    assert!(report.problems.iter().any(|problem| problem.kind == ProblemKind::Container), "{:?}", report.problems);
    drop(engine);
    rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
}
