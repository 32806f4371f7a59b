//! A store whose log jumps, like the log of an owner that takes over from another one.

mod common;

use common::*;
use onefold_engine::{Mode, Piece, SalvageOptions, Settings, Transaction, salvage};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use std::sync::Arc;

fn small() -> Settings {
    Settings { log_segment_bytes: 16 << 10, log_limit_bytes: 256 << 10, ..settings(DEFAULT_CHAIN) }
}

/// Bytes, and the pieces that spell them.
type Written = (Vec<u8>, Vec<Piece>);

/// Returns a store with `rounds` runs of data. The log jumps before each opening, and each opening ends with a crash.
fn jumping(rounds: u64) -> (SimulatedGround, Vec<Written>) {
    let mut ground = store(&descriptor());
    let mut written = Vec::new();
    for round in 0..rounds {
        let engine = open(&ground, small());
        let data = bytes(round, 20_000);
        let pieces = write(&mut engine.stream(), &data, 9000);
        engine.submit(Transaction { changes: vec![(0, vec![b'z', round as u8], Some(vec![7]))], references: Vec::new() }).unwrap();
        refer(&engine, round as u8, &pieces, 1);
        written.push((data, pieces));
        drop(engine);
        ground = ground.restart(CrashPolicy::DropAll);
        jump(&ground, 1 << 28);
    }
    (ground, written)
}

fn check(ground: &SimulatedGround, mode: Mode, written: &[(Vec<u8>, Vec<Piece>)]) {
    let engine = try_open(ground, small(), mode).unwrap();
    for (key, (data, pieces)) in written.iter().enumerate() {
        assert_eq!(engine.get(0, &[b'z', key as u8]).unwrap(), Some(vec![7]));
        assert!(read(&engine, pieces).unwrap() == *data);
    }
}

#[test]
fn everybody_reads_a_store_whose_log_jumps() {
    let (ground, written) = jumping(5);
    for mode in [Mode::ReadOnly, Mode::Snapshot, Mode::ReadWrite] {
        check(&ground, mode, &written);
    }
    let engine = open(&ground, small());
    assert_eq!(engine.damaged_spares(), Vec::<String>::new());
    engine.maintain(true).unwrap();
    check(&ground, Mode::Snapshot, &written);
    drop(engine);
    check(&ground.restart(CrashPolicy::DropAll), Mode::ReadWrite, &written);
}

#[test]
fn what_the_log_jumped_over_counts_for_no_limit() {
    let (ground, _) = jumping(3);
    let engine = open(&ground, small());
    let statistics = engine.statistics().unwrap();
    assert!(statistics.log_bytes < 256 << 10, "{} bytes", statistics.log_bytes);
}

#[test]
fn a_salvage_finds_nothing_to_do_beside_a_jump_and_a_lost_segment_where_there_is_one() {
    let (ground, written) = jumping(5);
    let shared = |ground: &SimulatedGround| -> Arc<dyn Ground> { Arc::new(ground.clone()) };
    let run =
        |ground, may_lose| salvage(&shared(ground), &small(), SalvageOptions { dry_run: false, may_lose }, &Meaningless, "test").unwrap();
    assert_eq!(run(&ground, false).sentences, Vec::<String>::new());
    check(&ground, Mode::ReadWrite, &written);
    let (ground, _) = jumping(5);
    let segments = ground.list("log").unwrap().into_iter().filter(|entry| entry.name.ends_with(".log"));
    let names: Vec<String> = segments.map(|entry| entry.name).collect();
    ground.remove(&format!("log/{}", names[names.len() / 2])).unwrap();
    assert!(try_open(&ground, small(), Mode::ReadWrite).is_err(), "a gap that no segment declares is a loss");
    assert!(run(&ground, false).is_refused);
    let salvaged = run(&ground, true);
    assert!(salvaged.needs_index && !salvaged.losses.is_empty(), "{:?}", salvaged.sentences);
}
