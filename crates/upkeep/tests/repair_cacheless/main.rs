//! Repair, as in `repair`, of stores whose chunks are blocks: what the blocks hold is named again by what refers to it
//! (M1.2 to M1.5). The same after a crash at any sync of a repair, and on a full disk.

#[path = "../repair/common.rs"]
mod common;
#[path = "../damage/merging.rs"]
mod merging;
#[allow(dead_code, reason = "shared with the tests of damage")]
#[path = "../damage/scene.rs"]
mod scene;

use common::{Damage, content, crash_at_any_sync, files, list, meet_errors_and_full_disks, must_be_sound, repaired, run};
use onefold_catalog::Catalog;
use onefold_engine::{Mode, StoreProfile};
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_storage::{ChunkKind, Slot, block_of_address};
use onefold_upkeep::{CheckOptions, NoMonitor, ProblemKind, PruneOptions, check, prune, rebuild_chunk_index};
use onefold_volume::{Volumes, VolumesOptions};
use scene::{Scene, VOLUME_BYTES, noise, open, settings};
use std::collections::BTreeMap;
use std::sync::Arc;

const PROFILE: StoreProfile = StoreProfile::Cacheless;

const BLOCKS: &str = "arena/blocks";
const BLOCK_BYTES: u64 = 4096;

/// The blocks that have a chunk, and how many bytes of each are of the chunk.
fn used_blocks(ground: &SimulatedGround) -> BTreeMap<u64, u64> {
    let engine = open(&ground.snapshot(CrashPolicy::KeepAll), Mode::ReadOnly).unwrap();
    let storage = engine.storage();
    let chunks = storage.units().unwrap().iter().flat_map(|unit| storage.chunks_of(unit).unwrap()).collect::<Vec<_>>();
    chunks.iter().map(|(address, slot)| (block_of_address(*address).unwrap(), u64::from(slot.length_bytes))).collect()
}

#[test]
fn a_store_without_damage_is_left_as_it_is() {
    assert!(repaired(&Scene::new(), &[]).report.is_clean());
}

#[test]
fn a_damaged_block_costs_its_chunk_and_nothing_else() {
    let scene = Scene::new();
    let used: Vec<(u64, u64)> = used_blocks(&scene.ground).into_iter().collect();
    for (turn, (block, length)) in used.iter().enumerate().step_by(4) {
        let damage = match turn % 3 {
            0 => Damage::Flip(block * BLOCK_BYTES + turn as u64 * 1009 % length),
            _ => Damage::Zero(block * BLOCK_BYTES, BLOCK_BYTES),
        };
        let problems = repaired(&scene, &[(BLOCKS, damage)]).report.problems;
        let lost = problems.iter().filter(|problem| problem.kind == ProblemKind::Quarantined).count();
        assert!(lost <= 1, "{damage:?}:{}", list(&problems));
    }
}

#[test]
fn m1_5_a_damaged_index_is_made_anew_from_blocks_and_references_and_nothing_is_lost() {
    let scene = Scene::new();
    let all = files(&scene, |path| path.starts_with("index/"));
    let pages = |path: &&String| path.contains("/slots-") || path.ends_with("/blocks") || path.ends_with("/units");
    let mut cases: Vec<Vec<(&str, Damage)>> = vec![all.iter().map(|path| (path.as_str(), Damage::Delete)).collect()];
    for path in all.iter().filter(pages) {
        let last = scene.length(path) - BLOCK_BYTES;
        cases.extend(
            [Damage::Flip(50), Damage::Zero(last, BLOCK_BYTES), Damage::Cut(last), Damage::Delete]
                .map(|damage| vec![(path.as_str(), damage)]),
        );
    }
    cases.push(all.iter().filter(pages).map(|path| (path.as_str(), Damage::Flip(100))).collect());
    cases.push(vec![("index/header", Damage::Zero(0, 2 * BLOCK_BYTES))]);
    cases.push(vec![("index/header", Damage::Delete)]);
    cases.push(vec![("index/journal", Damage::Delete)]);
    for case in cases {
        assert!(repaired(&scene, &case).report.is_clean(), "{case:?}");
    }
}

#[test]
fn a_damaged_header_of_the_arena_is_written_anew_and_nothing_is_lost() {
    let scene = Scene::new();
    for damage in [Damage::Flip(3), Damage::Flip(20), Damage::Cut(10), Damage::Zero(0, 40), Damage::Delete] {
        assert!(repaired(&scene, &[("arena/header", damage)]).report.is_clean(), "{damage:?}");
    }
}

#[test]
fn a_file_of_blocks_that_is_cut_or_gone_costs_what_was_in_it() {
    let scene = Scene::new();
    let used: Vec<u64> = used_blocks(&scene.ground).into_keys().collect();
    let middle = used[used.len() / 2] * BLOCK_BYTES;
    for damage in [Damage::Cut(middle), Damage::Cut(middle + 77), Damage::Cut(0)] {
        let problems = repaired(&scene, &[(BLOCKS, damage)]).report.problems;
        assert!(problems.iter().any(|problem| problem.kind == ProblemKind::Quarantined), "{damage:?}:{}", list(&problems));
    }
}

#[test]
fn a_file_of_blocks_that_is_gone_is_for_people_to_look_for() {
    let scene = Scene::new();
    for is_found_again in [true, false] {
        let ground = scene.copy();
        Damage::Delete.apply(&ground, BLOCKS);
        for dry_run in [true, false] {
            let error = run(&ground, dry_run).unwrap_err().to_string();
            assert!(error.contains(BLOCKS), "{error}");
        }
        // An empty file says that there is nothing to look for.
        let file = ground.create(BLOCKS).unwrap();
        if is_found_again {
            file.write_at(0, &scene.bytes(BLOCKS)).unwrap();
        }
        file.sync().unwrap();
        ground.sync_directory("arena").unwrap();
        run(&ground, false).unwrap();
        assert_eq!(must_be_sound(&ground, &scene, "gone").report.is_clean(), is_found_again);
    }
}

fn delete_index(ground: &SimulatedGround) {
    for file in ground.list("index").unwrap().into_iter().filter(|entry| !entry.is_directory) {
        ground.remove(&format!("index/{}", file.name)).unwrap();
    }
}

fn zero_block(ground: &SimulatedGround, block: u64) {
    Damage::Zero(block * BLOCK_BYTES, BLOCK_BYTES).apply(ground, BLOCKS);
}

/// Writes to another volume.
fn write_other(ground: &SimulatedGround, bytes: &[u8]) {
    let engine = open(ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let size = VOLUME_BYTES.max((bytes.len() as u64).next_multiple_of(64 << 10));
    let volume = volumes.create("other", size, 64 << 10, None).unwrap();
    volume.write(0, bytes).unwrap();
    volume.flush().unwrap();
    drop((volume, volumes));
    engine.close().unwrap();
}

fn delete_other_and_prune(ground: &SimulatedGround) {
    let engine = open(ground, Mode::ReadWrite).unwrap();
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    volumes.delete("other").unwrap();
    volumes.resume_deletions(&|| true).unwrap();
    drop(volumes);
    prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
    engine.close().unwrap();
}

/// Whole blocks of data, and their bytes.
fn data_blocks(scene: &Scene) -> Vec<(u64, Vec<u8>)> {
    let whole = scene.bytes(BLOCKS);
    let used = used_blocks(&scene.ground).into_iter().filter(|(_, length)| *length == BLOCK_BYTES);
    used.map(|(block, _)| (block, whole[(block * BLOCK_BYTES) as usize..][..BLOCK_BYTES as usize].to_vec())).collect()
}

fn lost(ground: &SimulatedGround, scene: &Scene, what: &str) -> u64 {
    must_be_sound(ground, scene, what).report.quarantined_chunks
}

#[test]
fn m1_5_a_chunk_that_was_lost_and_stored_again_elsewhere_is_found_without_the_index() {
    let scene = Scene::new();
    let mut moved = 0;
    for (block, bytes) in data_blocks(&scene).into_iter().step_by(7) {
        let what = format!("block {block}");
        let ground = scene.copy();
        zero_block(&ground, block);
        moved += run(&ground, false).unwrap().quarantined_chunks;
        // Another block gets it. The references still name the old one.
        write_other(&ground, &bytes);
        delete_other_and_prune(&ground);
        assert_eq!(lost(&ground, &scene, &what), 0, "{what}");
        let places = used_blocks(&ground);
        delete_index(&ground);
        let did = run(&ground, false).unwrap();
        assert_eq!((did.quarantined_chunks, lost(&ground, &scene, &what)), (0, 0), "{what}");
        // What nothing refers to is not found again.
        assert!(used_blocks(&ground).iter().all(|(place, length)| places.get(place) == Some(length)), "{what}");
    }
    assert!(moved > 10, "{moved}");
}

#[test]
fn m1_5_chunks_that_took_the_blocks_of_each_other_are_all_found_without_the_index() {
    let scene = Scene::new();
    let ground = scene.copy();
    let blocks = data_blocks(&scene);
    let names: BTreeMap<&[u8], u64> = blocks.iter().map(|(block, bytes)| (&bytes[..], *block)).collect();
    let backwards: Vec<u8> = blocks.iter().rev().flat_map(|(_, bytes)| bytes).copied().collect();
    let mut there: Vec<u64> = blocks.iter().map(|(block, _)| *block).collect();
    // All are lost and stored again elsewhere, and then once more, where others of them were.
    for _ in 0..2 {
        there.iter().for_each(|block| zero_block(&ground, *block));
        assert!(run(&ground, false).unwrap().quarantined_chunks > 100);
        write_other(&ground, &backwards);
        delete_other_and_prune(&ground);
        assert_eq!(lost(&ground, &scene, "stored again"), 0);
        let content = onefold_ground::read_file(&ground, BLOCKS, 1 << 30).unwrap();
        let found = content.chunks(BLOCK_BYTES as usize).zip(0..).filter(|(bytes, _)| names.contains_key(bytes));
        there = found.map(|(_, block)| block).collect();
    }
    let content = onefold_ground::read_file(&ground, BLOCKS, 1 << 30).unwrap();
    let is_of_another = |block: &&u64| {
        let bytes = &content[(**block * BLOCK_BYTES) as usize..][..BLOCK_BYTES as usize];
        names[bytes] != **block && blocks.iter().any(|(other, _)| other == *block)
    };
    assert!(there.iter().filter(is_of_another).count() > 100);
    delete_index(&ground);
    let did = run(&ground, false).unwrap();
    assert_eq!((did.quarantined_chunks, lost(&ground, &scene, "rebuilt")), (0, 0), "{:?}", did.actions);
}

#[test]
fn a_chunk_that_is_lost_with_the_index_keeps_its_count_and_serves_all_when_it_is_written_again() {
    let scene = Scene::new();
    let mut served = 0;
    for (block, bytes) in data_blocks(&scene).into_iter().step_by(5) {
        let what = format!("block {block}");
        let ground = scene.copy();
        zero_block(&ground, block);
        delete_index(&ground);
        run(&ground, false).unwrap();
        served += lost(&ground, &scene, &what);
        write_other(&ground, &bytes);
        assert_eq!(lost(&ground, &scene, &what), 0, "{what}");
        // Who wrote it again needs it no more. The others do.
        delete_other_and_prune(&ground);
        assert_eq!(lost(&ground, &scene, &what), 0, "{what}");
    }
    assert!(served > 10, "{served}");
}

#[test]
fn m1_8_metadata_that_only_forgotten_backups_refer_to_is_not_in_a_new_index() {
    let scene = Scene::new();
    let newest = Catalog::new(open(&scene.copy(), Mode::ReadOnly).unwrap()).list().unwrap().len() - 1;
    for forgotten in 0..=newest {
        let ground = scene.copy();
        {
            let engine = open(&ground, Mode::ReadWrite).unwrap();
            let catalog = Catalog::new(engine.clone());
            catalog.remove_backups(&catalog.list().unwrap()[forgotten..=forgotten]).unwrap();
            drop(catalog);
            engine.close().unwrap();
        }
        rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
        let is_sound = || {
            let engine = open(&ground, Mode::ReadOnly).unwrap();
            let report = check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap();
            assert!(report.is_clean(), "{forgotten}:{}", list(&report.problems));
        };
        is_sound();
        let engine = open(&ground, Mode::ReadWrite).unwrap();
        prune(&engine, PruneOptions::default(), &NoMonitor, &|| true).unwrap();
        engine.close().unwrap();
        drop(engine);
        is_sound();
    }
}

#[test]
fn what_lost_metadata_may_need_is_kept_though_the_index_is_lost_too() {
    let scene = Scene::new();
    let whole = scene.bytes(BLOCKS);
    let metadata: Vec<u64> = {
        let engine = open(&scene.copy(), Mode::ReadOnly).unwrap();
        let storage = engine.storage();
        let chunks = storage.units().unwrap().iter().flat_map(|unit| storage.chunks_of(unit).unwrap()).collect::<Vec<_>>();
        let is_metadata = |(address, slot): (_, Slot)| (slot.kind != ChunkKind::Data).then(|| block_of_address(address).unwrap());
        chunks.into_iter().filter_map(is_metadata).collect()
    };
    assert!(metadata.len() > 4);
    for block in metadata {
        let ground = scene.copy();
        zero_block(&ground, block);
        delete_index(&ground);
        run(&ground, false).unwrap();
        must_be_sound(&ground, &scene, "lost");
        // Much is written, and what is not needed goes.
        write_other(&ground, &noise(block + 1000, VOLUME_BYTES as usize));
        delete_other_and_prune(&ground);
        // The device can be read again.
        let file = ground.open(BLOCKS, Access::ReadWrite).unwrap();
        let at = (block * BLOCK_BYTES) as usize;
        file.write_at(at as u64, &whole[at..][..BLOCK_BYTES as usize]).unwrap();
        file.sync().unwrap();
        rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
        run(&ground, false).unwrap();
        let found = must_be_sound(&ground, &scene, &format!("block {block}"));
        assert!(found.report.is_clean(), "block {block}:{}", list(&found.report.problems));
    }
}

#[test]
fn what_can_be_read_again_is_restored() {
    let scene = Scene::new();
    let used: Vec<u64> = used_blocks(&scene.ground).into_keys().collect();
    let whole = scene.bytes(BLOCKS);
    for lost in used.chunks(used.len() / 5) {
        let ground = scene.copy();
        lost.iter().for_each(|block| zero_block(&ground, *block));
        assert!(run(&ground, false).unwrap().quarantined_chunks > 0);
        must_be_sound(&ground, &scene, "lost");
        let file = ground.open(BLOCKS, Access::ReadWrite).unwrap();
        for block in lost {
            let at = (block * BLOCK_BYTES) as usize;
            file.write_at(at as u64, &whole[at..whole.len().min(at + BLOCK_BYTES as usize)]).unwrap();
        }
        file.sync().unwrap();
        let did = run(&ground, false).unwrap();
        assert!(did.check.is_clean(), "{:?}{}", did.actions, list(&did.check.problems));
        assert!(must_be_sound(&ground, &scene, "restored").report.is_clean());
        let engine = open(&ground, Mode::ReadOnly).unwrap();
        assert!(check(&engine, CheckOptions { read_data: true, ..CheckOptions::default() }, &NoMonitor).unwrap().is_clean());
    }
}

#[test]
fn an_index_that_is_made_anew_without_need_says_the_same() {
    let scene = Scene::new();
    let ground = scene.copy();
    let before = used_blocks(&ground);
    let problems = rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert!(must_be_sound(&ground, &scene, "rebuilt").report.is_clean());
    assert_eq!(used_blocks(&ground), before);
    assert!(!content(&ground).keys().any(|path| path.starts_with("index/new/")));
}

/// A page of the index, blocks, the header of the arena.
fn much_damage(scene: &Scene) -> Vec<(String, Damage)> {
    let used: Vec<u64> = used_blocks(&scene.ground).into_keys().collect();
    let slots = files(scene, |path| path.contains("/slots-")).swap_remove(0);
    vec![
        (slots, Damage::Flip(60)),
        ("index/blocks".into(), Damage::Zero(0, BLOCK_BYTES)),
        (BLOCKS.into(), Damage::Zero(used[used.len() / 3] * BLOCK_BYTES, BLOCK_BYTES)),
        (BLOCKS.into(), Damage::Flip(used[used.len() / 2] * BLOCK_BYTES)),
        ("arena/header".into(), Damage::Flip(12)),
    ]
}

/// What is damaged in one run: with the index or without it.
fn damaged(scene: &Scene, all: &[(String, Damage)], with_index: bool) -> SimulatedGround {
    let ground = scene.copy();
    all.iter().skip(if with_index { 0 } else { 2 }).for_each(|(path, damage)| damage.apply(&ground, path));
    ground
}

#[test]
fn a_repair_that_crashes_at_any_sync_is_ended_by_the_next() {
    let scene = Scene::new();
    let all = much_damage(&scene);
    for with_index in [false, true] {
        crash_at_any_sync(&scene, &|| damaged(&scene, &all, with_index), &format!("index damaged too: {with_index}"));
    }
}

#[test]
fn m1_5_a_rebuild_that_crashes_leaves_the_old_index_or_the_new_one() {
    let scene = Scene::new();
    let rebuild = |ground: &SimulatedGround| rebuild_chunk_index(Arc::new(ground.clone()), settings(), "test", &NoMonitor);
    let ground = scene.copy();
    let start = ground.syncs();
    rebuild(&ground).unwrap();
    let syncs = ground.syncs() - start;
    for crash in 0..syncs {
        let random = (0..8).map(|seed| CrashPolicy::Random { seed: crash * 8 + seed });
        for policy in random.chain([CrashPolicy::DropAll, CrashPolicy::KeepAll]) {
            let what = format!("crash at sync {crash} of {syncs}, {policy:?}");
            let ground = scene.copy();
            ground.crash_after_syncs(crash);
            let _ = rebuild(&ground);
            let ground = ground.restart(policy);
            // The store opens as it is, or says that a rebuild must be ended.
            if let Err(error) = open(&ground.snapshot(CrashPolicy::KeepAll), Mode::ReadWrite) {
                assert!(error.to_string().contains("rebuil"), "{what}: {error}");
                rebuild(&ground).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            assert!(must_be_sound(&ground, &scene, &what).report.is_clean(), "{what}");
        }
    }
}

#[test]
fn a_repair_that_meets_errors_or_a_full_disk_is_ended_by_the_next() {
    let scene = Scene::new();
    let all = much_damage(&scene);
    meet_errors_and_full_disks(&scene, &|| damaged(&scene, &all, true), 60);
}
