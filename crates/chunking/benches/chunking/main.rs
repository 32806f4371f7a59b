//! How fast each chunker cuts, beside the crate `fastcdc` and beside what the memory gives. `cargo bench -p onefold-chunking`

use onefold_chunking::{Kind, Sizes, chunker};
use std::hint::black_box;
use std::time::Instant;

/// Hot: stays in the cache of a core. From memory: larger than any cache it is likely to meet.
const HOT_BYTES: usize = 512 << 10;
const MEMORY_BYTES: usize = 256 << 20;
/// Bytes handled in one timed run.
const RUN_BYTES: usize = 512 << 20;
const RUNS: usize = 5;

fn main() {
    let mut state = 1u64;
    let data: Vec<u8> = (0..MEMORY_BYTES / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    println!("random bytes, GB/s (10^9), best of {RUNS}; target 8 KiB    hot   memory");
    report("floor: sum of all words", &data, |data| {
        let words = data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        words.fold(0u64, u64::wrapping_add) as usize
    });
    let sizes = Sizes::default();
    report("crate fastcdc 5, v2020", &data, |data| {
        fastcdc::v2020::FastCDC::with_level(data, sizes.min, sizes.target, sizes.max, fastcdc::v2020::Normalization::Level2).count()
    });
    for kind in [Kind::FastCdc, Kind::Rabin] {
        let chunker = chunker(kind, sizes).expect("the default sizes");
        let mut cuts = Vec::new();
        report(kind.name(), &data, |data| {
            cuts.clear();
            chunker.cut(data, true, &mut cuts);
            cuts.len()
        });
    }
}

fn report(name: &str, data: &[u8], mut work: impl FnMut(&[u8]) -> usize) {
    let mut best = |data: &[u8]| {
        let repeats = RUN_BYTES / data.len();
        let run = |_| {
            let start = Instant::now();
            for _ in 0..repeats {
                black_box(work(black_box(data)));
            }
            (repeats * data.len()) as f64 / start.elapsed().as_secs_f64() / 1e9
        };
        (0..RUNS).map(run).fold(0.0, f64::max)
    };
    println!("{name:<55} {:>6.2} {:>8.2}", best(&data[..HOT_BYTES]), best(data));
}
