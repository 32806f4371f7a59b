//! The object-index keys of backups and their protections: a letter, then the backup's id.

use crate::BackupId;

/// The first byte of the keys of backups.
pub(crate) const BACKUP: u8 = b'b';
/// The first byte of the keys of protections.
pub(crate) const PROTECTION: u8 = b'k';

/// Returns the key of a backup's record.
pub(crate) fn key(id: &BackupId) -> Vec<u8> {
    with(BACKUP, id)
}

/// Returns the key of a backup's protection.
pub(crate) fn protection_key(id: &BackupId) -> Vec<u8> {
    with(PROTECTION, id)
}

fn with(prefix: u8, id: &BackupId) -> Vec<u8> {
    let mut key = vec![prefix];
    key.extend_from_slice(id.as_bytes());
    key
}
