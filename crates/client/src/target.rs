//! The target of a restore, and the attributes of what is written there.
//!
//! # Invariants
//! * Every name is created relative to an open directory that was itself opened without following links: nothing in the
//!   target, and no name in the store, leads out of it.
//! * A file gets its final name when it is complete. Until then it is called `.onefold-` and a number that no other
//!   process has.
//! * Attributes are set in an order in which none undoes another: owner (clears set-user-id bits and capabilities),
//!   extended attributes and ACLs, mode, times. A directory gets its own when nothing more is written into it.
//! * A file that could not get its owner gets no right that goes with the owner: no set-user-id and set-group-id bits,
//!   no capabilities.

use crate::monitor::Watch;
use crate::{ClientError, Result, source};
use onefold_catalog::{Attributes, CHATTR_FLAGS, is_valid_name};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, IFlags, Mode, OFlags, RenameFlags, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";
const CAPABILITIES: &[u8] = b"security.capability";
/// Set-user-id and set-group-id.
const SET_ID: u16 = 0o6000;

/// What this process may set, and what it has reported about that.
#[derive(Debug)]
pub(crate) struct Powers {
    is_root: bool,
    owner_reported: AtomicBool,
    set_id_reported: AtomicBool,
    xattrs_reported: AtomicBool,
    flags_reported: AtomicBool,
    /// Files and directories that become immutable when nothing else is done to them: open files, flags, and paths for
    /// messages.
    last: Mutex<Vec<(OwnedFd, u32, Vec<u8>)>>,
}

impl Powers {
    pub(crate) fn new() -> Powers {
        Powers {
            is_root: rustix::process::geteuid().is_root(),
            owner_reported: AtomicBool::new(false),
            set_id_reported: AtomicBool::new(false),
            xattrs_reported: AtomicBool::new(false),
            flags_reported: AtomicBool::new(false),
            last: Mutex::default(),
        }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// Sets the `chattr` flags of a file or directory. A flag that would prevent links or new entries has to wait.
    pub(crate) fn set_flags(&self, file: impl AsFd, attributes: &Attributes, is_directory: bool, path: &[u8], watch: &Watch<'_>) {
        if attributes.flags == 0 {
            return;
        }
        let is_closing = attributes.flags & (IFlags::IMMUTABLE | IFlags::APPEND).bits() != 0;
        if is_closing
            && (is_directory || attributes.links > 1)
            && let Ok(file) = file.as_fd().try_clone_to_owned()
        {
            self.last.lock().push((file, attributes.flags, path.to_vec()));
            return;
        }
        self.add_flags(file, attributes.flags, path, watch);
    }

    /// Sets the flags that had to wait. Call only when everything else is done.
    pub(crate) fn set_last_flags(&self, watch: &Watch<'_>) {
        for (file, flags, path) in self.last.lock().drain(..) {
            self.add_flags(file, flags, &path, watch);
        }
    }

    fn add_flags(&self, file: impl AsFd, flags: u32, path: &[u8], watch: &Watch<'_>) {
        let file = file.as_fd();
        let set = rustix::fs::ioctl_getflags(file).and_then(|found| {
            let others = found.difference(IFlags::from_bits_retain(CHATTR_FLAGS));
            rustix::fs::ioctl_setflags(file, others.union(IFlags::from_bits_retain(flags)))
        });
        if let Err(error) = set
            && !self.flags_reported.swap(true, Ordering::Relaxed)
        {
            watch.warn(path, format_args!("its chattr flags cannot be restored here ({error}); this is reported only once"));
        }
    }
}

/// An open directory of the target. Its attributes are set when its last user calls [`Directory::release`].
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) file: OwnedFd,
    /// Path in the backup, for messages.
    pub(crate) path: Vec<u8>,
    device: u64,
    /// It is a mount point.
    is_mount_point: bool,
    /// Its final attributes. `None`: they stay as they are.
    attributes: Option<Attributes>,
    above: Option<Arc<Directory>>,
    /// New files here inherit an ACL that they must lose.
    inherits_acl: bool,
    /// This restore made it: it contains only what the restore puts there.
    is_new: bool,
}

impl Directory {
    /// Returns the target itself, or a directory in it of which the backup says nothing.
    pub(crate) fn new(file: OwnedFd, path: Vec<u8>) -> rustix::io::Result<Arc<Directory>> {
        let device = source::find_open(&file)?.attributes.device;
        let inherits_acl = inherits_acl(&file);
        Ok(Arc::new(Directory { file, path, device, is_mount_point: false, attributes: None, above: None, inherits_acl, is_new: false }))
    }

    /// Creates or enters a directory. Errors: something else exists there, such as a link. A directory that only leads
    /// to wanted names gets its attributes if it is new; an existing one is left as it is.
    pub(crate) fn enter(
        self: &Arc<Directory>,
        name: &[u8],
        path: Vec<u8>,
        attributes: Attributes,
        is_wanted: bool,
        store: &Keepout,
    ) -> std::result::Result<Arc<Directory>, NoEntry> {
        if !is_valid_name(name) {
            return Err(Errno::INVAL.into());
        }
        let is_new = match rustix::fs::mkdirat(&self.file, os(name), Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let file = open_directory(&self.file, name)?;
        let (device, is_mount_point) = if is_new { (self.device, false) } else { store.place_of(&file, self.device)? };
        if is_new && !is_wanted {
            // A killed restore never sets the attributes. With this mode, users with access in the backup can still
            // reach what was restored.
            let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode((attributes.mode & 0o777 | 0o700).into()));
        }
        let attributes = (is_new || is_wanted).then_some(attributes);
        if !is_new && attributes.is_some() {
            // An earlier restore that was cut short may have set its mode already.
            let_owner_in(&file);
        }
        let inherits_acl = inherits_acl(&file);
        Ok(Arc::new(Directory { file, path, device, is_mount_point, attributes, above: Some(self.clone()), inherits_acl, is_new }))
    }

    /// Enters an existing directory, only to look: its attributes stay.
    pub(crate) fn look_into(
        self: &Arc<Directory>,
        name: &[u8],
        path: Vec<u8>,
        store: &Keepout,
    ) -> std::result::Result<Arc<Directory>, NoEntry> {
        if !is_valid_name(name) {
            return Err(Errno::INVAL.into());
        }
        let file = open_directory(&self.file, name)?;
        let (device, is_mount_point) = store.place_of(&file, self.device)?;
        let above = Some(self.clone());
        Ok(Arc::new(Directory { file, path, device, is_mount_point, attributes: None, above, inherits_acl: false, is_new: false }))
    }

    /// Returns whether nothing that existed before can be in the way. Names that appear meanwhile are noticed when a
    /// file gets its name.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the file system that it is on.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Returns whether it is a mount point. The target itself may be one.
    pub(crate) fn is_mount_point(&self) -> bool {
        self.is_mount_point
    }

    /// Drops one user. The last one sets the attributes of this directory, then of those above that have no other user.
    pub(crate) fn release(self: Arc<Directory>, powers: &Powers, watch: &Watch<'_>) {
        let mut next = Some(self);
        while let Some(directory) = next.and_then(Arc::into_inner) {
            if let Some(attributes) = &directory.attributes {
                let inherits_acl = directory.above.as_ref().is_some_and(|above| above.inherits_acl);
                set_attributes(&Place::Open(directory.file.as_fd()), attributes, inherits_acl, &directory.path, powers, watch);
                powers.set_flags(&directory.file, attributes, true, &directory.path, watch);
            }
            next = directory.above;
        }
    }

    /// Returns whether new files here inherit an ACL.
    pub(crate) fn inherits_acl(&self) -> bool {
        self.inherits_acl
    }
}

/// Why a directory of the target cannot be entered.
#[derive(Debug)]
pub(crate) enum NoEntry {
    /// It is the store being read.
    Store,
    System(Errno),
}

impl From<Errno> for NoEntry {
    fn from(error: Errno) -> NoEntry {
        NoEntry::System(error)
    }
}

impl fmt::Display for NoEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoEntry::Store => out.write_str("it is the directory of the store; nothing is restored into it"),
            NoEntry::System(Errno::NOTDIR | Errno::LOOP) => out.write_str("its place is taken by something that is not a directory"),
            NoEntry::System(error) => write!(out, "cannot create the directory: {error}"),
        }
    }
}

/// The directory that is never restored into and never deleted: the store's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keepout {
    identity: Option<(u64, u64)>,
}

impl Keepout {
    /// Takes the directory of a store. `None`: the store is in no directory.
    pub(crate) fn new(store: Option<&Path>) -> Result<Keepout> {
        let Some(store) = store else { return Ok(Keepout::default()) };
        let name = store.as_os_str().as_bytes();
        let found = source::find(rustix::fs::CWD, name, true).map_err(|error| ClientError::io("look at", name, error))?;
        Ok(Keepout { identity: Some(found.identity()) })
    }

    /// Returns the file system of an open directory, and whether it is a mount point. Errors: it is the directory to
    /// keep out of.
    fn place_of(&self, directory: &OwnedFd, device_above: u64) -> std::result::Result<(u64, bool), NoEntry> {
        let found = source::find_open(directory)?;
        if self.is_found(&found) { Err(NoEntry::Store) } else { Ok((found.attributes.device, found.is_mount_point(device_above))) }
    }

    pub(crate) fn is_found(&self, found: &source::Found) -> bool {
        Some(found.identity()) == self.identity
    }

    /// Refuses a target that is the store or lies in it.
    pub(crate) fn refuse_target(&self, target: &Path) -> Result<()> {
        // Missing directories are made below the nearest existing one.
        let there = target.ancestors().find_map(|path| match path.as_os_str().is_empty() {
            true => Path::new(".").canonicalize().ok(),
            false => path.canonicalize().ok(),
        });
        for above in there.iter().flat_map(|path| path.ancestors()) {
            if source::find(rustix::fs::CWD, above.as_os_str().as_bytes(), true).is_ok_and(|found| self.is_found(&found)) {
                let why = format!("the target {} lies in the directory of the store, {}", target.display(), above.display());
                return Err(ClientError::Refused { why });
            }
        }
        Ok(())
    }
}

/// Lets the owner, who is not root, write into a directory whose mode forbids it. Returns the earlier state, for the
/// caller to restore.
pub(crate) fn let_owner_in(directory: &OwnedFd) -> Option<source::Found> {
    let found = source::find_open(directory).ok()?;
    if found.attributes.mode & 0o300 != 0o300 {
        // If that is not allowed, the later write reports it.
        let _ = rustix::fs::fchmod(directory, Mode::from_raw_mode((found.attributes.mode | 0o300).into()));
    }
    Some(found)
}

fn inherits_acl(directory: &OwnedFd) -> bool {
    rustix::fs::fgetxattr(directory, DEFAULT_ACL, &mut [0u8; 0][..]).is_ok_and(|length| length > 0)
}

pub(crate) fn open_directory(directory: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, os(name), flags, Mode::empty())
}

pub(crate) fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Returns an unused name: a random beginning for this process, and a number.
pub(crate) fn temporary_name() -> Result<Vec<u8>> {
    static BEGINNING: OnceLock<u32> = OnceLock::new();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let beginning = match BEGINNING.get() {
        Some(beginning) => *beginning,
        None => {
            let mut random = [0; 4];
            crate::random_bytes(&mut random)?;
            *BEGINNING.get_or_init(|| u32::from_ne_bytes(random))
        }
    };
    Ok(format!(".onefold-{beginning:08x}{:08x}", NUMBER.fetch_add(1, Ordering::Relaxed)).into_bytes())
}

/// Renames `temporary` to its final name; with `replace`, over an existing file. On failure it is removed.
pub(crate) fn give_name(directory: &OwnedFd, temporary: &[u8], name: &[u8], replace: bool) -> rustix::io::Result<()> {
    let result = if replace {
        rustix::fs::renameat(directory, os(temporary), directory, os(name))
    } else {
        match rustix::fs::renameat_with(directory, os(temporary), directory, os(name), RenameFlags::NOREPLACE) {
            // The file system does not support this. A hard link does not replace anything either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                rustix::fs::linkat(directory, os(temporary), directory, os(name), AtFlags::empty())
                    .and_then(|()| rustix::fs::unlinkat(directory, os(temporary), AtFlags::empty()))
            }
            result => result,
        }
    };
    if result.is_err() {
        let _ = rustix::fs::unlinkat(directory, os(temporary), AtFlags::empty());
    }
    result
}

/// How to reach the file whose attributes are set.
pub(crate) enum Place<'a> {
    Open(rustix::fd::BorrowedFd<'a>),
    /// A name that is not followed if it is a link.
    Name(&'a OwnedFd, &'a [u8]),
}

/// Sets owner, extended attributes, mode and times. Failures are reported; a lack of rights only once for all files.
pub(crate) fn set_attributes(
    place: &Place<'_>,
    attributes: &Attributes,
    inherits_acl: bool,
    path: &[u8],
    powers: &Powers,
    watch: &Watch<'_>,
) {
    let tell = |what: &str, result: rustix::io::Result<()>| {
        if let Err(error) = result {
            watch.warn(path, format_args!("cannot set its {what}: {error}"));
        }
    };
    let has_rights = attributes.mode & SET_ID != 0 || attributes.xattrs.iter().any(|(name, _)| name == CAPABILITIES);
    let is_owned = if powers.is_root {
        let set = set_owner(place, attributes);
        let is_owned = set.is_ok() && attributes.uid != u32::MAX && attributes.gid != u32::MAX;
        tell("owner", set);
        is_owned
    } else if has_rights || !powers.owner_reported.load(Ordering::Relaxed) {
        let is_owned = !differs(place, attributes);
        if !is_owned && !powers.owner_reported.swap(true, Ordering::Relaxed) {
            watch.warn(path, "only root can restore owners: the restored files belong to you");
        }
        is_owned
    } else {
        true
    };
    let withheld = !is_owned && has_rights;
    if withheld && !powers.set_id_reported.swap(true, Ordering::Relaxed) {
        watch.warn(
            path,
            "its owner could not be restored, so set-user-id and set-group-id bits and capabilities are left out, also of other such files",
        );
    }
    if inherits_acl && !attributes.xattrs.iter().any(|(name, _)| name == ACCESS_ACL.as_bytes()) {
        remove_xattr(place, ACCESS_ACL);
    }
    for (name, value) in attributes.xattrs.iter().filter(|(name, _)| !(withheld && name == CAPABILITIES)) {
        match set_xattr(place, name, value) {
            Err(Errno::PERM | Errno::NOTSUP) if !powers.is_root => {
                if !powers.xattrs_reported.swap(true, Ordering::Relaxed) {
                    let name = String::from_utf8_lossy(name);
                    watch.warn(path, format_args!("some extended attributes cannot be set without root, {name} first"));
                }
            }
            result => tell(&format!("extended attribute {}", String::from_utf8_lossy(name)), result),
        }
    }
    let mode = if withheld { attributes.mode & !SET_ID } else { attributes.mode };
    tell("mode", set_mode(place, mode));
    tell("times", set_times(place, attributes));
}

fn differs(place: &Place<'_>, attributes: &Attributes) -> bool {
    let found = match place {
        Place::Open(file) => source::find_open(file),
        Place::Name(directory, name) => source::find(directory, name, false),
    };
    found.is_ok_and(|found| (found.attributes.uid, found.attributes.gid) != (attributes.uid, attributes.gid))
}

fn set_owner(place: &Place<'_>, attributes: &Attributes) -> rustix::io::Result<()> {
    // The number that means "leave it" is no owner.
    let owner = (attributes.uid != u32::MAX).then(|| Uid::from_raw(attributes.uid));
    let group = (attributes.gid != u32::MAX).then(|| Gid::from_raw(attributes.gid));
    match place {
        Place::Open(file) => rustix::fs::fchown(file, owner, group),
        Place::Name(directory, name) => rustix::fs::chownat(directory, os(name), owner, group, AtFlags::SYMLINK_NOFOLLOW),
    }
}

fn set_mode(place: &Place<'_>, mode: u16) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(mode.into());
    match place {
        Place::Open(file) => rustix::fs::fchmod(file, mode),
        Place::Name(directory, name) => {
            let file = rustix::fs::openat(directory, os(name), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if source::find_open(&file)?.kind == rustix::fs::FileType::Symlink {
                // A link has no mode of its own.
                return Ok(());
            }
            rustix::fs::chmod(through(&file), mode)
        }
    }
}

fn set_times(place: &Place<'_>, attributes: &Attributes) -> rustix::io::Result<()> {
    let time = source::timespec(attributes.mtime_ns);
    let times = Timestamps { last_access: time, last_modification: time };
    match place {
        Place::Open(file) => rustix::fs::futimens(file, &times),
        Place::Name(directory, name) => rustix::fs::utimensat(directory, os(name), &times, AtFlags::SYMLINK_NOFOLLOW),
    }
}

fn set_xattr(place: &Place<'_>, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    match place {
        Place::Open(file) => rustix::fs::fsetxattr(file, os(name), value, XattrFlags::empty()),
        Place::Name(directory, file) => {
            let path = source::path_through(directory, file).ok_or(Errno::INVAL)?;
            rustix::fs::lsetxattr(&path, os(name), value, XattrFlags::empty())
        }
    }
}

/// Removes an attribute that may not exist.
fn remove_xattr(place: &Place<'_>, name: &str) {
    let _ = match place {
        Place::Open(file) => rustix::fs::fremovexattr(file, name),
        Place::Name(directory, file) => match source::path_through(directory, file) {
            Some(path) => rustix::fs::lremovexattr(&path, name),
            None => return,
        },
    };
}

/// Returns an open file as a path, for calls that do not take a file opened only for its path.
fn through(file: &OwnedFd) -> CString {
    use rustix::fd::AsRawFd;
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a number has no zero byte")
}
