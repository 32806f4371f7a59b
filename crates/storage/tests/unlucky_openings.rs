//! Openings that meet something other than damage: a read that fails once, names that are not durable, files that were
//! cut off. Whatever such an opening does, the next ones find everything needed, and nothing that was merged comes
//! back.

mod common;

use common::merges::*;
use common::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround, read_file};
use onefold_storage::*;
use std::collections::BTreeSet;
use std::io;

fn small() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, ..options() }
}

/// Returns a store with a merged container, just before that one is merged again with another container.
fn before_the_second_merge(seed: u64) -> (SimulatedGround, World, Vec<ContainerId>) {
    let ground = SimulatedGround::new(seed);
    ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    world.seal(6, 1).unwrap();
    let victims: Vec<_> = world.sealed().into_iter().take(3).collect();
    let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(2).collect();
    world.forget(&dead);
    world.merge(&victims).unwrap();
    // Its old records go, and the log has only the second merge.
    trim_all(&mut world);
    let merged = *world.model.forwards.values().last().unwrap();
    // Nothing is needed any more of one home, nor of a container that was never merged.
    let homes = world.needed_of(merged);
    world.forget(&homes.iter().copied().filter(|home| home.container() == homes[0].container()).collect::<Vec<_>>());
    let others: Vec<_> = world.sealed().into_iter().filter(|id| *id != merged).take(2).collect();
    world.forget(&world.needed_of(others[1]));
    (ground, world, vec![others[0], merged, others[1]])
}

fn merge_again(world: &mut World, victims: &[ContainerId]) -> bool {
    let live = world.live_of(victims);
    // How many operations come before it depends on how threads take turns. A failure that was meant for later may end
    // it here, and then nothing was merged.
    let merge = world.store.merge(victims, &live);
    merge.is_ok_and(|merge| {
        world.log_merge(victims, &live, merge);
        true
    })
}

/// Returns the operations until the second merge is in the log, and from there until its files are replaced.
fn operations() -> (u64, u64) {
    let (ground, mut world, victims) = before_the_second_merge(1);
    let before = ground.operations();
    let live = world.live_of(&victims);
    let merge = world.store.merge(&victims, &live).unwrap();
    let logged = ground.operations();
    world.log_merge(&victims, &live, merge);
    world.check(&ground);
    (logged - before, ground.operations() - logged)
}

/// Trims everything from the log that the store allows, as a busy store does in a while.
fn trim_all(world: &mut World) {
    for _ in 0..2 {
        let mut prepared = world.store.checkpoint_before(world.model.log.end()).unwrap();
        let (start, end) = world.model.log.append(std::mem::take(&mut prepared.records));
        world.store.committed(prepared, start, end);
        world.trim();
    }
}

/// Opens the store again and again, with power cuts between. Checks that it finds what is needed and nothing else.
fn all_is_well(ground: &SimulatedGround, model: Model, policy: CrashPolicy) {
    let mut world = World::open(ground, model, &small(), Access::ReadWrite).unwrap();
    assert!(!world.store.has_pending_merges());
    world.check(ground);
    trim_all(&mut world);
    let model = world.model.clone();
    drop(world);
    let ground = ground.restart(policy);
    let world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    world.check(&ground);
}

/// Returns the forwards on disk that lead to a container without a file.
fn dangling(ground: &SimulatedGround) -> Vec<String> {
    let all = files(ground);
    let there: BTreeSet<ContainerId> = all.iter().filter(|(_, _, suffix)| suffix.is_empty()).map(|(_, id, _)| *id).collect();
    let target = |path: &str| Forward::decode(&read_file(ground, path, FORWARD_BYTES as u64).unwrap()).unwrap().target;
    let forwards = all.iter().filter(|(_, _, suffix)| suffix == ".forward").map(|(path, ..)| path);
    forwards.filter(|path| !there.contains(&target(path))).cloned().collect()
}

#[test]
fn at_no_moment_of_a_merge_does_a_forward_lead_to_a_file_that_is_gone() {
    let (logged, operations) = operations();
    for operation in 0..=operations {
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }] {
            let (ground, mut world, victims) = before_the_second_merge(operation);
            ground.crash_after_operations(logged + operation);
            merge_again(&mut world, &victims);
            drop(world);
            let found = dangling(&ground.restart(policy));
            assert!(found.is_empty(), "operation {operation}, {policy:?}: {found:?}");
        }
    }
}

#[test]
fn a_read_that_fails_once_while_opening_never_costs_a_chunk_that_was_merged_twice() {
    let (logged, operations) = operations();
    let (mut ended, mut opened) = (0, 0);
    for operation in 0..=operations {
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }] {
            let (ground, mut world, victims) = before_the_second_merge(operation);
            ground.crash_after_operations(logged + operation);
            merge_again(&mut world, &victims);
            let model = world.model.clone();
            drop(world);
            let crashed = ground.restart(policy);
            for read in 0.. {
                let ground = crashed.snapshot(CrashPolicy::KeepAll);
                let kind = if read % 2 == 0 { io::ErrorKind::OutOfMemory } else { io::ErrorKind::Other };
                ground.fail_read(read, kind);
                let mut model = model.clone();
                let result = World::open(&ground, model.clone(), &small(), Access::ReadWrite);
                let was_all = ground.reads() <= read;
                ground.fail_read(u64::MAX >> 1, kind);
                match result {
                    // Most reads need not succeed; then everything is as it should be.
                    Ok(mut world) => {
                        world.check(&ground);
                        trim_all(&mut world);
                        model = world.model.clone();
                        opened += 1;
                    }
                    Err(error) => {
                        assert!(!error.is_damage(), "{error}");
                        ended += 1;
                    }
                }
                all_is_well(&ground, model, CrashPolicy::DropAll);
                if was_all {
                    break;
                }
            }
        }
    }
    assert!(ended > 0 && opened > 0, "ended {ended}, opened {opened}");
}

#[test]
fn a_merged_container_on_a_bad_sector_ends_the_opening_until_it_can_be_read_or_is_taken_away() {
    let (logged, operations) = operations();
    let mut may_move = 0;
    for operation in 0..operations {
        let (ground, mut world, victims) = before_the_second_merge(operation);
        ground.crash_after_operations(logged + operation);
        if !merge_again(&mut world, &victims) {
            continue;
        }
        let (model, target) = (world.model.clone(), *world.sealed().last().unwrap());
        drop(world);
        let ground = ground.restart(CrashPolicy::Random { seed: operation });
        let before = files(&ground);
        ground.make_unreadable(&path(target)).unwrap();
        let result = World::open(&ground, model.clone(), &small(), Access::ReadWrite);
        if let Err(error) = result {
            assert!(error.to_string().contains("nothing was changed") && files(&ground) == before, "{error}");
            // Only as long as everything it was made of is there.
            let is_offered = matches!(error, StorageError::MergedUnreadable { may_be_moved: true, .. });
            let is_enough = victims[..2].iter().all(|victim| ground.exists(&path(*victim)).unwrap());
            assert!(is_enough || !is_offered, "operation {operation}: {error}");
            may_move += u32::from(is_offered);
        } else {
            assert!(!ground.exists(&path(victims[1])).unwrap(), "the last file had gone, so nothing was left to do");
        }
        // Readers may open it: what they cannot read is an error of its own.
        World::open(&ground, model.clone(), &small(), Access::Read).unwrap();
        ground.make_readable(&path(target)).unwrap();
        ground.make_readable(&path(target)).unwrap();
        all_is_well(&ground.restart(CrashPolicy::DropAll), model, CrashPolicy::DropAll);
    }
    assert!(may_move > 0);
}

#[test]
fn merged_containers_stay_away_when_the_process_is_killed_and_the_power_fails_after_the_next_opening() {
    let (logged, operations) = operations();
    for operation in 0..operations {
        for policy in [CrashPolicy::DropAll, CrashPolicy::Random { seed: operation }] {
            let (ground, mut world, victims) = before_the_second_merge(operation);
            // Work before the failure is not durable, and the process ends.
            ground.fail_operation(logged + operation, io::ErrorKind::Other);
            merge_again(&mut world, &victims);
            let model = world.model.clone();
            drop(world);
            // If it has not come yet, it is not meant for the next process.
            ground.fail_operation(u64::MAX >> 1, io::ErrorKind::Other);
            all_is_well(&ground, model, policy);
        }
    }
}

#[test]
fn a_leftover_stays_away_when_the_process_is_killed_and_the_power_fails_after_the_next_opening() {
    let (logged, _) = operations();
    for operation in 0..logged + 12 {
        let (ground, world, victims) = before_the_second_merge(operation);
        // A merge that is given up, or cut short by the failure.
        ground.fail_operation(operation, io::ErrorKind::Other);
        let live = world.live_of(&victims);
        if let Ok(merge) = world.store.merge(&victims, &live) {
            world.store.abandon_merge(merge);
        }
        ground.fail_operation(u64::MAX >> 1, io::ErrorKind::Other);
        let model = world.model.clone();
        drop(world);
        all_is_well(&ground, model, CrashPolicy::DropAll);
    }
}

#[test]
fn a_sealed_container_that_was_cut_off_is_not_taken_for_a_leftover_and_its_number_not_given_out_again() {
    for length in [0, 1, 50, 63, 64, 100, 111, 112, 1000] {
        let ground = SimulatedGround::new(length);
        ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
        let options = small();
        let mut world = World::open(&ground, Model::default(), &options, Access::ReadWrite).unwrap();
        // Until the last container of the partition is sealed, so that the log needs nothing of it.
        let newest = |world: &World| *world.model.files.last().unwrap();
        for round in 0..60 {
            if world.model.files.len() < 3 || !world.store.is_sealed(newest(&world)) {
                world.write(&[2500, 4000, 8100][round % 3..]).unwrap();
            }
        }
        let last = newest(&world);
        assert!(world.store.is_sealed(last));
        trim_all(&mut world);
        let mut model = world.model.clone();
        let (address, (fingerprint, _)) = model.needed.iter().rfind(|(address, _)| address.container() == last).unwrap();
        let lost = [(*address, *fingerprint)];
        drop(world);
        ground.open(&path(last), Access::ReadWrite).unwrap().set_len(length).unwrap();
        for round in 0..3 {
            let mut world = World::open(&ground, model.clone(), &options, Access::ReadWrite).unwrap();
            // A container without any bytes goes if others have higher numbers.
            assert_eq!(ground.exists(&path(last)).unwrap(), length > 0 || round == 0);
            assert!(length == 0 || length == ground.open(&path(last), Access::Read).unwrap().len().unwrap());
            assert!(world.store.load(&lost, &mut Vec::new()).unwrap_err().is_damage());
            for _ in 0..8 {
                world.write(&[1900, 2500, 4000]).unwrap();
            }
            assert!(newest(&world) > last);
            let before = &model.needed;
            assert!(world.model.needed.keys().all(|address| address.container() != last || before.contains_key(address)));
            trim_all(&mut world);
            model = world.model.clone();
        }
    }
}
