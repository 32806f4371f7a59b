//! What is printed: a table of what each way to cut saves and one of what it costs; or the same as JSON.

use super::compression::{FRAME_BYTES, LEVEL};
use super::lane::{Cut, Effort, Figures};
use super::walk::Counts;
use crate::failure::Result;
use crate::output::{Output, Table, put_name};
use crate::units::{counted, duration, number, size};
use onefold_chunking::{Kind, Sizes};
use onefold_fingerprint::Algorithm;
use serde_json::{Map, Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Memory of the filter before the chunk index, tenths of a byte for each chunk (`docs/configuration.md`).
const INDEX_MEMORY_TENTHS: u64 = 13;
/// Bytes of a chunk's entry in the index and in a recipe, beside its digest (`docs/format.md` sections 6 and 8.1).
const ENTRY_BYTES: u64 = 12;
/// Bytes of a chunk's entry in the catalog of its container, beside its digest (section 5.3).
const SLOT_BYTES: u64 = 3;
/// Stores whose sizes differ by less than this share of the smallest are alike: compression is an estimate, and tomorrow's data is not known.
const ALIKE: f64 = 0.05;
/// Of estimates whose error exceeds this none is called the best.
const MOST_ERROR: f64 = ALIKE / 2.0;

/// What there is to say.
pub struct Report<'a> {
    /// The paths that were read.
    pub roots: Vec<&'a Path>,
    /// What was in them.
    pub counts: Counts,
    /// The ways to cut.
    pub rows: &'a [Figures],
    /// What made the fingerprints.
    pub algorithm: Algorithm,
    /// The bound of memory.
    pub memory_bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// Files and directories that are missing.
    pub errors: u64,
    /// Other problems.
    pub warnings: u64,
}

/// A row with what follows from it.
struct Row<'a> {
    figures: &'a Figures,
    /// Bytes that are no zeros.
    data_bytes: u64,
    unique_bytes: u64,
    /// Bytes that were in the same path before,
    within_bytes: u64,
    /// or only in another.
    across_bytes: u64,
    compressed_bytes: Option<u64>,
    index_memory_bytes: u64,
    index_disk_bytes: u64,
    /// Compressed chunks with what a store knows of them.
    store_bytes: Option<u64>,
}

impl<'a> Row<'a> {
    fn new(figures: &'a Figures, algorithm: Algorithm) -> Row<'a> {
        let data_bytes = figures.lengths.bytes();
        // Estimates can be a little beyond what is possible.
        let unique_bytes = figures.unique.bytes.min(data_bytes);
        let path_bytes = figures.unique.path_bytes.clamp(unique_bytes, data_bytes);
        let chunks = figures.unique.chunks;
        let digest_bytes = algorithm.digest_bytes() as u64;
        let compressed_bytes = figures.compression.map(|estimate| (unique_bytes as f64 * estimate.ratio) as u64);
        // The index doubles when it is full, so that on the whole its pages are half full.
        let index_disk_bytes = chunks * 2 * (digest_bytes + ENTRY_BYTES);
        let known_bytes = chunks * (digest_bytes + SLOT_BYTES) + chunks * (digest_bytes + ENTRY_BYTES);
        Row {
            figures,
            data_bytes,
            unique_bytes,
            within_bytes: data_bytes - path_bytes,
            across_bytes: path_bytes - unique_bytes,
            compressed_bytes,
            index_memory_bytes: chunks * INDEX_MEMORY_TENTHS / 10,
            index_disk_bytes,
            store_bytes: compressed_bytes.map(|bytes| bytes + index_disk_bytes + known_bytes),
        }
    }

    /// Chunker and size, as a person names them.
    fn name(&self) -> (String, String) {
        match self.figures.cut {
            Cut::WholeFiles => ("whole files".to_owned(), String::new()),
            Cut::Chunks { kind, target } => (kind.to_string(), size(target as u64)),
        }
    }

    fn is_exact(&self) -> bool {
        self.figures.unique.one_in == 1
    }

    /// Of whole files there may be so few that nothing can be told from a part of them; they have no store anyway.
    fn is_vague(&self) -> bool {
        self.store_bytes.is_some() && self.figures.unique.error > MOST_ERROR
    }

    /// Nothing where nothing is looked for.
    fn cut_speed(&self) -> Option<u64> {
        match self.figures.cut {
            Cut::WholeFiles | Cut::Chunks { kind: Kind::Fixed, .. } => None,
            Cut::Chunks { .. } => speed(self.figures.cutting),
        }
    }

    fn to_json(&self) -> Value {
        let figures = self.figures;
        let (lengths, unique) = (&figures.lengths, figures.unique);
        let mut object = json!({
            "logical_bytes": figures.logical_bytes,
            "zero_bytes": figures.zero_bytes,
            "data_bytes": self.data_bytes,
            "unique_bytes": self.unique_bytes,
            "within_bytes": self.within_bytes,
            "across_bytes": self.across_bytes,
            "dedup_ratio": ratio(figures.logical_bytes, self.unique_bytes),
            "chunks": lengths.chunks(),
            "unique_chunks": unique.chunks.min(lengths.chunks()),
            "chunk_mean_bytes": lengths.mean(),
            "chunk_p5_bytes": lengths.percentile(5),
            "chunk_p50_bytes": lengths.percentile(50),
            "chunk_p95_bytes": lengths.percentile(95),
            "sampled_one_in": unique.one_in,
            "unique_error": unique.error,
            "fingerprint_bytes_per_second": speed(figures.fingerprinting),
        });
        if let Cut::Chunks { kind, target } = figures.cut {
            object["chunker"] = kind.name().into();
            object["chunk_target_bytes"] = target.into();
            object["compressed_bytes"] = self.compressed_bytes.into();
            object["compression_sample_bytes"] = figures.compression.map(|estimate| estimate.sample_bytes).into();
            object["index_memory_bytes"] = self.index_memory_bytes.into();
            object["index_disk_bytes"] = self.index_disk_bytes.into();
            object["store_bytes"] = self.store_bytes.into();
            object["cut_bytes_per_second"] = self.cut_speed().into();
        }
        object
    }
}

fn ratio(whole: u64, part: u64) -> Option<f64> {
    (part > 0).then(|| whole as f64 / part as f64)
}

/// Bytes for each second of the processor; nothing where there was nothing to do.
fn speed(effort: Effort) -> Option<u64> {
    (effort.bytes > 0 && !effort.time.is_zero()).then(|| (effort.bytes as f64 / effort.time.as_secs_f64()) as u64)
}

/// The row with the smallest store, if there is anything to store and that can be told.
fn best<'r, 'a>(rows: &'r [Row<'a>]) -> Option<&'r Row<'a>> {
    if rows.iter().any(Row::is_vague) {
        return None;
    }
    let stores = rows.iter().filter(|row| row.unique_bytes > 0).filter_map(|row| Some((row.store_bytes?, row)));
    stores.min_by_key(|(bytes, _)| *bytes).map(|(_, row)| row)
}

impl Report<'_> {
    fn rows(&self) -> Vec<Row<'_>> {
        self.rows.iter().map(|figures| Row::new(figures, self.algorithm)).collect()
    }

    fn logical_bytes(&self) -> u64 {
        self.rows.first().map_or(0, |row| row.logical_bytes)
    }

    /// The keys are documented in `docs/cli.md`.
    pub fn to_json(&self, problems: Value) -> Value {
        let path = |root: &&Path| {
            let mut object = Map::new();
            put_name(&mut object, "path", root.as_os_str().as_bytes());
            Value::Object(object)
        };
        let rows = self.rows();
        let (whole, chunked): (Vec<&Row<'_>>, Vec<&Row<'_>>) = rows.iter().partition(|row| row.figures.cut == Cut::WholeFiles);
        let best = best(&rows).map(|row| json!({"chunker": row.name().0, "chunk_target_bytes": target(row.figures.cut)}));
        json!({
            "paths": self.roots.iter().map(path).collect::<Value>(),
            "files": self.counts.files,
            "hard_links": self.counts.hard_links,
            "directories": self.counts.directories,
            "logical_bytes": self.logical_bytes(),
            "fingerprint": self.algorithm.name(),
            "memory_bytes": self.memory_bytes,
            "seconds": self.time.as_secs_f64(),
            "results": chunked.iter().map(|row| row.to_json()).collect::<Value>(),
            "whole_files": whole.first().map(|row| row.to_json()),
            "best": best,
            "errors": self.errors,
            "warnings": self.warnings,
            "problems": problems,
            "partial": self.errors > 0,
        })
    }

    /// For people; `brief` leaves out the explanations.
    pub fn print(&self, output: &mut Output, brief: bool) -> Result<()> {
        let rows = self.rows();
        let links = match self.counts.hard_links {
            0 => String::new(),
            links => format!(", and {} of them", counted(links, "further name", "further names")),
        };
        output.line(format_args!(
            "{} of {} in {}{links}, read in {}",
            size(self.logical_bytes()),
            counted(self.counts.files, "file", "files"),
            counted(self.counts.directories, "directory", "directories"),
            duration(self.time),
        ))?;
        if self.logical_bytes() > 0 {
            let best = best(&rows).map(|row| row.figures.cut);
            self.savings(&rows, best).print(output)?;
            output.line("")?;
            costs(&rows, best).print(output)?;
            if !brief {
                self.explain(output, &rows)?;
            }
        }
        if self.errors > 0 {
            let what = counted(self.errors, "file or directory is missing", "files or directories are missing");
            output.line(format_args!("PARTIAL  {what} from these figures: see the errors above"))?;
        }
        Ok(())
    }

    fn savings(&self, rows: &[Row<'_>], best: Option<Cut>) -> Table {
        let has_paths = self.roots.len() > 1;
        let mut heads = vec!["  chunker", ">size", ">unique", ">ratio"];
        heads.extend(if has_paths { &[">within", ">across"][..] } else { &[">twice"] });
        heads.extend([">zeros", ">zstd:1", ">store"]);
        let mut table = Table::new(&heads);
        for row in rows {
            let percent = |bytes: u64| format!("{:.1}%", 100.0 * bytes as f64 / row.figures.logical_bytes.max(1) as f64);
            let (name, target) = marked(row, best);
            let about = if row.is_exact() { "" } else { "~" };
            let mut cells = vec![name, target, format!("{about}{}", size(row.unique_bytes))];
            cells.push(
                ratio(row.figures.logical_bytes, row.unique_bytes)
                    .map_or_else(dash, |ratio| if ratio < 1000.0 { format!("{ratio:.2}") } else { ">1000".to_owned() }),
            );
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

    fn explain(&self, output: &mut Output, rows: &[Row<'_>]) -> Result<()> {
        output.line("")?;
        let parts = if self.roots.len() > 1 { "within, across: duplicates in one path, between paths" } else { "twice: duplicates" };
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
        match advice(rows) {
            Some(advice) => output.line(advice),
            None => Ok(()),
        }
    }
}

fn costs(rows: &[Row<'_>], best: Option<Cut>) -> Table {
    let mut table = Table::new(&["  chunker", ">size", ">chunks", ">p5", ">p50", ">p95", ">index", ">cut/s", ">hash/s"]);
    for row in rows {
        let lengths = &row.figures.lengths;
        let (name, target) = marked(row, best);
        let mut cells = vec![name, target, short(lengths.chunks())];
        cells.extend([5, 50, 95].map(|percent| short_size(lengths.percentile(percent))));
        cells.push(if row.store_bytes.is_some() { short_size(row.index_memory_bytes) } else { dash() });
        cells.extend([row.cut_speed(), speed(row.figures.fingerprinting)].map(|speed| speed.map_or_else(dash, size)));
        table.row(cells);
    }
    table
}

fn marked(row: &Row<'_>, best: Option<Cut>) -> (String, String) {
    let (name, target) = row.name();
    (format!("{} {name}", if best == Some(row.figures.cut) { '*' } else { ' ' }), target)
}

/// What to give `init`. Figures that are nearly alike are no reason to leave its defaults.
fn advice(rows: &[Row<'_>]) -> Option<String> {
    let best = best(rows)?;
    let bytes = best.store_bytes?;
    let usual = Cut::Chunks { kind: Kind::default(), target: Sizes::default().target };
    let usual = rows.iter().find(|row| row.figures.cut == usual).and_then(|row| Some((row, row.store_bytes?)));
    let (kind, target) = best.name();
    let advice = match usual {
        Some((row, usual_bytes)) if usual_bytes as f64 <= bytes as f64 * (1.0 + ALIKE) => {
            let (kind, target) = row.name();
            format!("* the smallest store. The defaults of init, {kind} {target}, are within {:.0}% of it.", 100.0 * ALIKE)
        }
        _ => format!("* the smallest store: onefold init STORE --chunker {kind} --chunk-size {target}"),
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
