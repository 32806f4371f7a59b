//! Looks into a backup: one path, or everything below one, in bounded memory.

use crate::{Backup, Catalog, CatalogError, Chunks, Content, DirectoryReader, Entry, Result};
use onefold_engine::{Engine, Recipe};
use std::sync::Arc;

/// The deepest nesting that is followed. A store that nests deeper was made to exhaust its readers.
pub const MAX_DEPTH: usize = 16 << 10;

/// Returns the components of a path, without empty ones and `.`.
pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

/// Returns a path with one more component.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns the entry at `path` below the directory `root`. See [`Catalog::lookup`].
pub fn lookup<C: Chunks + ?Sized>(chunks: &Arc<C>, root: &Recipe, path: &[u8]) -> Result<Option<Entry>> {
    let mut found: Option<(Entry, Option<CatalogError>)> = None;
    for component in components(path) {
        let recipe = match &found {
            None => root,
            // On the way its attributes do not matter.
            Some((Entry { content: Content::Directory { recipe }, .. }, _)) => recipe,
            Some(_) => return Err(CatalogError::NotADirectory { path: String::from_utf8_lossy(path).into_owned() }),
        };
        let entry = DirectoryReader::find_incomplete(chunks, recipe, component)?;
        found = Some(entry.ok_or_else(|| CatalogError::PathNotFound { path: String::from_utf8_lossy(path).into_owned() })?);
    }
    match found {
        Some((_, Some(lost))) => Err(lost),
        found => Ok(found.map(|(entry, _)| entry)),
    }
}

impl Catalog {
    /// Returns the entry at `path` (components joined by `/`, relative to the backup's root). Returns `None` if `path`
    /// is the root itself.
    pub fn lookup(&self, backup: &Backup, path: &[u8]) -> Result<Option<Entry>> {
        lookup(self.engine(), &backup.root, path)
    }

    /// Returns the directory at `path`, or the root for an empty path.
    pub fn directory(&self, backup: &Backup, path: &[u8]) -> Result<Recipe> {
        match self.lookup(backup, path)? {
            None => Ok(backup.root.clone()),
            Some(Entry { content: Content::Directory { recipe }, .. }) => Ok(recipe),
            Some(_) => Err(CatalogError::NotADirectory { path: String::from_utf8_lossy(path).into_owned() }),
        }
    }
}

/// One step of a walk.
#[derive(Debug)]
pub struct WalkItem {
    /// Path relative to the backup's root.
    pub path: Vec<u8>,
    /// The entry, or the reason why a part of the directory `path` cannot be read. The walk goes on after it. An entry
    /// whose rest is lost comes first, incomplete.
    pub entry: Result<Entry>,
}

/// Walks a tree depth first: each directory before its content, with names sorted as bytes.
#[derive(Debug)]
pub struct TreeWalk<C: Chunks + ?Sized = Engine> {
    chunks: Arc<C>,
    stack: Vec<(Vec<u8>, DirectoryReader<C>)>,
    /// The directory that was returned last. The next step enters it.
    next: Option<(Vec<u8>, Recipe)>,
}

impl<C: Chunks + ?Sized> TreeWalk<C> {
    /// Walks the directory `recipe`, whose path is `path`.
    pub fn new(chunks: &Arc<C>, path: &[u8], recipe: &Recipe) -> TreeWalk<C> {
        TreeWalk { chunks: chunks.clone(), stack: Vec::new(), next: Some((path.to_vec(), recipe.clone())) }
    }

    /// Skips the content of the directory that was returned last.
    pub fn skip_directory(&mut self) {
        self.next = None;
    }
}

impl<C: Chunks + ?Sized> Iterator for TreeWalk<C> {
    type Item = WalkItem;

    fn next(&mut self) -> Option<WalkItem> {
        if let Some((path, recipe)) = self.next.take() {
            let reader = DirectoryReader::new(&self.chunks, &recipe).with_incomplete();
            self.stack.push((path, reader));
        }
        loop {
            let depth = self.stack.len();
            let (path, reader) = self.stack.last_mut()?;
            match reader.next() {
                None => {
                    self.stack.pop();
                }
                Some(Err(error)) => return Some(WalkItem { path: path.clone(), entry: Err(error) }),
                Some(Ok(entry)) => {
                    let path = join(path, &entry.name);
                    if let Content::Directory { recipe } = &entry.content {
                        if depth >= MAX_DEPTH {
                            let error =
                                CatalogError::TooLong { what: "nesting", length_bytes: depth as u64 + 1, limit_bytes: MAX_DEPTH as u64 };
                            return Some(WalkItem { path, entry: Err(error) });
                        }
                        self.next = Some((path.clone(), recipe.clone()));
                    }
                    return Some(WalkItem { path, entry: Ok(entry) });
                }
            }
        }
    }
}
