//! The *state* of a store in a bucket: a local directory with its views, which are derived from the log (decision
//! 0068). To lose it costs the time to read the log and its history, and nothing else.
//!
//! The directory holds what the directory of any store holds, but for what is in the bucket: the log, and containers,
//! parity and marks. The descriptor in it is a copy, written last. A directory without it is made again.

use crate::lifecycle::chunks;
use crate::lifecycle::descriptor::{DESCRIPTOR, DESCRIPTOR_COPY, Descriptor};
use crate::lifecycle::layout::{INDEX, LOCK, LOG, OBJECTS, write_epoch};
use crate::lifecycle::recovery;
use crate::lifecycle::settings::Settings;
use crate::read::snapshot;
use crate::read::views::VIEWS;
use crate::{Engine, EngineError, Result};
use onefold_ground::{Access, Bucket, Ground, Holder, LockError, LockGuard, Put, replace_file};
use onefold_index::{ObjectIndex, ObjectIndexOptions};
use onefold_oplog::{Log, LogError, ObjectLog, View};
use std::sync::Arc;

/// The object with the descriptor. It is written last: without it, there is no store.
pub(crate) const STORE: &str = "store";
/// The lock of whoever makes or removes a state.
const STATE_LOCK: &str = "state-lock";
/// A file in the local state of a store in a bucket. It says that the state is damaged: the next opening makes it
/// again.
pub const DAMAGED: &str = "damaged";
/// Bytes of a descriptor are fewer.
const DESCRIPTOR_LIMIT_BYTES: u64 = 64 << 10;

/// Creates an empty store in a bucket that has nothing below its prefix, and its state.
pub(crate) fn create(ground: &Arc<dyn Ground>, bucket: &Arc<dyn Bucket>, descriptor: &Descriptor) -> Result<()> {
    let place = || bucket.describe("");
    if !descriptor.profile.has_containers() || descriptor.discards_data {
        let why = format!(
            "a store in a bucket has containers, and keeps its data: take profile `exact`, `marked` or `sampled`, not `{}`",
            descriptor.profile
        );
        return Err(EngineError::Invalid { what: place(), why });
    }
    if !bucket.list("", "")?.objects.is_empty() {
        return Err(EngineError::PrefixNotFree { place: place() });
    }
    let descriptor = &Descriptor { has_own_partition: true, ..descriptor.clone() };
    ObjectLog::create(&**bucket, descriptor.store)?;
    if bucket.put_new(STORE, descriptor.to_text().as_bytes())? == Put::Taken {
        return Err(EngineError::PrefixNotFree { place: place() });
    }
    // From here on there is a store. Without a state, the next opening makes one.
    if let Err(error) = make_first(ground, bucket, descriptor) {
        tracing::warn!(%error, "the local state of the store could not be made; the next command tries again");
    }
    Ok(())
}

/// Makes the state of a store that was just created, unless somebody has it open.
fn make_first(ground: &Arc<dyn Ground>, bucket: &Arc<dyn Bucket>, descriptor: &Descriptor) -> Result<()> {
    let holder = Holder::this_process("init");
    let _alone = lock(&**ground, &holder)?;
    // Of a store that was here before.
    if discard_alone(&**ground, &holder)? {
        let settings = Settings::default();
        make_empty(ground, descriptor, &settings)?;
        recovery::log_place(ground, bucket.clone(), descriptor, &settings, true)?.keep_first_manifest();
        finish(&**ground, descriptor)?;
    }
    Ok(())
}

/// Reads the descriptor in a bucket.
pub(crate) fn read_store(bucket: &dyn Bucket) -> Result<Descriptor> {
    let path = bucket.describe(STORE);
    let bytes = match bucket.get(STORE, DESCRIPTOR_LIMIT_BYTES) {
        Err(error) if error.is_not_found() => return Err(EngineError::NoStoreInBucket { place: bucket.describe("") }),
        bytes => bytes?,
    };
    let text = String::from_utf8(bytes).map_err(|_| EngineError::Descriptor { path: path.clone(), why: "it is not text".to_owned() })?;
    Descriptor::from_text(&text, &path)
}

/// Makes the state if there is none. Returns the log if it has looked at it.
pub(crate) fn prepare(
    ground: &Arc<dyn Ground>,
    bucket: &Arc<dyn Bucket>,
    settings: &Settings,
    holder: &Holder,
) -> Result<Option<ObjectLog>> {
    if ground.exists(DESCRIPTOR)? {
        return Ok(None);
    }
    let descriptor = read_store(&**bucket)?;
    let _alone = lock(&**ground, holder)?;
    if ground.exists(DESCRIPTOR)? {
        return Ok(None);
    }
    let log = loop {
        make_empty(ground, &descriptor, settings)?;
        match build(ground, bucket, &descriptor, settings) {
            // The views have a part of a history that is no longer there.
            Err(EngineError::Log(LogError::Trimmed { .. })) => {}
            built => break built?,
        }
    };
    finish(&**ground, &descriptor)?;
    Ok(Some(log))
}

/// Makes empty views, in place of what is there.
fn make_empty(ground: &Arc<dyn Ground>, descriptor: &Descriptor, settings: &Settings) -> Result<()> {
    empty(&**ground)?;
    for directory in [INDEX, OBJECTS, LOG, snapshot::LEASES] {
        ground.create_directory(directory)?;
    }
    chunks::create(ground, descriptor)?;
    Ok(ObjectIndex::create(ground, OBJECTS, settings.objects(descriptor, 0).total() as u16)?)
}

/// Ends the making of a state: with the descriptor there is one.
fn finish(ground: &dyn Ground, descriptor: &Descriptor) -> Result<()> {
    write_epoch(ground, 0)?;
    descriptor.write_copy(ground)?;
    descriptor.write(ground)
}

/// Brings the new views to the start of the log, which it returns.
fn build(ground: &Arc<dyn Ground>, bucket: &Arc<dyn Bucket>, descriptor: &Descriptor, settings: &Settings) -> Result<ObjectLog> {
    let mut log = recovery::look_at_objects(ground, bucket.clone(), descriptor, settings)?;
    let epoch = log.epoch();
    let options = ObjectIndexOptions { cache_bytes: settings.object_index_cache_bytes, pending_bytes: settings.object_index_pending_bytes };
    let objects = ObjectIndex::open(ground.clone(), OBJECTS, &settings.objects(descriptor, epoch), options, Access::ReadWrite)?;
    let index = chunks::open_index(ground, descriptor, settings, epoch, Access::ReadWrite)?;
    let of_chunks = index.as_ref().map(|index| index as &dyn View<EngineError>);
    let views: Vec<_> = of_chunks.into_iter().chain([&objects as &dyn View<EngineError>]).collect();
    recovery::replay_history(&views, &log, descriptor.fingerprint.digest_bytes())?;
    if let Some(index) = index {
        index.0.close()?;
    }
    log.note_made_views();
    Ok(log)
}

/// Puts the descriptor back into the bucket if it is not there. Returns whether it did.
pub(crate) fn put_back(bucket: &dyn Bucket, descriptor: &Descriptor) -> Result<bool> {
    Ok(bucket.length(STORE)?.is_none() && bucket.put_new(STORE, descriptor.to_text().as_bytes())? == Put::Done)
}

/// Removes a damaged state, unless somebody has it open. Errors: the bucket lacks something that the next one would be
/// made of, so what is left of this one may be needed.
pub(crate) fn discard_damaged(ground: &Arc<dyn Ground>, bucket: &Arc<dyn Bucket>, settings: &Settings, holder: &Holder) -> Result<bool> {
    let descriptor = read_store(&**bucket)?;
    let log = recovery::read_objects(ground, bucket.clone(), &descriptor, settings)?;
    match log.verify().into_iter().next() {
        Some(why) => Err(EngineError::Inconsistent { why }),
        None => discard(&**ground, holder),
    }
}

impl Engine {
    /// Puts the descriptor back into the bucket if it is not there. Its loss is no reason to fail.
    pub(crate) fn keep_descriptor(&self) {
        let Some(bucket) = self.ground.bucket() else { return };
        let place = bucket.describe(STORE);
        match put_back(&*bucket, &self.descriptor) {
            Ok(false) => {}
            Ok(true) => tracing::warn!("{place} was missing, and was put back"),
            Err(error) => tracing::warn!(%error, "nobody knows whether {place} is there"),
        }
    }

    /// Notes that the state of a store in a bucket is damaged, if it is. The next opening makes it again.
    pub(crate) fn note_damaged_state(&self) {
        let is_damaged = || self.objects.has_met_damage() || self.index().is_some_and(|index| index.has_met_damage());
        if self.ground.bucket().is_some()
            && is_damaged()
            && let Err(error) = replace_file(&*self.ground, DAMAGED, b"")
        {
            tracing::warn!(%error, "it could not be noted that the local state of the store is damaged");
        }
    }
}

/// Removes the state: it belongs to another log, has less than the log still has, or is damaged. False: somebody has it
/// open.
pub(crate) fn discard(ground: &dyn Ground, holder: &Holder) -> Result<bool> {
    let _alone = lock(ground, holder)?;
    discard_alone(ground, holder)
}

/// Does the same with the lock of the state held.
fn discard_alone(ground: &dyn Ground, holder: &Holder) -> Result<bool> {
    let (_store, _views) = match (ground.lock(LOCK, true, holder), ground.lock(VIEWS, true, holder)) {
        (Ok(store), Ok(views)) => (store, views),
        (Err(LockError::Held { .. }), _) | (_, Err(LockError::Held { .. })) => return Ok(false),
        (Err(error), _) | (_, Err(error)) => return Err(error.into()),
    };
    for descriptor in [DESCRIPTOR, DESCRIPTOR_COPY] {
        match ground.remove(descriptor) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    ground.sync_directory("")?;
    empty(ground)?;
    match ground.remove(DAMAGED) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(true),
    }
}

fn lock(ground: &dyn Ground, holder: &Holder) -> Result<LockGuard> {
    Ok(ground.lock(STATE_LOCK, true, holder)?)
}

/// Removes the files of views and copies.
fn empty(ground: &dyn Ground) -> Result<()> {
    for directory in [INDEX, OBJECTS, LOG, "owners"] {
        empty_directory(ground, directory)?;
    }
    Ok(())
}

fn empty_directory(ground: &dyn Ground, directory: &str) -> Result<()> {
    let entries = match ground.list(directory) {
        Err(error) if error.is_not_found() => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = format!("{directory}/{}", entry.name);
        match entry.is_directory {
            true => empty_directory(ground, &path)?,
            false => ground.remove(&path)?,
        }
    }
    Ok(ground.sync_directory(directory)?)
}
