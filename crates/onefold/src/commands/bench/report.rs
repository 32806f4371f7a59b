//! `onefold bench report`.

use super::{cannot_write, shown};
use crate::cli::BenchReport;
use crate::failure::{Exit, Failure, Result};
use crate::output::note;
use crate::talk::Talk;
use crate::units::counted;
use onefold_experiment::files::{ResultsFileError, read_results, write_page};
use onefold_experiment::report::ReadError;
use std::path::Path;

/// Reads results and writes the page.
pub fn run(options: &BenchReport, talk: Talk) -> Result<Exit> {
    let mut runs = Vec::new();
    for file in &options.results {
        runs.extend(read_results(file).map_err(|error| cannot_read(file, &error))?);
    }
    write_page(&options.out, &runs).map_err(|error| cannot_write(&options.out, &error, Exit::Failed))?;
    if !talk.quiet {
        note(format_args!("wrote {}: {}", shown(&options.out), counted(runs.len() as u64, "experiment", "experiments")));
    }
    Ok(Exit::Done)
}

fn cannot_read(file: &Path, error: &ResultsFileError) -> Failure {
    let failure = Failure::cannot_run(format!("cannot read {}: {error}", shown(file)));
    let advice = match error {
        ResultsFileError::Io(_) => return failure,
        ResultsFileError::Missing(_) | ResultsFileError::TooLong { .. } => "give files that `onefold bench run --out` wrote",
        ResultsFileError::Content(ReadError::OtherVersion { .. }) => {
            "make the report with the version of onefold that made the results, or run the experiments again"
        }
        ResultsFileError::Content(ReadError::NotResults(_) | ReadError::Empty) => {
            "run the experiments again: `onefold bench run` writes whole files or none"
        }
    };
    failure.advise(advice)
}
