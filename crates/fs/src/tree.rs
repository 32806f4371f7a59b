//! Inodes and names in memory: what is not stored yet on top of what is.
//!
//! # Invariants
//! * What a reader sees is the newest change. It looks into `dirty`, then into `submitting`, then into the space.
//! * `dirty` has whole operations: it changes only under the lock of the tree, and an operation that fails has changed
//!   nothing.
//! * What leaves `dirty` leaves it as a whole, so the space has at every moment the state between two operations.

use crate::error::{FsError, Result};
use crate::filesystem::{FILE_BITS, MAX_NUMBER};
use crate::inode::{Inode, Kind};
use crate::keys;
use onefold_blocks::Space;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What an inode takes in memory, apart from what it points to. A table is between half and quite full.
const CACHED_BYTES: usize = 2 * size_of::<(u64, Cached)>();
/// What a change takes beside its value, or an inode without extended attributes.
const CHANGE_BYTES: usize = 300;
/// Entries read at a time.
const PAGE: usize = 256;

/// Entries, and where to go on.
type Page = (Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>);
/// Changes of entries. `None`: it is removed.
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An inode in memory.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) inode: Inode,
    /// Up to here, the content of the file is stored or zeros. Its entry says no more.
    pub(crate) stored_size: u64,
    /// Another number after it became shorter: what was written out before says nothing of what came then.
    cut: u64,
    /// It took the place of another file: its content is stored before its name is.
    pub(crate) replaces: bool,
}

impl Cached {
    /// Returns about what it takes in memory.
    fn memory_bytes(&self) -> usize {
        CACHED_BYTES + self.inode.heap_bytes()
    }
}

/// A file whose inode is dirty, as it was when a commit began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirtyFile {
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) replaces: bool,
    cut: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Where it is in the order of its directory.
    pub hash: u64,
    /// The name.
    pub name: Vec<u8>,
    /// The number of the inode.
    pub number: u64,
    /// What the inode is ([`Kind`](crate::Kind)).
    pub kind: u8,
}

/// The metadata of a filesystem.
#[derive(Debug)]
pub(crate) struct Tree {
    space: Arc<Space>,
    dirty: Changes,
    submitting: Option<Arc<Changes>>,
    inodes: HashMap<u64, Cached>,
    /// What they take in memory.
    cached_bytes: usize,
    /// What those that are not dirty may take.
    cache_limit_bytes: usize,
    /// At so many bytes, some of them go.
    evict_at_bytes: usize,
    /// Inodes that are dirty, in their order.
    dirty_inodes: BTreeSet<u64>,
    /// About how many bytes the changes have.
    bytes: usize,
    /// How often a file became shorter.
    cuts: u64,
}

impl Tree {
    pub(crate) fn new(space: Arc<Space>, cache_limit_bytes: usize) -> Tree {
        Tree {
            space,
            dirty: Changes::new(),
            submitting: None,
            inodes: HashMap::new(),
            cached_bytes: 0,
            cache_limit_bytes,
            evict_at_bytes: cache_limit_bytes,
            dirty_inodes: BTreeSet::new(),
            bytes: 0,
            cuts: 0,
        }
    }

    /// Returns an entry.
    pub(crate) fn entry(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(changed) = self.dirty.get(key).or_else(|| self.submitting.as_ref().and_then(|changes| changes.get(key))) {
            return Ok(changed.clone());
        }
        Ok(self.space.entry(key)?)
    }

    /// Changes an entry.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += CHANGE_BYTES + value.as_ref().map_or(0, Vec::len);
        self.dirty.insert(key, value);
    }

    /// Returns about how many bytes wait to be submitted.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the first entries from a key on, up to but not including another, and where to go on.
    pub(crate) fn entries(&self, from: &[u8], to: &[u8]) -> Result<Page> {
        let (stored, next) = self.space.entries(from, to, PAGE)?;
        let end = next.clone().unwrap_or_else(|| to.to_vec());
        let mut all: BTreeMap<Vec<u8>, Option<Vec<u8>>> = stored.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for changes in self.submitting.iter().map(|changes| &**changes).chain([&self.dirty]) {
            all.extend(changes.range(from.to_vec()..end.clone()).map(|(key, value)| (key.clone(), value.clone())));
        }
        Ok((all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(), next))
    }

    /// Returns an inode. Errors: there is none of this number.
    pub(crate) fn inode(&mut self, number: u64) -> Result<&mut Cached> {
        if !self.inodes.contains_key(&number) {
            let value = self.entry(&keys::inode(number))?.ok_or(FsError::NotFound)?;
            let inode =
                Inode::decode(&value).map_err(|error| FsError::Damaged { what: format!("inode {number}"), reason: error.to_string() })?;
            // Bytes behind the longest file would be those of others.
            let is_too_long = inode.kind == Kind::File && inode.size > u64::from(self.space.block_size()) << FILE_BITS;
            let is_below_none = matches!(inode.kind, Kind::Directory { parent } if !(1..MAX_NUMBER).contains(&parent));
            if is_too_long || is_below_none {
                let reason = "its length or its directory cannot be".to_owned();
                return Err(FsError::Damaged { what: format!("inode {number}"), reason });
            }
            let stored_size = inode.size;
            self.insert(number, Cached { inode, stored_size, cut: self.cuts, replaces: false });
        }
        self.inodes.get_mut(&number).ok_or(FsError::NotFound)
    }

    /// Notes that a file becomes shorter: nothing behind its new end is stored any more.
    pub(crate) fn cut(&mut self, number: u64, size: u64) -> Result<()> {
        self.cuts += 1;
        let cut = self.cuts;
        let cached = self.inode(number)?;
        cached.stored_size = cached.stored_size.min(size);
        cached.cut = cut;
        Ok(())
    }

    /// Changes an inode.
    pub(crate) fn change(&mut self, number: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let cached = self.inode(number)?;
        let before_bytes = cached.memory_bytes();
        change(&mut cached.inode);
        let after_bytes = cached.memory_bytes();
        let bytes = CHANGE_BYTES + cached.inode.xattr_bytes();
        if self.dirty_inodes.insert(number) || bytes > 2 * CHANGE_BYTES {
            self.bytes += bytes;
        }
        self.cached_bytes = self.cached_bytes - before_bytes + after_bytes;
        Ok(())
    }

    /// Adds a new inode.
    pub(crate) fn add(&mut self, number: u64, inode: Inode) {
        let stored_size = if inode.kind == Kind::File { 0 } else { inode.size };
        self.insert(number, Cached { inode, stored_size, cut: self.cuts, replaces: false });
        self.dirty_inodes.insert(number);
    }

    /// Removes an inode.
    pub(crate) fn remove(&mut self, number: u64) {
        self.cached_bytes -= self.inodes.remove(&number).map_or(0, |cached| cached.memory_bytes());
        self.dirty_inodes.remove(&number);
        self.put(keys::inode(number), None);
    }

    /// Keeps an inode in memory. Others go if there are too many.
    fn insert(&mut self, number: u64, cached: Cached) {
        let bytes = cached.memory_bytes();
        if self.cached_bytes + bytes > self.evict_at_bytes {
            self.evict();
        }
        self.cached_bytes += bytes;
        self.cached_bytes -= self.inodes.insert(number, cached).map_or(0, |before| before.memory_bytes());
    }

    /// Evicts clean inodes, until at most half of their limit is in use.
    fn evict(&mut self) {
        let (mut clean_bytes, mut dirty_bytes) = (0, 0);
        self.inodes.retain(|number, cached| {
            let bytes = cached.memory_bytes();
            if self.dirty_inodes.contains(number) {
                dirty_bytes += bytes;
                return true;
            }
            let stays = clean_bytes + bytes <= self.cache_limit_bytes / 2;
            clean_bytes += if stays { bytes } else { 0 };
            stays
        });
        self.cached_bytes = clean_bytes + dirty_bytes;
        // Not again before half of the limit has come.
        self.evict_at_bytes = (dirty_bytes + clean_bytes + self.cache_limit_bytes / 2).max(self.cache_limit_bytes);
    }

    /// Returns what the inodes take in memory.
    #[cfg(test)]
    pub(crate) fn cached_bytes(&self) -> usize {
        assert_eq!(self.cached_bytes, self.inodes.values().map(Cached::memory_bytes).sum::<usize>());
        self.cached_bytes
    }

    /// Looks up a name in a directory.
    pub(crate) fn name(&self, directory: u64, name: &[u8]) -> Result<Option<(u64, u8)>> {
        match self.entry(&keys::name(directory, name))? {
            Some(value) => parse_name(&value).map(Some),
            None => Ok(None),
        }
    }

    /// Returns names of a directory whose hashes are at least `from`, in the order of their hashes, and where to go on.
    pub(crate) fn names(&self, directory: u64, from: u64) -> Result<(Vec<Name>, Option<u64>)> {
        let (first, end) = keys::names(directory, from);
        let (entries, next) = self.entries(&first, &end)?;
        let (mut names, mut next) = (parse_names(directory, &entries)?, next);
        // Names of one hash stay together, however many there are.
        while let Some(key) = &next {
            let (hash, _) = keys::parse_name(key).ok_or_else(|| short_key(directory))?;
            if names.iter().any(|name| name.hash < hash) {
                names.retain(|name| name.hash < hash);
                return Ok((names, Some(hash)));
            }
            let (more, further) = self.entries(key, &end)?;
            names.extend(parse_names(directory, &more)?);
            next = further;
        }
        Ok((names, None))
    }

    /// Returns what has to be written out before the dirty inodes are stored.
    pub(crate) fn dirty_files(&self) -> Vec<DirtyFile> {
        let file = |number: &u64| {
            let Cached { inode, cut, replaces, .. } = self.inodes.get(number)?;
            Some(DirtyFile { number: *number, size: inode.size, replaces: *replaces, cut: *cut })
        };
        self.dirty_inodes.iter().filter_map(file).collect()
    }

    /// Returns the files that took the place of others and whose content is not stored up to their lengths.
    pub(crate) fn unstored_replacements(&self) -> Vec<DirtyFile> {
        let file = |number: &u64| {
            let Cached { inode, cut, replaces, stored_size } = self.inodes.get(number)?;
            let is_unstored = *replaces && inode.kind == Kind::File && *stored_size < inode.size;
            is_unstored.then_some(DirtyFile { number: *number, size: inode.size, replaces: true, cut: *cut })
        };
        self.dirty_inodes.iter().filter_map(file).collect()
    }

    /// Notes that the content of a file was written out, unless the file became shorter meanwhile.
    pub(crate) fn is_stored(&mut self, file: DirtyFile) {
        if let Some(cached) = self.inodes.get_mut(&file.number)
            && cached.cut == file.cut
        {
            cached.stored_size = cached.stored_size.max(file.size);
        }
    }

    /// Returns how many bytes files are stored shorter by the changes that wait than they are.
    pub(crate) fn unstored_bytes(&self) -> u64 {
        let bytes = |number: &u64| match self.inodes.get(number) {
            Some(Cached { inode, stored_size, .. }) if inode.kind == Kind::File => inode.size.saturating_sub(*stored_size),
            _ => 0,
        };
        self.dirty_inodes.iter().map(bytes).sum()
    }

    /// Takes all changes. They are seen until [`submitted`](Tree::submitted) is called. `None`: there are none.
    pub(crate) fn take(&mut self) -> Option<Arc<Changes>> {
        for number in std::mem::take(&mut self.dirty_inodes) {
            let Some(cached) = self.inodes.get_mut(&number) else { continue };
            let size = cached.inode.size.min(cached.stored_size);
            let is_file = cached.inode.kind == Kind::File;
            let size = if is_file { size } else { cached.inode.size };
            self.dirty.insert(keys::inode(number), Some(cached.inode.encode(size)));
            // The rest follows when it is stored.
            let is_dirty = size != cached.inode.size;
            cached.replaces &= is_dirty;
            if is_dirty {
                self.dirty_inodes.insert(number);
            }
        }
        // They may go now.
        if self.cached_bytes > self.cache_limit_bytes {
            self.evict();
        }
        if self.dirty.is_empty() {
            return None;
        }
        self.bytes = self.dirty_inodes.len() * CHANGE_BYTES;
        let changes = Arc::new(std::mem::take(&mut self.dirty));
        self.submitting = Some(changes.clone());
        Some(changes)
    }

    /// The changes that were taken are in the space, or not: then they are dirty again.
    pub(crate) fn submitted(&mut self, is_done: bool) {
        let Some(changes) = self.submitting.take() else { return };
        if !is_done {
            for (key, value) in changes.iter() {
                // What has changed since stays as it is.
                self.bytes += CHANGE_BYTES + value.as_ref().map_or(0, Vec::len);
                self.dirty.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// Returns how many changes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.dirty.len() + self.dirty_inodes.len()
    }
}

fn short_key(directory: u64) -> FsError {
    FsError::Damaged { what: format!("directory {directory}"), reason: "a key is too short".to_owned() }
}

fn parse_names(directory: u64, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<Name>> {
    let parse = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let (hash, name) = keys::parse_name(key).ok_or_else(|| short_key(directory))?;
        let (number, kind) = parse_name(value)?;
        Ok(Name { hash, name: name.to_vec(), number, kind })
    };
    entries.iter().map(parse).collect()
}

/// Returns the value of a name.
pub(crate) fn encode_name(number: u64, kind: u8) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    out.push(kind);
    out
}

fn parse_name(value: &[u8]) -> Result<(u64, u8)> {
    match value.split_first_chunk::<8>() {
        // The blocks of a file with another number would be those of others.
        Some((number, [kind])) if (1..MAX_NUMBER).contains(&u64::from_le_bytes(*number)) => Ok((u64::from_le_bytes(*number), *kind)),
        _ => Err(FsError::Damaged { what: "a name".to_owned(), reason: "its value is none of a name".to_owned() }),
    }
}
