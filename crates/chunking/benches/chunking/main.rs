//! Measures how fast each chunker cuts, how much of edited data it finds again, and how long its chunks are.
//!
//! All chunkers run on the same data in one run, beside the crates `fastcdc` and `gearhash` and beside the speed of
//! memory. `docs/chunking.md` has the results.
//!
//! Run `cargo bench -p onefold-chunking`. For other sizes, or for data other than the Rust toolchain and `/usr`:
//! `cargo bench -p onefold-chunking -- [--target BYTES] [--plot FILE.svg] [FOLDER...]`.

mod contenders;
mod corpus;
mod edits;
mod plot;
mod speed;

use contenders::Contender;
use onefold_chunking::Sizes;
use std::path::PathBuf;

/// How much data is read.
const CORPUS_BYTES: usize = 256 << 20;

fn main() {
    let mut folders = Vec::new();
    let mut plot = None;
    let mut sizes = Sizes::default();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            // Cargo passes this one.
            "--bench" => {}
            "--target" => sizes = Sizes::around(arguments.next().and_then(|bytes| bytes.parse().ok()).expect("--target BYTES")),
            "--plot" => plot = Some(PathBuf::from(arguments.next().expect("--plot FILE"))),
            _ => folders.push(PathBuf::from(argument)),
        }
    }
    if folders.is_empty() {
        folders = corpus::usual_folders();
    }

    let data = corpus::read(&folders, CORPUS_BYTES);
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    println!("{} MB of files from {}", data.len() / 1_000_000, names.join(", "));
    println!(
        "sizes {} {} {}; GB = 10^9 bytes; speeds are medians of CPU time, their ratios to crate fastcdc medians of each round",
        sizes.min, sizes.target, sizes.max
    );

    let contenders = contenders::all(sizes);
    let speeds = speed::measure(&contenders, &data);
    println!("\n{:<26} {:>9} {:>9} {:>9} {:>9}", "", "hot GB/s", "x", "memory", "x");
    for (name, speed) in &speeds {
        println!("{name:<26} {:>9.2} {:>9.2} {:>9.2} {:>9.2}", speed.hot_gb, speed.hot_ratio, speed.memory_gb, speed.memory_ratio);
    }

    println!("\n{:<26} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "mean", "weighted", "unique MB", "new %", "x");
    let different: Vec<&Contender> = contenders.iter().filter(|contender| contender.cuts_by_itself).collect();
    let results = edits::measure(&different, &data);
    for (contender, result) in different.iter().zip(&results) {
        println!(
            "{:<26} {:>9.0} {:>9.0} {:>9.1} {:>9.3} {:>9.3}",
            contender.name,
            result.mean_bytes,
            result.weighted_bytes,
            result.unique_bytes as f64 / 1e6,
            100.0 * result.new_share,
            result.new_share / results[0].new_share
        );
    }
    println!("weighted: mean length of the chunk that a byte is in; new: bytes of the edited copy in chunks that the original lacks");

    println!("\n% of chunks, KiB{:>16} {:>7} {:>7} {:>7} {:>7} {:>7}", "-4", "4-8", "8-12", "12-16", "16-32", "32");
    for contender in &different {
        let shares = shares(&contender.lengths(&data)).map(|share| format!("{share:>7.2}"));
        println!("{:<25} {}", contender.name, shares.join(" "));
    }

    if let Some(path) = plot {
        let lines = ["galois", "crate fastcdc", "rabin"].map(|name| {
            let contender = different.iter().find(|contender| contender.name == name).expect("a contender of this name");
            (name, contender.lengths(&data))
        });
        std::fs::write(&path, plot::lengths(&lines, sizes)).expect("the plot can be written");
        println!("wrote {}", path.display());
    }
}

/// Returns the percentage of chunks shorter than each of these lengths but not shorter than the previous one.
fn shares(lengths: &[usize]) -> [f64; 6] {
    let mut from = 0;
    [4, 8, 12, 16, 32, usize::MAX >> 10].map(|kib| {
        let count = lengths.iter().filter(|length| (from..kib << 10).contains(*length)).count();
        from = kib << 10;
        100.0 * count as f64 / lengths.len() as f64
    })
}
