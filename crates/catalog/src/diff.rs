//! The changes between two backups. Directories with equal recipes are equal and are not read.

use crate::{Attributes, Backup, Catalog, CatalogError, Content, DirectoryReader, Entry, MAX_DEPTH, Result, TreeWalk, join};
use onefold_engine::{Engine, Recipe};
use std::cmp::Ordering;
use std::sync::Arc;

/// What changed about a name that both backups have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The kind of file differs.
    pub kind: bool,
    /// The bytes, the target or the device differ.
    pub content: bool,
    /// The permission bits differ.
    pub mode: bool,
    /// The owner or the group differs.
    pub owner: bool,
    /// The time of the last change differs.
    pub mtime: bool,
    /// The extended attributes or ACLs differ.
    pub xattrs: bool,
}

impl Change {
    /// Compares two entries of the same name. Ignores the content of directories, which shows in the entries below.
    pub fn between(old: &Entry, new: &Entry) -> Change {
        let (Entry { attributes: a, content: x, .. }, Entry { attributes: b, content: y, .. }) = (old, new);
        let kind = std::mem::discriminant(x) != std::mem::discriminant(y);
        let both_directories = matches!((x, y), (Content::Directory { .. }, Content::Directory { .. }));
        Change {
            kind,
            content: !kind && !both_directories && x != y,
            mode: a.mode != b.mode,
            owner: (a.uid, a.gid) != (b.uid, b.gid),
            mtime: a.mtime_ns != b.mtime_ns,
            xattrs: sorted_xattrs(a) != sorted_xattrs(b),
        }
    }

    /// Returns whether nothing changed that a user would see.
    pub fn is_none(&self) -> bool {
        *self == Change::default()
    }
}

fn sorted_xattrs(attributes: &Attributes) -> Vec<&(Vec<u8>, Vec<u8>)> {
    let mut xattrs: Vec<_> = attributes.xattrs.iter().collect();
    xattrs.sort();
    xattrs
}

/// One difference. Paths are relative to the backups' roots.
#[derive(Debug)]
pub enum Difference<'a> {
    /// Only the new backup has it. Everything below an added directory follows.
    Added {
        /// The path.
        path: &'a [u8],
        /// The entry.
        entry: &'a Entry,
    },
    /// Only the old backup has it. Everything below a removed directory follows.
    Removed {
        /// The path.
        path: &'a [u8],
        /// The entry.
        entry: &'a Entry,
    },
    /// Both backups have it, but it differs.
    Changed {
        /// The path.
        path: &'a [u8],
        /// The entry in the old backup.
        old: &'a Entry,
        /// The entry in the new backup.
        new: &'a Entry,
        /// What differs.
        change: Change,
    },
}

/// Passes the differences from `old` to `new` to `visit`, sorted by path within each directory. `visit` returns false
/// to stop.
pub fn diff(catalog: &Catalog, old: &Backup, new: &Backup, visit: &mut dyn FnMut(Difference<'_>) -> bool) -> Result<()> {
    Walk { engine: catalog.engine(), stack: Vec::new(), visit }.run(&old.root, &new.root)
}

/// Two directories of the same path, read side by side.
struct Pair {
    path: Vec<u8>,
    old: std::iter::Peekable<DirectoryReader>,
    new: std::iter::Peekable<DirectoryReader>,
}

struct Walk<'a> {
    engine: &'a Arc<Engine>,
    stack: Vec<Pair>,
    visit: &'a mut dyn FnMut(Difference<'_>) -> bool,
}

impl Walk<'_> {
    fn run(&mut self, old: &Recipe, new: &Recipe) -> Result<()> {
        self.enter(Vec::new(), old, new)?;
        while let Some(pair) = self.stack.last_mut() {
            let order = match (pair.old.peek(), pair.new.peek()) {
                (None, None) => {
                    self.stack.pop();
                    continue;
                }
                (Some(Ok(old)), Some(Ok(new))) => old.name.cmp(&new.name),
                (Some(_), None) | (Some(Err(_)), _) => Ordering::Less,
                (None, Some(_)) | (_, Some(Err(_))) => Ordering::Greater,
            };
            let old = if order.is_le() { pair.old.next().transpose()? } else { None };
            let new = if order.is_ge() { pair.new.next().transpose()? } else { None };
            let path = join(&pair.path, old.as_ref().or(new.as_ref()).map_or(&[], |entry| &entry.name));
            if !self.compare(path, old, new)? {
                break;
            }
        }
        Ok(())
    }

    fn compare(&mut self, path: Vec<u8>, old: Option<Entry>, new: Option<Entry>) -> Result<bool> {
        let (old, new) = match (old, new) {
            (Some(old), Some(new)) => (old, new),
            (Some(old), None) => return self.whole(&path, old, false),
            (None, Some(new)) => return self.whole(&path, new, true),
            (None, None) => return Ok(true),
        };
        let change = Change::between(&old, &new);
        if !change.is_none() && !(self.visit)(Difference::Changed { path: &path, old: &old, new: &new, change }) {
            return Ok(false);
        }
        match (&old.content, &new.content) {
            (Content::Directory { recipe: old }, Content::Directory { recipe: new }) => {
                self.enter(path, old, new)?;
                Ok(true)
            }
            (Content::Directory { recipe }, _) => self.below(&path, recipe, false),
            (_, Content::Directory { recipe }) => self.below(&path, recipe, true),
            _ => Ok(true),
        }
    }

    fn enter(&mut self, path: Vec<u8>, old: &Recipe, new: &Recipe) -> Result<()> {
        if old == new {
            return Ok(());
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(CatalogError::TooLong {
                what: "nesting",
                length_bytes: self.stack.len() as u64 + 1,
                limit_bytes: MAX_DEPTH as u64,
            });
        }
        let [old, new] = [old, new].map(|recipe| DirectoryReader::new(self.engine, recipe).peekable());
        self.stack.push(Pair { path, old, new });
        Ok(())
    }

    fn whole(&mut self, path: &[u8], entry: Entry, added: bool) -> Result<bool> {
        if !self.report(path, &entry, added) {
            return Ok(false);
        }
        match &entry.content {
            Content::Directory { recipe } => self.below(path, recipe, added),
            _ => Ok(true),
        }
    }

    fn below(&mut self, path: &[u8], recipe: &Recipe, added: bool) -> Result<bool> {
        for item in TreeWalk::new(self.engine, path, recipe) {
            if !self.report(&item.path, &item.entry?, added) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn report(&mut self, path: &[u8], entry: &Entry, added: bool) -> bool {
        (self.visit)(if added { Difference::Added { path, entry } } else { Difference::Removed { path, entry } })
    }
}
