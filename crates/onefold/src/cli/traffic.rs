//! The command line of `onefold traffic`.

use super::Format;
use crate::units::parse_size;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `onefold traffic`.
#[derive(Debug, Subcommand)]
pub enum Traffic {
    /// Writes a stream to a file, a block device or standard output
    Generate(TrafficGenerate),
    /// Describes a stream, and how much of it an ideal deduplication would store; writes nothing
    Describe(TrafficDescribe),
}

/// Which stream.
#[derive(Args, Debug)]
pub struct TrafficStream {
    /// Kind of data
    #[arg(long, value_enum, default_value_t = SetName::Generations)]
    pub set: SetName,
    /// Size of each generation, or of the first image with `vm-images` [default: as in the papers; 32GiB for
    /// `generations`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Seed of the random numbers: 0 to 2^64 - 1
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Number of the client; clients share no data
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub client: u32,
    /// Number of the generation, version or file, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub generation: u32,
    /// Whether new data overwrites old data or is inserted (only `generations`) [default: block]
    #[arg(long, value_enum)]
    pub placement: Option<PlacementName>,
    /// Source of the run lengths of later generations (only `generations`) [default: upb-6 with block, upb-21-s with
    /// floating]
    #[arg(long, value_enum)]
    pub trace: Option<TraceName>,
    /// The documented model, or one with the defects of a published generator (only `generations`) [default:
    /// documented]
    #[arg(long, value_enum)]
    pub variant: Option<VariantName>,
    /// Later generations also lose runs of the one before (only `generations`)
    #[arg(long)]
    pub deleted_runs: bool,
}

/// Sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SetName {
    /// Backups of a file server: unique, repeated and old data in runs as long as in real ones
    Generations,
    /// Files without duplicates
    UniqueFiles,
    /// Ten versions of a list of 32-byte fingerprints, with 0, 10, ... 90 % from the version before
    Fingerprints,
    /// The same ten versions as data, in runs of 1MiB
    Versions,
    /// 4KiB blocks that are all different
    DisjointBlocks,
    /// Consecutive 4MiB files, each of one block repeated 1,024 times
    DuplicateBlocks,
    /// Four virtual machine images, each made from the one before
    VmImages,
}

/// Placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlacementName {
    /// Runs of 4KiB blocks; new data overwrites, and unchanged data keeps its place
    Block,
    /// Runs of any length; new data is inserted, and unchanged data moves
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
    /// Lengths extrapolated one step too far
    Extrapolated,
    /// Repeated data always follows old data, and old data repeated data
    OverwrittenSwitches,
    /// Runs are half as long after their first MiB
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
The same options write the same bytes on every machine; no earlier generation is needed.
docs/traffic.md describes the sets and the variants.

Examples:
  onefold traffic generate --size 8GiB --generation 1 gen1
  onefold traffic generate --size 8GiB --generation 2 gen2
  onefold traffic generate --size 1GiB --client 3 - | onefold volume import --store /srv/store disk -
  onefold traffic generate --set versions --size 100MiB --generation 10 version10
  onefold traffic generate --set unique-files --force /dev/nbd0")]
pub struct TrafficGenerate {
    /// Which stream.
    #[command(flatten)]
    pub stream: TrafficStream,
    /// Overwrites an existing file or a block device
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
