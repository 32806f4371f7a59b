//! The trials that every writer must pass.

use super::crash::Model;
use super::*;
use onefold_ground::simulation::trials::*;

/// A log that fills up and gets trimmed.
struct Batches;

#[derive(Clone, Default)]
struct Known {
    model: Model,
    epoch: u64,
}

fn text(error: LogError) -> String {
    error.to_string()
}

impl Subject for Batches {
    type Part = SegmentLog;
    type Known = Known;

    fn create(&self, seed: u64) -> (SimulatedGround, Known) {
        let ground = SimulatedGround::new(seed);
        super::create(&ground);
        (ground, Known { epoch: 1, ..Known::default() })
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Known) -> std::result::Result<SegmentLog, String> {
        known.epoch += 1;
        super::open(ground, known.epoch).map_err(text)
    }

    fn learn(&self, log: &mut SegmentLog, known: &mut Known) -> std::result::Result<(), String> {
        known.model.check(log).map_err(text)
    }

    fn work(&self, log: &mut SegmentLog, known: &mut Known) -> std::result::Result<(), String> {
        let first = known.model.acknowledged();
        for batch in 0..8 {
            known.model.commit(log, 1 + batch % 2, 700 + batch * 500).map_err(text)?;
        }
        known.model.trim(log, first + 5).map_err(text)?;
        known.model.commit(log, 1, 20_000).map_err(text)?;
        known.model.commit(log, 1, 100).map_err(text)?;
        known.model.trim(log, first + 8).map_err(text)?;
        log.release_room();
        known.model.commit(log, 1, 200).map_err(text)?;
        known.model.jump(log, 1 << 30).map_err(text)?;
        known.model.commit(log, 1, 300).map_err(text)
    }

    fn compare(&self, _: &SimulatedGround, log: &mut SegmentLog, known: &mut Known) {
        known.model.check(log).unwrap();
    }
}

#[test]
fn m0_17_a_killed_process_then_another_then_a_power_cut_lose_nothing_that_was_acknowledged() {
    assert!(kills_then_power_cuts(&Batches, 1000) > 30);
}

#[test]
fn m0_17_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing_that_was_acknowledged() {
    assert!(failures_then_power_cuts(&Batches, 1000) > 30);
}

#[test]
fn m0_17_a_query_that_fails_while_opening_or_working_loses_nothing_that_was_acknowledged() {
    assert!(failed_queries_of_openings(&Batches, 40, 100) > 100);
    assert!(failed_queries_of_work(&Batches, false, 100) > 3);
}
