//! Protected backups: until a moment that was set, nobody can remove them.
//!
//! A protection is an object beside the backup's record, under the key `k` + id; it goes with the record. It can always be prolonged;
//! shortening it is a deletion in the eyes of append-only mode. One that cannot be read protects for ever, until it is set anew.
//!
//! A protection is over when its date is past *and* the store has seen as much time pass as lay before that date when it was set: so a date of the machine
//! that was set forward ends none (`docs/decisions/0038-sequence-and-seen-time.md`).

use crate::catalog::key;
use crate::{Backup, BackupId, Catalog, CatalogError, Result};
use onefold_engine::{Change, Transaction};
use onefold_ground::wire::{Reader, WireError, put_signed, put_varint};
use std::collections::HashMap;

/// First byte of the keys of protections.
const PREFIX: u8 = b'k';
/// The version that values of the object index begin with.
const VERSION: u8 = 1;
/// A date is said as it was asked for, if the protection ends no later than this behind it.
const SAID_AS_ASKED_NS: i64 = 24 * 3_600_000_000_000;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The date of the machine, nanoseconds since 1970.
    pub date_ns: i64,
    /// What the store's clock shows ([`onefold_engine::Engine::seen_ns`]).
    pub seen_ns: u64,
}

/// Until when a backup is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// The date that was asked for, nanoseconds since 1970.
    until_ns: i64,
    /// What the store's clock has to show.
    until_seen_ns: u64,
}

impl Protection {
    /// Of one that cannot be read.
    const FOR_EVER: Protection = Protection { until_ns: i64::MAX, until_seen_ns: u64::MAX };

    /// As an object says.
    pub(crate) fn of(value: &[u8]) -> Protection {
        decode(value).unwrap_or(Protection::FOR_EVER)
    }

    fn new(until_ns: i64, now: Now) -> Protection {
        let left_ns = u64::try_from(until_ns.saturating_sub(now.date_ns)).unwrap_or(0);
        Protection { until_ns, until_seen_ns: now.seen_ns.saturating_add(left_ns) }
    }

    /// When it will be over, as far as can be told now, nanoseconds since 1970; `None`: it is.
    pub(crate) fn end(self, now: Now) -> Option<i64> {
        if self.until_ns <= now.date_ns && self.until_seen_ns <= now.seen_ns {
            return None;
        }
        let left_ns = i64::try_from(self.until_seen_ns.saturating_sub(now.seen_ns)).unwrap_or(i64::MAX);
        let end_ns = now.date_ns.saturating_add(left_ns);
        let is_as_asked = self.until_ns > now.date_ns && end_ns.saturating_sub(self.until_ns) <= SAID_AS_ASKED_NS;
        Some(if is_as_asked { self.until_ns } else { end_ns.max(self.until_ns) })
    }

    /// The same, not ending before this one does by either clock.
    fn not_before(self, earlier: Protection) -> Protection {
        Protection { until_seen_ns: self.until_seen_ns.max(earlier.until_seen_ns), ..self }
    }
}

impl Catalog {
    /// Both clocks now.
    pub fn now(&self) -> Now {
        Now { date_ns: self.engine().date_ns(), seen_ns: self.engine().seen_ns() }
    }

    /// The date until which it was asked to protect a backup, nanoseconds since 1970: it may be past.
    pub fn protected_until(&self, backup: &Backup) -> Result<Option<i64>> {
        Ok(self.protection(backup)?.map(|protection| protection.until_ns))
    }

    pub(crate) fn protection(&self, backup: &Backup) -> Result<Option<Protection>> {
        let value = self.engine().get(self.partition(&backup.name), &protection_key(&backup.id))?;
        Ok(value.map(|value| Protection::of(&value)))
    }

    /// The backups that are protected now, and when that will be over, nanoseconds since 1970.
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

    /// What is wrong with protections, for check.
    pub fn damaged_protections(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        self.visit_protections(|key, until| match (<[u8; 16]>::try_from(key), until) {
            (Ok(_), Ok(_)) => {}
            (Ok(id), Err(why)) => wrong.push(format!(
                "the protection of backup {} cannot be read: {why}. Until `onefold protect` sets it anew, the backup cannot be forgotten",
                BackupId::from_bytes(id)
            )),
            (Err(_), _) => wrong.push(format!("the object index has a protection whose key has {} bytes", key.len() + 1)),
        })?;
        Ok(wrong)
    }

    fn visit_protections(&self, mut visit: impl FnMut(&[u8], std::result::Result<Protection, WireError>)) -> Result<()> {
        Ok(self.engine().for_each_object(PREFIX, &mut |key, value| visit(&key[1..], decode(value)))?)
    }

    /// Protects backups until a moment (nanoseconds since 1970), or with `None` not any more; all of them or, after an error, none. Durable on return.
    /// Refused in append-only mode if it ends the protection of one of them earlier than it would end.
    pub fn protect(&self, backups: &[Backup], until_ns: Option<i64>) -> Result<()> {
        let permit = self.engine().permit_deletion("shorten or lift the protection of a backup");
        let now = self.now();
        loop {
            let (expected, transaction, is_shorter) = self.change_protection(backups, until_ns, now)?;
            if is_shorter && permit.is_err() {
                return permit.map(drop).map_err(CatalogError::from);
            }
            // Else somebody has removed or protected one of them meanwhile.
            if self.engine().submit_if(&expected, transaction)? {
                return Ok(self.engine().flush()?);
            }
        }
    }

    /// What protects backups, if their records and protections are what they are now; and whether it ends a protection earlier than it would end.
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
                // A later date must not end it earlier by the store's clock: that may lag behind the date.
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

/// The key of the protection of a backup.
pub(crate) fn protection_key(id: &BackupId) -> Vec<u8> {
    let mut key = vec![PREFIX];
    key.extend_from_slice(id.as_bytes());
    key
}

fn encode(protection: Protection) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_signed(&mut out, protection.until_ns);
    put_varint(&mut out, protection.until_seen_ns);
    out
}

fn decode(value: &[u8]) -> std::result::Result<Protection, WireError> {
    let mut reader = Reader::new(value);
    match reader.u8()? {
        VERSION => {}
        version => return Err(WireError::OutOfRange { what: "version", value: u64::from(version), offset_bytes: 0 }),
    }
    let (until_ns, until_seen_ns) = (reader.signed()?, reader.varint()?);
    reader.end()?;
    Ok(Protection { until_ns, until_seen_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_NS: i64 = SAID_AS_ASKED_NS;

    fn now(date: i64, seen: i64) -> Now {
        Now { date_ns: date * DAY_NS, seen_ns: (seen * DAY_NS) as u64 }
    }

    #[test]
    fn a_6_a_protection_ends_when_date_and_seen_time_agree() {
        let protection = Protection::new(130 * DAY_NS, now(100, 5));
        let end = |date, seen| protection.end(now(date, seen)).map(|end_ns| end_ns / DAY_NS);
        assert_eq!((end(100, 5), end(129, 34), end(130, 35)), (Some(130), Some(130), None));
        assert_eq!(end(5000, 6), Some(5029), "the date was set forward: the other days are still to pass");
        assert_eq!(end(120, 10), Some(145), "the machine was off: the store has not seen all days");
        assert_eq!(end(3, 40), Some(130), "the date was set back");
    }

    proptest! {
        #[test]
        fn a_protection_is_read_as_written(until_ns: i64, until_seen_ns: u64) {
            let protection = Protection { until_ns, until_seen_ns };
            prop_assert_eq!(decode(&encode(protection)).unwrap(), protection);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_times_are_taken(until_ns: i64, then: (i64, u64), later: (i64, u64)) {
            let now = |(date_ns, seen_ns)| Now { date_ns, seen_ns };
            let _ = Protection::new(until_ns, now(then)).end(now(later));
        }
    }
}
