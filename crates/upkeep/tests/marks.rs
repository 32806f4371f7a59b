//! Reclamation by marks (M3.7): its work follows what changed, and damaged marks lose nothing.

use onefold_engine::{Candidate, Cursor, Descriptor, Engine, MetadataKind, Mode, Piece, Settings, StoreProfile, Survey};
use onefold_ground::{Ground, SimulatedGround};
use onefold_upkeep::{CheckOptions, CheckReport, NoMonitor, ProblemKind, PruneOptions, RepairOptions, StoreRoots, check, prune, repair};
use onefold_volume::{Volumes, VolumesOptions};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 64 << 10;

fn settings() -> Settings {
    Settings { background: false, workers: 1, ..Settings::default() }
}

fn open(ground: &SimulatedGround) -> Arc<Engine> {
    Engine::open(Arc::new(ground.clone()), settings(), Mode::ReadWrite, "test").unwrap()
}

fn store() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let descriptor =
        Descriptor { profile: StoreProfile::Marked, container_bytes: 128 << 10, frame_bytes: 16 << 10, ..Descriptor::new().unwrap() };
    Engine::create(&shared, &Descriptor { sequential_frame_bytes: 16 << 10, ..descriptor }).unwrap();
    ground
}

fn volumes(engine: &Arc<Engine>) -> Volumes {
    Volumes::open(engine.clone(), VolumesOptions::default()).unwrap()
}

/// Bytes that nobody else has.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    bytes
}

/// Fills some volumes, each with data of its own.
fn fill(volumes: &Volumes, names: &[&str]) {
    for (number, name) in names.iter().enumerate() {
        let volume = volumes.create(name, VOLUME_BYTES, BLOCK_BYTES, None).unwrap();
        volume.write(0, &noise(number as u64 + 1, 300_000)).unwrap();
        volume.flush().unwrap();
    }
}

fn survey(engine: &Engine) -> Survey {
    let mut damaged = Vec::new();
    let survey = engine.survey(&mut StoreRoots::new(engine.digest_bytes()), &|| true, &mut damaged).unwrap();
    assert!(damaged.is_empty() && survey.held.is_none(), "{damaged:?} {survey:?}");
    survey
}

fn pruned(engine: &Arc<Engine>, dry_run: bool) -> (u64, u64) {
    let report = prune(engine, PruneOptions { max_unused: 0.0, dry_run, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.problems.is_empty(), "{report:?}");
    (report.chunks, report.chunk_bytes)
}

fn checked(engine: &Arc<Engine>) -> CheckReport {
    check(engine, CheckOptions::default(), &NoMonitor).unwrap()
}

fn mark_files(ground: &SimulatedGround) -> BTreeSet<String> {
    ground.list("marks").unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn m3_7_a_store_in_which_nothing_changed_is_not_written_to() {
    let ground = store();
    let engine = open(&ground);
    fill(&volumes(&engine), &["one", "two"]);
    survey(&engine);
    pruned(&engine, false);
    let (files, end) = (mark_files(&ground), ground.operations());
    for _ in 0..3 {
        assert_eq!(pruned(&engine, false), (0, 0));
        assert_eq!((mark_files(&ground), ground.operations()), (files.clone(), end));
    }
}

#[test]
fn m3_7_only_groups_that_changed_are_marked_again() {
    let ground = store();
    let engine = open(&ground);
    let volumes = volumes(&engine);
    let names = ["a", "b", "c", "d", "e"];
    fill(&volumes, &names);
    survey(&engine);
    for name in names {
        let before = mark_files(&ground);
        volumes.get(name).unwrap().write(0, &noise(77, 100_000)).unwrap();
        volumes.get(name).unwrap().flush().unwrap();
        survey(&engine);
        let after = mark_files(&ground);
        // One group, and the list of what is to be swept.
        assert_eq!((after.len(), after.difference(&before).count()), (before.len(), 2), "{name}: {before:?} {after:?}");
    }
}

#[test]
fn m3_7_what_goes_is_what_nobody_needs_and_a_dry_run_says_so_before() {
    let ground = store();
    let engine = open(&ground);
    let volumes = volumes(&engine);
    fill(&volumes, &["kept", "gone"]);
    let kept = noise(1, 300_000);
    assert_eq!(pruned(&engine, true), (0, 0));
    volumes.delete("gone").unwrap();
    volumes.resume_deletions(&|| true).unwrap();
    engine.flush().unwrap();
    let would = pruned(&engine, true);
    assert_eq!(would.1, 5 * u64::from(BLOCK_BYTES), "whole blocks");
    assert_eq!(pruned(&engine, false), would);
    let mut read = vec![0; kept.len()];
    volumes.get("kept").unwrap().read(0, &mut read).unwrap();
    assert!(read == kept && checked(&engine).is_clean());
}

#[test]
fn m3_7_marks_that_are_damaged_or_lost_are_found_and_made_again() {
    let ground = store();
    let engine = open(&ground);
    fill(&volumes(&engine), &["one", "two"]);
    survey(&engine);
    assert!(checked(&engine).is_clean());
    engine.close().unwrap();
    drop(engine);
    let ground = ground.snapshot(onefold_ground::CrashPolicy::KeepAll);
    let of_groups: Vec<String> = mark_files(&ground).into_iter().filter(|name| !name.starts_with("0000000000000000")).collect();
    assert_eq!(of_groups.len(), 2);
    for name in of_groups {
        let path = format!("marks/{name}");
        for damage in ["flip", "remove"] {
            for by_repair in [false, true] {
                let ground = ground.snapshot(onefold_ground::CrashPolicy::KeepAll);
                match damage {
                    "flip" => ground.corrupt(&path, 40, 1).unwrap(),
                    _ => ground.remove(&path).unwrap(),
                }
                let engine = open(&ground);
                let report = checked(&engine);
                let is_named = report.problems.iter().all(|problem| problem.kind == ProblemKind::Marks && problem.what.contains(&name));
                // A file that is missing is made again: it is no damage.
                assert!(report.problem_count == u64::from(damage == "flip") && is_named, "{damage}: {:?}", report.problems);
                if by_repair {
                    engine.close().unwrap();
                    drop(engine);
                    let options = RepairOptions { dry_run: false, may_lose: false, memory_bytes: 16 << 20 };
                    let report = repair(Arc::new(ground.clone()), settings(), options, "test", &NoMonitor).unwrap();
                    assert!(report.check.is_clean(), "{:?} {:?}", report.actions, report.check.problems);
                    assert_eq!(report.actions.iter().filter(|did| did.contains("marks")).count(), usize::from(damage == "flip"));
                } else {
                    // The first may meet it while it sweeps. It says so, and ends; the next begins with new marks.
                    let first = prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
                    assert!(first.problems.iter().all(|what| what.contains(&name)), "{:?}", first.problems);
                    assert_eq!(pruned(&engine, false), (0, 0));
                    assert!(checked(&engine).is_clean());
                    engine.close().unwrap();
                    drop(engine);
                }
                let engine = open(&ground);
                assert_eq!(pruned(&engine, false), (0, 0));
                assert!(checked(&engine).is_clean());
            }
        }
    }
}

/// A removal follows what was added since the survey, and then judges by the same survey. One that began in between
/// would have a later floor, and what was added before it would not have been followed.
#[test]
fn m3_7_no_survey_begins_while_a_removal_is_under_way() {
    let ground = store();
    let engine = open(&ground);
    let mut stream = engine.stream();
    let Piece::Chunk { fingerprint, address, .. } = stream.write_metadata(MetadataKind::Recipe, b"nobody needs it", &[]).unwrap() else {
        unreachable!("metadata has an address")
    };
    drop(stream);
    engine.flush().unwrap();
    survey(&engine);
    let held = RefCell::new(Vec::new());
    let references = |_, _: &[u8]| {
        let roots = &mut StoreRoots::new(engine.digest_bytes());
        held.borrow_mut().push(engine.survey(roots, &|| false, &mut Vec::new()).unwrap().held);
        Ok(Vec::new())
    };
    // The candidate is known from the survey.
    let (candidates, _) = engine.candidates(Cursor::default(), 10, &mut Vec::new()).unwrap();
    assert_eq!(candidates, [Candidate { address, fingerprint }]);
    assert_eq!(engine.remove_unused(&candidates, &references, &|| true).unwrap().chunks, 1);
    assert_eq!(held.into_inner(), [Some("it was cut short".to_owned())]);
}

/// Paths of all container files.
fn containers(ground: &SimulatedGround, directory: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in ground.list(directory).unwrap() {
        let path = format!("{directory}/{}", entry.name);
        if ground.list(&path).is_ok() { paths.extend(containers(ground, &path)) } else { paths.push(path) }
    }
    paths.sort();
    paths
}

#[test]
fn m3_7_a_copy_that_was_stored_again_is_needed_by_all_who_needed_the_damaged_one() {
    let ground = store();
    let data = noise(1, 300_000);
    let write = |volumes: &Volumes, name: &str| {
        let volume = volumes.create(name, VOLUME_BYTES, BLOCK_BYTES, None).unwrap();
        volume.write(0, &data).unwrap();
        volume.flush().unwrap();
    };
    let engine = open(&ground);
    write(&volumes(&engine), "one");
    write(&volumes(&engine), "two");
    survey(&engine);
    engine.close().unwrap();
    drop(engine);
    ground.corrupt(&containers(&ground, "containers/0000")[0], 40_000, 1).unwrap();
    let options = RepairOptions { dry_run: false, may_lose: true, memory_bytes: 16 << 20 };
    let report = repair(Arc::new(ground.clone()), settings(), options, "test", &NoMonitor).unwrap();
    assert!(report.quarantined_chunks > 0, "{:?}", report.actions);

    let engine = open(&ground);
    // The marks of the two are from before: they name the damaged place.
    write(&volumes(&engine), "three");
    let check_all = || check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
    assert!(check_all().is_clean(), "{:?}", check_all().problems);
    let volumes = volumes(&engine);
    let gone = |name: &str| {
        volumes.delete(name).unwrap();
        volumes.resume_deletions(&|| true).unwrap();
        engine.flush().unwrap();
    };
    gone("three");
    let max_unused_0 = PruneOptions { max_unused: 0.0, ..PruneOptions::default() };
    let report = prune(&engine, max_unused_0, &NoMonitor, &|| true).unwrap();
    assert!(report.is_complete && report.chunks == 0, "{report:?}");
    for name in ["one", "two"] {
        let mut read = vec![0; data.len()];
        volumes.get(name).unwrap().read(0, &mut read).unwrap();
        assert!(read == data, "{name}");
    }
    assert!(check_all().is_clean(), "{:?}", check_all().problems);
    gone("one");
    gone("two");
    let report = prune(&engine, max_unused_0, &NoMonitor, &|| true).unwrap();
    assert!(report.chunk_bytes >= 300_000, "{report:?}");
    assert!(check_all().is_clean(), "{:?}", check_all().problems);
}
