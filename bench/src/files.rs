//! A mounted filesystem beside the disk's own and beside a FUSE passthrough (bindfs) of it, on the same disk: the
//! workloads of E1.1 to E1.4 of the ext4fs+dedup thesis, trees of many small files, and what `find` and `git` make of
//! them.

use crate::Options;
use crate::floors;
use crate::process::run;
use crate::random::Random;
use crate::report::{Aim, Report, median};
use crate::server::is_installed;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a file of E1.1 and E1.2.
const FILE_BYTES: u64 = 4 << 20;
/// The unit of E1.2: each file has one block again and again.
const BLOCK_BYTES: usize = 4096;
/// The size of requests.
const REQUEST_BYTES: usize = 1 << 20;
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
        let until = Instant::now() + Duration::from_secs(30);
        while !is_mounted(&self.place)? {
            if Instant::now() > until {
                bail!("{} does not get mounted", self.place.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
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
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.as_ref()?.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok().map(|kib| kib * 1024.0)
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

/// E1.1 and E1.2: files of 4 MiB. Returns bytes a second.
fn write_files(directory: &Path, bytes: u64, content: &mut dyn FnMut(u64, &mut [u8])) -> Result<f64> {
    fs::create_dir(directory)?;
    let mut buffer = vec![0; REQUEST_BYTES];
    let mut took = Duration::ZERO;
    for number in 0..bytes / FILE_BYTES {
        let begun = Instant::now();
        let mut file = File::create(directory.join(number.to_string()))?;
        took += begun.elapsed();
        for part in 0..FILE_BYTES / REQUEST_BYTES as u64 {
            content(number * 16 + part, &mut buffer);
            let begun = Instant::now();
            file.write_all(&buffer)?;
            took += begun.elapsed();
        }
    }
    let begun = Instant::now();
    sync(directory)?;
    Ok((bytes / FILE_BYTES * FILE_BYTES) as f64 / (took + begun.elapsed()).as_secs_f64())
}

fn read_files(directory: &Path) -> Result<f64> {
    let mut buffer = vec![0; REQUEST_BYTES];
    let (mut bytes, begun) = (0, Instant::now());
    for number in 0.. {
        let Ok(mut file) = File::open(directory.join(number.to_string())) else { break };
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => bytes += read,
            }
        }
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// E1.4, as bonnie++ does it: a file is written, then read and changed block by block. Returns bytes a second.
fn rewrite(path: &Path, bytes: u64, random: &mut Random) -> Result<f64> {
    crate::corpus::write_random(path, bytes, random)?;
    let mut file = File::options().read(true).write(true).open(path)?;
    file.sync_all()?;
    let mut buffer = vec![0; 2 * BLOCK_BYTES];
    let begun = Instant::now();
    for at in (0..bytes).step_by(buffer.len()) {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut buffer)?;
        buffer[0] ^= 1;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&buffer)?;
    }
    file.sync_all()?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
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
    let size = options.size / FILE_BYTES * FILE_BYTES;
    let mut found = Vec::new();
    let mut random = Random::new(options.seed);
    let unique = write_files(&place.join("unique"), size, &mut |_, buffer| random.fill(buffer))?;
    found.push(("E1.1: writing unique data, MB/s", unique / 1e6));
    let mut random = Random::new(options.seed);
    let again = write_files(&place.join("again"), size, &mut |_, buffer| random.fill(buffer))?;
    found.push(("E1.2: writing the same data again, MB/s", again / 1e6));
    let repeated = write_files(&place.join("repeated"), size, &mut |number, buffer| {
        buffer.chunks_mut(BLOCK_BYTES).for_each(|block| block.fill((number / 16) as u8 | 1));
    })?;
    found.push(("E1.2: writing files of one block repeated, MB/s", repeated / 1e6));
    tree.cool(options, at)?;
    found.push(("reading unique data, nothing cached, MB/s", read_files(&place.join("unique"))? / 1e6));
    let image = crate::corpus::files_of_machine((options.size / 2) as usize)?;
    let begun = Instant::now();
    let mut file = File::create(place.join("image"))?;
    file.write_all(&image)?;
    file.sync_all()?;
    found.push(("E1.3: copying an installation image, MB/s", image.len() as f64 / 1e6 / begun.elapsed().as_secs_f64()));
    drop((file, image));
    found.push(("E1.4: reading and changing block by block, MB/s", rewrite(&place.join("changed"), size / 4, &mut Random::new(9))? / 1e6));
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
    let disk = floors::sequential_write(&options.disk, options.size)? * 1e3;
    report.add("the disk: sequential write and sync, MB/s", disk, "MB/s");
    for name in names {
        let (native, passthrough, ours) = (of(&all[0], name), of(&all[1], name), of(&all[2], name));
        let (text, unit) = name.rsplit_once(", ").unwrap_or((name, ""));
        let aim = match text {
            "E1.1: writing unique data" | "reading unique data, nothing cached" => Some(Aim::Above(0.6 * passthrough)),
            "E1.2: writing the same data again" | "E1.2: writing files of one block repeated" => Some(Aim::Above(native)),
            "creating files" => Some(Aim::Above(10_000.0)),
            _ if text.starts_with('`') => Some(Aim::Below(1.5 * passthrough)),
            _ => None,
        };
        report.add(format!("{text}: the disk's own"), native, unit);
        let floor = passthrough.is_finite().then_some(("passthrough", passthrough));
        report.add_beside(text.to_owned(), ours, unit, aim, floor);
    }
    Ok(())
}
