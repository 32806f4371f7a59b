//! Names, attributes and bytes.

use crate::{Filesystem, Kind, ROOT};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Files are at most so long in tests.
const MOST_BYTES: usize = 1 << 20;
/// The extended attribute that tests set.
pub(crate) const XATTR: &[u8] = b"user.x";

/// A file of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileModel {
    /// The number of its kind ([`Kind::number`]).
    pub kind: u8,
    /// Its names; of a directory, the directories in it.
    pub names: u32,
    /// Permission bits.
    pub mode: u16,
    /// Its bytes, or the target of a symbolic link.
    pub content: Arc<Vec<u8>>,
    /// Its extended attribute.
    pub xattr: Option<Vec<u8>>,
}

/// A filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeModel {
    /// The number of each name, by directory.
    pub names: BTreeMap<(u64, Vec<u8>), u64>,
    /// By number.
    pub files: BTreeMap<u64, FileModel>,
    /// Those that a program has open: they stay without names.
    pub open: BTreeSet<u64>,
    /// The most bytes that its files may have.
    pub quota_bytes: Option<u64>,
}

impl FileModel {
    fn of(filesystem: &Filesystem, number: u64) -> Result<FileModel, String> {
        let inode = filesystem.inode(number).map_err(|error| format!("inode {number}: {error}"))?;
        let content = match &inode.kind {
            Kind::File => filesystem.read(number, 0, MOST_BYTES).map_err(|error| format!("file {number}: {error}"))?,
            Kind::Symlink { target } => target.clone(),
            _ => Vec::new(),
        };
        if inode.kind == Kind::File && content.len() as u64 != inode.size {
            return Err(format!("file {number} has {} bytes and says {}", content.len(), inode.size));
        }
        let names = if inode.is_directory() { inode.links - 2 } else { inode.links };
        let xattr = inode.xattr(XATTR).map(<[u8]>::to_vec);
        Ok(FileModel { kind: inode.kind.number(), names, mode: inode.mode, content: Arc::new(content), xattr })
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind == 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == 1
    }
}

impl TreeModel {
    /// Returns a new filesystem.
    pub fn new(quota_bytes: Option<u64>) -> TreeModel {
        let root = FileModel { kind: 1, names: 0, mode: 0o755, content: Arc::default(), xattr: None };
        TreeModel { names: BTreeMap::new(), files: BTreeMap::from([(ROOT, root)]), open: BTreeSet::new(), quota_bytes }
    }

    /// Returns everything that can be seen of a filesystem of which these files are open. Errors: it cannot be read, or
    /// what it counts is wrong.
    pub fn of(filesystem: &Filesystem, open: &BTreeSet<u64>) -> Result<TreeModel, String> {
        let usage = filesystem.usage();
        let (mut names, mut files) = (BTreeMap::new(), BTreeMap::from([(ROOT, FileModel::of(filesystem, ROOT)?)]));
        let mut left = vec![ROOT];
        while let Some(directory) = left.pop() {
            let mut from = Some(0);
            while let Some(begin) = from {
                let (found, next) = filesystem.names(directory, begin).map_err(|error| format!("directory {directory}: {error}"))?;
                for name in found {
                    let file = FileModel::of(filesystem, name.number)?;
                    let looked_up = filesystem.lookup(directory, &name.name).map(|(number, _)| number);
                    if looked_up.as_ref().ok() != Some(&name.number) || file.kind != name.kind {
                        return Err(format!("{name:?} is listed and {looked_up:?} is found, {file:?}"));
                    }
                    if file.is_directory() {
                        left.push(name.number);
                    }
                    files.insert(name.number, file);
                    names.insert((directory, name.name), name.number);
                }
                from = next;
            }
        }
        for number in open {
            files.insert(*number, FileModel::of(filesystem, *number)?);
        }
        let tree = TreeModel { names, files, open: open.clone(), quota_bytes: usage.quota_bytes };
        let (inodes, bytes) = (tree.files.len() as u64, tree.used_bytes());
        // A store that cannot be written still counts removed files that a crash left.
        let is_right = if filesystem.space().engine().is_writable() {
            (usage.inodes, usage.used_bytes) == (inodes, bytes)
        } else {
            usage.inodes >= inodes && usage.used_bytes >= bytes
        };
        if is_right { Ok(tree) } else { Err(format!("{inodes} files with {bytes} bytes are counted as {usage:?}")) }
    }

    /// Returns what is different in another one, for messages.
    pub fn difference(&self, other: &TreeModel) -> String {
        let numbers: BTreeSet<u64> = self.files.keys().chain(other.files.keys()).copied().collect();
        let differs = |number: &u64| self.files.get(number) != other.files.get(number);
        let files: Vec<u64> = numbers.into_iter().filter(differs).collect();
        let names = if self.names == other.names { "same" } else { "other" };
        format!("{names} names, other files {files:?}, quota {:?} and {:?}", self.quota_bytes, other.quota_bytes)
    }

    /// Returns the bytes that its files have together.
    pub fn used_bytes(&self) -> u64 {
        self.files.values().filter(|file| file.is_file()).map(|file| file.content.len() as u64).sum()
    }

    /// Returns the bytes of each regular file by its path, for all its names.
    pub fn paths(&self) -> BTreeMap<Vec<u8>, Arc<Vec<u8>>> {
        let mut paths = BTreeMap::new();
        let mut left = vec![(ROOT, Vec::new())];
        while let Some((directory, above)) = left.pop() {
            for ((_, name), number) in self.names.range((directory, Vec::new())..(directory + 1, Vec::new())) {
                let path = if above.is_empty() { name.clone() } else { [&above[..], name].join(&b'/') };
                match &self.files[number] {
                    file if file.is_file() => drop(paths.insert(path, file.content.clone())),
                    file if file.is_directory() => left.push((*number, path)),
                    _ => {}
                }
            }
        }
        paths
    }

    /// Returns the same without files that have no name and are kept by an open handle.
    pub fn closed(&self) -> TreeModel {
        let mut tree = self.clone();
        tree.open.clear();
        tree.files.retain(|number, file| has_name(*number, file));
        tree
    }

    /// Returns the same, with no file open that has a name.
    pub fn as_snapshot(&self) -> TreeModel {
        let mut tree = self.clone();
        tree.open.retain(|number| tree.files.get(number).is_some_and(|file| !has_name(*number, file)));
        tree
    }

    /// Returns one of the regular files.
    pub fn regular(&self, which: u8) -> Option<u64> {
        let files: Vec<u64> = self.files.iter().filter(|(_, file)| file.is_file()).map(|(number, _)| *number).collect();
        pick(&files, which)
    }

    /// Returns the choice of this regular file.
    pub fn choice_of_regular(&self, number: u64) -> Option<u8> {
        let mut files = self.files.iter().filter(|(_, file)| file.is_file());
        files.position(|(other, _)| *other == number).and_then(|which| u8::try_from(which).ok())
    }

    /// Returns the choice of this name.
    pub fn choice_of_name(&self, name: &(u64, Vec<u8>)) -> Option<u8> {
        self.names.keys().position(|other| other == name).and_then(|which| u8::try_from(which).ok())
    }

    pub(crate) fn directory(&self, which: u8) -> Option<u64> {
        let directories: Vec<u64> = self.files.iter().filter(|(_, file)| file.is_directory()).map(|(number, _)| *number).collect();
        pick(&directories, which)
    }

    pub(crate) fn name(&self, which: u8) -> Option<((u64, Vec<u8>), u64)> {
        let names: Vec<_> = self.names.iter().map(|(name, number)| (name.clone(), *number)).collect();
        pick(&names, which)
    }

    pub(crate) fn is_empty(&self, directory: u64) -> bool {
        !self.names.keys().any(|(of, _)| *of == directory)
    }

    pub(crate) fn is_below(&self, number: u64, above: u64) -> bool {
        let directory_of = |number| self.names.iter().find(|(_, named)| **named == number).map(|((directory, _), _)| *directory);
        let mut at = Some(number);
        while let Some(number) = at {
            if number == above {
                return true;
            }
            at = if number == ROOT { None } else { directory_of(number) };
        }
        false
    }

    pub(crate) fn file_mut(&mut self, number: u64) -> &mut FileModel {
        self.files.get_mut(&number).expect("it was chosen among the files")
    }

    /// Adds a name. The file is there.
    pub(crate) fn link(&mut self, name: (u64, Vec<u8>), number: u64) {
        if self.files[&number].is_directory() {
            self.file_mut(name.0).names += 1;
        } else {
            self.file_mut(number).names += 1;
        }
        self.names.insert(name, number);
    }

    /// Takes a name away, and the file if nothing keeps it.
    pub(crate) fn unlink(&mut self, name: &(u64, Vec<u8>)) {
        let Some(number) = self.names.remove(name) else { return };
        if self.files[&number].is_directory() {
            self.file_mut(name.0).names -= 1;
            self.files.remove(&number);
            return;
        }
        self.file_mut(number).names -= 1;
        self.drop_unused(number);
    }

    /// Takes a name away from a file that gets another one.
    pub(crate) fn detach(&mut self, name: &(u64, Vec<u8>)) {
        let Some(number) = self.names.remove(name) else { return };
        if self.files[&number].is_directory() {
            self.file_mut(name.0).names -= 1;
        } else {
            self.file_mut(number).names -= 1;
        }
    }

    /// Removes a file that has neither a name nor a user.
    pub(crate) fn drop_unused(&mut self, number: u64) {
        if !self.open.contains(&number) && self.files.get(&number).is_some_and(|file| !has_name(number, file)) {
            self.files.remove(&number);
        }
    }
}

fn has_name(number: u64, file: &FileModel) -> bool {
    number == ROOT || file.is_directory() || file.names > 0
}

pub(crate) fn pick<T: Clone>(from: &[T], which: u8) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(which) % from.len()].clone())
}
