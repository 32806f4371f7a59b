//! The record of an account (`docs/format.md` section 7.16).

use super::certificate::Certificates;
use super::error::{AccountError, Result};
use super::namespace::{Namespace, covers};
use super::permissions::{Permission, Permissions};
use super::secret::{HASH_BYTES, Recipe, fixed, is_equal};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_signed, put_varint};

/// Version of the value.
const VERSION: u8 = 1;
/// Longest name, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;
/// Connections of an account unless something else is set.
const DEFAULT_CONNECTIONS: u32 = 8;
/// Most connections that can be set.
const MAX_CONNECTIONS: u32 = 4096;

/// Returns whether a text can be the name of an account: 1 to 64 of `a-z 0-9 . _ -`, and neither `.` nor `..`.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter) && !matches!(name, "." | "..")
}

/// How much and how fast. `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most logical bytes of all its backups.
    pub logical_bytes: Option<u64>,
    /// Most new bytes in a day of the store's clock.
    pub new_bytes_a_day: Option<u64>,
    /// Most bytes a second, over all connections.
    pub bytes_per_second: Option<u64>,
    /// Most connections at a time.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { logical_bytes: None, new_bytes_a_day: None, bytes_per_second: None, connections: DEFAULT_CONNECTIONS }
    }
}

impl Limits {
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return Err(AccountError::Range { what: "the number of connections", least: 1, most: MAX_CONNECTIONS.into() });
        }
        if self.bytes_per_second == Some(0) {
            return Err(AccountError::Range { what: "the rate", least: 1, most: u64::MAX });
        }
        Ok(())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for limit in [self.logical_bytes, self.new_bytes_a_day, self.bytes_per_second] {
            out.push(u8::from(limit.is_some()));
            limit.iter().for_each(|limit| put_varint(out, *limit));
        }
        put_varint(out, self.connections.into());
    }

    fn read(reader: &mut Reader<'_>) -> std::result::Result<Limits, WireError> {
        let mut limit = |what| if choice(reader, what)? { reader.varint().map(Some) } else { Ok(None) };
        let (logical_bytes, new_bytes_a_day, bytes_per_second) = (limit("quota")?, limit("quota of a day")?, limit("rate")?);
        let offset_bytes = reader.position();
        let connections = reader.varint_to("connections", MAX_CONNECTIONS.into())? as u32;
        let limits = Limits { logical_bytes, new_bytes_a_day, bytes_per_second, connections };
        limits.check().map_err(|_| WireError::OutOfRange { what: "rate or connections", value: 0, offset_bytes })?;
        Ok(limits)
    }
}

/// A secret that was replaced and is accepted for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) hash: [u8; HASH_BYTES],
    /// It ends when either clock has reached this: a date that is set back prolongs nothing.
    pub(crate) until_ns: i64,
    pub(crate) until_seen_ns: u64,
}

impl Former {
    pub(crate) fn is_in_time(&self, date_ns: i64, seen_ns: u64) -> bool {
        date_ns < self.until_ns && seen_ns < self.until_seen_ns
    }
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name, which is in its key.
    pub name: String,
    /// When it was created, nanoseconds since 1970.
    pub created_ns: i64,
    /// When it got its present secret, nanoseconds since 1970.
    pub rotated_ns: i64,
    /// The number of its present secret, from 1. A server ends sessions that logged in with an earlier one when they
    /// should not go on.
    pub generation: u64,
    /// Whether nobody may log in.
    pub is_locked: bool,
    /// The certificates that it accepts.
    pub certificates: Certificates,
    /// What it may do.
    pub permissions: Permissions,
    /// How much and how fast.
    pub limits: Limits,
    pub(crate) recipe: Recipe,
    pub(crate) hash: [u8; HASH_BYTES],
    pub(crate) former: Option<Former>,
}

impl Account {
    /// Returns whether a backup of this name counts as this account's: it belongs to the namespace that has the name of
    /// the account, or to one where the account may make backups by a grant of its own (`admin` does not count).
    pub fn owns(&self, backup_name: &str) -> bool {
        let is_granted =
            |(namespace, set): (&Namespace, super::PermissionSet)| set.has(Permission::Backup) && covers(namespace, backup_name);
        Namespace::new(&self.name).is_ok_and(|own| covers(&own, backup_name)) || self.permissions.grants().any(is_granted)
    }

    /// Returns until when the secret before the present one is accepted, nanoseconds since 1970.
    pub fn former_until_ns(&self) -> Option<i64> {
        self.former.map(|former| former.until_ns)
    }

    /// Returns whether a hash is that of an accepted secret. Compares with both, whatever the first says.
    pub(crate) fn accepts(&self, hash: &[u8; HASH_BYTES], date_ns: i64, seen_ns: u64) -> bool {
        let former = self.former.unwrap_or(Former { hash: self.hash, until_ns: i64::MIN, until_seen_ns: 0 });
        is_equal(hash, &self.hash) | (is_equal(hash, &former.hash) & former.is_in_time(date_ns, seen_ns))
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.permissions.check()?;
        self.certificates.check()?;
        self.limits.check()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_signed(&mut out, self.created_ns);
        put_signed(&mut out, self.rotated_ns);
        put_varint(&mut out, self.generation);
        out.push(u8::from(self.is_locked));
        self.recipe.encode(&mut out);
        put_bytes(&mut out, &self.hash);
        out.push(u8::from(self.former.is_some()));
        if let Some(former) = &self.former {
            put_bytes(&mut out, &former.hash);
            put_signed(&mut out, former.until_ns);
            put_varint(&mut out, former.until_seen_ns);
        }
        self.certificates.encode(&mut out);
        self.permissions.encode(&mut out);
        self.limits.encode(&mut out);
        out
    }

    pub(crate) fn decode(name: &str, value: &[u8]) -> Result<Account> {
        Account::read(name, value).map_err(|error| AccountError::Damaged { name: name.to_owned(), reason: error.to_string() })
    }

    fn read(name: &str, value: &[u8]) -> std::result::Result<Account, WireError> {
        let mut reader = Reader::new(value);
        check_version(&mut reader, VERSION)?;
        let (created_ns, rotated_ns, generation) = (reader.signed()?, reader.signed()?, reader.varint()?);
        let is_locked = choice(&mut reader, "locked")?;
        let (recipe, hash) = (Recipe::read(&mut reader)?, fixed(&mut reader, "length of the hash")?);
        let former = if choice(&mut reader, "former secret")? {
            let hash = fixed(&mut reader, "length of the hash")?;
            Some(Former { hash, until_ns: reader.signed()?, until_seen_ns: reader.varint()? })
        } else {
            None
        };
        let (certificates, permissions) = (Certificates::read(&mut reader)?, Permissions::read(&mut reader)?);
        let limits = Limits::read(&mut reader)?;
        reader.end()?;
        Ok(Account {
            name: name.to_owned(),
            created_ns,
            rotated_ns,
            generation,
            is_locked,
            certificates,
            permissions,
            limits,
            recipe,
            hash,
            former,
        })
    }
}

/// Reads a version.
pub(crate) fn check_version(reader: &mut Reader<'_>, version: u8) -> std::result::Result<(), WireError> {
    match reader.u8()? {
        found if found == version => Ok(()),
        found => Err(WireError::OutOfRange { what: "version", value: found.into(), offset_bytes: 0 }),
    }
}

/// Reads 0 or 1.
fn choice(reader: &mut Reader<'_>, what: &'static str) -> std::result::Result<bool, WireError> {
    let offset_bytes = reader.position();
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(WireError::OutOfRange { what, value: value.into(), offset_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::account;
    use crate::{CertificateFingerprint, CertificateRule, PermissionSet};
    use proptest::prelude::*;

    #[test]
    fn names_are_short_and_plain() {
        for name in ["a", "web-1.example_x", &"x".repeat(64), "..."] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "A", "ä", "a/b", "a b", ".", "..", &"x".repeat(65), "a\0"] {
            assert!(!is_valid_name(name), "{name:?}");
        }
    }

    #[test]
    fn an_account_owns_what_has_its_name_and_where_it_may_make_backups() {
        let mut ann = account("ann");
        ann.permissions = Permissions::default();
        ann.permissions.grant(Namespace::new("team").unwrap(), "backup".parse().unwrap());
        ann.permissions.grant(Namespace::new("lab").unwrap(), "admin".parse().unwrap());
        ann.permissions.grant(Namespace::new("old").unwrap(), "read".parse().unwrap());
        for (name, expected) in [("ann", true), ("ann/x", true), ("team/x", true), ("lab", false), ("old", false), ("anna", false)] {
            assert_eq!(ann.owns(name), expected, "{name}");
        }
    }

    #[test]
    fn a_former_secret_ends_when_either_clock_says_so() {
        let mut ann = account("ann");
        ann.hash = [1; HASH_BYTES];
        ann.former = Some(Former { hash: [2; HASH_BYTES], until_ns: 100, until_seen_ns: 50 });
        let accepts = |hash, date_ns, seen_ns| ann.accepts(&[hash; HASH_BYTES], date_ns, seen_ns);
        assert!(accepts(2, 99, 49) && !accepts(2, 100, 49) && !accepts(2, 3, 50));
        assert!(accepts(1, 1000, 1000) && !accepts(3, 0, 0));
        ann.former = None;
        assert!(!ann.accepts(&[2; HASH_BYTES], 0, 0));
    }

    fn some_account() -> impl Strategy<Value = Account> {
        let times = (any::<i64>(), any::<i64>(), any::<u64>(), any::<bool>());
        let former = proptest::option::of((any::<[u8; 32]>(), any::<i64>(), any::<u64>()));
        let certificates = (proptest::collection::vec(any::<[u8; 32]>(), 0..4), any::<bool>());
        let grants = proptest::collection::vec(("[a-zA-Z0-9_-]{1,9}(/[a-z.]{3,9}x){0,2}", 1u8..32), 0..9);
        let bound = || proptest::option::of(1..u64::MAX);
        let limits = (bound(), bound(), bound(), 1u32..4097);
        (times, any::<[u8; 32]>(), former, certificates, grants, limits).prop_map(|(times, hash, former, certificates, grants, limits)| {
            let mut permissions = Permissions::default();
            for (namespace, bits) in grants {
                let set: Vec<Permission> = Permission::ALL.into_iter().filter(|permission| bits & *permission as u8 != 0).collect();
                permissions.grant(Namespace::new(&namespace).unwrap(), PermissionSet::of(&set));
            }
            let rule = if certificates.1 { CertificateRule::Must } else { CertificateRule::May };
            Account {
                created_ns: times.0,
                rotated_ns: times.1,
                generation: times.2,
                is_locked: times.3,
                hash,
                former: former.map(|(hash, until_ns, until_seen_ns)| Former { hash, until_ns, until_seen_ns }),
                certificates: Certificates { accepted: certificates.0.into_iter().map(CertificateFingerprint).collect(), rule },
                permissions,
                limits: Limits { logical_bytes: limits.0, new_bytes_a_day: limits.1, bytes_per_second: limits.2, connections: limits.3 },
                ..account("ann")
            }
        })
    }

    proptest! {
        #[test]
        fn an_account_is_read_as_written_and_cut_short_it_is_refused(account in some_account(), cut: proptest::sample::Index) {
            let value = account.encode();
            prop_assert_eq!(Account::decode("ann", &value).unwrap(), account);
            prop_assert!(Account::decode("ann", &value[..cut.index(value.len())]).is_err());
            prop_assert!(Account::decode("ann", &[&value[..], &[0]].concat()).is_err());
        }

        #[test]
        fn garbage_is_refused_without_panic(mut bytes: Vec<u8>) {
            let _ = Account::decode("ann", &bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = Account::decode("ann", &bytes);
        }

        #[test]
        fn a_changed_byte_is_refused_or_is_an_account_within_its_bounds(account in some_account(), at: proptest::sample::Index, to: u8) {
            let mut value = account.encode();
            let at = at.index(value.len());
            value[at] = to;
            if let Ok(account) = Account::decode("ann", &value) {
                prop_assert!(account.check().is_ok());
                prop_assert!(account.recipe.cost.memory_kib <= 64 << 10);
            }
        }
    }
}
