//! Tests whether the generated data has the distributions of the model. Seeds are fixed, so a test that passes once
//! always passes. A correct generator misses the bounds for one seed in a hundred (1 % level), so a wrong one has
//! little room.

use crate::lengths::{self, CUT, Lengths};
use crate::model::{Model, ModelScript, Variant};
use crate::noise::Key;
use crate::op::Op;
use crate::pool::{MEAN_INDEX, Pool, Reuse};
use crate::state::{Placement, State, Trace};
use crate::{Set, Workload};

const TB: u64 = 1_000_000_000_000;

fn workload(model: Model, generation: u32, size_bytes: u64) -> Workload {
    Workload { set: Set::Generations(model), seed: 1, client: 0, generation, size_bytes }
}

fn block(variant: Variant) -> Model {
    Model { variant, ..Model::default() }
}

fn floating(trace: Trace) -> Model {
    Model { placement: Placement::Floating, trace, ..Model::default() }
}

/// Returns the percentages of the bytes that are U, I and T.
fn shares(model: Model, generation: u32, size_bytes: u64) -> [f64; 3] {
    let description = workload(model, generation, size_bytes).describe().unwrap();
    State::ALL.map(|state| 100.0 * description.share(state))
}

fn assert_near(found: [f64; 3], expected: [f64; 3], allowed: f64) {
    let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= allowed);
    assert!(near, "U, I, T: {found:?}, expected {expected:?} within {allowed}");
}

/// Returns the share of draws, after the cut, of at most `length` whole bytes.
fn share_up_to(lengths: &Lengths, length: u64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if lengths.quantile(middle * CUT) < (length + 1) as f64 { low = middle } else { high = middle }
    }
    low
}

/// Checks the Kolmogorov-Smirnov distance of a sample from the distribution. Lengths in blocks are only compared at
/// block ends, where rounding changes nothing.
fn assert_drawn_from(lengths: &Lengths, mut sample: Vec<u64>, what: &str) {
    assert!(sample.len() > 5_000, "{what}: {}", sample.len());
    sample.sort_unstable();
    let count = sample.len() as f64;
    let mut distance: f64 = 0.0;
    for (place, length) in sample.iter().enumerate() {
        if sample.get(place + 1) != Some(length) {
            distance = distance.max(((place + 1) as f64 / count - share_up_to(lengths, *length)).abs());
        }
    }
    assert!(distance < 1.63 / count.sqrt(), "{what}: distance {distance} of {count}");
}

fn sample(model: Model, generation: u32, size_bytes: u64, state: State) -> Vec<u64> {
    let runs = workload(model, generation, size_bytes).runs().unwrap();
    let mut lengths: Vec<u64> = runs.filter(|run| run.state == state).map(|run| run.length).collect();
    // The last run of the stream is cut short.
    lengths.pop();
    lengths
}

#[test]
fn c_1_a_second_generation_has_the_shares_of_the_model() {
    assert_near(shares(block(Variant::Documented), 2, 10 * TB), [1.25, 0.75, 98.0], 0.1);
    // Later generations are generated like the second.
    assert_near(shares(block(Variant::Documented), 5, 4 * TB), [1.25, 0.75, 98.0], 0.15);
}

#[test]
fn c_1_a_first_generation_has_the_shares_of_the_model() {
    for model in [block(Variant::Documented), floating(Trace::Upb21S)] {
        let [unique, internal, temporal] = shares(model, 1, TB / 4);
        assert!((internal - 29.8).abs() < 0.3 && temporal == 0.0, "{unique} {internal}");
    }
}

#[test]
fn the_defects_have_the_effects_that_are_documented() {
    assert_near(shares(block(Variant::Extrapolated), 2, 10 * TB), [1.25, 0.75, 98.0], 0.1);
    assert_near(shares(block(Variant::OverwrittenSwitches), 2, 10 * TB), [0.0, 2.5, 97.5], 0.15);
    assert_near(shares(block(Variant::HalvedRuns), 2, 10 * TB), [2.0, 1.0, 97.0], 0.15);
    assert_near(shares(block(Variant::Online2011), 2, 10 * TB), [0.0, 3.5, 96.5], 0.15);
    assert_near(shares(block(Variant::Python2009), 2, 10 * TB), [1.25, 0.75, 98.0], 0.1);
    // The draws are the same, so the means differ only by the defect.
    let mean = |variant| {
        let lengths = sample(block(variant), 2, 2 * TB, State::Temporal);
        lengths.iter().take(200_000).sum::<u64>() as f64 / 200_000.0
    };
    let longer = mean(Variant::Extrapolated) / mean(Variant::Documented);
    assert!((1.012..1.02).contains(&longer), "{longer}");
}

#[test]
fn c_1_run_lengths_are_those_of_the_traces() {
    for trace in [Trace::Upb6, Trace::Upb21S] {
        for (state, size_bytes) in [(State::Unique, TB / 2), (State::Internal, TB / 2), (State::Temporal, TB / 2)] {
            let lengths = lengths::second(trace).of(state);
            for placement in [Placement::Floating, Placement::Block] {
                let model = Model { placement, trace, ..Model::default() };
                assert_drawn_from(lengths, sample(model, 2, size_bytes, state), &format!("{trace:?} {state:?} {placement:?}"));
            }
        }
    }
    // The paper's own criterion: within 5 % of the published quantiles.
    for line in include_str!("../data/run-length-summary.csv").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let state = match cells[0].split_once("rabin8-").unwrap().1 {
            "temporal-unique" => State::Unique,
            "internal-redundant" => State::Internal,
            "temporal-redundant" => State::Temporal,
            _ => continue,
        };
        let trace = if cells[0].starts_with("upb-6") { Trace::Upb6 } else { Trace::Upb21S };
        // A hundredth of the temporal runs have most of the bytes, so their mean needs many runs.
        let size_bytes = if state == State::Temporal { 10 * TB } else { 2 * TB };
        let mut lengths = sample(floating(trace), 2, size_bytes, state);
        lengths.sort_unstable();
        for (column, share) in [(5, 0.25), (6, 0.5), (7, 0.75), (8, 0.9)] {
            let expected: f64 = cells[column].parse().unwrap();
            let found = lengths[(lengths.len() as f64 * share / CUT) as usize] as f64;
            assert!((found / expected - 1.0).abs() < 0.05, "{} {share}: {found}", cells[0]);
        }
        let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
        assert!((mean / cells[13].parse::<f64>().unwrap() - 1.0).abs() < 0.05, "{}: {mean}", cells[0]);
    }
}

#[test]
fn run_lengths_of_a_first_generation_are_those_of_the_reconstruction() {
    for (lengths, state) in lengths::first().iter().zip([State::Unique, State::Internal]) {
        for placement in [Placement::Floating, Placement::Block] {
            let model = Model { placement, ..Model::default() };
            assert_drawn_from(lengths, sample(model, 1, TB / 20, state), &format!("{state:?} {placement:?}"));
        }
    }
    // The published means are from before the cut. The cut hardly changes the medians.
    for (lengths, median) in lengths::first().iter().zip([19e3, 16e3]) {
        assert!((lengths.quantile(0.5) / median - 1.0).abs() < 0.05);
    }
}

#[test]
fn states_follow_each_other_as_in_the_traces() {
    for trace in [Trace::Upb6, Trace::Upb21S] {
        let model = Model { trace, ..Model::default() };
        let mut counts = [[0u32; 3]; 3];
        let states: Vec<usize> = workload(model, 2, TB).runs().unwrap().map(|run| run.state as usize).collect();
        assert_eq!(states[0], State::Temporal as usize);
        states.windows(2).for_each(|pair| counts[pair[0]][pair[1]] += 1);
        let mut chi_squared = 0.0;
        for line in include_str!("../data/state-switches.csv").lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            if cells[0].starts_with("upb-6") == (trace == Trace::Upb6) {
                let place = |letter: &str| State::ALL.iter().position(|state| letter.starts_with(state.letter())).unwrap();
                let (from, to) = (place(cells[1]), place(cells[2]));
                let expected = f64::from(counts[from].iter().sum::<u32>()) * cells[4].parse::<f64>().unwrap();
                chi_squared += (f64::from(counts[from][to]) - expected).powi(2) / expected;
            }
        }
        assert!(states.len() > 100_000 && chi_squared < 11.34, "{trace:?}: {chi_squared} with 3 degrees of freedom");
    }
}

#[test]
fn the_pool_is_reused_exponentially() {
    let mut pool = Pool::new(Reuse::Exponential, Key::derive(&[5]));
    let mut counts = [0u32; 2048];
    let picks = 1_000_000;
    for _ in 0..picks {
        counts[pool.next(u64::MAX).buffer as usize] += 1;
    }
    let all = 1.0 - (-2048.0 / MEAN_INDEX).exp();
    let chi_squared: f64 = (0..2048)
        .step_by(32)
        .map(|from| {
            let found = f64::from(counts[from..from + 32].iter().sum::<u32>());
            let share = ((-(from as f64) / MEAN_INDEX).exp() - (-((from + 32) as f64) / MEAN_INDEX).exp()) / all;
            (found - share * f64::from(picks)).powi(2) / (share * f64::from(picks))
        })
        .sum();
    assert!(chi_squared < 92.0, "{chi_squared} with 63 degrees of freedom");
}

#[test]
fn deleted_runs_are_those_of_the_trace() {
    for trace in [Trace::Upb6, Trace::Upb21S] {
        let model = Model { deleted_runs: true, ..floating(trace) };
        let mut script = ModelScript::new(model, 2, 10 * TB, |purpose| Key::derive(&[purpose]));
        let (mut deleted, mut kept) = (Vec::new(), 0);
        while let Some(op) = script.next() {
            match op {
                Op::Skip(length) => deleted.push(length),
                Op::Copy(length) => kept += length,
                _ => {}
            }
        }
        let tables = lengths::second(trace);
        let share = deleted.iter().sum::<u64>() as f64 / kept as f64;
        let expected = tables.deleted.mean() / tables.kept.mean();
        assert!((share / expected - 1.0).abs() < 0.03, "{trace:?}: {share}, {expected}");
        deleted.truncate(100_000);
        assert_drawn_from(&tables.deleted, deleted, "deleted");
    }
}

#[test]
fn the_bytes_are_noise() {
    let mut stream = Workload { set: Set::UniqueFiles, ..workload(Model::default(), 1, 16 << 20) }.stream().unwrap();
    let mut data = vec![0; 16 << 20];
    assert_eq!(stream.fill(&mut data), data.len());
    // Each byte alone, the two halves of a word, and the first bytes of neighbouring words: 256 values each.
    let chi_squared = |values: &mut dyn Iterator<Item = u8>| {
        let mut counts = [0u32; 256];
        values.for_each(|value| counts[usize::from(value)] += 1);
        let expected = f64::from(counts.iter().sum::<u32>()) / 256.0;
        counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum::<f64>()
    };
    for (what, found) in [
        ("bytes", chi_squared(&mut data.iter().copied())),
        ("halves", chi_squared(&mut data.chunks_exact(8).map(|word| word[0].wrapping_sub(word[4])))),
        ("neighbours", chi_squared(&mut data.chunks_exact(16).map(|words| words[0].wrapping_sub(words[8])))),
        ("far neighbours", chi_squared(&mut data.chunks_exact(8192).map(|words| words[0].wrapping_sub(words[4096])))),
    ] {
        // 1 % on either side, with 255 degrees of freedom.
        assert!((196.0..318.0).contains(&found), "{what}: {found}");
    }
    assert!(zstd::bulk::compress(&data, 3).unwrap().len() >= data.len());
}
