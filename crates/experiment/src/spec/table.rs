//! Reads tables of a declaration: typed values, and errors with their line.

use onefold_ground::size::{parse_size, size};
use onefold_ground::words::nearest;
use std::ops::RangeInclusive;
use toml::de::{DeTable, DeValue};

/// Why a text is not a declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It is not TOML.
    #[error("line {line}: {why}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        why: String,
    },
    /// An unknown key.
    #[error("line {line}: unknown key `{key}`{}{}", .place, meant(.nearest.as_deref()))]
    UnknownKey {
        /// The line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// Its place, such as ` in [run]`; empty at the top.
        place: String,
        /// The nearest known key.
        nearest: Option<String>,
    },
    /// A value that the key does not allow.
    #[error("line {line}: {key} {why}")]
    Value {
        /// The line, from 1.
        line: usize,
        /// The key with its table, such as `run.depth`.
        key: String,
        /// What is wrong with it, and what is allowed: the rest of a sentence.
        why: String,
    },
    /// A required key is missing.
    #[error("{key} is missing: {why}")]
    Missing {
        /// The key with its table.
        key: String,
        /// Its purpose.
        why: String,
    },
    /// Values contradict each other.
    #[error("{why}")]
    Contradiction {
        /// Which, and why.
        why: String,
    },
}

/// The result of reading.
pub type Result<T> = std::result::Result<T, SpecError>;

/// Returns the question after an unknown word.
pub(super) fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// Returns the line of a place in a text, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// A table, or a placeholder for a missing one: all its values are absent.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    /// The whole text, in which lines are counted.
    text: &'a str,
    /// Its name for people, such as `devices.ssd`; empty: the top.
    name: String,
    entries: Option<&'a DeTable<'a>>,
}

/// A value with its line.
pub(super) type Found<'a> = (usize, &'a DeValue<'a>);

impl<'a> Table<'a> {
    /// Returns the top of a document.
    pub(super) fn top(text: &'a str, entries: &'a DeTable<'a>) -> Table<'a> {
        Table { text, name: String::new(), entries: Some(entries) }
    }

    /// Returns a key with the name of its table.
    pub(super) fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Refuses unknown keys.
    pub(super) fn only(self, known: &[&str]) -> Result<Table<'a>> {
        for (key, _) in self.entries.into_iter().flatten() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
                let nearest = nearest(name, known.iter().copied()).map(str::to_owned);
                return Err(SpecError::UnknownKey { line: line_of(self.text, key.span().start), key: name.to_owned(), place, nearest });
            }
        }
        Ok(self)
    }

    /// Returns the whole content; empty for a missing table.
    pub(super) fn content(&self) -> DeTable<'a> {
        self.entries.cloned().unwrap_or_default()
    }

    /// Returns the keys, sorted, with their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Found<'a>)> {
        let text = self.text;
        self.entries.into_iter().flatten().map(move |(key, value)| {
            let name: &'a str = key.get_ref();
            (name, (line_of(text, key.span().start), value.get_ref()))
        })
    }

    /// Returns a value.
    pub(super) fn get(&self, key: &str) -> Option<Found<'a>> {
        let (key, value) = self.entries?.get_key_value(key)?;
        Some((line_of(self.text, key.span().start), value.get_ref()))
    }

    /// Returns the error of a wrong value.
    pub(super) fn wrong(&self, key: &str, line: usize, why: impl Into<String>) -> SpecError {
        SpecError::Value { line, key: self.path(key), why: why.into() }
    }

    /// Returns the error of a value of the wrong kind.
    fn expected(&self, key: &str, (line, value): Found<'_>, what: &str) -> SpecError {
        self.wrong(key, line, format!("is {}, it must be {what}", describe(value)))
    }

    /// Returns the error of a missing value.
    pub(super) fn missing(&self, key: &str, why: &str) -> SpecError {
        SpecError::Missing { key: self.path(key), why: why.to_owned() }
    }

    /// Returns the table below a key.
    pub(super) fn table(&self, key: &str) -> Result<Table<'a>> {
        let entries = match self.get(key) {
            None => None,
            Some((_, DeValue::Table(entries))) => Some(entries),
            Some(found) => return Err(self.expected(key, found, "a table")),
        };
        Ok(Table { text: self.text, name: self.path(key), entries })
    }

    /// Returns the tables of an array of tables: `[[key]]`.
    pub(super) fn tables(&self, key: &str) -> Result<Vec<Table<'a>>> {
        let items = match self.get(key) {
            None => return Ok(Vec::new()),
            Some((_, DeValue::Array(items))) => items,
            Some(found) => return Err(self.expected(key, found, "an array of tables")),
        };
        let table = |item: &'a toml::Spanned<DeValue<'a>>| match item.get_ref() {
            DeValue::Table(entries) => Ok(Table { text: self.text, name: self.path(key), entries: Some(entries) }),
            value => Err(self.expected(key, (line_of(self.text, item.span().start), value), "an array of tables")),
        };
        items.iter().map(table).collect()
    }

    /// Returns a text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some((_, DeValue::String(text))) => Ok(Some(text)),
            Some(found) => Err(self.expected(key, found, "a text")),
        }
    }

    /// Returns a required text of one line.
    pub(super) fn words(&self, key: &str, why: &str) -> Result<String> {
        let text = self.text(key)?.ok_or_else(|| self.missing(key, why))?;
        let line = self.get(key).map_or(1, |(line, _)| line);
        match text.trim() {
            "" => Err(self.wrong(key, line, format!("is empty: {why}"))),
            text if text.chars().any(char::is_control) => Err(self.wrong(key, line, "has a control character in it")),
            text => Ok(text.to_owned()),
        }
    }

    /// Returns one of several words.
    pub(super) fn choice<T: Copy>(&self, key: &str, of: &[(&str, T)]) -> Result<Option<T>> {
        let Some(name) = self.text(key)? else { return Ok(None) };
        if let Some((_, choice)) = of.iter().find(|(known, _)| *known == name) {
            return Ok(Some(*choice));
        }
        let names: Vec<&str> = of.iter().map(|(known, _)| *known).collect();
        let hint = meant(nearest(name, names.iter().copied()));
        let line = self.get(key).map_or(1, |(line, _)| line);
        Err(self.wrong(key, line, format!("is {name:?}, it must be one of {}{hint}", names.join(", "))))
    }

    /// Returns a text parsed by its type.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let line = self.get(key).map_or(1, |(line, _)| line);
        text.parse().map(Some).map_err(|error: T::Err| self.wrong(key, line, format!("is wrong: {error}")))
    }

    /// Returns true or false.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some((_, DeValue::Boolean(flag))) => Ok(*flag),
            Some(found) => Err(self.expected(key, found, "true or false")),
        }
    }

    /// Returns an integer in a range.
    pub(super) fn count(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match whole(found.1).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.expected(key, found, &format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Returns a size in a range. A number without a unit is bytes.
    pub(super) fn size(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let wanted = || format!("a size from {} to {}, as in \"64MiB\"", size(*range.start()), size(*range.end()));
        let bytes = match found.1 {
            DeValue::String(text) => parse_size(text).map_err(|error| self.wrong(key, found.0, format!("is no size: {error}")))?,
            value => whole(value).ok_or_else(|| self.expected(key, found, &wanted()))?,
        };
        if range.contains(&bytes) { Ok(Some(bytes)) } else { Err(self.expected(key, found, &wanted())) }
    }

    /// Returns a number that is not negative.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let number = match found.1 {
            DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
            value => whole(value).map(|number| number as f64),
        };
        let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Some).ok_or_else(|| self.expected(key, found, "a number that is not negative"))
    }

    /// Returns a list of texts, each with its line.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<(usize, &'a str)>> {
        let items = match self.get(key) {
            None => return Ok(Vec::new()),
            Some((_, DeValue::Array(items))) => items,
            Some(found) => return Err(self.expected(key, found, "a list of texts")),
        };
        let text = |item: &'a toml::Spanned<DeValue<'a>>| match (line_of(self.text, item.span().start), item.get_ref()) {
            (line, DeValue::String(text)) => Ok((line, &**text)),
            found => Err(self.expected(key, found, "a list of texts")),
        };
        items.iter().map(text).collect()
    }
}

fn whole(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::Integer(integer) => u64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok(),
        _ => None,
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        value => as_toml(value),
    }
}

/// Formats a value as TOML, on one line.
pub(super) fn as_toml(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(integer) => integer.to_string(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => format!("[{}]", items.iter().map(|item| as_toml(item.get_ref())).collect::<Vec<_>>().join(", ")),
        DeValue::Table(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{} = {}", as_key(key.get_ref()), as_toml(value.get_ref())));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Quotes a text for TOML: escaped as in JSON, and one letter more.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Formats a key as TOML.
fn as_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// Appends all values of a table as lines of TOML. Values of inner tables have dotted keys.
pub(super) fn lines(prefix: &str, entries: &DeTable<'_>, out: &mut Vec<(String, String)>) {
    for (key, value) in entries {
        let path = if prefix.is_empty() { as_key(key.get_ref()) } else { format!("{prefix}.{}", as_key(key.get_ref())) };
        match value.get_ref() {
            DeValue::Table(entries) => lines(&path, entries, out),
            value => out.push((path, as_toml(value))),
        }
    }
}

/// Lays one table over another. Keys of only one of them stay; tables in both are merged recursively.
pub(super) fn lay_over<'a>(base: &mut DeTable<'a>, upper: &DeTable<'a>) {
    for (key, value) in upper {
        let mut value = value.clone();
        // Take key and value from the upper table, so that lines belong to the effective value. Inside tables of both,
        // each value keeps its own line.
        if let Some(below) = base.remove(&**key.get_ref())
            && let (DeValue::Table(below), DeValue::Table(above)) = (below.into_inner(), value.get_mut())
        {
            let mut both = below;
            lay_over(&mut both, above);
            *above = both;
        }
        base.insert(key.clone(), value);
    }
}
