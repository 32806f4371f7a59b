//! Where the parts of a store lie below its directory, the options that they are opened with, and the number of
//! openings.

use crate::lifecycle::descriptor::Descriptor;
use crate::lifecycle::profile::{ChunkStoreKind, StoreProfile};
use crate::lifecycle::settings::Settings;
use crate::{EngineError, Result};
use onefold_ground::{Ground, GroundError, checksum, read_file, replace_file};
use onefold_oplog::LogOptions;
use onefold_storage::{ArenaOptions, LevelsOptions, StorageOptions};

/// Directories and files of a store (`docs/format.md` section 1).
pub(crate) const INDEX: &str = "index";
pub(crate) const OBJECTS: &str = "objects";
pub(crate) const CONTAINERS: &str = "containers";
pub(crate) const ARENA: &str = "arena";
pub(crate) const LEVELS: &str = "levels";
pub(crate) const LOG: &str = "log";
pub(crate) const LOCK: &str = "lock";
pub(crate) const OWNER: &str = "owner";
/// While this file exists, objects that nobody uses are kept: a part of the log was lost, and they may hold data
/// written after that part.
pub(crate) const UNUSED_KEPT: &str = "objects/layers-kept";

pub(crate) fn storage_options(ground: &dyn Ground, descriptor: &Descriptor, settings: &Settings) -> StorageOptions {
    StorageOptions {
        container_bytes: descriptor.container_bytes,
        frame_bytes: descriptor.frame_bytes,
        compression: descriptor.compression,
        sequential_frame_bytes: descriptor.sequential_frame_bytes,
        sequential_compression: descriptor.sequential_compression,
        fingerprint: descriptor.fingerprint,
        store: descriptor.store,
        workers: settings.workers,
        in_flight_bytes: settings.in_flight_bytes,
        frame_cache_bytes: settings.frame_cache_bytes,
        catalog_cache_bytes: settings.catalog_cache_bytes,
        catalog_cache_policy: settings.catalog_cache_policy,
        discards_data: descriptor.discards_data,
        whole_files: ground.bucket().is_some(),
    }
}

/// Returns the options of the arena, if the store has one.
pub(crate) fn arena_options(descriptor: &Descriptor, settings: &Settings) -> Option<ArenaOptions> {
    Some(ArenaOptions {
        block_bytes: descriptor.block_bytes()?,
        fingerprint: descriptor.fingerprint,
        store: descriptor.store,
        in_flight_bytes: settings.in_flight_bytes,
        ..ArenaOptions::default()
    })
}

/// Returns the options of the levels, if the store has some.
pub(crate) fn levels_options(descriptor: &Descriptor, settings: &Settings) -> Option<LevelsOptions> {
    (descriptor.profile.chunk_store() == ChunkStoreKind::Levels).then(|| LevelsOptions {
        memtable_bytes: descriptor.container_bytes,
        ratio: settings.levels_ratio,
        tables: settings.levels_tables,
        frame_bytes: descriptor.frame_bytes,
        compression: descriptor.compression,
        sequential_frame_bytes: descriptor.sequential_frame_bytes,
        sequential_compression: descriptor.sequential_compression,
        fingerprint: descriptor.fingerprint,
        store: descriptor.store,
        filter_bytes: settings.levels_filter_bytes,
        frame_cache_bytes: settings.frame_cache_bytes,
        // Without them, whoever counts operations finds the same ones each time.
        flushers: if settings.background { settings.workers } else { 0 },
        ..LevelsOptions::default()
    })
}

/// Returns the directory of the chunk store.
pub(crate) fn chunks_directory(profile: StoreProfile) -> &'static str {
    match profile.chunk_store() {
        ChunkStoreKind::Containers => CONTAINERS,
        ChunkStoreKind::Arena => ARENA,
        ChunkStoreKind::Levels => LEVELS,
    }
}

pub(crate) fn log_options(settings: &Settings) -> LogOptions {
    LogOptions { segment_bytes: settings.log_segment_bytes, limit_bytes: settings.log_limit_bytes }
}

/// The number of openings for writing, which fences old owners: `docs/format.md` section 3.
pub(crate) fn read_epoch(ground: &dyn Ground) -> Result<u64> {
    let damaged = |why: &str| EngineError::Inconsistent { why: format!("{}: {why}", ground.describe(OWNER)) };
    let bytes = match read_file(ground, OWNER, 4096) {
        Err(error) if error.is_not_found() => return Err(damaged("the file is missing")),
        Err(GroundError::TooLong { .. }) => return Err(damaged("it does not have 16 bytes")),
        bytes => bytes?,
    };
    let (number, sum) = match (bytes.get(..8), bytes.get(8..16)) {
        (Some(number), Some(sum)) if bytes.len() == 16 => (number, sum),
        _ => return Err(damaged("it does not have 16 bytes")),
    };
    if checksum(number).to_le_bytes() != sum {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(u64::from_le_bytes(number.try_into().expect("eight bytes")))
}

pub(crate) fn write_epoch(ground: &dyn Ground, epoch: u64) -> Result<()> {
    let mut bytes = epoch.to_le_bytes().to_vec();
    bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
    Ok(replace_file(ground, OWNER, &bytes)?)
}
