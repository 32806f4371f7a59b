//! Measures how fast streams are generated, compared with copying as many bytes. Run `cargo bench -p onefold-traffic`.

use onefold_traffic::{Model, Placement, Set, Stream, Trace, Workload};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Bytes written per step. The buffer fits in the second-level cache of a core.
const STEP_BYTES: usize = 256 << 10;
/// Size of the source of copies: larger than any cache it is likely to meet.
const MEMORY_BYTES: usize = 256 << 20;
/// Bytes of one timed run, and the number of runs. The streams take turns.
const RUN_BYTES: usize = 64 << 20;
const RUNS: usize = 31;

fn main() {
    let floating = Model { placement: Placement::Floating, trace: Trace::Upb21S, ..Model::default() };
    let stream =
        |set, generation| Workload { set, seed: 1, client: 0, generation, size_bytes: 1 << 50 }.stream().expect("there is such a workload");
    let mut streams: Vec<(&str, Stream)> = vec![
        ("unique files", stream(Set::UniqueFiles, 1)),
        ("duplicate blocks", stream(Set::DuplicateBlocks, 1)),
        ("generation 1", stream(Set::Generations(Model::default()), 1)),
        ("generation 2", stream(Set::Generations(Model::default()), 2)),
        ("generation 2, floating", stream(Set::Generations(floating), 2)),
        ("generation 10", stream(Set::Generations(Model::default()), 10)),
        ("generation 10, floating", stream(Set::Generations(floating), 10)),
    ];
    let memory: Vec<u8> = (0..MEMORY_BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut buffer = vec![0; STEP_BYTES];
    let mut speeds = vec![Vec::new(); streams.len() + 1];
    let mut at = 0;
    for _ in 0..RUNS {
        let (copies, made) = speeds.split_at_mut(1);
        copies[0].push(speed(|| {
            buffer.copy_from_slice(&memory[at..at + STEP_BYTES]);
            at = (at + STEP_BYTES) % MEMORY_BYTES;
            black_box(&mut buffer);
        }));
        for ((_, stream), speeds) in streams.iter_mut().zip(made) {
            speeds.push(speed(|| {
                assert_eq!(stream.fill(&mut buffer), STEP_BYTES);
                black_box(&mut buffer);
            }));
        }
    }
    println!("GB/s (10^9 bytes, one core, median of {RUNS} runs of {} MiB; best in brackets)", RUN_BYTES >> 20);
    for (name, speeds) in std::iter::once("memcpy").chain(streams.iter().map(|(name, _)| *name)).zip(&mut speeds) {
        speeds.sort_by(f64::total_cmp);
        println!("{name:<24} {:6.2} ({:.2})", speeds[RUNS / 2], speeds[RUNS - 1]);
    }
}

fn speed(mut step: impl FnMut()) -> f64 {
    let start = thread_time();
    (0..RUN_BYTES / STEP_BYTES).for_each(|_| step());
    RUN_BYTES as f64 / (thread_time() - start).as_secs_f64() / 1e9
}

/// Returns the CPU time of this thread, so that other load on the machine does not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
