//! Partitions go from this node by plan (M4.2, M4.8). What it has logged of one is all that it will ever log as its
//! owner: later changes of counts are changes for another owner, and go through the outbox.

use crate::cluster::rights::Right;
use crate::{Engine, Result};
use onefold_oplog::{Partition, PartitionClass, Position};

impl Engine {
    /// Releases a partition. Everything of it is durable on return. Returns the position behind which this node's log
    /// has nothing of it. The caller lets no requests in that concern it. Errors: it is not opened here, or what is
    /// of it cannot be made durable; then it may be half released, and only another opening has it again.
    pub fn release_partition(&self, partition: Partition) -> Result<Position> {
        self.writable()?;
        match partition.class {
            PartitionClass::ChunkIndex => self.release_chunks(partition.number.into()),
            PartitionClass::ObjectIndex => self.release_objects(partition.number),
            PartitionClass::Container => self.release_containers(partition.number),
        }
    }

    fn release_chunks(&self, number: u32) -> Result<Position> {
        let index = self.movable_index()?;
        self.flush()?;
        let (removed, upto) = {
            let _committing = self.commits.alone();
            let upto = self.cut_released(PartitionClass::ChunkIndex, number as u16)?;
            if let Some(cluster) = &self.cluster {
                cluster.set(number, Right::None);
            }
            self.outbox.moved(number);
            (index.remove_partition(number)?, upto)
        };
        // Who has them tells the next owner.
        self.claims.release(&self.guests.forget(|name| self.partition_of(name) == number));
        if let Err(error) = removed.delete() {
            tracing::warn!(%error, "files of a partition of the chunk index that went to another node are left");
        }
        Ok(upto)
    }

    /// Returns the end of the log, behind which it has nothing of a partition. It stays cut there.
    fn cut_released(&self, class: PartitionClass, number: u16) -> Result<Position> {
        let upto = self.log_in_bucket()?.cut();
        self.cuts.lock().insert(Partition { class, number }, upto);
        Ok(upto)
    }

    fn release_objects(&self, number: u16) -> Result<Position> {
        let (removed, upto) = loop {
            self.flush()?;
            let _committing = self.commits.alone();
            // Nobody submits while the queue is locked.
            if let Some(removed) = self.unless_queued(number, || self.objects.remove_partition(number)) {
                break (removed?, self.cut_released(PartitionClass::ObjectIndex, number)?);
            }
        };
        if let Err(error) = removed.delete() {
            tracing::warn!(%error, "files of a partition of objects that went to another node are left");
        }
        Ok(upto)
    }

    fn release_containers(&self, number: u16) -> Result<Position> {
        let containers = self.need_containers()?;
        containers.leave_partition(number)?;
        // What streams have in it is theirs: transactions go first.
        self.flush()?;
        loop {
            {
                // What a batch notes of the partition comes before its end, or is refused.
                let _committing = self.commits.alone();
                if let Some(left) = containers.remove_partition(number)? {
                    self.kept_containers.lock().insert(number, left.since());
                    return Ok(self.log.end());
                }
            }
            self.flush()?;
            containers.finish_merges()?;
            std::thread::sleep(crate::cluster::LOOKED_AT_EVERY);
        }
    }
}
