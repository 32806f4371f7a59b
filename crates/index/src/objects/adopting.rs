//! Partitions that come and go while the index is used (M4.2), as those of the chunk index do.

use super::{Change, ObjectIndex, Partition, copy, file_name};
use crate::{IndexError, Result};
use onefold_ground::{Access, Ground};
use onefold_oplog::{Owned, Position, ReservedPartition};
use std::sync::Arc;

/// A partition that the index does not have yet.
#[derive(Debug)]
pub struct NewObjects {
    reserved: ReservedPartition,
    epoch: u64,
    partition: Partition,
    /// Memory of changes from which it persists.
    limit_bytes: usize,
}

/// A partition that the index does not have any more. Its files are still there, and are of no use. If they stay, the
/// next one of its number is made in their place.
#[derive(Debug)]
#[must_use]
pub struct RemovedObjects {
    ground: Arc<dyn Ground>,
    directory: String,
    partition: Arc<Partition>,
    reserved: ReservedPartition,
}

/// Share of the bound of changes in memory that those of a new partition take.
const LIMIT_SHARE: usize = 8;

impl ObjectIndex {
    /// Returns whether a partition is opened.
    pub fn has_partition(&self, number: u16) -> bool {
        self.partitions.get(number.into()).is_some()
    }

    /// Makes an empty partition beside the index, in place of what is there. Errors: the index has it, there is none of
    /// this number, or somebody makes it or still uses one that was removed.
    pub fn make_partition(&self, owned: Owned) -> Result<NewObjects> {
        if self.access != Access::ReadWrite {
            return Err(IndexError::ReadOnly { path: self.ground.describe(&self.directory) });
        }
        let number = owned.number;
        let reserved = self.partitions.reserve(number).ok_or_else(|| self.not_to_be_added(number))?;
        remove_files(&*self.ground, &self.directory, number as u16)?;
        super::PartitionFile::create(&self.ground, &file_name(&self.directory, number as u16))?;
        self.ground.sync_directory(&self.directory)?;
        let cache_bytes = self.cache_bytes / (self.partitions.now().iter().len() + 1);
        let partition = Partition::open(&self.ground, &self.directory, owned, self.access, cache_bytes, &self.pending)?;
        let epoch = owned.epoch;
        Ok(NewObjects { reserved, epoch, partition, limit_bytes: self.pending_limit_bytes / LIMIT_SHARE })
    }

    /// Adds a partition that has everything before `at`, where the log ends. It takes batches from there on. Call it
    /// while no batch is applied. Errors: it could not be made durable, and is not added.
    pub fn add_partition(&self, new: NewObjects, at: Position) -> Result<()> {
        if at < new.applied() {
            return Err(self.not_to_be_added(new.reserved.number()));
        }
        if at > new.applied() {
            new.partition.apply(at, 0, &[]);
        }
        new.partition.persist()?;
        self.partitions.add(new.reserved, new.epoch, new.partition);
        Ok(())
    }

    fn not_to_be_added(&self, number: u32) -> IndexError {
        let (path, partitions) = (self.ground.describe(&self.directory), self.partitions.total());
        IndexError::NotToBeAdded { path, partition: number, partitions }
    }

    /// Removes a partition, and waits for nobody. Reads that have begun still find it. Call it while no batch is
    /// applied, when it is durable elsewhere that this node no longer has it. Then [delete](RemovedObjects::delete) its
    /// files. Errors: it is not opened.
    pub fn remove_partition(&self, number: u16) -> Result<RemovedObjects> {
        let (partition, reserved) = self.partitions.remove(number.into()).ok_or_else(|| self.not_opened(number))?;
        Ok(RemovedObjects { ground: self.ground.clone(), directory: self.directory.clone(), partition, reserved })
    }
}

impl RemovedObjects {
    /// Deletes its files. Whoever has begun to read goes on. Errors: files are left.
    pub fn delete(self) -> Result<()> {
        // It may persist just now, and write the second copy.
        let _copied = self.partition.copied.lock();
        remove_files(&*self.ground, &self.directory, self.reserved.number() as u16)
    }
}

fn remove_files(ground: &dyn Ground, directory: &str, number: u16) -> Result<()> {
    for file in [file_name(directory, number), copy::file_name(directory, number)] {
        match ground.remove(&file) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(ground.sync_directory(directory)?)
}

impl NewObjects {
    /// Applies what a batch says of the partition's objects. Batches come in the order of the partition's lineage, each
    /// once: from logs with positions of their own.
    pub fn apply(&self, changes: &[Change]) -> Result<()> {
        // Fewer than the positions that any of these logs has gone through.
        let end = Position(self.applied().0 + 1);
        let own: Vec<&Change> = changes.iter().filter(|change| u32::from(change.0) == self.reserved.number()).collect();
        self.partition.apply(end, 0, &own);
        let pending_bytes = self.partition.tiers.read().pending_bytes();
        if pending_bytes > self.limit_bytes {
            self.partition.persist()?;
        }
        Ok(())
    }

    fn applied(&self) -> Position {
        self.partition.tiers.read().applied()
    }
}
