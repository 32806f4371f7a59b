//! Reads several backups side by side, in bounded memory, and says what each path is in each of them. Directories with
//! equal recipes are read once.

use crate::{Backup, CatalogError, Change, Content, DirectoryReader, Entry, MAX_DEPTH, join};
use onefold_engine::{Engine, Recipe};
use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The distinct entries of a name, each with the backups that have it.
type Versions = Vec<(Entry, Vec<usize>)>;

/// What a path is in some of the backups.
#[derive(Clone, Debug)]
pub struct Version {
    /// The entry. Directories are compared by their attributes alone.
    pub entry: Entry,
    /// The backups that have it, as indices into the given list, ascending.
    pub backups: Vec<usize>,
}

/// Receives what a walk of several backups finds.
pub trait SideBySide {
    /// Receives a path with its versions, in the order of the first backup that has each. Breaks to end the walk.
    fn path(&mut self, path: &[u8], versions: &[Version]) -> ControlFlow<()>;
    /// Returns whether to enter a directory.
    fn enters(&mut self, path: &[u8]) -> bool;
    /// Receives the error of a part of a directory that cannot be read.
    fn damaged(&mut self, path: &[u8], error: CatalogError);
}

/// A directory, with the backups in which its content is the same.
struct Same {
    entries: Peekable<DirectoryReader>,
    backups: Vec<usize>,
}

struct Level {
    path: Vec<u8>,
    readers: Vec<Same>,
}

/// Walks backups together, depth first: each directory before its content, with names sorted as bytes.
pub fn side_by_side(engine: &Arc<Engine>, backups: &[Backup], listener: &mut dyn SideBySide) {
    let roots = backups.iter().enumerate().map(|(place, backup)| (&backup.root, vec![place]));
    let mut levels = vec![Level { path: Vec::new(), readers: readers(engine, roots) }];
    while let Some(level) = levels.last_mut() {
        let Some((path, found)) = level.next(listener) else {
            levels.pop();
            continue;
        };
        if listener.path(&path, &versions(&found)).is_break() {
            return;
        }
        let directories = found.iter().filter_map(|(entry, backups)| match &entry.content {
            Content::Directory { recipe } => Some((recipe, backups.clone())),
            _ => None,
        });
        let readers = readers(engine, directories);
        if readers.is_empty() || !listener.enters(&path) {
            continue;
        }
        if levels.len() >= MAX_DEPTH {
            let (length_bytes, limit_bytes) = (levels.len() as u64 + 1, MAX_DEPTH as u64);
            listener.damaged(&path, CatalogError::TooLong { what: "nesting", length_bytes, limit_bytes });
            continue;
        }
        levels.push(Level { path, readers });
    }
}

impl Level {
    /// Returns the next name with its entries.
    fn next(&mut self, listener: &mut dyn SideBySide) -> Option<(Vec<u8>, Versions)> {
        for same in &mut self.readers {
            while let Some(Err(error)) = same.entries.next_if(Result::is_err) {
                listener.damaged(&self.path, error);
            }
        }
        let peeked = self.readers.iter_mut().filter_map(|same| same.entries.peek()?.as_ref().ok().map(|entry| entry.name.clone()));
        let name = peeked.min()?;
        let mut found = Vec::new();
        for same in &mut self.readers {
            let is_it = |entry: &crate::Result<Entry>| entry.as_ref().is_ok_and(|entry| entry.name == name);
            if let Some(Ok(entry)) = same.entries.next_if(is_it) {
                found.push((entry, same.backups.clone()));
            }
        }
        Some((join(&self.path, &name), found))
    }
}

fn readers<'a>(engine: &Arc<Engine>, directories: impl Iterator<Item = (&'a Recipe, Vec<usize>)>) -> Vec<Same> {
    let mut different: Vec<(&Recipe, Vec<usize>)> = Vec::new();
    for (recipe, backups) in directories {
        match different.iter_mut().find(|(known, _)| *known == recipe) {
            Some((_, known)) => known.extend(backups),
            None => different.push((recipe, backups)),
        }
    }
    let reader = |(recipe, mut backups): (&Recipe, Vec<usize>)| {
        backups.sort_unstable();
        Same { entries: DirectoryReader::new(engine, recipe).peekable(), backups }
    };
    different.into_iter().map(reader).collect()
}

/// Groups entries into versions. Entries that look the same to a user are one version.
fn versions(found: &[(Entry, Vec<usize>)]) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for (entry, backups) in found {
        match versions.iter_mut().find(|version| Change::between(&version.entry, entry).is_none()) {
            Some(version) => version.backups.extend(backups),
            None => versions.push(Version { entry: entry.clone(), backups: backups.clone() }),
        }
    }
    versions.iter_mut().for_each(|version| version.backups.sort_unstable());
    versions.sort_by_key(|version| version.backups.first().copied());
    versions
}
