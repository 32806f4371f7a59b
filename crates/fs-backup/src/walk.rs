//! The walk of a backup: names of a filesystem, sorted, beside the directory that the earlier backup has.
//!
//! A file that did not change keeps its entry: neither its inode nor its blocks are looked at. What is new or changed
//! gets its recipe from its blocks. Of a file with several names the first one has the content.

use crate::{FsBackupError, Monitor, Result};
use onefold_blocks::SpaceError;
use onefold_catalog::{
    Attributes, CHATTR_FLAGS, Content, ContentWriter, DirectoryReader, Entry, MAX_DEPTH, Making, Statistics, TreeWriter, join,
};
use onefold_engine::{Engine, Recipe};
use onefold_fs::{Changes, Filesystem, FsError, Inode, Kind, Name, ROOT};
use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;

/// The earlier backup, and what changed since.
type Compared<'a> = (Entry, &'a Changes);

/// A walk of a frozen filesystem.
pub(crate) struct Walk<'a> {
    engine: Arc<Engine>,
    filesystem: &'a Filesystem,
    changes: Option<&'a Changes>,
    /// The entry of the root in the earlier backup.
    earlier: Option<Entry>,
    monitor: &'a dyn Monitor,
    contents: ContentWriter,
    tree: TreeWriter,
    levels: Vec<Level>,
    /// The first name of each file with several names.
    first_names: HashMap<u64, Vec<u8>>,
    statistics: Statistics,
}

/// A directory on the way to the current one.
struct Level {
    path: Vec<u8>,
    names: std::vec::IntoIter<Name>,
    earlier: Option<Peekable<DirectoryReader>>,
    /// Every name of the earlier directory was found again.
    has_all: bool,
}

impl Level {
    /// Returns the earlier entry of a name. Names come in order.
    fn earlier(&mut self, name: &[u8]) -> Option<Entry> {
        let entries = self.earlier.as_mut()?;
        while let Some(entry) = entries.next_if(|entry| entry.as_ref().map_or(true, |entry| *entry.name <= *name)) {
            match entry {
                Ok(entry) if entry.name == name => return Some(entry),
                // It is gone, or cannot be read.
                _ => self.has_all = false,
            }
        }
        None
    }

    fn has_all(&mut self) -> bool {
        self.has_all && self.earlier.as_mut().is_none_or(|entries| entries.peek().is_none())
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        making: &Arc<Making>,
        filesystem: &'a Filesystem,
        compared: Option<Compared<'a>>,
        monitor: &'a dyn Monitor,
    ) -> Result<Walk<'a>> {
        let (earlier, changes) = compared.unzip();
        Ok(Walk {
            engine: making.engine().clone(),
            filesystem,
            changes,
            earlier,
            monitor,
            contents: making.contents(),
            tree: making.tree(),
            levels: Vec::new(),
            first_names: HashMap::new(),
            statistics: Statistics::default(),
        })
    }

    /// Walks everything, as a directory of this name. Returns the root of the backup, and what it counts.
    pub(crate) fn run(mut self, name: &[u8]) -> Result<(Recipe, Statistics)> {
        let earlier = self.earlier.take();
        self.enter(name.to_vec(), ROOT, name.to_vec(), earlier)?;
        while let Some(level) = self.levels.last_mut() {
            if self.monitor.is_cancelled() {
                return Err(FsBackupError::Cancelled);
            }
            match level.names.next() {
                Some(name) => self.visit(name)?,
                None => {
                    let has_all = level.has_all();
                    self.levels.pop();
                    self.tree.leave(has_all)?;
                    self.statistics.directories += 1;
                    self.monitor.visited();
                }
            }
        }
        Ok((self.tree.finish()?, self.statistics))
    }

    fn visit(&mut self, Name { name, number, .. }: Name) -> Result<()> {
        let level = self.levels.last_mut().expect("run has looked");
        let path = join(&level.path, &name);
        let earlier = level.earlier(&name);
        let is_unchanged = self.changes.is_some_and(|changes| !changes.has(number));
        // The same inode, and nothing of it changed. Where it has several names, these decide which is the first.
        let kept = earlier.as_ref().filter(|entry| is_unchanged && entry.attributes.inode == number && entry.is_sound(&self.engine));
        match kept {
            Some(Entry { content: Content::Directory { .. }, .. }) => self.enter(name, number, path, earlier),
            Some(entry) if entry.attributes.links == 1 => {
                let entry = entry.clone();
                self.add(entry, true, earlier.as_ref())
            }
            _ => match self.filesystem.inode(number) {
                Ok(inode) if inode.is_directory() => self.enter(name, number, path, earlier),
                Ok(inode) => {
                    let kept = kept.cloned();
                    self.file(name, number, &inode, path, earlier, kept)
                }
                Err(error) => self.fail(&path, error),
            },
        }
    }

    /// Adds a file of any kind but a directory. `kept`: its earlier entry, if the file did not change.
    fn file(
        &mut self,
        name: Vec<u8>,
        number: u64,
        inode: &Inode,
        path: Vec<u8>,
        earlier: Option<Entry>,
        kept: Option<Entry>,
    ) -> Result<()> {
        let content = match (&inode.kind, self.first_names.get(&number)) {
            (_, Some(first)) => Content::HardLink { path: first.clone() },
            (Kind::File, None) => match kept {
                Some(Entry { content: content @ Content::File { .. }, .. }) => content,
                _ => match self.recipe(number, inode.size) {
                    Ok(recipe) if self.engine.needs_quarantined(&recipe)? => {
                        return self.note(&path, "a part of its data is lost; `onefold check` lists what is");
                    }
                    Ok(recipe) => Content::File { size_bytes: inode.size, recipe },
                    Err(error) => return self.fail(&path, error),
                },
            },
            (kind, None) => special(kind),
        };
        if inode.links > 1 {
            self.first_names.entry(number).or_insert(path);
        }
        let entry = Entry { name, attributes: attributes(number, inode), content };
        let is_same = earlier.as_ref() == Some(&entry);
        self.add(entry, is_same, earlier.as_ref())
    }

    fn add(&mut self, entry: Entry, is_same: bool, earlier: Option<&Entry>) -> Result<()> {
        let counts = &mut self.statistics;
        match &entry.content {
            Content::File { .. } | Content::HardLink { .. } => {
                counts.files += 1;
                match earlier {
                    None => counts.new_files += 1,
                    Some(earlier) if earlier.shows_the_same(&entry) => counts.unmodified_files += 1,
                    Some(_) => counts.changed_files += 1,
                }
            }
            _ => counts.others += 1,
        }
        // The bytes of a file with several names count once.
        if let Content::File { size_bytes, .. } = &entry.content {
            counts.logical_bytes += size_bytes;
        }
        self.tree.push(entry, is_same)?;
        self.monitor.visited();
        Ok(())
    }

    fn enter(&mut self, name: Vec<u8>, number: u64, path: Vec<u8>, earlier: Option<Entry>) -> Result<()> {
        let read = self.filesystem.inode(number).and_then(|inode| Ok((inode, self.names(number)?)));
        let (inode, names) = match read {
            // No reader goes deeper.
            Ok(_) if self.levels.len() + 2 >= MAX_DEPTH => return self.note(&path, "it is too deep"),
            Ok(read) => read,
            // Without its root there is no backup.
            Err(error) if self.levels.is_empty() => return Err(error.into()),
            Err(error) => return self.fail(&path, error),
        };
        let entries = match &earlier {
            Some(Entry { content: Content::Directory { recipe }, .. }) => Some(DirectoryReader::new(&self.engine, recipe).peekable()),
            _ => None,
        };
        self.tree.enter(name, attributes(number, &inode), earlier);
        self.levels.push(Level { path, names: names.into_iter(), earlier: entries, has_all: true });
        Ok(())
    }

    /// Returns all names of a directory, sorted.
    fn names(&self, directory: u64) -> Result<Vec<Name>, FsError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(hash) = from {
            let (names, next) = self.filesystem.names(directory, hash)?;
            all.extend(names);
            from = next;
        }
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    fn recipe(&mut self, number: u64, size_bytes: u64) -> Result<Recipe> {
        self.contents.begin(None);
        let mut at = 0;
        while at < size_bytes {
            let (pieces, length) = self.filesystem.pieces(number, at)?;
            self.contents.known(&pieces)?;
            at += length;
        }
        Ok(self.contents.finish()?)
    }

    /// Leaves out what cannot be backed up, unless the whole store is to blame.
    fn fail(&mut self, path: &[u8], error: impl Into<FsBackupError>) -> Result<()> {
        match error.into() {
            FsBackupError::Filesystem(error @ (FsError::Damaged { .. } | FsError::NotFound | FsError::NotADirectory)) => {
                self.note(path, &error.to_string())
            }
            FsBackupError::Filesystem(error @ FsError::Space(SpaceError::Damaged { .. })) => self.note(path, &error.to_string()),
            FsBackupError::Filesystem(error) if error.is_lost() => self.note(path, &error.to_string()),
            error => Err(error),
        }
    }

    fn note(&mut self, path: &[u8], reason: &str) -> Result<()> {
        self.monitor.problem(path, reason);
        self.statistics.errors += 1;
        self.tree.skip();
        Ok(())
    }
}

/// Returns the attributes of an inode as the catalog has them. No device: none has this inode.
fn attributes(number: u64, inode: &Inode) -> Attributes {
    let has_flags = matches!(inode.kind, Kind::File | Kind::Directory { .. });
    Attributes {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        mtime_ns: inode.mtime_ns,
        ctime_ns: inode.ctime_ns,
        inode: number,
        device: 0,
        links: inode.links.into(),
        flags: if has_flags { inode.flags & CHATTR_FLAGS } else { 0 },
        xattrs: inode.xattrs.clone(),
    }
}

/// Returns the content of a file that has none of its own.
fn special(kind: &Kind) -> Content {
    match kind {
        Kind::Symlink { target } => Content::Symlink { target: target.clone() },
        Kind::CharacterDevice { device } => Content::CharacterDevice { major: major(*device), minor: minor(*device) },
        Kind::BlockDevice { device } => Content::BlockDevice { major: major(*device), minor: minor(*device) },
        Kind::Socket => Content::Socket,
        // Files and directories do not come here.
        Kind::Fifo | Kind::File | Kind::Directory { .. } => Content::Fifo,
    }
}

/// Devices are numbered as FUSE has them: 12 bits of the major number between 8 and 12 bits of the minor number.
fn major(device: u32) -> u32 {
    (device >> 8) & 0xfff
}

fn minor(device: u32) -> u32 {
    (device & 0xff) | ((device >> 12) & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_numbers_that_the_kernel_put_together() {
        // As `new_encode_dev` of the kernel does it.
        let encode = |major: u32, minor: u32| (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
        for (one, other) in [(0, 0), (8, 1), (259, 255), (4095, 0xf_ffff), (1, 256)] {
            let device = encode(one, other);
            assert_eq!((major(device), minor(device)), (one, other));
        }
    }
}
