//! Targets in the settings file: `[[target]]`, any number of them.

use super::items::{ItemKey, parse_items, wrong};
use super::keys::Value;
use super::{Kind, SettingsError, check_value, describe, texts};
use onefold_targets::{Account, Digest, MAX_LUN, Network, Target, whole_name};
use std::collections::BTreeMap;
use toml::de::DeValue;

/// A target of the file. It names its volumes, as the file does not know their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTarget {
    /// Everything but the units.
    pub target: Target,
    /// Its units, by LUN.
    pub luns: BTreeMap<u16, FileUnit>,
    chap: [Option<String>; 2],
    mutual: [Option<String>; 2],
}

/// A volume of a target of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUnit {
    /// Its name.
    pub volume: String,
    /// Whether initiators may eject and load its medium.
    pub is_removable: bool,
}

fn text(value: &DeValue<'_>) -> Result<Option<String>, String> {
    match check_value(Kind::Text, value)? {
        Value::Text(text) => Ok(text),
        _ => Ok(None),
    }
}

fn digest(value: &DeValue<'_>) -> Result<Digest, String> {
    let wanted = || format!("is {}, it must be \"optional\", \"required\" or \"off\"", describe(value));
    text(value).ok().flatten().and_then(|name| Digest::of(&name)).ok_or_else(wanted)
}

/// Reads a volume: its name, or a table with its name and options.
fn unit(value: &DeValue<'_>) -> Option<FileUnit> {
    let DeValue::Table(entries) = value else {
        return Some(FileUnit { volume: text(value).ok().flatten()?, is_removable: false });
    };
    let (mut volume, mut is_removable) = (None, false);
    for (key, value) in entries {
        match key.get_ref().as_ref() {
            "volume" => volume = text(value.get_ref()).ok()?,
            "removable" => is_removable = matches!(check_value(Kind::Flag, value.get_ref()).ok()?, Value::Flag(true)),
            _ => return None,
        }
    }
    Some(FileUnit { volume: volume?, is_removable })
}

fn luns(value: &DeValue<'_>) -> Result<BTreeMap<u16, FileUnit>, String> {
    let wanted = || {
        let example = "{ 0 = \"disk\", 1 = { volume = \"stick\", removable = true } }";
        format!("must name volumes by numbers from 0 to {MAX_LUN}, as in {example}")
    };
    let DeValue::Table(entries) = value else { return Err(wanted()) };
    let mut luns = BTreeMap::new();
    for (lun, volume) in entries {
        let lun = lun.get_ref().parse::<u16>().ok().filter(|lun| *lun <= MAX_LUN).ok_or_else(wanted)?;
        luns.insert(lun, unit(volume.get_ref()).ok_or_else(wanted)?);
    }
    Ok(luns)
}

/// All keys of `[[target]]`.
pub const TARGET_KEYS: &[ItemKey<FileTarget>] = &[
    ItemKey {
        name: "name",
        default: "",
        values: "a text",
        about: "Its name; one that does not begin with iqn., eui. or naa. gets iqn.2026-01.io.github.onefold: before it.",
        set: |target, value| {
            let name = text(value)?.ok_or("must not be empty")?;
            target.target.name = whole_name(&name).map_err(|error| format!("is wrong: {error}"))?;
            Ok(())
        },
    },
    ItemKey {
        name: "luns",
        default: "{}",
        values: "names of volumes by numbers from 0 to 16383, as in { 0 = \"disk\", 1 = { volume = \"stick\", removable = true } }",
        about: "What it shows. A volume is in one target at a time; of one that is removable initiators may take the medium out and put it back.",
        set: |target, value| {
            target.luns = luns(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "initiators",
        default: "[]",
        values: "a list of names, with * for any number of characters and ? for one",
        about: "Who may use it; none: all.",
        set: |target, value| {
            target.target.initiators = texts(value, "names of initiators")?;
            Ok(())
        },
    },
    ItemKey {
        name: "networks",
        default: "[]",
        values: "a list of networks, as in \"10.1.0.0/16\"",
        about: "From where; none: from everywhere.",
        set: |target, value| {
            let networks = texts(value, "networks")?;
            target.target.networks =
                networks.iter().map(|text| text.parse::<Network>()).collect::<Result<_, _>>().map_err(|why| format!("is wrong: {why}"))?;
            Ok(())
        },
    },
    ItemKey {
        name: "chap_user",
        default: "\"\"",
        values: "a text; \"\" for none",
        about: "The name that initiators must show by CHAP.",
        set: |target, value| {
            target.chap[0] = text(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "chap_secret_file",
        default: "\"\"",
        values: "a text; \"\" for none",
        about: "File with the secret of that name, 12 to 128 bytes (for Windows 12 to 16), which others may not read.",
        set: |target, value| {
            target.chap[1] = text(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "mutual_user",
        default: "\"\"",
        values: "a text; \"\" for none",
        about: "The target's own name, for initiators that ask it to prove itself.",
        set: |target, value| {
            target.mutual[0] = text(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "mutual_secret_file",
        default: "\"\"",
        values: "a text; \"\" for none",
        about: "File with its secret: another one than that of the initiators.",
        set: |target, value| {
            target.mutual[1] = text(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "header_digest",
        default: "\"optional\"",
        values: "\"optional\", \"required\" or \"off\"",
        about: "CRC32C over the headers of all PDUs.",
        set: |target, value| {
            target.target.header_digest = digest(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "data_digest",
        default: "\"optional\"",
        values: "\"optional\", \"required\" or \"off\"",
        about: "CRC32C over all data.",
        set: |target, value| {
            target.target.data_digest = digest(value)?;
            Ok(())
        },
    },
    ItemKey {
        name: "max_sessions",
        default: "0",
        values: "a number from 0 to 65535",
        about: "Sessions at a time; 0: as many as the daemon takes.",
        set: |target, value| {
            if let Value::Number(number) = check_value(Kind::Count { least: 0, most: 65_535 }, value)? {
                target.target.max_sessions = number as u32;
            }
            Ok(())
        },
    },
    ItemKey {
        name: "read_only",
        default: "false",
        values: "true or false",
        about: "Write-protect all its LUNs.",
        set: |target, value| {
            target.target.is_read_only = matches!(check_value(Kind::Flag, value)?, Value::Flag(true));
            Ok(())
        },
    },
];

/// Reads all targets of the file.
pub(super) fn parse_targets(whole: &str, line: usize, content: &DeValue<'_>) -> Result<Vec<FileTarget>, SettingsError> {
    let mut targets: Vec<FileTarget> = Vec::new();
    for (line, target) in parse_items(whole, line, "target", TARGET_KEYS, content)? {
        if target.target.name.is_empty() {
            return Err(wrong(line, "target", "name", "is missing: each target has one".to_owned()));
        }
        for (key, [user, file]) in [("chap", &target.chap), ("mutual", &target.mutual)] {
            if user.is_some() != file.is_some() {
                let why = format!("and {key}_secret_file go together: give both or none");
                return Err(wrong(line, "target", &format!("{key}_user"), why));
            }
        }
        if let Some(other) = targets.iter().find(|other| other.target.name == target.target.name) {
            return Err(SettingsError::Contradiction { why: format!("two targets have the name {}: rename one", other.target.name) });
        }
        targets.push(target.settled());
    }
    Ok(targets)
}

impl FileTarget {
    fn settled(mut self) -> FileTarget {
        let account = |[user, file]: &[Option<String>; 2]| {
            user.clone().zip(file.clone()).map(|(name, file)| Account { name, secret_file: file.into() })
        };
        self.target.accounts = account(&self.chap).into_iter().collect();
        self.target.own_account = account(&self.mutual);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse_settings;

    #[test]
    fn every_key_of_a_target_is_documented_with_its_default() {
        crate::settings::items::check_documented("target", TARGET_KEYS);
    }

    #[test]
    fn the_defaults_of_a_target_are_the_defaults() {
        let keys = TARGET_KEYS.iter().filter(|key| !key.default.is_empty()).map(|key| format!("{} = {}\n", key.name, key.default));
        let written = format!("[[target]]\nname = \"a\"\n{}", keys.collect::<String>());
        let settings = parse_settings(&written).unwrap();
        assert_eq!(settings.targets, parse_settings("[[target]]\nname = \"a\"\n").unwrap().targets);
        assert_eq!(settings.targets[0].target.name, "iqn.2026-01.io.github.onefold:a");
    }

    #[test]
    fn a_volume_of_a_target_is_a_name_or_a_table() {
        let text =
            "[[target]]\nname = \"a\"\nluns = { 0 = \"disk\", 3 = { volume = \"stick\", removable = true }, 4 = { volume = \"logs\" } }";
        let unit = |volume: &str, is_removable| FileUnit { volume: volume.to_owned(), is_removable };
        let luns = BTreeMap::from([(0, unit("disk", false)), (3, unit("stick", true)), (4, unit("logs", false))]);
        assert_eq!(parse_settings(text).unwrap().targets[0].luns, luns);
    }

    #[test]
    fn what_is_wrong_with_a_target_is_said_with_its_line() {
        for (text, expected) in [
            ("[target]\nname = \"a\"", "line 1: write [[target]], with two brackets"),
            ("[[target]]\nluns = {}", "line 1: target.name is missing"),
            ("[[target]]\nname = \"a\"\nluns = [\"disk\"]", "line 3: target.luns must name volumes by numbers from 0 to 16383"),
            ("[[target]]\nname = \"a\"\nluns = { x = \"disk\" }", "line 3: target.luns must name volumes"),
            ("[[target]]\nname = \"a\"\nluns = { 0 = { volume = \"x\", removabel = true } }", "line 3: target.luns must name volumes"),
            ("[[target]]\nname = \"a\"\nluns = { 0 = { removable = true } }", "line 3: target.luns must name volumes"),
            ("[[target]]\nname = \"a\"\nnetworks = [\"10.0.0.1/8\"]", "line 3: target.networks is wrong: `10.0.0.1/8` is not a network"),
            ("[[target]]\nname = \"a\"\nheader_digest = \"yes\"", "line 3: target.header_digest is \"yes\", it must be \"optional\""),
            ("[[target]]\nname = \"a\"\nmutual_user = \"x\"", "line 1: target.mutual_user and mutual_secret_file go together"),
            ("[[target]]\nname = \"a b\"", "line 2: target.name is wrong: \"a b\" is not a valid target name"),
        ] {
            let error = parse_settings(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
