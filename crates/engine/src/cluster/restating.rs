//! A partition is restated: this node's log says again what is true of it, so that no other log counts
//! (`docs/cluster.md`, "Restating").
//!
//! # Why what it says is complete
//! 1. A key that existed when restating began is in the pages of the index, as everything from before is brought there
//!    first. It is restated, or was removed since: then the log has that.
//! 2. A chunk that batches have touched since, and of which nothing is left, is called removed at the end. A count that
//!    fell to nothing leaves a change below zero in the log, and no removal.
//! 3. Nobody commits between reading a key and logging it. So what is logged is true at its position.
//! 4. The log is cut where restating began: no run has what it said before together with what it says now.
//! 5. What this node has logged before is in what it restates. The cursor of this node says so: nothing of it is
//!    delivered again.

use crate::cluster::owner::cursor_change;
use crate::commit::records::{encode_deltas, encode_objects, encode_places, encode_removals};
use crate::write::reservation::FingerprintSet;
use crate::{Change, Engine, EngineError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_index::IndexEntry;
use onefold_oplog::{Effects, Log, Partition, PartitionClass, Position, Record};
use onefold_storage::Prepared;

/// Objects that are restated at a time.
const PAGE: usize = 256;

/// What batches touch of the partition that is restated.
#[derive(Debug)]
pub(crate) struct Touched {
    partition: u32,
    chunks: FingerprintSet,
}

impl Engine {
    /// Begins to restate a partition. Returns the position from which on the log will say everything of it. The log
    /// stays cut there until [`Engine::uncut`]. Errors: something of it is undelivered; try again.
    pub fn begin_restating(&self, partition: Partition) -> Result<Position> {
        let number = u32::from(partition.number);
        let is_of_index = partition.class == PartitionClass::ChunkIndex;
        if is_of_index && self.outbox.has_some_of(number) {
            self.deliver()?;
        }
        let _committing = self.commits.alone();
        self.writable()?;
        let since = self.log_in_bucket()?.cut();
        if let Some(cluster) = self.cluster.as_ref().filter(|_| is_of_index) {
            if self.outbox.has_some_of(number) {
                self.uncut(since);
                return Err(EngineError::OtherNode { why: "something of the partition is not delivered yet".to_owned() });
            }
            // After a restart, what the log says before looks as if it were for another owner.
            self.log_changes(&[cursor_change(self.objects.own_partition(), number, cluster.node, since)])?;
            *self.touched.lock() = Some(Touched { partition: number, chunks: FingerprintSet::default() });
        }
        Ok(since)
    }

    /// Restates a partition since [`Engine::begin_restating`] returned `since`, one partition at a time. Durable on
    /// return. Asks `go_on` now and then; returns whether it came to the end. Others use the engine meanwhile. Errors:
    /// begin again.
    pub fn restate(&self, partition: Partition, since: Position, go_on: &dyn Fn() -> bool) -> Result<bool> {
        match partition.class {
            PartitionClass::ChunkIndex => self.restate_chunks(partition.number.into(), since, go_on),
            PartitionClass::ObjectIndex => self.restate_objects(partition.number, go_on),
            // It has no keys, and was left sealed by its former owner.
            PartitionClass::Container => Ok(true),
        }
    }

    /// Notes what a batch touches of a partition that is restated.
    pub(crate) fn touch(&self, effects: &Effects<'_>) {
        if let Some(touched) = &mut *self.touched.lock() {
            let names = effects.deltas.iter().map(|(name, _)| name).chain(effects.places.iter().map(|(name, _)| name));
            let partition = touched.partition;
            touched.chunks.extend(names.filter(|name| self.partition_of(name) == partition).copied());
        }
    }

    fn restate_chunks(&self, number: u32, since: Position, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let index = self.movable_index()?;
        index.sweep_up_to(number, since)?;
        let mut next = Some(0);
        while let Some(first) = next {
            if !go_on() {
                return Ok(false);
            }
            self.make_room_in_log();
            let _committing = self.commits.alone();
            self.writable()?;
            let mut entries = Vec::new();
            next = index.entries_from(number, first, &mut entries)?;
            self.log_chunks(&entries)?;
        }
        let _committing = self.commits.alone();
        self.writable()?;
        let touched = self.touched.lock().take().filter(|touched| touched.partition == number);
        let touched = touched.ok_or_else(|| EngineError::Inconsistent { why: "another partition was restated meanwhile".to_owned() })?;
        let touched: Vec<Fingerprint> = touched.chunks.into_iter().collect();
        let mut entries = Vec::with_capacity(touched.len());
        index.lookup(&touched, &mut entries)?;
        let gone: Vec<Fingerprint> = touched.iter().zip(&entries).filter(|(_, entry)| entry.is_none()).map(|(name, _)| *name).collect();
        if !gone.is_empty() {
            let effects = Effects { removals: &gone, ..Effects::default() };
            let records = [encode_removals(&gone, self.digest_bytes())];
            self.log_and_apply(<dyn Log>::commit_beyond_limit, Prepared::default(), &records, effects)?;
        }
        Ok(true)
    }

    /// Logs chunks as they are now. The caller holds [`crate::commit::Commits::alone`].
    fn log_chunks(&self, entries: &[(Fingerprint, IndexEntry)]) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let removals: Vec<Fingerprint> = entries.iter().map(|(name, _)| *name).collect();
        let places: Vec<(Fingerprint, u64)> = entries.iter().map(|(name, entry)| (*name, entry.address)).collect();
        let counted = entries.iter().filter(|(_, entry)| entry.count > 0);
        let deltas: Vec<(Fingerprint, i64)> = counted.map(|(name, entry)| (*name, entry.count.into())).collect();
        let bytes = self.digest_bytes();
        let mut records: Vec<Record> = vec![encode_removals(&removals, bytes), encode_places(&places, bytes)];
        if !deltas.is_empty() {
            records.push(encode_deltas(&deltas, bytes));
        }
        let effects = Effects { removals: &removals, places: &places, deltas: &deltas, ..Effects::default() };
        self.log_and_apply(<dyn Log>::commit_beyond_limit, Prepared::default(), &records, effects).map(drop)
    }

    fn restate_objects(&self, number: u16, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut from = Vec::new();
        loop {
            if !go_on() {
                return Ok(false);
            }
            // What is submitted becomes durable first: a part of a transaction must not come before the rest.
            self.flush()?;
            let _committing = self.commits.alone();
            self.writable()?;
            let page = self.unless_queued(number, || self.objects.range(number, &from, &[u8::MAX; 2], PAGE));
            let Some(page) = page.transpose()? else { continue };
            let Some((last, _)) = page.last() else { return Ok(true) };
            from = [&last[..], &[0]].concat();
            let changes: Vec<Change> = page.into_iter().map(|(key, value)| (number, key, Some(value))).collect();
            let records: Vec<Record> = encode_objects(&changes).collect();
            let effects = Effects { changes: &changes, ..Effects::default() };
            self.log_and_apply(<dyn Log>::commit_beyond_limit, Prepared::default(), &records, effects)?;
        }
    }
}
