//! Second copies of objects and the log: whatever is trimmed, together they define the objects.

mod common;

use common::*;
use onefold_engine::{Engine, Settings, Transaction};
use onefold_ground::{Ground, SimulatedGround};

const LOG_LIMIT_BYTES: u64 = 256 << 10;
const OBJECT_BYTES: usize = 8 << 10;

fn tight() -> Settings {
    Settings { log_segment_bytes: 64 << 10, log_limit_bytes: LOG_LIMIT_BYTES, ..settings(DEFAULT_CHAIN) }
}

fn write_one(engine: &Engine, number: u64) {
    let change = (0, [&b"v"[..], &(number % 4).to_be_bytes()].concat(), Some(bytes(number, OBJECT_BYTES)));
    engine.submit(Transaction { changes: vec![change], references: Vec::new() }).unwrap();
    engine.flush().unwrap();
    engine.maintain(true).unwrap();
}

fn starts_of_segments(ground: &SimulatedGround) -> usize {
    ground.list("log").unwrap().iter().filter(|entry| entry.name.ends_with(".log")).count()
}

#[test]
fn m0_18_as_long_as_no_second_copy_can_be_written_the_log_is_kept_up_to_its_limit() {
    let ground = store(&descriptor());
    let engine = open(&ground, tight());
    for number in 0..30 {
        write_one(&engine, number);
        assert!(starts_of_segments(&ground) <= 2);
    }
    let start = |engine: &Engine| engine.object_index().position().0 - engine.statistics().unwrap().log_bytes;
    let before = start(&engine);
    assert!(before > 0 && engine.damaged_spares().is_empty(), "{:?}", engine.damaged_spares());
    // A directory in its place makes writing fail.
    ground.create_directory("objects/0000.copy.new").unwrap();
    for number in 30.. {
        write_one(&engine, number);
        if start(&engine) > before {
            break;
        }
        assert!(engine.damaged_spares().is_empty(), "{:?}", engine.damaged_spares());
        assert!(engine.statistics().unwrap().log_bytes <= LOG_LIMIT_BYTES + 2 * OBJECT_BYTES as u64);
    }
    // Beyond the limit, writers continue all the same, and a check says what that means.
    assert!(start(&engine) >= before + (64 << 10));
    let damaged = engine.damaged_spares();
    assert!(damaged.len() == 1 && damaged[0].contains("0000.copy"), "{damaged:?}");
    for number in 0..100 {
        write_one(&engine, number);
        assert!(engine.statistics().unwrap().log_bytes <= LOG_LIMIT_BYTES + 2 * OBJECT_BYTES as u64);
    }
}
