//! What a filesystem was since it was last made durable, and what a crash may leave of that.

use super::step::{FileStep, NEW, Plan};
use super::tree::{FileModel, TreeModel};
use crate::{Filesystem, FsError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::sync::Arc;

/// The trees since the last commit, one for each step: moments. The last one is what the process sees.
///
/// After a crash, names, attributes and lengths are those of one moment. The bytes of a file may be those of any moment
/// since the file was synced, and its end may be missing. A file that took the place of another has all its bytes.
#[derive(Clone, Debug)]
pub struct History {
    moments: Vec<Arc<TreeModel>>,
    /// Names and attributes are not older than this moment.
    oldest: usize,
    /// The moment since which the bytes of a file count, by number.
    synced: BTreeMap<u64, usize>,
    /// Files that took the place of others, and at which moment.
    replaced: Vec<(u64, usize)>,
    /// The highest number that is never given again.
    durable: u64,
    /// The highest number that was given since it was opened.
    given: u64,
}

/// What a crash left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Names and attributes are newer than what was acknowledged.
    pub is_newer: bool,
    /// A file is without its end.
    pub is_shorter: bool,
    /// A file has bytes of another moment than its names.
    pub is_mixed: bool,
}

impl History {
    /// Returns that of a filesystem that is durable as it is.
    pub fn new(tree: TreeModel) -> History {
        let mut history = History { moments: Vec::new(), oldest: 0, synced: BTreeMap::new(), replaced: Vec::new(), durable: 0, given: 0 };
        history.begin(Arc::new(tree));
        history
    }

    fn begin(&mut self, tree: Arc<TreeModel>) {
        self.note_numbers(&tree);
        (self.moments, self.oldest) = (vec![tree], 0);
        self.synced.clear();
        self.replaced.clear();
    }

    /// The numbers of these files, and those that were given, are durable.
    fn note_numbers(&mut self, tree: &TreeModel) {
        let highest = tree.files.keys().next_back().copied().unwrap_or(0);
        self.durable = self.durable.max(self.given).max(highest);
    }

    fn last(&self) -> usize {
        self.moments.len() - 1
    }

    /// Returns what the process sees.
    pub fn latest(&self) -> &Arc<TreeModel> {
        &self.moments[self.last()]
    }

    /// Everything was made durable.
    pub fn synced(&mut self) {
        self.begin(self.latest().clone());
    }

    /// A file was made durable, and with it all names and attributes.
    pub fn file_synced(&mut self, number: u64) {
        self.oldest = self.last();
        self.synced.insert(number, self.oldest);
        self.note_numbers(&self.latest().clone());
    }

    /// A commit failed, and the process lives: names may be stored without the content that belongs to them.
    pub fn commit_failed(&mut self) {
        self.replaced.clear();
    }

    /// No program has anything open any more.
    pub fn closed(&mut self) {
        if !self.latest().open.is_empty() {
            self.moments.push(Arc::new(self.latest().closed()));
        }
    }

    /// Takes a step, with the filesystem. Panics if its answer is wrong. Errors: the store failed. Then it is as
    /// before; if the content of a file was to change, each of its bytes may be the old or the new one.
    pub fn take(&mut self, step: &FileStep, filesystem: &Filesystem) -> Result<()> {
        let Some(Plan { call, expected, changes, replaces }) = self.latest().plan(step) else { return Ok(()) };
        match (expected, call(filesystem)) {
            (Ok((mut tree, wanted)), Ok(returned)) => {
                assert!(wanted.is_none_or(|wanted| wanted == returned), "{step:?} returned {returned} instead of {wanted:?}");
                self.number(&mut tree, returned);
                self.moments.push(Arc::new(tree));
                self.replaced.extend(replaces.map(|number| (number, self.last())));
                Ok(())
            }
            (Err(wanted), Err(error)) if discriminant(&wanted) == discriminant(&error) => Ok(()),
            (expected, Err(error @ FsError::Space(_))) => {
                if let (Ok((tree, _)), Some(number)) = (expected, changes) {
                    self.failed(tree, number, filesystem);
                }
                Err(error)
            }
            (expected, answer) => panic!("{step:?}: {answer:?} instead of {:?}", expected.map(|(_, returned)| returned)),
        }
    }

    /// Gives a new file the number that the filesystem said.
    fn number(&mut self, tree: &mut TreeModel, number: u64) {
        let Some(file) = tree.files.remove(&NEW) else { return };
        assert!(number > self.durable && number > self.given, "number {number} is used again");
        self.given = number;
        tree.files.insert(number, file);
        tree.names.values_mut().filter(|named| **named == NEW).for_each(|named| *named = number);
    }

    /// The change of a file's content failed.
    fn failed(&mut self, wanted: TreeModel, number: u64, filesystem: &Filesystem) {
        let before = self.latest().clone();
        // What the store has of it may come back after a crash.
        self.moments.push(Arc::new(wanted));
        let mut seen = before.as_ref().clone();
        if let Ok(found) = TreeModel::of(filesystem, &before.open) {
            let contents = [&before.files[&number].content, &self.latest().files[&number].content];
            let content = &found.files[&number].content;
            assert!(contents.iter().any(|one| one.len() == content.len()), "file {number} has a third length after an error");
            let is_known = |(at, byte): (usize, &u8)| contents.iter().any(|one| one.get(at) == Some(byte));
            assert!(content.iter().enumerate().all(is_known), "file {number} has neither old nor new bytes after an error");
            seen.file_mut(number).content = content.clone();
            assert!(found == seen, "an operation that failed changed something");
        }
        self.moments.push(Arc::new(seen));
    }

    /// The filesystem was closed with an error and opened again: it is one of what a crash may leave, but nothing of it
    /// is durable by that.
    pub fn reopened(&mut self, seen: TreeModel) -> Result<(), String> {
        self.judge(&seen)?;
        self.given = 0;
        self.moments.push(Arc::new(seen));
        Ok(())
    }

    /// Judges what a crash left: from now on, that is what there is. Errors: it was promised otherwise.
    pub fn crashed(&mut self, seen: TreeModel) -> Result<Left, String> {
        let left = self.judge(&seen)?;
        self.given = 0;
        self.begin(Arc::new(seen));
        Ok(left)
    }

    fn judge(&self, seen: &TreeModel) -> Result<Left, String> {
        let mut reasons = BTreeSet::new();
        for moment in self.oldest..self.moments.len() {
            match self.is_of(moment, seen) {
                Ok(left) => return Ok(left),
                Err(reason) => drop(reasons.insert(reason)),
            }
        }
        let reasons: Vec<String> = reasons.into_iter().take(4).collect();
        Err(format!("it is that of none of {} moments: {}", self.moments.len() - self.oldest, reasons.join("; or ")))
    }

    /// Returns whether a crash may leave this of a moment.
    fn is_of(&self, moment: usize, seen: &TreeModel) -> Result<Left, String> {
        let expected = self.moments[moment].closed();
        if expected.names != seen.names {
            return Err(format!("names {:?} instead of {:?}", seen.names, expected.names));
        }
        if expected.quota_bytes != seen.quota_bytes {
            return Err(format!("quota {:?} instead of {:?}", seen.quota_bytes, expected.quota_bytes));
        }
        let mut left = Left { is_newer: moment > self.oldest, ..Left::default() };
        for (number, file) in &expected.files {
            let found = seen.files.get(number).ok_or_else(|| format!("file {number} is missing"))?;
            let is_same = |one: &FileModel, other: &FileModel| {
                (one.kind, one.names, one.mode, &one.xattr) == (other.kind, other.names, other.mode, &other.xattr)
            };
            if !is_same(file, found) {
                return Err(format!("file {number} has other attributes"));
            }
            if file.is_file() {
                let (is_shorter, is_mixed) = self.is_content_of(moment, *number, &found.content)?;
                left.is_shorter |= is_shorter;
                left.is_mixed |= is_mixed;
            } else if file.content != found.content {
                return Err(format!("symbolic link {number} leads elsewhere"));
            }
        }
        if seen.files.len() == expected.files.len() { Ok(left) } else { Err("there are more files".to_owned()) }
    }

    /// Returns in what these bytes differ from those of a file at a moment: they are fewer, they are others. Errors: no
    /// crash may leave them.
    fn is_content_of(&self, moment: usize, number: u64, content: &[u8]) -> Result<(bool, bool), String> {
        let replaced = self.replaced.iter().filter(|(file, at)| *file == number && *at <= moment).map(|(_, at)| *at).max();
        let from = self.synced.get(&number).copied().max(replaced).unwrap_or(0);
        let contents = |until: usize| self.moments[from..=until].iter().filter_map(|tree| Some(&tree.files.get(&number)?.content));
        let own = &self.moments[moment].files[&number].content;
        let most = own.len();
        let least = contents(moment).map(|content| content.len()).min().unwrap_or(0);
        if content.len() < least || content.len() > most {
            return Err(format!("file {number} has {} bytes instead of {least} to {most}", content.len()));
        }
        let mut known: Vec<&Arc<Vec<u8>>> = Vec::new();
        for content in contents(self.last()) {
            if !known.iter().any(|one| Arc::ptr_eq(one, content)) {
                known.push(content);
            }
        }
        let is_shorter = content.len() < most;
        if own[..content.len()] == *content {
            return Ok((is_shorter, false));
        }
        match content.iter().enumerate().find(|(at, byte)| !known.iter().any(|one| one.get(*at) == Some(byte))) {
            Some((at, _)) => Err(format!("file {number} has a byte at {at} that nobody wrote since it was synced")),
            None => Ok((is_shorter, true)),
        }
    }
}
