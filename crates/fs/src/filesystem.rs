//! A filesystem: its names, and the attributes of its files.
//!
//! # Locks, in the order in which they are taken
//! Commits; one file (its content and its length); the tree. The tree is held for one operation in memory.

use crate::acl;
use crate::error::{FsError, Result};
use crate::inode::{APPEND_ONLY, IMMUTABLE, INHERITED_FLAGS, Inode, Kind, MAX_TARGET_BYTES, NO_ATIME, NO_DUMP};
use crate::keys;
use crate::state::{Itself, State, Use, damaged};
use crate::tree::{Name, Tree};
use onefold_blocks::Space;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of the root.
pub const ROOT: u64 = 1;
/// The longest name.
pub const MAX_NAME_BYTES: usize = 255;
/// A file has the blocks from `number << FILE_BITS` on.
pub(crate) const FILE_BITS: u32 = 28;
/// Numbers of inodes are below this.
pub(crate) const MAX_NUMBER: u64 = 1 << (63 - FILE_BITS);
/// Extended attributes have names with one of these.
const XATTR_PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The most names of a file.
const MAX_LINKS: u32 = 65_000;
/// Changes of names and inodes after which a commit begins early.
const MANY_CHANGES: usize = 32 << 10;
/// After this time, reading a file is noted again.
const DAY_NS: i64 = 86_400_000_000_000;
/// Changes with so many bytes are committed before another one adds to them: one transaction takes all.
const MANY_BYTES: usize = 32 << 20;

/// The extended attribute with the capabilities of a program.
const CAPABILITIES: &[u8] = b"security.capability";

/// How a filesystem works.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// What is not synced is stored after this time.
    pub commit_interval: Duration,
    /// Memory limit for clean inodes, in bytes. A [view](crate::Filesystems::view) of a snapshot has a part.
    pub inode_cache_bytes: usize,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions { commit_interval: Duration::from_secs(5), inode_cache_bytes: 16 << 20 }
    }
}

/// What a new file gets.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// Permission bits.
    pub mode: u16,
    /// The bits that its maker takes away, unless the directory has a default ACL.
    pub umask: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group, unless the directory hands on its own.
    pub gid: u32,
}

/// How a rename treats what has the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// It is replaced.
    #[default]
    Replace,
    /// It is an error.
    NoReplace,
    /// Both swap their names.
    Exchange,
}

/// What is to change of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changed {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access, nanoseconds since 1970.
    pub atime_ns: Option<i64>,
    /// Last change of the content.
    pub mtime_ns: Option<i64>,
    /// Last change of anything. Otherwise: now.
    pub ctime_ns: Option<i64>,
}

/// A filesystem that is open. Many threads may call all methods at once.
#[derive(Debug)]
pub struct Filesystem {
    pub(crate) space: Arc<Space>,
    pub(crate) options: FsOptions,
    pub(crate) state: Mutex<State>,
    /// One for each file whose content somebody uses.
    files: Mutex<HashMap<u64, Arc<RwLock<()>>>>,
    pub(crate) committing: Mutex<()>,
    /// Wakes the thread that commits.
    pub(crate) wanted: Arc<(Mutex<Wanted>, Condvar)>,
    pub(crate) is_read_only: bool,
    /// Nothing can be changed any more, and only its end commits.
    pub(crate) is_closed: AtomicBool,
    /// Nothing is committed any more. Changes under the lock of commits.
    pub(crate) is_ended: AtomicBool,
}

/// What the thread that commits is to do.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) commit: bool,
    pub(crate) stop: bool,
}

/// Checks a name that is to be made.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(FsError::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(FsError::Invalid),
        _ if name.len() > MAX_NAME_BYTES => Err(FsError::TooLong),
        _ => Ok(()),
    }
}

pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Filesystem {
    /// Makes an empty filesystem in a new space.
    pub fn format(space: &Arc<Space>, quota_bytes: Option<u64>, owner: (u32, u32)) -> Result<()> {
        let root = Inode::new(Kind::Directory { parent: ROOT }, 0o755, owner, now_ns());
        let itself = Itself { next: ROOT + 1, used: Use { quota_bytes, used_bytes: 0, inodes: 1 } };
        let entries = vec![(keys::SELF.to_vec(), Some(itself.encode())), (keys::inode(ROOT), Some(root.encode(0)))];
        Ok(space.submit_entries(entries)?)
    }

    /// Returns whether a space has nothing yet, not even an empty filesystem.
    pub(crate) fn is_unmade(space: &Space) -> Result<bool> {
        Ok(space.entry(keys::SELF)?.is_none() && space.entries(&[0], &[0xff], 1)?.0.is_empty())
    }

    /// Opens the filesystem of a space. Files without names that a crash left are removed by the next commits.
    pub fn open(space: Arc<Space>, options: FsOptions) -> Result<Arc<Filesystem>> {
        let value = space.entry(keys::SELF)?.ok_or_else(|| damaged("its entry is missing"))?;
        let itself = Itself::decode(&value)?;
        let is_read_only = space.is_read_only() || !space.engine().is_writable();
        let mut state = State {
            tree: Tree::new(space.clone(), options.inode_cache_bytes),
            next: itself.next,
            itself,
            is_itself_dirty: false,
            reserved_bytes: 0,
            unstored_bytes: 0,
            open: HashMap::new(),
            unnamed: HashSet::new(),
            cut: HashMap::new(),
            dead: Vec::new(),
        };
        if !is_read_only {
            let (mut from, to) = keys::orphans();
            loop {
                let (entries, next) = state.tree.entries(&from, &to)?;
                for (key, _) in entries {
                    let number = keys::orphan_number(&key).filter(|number| *number < MAX_NUMBER);
                    let number = number.ok_or_else(|| damaged("the key of a removed file is none"))?;
                    match state.tree.inode(number) {
                        Ok(_) => state.bury(number)?,
                        // Only its blocks are left.
                        Err(FsError::NotFound) => state.dead.push(number),
                        Err(error) => return Err(error),
                    }
                }
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        Ok(Arc::new(Filesystem {
            space,
            options,
            state: Mutex::new(state),
            files: Mutex::default(),
            committing: Mutex::new(()),
            wanted: Default::default(),
            is_read_only,
            is_closed: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
        }))
    }

    /// Returns how much the filesystem of a space has, as stored.
    pub(crate) fn stored_usage(space: &Space) -> Result<Use> {
        let value = space.entry(keys::SELF)?.ok_or_else(|| damaged("its entry is missing"))?;
        Ok(Itself::decode(&value)?.used)
    }

    /// Returns how many bytes the device of the store has, and how many of them are free.
    pub fn device(&self) -> Result<(u64, u64)> {
        let space = self.space.engine().space()?;
        Ok((space.total_bytes, space.free_bytes))
    }

    /// Returns its name now.
    pub fn name(&self) -> String {
        self.space.name()
    }

    /// Returns the number of its space.
    pub fn space_number(&self) -> u32 {
        self.space.number()
    }

    /// Returns whether nobody can change it.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(FsError::Closed);
        }
        if self.is_read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Locks the tree for a change.
    pub(crate) fn change(&self) -> Result<MutexGuard<'_, State>> {
        self.check_writable()?;
        let state = self.state.lock();
        // It may have been closed meanwhile: nothing may come after its last commit.
        self.check_writable()?;
        if state.tree.waiting() > MANY_CHANGES {
            self.want_commit();
        }
        Ok(state)
    }

    /// Commits if what waits is large. The caller holds no lock.
    pub(crate) fn make_room(&self) -> Result<()> {
        self.check_writable()?;
        if !self.is_large() {
            return Ok(());
        }
        let synced = self.sync();
        // On a full disk, names and inodes may be stored although content is not.
        if self.is_large() { synced } else { Ok(()) }
    }

    /// Returns whether what waits must be committed before it grows: no transaction takes much more.
    fn is_large(&self) -> bool {
        self.state.lock().tree.waiting_bytes() > MANY_BYTES
    }

    /// Returns the lock of the content of a file.
    pub(crate) fn file(&self, number: u64) -> Arc<RwLock<()>> {
        let mut files = self.files.lock();
        if files.len() > 1024 {
            files.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        files.entry(number).or_default().clone()
    }

    /// Returns an inode.
    pub fn inode(&self, number: u64) -> Result<Inode> {
        Ok(self.state.lock().tree.inode(number)?.inode.clone())
    }

    /// Returns the inode that has a name in a directory.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Result<(u64, Inode)> {
        if name.len() > MAX_NAME_BYTES {
            return Err(FsError::TooLong);
        }
        let mut state = self.state.lock();
        let (number, _) = state.find(directory, name)?.ok_or(FsError::NotFound)?;
        match state.tree.inode(number) {
            Ok(cached) => Ok((number, cached.inode.clone())),
            Err(FsError::NotFound) => Err(damaged(&format!("inode {number} is missing, which has a name"))),
            Err(error) => Err(error),
        }
    }

    /// Returns names of a directory whose hashes are at least `from`, in the order of their hashes, and the hash at
    /// which to go on.
    pub fn names(&self, directory: u64, from: u64) -> Result<(Vec<Name>, Option<u64>)> {
        let mut state = self.state.lock();
        state.directory(directory)?;
        state.tree.names(directory, from)
    }

    /// Returns how much it has.
    pub fn usage(&self) -> Use {
        self.state.lock().itself.used
    }

    /// Changes the quota. It may be below what the files have.
    pub fn set_quota(&self, quota_bytes: Option<u64>) -> Result<()> {
        let mut state = self.change()?;
        state.itself.used.quota_bytes = quota_bytes;
        state.is_itself_dirty = true;
        Ok(())
    }

    /// Makes a file of any kind. Returns its number.
    pub fn create(&self, directory: u64, name: &[u8], kind: Kind, new: Create) -> Result<(u64, Inode)> {
        check_name(name)?;
        if matches!(&kind, Kind::Symlink { target } if target.is_empty() || target.len() > MAX_TARGET_BYTES) {
            return Err(FsError::TooLong);
        }
        let now_ns = now_ns();
        self.make_room()?;
        let mut state = self.change()?;
        if state.find(directory, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let above = state.directory(directory)?.clone();
        if above.links == 0 {
            return Err(FsError::NotFound);
        }
        above.check_flags(IMMUTABLE)?;
        let is_directory = matches!(kind, Kind::Directory { .. });
        if is_directory && above.links >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        let number = state.number()?;
        let kind = if is_directory { Kind::Directory { parent: directory } } else { kind };
        let mut inode = Inode::new(kind, new.mode & 0o7777, (new.uid, new.gid), now_ns);
        if above.mode & 0o2000 != 0 {
            inode.gid = above.gid;
            inode.mode |= if is_directory { 0o2000 } else { 0 };
        }
        inode.flags = above.flags & INHERITED_FLAGS;
        acl::inherit(&above, &mut inode, new.umask)?;
        state.link(directory, name, number, inode.kind.number(), now_ns)?;
        if is_directory {
            state.tree.change(directory, |above| above.links += 1)?;
        }
        state.tree.add(number, inode.clone());
        state.itself.used.inodes += 1;
        state.is_itself_dirty = true;
        Ok((number, inode))
    }

    /// Gives a file another name.
    pub fn link(&self, number: u64, directory: u64, name: &[u8]) -> Result<Inode> {
        self.make_room()?;
        check_name(name)?;
        let now_ns = now_ns();
        let mut state = self.change()?;
        let inode = state.tree.inode(number)?.inode.clone();
        if inode.is_directory() {
            return Err(FsError::NotPermitted);
        }
        if inode.links >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        if inode.links == 0 || state.directory(directory)?.links == 0 {
            return Err(FsError::NotFound);
        }
        if state.find(directory, name)?.is_some() {
            return Err(FsError::Exists);
        }
        inode.check_flags(IMMUTABLE | APPEND_ONLY)?;
        state.directory(directory)?.check_flags(IMMUTABLE)?;
        state.link(directory, name, number, inode.kind.number(), now_ns)?;
        state.tree.change(number, |inode| {
            inode.links += 1;
            inode.ctime_ns = now_ns;
        })?;
        Ok(state.tree.inode(number)?.inode.clone())
    }

    /// Removes a name of a file that is no directory.
    pub fn unlink(&self, directory: u64, name: &[u8]) -> Result<()> {
        self.make_room()?;
        let now_ns = now_ns();
        let mut state = self.change()?;
        let (number, _) = state.find(directory, name)?.ok_or(FsError::NotFound)?;
        if state.tree.inode(number)?.inode.is_directory() {
            return Err(FsError::IsADirectory);
        }
        state.check_may_lose(directory, number)?;
        state.unlink(directory, name, now_ns)?;
        state.lose(number, now_ns)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, directory: u64, name: &[u8]) -> Result<()> {
        self.make_room()?;
        let now_ns = now_ns();
        let mut state = self.change()?;
        let (number, _) = state.find(directory, name)?.ok_or(FsError::NotFound)?;
        let is_empty = state.directory(number)?.size == 0;
        state.check_may_lose(directory, number)?;
        if !is_empty {
            return Err(FsError::NotEmpty);
        }
        state.unlink(directory, name, now_ns)?;
        state.tree.change(directory, |above| above.links = above.links.saturating_sub(1))?;
        state.lose(number, now_ns)
    }

    /// Gives a file another name, in one step.
    pub fn rename(&self, (from, name): (u64, &[u8]), (to, new): (u64, &[u8]), how: Rename) -> Result<()> {
        self.make_room()?;
        check_name(new)?;
        let now_ns = now_ns();
        let mut state = self.change()?;
        let (number, kind) = state.find(from, name)?.ok_or(FsError::NotFound)?;
        let there = state.find(to, new)?;
        if state.directory(to)?.links == 0 {
            return Err(FsError::NotFound);
        }
        let is_directory = state.tree.inode(number)?.inode.is_directory();
        if is_directory {
            state.check_no_cycle(number, to)?;
        }
        match (how, there) {
            (Rename::NoReplace, Some(_)) => return Err(FsError::Exists),
            (Rename::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        // Names of one file: nothing happens.
        if there.is_some_and(|(other, _)| other == number) {
            return Ok(());
        }
        state.check_may_lose(from, number)?;
        match there {
            Some((other, _)) => state.check_may_lose(to, other)?,
            None => state.directory(to)?.check_flags(IMMUTABLE)?,
        }
        if how == Rename::Exchange {
            let Some((other, other_kind)) = there else { return Err(FsError::NotFound) };
            return state.exchange((from, name, number, kind), (to, new, other, other_kind), now_ns);
        }
        if let Some((other, _)) = there {
            let replaced = state.tree.inode(other)?.inode.clone();
            match (is_directory, replaced.is_directory()) {
                (true, false) => return Err(FsError::NotADirectory),
                (false, true) => return Err(FsError::IsADirectory),
                (true, true) if replaced.size > 0 => return Err(FsError::NotEmpty),
                _ => {}
            }
        } else if is_directory && from != to && state.directory(to)?.links >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        state.unlink(from, name, now_ns)?;
        if let Some((other, _)) = there {
            state.unlink(to, new, now_ns)?;
            if is_directory {
                state.tree.change(to, |above| above.links = above.links.saturating_sub(1))?;
            }
            state.lose(other, now_ns)?;
            state.tree.inode(number)?.replaces = true;
        }
        state.link(to, new, number, kind, now_ns)?;
        state.moved(number, from, to, now_ns)
    }

    /// Changes attributes. Returns the inode as it is then.
    pub fn set(&self, number: u64, changed: Changed) -> Result<Inode> {
        self.make_room()?;
        let mut state = self.change()?;
        let now_ns = now_ns();
        let is_of_owner = changed.mode.is_some() || changed.uid.is_some() || changed.gid.is_some();
        let forbidding = if is_of_owner { IMMUTABLE | APPEND_ONLY } else { IMMUTABLE };
        state.tree.inode(number)?.inode.check_flags(forbidding)?;
        state.tree.change(number, |inode| {
            inode.uid = changed.uid.unwrap_or(inode.uid);
            inode.gid = changed.gid.unwrap_or(inode.gid);
            inode.atime_ns = changed.atime_ns.unwrap_or(inode.atime_ns);
            inode.mtime_ns = changed.mtime_ns.unwrap_or(inode.mtime_ns);
            inode.ctime_ns = changed.ctime_ns.unwrap_or(now_ns);
            if let Some(mode) = changed.mode {
                inode.mode = mode & 0o7777;
                acl::follow_mode(inode);
            }
        })?;
        Ok(state.tree.inode(number)?.inode.clone())
    }

    /// Changes the flags of `chattr`. Errors: there is no such flag here. The caller checks who may do that.
    pub fn set_flags(&self, number: u64, flags: u32) -> Result<()> {
        if flags & !(IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ATIME) != 0 {
            return Err(FsError::NotSupported);
        }
        let now_ns = now_ns();
        self.change()?.tree.change(number, |inode| (inode.flags, inode.ctime_ns) = (flags, now_ns))
    }

    /// Changes or removes an extended attribute. An access ACL changes the mode.
    pub fn set_xattr(&self, number: u64, name: &[u8], value: Option<&[u8]>, how: SetXattr) -> Result<()> {
        self.set_xattr_for(number, name, value, how, true)
    }

    /// Does the same for a caller that may or may not keep set-group-id: users lose it if they set the access ACL of a
    /// file of a group that they are not in, as if they changed its mode.
    pub fn set_xattr_for(&self, number: u64, name: &[u8], value: Option<&[u8]>, how: SetXattr, keeps_set_group: bool) -> Result<()> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(FsError::Invalid);
        }
        let is_known = name == acl::ACCESS || name == acl::DEFAULT || XATTR_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if !is_known {
            return Err(FsError::NotSupported);
        }
        self.make_room()?;
        let mut state = self.change()?;
        let inode = &state.tree.inode(number)?.inode;
        inode.check_flags(IMMUTABLE | APPEND_ONLY)?;
        match (how, inode.xattr(name).is_some()) {
            (SetXattr::Create, true) => return Err(FsError::Exists),
            (SetXattr::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let mut after = inode.clone();
        after.set_xattr(name, value)?;
        if name == acl::ACCESS {
            if value.is_some() && !keeps_set_group {
                after.mode &= !0o2000;
            }
            acl::set_access(&mut after)?;
        }
        after.ctime_ns = now_ns();
        state.tree.change(number, |inode| *inode = after)
    }

    /// Takes away what would run the file with the rights of others, because its content changes: capabilities, and, if
    /// `modes` is set, set-user-id and set-group-id. Without the right to execute of its group, set-group-id means
    /// mandatory locks, and members of the group keep it: `is_member` says of a group whether the caller is one.
    /// Returns whether the mode changed.
    pub fn drop_privileges(&self, number: u64, modes: bool, is_member: &dyn Fn(u32) -> bool) -> Result<bool> {
        let mut state = self.change()?;
        let inode = &state.tree.inode(number)?.inode;
        let mut bits = if modes && !inode.is_directory() { inode.mode & 0o6000 } else { 0 };
        if bits & 0o2000 != 0 && inode.mode & 0o010 == 0 && is_member(inode.gid) {
            bits &= !0o2000;
        }
        if bits == 0 && inode.xattr(CAPABILITIES).is_none() {
            return Ok(false);
        }
        state.tree.change(number, |inode| {
            inode.mode &= !bits;
            inode.xattrs.retain(|(name, _)| name != CAPABILITIES);
        })?;
        Ok(bits != 0)
    }

    /// Notes that a file was read, if it was not since it was changed, or not for a day (`relatime` of mount(8)). So a
    /// file that is only read is written once a day.
    pub fn was_read(&self, number: u64) -> Result<()> {
        let now_ns = now_ns();
        let mut state = self.state.lock();
        if self.check_writable().is_err() {
            return Ok(());
        }
        let Inode { atime_ns, mtime_ns, ctime_ns, flags, .. } = state.tree.inode(number)?.inode;
        let is_recent = atime_ns > mtime_ns && atime_ns > ctime_ns && now_ns.saturating_sub(atime_ns) < DAY_NS;
        if is_recent || flags & NO_ATIME != 0 || state.tree.waiting_bytes() > MANY_BYTES {
            Ok(())
        } else {
            state.tree.change(number, |inode| inode.atime_ns = now_ns)
        }
    }

    /// Notes that a file is open: it stays although its last name goes.
    pub fn opened(&self, number: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.tree.inode(number)?;
        *state.open.entry(number).or_default() += 1;
        Ok(())
    }

    /// Returns whether a file is open.
    pub fn is_open(&self, number: u64) -> bool {
        self.state.lock().open.contains_key(&number)
    }

    /// Notes that a file is not open any more.
    pub fn closed(&self, number: u64) -> Result<()> {
        self.closed_times(number, 1)
    }

    /// Notes that a file is open less often: as if [`closed`](Self::closed) was called so often.
    pub fn closed_times(&self, number: u64, times: u64) -> Result<()> {
        let mut state = self.state.lock();
        let Some(count) = state.open.get_mut(&number) else { return Ok(()) };
        *count = count.saturating_sub(times);
        if *count > 0 {
            return Ok(());
        }
        state.open.remove(&number);
        let is_to_go = state.unnamed.contains(&number) && !self.is_closed.load(Ordering::Acquire) && !self.is_read_only;
        if is_to_go { state.bury(number) } else { Ok(()) }
    }

    pub(crate) fn want_commit(&self) {
        self.wanted.0.lock().commit = true;
        self.wanted.1.notify_all();
    }
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetXattr {
    /// It may exist or not.
    #[default]
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}
