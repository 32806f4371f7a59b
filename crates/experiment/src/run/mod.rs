//! Running an experiment. Each variant and repetition gets a new store, into which all clients write generation after
//! generation, while the run measures.
//!
//! An experiment's store is disposable: it is deleted after each repetition, whatever happened. Closing it takes time
//! only if it is opened again.

mod clients;
mod describe;
mod face;
mod fill;
mod measure;
mod named;
mod room;
mod series;
mod store;
mod trees;

#[cfg(test)]
mod tests;

pub use face::{Service, Way, WayError};
pub use series::{Series, SeriesError, SeriesOutcome, Wanted};
pub use trees::{Durable, Trees};

use crate::results::{Machine, Measured, Results, VERSION, Variant};
use crate::spec::{Face, Scaled, SettingsReader, Spec, SpecError, VariantSpec};
use onefold_engine::{Engine, EngineError};
use onefold_ground::GroundError;
use onefold_ground::words::nearest;
use onefold_volume::{VolumeError, Volumes};
use room::choose_directory;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use store::Repetition;

/// The directory with files beside the store, for what filesystems are compared with.
pub const FILES: &str = "files";

/// The program that runs experiments: it knows the settings of a store, and the protocols.
pub trait Program: SettingsReader {
    /// Returns the version of onefold.
    fn version(&self) -> String;
    /// Serves volumes over a face that is not in process, until the returned service is dropped. The error says what to
    /// do.
    fn serve(&self, face: Face, store: &Served<'_>) -> std::result::Result<Box<dyn Service>, String>;
}

/// What to serve.
#[derive(Debug)]
pub struct Served<'a> {
    /// The store.
    pub engine: &'a Arc<Engine>,
    /// Its volumes.
    pub volumes: &'a Arc<Volumes>,
    /// Its settings, one per line, as `section.key = value`.
    pub settings: &'a str,
    /// A directory for sockets and mounts, deleted with the store. The directory [`FILES`] in it is on the disk.
    pub directory: &'a Path,
    /// Requests in flight per client.
    pub depth: usize,
    /// Bytes of a file, for faces that have files.
    pub file_bytes: u64,
}

/// Watches a run.
pub trait Watcher: Sync {
    /// A step of `total_bytes` begins. 0 bytes: its duration is unknown.
    fn step(&self, what: &str, total_bytes: u64);
    /// This many more bytes of the step are done.
    fn advance(&self, bytes: u64);
    /// Returns whether to stop.
    fn is_cancelled(&self) -> bool;
    /// A repetition has ended, successfully or not. `results` are the measurements so far.
    fn measured(&self, results: &Results);
}

/// The size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As declared.
    Full,
    /// A 256th of it, or the least that all variants allow.
    Quick,
    /// Bytes of one generation, over all clients.
    Bytes(u64),
}

/// The part of an experiment to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The size.
    pub size: Size,
    /// Number of repetitions. `None`: as declared.
    pub repetitions: Option<u32>,
    /// Names of variants. Empty: all.
    pub variants: Vec<String>,
    /// Directory for the stores, which are made one at a time.
    pub directory: PathBuf,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was measured.
    pub results: Results,
    /// Whether it was cancelled.
    pub is_cancelled: bool,
}

/// Why an experiment cannot run, or a repetition failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The declaration does not fit the plan.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no such variant.
    #[error("experiment {id} has no variant {name:?}{}", .nearest.as_deref().map_or_else(String::new, |name| format!("; did you mean {name:?}?")))]
    NoVariant {
        /// The experiment.
        id: String,
        /// The requested name.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// Too little disk space.
    #[error("the stores of experiment {id} need about {} in {}, where {} are free", onefold_ground::size::size(*.needed_bytes), .directory.display(), onefold_ground::size::size(*.free_bytes))]
    NoRoom {
        /// The experiment.
        id: String,
        /// The directory.
        directory: PathBuf,
        /// The needed space, an estimate.
        needed_bytes: u64,
        /// The free space.
        free_bytes: u64,
    },
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", .path.display())]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// Its object.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// An error of the ground.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// An error of the store.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error of a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An error of the way to a volume.
    #[error(transparent)]
    Way(#[from] WayError),
    /// A volume cannot be served.
    #[error("cannot serve over {face}: {why}")]
    Serve {
        /// The face.
        face: &'static str,
        /// The reason.
        why: String,
    },
    /// An error of the test data.
    #[error(transparent)]
    Traffic(#[from] onefold_traffic::TrafficError),
    /// An error of the catalog.
    #[error(transparent)]
    Catalog(#[from] onefold_catalog::CatalogError),
    /// An error of the search for unneeded chunks.
    #[error(transparent)]
    Upkeep(#[from] onefold_upkeep::UpkeepError),
    /// The search for unneeded chunks was held up.
    #[error("unneeded chunks could not be removed: {why}")]
    Unremoved {
        /// The reason.
        why: String,
    },
    /// The run was cancelled.
    #[error("stopped before its end")]
    Cancelled,
}

/// The result of running.
pub type Result<T> = std::result::Result<T, RunError>;

impl Spec {
    /// Returns the bytes of one generation for a size. Quick is a 256th, but not less than all variants need.
    pub fn size_bytes(&self, size: Size) -> u64 {
        match size {
            Size::Full => self.full_size_bytes,
            Size::Bytes(bytes) => bytes,
            Size::Quick => {
                let least = |variant: &VariantSpec| variant.least_size_bytes(self.full_size_bytes);
                self.variants.iter().map(least).max().unwrap_or(0).max(self.full_size_bytes / 256)
            }
        }
    }

    /// Returns the variants of a plan, at its size. Errors: there is no such variant, or the size is too small.
    fn planned(&self, size: Size, names: &[String], reader: &dyn SettingsReader) -> Result<Vec<(&VariantSpec, Scaled)>> {
        if let Some(name) = names.iter().find(|name| self.variant(name).is_none()) {
            let nearest = nearest(name, self.variants.iter().map(|variant| variant.name.as_str())).map(str::to_owned);
            return Err(RunError::NoVariant { id: self.about.id.clone(), name: name.clone(), nearest });
        }
        let size_bytes = self.size_bytes(size);
        let wanted = self.variants.iter().filter(|variant| names.is_empty() || names.contains(&variant.name));
        // If it is too small for several, report the one that needs most.
        if let Some(variant) = wanted.clone().max_by_key(|variant| variant.least_size_bytes(self.full_size_bytes)) {
            variant.scaled(size_bytes, self.full_size_bytes, reader)?;
        }
        wanted.map(|variant| Ok((variant, variant.scaled(size_bytes, self.full_size_bytes, reader)?))).collect()
    }
}

/// Checks that the experiment can run, before anything is made. Errors: there is no such variant, the size is too
/// small, settings contradict each other at that size, or there is too little space.
pub fn check(spec: &Spec, plan: &Plan, program: &dyn Program) -> Result<()> {
    let variants = spec.planned(plan.size, &plan.variants, program)?;
    room::check(spec, &variants, &plan.directory)
}

/// Runs an experiment. If a variant fails, the results say so, and the next variant runs. Errors: those of [`check`].
pub fn run(spec: &Spec, plan: &Plan, program: &dyn Program, watcher: &dyn Watcher) -> Result<Outcome> {
    let variants = spec.planned(plan.size, &plan.variants, program)?;
    room::check(spec, &variants, &plan.directory)?;
    let begun = Instant::now();
    let mut results = Results {
        version: VERSION,
        about: spec.about.clone(),
        machine: machine(&plan.directory),
        onefold: program.version(),
        began_unix_s: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        took_s: 0.0,
        size_bytes: spec.size_bytes(plan.size),
        full_size_bytes: spec.full_size_bytes,
        variants: Vec::new(),
    };
    for (variant, scaled) in &variants {
        let repetitions = plan.repetitions.unwrap_or(variant.run.repetitions);
        let mut shown = describe::variant(variant, scaled);
        for number in 1..=repetitions {
            let title = format!("{} {}, repetition {number} of {repetitions}", spec.about.id, variant.name);
            let (mut measured, mut filled) = (Vec::new(), None);
            let done = Repetition { variant, scaled, directory: &plan.directory, title, program, watcher }.run(&mut measured, &mut filled);
            if !measured.is_empty() {
                shown.repetitions.push(measured);
            }
            shown.fills.extend(filled);
            shown.failure = done.as_ref().err().map(RunError::to_string);
            results.took_s = begun.elapsed().as_secs_f64();
            put(&mut results.variants, &shown);
            watcher.measured(&results);
            match done {
                Ok(()) => {}
                Err(RunError::Cancelled) => return Ok(Outcome { results, is_cancelled: true }),
                Err(_) => break,
            }
        }
    }
    Ok(Outcome { results, is_cancelled: false })
}

/// Replaces the results of a variant.
fn put(variants: &mut Vec<Variant>, variant: &Variant) {
    variants.retain(|old| old.name != variant.name);
    variants.push(variant.clone());
}

/// Returns the machine, and the file system of a directory.
pub fn machine(directory: &Path) -> Machine {
    measure::machine(directory)
}

/// The generations of one repetition.
type Generations = Vec<Measured>;
