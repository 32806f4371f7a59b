//! Parity of containers in several folders: groups keep to their folder, and what is in memory is bounded.

mod common;

use common::merges::*;
use common::parities::*;
use common::*;
use onefold_ground::{Access, CrashPolicy, Ground, SimulatedGround};
use onefold_storage::*;
use std::collections::{BTreeMap, BTreeSet};

/// Containers of one block or two.
fn tiny() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, ..small() }
}

fn open_tiny(ground: &SimulatedGround, model: Model) -> World {
    World::open(ground, model, &tiny(), Access::ReadWrite).unwrap()
}

fn reopened_tiny(ground: &SimulatedGround, world: World) -> World {
    let model = world.model.clone();
    drop(world);
    open_tiny(ground, model)
}

/// A small generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}

fn folder(id: ContainerId) -> (u16, u32) {
    (id.partition(), id.number() >> 12)
}

/// Writes a container or two for each partition, in new folders.
fn fill_folder(world: &mut World) -> Result<()> {
    next_folder(world)?;
    for round in 0..5 {
        world.write(&[1900, 40 * round, 2500, 0, 1200])?;
    }
    Ok(())
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

/// Compares the parity files with the simplest model: once all have parity, each sealed container is in exactly one
/// group, and no two groups of a folder could be one.
fn all_have_parity(ground: &SimulatedGround, world: &World) {
    let files = members(ground, world);
    let mut all: Vec<ContainerId> = files.values().flatten().copied().collect();
    all.sort_unstable();
    assert_eq!(all, sealed(world));
    let mut sizes: BTreeMap<(u16, u32), Vec<usize>> = BTreeMap::new();
    files.values().for_each(|members| sizes.entry(folder(members[0])).or_default().push(members.len()));
    for (folder, mut sizes) in sizes {
        sizes.sort_unstable();
        assert!(sizes.len() < 2 || sizes[0] + sizes[1] > SIZE, "{folder:?}: {sizes:?}");
    }
}

#[test]
fn groups_never_cross_a_folder_whatever_is_sealed_merged_and_lost() {
    for seed in 0..25 {
        let ground = start(seed);
        let mut random = Random(seed);
        let mut world = open_tiny(&ground, Model::default());
        for _ in 0..40 {
            match random.below(8) {
                0 => next_folder(&world).unwrap(),
                1 | 2 => world.write(&[1900, 2500, 0, 3000, 1200]).unwrap(),
                3 => {
                    protect(&world, false).unwrap();
                }
                4 => {
                    protect(&world, true).unwrap();
                    all_have_parity(&ground, &world);
                }
                5 => {
                    // Victims of several folders.
                    let mut victims = world.sealed();
                    victims.retain(|_| random.below(3) == 0);
                    victims.truncate(4);
                    let dead: Vec<_> =
                        victims.iter().flat_map(|victim| world.needed_of(*victim)).filter(|_| random.below(2) == 0).collect();
                    world.forget(&dead);
                    if !victims.is_empty() {
                        world.merge(&victims).unwrap();
                    }
                }
                6 => world = reopened_tiny(&ground, world),
                _ => {
                    // One container of each group, or of some.
                    protect(&world, true).unwrap();
                    let groups = members(&ground, &world);
                    let lost: BTreeSet<ContainerId> =
                        groups.values().map(|members| members[random.below(members.len() as u64) as usize]).collect();
                    let lost: Vec<ContainerId> = lost.into_iter().collect();
                    let whole = contents(&ground, &lost);
                    for (at, id) in lost.iter().enumerate() {
                        if at % 2 == 0 { ground.remove(&path(*id)).unwrap() } else { put(&ground, *id, &[1; 100]) }
                    }
                    let (repaired, still_lost) = repair_lost(&world).unwrap();
                    assert_eq!((repaired.len(), still_lost), (lost.len().div_ceil(2), Vec::new()));
                    for id in &lost {
                        assert_ne!(world.store.repair(*id).unwrap(), Repair::Impossible, "{id}");
                    }
                    assert_eq!(contents(&ground, &lost), whole);
                }
            }
            members(&ground, &world);
        }
        world = reopened_tiny(&ground, world);
        assert_eq!(repair_lost(&world).unwrap(), (Vec::new(), Vec::new()));
        protect(&world, true).unwrap();
        all_have_parity(&ground, &world);
        world.check(&ground);
    }
}

#[test]
fn more_folders_than_memory_keeps_have_parity_that_repairs_everything() {
    let ground = start(1);
    let mut world = open_tiny(&ground, Model::default());
    let folders = |world: &World| sealed(world).into_iter().map(folder).collect::<BTreeSet<_>>().len();
    while folders(&world) < 45 {
        fill_folder(&mut world).unwrap();
        protect(&world, false).unwrap();
    }
    protect(&world, true).unwrap();
    all_have_parity(&ground, &world);
    // One of each folder is lost.
    let mut world = reopened_tiny(&ground, world);
    let mut lost = sealed(&world);
    lost.dedup_by_key(|id| folder(*id));
    let whole = contents(&ground, &lost);
    lost.iter().for_each(|id| ground.remove(&path(*id)).unwrap());
    assert_eq!(repair_lost(&world).unwrap(), (lost.clone(), Vec::new()));
    assert_eq!(contents(&ground, &lost), whole);
    // The parity of each folder is damaged. All of it is found before any is rebuilt.
    for _ in 0..2 {
        let files = parity_files(&ground);
        files.iter().for_each(|file| ground.corrupt(file, 5000, 1).unwrap());
        let damaged = groups(&world).into_iter().filter(|group| world.store.scrub_parity(*group).unwrap().damaged_parity.is_some());
        assert_eq!(damaged.count(), files.len());
        protect(&world, true).unwrap();
        all_have_parity(&ground, &world);
        assert!(groups(&world).into_iter().all(|group| world.store.scrub_parity(group).unwrap().damaged_parity.is_none()));
        // Now by an opening that has made no parity before.
        world = reopened_tiny(&ground, world);
    }
    for id in &lost {
        ground.corrupt(&path(*id), 100, 1).unwrap();
        assert_eq!(world.store.repair(*id).unwrap(), Repair::Repaired);
    }
    assert_eq!(contents(&ground, &lost), whole);
    world.check(&ground);
}

#[test]
fn the_number_of_the_highest_container_is_not_given_out_again_though_only_its_parity_is_left() {
    for keeps_folder in [true, false] {
        let ground = start(1);
        let mut world = open_tiny(&ground, Model::default());
        world.seal(6, 1).unwrap();
        protect(&world, true).unwrap();
        if keeps_folder {
            // The highest container is the only one of its folder.
            next_folder(&world).unwrap();
        }
        let victims: Vec<_> = world.sealed().into_iter().take(2).collect();
        world.merge(&victims).unwrap();
        let merged = *world.model.forwards.values().last().unwrap();
        assert_eq!(world.model.files.iter().rfind(|id| id.partition() == 0), Some(&merged));
        protect(&world, true).unwrap();
        trim_all(&mut world);
        let whole = contents(&ground, &[merged]);
        let mut model = world.model.clone();
        drop(world);
        ground.remove(&path(merged)).unwrap();
        model.files.remove(&merged);
        let mut world = open_tiny(&ground, model);
        let before = world.model.files.clone();
        while world.model.files.iter().filter(|id| id.partition() == 0 && !before.contains(id)).count() < 3 {
            world.write(&[1900, 2500, 0, 3000, 1200]).unwrap();
        }
        assert!(!world.model.files.contains(&merged), "its number was given out again");
        assert_eq!(repair_lost(&world).unwrap(), (vec![merged], Vec::new()));
        assert_eq!(contents(&ground, &[merged]), whole);
        world.model.files.insert(merged);
        world.check(&ground);
    }
}

/// Makes parity in two folders, merges members of both, and makes parity again.
fn work(world: &mut World) -> Result<()> {
    protect(world, true)?;
    let victims: Vec<_> = world.unmerged().into_iter().step_by(2).take(3).collect();
    let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(2).collect();
    world.forget(&dead);
    world.merge(&victims)?;
    protect(world, true).map(drop)
}

#[test]
fn a_power_cut_at_any_sync_while_several_folders_get_parity_loses_nothing() {
    for sync in 0.. {
        let mut is_crashed = false;
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: sync }] {
            let ground = start(sync);
            let mut world = open_tiny(&ground, Model::default());
            world.seal(3, 1).unwrap();
            next_folder(&world).unwrap();
            world.seal(6, 1).unwrap();
            ground.crash_after_syncs(sync);
            let _ = work(&mut world);
            let model = world.model.clone();
            drop(world);
            is_crashed |= ground.is_crashed();
            let ground = ground.restart(policy);
            let mut world = open_tiny(&ground, model);
            world.store.finish_merges().unwrap();
            // Nobody lost a file, and nobody who was merged comes back.
            assert_eq!(repair_lost(&world).unwrap(), (Vec::new(), Vec::new()));
            world.check(&ground);
            work(&mut world).unwrap();
            world.check(&ground);
            all_have_parity(&ground, &world);
            for id in sealed(&world) {
                let whole = contents(&ground, &[id]);
                ground.remove(&path(id)).unwrap();
                assert_eq!(world.store.repair(id).unwrap(), Repair::Repaired, "{id}");
                assert_eq!(contents(&ground, &[id]), whole);
            }
        }
        if !is_crashed {
            break;
        }
    }
}

#[test]
fn a_merged_container_stays_away_if_the_process_is_killed_while_it_leaves_its_parity() {
    let mut crashed = 0;
    for operation in 0.. {
        let ground = start(1);
        let mut world = open_tiny(&ground, Model::default());
        world.seal(6, 1).unwrap();
        // An opening syncs the highest folder of parity in any case.
        next_folder(&world).unwrap();
        world.seal(9, 1).unwrap();
        protect(&world, true).unwrap();
        let victims: Vec<_> = world.sealed().into_iter().take(1).collect();
        world.forget(&world.needed_of(victims[0]));
        ground.crash_after_operations_in(&format!("{DIRECTORY}/0000/parity"), operation);
        world.merge(&victims).unwrap();
        let model = world.model.clone();
        drop(world);
        if !ground.is_crashed() {
            break;
        }
        crashed += 1;
        // The next process sees names that are not durable, and takes the victim's file away. Then the power fails.
        let killed = ground.restart(CrashPolicy::KeepAll);
        let world = open_tiny(&killed, model);
        assert!(!world.store.has_pending_merges() && !killed.exists(&path(victims[0])).unwrap());
        let model = world.model.clone();
        drop(world);
        let cut = killed.restart(CrashPolicy::DropAll);
        let world = open_tiny(&cut, model);
        assert_eq!(repair_lost(&world).unwrap(), (Vec::new(), Vec::new()), "{operation}");
        world.check(&cut);
    }
    assert!(crashed > 4, "{crashed}");
}

#[test]
fn parity_files_of_the_earlier_layout_mean_nothing() {
    let ground = start(1);
    let mut world = open_tiny(&ground, Model::default());
    world.seal(5, 1).unwrap();
    protect(&world, true).unwrap();
    let model = world.model.clone();
    drop(world);
    // The group had a number of eight digits.
    let file = parity_files(&ground).into_iter().find(|file| file.contains("/0000/parity/") && file.contains("-00000001")).unwrap();
    let (folder, name) = file.rsplit_once('/').unwrap();
    ground.rename(&file, &format!("{folder}/0{name}")).unwrap();
    let world = open_tiny(&ground, model);
    let before = groups(&world).len();
    assert_eq!(before + 1, parity_files(&ground).len());
    let id = ContainerId::new(0, 1);
    ground.corrupt(&path(id), 100, 1).unwrap();
    assert_eq!(world.store.repair(id).unwrap(), Repair::Impossible);
}
