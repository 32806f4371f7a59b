//! The content of a store as of one moment between two commits, read while writers go on. Made for `check`, which
//! compares parts that change together.
//!
//! A commit changes chunk index, objects and containers together, under one lock. [`Engine::moment`] takes that lock
//! while it copies what each of them has only in memory: changes that are in no page, objects that are in no database,
//! and how many slots of the open containers the log has. Settings bound all of these, so commits wait for
//! milliseconds.
//!
//! Data on disk needs no copy. Pages of the chunk index are not written while their partition is held, the database
//! keeps its snapshot, and slots of containers never change.

use crate::{Engine, EngineError, Result};
use onefold_index::{HeldEntries, objects};
use onefold_oplog::Position;
use onefold_storage::CommittedSlots;
use parking_lot::MutexGuard;
use std::ops::RangeInclusive;

/// A store between two commits.
pub struct Moment<'a> {
    engine: &'a Engine,
    objects: objects::Moment<'a>,
    containers: CommittedSlots,
    position: Position,
    chunks: Option<Box<dyn HeldEntries + 'a>>,
    _nothing_removed: Option<MutexGuard<'a, ()>>,
}

impl Engine {
    /// Returns the store as of now: everything durable, nothing that is only submitted. With `prefixes`, it includes
    /// the entries of the chunk index, if there is one, whose fingerprints have such prefixes.
    ///
    /// The partitions of these entries are not swept until the entries are read ([`Moment::take_chunks`]). While such a
    /// moment exists, no chunk is removed and no container merged, so everything that was stored then can be read.
    pub fn moment(&self, prefixes: Option<RangeInclusive<u64>>) -> Result<Moment<'_>> {
        let nothing_removed = prefixes.as_ref().map(|_| self.reclaiming.alone());
        // This may wait for a sweep, so it comes before commits are held up.
        let mut chunks = prefixes.and_then(|prefixes| Some(self.lookup.index()?.hold(prefixes)));
        let _committing = self.commits.alone();
        if let Some(why) = self.commits.why_stopped() {
            // The log and the memory differ.
            return Err(EngineError::Stopped { why: why.to_owned() });
        }
        chunks.iter_mut().for_each(|chunks| chunks.take());
        Ok(Moment {
            engine: self,
            objects: self.objects.moment()?,
            containers: self.storage.committed_slots(),
            position: self.log.end(),
            chunks,
            _nothing_removed: nothing_removed,
        })
    }
}

impl<'a> Moment<'a> {
    /// Returns the partition of what the engine notes of itself.
    pub(crate) fn own_partition(&self) -> u16 {
        self.engine.objects.own_partition()
    }

    /// Returns up to `limit` objects with `from <= key < to`, sorted.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.objects.range(partition, from, to, limit)?)
    }

    /// Returns the value of an object.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.objects.get(partition, key)?)
    }

    /// Returns whether some objects had to be read as of a later moment, because the database failed meanwhile (a full
    /// disk).
    pub fn has_moved(&self) -> bool {
        self.objects.has_moved()
    }

    /// Returns how many slots of each container the log had.
    pub fn containers(&self) -> &CommittedSlots {
        &self.containers
    }

    /// Returns where the log ended.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Returns the entries of the chunk index, once. Read them soon.
    pub fn take_chunks(&mut self) -> Option<Box<dyn HeldEntries + 'a>> {
        self.chunks.take()
    }

    /// Returns the number of object-index partitions.
    pub fn object_partitions(&self) -> u16 {
        self.engine.object_partitions()
    }

    /// Returns the length of the store's digests, bytes.
    pub fn digest_bytes(&self) -> usize {
        self.engine.digest_bytes()
    }
}
