//! Filesystems of the store that this process shows at directories.

use crate::failure::{Failure, Result};
use crate::settings::FileMount;
use crate::units::printable;
use onefold_fs::{Filesystem, Filesystems};
use onefold_fuse::{FileTree, MountError, MountOptions, Mounted};
use parking_lot::{Mutex, MutexGuard};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the end of an unmounted filesystem may take.
const WHILE_ENDING: Duration = Duration::from_secs(10);
/// How often somebody looks whether it is over.
const STEP: Duration = Duration::from_millis(20);
/// Threads that serve the kernel for one mount: a request may wait for a disk.
const THREADS: usize = 8;

/// The mounted filesystems of a process.
#[derive(Debug)]
pub struct Mounts {
    all: Arc<Filesystems>,
    /// The directory of the store.
    store: PathBuf,
    list: Mutex<List>,
}

/// What is mounted. The lock is held while something is mounted.
#[derive(Debug, Default)]
struct List {
    mounts: Vec<(Arc<Filesystem>, Mounted)>,
    /// The process ends: nothing is mounted any more.
    is_ending: bool,
}

impl Mounts {
    /// Returns that nothing is mounted yet.
    pub fn new(all: Arc<Filesystems>, store: &Path) -> Mounts {
        Mounts { all, store: whole_path(store), list: Mutex::default() }
    }

    /// Returns the filesystems.
    pub fn filesystems(&self) -> &Arc<Filesystems> {
        &self.all
    }

    /// Shows a filesystem at a directory. Returns where. Errors: there is no FUSE, no such filesystem, no directory, or
    /// something is mounted there.
    pub fn mount(&self, wanted: &FileMount) -> Result<PathBuf> {
        let filesystem = self.all.open(&wanted.name)?;
        let mut list = self.list_for(wanted, &filesystem)?;
        if self.store.starts_with(whole_path(&wanted.place)) {
            let (place, store) = (wanted.place.display(), self.store.display());
            return Err(Failure::cannot_run(format!("{place} has the store in it ({store}), which would be hidden"))
                .advise("give another directory"));
        }
        let is_read_only = wanted.is_read_only || filesystem.is_read_only();
        let is_root = rustix::process::geteuid().is_root();
        // Who else can write the store could make a program that everybody runs as root.
        let found = fs::metadata(&self.store).ok();
        let is_trusted = is_root && found.is_some_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0);
        let options = MountOptions {
            // A comma would end the option.
            source: wanted.name.replace(',', "_"),
            kind: "onefold",
            is_read_only,
            // As for every filesystem that root mounts.
            allows_others: wanted.allows_others || is_root,
            checks_permissions: true,
            allows_suid: is_trusted,
            notes_reads: !is_read_only,
            allows_devices: is_trusted,
            threads: THREADS,
        };
        // A process that was killed leaves a mount that nobody serves.
        onefold_fuse::unmount_dead(&wanted.place).map_err(failure)?;
        let of_tree = Arc::clone(&filesystem);
        let tree = FileTree::new(filesystem, Arc::clone(&self.all), !options.is_read_only);
        let mounted = onefold_fuse::mount(tree, &wanted.place, &options).map_err(failure)?;
        let place = mounted.place().to_owned();
        list.mounts.push((of_tree, mounted));
        Ok(place)
    }

    /// Returns the list, to mount a filesystem. Errors: it is mounted elsewhere, or the process ends. Each mount keeps
    /// names and attributes for good, and would not see what is changed through another one.
    fn list_for(&self, wanted: &FileMount, filesystem: &Filesystem) -> Result<MutexGuard<'_, List>> {
        let until = Instant::now() + WHILE_ENDING;
        loop {
            let list = self.now();
            if list.is_ending {
                return Err(Failure::cannot_run("the daemon is ending").advise("run the command again"));
            }
            let is_same = |mounted: &Filesystem| mounted.space_number() == filesystem.space_number() && !mounted.is_read_only();
            let Some((_, other)) = list.mounts.iter().find(|(mounted, _)| is_same(mounted)) else { return Ok(list) };
            let (name, place) = (printable(wanted.name.as_bytes()), other.place().display());
            if other.is_mounted() {
                // At the same place, something is mounted.
                if other.place() == wanted.place {
                    return Ok(list);
                }
                return Err(Failure::cannot_run(format!("filesystem {name} is mounted at {place} already"))
                    .advise(format!("show it a second time with `mount --bind {place} {}`", wanted.place.display())));
            }
            if Instant::now() > until {
                return Err(Failure::cannot_run(format!("programs have files of filesystem {name} open, which was mounted at {place}"))
                    .advise("end them, then run the command again"));
            }
            // It was unmounted, and its end takes a moment.
            drop(list);
            std::thread::sleep(STEP);
        }
    }

    /// Returns what is mounted now.
    fn now(&self) -> MutexGuard<'_, List> {
        let mut list = self.list.lock();
        list.mounts.retain(|(_, mounted)| !mounted.has_ended());
        list
    }

    /// Returns the filesystems that are mounted, and where.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        self.now().mounts.iter().map(|(filesystem, mounted)| (filesystem.name(), mounted.place().to_owned())).collect()
    }

    /// Returns where a filesystem is mounted.
    pub fn places_of(&self, name: &str) -> Vec<PathBuf> {
        self.list().into_iter().filter(|(mounted, _)| mounted == name).map(|(_, place)| place).collect()
    }

    /// Returns whether nothing is mounted any more, and nothing else is under way. Then nothing is mounted again.
    pub fn is_over(&self, is_idle: impl FnOnce() -> bool) -> bool {
        let mut list = self.now();
        list.is_ending = list.mounts.is_empty() && is_idle();
        list.is_ending
    }

    /// Unmounts what was mounted last of a filesystem. Errors: it is not mounted, or files in it are open.
    pub fn unmount(&self, name: &str) -> Result<()> {
        let mut list = self.now();
        let at = list.mounts.iter().rposition(|(filesystem, _)| filesystem.name() == name);
        let at = at.ok_or_else(|| Failure::failed(format!("filesystem {} is not mounted", printable(name.as_bytes()))))?;
        list.mounts[at].1.unmount().map_err(failure)?;
        list.mounts.remove(at);
        Ok(())
    }

    /// Unmounts everything. What programs still have open is taken away from them, after everything that they wrote is
    /// durable. `note` is told of those. Errors: something is not durable.
    pub fn end(&self, note: &dyn Fn(&Path)) -> Result<()> {
        let mounts = {
            let mut list = self.list.lock();
            list.is_ending = true;
            std::mem::take(&mut list.mounts)
        };
        let mut ended = Ok(());
        // What was mounted last may lie below another one.
        for (filesystem, mut mounted) in mounts.into_iter().rev() {
            match mounted.unmount() {
                Ok(()) => {}
                Err(MountError::Busy(place)) => note(&place),
                Err(error) => tracing::warn!("{error}"),
            }
            // From here on, nothing changes. It is closed already if this was the last to have it.
            if let Err(error) = filesystem.close() {
                let name = printable(filesystem.name().as_bytes());
                tracing::error!("the last changes of filesystem {name} are not durable: {error}");
                ended = ended.and(Err(error.into()));
            }
            if !mounted.has_ended()
                && let Err(error) = mounted.detach()
            {
                tracing::warn!("{error}");
            }
        }
        ended
    }
}

/// Returns the failure of a mount.
pub fn failure(error: MountError) -> Failure {
    let failure = Failure::cannot_run(&error);
    match error {
        MountError::NoFuse(_) => failure.advise("load the kernel's module with `modprobe fuse`; a container needs the device /dev/fuse"),
        MountError::NoHelper => failure.advise("install the package fuse3, or run the command as root"),
        MountError::OthersNotAllowed => failure.advise("add the line `user_allow_other` to /etc/fuse.conf, or do without --allow-other"),
        MountError::Dead(place) => {
            failure.advise(format!("unmount it first: `fusermount3 -u {0}`, or as root `umount {0}`", place.display()))
        }
        MountError::InUse(_) => failure.advise("unmount that, or give another directory"),
        MountError::NoDirectory(_) => failure.advise("give a directory"),
        MountError::Busy(_) => failure.advise("`fuser -vm DIR` shows who uses it"),
        MountError::Io { .. } => failure,
    }
}

/// Returns the path of a directory from the root: a daemon has another working directory.
pub fn whole_path(place: &Path) -> PathBuf {
    fs::canonicalize(place).or_else(|_| std::path::absolute(place)).unwrap_or_else(|_| place.to_owned())
}
