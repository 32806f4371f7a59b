//! Filesystems that the daemon mounts when it starts: `[[filesystem]]`, any number of them.

use super::items::{ItemKey, parse_items, wrong};
use super::keys::Value;
use super::{Kind, SettingsError, check_value};
use std::path::PathBuf;
use toml::de::DeValue;

/// A filesystem that the daemon mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMount {
    /// Its name.
    pub name: String,
    /// The directory at which it appears.
    pub place: PathBuf,
    /// Whether other users see it, too.
    pub allows_others: bool,
    /// Whether nobody can write.
    pub is_read_only: bool,
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match check_value(Kind::Text, value)? {
        Value::Text(Some(text)) => Ok(text),
        _ => Err("must not be empty".to_owned()),
    }
}

fn flag(value: &DeValue<'_>) -> Result<bool, String> {
    Ok(matches!(check_value(Kind::Flag, value)?, Value::Flag(true)))
}

/// All keys of `[[filesystem]]`.
pub const FILESYSTEM_KEYS: &[ItemKey<FileMount>] = &[
    ItemKey {
        name: "name",
        default: "",
        values: "a text",
        about: "Name of the filesystem, of a snapshot or of a clone (`onefold fs list`).",
        set: |mount, value| text(value).map(|name| mount.name = name),
    },
    ItemKey {
        name: "mount",
        default: "",
        values: "a path from the root",
        about: "Directory at which it appears.",
        set: |mount, value| {
            mount.place = PathBuf::from(text(value)?);
            if mount.place.is_absolute() { Ok(()) } else { Err("must be a path from the root, as in \"/srv/files\"".to_owned()) }
        },
    },
    ItemKey {
        name: "allow_other",
        default: "false",
        values: "true or false",
        about: "Show it to other users, too, within the permissions of the files. What root mounts, all users see.",
        set: |mount, value| flag(value).map(|is_set| mount.allows_others = is_set),
    },
    ItemKey {
        name: "read_only",
        default: "false",
        values: "true or false",
        about: "Nobody can write.",
        set: |mount, value| flag(value).map(|is_set| mount.is_read_only = is_set),
    },
];

/// Reads all filesystems of the file.
pub(super) fn parse_filesystems(whole: &str, line: usize, content: &DeValue<'_>) -> Result<Vec<FileMount>, SettingsError> {
    let mut mounts: Vec<FileMount> = Vec::new();
    for (line, mount) in parse_items(whole, line, "filesystem", FILESYSTEM_KEYS, content)? {
        for (key, is_missing) in [("name", mount.name.is_empty()), ("mount", mount.place.as_os_str().is_empty())] {
            if is_missing {
                return Err(wrong(line, "filesystem", key, "is missing: each filesystem has one".to_owned()));
            }
        }
        if let Some(other) = mounts.iter().find(|other| other.place == mount.place) {
            return Err(SettingsError::Contradiction { why: format!("two filesystems are mounted at {}", other.place.display()) });
        }
        mounts.push(mount);
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse_settings;

    #[test]
    fn every_key_of_a_filesystem_is_documented_with_its_default() {
        crate::settings::items::check_documented("filesystem", FILESYSTEM_KEYS);
    }

    #[test]
    fn filesystems_of_the_file_are_read_or_what_is_wrong_is_said() {
        let text = "[[filesystem]]\nname = \"a\"\nmount = \"/a\"\nread_only = true\n[[filesystem]]\nname = \"a\"\nmount = \"/b\"\nallow_other = true\n";
        let mount =
            |place: &str, allows_others, is_read_only| FileMount { name: "a".to_owned(), place: place.into(), allows_others, is_read_only };
        assert_eq!(parse_settings(text).unwrap().filesystems, [mount("/a", false, true), mount("/b", true, false)]);
        for (text, expected) in [
            ("[filesystem]\nname = \"a\"", "line 1: write [[filesystem]], with two brackets"),
            ("[[filesystem]]\nmount = \"/a\"", "line 1: filesystem.name is missing"),
            ("[[filesystem]]\nname = \"a\"", "line 1: filesystem.mount is missing"),
            ("[[filesystem]]\nname = \"a\"\nmount = \"a\"", "line 3: filesystem.mount must be a path from the root"),
            ("[[filesystem]]\nname = \"a\"\nmuont = \"/a\"", "line 3: unknown key `muont` in [[filesystem]]; did you mean `mount`?"),
        ] {
            let error = parse_settings(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let twice = "[[filesystem]]\nname = \"a\"\nmount = \"/a\"\n[[filesystem]]\nname = \"b\"\nmount = \"/a\"\n";
        assert!(parse_settings(twice).unwrap_err().to_string().contains("two filesystems are mounted at /a"));
    }
}
