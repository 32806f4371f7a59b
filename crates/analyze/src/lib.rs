//! Analysis: what a store would save, for each way to cut data. It needs no store and writes nothing.
//!
//! ```text
//! walk -> readers -> batches, in the order of the walk -> board -> lanes: cut, fingerprint, seen?
//! ```
//! Data is read once. Every *lane* (a chunker and a size; whole files) gets every batch and adds up its own figures,
//! without a lock. The order of batches is that of the walk, so the figures depend on the data alone.
//!
//! This crate prints nothing: problems and progress go to a [`Monitor`], the result is an [`Analysis`].

mod board;
mod compression;
mod lane;
mod lengths;
mod read;
mod row;
mod scan;
mod seen;
mod walk;

pub use compression::{Estimate, FRAME_BYTES, LEVEL};
pub use lane::{Cut, Effort, Figures};
pub use lengths::Lengths;
pub use row::{ALIKE, Row};
pub use seen::Unique;
pub use walk::Counts;

use board::Board;
use lane::Lane;
use onefold_chunking::{ChunkingError, Kind, Sizes};
use onefold_client::{Counter, Excludes, Monitor};
use onefold_fingerprint::Algorithm;
use scan::Scan;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use thiserror::Error;
use walk::Walk;

/// Threads that read files: most of their time they wait.
const READERS: usize = 4;

/// What to analyze, and how.
#[derive(Debug)]
pub struct Options<'a> {
    /// Files and directories to read.
    pub paths: &'a [PathBuf],
    /// What to leave out.
    pub excludes: &'a Excludes,
    /// Stays on the file systems of the paths.
    pub one_file_system: bool,
    /// The ways to cut, from [`cuts`].
    pub cuts: &'a [Cut],
    /// Makes the fingerprints.
    pub algorithm: Algorithm,
    /// Memory for the fingerprints of all ways to cut. Those that need more keep a random sample.
    pub memory_bytes: u64,
}

/// What was found.
#[derive(Debug)]
pub struct Analysis {
    /// The paths that were read, as they were given.
    pub roots: Vec<PathBuf>,
    /// What was in them.
    pub counts: Counts,
    /// What made the fingerprints.
    pub algorithm: Algorithm,
    /// A row for each way to cut, in the order of the options.
    pub rows: Vec<Row>,
    /// How long it took.
    pub time: Duration,
    /// Files and directories that are missing from the figures.
    pub errors: u64,
    /// Other problems.
    pub warnings: u64,
}

/// Why there is no analysis.
#[derive(Debug, Error)]
pub enum AnalyzeError {
    /// None of the paths exists.
    #[error("nothing to analyze: none of the {} paths exists", paths.len())]
    Missing {
        /// All paths.
        paths: Vec<PathBuf>,
    },
    /// Every path has a problem, which the monitor knows.
    #[error("nothing to analyze: none of the paths could be read")]
    Unreadable,
    /// A chunker refuses the size.
    #[error(transparent)]
    Chunking(#[from] ChunkingError),
    /// The monitor asked to stop.
    #[error("the analysis was stopped")]
    Cancelled,
}

/// Returns each chunker with each size once, whole files last.
///
/// Errors: a chunker cannot cut around one of the sizes.
pub fn cuts(kinds: &[Kind], sizes: &[u64]) -> Result<Vec<Cut>, ChunkingError> {
    let mut cuts = Vec::new();
    for kind in kinds.iter().copied() {
        for size in sizes {
            let target = usize::try_from(*size).unwrap_or(usize::MAX);
            Sizes::around(target).check(kind)?;
            let cut = Cut::Chunks { kind, target };
            if !cuts.contains(&cut) {
                cuts.push(cut);
            }
        }
    }
    cuts.push(Cut::WholeFiles);
    Ok(cuts)
}

/// Reads everything under the paths once and compares the ways to cut it.
///
/// Files that cannot be read go to the monitor and are counted; the analysis goes on without them.
pub fn analyze(options: &Options<'_>, monitor: &dyn Monitor) -> Result<Analysis, AnalyzeError> {
    if walk::all_missing(options.paths) {
        return Err(AnalyzeError::Missing { paths: options.paths.to_vec() });
    }
    let started = Instant::now();
    let scan = Scan::new(monitor);
    let roots = walk::roots(options.paths, &scan);
    if roots.is_empty() {
        return Err(AnalyzeError::Unreadable);
    }
    let lanes = lanes(options, roots.len() > 1)?;
    let walk = Walk { roots: &roots, excludes: options.excludes, one_file_system: options.one_file_system, scan: &scan };
    let (counts, figures) = measure(&walk, lanes);
    if scan.should_stop() {
        return Err(AnalyzeError::Cancelled);
    }
    Ok(Analysis {
        algorithm: options.algorithm,
        counts,
        rows: figures.into_iter().map(|figures| Row::new(figures, options.algorithm)).collect(),
        time: started.elapsed(),
        errors: scan.errors(),
        warnings: scan.warnings(),
        roots: roots.into_iter().map(|root| root.given).collect(),
    })
}

/// The lanes, with memory shared out so that all reach its bound at about the same amount of data.
fn lanes(options: &Options<'_>, has_paths: bool) -> Result<Vec<Lane>, ChunkingError> {
    let weights: f64 = options.cuts.iter().map(|cut| cut.weight()).sum();
    let lane = |cut: &Cut| {
        let memory_bytes = (options.memory_bytes as f64 * cut.weight() / weights) as u64;
        Lane::new(*cut, options.algorithm, memory_bytes, has_paths)
    };
    options.cuts.iter().map(lane).collect()
}

/// Reads everything once and lets every lane cut it. If somebody looks on, a second walk runs ahead of the first and
/// finds out how much there is.
fn measure(walk: &Walk<'_>, lanes: Vec<Lane>) -> (Counts, Vec<Figures>) {
    let scan = walk.scan;
    let monitor = scan.monitor;
    let repeated_bytes = lanes.iter().map(Lane::longest_chunk).max().unwrap_or(0);
    let board = Board::new(lanes);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (feed, work, jobs) = read::queues(READERS);
    let counts = std::thread::scope(|scope| {
        if monitor.wants_totals() {
            scope.spawn(|| {
                walk.run(true, &mut |_, _, metadata| {
                    monitor.count(Counter::Found, 1);
                    monitor.count(Counter::FoundBytes, metadata.len());
                    if scan.should_stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                monitor.has_totals();
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
            monitor.count(Counter::DataBytes, data_bytes);
            monitor.count(Counter::DoneBytes, data_bytes + hole_bytes);
            board.push(batch);
        });
        board.end();
        walking.join().expect("a walk does not panic")
    });
    (counts, board.into_lanes().into_iter().map(Lane::finish).collect())
}
