//! Trials with threads: several writers with volumes and backups of their own, flush storms, maintenance and pruning at
//! the same time, with the threads of the engine in the background. Which steps meet which differs from run to run;
//! what must hold does not.

use crate::model::Model;
use crate::steps::step;
use crate::verify::check_clean;
use crate::witness::nothing_twice;
use crate::world::{Case, Fault, Profile, Random, World, must, policy};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::SimulatedGround;
use onefold_upkeep::{NoMonitor, PruneOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;

fn open(case: Case, ground: &SimulatedGround) -> Result<World, Fault> {
    // All open containers are written again at the head of the log when it is trimmed: there are many of them here.
    let settings = case.settings();
    let settings = Settings { background: true, workers: 2, log_limit_bytes: settings.log_limit_bytes.max(2 << 20), ..settings };
    case.open_with(ground, settings, Mode::ReadWrite)
}

/// Runs writers until each has taken its steps or has met the crash; every writer's first wrong answer is a panic.
fn run(world: World, models: &mut [Model], seed: u64, steps: u64) -> World {
    let is_over = AtomicBool::new(false);
    let world = Arc::new(world);
    std::thread::scope(|scope| {
        let engine = &world.engine;
        let over = &is_over;
        // Nobody needs these; they are in the way of everybody.
        scope.spawn(move || disturb(over, || drop(engine.flush())));
        scope.spawn(move || disturb(over, || drop(engine.maintain(true))));
        let go_on = || !over.load(Ordering::Relaxed);
        scope.spawn(move || {
            disturb(over, || {
                drop(onefold_upkeep::prune(engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &go_on))
            })
        });
        let writers: Vec<_> = models
            .iter_mut()
            .enumerate()
            .map(|(number, model)| {
                let mut own = world.another();
                scope.spawn(move || {
                    let mut random = Random(seed * 31 + number as u64);
                    for _ in 0..steps {
                        match step(&mut own, model, &mut random) {
                            Ok(()) => {}
                            Err(_) if own.ground.is_crashed() => break,
                            Err(error) => panic!("{}: {error}", own.case),
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    Arc::into_inner(world).expect("all threads have ended")
}

fn disturb(is_over: &AtomicBool, work: impl Fn()) {
    while !is_over.load(Ordering::Relaxed) {
        work();
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn models() -> Vec<Model> {
    (0..WRITERS).map(|number| Model::new(&format!("w{number}-"))).collect()
}

/// Crashes in the middle of all that.
pub fn crash(profile: &'static Profile, usual_seeds: u64) {
    profile.each_case(usual_seeds, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut models = models();
        let mut ground = case.create();
        for round in 0..3 {
            ground.crash_after_operations(100 + random.below(2500));
            if let Ok(world) = open(case, &ground) {
                drop(run(world, &mut models, seed * 3 + round, 50));
            }
            ground = ground.restart(policy(seed + round));
            verify_all(case, &ground, &mut models, "threads");
        }
    });
}

fn verify_all(case: Case, ground: &SimulatedGround, models: &mut [Model], what: &str) {
    for model in models {
        drop(case.reopen(ground, model, what));
    }
}

/// The same without a crash: what was written is read, and nothing is stored twice.
pub fn leave_a_clean_store(profile: &'static Profile, usual_seeds: u64) {
    profile.each_case(usual_seeds, |case| {
        let ground = case.create();
        let mut models = models();
        let mut world = open(case, &ground).unwrap();
        for round in 0..2 {
            world = run(world, &mut models, case.seed * 5 + round, 50);
            for model in &mut models {
                must(model.verify(&world, true), case, "after the threads");
            }
            must(world.engine.flush().map_err(|error| error.to_string()), case, "after the threads");
            must(check_clean(&world), case, "after the threads");
        }
        must(nothing_twice(&world), case, "after the threads");
        world.volumes.flush().unwrap();
        models.iter_mut().for_each(Model::all_flushed);
        let engine = world.engine.clone();
        drop(world);
        engine.close().unwrap();
        wait_until_alone(engine);
        verify_all(case, &ground, &mut models, "after a clean stop");
    });
}

/// A thread in the background may hold the engine for a moment longer.
fn wait_until_alone(engine: Arc<Engine>) {
    let begun = Instant::now();
    while Arc::strong_count(&engine) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10), "somebody keeps the engine");
        std::thread::yield_now();
    }
}
