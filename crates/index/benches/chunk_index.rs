//! The chunk index with random keys of 20 bytes: durable batches of 50 thousand, then hits and misses (M0.13-M0.15).
//!
//! `cargo bench -p onefold-index --bench chunk_index [-- KEYS]`. Figures are thousands per second of this process's CPU
//! time. The store's files are in the system's page cache. The first measurement of hits runs without the index's own
//! page cache, the second with all pages in it.

use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, LocalGround, checksum};
use onefold_index::{ChunkIndex, ChunkIndexOptions};
use onefold_oplog::{Ownership, Position};
use std::sync::Arc;
use std::time::Instant;

const BATCH: u64 = 50_000;
const DIGEST_BYTES: usize = 20;
const PARTITIONS: u32 = 16;

fn key(number: u64) -> Fingerprint {
    let mut digest = [0; DIGEST_BYTES];
    digest[..8].copy_from_slice(&checksum(&[number, 1].map(u64::to_le_bytes).concat()).to_le_bytes());
    digest[8..16].copy_from_slice(&checksum(&[number, 2].map(u64::to_le_bytes).concat()).to_le_bytes());
    digest[16..].copy_from_slice(&(number as u32).to_le_bytes());
    Fingerprint::from_digest(&digest)
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `work` over batches of keys. It makes the keys outside the measured time.
fn measure(name: &str, from: u64, count: u64, order: impl Fn(u64) -> u64, mut work: impl FnMut(u64, &[Fingerprint])) {
    let (mut cpu, mut wall) = (0.0, 0.0);
    for start in (from..from + count).step_by(BATCH as usize) {
        let keys: Vec<_> = (start..(start + BATCH).min(from + count)).map(|number| key(order(number))).collect();
        let (cpu_start, wall_start) = (cpu_seconds(), Instant::now());
        work(start, &keys);
        cpu += cpu_seconds() - cpu_start;
        wall += wall_start.elapsed().as_secs_f64();
    }
    println!("{name:<28} {:>8.0} k per CPU-s  {:>8.0} k per second", count as f64 / cpu / 1e3, count as f64 / wall / 1e3);
}

fn hits(name: &str, index: &ChunkIndex, keys: u64, batch_keys: usize) {
    let mut out = Vec::new();
    let order = |number| (number * 7919) % keys;
    measure(name, 0, keys, order, |_, batch| {
        for batch in batch.chunks(batch_keys) {
            index.lookup(batch, &mut out).expect("looked up");
            assert!(out.iter().all(Option::is_some));
        }
    });
}

fn main() {
    let keys: u64 = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(5_000_000);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("it exists"));
    ChunkIndex::create(&ground, "index", PARTITIONS, DIGEST_BYTES).expect("an empty directory");
    let open = |epoch, page_cache_bytes| {
        let options = ChunkIndexOptions { page_cache_bytes, ..ChunkIndexOptions::default() };
        ChunkIndex::open(&ground, "index", &Ownership::all(PARTITIONS, epoch), DIGEST_BYTES, options, Access::ReadWrite).expect("an index")
    };
    let index = open(1, 0);
    measure(
        "insert, durable in pages",
        0,
        keys,
        |number| number,
        |start, batch| {
            let inserts: Vec<_> = batch.iter().zip(start..).map(|(key, number)| (*key, number + 1)).collect();
            index.apply(Position(start + BATCH), &inserts, &[]).expect("applied");
            while index.wants_sweep() {
                index.sweep().expect("swept");
            }
            if start + BATCH >= keys {
                index.sweep_all().expect("swept");
            }
        },
    );
    let after_inserts = index.statistics();
    println!(
        "{:<28} {:>8} sweeps, {} growths, {} pages written",
        "",
        after_inserts.sweeps,
        after_inserts.growths,
        after_inserts.sweep_page_writes + after_inserts.growth_page_writes
    );

    let mut out = Vec::new();
    hits("hit, batches of 50 k", &index, keys, BATCH as usize);
    hits("hit, batches of 128", &index, keys, 128);
    let before = index.statistics();
    measure(
        "miss, batches of 50 k",
        keys,
        keys,
        |number| number,
        |_, batch| {
            index.lookup(batch, &mut out).expect("looked up");
            assert!(out.iter().all(Option::is_none));
        },
    );
    let after = index.statistics();
    println!("{:<28} {:>8.5}", "page reads per miss", (after.page_reads - before.page_reads) as f64 / keys as f64);
    println!("{:<28} {:>8.1}", "bytes per key on disk", after.page_bytes as f64 / keys as f64);
    println!("{:<28} {:>8.2}", "filter bytes per key", after.filter_bytes as f64 / keys as f64);

    index.close().expect("closed");
    drop(index);
    let start = Instant::now();
    let index = open(2, 1 << 40);
    println!("{:<28} {:>8.1} ms", "open after close", start.elapsed().as_secs_f64() * 1e3);
    assert_eq!(index.position(), Position(keys.div_ceil(BATCH) * BATCH));
    let order = |number| (number * 7919) % keys;
    measure("pages kept for the first time", 0, keys, order, |_, batch| {
        index.lookup(batch, &mut out).expect("looked up");
    });
    let reads = index.statistics().page_reads;
    hits("hit, pages in memory, 50 k", &index, keys, BATCH as usize);
    hits("hit, pages in memory, 128", &index, keys, 128);
    assert_eq!(index.statistics().page_reads, reads);
    println!("{:<28} {:>8.1}", "bytes per key in memory", index.statistics().page_cache_bytes as f64 / keys as f64);
}
