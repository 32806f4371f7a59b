//! The parity files of groups: reads which there are, and removes those whose members go.

use crate::groups::{Groups, ParityStatistics};
use crate::parity::{parity_directory, parity_folder, parity_name, parity_path};
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, StorageError, file};
use std::collections::BTreeSet;

impl ContainerStore {
    /// Returns how much has parity.
    pub fn parity_statistics(&self) -> Result<ParityStatistics> {
        self.shared.with_groups(|groups| Ok(groups.statistics()))
    }

    /// Returns all groups with a parity file, ascending. A group is named by partition and number, like a container.
    pub fn parity_groups(&self) -> Result<Vec<ContainerId>> {
        self.shared.with_groups(|groups| Ok(groups.all().map(|(group, _)| group).collect()))
    }
}

impl Shared {
    /// Works with the groups. The first call reads them from the names of the parity files. `work` takes no other lock.
    pub(crate) fn with_groups<T>(&self, work: impl FnOnce(&mut Groups) -> Result<T>) -> Result<T> {
        self.protection.with(|| self.read_groups(), work)
    }

    /// Notes something of groups.
    pub(crate) fn note_groups(&self, note: impl FnOnce(&mut Groups)) -> Result<()> {
        self.with_groups(|groups| {
            note(groups);
            Ok(())
        })
    }

    fn read_groups(&self) -> Result<Groups> {
        let mut groups = Groups::default();
        for partition in self.owners.partitions() {
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
                    found.into_iter().for_each(|(number, members)| groups.insert(ContainerId::new(partition, number), members));
                } else if !self.mode.is_for_reading() && (entry.name.ends_with(".new") || entry.name.ends_with(".repair")) {
                    // A crash came before it was in its place.
                    self.remove_if_there(&format!("{directory}/{}", entry.name), &mut removed)?;
                }
            }
            self.sync_folders(&removed)?;
        }
        Ok(groups)
    }

    /// Call before the files of these containers go. Replaces parity that includes them by parity without them, or
    /// removes it, durably.
    pub(crate) fn leave_parity<'a>(&self, containers: impl Iterator<Item = &'a ContainerId>) -> Result<()> {
        let gone: BTreeSet<ContainerId> = containers.copied().collect();
        let found: BTreeSet<ContainerId> =
            self.with_groups(|groups| Ok(gone.iter().flat_map(|container| groups.groups_with(*container)).collect()))?;
        for group in &found {
            // Groups made earlier in this loop may have taken all members that counted on it.
            let left = self.with_groups(|groups| Ok(groups.members_counting_on(*group)))?;
            if left.iter().any(|member| !gone.contains(member)) {
                self.shrink_or_verify(*group, &gone)?;
            }
        }
        self.remove_groups(&found.into_iter().collect::<Vec<_>>())?;
        self.with_groups(|groups| {
            gone.iter().for_each(|container| groups.gone(*container));
            Ok(())
        })
    }

    /// Removes the parity files of groups, durably.
    pub(crate) fn remove_groups(&self, found: &[ContainerId]) -> Result<()> {
        let mut folders = BTreeSet::new();
        for group in found {
            let numbers = self.with_groups(|groups| Ok(groups.numbers(*group).map(<[u32]>::to_vec)))?;
            if let Some(numbers) = numbers {
                self.remove_if_there(&parity_path(&self.directory, *group, &numbers), &mut folders)?;
            }
        }
        // A name whose removal is not durable may come back with a crash. Until the removal is durable, the group stays
        // known, and its removal is retried.
        self.sync_folders(&folders)?;
        self.with_groups(|groups| {
            found.iter().for_each(|group| groups.remove(*group));
            Ok(())
        })
    }

    /// Makes the directory of a group's parity file, and returns it.
    pub(crate) fn make_parity_folder(&self, group: ContainerId) -> Result<String> {
        let folder = parity_folder(&self.directory, group);
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
