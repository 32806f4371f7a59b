//! The trials that every writer must pass: databases and their second copies.

use super::crash_tests::{Log, batch, check, created, open};
use super::*;
use onefold_ground::SimulatedGround;
use onefold_ground::simulation::trials::*;

/// An index behind a durable log.
struct Persists;

#[derive(Clone)]
struct Known {
    log: Log,
    epoch: u64,
}

impl Subject for Persists {
    type Part = ObjectIndex;
    type Known = Known;

    fn create(&self, _: u64) -> (SimulatedGround, Known) {
        (created(), Known { log: Log::new(), epoch: 0 })
    }

    fn open(&self, ground: &SimulatedGround, known: &mut Known) -> std::result::Result<ObjectIndex, String> {
        known.epoch += 1;
        let index = open(ground, Access::ReadWrite, known.epoch).map_err(|error| error.to_string())?;
        for (end, changes) in &known.log {
            index.apply(*end, 0, changes).map_err(|error| error.to_string())?;
        }
        Ok(index)
    }

    fn work(&self, index: &mut ObjectIndex, known: &mut Known) -> std::result::Result<(), String> {
        for _ in 0..6 {
            let number = known.log.len() as u64;
            let (end, changes) = batch(number);
            index.stage(number + 1, &changes).expect("it only changes memory");
            index.apply(end, number + 1, &changes).expect("it only changes memory");
            known.log.push((end, changes));
            if number % 2 == 1 {
                index.persist().map_err(|error| error.to_string())?;
            }
            if number % 3 == 1 {
                index.copy_objects().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn compare(&self, _: &SimulatedGround, index: &mut ObjectIndex, known: &mut Known) {
        check(index, &known.log);
        assert_eq!(index.verify(), []);
        assert_eq!(index.damaged_copies(Position(0)), [""; 0], "second copies are whole, of whatever age");
    }
}

#[test]
fn m0_16_a_killed_process_then_another_then_a_power_cut_lose_nothing() {
    assert!(kills_then_power_cuts(&Persists, 120) > 20);
}

#[test]
fn m0_16_a_failed_operation_then_another_process_then_a_power_cut_lose_nothing() {
    assert!(failures_then_power_cuts(&Persists, 120) > 20);
}

#[test]
fn m0_16_a_query_that_fails_while_opening_or_persisting_loses_nothing() {
    assert!(failed_queries_of_openings(&Persists, 20, 20) > 50);
    assert!(failed_queries_of_work(&Persists, true, 100) > 5);
}
