//! Unreadable chunks: they are lost and reported, nothing else suffers, and writing the same data again restores them.

mod common;

use common::{DEFAULT_CHAIN, bytes, descriptor, open, read, refer, settings, store, try_open, unused, write};
use onefold_engine::{Engine, Hints, LostChunk, MetadataKind, Mode, Piece, Readable, Rebuild, Settings, encode_pieces};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::{ChunkKind, ContainerId};
use std::sync::Arc;

/// Returns the chunks of pieces, as a reader would report them that cannot read them.
fn lost(engine: &Engine, pieces: &[Piece]) -> Vec<LostChunk> {
    let lost = pieces.iter().filter_map(|piece| {
        let Piece::Chunk { fingerprint, address, .. } = *piece else { return None };
        let slots = engine.containers().unwrap().slots_beside(address).unwrap().1;
        let (_, slot) = slots.into_iter().find(|(at, _)| *at == address).unwrap();
        Some(LostChunk { fingerprint, address, slot: Some((slot.kind, slot.length_bytes)), is_needed: false })
    });
    lost.collect()
}

fn count(engine: &Engine, fingerprint: Fingerprint) -> Option<(u64, u32)> {
    let mut entries = Vec::new();
    engine.index().unwrap().lookup(&[fingerprint], &mut entries).unwrap();
    entries[0].map(|entry| (entry.address, entry.count))
}

fn quarantined(engine: &Engine) -> usize {
    let mut found = 0;
    engine.for_each_quarantined(&mut |_| found += 1).unwrap();
    found
}

/// Returns a function that reads the references of recipe chunks.
fn references(engine: &Engine) -> impl Fn(ChunkKind, &[u8]) -> Result<Vec<Piece>, String> {
    let digest_bytes = engine.digest_bytes();
    move |kind, content| {
        if kind == ChunkKind::Data {
            return Ok(Vec::new());
        }
        let mut reader = onefold_ground::wire::Reader::new(content);
        onefold_engine::decode_pieces(&mut reader, digest_bytes).map_err(|error| error.to_string())
    }
}

fn remove(engine: &Engine) -> onefold_engine::Removed {
    engine.remove_unused(&unused(engine), &references(engine), &|| false).unwrap()
}

#[test]
fn a_lost_chunk_is_stored_again_with_the_next_write_and_old_recipes_find_it() {
    for chain in [DEFAULT_CHAIN, "bloom,zero-chunk,chunk-index,byte-compare", "chunk-index"] {
        for reopen in [false, true] {
            let ground = store(&descriptor());
            let mut engine = open(&ground, settings(chain));
            let data = bytes(1, 200_000);
            let pieces = write(&mut engine.stream(), &data, 16 << 10);
            refer(&engine, 1, &pieces, 1);
            let found = engine.quarantine(&lost(&engine, &pieces[3..9])).unwrap();
            assert_eq!(found.len(), 6, "{chain}");
            assert!(found.iter().all(|chunk| chunk.is_counted && chunk.kind == Some(ChunkKind::Data)));
            assert_eq!(engine.quarantine(&lost(&engine, &pieces[3..9])).unwrap(), [], "twice is as once");
            for piece in &pieces[3..9] {
                assert_eq!(count(&engine, piece.fingerprint().unwrap()), Some((0, 1)));
            }
            if reopen {
                drop(engine);
                engine = open(&ground, settings(chain));
            }
            assert_eq!(quarantined(&engine), 6);
            let lost_bytes: u64 = pieces[3..9].iter().map(Piece::length).sum();
            assert_eq!(engine.statistics().unwrap().dead_bytes, lost_bytes);
            // Also over a block that has exactly these chunks.
            let mut stream = engine.stream();
            let mut again = Vec::new();
            let hints = Hints { overwritten: &pieces, chain: None };
            stream.write(&data, true, hints, &mut again).unwrap();
            assert_eq!(stream.added_bytes(), lost_bytes, "{chain}, reopened {reopen}");
            drop(stream);
            refer(&engine, 2, &again, 1);
            assert_eq!(quarantined(&engine), 0);
            for (old, new) in pieces[3..9].iter().zip(&again[3..9]) {
                let Piece::Chunk { address, .. } = new else { panic!() };
                assert_ne!(old, new);
                assert_eq!(count(&engine, old.fingerprint().unwrap()), Some((address.bits(), 2)));
            }
            assert_eq!(read(&engine, &again).unwrap(), data);
            assert_eq!(read(&engine, &pieces).unwrap(), data);
            assert_eq!(write_again(&engine, &data), 0, "{chain}");
        }
    }
}

fn write_again(engine: &Arc<Engine>, data: &[u8]) -> u64 {
    let mut stream = engine.stream();
    write(&mut stream, data, 16 << 10);
    stream.added_bytes()
}

#[test]
fn what_a_lost_metadata_chunk_refers_to_stays_and_is_counted_once_when_it_comes_back() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(2, 60_000);
    let (mut stream, digest_bytes) = (engine.stream(), engine.digest_bytes());
    let pieces = write(&mut stream, &data, 16 << 10);
    let children: Vec<_> = pieces.iter().filter_map(Piece::fingerprint).collect();
    let mut content = Vec::new();
    encode_pieces(&pieces, digest_bytes, &mut content);
    let parent = stream.write_metadata(MetadataKind::Recipe, &content, &children).unwrap();
    refer(&engine, 1, &[parent], 1);
    stream.rest();
    let counts = |engine: &Engine| children.iter().map(|child| count(engine, *child).unwrap().1).collect::<Vec<_>>();
    assert!(counts(&engine).iter().all(|count| *count == 1));
    engine.quarantine(&lost(&engine, &[parent])).unwrap();
    assert_eq!(remove(&engine).chunks, 0);
    assert_eq!(engine.why_nothing_is_removed().unwrap(), None, "what is counted is not in danger");
    let again = stream.write_metadata(MetadataKind::Recipe, &content, &children).unwrap();
    refer(&engine, 2, &[again], 1);
    stream.rest();
    assert!(counts(&engine).iter().all(|count| *count == 1), "{:?}", counts(&engine));
    assert_eq!(quarantined(&engine), 0);
    // And everything goes when nobody needs it.
    refer(&engine, 1, &[parent], -1);
    refer(&engine, 2, &[again], -1);
    while remove(&engine).chunks > 0 {}
    assert!(children.iter().all(|child| count(&engine, *child).is_none()));
}

#[test]
fn a_chunk_that_can_be_read_again_is_restored_with_its_references() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(3, 60_000);
    let (mut stream, digest_bytes) = (engine.stream(), engine.digest_bytes());
    let pieces = write(&mut stream, &data, 16 << 10);
    let children: Vec<_> = pieces.iter().filter_map(Piece::fingerprint).collect();
    let mut content = Vec::new();
    encode_pieces(&pieces, digest_bytes, &mut content);
    let parent = stream.write_metadata(MetadataKind::Recipe, &content, &children).unwrap();
    refer(&engine, 1, &[parent], 1);
    stream.rest();
    let chunks = engine.statistics().unwrap().chunks;
    let mut found = engine.quarantine(&lost(&engine, &[parent])).unwrap();
    found.extend(engine.quarantine(&lost(&engine, &pieces[..3])).unwrap());
    assert_eq!(engine.statistics().unwrap().chunks, chunks - 4);
    for chunk in &found {
        let references = if chunk.may_refer() { &children[..] } else { &[] };
        let readable =
            Readable { fingerprint: chunk.fingerprint, address: chunk.address, lost: chunk.address, references: references.to_vec() };
        assert_eq!(engine.restore_chunks(&[readable.clone(), readable.clone()]).unwrap(), 1);
        assert_eq!(engine.restore_chunks(&[readable]).unwrap(), 0);
    }
    assert_eq!(quarantined(&engine), 0);
    assert!(children.iter().all(|child| count(&engine, *child).is_some_and(|(address, count)| address != 0 && count == 1)));
    let statistics = engine.statistics().unwrap();
    assert_eq!((statistics.dead_bytes, statistics.chunks), (0, chunks));
    engine.for_each_dead(&mut |_, dead| assert_eq!(dead.count(), 0)).unwrap();
}

#[test]
fn m0_19_nothing_is_removed_while_counts_made_anew_lack_what_a_lost_chunk_refers_to() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(4, 60_000);
    let (mut stream, digest_bytes) = (engine.stream(), engine.digest_bytes());
    let pieces = write(&mut stream, &data, 16 << 10);
    let children: Vec<_> = pieces.iter().filter_map(Piece::fingerprint).collect();
    let mut content = Vec::new();
    encode_pieces(&pieces, digest_bytes, &mut content);
    let parent = stream.write_metadata(MetadataKind::Recipe, &content, &children).unwrap();
    refer(&engine, 1, &[parent], 1);
    engine.quarantine(&lost(&engine, &[parent])).unwrap();
    drop((stream, engine));
    // As if the parent were unreadable; the reference to it is known.
    let mut rebuild = Rebuild::start(Arc::new(ground.clone()), settings(DEFAULT_CHAIN), "test", &mut |why| panic!("{why}")).unwrap();
    rebuild.count(&[(parent.fingerprint().unwrap(), 1)]).unwrap();
    rebuild.finish().unwrap();
    let reader = try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap();
    assert!(reader.why_nothing_is_removed().unwrap().is_some(), "a reader knows it before it is noted");
    drop(reader);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    assert_eq!(count(&engine, parent.fingerprint().unwrap()), Some((0, 1)));
    assert!(!unused(&engine).is_empty());
    let removed = remove(&engine);
    assert_eq!(removed.chunks, 0);
    assert!(removed.held.unwrap().contains("lost chunks that are still needed"));
    // After the next write, its references are counted again, and removal continues.
    let mut stream = engine.stream();
    let again = stream.write_metadata(MetadataKind::Recipe, &content, &children).unwrap();
    refer(&engine, 2, &[again], 1);
    stream.rest();
    assert!(children.iter().all(|child| count(&engine, *child).unwrap().1 == 1));
    assert_eq!(engine.why_nothing_is_removed().unwrap(), None);
    assert_eq!(remove(&engine).chunks, 0);
    assert_eq!(read(&engine, &pieces).unwrap(), data);
}

#[test]
fn a_chunk_that_only_an_index_made_anew_misses_is_noted_too() {
    let ground = store(&descriptor());
    drop(open(&ground, settings(DEFAULT_CHAIN)));
    let fingerprint = Fingerprint::from_digest(&[5; 32]);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    write(&mut engine.stream(), &bytes(7, 20_000), 16 << 10);
    engine.flush().unwrap();
    drop(engine);
    let mut rebuild = Rebuild::start(Arc::new(ground.clone()), settings(DEFAULT_CHAIN), "test", &mut |why| panic!("{why}")).unwrap();
    rebuild.count(&[(fingerprint, 1)]).unwrap();
    rebuild.finish().unwrap();
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let found = engine.quarantined(&fingerprint, onefold_engine::Address::from_bits(0)).unwrap().unwrap();
    assert!(found.kind.is_none() && !found.is_counted);
    assert!(engine.why_nothing_is_removed().unwrap().is_some());
    engine.note_unreachable().unwrap();
    assert_eq!(engine.why_nothing_is_removed().unwrap(), None);
}

#[test]
fn commits_of_new_chunks_ask_no_database_whether_they_were_lost() {
    let ground = store(&descriptor());
    let settings = Settings { object_index_cache_bytes: 0, ..settings(DEFAULT_CHAIN) };
    let engine = open(&ground, settings.clone());
    let pieces = write(&mut engine.stream(), &bytes(1, 200_000), 16 << 10);
    refer(&engine, 1, &pieces, 1);
    engine.quarantine(&lost(&engine, &pieces[3..9])).unwrap();
    engine.maintain(true).unwrap();
    drop(engine);
    let engine = open(&ground, settings);
    let mut stream = engine.stream();
    let new = write(&mut stream, &bytes(2, 1_000_000), 16 << 10);
    let before = ground.reads();
    engine.flush().unwrap();
    let reads = ground.reads() - before;
    assert!(new.len() > 400 && reads < 100, "{reads} reads for {} chunks", new.len());
    // A lost chunk is found all the same.
    assert_eq!(quarantined(&engine), 6);
    write(&mut stream, &bytes(1, 200_000), 16 << 10);
    engine.flush().unwrap();
    assert_eq!(quarantined(&engine), 0);
}

/// Returns the bytes of all dead slots, according to the objects of the containers.
fn dead_bytes(engine: &Engine) -> u64 {
    let mut sum = 0;
    engine.for_each_dead(&mut |_, dead| sum += dead.bytes).unwrap();
    sum
}

#[test]
fn m0_8_a_copy_that_byte_compare_found_damaged_is_dead_with_the_batch_that_has_the_new_one() {
    for reopen in [false, true] {
        let ground = store(&descriptor());
        let chain = "bloom,zero-chunk,chunk-index,byte-compare";
        let mut engine = open(&ground, settings(chain));
        let data = bytes(11, 300_000);
        let pieces = write(&mut engine.stream(), &data, 16 << 10);
        refer(&engine, 1, &pieces, 1);
        let chunks = engine.statistics().unwrap().chunks;
        // Damage the container with most of them, bypassing the caches.
        let chunk = pieces.iter().find_map(|piece| if let Piece::Chunk { address, .. } = piece { Some(*address) } else { None });
        let rotten = engine.containers().unwrap().container_of(chunk.unwrap()).unwrap();
        drop(engine);
        let path = format!("containers/{:04x}/{:05x}/{:08x}", rotten.partition(), 0, rotten.number());
        for at in (100..30_000).step_by(5_000) {
            onefold_ground::Ground::open(&ground, &path, onefold_ground::Access::Read).unwrap();
            ground.corrupt(&path, at, 1).unwrap();
        }
        engine = open(&ground, settings(chain));
        let lost: Vec<&Piece> = pieces.iter().filter(|piece| read(&engine, &[**piece]).is_err()).collect();
        let lost_bytes: u64 = lost.iter().map(|piece| piece.length()).sum();
        assert!(!lost.is_empty() && lost.len() < pieces.len());
        let mut stream = engine.stream();
        let again = write(&mut stream, &data, 16 << 10);
        assert_eq!(stream.added_bytes(), lost_bytes);
        drop(stream);
        assert_eq!(engine.statistics().unwrap().dead_bytes, 0, "nothing of it is durable yet");
        refer(&engine, 2, &again, 1);
        if reopen {
            drop(engine);
            engine = open(&ground, settings(chain));
        }
        let statistics = engine.statistics().unwrap();
        assert_eq!((statistics.chunks, statistics.dead_bytes, dead_bytes(&engine)), (chunks, lost_bytes, lost_bytes));
        for piece in &pieces {
            assert_eq!(count(&engine, piece.fingerprint().unwrap()).unwrap().1, 2);
        }
        assert_eq!(read(&engine, &pieces).unwrap(), data, "old recipes find the new copies");
        assert_eq!(write_again(&engine, &data), 0);
    }
}

#[test]
fn what_a_rehearsal_quarantines_and_restores_is_seen_by_its_opening_only() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = bytes(12, 200_000);
    let pieces = write(&mut engine.stream(), &data, 16 << 10);
    refer(&engine, 1, &pieces, 1);
    engine.close().unwrap();
    drop(engine);
    let before = ground.used_bytes();
    let reader = try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap();
    let all = lost(&reader, &pieces);
    assert!(reader.quarantine(&all).is_err(), "it is open for reading");
    reader.rehearse();
    assert_eq!(reader.quarantine(&all).unwrap().len(), pieces.len());
    assert_eq!(reader.quarantine(&all).unwrap().len(), 0);
    assert_eq!(quarantined(&reader), pieces.len());
    assert!(pieces.iter().all(|piece| count(&reader, piece.fingerprint().unwrap()) == Some((0, 1))));
    assert_eq!(dead_bytes(&reader), data.len() as u64);
    let readable: Vec<Readable> = all[1..]
        .iter()
        .map(|chunk| Readable { fingerprint: chunk.fingerprint, address: chunk.address, lost: chunk.address, references: Vec::new() })
        .collect();
    assert_eq!(reader.restore_chunks(&readable).unwrap(), readable.len() as u64);
    assert_eq!(quarantined(&reader), 1);
    let container = reader.containers().unwrap().container_of(all[0].address).unwrap();
    assert!(reader.give_up_container(container).is_ok());
    assert!(reader.dead_slots(container).unwrap().is_given_up());
    reader.close().unwrap();
    drop(reader);
    assert_eq!(ground.used_bytes(), before);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    assert_eq!((quarantined(&engine), dead_bytes(&engine)), (0, 0));
    assert_eq!(read(&engine, &pieces).unwrap(), data);
    engine.rehearse();
    assert_eq!(engine.quarantine(&all[..1]).unwrap().len(), 1, "in a store that is open for writing it is done");
    drop(engine);
    assert_eq!(quarantined(&open(&ground, settings(DEFAULT_CHAIN))), 1);
}

#[test]
fn the_number_of_a_container_that_was_given_up_is_not_given_out_again() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    // All of its slots are dead, and nothing but this says that there ever was one: its file and its records are gone.
    let lost = ContainerId::new(0, 50);
    engine.give_up_container(lost).unwrap();
    refer(&engine, 1, &write(&mut engine.stream(), &bytes(1, 200_000), 16 << 10), 1);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let pieces = write(&mut engine.stream(), &bytes(2, 9_000_000), 16 << 10);
    refer(&engine, 2, &pieces, 1);
    engine.flush().unwrap();
    let numbers: Vec<_> =
        engine.containers().unwrap().containers().unwrap().iter().filter(|id| id.partition() == 0).map(ContainerId::number).collect();
    assert!(numbers.len() > 1 && numbers.iter().all(|number| *number > lost.number()), "{numbers:?}");
}

#[test]
fn figures_found_by_making_the_index_anew_hold_wherever_the_next_opening_is_cut_short() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    write(&mut engine.stream(), &bytes(7, 200_000), 16 << 10);
    engine.flush().unwrap();
    let before = (engine.unique_bytes(), engine.stored_bytes());
    let lost = engine.containers().unwrap().containers().unwrap().iter().next().unwrap();
    drop(engine);
    let (partition, number) = (lost.partition(), lost.number());
    ground.remove(&format!("containers/{partition:04x}/{:05x}/{number:08x}", number >> 12)).unwrap();
    let missing_count = Fingerprint::from_digest(&[5; 32]);
    let mut rebuild = Rebuild::start(Arc::new(ground.clone()), settings(DEFAULT_CHAIN), "test", &mut |_| {}).unwrap();
    rebuild.count(&[(missing_count, 1)]).unwrap();
    rebuild.finish().unwrap();
    let figures = |ground: &SimulatedGround| {
        let engine = open(ground, settings(DEFAULT_CHAIN));
        assert!(engine.quarantined(&missing_count, onefold_engine::Address::from_bits(0)).unwrap().is_some());
        (engine.unique_bytes(), engine.stored_bytes(), engine.statistics().unwrap().chunks)
    };
    let whole = ground.snapshot(CrashPolicy::KeepAll);
    let begun = whole.operations();
    let expected = figures(&whole);
    assert!(expected.0 < before.0 && expected.1 < before.1);
    let operations = whole.operations() - begun;
    assert!(operations > 20);
    for cut in 0..operations {
        for policy in [CrashPolicy::KeepAll, CrashPolicy::DropAll, CrashPolicy::Random { seed: cut }] {
            let crashed = ground.snapshot(CrashPolicy::KeepAll);
            crashed.crash_after_operations(cut);
            let _ = try_open(&crashed, settings(DEFAULT_CHAIN), Mode::ReadWrite);
            assert_eq!(figures(&crashed.restart(policy)), expected, "cut short after {cut} operations, {policy:?}");
        }
    }
}
