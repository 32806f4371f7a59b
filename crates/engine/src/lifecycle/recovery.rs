//! Opening the log, and bringing everything to its end.

use crate::cluster::{Cluster, Outbox, Share};
use crate::commit::meaning::Meanings;
use crate::commit::records::Decoded;
use crate::lifecycle::descriptor::Descriptor;
use crate::lifecycle::layout::{LOG, log_options, read_epoch};
use crate::lifecycle::presence;
use crate::lifecycle::settings::Settings;
use crate::{EngineError, Mode, Result};
use onefold_ground::{Bucket, Ground};
use onefold_oplog::{Effects, Log, LogError, LogPlace, ObjectLog, Opening, PartitionClass, Pressure, Record, SegmentLog, View, Wait};
use onefold_storage::{ChunkView, numbers_reserved};
use std::sync::Arc;

/// Opens the log of a store in a directory. `epoch` is that of an opening for writing.
///
/// A writer may append to it meanwhile. A batch that was incomplete when it was read may then look like a hole before
/// later batches. The next try finds it complete and gets further; the same hole twice is a real one.
pub(crate) fn open_segments(
    ground: &Arc<dyn Ground>,
    descriptor: &Descriptor,
    settings: &Settings,
    epoch: u64,
    mode: Mode,
) -> Result<Box<dyn Log>> {
    let opening = if mode == Mode::ReadWrite { Opening::ReadWrite { epoch } } else { Opening::ReadOnly };
    let mut hole = None;
    loop {
        match SegmentLog::open(ground.clone(), LOG, descriptor.store, log_options(settings), opening) {
            Err(LogError::Damaged { path, offset_bytes, .. }) if mode == Mode::Snapshot && hole != Some((path.clone(), offset_bytes)) => {
                hole = Some((path, offset_bytes));
            }
            opened => return Ok(Box::new(opened?)),
        }
    }
}

/// Opens the log of a store in a bucket for reading.
pub(crate) fn read_objects(
    ground: &Arc<dyn Ground>,
    bucket: Arc<dyn Bucket>,
    descriptor: &Descriptor,
    settings: &Settings,
) -> Result<ObjectLog> {
    Ok(ObjectLog::open(log_place(ground, bucket, descriptor, settings, false)?, log_options(settings), meaning(descriptor))?)
}

/// Looks at the log of a store in a bucket, whose end may be further on, and keeps copies of it.
pub(crate) fn look_at_objects(
    ground: &Arc<dyn Ground>,
    bucket: Arc<dyn Bucket>,
    descriptor: &Descriptor,
    settings: &Settings,
) -> Result<ObjectLog> {
    Ok(ObjectLog::look_for_taking(log_place(ground, bucket, descriptor, settings, true)?, log_options(settings), meaning(descriptor))?)
}

/// Takes a log over that was just looked at, and gets its epoch from it.
pub(crate) fn take_objects(
    ground: &dyn Ground,
    bucket: &Arc<dyn Bucket>,
    descriptor: &Descriptor,
    settings: &Settings,
    looked: ObjectLog,
) -> Result<ObjectLog> {
    let containers = settings.ownership(PartitionClass::Container, descriptor.container_partitions.into(), 0);
    let records: Vec<Record> = containers.numbers().map(|number| numbers_reserved(number as u16)).collect();
    // The log has the epochs too: a damaged file makes no difference.
    let epoch = match read_epoch(ground) {
        Err(EngineError::Inconsistent { .. }) => 0,
        epoch => epoch?,
    };
    // A node waits for nobody here: no other one has its number. Nor do tests that count every request.
    match settings.background && settings.share.is_none() {
        true => looked.taken(epoch + 1, &records, &mut presence::wait_for_writer(&**bucket)),
        false => looked.taken(epoch + 1, &records, &mut |_| Ok(Wait::Over)),
    }
}

pub(crate) fn log_place(
    ground: &Arc<dyn Ground>,
    bucket: Arc<dyn Bucket>,
    descriptor: &Descriptor,
    settings: &Settings,
    keeps_copies: bool,
) -> Result<LogPlace> {
    let (bucket, is_of_node) = (settings.own_part(bucket), settings.share.is_some());
    let (store, directory, owner) = (descriptor.store, LOG.to_owned(), presence::owner(&**ground, keeps_copies)?);
    Ok(LogPlace { bucket, store, ground: ground.clone(), directory, keeps_copies, owner, is_of_node })
}

fn meaning(descriptor: &Descriptor) -> Arc<Meanings> {
    Arc::new(Meanings { digest_bytes: descriptor.fingerprint.digest_bytes(), has_index: descriptor.profile.is_exact() })
}

/// What a replay of a node's log fills beside the views.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    pub(crate) share: &'a Share,
    pub(crate) cluster: &'a Cluster,
    pub(crate) outbox: &'a Outbox,
}

impl Sent<'_> {
    /// Returns the records without those of containers that this opening does not have from its beginning.
    fn own_records(&self, records: &[Record]) -> Vec<Record> {
        let is_own = |record: &&Record| {
            record.partition.class != PartitionClass::Container || self.share.containers.place(record.partition.number.into()).is_some()
        };
        records.iter().filter(is_own).cloned().collect()
    }
}

/// Brings the containers and `indexes` to the end of the log. The state of open containers is in the log alone, so they
/// read all of it.
pub(crate) fn recover(
    storage: &ChunkView,
    indexes: &[&dyn View<EngineError>],
    log: &dyn Log,
    mode: Mode,
    digest_bytes: usize,
    sent: Option<Sent<'_>>,
) -> Result<()> {
    let applied = indexes.iter().map(|view| view.position()).min().unwrap_or_default();
    let ahead = indexes.iter().map(|view| view.required_end()).max().unwrap_or_default();
    if ahead > log.end() {
        return Err(EngineError::Inconsistent {
            why: format!(
                "the operations log ends at {}, but an index has applied it up to {}: the end of the log is lost. Restore the log from a \
                    copy of the store",
                log.end().0,
                ahead.0
            ),
        });
    }
    if ahead > log.applied_at_most() {
        return Err(EngineError::Outdated {
            why: format!(
                "its views have applied a log up to {}, and only up to {} it is known to be this one",
                ahead.0,
                log.applied_at_most().0
            ),
        });
    }
    if applied < log.start() && log.has_history() {
        return Err(EngineError::Outdated { why: format!("a view is at {}, and the log begins at {}", applied.0, log.start().0) });
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
            let containers: &dyn View<EngineError> = storage;
            if end <= applied && sent.is_none() {
                return containers.apply(end, &Effects { start, replayed: records, ..Effects::default() });
            }
            let decoded = Decoded::read(records, digest_bytes)?;
            let effects = decoded.effects(start, records);
            if let Some(sent) = sent {
                containers.apply(end, &Effects { replayed: &sent.own_records(records), ..effects })?;
                sent.outbox.add(end, &effects, |name| sent.cluster.foreign_partition(name));
            } else {
                containers.apply(end, &effects)?;
            }
            if end <= applied {
                return Ok(());
            }
            indexes.iter().try_for_each(|view| view.apply(end, &effects))?;
            if mode == Mode::ReadWrite { relieve(indexes) } else { Ok(()) }
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
        None => Ok(storage.0.recovered(log.start(), log.end())?),
    }
}

/// Lets views do the work that they ask for.
fn relieve(views: &[&dyn View<EngineError>]) -> Result<()> {
    for view in views {
        while view.pressure() >= Pressure::Behind && view.step()? {}
    }
    Ok(())
}

/// Brings views that have nothing yet to the start of the log, durably.
pub(crate) fn replay_history(views: &[&dyn View<EngineError>], log: &dyn Log, digest_bytes: usize) -> Result<()> {
    let mut failed = None;
    log.replay_history(&mut |start, end, records| {
        let replay = || -> Result<()> {
            let decoded = Decoded::read(records, digest_bytes)?;
            let effects = decoded.effects(start, records);
            views.iter().try_for_each(|view| view.apply(end, &effects))?;
            relieve(views)
        };
        match replay() {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                std::ops::ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    views.iter().try_for_each(|view| view.catch_up(&|| true))
}
