//! A store with little memory: a daemon in a cgroup with a limit takes unique data, then the same data again, through
//! NBD and through a mounted filesystem.
//!
//! Profile `cacheless` promises to find every duplicate in a store of any size within 64 MiB, page cache included. A
//! control group counts both, and ends the daemon if they do not fit.

mod cgroup;
mod faces;
mod interrupt;

use crate::process::run;
use crate::processor;
use crate::random::Random;
use crate::report::{Aim, Report};
use crate::server::{Server, serve};
use anyhow::{Context, Result, bail};
use cgroup::{ControlGroup, Usage};
use clap::ValueEnum;
use faces::{Disk, Face, Files};
use onefold_ground::size::parse_size;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a block: a duplicate is a whole one.
const BLOCK_BYTES: usize = 4096;
/// One request in so many is read back and compared.
const READ_ONE_IN: u64 = 16;
/// The volume and the filesystem.
const NAME: &str = "data";
/// Moves the shell into a control group, then becomes the daemon.
const INTO_GROUP: &str = "echo $$ > \"$0\" && exec \"$@\"";

/// What is measured.
#[derive(clap::Args)]
pub struct Options {
    /// Unique data, which is then written again, as in 20GiB
    #[arg(long, default_value = "2GiB", value_parser = parse_size)]
    size: u64,
    /// Memory of the daemon with its page cache
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    limit: u64,
    /// A directory on a disk with room for the unique data and a quarter more
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Only these faces
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [FaceName::Nbd, FaceName::Filesystem])]
    faces: Vec<FaceName>,
    /// Only these stores
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Limited, Kind::Exact])]
    stores: Vec<Kind>,
    /// Bytes of a request
    #[arg(long, default_value = "256KiB", value_parser = parse_size)]
    request: u64,
    /// Requests of NBD that are in flight
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
    /// Drop all caches of the system before each part
    #[arg(long)]
    cold: bool,
    /// What the data follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program [default: `onefold` beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Also writes the figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// How clients write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FaceName {
    /// A volume over NBD
    Nbd,
    /// A mounted filesystem
    Filesystem,
}

/// Which store, and with how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Profile `cacheless` within the limit
    Limited,
    /// Profile `cacheless` without a limit: what the limit costs
    Cacheless,
    /// Profile `exact` with the same blocks and its default memory, without a limit
    Exact,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Limited => "cacheless within the limit",
            Kind::Cacheless => "cacheless without a limit",
            Kind::Exact => "exact, same blocks, default memory",
        }
    }

    fn init(self) -> &'static [&'static str] {
        match self {
            Kind::Limited | Kind::Cacheless => &["--profile", "cacheless"],
            Kind::Exact => &["--chunker", "fixed", "--chunk-size", "4KiB", "--compression", "none"],
        }
    }
}

/// What one store took through one face.
#[derive(Debug, Default)]
struct Found {
    /// MB/s of writing unique data, of writing it again, and of reading.
    rates: [f64; 3],
    /// Blocks that the second copy added to the store.
    added_blocks: i64,
    /// Processor time of the daemon, seconds for each GB written.
    cpu_s: f64,
    /// Greatest resident memory of the daemon, bytes.
    resident_bytes: u64,
    usage: Option<Usage>,
}

/// What a part does with the data.
const PARTS: [&str; 3] = ["unique data", "the same again", "reading"];

/// Measures all stores through all faces, and writes the table.
pub fn measure(options: &Options) -> Result<()> {
    if options.request < BLOCK_BYTES as u64 || options.request > u64::from(onefold_nbd::MAX_PAYLOAD_BYTES) {
        bail!("a request has 4KiB to 32MiB");
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("mounts, control groups and caches of the system need root: run it as root");
    }
    interrupt::catch()?;
    let mut report = Report::default();
    let mut failed = Vec::new();
    for face in &options.faces {
        let mut exact = None;
        // The comparison comes first, so that its figures stand beside the others.
        let mut kinds = options.stores.clone();
        kinds.sort_by_key(|kind| *kind != Kind::Exact);
        for kind in kinds {
            let face_name = face.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
            let caches = if options.cold { "cold caches" } else { "warm caches" };
            report.group(format!("{face_name}: {}, {:.1} GB twice, {caches}", kind.name(), copy_bytes(options) as f64 / 1e9));
            let place = tempfile::tempdir_in(&options.directory).context("no temporary directory")?;
            let found = measure_one(options, kind, *face, place.path(), &mut report);
            interrupt::check()?;
            match found {
                Ok(found) => {
                    add(&mut report, options, &found, exact.as_ref());
                    if kind == Kind::Exact {
                        exact = Some(found);
                    }
                }
                // The others are measured all the same.
                Err(error) => {
                    eprintln!("{face_name}, {} failed: {error:#}", kind.name());
                    failed.push(format!("{face_name}, {}", kind.name()));
                }
            }
        }
    }
    println!("{}", report.text());
    if let Some(path) = &options.json {
        let about = json!({
            "processor": processor(), "size_bytes": copy_bytes(options), "limit_bytes": options.limit, "request_bytes": options.request,
            "in_flight": options.in_flight, "cold": options.cold, "seed": options.seed, "failed": failed,
        });
        let text = serde_json::to_string_pretty(&report.json(about))? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !failed.is_empty() {
        bail!("not all was measured; these failed: {}", failed.join("; "));
    }
    Ok(())
}

/// Bytes of a copy: whole requests.
fn copy_bytes(options: &Options) -> u64 {
    options.size.div_ceil(options.request) * options.request
}

fn add(report: &mut Report, options: &Options, found: &Found, exact: Option<&Found>) {
    for (part, (name, rate)) in PARTS.iter().zip(found.rates).enumerate() {
        report.add_beside(*name, rate, "MB/s", None, exact.map(|exact| ("exact", exact.rates[part])));
    }
    report.add("processor time of the daemon, by what is written", found.cpu_s, "s/GB");
    report.add_beside("blocks that the second copy added", found.added_blocks as f64, "", Some(Aim::Below(0.0)), None);
    let limit = found.usage.map(|_| Aim::Below(options.limit as f64 / 1e6));
    report.add_beside("greatest resident memory", found.resident_bytes as f64 / 1e6, "MB", limit, None);
    if let Some(usage) = found.usage {
        report.add("of the group: most memory of the process itself", usage.anonymous as f64 / 1e6, "MB");
        report.add("of the group: most page cache", usage.file as f64 / 1e6, "MB");
        report.add("of the group: most of everything", usage.peak as f64 / 1e6, "MB");
    }
}

/// Runs a daemon on a new store, and all parts.
fn measure_one(options: &Options, kind: Kind, face: FaceName, at: &Path, report: &mut Report) -> Result<Found> {
    let binary = options.binary.clone().map_or_else(|| Ok(std::env::current_exe()?.with_file_name("onefold")), anyhow::Ok)?;
    let store = text(&at.join("store")).to_owned();
    let (socket, mount) = (at.join("nbd.sock"), at.join("mount"));
    let copy_bytes = copy_bytes(options);
    run(&binary, &[&["init", &store], kind.init()].concat())?;
    run(&binary, &["volume", "create", "--store", &store, NAME, "--size", &(2 * copy_bytes).to_string()])?;
    run(&binary, &["fs", "create", "--store", &store, NAME])?;
    fs::create_dir(&mount)?;
    let mount = MountPoint(mount);
    let mut group = if kind == Kind::Limited { Some(ControlGroup::create(options.limit)?) } else { None };
    // Every face is served: what is idle must fit as well.
    let mounts = format!("{NAME}={}", mount.0.display());
    let program = [text(&binary), "-q", "serve", "--store", &store, "--nbd", "", "--nbd-socket", text(&socket), "--fs", &mounts];
    let server = match &group {
        Some(group) => {
            let processes = group.processes();
            serve("sh", &[&["-c", INTO_GROUP, text(&processes)], &program[..]].concat(), &socket, NAME)?
        }
        None => serve(program[0], &program[1..], &socket, NAME)?,
    };
    let server = server.context("the program is not there")?;
    let ended = interrupt::ends(server.pid());
    if let Some(group) = &mut group {
        group.watch();
    }
    let found = match face {
        FaceName::Nbd => Disk::connect(&socket, NAME, copy_bytes, options.in_flight)
            .and_then(|mut disk| passes(options, &mut disk, &server, &binary, &store)),
        FaceName::Filesystem => {
            crate::files::wait_for_mount(&mount.0).and_then(|()| passes(options, &mut Files::new(&mount.0), &server, &binary, &store))
        }
    };
    let usage = group.as_mut().map(ControlGroup::usage).transpose()?;
    if let Some(usage) = usage {
        report.add_beside("kills for lack of memory", usage.kills as f64, "", Some(Aim::Below(0.0)), None);
    }
    let stopped = server.stop();
    drop(ended);
    let found = match usage {
        Some(usage) if usage.kills > 0 => {
            let most = usage.anonymous as f64 / 1e6;
            let limit = options.limit as f64 / 1e6;
            found.with_context(|| {
                format!("the kernel ended the daemon: {limit:.1} MB of memory do not suffice (it had {most:.1} MB itself)")
            })
        }
        _ => found,
    }?;
    stopped?;
    Ok(Found { usage, ..found })
}

/// A directory where the daemon mounts. A killed daemon leaves its mount; dropping this removes it.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        // Nothing is mounted there when the daemon ended by itself.
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Writes both copies and reads a part of each.
fn passes(options: &Options, face: &mut dyn Face, server: &Server, binary: &Path, store: &str) -> Result<Found> {
    let requests = copy_bytes(options) / options.request;
    let mut data = vec![0; options.request as usize];
    let mut write = |face: &mut dyn Face, copy: u64| -> Result<f64> {
        cool(options)?;
        let begun = Instant::now();
        for request in 0..requests {
            interrupt::check()?;
            fill(options.seed, request * options.request, &mut data);
            face.write(copy, request * options.request, &data)?;
        }
        face.flush()?;
        Ok((requests * options.request) as f64 / begun.elapsed().as_secs_f64() / 1e6)
    };
    let unique = write(face, 0)?;
    let after_first = blocks(binary, store)?;
    let again = write(face, 1)?;
    let added_blocks = blocks(binary, store)? - after_first;
    let cpu_s = server.cpu_s()? / (2 * requests * options.request) as f64 * 1e9;
    cool(options)?;
    let mut read = vec![0; data.len()];
    let (begun, mut read_bytes) = (Instant::now(), 0);
    for request in (0..requests).step_by(READ_ONE_IN as usize) {
        let offset = request * options.request;
        interrupt::check()?;
        fill(options.seed, offset, &mut data);
        for copy in 0..2 {
            face.read(copy, offset, &mut read)?;
            if read != data {
                bail!("copy {copy} differs from what was written in the request at {offset}");
            }
            read_bytes += options.request;
        }
    }
    let reading = read_bytes as f64 / begun.elapsed().as_secs_f64() / 1e6;
    Ok(Found { rates: [unique, again, reading], added_blocks, cpu_s, resident_bytes: server.peak_bytes()?, usage: None })
}

/// Fills a buffer with the data at an offset: every block is another one.
fn fill(seed: u64, offset: u64, data: &mut [u8]) {
    for (number, block) in data.chunks_mut(BLOCK_BYTES).enumerate() {
        let place = offset + (number * BLOCK_BYTES) as u64;
        Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(place << 20)).fill(block);
    }
}

/// Has the system forget what it keeps of files, if that is wanted.
fn cool(options: &Options) -> Result<()> {
    if options.cold {
        nix::unistd::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").context("caches cannot be dropped: run it as root")?;
    }
    Ok(())
}

/// Returns how many chunks are stored, as the daemon says.
fn blocks(binary: &Path, store: &str) -> Result<i64> {
    let stats = run(binary, &["stats", "--store", store, "--json"])?.json()?;
    stats["chunks"].as_i64().context("`stats` does not say how many chunks there are")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have names of letters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_follows_from_its_place_and_no_block_is_there_twice() {
        let mut long = vec![0; 64 * BLOCK_BYTES];
        fill(1, 0, &mut long);
        let mut part = vec![0; 2 * BLOCK_BYTES];
        fill(1, 5 * BLOCK_BYTES as u64, &mut part);
        assert!(part == long[5 * BLOCK_BYTES..7 * BLOCK_BYTES]);
        let different: std::collections::HashSet<&[u8]> = long.chunks(BLOCK_BYTES).collect();
        assert_eq!(different.len(), 64);
        fill(2, 0, &mut part);
        assert!(part != long[..2 * BLOCK_BYTES]);
    }
}
