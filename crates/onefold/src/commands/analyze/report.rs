//! The printed report: a table of what each way to cut saves, and one of what it costs; or the same as JSON.

use crate::failure::Result;
use crate::output::{Output, Table, put_name};
use crate::units::{counted, duration, number, size};
use onefold_analyze::{ALIKE, Analysis, Cut, FRAME_BYTES, LEVEL, Row};
use serde_json::{Map, Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The content of a report.
pub struct Report<'a> {
    /// The findings.
    pub analysis: &'a Analysis,
    /// The memory limit.
    pub memory_bytes: u64,
}

fn row_json(row: &Row) -> Value {
    let figures = &row.figures;
    let (lengths, unique) = (&figures.lengths, figures.unique);
    let mut object = json!({
        "logical_bytes": figures.logical_bytes,
        "zero_bytes": figures.zero_bytes,
        "data_bytes": row.data_bytes,
        "unique_bytes": row.unique_bytes,
        "within_bytes": row.within_bytes,
        "across_bytes": row.across_bytes,
        "dedup_ratio": row.dedup_ratio(),
        "chunks": lengths.chunks(),
        "unique_chunks": unique.chunks.min(lengths.chunks()),
        "chunk_mean_bytes": lengths.mean(),
        "chunk_p5_bytes": lengths.percentile(5),
        "chunk_p50_bytes": lengths.percentile(50),
        "chunk_p95_bytes": lengths.percentile(95),
        "sampled_one_in": unique.one_in,
        "unique_error": unique.error,
        "fingerprint_bytes_per_second": row.fingerprint_speed(),
    });
    if let Cut::Chunks { kind, target } = figures.cut {
        object["chunker"] = kind.name().into();
        object["chunk_target_bytes"] = target.into();
        object["compressed_bytes"] = row.compressed_bytes.into();
        object["compression_sample_bytes"] = figures.compression.map(|estimate| estimate.sample_bytes).into();
        object["index_memory_bytes"] = row.index_memory_bytes.into();
        object["index_disk_bytes"] = row.index_disk_bytes.into();
        object["store_bytes"] = row.store_bytes.into();
        object["cut_bytes_per_second"] = row.cut_speed().into();
    }
    object
}

/// Chunker and size, as a person names them.
fn name(row: &Row) -> (String, String) {
    match row.figures.cut {
        Cut::WholeFiles => ("whole files".to_owned(), String::new()),
        Cut::Chunks { kind, target } => (kind.to_string(), size(target as u64)),
    }
}

impl Report<'_> {
    /// Returns the report as JSON. The keys are documented in `docs/cli.md`.
    pub fn to_json(&self, problems: Value) -> Value {
        let path = |root: &PathBuf| {
            let mut object = Map::new();
            put_name(&mut object, "path", root.as_os_str().as_bytes());
            Value::Object(object)
        };
        let rows = &self.analysis.rows;
        let (whole, chunked): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.figures.cut == Cut::WholeFiles);
        let best = self.analysis.best().map(|row| json!({"chunker": name(row).0, "chunk_target_bytes": target(row.figures.cut)}));
        json!({
            "paths": self.analysis.roots.iter().map(path).collect::<Value>(),
            "files": self.analysis.counts.files,
            "hard_links": self.analysis.counts.hard_links,
            "directories": self.analysis.counts.directories,
            "logical_bytes": self.analysis.logical_bytes(),
            "fingerprint": self.analysis.algorithm.name(),
            "memory_bytes": self.memory_bytes,
            "seconds": self.analysis.time.as_secs_f64(),
            "results": chunked.iter().map(|row| row_json(row)).collect::<Value>(),
            "whole_files": whole.first().map(|row| row_json(row)),
            "best": best,
            "errors": self.analysis.errors,
            "warnings": self.analysis.warnings,
            "problems": problems,
            "partial": self.analysis.errors > 0,
        })
    }

    /// Prints the report for people. `brief` leaves out the explanations.
    pub fn print(&self, output: &mut Output, brief: bool) -> Result<()> {
        let rows = &self.analysis.rows;
        let links = match self.analysis.counts.hard_links {
            0 => String::new(),
            links => format!(", and {} of them", counted(links, "further name", "further names")),
        };
        output.line(format_args!(
            "{} of {} in {}{links}, read in {}",
            size(self.analysis.logical_bytes()),
            counted(self.analysis.counts.files, "file", "files"),
            counted(self.analysis.counts.directories, "directory", "directories"),
            duration(self.analysis.time),
        ))?;
        if self.analysis.logical_bytes() > 0 {
            let best = self.analysis.best().map(|row| row.figures.cut);
            self.savings(rows, best).print(output)?;
            output.line("")?;
            costs(rows, best).print(output)?;
            if !brief {
                self.explain(output, rows)?;
            }
        }
        if self.analysis.errors > 0 {
            let what = counted(self.analysis.errors, "file or directory is missing", "files or directories are missing");
            output.line(format_args!("PARTIAL  {what} from these figures: see the errors above"))?;
        }
        Ok(())
    }

    fn savings(&self, rows: &[Row], best: Option<Cut>) -> Table {
        let has_paths = self.analysis.roots.len() > 1;
        let mut heads = vec!["  chunker", ">size", ">unique", ">ratio"];
        heads.extend(if has_paths { &[">within", ">across"][..] } else { &[">twice"] });
        heads.extend([">zeros", ">zstd:1", ">store"]);
        let mut table = Table::new(&heads);
        for row in rows {
            let percent = |bytes: u64| format!("{:.1}%", 100.0 * bytes as f64 / row.figures.logical_bytes.max(1) as f64);
            let (name, target) = marked(row, best);
            let about = if row.is_exact() { "" } else { "~" };
            let mut cells = vec![name, target, format!("{about}{}", size(row.unique_bytes))];
            cells
                .push(row.dedup_ratio().map_or_else(dash, |ratio| if ratio < 1000.0 { format!("{ratio:.2}") } else { ">1000".to_owned() }));
            cells.push(percent(row.within_bytes));
            if has_paths {
                cells.push(percent(row.across_bytes));
            }
            cells.push(percent(row.figures.zero_bytes));
            cells.extend([row.compressed_bytes, row.store_bytes].map(|bytes| bytes.map_or_else(dash, size)));
            table.row(cells);
        }
        table
    }

    fn explain(&self, output: &mut Output, rows: &[Row]) -> Result<()> {
        output.line("")?;
        let parts =
            if self.analysis.roots.len() > 1 { "within, across: duplicates in one path, between paths" } else { "twice: duplicates" };
        output.line(format_args!("{parts}; zeros are not stored."))?;
        let samples = rows.iter().filter_map(|row| row.figures.compression).map(|estimate| estimate.sample_bytes);
        if let Some(least) = samples.min() {
            output.line(format_args!(
                "zstd:{LEVEL}: estimated from {} of unique data or more, in frames of {}.",
                size(least),
                size(FRAME_BYTES)
            ))?;
        }
        output.line("store: that with index, recipes and catalogs. index: its memory.")?;
        output.line("cut/s, hash/s: per second of processor time, on this machine, with this data.")?;
        let sampled = rows.iter().filter(|row| !row.is_exact()).max_by(|a, b| a.figures.unique.error.total_cmp(&b.figures.unique.error));
        if let Some(row) = sampled {
            let unique = row.figures.unique;
            output.line(format_args!(
                "~ estimated from one of {} fingerprints: --memory {} does not hold them all.\n  Off by at most {:.1}% in 19 cases of 20.",
                number(unique.one_in),
                size(self.memory_bytes),
                (100.0 * unique.error).max(0.1),
            ))?;
        }
        if rows.iter().any(Row::is_vague) {
            output.line("  Too vague to mark a best row: give more --memory.")?;
        }
        match advice(self.analysis) {
            Some(advice) => output.line(advice),
            None => Ok(()),
        }
    }
}

fn costs(rows: &[Row], best: Option<Cut>) -> Table {
    let mut table = Table::new(&["  chunker", ">size", ">chunks", ">p5", ">p50", ">p95", ">index", ">cut/s", ">hash/s"]);
    for row in rows {
        let lengths = &row.figures.lengths;
        let (name, target) = marked(row, best);
        let mut cells = vec![name, target, short(lengths.chunks())];
        cells.extend([5, 50, 95].map(|percent| short_size(lengths.percentile(percent))));
        cells.push(if row.store_bytes.is_some() { short_size(row.index_memory_bytes) } else { dash() });
        cells.extend([row.cut_speed(), row.fingerprint_speed()].map(|speed| speed.map_or_else(dash, size)));
        table.row(cells);
    }
    table
}

fn marked(row: &Row, best: Option<Cut>) -> (String, String) {
    let (name, target) = name(row);
    (format!("{} {name}", if best == Some(row.figures.cut) { '*' } else { ' ' }), target)
}

/// Returns what to give `init`. If all figures are nearly alike, there is no reason to leave its defaults.
fn advice(analysis: &Analysis) -> Option<String> {
    let best = analysis.best()?;
    let advice = match analysis.default_that_suffices() {
        Some(usual) => {
            let (kind, target) = name(usual);
            format!("* the smallest store. The defaults of init, {kind} {target}, are within {:.0}% of it.", 100.0 * ALIKE)
        }
        None => {
            let (kind, target) = name(best);
            format!("* the smallest store: onefold init STORE --chunker {kind} --chunk-size {target}")
        }
    };
    Some(format!("{advice}\n  What changed data adds later is not in it: give two states of it as paths."))
}

fn target(cut: Cut) -> Option<usize> {
    match cut {
        Cut::Chunks { target, .. } => Some(target),
        Cut::WholeFiles => None,
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// A size in two digits or three, at most seven characters: `1.2KiB`, `12KiB`, `123KiB`.
fn short_size(bytes: u64) -> String {
    let long = size(bytes);
    let end = long.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(long.len());
    match long[..end].parse::<f64>() {
        Ok(value) if long[..end].contains('.') => format!("{value:.*}{}", usize::from(value < 9.95), &long[end..]),
        _ => long,
    }
}

/// A number in at most six characters: `9,999`, `123k`, `12.3M`.
fn short(value: u64) -> String {
    let digits = |scaled: f64| if scaled < 99.95 { 1 } else { 0 };
    match value {
        0..10_000 => number(value),
        10_000..999_500 => format!("{:.*}k", digits(value as f64 / 1e3), value as f64 / 1e3),
        999_500..999_500_000 => format!("{:.*}M", digits(value as f64 / 1e6), value as f64 / 1e6),
        _ => format!("{:.*}G", digits(value as f64 / 1e9), value as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let expected = [
            (0, "0"),
            (9_999, "9,999"),
            (12_345, "12.3k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (12_345_678, "12.3M"),
            (5_000_000_000, "5.0G"),
        ];
        for (value, text) in expected {
            assert_eq!(short(value), text);
        }
        let expected = [(87, "87B"), (4096, "4KiB"), (1260, "1.2KiB"), (12_500, "12KiB"), (221_000, "216KiB"), (10_230_000, "9.8MiB")];
        for (bytes, text) in expected {
            assert_eq!(short_size(bytes), text);
        }
    }
}
