//! `onefold account`: who may use the store over the network, and for what.

mod show;

use crate::advice::ACCOUNTS;
use crate::cli::{
    AccountCreate, AccountDelete, AccountLock, AccountRotate, AccountSet, AccountSettings, AccountUnlock, Connection, Format, NewSecret,
};
use crate::control::WHEN_BUSY;
use crate::daemon::Daemon;
use crate::failure::{Exit, Failure, Result};
use crate::secret::Secret;
use crate::session::{Session, StoreCommand, store_command};
use crate::units::{counted, utc_time};
use onefold_remote::accounts::{
    self, Account, Accounts, CertificateFingerprint, CertificateRule, Event, Namespace, PermissionSet, Permissions, Settings,
};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// Makes a secret, writes it to the file if there is one, and runs the command. It is made here and not in a daemon,
/// which must not write files of its clients.
pub(super) fn with_new_secret(new: &mut NewSecret) -> Result<NewSecretFile> {
    let secret = accounts::Secret::random()?;
    new.secret = Secret::of(secret.text().into_bytes());
    new.is_in_file = new.file.is_some();
    let Some(path) = new.file.clone() else { return Ok(NewSecretFile(None)) };
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut file| {
        file.write_all(new.secret.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    match written {
        Ok(()) => Ok(NewSecretFile(Some(path))),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(&path);
            }
            let failure = Failure::of_file("write the secret to", &path, error).advise("give the name of a file that does not exist yet");
            Err(Failure { exit: Exit::CannotRun, ..failure })
        }
    }
}

/// The file of a new secret, before it is known whether the store has it.
pub(super) struct NewSecretFile(Option<std::path::PathBuf>);

impl NewSecretFile {
    /// Removes the file if the store surely does not have the secret. In doubt it stays: without it, nobody could log
    /// in.
    pub(super) fn settle(self, done: Result<Exit>) -> Result<Exit> {
        let is_refused =
            |failure: &Failure| failure.exit == Exit::CannotRun || matches!(failure.advice.as_deref(), Some(ACCOUNTS | WHEN_BUSY));
        if let (Some(path), Err(failure)) = (&self.0, &done)
            && is_refused(failure)
        {
            let _ = std::fs::remove_file(path);
        }
        done
    }
}

fn accounts(session: &Session<'_>) -> Result<Accounts> {
    Ok(Accounts::new(session.store.engine.clone())?)
}

/// Returns the secret that the client of a daemon made.
fn made(secret: &Secret) -> Result<accounts::Secret> {
    let text = std::str::from_utf8(secret.as_bytes()).unwrap_or_default();
    Ok(text.parse::<accounts::Secret>()?)
}

fn wrong_call() -> Failure {
    Failure::cannot_run("the settings of the account cannot be understood")
}

/// What is to be changed, in the types of accounts.
struct Change {
    grants: Vec<(Namespace, PermissionSet)>,
    certificates: Option<Vec<CertificateFingerprint>>,
    settings: AccountSettings,
}

impl Change {
    fn of(settings: &AccountSettings) -> Result<Change> {
        let grants = settings.allow.iter().map(|grant| grant.parts().ok_or_else(wrong_call)).collect::<Result<_>>()?;
        let named = settings.certificate.iter().filter(|text| *text != "none");
        let certificates = named.map(|text| Ok(text.parse::<CertificateFingerprint>()?)).collect::<Result<Vec<_>>>()?;
        let certificates = (!settings.certificate.is_empty()).then_some(certificates);
        Ok(Change { grants, certificates, settings: settings.clone() })
    }

    fn apply(&self, permissions: &mut Permissions, limits: &mut accounts::Limits, certificates: &mut accounts::Certificates) {
        self.grants.iter().for_each(|(namespace, set)| permissions.grant(namespace.clone(), *set));
        let AccountSettings { quota, quota_a_day, rate, connections, certificate_required, .. } = &self.settings;
        for (given, limit) in
            [(quota, &mut limits.logical_bytes), (quota_a_day, &mut limits.new_bytes_a_day), (rate, &mut limits.bytes_per_second)]
        {
            given.iter().for_each(|given| *limit = given.0);
        }
        connections.iter().for_each(|connections| limits.connections = *connections);
        self.certificates.iter().for_each(|accepted| certificates.accepted.clone_from(accepted));
        if let Some(is_required) = certificate_required {
            certificates.rule = if *is_required { CertificateRule::Must } else { CertificateRule::May };
        }
    }
}

/// Prints a new secret, unless it is in a file.
fn print_secret(session: &Session<'_>, new: &NewSecret, format: Format, account: &Account, done: &str) -> Result<()> {
    let text = std::str::from_utf8(new.secret.as_bytes()).unwrap_or_default();
    let mut output = session.output();
    if format.json {
        output.json(&json!({
            "name": account.name,
            "secret": (!new.is_in_file).then_some(text),
            "generation": account.generation,
            "former_secret_until": account.former_until_ns().map(utc_time),
        }))?;
    } else if !new.is_in_file {
        output.line(text)?;
    }
    output.finish()?;
    let fate = if new.is_in_file { "its secret is in the file" } else { "this secret is not shown again" };
    session.advise(format_args!("{done} account {}; {fate}", account.name));
    Ok(())
}

/// `--secret-file` says where the new secret goes, so there are no options that say how to reach a server.
macro_rules! without_options {
    () => {
        fn connection(&self) -> Option<Connection> {
            Some(Connection::default())
        }
    };
}

impl StoreCommand for AccountCreate {
    store_command!("account create", waits, writes);
    without_options!();

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let (accounts, change) = (accounts(session)?, Change::of(&self.settings)?);
        let mut settings = Settings::default();
        let mut permissions = Permissions::default();
        change.apply(&mut permissions, &mut settings.limits, &mut settings.certificates);
        settings.permissions = (!change.grants.is_empty()).then_some(permissions);
        let account = accounts.create_with(&self.name, settings, &made(&self.new.secret)?)?;
        session.audit(Event::AccountCreate, None, show::to_json(&account));
        print_secret(session, &self.new, self.format, &account, "created")?;
        // Whoever had that name before, or backs up without a server, has the same names of backups.
        match accounts.count_backups(&account)? {
            0 => {}
            count => session.advise(format_args!(
                "{} already in the namespaces of account {}",
                counted(count, "backup exists", "backups exist"),
                account.name
            )),
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AccountSet {
    store_command!("account set", far, waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        if self.settings.is_empty() && self.deny.is_empty() {
            return Err(Failure::cannot_run("nothing to set: no option was given").advise("`onefold account set --help` lists what can be"));
        }
        let change = Change::of(&self.settings)?;
        let denied = self.deny.iter().map(|text| Ok(text.parse::<Namespace>()?)).collect::<Result<Vec<_>>>()?;
        let account = accounts(session)?.set(&self.name, |account| {
            denied.iter().for_each(|namespace| account.permissions.grant(namespace.clone(), PermissionSet::default()));
            change.apply(&mut account.permissions, &mut account.limits, &mut account.certificates);
        })?;
        session.audit(Event::AccountSet, None, show::to_json(&account));
        if let Some(network) = session.daemon().and_then(Daemon::network) {
            network.connections.set_rate(&self.name, account.limits.bytes_per_second);
        }
        if self.format.json {
            let mut output = session.output();
            output.json(&show::to_json(&account))?;
            output.finish()?;
        }
        if account.certificates.rule == CertificateRule::Must && account.certificates.accepted.is_empty() {
            session.advise(format_args!("nobody can log in as {}: a certificate is required, and none is accepted", self.name));
        }
        Ok(Exit::Done)
    }
}

impl StoreCommand for AccountRotate {
    store_command!("account rotate", waits, writes);
    without_options!();

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let grace = self.grace.map(|grace| Duration::from_secs(grace.0));
        let account = accounts(session)?.rotate_to(&self.name, grace, &made(&self.new.secret)?)?;
        session.audit(Event::AccountRotate, None, json!({"name": self.name, "generation": account.generation}));
        if grace.is_none() {
            session.close_sessions(&self.name);
        }
        print_secret(session, &self.new, self.format, &account, "rotated the secret of")?;
        Ok(Exit::Done)
    }
}

fn lock(session: &Session<'_>, name: &str, is_locked: bool, format: Format) -> Result<Exit> {
    let accounts = accounts(session)?;
    let account = if is_locked { accounts.lock(name)? } else { accounts.unlock(name)? };
    session.audit(if is_locked { Event::AccountLock } else { Event::AccountUnlock }, None, json!({"name": name}));
    if is_locked {
        session.close_sessions(name);
    }
    if format.json {
        let mut output = session.output();
        output.json(&json!({"name": account.name, "locked": account.is_locked}))?;
        output.finish()?;
    } else {
        session.advise(format_args!("{} account {name}", if is_locked { "locked" } else { "unlocked" }));
    }
    Ok(Exit::Done)
}

impl StoreCommand for AccountLock {
    store_command!("account lock", far, waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        lock(session, &self.name, true, self.format)
    }
}

impl StoreCommand for AccountUnlock {
    store_command!("account unlock", far, waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        lock(session, &self.name, false, self.format)
    }
}

impl StoreCommand for AccountDelete {
    store_command!("account delete", far, waits, writes);

    fn run(&self, session: &Session<'_>) -> Result<Exit> {
        let accounts = accounts(session)?;
        if !self.yes {
            // A damaged one can be deleted too.
            if let Err(error @ accounts::AccountError::NotFound { .. }) = accounts.get(&self.name) {
                return Err(error.into());
            }
            session.confirm(false, format_args!("account {} is deleted, and nobody can log in with it; its backups stay", self.name))?;
        }
        accounts.delete(&self.name, self.keep_backups)?;
        session.audit(Event::AccountDelete, None, json!({"name": self.name, "keep_backups": self.keep_backups}));
        session.close_sessions(&self.name);
        if self.format.json {
            let mut output = session.output();
            output.json(&json!({"name": self.name}))?;
            output.finish()?;
        } else {
            session.advise(format_args!("deleted account {}", self.name));
        }
        Ok(Exit::Done)
    }
}
