//! Accounts of clients over the network: `account`.

use super::{Format, Place, PlaceToOneself, Span, StoreToOneself};
use crate::secret::Secret;
use crate::units::parse_size;
use clap::{Args, Subcommand};
use onefold_remote::accounts::{CertificateFingerprint, Namespace, PermissionSet};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// `onefold account`.
#[derive(Debug, Subcommand)]
pub enum Account {
    /// Creates an account and prints its secret, which is not shown again
    #[command(after_help = "\
Without --allow an account may make and read the backups in the namespace with its name: NAME and everything below NAME/. It may delete
nothing. With --allow it may do what that says, and nothing else.
Permissions: backup, read, forget, prune, admin (all of them; for the namespace `*`, all backups, it may also change accounts).

Examples:
  onefold account create laptop > laptop.secret
  onefold account create web1 --allow team/web1=backup,read --quota 500GiB --quota-a-day 50GiB --secret-file web1.secret
  onefold account create operator --allow '*=admin' --certificate 3f9a... --certificate-required")]
    Create(AccountCreate),
    /// Lists the accounts
    List(AccountList),
    /// Shows an account and what it uses
    Show(AccountShow),
    /// Changes permissions, quotas, limits or certificates of an account
    #[command(after_help = "\
Open sessions are bound by it from their next request on.

Examples:
  onefold account set web1 --allow team/web1=backup,read,forget --deny web1
  onefold account set web1 --quota none --rate 50MiB --connections 2")]
    Set(AccountSet),
    /// Gives an account a new secret and prints it; the old one ends at once, or after --grace
    #[command(after_help = "Examples:\n  onefold account rotate web1\n  onefold account rotate web1 --grace 1d --secret-file web1.secret")]
    Rotate(AccountRotate),
    /// Locks an account: nobody can log in with it
    Lock(AccountLock),
    /// Unlocks an account
    Unlock(AccountUnlock),
    /// Deletes an account, not its backups
    Delete(AccountDelete),
}

/// A limit that can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "(Option<u64>,)", into = "(Option<u64>,)")]
pub struct Bound(pub Option<u64>);

// As a list of one: alone, "no limit" would be the same as "not given".
impl From<(Option<u64>,)> for Bound {
    fn from((bound,): (Option<u64>,)) -> Bound {
        Bound(bound)
    }
}

impl From<Bound> for (Option<u64>,) {
    fn from(Bound(bound): Bound) -> (Option<u64>,) {
        (bound,)
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        if text == "none" { Ok(Bound(None)) } else { parse_size(text).map(|bytes| Bound(Some(bytes))).map_err(|error| error.to_string()) }
    }
}

fn bytes_per_second(text: &str) -> Result<Bound, String> {
    match text.strip_suffix("/s").unwrap_or(text).parse()? {
        Bound(Some(0)) => Err("a rate is at least 1B; `none` takes the limit away".to_owned()),
        bound => Ok(bound),
    }
}

/// What is permitted in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Grant {
    namespace: String,
    permissions: String,
}

impl Grant {
    /// Returns the namespace and the permissions. `None`: a client of a daemon sent something else.
    pub fn parts(&self) -> Option<(Namespace, PermissionSet)> {
        self.namespace.parse().ok().zip(self.permissions.parse().ok())
    }
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Grant, String> {
        let wrong = || format!("`{text}` is not a grant: write it as in team/host=backup,read");
        let (namespace, permissions) = text.split_once('=').ok_or_else(wrong)?;
        let whole = namespace.parse::<Namespace>().map_err(|error| error.to_string())?;
        permissions.parse::<PermissionSet>().map_err(|error| error.to_string())?;
        Ok(Grant { namespace: whole.to_string(), permissions: permissions.to_owned() })
    }
}

fn namespace(text: &str) -> Result<String, String> {
    text.parse::<Namespace>().map(|namespace| namespace.to_string()).map_err(|error| error.to_string())
}

fn certificate(text: &str) -> Result<String, String> {
    if text == "none" {
        return Ok(text.to_owned());
    }
    text.parse::<CertificateFingerprint>().map(|certificate| certificate.to_string()).map_err(|error| error.to_string())
}

/// Settings of an account.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct AccountSettings {
    /// What it may do with the backups of a namespace (`*`: all backups), as in team/host=backup,read; repeatable
    #[arg(long, value_name = "NAMESPACE=PERMISSIONS")]
    pub allow: Vec<Grant>,
    /// Most logical bytes of all its backups; `none`: no limit
    #[arg(long, value_name = "SIZE")]
    pub quota: Option<Bound>,
    /// Most new bytes in a day; `none`: no limit
    #[arg(long, value_name = "SIZE")]
    pub quota_a_day: Option<Bound>,
    /// Most bytes a second, over all its connections; `none`: no limit
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_second)]
    pub rate: Option<Bound>,
    /// Most connections at a time [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub connections: Option<u32>,
    /// SHA-256 fingerprint of a certificate that its clients may present, 64 hexadecimal digits; repeatable; the list
    /// replaces the former one; `none`: no certificates
    #[arg(long, value_name = "SHA256", value_parser = certificate)]
    pub certificate: Vec<String>,
    /// Whether clients must present one of the certificates
    #[arg(long, value_name = "YES-NO", num_args = 0..=1, default_missing_value = "true")]
    pub certificate_required: Option<bool>,
}

impl AccountSettings {
    /// Returns whether nothing is set.
    pub fn is_empty(&self) -> bool {
        let limits = [self.quota, self.quota_a_day, self.rate];
        self.allow.is_empty()
            && limits.iter().all(Option::is_none)
            && self.connections.is_none()
            && self.certificate.is_empty()
            && self.certificate_required.is_none()
    }
}

/// Where a new secret goes.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
pub struct NewSecret {
    /// Writes the secret to this new file, which only you can read, instead of printing it
    #[arg(long = "secret-file", value_name = "FILE")]
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// The secret.
    #[arg(skip)]
    pub secret: Secret,
    /// Whether it is in a file, and not printed.
    #[arg(skip)]
    pub is_in_file: bool,
}

/// `onefold account create`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountCreate {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the account: 1 to 64 of a-z 0-9 . _ -
    pub name: String,
    /// Its settings.
    #[command(flatten)]
    pub settings: AccountSettings,
    /// Its secret.
    #[command(flatten)]
    pub new: NewSecret,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account list`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountList {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account show`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountShow {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: Place,
    /// Name of the account
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account set`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountSet {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Name of the account
    pub name: String,
    /// Its settings.
    #[command(flatten)]
    pub settings: AccountSettings,
    /// Takes away what it may do in this namespace; repeatable
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace)]
    pub deny: Vec<String>,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account rotate`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountRotate {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: StoreToOneself,
    /// Name of the account
    pub name: String,
    /// The old secret is accepted for so long (90s, 30m, 2h, 1d) [default: no longer]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<Span>,
    /// Its secret.
    #[command(flatten)]
    pub new: NewSecret,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account lock`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountLock {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Name of the account
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account unlock`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountUnlock {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Name of the account
    pub name: String,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// `onefold account delete`.
#[derive(Args, Debug, Deserialize, Serialize)]
pub struct AccountDelete {
    /// Which store.
    #[command(flatten)]
    #[serde(skip)]
    pub store: PlaceToOneself,
    /// Name of the account
    pub name: String,
    /// Deletes it although it has backups, which stay
    #[arg(long)]
    pub keep_backups: bool,
    /// Does not ask; required if there is no terminal
    #[arg(short, long)]
    pub yes: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_limits_and_certificates_are_read_or_refused() {
        assert_eq!("team/host=backup,read".parse::<Grant>().unwrap().parts().unwrap().0.as_str(), "team/host");
        assert!("*=admin".parse::<Grant>().unwrap().parts().unwrap().0.is_all());
        for wrong in ["team", "team=", "team=write", "a//b=read", "=read,", "../x=read"] {
            assert!(wrong.parse::<Grant>().is_err(), "{wrong}");
        }
        assert_eq!(("none".parse(), "5KiB".parse()), (Ok(Bound(None)), Ok(Bound(Some(5120)))));
        assert_eq!((bytes_per_second("1MiB/s"), bytes_per_second("1MiB")), (Ok(Bound(Some(1 << 20))), Ok(Bound(Some(1 << 20)))));
        assert!(bytes_per_second("0B").is_err() && "much".parse::<Bound>().is_err());
        assert!(certificate("none").is_ok() && certificate("ab").is_err());
    }
}
