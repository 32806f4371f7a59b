//! What the lock of a filesystem protects: the tree, what it counts, and which files are open or gone. Each method is a
//! part of an operation in memory.

use crate::error::{FsError, Result};
use crate::filesystem::{MAX_NUMBER, ROOT};
use crate::inode::{APPEND_ONLY, IMMUTABLE, Inode, Kind};
use crate::keys;
use crate::tree::{Tree, encode_name};
use onefold_ground::wire::{Reader, put_varint};
use std::collections::{HashMap, HashSet};

/// Version of the entry of the filesystem itself.
const VERSION: u8 = 1;
/// Numbers are taken together: so many are unused after a crash.
const NUMBERS: u64 = 1024;

/// How much a filesystem has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The most bytes that its files may have together. `None`: there is no limit.
    pub quota_bytes: Option<u64>,
    /// The bytes that its files have.
    pub used_bytes: u64,
    /// Its files, of all kinds.
    pub inodes: u64,
}

/// The filesystem itself, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Itself {
    /// No inode has this number or a greater one.
    pub(crate) next: u64,
    pub(crate) used: Use,
}

impl Itself {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for number in [self.next, self.used.quota_bytes.map_or(0, |bytes| bytes.saturating_add(1)), self.used.used_bytes, self.used.inodes]
        {
            put_varint(&mut out, number);
        }
        out
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Itself> {
        let read = || {
            let mut reader = Reader::new(value);
            reader.u8()?;
            let (next, quota, used_bytes, inodes) = (reader.varint()?, reader.varint()?, reader.varint()?, reader.varint()?);
            reader.end()?;
            Ok::<_, onefold_ground::wire::WireError>(Itself { next, used: Use { quota_bytes: quota.checked_sub(1), used_bytes, inodes } })
        };
        match (value.first(), read()) {
            (Some(&VERSION), Ok(itself)) => Ok(itself),
            (_, Ok(_)) => Err(damaged("it has another version")),
            (_, Err(error)) => Err(damaged(&error.to_string())),
        }
    }
}

pub(crate) fn damaged(reason: &str) -> FsError {
    FsError::Damaged { what: "the filesystem".to_owned(), reason: reason.to_owned() }
}

/// What the lock of the tree protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) itself: Itself,
    pub(crate) is_itself_dirty: bool,
    /// Room that is kept for files that grow just now, bytes.
    pub(crate) reserved_bytes: u64,
    /// The bytes that its entry leaves out, because the files are stored with shorter lengths.
    pub(crate) unstored_bytes: u64,
    /// The next number; those up to `itself.next` are taken.
    pub(crate) next: u64,
    /// How often each file is open.
    pub(crate) open: HashMap<u64, u64>,
    /// Those of them that have no name.
    pub(crate) unnamed: HashSet<u64>,
    /// Files whose blocks behind their end are to be freed, with the end that they had.
    pub(crate) cut: HashMap<u64, u64>,
    /// Files without names and users, whose blocks are to be freed.
    pub(crate) dead: Vec<u64>,
}

impl State {
    /// Keeps room for a file that grows, until that is [over](Self::release). Errors: that is more than the quota.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        let wanted_bytes = self.itself.used.used_bytes.saturating_add(self.reserved_bytes).saturating_add(bytes);
        if bytes > 0 && self.itself.used.quota_bytes.is_some_and(|quota| wanted_bytes > quota) {
            return Err(FsError::NoSpace);
        }
        self.reserved_bytes = self.reserved_bytes.saturating_add(bytes);
        Ok(())
    }

    /// Gives up the room that was kept.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
    }

    /// Notes that a file has another length, together with its inode: so a commit in between counts neither.
    pub(crate) fn charge(&mut self, before: u64, after: u64) {
        if before != after {
            self.itself.used.used_bytes = self.itself.used.used_bytes.saturating_sub(before).saturating_add(after);
            self.is_itself_dirty = true;
        }
    }

    /// Puts the entry of the filesystem itself among the changes. Files that are stored with a shorter length have only
    /// so many bytes there.
    pub(crate) fn note_itself(&mut self) {
        let unstored_bytes = self.tree.unstored_bytes();
        if std::mem::take(&mut self.is_itself_dirty) || unstored_bytes != self.unstored_bytes {
            let mut itself = self.itself;
            itself.used.used_bytes = itself.used.used_bytes.saturating_sub(unstored_bytes);
            self.tree.put(keys::SELF.to_vec(), Some(itself.encode()));
            self.unstored_bytes = unstored_bytes;
        }
    }

    /// Returns whether nothing waits to be stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.tree.waiting() == 0 && !self.is_itself_dirty
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        if self.next >= self.itself.next {
            if self.next >= MAX_NUMBER - NUMBERS {
                return Err(FsError::NoSpace);
            }
            self.itself.next = self.next + NUMBERS;
            self.is_itself_dirty = true;
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    pub(crate) fn directory(&mut self, number: u64) -> Result<&Inode> {
        let inode = &self.tree.inode(number)?.inode;
        if inode.is_directory() { Ok(inode) } else { Err(FsError::NotADirectory) }
    }

    pub(crate) fn find(&mut self, directory: u64, name: &[u8]) -> Result<Option<(u64, u8)>> {
        self.directory(directory)?;
        self.tree.name(directory, name)
    }

    /// Adds a name to a directory.
    pub(crate) fn link(&mut self, directory: u64, name: &[u8], number: u64, kind: u8, now_ns: i64) -> Result<()> {
        self.tree.put(keys::name(directory, name), Some(encode_name(number, kind)));
        self.tree.change(directory, |inode| {
            inode.size += 1;
            (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        })
    }

    /// Removes a name from a directory.
    pub(crate) fn unlink(&mut self, directory: u64, name: &[u8], now_ns: i64) -> Result<()> {
        self.tree.put(keys::name(directory, name), None);
        self.tree.change(directory, |inode| {
            inode.size = inode.size.saturating_sub(1);
            (inode.mtime_ns, inode.ctime_ns) = (now_ns, now_ns);
        })
    }

    /// Errors: a flag of `chattr` forbids that a directory loses a name, or a file.
    pub(crate) fn check_may_lose(&mut self, directory: u64, number: u64) -> Result<()> {
        self.directory(directory)?.check_flags(IMMUTABLE | APPEND_ONLY)?;
        self.tree.inode(number)?.inode.check_flags(IMMUTABLE | APPEND_ONLY)
    }

    /// A name of a file is gone. Without names it goes, too, as soon as nobody has it open.
    pub(crate) fn lose(&mut self, number: u64, now_ns: i64) -> Result<()> {
        let mut is_gone = false;
        self.tree.change(number, |inode| {
            // A directory has no other names.
            inode.links = if inode.is_directory() { 0 } else { inode.links.saturating_sub(1) };
            inode.ctime_ns = now_ns;
            is_gone = inode.links == 0;
        })?;
        if is_gone {
            self.tree.put(keys::orphan(number), Some(vec![1]));
            if self.open.contains_key(&number) {
                self.unnamed.insert(number);
            } else {
                self.bury(number)?;
            }
        }
        Ok(())
    }

    /// Removes a file without names and users. Its blocks follow after the next commit.
    pub(crate) fn bury(&mut self, number: u64) -> Result<()> {
        self.unnamed.remove(&number);
        let inode = &self.tree.inode(number)?.inode;
        let (bytes, is_file) = (inode.size, matches!(inode.kind, Kind::File));
        self.tree.remove(number);
        self.itself.used.inodes = self.itself.used.inodes.saturating_sub(1);
        self.is_itself_dirty = true;
        self.cut.remove(&number);
        if is_file {
            self.charge(bytes, 0);
            self.dead.push(number);
        } else {
            self.tree.put(keys::orphan(number), None);
        }
        Ok(())
    }
}

/// A name with its directory, and what has it.
pub(crate) type Place<'a> = (u64, &'a [u8], u64, u8);

impl State {
    /// Errors: a directory is to move into itself, or below.
    pub(crate) fn check_no_cycle(&mut self, number: u64, to: u64) -> Result<()> {
        let mut above = to;
        // As deep as there are files. More would be a circle.
        for _ in 0..=self.itself.used.inodes {
            if above == number {
                return Err(FsError::Cycle);
            }
            if above == ROOT {
                return Ok(());
            }
            above = match self.directory(above)?.kind {
                Kind::Directory { parent } => parent,
                _ => return Err(FsError::NotADirectory),
            };
        }
        Err(damaged("directories are in each other"))
    }

    pub(crate) fn exchange(&mut self, one: Place<'_>, other: Place<'_>, now_ns: i64) -> Result<()> {
        let (from, name, number, kind) = one;
        let (to, new, there, there_kind) = other;
        if self.tree.inode(there)?.inode.is_directory() {
            self.check_no_cycle(there, from)?;
        }
        self.unlink(from, name, now_ns)?;
        self.unlink(to, new, now_ns)?;
        self.link(from, name, there, there_kind, now_ns)?;
        self.link(to, new, number, kind, now_ns)?;
        self.moved(number, from, to, now_ns)?;
        self.moved(there, to, from, now_ns)
    }

    /// A file has got a name in another directory, or in the same.
    pub(crate) fn moved(&mut self, number: u64, from: u64, to: u64, now_ns: i64) -> Result<()> {
        let mut is_directory = false;
        self.tree.change(number, |inode| {
            inode.ctime_ns = now_ns;
            if let Kind::Directory { parent } = &mut inode.kind {
                *parent = to;
                is_directory = true;
            }
        })?;
        if is_directory && from != to {
            self.tree.change(from, |above| above.links = above.links.saturating_sub(1))?;
            self.tree.change(to, |above| above.links += 1)?;
        }
        Ok(())
    }
}
