//! How long batches wait while the partitions of a chunk index grow (M2.2, M2.3, M0.15). The benchmark looks up and
//! applies new chunks while another thread sweeps, as in an engine. If the auxiliary index is over its bound, the
//! writer itself does a part of the sweeps.
//!
//! `cargo bench -p onefold-index --bench growth [-- KEYS [PER_SECOND]]`. The files are in the temporary directory
//! (`TMPDIR`).

use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, LocalGround, checksum};
use onefold_index::{ChunkIndex, ChunkIndexOptions};
use onefold_oplog::Ownership;
use onefold_oplog::Position;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BATCH: u64 = 256;
const DIGEST_BYTES: usize = 20;
const PARTITIONS: u32 = 4;

fn key(number: u64) -> Fingerprint {
    let mut digest = [0; DIGEST_BYTES];
    digest[..8].copy_from_slice(&checksum(&[number, 1].map(u64::to_le_bytes).concat()).to_le_bytes());
    digest[8..16].copy_from_slice(&checksum(&[number, 2].map(u64::to_le_bytes).concat()).to_le_bytes());
    digest[16..].copy_from_slice(&(number as u32).to_le_bytes());
    Fingerprint::from_digest(&digest)
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let keys = numbers.next().unwrap_or(4_000_000);
    let per_second = numbers.next().unwrap_or(100_000);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("it exists"));
    ChunkIndex::create(&ground, "index", PARTITIONS, DIGEST_BYTES).expect("an empty directory");
    let options = ChunkIndexOptions { auxiliary_bytes: 16 << 20, page_cache_bytes: 8 << 20, ..ChunkIndexOptions::default() };
    let index =
        ChunkIndex::open(&ground, "index", &Ownership::all(PARTITIONS, 1), DIGEST_BYTES, options, Access::ReadWrite).expect("an index");
    let has_ended = AtomicBool::new(false);
    let mut waits = Vec::new();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                if !(index.wants_sweep() && index.step().expect("swept")) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let mut found = Vec::new();
        for first in (0..keys).step_by(BATCH as usize) {
            let due = Duration::from_secs_f64(first as f64 / per_second as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let new: Vec<_> = (first..first + BATCH).map(|number| (key(number), number + 1)).collect();
            // Half of them new, half known.
            let wanted: Vec<_> =
                new.iter().map(|(key, _)| *key).chain((0..BATCH).map(|at| key((first + at) * 7919 % first.max(1)))).collect();
            let began = Instant::now();
            index.lookup(&wanted, &mut found).expect("looked up");
            index.apply(Position(first + BATCH), &new, &[]).expect("applied");
            while index.is_over_limit() && index.step().expect("swept") {}
            waits.push(began.elapsed());
        }
        has_ended.store(true, Ordering::Relaxed);
    });
    let seconds = start.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let statistics = index.statistics();
    println!("{keys} chunks in batches of {BATCH}, {:.0} k per second", keys as f64 / seconds / 1e3);
    println!("{:<32} {:>9.2} {:>9.2} {:>9.2} {:>9.2} ms", "p50, p99, p99.9, longest", at(0.5), at(0.99), at(0.999), at(1.0));
    println!("{:<32} {:>9} doublings, {} sweeps", "", statistics.growths, statistics.sweeps);
    let per_page = statistics.swept_changes as f64 / statistics.sweep_page_writes.max(1) as f64;
    println!("{:<32} {:>9.2} ({} pages by growth)", "entries per written page", per_page, statistics.growth_page_writes);
    println!("{:<32} {:>9.1}", "bytes per chunk on disk", statistics.page_bytes as f64 / keys as f64);
}
