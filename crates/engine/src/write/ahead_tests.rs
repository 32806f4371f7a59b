//! Streams that look ahead: how many reads of the chunk index are in flight for one stream, and what it stores.

use crate::{Descriptor, Engine, Hints, Mode, Piece, Settings};
use onefold_chunking::{Kind, Sizes};
use onefold_ground::{Access, DelegatingFile, DelegatingGround, File, Ground, Result, SimulatedGround};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Reads of pages that are in flight.
#[derive(Debug, Default)]
struct Reads {
    all: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    /// A read has waited for others in vain: none waits any more.
    has_given_up: AtomicBool,
}

#[derive(Debug)]
struct Device {
    ground: SimulatedGround,
    reads: Arc<Reads>,
}

#[derive(Debug)]
struct DeviceFile {
    file: Arc<dyn File>,
    reads: Arc<Reads>,
}

impl DelegatingGround for Device {
    fn below(&self) -> &dyn Ground {
        &self.ground
    }

    fn open(&self, path: &str, access: Access) -> Result<Arc<dyn File>> {
        let file = Ground::open(&self.ground, path, access)?;
        if !path.contains("/pages-") {
            return Ok(file);
        }
        Ok(Arc::new(DeviceFile { file, reads: self.reads.clone() }))
    }
}

impl DelegatingFile for DeviceFile {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        // The stream cannot know before the first step that it will wait.
        let is_first = self.reads.all.fetch_add(1, Ordering::Relaxed) < STEP_CHUNKS;
        self.reads.most.fetch_max(self.reads.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(10);
        while !is_first && self.reads.most.load(Ordering::Relaxed) <= STEP_CHUNKS && !self.reads.has_given_up.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            self.reads.has_given_up.store(Instant::now() > until, Ordering::Relaxed);
        }
        let read = self.file.read_at(offset, buffer);
        self.reads.now.fetch_sub(1, Ordering::Relaxed);
        read
    }

    fn try_read_at(&self, _: u64, _: &mut [u8]) -> Result<bool> {
        Ok(false)
    }
}

/// Bytes of a chunk, and of all data.
const CHUNK_BYTES: usize = 16 << 10;
const DATA_BYTES: usize = 16 << 20;
/// Chunks that are cut, named and stored at a time.
const STEP_CHUNKS: usize = super::stream::STEP_BYTES / CHUNK_BYTES;

#[test]
fn m0_13_the_pages_of_several_steps_are_read_at_once_for_one_stream() {
    let ground = SimulatedGround::new(1);
    let reads = Arc::<Reads>::default();
    let sizes = Sizes { min: CHUNK_BYTES, target: CHUNK_BYTES, max: CHUNK_BYTES };
    let descriptor = Descriptor { chunker: Kind::Fixed, chunk_sizes: sizes, index_partitions: 64, ..Descriptor::new().unwrap() };
    let disk: Arc<dyn Ground> = Arc::new(ground.clone());
    Engine::create(&disk, &descriptor).unwrap();
    let open = || {
        let disk: Arc<dyn Ground> = Arc::new(Device { ground: ground.clone(), reads: reads.clone() });
        let settings = Settings {
            workers: 1,
            background: false,
            chain: vec!["chunk-index".into()],
            chunk_index_reads: 4 * STEP_CHUNKS,
            chunk_index_cache_bytes: 0,
            ..Settings::default()
        };
        Engine::open(disk, settings, Mode::ReadWrite, "test").unwrap()
    };
    let noise = |at: u32| onefold_ground::checksum(&at.to_le_bytes()).to_le_bytes();
    let data: Vec<u8> = (0..DATA_BYTES as u32 / 4).flat_map(noise).collect();
    let whole = |engine: &Arc<Engine>| {
        let mut pieces = Vec::new();
        assert_eq!(engine.stream().write(&data, true, Hints::default(), &mut pieces).unwrap(), data.len());
        pieces
    };
    let runs = |engine: &Arc<Engine>| {
        let runs: Vec<_> = data.chunks(16 * CHUNK_BYTES).chain([&[][..], &data[..10]]).collect();
        let pieces = engine.stream().write_runs(&runs, Hints::default()).unwrap();
        for (run, pieces) in runs.iter().zip(&pieces) {
            assert_eq!(pieces.iter().map(Piece::length).sum::<u64>(), run.len() as u64);
        }
        pieces.concat()
    };

    let engine = open();
    let first = whole(&engine);
    engine.flush().unwrap();
    engine.index().unwrap().catch_up(&|| true).unwrap();
    engine.close().unwrap();
    drop(engine);
    for again in [&whole as &dyn Fn(&Arc<Engine>) -> Vec<Piece>, &runs] {
        let engine = open();
        reads.most.store(0, Ordering::Relaxed);
        reads.all.store(0, Ordering::Relaxed);
        let pieces = again(&engine);
        assert!(first.iter().zip(&pieces).all(|(one, other)| one == other), "they are the chunks that are stored");
        let most = reads.most.load(Ordering::Relaxed);
        assert!(most > STEP_CHUNKS, "{most} reads in flight");
        assert!(engine.index().unwrap().statistics().page_reads <= first.len() as u64, "no chunk costs two reads");
        engine.close().unwrap();
    }
}
