//! What finding duplicates costs: `cargo bench -p onefold-engine --bench duplicates [-- PROFILE MIB ROUNDS HOOKS]`.
//!
//! One stream writes random data into a store in memory. The store is opened again, and the same data is written
//! again, in its order and in blocks of 64 KiB in another order. Every figure is the best of the rounds. HOOKS is the
//! memory of the hooks in bytes, for profile `sampled`. With little of it, some duplicates are stored again.

use onefold_chunking::{Kind, Sizes};
use onefold_engine::{Descriptor, Engine, Hints, Mode, Settings, StoreProfile};
use onefold_ground::{Ground, LocalGround};
use onefold_storage::Compression;
use std::sync::Arc;
use std::time::Instant;

const BLOCK_BYTES: usize = 64 << 10;
const PIECE_BYTES: usize = 1 << 20;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// Writes data in pieces, each a run of its own. Returns the rate, the time in the filter for each chunk, and how many
/// chunks the look-up behind it was asked for.
fn write(engine: &Arc<Engine>, data: &[u8], pieces: impl Iterator<Item = (usize, usize)>) -> (f64, f64, u64) {
    let filter = || {
        let statistics = engine.statistics().expect("the store is sound");
        let time_ns = statistics.activity.profile.get("filter_container_cache").map_or(0, |usage| usage.time_ns);
        let asked = |name: &str| statistics.activity.filters.get(name).map_or(0, |verdicts| verdicts.iter().sum::<u64>());
        (time_ns, asked("container-cache"), asked("chunk-index"))
    };
    let before = filter();
    let mut stream = engine.stream();
    let mut out = Vec::new();
    let begun = Instant::now();
    for (start, length) in pieces {
        let (mut at, end) = (start, data.len().min(start + length));
        while at < end {
            at += stream.write(&data[at..end], true, Hints::default(), &mut out).expect("the store takes data");
        }
        out.clear();
    }
    let seconds = begun.elapsed().as_secs_f64();
    drop(stream);
    let after = filter();
    let nanoseconds = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
    (data.len() as f64 / seconds / 1e9, nanoseconds, after.2 - before.2)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let argument = |at: usize, default: &str| arguments.get(at).cloned().unwrap_or_else(|| default.to_owned());
    let profile: StoreProfile = argument(0, "exact").parse().expect("a profile");
    let bytes = argument(1, "256").parse::<usize>().expect("MiB") << 20;
    let rounds: u32 = argument(2, "5").parse().expect("rounds");
    let sampled_index_bytes = argument(3, "268435456").parse().expect("bytes");
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("a directory"));
    let descriptor = Descriptor {
        profile,
        chunker: Kind::Fixed,
        chunk_sizes: Sizes { min: 2048, target: 8192, max: 32768 },
        compression: Compression::None,
        sequential_compression: Compression::None,
        ..Descriptor::new().expect("random numbers")
    };
    Engine::create(&ground, &descriptor).expect("a store");
    let data = noise(1, bytes);
    let settings = || Settings { sampled_index_bytes, ..Settings::default() };
    let open = || Engine::open(ground.clone(), settings(), Mode::ReadWrite, "bench").expect("the store opens");
    let in_order = || (0..bytes.div_ceil(PIECE_BYTES)).map(|piece| (piece * PIECE_BYTES, PIECE_BYTES));
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let scattered = || (0..blocks).map(|block| ((block * 2_654_435_761 % blocks) * BLOCK_BYTES, BLOCK_BYTES));
    let engine = open();
    let show = |name: &str, (rate, filter_ns, asked): (f64, f64, u64)| {
        println!("{name:<28} {rate:>6.2} GB/s {filter_ns:>6.0} ns in the filter a chunk {asked:>8} chunks asked for behind it");
    };
    show("new", write(&engine, &data, in_order()));
    engine.close().expect("the store closes");
    drop(engine);
    let mut best = [(0.0_f64, f64::MAX, u64::MAX); 3];
    let mut again_bytes = u64::MAX;
    for _ in 0..rounds {
        let engine = open();
        let before = engine.unique_bytes();
        let first = write(&engine, &data, in_order());
        again_bytes = again_bytes.min(engine.unique_bytes() - before);
        let runs = [first, write(&engine, &data, in_order()), write(&engine, &data, scattered())];
        for (best, run) in best.iter_mut().zip(runs) {
            *best = (best.0.max(run.0), best.1.min(run.1), best.2.min(run.2));
        }
        engine.close().expect("the store closes");
    }
    for (name, best) in ["again, after opening", "again", "again, 64 KiB in any order"].iter().zip(best) {
        show(name, best);
    }
    println!("stored again, after opening  {:>6.2} %", again_bytes as f64 * 100.0 / bytes as f64);
}
