//! Several experiments, one after the other, into one file of results.
//!
//! Nothing is run for hours before the last experiment turns out to be impossible: a series is checked as a whole
//! before the first store is made. Results are written after each repetition, so a crash loses only the one that runs.

use super::{Plan, Program, RunError, Size, Watcher, check, choose_directory, run};
use crate::files::{check_writable, write_results};
use crate::results::Results;
use crate::spec::Spec;
use onefold_ground::words::nearest;
use std::io;
use std::path::PathBuf;

/// Files in this directory are in memory: slow devices are modelled.
const IN_MEMORY: &str = "/dev/shm";

/// What to run of the experiments of a series.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How large.
    pub size: Size,
    /// Runs of each variant. `None`: as declared.
    pub repetitions: Option<u32>,
    /// Names of variants. None: all of all experiments.
    pub variants: Vec<String>,
    /// Directory in which the stores are made. `None`: in memory if there is room and nothing is compared with the
    /// disk, else the one for temporary files.
    pub directory: Option<PathBuf>,
    /// File for the results.
    pub out: Option<PathBuf>,
}

/// The reason why a series cannot run, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// No experiment has the variant.
    #[error("no experiment has a variant {name:?}")]
    NoVariant {
        /// The name asked for.
        name: String,
        /// The name that may have been meant.
        nearest: Option<String>,
        /// All names.
        known: Vec<String>,
    },
    /// An experiment cannot run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file for the results cannot be written. Nothing was run.
    #[error("the results cannot be written: {0}")]
    Unwritable(io::Error),
    /// The results were not written.
    #[error("the results were not written: {0}")]
    NotWritten(io::Error),
}

/// What came of a series.
#[derive(Debug)]
pub struct SeriesOutcome {
    /// What was measured, a value for each experiment.
    pub results: Vec<Results>,
    /// Whether it was stopped.
    pub is_cancelled: bool,
}

/// Experiments that can run.
#[derive(Debug)]
pub struct Series {
    experiments: Vec<(Spec, Plan)>,
    out: Option<PathBuf>,
}

impl Series {
    /// Chooses variants and a directory. Experiments that have none of the named variants are left out.
    ///
    /// Errors: an unknown variant; those of [`check`]; the results cannot be written.
    pub fn new(specs: Vec<Spec>, wanted: Wanted, program: &dyn Program) -> Result<Series, SeriesError> {
        let Wanted { size, repetitions, variants, directory, out } = wanted;
        let specs = with_variants(specs, &variants)?;
        let directory = directory.unwrap_or_else(|| {
            let is_of_disk = |(spec, _): &(Spec, Vec<String>)| spec.variants.iter().any(|variant| variant.run.face.has_files());
            let in_memory = if specs.iter().any(is_of_disk) { None } else { Some(PathBuf::from(IN_MEMORY)) };
            let candidates: Vec<PathBuf> = in_memory.into_iter().chain([std::env::temp_dir()]).collect();
            choose_directory(&candidates, &specs, size, program)
        });
        let plan = |variants| Plan { size, repetitions, variants, directory: directory.clone() };
        let experiments: Vec<_> = specs.into_iter().map(|(spec, variants)| (spec, plan(variants))).collect();
        for (spec, plan) in &experiments {
            check(spec, plan, program)?;
        }
        if let Some(out) = &out {
            check_writable(out).map_err(SeriesError::Unwritable)?;
        }
        Ok(Series { experiments, out })
    }

    /// Runs all experiments and writes their results.
    pub fn run(&self, program: &dyn Program, watcher: &dyn Watcher) -> Result<SeriesOutcome, SeriesError> {
        let mut results = Vec::new();
        let mut is_cancelled = false;
        for (spec, plan) in &self.experiments {
            let keeping = Keeping { watcher, ended: &results, out: self.out.as_ref() };
            let outcome = run(spec, plan, program, &keeping)?;
            is_cancelled = outcome.is_cancelled;
            results.push(outcome.results);
            if is_cancelled {
                break;
            }
        }
        if let Some(out) = &self.out {
            write_results(out, &results).map_err(SeriesError::NotWritten)?;
        }
        Ok(SeriesOutcome { results, is_cancelled })
    }
}

/// Returns each experiment with those of the named variants that it has. No names: all experiments, with no names.
fn with_variants(specs: Vec<Spec>, wanted: &[String]) -> Result<Vec<(Spec, Vec<String>)>, SeriesError> {
    let all = || specs.iter().flat_map(|spec| &spec.variants).map(|variant| variant.name.as_str());
    if let Some(name) = wanted.iter().find(|name| all().all(|known| known != name.as_str())) {
        let nearest = nearest(name, all()).map(str::to_owned);
        return Err(SeriesError::NoVariant { name: name.clone(), nearest, known: all().map(str::to_owned).collect() });
    }
    let own = |spec: &Spec| wanted.iter().filter(|name| spec.variant(name).is_some()).cloned().collect::<Vec<_>>();
    let with_own = specs.into_iter().map(|spec| (own(&spec), spec)).map(|(own, spec)| (spec, own));
    Ok(with_own.filter(|(_, own)| wanted.is_empty() || !own.is_empty()).collect())
}

/// Writes what was measured up to now whenever a repetition has ended.
struct Keeping<'a> {
    watcher: &'a dyn Watcher,
    /// Results of the experiments that have ended.
    ended: &'a [Results],
    out: Option<&'a PathBuf>,
}

impl Watcher for Keeping<'_> {
    fn step(&self, what: &str, total_bytes: u64) {
        self.watcher.step(what, total_bytes);
    }

    fn advance(&self, bytes: u64) {
        self.watcher.advance(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.watcher.is_cancelled()
    }

    fn measured(&self, results: &Results) {
        self.watcher.measured(results);
        let Some(out) = self.out else { return };
        // At the end they are written again, and then an error counts.
        if let Err(error) = write_results(out, &[self.ended, std::slice::from_ref(results)].concat()) {
            tracing::warn!("cannot write {}: {error}", out.display());
        }
    }
}
