//! Partitions that come and go while the index is used (M4.2): a node of a cluster takes some over and gives others
//! away.
//!
//! A partition that comes is made beside the index, from what the logs of its former owners say. Whenever one comes or
//! goes, the caches divide their memory among those that are there.

use super::partition::{Opening, Partition};
use super::{ChunkBatch, ChunkIndex, IndexEntry, Stepped, partition_directory, partition_of};
use crate::{IndexError, Result};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground};
use onefold_oplog::{Owned, Position, ReservedPartition};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A partition that the index does not have yet.
#[derive(Debug)]
pub struct NewPartition {
    reserved: ReservedPartition,
    epoch: u64,
    /// How many bits of a fingerprint choose a partition.
    bits: u32,
    partition: Partition,
    /// Memory of changes from which it sweeps.
    limit_bytes: usize,
}

/// A partition that the index does not have any more. Its files are still there, and are of no use. If they stay, the
/// next one of its number is made in their place.
#[derive(Debug)]
#[must_use]
pub struct RemovedPartition {
    ground: Arc<dyn Ground>,
    partition: Arc<Partition>,
    _reserved: ReservedPartition,
}

/// Share of the bound of the auxiliary index that the changes of a new partition take.
const LIMIT_SHARE: usize = 8;

impl ChunkIndex {
    /// Makes an empty partition beside the index, in place of what its directory has. Errors: the index has it, there
    /// is none of this number, or somebody makes it or still uses one that was removed.
    pub fn make_partition(&self, owned: Owned) -> Result<NewPartition> {
        let number = owned.number;
        if self.access != Access::ReadWrite {
            return Err(IndexError::ReadOnly { path: self.path.clone() });
        }
        let reserved = self.partitions.reserve(number).ok_or_else(|| self.not_to_be_added(number))?;
        let directory = partition_directory(&self.directory, number);
        if self.ground.exists(&directory)? {
            remove_files(&*self.ground, &directory)?;
        } else {
            self.ground.create_directory(&directory)?;
        }
        Partition::create(&*self.ground, &directory, self.shape, number)?;
        let memory = self.options.of_each(self.partitions.now().iter().len() + 1);
        let opening = Opening { access: Access::ReadWrite, epoch: owned.epoch, memory };
        let partition = Partition::open(&self.ground, directory, self.shape, number, opening, &self.counters)?;
        let epoch = owned.epoch;
        Ok(NewPartition {
            reserved,
            epoch,
            bits: self.partition_bits(),
            partition,
            limit_bytes: self.options.auxiliary_bytes / LIMIT_SHARE,
        })
    }

    /// Adds a partition that has everything before `at`, where the log ends. It takes batches from there on. Call it
    /// while no batch is applied. Errors: it could not be made durable, and is not added.
    pub fn add_partition(&self, new: NewPartition, at: Position) -> Result<()> {
        let NewPartition { reserved, epoch, partition, .. } = new;
        if at.0 < partition.state.read().last {
            return Err(self.not_to_be_added(reserved.number()));
        }
        partition.apply(at.0, [].into_iter(), [].into_iter(), [].into_iter(), [].into_iter());
        while partition.state.read().applied < at.0 {
            partition.step()?;
        }
        self.partitions.add(reserved, epoch, partition);
        self.divide_memory();
        Ok(())
    }

    /// Brings everything that a partition has before `upto` into its pages. Errors: it is not opened.
    pub fn sweep_up_to(&self, number: u32, upto: Position) -> Result<()> {
        let partition = self.partitions.get(number).ok_or_else(|| self.not_opened(number))?;
        let upto = upto.0.min(partition.state.read().last);
        while partition.state.read().applied < upto {
            partition.step()?;
        }
        Ok(())
    }

    /// Appends chunks of a partition and what is known of them, from its page `first` on. Returns the page to continue
    /// with; `None`: these were the last. What came since the last sweep may be missing, and some come twice if the
    /// partition grows. Errors: it is not opened, or a page is damaged.
    pub fn entries_from(&self, number: u32, first: u32, out: &mut Vec<(Fingerprint, IndexEntry)>) -> Result<Option<u32>> {
        let partition = self.partitions.get(number).ok_or_else(|| self.not_opened(number))?;
        partition.entries_of_run(first, out)
    }

    /// Removes a partition, and waits for nobody. Look-ups that have begun find it, or that it is not opened. Call it
    /// while no batch is applied, when it is durable elsewhere that this node no longer has it. Then
    /// [delete](RemovedPartition::delete) its files. Errors: it is not opened.
    pub fn remove_partition(&self, number: u32) -> Result<RemovedPartition> {
        let (partition, reserved) = self.partitions.remove(number).ok_or_else(|| self.not_opened(number))?;
        self.divide_memory();
        Ok(RemovedPartition { ground: self.ground.clone(), partition, _reserved: reserved })
    }

    fn divide_memory(&self) {
        let partitions = self.partitions.now();
        let memory = self.options.of_each(partitions.iter().len());
        for partition in partitions.iter() {
            let pages = partition.state.read().pages.clone();
            pages.bound(memory);
        }
    }

    fn not_to_be_added(&self, number: u32) -> IndexError {
        IndexError::NotToBeAdded { path: self.path.clone(), partition: number, partitions: self.partitions.total() }
    }
}

impl RemovedPartition {
    /// Deletes its files. It waits for a sweep's piece, and for those who [hold](ChunkIndex::hold) the partition.
    /// Errors: files are left.
    pub fn delete(self) -> Result<()> {
        // A sweep ends its piece first, and begins no other one.
        self.partition.files.lock().is_removed = true;
        remove_files(&*self.ground, &self.partition.directory)
    }
}

impl NewPartition {
    /// Applies what a batch says of the partition's chunks. Batches come in the order of the partition's lineage, each
    /// once: from logs with positions of their own.
    pub fn apply(&self, batch: ChunkBatch<'_>) -> Result<()> {
        // Fewer than the positions that any of these logs has gone through.
        let end = self.partition.state.read().last + 1;
        let is_ours = |fingerprint: &Fingerprint| partition_of(fingerprint.prefix(), self.bits) == self.reserved.number();
        let ChunkBatch { removals, places, inserts, deltas, .. } = batch;
        self.partition.apply(
            end,
            removals.iter().filter(|fingerprint| is_ours(fingerprint)).copied(),
            places.iter().filter(|(fingerprint, _)| is_ours(fingerprint)).copied(),
            inserts.iter().filter(|(fingerprint, _)| is_ours(fingerprint)).copied(),
            deltas.iter().filter(|(fingerprint, _)| is_ours(fingerprint)).copied(),
        );
        let is_large = || self.partition.state.read().memory_bytes() > self.limit_bytes;
        while is_large() && self.partition.step()? != Stepped::Nothing {}
        Ok(())
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let bytes = self.memory_bytes.load(Ordering::Relaxed);
        self.counters.auxiliary_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn remove_files(ground: &dyn Ground, directory: &str) -> Result<()> {
    for entry in ground.list(directory)? {
        ground.remove(&format!("{directory}/{}", entry.name))?;
    }
    Ok(ground.sync_directory(directory)?)
}
