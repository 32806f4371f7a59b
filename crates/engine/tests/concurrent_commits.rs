//! Commits beside streams that write: what becomes durable is complete, whichever moment a commit takes.

mod common;

use common::*;
use onefold_engine::{Engine, Hints, MetadataKind, Transaction, decode_pieces, encode_pieces};
use onefold_ground::CrashPolicy;
use onefold_ground::wire::Reader;
use onefold_storage::ChunkKind;
use std::sync::Arc;

/// Pairs of a data chunk and a metadata chunk that refers to it. Each thread writes its pairs in two streams, so in two
/// containers.
const PAIRS: u64 = 2000;
const THREADS: u64 = 2;
/// Each round catches a commit that takes containers one after the other with a chance of about one in six.
const ROUNDS: u64 = 12;

#[test]
fn a_commit_never_takes_a_metadata_chunk_without_what_it_refers_to() {
    for round in 0..ROUNDS {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(DEFAULT_CHAIN));
        let mut crashes = 0;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let engine = &engine;
                    scope.spawn(move || write_pairs(engine, (round * THREADS + thread) * PAIRS))
                })
                .collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                engine.flush().unwrap();
                let survivor = open(&ground.snapshot(CrashPolicy::DropAll), settings(DEFAULT_CHAIN));
                assert_eq!(dangling(&survivor), 0, "after commit {crashes} of round {round}");
                crashes += 1;
            }
        });
    }
}

#[test]
fn a_transaction_is_taken_only_while_what_it_was_decided_by_holds() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let object = |key: u8, value: Option<u8>| (0, vec![b'z', key], value.map(|value| vec![value]));
    let write = |change| Transaction { changes: vec![change], references: vec![] };
    let value = |key: u8| engine.object_index().get(0, &[b'z', key]).unwrap();
    // What the second one read: first absent, then replaced, visible and durable, then removed.
    for (before, expected) in [(Some(1), None), (Some(2), Some(1)), (None, Some(2))] {
        engine.submit(write(object(1, before))).unwrap();
        for _ in 0..2 {
            assert!(!engine.submit_if(&[object(1, expected)], write(object(2, Some(9)))).unwrap());
            assert_eq!(value(2), None);
            engine.flush().unwrap();
        }
        assert!(engine.submit_if(&[object(1, before), object(2, None)], write(object(3, before))).unwrap());
        assert_eq!(value(3), before.map(|value| vec![value]));
    }
}

fn write_pairs(engine: &Arc<Engine>, seed: u64) {
    let (mut data, mut metadata) = (engine.stream(), engine.stream());
    for number in 0..PAIRS {
        let mut pieces = Vec::new();
        data.write(&bytes(seed + number, 600), true, Hints::default(), &mut pieces).unwrap();
        let mut content = Vec::new();
        encode_pieces(&pieces, engine.digest_bytes(), &mut content);
        let references: Vec<_> = pieces.iter().filter_map(|piece| piece.fingerprint()).collect();
        metadata.write_metadata(MetadataKind::Recipe, &content, &references).unwrap();
    }
}

/// Counts references of stored metadata chunks to chunks that are not stored.
fn dangling(engine: &Engine) -> usize {
    let mut found = 0;
    for container in engine.containers().unwrap().containers().unwrap().iter() {
        for (address, slot) in
            engine.containers().unwrap().slots(container).unwrap().into_iter().filter(|(_, slot)| slot.kind != ChunkKind::Data)
        {
            let mut content = Vec::new();
            engine.containers().unwrap().load(&[(address, slot.fingerprint)], &mut content).unwrap();
            let pieces = decode_pieces(&mut Reader::new(&content[0]), engine.digest_bytes()).unwrap();
            found += pieces.iter().filter_map(|piece| piece.fingerprint()).filter(|name| engine.locate(name).unwrap().is_none()).count();
        }
    }
    found
}
