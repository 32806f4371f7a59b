//! Which containers have parity: the groups of a store, as the names of their files tell.
//!
//! # Invariant
//! *Every member of a group whose parity file is in place has its file, or has lost it.* A merge that takes the file of a member away first takes the
//! parity file away, durably; so a member without a file is never one that went with a merge, and may be made anew from the others. And no
//! number of a member is ever given to another container.
//!
//! A group is made of sealed containers that the log knows; a file is put in its place under the lock that replacing files takes
//! (`Shared::replacing`), so no merge takes a member away meanwhile. Of two groups with a common member (a crash came before the older one was
//! removed) the one with the greater number counts.

use crate::parity::{parity_directory, parity_folder, parity_name, parity_path};
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, StorageError, file};
use onefold_ground::{Access, Ground};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What is known of groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Numbers of the members, ascending.
    members: BTreeMap<ContainerId, Vec<u32>>,
    of: HashMap<ContainerId, ContainerId>,
    /// Sealed containers in no group; `None` until somebody makes groups.
    pub(crate) without: Option<BTreeSet<ContainerId>>,
    /// Containers that are damaged beyond repair, for this opening: they are in no new group, and no repair of them is tried again until something changes.
    pub(crate) unsound: HashSet<ContainerId>,
    /// By partition: the next group.
    next_numbers: BTreeMap<u16, u32>,
}

impl Groups {
    pub(crate) fn group_of(&self, container: ContainerId) -> Option<ContainerId> {
        self.of.get(&container).copied()
    }

    pub(crate) fn members(&self, group: ContainerId) -> Option<Vec<ContainerId>> {
        let members = self.members.get(&group)?;
        Some(members.iter().map(|number| ContainerId::new(group.partition(), *number)).collect())
    }

    pub(crate) fn numbers(&self, group: ContainerId) -> Option<&[u32]> {
        self.members.get(&group).map(Vec::as_slice)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (ContainerId, &[u32])> {
        self.members.iter().map(|(group, members)| (*group, members.as_slice()))
    }

    /// The next number of a partition, given out.
    pub(crate) fn next_group(&mut self, partition: u16) -> Result<ContainerId> {
        let next = self.next_numbers.entry(partition).or_insert(1);
        let group = ContainerId::new(partition, *next);
        *next = next.checked_add(1).ok_or(StorageError::NumbersUsedUp { partition })?;
        Ok(group)
    }

    /// A group is in place. Groups with members of it count no more; they are returned.
    pub(crate) fn insert(&mut self, group: ContainerId, members: Vec<u32>) -> Vec<ContainerId> {
        let next = self.next_numbers.entry(group.partition()).or_insert(1);
        *next = (*next).max(group.number().saturating_add(1));
        let mut replaced = BTreeSet::new();
        for number in &members {
            let member = ContainerId::new(group.partition(), *number);
            replaced.extend(self.of.insert(member, group));
            self.unsound.remove(&member);
            if let Some(without) = &mut self.without {
                without.remove(&member);
            }
        }
        self.members.insert(group, members);
        replaced.into_iter().collect()
    }

    /// The parity file of a group is gone; those of its members that are in no other one have no parity.
    pub(crate) fn remove(&mut self, group: ContainerId) {
        for number in self.members.remove(&group).unwrap_or_default() {
            let member = ContainerId::new(group.partition(), number);
            if self.of.get(&member) == Some(&group) {
                self.of.remove(&member);
                if let Some(without) = &mut self.without {
                    without.insert(member);
                }
            }
        }
    }

    /// A container was sealed.
    pub(crate) fn sealed(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.without {
            without.insert(container);
        }
    }

    /// A container has no file any more.
    fn gone(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.without {
            without.remove(&container);
        }
        self.unsound.remove(&container);
    }
}

/// How much of a store has parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityStatistics {
    /// Groups of containers with a parity file.
    pub groups: u64,
    /// Containers in them.
    pub containers: u64,
}

impl ContainerStore {
    /// How much has parity.
    pub fn parity_statistics(&self) -> Result<ParityStatistics> {
        self.shared.with_groups(|groups| {
            let containers = groups.all().map(|(_, members)| members.len() as u64).sum();
            Ok(ParityStatistics { groups: groups.all().count() as u64, containers })
        })
    }

    /// All groups with a parity file, ascending. A group is named by partition and number, as a container.
    pub fn parity_groups(&self) -> Result<Vec<ContainerId>> {
        self.shared.with_groups(|groups| Ok(groups.all().map(|(group, _)| group).collect()))
    }
}

impl Shared {
    /// Works with the groups, which are read from the names of the parity files at the first time. Takes no other lock.
    pub(crate) fn with_groups<T>(&self, work: impl FnOnce(&mut Groups) -> Result<T>) -> Result<T> {
        let mut known = self.groups.lock();
        if known.is_none() {
            *known = Some(self.read_groups()?);
        }
        work(known.as_mut().expect("they were read just now"))
    }

    /// Works with the groups if they were read already: whoever reads them later sees what is in place then.
    pub(crate) fn with_known_groups(&self, work: impl FnOnce(&mut Groups)) {
        if let Some(groups) = self.groups.lock().as_mut() {
            work(groups);
        }
    }

    fn read_groups(&self) -> Result<Groups> {
        let mut groups = Groups::default();
        let partitions = self.placement.lock().next_numbers.len() as u16;
        for partition in 0..partitions {
            let directory = parity_directory(&self.directory, partition);
            if !self.ground.exists(&directory)? {
                continue;
            }
            let mut removed = BTreeSet::new();
            for entry in self.ground.list(&directory)? {
                if entry.is_directory && file::folder_start(&entry.name).is_some() {
                    let names = self.ground.list(&format!("{directory}/{}", entry.name))?;
                    let mut found: Vec<_> = names.iter().filter_map(|entry| parity_name(&entry.name)).collect();
                    found.sort_unstable();
                    for (number, members) in found {
                        for older in groups.insert(ContainerId::new(partition, number), members) {
                            self.remove_older(&mut groups, older, &mut removed)?;
                        }
                    }
                } else if self.access == Access::ReadWrite && (entry.name.ends_with(".new") || entry.name.ends_with(".repair")) {
                    // A crash came before it was in its place.
                    self.remove_if_there(&format!("{directory}/{}", entry.name), &mut removed)?;
                }
            }
            self.sync_folders(&removed)?;
        }
        Ok(groups)
    }

    /// A greater group has members of this one: a crash came before it was removed.
    fn remove_older(&self, groups: &mut Groups, older: ContainerId, folders: &mut BTreeSet<String>) -> Result<()> {
        if self.access == Access::ReadWrite
            && let Some(members) = groups.numbers(older)
        {
            self.remove_if_there(&parity_path(&self.directory, older, members), folders)?;
        }
        groups.remove(older);
        Ok(())
    }

    /// Takes the parity files of all groups away that have one of these containers, durably: before the files of the containers go.
    pub(crate) fn drop_parity_of<'a>(&self, containers: impl Iterator<Item = &'a ContainerId>) -> Result<()> {
        let mut gone: Vec<ContainerId> = containers.copied().collect();
        gone.sort_unstable();
        gone.dedup();
        let found: BTreeSet<ContainerId> = self.with_groups(|groups| {
            let found = gone.iter().filter_map(|container| groups.group_of(*container)).collect();
            gone.iter().for_each(|container| groups.gone(*container));
            Ok(found)
        })?;
        self.remove_groups(found.into_iter().collect::<Vec<_>>().as_slice())?;
        self.with_groups(|groups| {
            gone.iter().for_each(|container| groups.gone(*container));
            Ok(())
        })
    }

    /// Takes the parity files of groups away, durably.
    pub(crate) fn remove_groups(&self, found: &[ContainerId]) -> Result<()> {
        let mut folders = BTreeSet::new();
        for group in found {
            let numbers = self.with_groups(|groups| Ok(groups.numbers(*group).map(<[u32]>::to_vec)))?;
            if let Some(numbers) = numbers {
                self.remove_if_there(&parity_path(&self.directory, *group, &numbers), &mut folders)?;
            }
        }
        // A name whose removal is not durable may come back with a crash: until then the group is known, and its removal is repeated.
        self.sync_folders(&folders)?;
        self.with_groups(|groups| {
            found.iter().for_each(|group| groups.remove(*group));
            Ok(())
        })
    }

    /// Makes the directory of a group's parity file; returns it.
    pub(crate) fn make_parity_folder(&self, group: ContainerId) -> Result<String> {
        let folder = parity_folder(&self.directory, group);
        self.ground.create_directory(&folder).map_err(StorageError::cannot_write)?;
        Ok(folder)
    }

    /// A file that is written beside and then renamed; what a failed attempt left goes first.
    pub(crate) fn create_beside(&self, path: &str) -> Result<std::sync::Arc<dyn onefold_ground::File>> {
        let mut folders = BTreeSet::new();
        self.remove_if_there(path, &mut folders)?;
        self.ground.create(path).map_err(StorageError::cannot_write)
    }
}

/// The highest container that has parity, of the groups made last: its number is used, even where its file was lost.
pub(crate) fn highest_member(ground: &dyn Ground, directory: &str, partition: u16) -> Result<u32> {
    let directory = parity_directory(directory, partition);
    if !ground.exists(&directory)? {
        return Ok(0);
    }
    let folders = ground.list(&directory)?;
    let last = folders.iter().rev().find(|entry| entry.is_directory && file::folder_start(&entry.name).is_some());
    let Some(last) = last else { return Ok(0) };
    let names = ground.list(&format!("{directory}/{}", last.name))?;
    let members = names.iter().filter_map(|entry| parity_name(&entry.name)).filter_map(|(_, members)| members.last().copied());
    Ok(members.max().unwrap_or(0))
}
