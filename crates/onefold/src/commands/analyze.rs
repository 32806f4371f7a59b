//! `onefold analyze`: what a store would save, for each way to cut data (crate `onefold_analyze`). It needs no store
//! and writes nothing.

mod report;

use super::init::algorithm;
use crate::cli::Analyze;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::{Shown, Watch};
use crate::talk::Talk;
use crate::units::printable;
use onefold_analyze::{AnalyzeError, Options, analyze, cuts};
use onefold_chunking::Kind;
use onefold_client::Excludes;
use report::Report;
use std::os::unix::ffi::OsStrExt;

/// Runs the comparison.
pub fn run(options: &Analyze, talk: Talk) -> Result<Exit> {
    let kinds = if options.chunkers.is_empty() { &Kind::ALL[..] } else { &options.chunkers };
    let cuts = cuts(kinds, &options.sizes).map_err(|error| Failure::cannot_run(format!("--sizes: {error}")))?;
    let excludes = Excludes::new(&options.exclude)?;
    let watch = Watch::new(talk, Interrupt::watch()?, Shown::of(talk, false, false));
    let wanted = Options {
        paths: &options.paths,
        excludes: &excludes,
        one_file_system: options.one_file_system,
        cuts: &cuts,
        algorithm: algorithm(options.fingerprint),
        memory_bytes: options.memory,
    };
    let done = analyze(&wanted, &watch);
    watch.finish();
    let analysis = done?;
    let report = Report { analysis: &analysis, memory_bytes: options.memory };
    let mut output = Output::new();
    if options.format.json {
        output.json(&report.to_json(watch.problems_json()))?;
    } else {
        report.print(&mut output, talk.quiet)?;
    }
    output.finish()?;
    Ok(if analysis.errors == 0 { Exit::Done } else { Exit::Partial })
}

impl From<AnalyzeError> for Failure {
    fn from(error: AnalyzeError) -> Failure {
        match error {
            AnalyzeError::Missing { paths } => {
                let names: Vec<String> = paths.iter().map(|path| printable(path.as_os_str().as_bytes())).collect();
                Failure::cannot_run(format!("nothing to analyze: there is no {}", names.join(", no ")))
                    .advise("check the spelling of the paths")
            }
            AnalyzeError::Cancelled => Failure::interrupted("stopped by a signal before all was read; nothing was changed"),
            error => Failure::cannot_run(error),
        }
    }
}
