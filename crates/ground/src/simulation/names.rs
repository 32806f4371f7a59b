//! The names on a simulated disk: current ones, durable ones, and the changes between the two.

use super::inode::Inode;
use super::random::Random;
use super::{CrashPolicy, SharedInode};
use crate::parent;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a name leads to.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Directory,
    File(SharedInode),
}

type Entries = BTreeMap<String, Entry>;

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum NameChange {
    Create { path: String, entry: Entry },
    Rename { from: String, to: String, entry: Entry },
    Remove { path: String },
}

impl NameChange {
    fn directories(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            NameChange::Create { path, .. } | NameChange::Remove { path } => (path, None),
            NameChange::Rename { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(|path| parent(path))
    }

    fn apply(&self, names: &mut Entries) {
        match self {
            NameChange::Create { path, entry } => drop(names.insert(path.clone(), entry.clone())),
            NameChange::Rename { from, to, entry } => {
                names.remove(from);
                names.insert(to.clone(), entry.clone());
            }
            NameChange::Remove { path } => drop(names.remove(path)),
        }
    }
}

/// All names of a disk. The root directory has the empty name and always exists.
#[derive(Debug, Default)]
pub(super) struct Names {
    current: Entries,
    durable: Entries,
    pending: Vec<NameChange>,
}

impl Names {
    /// Creates a set of durable names.
    fn with(entries: Entries) -> Names {
        Names { durable: entries.clone(), current: entries, pending: Vec::new() }
    }

    pub(super) fn file(&self, path: &str) -> Option<&SharedInode> {
        match self.current.get(path) {
            Some(Entry::File(inode)) => Some(inode),
            _ => None,
        }
    }

    pub(super) fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || matches!(self.current.get(path), Some(Entry::Directory))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.current.contains_key(path)
    }

    /// Returns whether a power cut would lose this name.
    pub(super) fn is_pending(&self, path: &str) -> bool {
        self.current.contains_key(path) && !self.durable.contains_key(path)
    }

    /// Lists the paths in a directory, each with whether it is a directory.
    pub(super) fn inside<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, bool)> {
        let inside = self.current.iter().filter(move |(path, _)| parent(path) == directory);
        inside.map(|(path, entry)| (path.as_str(), matches!(entry, Entry::Directory)))
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &SharedInode> {
        self.current.values().filter_map(|entry| match entry {
            Entry::File(inode) => Some(inode),
            Entry::Directory => None,
        })
    }

    pub(super) fn create(&mut self, path: &str, entry: Entry) {
        self.change(NameChange::Create { path: path.to_owned(), entry });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, inode: SharedInode) {
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), entry: Entry::File(inode) });
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.change(NameChange::Remove { path: path.to_owned() });
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Makes the names in a directory durable. It does the same for all earlier changes in the directories from which
    /// names were moved.
    pub(super) fn sync(&mut self, directory: &str) {
        let mut directories = BTreeSet::from([directory.to_owned()]);
        let mut is_covered = vec![false; self.pending.len()];
        for (change, is_covered) in self.pending.iter().zip(&mut is_covered).rev() {
            if change.directories().any(|touched| directories.contains(touched)) {
                directories.extend(change.directories().map(str::to_owned));
                *is_covered = true;
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, is_covered) in pending.into_iter().zip(is_covered) {
            if is_covered {
                change.apply(&mut self.durable);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// Returns what the next process finds, on a separate disk. After a kill that is everything, and as little of it is
    /// durable as before. After a power cut it is the names and contents that survived.
    pub(super) fn survivor(&self, policy: CrashPolicy, random: &mut Random) -> Names {
        if policy == CrashPolicy::KeepAll {
            return self.copy();
        }
        let mut entries = self.surviving_entries(policy, random);
        for entry in entries.values_mut() {
            if let Entry::File(inode) = entry {
                let content = inode.lock().survivor(policy, random);
                *inode = Arc::new(Mutex::new(Inode::with(content)));
            }
        }
        Names::with(entries)
    }

    /// Keeps a prefix of each directory's changes. Everything in a lost directory is lost with it.
    fn surviving_entries(&self, policy: CrashPolicy, random: &mut Random) -> Entries {
        let mut entries = self.durable.clone();
        let mut ended = BTreeSet::new();
        for change in &self.pending {
            let is_kept = matches!(policy, CrashPolicy::Random { .. }) && random.below(4) > 0;
            if is_kept && !change.directories().any(|directory| ended.contains(directory)) {
                change.apply(&mut entries);
            } else {
                ended.extend(change.directories());
            }
        }
        // A directory sorts before its entries.
        let mut lost: BTreeSet<String> = BTreeSet::new();
        for path in entries.keys() {
            let above = parent(path);
            if !above.is_empty() && (lost.contains(above) || !matches!(entries.get(above), Some(Entry::Directory))) {
                lost.insert(path.clone());
            }
        }
        entries.retain(|path, _| !lost.contains(path));
        entries
    }

    /// Copies the names and their files, so that changes to the copy do not touch the original.
    fn copy(&self) -> Names {
        let mut copies: HashMap<*const Mutex<Inode>, SharedInode> = HashMap::new();
        let mut copy = |entry: &mut Entry| {
            if let Entry::File(inode) = entry {
                let copied = copies.entry(Arc::as_ptr(inode)).or_insert_with(|| Arc::new(Mutex::new(inode.lock().clone())));
                *entry = Entry::File(Arc::clone(copied));
            }
        };
        let (mut current, mut durable, mut pending) = (self.current.clone(), self.durable.clone(), self.pending.clone());
        current.values_mut().chain(durable.values_mut()).for_each(&mut copy);
        for change in &mut pending {
            match change {
                NameChange::Create { entry, .. } | NameChange::Rename { entry, .. } => copy(entry),
                NameChange::Remove { .. } => {}
            }
        }
        Names { current, durable, pending }
    }
}
