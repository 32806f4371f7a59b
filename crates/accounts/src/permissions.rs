//! What an account may do, and with which backups.

use super::error::{AccountError, Result};
use super::namespace::{MAX_BYTES, Namespace, covers};
use onefold_ground::wire::{Reader, WireError, put_bytes, put_varint};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Most grants of an account.
const MAX_GRANTS: usize = 64;

/// Something that an account may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Make backups.
    Backup = 1,
    /// List and read backups.
    Read = 2,
    /// Remove backups, and protect them.
    Forget = 4,
    /// Free the space of removed backups.
    Prune = 8,
    /// All of the others. For all backups: change accounts too.
    Admin = 16,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Permission; 5] = [Permission::Backup, Permission::Read, Permission::Forget, Permission::Prune, Permission::Admin];

    /// Returns its word.
    pub fn name(self) -> &'static str {
        match self {
            Permission::Backup => "backup",
            Permission::Read => "read",
            Permission::Forget => "forget",
            Permission::Prune => "prune",
            Permission::Admin => "admin",
        }
    }
}

impl FromStr for Permission {
    type Err = AccountError;

    fn from_str(word: &str) -> Result<Permission> {
        let found = Permission::ALL.into_iter().find(|permission| permission.name() == word);
        found.ok_or_else(|| AccountError::Permission { word: word.to_owned() })
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermissionSet(u8);

impl PermissionSet {
    /// All bits that mean something.
    const MASK: u8 = 31;

    /// Returns the set of these permissions.
    pub fn of(permissions: &[Permission]) -> PermissionSet {
        PermissionSet(permissions.iter().fold(0, |bits, permission| bits | *permission as u8))
    }

    /// Returns whether a permission is in the set by itself.
    pub fn has(self, permission: Permission) -> bool {
        self.0 & permission as u8 != 0
    }

    /// Returns whether the set gives a permission: by itself, or by `admin`.
    pub fn allows(self, permission: Permission) -> bool {
        self.has(permission) || self.has(Permission::Admin)
    }

    /// Returns whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the permissions in it.
    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |permission| self.has(*permission))
    }
}

impl FromStr for PermissionSet {
    type Err = AccountError;

    /// Reads words with commas between them.
    fn from_str(text: &str) -> Result<PermissionSet> {
        let permissions = text.split(',').map(str::parse).collect::<Result<Vec<Permission>>>()?;
        Ok(PermissionSet::of(&permissions))
    }
}

impl fmt::Display for PermissionSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.iter().map(Permission::name).collect();
        out.write_str(&words.join(","))
    }
}

/// The permissions of an account: for each namespace a set. If several grants cover a backup, each of them counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions(BTreeMap<Namespace, PermissionSet>);

impl Permissions {
    /// Returns those that a new account has: it may write and read the backups of a namespace, and delete nothing.
    pub fn own(namespace: Namespace) -> Permissions {
        Permissions([(namespace, PermissionSet::of(&[Permission::Backup, Permission::Read]))].into())
    }

    /// Sets what is permitted in a namespace. The empty set takes the grant away.
    pub fn grant(&mut self, namespace: Namespace, permissions: PermissionSet) {
        if permissions.is_empty() {
            self.0.remove(&namespace);
        } else {
            self.0.insert(namespace, permissions);
        }
    }

    /// Returns the grants, sorted by namespace.
    pub fn grants(&self) -> impl Iterator<Item = (&Namespace, PermissionSet)> {
        self.0.iter().map(|(namespace, permissions)| (namespace, *permissions))
    }

    /// Returns whether it permits something with the backups of a name.
    pub fn allows(&self, permission: Permission, backup_name: &str) -> bool {
        self.grants().any(|(namespace, permissions)| permissions.allows(permission) && covers(namespace, backup_name))
    }

    /// Returns whether it permits something with all backups, whatever their names.
    pub fn allows_everywhere(&self, permission: Permission) -> bool {
        self.0.get(&Namespace::all()).is_some_and(|permissions| permissions.allows(permission))
    }

    /// Returns whether it permits something with some backups.
    pub fn allows_anywhere(&self, permission: Permission) -> bool {
        self.grants().any(|(_, permissions)| permissions.allows(permission))
    }

    /// Returns whether it permits changes of accounts. Accounts are of the whole store, so `admin` of a part of the
    /// namespaces does not.
    pub fn allows_account_changes(&self) -> bool {
        self.allows_everywhere(Permission::Admin)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.len() > MAX_GRANTS { Err(AccountError::TooMany { what: "grants of an account", limit: MAX_GRANTS }) } else { Ok(()) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for (namespace, permissions) in self.grants() {
            put_bytes(out, namespace.as_str().as_bytes());
            out.push(permissions.0);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> std::result::Result<Permissions, WireError> {
        let offset_bytes = reader.position();
        let wrong = |what, value: usize| WireError::OutOfRange { what, value: value as u64, offset_bytes };
        let count = reader.count("grants", 2)?;
        if count > MAX_GRANTS {
            return Err(wrong("grants", count));
        }
        let mut grants = BTreeMap::new();
        for number in 0..count {
            let path = reader.bytes()?;
            let namespace = (path.len() <= MAX_BYTES).then(|| std::str::from_utf8(path).ok().and_then(|path| Namespace::new(path).ok()));
            let namespace = namespace.flatten().ok_or_else(|| wrong("namespace", number))?;
            let bits = reader.u8()?;
            if bits == 0 || bits & !PermissionSet::MASK != 0 {
                return Err(wrong("permissions", bits.into()));
            }
            if grants.last_key_value().is_some_and(|(last, _)| *last >= namespace) {
                return Err(wrong("order of the grants", number));
            }
            grants.insert(namespace, PermissionSet(bits));
        }
        Ok(Permissions(grants))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permissions(grants: &[(&str, &str)]) -> Permissions {
        let mut permissions = Permissions::default();
        grants.iter().for_each(|(namespace, set)| permissions.grant(namespace.parse().unwrap(), set.parse().unwrap()));
        permissions
    }

    #[test]
    fn a_new_account_may_write_and_read_its_own_backups_and_delete_nothing() {
        let own = Permissions::own(Namespace::new("ann").unwrap());
        for (permission, name, expected) in [
            (Permission::Backup, "ann", true),
            (Permission::Read, "ann/laptop", true),
            (Permission::Forget, "ann", false),
            (Permission::Prune, "ann", false),
            (Permission::Admin, "ann", false),
            (Permission::Read, "anna", false),
            (Permission::Read, "bob", false),
        ] {
            assert_eq!(own.allows(permission, name), expected, "{permission:?} {name}");
        }
        assert!(!own.allows_everywhere(Permission::Read) && own.allows_anywhere(Permission::Read) && !own.allows_account_changes());
    }

    #[test]
    fn grants_add_up_and_admin_is_all_of_the_others_in_its_namespace() {
        let some = permissions(&[("team", "read"), ("team/host", "backup"), ("lab", "admin")]);
        assert!(some.allows(Permission::Read, "team/host/x") && some.allows(Permission::Backup, "team/host/x"));
        assert!(some.allows(Permission::Read, "team/other") && !some.allows(Permission::Backup, "team/other"));
        assert!(Permission::ALL.iter().all(|permission| some.allows(*permission, "lab/x")));
        assert!(!some.allows_account_changes(), "an administrator of a part could give itself everything");
        let all = permissions(&[("*", "admin")]);
        assert!(all.allows_account_changes() && all.allows(Permission::Prune, "anything at all"));
    }

    #[test]
    fn a_grant_that_is_taken_away_is_gone() {
        let mut some = permissions(&[("team", "read"), ("lab", "backup,forget")]);
        some.grant(Namespace::new("team").unwrap(), PermissionSet::default());
        assert!(!some.allows(Permission::Read, "team"));
        assert_eq!(some.grants().map(|(namespace, set)| format!("{namespace}={set}")).collect::<Vec<_>>(), ["lab=backup,forget"]);
    }

    #[test]
    fn words_that_are_no_permissions_are_refused() {
        for text in ["", "write", "read,", "read, backup", "Read", "all"] {
            assert!(text.parse::<PermissionSet>().is_err(), "{text:?}");
        }
    }
}
