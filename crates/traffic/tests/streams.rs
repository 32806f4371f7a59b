//! The bytes of the streams: they follow from their names alone, and duplicate each other exactly as promised.

use onefold_traffic::{GENERATIONS_MAX, Model, Placement, Set, State, Trace, TrafficError, Variant, Workload};
use std::collections::HashSet;
use std::io::Read;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn model(placement: Placement) -> Model {
    Model { placement, ..Model::default() }
}

fn generations(model: Model, generation: u32, size_bytes: u64) -> Workload {
    // With this seed the first MiBs have runs of all kinds.
    Workload { set: Set::Generations(model), seed: SEED, client: 0, generation, size_bytes }
}

const SEED: u64 = 1;

fn bytes(workload: Workload) -> Vec<u8> {
    let mut out = Vec::new();
    workload.stream().unwrap().read_to_end(&mut out).unwrap();
    assert_eq!(out.len() as u64, workload.length_bytes());
    out
}

fn blocks(data: &[u8]) -> impl Iterator<Item = [u8; BLOCK]> {
    data.as_chunks::<BLOCK>().0.iter().copied()
}

#[test]
fn a_stream_is_the_same_however_it_is_read() {
    for model in [model(Placement::Block), Model { trace: Trace::Upb21S, deleted_runs: true, ..model(Placement::Floating) }] {
        let workload = generations(model, 3, 5 * MIB + 77);
        let whole = bytes(workload);
        let mut stream = workload.stream().unwrap();
        let (mut at, mut length) = (0, 1);
        while at < whole.len() {
            let mut part = vec![0; length];
            let filled = stream.fill(&mut part);
            assert_eq!(part[..filled], whole[at..at + filled]);
            assert!(filled == length || at + filled == whole.len());
            at += filled;
            length = length * 3 % 65_537 + 1;
        }
        assert_eq!(stream.fill(&mut [0]), 0);
    }
}

#[test]
fn the_bytes_of_a_workload_never_change() {
    // Published figures name seed, client and generation. These sums may change only if all figures are measured again.
    let sum = |workload: Workload| {
        let data = bytes(workload);
        data.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    };
    let of = |set, generation| sum(Workload { set, seed: 7, client: 1, generation, size_bytes: 4 * MIB });
    let floating = Model { placement: Placement::Floating, trace: Trace::Upb21S, ..Model::default() };
    let found = [
        of(Set::Generations(Model::default()), 1),
        of(Set::Generations(Model::default()), 3),
        of(Set::Generations(floating), 2),
        of(Set::Generations(Model { variant: Variant::Online2011, ..Model::default() }), 2),
        of(Set::Generations(Model { variant: Variant::Python2009, deleted_runs: true, ..Model::default() }), 2),
        of(Set::UniqueFiles, 1),
        of(Set::Fingerprints, 5),
        of(Set::DisjointBlocks, 1),
        of(Set::DuplicateBlocks, 1),
        of(Set::VmImages, 4),
        of(Set::Versions, 5),
    ];
    let expected = [
        0xc63d_50a4_4a2b_4cb9,
        0x2d15_b044_2537_6875,
        0x45a1_d674_725e_d2ef,
        0xafec_0417_fae9_677f,
        0x5983_96ea_9588_df82,
        0x6d7b_740b_1cbd_ccc7,
        0x4a04_0b2b_9569_a938,
        0x09fb_81c8_92bc_aec3,
        0x84d9_27e9_dbee_a325,
        0x4093_547e_ebc8_8d1d,
        0x5c4e_f0c9_0d43_bc2c,
    ];
    assert_eq!(found, expected, "{found:#x?}");
}

#[test]
fn c_1_what_stays_of_a_generation_keeps_its_place_in_blocks() {
    const SIZE: u64 = 32 * MIB;
    for generation in [2, 3, 4] {
        let (before, now) =
            (generations(model(Placement::Block), generation - 1, SIZE), generations(model(Placement::Block), generation, SIZE));
        let (old, new) = (bytes(before), bytes(now));
        let known: HashSet<[u8; BLOCK]> = blocks(&old).collect();
        for run in now.runs().unwrap() {
            assert!(run.offset.is_multiple_of(4096) && run.length.is_multiple_of(4096));
            let place = run.offset as usize..(run.offset + run.length) as usize;
            match run.state {
                State::Temporal => assert!(new[place.clone()] == old[place], "{run:?}"),
                State::Unique | State::Internal => assert!(blocks(&new[place]).all(|block| !known.contains(&block)), "{run:?}"),
            }
        }
    }
}

#[test]
fn what_stays_of_a_floating_generation_moves_on() {
    let model = Model { trace: Trace::Upb21S, ..model(Placement::Floating) };
    let (old, now) = (bytes(generations(model, 1, 64 * MIB)), generations(model, 2, 64 * MIB));
    let new = bytes(now);
    let mut at = 0;
    for run in now.runs().unwrap().filter(|run| run.state == State::Temporal) {
        let length = run.length as usize;
        assert!(new[run.offset as usize..][..length] == old[at..at + length], "{run:?}");
        at += length;
    }
    assert!(at > 0 && at < old.len());
}

#[test]
fn deleted_runs_are_missing() {
    for placement in [Placement::Block, Placement::Floating] {
        let model = Model { deleted_runs: true, ..model(placement) };
        let mut seen = [false; 2];
        for seed in 0..12 {
            let workload = Workload { seed, ..generations(model, 2, 8 * MIB) };
            let (old, new) = (bytes(Workload { generation: 1, ..workload }), bytes(workload));
            // Temporal runs are parts of the previous generation, in order: each stretch is found after the last one.
            let mut at = 0;
            for run in workload.runs().unwrap().filter(|run| run.state == State::Temporal) {
                let mut rest = &new[run.offset as usize..][..run.length as usize];
                while !rest.is_empty() {
                    let probe = &rest[..rest.len().min(16)];
                    let Some(found) = (at..=old.len() - probe.len()).find(|place| old[*place..].starts_with(probe)) else {
                        // So close to a deletion that the probe covers both sides of it.
                        rest = &rest[1..];
                        continue;
                    };
                    let equal = rest.iter().zip(&old[found..]).take_while(|(new, old)| new == old).count();
                    seen[0] |= found > at;
                    (at, rest) = (found + equal, &rest[equal..]);
                }
            }
            let description = workload.describe().unwrap();
            seen[1] |= description.left_out_bytes > 0;
        }
        assert_eq!(seen, [true, true], "{placement:?}");
    }
}

#[test]
fn c_1_an_ideal_deduplication_stores_just_what_is_promised() {
    for variant in [Variant::Documented, Variant::Python2009, Variant::Online2011] {
        for client in 0..2 {
            let model = Model { variant, deleted_runs: client == 1, ..Model::default() };
            let mut stored: HashSet<[u8; BLOCK]> = HashSet::new();
            for generation in 1..=4 {
                let workload = Workload { client, ..generations(model, generation, 24 * MIB) };
                let description = workload.describe().unwrap();
                let before = stored.len();
                stored.extend(blocks(&bytes(workload)));
                assert_eq!(((stored.len() - before) * BLOCK) as u64, description.new_bytes, "{variant:?} {client} {generation}");
                assert_eq!(description.new_bytes + description.within_bytes + description.earlier_bytes, description.length_bytes);
            }
        }
    }
}

#[test]
fn clients_seeds_generations_and_sets_share_nothing_else() {
    let first = generations(Model::default(), 1, 4 * MIB);
    let others = [
        first,
        Workload { client: 1, ..first },
        Workload { seed: SEED + 1, ..first },
        Workload { set: Set::UniqueFiles, ..first },
        Workload { set: Set::UniqueFiles, generation: 2, ..first },
        Workload { set: Set::DisjointBlocks, ..first },
        Workload { set: Set::DuplicateBlocks, ..first },
        Workload { set: Set::VmImages, ..first },
        Workload { set: Set::Fingerprints, ..first },
        Workload { set: Set::Versions, ..first },
    ];
    let mut words: HashSet<[u8; 8]> = HashSet::new();
    for workload in others {
        // Compares words, so that an overlap at any aligned place would show.
        let own: HashSet<[u8; 8]> = bytes(workload).as_chunks::<8>().0.iter().copied().collect();
        assert!(words.is_disjoint(&own), "{workload:?}");
        words.extend(own);
    }
}

#[test]
fn c_unique_files_have_no_duplicate() {
    let mut words: HashSet<[u8; 8]> = HashSet::new();
    for generation in 1..=3 {
        let data = bytes(Workload { set: Set::UniqueFiles, ..generations(Model::default(), generation, 4 * MIB) });
        assert!(data.as_chunks::<8>().0.iter().all(|word| words.insert(*word)));
    }
}

#[test]
fn c_blocks_are_all_different_or_the_same_within_a_file() {
    let disjoint = Workload { set: Set::DisjointBlocks, ..generations(Model::default(), 1, 16 * MIB) };
    assert_eq!(blocks(&bytes(disjoint)).collect::<HashSet<_>>().len(), 4096);
    let duplicate = Workload { set: Set::DuplicateBlocks, ..disjoint };
    let data = bytes(duplicate);
    let files: Vec<HashSet<[u8; BLOCK]>> = data.chunks(4 << 20).map(|file| blocks(file).collect()).collect();
    assert!(files.len() == 4 && files.iter().all(|file| file.len() == 1));
    assert_eq!(blocks(&data).collect::<HashSet<_>>().len(), 4);
    assert_eq!(duplicate.describe().unwrap().new_bytes, 4 * 4096);
}

#[test]
fn c_versions_share_the_tenths_they_should() {
    let mut known: HashSet<[u8; 32]> = HashSet::new();
    for generation in 1..=10 {
        let size_bytes = 2 * 5120 * 32;
        let workload = Workload { set: Set::Fingerprints, ..generations(Model::default(), generation, size_bytes) };
        let version: Vec<[u8; 32]> = workload.fingerprints().unwrap().collect();
        assert_eq!(version.len(), 10_240);
        let duplicates = version.iter().filter(|fingerprint| known.contains(*fingerprint)).count();
        assert_eq!(duplicates, 1024 * (generation as usize - 1), "version {generation}");
        assert_eq!(version.iter().collect::<HashSet<_>>().len(), 10_240);
        assert_eq!(workload.describe().unwrap().earlier_bytes, duplicates as u64 * 32);
        known.extend(version);
    }
}

#[test]
fn e2_2_versions_of_data_share_the_tenths_they_should() {
    let blocks_of_run = MIB as usize / BLOCK;
    let mut known: HashSet<[u8; BLOCK]> = HashSet::new();
    for generation in 1..=10 {
        let workload = Workload { set: Set::Versions, ..generations(Model::default(), generation, 10 * MIB) };
        let version = bytes(workload);
        let duplicates = blocks(&version).filter(|block| known.contains(block)).count();
        assert_eq!(duplicates, blocks_of_run * (generation as usize - 1), "version {generation}");
        assert_eq!(workload.describe().unwrap().new_bytes, (11 - u64::from(generation)) * MIB);
        // A run is all new or all old.
        let is_known = |run: &[u8]| blocks(run).map(|block| known.contains(&block)).collect::<HashSet<bool>>().len() == 1;
        assert!(version.chunks(MIB as usize).all(is_known), "version {generation}");
        known.extend(blocks(&version));
    }
}

#[test]
fn c_images_share_the_segments_that_the_paper_counted() {
    let mut known: HashSet<[u8; BLOCK]> = HashSet::new();
    // A hundredth of the paper's numbers.
    for (generation, all, in_all) in [(1, 5183, 5183), (2, 7332, 9214), (3, 9045, 11_891), (4, 11_449, 16_165)] {
        let workload = Workload { set: Set::VmImages, ..generations(Model::default(), generation, 5183 * 4096) };
        let data = bytes(workload);
        assert!(data.len().abs_diff(all * BLOCK) <= 2 * BLOCK, "{}", data.len() / BLOCK);
        known.extend(blocks(&data));
        assert!(known.len().abs_diff(in_all) <= 4, "{generation}: {}", known.len());
    }
}

#[test]
fn late_generations_are_made_without_those_before() {
    let data = bytes(generations(Model::default(), GENERATIONS_MAX, MIB));
    assert_ne!(data, bytes(generations(Model::default(), 1, MIB)));
}

#[test]
fn what_a_set_does_not_have_is_refused() {
    let workload = generations(Model::default(), 0, MIB);
    assert_eq!(workload.describe().unwrap_err(), TrafficError::Generation { generation: 0, last: GENERATIONS_MAX });
    let refused = |workload: Workload| workload.stream().expect_err("it is refused").to_string();
    assert!(refused(Workload { generation: GENERATIONS_MAX + 1, ..workload }).contains("1 to 1000"));
    assert!(refused(Workload { set: Set::Fingerprints, generation: 11, ..workload }).contains("1 to 10"));
    assert!(refused(Workload { set: Set::Versions, generation: 11, ..workload }).contains("1 to 10"));
    assert!(refused(Workload { set: Set::VmImages, generation: 5, ..workload }).contains("1 to 4"));
    assert!(refused(Workload { generation: 1, size_bytes: 0, ..workload }).contains("at least 1"));
    assert!(refused(Workload { generation: 1, size_bytes: u64::MAX, ..workload }).contains("at most 1EiB"));
    assert!(refused(Workload { set: Set::Fingerprints, generation: 1, size_bytes: 33, ..workload }).contains("multiple of 32"));
    assert!(refused(Workload { set: Set::VmImages, generation: 1, size_bytes: 4095, ..workload }).contains("at least 4096"));
}
