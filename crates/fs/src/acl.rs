//! POSIX ACLs (POSIX.1e draft 17), as the kernel has them in extended attributes: what a mode says of an ACL, and what
//! a new file gets from its directory.
//!
//! ```text
//! version u32 (2), then for each entry: tag u16, permissions u16, id u32    (little endian)
//! ```

use crate::error::{FsError, Result};
use crate::inode::{Inode, Kind};

/// The attribute of the ACL of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the ACL that new files in a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

fn decode(value: &[u8]) -> Result<Vec<Entry>> {
    let (version, entries) = value.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return Err(FsError::Invalid);
    }
    let entry = |bytes: &[u8]| Entry {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        permissions: u16::from_le_bytes([bytes[2], bytes[3]]) & 7,
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let entries: Vec<Entry> = entries.chunks_exact(8).map(entry).collect();
    let has = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let needs_mask = has(USER) + has(GROUP) > 0;
    let is_known = entries.iter().all(|entry| [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&entry.tag));
    if !is_known || [USER_OBJ, GROUP_OBJ, OTHER].iter().any(|tag| has(*tag) != 1) || has(MASK) > 1 || (needs_mask && has(MASK) == 0) {
        return Err(FsError::Invalid);
    }
    Ok(entries)
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for entry in entries {
        out.extend_from_slice(&entry.tag.to_le_bytes());
        out.extend_from_slice(&entry.permissions.to_le_bytes());
        out.extend_from_slice(&entry.id.to_le_bytes());
    }
    out
}

/// Returns whether an ACL says no more than a mode.
fn is_mode(entries: &[Entry]) -> bool {
    entries.iter().all(|entry| [USER_OBJ, GROUP_OBJ, OTHER].contains(&entry.tag))
}

/// The class of a mode that an entry stands for: how far its bits are to the left. `None`: none.
fn class(entries: &[Entry], tag: u16) -> Option<u16> {
    let has_mask = entries.iter().any(|entry| entry.tag == MASK);
    match tag {
        USER_OBJ => Some(6),
        GROUP_OBJ if !has_mask => Some(3),
        MASK => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

/// The access ACL of an inode was set: the mode follows. An ACL that says no more than the mode goes.
pub(crate) fn set_access(inode: &mut Inode) -> Result<()> {
    let Some(value) = inode.xattr(ACCESS) else { return Ok(()) };
    let entries = decode(value)?;
    let mut mode = inode.mode & 0o7000;
    for entry in &entries {
        if let Some(left) = class(&entries, entry.tag) {
            mode |= entry.permissions << left;
        }
    }
    inode.mode = mode;
    if is_mode(&entries) { inode.set_xattr(ACCESS, None) } else { Ok(()) }
}

/// The mode of an inode was set: its access ACL follows.
pub(crate) fn follow_mode(inode: &mut Inode) {
    let Some(Ok(mut entries)) = inode.xattr(ACCESS).map(decode) else { return };
    let all = entries.clone();
    for entry in &mut entries {
        if let Some(left) = class(&all, entry.tag) {
            entry.permissions = (inode.mode >> left) & 7;
        }
    }
    // It is as long as before.
    let _ = inode.set_xattr(ACCESS, Some(&encode(&entries)));
}

/// Gives a new inode what its directory hands on: a default ACL, or what the umask leaves.
pub(crate) fn inherit(above: &Inode, inode: &mut Inode, umask: u16) -> Result<()> {
    if matches!(inode.kind, Kind::Symlink { .. }) {
        return Ok(());
    }
    let Some(value) = above.xattr(DEFAULT) else {
        inode.mode &= !(umask & 0o777);
        return Ok(());
    };
    let mut entries = decode(value)?;
    let all = entries.clone();
    let mut mode = inode.mode & 0o7000;
    for entry in &mut entries {
        if let Some(left) = class(&all, entry.tag) {
            entry.permissions &= (inode.mode >> left) & 7;
            mode |= entry.permissions << left;
        }
    }
    inode.mode = mode;
    if inode.is_directory() {
        inode.set_xattr(DEFAULT, Some(value))?;
    }
    if is_mode(&entries) { Ok(()) } else { inode.set_xattr(ACCESS, Some(&encode(&entries))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        encode(&entries.iter().map(|(tag, permissions, id)| Entry { tag: *tag, permissions: *permissions, id: *id }).collect::<Vec<_>>())
    }

    fn directory() -> Inode {
        Inode::new(Kind::Directory { parent: 1 }, 0o755, (0, 0), 0)
    }

    #[test]
    fn an_acl_and_its_mode_follow_each_other() {
        let mut inode = Inode::new(Kind::File, 0o4644, (1, 2), 0);
        let wide = acl(&[(USER_OBJ, 6, 0), (USER, 7, 1000), (GROUP_OBJ, 4, 0), (MASK, 5, 0), (OTHER, 1, 0)]);
        inode.set_xattr(ACCESS, Some(&wide)).unwrap();
        set_access(&mut inode).unwrap();
        assert_eq!(inode.mode, 0o4651, "the group is the mask");
        inode.mode = 0o600;
        follow_mode(&mut inode);
        let entries = decode(inode.xattr(ACCESS).unwrap()).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.permissions).collect::<Vec<_>>(), [6, 7, 4, 0, 0]);
        // One that says no more than a mode goes.
        inode.set_xattr(ACCESS, Some(&acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)]))).unwrap();
        set_access(&mut inode).unwrap();
        assert_eq!((inode.mode, inode.xattr(ACCESS)), (0o750, None));
    }

    #[test]
    fn a_new_file_gets_the_default_acl_instead_of_the_umask() {
        let mut above = directory();
        let mut plain = Inode::new(Kind::File, 0o666, (1, 2), 0);
        inherit(&above, &mut plain, 0o027).unwrap();
        assert_eq!(plain.mode, 0o640);
        let default = acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (GROUP, 7, 50), (MASK, 7, 0), (OTHER, 0, 0)]);
        above.set_xattr(DEFAULT, Some(&default)).unwrap();
        let mut file = Inode::new(Kind::File, 0o664, (1, 2), 0);
        inherit(&above, &mut file, 0o077).unwrap();
        assert_eq!(file.mode, 0o660);
        let entries = decode(file.xattr(ACCESS).unwrap()).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.permissions).collect::<Vec<_>>(), [6, 7, 7, 6, 0]);
        assert_eq!(file.xattr(DEFAULT), None);
        let mut below = directory();
        inherit(&above, &mut below, 0).unwrap();
        assert_eq!(below.xattr(DEFAULT), Some(&default[..]));
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        for value in [
            vec![],
            vec![1, 0, 0, 0],
            acl(&[]),
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0)]),
            acl(&[(USER, 7, 1), (USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 0, 0)]),
            acl(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 7, 0), (OTHER, 0, 0), (0x40, 0, 0)]),
        ] {
            assert!(decode(&value).is_err(), "{value:?}");
        }
    }
}
