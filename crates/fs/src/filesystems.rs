//! The filesystems of a store: makes, finds, opens and deletes them by name.
//!
//! A filesystem is open once in a process: all who open it share it, and the last one to leave closes it. Snapshots are
//! also [viewed](Filesystems::view): whoever does that keeps nobody from deleting them.

use crate::error::{FsError, Result};
use crate::filesystem::{Filesystem, FsOptions};
use crate::internal::backup_of_snapshot;
use crate::state::Use;
use onefold_blocks::{NewSpace, Origin, Owner, Space, SpaceError, SpaceInfo, SpaceKind, Spaces};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

/// The block size of filesystems in bytes.
const BLOCK_BYTES: u32 = 256 << 10;
/// A view of a snapshot may have this part of the memory for inodes.
const VIEW_PART: usize = 32;

/// The filesystems of a store.
#[derive(Debug)]
pub struct Filesystems {
    spaces: Arc<Spaces>,
    options: FsOptions,
    /// The open ones by number, with how many have them open. The lock is held while one is opened or closed, and while
    /// something happens that nobody may have a filesystem open for.
    open: Mutex<HashMap<u32, (Arc<Filesystem>, usize)>>,
}

/// What others may know of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemInfo {
    /// Its name.
    pub name: String,
    /// Its number. No other filesystem or volume ever has it.
    pub number: u32,
    /// Whether it is a filesystem, a snapshot, or a clone.
    pub kind: SpaceKind,
    /// Whether it never changes.
    pub is_read_only: bool,
    /// What it was made from.
    pub origin: Option<Origin>,
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
}

/// Returns an error for names of snapshots that the store makes for itself.
fn check_name(name: &str) -> Result<()> {
    match backup_of_snapshot(name) {
        Some(_) => Err(SpaceError::Name { name: name.to_owned(), reason: "snapshots of backups are called so" }.into()),
        None => Ok(()),
    }
}

impl FilesystemInfo {
    fn of(info: SpaceInfo) -> FilesystemInfo {
        let SpaceInfo { number, record } = info;
        FilesystemInfo {
            name: record.name,
            number,
            kind: record.kind,
            is_read_only: record.is_read_only,
            origin: record.origin,
            created_ns: record.created_ns,
        }
    }
}

/// A filesystem that somebody has open. The last one to drop it closes it.
#[derive(Debug)]
pub struct OpenFilesystem {
    filesystem: Arc<Filesystem>,
    of: Arc<Filesystems>,
}

impl Deref for OpenFilesystem {
    type Target = Arc<Filesystem>;

    fn deref(&self) -> &Arc<Filesystem> {
        &self.filesystem
    }
}

impl Drop for OpenFilesystem {
    fn drop(&mut self) {
        let number = self.filesystem.space.number();
        let mut open = self.of.open.lock();
        let Some((_, users)) = open.get_mut(&number) else { return };
        *users -= 1;
        if *users == 0 {
            open.remove(&number);
            // The next one to open it waits for this, and may not find commits of two.
            if let Err(error) = self.filesystem.end() {
                tracing::warn!(%error, "the last changes of a filesystem are not durable");
            }
        }
    }
}

impl Filesystems {
    /// Returns the filesystems among these spaces.
    pub fn of(spaces: Arc<Spaces>, options: FsOptions) -> Arc<Filesystems> {
        Arc::new(Filesystems { spaces, options, open: Mutex::default() })
    }

    /// Makes an empty filesystem, whose files may have `quota_bytes` together. Its root belongs to `owner`. Durable on
    /// return. Errors: the name is taken or cannot be one.
    pub fn create(&self, name: &str, quota_bytes: Option<u64>, owner: (u32, u32)) -> Result<()> {
        self.create_of(BLOCK_BYTES, name, quota_bytes, owner)
    }

    /// Does the same, with the smallest blocks.
    #[cfg(any(test, feature = "testing"))]
    pub fn create_with_small_blocks(&self, name: &str, quota_bytes: Option<u64>, owner: (u32, u32)) -> Result<()> {
        self.create_of(onefold_blocks::MIN_BLOCK_BYTES, name, quota_bytes, owner)
    }

    fn create_of(&self, block_bytes: u32, name: &str, quota_bytes: Option<u64>, owner: (u32, u32)) -> Result<()> {
        check_name(name)?;
        let new = NewSpace { name, kind: SpaceKind::Filesystem, end_bytes: None, block_bytes, chain: None };
        let space = self.spaces.create(new)?;
        let made = Filesystem::format(&space, quota_bytes, owner).and_then(|()| Ok(self.spaces.engine().flush()?));
        if made.is_err()
            && let Ok(permit) = self.spaces.engine().permit_deletion("delete filesystems")
        {
            // The error says why. What cannot be deleted now is finished by the first who opens it.
            let _ = self.spaces.delete(Owner::Filesystems, name, permit);
        }
        made
    }

    /// Returns all filesystems, snapshots and clones, sorted by name. [Snapshots of backups](backup_of_snapshot) are
    /// left out.
    pub fn list(&self) -> Vec<FilesystemInfo> {
        let of_files = |info: &SpaceInfo| info.record.kind.owner() == Owner::Filesystems && check_name(&info.record.name).is_ok();
        self.spaces.list().into_iter().filter(of_files).map(FilesystemInfo::of).collect()
    }

    /// Returns what is known of the filesystem with this name.
    pub fn info(&self, name: &str) -> Result<FilesystemInfo> {
        Ok(FilesystemInfo::of(self.space(name)?.info()))
    }

    /// Returns the snapshots of a filesystem, sorted by name.
    pub fn snapshots_of(&self, number: u32) -> Vec<FilesystemInfo> {
        let is_of = |info: &FilesystemInfo| {
            info.kind == SpaceKind::FilesystemSnapshot && info.origin.as_ref().is_some_and(|origin| origin.number == number)
        };
        self.list().into_iter().filter(is_of).collect()
    }

    /// Returns how much a filesystem has.
    pub fn usage(&self, name: &str) -> Result<Use> {
        let space = self.space(name)?;
        let opened = self.open.lock().get(&space.number()).map(|(filesystem, _)| filesystem.clone());
        match opened {
            Some(filesystem) => Ok(filesystem.usage()),
            None => Filesystem::stored_usage(&space),
        }
    }

    fn space(&self, name: &str) -> Result<Arc<Space>> {
        if check_name(name).is_err() {
            return Err(SpaceError::NotFound { name: name.to_owned() }.into());
        }
        Ok(self.spaces.get(Owner::Filesystems, name)?)
    }

    /// Opens a filesystem, or shares it with those who have it open.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<OpenFilesystem> {
        let mut open = self.open.lock();
        let space = self.space(name)?;
        let number = space.number();
        let filesystem = match open.get_mut(&number) {
            Some((filesystem, users)) => {
                *users += 1;
                filesystem.clone()
            }
            None => {
                // A crash came between the making of the space and that of its root.
                if !space.is_read_only() && Filesystem::is_unmade(&space)? {
                    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                    Filesystem::format(&space, None, user)?;
                }
                let filesystem = Filesystem::open(space, self.options)?;
                filesystem.start().map_err(|error| FsError::Threads { reason: error.to_string() })?;
                open.insert(number, (filesystem.clone(), 1));
                filesystem
            }
        };
        Ok(OpenFilesystem { filesystem, of: Arc::clone(self) })
    }

    /// Opens the snapshot with a number, beside others that have it open. It may be deleted meanwhile: then it fails to
    /// read. It may have a part of the memory of a filesystem.
    pub fn view(&self, number: u32) -> Result<Arc<Filesystem>> {
        let space = loop {
            let info = self.spaces.list().into_iter().find(|info| info.number == number);
            let name = info.ok_or_else(|| SpaceError::Deleted { name: format!("snapshot {number}") })?.record.name;
            // It may have got another name since.
            match self.spaces.get(Owner::Filesystems, &name) {
                Ok(space) if space.number() == number => break space,
                _ => {}
            }
        };
        if !space.is_read_only() {
            return Err(FsError::NotPermitted);
        }
        Filesystem::open(space, FsOptions { inode_cache_bytes: self.options.inode_cache_bytes / VIEW_PART, ..self.options })
    }

    /// Does something that nobody may have a filesystem open for, and nobody opens one meanwhile.
    fn on_unused<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let open = self.open.lock();
        if open.contains_key(&self.space(name)?.number()) { Err(FsError::InUse { name: name.to_owned() }) } else { work() }
    }

    /// Returns an error if somebody has the filesystem open.
    pub fn check_unused(&self, name: &str) -> Result<()> {
        self.on_unused(name, || Ok(()))
    }

    /// Changes how many bytes the files may have together. It may be less than they have. Durable on return.
    pub fn set_quota(self: &Arc<Self>, name: &str, quota_bytes: Option<u64>) -> Result<()> {
        let filesystem = self.open(name)?;
        filesystem.set_quota(quota_bytes)?;
        filesystem.sync()
    }

    /// Gives it another name. Durable on return. Whoever has it open keeps it.
    pub fn rename(&self, name: &str, new: &str) -> Result<()> {
        check_name(new)?;
        let name = self.space(name)?.name();
        Ok(self.spaces.rename(Owner::Filesystems, &name, new)?)
    }

    /// Deletes a filesystem, a snapshot or a clone, for good. Durable on return. Those made of it stay, but for
    /// [snapshots of its backups](backup_of_snapshot): the backups need none of them. The space that
    /// only it held is freed by [`Spaces::resume_deletions`]. Errors: somebody has it open; append-only mode.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.on_unused(name, || {
            let number = self.space(name)?.number();
            let permit = || self.spaces.engine().permit_deletion("delete filesystems");
            self.spaces.delete(Owner::Filesystems, name, permit()?)?;
            for info in self.spaces.list() {
                let is_of = info.record.origin.as_ref().is_some_and(|origin| origin.number == number);
                if is_of && info.record.kind == SpaceKind::FilesystemSnapshot && backup_of_snapshot(&info.record.name).is_some() {
                    match self.spaces.delete(Owner::Filesystems, &info.record.name, permit()?) {
                        // A backup that ended deleted it.
                        Err(SpaceError::NotFound { .. }) => {}
                        deleted => deleted?,
                    }
                }
            }
            Ok(())
        })
    }

    /// Makes a snapshot: what was changed before the call is in it. Durable on return.
    pub fn snapshot(self: &Arc<Self>, name: &str, new: &str) -> Result<()> {
        check_name(new)?;
        self.at_rest(name, || Ok(self.spaces.snapshot(Owner::Filesystems, name, new).map(drop)?))
    }

    /// Makes a filesystem that begins as a copy of another one or of a snapshot. Durable on return.
    pub fn make_clone(self: &Arc<Self>, source: &str, new: &str, is_read_only: bool) -> Result<()> {
        check_name(new)?;
        self.at_rest(source, || Ok(self.spaces.make_clone(Owner::Filesystems, source, new, is_read_only).map(drop)?))
    }

    /// Does something with what is stored of a filesystem, after what was changed before is stored.
    fn at_rest(self: &Arc<Self>, name: &str, work: impl Fn() -> Result<()>) -> Result<()> {
        let opened = || {
            let open = self.open.lock();
            Ok::<_, FsError>(open.get(&self.space(name)?.number()).map(|(filesystem, _)| filesystem.clone()))
        };
        let Some(filesystem) = opened()? else { return work() };
        match filesystem.at_rest(&work) {
            // It ended meanwhile, and another one may have opened it.
            Err(FsError::Closed) => match opened()? {
                Some(now) if Arc::ptr_eq(&now, &filesystem) => Err(FsError::Closed),
                Some(now) => now.at_rest(&work),
                None => work(),
            },
            done => done,
        }
    }

    /// Gives a filesystem the content of a snapshot of it or of its origin. Durable on return. Errors: somebody has it
    /// open; append-only mode.
    pub fn rollback(&self, name: &str, snapshot: &str) -> Result<()> {
        self.on_unused(name, || {
            let permit = self.spaces.engine().permit_deletion("roll filesystems back")?;
            Ok(self.spaces.rollback(Owner::Filesystems, name, snapshot, permit)?)
        })
    }

    /// Returns the spaces of the store.
    pub fn spaces(&self) -> &Arc<Spaces> {
        &self.spaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Create, Kind, ROOT};
    use onefold_blocks::SpacesOptions;
    use onefold_blocks::testing::TestStore;
    use std::time::Duration;

    #[test]
    fn a_filesystem_whose_making_a_crash_broke_off_is_made_by_its_first_user() {
        let mut store = TestStore::new();
        let spaces = Arc::new(store.spaces(SpacesOptions::default()));
        let new = NewSpace { name: "half", kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: BLOCK_BYTES, chain: None };
        drop(spaces.create(new).unwrap());
        let all = Filesystems::of(spaces, FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() });
        let new = Create { mode: 0o644, umask: 0, uid: 0, gid: 0 };
        all.open("half").unwrap().create(ROOT, b"file", Kind::File, new).unwrap();
        // What was stored by the first one is there.
        assert!(all.open("half").unwrap().lookup(ROOT, b"file").is_ok());
        assert!(matches!(all.create("half", None, (0, 0)), Err(FsError::Space(SpaceError::Exists { .. }))));
        all.delete("half").unwrap();
        assert!(all.list().is_empty());
    }
    #[test]
    fn a_filesystem_that_ended_with_an_error_stores_nothing_any_more() {
        let mut store = TestStore::new();
        let spaces = Arc::new(store.spaces(SpacesOptions::default()));
        let all = Filesystems::of(spaces, FsOptions { commit_interval: Duration::from_secs(3600), ..FsOptions::default() });
        all.create("files", None, (0, 0)).unwrap();
        let new = Create { mode: 0o644, umask: 0, uid: 0, gid: 0 };
        let opened = all.open("files").unwrap();
        let (file, _) = opened.create(ROOT, b"file", Kind::File, new).unwrap();
        opened.sync().unwrap();
        store.ground.set_capacity(store.ground.used_bytes());
        opened.write(file, 0, &onefold_blocks::testing::bytes(1, 4 << 20), false).unwrap();
        opened.create(ROOT, b"later", Kind::File, new).unwrap();
        // As of a snapshot that is under way.
        let old = Arc::clone(&opened);
        assert!(old.close().is_err(), "the disk is full");
        assert!(matches!(old.sync(), Err(FsError::Closed)));
        assert!(matches!(all.snapshot("files", "closed"), Err(FsError::Closed)));
        drop(opened);
        store.ground.set_capacity(u64::MAX);
        let now = all.open("files").unwrap();
        now.unlink(ROOT, b"file").unwrap();
        now.create(ROOT, b"other", Kind::File, new).unwrap();
        now.sync().unwrap();
        assert!(matches!(old.sync(), Err(FsError::Closed)));
        assert!(matches!(old.close(), Err(FsError::Closed)));
        assert!(matches!(old.at_rest(|| Ok(())), Err(FsError::Closed)));
        all.snapshot("files", "monday").unwrap();
        drop(now);
        for name in ["files", "monday"] {
            let found = all.open(name).unwrap();
            assert!(matches!(found.lookup(ROOT, b"file"), Err(FsError::NotFound)), "{name}");
            assert!(found.lookup(ROOT, b"other").is_ok(), "{name}");
        }
    }
}
