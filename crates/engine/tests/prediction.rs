//! Prediction of duplicates: it changes only the time spent.

mod common;

use common::*;
use onefold_chunking::Kind;
use onefold_engine::components::PREDICTION;
use onefold_engine::{Descriptor, Engine, Piece};
use proptest::prelude::*;
use std::sync::Arc;

/// The chain of a store that predicts, and of one that does not.
const CHAINS: [&str; 2] = [DEFAULT_CHAIN, "zero-chunk,block-index,chunk-index"];
const SLICE: usize = 40_000;

/// One part of a run: bytes that were never there, a range of an earlier run, or zeros.
#[derive(Clone, Debug)]
enum Part {
    New(usize),
    /// Run (modulo their number), its begin and end in thousandths of that run, and the byte to change, if any.
    Old(usize, u32, u32, Option<u32>),
    Zeros(usize),
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        1 => (1..20_000usize).prop_map(Part::New),
        4 => (any::<usize>(), 0..1000u32, 0..=1000u32, proptest::option::of(0..1000u32))
            .prop_map(|(run, from, to, edit)| Part::Old(run, from.min(to), from.max(to), edit)),
        1 => (1..20_000usize).prop_map(Part::Zeros),
    ]
}

fn run(parts: &[Part], earlier: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut data = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        match part {
            Part::New(length) => data.extend(bytes(seed * 100 + number as u64, *length)),
            Part::Zeros(length) => data.resize(data.len() + length, 0),
            Part::Old(run, from, to, edit) => {
                let Some(old) = (!earlier.is_empty()).then(|| &earlier[run % earlier.len()]) else { continue };
                let place = |thousandth: u32| old.len() * thousandth as usize / 1000;
                let before = data.len();
                data.extend_from_slice(&old[place(*from)..place(*to)]);
                if let (Some(edit), length @ 1..) = (edit, data.len() - before) {
                    data[before + length * *edit as usize / 1000] ^= 0x10;
                }
            }
        }
    }
    data
}

fn spelled(pieces: &[Piece]) -> Vec<(Option<onefold_fingerprint::Fingerprint>, u64)> {
    pieces.iter().map(|piece| (piece.fingerprint(), piece.length())).collect()
}

fn engines(kind: Kind) -> [Arc<Engine>; 2] {
    CHAINS.map(|chain| {
        let descriptor = Descriptor { chunker: kind, ..descriptor() };
        open(&store(&descriptor), settings(chain))
    })
}

fn predicted_bytes(engine: &Engine) -> u64 {
    engine.profile().usage(&PREDICTION).bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn m0_10_pieces_are_the_same_with_and_without_prediction(
        kind in prop_oneof![Just(Kind::default()), Just(Kind::FastCdc), Just(Kind::Rabin), Just(Kind::Fixed)],
        first in 100_000..300_000usize,
        runs in proptest::collection::vec(proptest::collection::vec(part(), 1..8), 1..6),
    ) {
        let engines = engines(kind);
        let mut streams = engines.each_ref().map(|engine| engine.stream());
        let mut data = vec![bytes(99, first)];
        for parts in runs {
            data.push(run(&parts, &data, data.len() as u64));
        }
        for run in &data {
            let [predicting, plain] = streams.each_mut().map(|stream| write(stream, run, SLICE));
            prop_assert_eq!(spelled(&predicting), spelled(&plain));
            prop_assert!(read(&engines[0], &predicting).unwrap() == *run);
            engines.iter().for_each(|engine| engine.flush().unwrap());
        }
        prop_assert_eq!(predicted_bytes(&engines[1]), 0);
    }
}

#[test]
fn m0_10_a_run_that_was_stored_is_predicted_nearly_whole() {
    for kind in [Kind::default(), Kind::FastCdc, Kind::Rabin, Kind::Fixed] {
        let [engine, _] = engines(kind);
        let data = bytes(5, 2 << 20);
        let pieces = write(&mut engine.stream(), &data, SLICE);
        engine.flush().unwrap();
        assert_eq!(predicted_bytes(&engine), 0);
        let again = write(&mut engine.stream(), &data, 512 << 10);
        assert_eq!(spelled(&again), spelled(&pieces));
        // Except the first step, a few chunks after the end of each container, and everything that is still open.
        let predicted = predicted_bytes(&engine);
        assert!(predicted > data.len() as u64 / 2, "{kind}: {predicted} of {}", data.len());
    }
}

#[test]
fn m0_10_the_end_of_an_earlier_run_is_no_boundary_within_a_later_one() {
    for kind in [Kind::default(), Kind::FastCdc, Kind::Rabin, Kind::Fixed] {
        let engines = engines(kind);
        let [long, mut short] = [bytes(1, 700_000), bytes(1, 700_000)];
        short.truncate(333_333);
        for engine in &engines {
            // The short run comes first: its last chunk ends where the long run has no boundary.
            write(&mut engine.stream(), &short, SLICE);
            engine.flush().unwrap();
        }
        let [predicting, plain] = engines.each_ref().map(|engine| write(&mut engine.stream(), &long, SLICE));
        assert_eq!(spelled(&predicting), spelled(&plain), "{kind}");
    }
}
