//! `onefold analyze`: what a store would save, for each way to cut data. No store is needed, and nothing is written.
//!
//! ```text
//! walk -> readers -> batches, in the order of the walk -> board -> lanes: cut, fingerprint, seen?
//! ```
//! Data is read once. Every *lane* (a chunker and a size; whole files) gets every batch and adds up its own figures, without a lock. The
//! order of batches is that of the walk, so that the figures depend on the data alone.

mod board;
mod compression;
mod lane;
mod lengths;
mod read;
mod report;
mod seen;
mod walk;

use super::Talk;
use super::init::algorithm;
use crate::cli::Analyze;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::{Shown, Watch};
use board::Board;
use lane::{Cut, Figures, Lane};
use onefold_chunking::{Kind, Sizes};
use onefold_client::{Counter, Excludes, Monitor, Problem, Severity};
use report::Report;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use walk::{Counts, Root, Walk};

/// Threads that read files: most of their time they wait.
const READERS: usize = 4;

/// Compares.
pub fn run(options: &Analyze, talk: Talk) -> Result<Exit> {
    let cuts = cuts(options)?;
    let excludes = Excludes::new(&options.exclude)?;
    if let Some(names) = walk::all_missing(&options.paths) {
        return Err(Failure::cannot_run(format!("nothing to analyze: there is no {names}")).advise("look for a typing error in the paths"));
    }
    let interrupt = Interrupt::watch()?;
    let started = Instant::now();
    let watch = Watch::new(talk, interrupt, Shown::of(talk, false, false));
    let scan = Scan { watch: &watch, errors: AtomicU64::new(0), warnings: AtomicU64::new(0) };
    let roots = walk::roots(&options.paths, &scan);
    if roots.is_empty() {
        watch.finish();
        return Err(Failure::cannot_run("nothing to analyze: none of the paths could be read"));
    }
    let lanes = lanes(&cuts, options, roots.len() > 1)?;
    let walk = Walk { roots: &roots, excludes: &excludes, one_file_system: options.one_file_system, scan: &scan };
    let (counts, rows) = measure(&walk, lanes, watch.is_seen());
    watch.finish();
    if watch.cancelled() {
        return Err(Failure::interrupted("stopped by a signal before all was read; nothing was changed"));
    }
    let report = Report {
        roots: roots.iter().map(|root: &Root| root.given.as_path()).collect(),
        counts,
        rows: &rows,
        algorithm: algorithm(options.fingerprint),
        memory_bytes: options.memory,
        time: started.elapsed(),
        errors: scan.errors.load(Ordering::Relaxed),
        warnings: scan.warnings.load(Ordering::Relaxed),
    };
    let mut output = Output::new();
    if options.format.json {
        output.json(&report.to_json(watch.problems_json()))?;
    } else {
        report.print(&mut output, talk.quiet)?;
    }
    output.finish()?;
    Ok(if report.errors == 0 { Exit::Done } else { Exit::Partial })
}

/// The ways to cut that were asked for, each once, whole files last.
fn cuts(options: &Analyze) -> Result<Vec<Cut>> {
    let kinds = if options.chunkers.is_empty() { Kind::ALL.to_vec() } else { options.chunkers.clone() };
    let mut cuts = Vec::new();
    for kind in kinds {
        for size in &options.sizes {
            let target = usize::try_from(*size).unwrap_or(usize::MAX);
            Sizes::around(target).check(kind).map_err(|error| Failure::cannot_run(format!("--sizes: {error}")))?;
            let cut = Cut::Chunks { kind, target };
            if !cuts.contains(&cut) {
                cuts.push(cut);
            }
        }
    }
    cuts.push(Cut::WholeFiles);
    Ok(cuts)
}

/// The lanes, with memory shared out so that all reach its bound at about the same amount of data.
fn lanes(cuts: &[Cut], options: &Analyze, has_paths: bool) -> Result<Vec<Lane>> {
    let weights: f64 = cuts.iter().map(|cut| cut.weight()).sum();
    let lane = |cut: &Cut| {
        let memory_bytes = (options.memory as f64 * cut.weight() / weights) as u64;
        Lane::new(*cut, algorithm(options.fingerprint), memory_bytes, has_paths).map_err(Failure::cannot_run)
    };
    cuts.iter().map(lane).collect()
}

/// Reads everything once and lets every lane cut it. With `announce` a second walk, ahead of the first, tells how much there is.
fn measure(walk: &Walk<'_>, lanes: Vec<Lane>, announce: bool) -> (Counts, Vec<Figures>) {
    let scan = walk.scan;
    let repeated_bytes = lanes.iter().map(Lane::longest_chunk).max().unwrap_or(0);
    let board = Board::new(lanes);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (feed, work, jobs) = read::queues(READERS);
    let counts = std::thread::scope(|scope| {
        if announce {
            scope.spawn(|| {
                walk.run(true, &mut |_, _, metadata| {
                    scan.watch.count(Counter::Found, 1);
                    scan.watch.count(Counter::FoundBytes, metadata.len());
                    if scan.should_stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                scan.watch.has_totals();
            });
        }
        let walking = scope.spawn(|| feed.run(walk));
        for _ in 0..READERS {
            let work = work.clone();
            scope.spawn(move || work.run(scan, repeated_bytes));
        }
        drop(work);
        for _ in 0..workers {
            scope.spawn(|| board.work(|| scan.should_stop()));
        }
        jobs.for_each(|batch| {
            let data_bytes: u64 = batch.runs.iter().map(|run| (run.data.end - run.new_at) as u64).sum();
            let hole_bytes: u64 = batch.runs.iter().map(|run| run.hole_bytes).sum();
            scan.watch.count(Counter::DataBytes, data_bytes);
            scan.watch.count(Counter::DoneBytes, data_bytes + hole_bytes);
            board.push(batch);
        });
        board.end();
        walking.join().expect("a walk does not panic")
    });
    (counts, board.into_lanes().into_iter().map(Lane::finish).collect())
}

/// What all parts of an analysis share: where problems go, and the sign to stop.
pub struct Scan<'a> {
    watch: &'a Watch,
    errors: AtomicU64,
    warnings: AtomicU64,
}

impl Scan<'_> {
    /// A file or directory is missing from the figures.
    fn error(&self, path: &Path, reason: impl Display) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.problem(path, reason, Severity::Error);
    }

    /// Worth knowing; nothing is missing that is there.
    fn warn(&self, path: &Path, reason: impl Display) {
        self.warnings.fetch_add(1, Ordering::Relaxed);
        self.problem(path, reason, Severity::Warning);
    }

    fn problem(&self, path: &Path, reason: impl Display, severity: Severity) {
        self.watch.problem(&Problem::new(path.as_os_str().as_bytes(), reason, severity));
    }

    fn current(&self, path: &Path) {
        self.watch.current(path.as_os_str().as_bytes());
    }

    fn should_stop(&self) -> bool {
        self.watch.cancelled()
    }
}
