//! Creating a store, opening it, and recovery (M0.18).
//!
//! Opening is the same after a crash and after a clean stop. The indexes say up to which position of the log they are
//! durable. The log is replayed from there, and open containers are rebuilt from it. The time is bounded by the log's
//! limit, not by the store's size.

use super::background::Background;
use super::{background, copied, presence, recovery, reserve, state};
use crate::cluster::{Cluster, Guests, Outbox, Removing};
use crate::commit::Commits;
use crate::lifecycle::activity::Earlier;
use crate::lifecycle::chunks::{self, Chunks, Parts};
use crate::lifecycle::clock::Clock;
use crate::lifecycle::descriptor::{DESCRIPTOR_COPY, Descriptor};
use crate::lifecycle::layout::{ARENA, INDEX, LOCK, LOG, OBJECTS, UNUSED_KEPT, chunks_directory, log_options, read_epoch, write_epoch};
use crate::lifecycle::settings::Settings;
use crate::liveness::counted::Counted;
use crate::liveness::marked::Marked;
use crate::liveness::recount::RECOUNTED;
use crate::liveness::{Liveness, Reclaiming};
use crate::lookup::Lookup;
use crate::lookup::capacity::check_memory;
use crate::lookup::figures::{self, Figures};
use crate::lookup::redirects::Redirects;
use crate::lookup::sampled::Sampled;
use crate::lost::quarantine::Quarantine;
use crate::lost::rehearsal::Rehearsal;
use crate::lost::scrubbing::Scrubs;
use crate::lost::store_salvage;
use crate::read::snapshot;
use crate::read::views::{OPENING_LIMIT, lock_views_within};
use crate::statistics::{TOTALS_KEY, Totals};
use crate::write::chain::ContainerCacheFilter;
use crate::write::filters::Filters;
use crate::write::local_claims::LocalClaims;
use crate::{Engine, EngineError, Mode, Result};
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Bucket, Ground, Holder, LocalGround, LockError, LockGuard};
use onefold_index::{ObjectIndex, ObjectIndexOptions};
use onefold_oplog::{Log, SegmentLog};
use onefold_storage::{ArenaStore, FileFigures};
use parking_lot::{Mutex, RwLock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

impl Engine {
    /// Creates an empty store on an empty ground, or in its bucket. The descriptor is written last: before it, there is
    /// no store.
    pub fn create(ground: &Arc<dyn Ground>, descriptor: &Descriptor) -> Result<()> {
        match ground.bucket() {
            None => Engine::make(ground, descriptor, None),
            Some(bucket) => {
                descriptor.validate()?;
                state::create(ground, &bucket, descriptor)
            }
        }
    }

    /// Creates an empty store of profile `cacheless` whose blocks are on a block device. Errors: the device is in use,
    /// has data, or is too small. Then nothing is made, unless somebody takes it in the middle of the call.
    pub fn create_on_device(ground: &Arc<dyn Ground>, descriptor: &Descriptor, device: &Path) -> Result<()> {
        let (Some(directory), Some(name)) = (device.parent(), device.file_name().and_then(|name| name.to_str())) else {
            return Err(EngineError::Invalid { what: device.display().to_string(), why: "it is no block device".to_owned() });
        };
        let directory = if directory == Path::new("") { Path::new(".") } else { directory };
        ArenaStore::check_device(&LocalGround::open(directory)?, name)?;
        Engine::make(ground, descriptor, Some(device))
    }

    /// Reads the descriptor of a store in a bucket. Errors: there is no store in it, or it cannot be read.
    pub fn descriptor_in(bucket: &dyn Bucket) -> Result<Descriptor> {
        state::read_store(bucket)
    }

    /// Reads the descriptor of a store, from its bucket if it is in one. Then it needs no state on this machine.
    pub fn descriptor_of(ground: &dyn Ground) -> Result<Descriptor> {
        ground.bucket().map_or_else(|| Descriptor::read(ground), |bucket| state::read_store(&*bucket))
    }

    /// Makes the local state of a store in a bucket again. Errors: another process has it open, or the bucket lacks
    /// something that it is made of.
    pub fn renew_state(ground: &Arc<dyn Ground>, settings: &Settings, command: &str) -> Result<()> {
        let holder = Holder::this_process(command);
        let Some(bucket) = ground.bucket() else { return Ok(()) };
        if !state::discard_damaged(ground, &bucket, settings, &holder)? {
            return Err(LockError::Held { path: ground.describe(LOCK), holder: None }.into());
        }
        Engine::open(ground.clone(), settings.clone(), Mode::ReadWrite, command)?.close()
    }

    fn make(ground: &Arc<dyn Ground>, descriptor: &Descriptor, device: Option<&Path>) -> Result<()> {
        descriptor.validate()?;
        if !ground.list("")?.is_empty() {
            return Err(EngineError::NotEmpty { place: ground.describe("") });
        }
        for directory in [INDEX, OBJECTS, chunks_directory(descriptor.profile), LOG, snapshot::LEASES] {
            ground.create_directory(directory)?;
        }
        if let Some(device) = device {
            ground.link_device(&format!("{ARENA}/blocks"), device)?;
        }
        chunks::create(ground, descriptor)?;
        ObjectIndex::create(ground, OBJECTS, descriptor.all_object_partitions())?;
        SegmentLog::create(ground, LOG, descriptor.store, log_options(&Settings::default()))?;
        write_epoch(&**ground, 0)?;
        // Create the lock file now, while there is space for it.
        drop(lock_views_within(&**ground, true, &Holder::this_process("init"), OPENING_LIMIT)?);
        descriptor.write(&**ground)?;
        descriptor.write_copy(&**ground)
    }

    /// Opens a store. `command` is shown to others that find the store locked.
    pub fn open(ground: Arc<dyn Ground>, settings: Settings, mode: Mode, command: &str) -> Result<Arc<Engine>> {
        Engine::open_with(ground, settings, mode, command, |liveness, _| liveness)
    }

    /// Opens a store with a wrapper around its [`Liveness`]: tests compare it with a model, and with marks, which the
    /// second argument makes.
    pub fn open_with(
        ground: Arc<dyn Ground>,
        settings: Settings,
        mode: Mode,
        command: &str,
        around: impl FnOnce(Box<dyn Liveness>, &dyn Fn() -> Marked) -> Box<dyn Liveness>,
    ) -> Result<Arc<Engine>> {
        let mut around = Some(around);
        let Some(bucket) = ground.bucket() else { return Engine::open_once(&ground, &settings, mode, command, &mut around) };
        let holder = Holder::this_process(command);
        // If the bucket is damaged too, what is in the directory may be all that is left.
        let discard_damaged = || {
            state::discard_damaged(&ground, &bucket, &settings, &holder).unwrap_or_else(|error| {
                tracing::warn!(%error, "the damaged local state of the store stays, because it could not be made again");
                false
            })
        };
        if ground.exists(state::DAMAGED)? && discard_damaged() {
            tracing::info!("the local state of the store was damaged, and is made again");
        }
        match Engine::open_once(&ground, &settings, mode, command, &mut around) {
            Err(error) if error.is_of_state() => {
                let is_damaged = error.is_damage();
                if !if is_damaged { discard_damaged() } else { state::discard(&*ground, &holder)? } {
                    return Err(error);
                }
                tracing::info!(why = %error, "the local state of the store is made again");
                Engine::open_once(&ground, &settings, mode, command, &mut around)
            }
            opened => opened,
        }
    }

    fn open_once(
        ground: &Arc<dyn Ground>,
        settings: &Settings,
        mode: Mode,
        command: &str,
        around: &mut Option<impl FnOnce(Box<dyn Liveness>, &dyn Fn() -> Marked) -> Box<dyn Liveness>>,
    ) -> Result<Arc<Engine>> {
        let (ground, settings) = (ground.clone(), settings.clone());
        // If there is no store here, say so, and leave no lock file behind.
        let only_reads = matches!(mode, Mode::ReadOnly | Mode::Snapshot);
        let holder = Holder::this_process(command);
        let bucket = ground.bucket();
        if let Some(share) = &settings.share {
            share.check(bucket.as_ref(), mode, &settings)?;
        }
        let looked = bucket.as_ref().map_or(Ok(None), |bucket| state::prepare(&ground, bucket, &settings, &holder))?;
        let descriptor = if only_reads { Descriptor::read_any(&*ground)? } else { Descriptor::read(&*ground)? };
        descriptor.check_settings(&settings, &*ground)?;
        let Locks { mode, lock, views, reading } = Locks::take(&ground, mode, &holder)?;
        let (ground, reserve) = reserve::over(ground, &settings, mode);
        let access = if mode == Mode::ReadWrite { Access::ReadWrite } else { Access::Read };
        let mut presence = None;
        let (log, epoch, was_left_open) = match bucket {
            Some(bucket) => {
                let log = if mode == Mode::ReadWrite {
                    let look = || recovery::look_at_objects(&ground, bucket.clone(), &descriptor, &settings);
                    let log = recovery::take_objects(&*ground, &bucket, &descriptor, &settings, looked.map_or_else(look, Ok)?)?;
                    write_epoch(&*ground, log.epoch())?;
                    if settings.share.is_some() {
                        // Before it notes anything: to an ordinary opening, what other nodes write are leftovers.
                        log.share()?;
                    }
                    // Tests that count every request have no threads.
                    if settings.background {
                        presence = Some(presence::become_writer(&settings.own_part(bucket), &*ground, &holder)?);
                    }
                    log
                } else {
                    if mode == Mode::ReadOnly {
                        presence = Some(presence::become_reader(&bucket, &*ground, &holder)?);
                    }
                    // Only now, as from here on nobody removes what this reads.
                    match looked {
                        Some(looked) => looked.for_reading()?,
                        None => recovery::read_objects(&ground, bucket, &descriptor, &settings)?,
                    }
                };
                let epoch = log.epoch();
                (Box::new(log) as Box<dyn Log>, epoch, false)
            }
            None => Engine::open_directory(&ground, &descriptor, &settings, mode)?,
        };
        let profile = Arc::new(Profile::default());
        let object_options =
            ObjectIndexOptions { cache_bytes: settings.object_index_cache_bytes, pending_bytes: settings.object_index_pending_bytes };
        let objects = ObjectIndex::open(ground.clone(), OBJECTS, &settings.objects(&descriptor, epoch), object_options, access)?;
        let objects = Arc::new(objects.with_own_partition(descriptor.own_partition()));
        let outbox = Outbox::default();
        let cluster = settings.share.as_ref().map(|share| Arc::new(Cluster::new(share)));
        let may_trim = settings.share.as_ref().is_none_or(|share| !share.is_of_nothing());

        let digest_bytes = descriptor.fingerprint.digest_bytes();
        let parts = Parts {
            ground: &ground,
            descriptor: &descriptor,
            settings: &settings,
            mode,
            epoch,
            profile: &profile,
            objects: &objects,
            log: &*log,
            outbox: &outbox,
            cluster: cluster.as_deref(),
        };
        let Chunks { storage: storage_view, containers, arena, levels, index } = parts.open()?;
        let storage = storage_view.0.clone();

        // A store in a bucket that has no totals has no files: they were counted from its first batch on.
        let empty = || Totals { files: log.has_history().then(FileFigures::default), ..Totals::default() };
        let mut totals = objects.get(objects.own_partition(), TOTALS_KEY)?.map_or_else(|| Ok(empty()), |value| Totals::decode(&value))?;
        if mode == Mode::ReadWrite {
            // Earlier versions did not count them. If they cannot be counted now, the next opening tries again.
            totals.files = totals.files.or_else(|| containers.as_ref()?.count_files().ok());
            check_memory(&descriptor, &settings, totals.stored_bytes)?;
        }
        let quarantine = Arc::new(Quarantine::open(objects.clone(), digest_bytes, ground.exists(RECOUNTED)?, descriptor.profile)?);
        let redirects = Redirects::open(objects.clone(), mode == Mode::Snapshot)?;
        let catalogs = containers
            .as_ref()
            .map(|containers| Arc::new(ContainerCacheFilter::new(containers.clone(), objects.clone(), cluster.is_some())));
        let filters = Filters::new(&storage, catalogs.as_ref(), &quarantine, &settings, &profile, levels.is_none())?;
        let lookup = match (index, &containers, catalogs) {
            (Some(index), _, _) => Lookup::Exact(index),
            (None, Some(containers), Some(catalogs)) => {
                if filters.bloom().is_some() {
                    let why = "`bloom` is filled from a chunk index, and profile `sampled` has none; leave it out".into();
                    return Err(EngineError::Invalid { what: "filter chain".into(), why });
                }
                // Whoever stores nothing needs no hooks.
                let memory_bytes = if mode == Mode::ReadWrite { settings.sampled_index_bytes } else { 0 };
                let partitions = descriptor.container_partitions;
                let figures = Figures::read(objects.get(objects.own_partition(), figures::KEY)?);
                Lookup::Sampled(Arc::new(Sampled::new(
                    ground.clone(),
                    containers.clone(),
                    objects.clone(),
                    catalogs,
                    memory_bytes,
                    partitions,
                    figures.tally,
                )))
            }
            (None, _, _) => return Err(EngineError::Inconsistent { why: "it has neither an index nor containers".into() }),
        };
        let guests = Arc::new(Guests::default());
        let claims = Arc::new(LocalClaims::new(lookup.clone(), filters.bloom().cloned(), cluster.clone(), guests.clone()));
        let marks = || Marked::new(ground.clone(), objects.clone(), &*storage);
        let liveness: Box<dyn Liveness> = match lookup.index().filter(|_| descriptor.profile.counts()) {
            Some(index) => Box::new(Counted::new(index.clone(), digest_bytes)),
            None => Box::new(marks()),
        };
        let liveness = match around.take() {
            Some(around) => around(liveness, &marks),
            None => liveness,
        };
        let chunker = onefold_chunking::chunker(descriptor.chunker, descriptor.chunk_sizes)
            .map_err(|error| EngineError::Invalid { what: "chunk sizes".into(), why: error.to_string() })?;
        let earlier = Earlier::read(objects.get(objects.own_partition(), Earlier::KEY)?, log.end())?;
        let clock = Clock::open(settings.time.clone(), objects.get(objects.own_partition(), Clock::KEY)?);
        let keeps_unused = ground.exists(UNUSED_KEPT)?;
        // From here on, other openings take the lock of the views again for each change. A rebuild changes them all the
        // time.
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
            storage_view,
            containers,
            arena,
            levels,
            lookup,
            objects,
            log,
            claims,
            cluster,
            adopting: AtomicUsize::new(0),
            may_trim: AtomicBool::new(may_trim),
            kept_containers: Mutex::default(),
            cuts: Mutex::default(),
            touched: Mutex::default(),
            outbox,
            removing: Removing::default(),
            guests,
            superseded: Default::default(),
            quarantine,
            redirects,
            filters,
            liveness,
            reclaiming: Reclaiming::default(),
            commits: Commits::default(),
            background: Background::default(),
            scrubs: Scrubs::default(),
            rehearsal: Rehearsal::default(),
            deletions: RwLock::new(()),
            has_begun: AtomicBool::new(false),
            keeps_unused,
            served_bytes: AtomicU64::new(0),
            profile,
            mode,
            holder,
            reading,
            descriptor,
            settings,
            lock,
            _presence: presence,
            _views: rebuild_views,
        });
        drop(opening_views);
        engine.read_void()?;
        if mode == Mode::ReadWrite {
            engine.keep_reserve();
            if !engine.log.has_history()
                && let Err(error) = engine.objects.renew_copies(engine.log.start())
            {
                tracing::warn!(%error, "the second copy of objects could not be written; will retry");
            }
            // Before any other batch: that may say up to which number everything is settled.
            engine.note_void()?;
            engine.has_begun.store(true, Ordering::Release);
            match engine.note_recount() {
                // Until there is space, nothing is removed.
                Err(error) if error.is_full() => tracing::warn!(%error, "the lost chunks could not be noted; a later opening retries"),
                noted => noted?,
            }
            background::start(&engine, was_left_open)?;
        }
        Ok(engine)
    }
}

impl Engine {
    /// Opens the log of a store in a directory. Returns it with the epoch of this opening, and says whether the store
    /// was not closed cleanly.
    fn open_directory(
        ground: &Arc<dyn Ground>,
        descriptor: &Descriptor,
        settings: &Settings,
        mode: Mode,
    ) -> Result<(Box<dyn Log>, u64, bool)> {
        copied::refuse_a_copy(&**ground)?;
        if ground.exists(store_salvage::MARKER)? {
            return Err(EngineError::Inconsistent { why: "its repair was interrupted and must run again".into() });
        }
        let mut was_left_open = false;
        if mode == Mode::ReadWrite {
            // Before anything notes this opening.
            chunks::check_owner(&**ground, descriptor, settings)?;
        }
        let epoch = read_epoch(&**ground)? + u64::from(mode == Mode::ReadWrite);
        if mode == Mode::ReadWrite {
            if !ground.exists(DESCRIPTOR_COPY)? {
                descriptor.write_copy(&**ground)?;
            }
            was_left_open = copied::was_left_open(&**ground)?;
            copied::note(&**ground)?;
            write_epoch(&**ground, epoch)?;
        }
        Ok((recovery::open_segments(ground, descriptor, settings, epoch, mode)?, epoch, was_left_open))
    }
}

/// The locks of an opening.
struct Locks {
    /// The mode that the opening gets.
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
