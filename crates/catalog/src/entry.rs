//! One name in a directory of a backup (`docs/format.md` section 8.3).
//!
//! Names, targets and paths are bytes in any encoding. Decoded entries are well-formed but not yet trusted: before
//! turning a name into a file, check it with [`is_valid_name`].

use onefold_engine::{Engine, Piece, Recipe};
use onefold_fingerprint::Fingerprint;
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

/// The longest encoding of an entry: far more than a name of 255 bytes plus any extended attributes that Linux file
/// systems store.
pub const MAX_ENTRY_BYTES: usize = 1 << 20;
/// The smallest encoding of an extended attribute: two lengths.
const XATTR_MIN_BYTES: usize = 2;

/// The flags of `chattr` that users set and that have a meaning on another file system: `s`, `u`, `c`, `S`, `i`, `a`,
/// `d`, `A`, `j`, `t`, `D`, `T`, `C`, `P`. The others say how the file system stores a file (`e`, `I`, `N`, `V`) or
/// need more than the flag (`E`, `F`, `x`).
pub const CHATTR_FLAGS: u32 =
    0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x80_0000 | 0x2000_0000;

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The metadata of a file of any kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// The device of the file system.
    pub device: u64,
    /// Number of names.
    pub links: u64,
    /// The flags of `chattr`: the bits of FS_IOC_GETFLAGS that are in [`CHATTR_FLAGS`].
    pub flags: u32,
    /// Extended attributes, sorted by name. ACLs are `system.posix_acl_access` and `system.posix_acl_default`.
    pub xattrs: Xattrs,
}

/// What a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A regular file.
    File {
        /// Its length in bytes.
        size_bytes: u64,
        /// The recipe of its bytes.
        recipe: Recipe,
    },
    /// A directory.
    Directory {
        /// The recipe of its entries.
        recipe: Recipe,
    },
    /// A symbolic link.
    Symlink {
        /// The path it points to.
        target: Vec<u8>,
    },
    /// A character device.
    CharacterDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// Another name of a file whose first name is elsewhere in the same backup.
    HardLink {
        /// The path of the first name, relative to the backup's root, with components joined by `/`.
        path: Vec<u8>,
    },
}

impl Content {
    /// Returns the kind in one word, as in `ls` and `diff`.
    pub fn kind(&self) -> &'static str {
        match self {
            Content::File { .. } => "file",
            Content::Directory { .. } => "directory",
            Content::Symlink { .. } => "symlink",
            Content::CharacterDevice { .. } => "character device",
            Content::BlockDevice { .. } => "block device",
            Content::Fifo => "fifo",
            Content::Socket => "socket",
            Content::HardLink { .. } => "hard link",
        }
    }

    /// Returns where a symbolic or hard link leads.
    pub(crate) fn target(&self) -> Option<&[u8]> {
        match self {
            Content::Symlink { target } => Some(target),
            Content::HardLink { path } => Some(path),
            _ => None,
        }
    }

    /// Returns the same, to be changed.
    pub(crate) fn target_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Content::Symlink { target } => Some(target),
            Content::HardLink { path } => Some(path),
            _ => None,
        }
    }

    /// Returns the recipe of a file or directory.
    pub fn recipe(&self) -> Option<&Recipe> {
        match self {
            Content::File { recipe, .. } | Content::Directory { recipe } => Some(recipe),
            _ => None,
        }
    }
}

/// A name, its attributes and what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name within its directory.
    pub name: Vec<u8>,
    /// Mode, owner, times and the rest.
    pub attributes: Attributes,
    /// What the name refers to.
    pub content: Content,
}

/// Returns what a piece spells, wherever it is stored.
fn spelled(piece: &Piece) -> impl PartialEq + use<> {
    let (offset, length) = match piece {
        Piece::Chunk { offset, length, .. } => (*offset, u64::from(*length)),
        Piece::Zeros { length } => (0, *length),
    };
    (piece.fingerprint(), offset, length)
}

impl Entry {
    /// Returns whether it can be read, as far as is known: none of its chunks is in quarantine.
    pub fn is_sound(&self, engine: &Engine) -> bool {
        self.content.recipe().is_none_or(|recipe| engine.needs_quarantined(recipe).is_ok_and(|needs| !needs))
    }

    /// Returns the fingerprints that the entry refers to, one for each piece that names a chunk.
    pub fn references(&self) -> impl Iterator<Item = Fingerprint> + '_ {
        self.content.recipe().into_iter().flat_map(|recipe| recipe.pieces.iter().filter_map(Piece::fingerprint))
    }

    /// Returns whether a person sees no difference: the same bytes, wherever they are stored, and the same attributes,
    /// except for internal times and inodes.
    pub fn shows_the_same(&self, other: &Entry) -> bool {
        let (a, b) = (&self.attributes, &other.attributes);
        let has_same_content = match (&self.content, &other.content) {
            (Content::File { size_bytes: a, recipe: x }, Content::File { size_bytes: b, recipe: y }) => {
                a == b && x.level == y.level && x.pieces.iter().map(spelled).eq(y.pieces.iter().map(spelled))
            }
            (a, b) => a == b,
        };
        let attributes = |of: &Attributes| (of.mode, of.uid, of.gid, of.mtime_ns, of.flags);
        has_same_content && attributes(a) == attributes(b) && a.xattrs == b.xattrs
    }

    /// Returns the bytes of its extended attributes and its target: all of it that can be long.
    pub(crate) fn long_bytes(&self) -> usize {
        let xattrs: usize = self.attributes.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        xattrs + self.content.target().map_or(0, <[u8]>::len)
    }

    /// Appends the encoding. Fingerprints have `digest_bytes`.
    pub fn encode(&self, digest_bytes: usize, out: &mut Vec<u8>) {
        let attributes = &self.attributes;
        out.push(self.type_number());
        put_bytes(out, &self.name);
        put_varint(out, u64::from(attributes.mode));
        put_varint(out, u64::from(attributes.uid));
        put_varint(out, u64::from(attributes.gid));
        put_signed(out, attributes.mtime_ns);
        put_signed(out, attributes.ctime_ns);
        put_varint(out, attributes.inode);
        put_varint(out, attributes.device);
        put_varint(out, attributes.links);
        put_varint(out, u64::from(attributes.flags));
        encode_xattrs(&attributes.xattrs, out);
        match &self.content {
            Content::File { size_bytes, recipe } => {
                put_varint(out, *size_bytes);
                recipe.encode(digest_bytes, out);
            }
            Content::Directory { recipe } => recipe.encode(digest_bytes, out),
            Content::Symlink { target } => put_bytes(out, target),
            Content::CharacterDevice { major, minor } | Content::BlockDevice { major, minor } => {
                put_varint(out, u64::from(*major));
                put_varint(out, u64::from(*minor));
            }
            Content::Fifo | Content::Socket => {}
            Content::HardLink { path } => put_bytes(out, path),
        }
    }

    fn type_number(&self) -> u8 {
        match self.content {
            Content::File { .. } => 0,
            Content::Directory { .. } => 1,
            Content::Symlink { .. } => 2,
            Content::CharacterDevice { .. } => 3,
            Content::BlockDevice { .. } => 4,
            Content::Fifo => 5,
            Content::Socket => 6,
            Content::HardLink { .. } => 7,
        }
    }

    /// Reads an entry.
    pub fn decode(reader: &mut Reader<'_>, digest_bytes: usize) -> std::result::Result<Entry, WireError> {
        let offset_bytes = reader.position();
        let type_number = reader.u8()?;
        let name = reader.bytes()?.to_vec();
        let attributes = Attributes {
            mode: reader.varint_to("mode", 0o7777)? as u16,
            uid: reader.varint_to("uid", u64::from(u32::MAX))? as u32,
            gid: reader.varint_to("gid", u64::from(u32::MAX))? as u32,
            mtime_ns: reader.signed()?,
            ctime_ns: reader.signed()?,
            inode: reader.varint()?,
            device: reader.varint()?,
            links: reader.varint()?,
            flags: reader.varint_to("flags", u64::from(u32::MAX))? as u32,
            xattrs: decode_xattrs(reader)?,
        };
        let content = match type_number {
            0 => Content::File { size_bytes: reader.varint()?, recipe: Recipe::decode(reader, digest_bytes)? },
            1 => Content::Directory { recipe: Recipe::decode(reader, digest_bytes)? },
            2 => Content::Symlink { target: reader.bytes()?.to_vec() },
            3 | 4 => {
                let major = reader.varint_to("major", u64::from(u32::MAX))? as u32;
                let minor = reader.varint_to("minor", u64::from(u32::MAX))? as u32;
                if type_number == 3 { Content::CharacterDevice { major, minor } } else { Content::BlockDevice { major, minor } }
            }
            5 => Content::Fifo,
            6 => Content::Socket,
            7 => Content::HardLink { path: reader.bytes()?.to_vec() },
            _ => return Err(WireError::OutOfRange { what: "entry type", value: u64::from(type_number), offset_bytes }),
        };
        Ok(Entry { name, attributes, content })
    }
}

/// Appends extended attributes.
pub(crate) fn encode_xattrs(xattrs: &[(Vec<u8>, Vec<u8>)], out: &mut Vec<u8>) {
    put_varint(out, xattrs.len() as u64);
    for (name, value) in xattrs {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

/// Reads extended attributes.
pub(crate) fn decode_xattrs(reader: &mut Reader<'_>) -> std::result::Result<Xattrs, WireError> {
    let count = reader.count("xattrs", XATTR_MIN_BYTES)?;
    let mut xattrs = Xattrs::new();
    for _ in 0..count {
        let name = reader.bytes()?.to_vec();
        xattrs.push((name, reader.bytes()?.to_vec()));
    }
    Ok(xattrs)
}

/// Returns whether a file can have this name: not empty, not `.` or `..`, without `/` and NUL. Any other name in a
/// store is an attack or damage.
pub fn is_valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::entry;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn m3_3_an_entry_is_read_as_written_with_its_recipe_inline(entry in entry()) {
            {
                let digest_bytes = 32;
                let mut bytes = Vec::new();
                entry.encode(digest_bytes, &mut bytes);
                let mut reader = Reader::new(&bytes);
                prop_assert_eq!(&Entry::decode(&mut reader, digest_bytes).unwrap(), &entry);
                reader.end().unwrap();
            }
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = Entry::decode(&mut Reader::new(&bytes), 32);
        }
    }

    #[test]
    fn names_that_could_escape_a_directory_are_not_valid() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(!is_valid_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"\xff\n", b".onefold-x", b"-rf"] {
            assert!(is_valid_name(name), "{name:?}");
        }
    }
}
