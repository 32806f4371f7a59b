//! Standard output: results for people or as JSON, and nothing else. If the reader goes away, the command ends quietly.

use crate::failure::{Failure, Result};
use crate::units::is_bidirectional;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::io::{BufWriter, Write};

/// Buffered standard output. It must be [finished](Output::finish): writing the rest of the buffer can fail.
pub struct Output<'a> {
    out: BufWriter<Box<dyn Write + 'a>>,
}

impl<'a> Output<'a> {
    /// Takes standard output.
    #[allow(clippy::new_without_default, reason = "a default does not take hold of something global")]
    pub fn new() -> Output<'a> {
        Output::to(Box::new(std::io::stdout()))
    }

    /// Takes the standard output of a command that may run elsewhere.
    pub fn to(out: Box<dyn Write + 'a>) -> Output<'a> {
        Output { out: BufWriter::with_capacity(64 << 10, out) }
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl Display) -> Result<()> {
        writeln!(self.out, "{line}").map_err(|error| Failure::output(&error))
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Returns a writer of raw bytes, for code that knows only [`Write`]. Callers turn its errors into a failure with
    /// [`Failure::output`].
    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    /// Writes a JSON value on a line of its own.
    pub fn json(&mut self, value: &Value) -> Result<()> {
        self.line(value)
    }

    /// Flushes everything to the reader.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| Failure::output(&error))
    }

    /// Flushes everything to the reader, and ends the output.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

/// Puts a name of any bytes into a JSON object: as text, and also in hex if it is not text.
pub fn put_name(object: &mut Map<String, Value>, key: &str, name: &[u8]) {
    object.insert(key.to_owned(), Value::from(String::from_utf8_lossy(name)));
    if std::str::from_utf8(name).is_err() {
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        object.insert(format!("{key}_hex"), Value::from(hex));
    }
}

/// Rows with aligned columns.
#[derive(Debug)]
pub struct Table {
    heads: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table. A column whose head begins with `>` is aligned to the right.
    pub fn new(heads: &[&'static str]) -> Table {
        let right = heads.iter().map(|head| head.starts_with('>')).collect();
        Table { heads: heads.iter().map(|head| head.trim_start_matches('>')).collect(), right, rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heads.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Writes heads and rows.
    pub fn print(&self, output: &mut Output<'_>) -> Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.heads[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        output.line(self.line(&widths, self.heads.iter().copied()))?;
        self.rows.iter().try_for_each(|row| output.line(self.line(&widths, row.iter().map(String::as_str))))
    }

    fn line<'a>(&self, widths: &[usize], cells: impl Iterator<Item = &'a str>) -> String {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let width = widths[column];
            line.push_str(&if self.right[column] { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") });
        }
        line.trim_end().to_owned()
    }
}

/// Writes a remark beside the result, to standard error. A closed standard error is ignored.
pub fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", harmless(&text.to_string()));
}

/// Returns a text without the characters that control a terminal. Error texts contain names and lines from stores and
/// files that others have written.
fn harmless(text: &str) -> String {
    let is_harmful = |letter: char| (letter.is_control() && letter != '\n') || is_bidirectional(letter);
    text.chars().map(|letter| if is_harmful(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_cannot_command_a_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\nc\r\u{9b}\u{202e}"), "a\u{fffd}[2Jb\nc\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_name_that_is_no_text_keeps_its_bytes_in_json() {
        let mut object = Map::new();
        put_name(&mut object, "path", b"a\nb");
        put_name(&mut object, "target", b"\xff");
        assert_eq!(Value::Object(object).to_string(), "{\"path\":\"a\\nb\",\"target\":\"\u{fffd}\",\"target_hex\":\"ff\"}");
    }

    #[test]
    fn tables_align_their_columns() {
        let table = Table::new(&["name", ">size"]);
        assert_eq!(table.line(&[6, 5], ["a", "1KiB"].into_iter()), "a        1KiB");
    }
}
