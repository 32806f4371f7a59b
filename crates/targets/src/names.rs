//! Names of targets (RFC 7143 section 4.2.7).

use crate::error::{Result, TargetError};

/// The prefix of names that are not complete.
pub const DEFAULT_AUTHORITY: &str = "iqn.2026-01.io.github.onefold:";
/// Longest name, bytes (RFC 7143 section 4.2.7.2).
const MAX_NAME_BYTES: usize = 223;

/// Returns the iSCSI name that is meant. Names of the kinds `iqn.`, `eui.` and `naa.` stay as they are; anything else
/// gets the prefix [`DEFAULT_AUTHORITY`]. The result is in lower case, as the RFC prescribes.
pub fn whole_name(given: &str) -> Result<String> {
    let wrong = |reason: &'static str| TargetError::Name { name: given.to_owned(), reason };
    let given = given.to_ascii_lowercase();
    if given.is_empty() {
        return Err(wrong("it is empty"));
    }
    let name =
        if ["iqn.", "eui.", "naa."].iter().any(|kind| given.starts_with(kind)) { given } else { format!("{DEFAULT_AUTHORITY}{given}") };
    if name.len() > MAX_NAME_BYTES {
        return Err(wrong("it is longer than 223 bytes"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte)) {
        return Err(wrong("it may have only letters without accents, digits, and - . :"));
    }
    let (kind, rest) = name.split_at(4);
    let is_hex = rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    match kind {
        "eui." if rest.len() != 16 || !is_hex => Err(wrong("after eui. it must have 16 hexadecimal digits")),
        "naa." if !matches!(rest.len(), 16 | 32) || !is_hex => Err(wrong("after naa. it must have 16 or 32 hexadecimal digits")),
        "iqn." if !is_qualified(rest) => Err(wrong("write it as in iqn.2026-01.com.example:disks")),
        _ => Ok(name),
    }
}

/// Returns whether it is a year and month, a dot, a reversed domain name, and perhaps a colon and more.
fn is_qualified(rest: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((date, rest)) = rest.split_at_checked(8) else { return false };
    let domain = rest.split(':').next().unwrap_or_default();
    let is_date = digits(&date[..4]) && &date[4..5] == "-" && digits(&date[5..7]) && &date[7..] == ".";
    is_date && !domain.is_empty() && !domain.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_whole() {
        assert_eq!(whole_name("disks").unwrap(), "iqn.2026-01.io.github.onefold:disks");
        for name in ["iqn.2001-04.com.example:a-b.c", "iqn.2001-04.com.example", "eui.02004567a425678d", "naa.52004567ba64678d"] {
            assert_eq!(whole_name(name).unwrap(), name);
        }
        assert_eq!(whole_name("IQN.2001-04.com.Example:A").unwrap(), "iqn.2001-04.com.example:a");
        let long = "x".repeat(200);
        for name in ["", "a b", "a,b", "ä", "iqn.2001-4.com.example", "iqn.", "iqn.2001-04.:x", "eui.12", "naa.xx", &long] {
            assert!(whole_name(name).is_err(), "{name:?}");
        }
    }
}
