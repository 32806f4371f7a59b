//! Protected backups: until a moment that was set, nobody can remove them.
//!
//! A protection is an object beside the backup's record, under the key `k` + id; it goes with the record. It can always be prolonged;
//! shortening it is a deletion in the eyes of append-only mode.

use crate::catalog::{CHANGING, key};
use crate::{Backup, BackupId, Catalog, CatalogError, Result};
use onefold_engine::Transaction;
use onefold_ground::wire::{Reader, WireError, put_signed};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

/// First byte of the keys of protections.
const PREFIX: u8 = b'k';
/// The version that values of the block index begin with.
const VERSION: u8 = 1;

impl Catalog {
    /// Until when a backup is protected, nanoseconds since 1970: a moment that may be past.
    pub fn protected_until(&self, backup: &Backup) -> Result<Option<i64>> {
        let value = self.engine().get(self.partition(&backup.name), &protection_key(&backup.id))?;
        value.map(|value| decode(&value)).transpose().map_err(damaged)
    }

    /// The backups that are protected now, and until when, nanoseconds since 1970. A damaged object is an error.
    pub fn protected(&self) -> Result<HashMap<BackupId, i64>> {
        let now_ns = now_ns();
        let mut found = HashMap::new();
        let mut wrong = None;
        self.engine().for_each_object(PREFIX, &mut |key, value| {
            let id = key[1..].try_into().map(BackupId::from_bytes).map_err(|_| WireError::OutOfRange {
                what: "length of its key",
                value: key.len() as u64,
                offset_bytes: 0,
            });
            match id.and_then(|id| decode(value).map(|until_ns| (id, until_ns))) {
                Ok((id, until_ns)) if until_ns > now_ns => drop(found.insert(id, until_ns)),
                Ok(_) => {}
                Err(error) => wrong = Some(error),
            }
        })?;
        wrong.map_or(Ok(found), |error| Err(damaged(error)))
    }

    /// Protects backups until a moment (nanoseconds since 1970), or with `None` not any more; all of them or, after an error, none. Durable on return.
    /// Refused in append-only mode if it ends the protection of one of them earlier than it would end.
    pub fn protect(&self, backups: &[Backup], until_ns: Option<i64>) -> Result<()> {
        // Asked for before the lock, as its rule demands; whether it is needed, is known behind it.
        let permit = self.engine().permit_deletion("shorten or lift the protection of a backup");
        let now_ns = now_ns();
        let changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_shorter = false;
        let mut transaction = Transaction::default();
        for backup in backups {
            let partition = self.partition(&backup.name);
            if self.engine().get(partition, &key(&backup.id))?.is_none() {
                return Err(CatalogError::UnknownBackup { asked: backup.id.to_string(), candidates: Vec::new() });
            }
            let before = self.protected_until(backup)?;
            is_shorter |= before.is_some_and(|before| before > now_ns && until_ns.is_none_or(|until_ns| until_ns < before));
            if before != until_ns {
                transaction.changes.push((partition, protection_key(&backup.id), until_ns.map(encode)));
            }
        }
        let _permit = if is_shorter { Some(permit?) } else { permit.ok() };
        self.engine().submit(transaction)?;
        drop(changing);
        Ok(self.engine().flush()?)
    }
}

/// The key of the protection of a backup.
pub(crate) fn protection_key(id: &BackupId) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(id.as_bytes());
    key
}

/// Now, nanoseconds since 1970. A clock that cannot be right ends no protection.
pub(crate) fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

fn encode(until_ns: i64) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_signed(&mut out, until_ns);
    out
}

fn decode(value: &[u8]) -> std::result::Result<i64, WireError> {
    let mut reader = Reader::new(value);
    match reader.u8()? {
        VERSION => {}
        version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
    }
    let until_ns = reader.signed()?;
    reader.end()?;
    Ok(until_ns)
}

fn damaged(source: WireError) -> CatalogError {
    CatalogError::Damaged { what: "protection of a backup", source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_protection_is_read_as_written(until_ns: i64) {
            prop_assert_eq!(decode(&encode(until_ns)).unwrap(), until_ns);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
