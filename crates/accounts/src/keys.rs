//! Keys of the objects: `z`, a letter for the kind, then the name of the account with zeros up to 64 bytes. All have
//! the same length, as the object index wants of keys with one first letter.

use super::record::{MAX_NAME_BYTES, is_valid_name};

/// The partition of all these objects.
pub(crate) const PARTITION: u16 = 0;
/// First byte of all keys.
pub(crate) const PREFIX: u8 = b'z';
/// Second byte of the keys of accounts.
const ACCOUNT: u8 = b'a';
/// Second byte of the keys of the new bytes of a day.
const DAY: u8 = b'd';

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// The account of this name.
    Account(&'a str),
    /// The new bytes of a day of the account of this name.
    Day(&'a str),
}

/// Returns the key of an account.
pub(crate) fn account(name: &str) -> Vec<u8> {
    key(ACCOUNT, name)
}

/// Returns the key of the new bytes of a day of an account.
pub(crate) fn day(name: &str) -> Vec<u8> {
    key(DAY, name)
}

fn key(letter: u8, name: &str) -> Vec<u8> {
    let mut key = [&[PREFIX, letter], name.as_bytes()].concat();
    key.resize(2 + MAX_NAME_BYTES, 0);
    key
}

/// Returns the first key of accounts, and the first key behind them.
pub(crate) fn accounts() -> ([u8; 2], [u8; 2]) {
    ([PREFIX, ACCOUNT], [PREFIX, ACCOUNT + 1])
}

/// Returns what the object of a key is. `None`: no object has such a key.
pub(crate) fn kind(key: &[u8]) -> Option<Kind<'_>> {
    let [PREFIX, letter, name @ ..] = key else { return None };
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() == MAX_NAME_BYTES)?;
    let name = Some(name.trim_end_matches('\0')).filter(|name| is_valid_name(name))?;
    match *letter {
        ACCOUNT => Some(Kind::Account(name)),
        DAY => Some(Kind::Day(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_name_and_all_keys_are_equally_long() {
        let long = "x".repeat(64);
        for name in ["a", "ann", &long] {
            assert_eq!((kind(&account(name)), kind(&day(name))), (Some(Kind::Account(name)), Some(Kind::Day(name))));
            assert_eq!((account(name).len(), day(name).len()), (66, 66));
        }
        for wrong in
            [&b""[..], b"z", b"za", b"zaann", &account("Ann"), &account("a\0b"), &[&account("ann")[..], &[0]].concat(), &key(b'x', "ann")]
        {
            assert_eq!(kind(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
