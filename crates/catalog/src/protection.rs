//! Protected backups: until a moment that was set, nobody can remove them.
//!
//! A protection is an object beside the backup's record, under the key `k` + id; it goes with the record. It can always be prolonged;
//! shortening it is a deletion in the eyes of append-only mode. One that cannot be read protects for ever, until it is set anew.

use crate::catalog::{CHANGING, key};
use crate::{Backup, BackupId, Catalog, CatalogError, Result};
use onefold_engine::Transaction;
use onefold_ground::wire::{Reader, WireError, put_signed};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

/// First byte of the keys of protections.
const PREFIX: u8 = b'k';
/// Until when a protection lasts that cannot be read.
const FOR_EVER_NS: i64 = i64::MAX;
/// The version that values of the block index begin with.
const VERSION: u8 = 1;

impl Catalog {
    /// Until when a backup is protected, nanoseconds since 1970: a moment that may be past.
    pub fn protected_until(&self, backup: &Backup) -> Result<Option<i64>> {
        let value = self.engine().get(self.partition(&backup.name), &protection_key(&backup.id))?;
        Ok(value.map(|value| decode(&value).unwrap_or(FOR_EVER_NS)))
    }

    /// The backups that are protected now, and until when, nanoseconds since 1970.
    pub fn protected(&self) -> Result<HashMap<BackupId, i64>> {
        let now_ns = now_ns();
        let mut found = HashMap::new();
        self.visit_protections(|key, until| {
            let until_ns = until.unwrap_or(FOR_EVER_NS);
            if let (Ok(id), true) = (key.try_into(), until_ns > now_ns) {
                found.insert(BackupId::from_bytes(id), until_ns);
            }
        })?;
        Ok(found)
    }

    /// What is wrong with protections, for check.
    pub fn damaged_protections(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        self.visit_protections(|key, until| match (<[u8; 16]>::try_from(key), until) {
            (Ok(_), Ok(_)) => {}
            (Ok(id), Err(why)) => wrong.push(format!(
                "the protection of backup {} cannot be read: {why}. Until `onefold protect` sets it anew, the backup cannot be forgotten",
                BackupId::from_bytes(id)
            )),
            (Err(_), _) => wrong.push(format!("the block index has a protection whose key has {} bytes", key.len() + 1)),
        })?;
        Ok(wrong)
    }

    fn visit_protections(&self, mut visit: impl FnMut(&[u8], std::result::Result<i64, WireError>)) -> Result<()> {
        Ok(self.engine().for_each_object(PREFIX, &mut |key, value| visit(&key[1..], decode(value)))?)
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
