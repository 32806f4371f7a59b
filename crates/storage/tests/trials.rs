//! The trials that all writing code must pass: containers, merges and the forwards that they leave, parity.

mod common;

use common::merges::*;
use common::parities::{SIZE, next_folder, repair_lost};
use common::*;
use onefold_ground::simulation::trials::*;
use onefold_ground::{Access, SimulatedGround};
use onefold_storage::*;

fn small() -> StorageOptions {
    // One worker writes the frames in their order. What other threads do between two of its writes differs from run to
    // run.
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, workers: 1, ..options() }
}

/// Containers that are written, merged, and merged again, behind a durable log; with parity or without.
struct Containers {
    has_parity: bool,
}

/// Makes all parity that can be made. After an error a container may be left for the next process.
fn protect(world: &World, all: bool) -> Result<()> {
    while world.store.make_parity(SIZE, all)?.is_some() {}
    Ok(())
}

impl Containers {
    fn work(&self, world: &mut World) -> Result<()> {
        for round in 0..8 {
            world.write(&[700, 1900, 40 * round, 2500, 0, 900, 1200])?;
            if self.has_parity && round == 4 {
                next_folder(world)?;
            }
        }
        world.write_frames(3, &[1500, 0, 900])?;
        if self.has_parity {
            protect(world, false)?;
        }
        // Half of the chunks of three containers are left. One of the containers may already be merged.
        let mut victims: Vec<_> = world.sealed().into_iter().take(3).collect();
        victims.extend(world.model.forwards.values().last().copied().filter(|merged| !victims.contains(merged)));
        let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(2).collect();
        world.forget(&dead);
        world.merge(&victims)?;
        world.write(&[3000, 10])?;
        world.store.finish_merges()?;
        world.trim();
        // The merged container again, of which one home goes, and another container.
        let Some(merged) = world.model.forwards.values().last().copied() else { return Ok(()) };
        let homes = world.needed_of(merged);
        world.forget(&homes.iter().copied().filter(|home| home.container() == homes[0].container()).collect::<Vec<_>>());
        let other = world.sealed().into_iter().find(|id| *id != merged);
        world.merge(&other.into_iter().chain([merged]).collect::<Vec<_>>())?;
        if self.has_parity {
            protect(world, true)?;
        }
        world.write_frames(2, &[2000, 700])?;
        world.write(&[100, 5000])?;
        world.store.finish_merges()
    }
}

impl Subject for Containers {
    type Part = World;
    type Known = Model;

    fn create(&self, seed: u64) -> (SimulatedGround, Model) {
        let ground = SimulatedGround::new(seed);
        ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
        (ground, Model::default())
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Model) -> std::result::Result<World, String> {
        World::open(ground, known.clone(), &small(), Access::ReadWrite).map_err(|error| error.to_string())
    }

    fn work(&self, world: &mut World, known: &mut Model) -> std::result::Result<(), String> {
        let result = self.work(world);
        *known = world.model.clone();
        result.map_err(|error| error.to_string())
    }

    fn compare(&self, ground: &SimulatedGround, world: &mut World, _: &mut Model) {
        world.check(ground);
        // Nothing is lost here, so no parity has a member without a file.
        assert_eq!(repair_lost(world).unwrap(), (Vec::new(), Vec::new()));
    }
}

const PLAIN: Containers = Containers { has_parity: false };
const WITH_PARITY: Containers = Containers { has_parity: true };

#[test]
fn m0_20_a_killed_process_then_another_then_a_power_cut_lose_nothing_that_is_needed() {
    assert!(kills_then_power_cuts(&PLAIN, 150) > 50);
    assert!(kills_then_power_cuts(&WITH_PARITY, 80) > 50);
}

#[test]
fn m0_20_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_that_is_needed() {
    assert!(failures_then_power_cuts(&PLAIN, 150) > 50);
    assert!(failures_then_power_cuts(&WITH_PARITY, 80) > 50);
}

#[test]
fn m0_20_a_query_that_fails_while_opening_or_merging_loses_nothing_that_is_needed() {
    assert!(failed_queries_of_openings(&PLAIN, 30, 30) > 100);
    assert!(failed_queries_of_openings(&WITH_PARITY, 15, 30) > 100);
    assert!(failed_queries_of_work(&PLAIN, true, 150) > 10);
    assert!(failed_queries_of_work(&WITH_PARITY, true, 80) > 10);
}
