//! Creating a store, opening it, and recovery (M0.18).
//!
//! Opening is the same after a crash and after a clean stop: the indexes say up to which position of the log they are durable, the log is
//! replayed from there, and open containers are rebuilt from it. The time is bounded by the log's limit, not by the store's size.

use crate::activity::Earlier;
use crate::chain::{
    BlockIndexFilter, BloomFilter, ByteCompareFilter, Chain, ChunkIndexFilter, ContainerCacheFilter, Filter, ZeroChunkFilter,
};
use crate::clock::Clock;
use crate::commit::replay_batch;
use crate::descriptor::{DESCRIPTOR_COPY, Descriptor};
use crate::quarantine::Quarantine;
use crate::rebuild::{MARKER, empty_index};
use crate::recount::RECOUNTED;
use crate::reservation::Reservations;
use crate::settings::Settings;
use crate::statistics::{TOTALS_KEY, TOTALS_PARTITION, Totals};
use crate::views::{OPENING_LIMIT, lock_views_within};
use crate::{Engine, EngineError, Result, background, copied, reserve, salvage, snapshot};
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, GroundError, Holder, LockGuard, checksum, read_file, replace_file};
use onefold_index::{ChunkIndex, ChunkIndexOptions, block};
use onefold_oplog::{Log, LogError, LogOptions, Opening, PartitionClass};
use onefold_storage::{ContainerStore, StorageOptions};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Directories and files of a store (`docs/format.md` section 1).
pub(crate) const INDEX: &str = "index";
pub(crate) const BLOCKS: &str = "blocks";
pub(crate) const CONTAINERS: &str = "containers";
pub(crate) const LOG: &str = "log";
pub(crate) const LOCK: &str = "lock";
pub(crate) const OWNER: &str = "owner";
/// While this file is there, layers stay that no volume uses: a part of the log was lost, and they may have what was written behind it.
pub(crate) const LAYERS_KEPT: &str = "blocks/layers-kept";

/// What the opener wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process, alone.
    ReadWrite,
    /// Any number of processes, none of which writes; nothing in the store is changed. For what reads all kinds of things for a long time.
    ReadOnly,
    /// Any number of processes, beside one that may write; nothing in the store is changed. What is read is the store as of the opening. As soon
    /// as it is known what is read, [`Engine::hold`] says so: until then a writer may have to wait.
    /// Where this process may not write to the store's directory it is the same as [`Mode::ReadOnly`].
    Snapshot,
    /// One process, alone, which makes the chunk index anew and reads everything else: [`crate::Rebuild`].
    Rebuild,
}

impl Engine {
    /// Creates an empty store on an empty ground. The descriptor is written last: before it, there is no store.
    pub fn create(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
        descriptor.validate()?;
        if !ground.list("")?.is_empty() {
            return Err(EngineError::NotEmpty { place: ground.describe("") });
        }
        for directory in [INDEX, BLOCKS, CONTAINERS, LOG, snapshot::LEASES] {
            ground.create_directory(directory)?;
        }
        ChunkIndex::create(ground, INDEX, descriptor.index_partitions, descriptor.fingerprint.digest_bytes())?;
        block::BlockIndex::create(ground, BLOCKS, descriptor.block_partitions)?;
        ContainerStore::create(&**ground, CONTAINERS, descriptor.container_partitions)?;
        Log::create(ground, LOG, descriptor.store, log_options(&Settings::default()))?;
        write_epoch(&**ground, 0)?;
        // Now there is room for it.
        drop(lock_views_within(&**ground, true, &Holder::this_process("init"), OPENING_LIMIT)?);
        descriptor.write(&**ground)?;
        descriptor.write_copy(&**ground)
    }

    /// Opens a store. `command` is what others are told who find it locked.
    pub fn open(ground: Arc<dyn Ground>, settings: Settings, mode: Mode, command: &str) -> Result<Arc<Engine>> {
        // A place that is no store is said to be none, and no lock file is left in it.
        let only_reads = matches!(mode, Mode::ReadOnly | Mode::Snapshot);
        let descriptor = if only_reads { Descriptor::read_any(&*ground)? } else { Descriptor::read(&*ground)? };
        descriptor.check_settings(&settings, &*ground)?;
        let holder = Holder::this_process(command);
        let Locks { mode, lock, views, reading } = Locks::take(&ground, mode, &holder)?;
        let (ground, reserve) = reserve::over(ground, &settings, mode);
        let access = if mode == Mode::ReadWrite { Access::ReadWrite } else { Access::Read };
        copied::refuse_a_copy(&*ground)?;
        if ground.exists(salvage::MARKER)? {
            return Err(EngineError::Inconsistent { why: "its repair was cut short: run `onefold check --repair` again".into() });
        }
        let epoch = read_epoch(&*ground)? + u64::from(mode == Mode::ReadWrite);
        if mode == Mode::ReadWrite {
            if !ground.exists(DESCRIPTOR_COPY)? {
                descriptor.write_copy(&*ground)?;
            }
            copied::note(&*ground)?;
            write_epoch(&*ground, epoch)?;
        }
        let profile = Arc::new(Profile::default());
        let digest_bytes = descriptor.fingerprint.digest_bytes();
        let storage = ContainerStore::open(
            ground.clone(),
            CONTAINERS,
            descriptor.container_partitions,
            storage_options(&descriptor, &settings),
            access,
            epoch,
            profile.clone(),
        )?;
        if mode == Mode::Snapshot {
            storage.follow_writers();
        }
        let block_options =
            block::BlockIndexOptions { cache_bytes: settings.block_index_cache_bytes, pending_bytes: settings.block_index_pending_bytes };
        let blocks = block::BlockIndex::open(ground.clone(), BLOCKS, descriptor.block_partitions, block_options, access, epoch)?;
        let blocks = Arc::new(blocks);
        let opening = if mode == Mode::ReadWrite { Opening::ReadWrite { epoch } } else { Opening::ReadOnly };
        let log = open_log(&ground, &descriptor, &settings, opening, mode)?;

        let index_options = ChunkIndexOptions {
            auxiliary_bytes: settings.auxiliary_index_bytes,
            page_cache_bytes: settings.chunk_index_cache_bytes,
            reads_in_flight: settings.chunk_index_reads,
        };
        let index_access = if only_reads { Access::Read } else { Access::ReadWrite };
        let open_index = || -> Result<Arc<ChunkIndex>> {
            let partitions = descriptor.index_partitions;
            Ok(Arc::new(ChunkIndex::open(&ground, INDEX, partitions, digest_bytes, index_options, index_access, epoch)?))
        };
        let index = if mode == Mode::Rebuild {
            // Everything that the new index is made of comes first: a store in which that cannot be read keeps the index that it has.
            recover(&storage, None, &blocks, &log, mode, digest_bytes)?;
            storage.allow_repairs();
            empty_index(&ground, INDEX, descriptor.index_partitions, digest_bytes)?;
            open_index()?
        } else if ground.exists(MARKER)? {
            return Err(EngineError::Inconsistent {
                why: "rebuilding its chunk index was cut short: run `onefold check --rebuild-index` again".into(),
            });
        } else {
            let index = open_index()?;
            recover(&storage, Some(&*index), &blocks, &log, mode, digest_bytes)?;
            index
        };

        let quarantine = Arc::new(Quarantine::open(blocks.clone(), digest_bytes, ground.exists(RECOUNTED)?)?);
        let bloom = settings.chain.iter().any(|name| name == "bloom").then(|| Arc::new(BloomFilter::new(settings.bloom_bytes)));
        let filters = Chain::new(all_filters(&storage, &index, &blocks, &quarantine, &bloom, &settings), profile.clone());
        let chain = checked_chain(&filters, &settings.chain)?;
        // A metadata chunk stored twice would count its references twice: whatever a user chooses for data, metadata asks the index.
        let metadata_chain = filters.select(&["container-cache", "chunk-index"])?;
        let chunker = onefold_chunking::chunker(descriptor.chunker, descriptor.chunk_sizes)
            .map_err(|error| EngineError::Invalid { what: "chunk sizes".into(), why: error.to_string() })?;
        let totals = blocks.get(TOTALS_PARTITION, TOTALS_KEY)?.map_or(Ok(Totals::default()), |value| Totals::decode(&value))?;
        let (partition, key) = Earlier::PLACE;
        let earlier = Earlier::read(blocks.get(partition, key)?, log.end())?;
        let (partition, key) = Clock::PLACE;
        let clock = Clock::open(settings.time.clone(), blocks.get(partition, key)?);
        let keeps_layers = ground.exists(LAYERS_KEPT)?;
        // What another opening changes from here on is changed under the lock of the views again; a rebuild changes them all the time.
        let (opening_views, rebuild_views) = if mode == Mode::Rebuild { (None, views) } else { (views, None) };
        let engine = Arc::new(Engine {
            totals: Mutex::new(totals),
            earlier: Mutex::new(earlier),
            clock,
            opened_at: log.end(),
            ground,
            reserve,
            chunker,
            storage,
            index,
            blocks,
            log,
            reservations: Reservations::default(),
            guards: Arc::default(),
            watch: Default::default(),
            superseded: Default::default(),
            rehearsed: AtomicU64::new(0),
            quarantine,
            filters,
            chain,
            metadata_chain,
            bloom,
            queue: Mutex::default(),
            committing: Mutex::new(0),
            flush_requests: AtomicU64::new(0),
            maintaining: Mutex::new(()),
            deletions: RwLock::new(()),
            reclaiming: Mutex::new(()),
            removing: Mutex::new(()),
            scrubbing: Mutex::default(),
            waited_for_scrubs: AtomicU64::new(0),
            stopped: std::sync::OnceLock::new(),
            closed: AtomicBool::new(false),
            copy_fails: AtomicBool::new(false),
            keeps_layers,
            background: Mutex::new(None),
            signal: Arc::default(),
            parity_signal: Arc::default(),
            served_bytes: AtomicU64::new(0),
            new_bytes: AtomicU64::new(0),
            profile,
            mode,
            holder,
            reading,
            descriptor,
            settings,
            lock,
            _views: rebuild_views,
        });
        drop(opening_views);
        if mode == Mode::ReadWrite {
            engine.keep_reserve();
            match engine.note_recount() {
                // Until there is room, nothing is removed.
                Err(error) if error.is_full() => tracing::warn!(%error, "which chunks are lost is noted by a later opening"),
                noted => noted?,
            }
            background::start(&engine)?;
        }
        Ok(engine)
    }
}

/// The locks of an opening.
struct Locks {
    /// The mode that it gets.
    mode: Mode,
    lock: Option<LockGuard>,
    views: Option<LockGuard>,
    reading: snapshot::Reading,
}

impl Locks {
    fn take(ground: &Arc<dyn Ground>, mode: Mode, holder: &Holder) -> Result<Locks> {
        let mut mode = mode;
        if mode == Mode::Snapshot {
            match snapshot::begin(ground, holder, OPENING_LIMIT)? {
                Some(reading) => return Ok(Locks { mode, lock: None, views: None, reading }),
                None => mode = Mode::ReadOnly,
            }
        }
        let lock = Some(ground.lock(LOCK, mode != Mode::ReadOnly, holder)?);
        let mut views = None;
        if mode != Mode::ReadOnly {
            views = Some(lock_views_within(&**ground, true, holder, OPENING_LIMIT)?);
        }
        if mode == Mode::Rebuild {
            snapshot::nobody_reads(&**ground, holder)?;
        }
        Ok(Locks { mode, lock, views, reading: snapshot::Reading::default() })
    }
}

/// Opens the log. A writer may append to it meanwhile: then a batch that was not whole when it was read may look like a hole before those that
/// followed. The next look finds it whole and comes further; the same hole twice is one.
fn open_log(ground: &Arc<dyn Ground>, descriptor: &Descriptor, settings: &Settings, opening: Opening, mode: Mode) -> Result<Log> {
    let mut hole = None;
    loop {
        match Log::open(ground.clone(), LOG, descriptor.store, log_options(settings), opening) {
            Err(LogError::Damaged { path, offset_bytes, .. }) if mode == Mode::Snapshot && hole != Some((path.clone(), offset_bytes)) => {
                hole = Some((path, offset_bytes));
            }
            opened => return Ok(opened?),
        }
    }
}

pub(crate) fn storage_options(descriptor: &Descriptor, settings: &Settings) -> StorageOptions {
    StorageOptions {
        container_bytes: descriptor.container_bytes,
        frame_bytes: descriptor.frame_bytes,
        compression: descriptor.compression,
        digest_bytes: descriptor.fingerprint.digest_bytes(),
        store: descriptor.store,
        workers: settings.workers,
        in_flight_bytes: settings.in_flight_bytes,
        frame_cache_bytes: settings.frame_cache_bytes,
        catalog_cache_bytes: settings.catalog_cache_bytes,
        discards_data: descriptor.discards_data,
    }
}

pub(crate) fn log_options(settings: &Settings) -> LogOptions {
    LogOptions { segment_bytes: settings.log_segment_bytes, limit_bytes: settings.log_limit_bytes }
}

/// Brings the indexes and the open containers to the end of the log; without `index`, the block index only.
fn recover(
    storage: &Arc<ContainerStore>,
    index: Option<&ChunkIndex>,
    blocks: &block::BlockIndex,
    log: &Log,
    mode: Mode,
    digest_bytes: usize,
) -> Result<()> {
    let applied = index.map_or(blocks.position(), |index| index.position().min(blocks.position()));
    let ahead = index.map_or(blocks.furthest_position(), |index| index.required_end().max(blocks.furthest_position()));
    if ahead > log.end() {
        return Err(EngineError::Inconsistent {
            why: format!(
                "the operations log ends at {}, but an index has applied it up to {}: the end of the log is lost. Put the log back from a copy of the store",
                log.end().0,
                ahead.0
            ),
        });
    }
    if applied < log.start() {
        return Err(EngineError::Inconsistent {
            why: format!(
                "an index has applied the operations log up to {}, but the log starts at {}: segments of the log or newer index files are missing",
                applied.0,
                log.start().0
            ),
        });
    }
    let mut failed = None;
    log.replay(log.start(), &mut |start, end, records| {
        let replay = || -> Result<()> {
            for record in records.iter().filter(|record| record.partition.class == PartitionClass::Container) {
                storage.replay(start, record)?;
            }
            if end > applied {
                replay_batch(index, blocks, end, records, digest_bytes)?;
                if mode == Mode::ReadWrite {
                    while let Some(index) = index
                        && index.wants_sweep()
                        && index.sweep()?
                    {}
                    if blocks.wants_persist() {
                        blocks.persist()?;
                    }
                }
            }
            Ok(())
        };
        match replay() {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                std::ops::ControlFlow::Break(())
            }
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None => Ok(storage.recovered(log.start(), log.end())?),
    }
}

/// All filters of a store, each once.
fn all_filters(
    storage: &Arc<ContainerStore>,
    index: &Arc<ChunkIndex>,
    blocks: &Arc<block::BlockIndex>,
    quarantine: &Arc<Quarantine>,
    bloom: &Option<Arc<BloomFilter>>,
    settings: &Settings,
) -> Vec<Arc<dyn Filter>> {
    let mut filters: Vec<Arc<dyn Filter>> = vec![
        Arc::new(ZeroChunkFilter),
        Arc::new(BlockIndexFilter::new(quarantine.clone())),
        Arc::new(ContainerCacheFilter::new(storage.clone(), blocks.clone(), settings.container_cache_entries)),
        Arc::new(ChunkIndexFilter::new(index.clone())),
    ];
    // There must be bytes to compare with.
    if !settings.discards_data {
        filters.push(Arc::new(ByteCompareFilter::new(storage.clone())));
    }
    if let Some(bloom) = bloom {
        filters.push(bloom.clone());
    }
    filters
}

/// A chain for data: it must ask the chunk index, or chunks would be stored again and again.
pub(crate) fn checked_chain(filters: &Chain, names: &[String]) -> Result<Chain> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let invalid = |why: String| EngineError::Invalid { what: format!("filter chain `{}`", names.join(",")), why };
    if !names.contains(&"chunk-index") {
        return Err(invalid("it must contain `chunk-index`, which profile `exact` needs to find every duplicate".into()));
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(invalid(format!("`{name}` stands in it twice")));
        }
    }
    filters.select(&names)
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
