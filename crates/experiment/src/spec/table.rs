//! Reading tables of a declaration: values of a kind, with the line of whatever is wrong.

use onefold_ground::size::{parse_size, size};
use onefold_ground::words::nearest;
use std::ops::RangeInclusive;
use toml::de::{DeTable, DeValue};

/// Why a text is no declaration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not TOML.
    #[error("line {line}: {why}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        why: String,
    },
    /// An unknown key.
    #[error("line {line}: unknown key `{key}`{}{}", .place, meant(.nearest.as_deref()))]
    UnknownKey {
        /// The line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// Where it stands, as ` in [run]`; empty at the top.
        place: String,
        /// The known one that is nearest.
        nearest: Option<String>,
    },
    /// A value that the key cannot have.
    #[error("line {line}: {key} {why}")]
    Value {
        /// The line, from 1.
        line: usize,
        /// The key with its table, as `run.depth`.
        key: String,
        /// What is wrong with it, and what is allowed: the rest of a sentence.
        why: String,
    },
    /// A key that has to be there.
    #[error("{key} is missing: {why}")]
    Missing {
        /// The key with its table.
        key: String,
        /// What it is for.
        why: String,
    },
    /// Values that do not go together.
    #[error("{why}")]
    Contradiction {
        /// Which, and why.
        why: String,
    },
}

/// The result of reading.
pub type Result<T> = std::result::Result<T, SpecError>;

/// The question after an unknown word.
pub(super) fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// The line of a place in a text, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// A table, or what stands for one that is not there: all its values are absent.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    /// The whole text: what lines are counted in.
    text: &'a str,
    /// What people call it, as `devices.ssd`; empty: the top.
    name: String,
    entries: Option<&'a DeTable<'a>>,
}

/// A value with its line.
pub(super) type Found<'a> = (usize, &'a DeValue<'a>);

impl<'a> Table<'a> {
    /// The top of a document.
    pub(super) fn top(text: &'a str, entries: &'a DeTable<'a>) -> Table<'a> {
        Table { text, name: String::new(), entries: Some(entries) }
    }

    /// A key with the name of the table before it.
    pub(super) fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Refuses keys that are not among these.
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

    /// All that is in it, of a table that is there.
    pub(super) fn content(&self) -> DeTable<'a> {
        self.entries.cloned().unwrap_or_default()
    }

    /// The keys, sorted, with their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Found<'a>)> {
        let text = self.text;
        self.entries.into_iter().flatten().map(move |(key, value)| {
            let name: &'a str = key.get_ref();
            (name, (line_of(text, key.span().start), value.get_ref()))
        })
    }

    /// A value.
    pub(super) fn get(&self, key: &str) -> Option<Found<'a>> {
        let (key, value) = self.entries?.get_key_value(key)?;
        Some((line_of(self.text, key.span().start), value.get_ref()))
    }

    /// Says what is wrong with a value.
    pub(super) fn wrong(&self, key: &str, line: usize, why: impl Into<String>) -> SpecError {
        SpecError::Value { line, key: self.path(key), why: why.into() }
    }

    /// Says what a value must be instead.
    fn expected(&self, key: &str, (line, value): Found<'_>, what: &str) -> SpecError {
        self.wrong(key, line, format!("is {}, it must be {what}", describe(value)))
    }

    /// Says that a value has to be there.
    pub(super) fn missing(&self, key: &str, why: &str) -> SpecError {
        SpecError::Missing { key: self.path(key), why: why.to_owned() }
    }

    /// The table below a key.
    pub(super) fn table(&self, key: &str) -> Result<Table<'a>> {
        let entries = match self.get(key) {
            None => None,
            Some((_, DeValue::Table(entries))) => Some(entries),
            Some(found) => return Err(self.expected(key, found, "a table")),
        };
        Ok(Table { text: self.text, name: self.path(key), entries })
    }

    /// The tables of an array of tables: `[[key]]`.
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

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some((_, DeValue::String(text))) => Ok(Some(text)),
            Some(found) => Err(self.expected(key, found, "a text")),
        }
    }

    /// A text of one line that has to be there.
    pub(super) fn words(&self, key: &str, why: &str) -> Result<String> {
        let text = self.text(key)?.ok_or_else(|| self.missing(key, why))?;
        let line = self.get(key).map_or(1, |(line, _)| line);
        match text.trim() {
            "" => Err(self.wrong(key, line, format!("is empty: {why}"))),
            text if text.chars().any(char::is_control) => Err(self.wrong(key, line, "has a control character in it")),
            text => Ok(text.to_owned()),
        }
    }

    /// One of some words.
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

    /// What a word says to those who know it.
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let line = self.get(key).map_or(1, |(line, _)| line);
        text.parse().map(Some).map_err(|error: T::Err| self.wrong(key, line, format!("is wrong: {error}")))
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some((_, DeValue::Boolean(flag))) => Ok(*flag),
            Some(found) => Err(self.expected(key, found, "true or false")),
        }
    }

    /// A whole number in a range.
    pub(super) fn count(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match whole(found.1).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.expected(key, found, &format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A size in a range; a number without unit is bytes.
    pub(super) fn size(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let wanted = || format!("a size from {} to {}, as in \"64MiB\"", size(*range.start()), size(*range.end()));
        let bytes = match found.1 {
            DeValue::String(text) => parse_size(text).map_err(|error| self.wrong(key, found.0, format!("is no size: {error}")))?,
            value => whole(value).ok_or_else(|| self.expected(key, found, &wanted()))?,
        };
        if range.contains(&bytes) { Ok(Some(bytes)) } else { Err(self.expected(key, found, &wanted())) }
    }

    /// A number that is not negative.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(found) = self.get(key) else { return Ok(None) };
        let number = match found.1 {
            DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
            value => whole(value).map(|number| number as f64),
        };
        let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Some).ok_or_else(|| self.expected(key, found, "a number that is not negative"))
    }

    /// A list of texts, each with its line.
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

/// A value as it may stand in a file of TOML, on one line.
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

/// A text as TOML has it: escaped as in JSON, and one letter more.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A key as it may stand in a file of TOML.
fn as_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// All values of a table as lines of TOML, those of tables in it with dotted keys.
pub(super) fn lines(prefix: &str, entries: &DeTable<'_>, out: &mut Vec<(String, String)>) {
    for (key, value) in entries {
        let path = if prefix.is_empty() { as_key(key.get_ref()) } else { format!("{prefix}.{}", as_key(key.get_ref())) };
        match value.get_ref() {
            DeValue::Table(entries) => lines(&path, entries, out),
            value => out.push((path, as_toml(value))),
        }
    }
}

/// Lays one table over another: what only one has stays, tables that both have are laid over each other.
pub(super) fn lay_over<'a>(base: &mut DeTable<'a>, upper: &DeTable<'a>) {
    for (key, value) in upper {
        let mut value = value.clone();
        // Key and value of the upper table, so that lines are those of what counts; inside tables of both, each keeps its own.
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
