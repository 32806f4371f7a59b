//! A served volume beside other NBD servers: fio over a Unix socket, on the same processors. Servers that are not
//! installed are left out. `nbdkit memory` and `qemu-nbd` on a file in memory keep every byte as it comes; onefold
//! cuts, hashes and stores it.

use crate::Options;
use crate::process::{Cost, run};
use crate::report::Report;
use crate::server::{is_installed, serve};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};

pub const DISK_BYTES: u64 = 512 << 20;
const SECONDS: &str = "5";

/// What is measured: name, fio's pattern, block size, requests in flight. Writes come first, so that reads find data.
const LOADS: [(&str, &str, &str, &str); 6] = [
    ("sequential write 256 KiB, 16 in flight", "write", "256k", "16"),
    ("sequential write again, the same data", "write", "256k", "16"),
    ("sequential read 256 KiB, 16 in flight", "read", "256k", "16"),
    ("random read 4 KiB, 1 in flight", "randread", "4k", "1"),
    ("random read 4 KiB, 16 in flight", "randread", "4k", "16"),
    ("random write 4 KiB, 16 in flight", "randwrite", "4k", "16"),
];

/// What [`latencies_of_writes`] asks of a server, and how long.
const RATE: &str = "--rate=30m";
const LATENCY_SECONDS: &str = "--runtime=15";

/// Measures each load on each server.
pub fn measure(options: &Options, report: &mut Report) -> Result<()> {
    report.group("NBD over a Unix socket, store and files in memory");
    if !is_installed("fio") {
        return Ok(());
    }
    let place = tempfile::tempdir_in(&options.memory)?;
    let path = |name: &str| place.path().join(name).display().to_string();
    let store = path("store");
    let program = options.binary()?;
    run(&program, &["init", &store, "--compression", "lz4"])?;
    run(&program, &["volume", "create", "--store", &store, "disk", "--size", &DISK_BYTES.to_string()])?;
    File::create(path("image"))?.set_len(DISK_BYTES)?;
    let size = DISK_BYTES.to_string();
    let binary = program.display().to_string();
    let (ours, kit, qemu, image) = (path("onefold.sock"), path("nbdkit.sock"), path("qemu.sock"), path("image"));
    let servers: [(&str, &str, Vec<&str>, &str, &str); 3] = [
        ("onefold, lz4", &binary, vec!["-q", "serve", "--store", &store, "--nbd", "", "--nbd-socket", &ours], &ours, "disk"),
        ("nbdkit memory", "nbdkit", vec!["-f", "-U", &kit, "memory", &size], &kit, ""),
        ("qemu-nbd raw", "qemu-nbd", vec!["-t", "-e", "8", "-f", "raw", "-k", &qemu, &image], &qemu, ""),
    ];
    let mut table = Vec::new();
    for (name, program, arguments, socket, export) in servers {
        match serve(program, &arguments, Path::new(socket), export)? {
            Some(server) => table.push((name, LOADS.iter().map(|load| measure_one(server.uri(), load)).collect::<Result<Vec<_>>>()?)),
            None => eprintln!("{program} is not installed: left out"),
        }
    }
    let Some((first, others)) = table.split_first() else { return Ok(()) };
    for (at, (load, _, block, _)) in LOADS.iter().enumerate() {
        let unit = if *block == "4k" { "k/s" } else { "MB/s" };
        let beside = others.first().map(|(name, figures)| (*name, figures[at]));
        report.add_beside(format!("{}: {load}", first.0), first.1[at], unit, None, beside);
        for (name, figures) in others {
            report.add(format!("{name}: {load}"), figures[at], unit);
        }
    }
    Ok(())
}

/// Median and 99th percentile of the latency of random writes of new data at a fixed rate, milliseconds; `None` without
/// fio.
pub fn latencies_of_writes(uri: &str) -> Result<Option<[f64; 2]>> {
    if !is_installed("fio") {
        return Ok(None);
    }
    let (uri, size) = (format!("--uri={uri}"), format!("--size={DISK_BYTES}"));
    let load = ["--name=bench", "--ioengine=nbd", "--rw=randwrite", "--bs=64k", "--iodepth=4", "--randrepeat=0", "--refill_buffers"];
    let how = [&uri, &size, RATE, "--time_based", LATENCY_SECONDS, "--fsync=256", "--output-format=json"];
    let json = fio(&[&load[..], &how[..]].concat())?.1;
    let percentile = |name: &str| {
        let found = json["jobs"][0]["write"]["clat_ns"]["percentile"][name].as_f64();
        found.map(|nanoseconds| nanoseconds / 1e6).with_context(|| format!("fio without the percentile {name}"))
    };
    Ok(Some([percentile("50.000000")?, percentile("99.000000")?]))
}

/// MB/s of large requests, thousands of small ones per second.
fn measure_one(uri: &str, (_, pattern, block, depth): &(&str, &str, &str, &str)) -> Result<f64> {
    let uri = format!("--uri={uri}");
    let (rw, bs, depth, size) =
        (format!("--rw={pattern}"), format!("--bs={block}"), format!("--iodepth={depth}"), format!("--size={DISK_BYTES}"));
    // A whole disk for large requests, which then are the same in each run; a time for small ones. Writes end with a
    // flush.
    let mut arguments =
        vec!["--name=bench", "--ioengine=nbd", &uri, &rw, &bs, &depth, &size, "--randrepeat=1", "--refill_buffers", "--output-format=json"];
    let runtime = format!("--runtime={SECONDS}");
    if *block == "4k" {
        arguments.extend(["--time_based", &runtime]);
    }
    if pattern.ends_with("write") {
        arguments.push("--end_fsync=1");
    }
    let (cost, json) = fio(&arguments)?;
    let job = &json["jobs"][0][if pattern.ends_with("read") { "read" } else { "write" }];
    if *block == "4k" {
        Ok(job["iops"].as_f64().context("fio without iops")? / 1e3)
    } else {
        // From the start of the program to its end, flush included: fio's own figure leaves the flush out.
        Ok(DISK_BYTES as f64 / cost.wall_s / 1e6)
    }
}

/// Runs fio: what it cost and what it says.
fn fio(arguments: &[&str]) -> Result<(Cost, Value)> {
    let cost = run(&PathBuf::from("fio"), arguments)?;
    // Libraries of fio may write lines of their own before the value.
    let start = cost.output.iter().position(|byte| *byte == b'{').context("fio wrote no JSON")?;
    let json = serde_json::from_slice(&cost.output[start..]).context("fio wrote damaged JSON")?;
    Ok((cost, json))
}
