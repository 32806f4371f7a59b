//! The trials that every writer must pass: pages, the journal, growth.

use super::crash_tests::{log, model_of};
use super::tests::{LogBatch, SHAPE, apply, check, created, open};
use super::*;
use onefold_ground::SimulatedGround;
use onefold_ground::simulation::trials::*;

/// Batches that one process applies.
const BATCHES: usize = 4;

/// An index behind a durable log.
struct Sweeps {
    log: Vec<LogBatch>,
    shape: LinkedShape,
}

#[derive(Clone)]
struct Known {
    /// Batches in the log.
    applied: usize,
    epoch: u64,
}

impl Sweeps {
    fn new(new_chunks: u64, slots_bits: u32) -> Sweeps {
        Sweeps { log: log(4 * BATCHES as u64, new_chunks), shape: LinkedShape { slots_bits, ..SHAPE } }
    }
}

impl Subject for Sweeps {
    type Part = LinkedIndex;
    type Known = Known;

    fn create(&self, seed: u64) -> (SimulatedGround, Known) {
        (created(seed, self.shape).0, Known { applied: 0, epoch: 0 })
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Known) -> std::result::Result<LinkedIndex, String> {
        known.epoch += 1;
        let ground: Arc<dyn Ground> = Arc::new(ground.clone());
        let index = open(&ground, Access::ReadWrite, known.epoch).map_err(|error| error.to_string())?;
        let position = index.position();
        self.log[..known.applied].iter().filter(|batch| batch.end > position.0).for_each(|batch| apply(&index, batch));
        Ok(index)
    }

    fn work(&self, index: &mut LinkedIndex, known: &mut Known) -> std::result::Result<(), String> {
        let upto = self.log.len().min(known.applied + BATCHES);
        for number in known.applied..upto {
            known.applied = number + 1;
            apply(index, &self.log[number]);
            let swept = match number % 4 {
                0 => index.step().map(drop),
                1 => index.sweep().map(drop),
                3 => index.sweep_all(),
                _ => Ok(()),
            };
            swept.map_err(|error| error.to_string())?;
        }
        index.close().map_err(|error| error.to_string())
    }

    fn compare(&self, _: &SimulatedGround, index: &mut LinkedIndex, known: &mut Known) {
        check(index, &model_of(&self.log[..known.applied]));
        assert_eq!(index.verify_all(), []);
    }
}

#[test]
fn m1_8_a_killed_process_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&Sweeps::new(20, 10), 60) > 30);
}

#[test]
fn m1_13_a_killed_process_in_growth_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&Sweeps::new(40, 5), 60) > 30);
}

#[test]
fn m1_13_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing() {
    assert!(failures_then_power_cuts(&Sweeps::new(30, 5), 60) > 30);
}

#[test]
fn m1_13_a_query_that_fails_while_opening_or_sweeping_loses_nothing() {
    assert!(failed_queries_of_openings(&Sweeps::new(30, 5), 20, 20) > 50);
    assert!(failed_queries_of_work(&Sweeps::new(30, 5), true, 60) > 5);
}
