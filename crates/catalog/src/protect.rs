//! Protects backups and reads their protections.

use crate::keys::{PROTECTION, key, protection_key};
use crate::protection::{Now, Protection, decode, encode};
use crate::{Backup, BackupId, Catalog, CatalogError, Result};
use onefold_engine::{Change, Transaction};
use onefold_ground::wire::WireError;
use std::collections::HashMap;

impl Catalog {
    /// Reads both clocks.
    pub fn now(&self) -> Now {
        Now { date_ns: self.engine().date_ns(), seen_ns: self.engine().seen_ns() }
    }

    /// Returns the date until which a user asked to protect a backup, nanoseconds since 1970. It may be past.
    pub fn protected_until(&self, backup: &Backup) -> Result<Option<i64>> {
        Ok(self.protection(backup)?.map(|protection| protection.until_ns))
    }

    pub(crate) fn protection(&self, backup: &Backup) -> Result<Option<Protection>> {
        let value = self.engine().get(self.partition(&backup.name), &protection_key(&backup.id))?;
        Ok(value.map(|value| Protection::of(&value)))
    }

    /// Returns the backups that are protected now, with the end of each protection, nanoseconds since 1970.
    pub fn protected(&self) -> Result<HashMap<BackupId, i64>> {
        let now = self.now();
        let mut found = HashMap::new();
        self.visit_protections(|key, protection| {
            let end = protection.unwrap_or(Protection::FOR_EVER).end(now);
            if let (Ok(id), Some(end_ns)) = (key.try_into(), end) {
                found.insert(BackupId::from_bytes(id), end_ns);
            }
        })?;
        Ok(found)
    }

    /// Returns what is wrong with protections, for `check`.
    pub fn damaged_protections(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        self.visit_protections(|key, until| match (<[u8; 16]>::try_from(key), until) {
            (Ok(_), Ok(_)) => {}
            (Ok(id), Err(why)) => wrong.push(format!(
                "the protection of backup {} cannot be read: {why}. The backup cannot be forgotten until its protection is set again",
                BackupId::from_bytes(id)
            )),
            (Err(_), _) => wrong.push(format!("the object index has a protection whose key has {} bytes", key.len() + 1)),
        })?;
        Ok(wrong)
    }

    fn visit_protections(&self, mut visit: impl FnMut(&[u8], std::result::Result<Protection, WireError>)) -> Result<()> {
        Ok(self.engine().for_each_object(PROTECTION, &mut |key, value| visit(&key[1..], decode(value)))?)
    }

    /// Protects backups until a moment (nanoseconds since 1970), or lifts their protection if `until_ns` is `None`.
    /// Durable on return. Errors: in append-only mode, if this ends any protection earlier. After an error, no
    /// protection was changed.
    pub fn protect(&self, backups: &[Backup], until_ns: Option<i64>) -> Result<()> {
        let permit = self.engine().permit_deletion("shorten or lift the protection of a backup");
        let now = self.now();
        loop {
            let (expected, transaction, is_shorter) = self.change_protection(backups, until_ns, now)?;
            if is_shorter && permit.is_err() {
                return permit.map(drop).map_err(CatalogError::from);
            }
            // Otherwise another process has removed or protected one of the backups meanwhile.
            if self.engine().submit_if(&expected, transaction)? {
                return Ok(self.engine().flush()?);
            }
        }
    }

    /// Returns the transaction that protects the backups, conditional on their records and protections. Also returns
    /// whether it ends a protection earlier.
    fn change_protection(&self, backups: &[Backup], until_ns: Option<i64>, now: Now) -> Result<(Vec<Change>, Transaction, bool)> {
        let mut is_shorter = false;
        let (mut expected, mut transaction) = (Vec::new(), Transaction::default());
        for backup in backups {
            let (partition, record) = (self.partition(&backup.name), self.record(backup)?);
            if record.is_none() {
                return Err(CatalogError::UnknownBackup { asked: backup.id.to_string(), candidates: Vec::new() });
            }
            let value = self.engine().get(partition, &protection_key(&backup.id))?;
            let before = value.as_ref().map(|value| Protection::of(value));
            expected.extend([(partition, key(&backup.id), record), (partition, protection_key(&backup.id), value)]);
            let active = before.filter(|before| before.end(now).is_some());
            is_shorter |= active.is_some_and(|active| until_ns.is_none_or(|until_ns| until_ns < active.until_ns));
            let wanted = until_ns.map(|until_ns| Protection::new(until_ns, now));
            let wanted = match (wanted, active) {
                // The store's clock may lag behind the date, so a later date must not end the protection earlier by the
                // store's clock.
                (Some(wanted), Some(active)) if wanted.until_ns >= active.until_ns => Some(wanted.not_before(active)),
                (wanted, _) => wanted,
            };
            if before != wanted {
                transaction.changes.push((partition, protection_key(&backup.id), wanted.map(encode)));
            }
        }
        if !transaction.changes.is_empty() {
            transaction.changes.push(self.engine().note_of_clock());
        }
        Ok((expected, transaction, is_shorter))
    }
}
