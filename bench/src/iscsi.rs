//! A volume served over iSCSI beside `tgt` with a raw file, on loopback, on the same processors, store and file in
//! memory.
//!
//! tgt keeps every byte as it comes, in the page cache; onefold cuts, hashes and stores it. Clients are those of
//! libiscsi (`iscsi-perf` reads) and QEMU (`qemu-img` writes, with its driver for iSCSI). Where a client is not
//! installed the part is left out; without tgt, what stands beside.

use crate::Options;
use crate::corpus::write_random;
use crate::disks::DISK_BYTES;
use crate::process::run;
use crate::random::Random;
use crate::report::{Aim, Report, median};
use crate::server::{Server, is_installed};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds of each run of `iscsi-perf`.
const READ_SECONDS: &str = "4";
/// Requests of each run of `qemu-img bench`: of 1 MiB, and of 4 KiB.
const LARGE_WRITES: u64 = 1024;
const SMALL_WRITES: u64 = 20_000;
/// The next small write lies so far behind the one before: a multiple of 4 KiB that comes all over the disk.
const SMALL_STEP: u64 = 7919 * 4096;
/// At least as quick as tgt where data deduplicates, and within a quarter where it does not.
const UNIQUE_TOLERANCE: f64 = 0.75;
const TARGET: &str = "iqn.2026-01.net.example:bench";

/// What is measured.
struct Load {
    name: &'static str,
    unit: &'static str,
    /// Which part of tgt's figure it should reach; none for loads without an aim.
    share: Option<f64>,
    measure: fn(&Server, &Path) -> Result<f64>,
}

const fn load(name: &'static str, unit: &'static str, share: Option<f64>, measure: fn(&Server, &Path) -> Result<f64>) -> Load {
    Load { name, unit, share, measure }
}

/// Data that is new, that is there already (or is only read), and times.
const UNIQUE: Option<f64> = Some(UNIQUE_TOLERANCE);
const KNOWN: Option<f64> = Some(1.0);
const TIME: Option<f64> = None;

/// Writes come first, so that reads find data.
const LOADS: [Load; 13] = [
    load("write unique data, sequential", "MB/s", UNIQUE, convert),
    load("write the same data again, sequential", "MB/s", KNOWN, convert),
    load("read 1 MiB, sequential, 16 in flight", "MB/s", KNOWN, |server, _| read(server, "2048", "16", false)),
    load("random read 4 KiB, 1 in flight", "k/s", KNOWN, |server, _| read(server, "8", "1", true)),
    load("random read 4 KiB, 16 in flight", "k/s", KNOWN, |server, _| read(server, "8", "16", true)),
    load("random read 4 KiB, 32 in flight", "k/s", KNOWN, |server, _| read(server, "8", "32", true)),
    load("write 1 MiB of one byte, sequential, 16 in flight", "MB/s", KNOWN, |server, _| write(server, 1 << 20, 16)),
    load("random write 4 KiB of one byte, 1 in flight", "k/s", KNOWN, |server, _| write(server, 4096, 1)),
    load("random write 4 KiB of one byte, 16 in flight", "k/s", KNOWN, |server, _| write(server, 4096, 16)),
    load("random write 4 KiB of one byte, 32 in flight", "k/s", KNOWN, |server, _| write(server, 4096, 32)),
    // Only now is the data unique again, and no block what it was.
    load("write unique data over it, sequential", "MB/s", UNIQUE, |server, image| convert(server, &image.with_extension("second"))),
    load("processor time of the server, write unique data", "s/GB", TIME, |server, image| {
        processor(server, &image.with_extension("third"))
    }),
    load("processor time of the server, write it again", "s/GB", TIME, |server, image| processor(server, &image.with_extension("third"))),
];

/// What is measured in turns.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    /// The program.
    Ours,
    /// The earlier one that it is compared with.
    Before,
    Tgt,
}

/// Figures of a load: by server, by run.
type Figures = [Vec<f64>; 3];

/// Measures each load on all servers, by turns.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    report.group("iSCSI on loopback beside tgt with a raw file, store and file in memory, lz4");
    if !is_installed("iscsi-perf") || !is_installed("qemu-img") {
        return Ok(());
    }
    // Nobody listens there; without the driver that is not even tried.
    let probe = Command::new("qemu-img").args(["info", &format!("iscsi://127.0.0.1:1/{TARGET}/0")]).output()?;
    if String::from_utf8_lossy(&probe.stderr).contains("Unknown protocol") {
        eprintln!("qemu-img has no driver for iSCSI (package qemu-block-extra): left out");
        return Ok(());
    }
    let mut loads: Vec<(&Load, Figures)> =
        LOADS.iter().filter(|load| load.name.contains(&options.load)).map(|load| (load, [const { Vec::new() }; 3])).collect();
    let measured = take_turns(options, &mut loads);
    // What was measured before something failed is told too.
    for (load, [ours, before, theirs]) in loads.into_iter().filter(|(_, [ours, ..])| !ours.is_empty()) {
        let lowest = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).min_by(f64::total_cmp);
        let ours = median(ours);
        let beside = (!theirs.is_empty()).then(|| median(theirs));
        let aim = beside.and_then(|theirs| load.share.map(|share| Aim::Above(theirs * share)));
        report.add_beside(load.name, ours, load.unit, aim, beside.map(|theirs| ("tgt", theirs)));
        if let (Some(lowest), Some(share)) = (lowest, load.share) {
            report.add_beside(format!("{}: lowest run", load.name), lowest, "of tgt", Some(Aim::Above(share)), None);
        }
        if !before.is_empty() {
            report.add(format!("{}: before", load.name), median(before), load.unit);
        }
    }
    measured
}

fn take_turns(options: &Options, loads: &mut [(&Load, Figures)]) -> Result<()> {
    let place = tempfile::tempdir_in(&options.memory)?;
    let image = place.path().join("image.raw");
    for (number, extension) in ["raw", "second", "third"].into_iter().enumerate() {
        write_random(&image.with_extension(extension), DISK_BYTES, &mut Random::new(options.seed + number as u64))?;
    }
    // Without the load that writes it there is nothing to read.
    let is_filled_by_load = loads.first().is_some_and(|(load, _)| load.name == LOADS[0].name);
    for _ in 0..options.runs {
        for which in [Which::Ours, Which::Before, Which::Tgt] {
            let directory = tempfile::tempdir_in(place.path())?;
            let server = match which {
                Which::Ours => Some(ours(&options.binary()?, directory.path())?),
                Which::Before => options.before.as_deref().map(|program| ours(program, directory.path())).transpose()?,
                Which::Tgt => tgt(directory.path())?,
            };
            let Some(server) = server else { continue };
            if !is_filled_by_load {
                convert(&server, &image)?;
            }
            for (load, figures) in loads.iter_mut() {
                figures[which as usize].push((load.measure)(&server, &image).with_context(|| load.name)?);
            }
        }
    }
    Ok(())
}

/// A store with one volume, served.
fn ours(program: &Path, directory: &Path) -> Result<Server> {
    let store = directory.join("store").display().to_string();
    run(program, &["init", &store, "--compression", "lz4"])?;
    run(program, &["volume", "create", "--store", &store, "disk", "--size", &DISK_BYTES.to_string()])?;
    let mut child = Command::new(program)
        .args(["serve", "--json", "--store", &store, "--nbd", "none", "--iscsi", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut line = String::new();
    let output = child.stdout.take().context("no output")?;
    // From here on it ends with what is returned, whatever happens.
    let server = Server::new(child, "");
    BufReader::new(output).read_line(&mut line)?;
    let serving: Value = serde_json::from_str(&line).with_context(|| format!("no event: {line}"))?;
    let text = |pointer: &str| serving.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {line}"));
    let lun = serving.pointer("/targets/0/luns/0/lun").with_context(|| format!("no LUN in {line}"))?;
    Ok(server.at(format!("iscsi://{}/{}/{lun}", text("/iscsi_portals/0")?, text("/targets/0/name")?)))
}

/// tgt with a raw file; `None` if it is not there.
fn tgt(directory: &Path) -> Result<Option<Server>> {
    let image = directory.join("image");
    File::create(&image)?.set_len(DISK_BYTES)?;
    let ipc = directory.join("ipc");
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let started = Command::new("tgtd")
        .args(["-f", "-C", "0", "--iscsi", &format!("portal=127.0.0.1:{port}")])
        .env("TGT_IPC_SOCKET", &ipc)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("tgtd is not installed: left out");
            return Ok(None);
        }
        Err(error) => return Err(error).context("cannot start tgtd"),
    };
    let server = Server::new(child, format!("iscsi://127.0.0.1:{port}/{TARGET}/1"));
    let image = image.display().to_string();
    let steps: [&[&str]; 3] = [
        &["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET],
        &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &image],
        &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
    ];
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ipc.with_extension("0").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    for step in steps {
        let output = Command::new("tgtadm").args(["-C", "0", "--lld", "iscsi"]).args(step).env("TGT_IPC_SOCKET", &ipc).output()?;
        if !output.status.success() {
            bail!("tgtadm failed: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(Some(server))
}

/// Writes an image over the disk; MB/s, with the flush at the end.
fn convert(server: &Server, image: &Path) -> Result<f64> {
    let image = image.display().to_string();
    let cost = run(&PathBuf::from("qemu-img"), &["convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", &image, server.uri()])?;
    Ok(DISK_BYTES as f64 / cost.wall_s / 1e6)
}

/// Reads for a while: MB/s of large requests, thousands of small ones a second.
fn read(server: &Server, blocks: &str, depth: &str, is_random: bool) -> Result<f64> {
    let mut arguments = vec!["-b", blocks, "-m", depth, "-t", READ_SECONDS];
    arguments.extend(is_random.then_some("-r"));
    arguments.push(server.uri());
    let output = run(&PathBuf::from("iscsi-perf"), &arguments)?.output;
    let text = String::from_utf8_lossy(&output);
    // The last words are "iops average 19351 (75 MB/s)".
    let average = text.rsplit("iops average ").next().and_then(|rest| rest.split_whitespace().next());
    let requests: f64 = average.and_then(|number| number.parse().ok()).with_context(|| format!("no average: {text}"))?;
    Ok(if is_random { requests / 1e3 } else { requests * blocks.parse::<f64>()? * 512.0 / 1e6 })
}

/// Writes one byte again and again, with a flush at the end: MB/s of large requests, one behind the other, thousands of
/// small ones a second, all over the disk.
fn write(server: &Server, bytes: u64, depth: u64) -> Result<f64> {
    let is_large = bytes > 4096;
    let (count, step) = if is_large { (LARGE_WRITES, bytes) } else { (SMALL_WRITES, SMALL_STEP) };
    let [count_text, step, bytes_text, depth] = [count, step, bytes, depth].map(|number| number.to_string());
    let flush = format!("--flush-interval={count}");
    let arguments = [
        "bench",
        "-w",
        "-q",
        "-t",
        "none",
        "-f",
        "raw",
        "-c",
        &count_text,
        "-d",
        &depth,
        "-s",
        &bytes_text,
        "-S",
        &step,
        &flush,
        server.uri(),
    ];
    let cost = run(&PathBuf::from("qemu-img"), &arguments)?;
    let requests = count as f64 / cost.wall_s;
    Ok(if is_large { requests * bytes as f64 / 1e6 } else { requests / 1e3 })
}

/// Processor seconds that the server takes for each GB that is written.
fn processor(server: &Server, image: &Path) -> Result<f64> {
    let before = server.cpu_s()?;
    convert(server, image)?;
    Ok((server.cpu_s()? - before) / (DISK_BYTES as f64 / 1e9))
}
