//! A mounted filesystem beside the disk's own and beside a FUSE passthrough (bindfs) of it, on the same disk: trees of
//! many small files, and what `find` and `git` make of them. Large files are experiments: E1.1 to E1.5 in `papers`.

use crate::Options;
use crate::process::{peak_bytes, run};
use crate::report::{Aim, Report, median};
use crate::server::is_installed;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Files of the tree that `find` and `git` look at.
const TREE_FILES: u64 = 100_000;
/// Files that are made for the rate of creating.
const CREATED_FILES: u64 = 30_000;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Disk,
    Passthrough,
    Ours,
}

/// A tree, and the process that serves it.
struct Tree {
    contender: Contender,
    place: PathBuf,
    process: Option<Child>,
}

impl Tree {
    fn start(options: &Options, contender: Contender, at: &Path) -> Result<Tree> {
        let place = at.join("tree");
        fs::create_dir_all(&place)?;
        let mut tree = Tree { contender, place, process: None };
        match contender {
            Contender::Disk => {}
            Contender::Passthrough => fs::create_dir_all(at.join("below"))?,
            Contender::Ours => {
                let (binary, store) = (options.binary()?, at.join("store"));
                let store = store.display().to_string();
                run(&binary, &["init", &store, "--compression", "lz4"])?;
                run(&binary, &["fs", "create", "--store", &store, "tree"])?;
            }
        }
        tree.mount(options, at)?;
        Ok(tree)
    }

    fn mount(&mut self, options: &Options, at: &Path) -> Result<()> {
        let mut command = match self.contender {
            Contender::Disk => return Ok(()),
            Contender::Passthrough => {
                let mut command = Command::new("bindfs");
                command.arg("-f").arg("--multithreaded").arg(at.join("below")).arg(&self.place);
                command
            }
            Contender::Ours => {
                let mut command = Command::new(options.binary()?);
                command.args(["mount", "--foreground", "--fs", "tree", "--store"]).arg(at.join("store")).arg(&self.place);
                command
            }
        };
        self.process = Some(command.stdout(Stdio::null()).spawn()?);
        wait_for_mount(&self.place)
    }

    fn unmount(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            let until = Instant::now() + Duration::from_secs(60);
            while !Command::new("umount").arg(&self.place).stderr(Stdio::null()).status()?.success() {
                if Instant::now() > until {
                    bail!("{} does not get unmounted", self.place.display());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            process.wait()?;
        }
        Ok(())
    }

    /// Nothing is in any cache any more.
    fn cool(&mut self, options: &Options, at: &Path) -> Result<()> {
        self.unmount()?;
        nix::unistd::sync();
        fs::write("/proc/sys/vm/drop_caches", "3").context("caches cannot be dropped: run it as root")?;
        self.mount(options, at)
    }

    /// Greatest resident memory of the process so far, bytes.
    fn peak_bytes(&self) -> Option<f64> {
        peak_bytes(self.process.as_ref()?.id()).map(|bytes| bytes as f64)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Waits until something is mounted at a directory.
pub fn wait_for_mount(place: &Path) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_mounted(place)? {
        if Instant::now() > until {
            bail!("{} does not get mounted", place.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn is_mounted(place: &Path) -> Result<bool> {
    let place = place.display().to_string();
    Ok(fs::read_to_string("/proc/self/mounts")?.lines().any(|line| line.split(' ').nth(1) == Some(&place)))
}

/// Makes what was written to a tree durable.
fn sync(place: &Path) -> Result<()> {
    // Of a directory: both write what is not written yet, and the directory.
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if path.is_file() {
            File::open(&path)?.sync_all()?;
        }
    }
    nix::unistd::syncfs(File::open(place)?).context("sync")?;
    Ok(())
}

/// Returns files a second.
fn create_files(directory: &Path) -> Result<f64> {
    fs::create_dir(directory)?;
    let begun = Instant::now();
    for number in 0..CREATED_FILES {
        let below = directory.join((number / 1000).to_string());
        if number % 1000 == 0 {
            fs::create_dir(&below)?;
        }
        File::create(below.join(number.to_string()))?;
    }
    sync(directory)?;
    Ok(CREATED_FILES as f64 / begun.elapsed().as_secs_f64())
}

fn seconds_of(program: &str, arguments: &[&str], place: &Path) -> Result<f64> {
    let begun = Instant::now();
    let status = Command::new(program).args(arguments).current_dir(place).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("{program} failed in {}", place.display());
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// The figures of one contender: name, value.
fn measure_one(options: &Options, contender: Contender, at: &Path) -> Result<Vec<(&'static str, f64)>> {
    let mut tree = Tree::start(options, contender, at)?;
    let place = tree.place.clone();
    let mut found = Vec::new();
    found.push(("creating files, a second", create_files(&place.join("created"))?));
    let many = place.join("many");
    fs::create_dir(&many)?;
    crate::corpus::many_files(&many, TREE_FILES, options.seed)?;
    tree.cool(options, at)?;
    found.push(("`find` on 100,000 files, nothing cached, s", seconds_of("find", &[".", "-size", "+1000k"], &many)?));
    found.push(("`find` on 100,000 files again, s", seconds_of("find", &[".", "-size", "+1000k"], &many)?));
    if is_installed("git") {
        seconds_of("git", &["init", "-q"], &many)?;
        seconds_of("git", &["add", "."], &many)?;
        let status: Result<Vec<f64>> = (0..3).map(|_| seconds_of("git", &["status", "--porcelain", "-uno"], &many)).collect();
        found.push(("`git status` on 100,000 files, s", median(status?)));
    }
    if let Some(bytes) = tree.peak_bytes() {
        found.push(("memory of the process, MB", bytes / 1e6));
    }
    tree.unmount()?;
    Ok(found)
}

/// Measures all contenders in turns.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    report.group("A mounted filesystem (profile exact, lz4) beside the disk's and beside a FUSE passthrough");
    if !is_installed("bindfs") {
        eprintln!("bindfs is not installed: left out");
        return Ok(());
    }
    let contenders = [Contender::Disk, Contender::Passthrough, Contender::Ours];
    let mut all: [Vec<Vec<(&'static str, f64)>>; 3] = Default::default();
    for _ in 0..options.runs {
        for (contender, found) in contenders.into_iter().zip(&mut all) {
            let place = tempfile::tempdir_in(&options.disk)?;
            found.push(measure_one(options, contender, place.path())?);
        }
    }
    let of = |runs: &[Vec<(&'static str, f64)>], name: &str| -> f64 {
        let figure = |run: &Vec<(&'static str, f64)>| run.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        median(runs.iter().filter_map(figure).collect())
    };
    let names: Vec<&'static str> = all[2].first().map(|run| run.iter().map(|(name, _)| *name).collect()).unwrap_or_default();
    for name in names {
        let (native, passthrough, ours) = (of(&all[0], name), of(&all[1], name), of(&all[2], name));
        let (text, unit) = name.rsplit_once(", ").unwrap_or((name, ""));
        let aim = match text {
            "creating files" => Some(Aim::Above(10_000.0)),
            _ if text.starts_with('`') => Some(Aim::Below(1.5 * passthrough)),
            _ => None,
        };
        // The kernel's own has no process.
        if native.is_finite() {
            report.add(format!("{text}: the disk's own"), native, unit);
        }
        let floor = passthrough.is_finite().then_some(("passthrough", passthrough));
        report.add_beside(text.to_owned(), ours, unit, aim, floor);
    }
    Ok(())
}
