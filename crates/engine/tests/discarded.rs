//! Stores that keep no data: for experiments that write more data than there is space.

mod common;

use common::{DEFAULT_CHAIN, Meaningless, bytes, descriptor, open, read, refer, settings, store, try_open, unused, write};
use onefold_engine::{
    Descriptor, Engine, EngineError, MetadataKind, Mode, Piece, Rebuild, SalvageOptions, Settings, StoreProfile, salvage,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, LocalGround, ModelledGround, ModelledPart, SimulatedGround};
use onefold_storage::StorageError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const SLICE: usize = 16 << 10;
const RUN: usize = 2_000_000;

fn discarding() -> Descriptor {
    Descriptor { discards_data: true, ..descriptor() }
}

fn without_data() -> Settings {
    Settings { discards_data: true, log_segment_bytes: 1 << 20, ..settings(DEFAULT_CHAIN) }
}

/// Writes a run. Returns its pieces, and how many of its bytes were new.
fn written(engine: &Arc<Engine>, data: &[u8]) -> (Vec<Piece>, u64) {
    let mut stream = engine.stream();
    let pieces = write(&mut stream, data, SLICE);
    (pieces, stream.added_bytes())
}

#[test]
fn duplicates_are_found_whenever_it_is_opened_but_nothing_can_be_read() {
    let ground = store(&discarding());
    let engine = open(&ground, without_data());
    let data = bytes(1, RUN);
    let (pieces, added) = written(&engine, &data);
    assert_eq!(added, RUN as u64);
    // Also within the same opening.
    assert_eq!(written(&engine, &data).1, 0);
    refer(&engine, 1, &pieces, 1);
    let statistics = engine.statistics().unwrap();
    assert_eq!((statistics.unique_bytes, statistics.stored_bytes), (RUN as u64, RUN as u64));
    engine.maintain(true).unwrap();
    engine.close().unwrap();
    drop(engine);

    for mode in [Mode::ReadWrite, Mode::ReadOnly] {
        let engine = try_open(&ground, without_data(), mode).unwrap();
        let error = read(&engine, &pieces).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("this store keeps no data"), "{error}");
    }
    // Killed without warning, and reopened.
    let engine = open(&ground, without_data());
    let (again, added) = written(&engine, &data);
    assert_eq!((again == pieces, added), (true, 0));
    let (more, added) = written(&engine, &bytes(2, RUN));
    assert_eq!(added, RUN as u64);
    refer(&engine, 2, &more, 1);
    drop(engine);
    let engine = open(&ground, without_data());
    assert_eq!(written(&engine, &bytes(2, RUN)).1, 0);
}

/// Zeros are no chunks, and frames with metadata are kept completely.
#[test]
fn metadata_is_kept() {
    let ground = store(&discarding());
    let engine = open(&ground, without_data());
    let (mut metadata, mut zeros) = (Vec::new(), Vec::new());
    for number in 0..40 {
        let mut stream = engine.stream();
        write(&mut stream, &bytes(number, 50_000), SLICE);
        let content = bytes(1000 + number, 500);
        metadata.push((stream.write_metadata(MetadataKind::Directory, &content, &[]).unwrap(), content));
        zeros = write(&mut stream, &[0; 50_000], SLICE);
    }
    engine.flush().unwrap();
    engine.close().unwrap();
    drop(engine);
    let engine = open(&ground, without_data());
    for (piece, content) in metadata {
        assert_eq!(&engine.read_metadata(&piece).unwrap()[..], content);
    }
    assert_eq!(read(&engine, &zeros).unwrap(), [0; 50_000]);
}

#[test]
fn only_who_knows_that_it_keeps_no_data_opens_it_and_nothing_is_changed() {
    let ground = store(&discarding());
    let refused = |error: EngineError| {
        assert!(matches!(&error, EngineError::KeepsNoData { .. }) && !error.is_damage(), "{error}");
    };
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    let before = ground.operations();
    for mode in [Mode::ReadWrite, Mode::ReadOnly] {
        refused(try_open(&ground, settings(DEFAULT_CHAIN), mode).unwrap_err());
    }
    refused(
        salvage(&shared, &settings(DEFAULT_CHAIN), SalvageOptions { dry_run: false, may_lose: true }, &Meaningless, "test").unwrap_err(),
    );
    refused(Rebuild::start(shared.clone(), settings(DEFAULT_CHAIN), "test", &mut |_| ()).unwrap_err());
    let invalid = |settings: Settings, expected: &str| {
        let error = try_open(&ground, settings, Mode::ReadWrite).unwrap_err();
        assert!(matches!(error, EngineError::Invalid { .. }) && error.to_string().contains(expected), "{error}");
    };
    invalid(Settings { parity_group: 4, ..without_data() }, "parity");
    invalid(Settings { chain: ["chunk-index", "byte-compare"].map(String::from).to_vec(), ..without_data() }, "byte-compare");
    assert_eq!(ground.operations(), before);
    let engine = open(&ground, without_data());
    assert!(engine.chain("chunk-index,byte-compare").is_err(), "no volume has it for itself either");

    let error = try_open(&store(&descriptor()), without_data(), Mode::ReadWrite).unwrap_err();
    assert!(matches!(error, EngineError::Invalid { .. }) && error.to_string().contains("keeps its data"), "{error}");
}

#[test]
fn what_nothing_refers_to_is_counted_and_goes_with_its_container() {
    let ground = store(&discarding());
    let engine = open(&ground, without_data());
    let (kept, _) = written(&engine, &bytes(1, 90_000));
    let (lost, _) = written(&engine, &bytes(2, 900_000));
    refer(&engine, 1, &kept, 1);
    refer(&engine, 2, &lost, 1);
    refer(&engine, 2, &lost, -1);
    let removed = engine.remove_unused(&unused(&engine), &|_, _| Ok(Vec::new()), &|| false).unwrap();
    assert_eq!((removed.bytes, engine.statistics().unwrap().dead_bytes), (900_000, 900_000));
    let mut dead = Vec::new();
    engine.for_each_dead(&mut |container, _| dead.push(container)).unwrap();
    let (mut gone, mut refused) = (0, 0);
    // The last container still takes chunks.
    for container in dead.into_iter().filter(|container| engine.containers().unwrap().is_sealed(*container)) {
        match engine.merge_containers(&[container], &|_| 0) {
            Ok(Some(_)) => gone += 1,
            Err(EngineError::Storage(StorageError::Merge { why })) => {
                assert!(why.contains("keeps no data"), "{why}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(gone > 10 && refused == 1, "{gone} containers went, {refused} have chunks that are needed");
    assert_eq!(written(&engine, &bytes(1, 90_000)).1, 0);
    assert_eq!(written(&engine, &bytes(2, 900_000)).1, 900_000);
}

/// Returns the lengths of all files below a directory, and the disk space that they take.
fn sizes(directory: &Path) -> (u64, u64) {
    std::fs::read_dir(directory).unwrap().fold((0, 0), |(length, disk), entry| {
        let found = entry.as_ref().unwrap().metadata().unwrap();
        let (more, taken) = if found.is_dir() { sizes(&entry.unwrap().path()) } else { (found.len(), found.blocks() * 512) };
        (length + more, disk + taken)
    })
}

#[test]
fn containers_take_little_room() {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
    Engine::create(&ground, &Descriptor { container_bytes: 1 << 20, frame_bytes: 64 << 10, ..discarding() }).unwrap();
    let data = bytes(1, 8 << 20);
    for _ in 0..2 {
        let engine = Engine::open(ground.clone(), without_data(), Mode::ReadWrite, "test").unwrap();
        let (pieces, _) = written(&engine, &data);
        refer(&engine, 1, &pieces, 1);
        engine.maintain(true).unwrap();
        let (length, disk) = sizes(&directory.path().join("containers"));
        assert!(length >= 8 << 20 && disk < 1 << 20, "{disk} of {length} bytes are there");
    }
}

#[test]
fn room_of_the_simulated_disk_is_not_reserved_either() {
    let used = |descriptor: &Descriptor, settings: Settings| {
        let ground = store(descriptor);
        let engine = open(&ground, settings);
        let (pieces, _) = written(&engine, &bytes(1, RUN));
        refer(&engine, 1, &pieces, 1);
        ground.used_bytes()
    };
    let kept = used(&descriptor(), Settings { discards_data: false, ..without_data() });
    let discarded = used(&discarding(), without_data());
    // Each container has a page of header and one or two of catalog and footer.
    assert!(discarded + RUN as u64 * 3 / 4 < kept, "{discarded} instead of {kept}");
}

/// Names of chunks that nobody has the bytes of, as long as the tests' chunks are.
fn named(numbers: std::ops::Range<u64>) -> Vec<(Fingerprint, u32)> {
    numbers.map(|number| (Fingerprint::from_digest(&bytes(number, 32)), 1000)).collect()
}

#[test]
fn m3_8_chunks_that_only_have_a_name_are_stored_once_and_found_again() {
    for profile in StoreProfile::ALL.into_iter().filter(|profile| profile.has_containers()) {
        let ground = store(&Descriptor { profile, ..discarding() });
        let engine = open(&ground, without_data());
        let (mut stream, mut pieces) = (engine.stream(), Vec::new());
        stream.write_named(&named(0..3000), &mut pieces).unwrap();
        assert_eq!((stream.added_bytes(), pieces.len()), (3_000_000, 3000), "{profile:?}");
        stream.write_named(&named(1000..2000), &mut pieces).unwrap();
        assert_eq!((stream.added_bytes(), &pieces[3000..]), (3_000_000, &pieces[1000..2000].to_vec()[..]), "{profile:?}: in flight");
        refer(&engine, 1, &pieces[..3000], 1);
        drop(stream);
        engine.close().unwrap();
        drop(engine);
        let engine = open(&ground, without_data());
        let (mut stream, mut again) = (engine.stream(), Vec::new());
        stream.write_named(&named(0..4000), &mut again).unwrap();
        assert_eq!((stream.added_bytes(), again[..3000] == pieces[..3000]), (1_000_000, true), "{profile:?}: opened again");
    }
}

#[test]
fn m3_8_chunks_without_data_are_refused_where_data_is_kept() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let mut pieces = Vec::new();
    let error = engine.stream().write_named(&named(0..1), &mut pieces).unwrap_err();
    assert!(matches!(error, EngineError::Invalid { .. }) && error.to_string().contains("keeps data"), "{error}");
    assert!(pieces.is_empty() && engine.unique_bytes() == 0);
}

/// A device model of the containers is charged the time for discarded data.
#[test]
fn what_is_thrown_away_counts_as_written() {
    let disk: Arc<dyn Ground> = Arc::new(SimulatedGround::new(1));
    Engine::create(&disk, &discarding()).unwrap();
    let part = ModelledPart { name: "containers".into(), prefix: "containers/".into(), model: None };
    let ground = Arc::new(ModelledGround::new(disk, vec![part]));
    let engine = Engine::open(ground.clone(), without_data(), Mode::ReadWrite, "test").unwrap();
    let (pieces, _) = written(&engine, &bytes(1, RUN));
    refer(&engine, 1, &pieces, 1);
    let traffic = ground.traffic()[0].1;
    // The very last frame is still in the log.
    assert!(traffic.written_bytes + (8 << 10) > RUN as u64 && traffic.writes > RUN as u64 / (8 << 10), "{traffic:?}");
    assert_eq!(traffic.read_bytes, 0);
}
