//! Copies backups from store to store: directory by directory, then the record.

use crate::error::Result;
use crate::recipes::{Moved, Mover};
use crate::{CopyError, Monitor, Problem};
use onefold_catalog::{Attributes, Backup, Catalog, CatalogError, Content, DirectoryReader, DirectoryWriter, Entry, MAX_DEPTH, join};
use onefold_engine::{Engine, Recipe, WriteStream};
use std::sync::Arc;

/// The most problems listed per backup.
const LISTED: usize = 10_000;

/// Copies backups one by one. Data that backups share is moved once.
pub struct Backups {
    mover: Mover,
    destination: Catalog,
}

/// The outcome of copying one backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupOutcome {
    /// The destination already had it.
    There,
    /// It is now in the destination, durably.
    Copied,
    /// Parts of it cannot be read, so it was not copied. Lists the first problems.
    Damaged(Vec<Problem>),
}

/// A directory being copied.
struct Frame {
    path: Vec<u8>,
    name: Vec<u8>,
    attributes: Attributes,
    recipe: Recipe,
    reader: DirectoryReader,
    writer: DirectoryWriter,
    is_whole: bool,
    /// Set after an invalid entry: the rest of the directory is not read.
    is_over: bool,
}

impl Frame {
    /// Appends an entry of the source. An entry that no sound directory can have is noted as a problem and ends the
    /// directory.
    fn push(&mut self, stream: &mut WriteStream, entry: &Entry, note: &mut dyn FnMut(Vec<u8>, String)) -> Result<()> {
        match self.writer.push(stream, entry) {
            Err(error @ (CatalogError::Disordered { .. } | CatalogError::TooLong { .. })) => {
                note(self.path.clone(), error.to_string());
                (self.is_whole, self.is_over) = (false, true);
                Ok(())
            }
            pushed => Ok(pushed?),
        }
    }
}

impl Backups {
    /// Returns a copier between two open stores. The destination must be open for writing.
    pub fn new(source: &Arc<Engine>, destination: &Arc<Engine>) -> Backups {
        Backups { mover: Mover::new(source, destination), destination: Catalog::new(destination.clone()) }
    }

    /// Returns what was moved so far.
    pub fn moved(&self) -> Moved {
        self.mover.moved()
    }

    /// Copies a backup with its id, its times, its place in the order and its protection. Only reads chunks of the
    /// source, so the source may be held ([`Catalog::hold`]). Errors: anything that ends the whole copy.
    pub fn copy(&mut self, backup: &Backup, protected_until_ns: Option<i64>, monitor: &dyn Monitor) -> Result<BackupOutcome> {
        if self.destination.has(backup)? {
            self.protect(backup, protected_until_ns)?;
            return Ok(BackupOutcome::There);
        }
        let mut problems = Vec::new();
        let root = self.tree(&backup.root, monitor, &mut problems)?;
        let Some(root) = root.filter(|_| problems.is_empty()) else { return Ok(BackupOutcome::Damaged(problems)) };
        self.destination.commit_copy(&mut Backup { root, ..backup.clone() })?;
        self.protect(backup, protected_until_ns)?;
        Ok(BackupOutcome::Copied)
    }

    /// Protects the copy. An existing protection is only ever prolonged.
    fn protect(&self, backup: &Backup, until_ns: Option<i64>) -> Result<()> {
        let Some(until_ns) = until_ns else { return Ok(()) };
        if self.destination.protected_until(backup)?.is_none_or(|known| known < until_ns) {
            self.destination.protect(std::slice::from_ref(backup), Some(until_ns))?;
        }
        Ok(())
    }

    /// Copies a tree. If parts of it cannot be read, adds to `problems` and returns `None`.
    fn tree(&mut self, root: &Recipe, monitor: &dyn Monitor, problems: &mut Vec<Problem>) -> Result<Option<Recipe>> {
        if let Some(made) = self.mover.remembered(root) {
            monitor.advance(0);
            return Ok(Some(made));
        }
        let mut note = |what: Vec<u8>, reason: String| {
            if problems.len() < LISTED {
                problems.push(Problem { what, reason });
            }
        };
        let mut stack = vec![self.enter(Vec::new(), Vec::new(), Attributes::default(), root)];
        while let (depth, Some(frame)) = (stack.len(), stack.last_mut()) {
            if monitor.is_cancelled() {
                return Err(CopyError::Cancelled);
            }
            let entry = match if frame.is_over { None } else { frame.reader.next() } {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    note(frame.path.clone(), error.to_string());
                    frame.is_whole = false;
                    continue;
                }
                None => {
                    let Some(frame) = stack.pop() else { break };
                    let made = frame.writer.finish(&mut self.mover.stream)?;
                    if frame.is_whole {
                        self.mover.remember(&frame.recipe, &made);
                    }
                    let Some(above) = stack.last_mut() else { return Ok(frame.is_whole.then_some(made)) };
                    above.is_whole &= frame.is_whole;
                    let entry = Entry { name: frame.name, attributes: frame.attributes, content: Content::Directory { recipe: made } };
                    above.push(&mut self.mover.stream, &entry, &mut note)?;
                    continue;
                }
            };
            let content = match &entry.content {
                Content::Directory { recipe } => match self.mover.remembered(recipe) {
                    Some(made) => Content::Directory { recipe: made },
                    None => {
                        let path = join(&frame.path, &entry.name);
                        if depth >= MAX_DEPTH {
                            note(path, format!("directories are nested more than {MAX_DEPTH} deep"));
                            return Ok(None);
                        }
                        let recipe = recipe.clone();
                        let below = self.enter(path, entry.name, entry.attributes, &recipe);
                        stack.push(below);
                        continue;
                    }
                },
                Content::File { size_bytes, recipe } => match self.mover.file(recipe, monitor) {
                    Ok(recipe) => Content::File { size_bytes: *size_bytes, recipe },
                    Err(CopyError::Source(reason)) => {
                        note(join(&frame.path, &entry.name), reason);
                        frame.is_whole = false;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                other => other.clone(),
            };
            frame.push(&mut self.mover.stream, &Entry { content, ..entry }, &mut note)?;
        }
        Ok(None)
    }

    fn enter(&self, path: Vec<u8>, name: Vec<u8>, attributes: Attributes, recipe: &Recipe) -> Frame {
        Frame {
            path,
            name,
            attributes,
            recipe: recipe.clone(),
            reader: DirectoryReader::new(&self.mover.source, recipe),
            writer: DirectoryWriter::new(&self.mover.destination),
            is_whole: true,
            is_over: false,
        }
    }
}
