//! The same with threads: several writers with volumes and backups of their own, flush storms, maintenance and checks of the counters at the same
//! time, with the threads of the engine in the background. Which steps meet which differs from run to run; what must hold does not.

use crate::model::{Model, check_clean};
use crate::steps::step;
use crate::world::{Fault, Random, World, policy, settings};
use crate::{must, reopen, seeds};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::SimulatedGround;
use onefold_upkeep::{NoMonitor, PruneOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;

fn open(ground: &SimulatedGround, seed: u64) -> Result<World, Fault> {
    // All open containers are written anew at the head of the log when it is trimmed: there are many of them here.
    let settings = Settings { background: true, workers: 2, log_limit_bytes: 2 << 20, ..settings(seed) };
    World::open_with(ground, seed, settings, Mode::ReadWrite)
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
                            Err(error) => panic!("seed {seed}: {error}"),
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

#[test]
fn m0_18_crashes_in_the_middle_of_many_threads_lose_nothing() {
    for seed in seeds(60) {
        let mut random = Random(seed);
        let mut models = models();
        let mut ground = World::create(seed);
        for round in 0..3 {
            ground.crash_after_operations(100 + random.below(2500));
            if let Ok(world) = open(&ground, seed) {
                drop(run(world, &mut models, seed * 3 + round, 40));
            }
            ground = ground.restart(policy(seed + round));
            verify_all(&ground, seed, &mut models);
        }
    }
}

fn verify_all(ground: &SimulatedGround, seed: u64, models: &mut [Model]) {
    for model in models {
        drop(reopen(ground, seed, model, "threads"));
    }
}

#[test]
fn threads_without_a_crash_read_what_they_wrote_and_leave_a_clean_store() {
    for seed in seeds(40) {
        let ground = World::create(seed);
        let mut models = models();
        let mut world = open(&ground, seed).unwrap();
        for round in 0..2 {
            world = run(world, &mut models, seed * 5 + round, 40);
            for model in &mut models {
                must(model.verify(&world, true), seed, "after the threads");
            }
            must(world.engine.flush().map_err(|error| error.to_string()), seed, "after the threads");
            must(check_clean(&world), seed, "after the threads");
        }
        must(crate::witness::nothing_twice(&world), seed, "after the threads");
        world.volumes.flush().unwrap();
        models.iter_mut().for_each(Model::all_flushed);
        let engine = world.engine.clone();
        drop(world);
        engine.close().unwrap();
        wait_until_alone(engine);
        for model in &mut models {
            drop(reopen(&ground, seed, model, "after a clean stop"));
        }
    }
}

/// A thread in the background may hold the engine for a moment longer.
fn wait_until_alone(engine: Arc<Engine>) {
    let begun = Instant::now();
    while Arc::strong_count(&engine) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10), "somebody keeps the engine");
        std::thread::yield_now();
    }
}
