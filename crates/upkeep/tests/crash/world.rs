//! The stores that the harness runs: small, of many shapes, and what is written to them.

use onefold_catalog::Catalog;
use onefold_chunking::{Kind, Sizes};
use onefold_engine::{Descriptor, Engine, EngineError, Mode, Settings, WriteStream};
use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
use onefold_storage::Compression;
use onefold_volume::{Volumes, VolumesOptions};
use std::sync::Arc;

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    /// Bytes that nobody else has and that do not compress.
    pub fn fresh(&mut self, length: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()).flatten().take(length).collect()
    }

    /// Bytes with duplicates in them: runs from a small pool, fresh ones, zeros.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let run = (512 + self.below(16 << 10) as usize).min(length - data.len());
            let source = match self.below(5) {
                0 => 0,
                1 | 2 => self.next(),
                _ => 1 + self.below(6),
            };
            if source == 0 {
                data.resize(data.len() + run, 0);
            } else {
                let mut bytes = Random(source.wrapping_mul(77));
                let end = data.len() + run;
                while data.len() < end {
                    data.extend_from_slice(&bytes.next().to_le_bytes());
                }
                data.truncate(end);
            }
        }
        data
    }
}

/// What a store is made like.
pub fn descriptor(seed: u64) -> Descriptor {
    Descriptor {
        chunker: [Kind::FastCdc, Kind::Fixed, Kind::FastCdc][seed as usize % 3],
        chunk_sizes: [Sizes { min: 256, target: 1024, max: 4096 }, Sizes { min: 1024, target: 4096, max: 16384 }][seed as usize % 2],
        container_bytes: [64 << 10, 160 << 10][(seed / 2) as usize % 2],
        frame_bytes: [4 << 10, 16 << 10][(seed / 3) as usize % 2],
        compression: [Compression::Lz4, Compression::None, Compression::Zstd(1)][(seed / 5) as usize % 3],
        sequential_frame_bytes: [32 << 10, 8 << 10][(seed / 7) as usize % 2],
        sequential_compression: [Compression::Zstd(2), Compression::None][(seed / 2) as usize % 2],
        index_partitions: [1, 2, 4][(seed / 2) as usize % 3],
        object_partitions: 1 + (seed % 3) as u16,
        container_partitions: 1 + (seed / 3 % 2) as u16,
        ..Descriptor::new().unwrap()
    }
}

/// How it is opened: bounds so small that everything happens within a run.
pub fn settings(seed: u64) -> Settings {
    let chain = match seed % 4 {
        0 | 1 => "zero-chunk,block-index,container-cache,chunk-index",
        2 => "bloom,zero-chunk,chunk-index,byte-compare",
        _ => "chunk-index",
    };
    Settings {
        auxiliary_index_bytes: [8 << 10, 32 << 10][(seed / 3) as usize % 2],
        frame_cache_bytes: 32 << 10,
        catalog_cache_bytes: 4 << 10,
        in_flight_bytes: 32 << 10,
        object_index_cache_bytes: 64 << 10,
        object_index_pending_bytes: [4 << 10, 16 << 10][(seed / 5) as usize % 2],
        container_cache_entries: 64,
        bloom_bytes: 1 << 10,
        chain: chain.split(',').map(String::from).collect(),
        log_segment_bytes: 64 << 10,
        log_limit_bytes: 256 << 10,
        // Some stores commit full frames in the middle of everything.
        commit_bytes: [4 << 10, 1 << 20][(seed / 2) as usize % 2],
        commit_interval_ms: 2,
        workers: 1,
        // Half of the stores have parity.
        parity_group: [0, 3][(seed / 2) as usize % 2],
        background: false,
        ..Settings::default()
    }
}

pub fn volumes_options(seed: u64) -> VolumesOptions {
    VolumesOptions {
        dirty_bytes: [80 << 10, 1 << 20][(seed / 2) as usize % 2],
        mapping_cache_bytes: [2 << 10, 1 << 20][(seed / 3) as usize % 2],
        streams: 1 + (seed % 2) as usize,
        verify: true,
    }
}

pub fn policy(seed: u64) -> CrashPolicy {
    match seed % 5 {
        0 => CrashPolicy::DropAll,
        1 => CrashPolicy::KeepAll,
        _ => CrashPolicy::Random { seed },
    }
}

/// A store, open, with everything that stands on it.
pub struct World {
    pub engine: Arc<Engine>,
    pub volumes: Arc<Volumes>,
    pub catalog: Catalog,
    /// Of the backups; two, so that duplicates meet in flight.
    pub streams: [WriteStream; 2],
    pub ground: SimulatedGround,
    /// What the last step does, for [`crate::windows`].
    pub doing: &'static str,
}

pub type Fault = Box<dyn std::error::Error + Send + Sync>;

impl World {
    pub fn create(seed: u64) -> SimulatedGround {
        let ground = SimulatedGround::new(seed);
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        Engine::create(&shared, &descriptor(seed)).unwrap();
        ground
    }

    pub fn open(ground: &SimulatedGround, seed: u64) -> Result<World, Fault> {
        World::open_with(ground, seed, settings(seed), Mode::ReadWrite)
    }

    pub fn open_with(ground: &SimulatedGround, seed: u64, settings: Settings, mode: Mode) -> Result<World, Fault> {
        let engine = Engine::open(Arc::new(ground.clone()), settings, mode, "test")?;
        let volumes = Arc::new(Volumes::open(engine.clone(), volumes_options(seed))?);
        World::on(engine, volumes, ground)
    }

    /// What stands on an engine of this disk.
    pub fn on(engine: Arc<Engine>, volumes: Arc<Volumes>, ground: &SimulatedGround) -> Result<World, Fault> {
        // A crash in an operation whose failure does no harm lets the opening succeed, but nothing can be read any more.
        if ground.is_crashed() {
            return Err(EngineError::ReadOnly.into());
        }
        let streams = resting_streams(&engine);
        Ok(World { catalog: Catalog::new(engine.clone()), streams, volumes, engine, ground: ground.clone(), doing: "open" })
    }

    /// Whether nothing more is written: after a crash, or after a sync that failed. Then what is not durable may be gone from memory, too.
    pub fn has_stopped(&self) -> bool {
        self.ground.is_crashed() || self.engine.flush().is_err()
    }

    /// The same store for another thread, with streams of its own.
    pub fn another(&self) -> World {
        World {
            engine: self.engine.clone(),
            volumes: self.volumes.clone(),
            catalog: self.catalog.clone(),
            streams: resting_streams(&self.engine),
            ground: self.ground.clone(),
            doing: "open",
        }
    }
}

/// Streams that are in nobody's way before they are used.
fn resting_streams(engine: &Arc<Engine>) -> [WriteStream; 2] {
    let mut streams = [engine.stream(), engine.stream()];
    streams.iter_mut().for_each(WriteStream::rest);
    streams
}
