//! Tells which containers of a folder have parity: its groups, read from the names of their files.
//!
//! # Invariants
//! *Every member of a group whose parity file is in place has its file, or has lost it.* Before a merge takes away a
//! member's file, it puts parity without that member in the place of the old parity, durably. So a member without a
//! file never went with a merge, and may be rebuilt from the others. And no number of a member is ever given to another
//! container.
//!
//! *A group has members of one folder only.* So the names in one parity folder tell all about a container, and nobody
//! needs those of other folders in memory.
//!
//! A group is made of sealed containers that the log knows. Its file is put in its place under the lock for replacing
//! files (`Merging::hold_files`), so no merge takes a member away meanwhile. If several groups have a common member,
//! the group with the greatest number counts for it. The others stay, *outdated*, as long as a member counts on them: a
//! damaged one that could not go into the new group.

use crate::containers::group_id::{Folder, MAX_SEQUENCE};
use crate::containers::protection::{Notes, ToDo};
use crate::{ContainerId, GroupId, Result, StorageError};
use std::collections::{BTreeMap, BTreeSet};

/// What the names of a folder's parity files say, and its containers without parity. It can be read again at any time.
#[derive(Debug, Default)]
pub(crate) struct FolderGroups {
    /// Numbers of the members, ascending.
    members: BTreeMap<GroupId, Vec<u32>>,
    /// The group that a container counts on: the greatest that has it.
    of: BTreeMap<ContainerId, GroupId>,
    /// Groups to replace: a member counts on another group, or the parity file is damaged. All other groups have no
    /// common members.
    outdated: BTreeSet<GroupId>,
    /// Sealed containers in no group; `None` until somebody makes groups in this folder.
    without: Option<BTreeSet<ContainerId>>,
}

impl FolderGroups {
    /// Takes the names of all parity files, and the groups that are known as damaged.
    pub(crate) fn new(found: Vec<(GroupId, Vec<u32>)>, damaged: &BTreeSet<GroupId>) -> FolderGroups {
        let mut groups = FolderGroups::default();
        for (group, members) in found {
            if damaged.contains(&group) {
                groups.outdated.insert(group);
            }
            groups.add(group, members);
        }
        groups
    }

    fn add(&mut self, group: GroupId, members: Vec<u32>) {
        for number in &members {
            let of = self.of.entry(ContainerId::new(group.folder().partition(), *number)).or_insert(group);
            if *of != group {
                self.outdated.insert(group.min(*of));
                *of = group.max(*of);
            }
        }
        self.members.insert(group, members);
    }

    /// Notes that a container was sealed.
    pub(crate) fn sealed(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.without {
            without.insert(container);
        }
    }

    /// Returns how much has parity.
    pub(crate) fn statistics(&self) -> ParityStatistics {
        ParityStatistics { groups: self.members.len() as u64, containers: self.of.len() as u64 }
    }
}

/// The groups of a folder, with what is noted of its containers elsewhere.
pub(crate) struct Groups<'a> {
    pub(crate) folder: Folder,
    pub(crate) here: &'a mut FolderGroups,
    pub(crate) notes: &'a mut Notes,
    pub(crate) to_do: &'a mut ToDo,
}

impl Groups<'_> {
    /// Returns the group that a container counts on.
    pub(crate) fn group_of(&self, container: ContainerId) -> Option<GroupId> {
        self.here.of.get(&container).copied()
    }

    /// Returns all groups whose parity includes this container.
    pub(crate) fn groups_with(&self, container: ContainerId) -> impl Iterator<Item = GroupId> {
        let has_it =
            move |group: &GroupId| self.here.members.get(group).is_some_and(|members| members.binary_search(&container.number()).is_ok());
        self.here.outdated.iter().copied().filter(has_it).chain(self.group_of(container))
    }

    pub(crate) fn members(&self, group: GroupId) -> Option<Vec<ContainerId>> {
        let members = self.here.members.get(&group)?;
        Some(members.iter().map(|number| ContainerId::new(self.folder.partition(), *number)).collect())
    }

    /// Returns the members that have no newer parity than this.
    pub(crate) fn members_counting_on(&self, group: GroupId) -> Vec<ContainerId> {
        let members = self.members(group).unwrap_or_default();
        members.into_iter().filter(|member| self.group_of(*member) == Some(group)).collect()
    }

    pub(crate) fn numbers(&self, group: GroupId) -> Option<&[u32]> {
        self.here.members.get(&group).map(Vec::as_slice)
    }

    /// Returns the groups from `first` on, ascending.
    pub(crate) fn from(&self, first: GroupId) -> impl Iterator<Item = GroupId> {
        self.here.members.range(first..).map(|(group, _)| *group)
    }

    /// Notes that the parity file of a group is damaged: its members go into another group.
    pub(crate) fn set_outdated(&mut self, group: GroupId) {
        if self.here.members.contains_key(&group) {
            self.here.outdated.insert(group);
            self.notes.set_damaged(group);
            self.to_do.changed(self.folder);
        }
    }

    /// Returns whether the containers without a group are listed.
    pub(crate) fn is_listed(&self) -> bool {
        self.here.without.is_some()
    }

    /// Returns at most `most` containers that need a new group, except those that are unfit for now. They need one if
    /// they have none, or if they count on a group that is to be replaced.
    pub(crate) fn wanting(&self, most: usize) -> Vec<ContainerId> {
        let without = self.here.without.iter().flatten().copied();
        let outdated = self.here.outdated.iter().flat_map(|group| self.members_counting_on(*group));
        without.chain(outdated).filter(|container| self.is_fit(*container)).take(most).collect()
    }

    /// Returns the members of the groups with fewer than `size` of them which may all go into a new group, the smallest
    /// groups first.
    pub(crate) fn small(&self, size: usize) -> Vec<Vec<ContainerId>> {
        let small = self.here.members.iter().filter(|(group, members)| members.len() < size && !self.here.outdated.contains(group));
        let mut small: Vec<_> = small.map(|(group, _)| self.members_counting_on(*group)).collect();
        small.retain(|members| members.iter().all(|member| self.is_fit(*member)));
        small.sort_by_key(Vec::len);
        small
    }

    /// Returns the groups that nobody counts on any more.
    pub(crate) fn unneeded(&self) -> Vec<GroupId> {
        self.here.outdated.iter().copied().filter(|group| self.members_counting_on(*group).is_empty()).collect()
    }

    /// Returns whether a container may go into a new group.
    fn is_fit(&self, container: ContainerId) -> bool {
        !self.notes.unfit.has(container)
    }

    /// Lets a container go into no new group for now: it could not be read, or a merge is taking it.
    pub(crate) fn set_unfit(&mut self, container: ContainerId) {
        // They may be fit, and their folders have to be looked at again.
        for forgotten in self.notes.unfit.add(container) {
            self.to_do.changed(Folder::of(forgotten));
        }
    }

    /// Returns whether a repair failed lately, for another reason than a lack of space or the like.
    pub(crate) fn is_beyond_repair(&self, container: ContainerId) -> bool {
        self.notes.beyond_repair.has(container)
    }

    pub(crate) fn set_beyond_repair(&mut self, container: ContainerId) {
        let _ = self.notes.beyond_repair.add(container);
    }

    /// Notes that a container was rebuilt. Others of its group that could not be rebuilt may be now.
    pub(crate) fn repaired(&mut self, container: ContainerId) {
        let others: Vec<ContainerId> = self.groups_with(container).flat_map(|group| self.members(group).unwrap_or_default()).collect();
        others.into_iter().for_each(|other| self.notes.beyond_repair.remove(other));
        self.notes.unfit.remove(container);
        self.to_do.changed(self.folder);
    }

    /// Gives out a sequence number that no group of the folder has, and that no other call in this opening returns.
    pub(crate) fn next_group(&mut self) -> Result<GroupId> {
        let greatest = self.here.members.last_key_value().map_or(0, |(group, _)| group.sequence());
        let given_out = self.to_do.given_out.entry(self.folder).or_default();
        if greatest.max(*given_out) >= MAX_SEQUENCE {
            return Err(StorageError::NumbersUsedUp { partition: self.folder.partition() });
        }
        *given_out = greatest.max(*given_out) + 1;
        Ok(GroupId::new(self.folder, *given_out))
    }

    /// Notes that a group is in place: its members count on it.
    pub(crate) fn insert(&mut self, group: GroupId, members: Vec<u32>) {
        for number in &members {
            self.settled(ContainerId::new(self.folder.partition(), *number));
        }
        self.here.add(group, members);
        self.to_do.changed(self.folder);
    }

    /// Notes that the parity file of a group is gone. Members that counted on it now count on an older group that has
    /// them, if there is one.
    pub(crate) fn remove(&mut self, group: GroupId) {
        let left = self.members_counting_on(group);
        self.here.members.remove(&group);
        self.here.outdated.remove(&group);
        self.notes.remove_damaged(group);
        for member in left {
            self.here.of.remove(&member);
            let older = self.groups_with(member).max();
            if let Some(older) = older {
                self.here.of.insert(member, older);
            } else {
                self.here.sealed(member);
            }
        }
        self.to_do.changed(self.folder);
    }

    /// Begins to list the containers without a group, unless they are listed. A container that is sealed from here on
    /// is added to the list when it is sealed. Returns whether the caller must [end](Self::end_list) the list.
    pub(crate) fn begin_list(&mut self) -> bool {
        let is_new = self.here.without.is_none();
        self.here.without.get_or_insert_default();
        is_new
    }

    /// Ends the list with all containers that were sealed before. If the folder was evicted meanwhile, containers may
    /// be missing: then nothing is listed, and the list must begin again.
    pub(crate) fn end_list(&mut self, sealed: Vec<ContainerId>) {
        if let Some(without) = &mut self.here.without {
            without.extend(sealed.into_iter().filter(|container| !self.here.of.contains_key(container)));
        }
    }

    /// Notes that the list could not be made. It is begun again later.
    pub(crate) fn abandon_list(&mut self) {
        self.here.without = None;
    }

    /// Notes that a container needs no group: it has one now, or no file any more.
    pub(crate) fn settled(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.here.without {
            without.remove(&container);
        }
        self.notes.unfit.remove(container);
        self.notes.beyond_repair.remove(container);
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
