//! What repairs need of a levelled store: manifests, what is left of a damaged log, lost and damaged tables.

use super::LevelsStore;
use crate::levels::manifest::Manifest;
use crate::levels::options::LevelsOptions;
use crate::levels::partition::{Homes, Partition, directory_of};
use crate::levels::version::LostTable;
use crate::{Result, StorageError};
use onefold_ground::Ground;
use onefold_oplog::{Position, Record};

impl LevelsStore {
    /// Makes the manifests of partitions again where both are damaged, from the tables that are there, for a repair.
    /// Returns which partitions these are. Chunks that were removed may come back, as garbage. Call it with the lock of
    /// the store held for writing; an opening for writing follows, with this epoch or a greater one.
    pub fn restore_manifests(
        ground: &dyn Ground,
        directory: &str,
        partitions: u16,
        options: &LevelsOptions,
        epoch: u64,
    ) -> Result<Vec<String>> {
        options.check()?;
        let restore = |number| Partition::restore_manifest(ground, directory, number, options, epoch).transpose();
        (0..partitions).filter_map(restore).collect()
    }

    /// Writes again whose the directories on other disks are where that cannot be read, for a repair. With `dry_run` it
    /// writes nothing. Returns the directories, for people. Errors: no table there is of the store.
    pub fn restore_homes(
        ground: &dyn Ground,
        directory: &str,
        partitions: u16,
        options: &LevelsOptions,
        dry_run: bool,
    ) -> Result<Vec<String>> {
        let restore = |number| Homes::restore_markers(ground, &directory_of(directory, number), number, options, dry_run);
        let restored = (0..partitions).map(restore).collect::<Result<Vec<_>>>()?;
        Ok(restored.into_iter().flatten().collect())
    }

    /// Returns the greatest epoch and position that the manifests know, and the partitions of which no manifest can be
    /// read, for people.
    pub fn manifests(
        ground: &dyn Ground,
        directory: &str,
        partitions: u16,
        options: &LevelsOptions,
    ) -> Result<(u64, Position, Vec<String>)> {
        let (mut epoch, mut end, mut damaged) = (0, Position(0), Vec::new());
        for number in 0..partitions {
            let directory = directory_of(directory, number);
            end = end.max(Homes::known_end(ground, &directory, number));
            match Manifest::read(ground, &directory, options) {
                Ok(manifest) => (epoch, end) = (epoch.max(manifest.epoch), end.max(manifest.log_end)),
                Err(error) if error.is_damage() => damaged.push(ground.describe(&directory)),
                Err(error) => return Err(error),
            }
        }
        Ok((epoch, end, damaged))
    }

    /// Takes what is left of a damaged log, batch by batch, in the place of [`apply`](crate::ChunkStore::apply).
    /// Returns how many records could not be understood.
    pub fn salvage(&self, start: Position, records: &[Record]) -> Result<u64> {
        let mut unknown = 0;
        for record in records {
            match self.replay(start, record, true) {
                Err(StorageError::Record { .. }) => unknown += 1,
                replayed => replayed?,
            }
        }
        Ok(unknown)
    }

    /// Ends that: nothing here needs the log before `start` any more. Returns how many tables it took that no record
    /// named.
    pub fn leave_log(&self, start: Position) -> Result<u64> {
        self.partitions.iter().map(|partition| partition.leave_log(start)).sum()
    }

    /// Returns the tables that cannot be opened. As long as a partition has one, it is not compacted, and a chunk that
    /// is not found elsewhere there counts as damaged.
    pub fn lost_tables(&self) -> Vec<LostTable> {
        self.partitions.iter().flat_map(Partition::lost_tables).collect()
    }

    /// Gives up the tables that cannot be opened, for a repair: their chunks are gone from then on. Their files go to
    /// `given-up` in the directory of the partition. Returns how many there were. Call only if nobody opens the store
    /// meanwhile.
    pub fn give_up_lost_tables(&self) -> Result<u64> {
        self.check_writable()?;
        self.partitions.iter().map(Partition::give_up_lost_tables).sum()
    }

    /// Returns the tables in which a compaction, a check or a listing has met damage since the opening, for people.
    pub fn damaged_tables(&self) -> Vec<String> {
        self.partitions.iter().flat_map(Partition::damaged_tables).collect()
    }

    /// Writes tables again in which a compaction, a check or a listing has met damage, without the chunks that cannot
    /// be read. Returns how many there were. The caller has noted these chunks as lost. Removed chunks may come back:
    /// they are garbage. Call only if nobody opens the store meanwhile, and after
    /// [`LevelsStore::give_up_lost_tables`].
    pub fn compact_damaged(&self) -> Result<u64> {
        self.check_writable()?;
        self.partitions.iter().map(Partition::compact_damaged).sum()
    }
}
