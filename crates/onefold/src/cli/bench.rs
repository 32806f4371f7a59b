//! What can be typed after `onefold bench`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `onefold bench`.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Makes a page of HTML of results: plots beside those of the paper, tables, which expected orders hold
    Report(BenchReport),
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
