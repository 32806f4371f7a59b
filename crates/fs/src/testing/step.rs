//! What a program does to a filesystem, and what must come of it.

use super::tree::{FileModel, TreeModel, XATTR, pick};
use crate::{Allocate, Changed, Create, Filesystem, FsError, Kind, Rename, Result, SetXattr};
use std::sync::Arc;

/// Stands for the number of a new file, before the filesystem has said it.
pub(super) const NEW: u64 = u64::MAX;
/// The target of symbolic links.
const TARGET: &[u8] = b"somewhere";
const MODE: u16 = 0o640;

/// What a program does. Files and names are chosen among those that are there: any number fits.
#[derive(Clone, Debug)]
pub enum FileStep {
    /// Makes a file: directory, name, kind.
    Create(u8, u8, u8),
    /// Gives a file another name: file, directory, name.
    Link(u8, u8, u8),
    /// Removes a name, or an empty directory.
    Remove(u8),
    /// Renames: name, directory, new name, how.
    Rename(u8, u8, u8, u8),
    /// Writes: file, offset, length, seed of the bytes. One in five is an append.
    Write(u8, u32, u32, u64),
    /// Changes a length: file, length.
    Truncate(u8, u32),
    /// Changes a range: file, offset, length, how.
    Allocate(u8, u32, u32, u8),
    /// Copies a range: file, offset, other file, offset, length.
    Copy(u8, u32, u8, u32, u32),
    /// Changes permission bits.
    Mode(u8, u16),
    /// Sets or removes an extended attribute.
    Xattr(u8, Option<u8>),
    /// Opens a file.
    Open(u8),
    /// Closes one that is open.
    Close(u8),
    /// Changes the quota.
    Quota(Option<u32>),
}

/// A call of a filesystem. Returns the number of the new file, the new end, or how much was copied.
type Call = Box<dyn Fn(&Filesystem) -> Result<u64>>;

/// A step on a certain tree.
pub(super) struct Plan {
    pub(super) call: Call,
    /// What comes of it: the tree, and what the call returns, if that is known.
    pub(super) expected: Result<(TreeModel, Option<u64>)>,
    /// The file whose content changes.
    pub(super) changes: Option<u64>,
    /// The file that takes the place of another.
    pub(super) replaces: Option<u64>,
}

fn plan(expected: Result<TreeModel>, call: impl Fn(&Filesystem) -> Result<u64> + 'static) -> Option<Plan> {
    Some(Plan { call: Box::new(call), expected: expected.map(|tree| (tree, None)), changes: None, replaces: None })
}

fn content_plan(
    number: u64,
    expected: Result<(TreeModel, Option<u64>)>,
    call: impl Fn(&Filesystem) -> Result<u64> + 'static,
) -> Option<Plan> {
    Some(Plan { call: Box::new(call), expected, changes: Some(number), replaces: None })
}

/// Returns bytes that the seed decides: the bytes of a small one repeat.
fn bytes(length: u32, seed: u64) -> Vec<u8> {
    if seed < 8 {
        return (0..length).map(|byte| (seed as u8) ^ (byte >> 3) as u8).collect();
    }
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    std::iter::repeat_with(|| next().to_le_bytes()).flatten().take(length as usize).collect()
}

fn new_file(kind: u8) -> (Kind, Vec<u8>) {
    match kind {
        0 => (Kind::File, Vec::new()),
        1 => (Kind::Directory { parent: 0 }, Vec::new()),
        2 => (Kind::Symlink { target: TARGET.to_vec() }, TARGET.to_vec()),
        _ => (Kind::Fifo, Vec::new()),
    }
}

impl TreeModel {
    /// Returns what a step means here. `None`: there is nothing to do it with.
    pub(super) fn plan(&self, step: &FileStep) -> Option<Plan> {
        match *step {
            FileStep::Create(which, name, kind) => self.plan_create(self.directory(which)?, vec![b'a' + name], kind),
            FileStep::Link(which, to, name) => self.plan_link(self.name(which)?.1, (self.directory(to)?, vec![b'a' + name])),
            FileStep::Remove(which) => self.plan_remove(self.name(which)?),
            FileStep::Rename(which, to, new, how) => {
                let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(how) % 3];
                self.plan_rename(self.name(which)?, (self.directory(to)?, vec![b'a' + new]), how)
            }
            FileStep::Write(which, at, length, seed) => {
                self.plan_write(self.regular(which)?, at.into(), bytes(length, seed), seed % 5 == 0)
            }
            FileStep::Truncate(which, size) => self.plan_truncate(self.regular(which)?, size.into()),
            FileStep::Allocate(which, at, length, how) => {
                let zero = |keeps_size| Allocate::Zero { keeps_size };
                let how = [Allocate::Extend, Allocate::Keep, Allocate::Punch, zero(true), zero(false)][usize::from(how) % 5];
                self.plan_allocate(self.regular(which)?, at.into(), length.into(), how)
            }
            FileStep::Copy(from, from_at, to, to_at, length) => {
                self.plan_copy((self.regular(from)?, from_at.into()), (self.regular(to)?, to_at.into()), length.into())
            }
            FileStep::Mode(which, mode) => {
                let (number, mut tree) = (self.name(which)?.1, self.clone());
                tree.file_mut(number).mode = mode;
                plan(Ok(tree), move |fs| fs.set(number, Changed { mode: Some(mode), ..Changed::default() }).map(|_| 0))
            }
            FileStep::Xattr(which, value) => {
                let (number, mut tree) = (self.name(which)?.1, self.clone());
                let value = value.map(|value| vec![value; 9]);
                let had = std::mem::replace(&mut tree.file_mut(number).xattr, value.clone());
                let expected = if value.is_none() && had.is_none() { Err(FsError::NoAttribute) } else { Ok(tree) };
                plan(expected, move |fs| fs.set_xattr(number, XATTR, value.as_deref(), SetXattr::Any).map(|()| 0))
            }
            FileStep::Open(which) => {
                let (number, mut tree) = (self.regular(which)?, self.clone());
                // Once each: a second handle makes no difference to the tree.
                tree.open.insert(number).then_some(())?;
                plan(Ok(tree), move |fs| fs.opened(number).map(|()| 0))
            }
            FileStep::Close(which) => {
                let open: Vec<u64> = self.open.iter().copied().collect();
                let (number, mut tree) = (pick(&open, which)?, self.clone());
                tree.open.remove(&number);
                tree.drop_unused(number);
                plan(Ok(tree), move |fs| fs.closed(number).map(|()| 0))
            }
            FileStep::Quota(bytes) => {
                let quota_bytes = bytes.map(u64::from);
                plan(Ok(TreeModel { quota_bytes, ..self.clone() }), move |fs| fs.set_quota(quota_bytes).map(|()| 0))
            }
        }
    }

    fn plan_create(&self, directory: u64, name: Vec<u8>, kind: u8) -> Option<Plan> {
        let expected = if self.names.contains_key(&(directory, name.clone())) {
            Err(FsError::Exists)
        } else {
            let (made, content) = new_file(kind);
            let inherited = if kind == 1 { self.files[&directory].mode & 0o2000 } else { 0 };
            let content = Arc::new(content);
            let mut tree = self.clone();
            tree.files.insert(NEW, FileModel { kind: made.number(), names: 0, mode: MODE | inherited, content, xattr: None });
            tree.link((directory, name.clone()), NEW);
            Ok(tree)
        };
        let new = Create { mode: MODE, umask: 0, uid: 1, gid: 2 };
        plan(expected, move |fs| fs.create(directory, &name, new_file(kind).0, new).map(|(number, _)| number))
    }

    fn plan_link(&self, number: u64, name: (u64, Vec<u8>)) -> Option<Plan> {
        let expected = if self.files[&number].is_directory() {
            Err(FsError::NotPermitted)
        } else if self.names.contains_key(&name) {
            Err(FsError::Exists)
        } else {
            let mut tree = self.clone();
            tree.link(name.clone(), number);
            Ok(tree)
        };
        plan(expected, move |fs| fs.link(number, name.0, &name.1).map(|_| 0))
    }

    fn plan_remove(&self, (name, number): ((u64, Vec<u8>), u64)) -> Option<Plan> {
        let is_directory = self.files[&number].is_directory();
        let expected = if is_directory && !self.is_empty(number) {
            Err(FsError::NotEmpty)
        } else {
            let mut tree = self.clone();
            tree.unlink(&name);
            Ok(tree)
        };
        plan(expected, move |fs| {
            if is_directory {
                let unlinked = fs.unlink(name.0, &name.1);
                assert!(matches!(unlinked, Err(FsError::IsADirectory | FsError::Space(_))), "it is a directory: {unlinked:?}");
                fs.remove_directory(name.0, &name.1)?;
            } else {
                let removed = fs.remove_directory(name.0, &name.1);
                assert!(matches!(removed, Err(FsError::NotADirectory | FsError::Space(_))), "it is no directory: {removed:?}");
                fs.unlink(name.0, &name.1)?;
            }
            Ok(0)
        })
    }

    fn plan_rename(&self, (name, number): ((u64, Vec<u8>), u64), new: (u64, Vec<u8>), how: Rename) -> Option<Plan> {
        let (there, file) = (self.names.get(&new).copied(), &self.files[&number]);
        let other = there.map(|there| &self.files[&there]);
        let is_below = |one: u64, above: u64| self.files[&above].is_directory() && self.is_below(one, above);
        let mut tree = self.clone();
        let mut replaces = None;
        let expected = match (how, there, other) {
            _ if is_below(new.0, number) => Err(FsError::Cycle),
            (Rename::NoReplace, Some(_), _) => Err(FsError::Exists),
            (Rename::Exchange, None, _) => Err(FsError::NotFound),
            (_, Some(there), _) if there == number => Ok(tree),
            (Rename::Exchange, Some(there), _) if is_below(name.0, there) => Err(FsError::Cycle),
            (Rename::Exchange, Some(there), _) => {
                tree.detach(&name);
                tree.detach(&new);
                tree.link(name.clone(), there);
                tree.link(new.clone(), number);
                Ok(tree)
            }
            (_, _, Some(other)) if other.is_directory() && !file.is_directory() => Err(FsError::IsADirectory),
            (_, _, Some(other)) if !other.is_directory() && file.is_directory() => Err(FsError::NotADirectory),
            (_, Some(there), Some(other)) if other.is_directory() && !self.is_empty(there) => Err(FsError::NotEmpty),
            (_, there, _) => {
                replaces = there.map(|_| number);
                tree.unlink(&new);
                tree.detach(&name);
                tree.link(new.clone(), number);
                Ok(tree)
            }
        };
        let planned = plan(expected, move |fs| fs.rename((name.0, &name.1), (new.0, &new.1), how).map(|()| 0))?;
        Some(Plan { replaces, ..planned })
    }

    /// Returns the same with other content of a file, and what the call returns. Errors: the quota does not allow it.
    fn with_content(&self, number: u64, content: Vec<u8>, returned: Option<u64>) -> Result<(TreeModel, Option<u64>)> {
        let grown = content.len().saturating_sub(self.files[&number].content.len()) as u64;
        if grown > 0 && self.quota_bytes.is_some_and(|quota| self.used_bytes() + grown > quota) {
            return Err(FsError::NoSpace);
        }
        let mut tree = self.clone();
        tree.file_mut(number).content = Arc::new(content);
        Ok((tree, returned))
    }

    fn plan_write(&self, number: u64, at: u64, data: Vec<u8>, appends: bool) -> Option<Plan> {
        let mut content = self.files[&number].content.to_vec();
        let begin = if appends { content.len() } else { at as usize };
        put(&mut content, begin, &data);
        let end = content.len() as u64;
        content_plan(number, self.with_content(number, content, Some(end)), move |fs| fs.write(number, at, &data, appends))
    }

    fn plan_truncate(&self, number: u64, size: u64) -> Option<Plan> {
        let mut content = self.files[&number].content.to_vec();
        content.resize(size as usize, 0);
        content_plan(number, self.with_content(number, content, None), move |fs| fs.truncate(number, size).map(|_| 0))
    }

    fn plan_allocate(&self, number: u64, at: u64, length: u64, how: Allocate) -> Option<Plan> {
        let mut content = self.files[&number].content.to_vec();
        let (from, end) = (at as usize, (at + length) as usize);
        if matches!(how, Allocate::Extend | Allocate::Zero { keeps_size: false }) {
            content.resize(content.len().max(end), 0);
        }
        if !matches!(how, Allocate::Extend | Allocate::Keep) {
            let size = content.len();
            content[from.min(size)..end.min(size)].fill(0);
        }
        content_plan(number, self.with_content(number, content, None), move |fs| fs.allocate(number, at, length, how).map(|()| 0))
    }

    fn plan_copy(&self, (from, from_at): (u64, u64), (to, to_at): (u64, u64), length: u64) -> Option<Plan> {
        let source = &self.files[&from].content;
        let copied = (source.len() as u64).saturating_sub(from_at).min(length);
        let expected = if from == to && from_at.abs_diff(to_at) < copied {
            Err(FsError::Invalid)
        } else {
            let mut content = self.files[&to].content.to_vec();
            let begin = from_at.min(source.len() as u64) as usize;
            put(&mut content, to_at as usize, &source[begin..begin + copied as usize]);
            self.with_content(to, content, Some(copied))
        };
        content_plan(to, expected, move |fs| fs.copy((from, from_at), (to, to_at), length))
    }
}

/// Writes to content. Nothing at all does not make it longer.
fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() {
        content.resize(content.len().max(at + data.len()), 0);
        content[at..at + data.len()].copy_from_slice(data);
    }
}
