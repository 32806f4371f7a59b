//! Partitions that come and go while the index is used (M4.2), as those of the chunk index do.

use super::{Change, ObjectIndex, Partition, copy, file_name};
use crate::{IndexError, Result};
use onefold_ground::Access;
use onefold_oplog::{Owned, Position};

/// A partition that the index does not have yet.
#[derive(Debug)]
pub struct NewObjects {
    owned: Owned,
    partition: Partition,
    /// Memory of changes from which it persists.
    limit_bytes: usize,
}

/// Share of the bound of changes in memory that those of a new partition take.
const LIMIT_SHARE: usize = 8;

impl ObjectIndex {
    /// Makes an empty partition beside the index, in place of what is there. Errors: the index has it, or there is none
    /// of this number.
    pub fn make_partition(&self, owned: Owned) -> Result<NewObjects> {
        if self.access != Access::ReadWrite {
            return Err(IndexError::ReadOnly { path: self.ground.describe(&self.directory) });
        }
        let number = owned.number;
        if number >= self.partitions.total() || self.partitions.get(number).is_some() {
            return Err(self.not_to_be_added(number));
        }
        self.remove_files(number as u16)?;
        super::PartitionFile::create(&self.ground, &file_name(&self.directory, number as u16))?;
        self.ground.sync_directory(&self.directory)?;
        let cache_bytes = self.cache_bytes / (self.partitions.now().iter().len() + 1);
        let partition = Partition::open(&self.ground, &self.directory, owned, self.access, cache_bytes)?;
        Ok(NewObjects { owned, partition, limit_bytes: self.pending_limit_bytes / LIMIT_SHARE })
    }

    /// Adds a partition that has everything before `at`, where the log ends. It takes batches from there on. Call it
    /// while no batch is applied. Errors: it could not be made durable, and is not added.
    pub fn add_partition(&self, new: NewObjects, at: Position) -> Result<()> {
        if at < new.applied() {
            return Err(self.not_to_be_added(new.owned.number));
        }
        if at > new.applied() {
            new.partition.apply(at, 0, &[]);
        }
        new.partition.persist()?;
        let number = new.owned.number;
        if self.partitions.add(new.owned, new.partition) { Ok(()) } else { Err(self.not_to_be_added(number)) }
    }

    fn not_to_be_added(&self, number: u32) -> IndexError {
        let (path, partitions) = (self.ground.describe(&self.directory), self.partitions.total());
        IndexError::NotToBeAdded { path, partition: number, partitions }
    }

    /// Removes a partition, with its file. Reads that have begun still find it. Call it while no batch is applied, when
    /// it is durable elsewhere that this node no longer has it, and while nobody makes it again. Errors: it is not
    /// opened, or files are left. They are of no use.
    pub fn remove_partition(&self, number: u16) -> Result<()> {
        let _no_persist = self.persisting.lock();
        let removed = self.partitions.remove(number.into()).ok_or_else(|| self.not_opened(number))?;
        self.count(removed.tiers.read().pending_bytes(), 0);
        drop(removed);
        self.remove_files(number)
    }

    fn remove_files(&self, number: u16) -> Result<()> {
        for file in [file_name(&self.directory, number), copy::file_name(&self.directory, number)] {
            match self.ground.remove(&file) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(self.ground.sync_directory(&self.directory)?)
    }
}

impl NewObjects {
    /// Applies what a batch says of the partition's objects. Batches come in the order of the partition's lineage, each
    /// once: from logs with positions of their own.
    pub fn apply(&self, changes: &[Change]) -> Result<()> {
        // Fewer than the positions that any of these logs has gone through.
        let end = Position(self.applied().0 + 1);
        let own: Vec<&Change> = changes.iter().filter(|change| u32::from(change.0) == self.owned.number).collect();
        let (_, pending_bytes) = self.partition.apply(end, 0, &own);
        if pending_bytes > self.limit_bytes {
            self.partition.persist()?;
        }
        Ok(())
    }

    fn applied(&self) -> Position {
        self.partition.tiers.read().applied()
    }
}
