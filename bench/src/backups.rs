//! Whole runs of the program: backups, restore, check, by compression and by where the store lies.

use crate::process::{Cost, run};
use crate::report::{Aim, Report, median};
use crate::{Options, corpus};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// What a process may take: the bounds of `docs/configuration.md` that a backup uses, and 64 MiB.
const PEAK_LIMIT_MB: f64 = ((64 + 64 + 16 + 16 + 16 + 32 + 16 + 64) << 20) as f64 / 1e6;
/// The aims for repository size hold for this much data.
const AIM_CORPUS_BYTES: f64 = 2.13e9;
const SMALL_FILES: u64 = 30_000;

/// The corpus in both generations, by turns.
struct Runner<'a> {
    options: &'a Options,
    report: &'a mut Report,
    tree: PathBuf,
    gigabytes: f64,
}

/// Backups of the corpus into stores on memory, for each compression, then one on disk, then a tree of many small
/// files.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let memory = tempfile::tempdir_in(&options.memory).context("no temporary directory in memory")?;
    let disk = tempfile::tempdir_in(&options.disk).context("no temporary directory on disk")?;
    let tree = memory.path().join("tree");
    for compression in ["zstd:1", "lz4", "none"] {
        // Made again each time, because the second generation is made in place.
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        corpus::create(&tree, options.size, options.seed)?;
        let (bytes, files) = corpus::measure(&tree);
        report.group(format!("Backups, {compression}, store in memory ({:.2} GB, {files} files)", bytes as f64 / 1e9));
        let mut runner = Runner { options, report, tree: tree.clone(), gigabytes: bytes as f64 / 1e9 };
        runner.generations(memory.path(), compression)?;
    }
    fs::remove_dir_all(&tree)?;
    corpus::create(&tree, options.size, options.seed)?;
    let gigabytes = corpus::measure(&tree).0 as f64 / 1e9;
    report.group(format!("Backups, store on disk ({gigabytes:.2} GB)"));
    Runner { options, report, tree: tree.clone(), gigabytes }.on_disk(disk.path())?;
    fs::remove_dir_all(&tree)?;

    report.group(format!("{SMALL_FILES} small files, store on disk"));
    let small = memory.path().join("small");
    corpus::many_files(&small, SMALL_FILES, options.seed)?;
    let gigabytes = corpus::measure(&small).0 as f64 / 1e9;
    Runner { options, report, tree: small, gigabytes }.small_files(disk.path())
}

impl Runner<'_> {
    fn onefold(&self, arguments: &[&str]) -> Result<Cost> {
        run(&self.options.binary()?, arguments)
    }

    /// A new, empty store.
    fn store(&self, place: &Path, compression: &str) -> Result<PathBuf> {
        let store = place.join("store");
        if store.exists() {
            fs::remove_dir_all(&store)?;
        }
        self.onefold(&["init", text(&store), "--compression", compression])?;
        Ok(store)
    }

    fn backup(&self, store: &Path) -> Result<Cost> {
        self.onefold(&["backup", "--json", "--store", text(store), "--name", "bench", text(&self.tree)])
    }

    /// Runs several times; the medians of wall time, processor time per GB and memory become three rows. `floor`: wall
    /// and processor time of what stands beside it.
    fn rows(
        &mut self,
        what: &str,
        aim: Option<Aim>,
        floor: Option<(&str, &Cost)>,
        mut once: impl FnMut(&mut Self) -> Result<Cost>,
    ) -> Result<()> {
        let costs = (0..self.options.runs).map(|_| once(self)).collect::<Result<Vec<_>>>()?;
        let middle = |figure: fn(&Cost) -> f64| median(costs.iter().map(figure).collect());
        let gigabytes = self.gigabytes;
        let wall_floor = floor.map(|(name, cost)| (name, cost.wall_s));
        let cpu_floor = floor.map(|(name, cost)| (name, cost.cpu_s / gigabytes));
        self.report.add_beside(format!("{what}: wall"), middle(|cost| cost.wall_s), "s", None, wall_floor);
        self.report.add_beside(format!("{what}: CPU"), middle(|cost| cost.cpu_s) / gigabytes, "s/GB", aim, cpu_floor);
        let peak = middle(|cost| cost.peak_bytes as f64) / 1e6;
        self.report.add_beside(format!("{what}: peak memory"), peak, "MB", Some(Aim::Below(PEAK_LIMIT_MB)), None);
        Ok(())
    }

    fn generations(&mut self, place: &Path, compression: &str) -> Result<()> {
        let read = run(Path::new("tar"), &["-cf", "/dev/zero", "-C", text(place), "tree"])?;
        let floor = Some(("tar of the tree to nowhere", &read));
        let copy = place.join("copy");
        let copied = run(Path::new("cp"), &["-a", text(&self.tree), text(&copy)])?;
        fs::remove_dir_all(&copy)?;
        let first_aim = match compression {
            "none" => Some(Aim::Below(1.5)),
            "lz4" => None,
            _ => Some(Aim::Below(5.0)),
        };
        let scale = self.gigabytes * 1e9 / AIM_CORPUS_BYTES;
        let is_zstd = compression.starts_with("zstd");
        self.rows("first", first_aim, floor, |runner| {
            let store = runner.store(place, compression)?;
            runner.backup(&store)
        })?;
        let store = place.join("store");
        let after_first = disk_bytes(&store)?;
        let kept = containers_bytes(&store)?;
        self.report.add_beside("first: repository", after_first as f64 / 1e6, "MB", is_zstd.then_some(Aim::Below(710.0 * scale)), None);
        self.report.add("first: of it containers", kept as f64 / 1e6, "MB");
        self.rows("unchanged", Some(Aim::Below(0.3)), floor, |runner| runner.backup(&store))?;
        self.report.add("unchanged: adds", disk_bytes(&store)? as f64 / 1e6 - after_first as f64 / 1e6, "MB");
        let target = place.join("restored");
        self.rows("restore", Some(Aim::Below(1.5)), Some(("cp -a of the tree", &copied)), |runner| {
            let cost = runner.onefold(&["restore", "--store", text(&store), "latest:bench", "--target", text(&target)])?;
            fs::remove_dir_all(&target)?;
            Ok(cost)
        })?;
        self.rows("check --read-data", None, floor, |runner| runner.onefold(&["check", "--store", text(&store), "--read-data"]))?;

        corpus::change(&self.tree, self.options.seed)?;
        let before = disk_bytes(&store)?;
        let kept = containers_bytes(&store)?;
        let saved = place.join("saved");
        copy_tree(&store, &saved)?;
        self.rows("changed", None, floor, |runner| {
            fs::remove_dir_all(&store)?;
            copy_tree(&saved, &store)?;
            runner.backup(&store)
        })?;
        fs::remove_dir_all(&saved)?;
        let added = disk_bytes(&store)? as f64 - before as f64;
        self.report.add_beside("changed: repository grows by", added / 1e6, "MB", is_zstd.then_some(Aim::Below(9.0 * scale)), None);
        self.report.add("changed: of it containers", (containers_bytes(&store)? - kept) as f64 / 1e6, "MB");
        let bytes_of = self.onefold(&["stats", "--json", "--store", text(&store)])?.json()?;
        let chunks = bytes_of["chunks"].as_f64().context("stats without chunks")?;
        self.report.add("chunks", chunks, "");
        self.report.add("bytes of data in chunks", bytes_of["unique_bytes"].as_f64().context("stats without unique_bytes")? / 1e6, "MB");
        Ok(fs::remove_dir_all(&store)?)
    }

    fn on_disk(&mut self, place: &Path) -> Result<()> {
        let copy = place.join("copy");
        let copied = run(Path::new("sh"), &["-c", "cp -a \"$1\" \"$2\" && sync -f \"$2\"", "copy", text(&self.tree), text(&copy)])?;
        fs::remove_dir_all(&copy)?;
        for compression in ["none", "zstd:1"] {
            self.rows(&format!("first, {compression}"), None, Some(("cp -a of the tree and sync", &copied)), |runner| {
                let store = runner.store(place, compression)?;
                runner.backup(&store)
            })?;
        }
        Ok(fs::remove_dir_all(place.join("store"))?)
    }

    fn small_files(&mut self, place: &Path) -> Result<()> {
        let store = self.store(place, "zstd:1")?;
        let first = self.backup(&store)?;
        self.report.add("first: wall", first.wall_s, "s");
        let costs = (0..self.options.runs.max(3)).map(|_| self.backup(&store)).collect::<Result<Vec<_>>>()?;
        let middle = |figure: fn(&Cost) -> f64| median(costs.iter().map(figure).collect());
        self.report.add_beside("unchanged: wall", middle(|cost| cost.wall_s), "s", Some(Aim::Below(1.0)), None);
        self.report.add("unchanged: CPU", middle(|cost| cost.cpu_s), "s");
        Ok(fs::remove_dir_all(&store)?)
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths are made of temporary directories' names, which are text")
}

/// What all files of a tree take, as `du` counts.
pub fn disk_bytes(directory: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += metadata.blocks() * 512 + if metadata.is_dir() { disk_bytes(&entry.path())? } else { 0 };
    }
    Ok(sum)
}

fn containers_bytes(store: &Path) -> Result<u64> {
    disk_bytes(&store.join("containers"))
}

/// Copies plain files and directories.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
