//! Small files in a store of profile `sampled` with little memory for hooks: what copies of them add, and what naming
//! them costs a first backup (M3.3, `docs/decisions/0057-file-fingerprints.md`).
//!
//! `cargo bench -p onefold-client --bench small_files [FILES] [ROUNDS]`. Stores and files lie in `$TMPDIR`. Names are
//! switched off by the filter `byte-compare`, which costs new data nothing. Times are of the processor: they depend
//! less on what else runs.

use onefold_catalog::Catalog;
use onefold_client::{BackupOptions, Counter, Tally};
use onefold_engine::{Descriptor, Engine, Mode, Settings, StoreProfile};
use onefold_ground::{Ground, LocalGround};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Every so many files are copied.
const SCATTERED: usize = 37;

fn noise(state: &mut u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn name(number: usize) -> String {
    format!("{:03}/{number:06}", number / 100)
}

fn copy(source: &Path, to: &str, numbers: impl Iterator<Item = usize>) -> u64 {
    let copied = numbers.map(|number| {
        let path = source.join(to).join(name(number));
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::copy(source.join("tree").join(name(number)), path).expect("a copy")
    });
    copied.sum()
}

fn settings(is_named: bool) -> Settings {
    let mut settings = Settings { sampled_index_bytes: 4 << 10, ..Settings::default() };
    settings.chain.extend((!is_named).then(|| "byte-compare".to_owned()));
    settings
}

/// Returns the seconds of processor time that this process took so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Backs the source up. Returns seconds of processor time, added bytes and files taken.
fn backup(store: &Path, source: &Path, is_named: bool) -> (f64, u64, u64) {
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(store).expect("a directory"));
    let engine = Engine::open(ground, settings(is_named), Mode::ReadWrite, "bench").expect("a store");
    let options = BackupOptions { name: "bench".into(), paths: vec![source.to_path_buf()], ..BackupOptions::default() };
    let (tally, before) = (Tally::default(), processor_seconds());
    onefold_client::backup(&Catalog::new(engine.clone()), &options, &tally).expect("a backup");
    // With the names in the object index.
    engine.close().expect("a clean stop");
    let seconds = processor_seconds() - before;
    (seconds, tally.get(Counter::AddedBytes), tally.get(Counter::TakenFiles))
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (files, rounds) = (numbers.next().unwrap_or(20_000), numbers.next().unwrap_or(3));
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    let mut state = 1;
    let mut bytes = 0;
    for number in 0..files {
        let path = source.join("tree").join(name(number));
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        // 1 to 32 KiB, small ones more often.
        let length = (1 << 10) << (number % 5);
        let content = noise(&mut state, length + number * 31 % length);
        bytes += content.len();
        fs::write(path, content).expect("a file");
    }
    println!("{files} files, {bytes} bytes");
    let mut first = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for is_named in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let store = directory.path().join("store");
            fs::create_dir(&store).expect("a directory");
            let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(&store).expect("a directory"));
            let descriptor = Descriptor { profile: StoreProfile::Sampled, ..Descriptor::new().expect("random numbers") };
            Engine::create(&ground, &descriptor).expect("a store");
            let (seconds, ..) = backup(&store, &source, is_named);
            first[usize::from(is_named)].push(seconds);
            println!("named {is_named}: first backup {seconds:.2} s");
            if round + 1 == rounds {
                let scattered = copy(&source, "scattered", (0..files).step_by(SCATTERED));
                let (seconds, added, taken) = backup(&store, &source, is_named);
                println!("named {is_named}: scattered copies of {scattered} bytes add {added}, {taken} taken, {seconds:.2} s");
                let whole = copy(&source, "whole", 0..files);
                let (seconds, added, taken) = backup(&store, &source, is_named);
                println!("named {is_named}: a copied tree of {whole} bytes adds {added}, {taken} taken, {seconds:.2} s");
                for tree in ["scattered", "whole"] {
                    fs::remove_dir_all(source.join(tree)).expect("it was copied");
                }
            }
            fs::remove_dir_all(&store).expect("a store");
        }
    }
    let best = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "first backup, best: {:.2} s without names, {:.2} s with: {:.3}",
        best(&first[0]),
        best(&first[1]),
        best(&first[1]) / best(&first[0])
    );
}
