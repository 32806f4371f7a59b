//! Namespaces: which backups a grant is for.
//!
//! A backup belongs to a namespace by its name. The backups of `team/host` are those named `team/host`, and those whose
//! name begins with `team/host/`. A backup without a server may have any name. It belongs to a namespace if its name
//! happens to match in the same way.

use super::error::{AccountError, Result};
use std::fmt;
use std::str::FromStr;

/// Most components of a namespace.
const MAX_COMPONENTS: usize = 8;
/// Longest namespace, bytes.
pub(crate) const MAX_BYTES: usize = 255;

/// A path such as `team/host`. The empty one stands for all backups, and is written `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(String);

impl Namespace {
    /// Returns the namespace of all backups.
    pub fn all() -> Namespace {
        Namespace::default()
    }

    /// Returns the namespace with a path. The empty path is that of all backups. Errors: a component is empty, `.` or
    /// `..`, or has other characters than `A-Z a-z 0-9 . _ -`; there are more than 8; it has more than 255 bytes.
    pub fn new(path: &str) -> Result<Namespace> {
        let wrong = |reason| AccountError::Namespace { namespace: path.chars().take(MAX_BYTES + 1).collect(), reason };
        if path.is_empty() {
            return Ok(Namespace::all());
        }
        if path.len() > MAX_BYTES {
            return Err(wrong("it is longer than 255 bytes"));
        }
        if path.split('/').count() > MAX_COMPONENTS {
            return Err(wrong("it has more than 8 components"));
        }
        for component in path.split('/') {
            if component.is_empty() {
                return Err(wrong("a component is empty"));
            }
            if matches!(component, "." | "..") {
                return Err(wrong("a component is . or .."));
            }
            if !component.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
                return Err(wrong("a component may have only letters without accents, digits, and . _ -"));
            }
        }
        Ok(Namespace(path.to_owned()))
    }

    /// Returns the path. It is empty for all backups.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether it is that of all backups.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Namespace {
    type Err = AccountError;

    /// Reads a path, or `*` for all backups.
    fn from_str(text: &str) -> Result<Namespace> {
        if text == "*" { Ok(Namespace::all()) } else { Namespace::new(text) }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.is_all() { "*" } else { &self.0 })
    }
}

/// Returns whether a backup of this name belongs to a namespace.
pub fn covers(namespace: &Namespace, backup_name: &str) -> bool {
    match backup_name.strip_prefix(namespace.as_str()) {
        Some(rest) => namespace.is_all() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Returns whether a backup may get this name over the network: a path like that of a namespace, and not empty.
/// Backups without a server may have other names.
pub fn is_valid_backup_name(name: &str) -> bool {
    Namespace::new(name).is_ok_and(|namespace| !namespace.is_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_namespace_covers_itself_and_everything_below_and_nothing_beside() {
        for (namespace, name, expected) in [
            ("team", "team", true),
            ("team", "team/host", true),
            ("team", "team/host/data", true),
            ("team", "team2", false),
            ("team", "team-a/x", false),
            ("team", "tea", false),
            ("team", "", false),
            ("team", "Team", false),
            ("team", "a/team", false),
            ("team/host", "team", false),
            ("team/host", "team/host/x", true),
            ("team/host", "team/hosts", false),
            ("", "anything at all", true),
            ("", "", true),
            ("home", "home", true),
        ] {
            assert_eq!(covers(&Namespace::new(namespace).unwrap(), name), expected, "{namespace:?} {name:?}");
        }
    }

    #[test]
    fn a_namespace_is_a_plain_path_of_bounded_length() {
        for path in ["", "a", "team/Host-1.example_x", "a/b/c/d/e/f/g/h", &"x".repeat(255)] {
            assert_eq!(Namespace::new(path).unwrap().as_str(), path);
        }
        let long = "x".repeat(256);
        for path in ["/", "a/", "/a", "a//b", ".", "a/..", "a/./b", "ä", "a b", "a\n", "*", "a/b/c/d/e/f/g/h/i", &long] {
            assert!(Namespace::new(path).is_err(), "{path:?}");
        }
        assert!("*".parse::<Namespace>().unwrap().is_all() && Namespace::all().to_string() == "*");
        assert!(is_valid_backup_name("team/x") && !is_valid_backup_name("") && !is_valid_backup_name("a/../b"));
    }

    proptest! {
        #[test]
        fn covering_is_equality_or_a_prefix_at_a_border(namespace in "[ab]{1,2}(/[ab]{1,2}){0,2}", name in "[ab/]{0,6}") {
            let expected = name == namespace || name.starts_with(&format!("{namespace}/"));
            prop_assert_eq!(covers(&Namespace::new(&namespace).unwrap(), &name), expected);
        }
    }
}
