//! Space comes back on a full disk too: tables are written again without what younger ones shadow.

use super::*;

fn disk_bytes(world: &LevelsWorld) -> u64 {
    world.store.usage(None).unwrap().disk_bytes
}

/// A store with several levels, of whose chunks most are removed. The removals are in tables.
fn mostly_removed(ground: &SimulatedGround, known: &mut KnownLevels) -> LevelsWorld {
    LevelsStore::create(ground, LEVELS, 1, &levels_options()).unwrap();
    let mut world = LevelsWorld::open(ground, known, 1).unwrap();
    for _ in 0..30 {
        fill(&mut world, known, 20);
        while world.store.compact(&|| true).unwrap() {}
    }
    assert!(world.store.levels().len() >= 3);
    let dead: Vec<u64> = known.live.keys().copied().filter(|number| number % 8 != 0).collect();
    world.remove(known, &dead, false).unwrap();
    world.trim(known, true).unwrap();
    world
}

#[test]
fn m2_8_a_full_disk_gets_space_back_without_space_for_a_merge() {
    let ground = SimulatedGround::new(1);
    let mut known = KnownLevels::default();
    let world = mostly_removed(&ground, &mut known);
    let before = disk_bytes(&world);
    ground.set_capacity(1 << 30);
    let space = ground.space().unwrap();
    // Space for a table of level 1, and not for all that a merge takes.
    ground.set_capacity(space.total_bytes - space.free_bytes + (24 << 10));
    let refused = world.store.merge(&|| true).map(drop).unwrap_err();
    assert!(refused.is_full(), "{refused}");
    let mut shrunk = 0;
    while world.store.shrink(&|| true).unwrap() {
        shrunk += 1;
    }
    assert!(shrunk > 3);
    let after = disk_bytes(&world);
    assert!(after < before / 3, "{after} of {before}");
    world.check(&known);
    // Nothing is looked at again before more is removed.
    let read = world.store.work().merge_read_bytes;
    assert!(!world.store.shrink(&|| true).unwrap());
    assert_eq!(world.store.work().merge_read_bytes, read);
    // Now merges find space.
    while world.store.compact(&|| true).unwrap() {}
    world.check(&known);
    drop(world);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}

#[test]
fn m2_8_a_crash_while_tables_shrink_leaves_the_old_ones_or_the_new_ones() {
    let ground = SimulatedGround::new(3);
    let mut known = KnownLevels::default();
    drop(mostly_removed(&ground, &mut known));
    for operation in 0.. {
        let ground = ground.restart(CrashPolicy::KeepAll);
        let known = known.clone();
        let world = LevelsWorld::open(&ground, &known, 1).unwrap();
        ground.crash_after_operations(operation);
        let mut is_whole = false;
        while let Ok(shrunk) = world.store.shrink(&|| true) {
            is_whole = !shrunk;
            if is_whole {
                break;
            }
        }
        drop(world);
        for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll, CrashPolicy::Random { seed: operation }] {
            let ground = ground.restart(policy);
            let world = LevelsWorld::open(&ground, &known, 1).unwrap();
            world.check(&known);
            let new = ground.list("levels/0000").unwrap().into_iter().filter(|entry| entry.name.ends_with(".new")).count();
            assert_eq!(new, 0, "files that nobody uses go");
        }
        if is_whole {
            assert!(operation > 20);
            return;
        }
    }
}

#[test]
fn m2_8_a_younger_copy_takes_the_place_of_no_other() {
    let ground = SimulatedGround::new(5);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    while world.store.levels().len() < 2 {
        fill(&mut world, &mut known, 20);
        world.trim(&mut known, true).unwrap();
        while world.store.compact(&|| true).unwrap() {}
    }
    // All are stored again, as behind an index that has lost them.
    let mut writer = world.store.clone().new_writer();
    for number in known.live.keys() {
        let (fingerprint, kind, data) = chunk(*number);
        writer.append(&[NewChunk { fingerprint, kind, data: &data }]).unwrap();
    }
    drop(writer);
    let mut prepared = world.store.prepare(Scope::FullFrames).unwrap();
    let (start, end) = known.log.append(std::mem::take(&mut prepared.records));
    world.store.committed(prepared, start, end);
    let before = world.store.levels();
    assert!(before[0].tables > 1, "{before:?}");
    while world.store.shrink(&|| true).unwrap() {}
    assert_eq!(world.store.levels(), before);
    drop(world);
    let ground = ground.restart(CrashPolicy::DropAll);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}

#[test]
fn m2_5_new_chunks_find_the_disk_full_before_they_are_accepted() {
    let ground = SimulatedGround::new(6);
    LevelsStore::create(&ground, LEVELS, 1, &levels_options()).unwrap();
    let mut known = KnownLevels::default();
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    fill(&mut world, &mut known, 20);
    let mut writer = world.store.clone().new_writer();
    ground.set_capacity(ground.used_bytes() + (90 << 10));
    let mut refused = 0;
    for number in 100..300 {
        refused += u64::from(world.append(&mut *writer, &[number]).is_err_and(|error| error.is_full()));
    }
    assert!(refused > 100, "{refused}");
    let taken: Vec<u64> = world.pending.keys().copied().collect();
    assert!(taken.len() > 10, "{taken:?}");
    // Others take the rest. Everything that was accepted has its space.
    ground.set_capacity(ground.used_bytes());
    known.next = 300;
    world.flush(&mut known).unwrap();
    world.check(&known);
    assert!(taken.iter().all(|number| known.live.contains_key(number)));
    // What is not used comes back.
    ground.set_capacity(u64::MAX);
    world.store.leave();
    let names: Vec<String> = ground.list("levels/0000").unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.iter().all(|name| !name.ends_with(".new")), "{names:?}");
    drop(world);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}
