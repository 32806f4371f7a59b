//! Durable batches of several sizes, one after the other: how long each takes, and how much it grows the log.
//!
//! `cargo bench -p onefold-oplog --bench commits [-- DIRECTORY [COMMITS]]`. Beside each figure stands its floor: a
//! write and a sync of the same bytes at the end of an allocated file, without a log.

use onefold_ground::{Ground, LocalGround};
use onefold_oplog::{Log, LogOptions, Opening, Partition, PartitionClass, Record, SegmentLog};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of records: one object's change; a small transaction; a block of 4 KiB in an open frame; four such blocks; a
/// full commit.
const SIZES: [usize; 5] = [100, 900, 4_300, 17_000, 130_000];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let base = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let commits: usize = arguments.next().map_or(2_000, |count| count.parse().expect("a number of commits"));
    println!("{:>8} {:>12} {:>12} {:>12} {:>12} {:>14}", "bytes", "median, us", "p99, us", "floor, us", "p99, us", "log grows by");
    for bytes in SIZES {
        let directory = tempfile::tempdir_in(&base).expect("a directory to measure in");
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).expect("it was made just now"));
        SegmentLog::create(&ground, "log", [0; 16], LogOptions::default()).expect("an empty directory");
        let log =
            SegmentLog::open(ground.clone(), "log", [0; 16], LogOptions::default(), Opening::ReadWrite { epoch: 1 }).expect("a new log");
        let partition = Partition { class: PartitionClass::Container, number: 0 };
        let record = Record { kind: 1, partition, payload: vec![7; bytes] };
        let file = ground.create("floor").expect("a new file");
        file.allocate(0, 64 << 20).expect("room");
        file.sync().expect("a sync");
        let data = vec![7; bytes];
        let (mut times, mut floor, mut offset) = (Vec::new(), Vec::new(), 0);
        // Alternate, so that both see the same device.
        for _ in 0..commits {
            times.push(timed(|| {
                log.commit(std::slice::from_ref(&record)).expect("a commit");
            }));
            floor.push(timed(|| file.write_at(offset, &data).and_then(|()| file.sync()).expect("a write")));
            offset = (offset + bytes as u64) % (60 << 20);
            if log.is_over_limit() {
                log.trim(log.end()).expect("a trim");
            }
        }
        let growth = log.end().0 / commits as u64;
        let [median, late, floor_median, floor_late] =
            [quantile(&mut times, 50), quantile(&mut times, 99), quantile(&mut floor, 50), quantile(&mut floor, 99)];
        println!("{bytes:>8} {median:>12} {late:>12} {floor_median:>12} {floor_late:>12} {growth:>14}");
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn quantile(times: &mut [Duration], percent: usize) -> u128 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_micros()
}
