//! Frames that a client compressed: what a stream believes, and what is stored as it came.

mod common;

use common::*;
use onefold_engine::{CompressedFrame, Descriptor, Engine, EngineError, Piece, WriteStream};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_storage::{Compression, Compressor};
use std::sync::Arc;

const ZSTD: Compression = Compression::Zstd(2);
const CHUNK_BYTES: usize = 1000;

/// Frames of 16 KiB.
fn small() -> Descriptor {
    Descriptor { sequential_compression: ZSTD, ..descriptor() }
}

/// Returns text, the same for the same seed.
fn text(seed: u64, length: usize) -> Vec<u8> {
    bytes(seed, length).into_iter().map(|byte| b'a' + byte % 8).collect()
}

fn names(engine: &Engine, chunks: &[&[u8]]) -> Vec<Fingerprint> {
    chunks.iter().map(|chunk| engine.descriptor().fingerprint.fingerprint(chunk)).collect()
}

/// Supplies data as a client does.
fn supply(engine: &Engine, stream: &mut WriteStream, data: &[u8]) -> Vec<Piece> {
    let mut compressor = Compressor::new(ZSTD);
    let (codec, stored) = compressor.compress(data);
    let frame = CompressedFrame::decompress(codec, stored, data.len()).unwrap();
    let chunks: Vec<_> = frame.raw().chunks(CHUNK_BYTES).collect();
    stream.write_frame(&chunks, &names(engine, &chunks), Some(&frame)).unwrap()
}

/// Returns the stored bytes of all frames.
fn stored_bytes(engine: &Engine) -> u64 {
    engine.flush().unwrap();
    engine.containers().unwrap().statistics().stored_bytes
}

fn compressed_bytes(data: &[u8]) -> u64 {
    Compressor::new(ZSTD).compress(data).1.len() as u64
}

#[test]
fn m3_1_a_frame_of_new_chunks_is_stored_as_it_came() {
    for chain in [DEFAULT_CHAIN, "chunk-index", "bloom,zero-chunk,chunk-index,byte-compare"] {
        let ground = store(&small());
        let engine = open(&ground, settings(chain));
        let mut stream = engine.stream().sequential();
        let frames: Vec<_> = (0..20).map(|seed| text(seed, 16_000)).collect();
        let pieces: Vec<_> = frames.iter().flat_map(|data| supply(&engine, &mut stream, data)).collect();
        assert_eq!(stored_bytes(&engine), frames.iter().map(|data| compressed_bytes(data)).sum::<u64>());
        assert_eq!(stream.added_bytes(), 20 * 16_000);
        let profile = engine.statistics().unwrap().activity.profile;
        assert!(profile.get("compress").is_none_or(|usage| usage.bytes == 0), "nothing is compressed again");
        refer(&engine, 1, &pieces, 1);
        drop((stream, engine));
        let engine = open(&ground.restart(CrashPolicy::DropAll), settings(chain));
        assert_eq!(read(&engine, &pieces).unwrap(), frames.concat());
    }
}

#[test]
fn m3_1_a_chunk_under_another_name_is_named_and_nothing_is_stored() {
    let ground = store(&small());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let mut stream = engine.stream().sequential();
    let data = text(1, 16_000);
    let mut compressor = Compressor::new(ZSTD);
    let (codec, stored) = compressor.compress(&data);
    let frame = CompressedFrame::decompress(codec, stored, data.len()).unwrap();
    let chunks: Vec<_> = frame.raw().chunks(CHUNK_BYTES).collect();
    let right = names(&engine, &chunks);
    for wrong_at in [0, 7, 15] {
        let mut wrong = right.clone();
        wrong[wrong_at..].fill(engine.descriptor().fingerprint.fingerprint(b"another"));
        for frame in [None, Some(&frame)] {
            match stream.write_frame(&chunks, &wrong, frame).unwrap_err() {
                EngineError::Misnamed { index, expected, found } => {
                    assert_eq!((index, expected, found), (wrong_at, wrong[wrong_at], right[wrong_at]));
                }
                error => panic!("{error}"),
            }
        }
    }
    for few in [&right[1..], &[]] {
        assert!(matches!(stream.write_frame(&chunks, few, Some(&frame)), Err(EngineError::Invalid { .. })));
    }
    assert_eq!((stored_bytes(&engine), stream.added_bytes(), engine.statistics().unwrap().chunks), (0, 0, 0));
    stream.write_frame(&chunks, &right, Some(&frame)).unwrap();
    assert_eq!(stream.added_bytes(), 16_000);
}

#[test]
fn m3_1_of_a_frame_with_known_chunks_only_the_new_ones_are_stored() {
    let ground = store(&small());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let mut stream = engine.stream().sequential();
    let known = text(1, 16_000);
    let mut all = vec![(known.clone(), supply(&engine, &mut stream, &known))];
    // One chunk of the frame before; two that are equal; zeros; all of them known.
    let with = |seed, chunk: &[u8], times: usize| [chunk.repeat(times), text(seed, 16_000 - times * CHUNK_BYTES)].concat();
    let cases = [
        (with(2, &known[3000..4000], 1), 15_000),
        (with(3, &text(9, 1000), 2), 15_000),
        (with(4, &[0; 1000], 3), 13_000),
        (known.clone(), 0),
    ];
    for (data, added) in cases {
        let before = stream.added_bytes();
        let pieces = supply(&engine, &mut stream, &data);
        assert_eq!(stream.added_bytes() - before, added);
        all.push((data, pieces));
        engine.flush().unwrap();
    }
    assert!(all[3].1[..3].iter().all(|piece| matches!(piece, Piece::Zeros { length: 1000 })));
    assert_eq!(engine.statistics().unwrap().chunks, 16 + 15 + 15 + 13);
    for (data, pieces) in all {
        assert_eq!(read(&engine, &pieces).unwrap(), data);
    }
}

#[test]
fn m3_1_more_chunks_than_a_batch_and_no_frame_at_all_are_stored_too() {
    let ground = store(&small());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let mut stream = engine.stream().sequential();
    let data = text(1, 20_000);
    let mut compressor = Compressor::new(ZSTD);
    let (codec, stored) = compressor.compress(&data);
    let frame = CompressedFrame::decompress(codec, stored, data.len()).unwrap();
    let chunks: Vec<_> = frame.raw().chunks(16).collect();
    let pieces = stream.write_frame(&chunks, &names(&engine, &chunks), Some(&frame)).unwrap();
    assert_eq!(read(&engine, &pieces).unwrap(), data);
    let other = text(2, 20_000);
    let chunks: Vec<_> = other.chunks(CHUNK_BYTES).collect();
    let pieces = stream.write_frame(&chunks, &names(&engine, &chunks), None).unwrap();
    assert_eq!(read(&engine, &pieces).unwrap(), other);
    assert_eq!(stream.write_frame(&[], &[], None).unwrap(), []);
}

#[test]
fn m3_1_streams_that_supply_the_same_frames_at_once_store_each_chunk_once() {
    let ground: SimulatedGround = store(&small());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let frames: Vec<_> = (0..40).map(|seed| text(seed, 16_000)).collect();
    let work = |engine: &Arc<Engine>| {
        let mut stream = engine.stream().sequential();
        let pieces: Vec<_> = frames.iter().flat_map(|data| supply(engine, &mut stream, data)).collect();
        (pieces, stream.added_bytes())
    };
    let written: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| work(&engine))).collect();
        for _ in 0..20 {
            engine.flush().unwrap();
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(written.iter().map(|(_, added)| added).sum::<u64>(), 40 * 16_000);
    engine.flush().unwrap();
    assert_eq!(engine.statistics().unwrap().chunks, 40 * 16);
    for (pieces, _) in &written {
        assert_eq!(read(&engine, pieces).unwrap(), frames.concat());
    }
}
