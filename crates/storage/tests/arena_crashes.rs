//! Arenas under crashes, failures and full disks: no committed chunk is lost, and no block is given out twice.

mod common;

use common::Dice;
use common::arenas::*;
use onefold_ground::simulation::seeds::Seeds;
use onefold_ground::simulation::trials::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_storage::*;
use std::collections::BTreeSet;
use std::io;

fn small() -> ArenaOptions {
    ArenaOptions { in_flight_bytes: 48 << 10, grow_bytes: 24 << 10, limit_bytes: 60 * BLOCK, ..arena_options() }
}

/// Random appends, prepares, commits, abandons, removals and frees, until the first error.
fn work(world: &mut ArenaWorld, known: &mut Known, dice: &mut Dice, steps: u64) -> Result<()> {
    let mut writers: Vec<Box<dyn ChunkWriter>> = (0..2).map(|_| world.store.clone().new_writer()).collect();
    for _ in 0..steps {
        match dice.below(12) {
            0..=4 => {
                let count = 1 + dice.below(9);
                match world.append(&mut *writers[dice.below(2) as usize], known, count) {
                    Err(error @ StorageError::ArenaFull { .. }) => {
                        assert!(error.is_full());
                        all_blocks_are_accounted_for(world);
                    }
                    other => drop(other?),
                }
            }
            5 | 6 => world.flush(known)?,
            7 => {
                let prepared = world.store.prepare(Scope::Everything)?;
                let count = 1 + dice.below(3);
                let more = world.append(&mut *writers[0], known, count);
                if dice.below(2) == 0 {
                    world.store.abandoned(prepared);
                } else {
                    world.commit(known, prepared);
                }
                match more {
                    Err(StorageError::ArenaFull { .. }) => {}
                    other => drop(other?),
                }
            }
            8 | 9 => {
                let share = 2 + dice.below(4);
                let dead: Vec<u64> = known.committed.keys().copied().filter(|_| dice.below(share) == 0).collect();
                world.remove(known, &dead)?;
            }
            10 => world.free_retired()?,
            _ => {
                let writer = dice.below(2) as usize;
                writers[writer] = world.store.clone().new_writer();
                if dice.below(2) == 0 {
                    writers[writer].be_sequential();
                }
            }
        }
    }
    world.flush(known)?;
    world.free_retired()
}

/// In a full arena every block is used, pending or retired.
fn all_blocks_are_accounted_for(world: &ArenaWorld) {
    let figures = world.store.figures();
    assert_eq!((figures.blocks, figures.reserved), (60, 0));
    assert_eq!(world.table.all().len() as u64 + figures.pending + figures.retired, figures.blocks);
    assert_eq!(figures.retired, world.retired.len() as u64);
}

struct Arena {
    steps: u64,
    is_on_device: bool,
}

impl Subject for Arena {
    type Part = ArenaWorld;
    type Known = (Known, u64);

    fn create(&self, seed: u64) -> (SimulatedGround, (Known, u64)) {
        let ground = SimulatedGround::new(seed);
        let create = if self.is_on_device { create_arena_on_device } else { create_arena };
        create(&ground, &small());
        (ground, (Known::default(), 7))
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Self::Known) -> std::result::Result<ArenaWorld, String> {
        ArenaWorld::open(ground, &known.0, &small()).map_err(|error| error.to_string())
    }

    fn work(&self, world: &mut ArenaWorld, known: &mut Self::Known) -> std::result::Result<(), String> {
        // Chunks of a call that failed are not known to this model.
        let mut dice = Dice::of(known.1);
        known.1 += 1;
        work(world, &mut known.0, &mut dice, self.steps).map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, world: &mut ArenaWorld, known: &mut Self::Known) {
        world.check(&known.0);
        assert_eq!(world.store.figures().blocks.min(60), world.store.figures().blocks);
    }
}

const ARENA: Arena = Arena { steps: 40, is_on_device: false };
const ON_DEVICE: Arena = Arena { is_on_device: true, ..ARENA };

#[test]
fn m1_10_a_killed_process_then_another_then_a_power_cut_lose_no_committed_chunk() {
    assert!(kills_then_power_cuts(&ARENA, 150) > 40);
    assert!(kills_then_power_cuts(&ON_DEVICE, 50) > 10);
}

#[test]
fn m1_10_a_failed_operation_then_another_process_then_a_power_cut_lose_no_committed_chunk() {
    assert!(failures_then_power_cuts(&ARENA, 150) > 40);
    assert!(failures_then_power_cuts(&ON_DEVICE, 50) > 10);
}

#[test]
fn m1_10_a_query_that_fails_loses_no_committed_chunk() {
    assert!(failed_queries_of_openings(&ARENA, 20, 20) > 20);
    assert!(failed_queries_of_openings(&ON_DEVICE, 10, 20) > 10);
}

#[test]
fn m1_11_histories_with_a_crash_at_every_operation_keep_what_was_committed() {
    Seeds::of(12).each(|seed| {
        let run = |crash: Option<u64>| {
            let ground = SimulatedGround::new(seed);
            create_arena(&ground, &small());
            let before = ground.operations();
            let mut known = Known::default();
            let mut world = ArenaWorld::open(&ground, &known, &small()).unwrap();
            if let Some(operation) = crash {
                ground.crash_after_operations(operation);
            }
            let worked = work(&mut world, &mut known, &mut Dice::of(seed), 60);
            assert!(worked.is_ok() || crash.is_some(), "{worked:?}");
            let operations = ground.operations() - before;
            // The crash may have hit a hole, which is no error.
            if !ground.is_crashed() {
                world.check(&known);
            }
            drop(world);
            let policies = [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::LoseSectors { sector_bytes: 4096 }];
            for policy in policies.into_iter().chain([CrashPolicy::Random { seed: seed + operations }]) {
                let ground = ground.restart(policy);
                let mut known = known.clone();
                let mut world = ArenaWorld::open(&ground, &known, &small()).unwrap();
                world.check(&known);
                // It goes on: what was never logged is free.
                work(&mut world, &mut known, &mut Dice::of(seed + 1000), 12).unwrap();
                world.check(&known);
            }
            operations
        };
        let operations = run(None);
        (0..operations).for_each(|operation| {
            run(Some(operation));
        });
    });
}

#[test]
fn m1_10_live_and_free_blocks_are_all_blocks_and_what_is_free_becomes_a_hole() {
    Seeds::of(40).each(|seed| {
        let ground = SimulatedGround::new(seed);
        create_arena(&ground, &small());
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &small()).unwrap();
        work(&mut world, &mut known, &mut Dice::of(seed), 80).unwrap();
        let live: BTreeSet<u64> = known.committed.keys().copied().collect();
        world.holes.blocks.lock().clear();
        world.store.give_back(0).unwrap();
        let holes = world.holes.blocks.lock().clone();
        let blocks = world.store.figures().blocks;
        assert_eq!(live.union(&holes).copied().collect::<BTreeSet<_>>(), (0..blocks).collect());
        assert!(live.is_disjoint(&holes));
        assert!(world.holes.calls.lock().iter().all(|(_, length)| *length > 0));
        world.check(&known);
        // What is free can all be given out.
        let free = 60 - live.len() as u64;
        let mut writers = [world.store.writer(), world.store.writer()];
        for count in 0..free {
            world.append(&mut writers[count as usize % 2], &mut known, 1).unwrap();
        }
        assert!(matches!(world.append(&mut writers[0], &mut known, 1), Err(StorageError::ArenaFull { .. })));
        world.flush(&mut known).unwrap();
        world.check(&known);
    });
}

#[test]
fn a_full_disk_loses_nothing_and_takes_no_more_until_there_is_room() {
    for pages in 3..30 {
        let ground = SimulatedGround::new(pages);
        create_arena(&ground, &arena_options());
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        ground.set_capacity(pages * BLOCK);
        let mut writer = world.store.writer();
        let error = loop {
            let appended = world.append(&mut writer, &mut known, 1);
            if let Err(error) = appended {
                break error;
            }
            check_loads(&world.store, world.pending.iter());
        };
        assert!(matches!(error, StorageError::CannotWrite { .. }) && error.is_full(), "{error}");
        let pending = world.store.figures().pending;
        let refused = world.append(&mut writer, &mut known, 1).unwrap_err();
        assert!(refused.is_full() && world.store.figures().pending == pending);
        assert!(world.store.prepare(Scope::Everything).unwrap_err().is_full());
        check_loads(&world.store, world.pending.iter());
        ground.set_capacity(1 << 30);
        world.flush(&mut known).unwrap();
        world.append(&mut writer, &mut known, 3).unwrap();
        world.flush(&mut known).unwrap();
        world.check(&known);
        drop((writer, world));
        let ground = ground.restart(CrashPolicy::DropAll);
        ArenaWorld::open(&ground, &known, &arena_options()).unwrap().check(&known);
    }
}

#[test]
fn after_a_failed_write_no_more_is_taken_although_there_is_memory() {
    let options = ArenaOptions { in_flight_bytes: 1 << 20, ..arena_options() };
    let ground = SimulatedGround::new(1);
    create_arena(&ground, &options);
    let mut known = Known::default();
    let mut world = ArenaWorld::open(&ground, &known, &options).unwrap();
    ground.set_capacity(8 * BLOCK);
    let mut writer = world.store.writer();
    // All of them are taken, so the call that cannot write them succeeds.
    world.append(&mut writer, &mut known, 64).unwrap();
    assert!(world.append(&mut writer, &mut known, 1).unwrap_err().is_full());
    assert_eq!(world.store.figures().pending, 64);
    ground.set_capacity(1 << 30);
    world.append(&mut writer, &mut known, 1).unwrap();
    world.flush(&mut known).unwrap();
    world.check(&known);
}

#[test]
fn a_crash_while_an_arena_is_created_leaves_none_or_a_whole_one() {
    for operation in 0.. {
        let ground = SimulatedGround::new(operation);
        ground.crash_after_operations(operation);
        let is_created = ArenaStore::create(&ground, "arena", &arena_options()).is_ok();
        for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: operation }] {
            let ground = ground.restart(policy);
            let mut known = Known::default();
            let opened = ArenaWorld::open(&ground, &known, &arena_options());
            assert!(opened.is_ok() || !is_created);
            let mut world = opened.unwrap_or_else(|_| {
                ArenaStore::create(&ground, "arena", &arena_options()).unwrap();
                ArenaWorld::open(&ground, &known, &arena_options()).unwrap()
            });
            work(&mut world, &mut known, &mut Dice::of(operation), 10).unwrap();
            world.check(&known);
            drop(world);
            // A store that has chunks is not created again.
            assert!(ArenaStore::create(&ground, "arena", &arena_options()).is_err());
        }
        if is_created {
            assert!(operation > 5);
            return;
        }
    }
}

#[test]
fn m1_1_a_failed_sync_ends_writing_and_the_next_opening_goes_on() {
    for seed in 0..20 {
        let ground = SimulatedGround::new(seed);
        create_arena(&ground, &arena_options());
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        let mut writer = world.store.writer();
        world.append(&mut writer, &mut known, 10).unwrap();
        world.flush(&mut known).unwrap();
        world.append(&mut writer, &mut known, 3).unwrap();
        // One buffer is written, then the file is synced.
        ground.fail_operation(1, io::ErrorKind::Other);
        for _ in 0..2 {
            let failed = world.store.prepare(Scope::Everything).unwrap_err();
            assert!(matches!(failed, StorageError::Poisoned { .. }), "{failed}");
            let refused = world.append(&mut writer, &mut known, 1).unwrap_err();
            assert!(matches!(refused, StorageError::Poisoned { .. }), "{refused}");
        }
        check_loads(&world.store, known.committed.iter());
        // A pending chunk may be lost. That is not called damage.
        for (block, number) in &world.pending {
            match world.store.load(&[(address_of_block(*block), arena_chunk(*number).0)], &mut Vec::new()) {
                Ok(()) | Err(StorageError::Poisoned { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        drop((writer, world));
        let ground = ground.restart(if seed % 2 == 0 { CrashPolicy::KeepAll } else { CrashPolicy::DropAll });
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        world.check(&known);
        work(&mut world, &mut known, &mut Dice::of(seed), 10).unwrap();
        world.check(&known);
    }
}

#[test]
fn a_writeback_that_fails_before_the_sync_is_no_damage_of_the_store() {
    let mut lost = 0;
    for seed in 0..40 {
        let ground = SimulatedGround::new(seed);
        create_arena(&ground, &arena_options());
        let mut known = Known::default();
        let mut world = ArenaWorld::open(&ground, &known, &arena_options()).unwrap();
        let mut writer = world.store.writer();
        world.append(&mut writer, &mut known, 3).unwrap();
        ground.fail_writeback(0);
        world.append(&mut writer, &mut known, 9).unwrap();
        for (block, number) in &world.pending {
            match world.store.load(&[(address_of_block(*block), arena_chunk(*number).0)], &mut Vec::new()) {
                Ok(()) => {}
                Err(StorageError::Poisoned { .. }) => lost += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(lost > 10, "{lost}");
}
