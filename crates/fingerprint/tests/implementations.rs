//! Tests that every implementation this machine can run gives the digests of the crates `blake3`, `sha2` and `sha1`.

use onefold_fingerprint::{Algorithm, Fingerprint, Implementation};
use proptest::prelude::*;
use sha1::Digest;
use std::sync::OnceLock;

const LONGEST_BYTES: usize = if cfg!(miri) { 2100 } else { 70_000 };

/// Returns bytes in which no block repeats.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut state = 1u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(1 << 17).flatten().collect()
    })
}

/// Computes the fingerprint with the crates.
fn reference(algorithm: Algorithm, input: &[u8]) -> Fingerprint {
    match algorithm {
        Algorithm::Blake3 => Fingerprint::from_digest(blake3::hash(input).as_bytes()),
        Algorithm::Blake3Short => Fingerprint::from_digest(&blake3::hash(input).as_bytes()[..20]),
        Algorithm::Sha256 => Fingerprint::from_digest(&sha2::Sha256::digest(input)),
        Algorithm::Sha1 => Fingerprint::from_digest(&sha1::Sha1::digest(input)),
    }
}

fn check(algorithm: Algorithm, inputs: &[&[u8]], expected: &[Fingerprint]) {
    for implementation in Implementation::available() {
        let mut found = Vec::new();
        algorithm.fingerprint_many_with(implementation, inputs, &mut found);
        assert_eq!(found.len(), inputs.len());
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(at) = wrong {
            panic!("{algorithm} with {implementation}: input {at} of {}, {} bytes", inputs.len(), inputs[at].len());
        }
    }
}

/// Tests all lengths from 0 to 70,000 in a shuffled order, in batches of growing size, each at another place in the
/// buffer.
fn all_lengths(algorithm: Algorithm) {
    let count = LONGEST_BYTES + 1;
    // A step that shares no divisor with the count (a prime that does not divide it) visits every length once.
    let step = 40_009;
    assert_ne!(count % step, 0);
    let lengths: Vec<usize> = (0..count).map(|at| at * step % count).collect();
    let mut rest = &lengths[..];
    let mut batch = 1;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(batch.min(rest.len()));
        let inputs: Vec<&[u8]> = now.iter().map(|length| &noise()[length % 613..][..*length]).collect();
        let expected: Vec<Fingerprint> = inputs.iter().map(|input| reference(algorithm, input)).collect();
        check(algorithm, &inputs, &expected);
        rest = later;
        batch += 1;
    }
}

#[test]
fn m0_3_blake3_of_all_lengths() {
    all_lengths(Algorithm::Blake3);
}

#[test]
fn m0_3_sha256_of_all_lengths() {
    all_lengths(Algorithm::Sha256);
}

#[test]
fn m0_3_sha1_of_all_lengths() {
    all_lengths(Algorithm::Sha1);
}

#[test]
fn m0_3_long_inputs_stand_among_short_ones() {
    let lengths = [0, 262_143, 262_144, 262_145, 3, 1 << 20, 1024, 1025, 65_536, 131_072, 131_073, 64, 65, 8192];
    let inputs: Vec<&[u8]> =
        lengths.iter().cycle().take(56).enumerate().map(|(at, length)| &noise()[at.min((1 << 20) - length)..][..*length]).collect();
    for algorithm in Algorithm::ALL {
        let expected: Vec<Fingerprint> = inputs.iter().map(|input| reference(algorithm, input)).collect();
        check(algorithm, &inputs, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 100 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn m0_3_batches_of_any_lengths(
        lengths in prop_oneof![
            proptest::collection::vec((0usize..1000, 0usize..if cfg!(miri) { 1500 } else { 40_000 }), 0..if cfg!(miri) { 10 } else { 100 }),
            proptest::collection::vec((0usize..1000, 0usize..300), 0..if cfg!(miri) { 10 } else { 400 }),
            proptest::collection::vec((0usize..1000, (0usize..130).prop_map(|blocks| 64 * blocks)), 0..if cfg!(miri) { 5 } else { 100 }),
        ],
    ) {
        let inputs: Vec<&[u8]> = lengths.iter().map(|(start, length)| &noise()[*start..start + length]).collect();
        for algorithm in Algorithm::ALL {
            let expected: Vec<Fingerprint> = inputs.iter().map(|input| reference(algorithm, input)).collect();
            check(algorithm, &inputs, &expected);
        }
    }
}
