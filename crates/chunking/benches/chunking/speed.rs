//! Measures speed. The chunkers take turns, so that other load on the machine affects all of them equally.

use crate::contenders::Contender;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

/// Fits in the second-level cache of a core.
const HOT_BYTES: usize = 512 << 10;
/// Number of places in the data that are measured hot.
const HOT_PLACES: usize = 8;
/// How often each place is cut per round, after one cut to warm up.
const HOT_REPEATS: usize = 4;
const HOT_ROUNDS: usize = 31;
const MEMORY_ROUNDS: usize = 7;

pub struct Speed {
    pub hot_gb: f64,
    /// Relative to the first contender.
    pub hot_ratio: f64,
    pub memory_gb: f64,
    pub memory_ratio: f64,
}

/// Measures the speed of each contender. The floor is the speed of reading the data.
pub fn measure(contenders: &[Contender], data: &[u8]) -> Vec<(String, Speed)> {
    type Work<'a> = Box<dyn Fn(&[u8], &mut Vec<usize>) + 'a>;
    let mut work: Vec<(String, Work)> = Vec::new();
    for contender in contenders {
        work.push((contender.name.clone(), Box::new(|data, cuts| contender.cut(data, cuts))));
    }
    work.push(("floor: sum of all words".into(), Box::new(|data, cuts| cuts.push(sum(data)))));

    let places: Vec<&[u8]> = data.chunks_exact(data.len() / HOT_PLACES).map(|place| &place[..HOT_BYTES]).collect();
    let mut cuts = Vec::with_capacity(data.len() / 1024);
    let hot = rounds(HOT_ROUNDS, work.len(), |index| {
        let mut seconds = 0.0;
        for place in &places {
            cuts.clear();
            (work[index].1)(black_box(place), &mut cuts);
            let start = cpu_seconds();
            for _ in 0..HOT_REPEATS {
                cuts.clear();
                (work[index].1)(black_box(place), &mut cuts);
                black_box(&cuts);
            }
            seconds += cpu_seconds() - start;
        }
        (HOT_REPEATS * places.len() * HOT_BYTES) as f64 / seconds / 1e9
    });
    let memory = rounds(MEMORY_ROUNDS, work.len(), |index| {
        cuts.clear();
        let start = cpu_seconds();
        (work[index].1)(black_box(data), &mut cuts);
        black_box(&cuts);
        data.len() as f64 / (cpu_seconds() - start) / 1e9
    });

    let speeds = hot.into_iter().zip(memory).map(|((hot_gb, hot_ratio), (memory_gb, memory_ratio))| Speed {
        hot_gb,
        hot_ratio,
        memory_gb,
        memory_ratio,
    });
    work.iter().map(|(name, _)| name.clone()).zip(speeds).collect()
}

/// Returns two medians for each index: what `measure` returns, and its ratio to the first index in the same round.
fn rounds(count: usize, indices: usize, mut measure: impl FnMut(usize) -> f64) -> Vec<(f64, f64)> {
    let rounds: Vec<Vec<f64>> = (0..count).map(|_| (0..indices).map(&mut measure).collect()).collect();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of_index = |index: usize| {
        let values = rounds.iter().map(|round| round[index]).collect();
        let ratios = rounds.iter().map(|round| round[index] / round[0]).collect();
        (median(values), median(ratios))
    };
    (0..indices).map(of_index).collect()
}

fn sum(data: &[u8]) -> usize {
    let words = data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    words.fold(0u64, u64::wrapping_add) as usize
}

/// Returns the CPU time that this thread has used.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
