//! A store after a long time of use. Measures what reclaiming space costs and how it delays writers, how fast the
//! newest backup is restored after many generations, and how long opening after a crash takes. Also counts the look-ups
//! saved when an image is rewritten onto a clone of the last one.
//!
//! Whole runs of the program on a store on disk. Before reads are measured, the store's files leave the page cache.

use crate::backups::{copy_tree, disk_bytes, text};
use crate::disks::{DISK_BYTES, latencies_of_writes};
use crate::process::{Cost, run};
use crate::random::Random;
use crate::report::{Aim, Report, median};
use crate::server::serve;
use crate::{Options, corpus};
use anyhow::{Context, Result, bail};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use onefold_engine::{Engine, Mode, Settings};
use onefold_ground::LocalGround;
use onefold_volume::{Volumes, VolumesOptions};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

const GENERATIONS: u64 = 50;
/// The second store has so many times the corpus in other data.
const BALLAST_TIMES: u64 = 4;
/// Giving back the same from a larger store may take so much longer.
const SIZE_TOLERANCE: f64 = 1.25;
/// The same of the latency of writers beside reclamation.
const LATENCY_TOLERANCE: f64 = 1.1;
const OPEN_SECONDS: f64 = 2.0;

/// Pruning and restores of a store with many generations.
pub fn generations(options: &Options, report: &mut Report) -> Result<()> {
    Bench::new(options)?.generations(report)
}

/// Latency of writers beside reclamation.
pub fn writers(options: &Options, report: &mut Report) -> Result<()> {
    Bench::new(options)?.writers(report)
}

/// Opening after a crash.
pub fn opening(options: &Options, report: &mut Report) -> Result<()> {
    Bench::new(options)?.opening(report)
}

/// Images that are written onto clones of the last ones.
pub fn clones(options: &Options, report: &mut Report) -> Result<()> {
    Bench::new(options)?.images(report)
}

struct Bench<'a> {
    options: &'a Options,
    disk: PathBuf,
    memory: PathBuf,
    /// Removed at the end, with all that is in them.
    _places: [TempDir; 2],
}

/// A store with many generations of one tree.
struct Generations {
    name: &'static str,
    store: PathBuf,
    saved: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options) -> Result<Bench<'a>> {
        let disk = tempfile::tempdir_in(&options.disk).context("no temporary directory on disk")?;
        let memory = tempfile::tempdir_in(&options.memory).context("no temporary directory in memory")?;
        Ok(Bench { options, disk: disk.path().to_owned(), memory: memory.path().to_owned(), _places: [disk, memory] })
    }

    fn onefold(&self, store: &Path, arguments: &[&str]) -> Result<Cost> {
        let (command, rest) = arguments.split_at(if arguments[0] == "volume" { 2 } else { 1 });
        run(&self.options.binary()?, &[command, &["--store", text(store)], rest].concat())
    }

    fn store(&self, name: &str, compression: &str) -> Result<PathBuf> {
        let store = self.disk.join(name);
        run(&self.options.binary()?, &["init", text(&store), "--compression", compression])?;
        Ok(store)
    }

    fn backup(&self, store: &Path, name: &str, tree: &Path) -> Result<Cost> {
        self.onefold(store, &["backup", "--name", name, text(tree)])
    }

    /// Pruning after one and after all but one of many generations, in a store and in one that has other data besides;
    /// then restores.
    fn generations(&self, report: &mut Report) -> Result<()> {
        let tree = self.memory.join("tree");
        corpus::create(&tree, self.options.size, self.options.seed)?;
        let gigabytes = corpus::measure(&tree).0 as f64 / 1e9;
        report.group(format!("Reclamation, {GENERATIONS} generations of {gigabytes:.2} GB, zstd:1, store on disk"));
        let stores =
            [("alone", "small"), ("with ballast", "large")].map(|(name, directory)| (name, self.store(directory, "zstd:1"), directory));
        let mut generations = Vec::new();
        for (name, store, directory) in stores {
            generations.push(Generations { name, store: store?, saved: self.disk.join(format!("{directory}-saved")) });
        }
        let ballast = self.disk.join("ballast");
        corpus::write_random(&ballast, BALLAST_TIMES * self.options.size, &mut Random::new(self.options.seed ^ 0xba11))?;
        self.backup(&generations[1].store, "ballast", &ballast)?;
        fs::remove_file(&ballast)?;
        for generation in 0..GENERATIONS {
            if generation > 0 {
                corpus::change(&tree, self.options.seed + generation)?;
            }
            for of in &generations {
                self.backup(&of.store, "bench", &tree)?;
            }
        }
        let mut floors = [None, None];
        for of in &generations {
            let containers = disk_bytes(&of.store.join("containers"))?;
            report.add(format!("{}: containers", of.name), containers as f64 / 1e6, "MB");
            copy_tree(&of.store, &of.saved)?;
            let nothing = self.onefold(&of.store, &["prune"])?;
            report.add(format!("{}: prune without anything to do: wall", of.name), nothing.wall_s, "s");
            self.forget_one(&of.store)?;
            self.prune(of, "1 of 50 forgotten", &mut floors[0], report)?;
            fs::remove_dir_all(&of.store)?;
            copy_tree(&of.saved, &of.store)?;
            self.onefold(&of.store, &["forget", "--name", "bench", "--keep-last", "1"])?;
            self.prune(of, "49 of 50 forgotten", &mut floors[1], report)?;
        }
        // The large one is not needed any more.
        fs::remove_dir_all(&generations[1].store)?;
        fs::remove_dir_all(&generations[1].saved)?;
        self.restores(&generations[0], &tree, report)?;
        for path in [&tree, &generations[0].store, &generations[0].saved] {
            fs::remove_dir_all(path)?;
        }
        Ok(())
    }

    /// Forgets a generation in the middle.
    fn forget_one(&self, store: &Path) -> Result<()> {
        let listed = self.onefold(store, &["backups", "--json", "--name", "bench"])?.json()?;
        let list = listed.as_array().or_else(|| listed["backups"].as_array()).context("backups without a list")?;
        let id = list.get(GENERATIONS as usize / 2).and_then(|backup| backup["id"].as_str()).context("a backup without an id")?;
        self.onefold(store, &["forget", id, "--yes"]).map(drop)
    }

    fn prune(&self, of: &Generations, what: &str, floor: &mut Option<f64>, report: &mut Report) -> Result<()> {
        cold(&of.store)?;
        let cost = self.onefold(&of.store, &["prune", "--max-unused", "0", "--json"])?;
        let json = cost.json()?;
        let figure = |name: &str| json[name].as_f64().with_context(|| format!("prune without {name}"));
        report.add(format!("{}, {what}: removed, before compression", of.name), figure("removed_bytes")? / 1e6, "MB");
        report.add(format!("{}, {what}: freed", of.name), figure("freed_bytes")? / 1e6, "MB");
        report.add(format!("{}, {what}: containers merged", of.name), figure("containers_before")?, "");
        let beside = floor.map(|floor| ("the same without ballast", floor));
        let aim = floor.map(|floor| Aim::Below(floor * SIZE_TOLERANCE));
        report.add_beside(format!("{}, {what}: prune: wall", of.name), cost.wall_s, "s", aim, beside);
        report.add(format!("{}, {what}: prune: CPU", of.name), cost.cpu_s, "s");
        report.add(format!("{}, {what}: prune: peak memory", of.name), cost.peak_bytes as f64 / 1e6, "MB");
        floor.get_or_insert(cost.wall_s);
        Ok(())
    }

    /// The newest backup, in a store that has only that one, in one with all generations, and in that one after
    /// merging. `of.store` was pruned.
    fn restores(&self, of: &Generations, tree: &Path, report: &mut Report) -> Result<()> {
        let fresh = self.store("fresh", "zstd:1")?;
        self.backup(&fresh, "bench", tree)?;
        let fresh_s = self.restore(&fresh)?;
        report.add("restore of the newest, cold: fresh store, wall", fresh_s, "s");
        let beside = Some(("fresh store", fresh_s));
        let before_s = self.restore(&of.saved)?;
        report.add_beside(format!("restore of the newest, cold: after {GENERATIONS} generations, wall"), before_s, "s", None, beside);
        let after_s = self.restore(&of.store)?;
        let aim = Some(Aim::Below(before_s));
        report.add_beside("restore of the newest, cold: after forgetting all others and prune, wall", after_s, "s", aim, beside);
        Ok(fs::remove_dir_all(fresh)?)
    }

    fn restore(&self, store: &Path) -> Result<f64> {
        let target = self.memory.join("restored");
        let times = (0..self.options.runs).map(|_| {
            cold(store)?;
            let cost = self.onefold(store, &["restore", "latest:bench", "--target", text(&target)])?;
            fs::remove_dir_all(&target)?;
            Ok(cost.wall_s)
        });
        Ok(median(times.collect::<Result<Vec<_>>>()?))
    }

    /// Latency of overwriting a served volume, with and without reclamation, by turns.
    fn writers(&self, report: &mut Report) -> Result<()> {
        report.group("Writers beside reclamation: random writes of 64 KiB over NBD, 30 MiB/s, lz4, store on disk");
        let store = self.store("served", "lz4")?;
        self.onefold(&store, &["volume", "create", "disk", "--size", &DISK_BYTES.to_string()])?;
        let binary = self.options.binary()?.display().to_string();
        let socket = self.disk.join("served.sock");
        let (mut resting, mut working) = (Vec::new(), Vec::new());
        let mut given_back = 0;
        for run in 0..=self.options.runs {
            for (is_working, figures) in [(false, &mut resting), (true, &mut working)] {
                // Working means as much as there is to do: each look finds something.
                let config = self.disk.join("served.toml");
                let interval = u8::from(is_working);
                fs::write(
                    &config,
                    format!("[reclamation]\ninterval_seconds = {interval}\nmax_unused_percent = 0\nmax_fill_percent = 100\n"),
                )?;
                let arguments =
                    ["-v", "serve", "--store", text(&store), "--config", text(&config), "--nbd", "", "--nbd-socket", text(&socket)];
                let Some(server) = serve(&binary, &arguments, &socket, "disk")? else { bail!("{binary} is not there") };
                let Some(found) = latencies_of_writes(server.uri())? else { return Ok(()) };
                server.stop()?;
                let log = fs::read_to_string(socket.with_extension("log"))?;
                // The first turn fills the volume: there is nothing to give back.
                if run > 0 {
                    figures.push(found);
                    given_back += log.lines().filter(|line| line.contains("freed ")).count();
                }
            }
        }
        report.add("times that something was given back", given_back as f64, "");
        for (at, name) in ["p50", "p99"].into_iter().enumerate() {
            let middle = |figures: &[[f64; 2]]| median(figures.iter().map(|figures| figures[at]).collect());
            let (without, with) = (middle(&resting), middle(&working));
            let aim = (name == "p99").then_some(Aim::Below(without * LATENCY_TOLERANCE));
            report.add_beside(format!("latency {name} beside reclamation"), with, "ms", aim, Some(("without it, by turns", without)));
        }
        Ok(fs::remove_dir_all(&store)?)
    }

    /// Opening a store whose log was full when its process was killed.
    fn opening(&self, report: &mut Report) -> Result<()> {
        report.group("Opening after kill -9 with a full log, store on disk, cold");
        let store = self.store("killed", "lz4")?;
        self.onefold(&store, &["volume", "create", "disk", "--size", &DISK_BYTES.to_string()])?;
        // Ends without destructors, as a killed process does.
        let status = Command::new(std::env::current_exe()?).arg("fill-log").arg(&store).status()?;
        if status.success() {
            bail!("filling the log was not killed");
        }
        report.add("log", disk_bytes(&store.join("log"))? as f64 / 1e6, "MB");
        let saved = self.disk.join("killed-saved");
        copy_tree(&store, &saved)?;
        let mut reading = Vec::new();
        let mut writing = Vec::new();
        for _ in 0..self.options.runs {
            fs::remove_dir_all(&store)?;
            copy_tree(&saved, &store)?;
            cold(&store)?;
            reading.push(self.onefold(&store, &["volume", "list"])?.wall_s);
            cold(&store)?;
            writing.push(self.onefold(&store, &["volume", "snapshot", "disk", "answer"])?.wall_s);
        }
        report.add_beside("first answer, for reading (volume list): wall", median(reading), "s", Some(Aim::Below(OPEN_SECONDS)), None);
        report.add_beside("first answer, for writing (volume snapshot): wall", median(writing), "s", Some(Aim::Below(OPEN_SECONDS)), None);
        fs::remove_dir_all(&saved)?;
        Ok(fs::remove_dir_all(&store)?)
    }

    /// An image that is written over a clone of the image of the day before, of which one block in a hundred differs
    /// (M0.7).
    fn images(&self, report: &mut Report) -> Result<()> {
        report.group("An image rewritten in place onto a clone of the last one: chunks that the chunk index was asked for");
        let tree = self.memory.join("images");
        corpus::create(&tree, self.options.size, self.options.seed)?;
        let image = tree.join("disk.img");
        let size = fs::metadata(&image)?.len().next_multiple_of(4096);
        for chain in ["block-index,chunk-index", "zero-chunk,block-index,container-cache,chunk-index"] {
            let store = self.store("images", "lz4")?;
            let asked = || -> Result<f64> {
                let stats = self.onefold(&store, &["stats", "--json"])?.json()?;
                Ok(sum(&stats["filters"]["chunk-index"]))
            };
            let import = |name: &str| -> Result<f64> {
                let before = asked()?;
                self.onefold(&store, &["volume", "import", name, text(&image)])?;
                Ok(asked()? - before)
            };
            let create =
                |name: &str| self.onefold(&store, &["volume", "create", name, "--size", &size.to_string(), "--filter-chain", chain]);
            create("monday")?;
            let first = import("monday")?;
            corpus::scatter(&image, self.options.seed)?;
            self.onefold(&store, &["volume", "clone", "monday", "tuesday"])?;
            let onto_clone = import("tuesday")?;
            create("fresh")?;
            let onto_nothing = import("fresh")?;
            report.add(format!("{chain}: the first image"), first, "chunks");
            report.add(format!("{chain}: the second, onto an empty volume"), onto_nothing, "chunks");
            report.add(format!("{chain}: the second, onto a clone"), onto_clone, "chunks");
            report.add(format!("{chain}: avoided by the clone"), 100.0 * (1.0 - onto_clone / onto_nothing.max(1.0)), "%");
            fs::remove_dir_all(&store)?;
        }
        Ok(fs::remove_dir_all(&tree)?)
    }
}

/// The sum of all numbers in a value.
fn sum(value: &Value) -> f64 {
    match value {
        Value::Array(values) => values.iter().map(sum).sum(),
        Value::Object(values) => values.values().map(sum).sum(),
        value => value.as_f64().unwrap_or(0.0),
    }
}

/// Puts all files of a store out of the page cache.
pub fn cold(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            cold(&path)?;
        } else if path.is_file() {
            let file = File::open(&path)?;
            file.sync_all()?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
    }
    Ok(())
}

/// What is written before a flush when the log is filled: small writes all over the disk, as of a database.
const WRITES_BEFORE_FLUSH: u64 = 16;
/// How full the log becomes, in percent of its limit; with the next batches it would be emptied.
const FULL_PERCENT: u64 = 95;

/// Writes to the volume `disk` without work in the background until the log is full, then ends as a killed process
/// does.
pub fn fill_log(store: &Path) -> Result<()> {
    let settings = Settings { background: false, ..Settings::default() };
    let limit_bytes = settings.log_limit_bytes;
    let engine = Engine::open(Arc::new(LocalGround::open(store)?), settings, Mode::ReadWrite, "bench")?;
    let volumes = Volumes::open(engine.clone(), VolumesOptions::default())?;
    let volume = volumes.get("disk")?;
    let mut random = Random::new(5);
    let mut block = [0; 4096];
    for number in 0.. {
        random.fill(&mut block);
        volume.write(random.below(volume.size() / 4096) * 4096, &block)?;
        if number % WRITES_BEFORE_FLUSH == 0 {
            volume.flush()?;
            if number % (64 * WRITES_BEFORE_FLUSH) == 0 && engine.statistics()?.log_bytes * 100 >= limit_bytes * FULL_PERCENT {
                break;
            }
        }
    }
    std::process::abort()
}
