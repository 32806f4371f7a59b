//! Bounds of the log, memory, containers and reads; and which processes may have a store open.

mod common;

use common::*;
use onefold_engine::{Descriptor, EngineError, Hints, Mode, Piece, Settings, Transaction};
use onefold_ground::{CrashPolicy, LockError, SimulatedGround};
use onefold_storage::Compression;

const SLICE: usize = 16 << 10;

/// Settings with small bounds everywhere.
fn tight(background: bool) -> Settings {
    Settings {
        auxiliary_index_bytes: 64 << 10,
        frame_cache_bytes: 32 << 10,
        catalog_cache_bytes: 16 << 10,
        in_flight_bytes: 64 << 10,
        object_index_cache_bytes: 64 << 10,
        object_index_pending_bytes: 16 << 10,
        log_segment_bytes: 64 << 10,
        log_limit_bytes: 256 << 10,
        commit_bytes: 128 << 10,
        commit_interval_ms: 20,
        background,
        ..settings(DEFAULT_CHAIN)
    }
}

#[test]
fn m0_17_a_small_log_slows_writers_down_and_neither_fails_nor_grows() {
    for background in [false, true] {
        let ground = store(&descriptor());
        let engine = open(&ground, tight(background));
        std::thread::scope(|scope| {
            for writer in 0..2u64 {
                let engine = &engine;
                scope.spawn(move || {
                    let mut stream = engine.stream();
                    for round in 0..150u64 {
                        let pieces = write(&mut stream, &bytes(writer << 32 | round, 20_000), SLICE);
                        let references = references(&pieces, 1);
                        let key = [writer, round % 40].map(u64::to_be_bytes).concat();
                        engine.submit(Transaction { changes: vec![(0, key, Some(vec![9; 500]))], references }).unwrap();
                        if round % 3 == 0 {
                            engine.flush().unwrap();
                        }
                        let used = engine.statistics().unwrap().log_bytes;
                        assert!(used <= 512 << 10, "the log has {used} bytes, its limit is 256 KiB");
                    }
                });
            }
        });
        engine.flush().unwrap();
        let statistics = engine.statistics().unwrap();
        assert!(statistics.unique_bytes >= 2 * 150 * 20_000);
        engine.close().unwrap();
        drop(engine);
        // The indexes have what the log gave up.
        let engine = open(&ground.restart(CrashPolicy::DropAll), tight(background));
        for (writer, round) in [(0u64, 0u64), (1, 149), (0, 77)] {
            let mut stream = engine.stream();
            write(&mut stream, &bytes(writer << 32 | round, 20_000), SLICE);
            assert_eq!(stream.added_bytes(), 0, "round {round} of writer {writer} is gone");
        }
        assert_eq!(engine.range(0, &0u64.to_be_bytes(), &2u64.to_be_bytes(), 1000).unwrap().len(), 80);
    }
}

#[test]
fn m0_17_a_log_left_long_under_a_greater_limit_takes_writes_under_a_smaller_one() {
    for streams in [1, 12] {
        let ground = store(&descriptor());
        let engine = open(&ground, Settings { background: false, ..settings(DEFAULT_CHAIN) });
        let mut writers: Vec<_> = (0..streams).map(|_| engine.stream()).collect();
        for round in 0..500u64 {
            for (number, stream) in writers.iter_mut().enumerate() {
                write(stream, &bytes((number as u64) << 32 | round, 20_000), SLICE);
            }
            engine.flush().unwrap();
        }
        assert!(engine.statistics().unwrap().log_bytes > 1 << 20, "{}", engine.statistics().unwrap().log_bytes);
        drop(writers);
        drop(engine);
        // As after a crash, with a limit that a person has set since.
        let engine = open(&ground.restart(CrashPolicy::KeepAll), tight(false));
        let mut stream = engine.stream();
        for round in 1000..1050u64 {
            write(&mut stream, &bytes(round, 20_000), SLICE);
            engine.flush().unwrap();
        }
        let used = engine.statistics().unwrap().log_bytes;
        assert!(used <= 768 << 10, "the log has {used} bytes, its limit is 256 KiB");
    }
}

#[test]
fn references_to_known_data_wait_within_the_bound_of_objects() {
    // Nothing is stored, so no unsynced data makes anybody commit.
    let ground = store(&descriptor());
    let engine = open(&ground, tight(false));
    let mut stream = engine.stream();
    let pieces = write(&mut stream, &bytes(1, 20_000), SLICE);
    engine.flush().unwrap();
    for number in 0..200u64 {
        let changes = vec![(0, number.to_be_bytes().to_vec(), Some(vec![9; 500]))];
        engine.submit(Transaction { changes, references: references(&pieces, 1) }).unwrap();
    }
    drop(stream);
    drop(engine);
    let engine = open(&ground.restart(CrashPolicy::DropAll), tight(false));
    let durable = engine.range(0, &0u64.to_be_bytes(), &200u64.to_be_bytes(), 1000).unwrap().len();
    assert!(durable >= 200 - (16 << 10) / 500 - 2, "only {durable} of 200 objects went to the log while they were submitted");
}

#[test]
fn m0_12_small_flushes_do_not_make_small_containers_or_frames() {
    // What a commit adds begins at a page, so frames of a page or two would cost as much again.
    let ground = store(&Descriptor { compression: Compression::None, container_bytes: 1 << 20, frame_bytes: 64 << 10, ..descriptor() });
    let mut pieces = Vec::new();
    for run in 0..4u64 {
        // Each run is another process. It continues the container of the run before.
        let engine = open(&ground, settings(DEFAULT_CHAIN));
        let mut stream = engine.stream();
        for flush in 0..50 {
            pieces.extend(write(&mut stream, &bytes(run * 50 + flush, 30_000), SLICE));
            engine.flush().unwrap();
        }
        engine.close().unwrap();
    }
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let statistics = engine.statistics().unwrap();
    let full = (200 * 30_000u64).div_ceil(1 << 20);
    assert!(statistics.containers <= full + 2, "{} containers for {full} full ones", statistics.containers);
    let read: Vec<u8> = read(&engine, &pieces).unwrap();
    let expected: Vec<u8> = (0..200).flat_map(|seed| bytes(seed, 30_000)).collect();
    assert!(read == expected);
}

#[test]
fn memory_stays_within_its_bounds() {
    let ground = store(&descriptor());
    let engine = open(&ground, tight(false));
    let mut stream = engine.stream();
    let mut all = Vec::new();
    for round in 0..60u64 {
        all.push(write(&mut stream, &bytes(round, 50_000), SLICE));
        engine.flush().unwrap();
        let containers = engine.containers().unwrap().statistics();
        assert!(containers.in_flight_bytes <= (64 << 10) + (8 << 10), "{} bytes in flight", containers.in_flight_bytes);
        let index = engine.index().unwrap().statistics();
        assert!(index.auxiliary_bytes <= 2 * (64 << 10) + (16 << 10), "{} bytes of auxiliary index", index.auxiliary_bytes);
    }
    engine.maintain(true).unwrap();
    for (round, pieces) in all.iter().enumerate() {
        assert!(read(&engine, pieces).unwrap() == bytes(round as u64, 50_000));
        let containers = engine.containers().unwrap().statistics();
        assert!(containers.frame_cache_bytes <= 32 << 10, "{} bytes of frames", containers.frame_cache_bytes);
        assert!(containers.catalog_cache_bytes <= 16 << 10, "{} bytes of catalogs", containers.catalog_cache_bytes);
    }
    // The filter of the chunk index: 1.3 bytes an entry, in whole small blocks.
    let statistics = engine.statistics().unwrap();
    let index = engine.index().unwrap().statistics();
    assert!(index.filter_bytes < 4 * statistics.chunks + (16 << 10), "{} bytes for {} chunks", index.filter_bytes, statistics.chunks);
}

#[test]
fn a_read_past_the_end_is_an_error_that_says_where_the_end_is() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let data = [bytes(1, 5000), vec![0; 9000]].concat();
    let pieces = write(&mut engine.stream(), &data, data.len());
    let length = data.len() as u64;
    for (start, count) in [(length, 1), (length - 1, 2), (0, data.len() + 1), (length + 500, 3), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        let error = engine.read(&pieces, start, &mut vec![0; count], false).unwrap_err();
        assert!(matches!(error, EngineError::PastEnd { length: found, .. } if found == length), "{start}, {count}: {error}");
    }
    engine.read(&pieces, length, &mut [], false).unwrap();
    engine.read(&[], 0, &mut [], false).unwrap();
    for (start, count) in [(0, 1), (length - 1, 1), (4000, 3000), (4999, 2), (0, data.len())] {
        let mut out = vec![9; count];
        engine.read(&pieces, start, &mut out, true).unwrap();
        assert!(out == data[start as usize..start as usize + count]);
    }
}

#[test]
fn pieces_that_spell_more_than_there_can_be_are_refused_without_panic() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    let pieces = [Piece::Zeros { length: u64::MAX }, Piece::Zeros { length: u64::MAX }];
    let mut out = [1; 10];
    engine.read(&pieces, 5, &mut out, true).unwrap();
    assert_eq!(out, [0; 10]);
    // A chunk that claims more bytes than it has.
    let data = bytes(2, 1000);
    let mut pieces = write(&mut engine.stream(), &data, data.len());
    let Some(Piece::Chunk { length, .. }) = pieces.last_mut() else { panic!("a chunk") };
    *length = u32::MAX;
    let mut out = vec![0; 5000];
    assert!(engine.read(&pieces, 0, &mut out, true).unwrap_err().is_damage());
}

#[test]
fn readers_share_a_store_and_a_writer_has_it_alone() {
    let ground = store(&descriptor());
    let data = bytes(3, 100_000);
    let writer = open(&ground, settings(DEFAULT_CHAIN));
    let pieces = write(&mut writer.stream(), &data, SLICE);
    writer.flush().unwrap();
    for mode in [Mode::ReadOnly, Mode::ReadWrite] {
        let error = try_open(&ground, settings(DEFAULT_CHAIN), mode).unwrap_err();
        assert!(names_the_holder(&error), "{error}");
    }
    // Dropped without a close, as after a crash: the log has what was flushed.
    drop(writer);
    let readers: Vec<_> = (0..3).map(|_| try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap()).collect();
    let before = ground.operations();
    std::thread::scope(|scope| {
        for reader in &readers {
            scope.spawn(|| assert!(read(reader, &pieces).unwrap() == data));
        }
    });
    assert_eq!(ground.operations(), before, "readers changed something");
    assert!(names_the_holder(&try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadWrite).unwrap_err()));
    drop(readers);
    open(&ground, settings(DEFAULT_CHAIN));
}

/// Returns whether the error names the holder of the store, as its opener named itself, and its process.
fn names_the_holder(error: &EngineError) -> bool {
    let text = error.to_string();
    matches!(error, EngineError::Lock(LockError::Held { .. })) && text.contains("`test`") && text.contains(&std::process::id().to_string())
}

#[test]
fn a_full_disk_is_said_and_the_store_goes_on_when_there_is_room() {
    let ground: SimulatedGround = store(&descriptor());
    let engine = open(&ground, tight(false));
    let kept = bytes(4, 100_000);
    let pieces = write(&mut engine.stream(), &kept, SLICE);
    engine.flush().unwrap();
    ground.set_capacity(ground.used_bytes() + (64 << 10));
    let mut stream = engine.stream();
    let failed = (0..100u64).find_map(|round| {
        let written = stream.write(&bytes(100 + round, 20_000), true, Hints::default(), &mut Vec::new());
        written.map(drop).and_then(|()| engine.flush()).err()
    });
    let error = failed.expect("2 MB do not fit into 64 KiB");
    assert!(error.is_full(), "{error}");
    assert!(read(&engine, &pieces).unwrap() == kept);
    ground.set_capacity(u64::MAX >> 1);
    engine.flush().unwrap();
    let more = bytes(5, 100_000);
    let more_pieces = write(&mut engine.stream(), &more, SLICE);
    engine.flush().unwrap();
    drop((stream, engine));
    let engine = open(&ground.restart(CrashPolicy::DropAll), tight(false));
    assert!(read(&engine, &pieces).unwrap() == kept && read(&engine, &more_pieces).unwrap() == more);
}

#[test]
fn a_transaction_that_was_answered_with_an_error_was_not_taken() {
    const FIRST: usize = 15 << 10;
    let ground: SimulatedGround = store(&descriptor());
    let engine = open(&ground, tight(false));
    let change = |key: &[u8], bytes: usize| Transaction { changes: vec![(0, key.to_vec(), Some(vec![1; bytes]))], references: vec![] };
    // Nearly as much as may wait: the next transaction goes beyond it.
    engine.submit(change(b"zfirst", FIRST)).unwrap();
    ground.fail_operation(0, std::io::ErrorKind::Other);
    engine.submit(change(b"zmore", 2 << 10)).unwrap();
    engine.submit(change(b"zsecond", 10)).unwrap_err();
    assert_eq!((engine.get(0, b"zfirst").unwrap().map(|value| value.len()), engine.get(0, b"zsecond").unwrap()), (Some(FIRST), None));
    engine.flush().unwrap();
    drop(engine);
    let engine = open(&ground.restart(CrashPolicy::DropAll), tight(false));
    assert_eq!((engine.get(0, b"zfirst").unwrap().map(|value| value.len()), engine.get(0, b"zsecond").unwrap()), (Some(FIRST), None));
}

#[test]
fn m0_18_opening_after_a_crash_replays_the_log_not_the_store() {
    // Few containers: an opening checks the newest 512 for leftovers of a crash.
    let ground = store(&Descriptor { container_bytes: 1 << 20, ..descriptor() });
    // Space for everything that the log can hold: a sweep during a replay would read pages.
    let roomy = || Settings { auxiliary_index_bytes: 8 << 20, ..tight(false) };
    let engine = open(&ground, roomy());
    let mut stream = engine.stream();
    let reads_to_open = |ground: &SimulatedGround| {
        let crashed = ground.snapshot(CrashPolicy::DropAll);
        drop(open(&crashed, roomy()));
        crashed.reads()
    };
    // The most that an opening reads while the store has up to 3 MB, and while it has up to 12 MB: more than one cycle
    // of the log each.
    let mut most = [0, 0];
    for round in 0..600u64 {
        write(&mut stream, &bytes(round, 20_000), SLICE);
        engine.flush().unwrap();
        engine.maintain(false).unwrap();
        if round % 10 == 9 && !(150..450).contains(&round) {
            let most = &mut most[usize::from(round >= 450)];
            *most = reads_to_open(&ground).max(*most);
        }
    }
    assert!(most[1] <= 2 * most[0], "opening a store four times as large took {} reads in place of {}", most[1], most[0]);
}
