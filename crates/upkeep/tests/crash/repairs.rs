//! Repairs between the random steps: of what a crash left a repair finds nothing to do, and takes nothing away.

use onefold_crash_harness::{Case, EXACT, Model, Random, policy, run};
use onefold_ground::SimulatedGround;
use onefold_upkeep::{NoMonitor, RepairOptions, repair};
use std::sync::Arc;

/// Repairs a store that no process has open.
fn repair_whole(case: Case, ground: &SimulatedGround, dry_run: bool) {
    let options = RepairOptions { dry_run, may_lose: false, memory_bytes: 16 << 20 };
    let report = repair(Arc::new(ground.clone()), case.settings(), options, "test", &NoMonitor);
    let report = report.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(report.actions, [""; 0], "{case}, dry run: {dry_run}");
    assert_eq!(report.check.problems, [], "{case}, dry run: {dry_run}");
    assert_eq!((report.quarantined_chunks, report.restored_chunks), (0, 0), "{case}");
}

#[test]
fn what_a_crash_leaves_needs_no_repair_and_is_the_same_after_one() {
    EXACT.each_case(40, |case| {
        let seed = case.seed;
        let mut random = Random(seed);
        let mut model = Model::new("m");
        let mut ground = case.create();
        for round in 0..3 {
            ground.crash_after_operations(100 + random.below(900));
            if let Ok(mut world) = case.open(&ground) {
                run(&mut world, &mut model, &mut random, 40);
            }
            ground = ground.restart(policy(seed + round));
            let before = ground.operations();
            repair_whole(case, &ground, true);
            assert_eq!(ground.operations(), before, "{case}: a dry run wrote");
            repair_whole(case, &ground, false);
            drop(case.reopen(&ground, &mut model, "after a repair"));
            ground = ground.restart(policy(seed * 3 + round));
        }
    });
}
