//! How much an account may store: logical bytes of all its backups, and new bytes in a day (`docs/format.md` section
//! 7.17).
//!
//! A day is a day of the store's clock, which only moves forward ([`Engine::seen_ns`]). So a date that is set forward
//! or back gives nobody more. The store's clock starts when the store is made, so its days begin at that time of the
//! day.
//!
//! The count of a day is submitted at most every 30 seconds or 64 MiB, and when a session ends. It becomes durable with
//! the next flush by anybody. After a crash it may be too low by what was not durable, so an account may then store
//! that much more on this day.

use super::error::{AccountError, Result};
use super::keys::{self, PARTITION};
use super::record::{Account, check_version};
use onefold_catalog::{Catalog, CatalogError};
use onefold_engine::{Engine, Transaction};
use onefold_ground::wire::{Reader, WireError, put_varint};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Version of the value.
const VERSION: u8 = 1;
const DAY_NS: u64 = 24 * 3_600_000_000_000;
/// New bytes after which the count is submitted.
const SAVE_BYTES: u64 = 64 << 20;
/// Time after which the count is submitted.
const SAVE_AFTER: Duration = Duration::from_secs(30);

/// The new bytes of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DayUse {
    /// The day of the store's clock.
    day: u64,
    bytes: u64,
}

impl DayUse {
    /// Returns the same use on the day of `seen_ns`. A new day begins at 0. If the store's clock was lost and started
    /// again, the bytes count for today.
    fn on(self, seen_ns: u64) -> DayUse {
        let day = seen_ns / DAY_NS;
        DayUse { day, bytes: if day > self.day { 0 } else { self.bytes } }
    }
}

fn encode(used: DayUse) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_varint(&mut out, used.day);
    put_varint(&mut out, used.bytes);
    out
}

pub(crate) fn decode(value: &[u8]) -> std::result::Result<DayUse, WireError> {
    let mut reader = Reader::new(value);
    check_version(&mut reader, VERSION)?;
    let used = DayUse { day: reader.varint()?, bytes: reader.varint()? };
    reader.end()?;
    Ok(used)
}

/// The counts of all accounts that have sessions. A server has one of these.
#[derive(Debug)]
pub struct Quotas {
    engine: Arc<Engine>,
    counters: Mutex<HashMap<String, Weak<Counter>>>,
}

/// The count of one account, over all its sessions.
#[derive(Debug)]
struct Counter {
    engine: Arc<Engine>,
    name: String,
    state: Mutex<State>,
    /// Held while a backup of the account is checked and committed.
    committing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    used: DayUse,
    unsaved_bytes: u64,
    saved_at: Instant,
}

/// The counts of an account, for one session. Dropping it submits the count.
#[derive(Debug)]
pub struct DayMeter(Arc<Counter>);

impl Quotas {
    /// Returns the counts of a store. Call once for an open store.
    pub fn new(engine: Arc<Engine>) -> Quotas {
        Quotas { engine, counters: Mutex::default() }
    }

    /// Returns the counts of an account, for a session. Sessions of one account share them. A count that cannot be read
    /// begins at 0; `check` tells of it.
    pub fn open(&self, name: &str) -> Result<DayMeter> {
        let mut counters = self.counters.lock();
        if let Some(counter) = counters.get(name).and_then(Weak::upgrade) {
            return Ok(DayMeter(counter));
        }
        counters.retain(|_, counter| counter.strong_count() > 0);
        let used = stored(&self.engine, name)?;
        let state = Mutex::new(State { used, unsaved_bytes: 0, saved_at: Instant::now() });
        let counter = Arc::new(Counter { engine: self.engine.clone(), name: name.to_owned(), state, committing: Mutex::new(()) });
        counters.insert(name.to_owned(), Arc::downgrade(&counter));
        Ok(DayMeter(counter))
    }
}

/// Returns the new bytes of an account today that were submitted.
pub(crate) fn new_bytes_today(engine: &Engine, name: &str) -> Result<u64> {
    Ok(stored(engine, name)?.on(engine.seen_ns()).bytes)
}

fn stored(engine: &Engine, name: &str) -> Result<DayUse> {
    let value = match engine.get(PARTITION, &keys::day(name)) {
        Err(error) if error.is_lost() => None,
        value => value?,
    };
    Ok(value.and_then(|value| decode(&value).ok()).unwrap_or_default())
}

impl DayMeter {
    /// Counts new bytes: call before they are stored. Errors: there would be more than `limit` today, and nothing was
    /// counted; or the count cannot be submitted.
    pub fn add(&self, bytes: u64, limit: Option<u64>) -> Result<()> {
        let mut state = self.0.state.lock();
        let used = state.used.on(self.0.engine.seen_ns());
        let total = used.bytes.saturating_add(bytes);
        if let Some(limit) = limit.filter(|limit| total > *limit) {
            return Err(AccountError::DayQuota { name: self.0.name.clone(), bytes: total, limit });
        }
        state.used = DayUse { bytes: total, ..used };
        state.unsaved_bytes = state.unsaved_bytes.saturating_add(bytes);
        if state.unsaved_bytes >= SAVE_BYTES || (state.unsaved_bytes > 0 && state.saved_at.elapsed() >= SAVE_AFTER) {
            self.0.save(&mut state)?;
        }
        Ok(())
    }

    /// Submits the count. Call when a session ends.
    pub fn save(&self) -> Result<()> {
        self.0.save(&mut self.0.state.lock())
    }

    /// Checks that the quota of all bytes has room for anything at all.
    pub fn check(&self, account: &Account) -> Result<()> {
        check_logical(&self.0.engine, account, 1)
    }

    /// Commits a backup of an account with so many logical bytes, if the quota has room for it: runs `commit`.
    /// Meanwhile no other backup of the account is committed through this, so that two do not take the same room.
    pub fn commit<T, E: From<AccountError>>(&self, account: &Account, bytes: u64, commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let _alone = account.limits.logical_bytes.map(|_| self.0.committing.lock());
        check_logical(&self.0.engine, account, bytes)?;
        commit()
    }
}

fn check_logical(engine: &Arc<Engine>, account: &Account, adds_bytes: u64) -> Result<()> {
    let Some(limit) = account.limits.logical_bytes else { return Ok(()) };
    let bytes = logical_bytes(engine, account)?.saturating_add(adds_bytes);
    if bytes > limit { Err(AccountError::Quota { name: account.name.clone(), bytes, limit }) } else { Ok(()) }
}

/// Returns the logical bytes of all backups of an account ([`Account::owns`]). Backups whose records are damaged do not
/// count. Takes as long as it takes to read the records of all backups of the store.
pub fn logical_bytes(engine: &Arc<Engine>, account: &Account) -> Result<u64> {
    let mut bytes = 0u64;
    let visited = Catalog::new(engine.clone()).visit(&mut |backup| {
        if account.owns(&backup.name) {
            bytes = bytes.saturating_add(backup.statistics.logical_bytes);
        }
    });
    match visited {
        Err(CatalogError::Damaged { .. }) => Ok(bytes),
        visited => Ok(visited.map(|()| bytes)?),
    }
}

impl Counter {
    /// Submits the count, if there is one and the account exists.
    fn save(&self, state: &mut State) -> Result<()> {
        if state.unsaved_bytes == 0 {
            return Ok(());
        }
        let account = (PARTITION, keys::account(&self.name));
        // The account may be deleted at any time. Then the count must not come back.
        while let Some(value) = self.engine.get(account.0, &account.1)? {
            let changes = vec![(PARTITION, keys::day(&self.name), Some(encode(state.used))), self.engine.note_of_clock()];
            let expected = [(account.0, account.1.clone(), Some(value))];
            if self.engine.submit_if(&expected, Transaction { changes, references: Vec::new() })? {
                break;
            }
        }
        state.unsaved_bytes = 0;
        state.saved_at = Instant::now();
        Ok(())
    }
}

impl Drop for DayMeter {
    fn drop(&mut self) {
        if let Err(error) = self.save() {
            tracing::warn!(account = self.0.name, %error, "the new bytes of a day could not be counted");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{open, store};
    use crate::{Accounts, Settings};
    use onefold_catalog::{Backup, BackupId, Statistics};
    use proptest::prelude::*;

    fn with_account(name: &str) -> (tempfile::TempDir, Arc<Engine>, Account) {
        let (directory, engine) = store();
        let (account, _) = Accounts::new(engine.clone()).unwrap().create(name, Settings::default()).unwrap();
        (directory, engine, account)
    }

    pub(crate) fn commit_backup(engine: &Arc<Engine>, name: &str, logical_bytes: u64) {
        let id = BackupId::from_bytes(onefold_engine::random_name().unwrap());
        let statistics = Statistics { logical_bytes, ..Statistics::default() };
        let mut backup = Backup {
            id,
            sequence: 0,
            seen_ns: 0,
            name: name.into(),
            host: String::new(),
            user: String::new(),
            started_ns: 1,
            finished_ns: 2,
            tags: Vec::new(),
            paths: Vec::new(),
            options: String::new(),
            root: Default::default(),
            statistics,
        };
        Catalog::new(engine.clone()).commit_backup(&mut backup).unwrap();
    }

    #[test]
    fn new_bytes_are_refused_beyond_the_quota_of_the_day_over_all_sessions() {
        let (_directory, engine, _) = with_account("ann");
        let quotas = Quotas::new(engine.clone());
        let (one, two) = (quotas.open("ann").unwrap(), quotas.open("ann").unwrap());
        one.add(60, Some(100)).unwrap();
        two.add(40, Some(100)).unwrap();
        assert!(matches!(one.add(1, Some(100)), Err(AccountError::DayQuota { bytes: 101, limit: 100, .. })));
        one.add(u64::MAX, None).unwrap();
        engine.close().unwrap();
    }

    #[test]
    fn the_count_survives_a_restart_and_is_submitted_when_it_is_large() {
        let (directory, engine, _) = with_account("ann");
        let meter = Quotas::new(engine.clone()).open("ann").unwrap();
        meter.add(7, None).unwrap();
        assert_eq!(new_bytes_today(&engine, "ann").unwrap(), 0, "not yet");
        meter.add(SAVE_BYTES, None).unwrap();
        assert_eq!(new_bytes_today(&engine, "ann").unwrap(), SAVE_BYTES + 7);
        meter.add(1, None).unwrap();
        drop(meter);
        engine.close().unwrap();
        drop(engine);
        let engine = open(&directory);
        assert_eq!(new_bytes_today(&engine, "ann").unwrap(), SAVE_BYTES + 8);
        engine.close().unwrap();
    }

    #[test]
    fn the_count_of_a_deleted_account_does_not_come_back() {
        let (_directory, engine, _) = with_account("ann");
        let accounts = Accounts::new(engine.clone()).unwrap();
        let meter = Quotas::new(engine.clone()).open("ann").unwrap();
        meter.add(7, None).unwrap();
        accounts.delete("ann", false).unwrap();
        meter.save().unwrap();
        accounts.create("ann", Settings::default()).unwrap();
        assert_eq!(new_bytes_today(&engine, "ann").unwrap(), 0);
        engine.close().unwrap();
    }

    #[test]
    fn a_new_day_begins_at_zero_and_no_clock_gives_a_day_twice() {
        let used = DayUse { day: 5, bytes: 9 };
        assert_eq!(used.on(5 * DAY_NS + 1), used);
        assert_eq!(used.on(6 * DAY_NS), DayUse { day: 6, bytes: 0 });
        assert_eq!(used.on(3 * DAY_NS), DayUse { day: 3, bytes: 9 }, "the store's clock was lost");
    }

    #[test]
    fn logical_bytes_are_those_of_own_backups_and_a_commit_beyond_the_quota_does_not_happen() {
        let (_directory, engine, mut ann) = with_account("ann");
        ann.limits.logical_bytes = Some(100);
        let meter = Quotas::new(engine.clone()).open("ann").unwrap();
        for (name, bytes) in [("ann", 30), ("ann/laptop", 20), ("bob", 1000), ("anna", 1000)] {
            commit_backup(&engine, name, bytes);
        }
        assert_eq!(logical_bytes(&engine, &ann).unwrap(), 50);
        let mut committed = 0;
        let mut commit = |bytes| {
            meter.commit(&ann, bytes, || {
                committed += 1;
                Ok::<_, AccountError>(())
            })
        };
        assert!(matches!(commit(51), Err(AccountError::Quota { bytes: 101, limit: 100, .. })));
        commit(50).unwrap();
        assert_eq!(committed, 1);
        commit_backup(&engine, "ann", 50);
        assert!(matches!(meter.check(&ann), Err(AccountError::Quota { bytes: 101, .. })));
        assert!(matches!(meter.commit(&ann, 1, || Ok::<_, AccountError>(())), Err(AccountError::Quota { bytes: 101, .. })));
        ann.limits.logical_bytes = None;
        meter.commit(&ann, u64::MAX, || Ok::<_, AccountError>(())).unwrap();
        engine.close().unwrap();
    }

    proptest! {
        #[test]
        fn a_count_is_read_as_written(day: u64, bytes: u64) {
            let used = DayUse { day, bytes };
            prop_assert_eq!(decode(&encode(used)).unwrap(), used);
        }

        #[test]
        fn garbage_is_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
