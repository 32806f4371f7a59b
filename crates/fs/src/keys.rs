//! Keys of a filesystem in its layer (`docs/format.md` section 7.19).
//!
//! ```text
//! s                                       the filesystem itself
//! i  number u64                           an inode
//! d  number u64, hash u64, name           a name in a directory
//! o  number u64                           an inode without a name, whose blocks are to be freed
//! ```
//! Numbers are big endian. The hash is that of the name, so that a directory has an order that names do not change; it
//! is below 2^63.

use onefold_ground::checksum;

/// The key of the filesystem itself.
pub(crate) const SELF: &[u8] = b"s";

/// The key of an inode.
pub(crate) fn inode(number: u64) -> Vec<u8> {
    [&b"i"[..], &number.to_be_bytes()].concat()
}

/// All keys of inodes.
pub(crate) fn inodes() -> (Vec<u8>, Vec<u8>) {
    (b"i".to_vec(), b"j".to_vec())
}

/// All keys of names.
pub(crate) fn all_names() -> (Vec<u8>, Vec<u8>) {
    (b"d".to_vec(), b"e".to_vec())
}

/// Returns whether this is the key of an inode.
pub(crate) fn is_inode(key: &[u8]) -> bool {
    key.first() == Some(&b'i')
}

/// The number in the key of an inode, or that of the directory in the key of a name.
pub(crate) fn number(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.try_into().ok().map(u64::from_be_bytes)
}

/// The key of an inode without a name.
pub(crate) fn orphan(number: u64) -> Vec<u8> {
    [&b"o"[..], &number.to_be_bytes()].concat()
}

/// All keys of inodes without names.
pub(crate) fn orphans() -> (Vec<u8>, Vec<u8>) {
    (b"o".to_vec(), b"p".to_vec())
}

/// The number in the key of an inode without a name.
pub(crate) fn orphan_number(key: &[u8]) -> Option<u64> {
    key.strip_prefix(b"o")?.try_into().ok().map(u64::from_be_bytes)
}

/// Returns where a name is in the order of its directory.
pub(crate) fn hash(name: &[u8]) -> u64 {
    // 0 to 2 stand for `.` and `..`, and for the beginning.
    (checksum(name) >> 1).max(3)
}

/// The key of a name.
pub(crate) fn name(directory: u64, name: &[u8]) -> Vec<u8> {
    [&b"d"[..], &directory.to_be_bytes(), &hash(name).to_be_bytes(), name].concat()
}

/// The keys of the names of a directory from a hash on.
pub(crate) fn names(directory: u64, from: u64) -> (Vec<u8>, Vec<u8>) {
    let of = |directory: u64| [&b"d"[..], &directory.to_be_bytes()].concat();
    ([of(directory), from.to_be_bytes().to_vec()].concat(), of(directory + 1))
}

/// The hash and the name in a key.
pub(crate) fn parse_name(key: &[u8]) -> Option<(u64, &[u8])> {
    let (hash, name) = key.get(9..)?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*hash), name))
}
