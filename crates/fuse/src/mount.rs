//! Mounting and unmounting.

use fuser::{BackgroundSession, Config, Filesystem, MountOption, Notifier, Session, SessionACL};
use rustix::fs::{AtFlags, FileType, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The kernel's device.
const DEVICE: &str = "/dev/fuse";
/// The helpers that mount for users.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Says whether users may let others see their mounts.
const HELPER_CONFIG: &str = "/etc/fuse.conf";

/// How something is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` shows as the source.
    pub source: String,
    /// What `mount` shows behind `fuse.` as the type.
    pub kind: &'static str,
    /// Nobody can write.
    pub is_read_only: bool,
    /// Other users see it, too.
    pub allows_others: bool,
    /// The kernel checks the permissions of the files.
    pub checks_permissions: bool,
    /// Programs run with the rights of their owner if their modes say so.
    pub allows_suid: bool,
    /// Device files can be opened.
    pub allows_devices: bool,
    /// It notes when files were read.
    pub notes_reads: bool,
    /// Threads that serve the kernel.
    pub threads: usize,
}

/// Why something is not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE.
    #[error("this system has no FUSE: {DEVICE} {}", .0)]
    NoFuse(io::Error),
    /// A user cannot mount without it.
    #[error("fusermount3 is missing, which mounts for users that are not root")]
    NoHelper,
    /// Users may not let others see their mounts here.
    #[error("{HELPER_CONFIG} does not allow users to let others see their mounts")]
    OthersNotAllowed,
    /// The process that served a mount there has died.
    #[error("{} is a mount whose process has ended", .0.display())]
    Dead(PathBuf),
    /// Something is mounted there.
    #[error("something is mounted at {} already", .0.display())]
    InUse(PathBuf),
    /// It is no directory.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// Files in it are open.
    #[error("{} is in use: files in it are open, or it is the directory of a process", .0.display())]
    Busy(PathBuf),
    /// Anything else.
    #[error("cannot {what} {}: {source}", .place.display())]
    Io {
        /// What was done.
        what: &'static str,
        /// Where.
        place: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What can be mounted.
pub trait Tree: Filesystem {
    /// Returns the slot for the kernel notifier, which is filled before the first request. `None`: the tree needs none.
    fn notices(&self) -> Option<Arc<OnceLock<Notifier>>> {
        None
    }
}

/// Something that is mounted. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mounted {
    place: PathBuf,
    /// The number of its device. What others mount at the same place has another one.
    device: Option<(u32, u32)>,
    session: Option<BackgroundSession>,
}

/// Shows a tree at a directory. Errors: there is no FUSE, no permission, or the directory is missing or in use.
pub fn mount(tree: impl Tree, place: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let place = check(place)?;
    check_system(options)?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        subtype(options.kind),
        if options.is_read_only { MountOption::RO } else { MountOption::RW },
        if options.allows_devices { MountOption::Dev } else { MountOption::NoDev },
        if options.allows_suid { MountOption::Suid } else { MountOption::NoSuid },
        if options.notes_reads { MountOption::Atime } else { MountOption::NoAtime },
    ];
    if options.checks_permissions {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    if options.allows_others {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    let failed = |source| MountError::Io { what: "mount at", place: place.clone(), source };
    let notices = tree.notices();
    let session = Session::new(tree, &place, &config).map_err(failed)?;
    if let Some(notices) = notices {
        // Nobody else sets it.
        let _ = notices.set(session.notifier());
    }
    let session = session.spawn().map_err(failed)?;
    let device = root_of_mount(&place);
    Ok(Mounted { place, device, session: Some(session) })
}

/// Returns the option that makes `mount` show `fuse.KIND` as the type. fuser passes its own option for that to
/// fusermount3 only, not to the kernel, which understands the same one since Linux 5.4.
fn subtype(kind: &str) -> MountOption {
    let system = rustix::system::uname();
    let is_known = version(&system.release().to_string_lossy()) >= (5, 4);
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !is_known { MountOption::Subtype(kind.to_owned()) } else { MountOption::CUSTOM(format!("subtype={kind}")) }
}

/// Returns the first two numbers of a kernel's version.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Checks that something can be mounted at a place. Returns it without links.
fn check(place: &Path) -> Result<PathBuf, MountError> {
    let io = |source: io::Error| match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTCONN) => MountError::Dead(place.to_owned()),
        _ => MountError::Io { what: "look at", place: place.to_owned(), source },
    };
    let found = look(place).map_err(|error| io(error.into()))?;
    if FileType::from_raw_mode(found.stx_mode.into()) != FileType::Directory {
        return Err(MountError::NoDirectory(place.to_owned()));
    }
    let place = place.canonicalize().map_err(io)?;
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) { Err(MountError::InUse(place)) } else { Ok(place) }
}

/// Looks at a place. Asks the process that serves it, if any: for a dead one, the kernel would answer with what it
/// still knows.
fn look(place: &Path) -> Result<Statx, Errno> {
    rustix::fs::statx(rustix::fs::CWD, place, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)
}

/// Returns whether something is mounted at a place.
pub fn is_mounted(place: &Path) -> bool {
    root_of_mount(place).is_some()
}

/// Returns the number of the device that is mounted at a place.
fn root_of_mount(place: &Path) -> Option<(u32, u32)> {
    let known = |place: &Path| rustix::fs::statx(rustix::fs::CWD, place, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok();
    let found = known(place)?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let is_root = if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    } else {
        // A kernel before 5.8 does not tell. No two mounts of FUSE have the same device.
        known(&place.join("..")).is_none_or(|above| (above.stx_dev_major, above.stx_dev_minor) != device)
    };
    is_root.then_some(device)
}

/// Unmounts what another process serves at a place. Errors: files in it are open.
pub fn unmount(place: &Path) -> Result<(), MountError> {
    take_away(place, false)
}

/// Takes away a mount whose process has ended. Anything else stays.
pub fn unmount_dead(place: &Path) -> Result<(), MountError> {
    if is_dead(place) { take_away(place, true) } else { Ok(()) }
}

/// Returns whether a place is a mount whose process has ended.
pub fn is_dead(place: &Path) -> bool {
    matches!(look(place), Err(Errno::NOTCONN))
}

fn take_away(place: &Path, detaches: bool) -> Result<(), MountError> {
    let failed = |source| MountError::Io { what: "unmount", place: place.to_owned(), source };
    let flags = if detaches { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(place, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(place.to_owned())),
        Err(Errno::PERM) => {
            let helper = helper().ok_or(MountError::NoHelper)?;
            let mut command = Command::new(helper);
            command.arg("-u").args(detaches.then_some("-z")).arg("--").arg(place);
            let done = command.output().map_err(failed)?;
            let said = String::from_utf8_lossy(&done.stderr);
            match (done.status.success(), said.contains("busy")) {
                (true, _) => Ok(()),
                (false, true) => Err(MountError::Busy(place.to_owned())),
                (false, false) => Err(failed(io::Error::other(said.trim().to_owned()))),
            }
        }
        Err(error) => Err(failed(error.into())),
    }
}

fn check_system(options: &MountOptions) -> Result<(), MountError> {
    std::fs::metadata(DEVICE).map_err(MountError::NoFuse)?;
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if helper().is_none() {
        return Err(MountError::NoHelper);
    }
    let config = std::fs::read_to_string(HELPER_CONFIG).unwrap_or_default();
    if options.allows_others && !config.lines().any(|line| line.trim() == "user_allow_other") {
        return Err(MountError::OthersNotAllowed);
    }
    Ok(())
}

/// Returns the helper that mounts for users.
fn helper() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    HELPERS.into_iter().find(|helper| std::env::split_paths(&path).any(|directory| directory.join(helper).is_file()))
}

impl Mounted {
    /// Returns where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns whether it was unmounted, by whomever.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts it, and waits until nothing of it is served. Errors: files in it are open.
    pub fn unmount(&mut self) -> Result<(), MountError> {
        if !self.has_ended() {
            self.take_away(false)?;
        }
        self.join();
        Ok(())
    }

    /// Takes it away from everybody who does not have it open. Whoever has goes on until it [ended](Self::has_ended).
    pub fn detach(&mut self) -> Result<(), MountError> {
        if self.has_ended() { Ok(()) } else { self.take_away(true) }
    }

    /// Returns whether it is at its place: others may have taken it away while files in it are open.
    pub fn is_mounted(&self) -> bool {
        self.device.is_none() || root_of_mount(&self.place) == self.device
    }

    fn take_away(&self, detaches: bool) -> Result<(), MountError> {
        if !self.is_mounted() {
            return if detaches || self.has_ended() { Ok(()) } else { Err(MountError::Busy(self.place.clone())) };
        }
        match take_away(&self.place, detaches) {
            // Somebody was faster.
            Err(MountError::Io { .. }) if self.has_ended() => Ok(()),
            done => done,
        }
    }

    fn join(&mut self) {
        if let Some(session) = self.session.take()
            && let Err(error) = session.join()
        {
            tracing::debug!(%error, "a mount ended");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.has_ended()
            && let Err(error) = self.take_away(true)
        {
            tracing::warn!("{error}");
        }
        // Whoever has something open keeps the session.
        drop(self.session.take());
    }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_release_of_the_kernel_begins_with_its_version() {
        assert_eq!(version("6.18.44-fc-v769"), (6, 18));
        assert_eq!(version("5.4"), (5, 4));
        assert!(version("4.19.0-26-amd64") < (5, 4) && version("5.10.0") > (5, 4));
        assert_eq!(version("unknown"), (0, 0));
    }
}
