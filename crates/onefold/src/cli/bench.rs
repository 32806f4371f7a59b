//! The command line of `onefold bench`.

use super::Format;
use crate::units::parse_size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `onefold bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Runs and measures the experiments that the files declare
    Run(BenchRun),
    /// Creates an HTML page of results: plots beside the paper's, tables, and which expected orders hold
    Report(BenchReport),
}

/// `onefold bench run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each variant and repetition runs on a new store and deletes it afterwards. docs/experiments.md describes the declarations; those of the papers'
experiments are in bench/papers.
^C stops soon, deletes the store and keeps the measurements; a second ^C ends at once and leaves the store behind.

Examples:
  onefold bench run bench/papers/e0-1.toml --scale quick
  onefold bench run bench/papers/*.toml --size 4GiB --repetitions 3 --out results.json
  onefold bench run my.toml --variant '4 SSDs' --directory /srv/fast --json")]
pub struct BenchRun {
    /// Declarations, run in this order
    #[arg(required = true, value_name = "SPEC.toml")]
    pub specs: Vec<PathBuf>,
    /// Size of one generation of all clients together; scales memory that is declared to follow it [default: as
    /// declared]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "scale")]
    pub size: Option<u64>,
    /// Size by name
    #[arg(long, value_enum)]
    pub scale: Option<ScaleName>,
    /// Runs of each variant [default: as declared]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Only this variant; repeatable
    #[arg(long = "variant", value_name = "NAME")]
    pub variants: Vec<String>,
    /// Where the stores are created [default: /dev/shm if there is room, else the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// File for the results, which `onefold bench report` reads; overwritten
    #[arg(long, value_name = "FILE.json")]
    pub out: Option<PathBuf>,
    /// Ends with code 1 if an expected order does not hold; below the declared size, counts only orders declared for
    /// any size
    #[arg(long)]
    pub strict: bool,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}

/// Sizes in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleName {
    /// As declared
    Full,
    /// A 256th of the declared size: a quick trial
    Quick,
}

/// `onefold bench report`.
#[derive(Args, Debug)]
#[command(after_help = "\
The page needs no network and no scripts. An existing file is overwritten.

Example:
  onefold bench report results.json more.json --out report.html")]
pub struct BenchReport {
    /// Files of results, in the order of the page
    #[arg(required = true, value_name = "RESULTS.json")]
    pub results: Vec<PathBuf>,
    /// File for the page
    #[arg(long, value_name = "FILE.html")]
    pub out: PathBuf,
}
