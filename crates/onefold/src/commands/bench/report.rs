//! `onefold bench report`.

use super::{shown, write_whole};
use crate::cli::BenchReport;
use crate::failure::{Exit, Failure, Result};
use crate::output::note;
use crate::talk::Talk;
use crate::units::{MIB, counted, size};
use onefold_experiment::report::{self, ReadError};
use onefold_experiment::results::Results;
use std::path::Path;

/// More than any run writes: what is larger is something else, and is not read into memory.
const MOST_BYTES: u64 = 256 * MIB;

/// Reads results and writes the page.
pub fn run(options: &BenchReport, talk: Talk) -> Result<Exit> {
    let mut runs = Vec::new();
    for file in &options.results {
        runs.extend(read(file)?);
    }
    write_whole(&options.out, report::html(&runs).as_bytes())?;
    if !talk.quiet {
        note(format_args!("wrote {}: {}", shown(&options.out), counted(runs.len() as u64, "experiment", "experiments")));
    }
    Ok(Exit::Done)
}

fn read(file: &Path) -> Result<Vec<Results>> {
    let cannot = |why: &dyn std::fmt::Display| Failure::cannot_run(format!("cannot read {}: {why}", shown(file)));
    let found = std::fs::metadata(file).map_err(|error| cannot(&error).advise("give files that `onefold bench run --out` wrote"))?;
    if found.len() > MOST_BYTES {
        let why = format!("it has {}, more than results ever have ({})", size(found.len()), size(MOST_BYTES));
        return Err(cannot(&why).advise("give files that `onefold bench run --out` wrote"));
    }
    let text = std::fs::read(file).map_err(|error| cannot(&error))?;
    report::read(&text).map_err(|error| {
        cannot(&error).advise(match error {
            ReadError::OtherVersion { .. } => {
                "make the report with the version of onefold that made the results, or run the experiments again"
            }
            ReadError::NotResults(_) | ReadError::Empty => "run the experiments again: `onefold bench run` writes whole files or none",
        })
    })
}
