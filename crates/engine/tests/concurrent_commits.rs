//! Commits beside streams that write: what becomes durable is complete, whichever moment a commit takes.

mod common;

use common::*;
use onefold_engine::{Engine, Hints, MetadataKind, decode_pieces, encode_pieces};
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
    for container in engine.storage().containers().unwrap() {
        for (address, slot) in engine.storage().slots(container).unwrap().into_iter().filter(|(_, slot)| slot.kind != ChunkKind::Data) {
            let mut content = Vec::new();
            engine.storage().load(&[(address, slot.fingerprint)], &mut content).unwrap();
            let pieces = decode_pieces(&mut Reader::new(&content[0]), engine.digest_bytes()).unwrap();
            found += pieces.iter().filter_map(|piece| piece.fingerprint()).filter(|name| engine.locate(name).unwrap().is_none()).count();
        }
    }
    found
}
