//! The accounts of a store: changes, and the check of a name and a secret.

use super::certificate::{CertificateFingerprint, Certificates};
use super::error::{AccountError, Result};
use super::keys::{self, Kind, PARTITION, PREFIX};
use super::namespace::Namespace;
use super::permissions::Permissions;
use super::quotas;
use super::record::{Account, Former, Limits, is_valid_name};
use super::secret::{Recipe, Secret};
use onefold_catalog::{Catalog, CatalogError};
use onefold_engine::{Engine, EngineError, Transaction};
use std::sync::Arc;
use std::time::Duration;

/// Most accounts of a store.
const MAX_ACCOUNTS: usize = 10_000;
/// Objects that are read at a time.
const PAGE: usize = 64;

/// What a new account has.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What it may do. `None`: write and read the backups of the namespace with its name.
    pub permissions: Option<Permissions>,
    /// How much and how fast.
    pub limits: Limits,
    /// The certificates that it accepts.
    pub certificates: Certificates,
}

/// Why somebody may not log in. For the log only: the answer to the client is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such account.
    UnknownName,
    /// The account is locked.
    Locked,
    /// The secret is wrong, or no longer accepted.
    WrongSecret,
    /// The secret is right, and the certificate is missing or wrong.
    WrongCertificate,
    /// The account cannot be read.
    Damaged,
}

impl Refusal {
    /// Returns its word in the log.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::UnknownName => "unknown-name",
            Refusal::Locked => "locked",
            Refusal::WrongSecret => "wrong-secret",
            Refusal::WrongCertificate => "wrong-certificate",
            Refusal::Damaged => "damaged",
        }
    }
}

/// What [`Accounts::verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The client is this account.
    Accepted(Box<Account>),
    /// It is not. The reason is for the log only.
    Refused(Refusal),
}

/// All accounts that can be read, and what is wrong with the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The accounts, by name.
    pub accounts: Vec<Account>,
    /// Damage: a sentence for each account, or range of accounts, that cannot be read.
    pub damaged: Vec<String>,
}

/// How much an account uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// How many backups it has.
    pub backups: u64,
    /// Their logical bytes.
    pub logical_bytes: u64,
    /// Its new bytes of this day of the store's clock.
    pub new_bytes_today: u64,
}

/// The accounts of a store. Several may be used at a time: a change is made if nobody else changed the account
/// meanwhile, and is tried again otherwise. Changes are durable on return.
#[derive(Clone, Debug)]
pub struct Accounts {
    engine: Arc<Engine>,
    /// How secrets of accounts that do not exist are hashed.
    nobody: Recipe,
}

impl Accounts {
    /// Returns the accounts of a store.
    pub fn new(engine: Arc<Engine>) -> Result<Accounts> {
        Ok(Accounts { engine, nobody: Recipe::new()? })
    }

    /// Creates an account. The secret is returned here, and never again. Takes 19 MiB, and some tens of milliseconds.
    pub fn create(&self, name: &str, settings: Settings) -> Result<(Account, Secret)> {
        let secret = Secret::random()?;
        let account = self.create_with(name, settings, &secret)?;
        Ok((account, secret))
    }

    /// Creates an account with a secret that the caller made with [`Secret::random`].
    pub fn create_with(&self, name: &str, settings: Settings, secret: &Secret) -> Result<Account> {
        check_name(name)?;
        let (recipe, date_ns) = (Recipe::new()?, self.engine.date_ns());
        let permissions = match settings.permissions {
            Some(permissions) => permissions,
            None => Permissions::own(Namespace::new(name)?),
        };
        let account = Account {
            name: name.to_owned(),
            created_ns: date_ns,
            rotated_ns: date_ns,
            generation: 1,
            is_locked: false,
            certificates: settings.certificates,
            permissions,
            limits: settings.limits,
            recipe,
            hash: recipe.hash(secret.bytes())?,
            former: None,
        };
        account.check()?;
        let exists = || AccountError::Exists { name: name.to_owned() };
        let key = keys::account(name);
        let expected = match self.engine.get(PARTITION, &key) {
            Ok(None) => vec![(PARTITION, key.clone(), None)],
            Ok(Some(_)) => return Err(exists()),
            // A repair could not tell whether there was such an account. This one takes its place.
            Err(error) if error.is_lost() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if self.names()?.len() >= MAX_ACCOUNTS {
            return Err(AccountError::TooMany { what: "accounts in a store", limit: MAX_ACCOUNTS });
        }
        // An earlier account of this name may have left its count.
        let changes = vec![(PARTITION, key, Some(account.encode())), (PARTITION, keys::day(name), None)];
        if !self.engine.submit_if(&expected, Transaction { changes, references: Vec::new() })? {
            return Err(exists());
        }
        self.flush(name)?;
        Ok(account)
    }

    /// Returns all accounts.
    pub fn list(&self) -> Result<Listed> {
        let mut listed = Listed::default();
        let (from, to) = keys::accounts();
        let lost = visit_sound(&self.engine, &from, &to, &mut |key, value| match keys::kind(key) {
            Some(Kind::Account(name)) => match Account::decode(name, value) {
                Ok(account) => listed.accounts.push(account),
                Err(error) => listed.damaged.push(error.to_string()),
            },
            _ => listed.damaged.push(wrong_key(key)),
        })?;
        listed.damaged.extend(lost);
        Ok(listed)
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let (from, to) = keys::accounts();
        visit_sound(&self.engine, &from, &to, &mut |key, _| {
            if let Some(Kind::Account(name)) = keys::kind(key) {
                names.push(name.to_owned());
            }
        })?;
        Ok(names)
    }

    /// Returns an account.
    pub fn get(&self, name: &str) -> Result<Account> {
        Account::decode(name, &self.value(name)?)
    }

    /// Returns the account of a session that logged in as `then`, as it is now. Errors: why the session may not go on,
    /// for the log: the account is locked or gone, or the secret is replaced and its time is over.
    pub fn of_session(&self, then: &Account) -> std::result::Result<Account, String> {
        let account = self.get(&then.name).map_err(|error| error.to_string())?;
        if account.is_locked {
            return Err("the account is locked".to_owned());
        }
        if account.created_ns != then.created_ns {
            return Err("the account was deleted, and another one has its name".to_owned());
        }
        let is_former = account.generation == then.generation.saturating_add(1)
            && account.former.is_some_and(|former| former.is_in_time(self.engine.date_ns(), self.engine.seen_ns()));
        if account.generation != then.generation && !is_former {
            return Err("the account has a new secret".to_owned());
        }
        Ok(account)
    }

    fn value(&self, name: &str) -> Result<Vec<u8>> {
        let value = if is_valid_name(name) { self.engine.get(PARTITION, &keys::account(name))? } else { None };
        value.ok_or_else(|| not_found(name))
    }

    /// Gives an account a new secret, which is returned here and never again. The old one is accepted for `grace`, if
    /// that is given. Secrets before the old one are not.
    pub fn rotate(&self, name: &str, grace: Option<Duration>) -> Result<(Account, Secret)> {
        let secret = Secret::random()?;
        let account = self.rotate_to(name, grace, &secret)?;
        Ok((account, secret))
    }

    /// Gives an account a secret that the caller made with [`Secret::random`].
    pub fn rotate_to(&self, name: &str, grace: Option<Duration>, secret: &Secret) -> Result<Account> {
        let grace_ns = grace.map(|grace| u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)).filter(|grace_ns| *grace_ns > 0);
        // A login hashes once and compares with both secrets. So the salt stays while the old one is accepted.
        let recipe = self.get(name)?.recipe;
        let recipe = if grace_ns.is_some() { recipe } else { Recipe::new()? };
        let hash = recipe.hash(secret.bytes())?;
        self.change(name, |account| {
            let date_ns = self.engine.date_ns();
            // Somebody else may just have replaced the secret. That one then ends at once.
            account.former = grace_ns.filter(|_| account.recipe == recipe).map(|grace_ns| Former {
                hash: account.hash,
                until_ns: date_ns.saturating_add(i64::try_from(grace_ns).unwrap_or(i64::MAX)),
                until_seen_ns: self.engine.seen_ns().saturating_add(grace_ns),
            });
            (account.recipe, account.hash) = (recipe, hash);
            account.rotated_ns = date_ns;
            account.generation = account.generation.saturating_add(1);
            Ok(())
        })
    }

    /// Locks an account: nobody can log in until it is unlocked. A server ends its sessions itself.
    pub fn lock(&self, name: &str) -> Result<Account> {
        self.set(name, |account| account.is_locked = true)
    }

    /// Unlocks an account.
    pub fn unlock(&self, name: &str) -> Result<Account> {
        self.set(name, |account| account.is_locked = false)
    }

    /// Changes permissions, limits, certificates or the lock of an account. `change` may run several times.
    pub fn set(&self, name: &str, change: impl Fn(&mut Account)) -> Result<Account> {
        self.change(name, |account| {
            change(account);
            Ok(())
        })
    }

    fn change(&self, name: &str, change: impl Fn(&mut Account) -> Result<()>) -> Result<Account> {
        loop {
            let before = self.value(name)?;
            let mut after = Account::decode(name, &before)?;
            change(&mut after)?;
            after.check()?;
            let key = keys::account(name);
            let expected = [(PARTITION, key.clone(), Some(before))];
            let mut changes = vec![(PARTITION, key, Some(after.encode()))];
            if after.former.is_some() {
                changes.push(self.engine.note_of_clock());
            }
            if self.engine.submit_if(&expected, Transaction { changes, references: Vec::new() })? {
                self.flush(name)?;
                return Ok(after);
            }
        }
    }

    /// Deletes an account, also one that cannot be read. Its backups stay. Errors: it has backups, and `has_backups` is
    /// not set. Of an account that cannot be read, the backups in the namespace with its name count.
    pub fn delete(&self, name: &str, has_backups: bool) -> Result<()> {
        check_name(name).map_err(|_| not_found(name))?;
        let key = keys::account(name);
        loop {
            let value = self.engine.get(PARTITION, &key)?.ok_or_else(|| not_found(name))?;
            if !has_backups {
                let account = Account::decode(name, &value).ok();
                let own = Namespace::new(name)?;
                let is_own = |backup: &str| account.as_ref().map_or_else(|| super::covers(&own, backup), |account| account.owns(backup));
                let backups = count_backups(&self.engine, &is_own)?;
                if backups > 0 {
                    return Err(AccountError::HasBackups { name: name.to_owned(), backups });
                }
            }
            let changes = vec![(PARTITION, key.clone(), None), (PARTITION, keys::day(name), None)];
            if self.engine.submit_if(&[(PARTITION, key.clone(), Some(value))], Transaction { changes, references: Vec::new() })? {
                return self.flush(name);
            }
        }
    }

    /// Returns how many backups count as this account's ([`Account::owns`]).
    pub fn count_backups(&self, account: &Account) -> Result<u64> {
        count_backups(&self.engine, &|name| account.owns(name))
    }

    /// Returns how much an account uses. Its new bytes are those that were submitted ([`super::Quotas`]).
    pub fn used(&self, account: &Account) -> Result<Use> {
        let (backups, logical_bytes) = (self.count_backups(account)?, quotas::logical_bytes(&self.engine, account)?);
        Ok(Use { backups, logical_bytes, new_bytes_today: quotas::new_bytes_today(&self.engine, &account.name)? })
    }

    /// Checks a name, a secret and a certificate. Takes 19 MiB and the same time whatever the answer is; concurrent
    /// calls wait for each other. Errors: the store cannot be read.
    pub fn verify(&self, name: &str, secret: &str, certificate: Option<&CertificateFingerprint>) -> Result<Verdict> {
        let found = match self.get(name) {
            Ok(account) => Ok(account),
            Err(AccountError::NotFound { .. }) => Err(Refusal::UnknownName),
            Err(AccountError::Damaged { .. }) => Err(Refusal::Damaged),
            Err(AccountError::Engine(error)) if error.is_lost() => Err(Refusal::Damaged),
            Err(error) => return Err(error),
        };
        let (recipe, given) = (found.as_ref().map_or(self.nobody, |account| account.recipe), secret.parse::<Secret>().ok());
        let hash = recipe.hash(given.as_ref().map_or(&[0; 20], Secret::bytes))?;
        let (date_ns, seen_ns) = (self.engine.date_ns(), self.engine.seen_ns());
        let account = match found {
            Ok(account) => account,
            Err(refusal) => return Ok(Verdict::Refused(refusal)),
        };
        let is_right = account.accepts(&hash, date_ns, seen_ns) & given.is_some();
        Ok(match (is_right, account.is_locked, account.certificates.accepts(certificate)) {
            (false, ..) => Verdict::Refused(Refusal::WrongSecret),
            (true, true, _) => Verdict::Refused(Refusal::Locked),
            (true, false, false) => Verdict::Refused(Refusal::WrongCertificate),
            (true, false, true) => Verdict::Accepted(Box::new(account)),
        })
    }

    fn flush(&self, name: &str) -> Result<()> {
        self.engine.flush().map_err(|source| AccountError::NotDurable { name: name.to_owned(), source: Box::new(source) })
    }
}

fn check_name(name: &str) -> Result<()> {
    if is_valid_name(name) { Ok(()) } else { Err(AccountError::Name { name: name.chars().take(80).collect() }) }
}

fn not_found(name: &str) -> AccountError {
    AccountError::NotFound { name: name.chars().take(80).collect() }
}

fn wrong_key(key: &[u8]) -> String {
    format!("the object index has an object of accounts with the impossible key {}", key.escape_ascii())
}

fn count_backups(engine: &Arc<Engine>, is_own: &dyn Fn(&str) -> bool) -> Result<u64> {
    let mut count = 0;
    match Catalog::new(engine.clone()).visit(&mut |backup| count += u64::from(is_own(&backup.name))) {
        // The sound ones were all visited. `check` tells of the others.
        Err(CatalogError::Damaged { .. }) => Ok(count),
        visited => Ok(visited.map(|()| count)?),
    }
}

/// Passes all objects with `from <= key < to` to `visit`, except those that a repair could not tell. Returns a sentence
/// for each range of these.
fn visit_sound(engine: &Engine, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Vec<String>, EngineError> {
    let lost = if engine.has_lost() { engine.lost_within(PARTITION, from, to)? } else { Vec::new() };
    for (mut at, end) in between(&lost, from, to) {
        while at < end {
            let page = engine.range(PARTITION, &at, &end, PAGE)?;
            page.iter().for_each(|(key, value)| visit(key, value));
            match page.last() {
                Some((last, _)) if page.len() == PAGE => at = [last.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
    }
    let sentence =
        |(begin, behind): &KeyRange| format!("accounts with keys from {} to {} are lost", begin.escape_ascii(), behind.escape_ascii());
    Ok(lost.iter().map(sentence).collect())
}

/// A range of keys: the first one, and the one behind the last.
type KeyRange = (Vec<u8>, Vec<u8>);

/// Returns the ranges from `from` to `to` that are between these, which rise.
fn between(lost: &[KeyRange], from: &[u8], to: &[u8]) -> Vec<KeyRange> {
    let begins = [from.to_vec()].into_iter().chain(lost.iter().map(|(_, behind)| behind.clone()));
    let ends = lost.iter().map(|(begin, _)| begin.clone()).chain([to.to_vec()]);
    begins.zip(ends).filter(|(begin, end)| begin < end).collect()
}

/// Returns what is wrong with the objects of accounts, a sentence for each.
pub fn damaged(engine: &Engine) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let lost = visit_sound(engine, &[PREFIX], &[PREFIX + 1], &mut |key, value| match keys::kind(key) {
        Some(Kind::Account(name)) => wrong.extend(Account::decode(name, value).err().map(|error| error.to_string())),
        Some(Kind::Day(name)) => {
            let problem = quotas::decode(value).err();
            wrong.extend(problem.map(|error| format!("the count of new bytes of account {name} is damaged: {error}")));
        }
        None => wrong.push(wrong_key(key)),
    })?;
    wrong.extend(lost);
    Ok(wrong)
}

#[cfg(test)]
mod tests;
