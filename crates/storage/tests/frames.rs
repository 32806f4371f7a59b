//! Frames that came compressed: which of them are stored as they came, and what becomes of the others.

mod common;

use common::*;
use onefold_ground::{Access, Ground, SimulatedGround, read_file};
use onefold_storage::*;
use std::io::ErrorKind;
use std::sync::Arc;

const ZSTD: Compression = Compression::Zstd(1);
/// Chunks of a frame as the store would make it.
const WHOLE: [usize; 4] = [2000, 0, 3000, 1000];

struct Scene {
    ground: Arc<SimulatedGround>,
    store: Arc<ContainerStore>,
    log: Log,
    chunks: Chunks,
    next_name: u64,
}

impl Scene {
    fn new(options: &StorageOptions) -> Scene {
        let ground = Arc::new(SimulatedGround::new(1));
        ContainerStore::create(&*ground, DIRECTORY, 1).unwrap();
        let store = open(ground.clone(), &Log::default(), 1, options, Access::ReadWrite).unwrap();
        Scene { ground, store, log: Log::default(), chunks: Chunks::new(), next_name: 0 }
    }

    fn writer(&self) -> Writer {
        self.store.writer().sequential()
    }

    fn append(&mut self, writer: &mut Writer, lengths: &[usize]) {
        append(writer, &mut self.next_name, lengths, &mut self.chunks).unwrap();
    }

    fn frame(&mut self, writer: &mut Writer, compression: Compression, lengths: &[usize]) -> Vec<u8> {
        append_frame(writer, compression, &mut self.next_name, lengths, &mut self.chunks).unwrap()
    }

    /// Flushes. Returns the stored bytes of all frames, as the log describes them and the files have them.
    fn frames(&mut self) -> Vec<(Frame, Vec<u8>)> {
        flush(&self.store, &mut self.log, Scope::Everything).unwrap();
        check(&self.store, &self.chunks);
        check_all(&self.store, &self.chunks);
        let records = self.log.batches.iter().flat_map(|(_, records)| records);
        let committed = records.filter_map(|record| match ContainerRecord::decode(record, 32).unwrap() {
            ContainerRecord::FrameCommitted { container, frame, .. } => Some((container, frame)),
            _ => None,
        });
        let stored = |(container, frame): (ContainerId, Frame)| {
            let path = format!("{DIRECTORY}/{:04x}/{:05x}/{:08x}", container.partition(), container.number() >> 12, container.number());
            let file = read_file(&*self.ground, &path, u64::MAX).unwrap();
            let bytes = file[frame.offset_bytes as usize..frame.end_bytes() as usize].to_vec();
            (frame, bytes)
        };
        committed.map(stored).collect()
    }
}

#[test]
fn m3_1_a_frame_that_came_compressed_is_on_disk_byte_for_byte() {
    for sequential_compression in [ZSTD, Compression::Zstd(9), Compression::Lz4, Compression::Zlib(1), Compression::Bzip2(1)] {
        let mut scene = Scene::new(&StorageOptions { sequential_compression, ..options() });
        let mut writer = scene.writer();
        // Another level of the same codec.
        let compression = if sequential_compression.codec() == Codec::Zstd { Compression::Zstd(5) } else { sequential_compression };
        let came: Vec<_> = (0..20).map(|_| scene.frame(&mut writer, compression, &WHOLE)).collect();
        check(&scene.store, &scene.chunks);
        let found = scene.frames();
        assert!(found.iter().all(|(frame, _)| frame.codec == compression.codec() && frame.raw_bytes == 6000));
        assert!(found.into_iter().map(|(_, stored)| stored).eq(came), "{compression}");
        drop(writer);
        let again = open(scene.ground.clone(), &scene.log, 1, &options(), Access::ReadWrite).unwrap();
        check(&again, &scene.chunks);
    }
}

#[test]
fn m3_1_containers_of_frames_that_came_compressed_stay_within_their_size() {
    let mut scene = Scene::new(&options());
    let mut writer = scene.writer();
    for round in 0..200 {
        // Of some, a quarter is left, of others nearly everything.
        if round % 7 == 0 {
            scene.append(&mut writer, &[4000, 100 * round, 3000]);
        }
        scene.frame(&mut writer, ZSTD, &WHOLE);
    }
    scene.frames();
    let sealed = scene.store.statistics().sealed_containers;
    // What raw chunks on the way will take is estimated, from a quarter on. So a container can be too long by what is
    // on the way and one frame.
    let most = u64::from(options().container_bytes) + options().in_flight_bytes as u64 + 9000;
    for container in scene.store.containers().unwrap().iter() {
        let file = scene.ground.open(&merges::path(container), Access::Read).unwrap();
        assert!(file.len().unwrap() <= most, "{} bytes, and {most} are allowed", file.len().unwrap());
    }
    let stored = scene.store.statistics().stored_bytes;
    assert!(sealed <= stored / (32 << 10) * 3 / 2 + 2, "{sealed} containers for {stored} bytes");
}

#[test]
fn m3_1_frames_that_the_store_would_not_make_are_stored_chunk_by_chunk() {
    let quarter = [768, 768];
    let cases: [(&str, Compression, &[usize], bool); 6] = [
        ("a quarter", ZSTD, &quarter, true),
        ("less than a quarter", ZSTD, &[768, 767], false),
        ("one and a half", ZSTD, &[6144, 3072], true),
        ("more than that", ZSTD, &[6144, 3073], false),
        ("another codec", Compression::Lz4, &WHOLE, false),
        ("not compressed", Compression::None, &WHOLE, false),
    ];
    for (what, compression, lengths, as_it_came) in cases {
        let mut scene = Scene::new(&options());
        let mut writer = scene.writer();
        let came = scene.frame(&mut writer, compression, lengths);
        scene.append(&mut writer, &[6000]);
        assert_eq!(scene.frames()[0].1 == came, as_it_came, "{what}");
    }
    let mut scene = Scene::new(&options());
    let mut random = scene.store.writer();
    let came = scene.frame(&mut random, ZSTD, &WHOLE);
    assert!(scene.frames().iter().all(|(frame, stored)| frame.raw_bytes < 6000 && *stored != came));
}

#[test]
fn m3_1_a_frame_that_no_container_has_room_for_is_stored_chunk_by_chunk() {
    let mut scene = Scene::new(&StorageOptions { container_bytes: 4 << 10, sequential_frame_bytes: 64 << 10, ..options() });
    let mut writer = scene.writer();
    for _ in 0..3 {
        scene.frame(&mut writer, ZSTD, &[2000; 32]);
    }
    assert!(scene.frames().iter().all(|(frame, _)| frame.raw_bytes < 64000));
}

#[test]
fn m3_1_a_frame_of_other_bytes_than_its_chunks_is_not_stored() {
    let scene = Scene::new(&options());
    let (raw, other) = (content(2, 6000), content(5, 6000));
    let stored = Compressor::new(ZSTD).compress(&raw).1.to_vec();
    let frame = CompressedFrame::decompress(Codec::Zstd, &stored, raw.len()).unwrap();
    let [swapped, shorter] = [[&raw[3000..], &raw[..3000]].concat(), raw[..5999].to_vec()];
    let mut chunks = Chunks::new();
    let mut writer = scene.writer();
    for (name, data) in [&other, &swapped, &shorter, &[&raw[..], &[1]].concat(), &raw].into_iter().enumerate() {
        let new = NewChunk { fingerprint: fingerprint(name as u64), kind: ChunkKind::Data, data };
        let address = writer.append_frame(&[new], &frame).unwrap()[0];
        chunks.insert(address, (new.fingerprint, data.clone()));
    }
    scene.store.abandoned(scene.store.prepare(Scope::Everything).unwrap());
    check(&scene.store, &chunks);
    check_all(&scene.store, &chunks);
}

#[test]
fn m3_1_an_open_frame_that_is_too_small_for_a_frame_is_joined_with_the_next_one() {
    let mut scene = Scene::new(&options());
    let mut writer = scene.writer();
    let mut came = Vec::new();
    for open in [1400, 1600] {
        scene.append(&mut writer, &[open]);
        came.extend((0..3).map(|_| scene.frame(&mut writer, ZSTD, &WHOLE)));
    }
    let frames = scene.frames();
    let raw: Vec<_> = frames.iter().map(|(frame, _)| frame.raw_bytes).collect();
    assert_eq!(raw, [7400, 6000, 6000, 1600, 6000, 6000, 6000]);
    let as_they_came = came.iter().filter(|came| frames.iter().any(|(_, stored)| stored == *came)).count();
    assert_eq!(as_they_came, came.len() - 1);
}

#[test]
fn m3_1_a_frame_that_came_compressed_is_in_flight_and_readable_until_it_is_written() {
    let mut scene = Scene::new(&StorageOptions { workers: 1, ..options() });
    let mut writer = scene.writer();
    // The container has its file.
    scene.frame(&mut writer, ZSTD, &WHOLE);
    scene.frames();
    scene.ground.fail_operation_in(DIRECTORY, 0, ErrorKind::StorageFull);
    let came = scene.frame(&mut writer, ZSTD, &WHOLE);
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        check(&scene.store, &scene.chunks);
        assert_eq!(scene.store.statistics().in_flight_bytes, 6000 + came.len() as u64, "until it is written again");
    }
    assert_eq!(scene.frames().pop().unwrap().1, came);
    let statistics = scene.store.statistics();
    assert_eq!((statistics.in_flight_bytes, statistics.unsynced_bytes, statistics.raw_bytes), (0, 0, 12000));
}

#[test]
fn m3_1_a_frame_that_came_compressed_begins_a_page_after_a_commit() {
    let mut scene = Scene::new(&options());
    let mut writer = scene.writer();
    for _ in 0..3 {
        scene.frame(&mut writer, ZSTD, &WHOLE);
        scene.frames();
    }
    let frames = scene.frames();
    assert!(frames.windows(2).all(|pair| pair[0].0.end_bytes().div_ceil(4096) * 4096 == u64::from(pair[1].0.offset_bytes)));
}
