//! Reading a whole store: `scrub` and `check --read-data` beside a plain sequential read of the same files, past the
//! page cache.

use crate::process::{Cost, run};
use crate::report::{Aim, Report, median};
use crate::{Options, corpus, floors};
use anyhow::{Context, Result};
use onefold_ground::{Ground, LocalGround, ReadBuffer};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Read at once for the floor.
const READ_BYTES: usize = 4 << 20;
/// The share of the floor to aim at.
const AIM: f64 = 0.9;

/// What the runs of a command cost.
#[derive(Default)]
struct Costs {
    /// GB/s of what is stored.
    rates: Vec<f64>,
    /// Seconds for each GB of it.
    cpu: Vec<f64>,
    /// MB.
    peaks: Vec<f64>,
}

impl Costs {
    fn add(&mut self, bytes: u64, cost: &Cost) {
        let gigabytes = bytes as f64 / 1e9;
        self.rates.push(gigabytes / cost.wall_s);
        self.cpu.push(cost.cpu_s / gigabytes);
        self.peaks.push(cost.peak_bytes as f64 / 1e6);
    }
}

/// A store of the corpus on disk; medians of so many runs.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let disk = tempfile::tempdir_in(&options.disk).context("no temporary directory on disk")?;
    let memory = tempfile::tempdir_in(&options.memory).context("no temporary directory in memory")?;
    let tree = memory.path().join("tree");
    corpus::create(&tree, options.size, options.seed)?;
    let binary = options.binary()?;
    report.group("Reading a whole store on disk, nothing of it in memory");
    for (compression, parity) in [("zstd:1", 0), ("none", 0), ("none", 16)] {
        let store = disk.path().join("store");
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        run(&binary, &["init", text(&store), "--compression", compression])?;
        fs::write(store.join("onefold.toml"), format!("[parity]\ngroup = {parity}\n"))?;
        let backup = run(&binary, &["backup", "--quiet", "--store", text(&store), "--name", "bench", text(&tree)])?;
        if parity > 0 {
            // What a backup leaves without parity, because a group is not full, gets it.
            run(&binary, &["prune", "--quiet", "--store", text(&store)])?;
        }
        let what = if parity == 0 { compression.to_owned() } else { format!("{compression}, parity of {parity}") };
        report.add(format!("{what}: backup before it, wall"), backup.wall_s, "s");
        // What both read: containers with their parity, and the pages of the indexes.
        let mut files = Vec::new();
        for directory in ["containers", "index", "objects"] {
            files_below(&store, &store.join(directory), &mut files)?;
        }
        let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let (mut floor, mut scrub, mut check) = (Vec::new(), Costs::default(), Costs::default());
        // By turns, so that what else the machine does meets all of them.
        for _ in 0..options.runs {
            forget(&store)?;
            floor.push(floors::rate(bytes, || read(&store, &files))?);
            for (command, costs) in [("scrub", &mut scrub), ("check", &mut check)] {
                forget(&store)?;
                let mut arguments = vec![command, "--quiet", "--store", text(&store)];
                if command == "check" {
                    arguments.push("--read-data");
                }
                costs.add(bytes, &run(&binary, &arguments)?);
            }
        }
        let floor = median(floor);
        for (command, costs) in [("scrub", scrub), ("check --read-data", check)] {
            let beside = Some(("sequential read", floor));
            report.add_beside(format!("{what}: {command}"), median(costs.rates), "GB/s", Some(Aim::Above(AIM * floor)), beside);
            report.add(format!("{what}: {command}: CPU by what is stored"), median(costs.cpu), "s/GB");
            report.add(format!("{what}: {command}: peak memory"), median(costs.peaks), "MB");
        }
    }
    Ok(())
}

/// All files below a directory, by their paths in the store, in order, and their lengths.
fn files_below(store: &Path, directory: &Path, found: &mut Vec<(String, u64)>) -> Result<()> {
    let mut paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            files_below(store, &path, found)?;
        } else {
            let name = text(path.strip_prefix(store)?).to_owned();
            found.push((name, fs::metadata(&path)?.len()));
        }
    }
    Ok(())
}

/// Reads files one after the other, past the page cache.
fn read(store: &Path, files: &[(String, u64)]) -> Result<()> {
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(store)?);
    let mut buffer = ReadBuffer::default();
    for (path, bytes) in files {
        let file = ground.open_past_cache(path)?;
        for at in (0..*bytes).step_by(READ_BYTES) {
            buffer.read(&*file, at, (*bytes - at).min(READ_BYTES as u64) as usize)?;
        }
    }
    Ok(())
}

/// Has the system forget what it keeps of a store in memory.
fn forget(store: &Path) -> Result<()> {
    let mut files = Vec::new();
    files_below(store, store, &mut files)?;
    let ground = LocalGround::open(store)?;
    for (path, bytes) in files {
        File::open(store.join(&path))?.sync_all()?;
        ground.open(&path, onefold_ground::Access::Read)?.drop_cached(0, bytes);
    }
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have names of letters")
}
