//! A client's session: what it may do, and the backups that it makes and reads.

use super::backup::Running;
use super::reading::Reading;
use super::unfinished::Unfinished;
use super::{End, Result};
use crate::accounts::{Account, AccountError, Accounts, DayMeter, Permission, Quotas, Rate};
use crate::transport::Channel;
use onefold_catalog::{Backup, Catalog, CatalogError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often a thread that waits for something else looks whether its client is gone.
pub(super) const LOOKS_UP_AFTER: Duration = Duration::from_millis(200);

/// Hears what a client did, for a log.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// A backup began.
    fn began(&self, name: &str) {
        let _ = name;
    }
    /// A backup is visible.
    fn committed(&self, backup: &Backup) {
        let _ = backup;
    }
    /// A backup was broken off.
    fn aborted(&self, name: &str, why: &str) {
        let _ = (name, why);
    }
    /// A backup is read.
    fn reads(&self, backup: &Backup) {
        let _ = backup;
    }
    /// Something was refused.
    fn refused(&self, what: &str, why: &str) {
        let _ = (what, why);
    }
}

/// Hears nothing.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// A client that was let in.
#[derive(Debug)]
pub struct Guest {
    /// `None`: the owner of the store, who may do everything.
    account: Option<Known>,
    observer: Box<dyn Observer>,
    state: Mutex<State>,
}

/// An account, with what it uses.
#[derive(Debug)]
struct Known {
    /// As it was when it logged in.
    then: Account,
    accounts: Accounts,
    meter: DayMeter,
    rate: Arc<Rate>,
    unfinished: Option<Arc<Unfinished>>,
}

#[derive(Debug, Default)]
struct State {
    numbers: u64,
    running: HashMap<u64, Weak<Running>>,
    readings: HashMap<u64, Weak<Reading>>,
}

impl Guest {
    /// Returns the owner of the store.
    pub fn owner(observer: Box<dyn Observer>) -> Guest {
        Guest { account: None, observer, state: Mutex::default() }
    }

    /// Returns a client with an account.
    pub fn account(
        account: Account,
        accounts: &Accounts,
        quotas: &Quotas,
        rate: Arc<Rate>,
        observer: Box<dyn Observer>,
    ) -> std::result::Result<Guest, AccountError> {
        let meter = quotas.open(&account.name)?;
        let known = Known { then: account, accounts: accounts.clone(), meter, rate, unfinished: None };
        Ok(Guest { account: Some(known), observer, state: Mutex::default() })
    }

    /// Lets the account's next session know what this one supplied, if its backups are not finished.
    pub fn with_unfinished(mut self, unfinished: &Arc<Unfinished>) -> Guest {
        if let Some(known) = &mut self.account {
            known.unfinished = Some(unfinished.clone());
        }
        self
    }

    /// Returns where to note supplies, and the account.
    pub(super) fn unfinished(&self) -> Option<(&Arc<Unfinished>, String)> {
        let known = self.account.as_ref()?;
        // Another account may have the name later.
        let account = || format!("{} {}", known.then.name, known.then.created_ns);
        known.unfinished.as_ref().map(|unfinished| (unfinished, account()))
    }

    /// Returns the account as it is now. `None`: it is the owner of the store. Errors: why the session may not go on
    /// ([`Accounts::of_session`]).
    pub fn now(&self) -> std::result::Result<Option<Account>, String> {
        self.account.as_ref().map(|known| known.accounts.of_session(&known.then)).transpose()
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// Returns the account if it may do this to backups of this name.
    pub(super) fn permit(&self, permission: Permission, name: &str) -> Result<Option<Account>> {
        let account = match self.now() {
            Ok(account) => account,
            Err(error) => {
                self.observer.refused(permission.name(), &error);
                return Err(End::forbidden(permission));
            }
        };
        if account.as_ref().is_none_or(|account| account.permissions.allows(permission, name)) {
            return Ok(account);
        }
        self.observer.refused(permission.name(), name);
        Err(End::forbidden(permission))
    }

    /// Returns whether it may read every backup, and so may know of every chunk.
    pub(super) fn reads_everything(&self) -> bool {
        self.now().is_ok_and(|account| self.reads_all(account.as_ref()))
    }

    /// Returns whether the account may read every backup.
    pub(super) fn reads_all(&self, account: Option<&Account>) -> bool {
        account.is_none_or(|account| account.permissions.allows_everywhere(Permission::Read))
    }

    /// Checks that the account's quota of all bytes has room for a backup at all.
    pub(super) fn has_room(&self, account: Option<&Account>) -> Result<()> {
        match (&self.account, account) {
            (Some(known), Some(account)) => Ok(known.meter.check(account)?),
            _ => Ok(()),
        }
    }

    /// Counts bytes that it supplied, and waits as long as it comes too fast. Errors: its quota for the day is used up,
    /// or it is gone.
    pub(super) fn supplied(&self, raw_bytes: u64, wire_bytes: u64, account: Option<&Account>, channel: &Channel) -> Result<()> {
        let (Some(known), Some(account)) = (&self.account, account) else { return Ok(()) };
        let until = Instant::now() + known.rate.delay(wire_bytes, Instant::now());
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            if let Some(error) = channel.broken() {
                return Err(End::Gone(error));
            }
            std::thread::sleep(rest.min(LOOKS_UP_AFTER));
        }
        Ok(known.meter.add(raw_bytes, account.limits.new_bytes_a_day)?)
    }

    /// Counts bytes of a backup's tree and record: they are stored too. Errors: its quota for the day is used up, or it
    /// lost the permission meanwhile. Returns the account.
    pub(super) fn describes(&self, name: &str, bytes: u64, channel: &Channel) -> Result<Option<Account>> {
        let account = self.permit(Permission::Backup, name)?;
        self.supplied(bytes, bytes, account.as_ref(), channel)?;
        Ok(account)
    }

    /// Commits a backup of so many bytes within the account's quota.
    pub(super) fn commit<T>(&self, account: Option<&Account>, logical_bytes: u64, commit: impl FnOnce() -> Result<T>) -> Result<T> {
        match (&self.account, account) {
            (Some(known), Some(account)) => {
                known.meter.save()?;
                known.meter.commit(account, logical_bytes, commit)
            }
            _ => commit(),
        }
    }

    pub(super) fn begin(&self, make: impl FnOnce(u64) -> Result<Running>) -> Result<Arc<Running>> {
        let mut state = self.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        let running = Arc::new(make(number)?);
        state.running.retain(|_, running| running.strong_count() > 0);
        state.running.insert(number, Arc::downgrade(&running));
        Ok(running)
    }

    pub(super) fn running(&self, number: u64) -> Result<Arc<Running>> {
        let running = self.state.lock().running.get(&number).and_then(Weak::upgrade);
        running.ok_or_else(|| End::malformed(format!("this session makes no backup {number}")))
    }

    pub(super) fn read(&self, make: impl FnOnce(u64) -> Reading) -> Arc<Reading> {
        let mut state = self.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        let reading = Arc::new(make(number));
        state.readings.retain(|_, reading| reading.strong_count() > 0);
        state.readings.insert(number, Arc::downgrade(&reading));
        reading
    }

    pub(super) fn reading(&self, number: u64) -> Result<Arc<Reading>> {
        let reading = self.state.lock().readings.get(&number).and_then(Weak::upgrade);
        reading.ok_or_else(|| End::malformed(format!("this session has no reading {number}")))
    }

    /// Returns whether it may read a backup.
    pub(super) fn may_see(&self, account: Option<&Account>, backup: &Backup) -> bool {
        account.is_none_or(|account| account.permissions.allows(Permission::Read, &backup.name))
    }

    /// Returns a record as this client may see it: the place in the order of the store's backups tells how many others
    /// made.
    pub(super) fn shown(&self, backup: &Backup) -> Backup {
        Guest::shown_to(self.reads_everything(), backup.clone())
    }

    /// Returns the same for a client that reads everything, or does not.
    pub(super) fn shown_to(reads_everything: bool, backup: Backup) -> Backup {
        Backup { sequence: if reads_everything { backup.sequence } else { 0 }, ..backup }
    }

    /// Returns the backups that it may read.
    pub(super) fn scope(&self, catalog: &Catalog) -> Result<Catalog> {
        match self.now() {
            Ok(None) => Ok(catalog.clone()),
            Ok(Some(account)) => Ok(catalog.scoped(Arc::new(move |backup| account.permissions.allows(Permission::Read, &backup.name)))),
            Err(error) => {
                self.observer.refused("read", &error);
                Err(End::forbidden(Permission::Read))
            }
        }
    }

    /// Returns the backup of this id, if it may read it.
    pub(super) fn find(&self, catalog: &Catalog, id: onefold_catalog::BackupId) -> Result<Backup> {
        match self.scope(catalog)?.find(&id.to_string()) {
            Err(CatalogError::UnknownBackup { .. }) => {
                self.observer.refused("read", &id.to_string());
                Err(End::forbidden(Permission::Read))
            }
            found => Ok(found?),
        }
    }
}

impl From<AccountError> for End {
    fn from(error: AccountError) -> End {
        // Of other errors, an account learns no more than of those of the store. The sum of bytes is no business of an
        // account that may not read these backups.
        match error {
            AccountError::Engine(error) => error.into(),
            AccountError::Catalog(error) => error.into(),
            AccountError::Quota { limit, .. } => End::refused(
                super::codes::QUOTA,
                format!("the backups of the account would have more than the {limit} bytes that it may have"),
            ),
            AccountError::DayQuota { limit, .. } => End::refused(
                super::codes::QUOTA,
                format!("the account would store more than the {limit} new bytes that it may store in a day"),
            ),
            error => {
                tracing::warn!(%error, "a client of the backup server could not be served");
                End::refused(super::codes::STORE, "the store failed; the server's log says more")
            }
        }
    }
}
