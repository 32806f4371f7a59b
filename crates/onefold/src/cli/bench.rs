//! What can be typed after `onefold bench`.

use super::Format;
use crate::units::parse_size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `onefold bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Runs experiments that are declared in files, and measures them
    Run(BenchRun),
    /// Makes a page of HTML of results: plots beside those of the paper, tables, which expected orders hold
    Report(BenchReport),
}

/// `onefold bench run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each variant and repetition has a new store, which is deleted at its end. docs/experiments.md describes the declarations; those of the papers' experiments are in bench/papers.
^C stops soon, deletes the store and keeps what was measured; a second ^C ends at once and leaves the store behind.

Examples:
  onefold bench run bench/papers/e0-1.toml --scale quick
  onefold bench run bench/papers/*.toml --size 4GiB --repetitions 3 --out results.json
  onefold bench run my.toml --variant '4 SSDs' --directory /srv/fast --json")]
pub struct BenchRun {
    /// Declarations, run one after the other
    #[arg(required = true, value_name = "SPEC.toml")]
    pub specs: Vec<PathBuf>,
    /// Size of one generation, all clients together; memory that is declared to follow the size does [default: as declared]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "scale")]
    pub size: Option<u64>,
    /// Size in words
    #[arg(long, value_enum)]
    pub scale: Option<ScaleName>,
    /// How often each variant is run [default: as declared]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: Option<u32>,
    /// Only this variant; may be given many times
    #[arg(long = "variant", value_name = "NAME")]
    pub variants: Vec<String>,
    /// Where the stores are made [default: /dev/shm if there is room, else the directory of temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// File for the results, which `onefold bench report` reads; overwritten
    #[arg(long, value_name = "FILE.json")]
    pub out: Option<PathBuf>,
    /// Ends with code 1 if an expected order does not show: below the declared size, of those that are declared to show at any size
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
    /// A 256th of it: to see that it works, and roughly how
    Quick,
}

/// `onefold bench report`.
#[derive(Args, Debug)]
#[command(after_help = "\
The page needs no network and no scripts. A file that exists is overwritten.

Example:
  onefold bench report results.json more.json --out report.html")]
pub struct BenchReport {
    /// Files of results, in the order of the page
    #[arg(required = true, value_name = "RESULTS.json")]
    pub results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE.html")]
    pub out: PathBuf,
}
