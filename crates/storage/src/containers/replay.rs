//! What a replay of the log knows of containers: what the opening found in their directories, and what the log says.

use crate::containers::file;
use crate::containers::group_files::highest_member;
use crate::containers::whole::StoredFrames;
use crate::{ContainerId, Result};
use onefold_ground::{Bucket, Ground, list_after};
use onefold_oplog::Position;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Files at the highest numbers that are checked for leftovers of a crash: many times what is created between two
/// flushes.
const LEFTOVER_FILES: usize = 512;

/// A replay: the state that it needs while it lasts, and what it found. Its locks are taken alone, except that a record
/// is replayed under the first one.
#[derive(Debug)]
pub(crate) struct Replay {
    /// `None` when it is over.
    pub(crate) recovery: Mutex<Option<Recovery>>,
    /// Files to skip: a crash came before their first commit.
    pub(crate) leftovers: Mutex<HashSet<ContainerId>>,
}

impl Replay {
    pub(crate) fn new(recovery: Recovery) -> Replay {
        Replay { recovery: Mutex::new(Some(recovery)), leftovers: Mutex::default() }
    }

    /// Ends the replay. Returns the highest number known, by partition; nothing if it was over before.
    pub(crate) fn end(&self) -> BTreeMap<u16, u32> {
        self.recovery.lock().take().map(|recovery| recovery.highest).unwrap_or_default()
    }

    /// Returns whether to skip a file.
    pub(crate) fn is_leftover(&self, container: ContainerId) -> bool {
        self.leftovers.lock().contains(&container)
    }
}

/// State that replay needs, and nobody later.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Containers that the log seals, or that take part in a merge.
    pub(crate) sealed: HashSet<ContainerId>,
    /// What merges in the log made of containers. The last merge counts.
    pub(crate) fates: HashMap<ContainerId, Fate>,
    /// Merges in batches before this have their files replaced.
    pub(crate) finished: Position,
    /// By partition: the highest number known.
    pub(crate) highest: BTreeMap<u16, u32>,
    /// By partition: the files with the highest numbers.
    pub(crate) newest: BTreeMap<u16, Vec<u32>>,
    /// Folders with the files that the opening looks at.
    pub(crate) folders: BTreeSet<String>,
    /// The log names every container that an earlier owner put.
    pub(crate) is_complete: bool,
    /// By partition: no container up to this number is a leftover, as the log says.
    pub(crate) settled: BTreeMap<u16, u32>,
    /// Containers that have forwards, among those that are not settled.
    pub(crate) forwarded: Vec<ContainerId>,
    /// By unsealed container: the frames that the log has with their bytes.
    pub(crate) stored: HashMap<ContainerId, StoredFrames>,
}

/// What a merge made of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// The container that answers to it; `None`: none any more.
    pub(crate) answers: Option<ContainerId>,
    /// The new container of the merge; `None`: there was none.
    pub(crate) target: Option<ContainerId>,
    /// Where the batch of the merge starts.
    pub(crate) position: Position,
}

impl Recovery {
    /// Begins without lists: the log will say which numbers are used.
    pub(crate) fn of_log(partitions: impl Iterator<Item = u32>) -> Recovery {
        let partitions: Vec<u16> = partitions.map(|number| number as u16).collect();
        Recovery {
            sealed: HashSet::new(),
            fates: HashMap::new(),
            finished: Position(0),
            highest: partitions.iter().map(|partition| (*partition, 0)).collect(),
            newest: BTreeMap::new(),
            folders: BTreeSet::new(),
            is_complete: false,
            settled: BTreeMap::new(),
            forwarded: Vec::new(),
            stored: HashMap::new(),
        }
    }

    /// Lists the files that are in the bucket and not settled, from the highest downwards.
    pub(crate) fn list_unsettled(&mut self, bucket: &dyn Bucket, containers: &str) -> Result<()> {
        for partition in self.partitions() {
            let settled = ContainerId::new(partition, self.settled_upto(partition));
            let folder = format!("{}/", file::partition_directory(containers, partition));
            let (mut numbers, mut forwarded) = (Vec::new(), Vec::new());
            list_after(bucket, &folder, file::path(containers, settled), &mut |path, _| {
                let name = path.rsplit('/').next().filter(|_| !path.contains("/parity/")).unwrap_or_default();
                numbers.extend(file::number(name));
                forwarded.extend(file::forward_number(name).map(|number| ContainerId::new(partition, number)));
                true
            })?;
            self.forwarded.extend(forwarded);
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.truncate(LEFTOVER_FILES);
            self.newest.insert(partition, numbers);
        }
        Ok(())
    }

    /// Returns the opened partitions.
    pub(crate) fn partitions(&self) -> Vec<u16> {
        self.highest.keys().copied().collect()
    }

    /// Returns up to which number everything is in the log or gone.
    pub(crate) fn settled_upto(&self, partition: u16) -> u32 {
        self.settled.get(&partition).copied().unwrap_or(0)
    }

    /// Returns from which number on all files were looked at.
    pub(crate) fn examined_from(&self, partition: u16) -> u32 {
        self.newest
            .get(&partition)
            .filter(|numbers| numbers.len() == LEFTOVER_FILES)
            .and_then(|numbers| numbers.last().copied())
            .unwrap_or(0)
    }

    /// Lists the two highest folders of each partition that have files: containers are numbered upwards.
    pub(crate) fn start(ground: &dyn Ground, containers: &str, partitions: impl Iterator<Item = u32>) -> Result<Recovery> {
        let mut recovery = Recovery {
            sealed: HashSet::new(),
            fates: HashMap::new(),
            finished: Position(0),
            highest: BTreeMap::new(),
            newest: BTreeMap::new(),
            folders: BTreeSet::new(),
            is_complete: false,
            settled: BTreeMap::new(),
            forwarded: Vec::new(),
            stored: HashMap::new(),
        };
        for partition in partitions.map(|number| number as u16) {
            let directory = file::partition_directory(containers, partition);
            let folders = ground.list(&directory)?;
            let folders = folders.iter().rev().filter(|entry| entry.is_directory && file::folder_start(&entry.name).is_some());
            let mut numbers = Vec::new();
            let (mut highest, mut with_files) = (0, 0);
            for folder in folders {
                // The numbers before a folder are used, even if it is empty.
                highest = highest.max(file::folder_start(&folder.name).unwrap_or(0).saturating_sub(1));
                let folder = format!("{directory}/{}", folder.name);
                let files = ground.list(&folder)?;
                recovery.folders.insert(folder);
                numbers.extend(files.iter().filter_map(|entry| file::number(&entry.name)));
                let used = files.iter().filter_map(|entry| file::number(&entry.name).or_else(|| file::forward_number(&entry.name))).max();
                highest = highest.max(used.unwrap_or(0));
                with_files += u32::from(used.is_some());
                if with_files == 2 {
                    break;
                }
            }
            highest = highest_member(ground, containers, partition, highest, &mut recovery.folders)?;
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.truncate(LEFTOVER_FILES);
            recovery.highest.insert(partition, highest);
            recovery.newest.insert(partition, numbers);
        }
        Ok(recovery)
    }

    /// Returns the number that the next container of a partition gets, as far as known.
    pub(crate) fn next_number(&self, partition: u16) -> u32 {
        self.highest.get(&partition).copied().unwrap_or(0).saturating_add(1)
    }
}
