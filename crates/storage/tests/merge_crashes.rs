//! Crashes at any operation of merges, failed writes and syncs, a full disk.

mod common;

use common::merges::*;
use common::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_storage::*;
use std::io;

fn small() -> StorageOptions {
    // One worker writes the frames in their order. What other threads do between two of its writes differs from run to
    // run.
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, ..options() }
}

fn start(seed: u64) -> SimulatedGround {
    let ground = SimulatedGround::new(seed);
    ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
    ground
}

/// Merges of all kinds, with writing and trimming between them.
fn work(world: &mut World) -> Result<()> {
    for round in 0..20 {
        world.write(&[700, 1900, 40 * round, 2500, 0, 900, 1200])?;
    }
    world.seal(6, 1)?;
    // Half of the chunks of three containers are left.
    let victims: Vec<_> = world.sealed().into_iter().take(3).collect();
    let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(2).collect();
    world.forget(&dead);
    world.merge(&victims)?;
    world.write(&[3000, 10])?;
    world.trim();
    // None of another container.
    let empty = *world.unmerged().last().unwrap();
    world.forget(&world.needed_of(empty));
    world.merge(&[empty])?;
    // A merge that does not get into the log.
    let victims: Vec<_> = world.sealed().into_iter().take(2).collect();
    let merge = world.store.merge(&victims, &world.live_of(&victims))?;
    world.store.abandon_merge(merge);
    world.trim();
    // The merged container again, of which one home goes, and another container.
    let merged = *world.model.forwards.values().last().unwrap();
    let other = world.sealed().into_iter().find(|id| *id != merged).unwrap();
    let homes = world.needed_of(merged);
    world.forget(&homes.iter().copied().filter(|home| home.container() == homes[0].container()).collect::<Vec<_>>());
    let victims = [other, merged];
    world.merge(&victims)?;
    assert!(world.model.forwards.len() >= 2 && world.model.forwards.keys().all(|id| !world.model.files.contains(id)));
    world.write(&[100, 5000])
}

/// Crashes after `operations`, restarts, and checks. Then works on, crashes at the end, and checks again. Returns
/// whether there were that many operations.
fn crash_and_go_on(operations: u64, seed: u64, policy: CrashPolicy) -> bool {
    let ground = start(seed);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    ground.crash_after_operations(operations);
    let _ = work(&mut world);
    let model = world.model.clone();
    drop(world);
    let is_crashed = ground.is_crashed();
    let ground = ground.restart(policy);
    // First as a reader, which sees the same and changes nothing.
    let before = (ground.operations(), files(&ground));
    let reader = World::open(&ground, model.clone(), &small(), Access::Read).unwrap();
    check(&reader.store, &model.needed);
    for (id, target) in &model.forwards {
        assert_eq!(reader.store.container_of(*id).unwrap(), *target);
    }
    assert_eq!(reader.store.forwards().unwrap(), model.forwards.keys().copied().collect());
    for id in reader.store.containers().unwrap().iter() {
        assert!(model.files.contains(&id) || !reader.store.is_sealed(id), "{id} should not be there");
    }
    drop(reader);
    assert!(before == (ground.operations(), files(&ground)));
    // Some openings for writing crash too.
    ground.crash_after_operations(seed % 7);
    let _ = World::open(&ground, model.clone(), &small(), Access::ReadWrite);
    let ground = ground.restart(policy);
    let mut world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    assert!(!world.store.has_pending_merges());
    world.check(&ground);
    work(&mut world).unwrap();
    world.check(&ground);
    world.trim();
    let model = world.model.clone();
    drop(world);
    let ground = ground.restart(CrashPolicy::DropAll);
    World::open(&ground, model, &small(), Access::ReadWrite).unwrap().check(&ground);
    is_crashed
}

// Runs differ in length, so each test goes on until a run ends before its crash or failure.

#[test]
fn m0_20_needed_chunks_survive_a_crash_at_any_operation_of_merges_and_no_file_is_left() {
    for operation in 0.. {
        let policies = [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }];
        if !policies.map(|policy| crash_and_go_on(operation, operation, policy)).contains(&true) {
            break;
        }
    }
}

#[test]
fn a_drive_that_loses_the_sectors_it_was_writing_takes_no_committed_chunk_along() {
    lose_sectors(&small());
}

#[test]
fn a_drive_that_loses_sectors_takes_no_committed_chunk_along_whose_container_has_room_for_a_part_of_a_page() {
    lose_sectors(&StorageOptions { container_bytes: 9_000, ..small() });
}

/// Crashes at any operation. Crashes once more while the next process continues the containers that the first one left.
fn lose_sectors(options: &StorageOptions) {
    for operation in 0.. {
        let ground = start(operation);
        let mut world = World::open(&ground, Model::default(), options, Access::ReadWrite).unwrap();
        ground.crash_after_operations(operation);
        let _ = work(&mut world);
        let model = world.model.clone();
        drop(world);
        let is_crashed = ground.is_crashed();
        let ground = ground.restart(CrashPolicy::LoseSectors { sector_bytes: 4096 });
        let mut world = World::open(&ground, model, options, Access::ReadWrite).unwrap();
        check(&world.store, &world.model.needed);
        ground.crash_after_operations(operation % 7);
        let _ = world.write(&[1200, 700, 2500]);
        let model = world.model.clone();
        drop(world);
        let ground = ground.restart(CrashPolicy::LoseSectors { sector_bytes: 4096 });
        let world = World::open(&ground, model, options, Access::ReadWrite).unwrap();
        world.check(&ground);
        if !is_crashed {
            break;
        }
    }
}

#[test]
fn a_drive_that_loses_sectors_when_a_closed_store_has_given_back_its_room_takes_no_committed_chunk_along() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    world.write(&[1200, 700, 2500]).unwrap();
    let used_bytes = ground.used_bytes();
    world.store.release_room();
    assert!(ground.used_bytes() < used_bytes);
    let model = world.model.clone();
    drop(world);
    let ground = ground.restart(CrashPolicy::LoseSectors { sector_bytes: 4096 });
    World::open(&ground, model, &small(), Access::ReadWrite).unwrap().check(&ground);
}

#[test]
fn m0_20_an_operation_that_fails_once_delays_a_merge_and_a_failed_sync_of_names_ends_writing() {
    let (mut delayed, mut refused, mut poisoned) = (0, 0, 0);
    for operation in 0.. {
        let ground = start(1);
        let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
        let failing = ground.operations() + operation;
        ground.fail_operation(operation, io::ErrorKind::StorageFull);
        let result = work(&mut world);
        if ground.operations() <= failing {
            result.unwrap();
            break;
        }
        if matches!(result, Err(StorageError::Poisoned { .. })) {
            // The failed sync may have lost frames that are also in the log.
            for (address, (fingerprint, bytes)) in &world.model.needed {
                let mut slices = Vec::new();
                match world.store.load(&[(*address, *fingerprint)], &mut slices) {
                    Ok(()) => assert_eq!(&slices[0][..], &bytes[..]),
                    Err(error) => assert!(matches!(error, StorageError::Poisoned { .. }), "{error}"),
                }
            }
        } else {
            check(&world.store, &world.model.needed);
        }
        let was_delayed = world.store.has_pending_merges();
        delayed += u64::from(was_delayed);
        let is_poisoned = |result: &Result<()>| matches!(result, Err(StorageError::Poisoned { .. }));
        let finished = world.store.finish_merges();
        match result.and(finished) {
            result if is_poisoned(&result) => poisoned += 1,
            Ok(()) => {
                world.trim();
                world.check(&ground);
            }
            // Containers whose files could not be replaced yet are not merged again.
            Err(error) => {
                assert!(error.is_full() || (was_delayed && matches!(error, StorageError::Merge { .. })), "{error}");
                refused += 1;
            }
        }
        if !world.store.has_pending_merges() {
            world.trim();
        }
        let model = world.model.clone();
        drop(world);
        let ground = ground.restart(CrashPolicy::DropAll);
        let mut world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
        world.check(&ground);
        work(&mut world).unwrap();
        world.check(&ground);
    }
    assert!(delayed > 0 && refused > 0 && poisoned > 0, "delayed {delayed}, refused {refused}, poisoned {poisoned}");
}

#[test]
fn m0_20_on_a_full_disk_nothing_is_merged_and_what_was_is_finished_when_there_is_room() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    for _ in 0..6 {
        world.write(&[700, 1900, 2500, 900]).unwrap();
    }
    let victims = world.sealed();
    world.forget(&victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(3).collect::<Vec<_>>());
    let live = world.live_of(&victims);
    ground.set_capacity(ground.used_bytes() + 4096);
    for _ in 0..3 {
        assert!(world.store.merge(&victims, &live).unwrap_err().is_full());
        world.check(&ground);
    }
    ground.set_capacity(u64::MAX);
    let merge = world.store.merge(&victims, &live).unwrap();
    ground.set_capacity(ground.used_bytes());
    world.log_merge(&victims, &live, merge);
    assert!(world.store.has_pending_merges() && world.store.finish_merges().unwrap_err().is_full());
    world.trim();
    world.check(&ground);
    assert!(matches!(world.store.merge(&[*world.model.files.last().unwrap()], &[]), Err(StorageError::Merge { .. })), "it is in a merge");
    // After reopening, the disk is still full.
    let model = world.model.clone();
    drop(world);
    let mut world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    assert!(world.store.has_pending_merges());
    world.check(&ground);
    ground.set_capacity(u64::MAX);
    world.store.finish_merges().unwrap();
    world.trim();
    world.check(&ground);
    let model = world.model.clone();
    drop(world);
    let ground = ground.restart(CrashPolicy::DropAll);
    World::open(&ground, model, &small(), Access::ReadWrite).unwrap().check(&ground);
}

#[test]
fn m0_20_old_files_stay_where_the_merged_one_cannot_be_read_after_a_crash() {
    for lost in [true, false] {
        let ground = start(1);
        let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
        for _ in 0..4 {
            world.write(&[700, 1900, 2500, 900]).unwrap();
        }
        let victims: Vec<_> = world.sealed().into_iter().take(2).collect();
        let live = world.live_of(&victims);
        let merge = world.store.merge(&victims, &live).unwrap();
        let target = merge.container().unwrap();
        // The crash comes when the log has the record.
        world.model.log.append(vec![merge.record()]);
        let model = world.model.clone();
        drop((merge, world));
        let ground = ground.restart(CrashPolicy::DropAll);
        if lost {
            ground.open(&path(target), Access::ReadWrite).unwrap().set_len(100).unwrap();
        }
        for access in [Access::Read, Access::ReadWrite] {
            let world = World::open(&ground, model.clone(), &small(), access).unwrap();
            check(&world.store, &model.needed);
            assert_eq!(world.store.container_of(victims[0]).unwrap(), if lost { victims[0] } else { target });
        }
    }
}
