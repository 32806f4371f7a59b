//! How fast the server is beside `nbdkit memory` and `qemu-nbd` (a file on tmpfs), each over a Unix socket on this
//! machine, with fio as the client. Run with `cargo bench -p onefold-nbd --bench nbd`, or with `-- TEXT` for the loads
//! whose name has TEXT. Servers that are not installed are left out. The client runs on the same cores.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Memory, one, start};
use onefold_nbd::{Config, Export, Listen};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: &str = "268435456";
const SECONDS: &str = "3";

/// What is measured: name, fio's pattern, block size, requests in flight. Writes come first, so that reads find data.
const LOADS: [(&str, &str, &str, &str); 7] = [
    ("sequential write 256 KiB, 16 in flight", "write", "256k", "16"),
    ("sequential read 256 KiB, 16 in flight", "read", "256k", "16"),
    ("sequential read 2 MiB, 4 in flight", "read", "2m", "4"),
    ("random read 4 KiB, 1 in flight", "randread", "4k", "1"),
    ("random read 4 KiB, 16 in flight", "randread", "4k", "16"),
    ("random read 4 KiB, 64 in flight", "randread", "4k", "64"),
    ("random write 4 KiB, 16 in flight", "randwrite", "4k", "16"),
];

fn main() {
    // `cargo test --benches` passes no argument; `cargo bench` passes --bench.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory");
    let socket = |name: &str| directory.path().join(name);
    let disk = Memory::new(SIZE.parse().expect("a number"));
    // Not zeros: reads of those are answered without data.
    disk.write(0, &vec![0x5A; SIZE.parse().expect("a number")], false).expect("memory does not fail");
    let ours = start(Config::new(Listen::Unix(socket("onefold"))), one(&disk));
    let image = directory.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(SIZE.parse().expect("a number"))).expect("an image");
    let text = |path: &Path| path.display().to_string();
    let others = [
        ("nbdkit", vec!["-f".into(), "-U".into(), text(&socket("nbdkit")), "memory".into(), SIZE.into()]),
        (
            "qemu-nbd",
            vec!["-t".into(), "-e".into(), "8".into(), "-f".into(), "raw".into(), "-k".into(), text(&socket("qemu-nbd")), text(&image)],
        ),
    ];
    let others = others.map(|(program, arguments): (&str, Vec<String>)| (program, serve(program, &arguments, &socket(program))));
    println!("{:<42}{:>12}{}", "", "onefold", others.iter().map(|(name, _)| format!("{name:>12}")).collect::<String>());
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    for (name, pattern, block, depth) in LOADS {
        if !wanted.iter().all(|text| name.contains(text)) {
            continue;
        }
        let mut row = measure(&ours.uri("disk"), pattern, block, depth);
        for (program, child) in &others {
            let uri = format!("nbd+unix:///?socket={}", socket(program).display());
            row += &if child.is_some() { measure(&uri, pattern, block, depth) } else { format!("{:>12}", "-") };
        }
        println!("{name:<42}{row}");
    }
    for (_, child) in others {
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts another server and waits for its socket.
fn serve(program: &str, arguments: &[String], socket: &Path) -> Option<Child> {
    let child = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    for _ in 0..100 {
        if socket.exists() {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

/// MB/s of large requests, thousands of small ones per second.
fn measure(uri: &str, pattern: &str, block: &str, depth: &str) -> String {
    let arguments = [
        "--name=bench".to_owned(),
        "--ioengine=nbd".into(),
        format!("--uri={uri}"),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--iodepth={depth}"),
        format!("--size={SIZE}"),
        format!("--runtime={SECONDS}"),
        "--time_based".into(),
        "--randrepeat=1".into(),
        "--output-format=terse".into(),
        "--terse-version=3".into(),
    ];
    let output = Command::new("fio").args(arguments).output().expect("fio is needed for this benchmark");
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;")).unwrap_or_default().split(';').collect();
    // Fields 7 and 8 (from 1) are KiB/s and requests per second of reads, 48 and 49 of writes.
    let first = if pattern.ends_with("read") { 6 } else { 47 };
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    if block == "4k" { format!("{:>9.1} k/s", number(first + 1) / 1000.0) } else { format!("{:>7.0} MB/s", number(first) * 1024.0 / 1e6) }
}
