//! Stores that were used for a while, and fixed runs on them: for tests that crash or fail at every operation.

use crate::model::{Model, SLOTS};
use crate::world::{Case, Fault, Random, World};
use crate::{forget, run, steps};
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_upkeep::{NoMonitor, PruneOptions};

/// What is done again and again, each time with a crash at another operation.
pub type Scenario = fn(&mut World, &mut Model) -> Result<(), Fault>;

/// Reclaims space: backups and volumes go, then their chunks.
pub fn reclaiming(world: &mut World, model: &mut Model) -> Result<(), Fault> {
    let random = &mut Random(1);
    for _ in 0..3 {
        forget::by_id(world, model, random)?;
    }
    forget::by_policy(world, model, random)?;
    for slot in [0, 1] {
        steps::delete(world, model, slot)?;
    }
    world.doing = "drop layers";
    while !world.volumes.resume_deletions(&|| true)? {}
    world.doing = "remove";
    onefold_upkeep::remove_unused(&world.engine, &NoMonitor, &|| true)?;
    world.doing = "prune";
    onefold_upkeep::prune(&world.engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true)?;
    Ok(())
}

/// Makes volumes of others, and rolls some back.
pub fn deriving(world: &mut World, model: &mut Model) -> Result<(), Fault> {
    let random = &mut Random(2);
    steps::delete(world, model, SLOTS - 1)?;
    for round in 0..6 {
        let slot = round % SLOTS;
        steps::write(world, model, random, slot)?;
        steps::derive(world, model, random, slot)?;
        steps::rollback(world, model, random, slot)?;
        steps::delete(world, model, (slot + 2) % SLOTS)?;
    }
    Ok(())
}

/// Returns a store with backups, volumes, snapshots and containers that were merged, at rest.
pub fn prepared(case: Case) -> (SimulatedGround, Model) {
    let ground = case.create();
    let mut model = Model::new("m");
    let mut world = case.open(&ground).unwrap();
    let mut random = Random(case.seed);
    for _ in 0..3 {
        run(&mut world, &mut model, &mut random, 50);
        onefold_upkeep::prune(&world.engine, PruneOptions { max_unused: 0.0, ..PruneOptions::default() }, &NoMonitor, &|| true).unwrap();
    }
    world.volumes.flush().unwrap();
    model.all_flushed();
    drop(world);
    (ground.restart(CrashPolicy::KeepAll), model)
}
