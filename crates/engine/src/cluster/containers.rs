//! Partitions of containers come to this node. `onefold_storage`'s `adopting.rs` says how, and why it is safe.

use crate::cluster::Adoption;
use crate::cluster::notes::OtherNotes;
use crate::cluster::other_logs::OtherLogs;
use crate::commit::records::encode_objects;
use crate::lifecycle::layout::{CONTAINERS, storage_options};
use crate::{Engine, EngineError, Result};
use onefold_ground::Access;
use onefold_oplog::{Effects, Log, Owned, Ownership, PartitionClass, Position, Record};
use onefold_storage::{ChunkStore, ContainerStore, LeftPartition, Prepared, Scope, StorageOptions, numbers_reserved};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of each cache of a store that only ends what a former owner began, bytes.
const SMALL_CACHE_BYTES: usize = 1 << 20;
/// How long a partition may take until all its containers are sealed and settled. Each seal is a request.
const LEAVES_WITHIN: Duration = Duration::from_secs(60);
const TRIED_EVERY: Duration = Duration::from_millis(5);

impl Engine {
    pub(super) fn adopt_containers(&self, adoption: &Adoption, logs: &mut OtherLogs<'_>, notes: &mut OtherNotes) -> Result<()> {
        let number = adoption.partition.number;
        let owned = Owned { number: number.into(), epoch: adoption.epoch };
        let containers = self.need_containers()?;
        {
            let _committing = self.commits.alone();
            self.writable()?;
            let changes = self.notes_to_adopt(adoption.partition, &adoption.lineage, logs, notes)?.unwrap_or_default();
            let mut records: Vec<Record> = vec![numbers_reserved(number)];
            records.extend(encode_objects(&changes));
            let effects = Effects { changes: &changes, ..Effects::default() };
            self.log_and_apply(<dyn Log>::commit_beyond_limit, Prepared::default(), &records, effects)?;
        }
        let ownership = Ownership::of(self.descriptor.container_partitions.into(), vec![owned])
            .ok_or_else(|| EngineError::Invalid { what: format!("partition {number}"), why: "the store has none of this number".into() })?;
        let options = StorageOptions {
            frame_cache_bytes: SMALL_CACHE_BYTES,
            catalog_cache_bytes: SMALL_CACHE_BYTES,
            workers: 1,
            ..storage_options(&*self.ground, &self.descriptor, &self.settings)
        };
        let second = ContainerStore::open(self.ground.clone(), CONTAINERS, &ownership, options, Access::ReadWrite, self.profile.clone())?;
        let mut start = None;
        for part in &adoption.lineage {
            let upto = part.upto.unwrap_or(Position(u64::MAX));
            let log: Arc<dyn Log>;
            let log: &dyn Log = match part.node == self.cluster.as_ref().map_or(part.node, |cluster| cluster.node) {
                true => &*self.log,
                false => {
                    // A living owner's log may have been trimmed since it was opened here.
                    logs.forget(part.node);
                    log = logs.get(part.node)?;
                    &*log
                }
            };
            // Of the logs behind the first one nothing of this is trimmed.
            start.get_or_insert(log.start());
            replay_containers(log, &second, number, part.since, upto)?;
        }
        second.recovered(start.unwrap_or_default(), self.log.end())?;
        second.set_void(self.noted_void(number)?);
        let of: Arc<dyn ChunkStore> = second.clone();
        {
            let _committing = self.commits.alone();
            self.log_changes(&self.void_changes(second.found_void()))?;
        }
        let left = self.leave(&of, &second, number)?;
        Ok(containers.add_partition(owned, left)?)
    }

    /// Has a container store leave a partition: all its containers are sealed and settled.
    pub(super) fn leave(&self, of: &Arc<dyn ChunkStore>, containers: &ContainerStore, number: u16) -> Result<LeftPartition> {
        containers.leave_partition(number)?;
        let until = Instant::now() + LEAVES_WITHIN;
        loop {
            if let Some(left) = containers.remove_partition(number)? {
                return Ok(left);
            }
            {
                let _committing = self.commits.alone();
                self.writable()?;
                let prepared = of.prepare(Scope::Everything)?;
                // They are not of this engine's streams: no transaction waits for them.
                self.commit_prepared(of, prepared, &[], 0, <dyn Log>::commit_beyond_limit)?;
            }
            let merged = containers.finish_merges();
            if Instant::now() > until {
                merged?;
                let why = format!("partition {number} of containers could not be sealed within {} s", LEAVES_WITHIN.as_secs());
                return Err(EngineError::Inconsistent { why });
            }
            std::thread::sleep(TRIED_EVERY);
        }
    }
}

/// Replays what a log says of a partition of containers.
fn replay_containers(log: &dyn Log, into: &ContainerStore, number: u16, since: Position, upto: Position) -> Result<()> {
    let mut failed = None;
    log.replay(log.start(), &mut |start, _, records| {
        if start >= upto {
            return ControlFlow::Break(());
        }
        let is_its = |record: &&Record| record.partition.class == PartitionClass::Container && record.partition.number == number;
        let mut counting = records.iter().filter(|record| start >= since && is_its(record));
        match counting.try_for_each(|record| into.replay(start, record)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
