//! Sections of the settings file that may be there several times: `[[target]]`, `[[filesystem]]`.

use super::{SettingsError, line_of};
use onefold_ground::words::nearest;
use toml::de::DeValue;

/// One key of such a section.
#[derive(Debug)]
pub struct ItemKey<T> {
    /// Its name.
    pub name: &'static str,
    /// The default in TOML notation. Empty: the key is required.
    pub default: &'static str,
    /// The allowed values, for people.
    pub values: &'static str,
    /// What it does, in one sentence.
    pub about: &'static str,
    pub(super) set: fn(&mut T, &DeValue<'_>) -> Result<(), String>,
}

/// Reads all sections of a name, each with the line where it begins.
pub(super) fn parse_items<T: Default>(
    whole: &str,
    line: usize,
    section: &str,
    keys: &[ItemKey<T>],
    content: &DeValue<'_>,
) -> Result<Vec<(usize, T)>, SettingsError> {
    let DeValue::Array(items) = content else {
        return Err(SettingsError::Syntax { line, why: format!("write [[{section}]], with two brackets: there may be several") });
    };
    let mut all = Vec::new();
    for item in items.iter() {
        let line = line_of(whole, item.span().start);
        let DeValue::Table(entries) = item.get_ref() else {
            return Err(SettingsError::Syntax { line, why: format!("a {section} is a section, [[{section}]]") });
        };
        let mut read = T::default();
        for (name, value) in entries {
            let line = line_of(whole, name.span().start);
            let name: &str = name.get_ref();
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                let nearest = nearest(name, keys.iter().map(|key| key.name)).map(str::to_owned);
                return Err(SettingsError::UnknownKey { line, section: format!("[{section}]"), key: name.to_owned(), nearest });
            };
            (key.set)(&mut read, value.get_ref()).map_err(|why| wrong(line, section, name, why))?;
        }
        all.push((line, read));
    }
    Ok(all)
}

/// Returns the error of a value.
pub(super) fn wrong(line: usize, section: &str, key: &str, why: String) -> SettingsError {
    SettingsError::Value { line, section: section.to_owned(), key: key.to_owned(), why }
}

/// Returns whether a document has the row of a key.
#[cfg(test)]
pub(super) fn check_documented<T>(section: &str, keys: &[ItemKey<T>]) {
    let document = include_str!("../../../../docs/configuration.md");
    for key in keys {
        let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
        let row = format!("| `{}` | {default} | {} | {} |", key.name, key.values, key.about);
        assert!(document.contains(&row), "docs/configuration.md lacks, in section [[{section}]]:\n{row}");
    }
}
