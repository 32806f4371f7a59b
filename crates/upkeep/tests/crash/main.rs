//! The crash harness of whole stores: volumes and backups on a simulated disk that crashes, tears, fills up and fails, compared with bytes in
//! memory and judged by `check` after every opening (design rule 1, M0.18).
//!
//! `ONEFOLD_CRASH_SEEDS` scales the number of runs, in percent; `ONEFOLD_CRASH_SEED` repeats one seed.

mod beside;
mod forget;
mod full;
mod liveness;
mod model;
mod readers;
mod repairs;
mod space;
mod steps;
mod threads;
mod trials;
mod windows;
mod witness;
mod world;

use model::{Model, check_clean};
use onefold_engine::Mode;
use onefold_ground::{CrashPolicy, SimulatedGround};
use std::io::ErrorKind;
use std::ops::Range;
use steps::step;
use witness::Witness;
use world::{Random, World, policy, settings};

/// Seeds of a mode: as many as `default`, or the percentage of it that the environment says, or the one seed that it names.
fn seeds(default: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("ONEFOLD_CRASH_SEED"), number("ONEFOLD_CRASH_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(percent)) => 0..(default * percent / 100).max(1),
        (None, None) => 0..default,
    }
}

/// Takes random steps until one meets the crash.
fn run(world: &mut World, model: &mut Model, random: &mut Random, steps: u64) {
    for _ in 0..steps {
        // The crash may have met something that is tried again later, so that the step succeeded.
        drop(step(world, model, random));
        if world.ground.is_crashed() {
            return;
        }
    }
}

/// Opens what a crash left; everything must be there.
fn reopen(ground: &SimulatedGround, seed: u64, model: &mut Model, what: &str) -> World {
    let world = World::open(ground, seed).unwrap_or_else(|error| panic!("seed {seed}, {what}: {error}"));
    must(model.verify(&world, false), seed, what);
    must(check_clean(&world), seed, what);
    world
}

fn must(result: Result<(), String>, seed: u64, what: &str) {
    result.unwrap_or_else(|why| panic!("seed {seed}, {what}: {why}"));
}

#[test]
fn m0_18_a_crash_at_every_sync_of_a_whole_store_loses_nothing() {
    let steps = 30;
    let (all, mut all_syncs) = (seeds(3), 0);
    let runs = all.end - all.start;
    for seed in all {
        let ground = World::create(seed);
        let start = ground.syncs();
        let mut model = Model::new("m");
        let mut world = World::open(&ground, seed).unwrap();
        run(&mut world, &mut model, &mut Random(seed), steps);
        must(model.verify(&world, true), seed, "without a crash");
        world.engine.flush().unwrap();
        must(check_clean(&world), seed, "without a crash");
        must(witness::nothing_twice(&world), seed, "without a crash");
        drop(world);
        let syncs = ground.syncs() - start;
        all_syncs += syncs;
        for crash in 0..syncs {
            for policy in [CrashPolicy::DropAll, CrashPolicy::Random { seed: crash }] {
                let ground = World::create(seed);
                ground.crash_after_syncs(crash);
                let mut model = Model::new("m");
                if let Ok(mut world) = World::open(&ground, seed) {
                    run(&mut world, &mut model, &mut Random(seed), steps);
                }
                reopen(&ground.restart(policy), seed, &mut model, &format!("sync {crash}, {policy:?}"));
            }
        }
    }
    assert!(all_syncs > 30 * runs, "{runs} runs of {all_syncs} syncs together show little");
}

#[test]
fn m0_18_random_crashes_of_whole_stores_lose_nothing() {
    let mut witness = Witness::default();
    let all = seeds(600);
    let runs = all.end - all.start;
    for seed in all {
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let mut ground = World::create(seed);
        for round in 0..4 {
            // Sometimes so early that the opening itself meets the crash.
            let early = random.one_in(4);
            ground.crash_after_operations(random.below(if early { 60 } else { 900 }));
            match World::open(&ground, seed) {
                Ok(mut world) => match model.verify(&world, false) {
                    Ok(()) => {
                        witness.begin(&world);
                        run(&mut world, &mut model, &mut random, 40);
                        witness.end(&world);
                    }
                    // The model does not know what the process sees.
                    Err(why) => assert!(ground.is_crashed(), "seed {seed}, round {round}: {why}"),
                },
                Err(error) => assert!(ground.is_crashed(), "seed {seed}, round {round}: {error}"),
            }
            ground = ground.restart(policy(seed + round));
            witness.look(&ground, seed);
            if round % 2 == 1 {
                // Looked at, and left by another crash.
                drop(reopen(&ground, seed, &mut model, &format!("round {round}")));
                ground = ground.restart(policy(seed * 7 + round));
            }
        }
        drop(reopen(&ground, seed, &mut model, "at the end"));
        let before = ground.operations();
        let world = World::open_with(&ground, seed, settings(seed), Mode::ReadOnly).unwrap();
        must(model.verify(&world, false), seed, "for reading only");
        assert_eq!(ground.operations(), before, "seed {seed}: opening for reading wrote");
    }
    println!("{runs} runs: {witness:?}");
    if runs >= 100 {
        witness.has_seen_everything();
    }
}

#[test]
fn a_full_disk_and_other_errors_of_a_whole_store_lose_nothing() {
    let (mut went_on, mut given_up) = (0, 0);
    let all = seeds(300);
    let runs = all.end - all.start;
    for seed in all {
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let ground = World::create(seed);
        let mut world = World::open(&ground, seed).unwrap();
        let kind = if seed % 3 == 0 { ErrorKind::Other } else { ErrorKind::StorageFull };
        for _ in 0..8 {
            ground.fail_operation(random.below(80), kind);
            run(&mut world, &mut model, &mut random, 8);
            if let Err(why) = model.verify(&world, true) {
                // After a sync that failed the system may have given up what was written: never wrong bytes, and only until the next opening.
                assert!(why.contains("containers are not written any more") && world.has_stopped(), "seed {seed}, after an error: {why}");
                given_up += 1;
                break;
            }
        }
        // The last failure may still be waiting. Only after a sync that failed must the store be opened again.
        if world.volumes.flush().or_else(|_| world.volumes.flush()).is_ok() {
            model.all_flushed();
            must(check_clean(&world), seed, "after errors");
            went_on += 1;
        }
        drop(world);
        reopen(&ground.restart(policy(seed)), seed, &mut model, "after errors");
    }
    println!("{went_on} of {runs} runs went on, {given_up} could not read what was not durable");
    assert!(runs == 1 || went_on * 3 > runs, "only {went_on} of {runs} runs went on after errors");
}

#[test]
fn a_disk_that_is_full_and_then_enlarged_loses_nothing() {
    let mut full = 0;
    let all = seeds(120);
    let runs = all.end - all.start;
    for seed in all {
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let ground = World::create(seed);
        let mut world = World::open(&ground, seed).unwrap();
        for round in 0..3 {
            ground.set_capacity(ground.used_bytes() + random.below(700 << 10));
            for _ in 0..40 {
                full += u64::from(step(&mut world, &mut model, &mut random).is_err());
            }
            must(model.verify(&world, true), seed, "on a full disk");
            if random.one_in(3) {
                // A crash of a full disk: it is enlarged before the next opening.
                drop(world);
                let enlarged = ground.restart(policy(seed + round));
                enlarged.set_capacity(u64::MAX);
                world = reopen(&enlarged, seed, &mut model, "full disk");
                break;
            }
            ground.set_capacity(u64::MAX);
            world.volumes.flush().unwrap_or_else(|error| panic!("seed {seed}: there is room, but: {error}"));
            model.all_flushed();
            must(check_clean(&world), seed, "with room again");
        }
        let ground = world.ground.clone();
        drop(world);
        reopen(&ground.restart(CrashPolicy::DropAll), seed, &mut model, "with room again");
    }
    assert!(runs == 1 || full > runs, "the disk was full only {full} times");
}
