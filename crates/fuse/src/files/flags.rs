//! The flags of `chattr`: asking for them, setting them, and what they forbid.

use super::{APPEND, FileTree, errno};
use fuser::{Errno, INodeNo};
use onefold_fs::{APPEND_ONLY, Filesystem as Files, FsError, IMMUTABLE, NO_ATIME, NO_DUMP};

/// Requests of ioctl(2) for the flags of `chattr`, and the length of a `struct fsxattr`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;
const FSXATTR_BYTES: usize = 28;

/// Flags of `chattr`, with the bits that they have in the larger request.
const FLAGS: [(u32, u32); 4] = [(IMMUTABLE, 8), (APPEND_ONLY, 16), (NO_ATIME, 64), (NO_DUMP, 128)];

/// Flags of open(2).
const ACCESS: i32 = 0o3;
const TRUNCATE: i32 = 0o1000;

impl FileTree {
    /// Does what `lsattr` and `chattr` ask for: the flags alone, or in a `struct fsxattr`. The kernel checks who asks.
    pub(super) fn ioctl_of(&self, number: INodeNo, command: u32, data: &[u8]) -> Result<Vec<u8>, Errno> {
        let flags = || self.inode(number).map(|inode| inode.flags).map_err(|error| errno(&error));
        let set = |flags| {
            let set = FileTree::own(number).and_then(|own| self.files.set_flags(own, flags));
            if set.is_ok() {
                self.forget_attributes(number);
            }
            set.map(|()| Vec::new()).map_err(|error| errno(&error))
        };
        let first = || data.first_chunk::<4>().map(|first| u32::from_le_bytes(*first)).ok_or(Errno::EINVAL);
        match command {
            GET_FLAGS => Ok(flags()?.to_le_bytes().to_vec()),
            SET_FLAGS => set(first()?),
            GET_XATTR => {
                let flags = flags()?;
                let extended: u32 = FLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| bit).sum();
                Ok([&extended.to_le_bytes()[..], &[0; FSXATTR_BYTES - 4]].concat())
            }
            SET_XATTR => {
                let (extended, known) = (first()?, FLAGS.iter().map(|(_, bit)| bit).sum::<u32>());
                // There are no projects, and no sizes of extents.
                if data.len() != FSXATTR_BYTES || data[4..].iter().any(|byte| *byte != 0) || extended & !known != 0 {
                    return Err(Errno::EOPNOTSUPP);
                }
                set(FLAGS.iter().filter(|(_, bit)| extended & bit != 0).map(|(flag, _)| flag).sum())
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// Errors: flags of `chattr` forbid to open a file like this.
pub(super) fn check_open(files: &Files, number: u64, how: i32) -> Result<(), FsError> {
    let writes = how & ACCESS != 0 || how & TRUNCATE != 0;
    let adds = how & APPEND != 0 && how & TRUNCATE == 0;
    let flags = if writes { files.inode(number)?.flags } else { 0 };
    let is_forbidden = flags & IMMUTABLE != 0 || flags & APPEND_ONLY != 0 && !adds;
    if is_forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
}
