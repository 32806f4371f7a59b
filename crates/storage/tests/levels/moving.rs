//! Partitions move to another directory while the store is in use (M2.10).

use super::*;
use std::path::Path;

/// Moves a partition as far as it goes. Copies that `is_given_up` says are dropped.
pub fn move_all(store: &LevelsStore, to: Option<&Path>, is_given_up: &mut dyn FnMut() -> bool) -> Result<bool> {
    store.begin_move(0, to)?;
    while let Some(copied) = store.copy_next(0, &|| true)? {
        if is_given_up() {
            drop(copied);
            break;
        }
        copied.install()?;
    }
    store.end_move(0)
}

fn names(ground: &SimulatedGround, directory: &str) -> Vec<String> {
    ground.list(directory).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn filled(ground: &SimulatedGround, known: &mut KnownLevels) -> LevelsWorld {
    LevelsStore::create(ground, LEVELS, 1, &levels_options()).unwrap();
    let mut world = LevelsWorld::open(ground, known, 1).unwrap();
    for _ in 0..6 {
        fill(&mut world, known, 20);
        while world.store.compact(&|| true).unwrap() {}
    }
    world
}

#[test]
fn m2_10_a_partition_moves_with_all_its_tables_and_back() {
    let ground = SimulatedGround::new(1);
    let mut known = KnownLevels::default();
    let mut world = filled(&ground, &mut known);
    let before = table_files(&ground);
    assert!(before.len() > 2);
    assert!(move_all(&world.store, Some(Path::new("disk")), &mut || false).unwrap());
    assert!(table_files(&ground).is_empty());
    let figures = world.store.partitions().unwrap();
    assert_eq!((figures[0].tables_elsewhere, figures[0].directory.as_str()), (0, "levels/0000/home-1"));
    world.check(&known);
    // New tables go there too, of memtables and of compactions.
    fill(&mut world, &mut known, 40);
    while world.store.compact(&|| true).unwrap() {}
    assert!(table_files(&ground).is_empty());
    world.check(&known);
    drop(world);
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    world.check(&known);
    fill(&mut world, &mut known, 40);
    assert!(table_files(&ground).is_empty());
    LevelsWorld::open_for(&ground, &known, 1, Access::Read).unwrap().check(&known);
    assert!(move_all(&world.store, None, &mut || false).unwrap());
    assert_eq!(names(&ground, "levels/0000").iter().filter(|name| name.starts_with("home-")).count(), 0);
    world.check(&known);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}

#[test]
fn m2_10_a_move_that_was_interrupted_goes_on_and_its_tables_are_found_in_both_places() {
    let ground = SimulatedGround::new(2);
    let mut known = KnownLevels::default();
    let world = filled(&ground, &mut known);
    let mut copies = 0;
    let is_whole = move_all(&world.store, Some(Path::new("disk")), &mut || {
        copies += 1;
        copies == 3
    });
    assert!(!is_whole.unwrap());
    let elsewhere = world.store.partitions().unwrap()[0].tables_elsewhere;
    assert!(elsewhere > 0 && !names(&ground, "levels/0000/home-1").is_empty());
    drop(world);
    let world = LevelsWorld::open(&ground, &known, 1).unwrap();
    world.check(&known);
    assert_eq!(world.store.partitions().unwrap()[0].tables_elsewhere, elsewhere);
    while let Some(copied) = world.store.copy_next(0, &|| true).unwrap() {
        copied.install().unwrap();
    }
    assert!(world.store.end_move(0).unwrap());
    world.check(&known);
    assert!(table_files(&ground).is_empty());
    // On the way back, the place that still has tables stays.
    copies = 0;
    let is_whole = move_all(&world.store, None, &mut || {
        copies += 1;
        copies == 2
    });
    assert!(!is_whole.unwrap());
    world.check(&known);
    drop(world);
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
}

#[test]
fn m2_10_a_crash_during_a_move_loses_nothing() {
    let start = SimulatedGround::new(3);
    let mut known = KnownLevels::default();
    drop(filled(&start, &mut known));
    for way in [Some(Path::new("disk")), None] {
        let steps = (0..).find(|operation| crashed_move(&start, &known, way, *operation));
        assert!(steps.is_some_and(|steps| steps > 20));
    }
}

/// Crashes a move at an operation. Returns whether it was over before.
fn crashed_move(start: &SimulatedGround, known: &KnownLevels, way: Option<&Path>, operation: u64) -> bool {
    let (ground, known) = (start.restart(CrashPolicy::KeepAll), known.clone());
    let world = LevelsWorld::open(&ground, &known, 1).unwrap();
    if way.is_none() {
        assert!(move_all(&world.store, Some(Path::new("disk")), &mut || false).unwrap());
    }
    ground.crash_after_operations(operation);
    let is_whole = move_all(&world.store, way, &mut || false).is_ok_and(|moved| moved);
    drop(world);
    for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll, CrashPolicy::Random { seed: operation }] {
        let ground = ground.restart(policy);
        let world = LevelsWorld::open(&ground, &known, 1).unwrap();
        world.check(&known);
        // It goes on, whatever came of it.
        assert!(move_all(&world.store, way, &mut || false).unwrap());
        world.check(&known);
        drop(world);
        LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
    }
    is_whole
}

#[test]
fn m2_10_a_home_of_another_state_of_the_store_is_refused() {
    let ground = SimulatedGround::new(4);
    let mut known = KnownLevels::default();
    let world = filled(&ground, &mut known);
    assert!(move_all(&world.store, Some(Path::new("disk")), &mut || false).unwrap());
    drop(world);
    let manifests: Vec<Vec<u8>> = ["manifest", "manifest-copy"].map(|name| read(&ground, &format!("levels/0000/{name}"))).into();
    // The store is opened once more. Then its directory is put back from a copy, and the other disk is not.
    drop(LevelsWorld::open(&ground, &known, 1).unwrap());
    for (name, bytes) in ["manifest", "manifest-copy"].iter().zip(&manifests) {
        onefold_ground::replace_file(&ground, &format!("levels/0000/{name}"), bytes).unwrap();
    }
    known.epoch.set(1);
    let refused = LevelsWorld::open(&ground, &known, 1).map(drop).unwrap_err().to_string();
    assert!(refused.contains("another copy of the store") && refused.contains("levels/0000/home-1/owner"), "{refused}");
    // Who knows better says so.
    ground.remove("levels/0000/home-1/owner").unwrap();
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
    // The log is an older one than the home knows, though the manifests are not.
    let mut world = LevelsWorld::open(&ground, &known, 1).unwrap();
    let before = known.clone();
    fill(&mut world, &mut known, 40);
    drop(world);
    known.epoch.set(known.epoch.get() + 1);
    before.epoch.set(known.epoch.get());
    let refused = LevelsWorld::open(&ground, &before, 1).map(drop).unwrap_err().to_string();
    assert!(refused.contains("another copy of the store"), "{refused}");
    LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
    // And a home of another store.
    let marker = read(&ground, "levels/0000/home-1/home");
    let mut other = marker.clone();
    other[12] ^= 1;
    let length = other.len() - 8;
    let sum = onefold_ground::checksum(&other[..length]);
    other[length..].copy_from_slice(&sum.to_le_bytes());
    onefold_ground::replace_file(&ground, "levels/0000/home-1/home", &other).unwrap();
    let refused = LevelsWorld::open(&ground, &known, 1).map(drop).unwrap_err().to_string();
    assert!(refused.contains("another store"), "{refused}");
    // Where it cannot be read whose it is, a repair says so again.
    for broken in [Some(&b"something else"[..]), None] {
        match broken {
            Some(bytes) => onefold_ground::replace_file(&ground, "levels/0000/home-1/home", bytes).unwrap(),
            None => ground.remove("levels/0000/home-1/home").unwrap(),
        }
        let refused = LevelsWorld::open(&ground, &known, 1).map(drop).unwrap_err().to_string();
        assert!(refused.contains("check --repair"), "{refused}");
        let restored = LevelsStore::restore_homes(&ground, LEVELS, 1, &levels_options(), false).unwrap();
        assert_eq!((restored.len(), read(&ground, "levels/0000/home-1/home")), (1, marker.clone()));
        LevelsWorld::open(&ground, &known, 1).unwrap().check(&known);
    }
}

#[test]
fn m2_10_a_table_with_damage_stays_where_it_is_and_the_others_move() {
    let ground = SimulatedGround::new(8);
    let mut known = KnownLevels::default();
    let world = filled(&ground, &mut known);
    let tables = table_files(&ground);
    let path = format!("levels/0000/{}", tables[1]);
    ground.corrupt(&path, ground.open(&path, Access::Read).unwrap().len().unwrap() - 20, 1).unwrap();
    let stays = move_all(&world.store, Some(Path::new("disk")), &mut || false).unwrap_err().to_string();
    assert!(stays.contains(&tables[1]) && stays.contains("check --repair"), "{stays}");
    assert_eq!(table_files(&ground), [tables[1].clone()]);
    drop(world);
    LevelsWorld::open(&ground, &known, 1).unwrap();
}

fn read(ground: &SimulatedGround, path: &str) -> Vec<u8> {
    onefold_ground::read_file(ground, path, 1 << 20).unwrap()
}
