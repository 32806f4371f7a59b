//! What the logs of other nodes say, and what counts of the own one.

use crate::cluster::{check_store, part_of_node};
use crate::commit::meaning::{Meanings, keys_of};
use crate::lifecycle::descriptor::Descriptor;
use crate::lifecycle::layout::{LOG, log_options};
use crate::lifecycle::presence;
use crate::lifecycle::settings::Settings;
use crate::lifecycle::state;
use crate::{Engine, EngineError, Result};
use onefold_ground::Ground;
use onefold_oplog::{Holding, Holdings, Log, LogPlace, ObjectLog, Partition, PartitionClass, Position, Wait};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A part of a lineage: what the log of a node says of a partition from one position to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// The node.
    pub node: u32,
    /// What its log says before does not count.
    pub since: Position,
    /// What its log says behind does not count. `None`: it is the owner's.
    pub upto: Option<Position>,
}

/// A partition of which the log of this node says something that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPartition {
    /// The partition.
    pub partition: Partition,
    /// What the log says of it before does not count.
    pub since: Position,
    /// What the log says of it behind does not count. `None`: this node is the owner.
    pub upto: Option<Position>,
    /// Whether no other log comes before this one.
    pub is_first: bool,
}

/// Logs of other nodes that are open for reading.
pub(crate) struct OtherLogs<'a> {
    engine: &'a Engine,
    open: BTreeMap<u32, Arc<ObjectLog>>,
}

impl<'a> OtherLogs<'a> {
    pub(crate) fn new(engine: &'a Engine) -> OtherLogs<'a> {
        OtherLogs { engine, open: BTreeMap::new() }
    }

    /// Returns the log of a node, as of now or later.
    pub(crate) fn get(&mut self, node: u32) -> Result<Arc<ObjectLog>> {
        if let Some(log) = self.open.get(&node) {
            return Ok(log.clone());
        }
        let Engine { ground, descriptor, settings, .. } = self.engine;
        let place = place_of_node(ground, descriptor, node)?;
        let log = Arc::new(ObjectLog::open(place, log_options(settings), meaning(descriptor))?);
        self.open.insert(node, log.clone());
        Ok(log)
    }

    /// Forgets a log that was trimmed meanwhile.
    pub(crate) fn forget(&mut self, node: u32) {
        self.open.remove(&node);
    }
}

fn meaning(descriptor: &Descriptor) -> Arc<Meanings> {
    Arc::new(Meanings { digest_bytes: descriptor.fingerprint.digest_bytes(), has_index: descriptor.profile.is_exact() })
}

fn place_of_node(ground: &Arc<dyn Ground>, descriptor: &Descriptor, node: u32) -> Result<LogPlace> {
    let bucket = ground.bucket().ok_or_else(|| EngineError::Inconsistent { why: "it is not in a bucket".to_owned() })?;
    Ok(LogPlace {
        bucket: part_of_node(bucket, node),
        store: descriptor.store,
        ground: ground.clone(),
        // There are no copies of it, and none of those of the own log is of this one.
        directory: format!("{LOG}-of-{node}"),
        keeps_copies: false,
        owner: presence::owner(&**ground, false)?,
        is_of_node: true,
    })
}

impl Engine {
    /// Closes the log of a node that is gone, for ever, or finds it closed. Returns its end. The node may be alive: it
    /// has acknowledged nothing behind the end, and never will.
    pub fn close_log_of(ground: &Arc<dyn Ground>, node: u32) -> Result<Position> {
        let bucket = ground.bucket().ok_or_else(|| EngineError::Inconsistent { why: "it is not in a bucket".to_owned() })?;
        let descriptor = state::read_store(&*bucket)?;
        let place = place_of_node(ground, &descriptor, node)?;
        Ok(ObjectLog::close(place, log_options(&Settings::default()), meaning(&descriptor))?.end())
    }

    /// Marks the log of a node as one of several, for a node that was lost before it did that. Returns the epoch of the
    /// fence behind which this is done: openings before it have lower ones, and behind it only nodes open the log.
    ///
    /// The node may be at work. Then its opening is over, and it opens its log again.
    pub fn share_log_of(ground: &Arc<dyn Ground>, node: u32) -> Result<u64> {
        let bucket = ground.bucket().ok_or_else(|| EngineError::Inconsistent { why: "it is not in a bucket".to_owned() })?;
        let descriptor = state::read_store(&*bucket)?;
        check_store(&descriptor)?;
        let place = place_of_node(ground, &descriptor, node)?;
        let log = ObjectLog::look_for_taking(place, log_options(&Settings::default()), meaning(&descriptor))?;
        let log = log.taken(1, &[], &mut |_| Ok::<_, EngineError>(Wait::Over))?;
        log.share()?;
        // An ordinary opening may have taken the log between fence and mark. Then this finds its fence.
        log.commit_last(&[])?;
        Ok(log.epoch())
    }

    /// Returns the log of a node. Errors: the store is not in a bucket.
    pub(crate) fn log_in_bucket(&self) -> Result<&ObjectLog> {
        self.log.in_bucket().ok_or_else(|| EngineError::Inconsistent { why: "its log is not in a bucket".to_owned() })
    }

    /// Returns the number of the opening: the epoch of the fence with which it began.
    pub fn opening(&self) -> u64 {
        self.log.epoch()
    }

    /// Says what of the log counts from now on, by the newest table. Call it before anything is adopted by that table.
    /// Errors: a partition is named twice, or the store is not in a bucket.
    pub fn hold_in_log(&self, held: &[HeldPartition]) -> Result<()> {
        let own = Partition { class: PartitionClass::ObjectIndex, number: self.objects.own_partition() };
        let own = HeldPartition { partition: own, since: Position(0), upto: None, is_first: true };
        let holdings = self.holdings(held.iter().copied().chain([own]))?;
        self.log_in_bucket()?.hold(holdings);
        self.cut_where_released(held)?;
        let containers = held.iter().filter(|held| held.partition.class == PartitionClass::Container);
        let mut kept = self.kept_containers.lock();
        // Of one that was left in this opening, it is known from where on the log says everything.
        let since = containers.map(|held| (held.partition.number, kept.get(&held.partition.number).copied().unwrap_or(held.since)));
        let now = since.collect();
        *kept = now;
        Ok(())
    }

    /// Keeps the log cut where partitions were released. What it says of them behind is for their next owners: if a run
    /// had both, whoever reads it would count that twice.
    fn cut_where_released(&self, held: &[HeldPartition]) -> Result<()> {
        let log = self.log_in_bucket()?;
        let mut cuts = self.cuts.lock();
        let held: BTreeMap<Partition, Option<Position>> = held.iter().map(|held| (held.partition, held.upto)).collect();
        // One that a table does not know yet, or that came back and is not adopted yet, is still cut.
        let is_over = |partition: &Partition| held.get(partition).is_none_or(|upto| upto.is_none() && self.has_opened(*partition));
        cuts.retain(|partition, position| {
            let stays = !is_over(partition);
            if !stays {
                log.uncut(*position);
            }
            stays
        });
        for (partition, upto) in held {
            if let (Some(upto), Entry::Vacant(place)) = (upto, cuts.entry(partition)) {
                log.cut_at(upto);
                place.insert(upto);
            }
        }
        Ok(())
    }

    /// Returns whether a partition is opened.
    fn has_opened(&self, partition: Partition) -> bool {
        match partition.class {
            PartitionClass::ChunkIndex => self.cluster.as_ref().is_some_and(|cluster| cluster.has(partition.number.into())),
            PartitionClass::ObjectIndex => self.objects.has_partition(partition.number),
            PartitionClass::Container => self.containers.as_ref().is_some_and(|containers| containers.has_partition(partition.number)),
        }
    }

    /// Returns the position from which on the log is kept, as others may read there what it says of containers.
    pub(crate) fn kept_for_others(&self) -> Option<Position> {
        let containers = self.containers.as_ref()?;
        self.kept_containers.lock().iter().filter(|(number, _)| !containers.has_partition(**number)).map(|(_, since)| *since).min()
    }

    /// Returns the keys of partitions. Errors: one is named twice.
    pub(crate) fn holdings(&self, held: impl Iterator<Item = HeldPartition>) -> Result<Holdings> {
        let mut holdings: Vec<Holding> = held
            .filter_map(|HeldPartition { partition, since, is_first, .. }| {
                let (from, to) = keys_of(partition, self.descriptor.index_partitions)?;
                Some(Holding { from, to: Some(to), since, is_first })
            })
            .collect();
        holdings.sort_by(|a, b| a.from.cmp(&b.from));
        Holdings::of(holdings)
            .ok_or_else(|| EngineError::Invalid { what: "partitions that a log holds".into(), why: "one is named twice".into() })
    }

    /// Lets the log reach a position, and cuts it at its end: a partition may begin there by the next table. Returns
    /// the end.
    pub fn jump_and_cut(&self, at_least: Position) -> Result<Position> {
        let _committing = self.commits.alone();
        self.writable()?;
        self.log.jump_to(at_least)?;
        Ok(self.log_in_bucket()?.cut())
    }

    /// Ends a cut: a partition begins there by now, or never will.
    pub fn uncut(&self, position: Position) {
        if let Some(log) = self.log.in_bucket() {
            log.uncut(position);
        }
    }
}
