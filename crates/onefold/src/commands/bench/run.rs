//! `onefold bench run`.

use super::program::Program;
use super::{cannot_write, shown, summary};
use crate::cli::{BenchRun, ScaleName};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::titled_bar;
use crate::talk::Talk;
use indicatif::ProgressBar;
use onefold_experiment::files::{SpecFileError, read_spec, to_json};
use onefold_experiment::results::Results;
use onefold_experiment::run::{RunError, Series, SeriesError, Size, Wanted, Watcher};
use onefold_experiment::spec::Spec;
use onefold_experiment::statistics::unmet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs experiments. An unexpected order is a result, not a failure, unless `--strict` says otherwise.
pub fn run(options: &BenchRun, talk: Talk) -> Result<Exit> {
    let specs = options.specs.iter().map(|path| read(path)).collect::<Result<Vec<Spec>>>()?;
    let size = match (options.size, options.scale) {
        (Some(bytes), _) => Size::Bytes(bytes),
        (None, Some(ScaleName::Quick)) => Size::Quick,
        (None, Some(ScaleName::Full) | None) => Size::Full,
    };
    let wanted = Wanted {
        size,
        repetitions: options.repetitions,
        variants: options.variants.clone(),
        directory: options.directory.clone(),
        out: options.out.clone(),
    };
    let cannot = |error| cannot_run(error, options.out.as_deref());
    let series = Series::new(specs, wanted, &Program).map_err(cannot)?;
    let watch = Watch { talk, interrupt: Interrupt::watch()?, bar: Mutex::default() };
    let outcome = series.run(&Program, &watch);
    watch.end();
    let outcome = outcome.map_err(cannot)?;
    let results = &outcome.results;
    let mut output = Output::new();
    if options.format.json {
        output.json(&to_json(results))?;
    } else {
        results.iter().try_for_each(|results| summary::print(results, &mut output))?;
    }
    output.finish()?;
    if outcome.is_cancelled {
        let kept = options.out.as_ref().map_or_else(String::new, |out| format!(", {}", shown(out)));
        return Err(Failure::interrupted(format!("stopped: the results have only what had finished{kept}")));
    }
    let failures = results.iter().flat_map(|results| &results.variants).filter(|variant| variant.failure.is_some()).count();
    let is_strict = options.strict && results.iter().any(|results| !unmet(results).is_empty());
    if is_strict {
        note("an expected order did not hold (--strict)");
    }
    Ok(if failures > 0 || is_strict { Exit::Failed } else { Exit::Done })
}

/// Reads a declaration.
fn read(path: &Path) -> Result<Spec> {
    read_spec(path, &Program).map_err(|error| {
        let failure = Failure::cannot_run(format!("cannot use the declaration {}: {error}", shown(path)));
        match error {
            SpecFileError::Spec(_) => failure.advise("docs/experiments.md describes declarations; bench/papers has examples"),
            SpecFileError::Io(_) | SpecFileError::TooLong { .. } => failure,
        }
    })
}

fn cannot_run(error: SeriesError, out: Option<&Path>) -> Failure {
    let out = out.unwrap_or(Path::new(""));
    let failure = Failure::cannot_run(&error);
    match error {
        SeriesError::NoVariant { nearest: Some(other), .. } => failure.advise(format!("did you mean {other:?}?")),
        SeriesError::NoVariant { known, .. } => failure.advise(format!("there are: {}", known.join(", "))),
        SeriesError::Run(RunError::NoRoom { .. }) => failure.advise("give a smaller --size, or a --directory with more room"),
        SeriesError::Run(RunError::Spec(_)) => failure.advise("give another --size, or change the declaration"),
        SeriesError::Run(RunError::Io { .. }) => failure.advise("give a --directory that you may write to"),
        SeriesError::Run(_) => failure,
        SeriesError::Unwritable(error) => cannot_write(out, &error, Exit::CannotRun),
        SeriesError::NotWritten(error) => cannot_write(out, &error, Exit::Failed),
    }
}

/// Shows how far a run is, and stops it when a signal comes.
struct Watch {
    talk: Talk,
    interrupt: Interrupt,
    bar: Mutex<Option<ProgressBar>>,
}

impl Watch {
    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        // The bar is complete whenever its lock is free, even after a panic.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bar away.
    fn end(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Watch {
    fn step(&self, what: &str, total_bytes: u64) {
        self.end();
        *self.bar() = Some(titled_bar(self.talk, total_bytes, what.to_owned()));
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.bar() {
            bar.inc(bytes);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.came()
    }

    fn measured(&self, results: &Results) {
        if let Some(variant) = results.variants.last()
            && let Some(failure) = &variant.failure
        {
            self.end();
            note(format_args!("{} {}: {failure}", results.about.id, variant.name));
        }
    }
}
