//! The names of parity groups, and the folders of containers that they belong to.

use crate::ContainerId;
use crate::containers::file;
use std::fmt;

/// Bits of a group's sequence number.
const SEQUENCE_BITS: u32 = 28;
/// Bits of a folder's number.
const FOLDER_NUMBER_BITS: u32 = u32::BITS - file::FOLDER_BITS;
/// The greatest sequence number. One less than fits, so that each name has one that comes [after](GroupId::next) it.
pub(crate) const MAX_SEQUENCE: u32 = (1 << SEQUENCE_BITS) - 2;

/// A folder of containers: those of a partition whose numbers differ in the lowest 12 bits only. Their parity lies in
/// the parity folder of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Folder {
    partition: u16,
    number: u32,
}

impl Folder {
    /// Returns the folder of a container.
    pub(crate) fn of(container: ContainerId) -> Folder {
        Folder { partition: container.partition(), number: container.number() >> file::FOLDER_BITS }
    }

    /// Returns the folder with this name; `None`: no folder of ours.
    pub(crate) fn named(partition: u16, name: &str) -> Option<Folder> {
        Some(Folder::of(ContainerId::new(partition, file::folder_start(name)?)))
    }

    /// Returns the partition.
    pub(crate) fn partition(self) -> u16 {
        self.partition
    }

    /// Returns the container of the partition with this number; `None`: it is in another folder.
    pub(crate) fn container(self, number: u32) -> Option<ContainerId> {
        Some(ContainerId::new(self.partition, number)).filter(|container| Folder::of(*container) == self)
    }

    /// Returns the path of the container files.
    pub(crate) fn path(self, directory: &str) -> String {
        format!("{}/{self}", file::partition_directory(directory, self.partition))
    }
}

/// The name.
impl fmt::Display for Folder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:05x}", self.number)
    }
}

/// The name of a parity group: its folder, and a sequence number in it, from 1. Groups are in the order of their
/// folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(u64);

impl GroupId {
    /// Comes before all groups.
    pub const FIRST: GroupId = GroupId(0);

    pub(crate) fn new(folder: Folder, sequence: u32) -> GroupId {
        let folder = u64::from(folder.partition) << FOLDER_NUMBER_BITS | u64::from(folder.number);
        GroupId(folder << SEQUENCE_BITS | u64::from(sequence))
    }

    /// Converts the 64 bits that formats store.
    pub const fn from_bits(bits: u64) -> GroupId {
        GroupId(bits)
    }

    /// Returns the 64 bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Comes after all groups of a folder.
    pub(crate) fn last_of(folder: Folder) -> GroupId {
        GroupId::new(folder, MAX_SEQUENCE + 1)
    }

    /// Returns the first name after this one.
    pub(crate) fn next(self) -> GroupId {
        GroupId(self.0.saturating_add(1))
    }

    pub(crate) fn folder(self) -> Folder {
        let folder = self.0 >> SEQUENCE_BITS;
        Folder { partition: (folder >> FOLDER_NUMBER_BITS) as u16, number: folder as u32 & ((1 << FOLDER_NUMBER_BITS) - 1) }
    }

    pub(crate) fn sequence(self) -> u32 {
        self.0 as u32 & ((1 << SEQUENCE_BITS) - 1)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}-{:07x}", self.folder().partition, self.folder(), self.sequence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_are_in_the_order_of_partition_folder_and_sequence() {
        let group = |partition, number, sequence| GroupId::new(Folder::of(ContainerId::new(partition, number)), sequence);
        let ordered = [
            GroupId::FIRST,
            group(0, 1, 1),
            group(0, 0xfff, MAX_SEQUENCE),
            group(0, 0x1000, 1),
            group(0, u32::MAX, MAX_SEQUENCE),
            group(1, 1, 1),
            group(u16::MAX, u32::MAX, MAX_SEQUENCE),
        ];
        assert!(ordered.is_sorted_by(|a, b| a < b && a.next() <= *b));
        assert!(ordered[6].next() > ordered[6]);
        assert_eq!(group(0x12, 0x1abc, 0x34).to_string(), "18-00001-0000034");
    }

    proptest! {
        #[test]
        fn a_group_has_its_folder_and_sequence(partition: u16, number: u32, sequence in 1..=MAX_SEQUENCE) {
            let container = ContainerId::new(partition, number);
            let folder = Folder::of(container);
            let group = GroupId::from_bits(GroupId::new(folder, sequence).bits());
            prop_assert_eq!((group.folder(), group.sequence()), (folder, sequence));
            prop_assert_eq!(folder.container(number), Some(container));
            prop_assert_eq!(folder.container(number ^ 1 << file::FOLDER_BITS), None);
            prop_assert_eq!(Folder::named(partition, &folder.to_string()), Some(folder));
            prop_assert_eq!(folder.path("containers"), file::folder("containers", container));
        }
    }
}
