//! The path of a write through real filters, containers and log: what is stored once, what each filter says and saves,
//! and what a write does not touch.

mod common;

use common::*;
use onefold_chunking::Kind;
use onefold_engine::{Address, Descriptor, Engine, Hints, Mode, Piece, RecipeWriter, Transaction};
use onefold_fingerprint::Algorithm;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_storage::Compression;
use std::collections::HashSet;
use std::sync::{Arc, Barrier};

const SLICE: usize = 32 << 10;

/// Returns the addresses of chunks, in order.
fn addresses(pieces: &[Piece]) -> Vec<Address> {
    pieces.iter().filter_map(|piece| if let Piece::Chunk { address, .. } = piece { Some(*address) } else { None }).collect()
}

#[test]
fn streams_that_write_the_same_new_chunks_at_once_store_them_once() {
    for (round, chain) in [DEFAULT_CHAIN, "chunk-index", "bloom,chunk-index,byte-compare"].into_iter().enumerate() {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(chain));
        let data = bytes(round as u64, 1 << 20);
        let start = Barrier::new(4);
        let written: Vec<(Vec<Piece>, u64)> = std::thread::scope(|scope| {
            let writer = || {
                let mut stream = engine.stream();
                start.wait();
                let pieces = write(&mut stream, &data, SLICE);
                (pieces, stream.added_bytes())
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(writer)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(written.iter().map(|(_, added)| added).sum::<u64>(), data.len() as u64, "chain {chain}");
        assert!(written.iter().all(|(pieces, _)| *pieces == written[0].0), "chain {chain}: the streams do not agree where chunks are");
        engine.flush().unwrap();
        assert_eq!(engine.statistics().unwrap().chunks, written[0].0.len() as u64, "chain {chain}");
        assert_eq!(read(&engine, &written[0].0).unwrap(), data);
    }
}

#[test]
fn streams_that_write_the_same_and_flush_meanwhile_store_it_once() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(7, 512 << 10);
    let added: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = engine.stream();
                    for slice in data.chunks(SLICE) {
                        write(&mut stream, slice, SLICE);
                        engine.flush().unwrap();
                    }
                    stream.added_bytes()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(added, data.len() as u64);
}

#[test]
fn m0_2_m0_3_m0_12_a_store_of_every_chunker_fingerprint_and_codec_keeps_its_data() {
    // Random and repeating parts, zeros in place of a chunk, and an odd end.
    let data = [bytes(1, 40_000), vec![7; 30_000], vec![0; 20_000], bytes(1, 40_001)].concat();
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd(3), Compression::Zlib(6), Compression::Bzip2(9)];
    for chunker in [Kind::FastCdc, Kind::Rabin, Kind::Fixed] {
        for fingerprint in [Algorithm::Blake3, Algorithm::Sha256, Algorithm::Sha1] {
            for compression in codecs {
                let what = format!("{chunker}, {fingerprint}, {compression}");
                let ground = store(&Descriptor { chunker, fingerprint, compression, ..descriptor() });
                let engine = open(&ground, settings(DEFAULT_CHAIN));
                let mut stream = engine.stream();
                let pieces = write(&mut stream, &data, SLICE);
                let mut writer = RecipeWriter::new(&engine);
                pieces.iter().for_each(|piece| writer.push(&mut stream, *piece).unwrap());
                let recipe = writer.finish(&mut stream).unwrap();
                engine.flush().unwrap();
                drop((stream, engine));
                let engine = open(&ground.restart(CrashPolicy::DropAll), settings(DEFAULT_CHAIN));
                assert_eq!(engine.descriptor().fingerprint, fingerprint);
                let mut expanded = Vec::new();
                engine
                    .expand(&recipe, &mut |piece| {
                        expanded.push(*piece);
                        true
                    })
                    .unwrap();
                assert_eq!(expanded, pieces, "{what}");
                assert!(read(&engine, &expanded).unwrap() == data, "{what}");
                let mut stream = engine.stream();
                assert_eq!(write(&mut stream, &data, SLICE), pieces, "{what}");
                assert_eq!(stream.added_bytes(), 0, "{what}");
            }
        }
    }
}

#[test]
fn m0_6_the_chunk_index_filter_says_non_existing_then_strong_maybe() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings("chunk-index"));
    let data = bytes(3, 200_000);
    let count = write(&mut engine.stream(), &data, SLICE).len() as u64;
    assert_eq!(verdicts(&engine, "chunk-index"), (count, 0, 0, 0));
    engine.flush().unwrap();
    write(&mut engine.stream(), &data, SLICE);
    assert_eq!(verdicts(&engine, "chunk-index"), (count, 0, count, 0));
}

#[test]
fn m0_5_what_was_stored_is_known_at_once_before_any_flush() {
    for chain in [DEFAULT_CHAIN, "chunk-index", "bloom,chunk-index", "bloom,container-cache,chunk-index,byte-compare"] {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(chain));
        let data = bytes(4, 100_000);
        let mut stream = engine.stream();
        let pieces = write(&mut stream, &data, SLICE);
        assert_eq!(stream.added_bytes(), data.len() as u64);
        assert_eq!(write(&mut stream, &data, SLICE), pieces, "chain {chain}");
        assert_eq!(write(&mut engine.stream(), &data, SLICE), pieces, "chain {chain}");
        assert_eq!(stream.added_bytes(), data.len() as u64, "chain {chain}");
        assert_eq!(read(&engine, &pieces).unwrap(), data, "chain {chain}");
    }
}

#[test]
fn m0_7_what_is_written_over_itself_asks_only_the_block_index_filter() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings("block-index,chunk-index"));
    let data = bytes(5, 100_000);
    let old = write(&mut engine.stream(), &data, data.len());
    engine.flush().unwrap();
    let asked = verdicts(&engine, "chunk-index");
    let mut pieces = Vec::new();
    engine.stream().write(&data, true, Hints { overwritten: &old, chain: None }, &mut pieces).unwrap();
    assert_eq!(pieces, old);
    assert_eq!(verdicts(&engine, "block-index").2, old.len() as u64);
    assert_eq!(verdicts(&engine, "chunk-index"), asked);
}

#[test]
fn m0_8_byte_compare_makes_strong_maybe_existing() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings("chunk-index,byte-compare"));
    let data = bytes(6, 100_000);
    let count = write(&mut engine.stream(), &data, SLICE).len() as u64;
    engine.flush().unwrap();
    let mut again = engine.stream();
    write(&mut again, &data, SLICE);
    assert_eq!(again.added_bytes(), 0);
    assert_eq!(verdicts(&engine, "byte-compare"), (0, 0, 0, count));
}

/// Writes, damages a stored frame, and reopens the store. Returns the disk, the data and its pieces.
fn damaged_store(chain: &str) -> (SimulatedGround, Vec<u8>, Vec<Piece>) {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(chain));
    let data = bytes(8, 200_000);
    let pieces = write(&mut engine.stream(), &data, SLICE);
    engine.flush().unwrap();
    engine.close().unwrap();
    drop(engine);
    let container = files(&ground, "containers").into_keys().find(|path| path.split('/').count() == 4).unwrap();
    ground.corrupt(&container, 64 + 1000, 0x10).unwrap();
    (ground.snapshot(CrashPolicy::KeepAll), data, pieces)
}

#[test]
fn m0_8_byte_compare_stores_a_damaged_chunk_anew_and_old_recipes_find_the_other_copy() {
    for chain in ["chunk-index,byte-compare", "container-cache,chunk-index,byte-compare", "bloom,container-cache,chunk-index,byte-compare"]
    {
        let (ground, data, pieces) = damaged_store(chain);
        let engine = open(&ground, settings(chain));
        assert!(read(&engine, &pieces).unwrap_err().is_damage());

        let mut stream = engine.stream();
        let again = write(&mut stream, &data, SLICE);
        let added = stream.added_bytes();
        assert!((256..=3 * 4096).contains(&added), "chain {chain}: {added} bytes stored anew for one frame of 4 KiB");
        assert_ne!(addresses(&again), addresses(&pieces));
        assert!(read(&engine, &again).unwrap() == data, "chain {chain}");
        assert!(read(&engine, &pieces).unwrap() == data, "chain {chain}: the old recipe does not find the other copy");

        // Durable, and after a crash too.
        engine.flush().unwrap();
        drop((stream, engine));
        let engine = open(&ground.restart(CrashPolicy::DropAll), settings(chain));
        assert!(read(&engine, &pieces).unwrap() == data, "chain {chain}");
    }
}

#[test]
fn a_damaged_chunk_is_stored_anew_once_not_again_and_again() {
    for chain in ["chunk-index,byte-compare", "container-cache,chunk-index,byte-compare"] {
        let (ground, data, _) = damaged_store(chain);
        let engine = open(&ground, settings(chain));
        let mut added = Vec::new();
        for _ in 0..4 {
            let mut stream = engine.stream();
            write(&mut stream, &data, SLICE);
            added.push(stream.added_bytes());
            engine.flush().unwrap();
        }
        assert!(added[0] > 0 && added[1..] == [0, 0, 0], "chain {chain}: stored anew {added:?}");
    }
}

#[test]
fn without_byte_compare_damage_is_an_error_and_never_wrong_bytes() {
    let (ground, data, pieces) = damaged_store(DEFAULT_CHAIN);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let mut at = 0;
    let mut failed = 0;
    for piece in &pieces {
        let length = piece.length() as usize;
        match read(&engine, std::slice::from_ref(piece)) {
            Ok(found) => assert!(found == data[at..at + length]),
            Err(error) => {
                assert!(error.is_damage(), "{error}");
                failed += 1;
            }
        }
        at += length;
    }
    assert!((1..=16).contains(&failed), "{failed} chunks of one frame");
}

#[test]
fn m0_9_the_bloom_filter_never_denies_what_was_durable_before_a_crash() {
    for background in [false, true] {
        let ground = store(&descriptor());
        let with_bloom = || onefold_engine::Settings { background, ..settings("bloom,chunk-index") };
        let engine = open(&ground, with_bloom());
        let (durable, lost) = (bytes(9, 200_000), bytes(10, 50_000));
        let pieces = write(&mut engine.stream(), &durable, SLICE);
        engine.flush().unwrap();
        // Some of the chunks are in the pages of the index, the rest only in the log.
        engine.maintain(true).unwrap();
        let more = bytes(11, 100_000);
        let more_pieces = write(&mut engine.stream(), &more, SLICE);
        engine.flush().unwrap();
        write(&mut engine.stream(), &lost, SLICE);
        let after = ground.restart(CrashPolicy::DropAll);
        drop(engine);

        let engine = open(&after, with_bloom());
        let mut stream = engine.stream();
        assert_eq!(write(&mut stream, &durable, SLICE), pieces);
        assert_eq!(write(&mut stream, &more, SLICE), more_pieces);
        assert_eq!(stream.added_bytes(), 0);
        let pieces = write(&mut stream, &lost, SLICE);
        assert_eq!(stream.added_bytes(), lost.len() as u64);
        assert!(read(&engine, &pieces).unwrap() == lost);
        if !background {
            let (denied, passed, ..) = verdicts(&engine, "bloom");
            assert!(denied >= pieces.len() as u64 - 2 && passed > 0, "the filter is of no use: {denied} denied, {passed} passed");
        }
    }
}

#[test]
fn m0_10_the_container_cache_spares_lookups_when_chunks_come_back_in_their_order() {
    let data = bytes(12, 2 << 20);
    let lookups = |chain: &str| {
        let ground = store(&descriptor());
        let engine = open(&ground, settings(chain));
        let pieces = write(&mut engine.stream(), &data, SLICE);
        engine.close().unwrap();
        drop(engine);
        // Another process, with nothing in memory.
        let engine = open(&ground, settings(chain));
        let mut stream = engine.stream();
        assert_eq!(write(&mut stream, &data, 16 << 10), pieces);
        assert_eq!(stream.added_bytes(), 0);
        let (non_existing, weak, strong, existing) = verdicts(&engine, "chunk-index");
        assert_eq!((non_existing, weak, existing), (0, 0, 0));
        (strong, pieces.len() as u64, engine.statistics().unwrap().containers)
    };
    let (without, chunks, _) = lookups("chunk-index");
    assert_eq!(without, chunks);
    let (with, chunks, containers) = lookups("container-cache,chunk-index");
    // Each container is found once through the index; so is the rest of the request in which it first appears.
    assert!(with <= containers * 20 && with * 3 < chunks, "{with} lookups for {chunks} chunks in {containers} containers");
}

#[test]
fn m0_10_the_container_cache_is_bounded_and_a_small_one_is_only_slower() {
    let ground = store(&descriptor());
    let data = bytes(13, 1 << 20);
    for catalog_cache_bytes in [0, 4 << 10, 16 << 10] {
        let engine = open(&ground, onefold_engine::Settings { catalog_cache_bytes, ..settings("container-cache,chunk-index") });
        let pieces = write(&mut engine.stream(), &data, SLICE);
        assert_eq!(write(&mut engine.stream(), &data, SLICE), pieces);
        engine.close().unwrap();
        assert_eq!(engine.statistics().unwrap().chunks, pieces.len() as u64, "{catalog_cache_bytes} bytes");
    }
}

#[test]
fn m0_11_the_example_chain_of_figure_3_2_on_a_real_store() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings("bloom,block-index,chunk-index,byte-compare"));
    let (first, second) = (bytes(14, 60_000), bytes(15, 60_000));
    let one = write(&mut engine.stream(), &first, first.len());
    let two = write(&mut engine.stream(), &second, second.len());
    engine.flush().unwrap();
    let (ones, twos) = (one.len() as u64, two.len() as u64);
    // New: stopped by the Bloom filter.
    assert_eq!(verdicts(&engine, "bloom").0 + verdicts(&engine, "chunk-index").0, ones + twos);
    let before = verdicts(&engine, "chunk-index");

    // In the overwritten block: Bloom weak, object index strong, chunk index not asked, byte compare existing.
    engine.stream().write(&first, true, Hints { overwritten: &one, chain: None }, &mut Vec::new()).unwrap();
    assert_eq!(verdicts(&engine, "block-index").2, ones);
    assert_eq!(verdicts(&engine, "chunk-index"), before);
    assert_eq!(verdicts(&engine, "byte-compare"), (0, 0, 0, ones));

    // Elsewhere: Bloom and object index weak, chunk index strong, byte compare existing.
    engine.stream().write(&second, true, Hints { overwritten: &one, chain: None }, &mut Vec::new()).unwrap();
    assert_eq!(verdicts(&engine, "chunk-index").2, before.2 + twos);
    assert_eq!(verdicts(&engine, "byte-compare"), (0, 0, 0, ones + twos));
}

#[test]
fn m0_14_chunks_that_are_not_committed_are_never_persisted() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let (kept, lost) = (bytes(16, 100_000), bytes(17, 100_000));
    let kept_pieces = write(&mut engine.stream(), &kept, SLICE);
    engine.flush().unwrap();
    let lost_pieces = write(&mut engine.stream(), &lost, SLICE);
    // Everything that may be persisted is, although containers have frames that the log does not know.
    engine.maintain(true).unwrap();
    drop(engine);
    let engine = open(&ground.restart(CrashPolicy::KeepAll), settings(DEFAULT_CHAIN));
    let mut known = HashSet::new();
    for partition in 0..engine.descriptor().index_partitions {
        engine
            .index()
            .unwrap()
            .for_each(partition, &mut |fingerprint, _| {
                known.insert(*fingerprint);
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(known, kept_pieces.iter().filter_map(Piece::fingerprint).collect());
    assert!(lost_pieces.iter().filter_map(|piece| piece.fingerprint()).all(|name| engine.locate(&name).unwrap().is_none()));
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &lost, SLICE);
    assert_eq!(stream.added_bytes(), lost.len() as u64);
    assert!(read(&engine, &pieces).unwrap() == lost);
}

#[test]
fn m0_15_neither_a_write_nor_its_flush_touches_an_index_file() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    write(&mut engine.stream(), &bytes(18, 100_000), SLICE);
    engine.flush().unwrap();
    engine.maintain(true).unwrap();
    let index_files = || (files(&ground, "index"), files(&ground, "objects"));
    let (before, writes) = (index_files(), engine.index().unwrap().statistics().sweep_page_writes);
    for round in 0..20u64 {
        let pieces = write(&mut engine.stream(), &bytes(20 + round, 50_000), SLICE);
        let references = references(&pieces, 1);
        engine.submit(Transaction { changes: vec![(0, round.to_be_bytes().to_vec(), Some(vec![1; 100]))], references }).unwrap();
        engine.flush().unwrap();
    }
    assert!(index_files() == before, "a write or flush changed an index file");
    assert_eq!(engine.index().unwrap().statistics().sweep_page_writes, writes);
    // They do change when it is time.
    engine.maintain(true).unwrap();
    assert!(index_files() != before);
}

#[test]
fn a_volume_may_have_a_chain_of_its_own_and_a_wrong_one_is_refused() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let chain = engine.chain("chunk-index, byte-compare").unwrap();
    let data = bytes(19, 50_000);
    let mut stream = engine.stream();
    for _ in 0..2 {
        stream.write(&data, true, Hints { overwritten: &[], chain: Some(&chain) }, &mut Vec::new()).unwrap();
        engine.flush().unwrap();
    }
    assert!(verdicts(&engine, "byte-compare").3 > 0);
    assert_eq!(stream.added_bytes(), data.len() as u64);
    for (names, said) in
        [("", "chunk-index"), ("zero-chunk", "chunk-index"), ("chunk-index,chunk-index", "twice"), ("chunk-indx,chunk-index", "chunk-indx")]
    {
        let error = engine.chain(names).unwrap_err().to_string();
        assert!(error.contains(said), "{names:?}: {error}");
    }
}

#[test]
fn m0_22_every_component_of_the_data_path_has_its_time_and_bytes() {
    let ground = store(&Descriptor { compression: Compression::Zstd(1), ..descriptor() });
    let engine = open(&ground, settings("zero-chunk,block-index,bloom,container-cache,chunk-index,byte-compare"));
    let data = [bytes(30, 100_000), vec![0; 100_000], vec![3; 100_000]].concat();
    let pieces = write(&mut engine.stream(), &data, SLICE);
    engine.flush().unwrap();
    write(&mut engine.stream(), &data, SLICE);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&ground, settings("zero-chunk,block-index,bloom,container-cache,chunk-index,byte-compare"));
    write(&mut engine.stream(), &data, SLICE);
    assert!(read(&engine, &pieces).unwrap() == data);
    write(&mut engine.stream(), &bytes(31, 100_000), SLICE);
    engine.flush().unwrap();
    let profile = engine.profile().report();
    for component in [
        "chunking",
        "fingerprint",
        "filter_zero_chunk",
        "filter_block_index",
        "filter_bloom",
        "filter_container_cache",
        "filter_chunk_index",
        "filter_byte_compare",
        "chunk_index",
        "compress",
        "storage_write",
        "storage_read",
        "decompress",
        "log",
    ] {
        let (_, usage) = profile.iter().find(|(name, _)| *name == component).unwrap_or_else(|| panic!("no component {component}"));
        assert!(usage.calls > 0 && usage.bytes > 0, "{component}: {usage:?}");
    }
}

#[test]
fn a_store_opened_for_reading_refuses_to_write() {
    let ground = store(&descriptor());
    let engine: Arc<Engine> = try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap();
    let error = engine.stream().write(&[1; 5000], true, Hints::default(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, onefold_engine::EngineError::ReadOnly));
    assert!(matches!(engine.submit(Transaction::default()), Err(onefold_engine::EngineError::ReadOnly)));
    assert!(matches!(engine.flush(), Err(onefold_engine::EngineError::ReadOnly)));
}
