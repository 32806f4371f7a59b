//! What can be typed after `onefold traffic`.

use super::Format;
use crate::units::parse_size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `onefold traffic`.
#[derive(Debug, Subcommand)]
pub enum Traffic {
    /// Writes a stream to a file, a block device or standard output
    Generate(TrafficGenerate),
    /// Tells what a stream consists of, and what an ideal deduplication would store of it; writes nothing
    Describe(TrafficDescribe),
}

/// Which stream.
#[derive(Args, Debug)]
pub struct TrafficStream {
    /// Kind of data
    #[arg(long, value_enum, default_value_t = SetName::Generations)]
    pub set: SetName,
    /// Size of each generation; of the first image with `vm-images` [default: that of the papers, 32GiB for `generations`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Number that all follows from: 0 to 2^64 - 1
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Number of the client: clients share no data
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub client: u32,
    /// Generation, version or file: from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub generation: u32,
    /// Whether new data overwrites old or comes between it (only `generations`) [default: block]
    #[arg(long, value_enum)]
    pub placement: Option<PlacementName>,
    /// Whose run lengths later generations have (only `generations`) [default: upb-6 with block, upb-21-s with floating]
    #[arg(long, value_enum)]
    pub trace: Option<TraceName>,
    /// The documented model, or one with defects of the published generators (only `generations`) [default: documented]
    #[arg(long, value_enum)]
    pub variant: Option<VariantName>,
    /// Later generations lose runs of the one before, too (only `generations`)
    #[arg(long)]
    pub deleted_runs: bool,
}

/// Sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SetName {
    /// Backups of a file server: unique, repeated and old data in runs as long as in real ones
    Generations,
    /// Files without any duplicate
    UniqueFiles,
    /// Ten versions of fingerprints of 32 bytes, with 0, 10, ... 90 % of those of the version before
    Fingerprints,
    /// Blocks of 4KiB that are all different
    DisjointBlocks,
    /// Files of 4MiB behind each other, each of one block 1,024 times
    DuplicateBlocks,
    /// Four images of virtual machines, each made from the one before
    VmImages,
}

/// Placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacementName {
    /// Runs in blocks of 4KiB; new data overwrites, what stays keeps its place
    Block,
    /// Runs of any length; new data is inserted, what stays moves on
    Floating,
}

/// Traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceName {
    /// The papers' choice with block
    #[value(name = "upb-6")]
    Upb6,
    /// The papers' choice with floating
    #[value(name = "upb-21-s")]
    Upb21S,
}

/// Variants of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VariantName {
    /// As documented
    Documented,
    /// Lengths go one step too far
    Extrapolated,
    /// Repeated data always follows old data, and old data repeated data
    OverwrittenSwitches,
    /// Runs are half as long behind their first MiB
    HalvedRuns,
    /// The generator in Python
    #[value(name = "python-2009")]
    Python2009,
    /// The online generator: extrapolated, overwritten-switches and halved-runs together
    #[value(name = "online-2011")]
    Online2011,
}

/// `onefold traffic generate`.
#[derive(Args, Debug)]
#[command(after_help = "\
The same options always write the same bytes, on every machine; no earlier generation is needed.
docs/traffic.md describes the sets and the variants.

Examples:
  onefold traffic generate --size 8GiB --generation 1 gen1
  onefold traffic generate --size 8GiB --generation 2 gen2
  onefold traffic generate --size 1GiB --client 3 - | onefold volume import --store /srv/store disk -
  onefold traffic generate --set unique-files --force /dev/nbd0")]
pub struct TrafficGenerate {
    /// Which stream.
    #[command(flatten)]
    pub stream: TrafficStream,
    /// Overwrites a file that exists, or a block device
    #[arg(long)]
    pub force: bool,
    /// The file or block device; `-` for standard output
    pub file: PathBuf,
}

/// `onefold traffic describe`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  onefold traffic describe --generation 2
  onefold traffic describe --size 10TiB --generation 2 --variant online-2011 --json")]
pub struct TrafficDescribe {
    /// Which stream.
    #[command(flatten)]
    pub stream: TrafficStream,
    /// How facts are printed.
    #[command(flatten)]
    pub format: Format,
}
