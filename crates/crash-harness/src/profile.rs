//! What is tried: the compositions of lookup, chunk store and liveness.

use crate::contract::watched;
use crate::sight::Sight;
use crate::steps::STEPS;
use crate::world::Profile;
use onefold_chunking::{Kind, Sizes};
use onefold_engine::{CachePolicy, Descriptor, Dia, Settings, StoreProfile, Tag};
use onefold_storage::Compression;
use onefold_volume::VolumesOptions;

/// Profile `exact` in many shapes, with bounds so small that everything happens within a run: the chunk index grows,
/// the log is trimmed, containers are merged, half of the stores have parity.
pub const EXACT: Profile = Profile {
    name: "exact",
    descriptor: small_descriptor,
    settings: small_settings,
    volumes: small_volumes,
    liveness: watched,
    steps: STEPS,
    meets: Sight::ALL,
};

/// Profile `exact` as `init` makes stores and `serve` opens them, with the reserve, but with one worker. No container
/// is ever full, and the chunk index does not grow: this is what small stores are like.
pub const DEFAULTS: Profile = Profile {
    name: "exact with defaults",
    descriptor: |_| Descriptor::new().expect("the system has random numbers"),
    settings: |_| Settings { background: false, workers: 1, reserve_bytes: 64 << 20, ..Settings::default() },
    volumes: |_| VolumesOptions::default(),
    liveness: watched,
    steps: STEPS,
    meets: &[Sight::Sweep, Sight::Continued, Sight::Checkpoint, Sight::Dead, Sight::LayerUnderWay, Sight::NewerNames],
};

/// Profile `marked`, in the same shapes.
pub const MARKED: Profile =
    Profile { name: "marked", descriptor: |seed| Descriptor { profile: StoreProfile::Marked, ..small_descriptor(seed) }, ..EXACT };

/// Profile `sampled`, in the same shapes, with so little memory for hooks that they are thinned out.
pub const SAMPLED: Profile = Profile {
    name: "sampled",
    descriptor: |seed| Descriptor { profile: StoreProfile::Sampled, ..small_descriptor(seed) },
    settings: |seed| {
        let mut settings = small_settings(seed);
        settings.chain.retain(|name| name != "bloom");
        Settings { sampled_index_bytes: [128, 512, 64 << 10][(seed / 5) as usize % 3], ..settings }
    },
    meets: Sight::WITHOUT_INDEX,
    ..EXACT
};

/// Profile `cacheless`, with all layouts of its index. The limits of memory are as small as for the others.
pub const CACHELESS: Profile = Profile {
    name: "cacheless",
    descriptor: |seed| Descriptor {
        index_tag: [Tag::Status, Tag::Big][seed as usize % 2],
        index_area: [Dia::Large, Dia::Large, Dia::Slim][seed as usize % 3],
        ..small_descriptor(seed).of_blocks(4096)
    },
    settings: |seed| Settings { parity_group: 0, ..small_settings(seed) },
    meets: &[Sight::Sweep, Sight::Growth, Sight::Segment, Sight::Trim, Sight::LayerUnderWay, Sight::NewerNames, Sight::RemovedFile],
    ..EXACT
};

/// Profile `leveled`, with several levels in little data.
pub const LEVELED: Profile = Profile {
    name: "leveled",
    descriptor: |seed| Descriptor { profile: StoreProfile::Leveled, ..small_descriptor(seed) },
    settings: |seed| {
        let mut settings = small_settings(seed);
        settings.chain.retain(|name| name != "byte-compare");
        Settings { parity_group: 0, levels_ratio: 2, levels_tables: 2, levels_filter_bytes: [0, 1 << 20][seed as usize % 2], ..settings }
    },
    meets: &[
        Sight::Sweep,
        Sight::Growth,
        Sight::Segment,
        Sight::Trim,
        Sight::Table,
        Sight::Compaction,
        Sight::HalfMoved,
        Sight::LayerUnderWay,
        Sight::NewerNames,
        Sight::RemovedFile,
    ],
    ..EXACT
};

fn small_descriptor(seed: u64) -> Descriptor {
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
        ..Descriptor::new().expect("the system has random numbers")
    }
}

fn small_settings(seed: u64) -> Settings {
    let chain = match seed % 4 {
        0 | 1 => "zero-chunk,block-index,container-cache,chunk-index",
        2 => "bloom,zero-chunk,chunk-index,byte-compare",
        _ => "chunk-index",
    };
    Settings {
        auxiliary_index_bytes: [8 << 10, 32 << 10][(seed / 3) as usize % 2],
        frame_cache_bytes: 32 << 10,
        catalog_cache_bytes: [4 << 10, 16 << 10][(seed / 3) as usize % 2],
        catalog_cache_policy: CachePolicy::ALL[(seed / 2) as usize % 3],
        in_flight_bytes: 32 << 10,
        marks_bytes: [1, 512, 64 << 20][(seed / 2) as usize % 3],
        object_index_cache_bytes: 64 << 10,
        object_index_pending_bytes: [4 << 10, 16 << 10][(seed / 5) as usize % 2],
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

fn small_volumes(seed: u64) -> VolumesOptions {
    VolumesOptions {
        dirty_bytes: [80 << 10, 1 << 20][(seed / 2) as usize % 2],
        mapping_cache_bytes: [2 << 10, 1 << 20][(seed / 3) as usize % 2],
        streams: 1 + (seed % 2) as usize,
        verify: true,
    }
}
