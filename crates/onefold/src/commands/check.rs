//! `onefold check`.

use super::Talk;
use crate::cli::Check;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::steps;
use crate::store::{OPENING_ADVICE, SETTINGS_FILE, cannot_open, ground, read_settings};
use crate::units::{counted, size};
use indicatif::ProgressBar;
use onefold_engine::{Engine, Mode};
use onefold_reclaim::{CheckOptions, CheckReport, Monitor, Problem, ProblemKind, check, rebuild_chunk_index};
use serde_json::{Value, json};
use std::path::Path;

/// Verifies the store. Damage is a result with exit code 1; what keeps the check from running has code 2.
pub fn run(options: &Check, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    let mut watch = Watch { bar: steps(talk), interrupt };
    if options.rebuild_index {
        rebuild(&options.store.directory, &watch, talk)?;
        watch.bar = steps(talk);
    }
    let directory = &options.store.directory;
    let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    let check_options = CheckOptions { read_data: options.read_data, ..CheckOptions::default() };
    let report = match Engine::open(ground(directory)?, settings.engine, Mode::ReadOnly, "check") {
        Ok(engine) => {
            let checked = check(&engine, check_options, &watch);
            watch.bar.finish_and_clear();
            let report = checked.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
            engine.close()?;
            report
        }
        Err(error) if error.is_damage() => CheckReport::of_opening(&error),
        Err(error) => return Err(cannot_open(error)),
    };
    if watch.interrupt.came() {
        return Err(Failure::interrupted("the check was stopped before its end; nothing was changed"));
    }
    let mut output = Output::new();
    if options.format.json {
        output.json(&to_json(&report))?;
    } else {
        for problem in &report.problems {
            output.line(&problem.what)?;
        }
        if !talk.quiet {
            let data = if options.read_data { format!(", {} of data read", size(report.read_bytes)) } else { String::new() };
            if report.problems.iter().any(|problem| problem.kind == ProblemKind::Opening) {
                note(format_args!("nothing else could be checked: {OPENING_ADVICE}"));
            }
            note(format_args!(
                "{}, {}, {}{data}: {}",
                counted(report.containers, "container", "containers"),
                counted(report.chunks, "chunk", "chunks"),
                counted(report.references, "reference", "references"),
                if report.is_clean() { "clean".to_owned() } else { counted(report.problem_count, "problem", "problems") }
            ));
        }
    }
    output.finish()?;
    Ok(if report.is_clean() { Exit::Done } else { Exit::Failed })
}

/// Makes the chunk index anew. What could not be read for it is found again, and listed, by the check that follows.
fn rebuild(directory: &Path, watch: &Watch, talk: Talk) -> Result<()> {
    let ground = ground(directory)?;
    let settings = read_settings(&directory.join(SETTINGS_FILE), true)?;
    let rebuilt = rebuild_chunk_index(ground, settings.engine, "check --rebuild-index", watch);
    watch.bar.finish_and_clear();
    let problems = rebuilt.map_err(|error| Failure { exit: Exit::CannotRun, ..Failure::from(error) })?;
    if !talk.quiet {
        note(format_args!("the chunk index is made anew; {} could not be read for it", counted(problems.len() as u64, "thing", "things")));
    }
    Ok(())
}

fn to_json(report: &CheckReport) -> Value {
    let problem = |problem: &Problem| json!({"kind": problem.kind.name(), "what": problem.what});
    json!({
        "clean": report.is_clean(),
        "containers": report.containers,
        "chunks": report.chunks,
        "index_entries": report.index_entries,
        "references": report.references,
        "read_bytes": report.read_bytes,
        "problem_count": report.problem_count,
        "problems": report.problems.iter().map(problem).collect::<Value>(),
    })
}

struct Watch {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl Monitor for Watch {
    fn step(&self, what: &str, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    fn advance(&self, units: u64) {
        self.bar.inc(units);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.came()
    }
}
