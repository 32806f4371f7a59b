//! The errors of accounts.

use onefold_catalog::CatalogError;
use onefold_engine::EngineError;

/// An error of a change or a look-up of accounts, or a refusal by a quota.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The store refuses or fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The backups of an account cannot be looked at.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The change is visible, but a flush failed. Whether it exists after a restart is unknown.
    #[error("the change of account {name} may not survive a restart: {source}")]
    NotDurable {
        /// The account.
        name: String,
        /// Why.
        #[source]
        source: Box<EngineError>,
    },
    /// An invalid name.
    #[error("{name:?} is not a valid account name: it must have 1 to 64 of the characters a-z 0-9 . _ -")]
    Name {
        /// The given name.
        name: String,
    },
    /// An invalid namespace.
    #[error("{namespace:?} is not a valid namespace: {reason}")]
    Namespace {
        /// The given namespace.
        namespace: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A text that is no permission.
    #[error("{word:?} is not a permission: there are backup, read, forget, prune, admin")]
    Permission {
        /// The given word.
        word: String,
    },
    /// A text that is no fingerprint of a certificate.
    #[error("{text:?} is not the SHA-256 fingerprint of a certificate: it must have 64 hexadecimal digits")]
    Certificate {
        /// The given text.
        text: String,
    },
    /// A text that is no secret of an account.
    #[error("this is not a secret of an account: they begin with 1fs-, and have 32 more characters in groups of four")]
    Secret,
    /// An account of that name exists.
    #[error("account {name} already exists")]
    Exists {
        /// Its name.
        name: String,
    },
    /// There is no account of that name.
    #[error("there is no account {name}")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The account has backups, so that it cannot be deleted.
    #[error("account {name} has backups: {backups}")]
    HasBackups {
        /// Its name.
        name: String,
        /// How many.
        backups: u64,
    },
    /// The object of an account does not match its format.
    #[error("the record of account {name} is damaged: {reason}")]
    Damaged {
        /// The account.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// More of something than a record or a store holds.
    #[error("there are at most {limit} {what}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// A setting is out of its range.
    #[error("{what} must be from {least} to {most}")]
    Range {
        /// Which setting.
        what: &'static str,
        /// The smallest value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// The account's backups would have more logical bytes than it may have.
    #[error("the backups of account {name} would have {bytes} bytes, and it may have {limit}")]
    Quota {
        /// The account.
        name: String,
        /// How many there would be.
        bytes: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The account would store more new bytes in a day than it may.
    #[error("account {name} would store {bytes} new bytes in a day, and it may store {limit}")]
    DayQuota {
        /// The account.
        name: String,
        /// How many it would be.
        bytes: u64,
        /// How many it may be.
        limit: u64,
    },
    /// The account has as many connections as it may have.
    #[error("account {name} has {limit} connections already, and may have no more")]
    Connections {
        /// The account.
        name: String,
        /// How many it may have.
        limit: u32,
    },
}

/// The result of work with accounts.
pub type Result<T, E = AccountError> = std::result::Result<T, E>;
