//! `onefold bench run`.

use super::program::Program;
use super::{can_be_written, shown, summary, write_whole};
use crate::cli::{BenchRun, ScaleName};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::titled_bar;
use crate::talk::Talk;
use crate::units::size;
use indicatif::ProgressBar;
use onefold_experiment::results::Results;
use onefold_experiment::run::{self, Plan, RunError, Size, Watcher, choose_directory};
use onefold_experiment::spec::{MAX_SPEC_BYTES, Spec};
use onefold_ground::words::nearest;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files here are in memory: what is to be slow is modelled.
const IN_MEMORY: &str = "/dev/shm";

/// Runs experiments. An unexpected order is a result, not a failure, unless `--strict` says otherwise.
pub fn run(options: &BenchRun, talk: Talk) -> Result<Exit> {
    let mut specs = Vec::new();
    for path in &options.specs {
        specs.push(read(path)?);
    }
    let specs = with_variants(specs, &options.variants)?;
    let size = match (options.size, options.scale) {
        (Some(bytes), _) => Size::Bytes(bytes),
        (None, Some(ScaleName::Quick)) => Size::Quick,
        (None, Some(ScaleName::Full) | None) => Size::Full,
    };
    let directory = options.directory.clone().unwrap_or_else(|| {
        let candidates = [PathBuf::from(IN_MEMORY), std::env::temp_dir()];
        choose_directory(&candidates, &specs, size, &Program)
    });
    let plan = |variants: &[String]| {
        let (repetitions, variants, directory) = (options.repetitions, variants.to_vec(), directory.clone());
        Plan { size, repetitions, variants, directory }
    };
    // Nothing is run for hours before the last one turns out to be impossible.
    for (spec, variants) in &specs {
        run::check(spec, &plan(variants), &Program).map_err(cannot_run)?;
    }
    let watch = Watch::new(talk, options.out.as_deref())?;
    if let Some(out) = &options.out {
        can_be_written(out)?;
    }
    let mut is_cancelled = false;
    for (spec, variants) in &specs {
        let outcome = run::run(spec, &plan(variants), &Program, &watch).map_err(cannot_run)?;
        is_cancelled = outcome.is_cancelled;
        watch.results().push(outcome.results);
        if is_cancelled {
            break;
        }
    }
    watch.end();
    let results = watch.results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(out) = &options.out {
        write_results(out, &results)?;
    }
    let mut output = Output::new();
    if options.format.json {
        output.json(&to_json(&results))?;
    } else {
        results.iter().try_for_each(|results| summary::print(results, &mut output))?;
    }
    output.finish()?;
    if is_cancelled {
        let kept = options.out.as_ref().map_or_else(String::new, |out| format!(", {}", shown(out)));
        return Err(Failure::interrupted(format!("stopped: the results have only what had finished{kept}")));
    }
    let failures = results.iter().flat_map(|results| &results.variants).filter(|variant| variant.failure.is_some()).count();
    let is_strict = options.strict && results.iter().any(|results| !summary::unmet(results).is_empty());
    if is_strict {
        note("an expected order did not hold (--strict)");
    }
    Ok(if failures > 0 || is_strict { Exit::Failed } else { Exit::Done })
}

/// Reads a declaration.
fn read(path: &Path) -> Result<Spec> {
    let cannot = |why: &dyn std::fmt::Display| Failure::cannot_run(format!("cannot use the declaration {}: {why}", shown(path)));
    let found = std::fs::metadata(path).map_err(|error| cannot(&error))?;
    if found.len() > MAX_SPEC_BYTES {
        return Err(cannot(&format!("it has {}, more than the {} that a declaration has", size(found.len()), size(MAX_SPEC_BYTES))));
    }
    let text = std::fs::read_to_string(path).map_err(|error| cannot(&error))?;
    Spec::parse(&text, &Program)
        .map_err(|error| cannot(&error).advise("docs/experiments.md describes declarations; bench/papers has examples"))
}

/// Each experiment with those of the wanted variants that it has. One that has none is left out; all of them, if none is named.
fn with_variants(specs: Vec<Spec>, wanted: &[String]) -> Result<Vec<(Spec, Vec<String>)>> {
    let all: Vec<&str> = specs.iter().flat_map(|spec| &spec.variants).map(|variant| variant.name.as_str()).collect();
    if let Some(name) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        let failure = Failure::cannot_run(format!("no experiment has a variant {name:?}"));
        return Err(match nearest(name, all.iter().copied()) {
            Some(other) => failure.advise(format!("did you mean {other:?}?")),
            None => failure.advise(format!("there are: {}", all.join(", "))),
        });
    }
    let own = |spec: &Spec| wanted.iter().filter(|name| spec.variant(name).is_some()).cloned().collect::<Vec<_>>();
    let with_own = specs.into_iter().map(|spec| (own(&spec), spec)).map(|(own, spec)| (spec, own));
    Ok(with_own.filter(|(_, own)| wanted.is_empty() || !own.is_empty()).collect())
}

fn cannot_run(error: RunError) -> Failure {
    let failure = Failure::cannot_run(&error);
    match error {
        RunError::NoRoom { .. } => failure.advise("give a smaller --size, or a --directory with more room"),
        RunError::Spec(_) => failure.advise("give another --size, or change the declaration"),
        RunError::Io { .. } => failure.advise("give a --directory that you may write to"),
        _ => failure,
    }
}

fn to_json(results: &[Results]) -> serde_json::Value {
    // They have no keys but texts, and no numbers that JSON does not know.
    serde_json::to_value(results).unwrap_or_default()
}

fn write_results(path: &Path, results: &[Results]) -> Result<()> {
    write_whole(path, format!("{:#}\n", to_json(results)).as_bytes())
}

/// Shows how far a run is, keeps what was measured, and stops it when a signal comes.
struct Watch<'a> {
    talk: Talk,
    interrupt: Interrupt,
    out: Option<&'a Path>,
    bar: Mutex<Option<ProgressBar>>,
    /// Of the experiments that have ended.
    results: Mutex<Vec<Results>>,
}

impl<'a> Watch<'a> {
    fn new(talk: Talk, out: Option<&'a Path>) -> Result<Watch<'a>> {
        Ok(Watch { talk, interrupt: Interrupt::watch()?, out, bar: Mutex::default(), results: Mutex::default() })
    }

    fn results(&self) -> MutexGuard<'_, Vec<Results>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        // A bar is whole at any time.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bar away.
    fn end(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

impl Watcher for Watch<'_> {
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
        let Some(out) = self.out else { return };
        let all = [&self.results()[..], std::slice::from_ref(results)].concat();
        // At the end it is written again, and then an error counts.
        if let Err(error) = write_results(out, &all) {
            tracing::warn!("{}", error.message);
        }
    }
}
