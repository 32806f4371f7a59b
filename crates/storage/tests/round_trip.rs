//! Containers against a simple model: a map from address to bytes.

mod common;

use common::*;
use onefold_fingerprint::Algorithm;
use onefold_ground::{Access, Ground, SimulatedGround};
use onefold_storage::*;
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Append { writer: usize, lengths: Vec<usize> },
    Frame { writer: usize, compression: Compression, lengths: Vec<usize> },
    Flush,
    FullFrames,
    Abandon,
    Checkpoint,
    DropWriters,
    Reopen,
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![5 => 0..3000usize, 1 => 3000..40_000usize, 1 => Just(0)];
    prop_oneof![
        10 => (0..3usize, proptest::collection::vec(length, 1..12)).prop_map(|(writer, lengths)| Step::Append { writer, lengths }),
        6 => (2..3usize, proptest::collection::vec(0..3000usize, 1..6))
            .prop_map(|(writer, lengths)| Step::Frame { writer, compression: Compression::Zstd(3), lengths }),
        1 => (0..3usize, compression(), proptest::collection::vec(0..3000usize, 1..6))
            .prop_map(|(writer, compression, lengths)| Step::Frame { writer, compression, lengths }),
        4 => Just(Step::Flush),
        2 => Just(Step::FullFrames),
        1 => Just(Step::Abandon),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::DropWriters),
        2 => Just(Step::Reopen),
        2 => Just(Step::Check),
    ]
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        Just(Compression::Zstd(1)),
        Just(Compression::Zlib(1)),
        Just(Compression::Bzip2(1)),
    ]
}

/// Returns three writers. The last one writes large frames.
fn three_writers(store: &Arc<ContainerStore>) -> Vec<Writer> {
    vec![store.writer(), store.writer(), store.writer().sequential()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn m0_12_chunks_are_read_as_they_were_appended(
        steps in proptest::collection::vec(step(), 1..60),
        compression in compression(),
        frame_bytes in 512..6000u32,
        container_bytes in 4096..60_000u32,
        partitions in 1..4u16,
        algorithm in prop_oneof![Just(Algorithm::Sha1), Just(Algorithm::Blake3)],
        in_flight_bytes in 0..20_000usize,
        cache_bytes in 0..20_000usize,
    ) {
        let options = StorageOptions {
            container_bytes, frame_bytes, compression, fingerprint: algorithm, in_flight_bytes,
            frame_cache_bytes: cache_bytes, catalog_cache_bytes: cache_bytes, ..options()
        };
        let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
        ContainerStore::create(&*ground, DIRECTORY, partitions).unwrap();
        let mut log = Log::default();
        let mut store = open(ground.clone(), &log, partitions, &options, Access::ReadWrite).unwrap();
        let mut writers = three_writers(&store);
        let mut next_name = 0;
        let (mut durable, mut all) = (Chunks::new(), Chunks::new());
        for step in steps {
            match step {
                Step::Append { writer, lengths } => append(&mut writers[writer], &mut next_name, &lengths, &mut all).unwrap(),
                Step::Frame { writer, compression, lengths } => {
                    append_frame(&mut writers[writer], compression, &mut next_name, &lengths, &mut all).unwrap();
                }
                Step::Flush => {
                    for (fingerprint, address, _) in flush(&store, &mut log, Scope::Everything).unwrap() {
                        prop_assert_eq!(fingerprint, all[&address].0);
                        prop_assert!(durable.insert(address, all[&address].clone()).is_none(), "each chunk is new once");
                    }
                    prop_assert_eq!(&durable, &all);
                    prop_assert_eq!(store.unsynced_bytes(), 0);
                }
                Step::FullFrames => {
                    for (_, address, _) in flush(&store, &mut log, Scope::FullFrames).unwrap() {
                        durable.insert(address, all[&address].clone());
                    }
                }
                Step::Abandon => store.abandoned(store.prepare(Scope::Everything).unwrap()),
                Step::Checkpoint => {
                    let mut prepared = store.checkpoint_before(log.end()).unwrap();
                    prop_assert!(prepared.chunks.is_empty(), "a checkpoint says nothing new");
                    let end = log.end();
                    let records = std::mem::take(&mut prepared.records);
                    let (start, after) = log.append(records);
                    store.committed(prepared, start, after);
                    flush(&store, &mut log, Scope::FullFrames).unwrap().into_iter().for_each(|(_, address, _)| {
                        durable.insert(address, all[&address].clone());
                    });
                    prop_assert!(store.oldest_needed().is_none_or(|oldest| oldest >= end));
                    log.trim(store.oldest_needed());
                }
                Step::DropWriters => writers = three_writers(&store),
                Step::Reopen => {
                    drop(std::mem::take(&mut writers));
                    drop(store);
                    store = open(ground.clone(), &log, partitions, &options, Access::ReadWrite).unwrap();
                    writers = three_writers(&store);
                    all = durable.clone();
                }
                Step::Check => check(&store, &all),
            }
        }
        check(&store, &all);
        check_all(&store, &all);
        let reader = open(ground.clone(), &log, partitions, &options, Access::Read).unwrap();
        check(&reader, &durable);
        prop_assert!(matches!(reader.writer().append(&[]), Err(StorageError::ReadOnly)));
    }
}

#[test]
fn m0_12_small_flushes_and_restarts_do_not_make_small_containers() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let options = StorageOptions { compression: Compression::None, container_bytes: 256 << 10, frame_bytes: 16 << 10, ..options() };
    let (mut log, mut chunks, mut next_name) = (Log::default(), Chunks::new(), 0);
    for _ in 0..20 {
        let store = open(ground.clone(), &log, 1, &options, Access::ReadWrite).unwrap();
        for _ in 0..10 {
            append(&mut store.writer(), &mut next_name, &[5400], &mut chunks).unwrap();
            flush(&store, &mut log, Scope::Everything).unwrap();
        }
    }
    let store = open(ground.clone(), &log, 1, &options, Access::ReadWrite).unwrap();
    check(&store, &chunks);
    let containers = store.containers().unwrap();
    // A frame has four chunks, and begins a page.
    assert_eq!(containers.len(), (200usize.div_ceil(4) * (24 << 10)).div_ceil(256 << 10));
    for container in containers.iter().take(containers.len() - 1) {
        let report = store.verify_container(container, false, None).unwrap();
        assert!(report.sealed && report.stored_bytes > 180 << 10 && report.stored_bytes < 256 << 10, "{report:?}");
    }
}

#[test]
fn containers_are_full_although_their_frames_shrink() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let options = StorageOptions { compression: Compression::Zstd(1), in_flight_bytes: 64 << 10, ..options() };
    let mut log = Log::default();
    let store = open(ground.clone(), &log, 1, &options, Access::ReadWrite).unwrap();
    let mut writer = store.writer();
    for name in 0..2000u64 {
        let data = content(3 * name + 2, 1000);
        writer.append(&[NewChunk { fingerprint: fingerprint(name), kind: ChunkKind::Data, data: &data }]).unwrap();
    }
    flush(&store, &mut log, Scope::Everything).unwrap();
    let statistics = store.statistics();
    assert!(statistics.stored_bytes * 10 < statistics.raw_bytes * 7, "{statistics:?}");
    let expected = statistics.stored_bytes / (32 << 10);
    assert!(statistics.sealed_containers <= expected * 3 / 2 + 2, "{statistics:?}");
    for container in store.containers().unwrap().iter() {
        let report = store.verify_container(container, true, None).unwrap();
        assert!(report.damage.is_empty() && report.stored_bytes < 48 << 10, "{report:?}");
    }
}

#[test]
fn writers_flushes_and_readers_work_at_the_same_time() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 2).unwrap();
    let log = parking_lot::Mutex::new(Log::default());
    let store = open(ground.clone(), &log.lock(), 2, &options(), Access::ReadWrite).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    /// Ends the flushing, even if a writer failed.
    struct Over<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let all = std::thread::scope(|scope| {
        let over = Over(&done);
        let flusher = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                flush(&store, &mut log.lock(), Scope::Everything).unwrap();
                flush(&store, &mut log.lock(), Scope::FullFrames).unwrap();
            }
        });
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    let (mut writer, mut chunks, mut next_name) = (store.writer(), Chunks::new(), thread << 32);
                    for round in 0..150 {
                        append(&mut writer, &mut next_name, &[100, 900, 3000, round], &mut chunks).unwrap();
                        if round % 20 == 0 {
                            check(store, &chunks);
                            writer = store.writer();
                        }
                    }
                    chunks
                })
            })
            .collect();
        let mut all = Chunks::new();
        for writer in writers {
            all.extend(writer.join().unwrap());
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| check(&store, &all));
            }
        });
        drop(over);
        flusher.join().unwrap();
        all
    });
    flush(&store, &mut log.lock(), Scope::Everything).unwrap();
    drop(store);
    let store = open(ground, &log.lock(), 2, &options(), Access::ReadWrite).unwrap();
    check(&store, &all);
    check_all(&store, &all);
}

#[test]
fn overlapping_prepares_may_be_logged_in_either_order() {
    for reversed in [false, true] {
        let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
        ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
        let mut log = Log::default();
        let store = open(ground.clone(), &log, 1, &options(), Access::ReadWrite).unwrap();
        let (mut writer, mut chunks, mut next_name) = (store.writer(), Chunks::new(), 0);
        append(&mut writer, &mut next_name, &[100, 200], &mut chunks).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
        let mut prepared = Vec::new();
        for _ in 0..3 {
            append(&mut writer, &mut next_name, &[500, 1500, 700], &mut chunks).unwrap();
            prepared.push(store.prepare(Scope::Everything).unwrap());
            prepared.push(store.checkpoint_before(log.end()).unwrap());
        }
        if reversed {
            prepared.reverse();
        }
        for mut prepared in prepared {
            let (start, end) = log.append(std::mem::take(&mut prepared.records));
            store.committed(prepared, start, end);
        }
        log.trim(store.oldest_needed());
        drop((writer, store));
        let store = open(ground, &log, 1, &options(), Access::ReadWrite).unwrap();
        check(&store, &chunks);
        append(&mut store.writer(), &mut next_name, &[5000, 10], &mut chunks).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
        check(&store, &chunks);
    }
}

#[test]
fn a_log_that_begins_after_its_containers_is_refused() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let mut log = Log::default();
    let store = open(ground.clone(), &log, 1, &options(), Access::ReadWrite).unwrap();
    let (mut writer, mut chunks, mut next_name) = (store.writer(), Chunks::new(), 0);
    for _ in 0..3 {
        append(&mut writer, &mut next_name, &[2500], &mut chunks).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
    }
    log.batches.remove(0);
    drop((writer, store));
    assert!(matches!(open(ground, &log, 1, &options(), Access::ReadWrite), Err(StorageError::Log { .. })));
}

#[test]
fn a_chunk_of_16_mib_is_stored_and_a_longer_one_refused() {
    let ground: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let mut log = Log::default();
    let store = open(ground, &log, 1, &options(), Access::ReadWrite).unwrap();
    let mut writer = store.writer();
    let mut chunks = Chunks::new();
    append(&mut writer, &mut 1, &[MAX_CHUNK_BYTES, 3], &mut chunks).unwrap();
    check(&store, &chunks);
    flush(&store, &mut log, Scope::Everything).unwrap();
    check(&store, &chunks);
    let refused = append(&mut writer, &mut 9, &[MAX_CHUNK_BYTES + 1], &mut chunks);
    assert!(matches!(refused, Err(StorageError::ChunkTooLong { .. })));
}

#[test]
fn the_log_keeps_what_spells_an_open_container_of_an_earlier_process() {
    let ground = Arc::new(SimulatedGround::new(1));
    ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
    let (mut log, mut all) = (Log::default(), Chunks::new());
    let mut next_name = 0;
    for _ in 0..4 {
        let store = open(ground.clone(), &log, 1, &options(), Access::ReadWrite).unwrap();
        log.trim(store.oldest_needed());
        check(&store, &all);
        append(&mut store.writer(), &mut next_name, &[300, 700], &mut all).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
    }
    let store = open(ground, &log, 1, &options(), Access::ReadWrite).unwrap();
    check(&store, &all);
    assert_eq!(store.containers().unwrap().len(), 1);
}
