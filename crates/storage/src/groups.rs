//! Tells which containers have parity: the groups of a store, read from the names of their files.
//!
//! # Invariant
//! *Every member of a group whose parity file is in place has its file, or has lost it.* Before a merge takes away a
//! member's file, it puts parity without that member in the place of the old parity, durably. So a member without a
//! file never went with a merge, and may be rebuilt from the others. And no number of a member is ever given to another
//! container.
//!
//! A group is made of sealed containers that the log knows. Its file is put in its place under the lock for replacing
//! files (`Merging::hold_files`), so no merge takes a member away meanwhile. If several groups have a common member,
//! the group with the greatest number counts for it. The others stay, *outdated*, as long as a member counts on them: a
//! damaged one that could not go into the new group.

use crate::parity::{parity_directory, parity_name};
use crate::{ContainerId, Result, StorageError, file};
use onefold_ground::Ground;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Time until a failed attempt with a container is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// Which containers have parity, and who makes it.
///
/// Locks: [`make_alone`](Self::make_alone) comes first, before files are held in place. The groups come last. They are
/// read from directories under their lock, where a failed sync poisons the flow. But work with them takes no other
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Protection {
    /// `None` until first needed.
    groups: Mutex<Option<Groups>>,
    /// One thread at a time makes parity.
    making: Mutex<()>,
}

impl Protection {
    /// Keeps others from making parity while the guard lives.
    pub(crate) fn make_alone(&self) -> MutexGuard<'_, ()> {
        self.making.lock()
    }

    /// Works with the groups; `read` finds them the first time. `work` takes no other lock.
    pub(crate) fn with<T>(&self, read: impl FnOnce() -> Result<Groups>, work: impl FnOnce(&mut Groups) -> Result<T>) -> Result<T> {
        let mut known = self.groups.lock();
        if known.is_none() {
            *known = Some(read()?);
        }
        work(known.as_mut().expect("they were read just now"))
    }

    /// Works with the groups if they were already read. A later read sees what is in place then.
    pub(crate) fn with_known(&self, work: impl FnOnce(&mut Groups)) {
        if let Some(groups) = self.groups.lock().as_mut() {
            work(groups);
        }
    }
}

/// What is known of groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Numbers of the members, ascending.
    members: BTreeMap<ContainerId, Vec<u32>>,
    /// The group that a container counts on.
    of: HashMap<ContainerId, ContainerId>,
    /// Groups to replace: a member counts on another group, or the parity file is damaged. All other groups have no
    /// common members.
    outdated: BTreeSet<ContainerId>,
    /// Sealed containers in no group; `None` until somebody makes groups.
    without: Option<BTreeSet<ContainerId>>,
    /// Containers that go into no new group for now, and since when: they could not be read, or a merge is taking them.
    unfit: HashMap<ContainerId, Instant>,
    /// Containers whose repair is not retried for now, and since when: parity and the other members were read and did
    /// not allow it.
    beyond_repair: HashMap<ContainerId, Instant>,
    /// By partition: the next group.
    next_numbers: BTreeMap<u16, u32>,
}

impl Groups {
    /// Returns the group that a container counts on.
    pub(crate) fn group_of(&self, container: ContainerId) -> Option<ContainerId> {
        self.of.get(&container).copied()
    }

    /// Returns all groups whose parity includes this container.
    pub(crate) fn groups_with(&self, container: ContainerId) -> impl Iterator<Item = ContainerId> {
        let outdated = self.outdated.iter().copied().filter(move |group| group.partition() == container.partition());
        let has_it =
            move |group: &ContainerId| self.members.get(group).is_some_and(|members| members.binary_search(&container.number()).is_ok());
        outdated.filter(has_it).chain(self.group_of(container))
    }

    pub(crate) fn members(&self, group: ContainerId) -> Option<Vec<ContainerId>> {
        let members = self.members.get(&group)?;
        Some(members.iter().map(|number| ContainerId::new(group.partition(), *number)).collect())
    }

    /// Returns the members that have no newer parity than this.
    pub(crate) fn members_counting_on(&self, group: ContainerId) -> Vec<ContainerId> {
        let members = self.members(group).unwrap_or_default();
        members.into_iter().filter(|member| self.group_of(*member) == Some(group)).collect()
    }

    pub(crate) fn numbers(&self, group: ContainerId) -> Option<&[u32]> {
        self.members.get(&group).map(Vec::as_slice)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (ContainerId, &[u32])> {
        self.members.iter().map(|(group, members)| (*group, members.as_slice()))
    }

    pub(crate) fn is_outdated(&self, group: ContainerId) -> bool {
        self.outdated.contains(&group)
    }

    /// Notes that the parity file of a group is damaged: its members go into another group.
    pub(crate) fn set_outdated(&mut self, group: ContainerId) {
        if self.members.contains_key(&group) {
            self.outdated.insert(group);
        }
    }

    /// Returns at most `most` containers of a partition that need a new group, except those that are unfit for now.
    /// They need one if they have none, or if they count on a group that is to be replaced.
    pub(crate) fn wanting(&self, partition: u16, most: usize) -> Vec<ContainerId> {
        let all = ContainerId::new(partition, 0)..=ContainerId::new(partition, u32::MAX);
        let without = self.without.iter().flat_map(|without| without.range(all.clone())).copied();
        let outdated = self.outdated.range(all.clone()).flat_map(|group| self.members_counting_on(*group));
        without.chain(outdated).filter(|container| self.is_fit(*container)).take(most).collect()
    }

    /// Returns the groups that nobody counts on any more.
    pub(crate) fn unneeded(&self) -> Vec<ContainerId> {
        self.outdated.iter().copied().filter(|group| self.members_counting_on(*group).is_empty()).collect()
    }

    /// Returns whether a container may go into a new group.
    pub(crate) fn is_fit(&self, container: ContainerId) -> bool {
        self.unfit.get(&container).is_none_or(|since| since.elapsed() > RETRY_AFTER)
    }

    pub(crate) fn set_unfit(&mut self, container: ContainerId) {
        self.unfit.insert(container, Instant::now());
    }

    /// Returns whether a repair failed lately, for another reason than a lack of space or the like.
    pub(crate) fn is_beyond_repair(&self, container: ContainerId) -> bool {
        self.beyond_repair.get(&container).is_some_and(|since| since.elapsed() <= RETRY_AFTER)
    }

    pub(crate) fn set_beyond_repair(&mut self, container: ContainerId) {
        self.beyond_repair.insert(container, Instant::now());
    }

    /// Notes that a container was rebuilt. Others of its group that could not be rebuilt may be now.
    pub(crate) fn repaired(&mut self, container: ContainerId) {
        self.unfit.remove(&container);
        let others: Vec<ContainerId> = self.groups_with(container).flat_map(|group| self.members(group).unwrap_or_default()).collect();
        self.beyond_repair.retain(|member, _| !others.contains(member));
    }

    /// Gives out the next number of a partition.
    pub(crate) fn next_group(&mut self, partition: u16) -> Result<ContainerId> {
        let next = self.next_numbers.entry(partition).or_insert(1);
        let group = ContainerId::new(partition, *next);
        *next = next.checked_add(1).ok_or(StorageError::NumbersUsedUp { partition })?;
        Ok(group)
    }

    /// Notes that a group is in place: its members count on it.
    pub(crate) fn insert(&mut self, group: ContainerId, members: Vec<u32>) {
        let next = self.next_numbers.entry(group.partition()).or_insert(1);
        *next = (*next).max(group.number().saturating_add(1));
        for number in &members {
            let member = ContainerId::new(group.partition(), *number);
            self.outdated.extend(self.of.insert(member, group).filter(|older| *older != group));
            self.unfit.remove(&member);
            self.beyond_repair.remove(&member);
            if let Some(without) = &mut self.without {
                without.remove(&member);
            }
        }
        self.members.insert(group, members);
    }

    /// Notes that the parity file of a group is gone. Members that counted on it now count on an older group that has
    /// them, if there is one.
    pub(crate) fn remove(&mut self, group: ContainerId) {
        let left = self.members_counting_on(group);
        self.members.remove(&group);
        self.outdated.remove(&group);
        for member in left {
            self.of.remove(&member);
            let older = self.groups_with(member).max();
            if let Some(older) = older {
                self.of.insert(member, older);
            } else if let Some(without) = &mut self.without {
                without.insert(member);
            }
        }
    }

    /// Begins to list the containers without a group, unless they are listed. A container that is sealed from here on
    /// is added to the list when it is sealed. Returns whether the caller must [end](Self::end_list) the list.
    pub(crate) fn begin_list(&mut self) -> bool {
        let is_new = self.without.is_none();
        self.without.get_or_insert_default();
        is_new
    }

    /// Ends the list with all containers that were sealed before.
    pub(crate) fn end_list(&mut self, sealed: Vec<ContainerId>) {
        let of = &self.of;
        let without = sealed.into_iter().filter(|container| !of.contains_key(container));
        self.without.get_or_insert_default().extend(without);
    }

    /// Notes that the list could not be made. It is begun again later.
    pub(crate) fn abandon_list(&mut self) {
        self.without = None;
    }

    /// Notes that a container was sealed.
    pub(crate) fn sealed(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.without {
            without.insert(container);
        }
    }

    /// Notes that a container no longer has a file.
    pub(crate) fn gone(&mut self, container: ContainerId) {
        if let Some(without) = &mut self.without {
            without.remove(&container);
        }
        self.unfit.remove(&container);
        self.beyond_repair.remove(&container);
    }

    /// Returns how much has parity.
    pub(crate) fn statistics(&self) -> ParityStatistics {
        ParityStatistics { groups: self.members.len() as u64, containers: self.of.len() as u64 }
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

/// Returns the highest container that has parity: its number is used, even if its file was lost. Adds the folders of
/// parity files to `found`.
pub(crate) fn highest_member(ground: &dyn Ground, directory: &str, partition: u16, found: &mut BTreeSet<String>) -> Result<u32> {
    let directory = parity_directory(directory, partition);
    let mut highest = 0;
    if ground.exists(&directory)? {
        let folders = ground.list(&directory)?;
        // All folders: a group made late may have old members only.
        for folder in folders.iter().filter(|entry| entry.is_directory && file::folder_start(&entry.name).is_some()) {
            let folder = format!("{directory}/{}", folder.name);
            let names = ground.list(&folder)?;
            found.insert(folder);
            let members = names.iter().filter_map(|entry| parity_name(&entry.name)).filter_map(|(_, members)| members.last().copied());
            highest = members.fold(highest, u32::max);
        }
    }
    Ok(highest)
}
