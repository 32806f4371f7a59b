//! The parity files of groups: reads which there are, and removes those whose members go.

use crate::containers::file;
use crate::containers::group_id::Folder;
use crate::containers::groups::{Groups, ParityStatistics};
use crate::containers::parity::{parity_directory, parity_folder, parity_name, parity_path};
use crate::containers::protection::Names;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, GroupId, Result, StorageError};
use onefold_ground::Ground;
use std::collections::{BTreeMap, BTreeSet};

impl ContainerStore {
    /// Returns how much has parity. The first call reads the names of all parity files.
    pub fn parity_statistics(&self) -> Result<ParityStatistics> {
        let mut sum = ParityStatistics::default();
        for (_, counted) in self.shared.protection.statistics(&*self.shared)? {
            sum.groups += counted.groups;
            sum.containers += counted.containers;
        }
        Ok(sum)
    }

    /// Returns at most `most` groups with a parity file, ascending, from `first` on.
    pub fn parity_groups_from(&self, first: GroupId, most: usize) -> Result<Vec<GroupId>> {
        let (shared, mut from, mut found) = (&self.shared, first, Vec::new());
        while found.len() < most
            && let Some(folder) = shared.protection.folder_from(&**shared, from.folder())?
        {
            found.extend(shared.with_groups(folder, |groups| Ok(groups.from(from).take(most - found.len()).collect::<Vec<_>>()))?);
            from = GroupId::last_of(folder).next();
        }
        Ok(found)
    }

    /// Returns whether a group has a parity file.
    pub fn has_parity_file(&self, group: GroupId) -> Result<bool> {
        self.shared.with_groups(group.folder(), |groups| Ok(groups.numbers(group).is_some()))
    }
}

impl Names for Shared {
    fn folders(&self) -> Result<Vec<Folder>> {
        let mut folders = Vec::new();
        for partition in self.owners.partitions() {
            let directory = parity_directory(&self.directory, partition);
            if !self.ground.exists(&directory)? {
                continue;
            }
            let mut removed = BTreeSet::new();
            for entry in self.ground.list(&directory)? {
                if entry.is_directory {
                    folders.extend(Folder::named(partition, &entry.name));
                } else if !self.mode.is_for_reading() && (entry.name.ends_with(".new") || entry.name.ends_with(".repair")) {
                    // A crash came before it was in its place.
                    self.remove_if_there(&format!("{directory}/{}", entry.name), &mut removed)?;
                }
            }
            self.sync_folders(&removed)?;
        }
        Ok(folders)
    }

    fn groups(&self, folder: Folder) -> Result<Vec<(GroupId, Vec<u32>)>> {
        let path = parity_folder(&self.directory, folder);
        let names = self.ground.list(&path)?;
        if !self.mode.is_for_reading() {
            // Somebody removed a file and did not sync: an earlier process, or a removal of several files that failed
            // half-way. If the file came back after its members were merged away, it would bring them back.
            self.sync_folders(&BTreeSet::from([path]))?;
        }
        Ok(names.iter().filter_map(|entry| parity_name(folder, &entry.name)).collect())
    }
}

impl Shared {
    /// Works with the groups of a folder. They are read from the names of its parity files unless they are in memory.
    /// `work` takes no other lock.
    pub(crate) fn with_groups<T>(&self, folder: Folder, work: impl FnOnce(&mut Groups<'_>) -> Result<T>) -> Result<T> {
        self.protection.with(self, folder, work)
    }

    /// Notes something of the groups of a folder.
    pub(crate) fn note_groups(&self, folder: Folder, note: impl FnOnce(&mut Groups<'_>)) -> Result<()> {
        self.with_groups(folder, |groups| {
            note(groups);
            Ok(())
        })
    }

    /// Call before the files of these containers go. Replaces parity that includes them by parity without them, or
    /// removes it, durably.
    pub(crate) fn leave_parity<'a>(&self, containers: impl Iterator<Item = &'a ContainerId>) -> Result<()> {
        let mut gone: BTreeMap<Folder, BTreeSet<ContainerId>> = BTreeMap::new();
        for container in containers {
            gone.entry(Folder::of(*container)).or_default().insert(*container);
        }
        gone.into_iter().try_for_each(|(folder, gone)| self.leave_parity_of(folder, &gone))
    }

    fn leave_parity_of(&self, folder: Folder, gone: &BTreeSet<ContainerId>) -> Result<()> {
        let found: BTreeSet<GroupId> =
            self.with_groups(folder, |groups| Ok(gone.iter().flat_map(|container| groups.groups_with(*container)).collect()))?;
        for group in &found {
            // Groups made earlier in this loop may have taken all members that counted on it.
            let left = self.with_groups(folder, |groups| Ok(groups.members_counting_on(*group)))?;
            if left.iter().any(|member| !gone.contains(member)) {
                self.shrink_or_verify(*group, gone)?;
            }
        }
        self.remove_groups(folder, &found.into_iter().collect::<Vec<_>>())?;
        self.note_groups(folder, |groups| gone.iter().for_each(|container| groups.settled(*container)))
    }

    /// Removes the parity files of groups of a folder, durably.
    pub(crate) fn remove_groups(&self, folder: Folder, found: &[GroupId]) -> Result<()> {
        let mut folders = BTreeSet::new();
        for group in found {
            let numbers = self.with_groups(folder, |groups| Ok(groups.numbers(*group).map(<[u32]>::to_vec)))?;
            if let Some(numbers) = numbers {
                self.remove_if_there(&parity_path(&self.directory, *group, &numbers), &mut folders)?;
                // Also if an earlier attempt removed the file and failed before the sync.
                folders.insert(parity_folder(&self.directory, folder));
            }
        }
        // A name whose removal is not durable may come back with a crash. Until the removal is durable, the group stays
        // known, and its removal is retried. If the folder is evicted meanwhile, it is synced when it is read again.
        self.sync_folders(&folders)?;
        self.note_groups(folder, |groups| found.iter().for_each(|group| groups.remove(*group)))
    }

    /// Makes the directory of a group's parity file, and returns it.
    pub(crate) fn make_parity_folder(&self, group: GroupId) -> Result<String> {
        let folder = parity_folder(&self.directory, group.folder());
        self.ground.create_directory(&folder).map_err(StorageError::cannot_write)?;
        Ok(folder)
    }

    /// Creates a file that is written beside its place and then renamed. Removes what a failed attempt left.
    pub(crate) fn create_beside(&self, path: &str) -> Result<std::sync::Arc<dyn onefold_ground::File>> {
        let mut folders = BTreeSet::new();
        self.remove_if_there(path, &mut folders)?;
        self.ground.create(path).map_err(StorageError::cannot_write)
    }
}

/// Returns the highest of `known` and the numbers of containers that have parity: those are used, even if their files
/// were lost. Adds the folders that it looked into to `found`.
///
/// Members are in the folder of their parity. So a folder that ends before `known` has no higher member, and the
/// first folder with a member, from the highest downwards, has the highest one. All folders above the one with `known`
/// lost their container files. So, as a rule, this looks into one folder.
pub(crate) fn highest_member(
    ground: &dyn Ground,
    directory: &str,
    partition: u16,
    known: u32,
    found: &mut BTreeSet<String>,
) -> Result<u32> {
    let directory = parity_directory(directory, partition);
    if !ground.exists(&directory)? {
        return Ok(known);
    }
    for entry in ground.list(&directory)?.iter().rev().filter(|entry| entry.is_directory) {
        let Some(folder) = Folder::named(partition, &entry.name) else { continue };
        if folder.container(known).is_none() && file::folder_start(&entry.name).is_some_and(|start| start <= known) {
            break;
        }
        let path = format!("{directory}/{}", entry.name);
        let names = ground.list(&path)?;
        found.insert(path);
        let members = names.iter().filter_map(|entry| parity_name(folder, &entry.name)).filter_map(|(_, members)| members.last().copied());
        if let Some(highest) = members.max() {
            return Ok(known.max(highest));
        }
    }
    Ok(known)
}
