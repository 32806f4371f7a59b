//! Snapshots that the store makes for itself: one for the newest backup of a filesystem, so that the next one knows
//! what changed since (decision 0064). Users see none of them.

use std::fmt::Write;

/// What the names of these snapshots begin with; the id of the backup follows.
const PREFIX: &str = ".backup-";

/// Returns the name of the snapshot that a backup was made from.
pub fn snapshot_of_backup(id: &[u8; 16]) -> String {
    id.iter().fold(PREFIX.to_owned(), |mut name, byte| {
        // Writing to a text does not fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Returns the id of the backup that a snapshot belongs to. `None`: it is a user's. Whoever shows snapshots, or takes
/// names of new ones, leaves these out.
pub fn backup_of_snapshot(name: &str) -> Option<[u8; 16]> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 32)?;
    let is_lower = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_lower.then(|| u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_of_snapshots_of_backups_have_an_id() {
        let id = [0, 0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 255];
        let name = snapshot_of_backup(&id);
        assert_eq!((name.as_str(), backup_of_snapshot(&name)), (".backup-00ab0102030405060708090a0b0c0dff", Some(id)));
        for other in ["", "before", ".backup-", ".backup-x", &name[1..], &format!("{name}0"), &name.to_uppercase(), &name.replace('f', "F")]
        {
            assert_eq!(backup_of_snapshot(other), None, "{other}");
        }
    }
}
