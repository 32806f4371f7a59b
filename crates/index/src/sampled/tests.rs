//! Hooks against a model, and snapshots against damage.

use super::table::{BUCKET_BYTES, HOOKS_IN_BUCKET, Key};
use super::{Found, Hooks};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Access, Ground, SimulatedGround};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn name(number: u64) -> Fingerprint {
    // SplitMix64: well mixed, and cheap.
    let mix = |number: u64| {
        let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let mut digest = [0; 32];
    for (at, part) in digest.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&mix(number * 4 + at as u64 + 1).to_be_bytes());
    }
    Fingerprint::from_digest(&digest)
}

fn names(container: u32, count: u64) -> Vec<Fingerprint> {
    (0..count).map(|number| name(u64::from(container) << 20 | number)).collect()
}

fn containers(hooks: &Hooks, name: Fingerprint) -> Vec<u32> {
    let mut found = Vec::new();
    hooks.find(&[name], &mut found);
    found.into_iter().map(|found| found.container).collect()
}

/// Returns whether a hook of one of these chunks leads to the container.
fn is_reached(hooks: &Hooks, container: u32, names: &[Fingerprint]) -> bool {
    let mut found = Vec::new();
    hooks.find(names, &mut found);
    found.iter().any(|found| found.container == container)
}

#[test]
fn m3_4_a_store_that_fits_finds_every_chunk() {
    let hooks = Hooks::new(1 << 20);
    for container in 1..=100 {
        assert!(hooks.add(container, &names(container, 500)));
    }
    let statistics = hooks.statistics();
    assert_eq!((statistics.rate_log2, statistics.forced), (Some(0), 100));
    let wanted: Vec<_> = (1..=100).flat_map(|container| names(container, 500)).collect();
    let mut found = Vec::new();
    hooks.find(&wanted, &mut found);
    let found: HashSet<(usize, u32)> = found.into_iter().map(|Found { at, container }| (at, container)).collect();
    assert!((0..wanted.len()).all(|at| found.contains(&(at, 1 + at as u32 / 500))));
}

#[test]
fn m3_4_before_the_first_doubling_a_hook_takes_less_than_seven_bytes() {
    let hooks = Hooks::new(4 << 20);
    let mut container = 0;
    let mut full = hooks.statistics();
    while hooks.statistics().rate_log2 == Some(0) {
        full = hooks.statistics();
        container += 1;
        hooks.add(container, &names(container, 100));
    }
    assert!(full.hooks * 7 > full.memory_bytes, "{full:?}");
}

#[test]
fn m3_5_the_sample_shrinks_while_the_store_grows_and_every_container_keeps_a_hook() {
    let hooks = Hooks::new(256 << 10);
    let places = (256u64 << 10) / BUCKET_BYTES as u64 * HOOKS_IN_BUCKET as u64;
    let mut rates = vec![0];
    for container in 1..=20_000u32 {
        assert!(hooks.add(container, &names(container, 100)), "container {container}");
        let statistics = hooks.statistics();
        let rate = statistics.rate_log2.unwrap();
        if rates.last() != Some(&rate) {
            assert_eq!(rate, rates.last().unwrap() + 1, "T doubles");
            // What the sample would have with the rate before would not fit, as near as chance lets it.
            assert!((u64::from(container) * 100) >> (rate - 1) > places * 8 / 10, "container {container}, rate {rate}");
            rates.push(rate);
        }
        assert!(statistics.hooks <= places);
    }
    assert!(rates.len() > 6, "{rates:?}");
    assert_eq!(hooks.statistics().forced, 20_000);
    for container in 1..=20_000 {
        assert!(is_reached(&hooks, container, &names(container, 100)), "container {container}");
    }
    // Memory stays full of hooks between two doublings.
    assert!(hooks.statistics().hooks > places * 9 / 10);
}

#[test]
fn m3_5_when_memory_has_only_forced_hooks_the_next_container_has_none() {
    let hooks = Hooks::new(64 << 10);
    let enough = (1..).find(|containers| Hooks::minimum_bytes(*containers) > 64 << 10).unwrap() as u32;
    for container in 1..enough {
        assert!(hooks.add(container, &names(container, 10)), "container {container} of {enough}");
    }
    let refused = (enough..2 * enough).find(|container| !hooks.add(*container, &names(*container, 10))).unwrap();
    assert!(refused < enough + enough / 8, "{refused} of {enough}");
    assert!(hooks.statistics().rate_log2.is_none_or(|rate| rate > 2));
    assert!((1..refused).all(|container| is_reached(&hooks, container, &names(container, 10))));
}

#[test]
fn m3_4_hooks_that_lead_astray_are_few() {
    let hooks = Hooks::new(1 << 20);
    for container in 1..=40_000 {
        hooks.add(container, &names(container, 500));
    }
    assert_eq!(hooks.statistics().rate_log2, Some(8));
    let mut found = Vec::new();
    let strange: Vec<_> = (0..200_000).map(|number| name(u64::MAX / 8 + number)).collect();
    hooks.find(&strange, &mut found);
    assert!(found.len() < strange.len() / 500, "{} of {}", found.len(), strange.len());
}

#[test]
fn m3_4_a_chunk_that_many_containers_have_leads_to_the_newest_few() {
    let hooks = Hooks::new(1 << 16);
    for container in 1..=9 {
        hooks.add(container, &[name(7)]);
    }
    assert_eq!(containers(&hooks, name(7)), [9, 8, 7, 6]);
    hooks.remove(8, &[name(7), name(8)]);
    assert_eq!(containers(&hooks, name(7)), [9, 7, 6, 5]);
    assert!(!hooks.add(10, &[]));
}

/// What happens to hooks.
#[derive(Clone, Debug)]
enum Step {
    Add(u32),
    Remove(u32),
    SaveAndRead,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![6 => (1..200u32).prop_map(Step::Add), 2 => (1..200u32).prop_map(Step::Remove), 1 => Just(Step::SaveAndRead)];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The model is the set of containers. Everything in the sample is found, and each container has a hook.
    #[test]
    fn m3_4_hooks_are_what_was_added_and_is_in_the_sample(steps in steps(), buckets in 30usize..90) {
        let memory_bytes = buckets * BUCKET_BYTES;
        let ground = SimulatedGround::new(1);
        let mut hooks = Hooks::new(memory_bytes);
        let mut there: HashSet<u32> = HashSet::new();
        let mut has_refused = false;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Add(container) => {
                    let is_kept = hooks.add(container, &names(container, 20));
                    has_refused |= !is_kept;
                    if is_kept {
                        there.insert(container);
                    }
                }
                Step::Remove(container) => {
                    hooks.remove(container, &names(container, 20));
                    there.remove(&container);
                }
                Step::SaveAndRead => {
                    let path = format!("hooks-{number}");
                    let file = ground.create(&path).unwrap();
                    prop_assert!(hooks.save(&*file, number as u64, &[5], &|| true).unwrap());
                    let again = Hooks::new(memory_bytes);
                    let mut read = again.read_snapshot(ground.open(&path, Access::Read).unwrap(), 1).unwrap();
                    prop_assert_eq!(read.covered(), &[5]);
                    while read.step().unwrap() {}
                    prop_assert_eq!(again.statistics(), hooks.statistics());
                    hooks = again;
                }
            }
            let statistics = hooks.statistics();
            prop_assert!(statistics.hooks <= (buckets * HOOKS_IN_BUCKET) as u64);
            let mut of: HashMap<u32, u64> = HashMap::new();
            for container in 1..200 {
                for name in names(container, 20) {
                    let found = containers(&hooks, name);
                    prop_assert!(found.is_sorted_by(|a, b| a >= b));
                    if found.contains(&container) {
                        *of.entry(container).or_default() += 1;
                    } else if !has_refused && there.contains(&container) {
                        let rate = statistics.rate_log2.unwrap_or(u32::MAX);
                        prop_assert!(Key::of(&name, buckets).zeros() < rate, "a hook of the sample is missing");
                    }
                }
            }
            if !has_refused {
                prop_assert!(there.iter().all(|container| of.contains_key(container)));
                prop_assert_eq!(statistics.forced, there.len() as u64);
            }
        }
    }
}

#[test]
fn m3_5_a_snapshot_that_is_written_beside_additions_has_a_hook_of_every_container() {
    let ground = SimulatedGround::new(1);
    let hooks = Hooks::new(1 << 20);
    // Nearly full, so that additions move hooks.
    for container in 1..=1450 {
        hooks.add(container, &names(container, 100));
    }
    assert_eq!(hooks.statistics().rate_log2, Some(0));
    let file = ground.create("hooks").unwrap();
    let next = std::cell::Cell::new(1451);
    let more = || {
        hooks.add(next.get(), &names(next.get(), 100));
        next.set(next.get() + 1);
        true
    };
    hooks.save(&*file, 1, &[1451], &more).unwrap();
    assert!(next.get() > 1460);
    assert_eq!(hooks.statistics().rate_log2, Some(0), "nothing was replaced");
    let again = Hooks::new(1 << 20);
    let mut read = again.read_snapshot(ground.open("hooks", Access::Read).unwrap(), 1).unwrap();
    // Those of containers numbered later come while it is read.
    for container in 1451..next.get() {
        again.add(container, &names(container, 100));
    }
    while read.step().unwrap() {}
    let mut missing = 0;
    for container in 1..next.get() {
        let names = names(container, 100);
        assert!(is_reached(&again, container, &names), "container {container}");
        missing += names.iter().filter(|name| !containers(&again, **name).contains(&container)).count();
    }
    // Those that came while it was written are in it or not, and were added again: they may be there twice.
    let twice = again.statistics().forced - hooks.statistics().forced;
    assert!(twice <= u64::from(next.get() - 1451), "{twice}");
    assert!(missing < 1000, "{missing} of {} hooks moved and are missing", next.get() * 100);
}

#[test]
fn m3_5_a_damaged_snapshot_costs_what_is_damaged() {
    let ground = SimulatedGround::new(1);
    let hooks = Hooks::new(1 << 20);
    (1..=1000).for_each(|container| assert!(hooks.add(container, &names(container, 100))));
    let file = ground.create("hooks").unwrap();
    hooks.save(&*file, 9, &[7, 8], &|| true).unwrap();
    let open = || ground.open("hooks", Access::Read).unwrap();
    let message = |found: Result<super::HooksRead<'_>, String>| found.err().unwrap();
    assert_eq!(message(Hooks::new(1 << 19).read_snapshot(open(), 2)), "it was made with 1048576 bytes of memory for hooks");
    assert!(message(Hooks::new(1 << 20).read_snapshot(open(), 1)).contains("checksum"));
    // A block of it: the others count.
    file.write_at(3 << 16, b"damage").unwrap();
    let again = Hooks::new(1 << 20);
    let mut read = again.read_snapshot(open(), 2).unwrap();
    let mut wrong = Vec::new();
    loop {
        match read.step() {
            Ok(true) => {}
            Ok(false) => break,
            Err(why) => wrong.push(why),
        }
    }
    assert_eq!(wrong, ["the hooks at byte 196608 are lost: the checksum is wrong"]);
    let (before, after) = (hooks.statistics().hooks, again.statistics().hooks);
    assert!(after < before && after > before * 9 / 10, "{after} of {before}");
    // Its beginning, and its end.
    file.write_at(9, &[0xff]).unwrap();
    assert_eq!(message(Hooks::new(1 << 20).read_snapshot(open(), 2)), "the checksum of its beginning is wrong");
    file.write_at(0, b"something").unwrap();
    assert!(message(Hooks::new(1 << 20).read_snapshot(open(), 2)).contains("does not begin"));
    file.set_len(20).unwrap();
    assert_eq!(message(Hooks::new(1 << 20).read_snapshot(open(), 2)), "it has only 20 bytes");
}
