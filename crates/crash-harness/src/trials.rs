//! The trials of a profile: crashes at every sync and at random operations, full disks and other errors, and those that
//! everything that writes has to stand, for whole stores.

use crate::model::Model;
use crate::scenes::{Scenario, deriving, prepared, reclaiming};
use crate::steps::{run, step};
use crate::verify::check_clean;
use crate::witness::{Witness, nothing_twice};
use crate::world::{Case, Profile, Random, World, must, policy};
use onefold_engine::Mode;
use onefold_ground::simulation::trials::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use std::io::ErrorKind;

/// Crashes at every sync of a run, twice each.
pub fn crash_at_every_sync(profile: &'static Profile, usual_seeds: u64) {
    let (steps, mut all_syncs, mut in_files) = (40, 0, 0);
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let ground = case.create();
        let start = ground.syncs();
        let mut model = Model::new("m");
        let mut world = case.open(&ground).unwrap();
        run(&mut world, &mut model, &mut Random(seed), steps);
        must(model.verify(&world, true), case, "without a crash");
        world.engine.flush().unwrap();
        must(check_clean(&world), case, "without a crash");
        must(nothing_twice(&world), case, "without a crash");
        drop(world);
        let syncs = ground.syncs() - start;
        all_syncs += syncs;
        for crash in 0..syncs {
            for policy in [CrashPolicy::DropAll, CrashPolicy::Random { seed: crash }] {
                let ground = case.create();
                ground.crash_after_syncs(crash);
                let mut model = Model::new("m");
                if let Ok(mut world) = case.open(&ground) {
                    run(&mut world, &mut model, &mut Random(seed), steps);
                    in_files += u64::from(world.doing.ends_with("files"));
                }
                case.reopen(&ground.restart(policy), &mut model, &format!("sync {crash}, {policy:?}"));
            }
        }
    });
    let runs = seeds.count();
    println!("{all_syncs} syncs in {runs} runs, {in_files} crashes at those of filesystems");
    let are_many = all_syncs > 30 * runs && in_files > 10 * runs;
    assert!(are_many || !seeds.are_enough(), "{runs} runs of {all_syncs} syncs together show little");
}

/// Crashes at random operations, again and again; the opening may meet one, too.
pub fn random_crashes(profile: &'static Profile, usual_seeds: u64) {
    let mut witness = Witness::default();
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let mut ground = case.create();
        for round in 0..4 {
            // Sometimes so early that the opening itself meets the crash.
            let early = random.one_in(4);
            ground.crash_after_operations(random.below(if early { 60 } else { 900 }));
            match case.open(&ground) {
                Ok(mut world) => match model.verify(&world, false) {
                    Ok(()) => {
                        witness.begin(&world);
                        witness.learn(&mut model);
                        run(&mut world, &mut model, &mut random, 50);
                        witness.end(&world);
                    }
                    // The model does not know what the process sees.
                    Err(why) => assert!(ground.is_crashed(), "{case}, round {round}: {why}"),
                },
                Err(error) => assert!(ground.is_crashed(), "{case}, round {round}: {error}"),
            }
            ground = ground.restart(policy(seed + round));
            witness.look(&ground, case);
            if round % 2 == 1 {
                // Looked at, and left by another crash.
                drop(case.reopen(&ground, &mut model, &format!("round {round}")));
                ground = ground.restart(policy(seed * 7 + round));
            }
        }
        drop(case.reopen(&ground, &mut model, "at the end"));
        witness.learn(&mut model);
        let before = ground.operations();
        let world = case.open_with(&ground, case.settings(), Mode::ReadOnly).unwrap();
        must(model.verify(&world, false), case, "for reading only");
        assert_eq!(ground.operations(), before, "{case}: opening for reading wrote");
    });
    println!("{} runs: {witness:?}", seeds.count());
    if seeds.are_enough() {
        witness.must_have_met(profile.meets);
    }
}

/// Operations fail, for want of room or not; the process goes on, or must be started again after a sync that failed.
pub fn errors(profile: &'static Profile, usual_seeds: u64) {
    let (mut went_on, mut given_up) = (0, 0);
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let ground = case.create();
        let mut world = case.open(&ground).unwrap();
        let kind = if seed % 3 == 0 { ErrorKind::Other } else { ErrorKind::StorageFull };
        for _ in 0..8 {
            ground.fail_operation(random.below(80), kind);
            run(&mut world, &mut model, &mut random, 8);
            if let Err(why) = model.verify(&world, true) {
                // After a sync that failed the system may have given up what was written: never wrong bytes, and only
                // until the next opening.
                assert!(why.contains("the store writes no more containers") && world.has_stopped(), "{case}, after an error: {why}");
                given_up += 1;
                break;
            }
        }
        // The last failure may still be waiting. Only after a sync that failed must the store be opened again.
        if world.volumes.flush().or_else(|_| world.volumes.flush()).is_ok() {
            model.all_flushed();
            must(check_clean(&world), case, "after errors");
            went_on += 1;
        }
        world.die();
        case.reopen(&ground.restart(policy(seed)), &mut model, "after errors");
    });
    let runs = seeds.count();
    println!("{went_on} of {runs} runs went on, {given_up} could not read what was not durable");
    assert!(went_on * 3 > runs || !seeds.are_enough(), "only {went_on} of {runs} runs went on after errors");
}

/// The disk is full, then enlarged, with a crash between or none.
pub fn full_and_enlarged(profile: &'static Profile, usual_seeds: u64) {
    let mut full = 0;
    let seeds = profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let ground = case.create();
        let mut world = case.open(&ground).unwrap();
        for round in 0..3 {
            ground.set_capacity(ground.used_bytes() + random.below(700 << 10));
            for _ in 0..40 {
                full += u64::from(step(&mut world, &mut model, &mut random).is_err());
            }
            must(model.verify(&world, true), case, "on a full disk");
            if random.one_in(3) {
                // A crash of a full disk: it is enlarged before the next opening.
                world.die();
                let enlarged = ground.restart(policy(seed + round));
                enlarged.set_capacity(u64::MAX);
                world = case.reopen(&enlarged, &mut model, "full disk");
                break;
            }
            ground.set_capacity(u64::MAX);
            world.volumes.flush().unwrap_or_else(|error| panic!("{case}: there is room, but: {error}"));
            model.all_flushed();
            // The second copies of objects may wait for room.
            world.engine.maintain(true).unwrap_or_else(|error| panic!("{case}: there is room, but: {error}"));
            must(check_clean(&world), case, "with room again");
        }
        let ground = world.ground.clone();
        drop(world);
        case.reopen(&ground.restart(CrashPolicy::DropAll), &mut model, "with room again");
    });
    let runs = seeds.count();
    assert!(full > runs || !seeds.are_enough(), "the disk was full only {full} times in {runs} runs");
}

/// A process is killed, fails or cannot read; another one follows; then the power is cut.
pub fn kills(profile: &'static Profile, usual_seeds: u64) {
    used_stores(profile, usual_seeds, |store| assert!(kills_then_power_cuts(store, 12) > 12));
}

/// The same after an operation that failed.
pub fn failures(profile: &'static Profile, usual_seeds: u64) {
    used_stores(profile, usual_seeds, |store| assert!(failures_then_power_cuts(store, 12) > 12));
}

/// Queries fail while a store is opened, or reclaims.
pub fn failed_queries(profile: &'static Profile, usual_seeds: u64) {
    profile.each_case(usual_seeds, |case| {
        let store = UsedStore::new(case, reclaiming);
        assert!(failed_queries_of_openings(&store, 3, 20) > 20);
        assert!(failed_queries_of_work(&store, false, 30) > 30);
    });
}

fn used_stores(profile: &'static Profile, usual_seeds: u64, trial: impl Fn(&UsedStore)) {
    profile.each_case(usual_seeds, |case| {
        for scenario in [reclaiming as Scenario, deriving] {
            trial(&UsedStore::new(case, scenario));
        }
    });
}

/// A store that was used for a while, and what a process does with it.
struct UsedStore {
    case: Case,
    scenario: Scenario,
    base: SimulatedGround,
    known: Model,
}

impl UsedStore {
    fn new(case: Case, scenario: Scenario) -> UsedStore {
        let (base, known) = prepared(case);
        UsedStore { case, scenario, base, known }
    }
}

impl Subject for UsedStore {
    type Part = World;
    type Known = Model;

    fn create(&self, _: u64) -> (SimulatedGround, Model) {
        (self.base.snapshot(CrashPolicy::KeepAll), self.known.clone())
    }

    fn open(&self, ground: &SimulatedGround, _: &mut Model) -> Result<World, String> {
        self.case.open(ground).map_err(|error| error.to_string())
    }

    fn learn(&self, world: &mut World, known: &mut Model) -> Result<(), String> {
        known.verify(world, false)
    }

    fn work(&self, world: &mut World, known: &mut Model) -> Result<(), String> {
        (self.scenario)(world, known).map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, world: &mut World, known: &mut Model) {
        must(known.verify(world, false), self.case, "in a trial");
        must(check_clean(world), self.case, "in a trial");
    }
}
