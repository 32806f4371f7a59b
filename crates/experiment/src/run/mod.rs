//! Running an experiment: for each variant and repetition a new store, into which all clients write generation after generation, and what was measured of it.
//!
//! A store of an experiment is worth nothing: it is deleted after each repetition, whatever became of it. Closing it takes time only where it is opened again.

mod clients;
mod describe;
mod face;
mod measure;
mod room;
mod series;
mod store;

#[cfg(test)]
mod tests;

pub use face::{Service, Way, WayError};
pub use series::{Series, SeriesError, SeriesOutcome, Wanted};

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

/// Who runs experiments: it knows the settings of a store, and the protocols.
pub trait Program: SettingsReader {
    /// Version of onefold.
    fn version(&self) -> String;
    /// Serves volumes over a face that is not in process, until what it returns is dropped. The error says what to do.
    fn serve(&self, face: Face, store: &Served<'_>) -> std::result::Result<Box<dyn Service>, String>;
}

/// What is served.
#[derive(Debug)]
pub struct Served<'a> {
    /// The store.
    pub engine: &'a Arc<Engine>,
    /// Its volumes.
    pub volumes: &'a Arc<Volumes>,
    /// Its settings, a line for each, as `section.key = value`.
    pub settings: &'a str,
    /// A directory for sockets, which goes with the store.
    pub directory: &'a Path,
    /// Requests of a client in flight.
    pub depth: usize,
}

/// Who watches a run.
pub trait Watcher: Sync {
    /// Something of `total_bytes` begins; of 0 bytes: how long it takes is not known.
    fn step(&self, what: &str, total_bytes: u64);
    /// So much of it is done.
    fn advance(&self, bytes: u64);
    /// Whether to stop.
    fn is_cancelled(&self) -> bool;
    /// A repetition has ended, well or not: what was measured up to now.
    fn measured(&self, results: &Results);
}

/// How large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As declared.
    Full,
    /// A 256th of it, or the least that all variants can have.
    Quick,
    /// Bytes of one generation, all clients together.
    Bytes(u64),
}

/// What of an experiment is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How large.
    pub size: Size,
    /// How often; `None`: as declared.
    pub repetitions: Option<u32>,
    /// Names of variants; none: all.
    pub variants: Vec<String>,
    /// Directory in which the stores are made, one at a time.
    pub directory: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was measured.
    pub results: Results,
    /// Whether it was stopped.
    pub is_cancelled: bool,
}

/// Why an experiment cannot run, or a repetition of it has failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The declaration does not fit the plan.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No such variant.
    #[error("experiment {id} has no variant {name:?}{}", .nearest.as_deref().map_or_else(String::new, |name| format!("; did you mean {name:?}?")))]
    NoVariant {
        /// The experiment.
        id: String,
        /// What was asked for.
        name: String,
        /// The one that is nearest.
        nearest: Option<String>,
    },
    /// Too little room.
    #[error("the stores of experiment {id} need about {} in {}, where {} are free", onefold_ground::size::size(*.needed_bytes), .directory.display(), onefold_ground::size::size(*.free_bytes))]
    NoRoom {
        /// The experiment.
        id: String,
        /// Where.
        directory: PathBuf,
        /// An estimate.
        needed_bytes: u64,
        /// What there is.
        free_bytes: u64,
    },
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// Of what.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Of the ground.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// Of the store.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Of a volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Of the way to a volume.
    #[error(transparent)]
    Way(#[from] WayError),
    /// Of the server.
    #[error("cannot serve over {face}: {why}")]
    Serve {
        /// Over what.
        face: &'static str,
        /// Why not.
        why: String,
    },
    /// Of the data.
    #[error(transparent)]
    Traffic(#[from] onefold_traffic::TrafficError),
    /// Somebody wants it to stop.
    #[error("stopped before its end")]
    Cancelled,
}

/// The result of running.
pub type Result<T> = std::result::Result<T, RunError>;

impl Spec {
    /// Bytes of one generation that a size means. Quick is a 256th, but not below what all variants need.
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

    /// The variants of a plan, at its size. Errors: no such variant, too small a size.
    fn planned(&self, size: Size, names: &[String], reader: &dyn SettingsReader) -> Result<Vec<(&VariantSpec, Scaled)>> {
        if let Some(name) = names.iter().find(|name| self.variant(name).is_none()) {
            let nearest = nearest(name, self.variants.iter().map(|variant| variant.name.as_str())).map(str::to_owned);
            return Err(RunError::NoVariant { id: self.about.id.clone(), name: name.clone(), nearest });
        }
        let size_bytes = self.size_bytes(size);
        let wanted = self.variants.iter().filter(|variant| names.is_empty() || names.contains(&variant.name));
        // Of those for which it is too small, the one that needs most is told.
        if let Some(variant) = wanted.clone().max_by_key(|variant| variant.least_size_bytes(self.full_size_bytes)) {
            variant.scaled(size_bytes, self.full_size_bytes, reader)?;
        }
        wanted.map(|variant| Ok((variant, variant.scaled(size_bytes, self.full_size_bytes, reader)?))).collect()
    }
}

/// Whether the experiment can run so: before anything is made. Errors: no such variant, too small a size, settings that contradict each other at that size, no room.
pub fn check(spec: &Spec, plan: &Plan, program: &dyn Program) -> Result<()> {
    let variants = spec.planned(plan.size, &plan.variants, program)?;
    room::check(spec, &variants, &plan.directory)
}

/// Runs it. A variant that fails is told in the results, and the next one goes on. Errors: those of [`check`].
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
            let mut measured = Vec::new();
            let done = Repetition { variant, scaled, directory: &plan.directory, title, program, watcher }.run(&mut measured);
            if !measured.is_empty() {
                shown.repetitions.push(measured);
            }
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

/// Puts what is known of a variant in the place of what was known before.
fn put(variants: &mut Vec<Variant>, variant: &Variant) {
    variants.retain(|old| old.name != variant.name);
    variants.push(variant.clone());
}

/// The machine, and the file system of a directory.
pub fn machine(directory: &Path) -> Machine {
    measure::machine(directory)
}

/// Generations of one repetition, as they are measured.
type Generations = Vec<Measured>;
