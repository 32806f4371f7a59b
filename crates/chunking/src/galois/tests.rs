//! Tests that all implementations cut as the definition says.

use super::*;
use crate::testing::mixed;
use proptest::prelude::*;

/// Computes the cuts by their definition, place by place.
fn model(key: Option<&[u8; 32]>, data: &[u8], sizes: Sizes) -> Vec<usize> {
    let bits = sizes.target.ilog2();
    let zeros = Condition::new(bits - 2).older;
    let hash = &key.map_or_else(|| Hash::public(zeros), |key| Hash::keyed(key, zeros));
    let mut cuts = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let longest = (data.len() - start).min(sizes.max);
        let ends = |length: &usize| {
            let condition = Condition::new(if *length < sizes.target { bits + 2 } else { bits - 2 });
            condition.holds(hash, &data[start + length - MEMORY..start + length])
        };
        start += (sizes.min..longest).find(ends).unwrap_or(longest);
        cuts.push(start);
    }
    cuts
}

fn cut(galois: &Galois, data: &[u8]) -> Vec<usize> {
    let mut cuts = Vec::new();
    assert_eq!(galois.cut(data, true, &mut cuts), data.len());
    cuts
}

/// Returns one chunker for each implementation that this processor can run.
fn all(sizes: Sizes, key: Option<&[u8; 32]>) -> Vec<Galois> {
    let make = || key.map_or_else(|| Galois::new(sizes), |key| Galois::keyed(sizes, key)).unwrap();
    Implementation::available().map(|implementation| make().by(implementation).unwrap()).collect()
}

/// Returns a period with a place that meets the condition of `bits` bits in both windows. Repeated, it has many
/// candidates.
fn period_with_candidates(period: usize, bits: u32, seed: u64) -> Vec<u8> {
    let hash = Hash::public(Condition::new(6).older);
    let condition = Condition::new(bits.min(16));
    (seed..)
        .map(|seed| mixed_period(period, seed))
        .find(|bytes| {
            let twice: Vec<u8> = bytes.iter().copied().cycle().take(period + MEMORY).collect();
            (0..period).any(|at| condition.holds(&hash, &twice[at..at + MEMORY]))
        })
        .unwrap()
}

fn mixed_period(period: usize, seed: u64) -> Vec<u8> {
    (0..period as u64).map(|at| ((at + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn m0_2_every_implementation_cuts_by_the_definition(
        seed: u64, length in 0..40_000usize, skipped in 0..70usize, bits in 8..13u32, min in 64..256usize, max in 1024..9000usize,
        key: Option<[u8; 32]>
    ) {
        let sizes = Sizes { min, target: 1 << bits, max };
        prop_assume!(sizes.check(Kind::Galois).is_ok());
        let data = mixed(length + skipped, seed);
        // Not at the alignment of the allocation.
        let data = &data[skipped..];
        let expected = model(key.as_ref(), data, sizes);
        for galois in all(sizes, key.as_ref()) {
            prop_assert_eq!(&cut(&galois, data), &expected, "{}", galois.implementation());
        }
    }

    #[test]
    fn m0_2_all_implementations_cut_alike_at_all_targets(seed: u64, bits in 8..=22u32, key: Option<[u8; 32]>) {
        let data = mixed(3 << 20, seed);
        let mut cuts = all(Sizes::around(1 << bits), key.as_ref()).into_iter().map(|galois| cut(&galois, &data));
        let first = cuts.next().unwrap();
        prop_assert!(cuts.all(|cuts| cuts == first));
    }

    #[test]
    fn m0_2_many_candidates_are_cut_alike(period in 17..80usize, seed: u32, bits in 8..=18u32, noise in 0..50usize) {
        // Above 16 bits, the mix refuses most candidates.
        let period = period_with_candidates(period, 8, u64::from(seed));
        let mut data: Vec<u8> = period.into_iter().cycle().take(300_000).collect();
        let length = data.len();
        for at in 0..noise {
            data[(at * 7919 * (seed as usize | 1)) % length] ^= 1;
        }
        let sizes = Sizes::around(1 << bits);
        let mut cuts = all(sizes, None).into_iter().map(|galois| cut(&galois, &data));
        let first = cuts.next().unwrap();
        prop_assert!(first.len() <= length.div_ceil(sizes.min));
        prop_assert!(cuts.all(|cuts| cuts == first));
    }
}

#[test]
fn m0_2_inputs_of_every_length_are_cut_alike() {
    let data = mixed(2500, 11);
    let sizes = Sizes { min: 64, target: 256, max: 1024 };
    for length in 0..data.len() {
        let expected = model(None, &data[..length], sizes);
        for galois in all(sizes, None) {
            assert_eq!(cut(&galois, &data[..length]), expected, "{length} bytes by {}", galois.implementation());
        }
    }
}

#[test]
fn m0_2_inputs_of_a_period_that_divides_16_are_cut_at_the_maximum() {
    // `hash.rs` shows for all such windows that no hash meets a condition. This tests the whole path.
    let sizes = Sizes { min: 64, target: 256, max: 1024 };
    let galois = Galois::new(sizes).unwrap();
    let periods = (0..=255u8).map(|byte| vec![byte]).chain((0..=u16::MAX).map(|pair| pair.to_le_bytes().to_vec()));
    let longer = (0..2000u64).flat_map(|seed| [4, 8, 16].map(|period| mixed_period(period, seed)));
    for period in periods.chain(longer) {
        let data: Vec<u8> = period.iter().copied().cycle().take(2048).collect();
        assert_eq!(cut(&galois, &data), [1024, 2048], "{period:?}");
    }
}

#[test]
fn m0_2_inputs_of_other_periods_give_chunks_that_repeat() {
    let sizes = Sizes { min: 256, target: 1024, max: 4096 };
    for length in [3, 5, 7, 12, 17, 24, 32, 48, 100] {
        let period = period_with_candidates(length, 8, 1);
        let data: Vec<u8> = period.into_iter().cycle().take(1 << 20).collect();
        let cuts = cut(&Galois::new(sizes).unwrap(), &data);
        assert!(cuts.len() <= data.len().div_ceil(sizes.min));
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let chunks: std::collections::BTreeSet<&[u8]> = starts.zip(&cuts).map(|(start, end)| &data[start..*end]).collect();
        // Chunks begin at places of the period, and each place is always followed by the same chunk. The tail may
        // differ.
        assert!(chunks.len() <= length + 1, "period {length}: {} different chunks", chunks.len());
    }
}

#[test]
fn another_key_gives_other_boundaries() {
    let data = mixed(4 << 20, 9);
    let boundaries = |galois: Galois| cut(&galois, &data).into_iter().collect::<std::collections::BTreeSet<_>>();
    let sizes = Sizes::default();
    let sets = [
        boundaries(Galois::new(sizes).unwrap()),
        boundaries(Galois::keyed(sizes, &[0; 32]).unwrap()),
        boundaries(Galois::keyed(sizes, &[1; 32]).unwrap()),
    ];
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let common = sets[one].intersection(&sets[other]).count();
        // Chunks of the maximum in long runs of one byte may end at the same places.
        assert!(common < sets[one].len() / 4, "{common} of {} boundaries are the same", sets[one].len());
    }
}

#[test]
fn an_implementation_that_is_not_available_is_refused() {
    for implementation in Implementation::ALL {
        let chosen = Galois::new(Sizes::default()).unwrap().by(implementation);
        match chosen {
            Ok(galois) => assert_eq!(galois.implementation(), implementation),
            Err(error) => {
                assert!(!implementation.is_available());
                assert_eq!(error.to_string(), format!("this processor lacks the instructions of the implementation {implementation}"));
            }
        }
    }
    assert_eq!(Implementation::available().last(), Some(Implementation::Scalar));
    assert_eq!(Implementation::available().next(), Some(Implementation::best()));
}

#[test]
fn a_key_is_not_printed() {
    let text = format!("{:?}", Galois::keyed(Sizes::default(), &[0xab; 32]).unwrap());
    assert!(text.starts_with("Galois { sizes: Sizes {") && text.ends_with(".. }"), "{text}");
}

/// Small enough for Miri. Miri runs scalar code, and AVX2 code if told that it is available (CONTRIBUTING.md).
#[test]
fn m0_2_miri_cuts_by_the_definition() {
    let sizes = Sizes { min: 64, target: 256, max: 1024 };
    let data = mixed(800, 1);
    for length in [1, 64, 65, 800] {
        for galois in all(sizes, None) {
            assert_eq!(cut(&galois, &data[..length]), model(None, &data[..length], sizes), "{length} bytes by {}", galois.implementation());
        }
    }
}
