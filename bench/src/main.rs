//! Benchmarks of onefold as a whole: `make bench`, or `onefold-bench run --help`.
//!
//! Every figure stands beside its aim and beside a floor of the same run. What is measured by programs of single crates
//! (chunkers, index, containers, NBD protocol) lies in their `benches/`.

mod backups;
mod corpus;
mod disks;
mod files;
mod floors;
mod ideal;
mod ingest;
mod iscsi;
mod marking;
mod memory;
mod object_storage;
mod peers;
mod pipeline;
mod process;
mod random;
mod reclamation;
mod report;
mod runs;
mod sampling;
mod scrub;
mod server;
mod servers;
mod shell;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use report::Report;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures and prints the table
    Run(Options),
    /// Measures other backup programs beside ours and writes a report
    Peers(peers::Options),
    /// Measures backups over a connection, of other programs beside ours, and writes a report
    Servers(servers::Options),
    /// Measures backups in object storage, of other programs beside ours, and writes a report
    ObjectStorage(object_storage::Options),
    /// Measures a store with little memory, in a control group that limits it (as root)
    Memory(memory::Options),
    /// Makes the corpus in a new directory
    Corpus {
        /// Directory to make
        directory: PathBuf,
        /// Size in bytes
        #[arg(long, default_value_t = DEFAULT_SIZE)]
        size: u64,
        /// What the random choices follow from
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Turns the corpus in a directory into its second generation
    Change {
        /// Directory of the corpus
        directory: PathBuf,
        /// What the random choices follow from
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Fills the log of a store and ends as a killed process does
    #[command(hide = true)]
    FillLog {
        /// The store, with a volume `disk`
        store: PathBuf,
    },
    /// Serves an empty bucket until standard input ends
    #[command(hide = true)]
    Gateway,
    /// Runs a command and reports what it took
    #[command(hide = true)]
    Measured {
        #[arg(last = true)]
        command: Vec<String>,
    },
}

const DEFAULT_SIZE: u64 = 1_000_000_000;

/// What is measured, where, and how often.
#[derive(clap::Args)]
pub struct Options {
    /// Bytes of the corpus; 2130000000 for the size that the aims are stated for
    #[arg(long, default_value_t = DEFAULT_SIZE)]
    size: u64,
    /// What the random choices follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each program; medians are reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The program [default: `onefold` beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// An earlier `onefold` that is measured in turns with the program (part `iscsi`)
    #[arg(long)]
    before: Option<PathBuf>,
    /// Only loads with this in their name (part `iscsi`)
    #[arg(long, default_value = "")]
    load: String,
    /// A directory in memory
    #[arg(long, default_value = "/dev/shm")]
    memory: PathBuf,
    /// A directory on the disk that is measured
    #[arg(long, default_value = "/var/tmp")]
    disk: PathBuf,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Floors, Part::Pipeline, Part::Ideal, Part::Backups, Part::Ingest, Part::Disks, Part::Files, Part::Iscsi, Part::Sampling, Part::Reclamation, Part::Marking, Part::Writers, Part::Opening, Part::Clones, Part::Scrub])]
    parts: Vec<Part>,
    /// Also writes the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Options {
    /// The program that is measured.
    fn binary(&self) -> Result<PathBuf> {
        self.binary.clone().map_or_else(|| Ok(std::env::current_exe()?.with_file_name("onefold")), Ok)
    }
}

/// Parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the machine gives
    Floors,
    /// Cutting and fingerprinting on one core
    Pipeline,
    /// What an ideal store without overhead would take for the corpus
    Ideal,
    /// Backups, restore, check: whole runs of the program
    Backups,
    /// Ingest and reads in process
    Ingest,
    /// A served volume beside other NBD servers
    Disks,
    /// A mounted filesystem beside the disk's own and a FUSE passthrough
    Files,
    /// A volume over iSCSI beside tgt
    Iscsi,
    /// Reclaiming space after many generations, and restores before and after
    Reclamation,
    /// What a sampled index finds
    Sampling,
    /// Finding out what is needed after a change, without counts
    Marking,
    /// Latency of writers beside reclamation
    Writers,
    /// Opening after a crash with a full log
    Opening,
    /// Look-ups that a clone of the last image spares
    Clones,
    /// Scrub and check of a whole store beside a sequential read
    Scrub,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Run(options) => run(options)?,
        Command::Peers(options) => peers::measure(&options)?,
        Command::Servers(options) => servers::measure(&options)?,
        Command::ObjectStorage(options) => object_storage::measure(&options)?,
        Command::Memory(options) => memory::measure(&options)?,
        Command::Corpus { directory, size, seed } => corpus::create(&directory, size, seed)?,
        Command::Change { directory, seed } => corpus::change(&directory, seed)?,
        Command::FillLog { store } => reclamation::fill_log(&store)?,
        Command::Gateway => object_storage::gateway::serve()?,
        Command::Measured { command } => return process::measured(&command),
    }
    Ok(ExitCode::SUCCESS)
}

fn run(options: Options) -> Result<()> {
    let mut report = Report::default();
    let mut failed = Vec::new();
    for part in &options.parts {
        // The others are measured all the same, and what this one found before is told.
        if let Err(error) = measure(*part, &options, &mut report) {
            let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            eprintln!("the part {name} failed: {error:#}");
            failed.push(name);
        }
    }
    println!("{}", report.text());
    if let Some(path) = &options.json {
        let about = json!({
            "processor": processor(),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
            "corpus_bytes": options.size,
            "seed": options.seed,
            "runs": options.runs,
            "failed_parts": failed,
        });
        let text = serde_json::to_string_pretty(&report.json(about))? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !failed.is_empty() {
        bail!("not all was measured; these parts failed: {}", failed.join(", "));
    }
    Ok(())
}

fn measure(part: Part, options: &Options, report: &mut Report) -> Result<()> {
    match part {
        Part::Floors => machine(options, report),
        Part::Pipeline => pipeline::measure(report),
        Part::Ideal => ideal::measure(options, report),
        Part::Backups => backups::measure(options, report),
        Part::Ingest => ingest::measure(options, report),
        Part::Disks => disks::measure(options, report),
        Part::Files => files::measure(options, report),
        Part::Iscsi => iscsi::measure(options, report),
        Part::Reclamation => reclamation::generations(options, report),
        Part::Marking => marking::measure(options, report),
        Part::Sampling => sampling::measure(options, report),
        Part::Writers => reclamation::writers(options, report),
        Part::Opening => reclamation::opening(options, report),
        Part::Clones => reclamation::clones(options, report),
        Part::Scrub => scrub::measure(options, report),
    }
}

fn machine(options: &Options, report: &mut Report) -> Result<()> {
    report.group(format!("Floors of {} x {}", std::thread::available_parallelism().map_or(0, usize::from), processor()));
    report.add("copying memory, one thread", floors::memcpy()?, "GB/s");
    report.add("BLAKE3 of 8 KiB pieces, one thread", floors::blake3()?, "GB/s");
    report.add("disk: sequential write and sync", floors::sequential_write(&options.disk, options.size)?, "GB/s");
    report.add("memory file system: sequential write", floors::sequential_write(&options.memory, options.size)?, "GB/s");
    Ok(())
}

/// The name of the processor, for the record.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field =
        |name: &str| text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1)).unwrap_or("?").to_owned();
    format!("{} (family {}, model {})", field("model name"), field("cpu family"), field("model\t"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }
}
