//! Inodes as stored (`docs/format.md` section 7.19).

use crate::error::{FsError, Result};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

/// Version of the value.
const VERSION: u8 = 1;
/// A flag of `chattr`: nothing of the file changes, and neither do its names.
pub const IMMUTABLE: u32 = 0x10;
/// A flag of `chattr`: content is only added. A directory gets new names and loses none.
pub const APPEND_ONLY: u32 = 0x20;
/// A flag of `chattr`: backups that follow dump(8) leave it out.
pub const NO_DUMP: u32 = 0x40;
/// A flag of `chattr`: nobody notes when it is read.
pub const NO_ATIME: u32 = 0x80;
/// Flags that a new file has from its directory.
pub(crate) const INHERITED_FLAGS: u32 = NO_DUMP | NO_ATIME;
/// The longest target of a link.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;
/// The most bytes of the names and values of extended attributes of a file.
pub(crate) const MAX_XATTRS_BYTES: usize = 60 << 10;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory, with the directory that it is in. The root is in itself.
    Directory {
        /// The number of that directory.
        parent: u64,
    },
    /// A symbolic link.
    Symlink {
        /// The path that it points to.
        target: Vec<u8>,
    },
    /// A character device.
    CharacterDevice {
        /// Its number, as the kernel encodes it for FUSE.
        device: u32,
    },
    /// A block device.
    BlockDevice {
        /// Its number.
        device: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    /// Returns its number in inodes and in directories.
    pub(crate) fn number(&self) -> u8 {
        match self {
            Kind::File => 0,
            Kind::Directory { .. } => 1,
            Kind::Symlink { .. } => 2,
            Kind::CharacterDevice { .. } => 3,
            Kind::BlockDevice { .. } => 4,
            Kind::Fifo => 5,
            Kind::Socket => 6,
        }
    }
}

/// A file of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes. Of a directory: the number of its entries.
    pub size: u64,
    /// Number of names; of a directory: 2, and one for each directory in it.
    pub links: u32,
    /// Last access, nanoseconds since 1970.
    pub atime_ns: i64,
    /// Last change of the content.
    pub mtime_ns: i64,
    /// Last change of content or attributes.
    pub ctime_ns: i64,
    /// When it was made.
    pub born_ns: i64,
    /// The flags of `chattr`.
    pub flags: u32,
    /// It may have holes. Without them, it has as much stored as it is long.
    pub has_holes: bool,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Inode {
    pub(crate) fn new(kind: Kind, mode: u16, (uid, gid): (u32, u32), now_ns: i64) -> Inode {
        let links = if matches!(kind, Kind::Directory { .. }) { 2 } else { 1 };
        let size = match &kind {
            Kind::Symlink { target } => target.len() as u64,
            _ => 0,
        };
        let (atime_ns, mtime_ns, ctime_ns, born_ns) = (now_ns, now_ns, now_ns, now_ns);
        Inode { kind, mode, uid, gid, size, links, atime_ns, mtime_ns, ctime_ns, born_ns, flags: 0, has_holes: false, xattrs: Vec::new() }
    }

    /// Returns whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }

    /// Errors: a flag of `chattr` forbids what `flags` forbid.
    pub(crate) fn check_flags(&self, flags: u32) -> Result<()> {
        if self.flags & flags == 0 { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Returns the value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.xattrs.iter().find(|(own, _)| own == name).map(|(_, value)| &value[..])
    }

    /// Changes or removes an extended attribute.
    pub(crate) fn set_xattr(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let place = self.xattrs.binary_search_by(|(own, _)| own[..].cmp(name));
        match (place, value) {
            (Ok(place), Some(value)) => self.xattrs[place].1 = value.to_vec(),
            (Ok(place), None) => drop(self.xattrs.remove(place)),
            (Err(place), Some(value)) => self.xattrs.insert(place, (name.to_vec(), value.to_vec())),
            (Err(_), None) => return Err(FsError::NoAttribute),
        }
        if self.xattr_bytes() > MAX_XATTRS_BYTES { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Returns the bytes of its extended attributes.
    pub(crate) fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
    }

    /// Returns what it takes in memory beside itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let target_bytes = if let Kind::Symlink { target } = &self.kind { target.capacity() } else { 0 };
        let own_bytes = self.xattrs.capacity() * size_of::<(Vec<u8>, Vec<u8>)>();
        target_bytes + own_bytes + self.xattrs.iter().map(|(name, value)| name.capacity() + value.capacity()).sum::<usize>()
    }

    /// Returns the value for the store, with this length.
    pub(crate) fn encode(&self, size: u64) -> Vec<u8> {
        let mut out = vec![VERSION, self.kind.number()];
        match &self.kind {
            Kind::Directory { parent } => put_varint(&mut out, *parent),
            Kind::Symlink { target } => put_bytes(&mut out, target),
            Kind::CharacterDevice { device } | Kind::BlockDevice { device } => put_varint(&mut out, u64::from(*device)),
            Kind::File | Kind::Fifo | Kind::Socket => {}
        }
        for number in [u64::from(self.mode), self.uid.into(), self.gid.into(), size, self.links.into()] {
            put_varint(&mut out, number);
        }
        for time_ns in [self.atime_ns, self.mtime_ns, self.ctime_ns, self.born_ns] {
            put_signed(&mut out, time_ns);
        }
        put_varint(&mut out, self.flags.into());
        out.push(self.has_holes.into());
        put_varint(&mut out, self.xattrs.len() as u64);
        for (name, value) in &self.xattrs {
            put_bytes(&mut out, name);
            put_bytes(&mut out, value);
        }
        out
    }

    /// Reads a value.
    pub(crate) fn decode(value: &[u8]) -> std::result::Result<Inode, WireError> {
        let mut reader = Reader::new(value);
        let wrong = |what, value| WireError::OutOfRange { what, value, offset_bytes: 0 };
        let version = reader.u8()?;
        if version != VERSION {
            return Err(wrong("version of an inode", u64::from(version)));
        }
        let device = |reader: &mut Reader<'_>| Ok::<_, WireError>(reader.varint_to("device", u32::MAX.into())? as u32);
        let kind = match reader.u8()? {
            0 => Kind::File,
            1 => Kind::Directory { parent: reader.varint()? },
            2 => Kind::Symlink { target: reader.bytes()?.to_vec() },
            3 => Kind::CharacterDevice { device: device(&mut reader)? },
            4 => Kind::BlockDevice { device: device(&mut reader)? },
            5 => Kind::Fifo,
            6 => Kind::Socket,
            kind => return Err(wrong("kind of a file", u64::from(kind))),
        };
        let mode = reader.varint_to("mode", 0o7777)? as u16;
        let mut small = |what| Ok::<_, WireError>(reader.varint_to(what, u32::MAX.into())? as u32);
        let (uid, gid) = (small("owner")?, small("group")?);
        let size = reader.varint()?;
        let links = reader.varint_to("links", u32::MAX.into())? as u32;
        let (atime_ns, mtime_ns, ctime_ns, born_ns) = (reader.signed()?, reader.signed()?, reader.signed()?, reader.signed()?);
        let flags = reader.varint_to("flags", u32::MAX.into())? as u32;
        let has_holes = match reader.u8()? {
            0 => false,
            1 => true,
            other => return Err(wrong("whether a file has holes", other.into())),
        };
        let count = reader.count("extended attributes", 2)?;
        let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for _ in 0..count {
            let (name, value) = (reader.bytes()?.to_vec(), reader.bytes()?.to_vec());
            if xattrs.last().is_some_and(|(last, _)| *last >= name) {
                return Err(wrong("order of extended attributes", count as u64));
            }
            xattrs.push((name, value));
        }
        reader.end()?;
        Ok(Inode { kind, mode, uid, gid, size, links, atime_ns, mtime_ns, ctime_ns, born_ns, flags, has_holes, xattrs })
    }
}
