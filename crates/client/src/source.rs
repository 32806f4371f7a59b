//! Reads a Linux file system: names, attributes, extended attributes, everything relative to an open directory.

use onefold_catalog::{Attributes, CHATTR_FLAGS};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Statx, StatxAttributes, StatxFlags, StatxTimestamp, Timespec};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// The longest list of names, and the longest value, of extended attributes in Linux.
const XATTR_MAX_BYTES: usize = 64 << 10;

/// The system's answer about one name.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) kind: FileType,
    pub(crate) attributes: Attributes,
    /// It is a mount point. Kernels before 5.8 do not say so.
    is_mount_root: bool,
    pub(crate) size_bytes: u64,
    /// Bytes that the file system has allocated.
    pub(crate) allocated_bytes: u64,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Found {
    /// Returns the identity of the file, whatever its name.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.attributes.device, self.attributes.inode)
    }

    /// Returns whether it is a mount point, also of a directory on the same file system. `device`: the device of the
    /// directory above.
    pub(crate) fn is_mount_point(&self, device: u64) -> bool {
        self.is_mount_root || self.attributes.device != device
    }
}

/// Looks up a name in a directory.
pub(crate) fn find(directory: impl AsFd, name: &[u8], follow: bool) -> rustix::io::Result<Found> {
    let flags = if follow { AtFlags::NO_AUTOMOUNT } else { AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW };
    rustix::fs::statx(directory, OsStr::from_bytes(name), flags, StatxFlags::BASIC_STATS).map(|found| understand(&found))
}

/// Looks up an open file.
pub(crate) fn find_open(file: impl AsFd) -> rustix::io::Result<Found> {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map(|found| understand(&found))
}

fn understand(found: &Statx) -> Found {
    Found {
        kind: FileType::from_raw_mode(found.stx_mode.into()),
        attributes: Attributes {
            mode: found.stx_mode & 0o7777,
            uid: found.stx_uid,
            gid: found.stx_gid,
            mtime_ns: nanoseconds(&found.stx_mtime),
            ctime_ns: nanoseconds(&found.stx_ctime),
            inode: found.stx_ino,
            device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            links: found.stx_nlink.into(),
            flags: 0,
            xattrs: Vec::new(),
        },
        is_mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        size_bytes: found.stx_size,
        allocated_bytes: found.stx_blocks.saturating_mul(512),
        major: found.stx_rdev_major,
        minor: found.stx_rdev_minor,
    }
}

/// Clamps times outside of the years 1678 to 2262.
fn nanoseconds(time: &StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
}

/// Returns the system's form of a time.
pub(crate) fn timespec(time_ns: i64) -> Timespec {
    Timespec { tv_sec: time_ns.div_euclid(1_000_000_000), tv_nsec: time_ns.rem_euclid(1_000_000_000) as _ }
}

/// Opens for reading, without changing the access time if that is allowed.
pub(crate) fn open(directory: impl AsFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    let name = OsStr::from_bytes(name);
    match rustix::fs::openat(&directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner and root may leave the access time unchanged.
        Err(Errno::PERM) => rustix::fs::openat(&directory, name, flags, Mode::empty()),
        result => result,
    }
}

/// The names in a directory, sorted as bytes, without `.` and `..`, in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    names: Vec<Range<usize>>,
}

impl Listing {
    pub(crate) fn read(directory: impl AsFd) -> rustix::io::Result<Listing> {
        let mut listing = Listing::default();
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                listing.push(name);
            }
        }
        let bytes = &listing.bytes;
        listing.names.sort_unstable_by(|a, b| bytes[a.clone()].cmp(&bytes[b.clone()]));
        Ok(listing)
    }

    /// Returns a listing of names that are sorted already.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a Vec<u8>>) -> Listing {
        let mut listing = Listing::default();
        names.for_each(|name| listing.push(name));
        listing
    }

    fn push(&mut self, name: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.names.push(start..self.bytes.len());
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.names.binary_search_by(|range| self.bytes[range.clone()].cmp(name)).is_ok()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        self.names.get(index).map(|range| &self.bytes[range.clone()])
    }
}

/// Returns whether a name in a directory is a regular file that begins with these bytes. Errors: it exists and cannot
/// be read.
pub(crate) fn begins_with(directory: impl AsFd, name: &[u8], expected: &[u8]) -> rustix::io::Result<bool> {
    let opened = find(&directory, name, false).and_then(|found| match found.kind {
        FileType::RegularFile => open(&directory, name, OFlags::NOFOLLOW | OFlags::NONBLOCK).map(Some),
        _ => Ok(None),
    });
    let file = match opened {
        Ok(Some(file)) => file,
        Ok(None) | Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; expected.len()];
    let read = rustix::io::pread(&file, &mut bytes[..], 0)?;
    Ok(bytes[..read] == *expected)
}

/// Returns the size of a block device.
pub(crate) fn device_bytes(directory: impl AsFd, name: &[u8]) -> rustix::io::Result<u64> {
    rustix::fs::seek(open(directory, name, OFlags::NONBLOCK)?, rustix::fs::SeekFrom::End(0))
}

/// Returns the path of a name in an open directory, for calls that take only paths. Nothing above the name is looked up
/// again.
pub(crate) fn path_through(directory: impl AsFd, name: &[u8]) -> Option<CString> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    CString::new(path).ok()
}

/// Returns the `chattr` flags of an open file; none if the file system does not have them.
pub(crate) fn flags_of(file: impl AsFd) -> u32 {
    rustix::fs::ioctl_getflags(file).map_or(0, |flags| flags.bits() & CHATTR_FLAGS)
}

/// Returns the extended attributes of an open file, sorted by name.
pub(crate) fn xattrs_of(file: impl AsFd) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let file = file.as_fd();
    read_xattrs(|list| rustix::fs::flistxattr(file, list), |name, value| rustix::fs::fgetxattr(file, name, value))
}

/// Returns the extended attributes of a name in a directory. For a link, those of the link itself.
pub(crate) fn xattrs_at(directory: impl AsFd, name: &[u8]) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = path_through(directory, name).ok_or(Errno::INVAL)?;
    read_xattrs(|list| rustix::fs::llistxattr(&path, list), |name, value| rustix::fs::lgetxattr(&path, name, value))
}

fn read_xattrs(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // Most files have none or few: try a short buffer first, the longest only if needed.
    let mut short = [0; 512];
    let mut long = Vec::new();
    let names: &[u8] = match list(&mut short) {
        Ok(length) => &short[..length],
        Err(Errno::RANGE) => {
            long.resize(XATTR_MAX_BYTES, 0);
            let length = list(&mut long)?;
            &long[..length]
        }
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut xattrs = Vec::new();
    let mut value = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        value.resize(XATTR_MAX_BYTES, 0);
        match get(OsStr::from_bytes(name), &mut value) {
            Ok(length) => xattrs.push((name.to_vec(), value[..length].to_vec())),
            // Removed meanwhile, or not visible to us.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let time = timespec(-1);
        assert_eq!((time.tv_sec, time.tv_nsec), (-1, 999_999_999));
    }
}
