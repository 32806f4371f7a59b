//! What is in memory of the parity of a store: a bounded number of folders, and which folders need work.
//!
//! # Invariants
//! * *What is known of a folder's groups can be read again from names at any time*, so any folder may be evicted. What
//!   names do not tell is kept elsewhere, by container or group, within bounds ([`Notes`]), or by folder ([`ToDo`]).
//! * *Names that were read are durable* ([`Names::groups`]). So eviction never makes a removal look done that a power
//!   cut takes back.
//! * *No sequence number of a folder is given out twice*, also not to two threads between which the folder was evicted.
//!
//! Nothing here grows with the number of containers, except by folder: some 100 bytes for each 4,096 containers.

use crate::containers::group_id::Folder;
use crate::containers::groups::{FolderGroups, Groups, ParityStatistics};
use crate::{ContainerId, GroupId, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Folders whose groups are in memory, about 130 kB each.
const KEPT_FOLDERS: usize = 32;
/// Containers, or groups, of which a note is kept, about 30 bytes each.
const KEPT_NOTES: usize = 16 << 10;
/// Sealed containers that are noted while somebody works with the groups.
const KEPT_SEALED: usize = 1 << 10;
/// Time until a failed attempt with a container is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// Reads the names of parity files.
pub(crate) trait Names {
    /// Returns the folders that may have parity. Called once, before any other use of the parity.
    fn folders(&self) -> Result<Vec<Folder>>;

    /// Returns the groups of a folder, in any order. In a store that is open for writing, names are durable on return:
    /// those that are there, and the removal of those that are not.
    fn groups(&self, folder: Folder) -> Result<Vec<(GroupId, Vec<u32>)>>;
}

/// Which containers have parity, and who makes it.
///
/// Locks: [`make_alone`](Self::make_alone) comes first, before files are held in place. The groups come last. They are
/// read from directories under their lock, where a failed sync poisons the flow. But work with them takes no other
/// lock. The lock of newly sealed containers comes after it, so that a commit waits for no directory.
#[derive(Debug)]
pub(crate) struct Protection {
    known: Mutex<Known>,
    /// Containers that were sealed and are not noted in `known` yet.
    sealed: Mutex<Vec<ContainerId>>,
    /// One thread at a time makes parity.
    making: Mutex<()>,
    /// How much parity folders had when the bytes of its files were added up, and how many there were. Comes before
    /// `known`.
    measured: Mutex<BTreeMap<Folder, (ParityStatistics, u64)>>,
}

#[derive(Debug)]
struct Known {
    /// Folders that may have parity, and how much they had when they were last in memory. `None` until first needed.
    folders: Option<BTreeMap<Folder, Option<ParityStatistics>>>,
    /// The folders used last, the last one first.
    kept: Vec<(Folder, FolderGroups)>,
    most_kept: usize,
    notes: Notes,
    to_do: ToDo,
}

/// What names do not tell of containers and groups. To forget one costs an attempt that fails again, or leaves damaged
/// parity to the next scrub.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Containers that go into no new group for now: they could not be read, or a merge is taking them.
    pub(crate) unfit: Recent,
    /// Containers whose repair is not retried for now: parity and the other members were read and did not allow it.
    pub(crate) beyond_repair: Recent,
    /// Groups with a damaged parity file.
    damaged: BTreeSet<GroupId>,
}

impl Notes {
    pub(crate) fn set_damaged(&mut self, group: GroupId) {
        if self.damaged.len() < KEPT_NOTES {
            self.damaged.insert(group);
        }
    }

    pub(crate) fn remove_damaged(&mut self, group: GroupId) {
        self.damaged.remove(&group);
    }
}

/// Containers, and since when they are here. If there are too many, all others are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Recent(HashMap<ContainerId, Instant>);

impl Recent {
    pub(crate) fn has(&self, container: ContainerId) -> bool {
        self.0.get(&container).is_some_and(|since| since.elapsed() <= RETRY_AFTER)
    }

    /// Adds a container. Returns those that are forgotten.
    pub(crate) fn add(&mut self, container: ContainerId) -> Vec<ContainerId> {
        let forgotten = if self.0.len() >= KEPT_NOTES { self.0.drain().map(|(container, _)| container).collect() } else { Vec::new() };
        self.0.insert(container, Instant::now());
        forgotten
    }

    pub(crate) fn remove(&mut self, container: ContainerId) {
        self.0.remove(&container);
    }

    /// Removes and returns those that have been here long enough.
    fn expired(&mut self) -> Vec<ContainerId> {
        self.0.extract_if(|_, since| since.elapsed() > RETRY_AFTER).map(|(container, _)| container).collect()
    }
}

/// Which folders may have containers that need parity. Each set has at most all folders.
#[derive(Debug, Default)]
pub(crate) struct ToDo {
    /// Whether somebody makes parity. Until then nothing is noted: all folders will be looked at.
    is_begun: bool,
    /// Folders where something happened.
    changed: BTreeSet<Folder>,
    /// Folders that nobody has looked at in this opening.
    unseen: BTreeSet<Folder>,
    /// Folders with containers that are too few for a group of the full size.
    partial: BTreeSet<Folder>,
    /// The last sequence numbers given out in this opening.
    pub(crate) given_out: BTreeMap<Folder, u32>,
}

impl ToDo {
    /// Notes that containers of a folder may need parity.
    pub(crate) fn changed(&mut self, folder: Folder) {
        if self.is_begun {
            self.changed.insert(folder);
        }
    }

    /// Notes that a folder has work that is only done if parity for all is wanted.
    pub(crate) fn leave_partial(&mut self, folder: Folder) {
        self.partial.insert(folder);
    }

    /// Removes and returns a folder to look at.
    fn take(&mut self, all: bool) -> Option<Folder> {
        let partial = if all { self.partial.last() } else { None };
        let folder = *self.changed.first().or(self.unseen.last()).or(partial)?;
        for folders in [&mut self.changed, &mut self.unseen, &mut self.partial] {
            folders.remove(&folder);
        }
        Some(folder)
    }
}

impl Default for Protection {
    fn default() -> Protection {
        Protection::new(KEPT_FOLDERS)
    }
}

impl Protection {
    fn new(most_kept: usize) -> Protection {
        let known = Known { folders: None, kept: Vec::new(), most_kept, notes: Notes::default(), to_do: ToDo::default() };
        Protection { known: Mutex::new(known), sealed: Mutex::default(), making: Mutex::default(), measured: Mutex::default() }
    }

    /// Keeps others from making parity while the guard lives.
    pub(crate) fn make_alone(&self) -> MutexGuard<'_, ()> {
        self.making.lock()
    }

    /// Works with the groups of a folder, which are read unless they are in memory. `work` takes no other lock.
    pub(crate) fn with<T>(&self, names: &dyn Names, folder: Folder, work: impl FnOnce(&mut Groups<'_>) -> Result<T>) -> Result<T> {
        let mut known = self.lock();
        known.load(names, folder)?;
        known.work(folder, work)
    }

    /// Returns the folders that may have parity.
    pub(crate) fn folders(&self, names: &dyn Names) -> Result<Vec<Folder>> {
        Ok(self.lock().folders(names)?.keys().copied().collect())
    }

    /// Returns the first folder from `first` on that may have parity.
    pub(crate) fn folder_from(&self, names: &dyn Names, first: Folder) -> Result<Option<Folder>> {
        let mut known = self.lock();
        Ok(known.folders(names)?.range(first..).next().map(|(folder, _)| *folder))
    }

    /// Returns how much has parity, by folder. Reads the names in folders that were never in memory, one folder after
    /// the other.
    pub(crate) fn statistics(&self, names: &dyn Names) -> Result<Vec<(Folder, ParityStatistics)>> {
        let is_uncounted = |(folder, counted): (&Folder, &Option<ParityStatistics>)| counted.is_none().then_some(*folder);
        let uncounted: Vec<Folder> = self.lock().folders(names)?.iter().filter_map(is_uncounted).collect();
        for folder in uncounted {
            // Others may use the groups between two folders.
            self.lock().load(names, folder)?;
        }
        Ok(self.lock().folders(names)?.iter().filter_map(|(folder, counted)| Some((*folder, (*counted)?))).collect())
    }

    /// Returns the bytes of all parity files. `measure` returns those of a folder: asked for folders whose parity has
    /// changed since it was asked before.
    pub(crate) fn bytes(&self, names: &dyn Names, measure: impl Fn(Folder) -> Result<u64>) -> Result<u64> {
        let mut measured = self.measured.lock();
        let mut sum = 0;
        for (folder, counted) in self.statistics(names)? {
            let bytes = match measured.get(&folder) {
                Some((known, bytes)) if *known == counted => *bytes,
                _ => measure(folder)?,
            };
            measured.insert(folder, (counted, bytes));
            sum += bytes;
        }
        Ok(sum)
    }

    /// Notes that a container was sealed. Waits for nobody who reads directories.
    pub(crate) fn sealed(&self, container: ContainerId) {
        let mut sealed = self.sealed.lock();
        sealed.push(container);
        let is_full = sealed.len() >= KEPT_SEALED;
        drop(sealed);
        if is_full {
            drop(self.lock());
        }
    }

    /// Begins to note which folders need work. Returns `false` if that was begun before. Otherwise the caller
    /// [adds](Self::add_unseen) all folders.
    pub(crate) fn begin(&self) -> bool {
        !std::mem::replace(&mut self.lock().to_do.is_begun, true)
    }

    /// Takes the folders to check; `None`: they could not be listed. They are listed again later.
    pub(crate) fn add_unseen(&self, folders: Option<Vec<Folder>>) {
        let to_do = &mut self.lock().to_do;
        to_do.is_begun = folders.is_some();
        to_do.unseen.extend(folders.into_iter().flatten());
    }

    /// Removes and returns a folder where containers may need parity. With `all`, also one where they are few. The
    /// caller looks at it, or [returns](Self::changed) it.
    pub(crate) fn take_folder(&self, all: bool) -> Option<Folder> {
        let known = &mut *self.lock();
        for container in known.notes.unfit.expired() {
            known.to_do.changed(Folder::of(container));
        }
        known.to_do.take(all)
    }

    /// Notes that containers of a folder may need parity.
    pub(crate) fn changed(&self, folder: Folder) {
        self.lock().to_do.changed(folder);
    }

    /// Locks what is known, after noting which containers were sealed.
    fn lock(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock();
        for container in std::mem::take(&mut *self.sealed.lock()) {
            let folder = Folder::of(container);
            known.to_do.changed(folder);
            if let Some((_, groups)) = known.kept.iter_mut().find(|(kept, _)| *kept == folder) {
                groups.sealed(container);
            }
        }
        known
    }
}

impl Known {
    fn folders(&mut self, names: &dyn Names) -> Result<&mut BTreeMap<Folder, Option<ParityStatistics>>> {
        let folders = match self.folders.take() {
            Some(folders) => folders,
            None => names.folders()?.into_iter().map(|folder| (folder, None)).collect(),
        };
        Ok(self.folders.insert(folders))
    }

    /// Brings a folder to the front of those in memory.
    fn load(&mut self, names: &dyn Names, folder: Folder) -> Result<()> {
        if let Some(at) = self.kept.iter().position(|(kept, _)| *kept == folder) {
            self.kept[..=at].rotate_right(1);
            return Ok(());
        }
        let counted = self.folders(names)?.get(&folder).copied();
        // A folder that nobody has put parity into has none.
        let found = if counted.is_some() { names.groups(folder)? } else { Vec::new() };
        self.kept.truncate(self.most_kept - 1);
        self.kept.insert(0, (folder, FolderGroups::new(found, &self.notes.damaged)));
        self.count(folder);
        Ok(())
    }

    /// Works with the folder at the front.
    fn work<T>(&mut self, folder: Folder, work: impl FnOnce(&mut Groups<'_>) -> Result<T>) -> Result<T> {
        let (_, here) = self.kept.first_mut().expect("it was brought to the front");
        let done = work(&mut Groups { folder, here, notes: &mut self.notes, to_do: &mut self.to_do });
        self.count(folder);
        done
    }

    /// Notes how much parity the folder at the front has.
    fn count(&mut self, folder: Folder) {
        let Some((_, here)) = self.kept.first() else { return };
        let counted = here.statistics();
        if let Some(folders) = &mut self.folders
            && (counted.groups > 0 || folders.contains_key(&folder))
        {
            folders.insert(folder, Some(counted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::file::FOLDER_BITS;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};

    /// Folders of containers, in two partitions.
    const FOLDERS: u32 = 5;

    /// The names on disk.
    #[derive(Default)]
    struct Disk {
        names: RefCell<BTreeMap<GroupId, Vec<u32>>>,
        reads: Cell<usize>,
    }

    impl Names for Disk {
        fn folders(&self) -> Result<Vec<Folder>> {
            let mut folders: Vec<Folder> = self.names.borrow().keys().map(|group| group.folder()).collect();
            folders.dedup();
            Ok(folders)
        }

        fn groups(&self, folder: Folder) -> Result<Vec<(GroupId, Vec<u32>)>> {
            self.reads.set(self.reads.get() + 1);
            let names = self.names.borrow();
            let here = names.iter().filter(|(group, _)| group.folder() == folder);
            // In the reverse of their order.
            Ok(here.rev().map(|(group, members)| (*group, members.clone())).collect())
        }
    }

    fn container(folder: u32, number: u32) -> ContainerId {
        ContainerId::new((folder % 2) as u16, ((folder / 2) << FOLDER_BITS) + 1 + number)
    }

    /// What may happen to the containers of a folder.
    #[derive(Clone, Debug)]
    enum Step {
        /// A group of these members gets its file, and those that nobody counts on go.
        Place(u32, BTreeSet<u32>),
        /// The first group of a container goes.
        Remove(u32, u32),
        /// The parity of a container's group is found damaged.
        Damage(u32, u32),
        Unfit(u32, u32),
        BeyondRepair(u32, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = (0..FOLDERS, proptest::collection::btree_set(0..6u32, 1..4)).prop_map(|(folder, members)| Step::Place(folder, members));
        let one = |kind: fn(u32, u32) -> Step| (0..FOLDERS, 0..6u32).prop_map(move |(folder, number)| kind(folder, number));
        prop_oneof![3 => place, 1 => one(Step::Remove), 1 => one(Step::Damage), 1 => one(Step::Unfit), 1 => one(Step::BeyondRepair)]
    }

    fn take(protection: &Protection, disk: &Disk, step: &Step) {
        match step {
            Step::Place(folder, members) => {
                let members: Vec<ContainerId> = members.iter().map(|number| container(*folder, *number)).collect();
                let numbers: Vec<u32> = members.iter().map(|member| member.number()).collect();
                let folder = Folder::of(members[0]);
                let group = protection.with(disk, folder, |groups| groups.next_group()).unwrap();
                assert!(disk.names.borrow().keys().all(|other| other.folder() != folder || *other < group), "numbers only grow");
                disk.names.borrow_mut().insert(group, numbers.clone());
                let note = |groups: &mut Groups<'_>| {
                    groups.insert(group, numbers);
                    Ok(groups.unneeded())
                };
                for unneeded in protection.with(disk, folder, note).unwrap() {
                    remove(protection, disk, unneeded);
                }
            }
            Step::Remove(folder, number) => {
                let id = container(*folder, *number);
                let group = protection.with(disk, Folder::of(id), |groups| Ok(groups.groups_with(id).min())).unwrap();
                group.into_iter().for_each(|group| remove(protection, disk, group));
            }
            Step::Damage(folder, number) => on(protection, disk, container(*folder, *number), |groups, id| {
                groups.group_of(id).into_iter().for_each(|group| groups.set_outdated(group));
            }),
            Step::Unfit(folder, number) => on(protection, disk, container(*folder, *number), |groups, id| groups.set_unfit(id)),
            Step::BeyondRepair(folder, number) => {
                on(protection, disk, container(*folder, *number), |groups, id| groups.set_beyond_repair(id));
            }
        }
    }

    fn on<T>(protection: &Protection, disk: &Disk, id: ContainerId, work: impl FnOnce(&mut Groups<'_>, ContainerId) -> T) -> T {
        protection.with(disk, Folder::of(id), |groups| Ok(work(groups, id))).unwrap()
    }

    fn remove(protection: &Protection, disk: &Disk, group: GroupId) {
        disk.names.borrow_mut().remove(&group);
        let note = |groups: &mut Groups<'_>| {
            groups.remove(group);
            Ok(())
        };
        protection.with(disk, group.folder(), note).unwrap();
    }

    fn sum(protection: &Protection, disk: &Disk) -> ParityStatistics {
        let by_folder = protection.statistics(disk).unwrap();
        let groups = by_folder.iter().map(|(_, counted)| counted.groups).sum();
        ParityStatistics { groups, containers: by_folder.iter().map(|(_, counted)| counted.containers).sum() }
    }

    /// What is known of a container: its group, the others with it, and the notes.
    fn view(protection: &Protection, disk: &Disk, id: ContainerId) -> (Option<GroupId>, BTreeSet<GroupId>, bool, bool) {
        on(protection, disk, id, |groups, id| {
            (groups.group_of(id), groups.groups_with(id).collect(), groups.notes.unfit.has(id), groups.is_beyond_repair(id))
        })
    }

    proptest! {
        /// The names alone say which group counts, and notes outlive an eviction.
        #[test]
        fn a_protection_that_keeps_one_folder_knows_what_one_that_keeps_all_knows(steps in proptest::collection::vec(step(), 0..60)) {
            let (few, few_disk) = (Protection::new(1), Disk::default());
            let (all, all_disk) = (Protection::new(100), Disk::default());
            for step in &steps {
                take(&few, &few_disk, step);
                take(&all, &all_disk, step);
                prop_assert_eq!(&*few_disk.names.borrow(), &*all_disk.names.borrow());
                for id in (0..FOLDERS).flat_map(|folder| (0..6).map(move |number| container(folder, number))) {
                    let seen = view(&few, &few_disk, id);
                    prop_assert_eq!(&seen, &view(&all, &all_disk, id));
                    let with_it = |(group, members): (&GroupId, &Vec<u32>)| {
                        (group.folder() == Folder::of(id) && members.contains(&id.number())).then_some(*group)
                    };
                    let with_it: BTreeSet<GroupId> = few_disk.names.borrow().iter().filter_map(with_it).collect();
                    prop_assert_eq!((seen.0, seen.1), (with_it.last().copied(), with_it));
                }
            }
            let names = few_disk.names.borrow();
            let members = |(group, members): (&GroupId, &Vec<u32>)| members.iter().map(move |number| (group.folder(), *number)).collect::<Vec<_>>();
            let containers: BTreeSet<_> = names.iter().flat_map(members).collect();
            let expected = ParityStatistics { groups: names.len() as u64, containers: containers.len() as u64 };
            prop_assert_eq!(sum(&few, &few_disk), expected);
            prop_assert_eq!(sum(&all, &all_disk), expected);
            // A later opening counts the same, and finds the folders in order.
            let later = Protection::new(2);
            prop_assert_eq!(sum(&later, &few_disk), expected);
            prop_assert!(few.known.lock().kept.len() <= 1 && later.known.lock().kept.len() <= 2);
        }
    }

    #[test]
    fn damaged_parity_is_replaced_though_its_folder_was_evicted() {
        let (protection, disk) = (Protection::new(1), Disk::default());
        for folder in [0, 2] {
            take(&protection, &disk, &Step::Place(folder, BTreeSet::from([0, 1])));
        }
        take(&protection, &disk, &Step::Damage(0, 0));
        on(&protection, &disk, container(2, 0), |_, _| ());
        let wanting = on(&protection, &disk, container(0, 0), |groups, _| groups.wanting(9));
        assert_eq!(wanting, [container(0, 0), container(0, 1)]);
        take(&protection, &disk, &Step::Place(0, BTreeSet::from([0, 1])));
        on(&protection, &disk, container(2, 0), |_, _| ());
        assert_eq!(on(&protection, &disk, container(0, 0), |groups, _| groups.wanting(9)), []);
        assert!(protection.known.lock().notes.damaged.is_empty());
    }

    #[test]
    fn a_sequence_number_is_given_out_once_though_its_folder_was_evicted() {
        let (protection, disk) = (Protection::new(1), Disk::default());
        take(&protection, &disk, &Step::Place(0, BTreeSet::from([0, 1])));
        let next = || on(&protection, &disk, container(0, 0), |groups, _| groups.next_group().unwrap().sequence());
        assert_eq!(next(), 2);
        on(&protection, &disk, container(2, 0), |_, _| ());
        assert_eq!(next(), 3);
        // A later opening goes on from the names.
        let later = Protection::new(1);
        assert_eq!(on(&later, &disk, container(0, 0), |groups, _| groups.next_group().unwrap().sequence()), 2);
        disk.names.borrow_mut().insert(GroupId::new(Folder::of(container(0, 0)), crate::containers::group_id::MAX_SEQUENCE), vec![1]);
        on(&later, &disk, container(2, 0), |_, _| ());
        assert!(on(&later, &disk, container(0, 0), |groups, _| groups.next_group()).is_err());
    }

    #[test]
    fn a_folder_without_parity_is_not_read_and_one_with_parity_is_read_once_while_it_is_kept() {
        let (protection, disk) = (Protection::new(2), Disk::default());
        take(&protection, &disk, &Step::Place(0, BTreeSet::from([0])));
        for _ in 0..3 {
            on(&protection, &disk, container(0, 0), |_, _| ());
            on(&protection, &disk, container(1, 0), |_, _| ());
        }
        assert_eq!(disk.reads.get(), 0);
        on(&protection, &disk, container(2, 0), |_, _| ());
        on(&protection, &disk, container(0, 0), |_, _| ());
        on(&protection, &disk, container(2, 0), |_, _| ());
        on(&protection, &disk, container(0, 0), |_, _| ());
        assert_eq!(disk.reads.get(), 1);
    }

    #[test]
    fn folders_are_looked_at_when_something_happened_in_them() {
        let (protection, disk) = (Protection::new(1), Disk::default());
        let folder = |number| Folder::of(container(number, 0));
        // Nobody makes parity yet.
        protection.sealed(container(0, 0));
        assert!(protection.begin() && !protection.begin());
        protection.add_unseen(Some(vec![folder(0), folder(2), folder(4)]));
        protection.sealed(container(2, 0));
        let taken: Vec<_> = std::iter::from_fn(|| protection.take_folder(true)).collect();
        assert_eq!(taken, [folder(2), folder(4), folder(0)], "changed ones first, then the newest");
        on(&protection, &disk, container(0, 0), |groups, _| groups.to_do.leave_partial(groups.folder));
        assert_eq!(protection.take_folder(false), None);
        assert_eq!((protection.take_folder(true), protection.take_folder(true)), (Some(folder(0)), None));
        take(&protection, &disk, &Step::Place(4, BTreeSet::from([0])));
        assert_eq!((protection.take_folder(false), protection.take_folder(false)), (Some(folder(4)), None));
        take(&protection, &disk, &Step::Damage(4, 0));
        assert_eq!(protection.take_folder(false), Some(folder(4)));
        // A container that is sealed while its folder is listed is in the list, or the folder is listed again.
        assert!(on(&protection, &disk, container(4, 0), |groups, _| groups.begin_list()));
        protection.sealed(container(4, 5));
        on(&protection, &disk, container(4, 0), |groups, _| groups.end_list(vec![container(4, 0), container(4, 3)]));
        let wanting = on(&protection, &disk, container(4, 0), |groups, _| groups.wanting(9));
        assert_eq!(wanting, [container(4, 3), container(4, 5), container(4, 0)]);
        assert!(!on(&protection, &disk, container(4, 0), |groups, _| groups.begin_list()));
        on(&protection, &disk, container(0, 0), |_, _| ());
        on(&protection, &disk, container(4, 0), |groups, _| groups.end_list(vec![container(4, 3)]));
        assert!(on(&protection, &disk, container(4, 0), |groups, _| groups.begin_list()), "it was evicted");
    }

    #[test]
    fn notes_and_newly_sealed_containers_are_bounded() {
        let (protection, disk) = (Protection::new(1), Disk::default());
        assert!(protection.begin());
        for number in 0..2 * KEPT_NOTES as u32 {
            let id = ContainerId::new(0, number + 1);
            on(&protection, &disk, id, |groups, id| {
                groups.set_unfit(id);
                groups.set_beyond_repair(id);
                groups.notes.set_damaged(GroupId::new(groups.folder, number + 1));
                assert!(!groups.is_beyond_repair(ContainerId::new(0, 1)) || number < KEPT_NOTES as u32);
            });
            protection.sealed(id);
        }
        let known = protection.known.lock();
        assert!(known.notes.unfit.0.len() <= KEPT_NOTES && known.notes.beyond_repair.0.len() <= KEPT_NOTES);
        assert!(known.notes.damaged.len() <= KEPT_NOTES && protection.sealed.lock().len() < KEPT_SEALED);
        assert_eq!(known.kept.len(), 1);
    }
}
