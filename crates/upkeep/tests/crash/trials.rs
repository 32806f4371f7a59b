//! The trials that everything that writes has to stand, for whole stores: volumes, backups, and the reclamation of what
//! they leave.

use crate::model::{Model, check_clean};
use crate::windows::{deriving, prepared, reclaiming};
use crate::world::World;
use crate::{must, seeds};
use onefold_ground::simulation::trials::*;
use onefold_ground::{CrashPolicy, SimulatedGround};

/// A store that was used for a while. A process reclaims, or makes volumes of others.
struct WholeStore {
    seed: u64,
    reclaims: bool,
    base: SimulatedGround,
    known: Model,
}

impl WholeStore {
    fn new(seed: u64, reclaims: bool) -> WholeStore {
        let (base, known) = prepared(seed);
        WholeStore { seed, reclaims, base, known }
    }
}

impl Subject for WholeStore {
    type Part = World;
    type Known = Model;

    fn create(&self, _: u64) -> (SimulatedGround, Model) {
        (self.base.snapshot(CrashPolicy::KeepAll), self.known.clone())
    }

    fn open(&self, ground: &SimulatedGround, _: &mut Model) -> Result<World, String> {
        World::open(ground, self.seed).map_err(|error| error.to_string())
    }

    fn learn(&self, world: &mut World, known: &mut Model) -> Result<(), String> {
        known.verify(world, false)
    }

    fn work(&self, world: &mut World, known: &mut Model) -> Result<(), String> {
        let result = if self.reclaims { reclaiming(world, known) } else { deriving(world, known) };
        result.map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, world: &mut World, known: &mut Model) {
        must(known.verify(world, false), self.seed, "in a trial");
        must(check_clean(world), self.seed, "in a trial");
    }
}

#[test]
fn m0_18_a_killed_process_then_another_then_a_power_cut_lose_nothing_of_a_whole_store() {
    for seed in seeds(2) {
        for reclaims in [true, false] {
            assert!(kills_then_power_cuts(&WholeStore::new(seed, reclaims), 12) > 12);
        }
    }
}

#[test]
fn m0_18_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_of_a_whole_store() {
    for seed in seeds(2) {
        for reclaims in [true, false] {
            assert!(failures_then_power_cuts(&WholeStore::new(seed, reclaims), 12) > 12);
        }
    }
}

#[test]
fn m0_19_a_query_that_fails_while_opening_or_reclaiming_loses_nothing_of_a_whole_store() {
    for seed in seeds(2) {
        assert!(failed_queries_of_openings(&WholeStore::new(seed, true), 3, 20) > 20);
        assert!(failed_queries_of_work(&WholeStore::new(seed, true), false, 30) > 30);
    }
}
