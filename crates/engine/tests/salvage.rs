//! Salvage of the parts that an opening needs, one by one, on a simulated disk.

mod common;

use common::*;
use onefold_engine::{Engine, EngineError, FORMAT, Mode, SalvageOptions, salvage};
use onefold_ground::{Ground, SimulatedGround, read_file};
use std::sync::Arc;

fn repair(ground: &SimulatedGround, dry_run: bool) -> Result<Vec<String>, EngineError> {
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    salvage(&shared, &settings(DEFAULT_CHAIN), SalvageOptions { dry_run, may_lose: false }, &Meaningless, "test").map(|done| done.sentences)
}

#[test]
fn a_flipped_bit_of_the_format_is_damage_and_is_repaired_under_the_lock_only() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let text = read_file(&ground, "descriptor", 1 << 16).unwrap();
    let spelled = format!("format = {FORMAT}");
    let at = text.windows(spelled.len()).position(|bytes| bytes == spelled.as_bytes()).unwrap() + spelled.len() - 1;
    ground.corrupt("descriptor", at as u64, 1).unwrap();
    let damaged = read_file(&ground, "descriptor", 1 << 16).unwrap();
    // Somebody has the store open.
    assert!(matches!(repair(&ground, false), Err(EngineError::Lock(_))));
    assert!(read_file(&ground, "descriptor", 1 << 16).unwrap() == damaged);
    drop(engine);
    // A reader continues with the second copy.
    drop(try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap());
    assert!(matches!(try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadWrite), Err(EngineError::Descriptor { .. })));
    assert_eq!(repair(&ground, true).unwrap().len(), 1);
    assert!(read_file(&ground, "descriptor", 1 << 16).unwrap() == damaged);
    assert_eq!(repair(&ground, false).unwrap().len(), 1);
    assert!(read_file(&ground, "descriptor", 1 << 16).unwrap() == text);
    assert_eq!(repair(&ground, false).unwrap(), [] as [String; 0]);
}

#[test]
fn a_place_that_is_no_store_is_left_as_it_is() {
    let ground = SimulatedGround::new(1);
    assert!(matches!(repair(&ground, false), Err(EngineError::NoStore { .. })));
    assert!(ground.list("").unwrap().is_empty());
}

#[test]
fn a_damaged_marker_beside_a_sound_log_is_removed_and_the_chunk_index_made_anew() {
    for garbage in [&b"garbage"[..], &[7; 5000], b""] {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(DEFAULT_CHAIN));
        write(&mut engine.stream(), &bytes(1, 50_000), 9000);
        engine.flush().unwrap();
        drop(engine);
        ground.create("log/replacing").unwrap().write_at(0, garbage).unwrap();
        assert!(try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).is_err());
        for dry_run in [true, false] {
            assert!(repair(&ground, dry_run).unwrap()[0].contains("log/replacing"));
            assert_eq!(ground.exists("log/replacing").unwrap(), dry_run);
        }
        // The caller rebuilds it.
        assert!(Engine::is_rebuild_cut_short(&ground).unwrap());
    }
}

#[test]
fn a_salvage_of_a_sound_store_reads_each_container_and_the_log_once() {
    let reads_of = |megabytes: u64| {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(DEFAULT_CHAIN));
        write(&mut engine.stream(), &bytes(megabytes, (megabytes as usize) << 20), 64 << 10);
        engine.close().unwrap();
        let containers = engine.containers().unwrap().containers().unwrap().len() as u64;
        drop(engine);
        let before = ground.reads();
        assert_eq!(repair(&ground, false).unwrap(), [] as [String; 0]);
        (containers, ground.reads() - before)
    };
    let ((few, some_reads), (many, more_reads)) = (reads_of(1), reads_of(9));
    assert!(many > few + 100);
    let (containers, reads) = (many - few, more_reads - some_reads);
    assert!(reads < containers * 3 / 2, "{reads} reads for {containers} containers");
}
