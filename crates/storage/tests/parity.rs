//! Parity of groups of containers:
//! * One lost or rotten container of a group is rebuilt, two are not.
//! * Wrong bytes are never written.
//! * Merges, crashes at any operation, failing operations and full disks lose nothing.

mod common;

use common::merges::*;
use common::parities::*;
use common::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround, read_file};
use onefold_storage::*;
use std::io;

#[test]
fn one_container_of_a_group_is_made_anew_whatever_became_of_it() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 16).unwrap();
    assert!(protect(&world, true).unwrap() >= 2);
    let sealed = sealed(&world);
    let statistics = world.store.parity_statistics().unwrap();
    assert_eq!(statistics.containers as usize, sealed.len());
    let whole = contents(&ground, &sealed);
    let older = vec![3; 70_000];
    for id in &sealed {
        let bytes = &whole[id];
        for kind in 0..6 {
            match kind {
                0 => ground.remove(&path(*id)).unwrap(),
                1 => put(&ground, *id, &bytes[..bytes.len() / 2]),
                2 => put(&ground, *id, &[]),
                3 => (0..bytes.len()).step_by(9999).for_each(|at| ground.corrupt(&path(*id), at as u64, 1).unwrap()),
                4 => put(&ground, *id, &vec![0; bytes.len()]),
                _ => put(&ground, *id, &older),
            }
            // Reopened, so that nothing is in memory.
            let model = world.model.clone();
            drop(world);
            world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
            assert!(is_damaged(&world.store, *id), "{id} {kind}");
            assert_eq!(world.store.repair(*id).unwrap(), Repair::Repaired, "{id} {kind}");
            assert!(read_file(&ground, &path(*id), u64::MAX).unwrap() == *bytes, "{id} {kind}");
            assert_eq!(world.store.repair(*id).unwrap(), Repair::Whole);
            world.store.load(&world.model.needed.iter().map(|(at, (name, _))| (*at, *name)).collect::<Vec<_>>(), &mut Vec::new()).unwrap();
        }
    }
    check(&world.store, &world.model.needed);
}

#[test]
fn containers_that_are_too_long_for_memory_have_parity_with_short_ones() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 3).unwrap();
    let model = world.model.clone();
    drop(world);
    let options = StorageOptions { container_bytes: 17 << 20, frame_bytes: 2 << 20, ..small() };
    let mut world = World::open(&ground, model, &options, Access::ReadWrite).unwrap();
    let long = |world: &World| {
        let length = |id: &ContainerId| ground.open(&path(*id), Access::Read).unwrap().len().unwrap();
        sealed(world).into_iter().filter(|id| length(id) > 16 << 20).collect::<Vec<_>>()
    };
    while long(&world).is_empty() {
        world.write(&[1 << 20; 6]).unwrap();
    }
    assert!(protect(&world, true).unwrap() > 0);
    let sealed = sealed(&world);
    assert!(sealed.iter().any(|id| id.partition() == long(&world)[0].partition() && !long(&world).contains(id)), "one group has both");
    for id in sealed {
        let whole = contents(&ground, &[id]);
        (0..whole[&id].len()).step_by(3 << 20).for_each(|at| ground.corrupt(&path(id), at as u64, 1).unwrap());
        assert_eq!(world.store.repair(id).unwrap(), Repair::Repaired);
        assert!(contents(&ground, &[id]) == whole);
    }
}

#[test]
fn rot_at_different_places_of_several_containers_is_repaired_and_at_the_same_place_nothing_is_guessed() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    protect(&world, false).unwrap();
    let group: Vec<ContainerId> = sealed(&world).into_iter().filter(|id| id.partition() == 0).take(SIZE).collect();
    let whole = contents(&ground, &group);
    assert!(whole.values().all(|bytes| bytes.len() > 70_000), "each has two blocks");
    ground.corrupt(&path(group[0]), 100, 1).unwrap();
    ground.corrupt(&path(group[1]), 66_000, 1).unwrap();
    assert_eq!(world.store.repair(group[1]).unwrap(), Repair::Repaired);
    assert_eq!(world.store.repair(group[0]).unwrap(), Repair::Repaired);
    assert_eq!(contents(&ground, &group), whole);
    // The same block of two members.
    ground.corrupt(&path(group[0]), 100, 1).unwrap();
    ground.corrupt(&path(group[2]), 200, 1).unwrap();
    let rotten = contents(&ground, &group);
    for id in [group[0], group[2]] {
        assert_eq!(world.store.repair(id).unwrap(), Repair::Impossible);
    }
    assert_eq!(contents(&ground, &group), rotten);
    // Two lost members.
    put(&ground, group[0], &whole[&group[0]]);
    put(&ground, group[2], &whole[&group[2]]);
    let model = world.model.clone();
    drop(world);
    let world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    ground.remove(&path(group[1])).unwrap();
    ground.remove(&path(group[3])).unwrap();
    assert_eq!(repair_lost(&world).unwrap(), (Vec::new(), vec![group[1], group[3]]));
    assert!(!ground.exists(&path(group[1])).unwrap() && !ground.exists(&path(group[3])).unwrap());
    // One of them comes back: then the other one can be rebuilt.
    let file = ground.create(&path(group[1])).unwrap();
    file.write_at(0, &whole[&group[1]]).unwrap();
    assert_eq!(world.store.repair(group[1]).unwrap(), Repair::Impossible, "it is not tried again for nothing");
    let model = world.model.clone();
    drop(world);
    let world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    assert_eq!(repair_lost(&world).unwrap(), (vec![group[3]], Vec::new()));
    assert_eq!(contents(&ground, &group), whole);
    check(&world.store, &world.model.needed);
}

#[test]
fn damaged_parity_is_found_and_made_anew_and_never_used() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    let made = protect(&world, true).unwrap();
    for offset in [9, 60, 5000, 100_000] {
        let files = parity_files(&ground);
        assert_eq!(files.len(), made);
        ground.corrupt(&files[0], offset, 4).unwrap();
        let damaged: Vec<_> =
            groups(&world).into_iter().filter_map(|group| world.store.scrub_parity(group).unwrap().damaged_parity).collect();
        assert_eq!(damaged.len(), 1, "{offset}");
        assert_eq!(protect(&world, true).unwrap(), 1);
        for group in groups(&world) {
            let scrubbed = world.store.scrub_parity(group).unwrap();
            assert!(
                scrubbed.damaged_parity.is_none() && scrubbed.read_bytes > 0 && scrubbed.damage.is_empty() && scrubbed.repaired.is_empty()
            );
        }
    }
    // A container whose parity is rotten at the same place stays as it is.
    let id = sealed(&world)[0];
    let file =
        parity_files(&ground).into_iter().find(|file| file.contains(&format!("-{:08x}", id.number())) && file.contains("/0000/")).unwrap();
    ground.corrupt(&path(id), 100, 1).unwrap();
    ground.corrupt(&file, 5000, 1).unwrap();
    let rotten = contents(&ground, &[id]);
    assert_eq!(world.store.repair(id).unwrap(), Repair::Impossible);
    assert_eq!(contents(&ground, &[id]), rotten);
}

#[test]
fn a_header_that_is_written_anew_gets_parity_anew() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    let made = protect(&world, true).unwrap();
    let group: Vec<ContainerId> = sealed(&world).into_iter().filter(|id| id.partition() == 0).take(2).collect();
    // Parity cannot restore the header: the same block of another member is rotten.
    ground.corrupt(&path(group[0]), 20, 1).unwrap();
    let there = read_file(&ground, &path(group[1]), u64::MAX).unwrap();
    ground.corrupt(&path(group[1]), 100, 1).unwrap();
    assert_eq!(world.store.repair(group[0]).unwrap(), Repair::Impossible);
    assert!(world.store.repair_header(group[0]).unwrap());
    // That place is marked in the parity of the others, which stays.
    assert_eq!(parity_files(&ground).len(), made);
    put(&ground, group[1], &there);
    let model = world.model.clone();
    drop(world);
    let world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
    let damaged = groups(&world).into_iter().filter(|id| world.store.scrub_parity(*id).unwrap().damaged_parity.is_some());
    assert_eq!(damaged.count(), 1);
    protect(&world, true).unwrap();
    let whole = contents(&ground, &group);
    for id in &group {
        ground.remove(&path(*id)).unwrap();
        assert_eq!(world.store.repair(*id).unwrap(), Repair::Repaired);
    }
    assert_eq!(contents(&ground, &group), whole);
}

#[test]
fn no_parity_is_made_of_what_is_rotten() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    let rotten = sealed(&world)[1];
    ground.corrupt(&path(rotten), 300, 1).unwrap();
    protect(&world, true).unwrap();
    assert_eq!(world.store.parity_statistics().unwrap().containers as usize, sealed(&world).len() - 1);
    assert_eq!(world.store.repair(rotten).unwrap(), Repair::Impossible);
}

#[test]
fn groups_that_are_too_small_are_grouped_anew_with_later_containers() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    for _ in 0..8 {
        fill(&mut world, 2).unwrap();
        protect(&world, true).unwrap();
    }
    let statistics = world.store.parity_statistics().unwrap();
    let sealed = sealed(&world).len();
    assert!(statistics.containers as usize == sealed, "{statistics:?} of {sealed}");
    assert!(statistics.groups as usize <= sealed / SIZE + 2, "{statistics:?} of {sealed}");
    assert_eq!(parity_files(&ground).len() as u64, statistics.groups);
    assert_eq!(protect(&world, true).unwrap(), 0);
}

/// Writes, makes parity, merges members and others, makes parity again, and loses a container.
fn work(ground: &SimulatedGround, world: &mut World) -> Result<()> {
    fill(world, 9)?;
    world.seal(SIZE, 10)?;
    protect(world, false)?;
    let victims: Vec<_> = world.sealed().into_iter().skip(1).take(2).collect();
    let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(2).collect();
    world.forget(&dead);
    world.merge(&victims)?;
    world.trim();
    fill(world, 2)?;
    protect(world, true)?;
    // A container without needed chunks goes without a forward: it must not come back.
    let empty = *world.unmerged().last().unwrap();
    world.forget(&world.needed_of(empty));
    world.merge(&[empty])?;
    repair_lost(world)?;
    protect(world, true)?;
    if let Some(lost) = sealed(world).first().copied()
        && ground.remove(&path(lost)).is_ok()
    {
        // Later, if the disk is full.
        let (repaired, still_lost) = repair_lost(world)?;
        assert_eq!([repaired, still_lost].concat(), [lost]);
    }
    fill(world, 1)
}

/// Checks, after a crash anywhere in `work`, that the lost container comes back, everything is there, and parity still
/// repairs.
fn verify_after(ground: &SimulatedGround, model: Model) {
    let mut world = World::open(ground, model, &small(), Access::ReadWrite).unwrap();
    let (_, lost) = repair_lost(&world).unwrap();
    assert_eq!(lost, []);
    world.check(ground);
    for group in groups(&world) {
        assert!(world.store.scrub_parity(group).unwrap().damaged_parity.is_none(), "{group}");
    }
    work(ground, &mut world).unwrap();
    world.check(ground);
    let sealed = sealed(&world);
    let whole = contents(ground, &sealed);
    let _ = protect(&world, true).unwrap();
    for id in &sealed {
        ground.corrupt(&path(*id), 70, 1).unwrap();
        assert_eq!(world.store.repair(*id).unwrap(), Repair::Repaired, "{id}");
    }
    assert_eq!(contents(ground, &sealed), whole);
    parity_files(ground);
}

#[test]
fn m0_20_a_crash_at_any_operation_of_parity_repairs_and_merges_loses_nothing() {
    // Runs differ in length, so this goes on until one ends before its crash.
    for operation in 0.. {
        let mut is_crashed = false;
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }] {
            let ground = start(1);
            let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
            ground.crash_after_operations(operation);
            let _ = work(&ground, &mut world);
            let model = world.model.clone();
            drop(world);
            is_crashed |= ground.is_crashed();
            verify_after(&ground.restart(policy), model);
        }
        if !is_crashed {
            break;
        }
    }
}

#[test]
fn an_operation_that_fails_once_and_a_full_disk_lose_nothing() {
    // Runs differ in length, so this goes on until one ends before its failure.
    for operation in 0.. {
        let ground = start(1);
        let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
        let failing = ground.operations() + operation;
        ground.fail_operation(operation, io::ErrorKind::StorageFull);
        let result = work(&ground, &mut world);
        if ground.operations() <= failing {
            result.unwrap();
            break;
        }
        let model = world.model.clone();
        drop(world);
        verify_after(&ground.restart(CrashPolicy::DropAll), model);
    }
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 9).unwrap();
    ground.set_capacity(ground.used_bytes() + 20_000);
    assert!(world.store.make_parity(SIZE, true).unwrap_err().is_full());
    assert!(parity_files(&ground).is_empty());
    ground.set_capacity(u64::MAX);
    protect(&world, true).unwrap();
    let id = sealed(&world)[0];
    ground.remove(&path(id)).unwrap();
    ground.set_capacity(ground.used_bytes() + 20_000);
    assert!(world.store.repair(id).unwrap_err().is_full());
    ground.set_capacity(u64::MAX);
    assert_eq!(world.store.repair(id).unwrap(), Repair::Repaired);
    check(&world.store, &world.model.needed);
}

#[test]
fn a_rehearsed_repair_shows_what_a_repair_would_make_and_writes_nothing() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    protect(&world, true).unwrap();
    let of = |partition: u16| sealed(&world).into_iter().filter(move |id| id.partition() == partition).take(2);
    let group: Vec<ContainerId> = of(0).take(1).chain(of(1)).collect();
    let [gone, rotten, headless] = group[..] else { panic!("{group:?}") };
    let whole = contents(&ground, &group);
    let model = world.model.clone();
    drop(world);
    ground.remove(&path(gone)).unwrap();
    ground.corrupt(&path(rotten), 100, 1).unwrap();
    ground.corrupt(&path(headless), 3, 1).unwrap();
    let used = ground.used_bytes();
    let world = World::open(&ground, model, &small(), Access::Read).unwrap();
    assert_eq!(world.store.repair(gone).unwrap(), Repair::Impossible, "it is open for reading");
    world.store.rehearse();
    assert_eq!(repair_lost(&world).unwrap(), (vec![gone], Vec::new()));
    assert_eq!(repair_lost(&world).unwrap(), (Vec::new(), Vec::new()));
    // The same block of two members: parity restores neither until one has its header.
    assert_eq!(world.store.repair(headless).unwrap(), Repair::Impossible);
    assert!(world.store.repair_header(headless).unwrap() && !world.store.repair_header(headless).unwrap());
    assert_eq!(world.store.repair(rotten).unwrap(), Repair::Repaired);
    assert!(group.iter().all(|id| !is_damaged(&world.store, *id) && world.store.containers().unwrap().contains(*id)));
    check(&world.store, &world.model.needed);
    drop(world);
    assert_eq!(ground.used_bytes(), used);
    assert!(!ground.exists(&path(gone)).unwrap());
    assert!(contents(&ground, &group[1..]).iter().all(|(id, bytes)| whole[id] != *bytes));
}

#[test]
fn a_header_that_is_written_anew_says_when_its_container_was_created() {
    let ground = start(1);
    let mut world = World::open(&ground, Model::default(), &small(), Access::ReadWrite).unwrap();
    fill(&mut world, 10).unwrap();
    let all = sealed(&world);
    let whole = contents(&ground, &all);
    let header = |bytes: &[u8]| Header::decode(&bytes[..HEADER_BYTES]).unwrap();
    let late = all.iter().copied().rfind(|id| header(&whole[id]).created > 0).expect("all were made with the first batch");
    let model = world.model.clone();
    drop(world);
    // One flipped bit, and a header of zeros: then the footer tells what the log had reached.
    for damage in [vec![(50, 1)], (0..64).map(|at| (at, whole[&late][at as usize])).collect()] {
        put(&ground, late, &whole[&late]);
        damage.iter().filter(|(_, mask)| *mask != 0).for_each(|(at, mask)| ground.corrupt(&path(late), *at, *mask).unwrap());
        let world = World::open(&ground, model.clone(), &small(), Access::ReadWrite).unwrap();
        assert!(world.store.repair_header(late).unwrap());
        let made = contents(&ground, &[late]);
        assert_eq!(header(&made[&late]).created, header(&whole[&late]).created);
        assert_eq!(made[&late][HEADER_BYTES..], whole[&late][HEADER_BYTES..]);
        assert!(!world.store.repair_header(late).unwrap());
    }
}
