//! Measures how fast batches of chunks are fingerprinted, compared in the same run with the crates `blake3`, `sha2` and
//! `sha1`, one chunk at a time. Run `cargo bench -p onefold-fingerprint`. `docs/fingerprints.md` has the table.

use onefold_chunking::{Kind, Sizes, chunker};
use onefold_fingerprint::{Algorithm, Fingerprint, Implementation};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

/// Hot data fits in the second-level cache of a core. Data from memory is larger than any cache it is likely to meet.
const HOT_BYTES: usize = 512 << 10;
const MEMORY_BYTES: usize = 256 << 20;
/// Bytes hashed in one timed run, and the number of runs. The contenders take turns.
const RUN_BYTES: usize = 8 << 20;
const RUNS: usize = 41;
/// The largest batch of the engine. Its batches are often the chunks of a request of 256 KiB or 1 MiB.
const BATCH_CHUNKS: usize = 1024;

fn main() {
    let data = data();
    let sizes = Sizes::default();
    let mut cuts = Vec::new();
    chunker(Kind::FastCdc, sizes).expect("the default sizes").cut(&data, true, &mut cuts);
    let mut start = 0;
    let uneven: Vec<&[u8]> = cuts.iter().map(|cut| &data[std::mem::replace(&mut start, *cut)..*cut]).collect();
    let equal: Vec<&[u8]> = data.chunks_exact(8192).collect();
    println!("{} uneven chunks of {} bytes on average", uneven.len(), data.len() / uneven.len());
    println!("GB/s (10^9 bytes, one core, median of {RUNS} short runs; best in brackets)");

    for (name, chunks) in [("8 KiB equal", &equal), ("uneven", &uneven)] {
        for batch in [1, 2, 4, 8, 16, 32, 64, 128, BATCH_CHUNKS] {
            if batch == BATCH_CHUNKS {
                compare(&format!("{name}, from memory, batches of {batch}"), chunks, batch);
                continue;
            }
            let hot_chunks = chunks.iter().scan(0, |bytes, chunk| {
                *bytes += chunk.len();
                (*bytes <= HOT_BYTES.max(batch * 8192)).then_some(*chunk)
            });
            let hot: Vec<&[u8]> = hot_chunks.collect();
            // Only whole batches.
            let whole = hot.len() - hot.len() % batch;
            compare(&format!("{name}, hot, batches of {batch}"), if whole == 0 { &hot } else { &hot[..whole] }, batch);
        }
    }
}

/// Prints a line for each algorithm: chunk by chunk, then in batches with the best instructions of the machine.
fn compare(title: &str, chunks: &[&[u8]], batch: usize) {
    println!("\n{title}");
    for algorithm in [Algorithm::Blake3, Algorithm::Sha256, Algorithm::Sha1] {
        let mut out: Vec<Fingerprint> = Vec::new();
        let mut ways: Vec<(String, Vec<f64>, Option<Implementation>)> = vec![("one by one".into(), Vec::new(), None)];
        let batched = Implementation::available().filter(|one| *one != Implementation::Scalar);
        ways.extend(batched.map(|one| (one.to_string(), Vec::new(), Some(one))));
        let mut position = 0;
        for _ in 0..RUNS {
            for (_, speeds, implementation) in &mut ways {
                let start = thread_time();
                let mut bytes = 0;
                while bytes < RUN_BYTES {
                    let end = chunks.len().min(position + batch);
                    let some = &chunks[position..end];
                    position = if end == chunks.len() { 0 } else { end };
                    bytes += some.iter().map(|chunk| chunk.len()).sum::<usize>();
                    out.clear();
                    match implementation {
                        None => out.extend(some.iter().map(|chunk| algorithm.fingerprint(chunk))),
                        Some(implementation) => algorithm.fingerprint_many_with(*implementation, some, &mut out),
                    }
                    black_box(&out);
                }
                speeds.push(bytes as f64 / (thread_time() - start).as_secs_f64() / 1e9);
            }
        }
        let mut reference = 0.0;
        print!("{:<8}", algorithm.name());
        for (name, speeds, implementation) in &mut ways {
            speeds.sort_by(f64::total_cmp);
            let median = speeds[RUNS / 2];
            if implementation.is_none() {
                reference = median;
            }
            print!("  {name} {median:.2} ({:.2}) x{:.2}", speeds[RUNS - 1], median / reference);
        }
        println!();
    }
}

/// Returns the CPU time of this thread, so that other load on the machine does not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns real files, one after the other as a backup reads them: the programs and libraries of this machine. Repeats
/// them if there are too few.
fn data() -> Vec<u8> {
    let mut data = Vec::with_capacity(MEMORY_BYTES);
    for folder in ["/usr/lib", "/usr/bin", "/usr/share"] {
        gather(Path::new(folder), &mut data);
    }
    if data.is_empty() {
        data.extend((0..HOT_BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8));
    }
    while data.len() < MEMORY_BYTES {
        data.extend_from_within(..data.len().min(MEMORY_BYTES - data.len()));
    }
    data
}

fn gather(folder: &Path, data: &mut Vec<u8>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if data.len() >= MEMORY_BYTES {
            return;
        }
        if kind.is_dir() {
            gather(&entry.path(), data);
        } else if kind.is_file()
            && let Ok(content) = fs::read(entry.path())
        {
            data.extend_from_slice(&content[..content.len().min(MEMORY_BYTES - data.len())]);
        }
    }
}
