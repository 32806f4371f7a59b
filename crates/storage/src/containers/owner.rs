//! Says who owns a partition of containers, and which containers in it are its own (`docs/format.md` section 5.11).
//!
//! Recovery takes a file that the owner's log does not name for a leftover of a crash, and removes it. That is right
//! only for containers that the owner itself made. What an earlier owner sealed is in another log, or no longer in any.
//! So the file says from which number on containers are the owner's, and recovery removes none before it.
//!
//! An adopter must do this, in this order:
//! 1. Ensure that the earlier owner writes no more (a lock, a fence).
//! 2. Bring that owner's containers to the end of its log, as its own opening would: only that log tells what is a
//!    leftover there.
//! 3. [Adopt](crate::ContainerStore::adopt) the partition, with a greater epoch.
//! 4. Open it with its own log.
//!
//! A missing or damaged file is rebuilt at the end of an opening for writing. Until then it is unknown whose the
//! containers are: none of them is removed, and all of them must fit the log. From then on they count as another
//! owner's. A leftover among them stays, and `check` takes it for a damaged container, which `check --repair` gives up.

use crate::containers::file;
use crate::{ContainerId, Result, StorageError};
use onefold_ground::{Ground, GroundError, checksum, parent, read_file, replace_file};
use onefold_oplog::{Owned, Ownership};
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// Bytes of the file.
const OWNER_BYTES: usize = 24;

/// The content of a partition's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// The greatest epoch that has opened the partition for writing.
    epoch: u64,
    /// Containers from this number on were made by this owner.
    first: u32,
}

/// Returns the directory of these files. It lies beside that of the containers, which has containers only.
fn owners(directory: &str) -> String {
    match parent(directory) {
        "" => "owners".to_owned(),
        above => format!("{above}/owners"),
    }
}

fn path(directory: &str, partition: u16) -> String {
    format!("{}/{partition:04x}", owners(directory))
}

impl Owner {
    fn write(self, ground: &dyn Ground, directory: &str, partition: u16) -> Result<()> {
        let mut bytes = self.epoch.to_le_bytes().to_vec();
        bytes.extend_from_slice(&u64::from(self.first).to_le_bytes());
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        Ok(replace_file(ground, &path(directory, partition), &bytes)?)
    }

    /// `Err` inside: why the file cannot be read.
    fn read(ground: &dyn Ground, directory: &str, partition: u16) -> Result<std::result::Result<Owner, String>> {
        let bytes = match read_file(ground, &path(directory, partition), OWNER_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error @ GroundError::TooLong { .. }) => return Ok(Err(error.to_string())),
            Err(error) if error.is_not_found() => return Ok(Err(error.to_string())),
            // It may be a loose cable: no reason to give up the content of the file.
            Err(error) => return Err(error.into()),
        };
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let parse = || {
            let (epoch, first, sum) = (word(0)?, u32::try_from(word(8)?).ok()?, word(16)?);
            (sum == checksum(&bytes[..16])).then_some(Owner { epoch, first })
        };
        Ok(parse().ok_or_else(|| format!("{}: its checksum or its length is wrong", ground.describe(&path(directory, partition)))))
    }
}

/// Reads the file without ever changing it. If the device refuses the read, the content is unknown too.
fn look(ground: &dyn Ground, directory: &str, partition: u16) -> Result<std::result::Result<Owner, String>> {
    match Owner::read(ground, directory, partition) {
        Err(StorageError::Ground(error)) if error.is_lasting() => Ok(Err(error.to_string())),
        read => read,
    }
}

/// Writes that nobody has opened a new partition yet.
pub(crate) fn create(ground: &dyn Ground, directory: &str, partition: u16) -> Result<()> {
    ground.create_directory(&owners(directory))?;
    Owner { epoch: 0, first: 0 }.write(ground, directory, partition)
}

/// Makes a partition of another owner the partition of `owned`, whose containers have `first` and greater numbers.
pub(crate) fn adopt(ground: &dyn Ground, directory: &str, owned: Owned, first: impl FnOnce() -> Result<u32>) -> Result<()> {
    let partition = owned.number as u16;
    if let Ok(stored) = Owner::read(ground, directory, partition)?
        && stored.epoch >= owned.epoch
    {
        return Err(fenced(ground, directory, owned, stored.epoch));
    }
    let first = first()?;
    ground.create_directory(&owners(directory))?;
    Owner { epoch: owned.epoch, first }.write(ground, directory, partition)
}

/// An opened partition.
#[derive(Clone, Copy, Debug)]
struct Opened {
    /// The epoch of its owner.
    epoch: u64,
    /// Containers from this number on were made by its owner. `None`: the file does not say.
    first: Option<u32>,
}

/// The opened partitions, and what in them is their owner's. The lock is taken last and alone.
#[derive(Debug)]
pub(crate) struct Owners {
    /// How many partitions the store has, opened or not.
    total: u32,
    opened: RwLock<BTreeMap<u16, Opened>>,
    has_files: bool,
}

impl Owners {
    /// Reads who owns the partitions. With `takes` they are opened for writing. A partition that was opened with a
    /// greater epoch is refused; the others have this epoch from here on, durably. Files that say nothing are left for
    /// [`rebuild`].
    pub(crate) fn open(ground: &dyn Ground, directory: &str, ownership: &Ownership, takes: bool) -> Result<Owners> {
        let mut opened = BTreeMap::new();
        for owned in ownership.owned() {
            let partition = owned.number as u16;
            let read = if takes { Owner::read } else { look }(ground, directory, partition)?;
            let first = match read {
                Ok(stored) if takes && stored.epoch > owned.epoch => return Err(fenced(ground, directory, *owned, stored.epoch)),
                Ok(stored) => {
                    if takes && stored.epoch != owned.epoch {
                        Owner { epoch: owned.epoch, ..stored }.write(ground, directory, partition)?;
                    }
                    Some(stored.first)
                }
                Err(why) => {
                    if takes {
                        tracing::warn!(why, "leftover containers of a partition are kept: its owner file cannot be read");
                    }
                    None
                }
            };
            opened.insert(partition, Opened { epoch: owned.epoch, first });
        }
        Ok(Owners { total: ownership.total(), opened: RwLock::new(opened), has_files: true })
    }

    /// Opens partitions whose containers are in the logs of their owners, which alone say who owns them. So there are
    /// no files.
    pub(crate) fn of_log(ownership: &Ownership) -> Owners {
        let opened = ownership.owned().iter().map(|owned| (owned.number as u16, Opened { epoch: owned.epoch, first: Some(0) }));
        Owners { total: ownership.total(), opened: RwLock::new(opened.collect()), has_files: false }
    }

    /// Returns the numbers of the opened partitions, ascending.
    pub(crate) fn partitions(&self) -> Vec<u16> {
        self.opened.read().keys().copied().collect()
    }

    /// Returns how many partitions the store has, opened or not.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Returns whether a partition is opened.
    pub(crate) fn has(&self, partition: u16) -> bool {
        self.opened.read().contains_key(&partition)
    }

    /// Adds a partition of a store without files of owners.
    pub(crate) fn add(&self, owned: Owned) {
        debug_assert!(!self.has_files);
        self.opened.write().insert(owned.number as u16, Opened { epoch: owned.epoch, first: Some(0) });
    }

    /// Removes a partition.
    pub(crate) fn remove(&self, partition: u16) {
        self.opened.write().remove(&partition);
    }

    /// Returns the epoch of the owner of a container's partition. Returns 0 if the partition is not opened: nothing is
    /// written there.
    pub(crate) fn epoch_of(&self, container: ContainerId) -> u64 {
        self.opened.read().get(&container.partition()).map_or(0, |opened| opened.epoch)
    }

    /// Returns whether the owner of an opened partition made this container, or will: no earlier owner did. `None`:
    /// unknown.
    pub(crate) fn is_own(&self, container: ContainerId) -> Option<bool> {
        match self.opened.read().get(&container.partition()) {
            None => Some(false),
            Some(opened) => opened.first.map(|first| container.number() >= first),
        }
    }

    /// Returns what is wrong with the files of the opened partitions.
    pub(crate) fn damaged(&self, ground: &dyn Ground, directory: &str) -> Result<Vec<String>> {
        let mut damaged = Vec::new();
        for partition in self.partitions().into_iter().filter(|_| self.has_files) {
            damaged.extend(look(ground, directory, partition)?.err());
        }
        Ok(damaged)
    }

    /// Returns the greatest epoch that has opened a partition for writing, as far as readable.
    pub(crate) fn greatest_epoch(&self, ground: &dyn Ground, directory: &str) -> Result<u64> {
        let mut greatest = 0;
        for partition in self.partitions().into_iter().filter(|_| self.has_files) {
            greatest = look(ground, directory, partition)?.map_or(greatest, |owner| greatest.max(owner.epoch));
        }
        Ok(greatest)
    }

    /// Rebuilds the files that say nothing: containers made from here on are the owner's. `next_number` knows their
    /// numbers by partition. Call only when recovery has found nothing that contradicts the log. Otherwise the
    /// containers that it checks then would count as another owner's at the next opening.
    pub(crate) fn rebuild(&self, ground: &dyn Ground, directory: &str, next_number: impl Fn(u16) -> u32) -> Result<()> {
        let opened = self.opened.read().clone();
        for (partition, Opened { epoch, .. }) in opened.into_iter().filter(|(_, opened)| opened.first.is_none()) {
            ground.create_directory(&owners(directory))?;
            Owner { epoch, first: next_number(partition) }.write(ground, directory, partition)?;
        }
        Ok(())
    }
}

fn fenced(ground: &dyn Ground, directory: &str, owned: Owned, stored_epoch: u64) -> StorageError {
    let path = ground.describe(&file::partition_directory(directory, owned.number as u16));
    StorageError::Fenced { path, stored_epoch, epoch: owned.epoch }
}
