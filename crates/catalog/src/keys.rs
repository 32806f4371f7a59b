//! The object-index keys of backups and what goes with them: a letter, then the backup's id. Files have theirs in
//! `files.rs`.

use crate::BackupId;

/// The first byte of the keys of backups.
pub(crate) const BACKUP: u8 = b'b';
/// The first byte of the keys of protections.
pub(crate) const PROTECTION: u8 = b'k';
/// The first byte of the keys of the roots of backups that named files.
const NAMED_ROOT: u8 = b'y';

/// Returns the key of a backup's record.
pub(crate) fn key(id: &BackupId) -> Vec<u8> {
    with(BACKUP, id)
}

/// Returns the key of a backup's protection.
pub(crate) fn protection_key(id: &BackupId) -> Vec<u8> {
    with(PROTECTION, id)
}

/// Returns the key of the root of a backup that named files.
pub(crate) fn named_root_key(id: &BackupId) -> Vec<u8> {
    with(NAMED_ROOT, id)
}

fn with(prefix: u8, id: &BackupId) -> Vec<u8> {
    let mut key = vec![prefix];
    key.extend_from_slice(id.as_bytes());
    key
}
