//! The trials that every writer must pass: pages, the journal, growth, the saved filter.

use super::crash_tests::{PARTITIONS, created, log, model_of};
use super::tests::{LogBatch, check, open};
use super::*;
use onefold_ground::SimulatedGround;
use onefold_ground::simulation::trials::*;

/// Batches that one process applies.
const BATCHES: usize = 8;

/// An index behind a durable log.
struct Sweeps {
    log: Vec<LogBatch>,
}

#[derive(Clone)]
struct Known {
    /// Batches in the log.
    applied: usize,
    epoch: u64,
}

fn apply(index: &ChunkIndex, batch: &LogBatch) -> Result<()> {
    let LogBatch { end, removals, places, inserts, deltas } = batch;
    index.apply_batch(Position(*end), ChunkBatch { removals, places, inserts, notes: &[], deltas })
}

impl Sweeps {
    fn new(new_chunks: u64) -> Sweeps {
        Sweeps { log: log(4 * BATCHES as u64, new_chunks) }
    }
}

impl Subject for Sweeps {
    type Part = ChunkIndex;
    type Known = Known;

    fn create(&self, seed: u64) -> (SimulatedGround, Known) {
        (created(seed).0, Known { applied: 0, epoch: 0 })
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Known) -> std::result::Result<ChunkIndex, String> {
        known.epoch += 1;
        let ground: Arc<dyn Ground> = Arc::new(ground.clone());
        let index = open(&ground, PARTITIONS, Access::ReadWrite, known.epoch).map_err(|error| error.to_string())?;
        let position = index.position();
        let missing = self.log[..known.applied].iter().filter(|batch| batch.end > position.0);
        for batch in missing {
            apply(&index, batch).map_err(|error| error.to_string())?;
        }
        Ok(index)
    }

    fn work(&self, index: &mut ChunkIndex, known: &mut Known) -> std::result::Result<(), String> {
        let upto = self.log.len().min(known.applied + BATCHES);
        for number in known.applied..upto {
            known.applied = number + 1;
            apply(index, &self.log[number]).expect("it only changes memory");
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

    fn compare(&self, _: &SimulatedGround, index: &mut ChunkIndex, known: &mut Known) {
        check(index, &model_of(&self.log[..known.applied]));
        assert_eq!(index.verify().unwrap(), []);
    }
}

#[test]
fn m0_14_a_killed_process_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&Sweeps::new(60), 150) > 50);
}

#[test]
fn m2_3_a_killed_process_in_growth_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&Sweeps::new(400), 50) > 50);
}

#[test]
fn m0_14_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing() {
    assert!(failures_then_power_cuts(&Sweeps::new(60), 150) > 50);
    assert!(failures_then_power_cuts(&Sweeps::new(400), 30) > 50);
}

#[test]
fn m0_14_a_query_that_fails_while_opening_or_sweeping_loses_nothing() {
    assert!(failed_queries_of_openings(&Sweeps::new(60), 30, 20) > 100);
    assert!(failed_queries_of_work(&Sweeps::new(60), true, 150) > 5);
    assert!(failed_queries_of_work(&Sweeps::new(400), true, 30) > 5);
}
