//! Work is done in batches, not chunk by chunk: the cost of a request in look-ups, reads, syncs and batches of the log.

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, references, settings, store, write};
use onefold_chunking::Kind;
use onefold_engine::{Descriptor, Engine, Hints, Settings, Transaction};
use onefold_ground::Ground;
use onefold_storage::Compression;

/// Returns how often a component was called.
fn calls(engine: &Engine, component: &str) -> u64 {
    let report = engine.profile().report();
    report.iter().find(|(name, _)| *name == component).map_or(0, |(_, usage)| usage.calls)
}

#[test]
fn the_chunks_of_a_request_go_through_the_filters_together() {
    let engine = open(&store(&descriptor()), settings("chunk-index"));
    let data = bytes(1, 1 << 20);
    let pieces = write(&mut engine.stream(), &data, 256 << 10);
    assert!(pieces.len() > 500);
    let asked = calls(&engine, "filter_chunk_index");
    assert!(asked <= 24, "the chunk index was asked {asked} times for {} chunks in four requests", pieces.len());
}

#[test]
fn a_request_with_a_chunk_twice_stores_it_once() {
    let engine = open(&store(&Descriptor { chunker: Kind::Fixed, ..descriptor() }), settings("chunk-index"));
    let data = bytes(2, 1024).repeat(100);
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &data, data.len());
    assert_eq!((pieces.len(), stream.added_bytes()), (100, 1024));
    assert!(read(&engine, &pieces).unwrap() == data);
}

#[test]
fn many_small_files_are_stored_in_few_batches() {
    let engine = open(&store(&descriptor()), settings("chunk-index"));
    let files: Vec<Vec<u8>> = (0..500).map(|seed| bytes(seed, 700)).collect();
    let runs: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
    let pieces = engine.stream().write_runs(&runs, Hints::default()).unwrap();
    for (file, pieces) in files.iter().zip(&pieces) {
        assert!(read(&engine, pieces).unwrap() == *file);
    }
    let asked = calls(&engine, "filter_chunk_index");
    assert!(asked <= 4, "the chunk index was asked {asked} times for {} files", files.len());
}

#[test]
fn a_small_flush_is_one_batch_and_one_sync_of_the_log() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let mut stream = engine.stream();
    for round in 0..3u8 {
        let pieces = write(&mut stream, &bytes(u64::from(round), 900), 900);
        let references = references(&pieces, 1);
        engine.submit(Transaction { changes: vec![(0, vec![b'z', round], Some(vec![round; 100]))], references }).unwrap();
        let (syncs, calls_before) = (ground.syncs(), calls(&engine, "log"));
        engine.flush().unwrap();
        assert_eq!((ground.syncs() - syncs, calls(&engine, "log") - calls_before), (1, 1), "flush {round}");
    }
}

#[test]
fn chunks_that_lie_together_are_read_together() {
    let ground = store(&Descriptor { container_bytes: 1 << 20, compression: Compression::None, ..descriptor() });
    let engine = open(&ground, Settings { frame_cache_bytes: 0, ..settings(DEFAULT_CHAIN) });
    let data = bytes(1, 512 << 10);
    let pieces = write(&mut engine.stream(), &data, 256 << 10);
    engine.flush().unwrap();
    // All frames are full and in the file, except the last one.
    let frames = engine.containers().unwrap().statistics().frames;
    assert!(frames > 100 && ground.exists("containers/0000/00000").unwrap());
    let before = ground.reads();
    assert!(read(&engine, &pieces).unwrap() == data);
    let reads = ground.reads() - before;
    assert!(reads <= 16, "{reads} reads for {} chunks in {frames} frames", pieces.len());
}
