//! Repairs between the random steps: of what a crash left a repair finds nothing to do, and takes nothing away.

use crate::model::Model;
use crate::world::{Random, World, policy, settings};
use crate::{reopen, run, seeds};
use onefold_ground::SimulatedGround;
use onefold_upkeep::{NoMonitor, RepairOptions, repair};
use std::sync::Arc;

/// Repairs a store that no process has open.
fn repair_whole(ground: &SimulatedGround, seed: u64, dry_run: bool) {
    let options = RepairOptions { dry_run, may_lose: false, memory_bytes: 16 << 20 };
    let report = repair(Arc::new(ground.clone()), settings(seed), options, "test", &NoMonitor);
    let report = report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(report.actions, [""; 0], "seed {seed}, dry run: {dry_run}");
    assert_eq!(report.check.problems, [], "seed {seed}, dry run: {dry_run}");
    assert_eq!((report.quarantined_chunks, report.restored_chunks), (0, 0), "seed {seed}");
}

#[test]
fn what_a_crash_leaves_needs_no_repair_and_is_the_same_after_one() {
    for seed in seeds(40) {
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let mut ground = World::create(seed);
        for round in 0..3 {
            ground.crash_after_operations(100 + random.below(900));
            if let Ok(mut world) = World::open(&ground, seed) {
                run(&mut world, &mut model, &mut random, 40);
            }
            ground = ground.restart(policy(seed + round));
            let before = ground.operations();
            repair_whole(&ground, seed, true);
            assert_eq!(ground.operations(), before, "seed {seed}: a dry run wrote");
            repair_whole(&ground, seed, false);
            drop(reopen(&ground, seed, &mut model, "after a repair"));
            ground = ground.restart(policy(seed * 3 + round));
        }
    }
}
