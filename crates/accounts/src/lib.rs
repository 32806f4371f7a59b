//! Who may use a store over the network, and for what (`docs/format.md` sections 7.16 and 7.17).
//!
//! * [`Accounts`]: the accounts of a store, and the check of a name and a secret.
//! * [`Permissions`], [`Namespace`] and [`covers`]: which backups an account may make, read and remove.
//! * [`Quotas`]: how much it may store.
//! * [`LoginThrottle`], [`Logins`], [`Connections`] and [`Rate`]: how often and how fast it may come.
//! * [`AccessLog`]: what it did.
//!
//! # Invariants
//! * By default an account may write and read its own backups, and delete nothing.
//! * Whoever does not know a secret learns nothing from an answer: an unknown name, a locked account, a damaged one and
//!   a wrong secret have the same answer after the same work.
//! * A secret is neither in the store nor in the log. The store keeps its hash.
//! * An account that cannot be read lets nobody in, and stops no other account.

mod audit;
mod certificate;
mod connections;
mod error;
mod keys;
mod logins;
mod namespace;
mod permissions;
mod quotas;
mod rate;
mod record;
mod registry;
mod secret;
mod throttle;

pub use audit::{AccessLog, Entry, Event};
pub use certificate::{CertificateFingerprint, CertificateRule, Certificates};
pub use connections::{Connection, Connections};
pub use error::{AccountError, Result};
pub use logins::{Login, Logins};
pub use namespace::{Namespace, covers, is_valid_backup_name};
pub use permissions::{Permission, PermissionSet, Permissions};
pub use quotas::{DayMeter, Quotas, logical_bytes};
pub use rate::Rate;
pub use record::{Account, Limits};
pub use registry::{Accounts, Listed, Refusal, Settings, Use, Verdict, damaged};
pub use secret::Secret;
pub use throttle::{LoginThrottle, Peer};

#[cfg(test)]
pub(crate) mod testing;
