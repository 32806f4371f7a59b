//! Merged containers against the model: what is read, what is refused, concurrent readers, and damage.

mod common;

use common::merges::*;
use common::*;
use onefold_fingerprint::Algorithm;
use onefold_ground::{Access, CrashPolicy, Ground, LocalGround, SimulatedGround};
use onefold_storage::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

fn small() -> StorageOptions {
    StorageOptions { container_bytes: 8 << 10, frame_bytes: 1 << 10, ..options() }
}

fn without_caches() -> StorageOptions {
    StorageOptions { frame_cache_bytes: 0, catalog_cache_bytes: 0, ..small() }
}

/// Frames of several chunks each.
fn large_frames() -> StorageOptions {
    StorageOptions { container_bytes: 48 << 10, frame_bytes: 8 << 10, compression: Compression::None, ..without_caches() }
}

fn start() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    ContainerStore::create(&ground, DIRECTORY, 2).unwrap();
    ground
}

/// Writes some sealed containers of partition 0. Every `step`th of their chunks is dead.
fn written(ground: &SimulatedGround, step: usize) -> (World, Vec<ContainerId>) {
    written_with(ground, step, &without_caches())
}

fn written_with(ground: &SimulatedGround, step: usize, options: &StorageOptions) -> (World, Vec<ContainerId>) {
    let mut world = World::open(ground, Model::default(), options, Access::ReadWrite).unwrap();
    for _ in 0..16 {
        world.write(&[700, 1900, 2500, 0, 900]).unwrap();
    }
    // How many chunks fit into a container depends on which frames are already compressed.
    for _ in 0..128 {
        if world.sealed().len() >= 4 {
            break;
        }
        world.write(&[700, 1900, 2500, 0, 900]).unwrap();
    }
    let victims = world.sealed();
    assert!(victims.len() >= 4);
    let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(step).collect();
    world.forget(&dead);
    (world, victims)
}

#[test]
fn frames_of_which_all_is_needed_are_copied_as_they_are() {
    for compression in [Compression::None, Compression::Zstd(1)] {
        let options = StorageOptions { compression, ..large_frames() };
        let ground = start();
        let (mut world, mut victims) = written_with(&ground, 40, &options);
        for round in 0..8 {
            // In the order of the files, as the engine does if it knows nothing else.
            let mut live = world.live_of(&victims);
            live.sort_by_key(|(address, _)| *address);
            let frames = victims.iter().flat_map(|id| world.store.catalog(*id).unwrap().frames.clone());
            let before: BTreeSet<u64> = frames.map(|frame| frame.checksum).collect();
            let merge = world.store.merge(&victims, &live).unwrap();
            let merged = merge.container().unwrap();
            let frames = world.store.catalog(merged).unwrap().frames.clone();
            let kept = frames.iter().filter(|frame| before.contains(&frame.checksum)).count();
            // A dead chunk costs its frame, and also the next frame if too little is left.
            assert!(2 * kept > before.len(), "{round}: {kept} of {} in {}", before.len(), frames.len());
            assert!(round > 0 || kept < before.len(), "{kept}");
            // This holds however often they are merged.
            assert!(frames.iter().all(|frame| frame.raw_bytes <= options.frame_bytes * 3 / 2), "{frames:?}");
            world.log_merge(&victims, &live, merge);
            world.check(&ground);
            victims = vec![merged];
            let next = world.needed_of(merged)[5 * round];
            world.forget(&[next]);
        }
    }
}

#[test]
fn frames_stay_as_large_as_their_writers_made_them() {
    let options = StorageOptions {
        container_bytes: 96 << 10,
        frame_bytes: 2 << 10,
        compression: Compression::Lz4,
        sequential_frame_bytes: 16 << 10,
        sequential_compression: Compression::Zstd(2),
        ..without_caches()
    };
    let ground = start();
    let mut world = World::open(&ground, Model::default(), &options, Access::ReadWrite).unwrap();
    world.write_with(|store| store.writer(), &[700; 600]).unwrap();
    world.write_with(|store| store.writer().sequential(), &[700; 1200]).unwrap();
    let codecs = |catalog: &Catalog| catalog.frames.iter().map(|frame| (frame.codec, frame.raw_bytes)).collect::<Vec<_>>();
    let is_as_written = |(codec, raw_bytes): &(Codec, u32)| match codec {
        Codec::Lz4 => *raw_bytes < 4 << 10,
        Codec::Zstd => *raw_bytes >= 4 << 10,
        _ => true,
    };
    let mut victims = world.sealed();
    assert!(victims.len() >= 2);
    for round in 0..3 {
        // From both ends, so that small frames meet large ones.
        let dead: Vec<_> = victims.iter().flat_map(|victim| world.needed_of(*victim)).step_by(7 + round).collect();
        world.forget(&dead);
        let mut live = world.live_of(&victims);
        live.sort_by_key(|(address, _)| *address);
        let merge = world.store.merge(&victims, &live).unwrap();
        let merged = merge.container().unwrap();
        let frames = codecs(&world.store.catalog(merged).unwrap());
        // Remainders, where the kind changes, may go with their neighbours.
        let other = frames.iter().filter(|frame| !is_as_written(frame)).count();
        let of = |codec| frames.iter().filter(|(found, _)| *found == codec).count();
        assert!(other <= 2 && of(Codec::Lz4) > 10 && of(Codec::Zstd) > 10, "{frames:?}");
        world.log_merge(&victims, &live, merge);
        world.check(&ground);
        victims = vec![merged];
    }
}

#[test]
fn rot_in_a_frame_that_is_copied_as_it_is_names_a_chunk_and_stops_the_merge() {
    let ground = start();
    let (world, victims) = written_with(&ground, 40, &large_frames());
    let mut live = world.live_of(&victims);
    live.sort_by_key(|(address, _)| *address);
    let catalog = world.store.catalog(victims[1]).unwrap();
    assert!(catalog.frames.len() >= 4);
    for frame in &catalog.frames {
        let rotten = ground.snapshot(CrashPolicy::KeepAll);
        rotten.corrupt(&path(victims[1]), u64::from(frame.offset_bytes), 1).unwrap();
        let world = World::open(&rotten, world.model.clone(), &without_caches(), Access::ReadWrite).unwrap();
        let is_needed = live.iter().any(|(address, _)| {
            address.container() == victims[1] && usize::from(catalog.slots[usize::from(address.slot())].frame) == frame.number as usize
        });
        match world.store.merge(&victims, &live) {
            Ok(merge) => {
                assert!(!is_needed);
                world.store.abandon_merge(merge);
            }
            Err(StorageError::Damaged { container, frame: Some(number), why, .. }) => {
                assert!(is_needed && container == victims[1] && number == frame.number && why.starts_with("chunk "), "{why}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Forget { seed: u64, per_cent: u64 },
    Merge { seed: u64, count: usize, abandon: bool },
    Trim,
    Reopen,
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![5 => 0..3000usize, 1 => 3000..20_000usize, 1 => Just(0)];
    prop_oneof![
        8 => proptest::collection::vec(length, 1..10).prop_map(Step::Write),
        3 => (any::<u64>(), 0..=100u64).prop_map(|(seed, per_cent)| Step::Forget { seed, per_cent }),
        6 => (any::<u64>(), 1..6usize, proptest::bool::weighted(0.1)).prop_map(|(seed, count, abandon)| Step::Merge { seed, count, abandon }),
        1 => Just(Step::Trim),
        1 => Just(Step::Reopen),
        2 => Just(Step::Check),
    ]
}

/// Returns the same choice for the same seed.
fn chosen(seed: u64, number: u64) -> u64 {
    (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 33
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn m0_20_whatever_is_merged_addresses_stay_valid(
        steps in proptest::collection::vec(step(), 1..60),
        compression in prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd(1))],
        frame_bytes in 512..6000u32,
        container_bytes in 4096..30_000u32,
        algorithm in prop_oneof![Just(Algorithm::Sha1), Just(Algorithm::Blake3)],
        cache_bytes in 0..20_000usize,
    ) {
        let options = StorageOptions {
            container_bytes, frame_bytes, compression, fingerprint: algorithm,
            frame_cache_bytes: cache_bytes, catalog_cache_bytes: cache_bytes, ..options()
        };
        let ground = start();
        let mut world = World::open(&ground, Model::default(), &options, Access::ReadWrite).unwrap();
        for step in steps {
            match step {
                Step::Write(lengths) => world.write(&lengths).unwrap(),
                Step::Forget { seed, per_cent } => {
                    let is_dead = |address: &Address| chosen(seed, address.bits()) % 100 < per_cent;
                    let dead: Vec<_> = world.model.needed.keys().copied().filter(is_dead).collect();
                    world.forget(&dead);
                }
                Step::Merge { seed, count, abandon } => {
                    let mut victims = world.sealed();
                    victims.sort_by_key(|victim| chosen(seed, victim.bits()));
                    victims.truncate(count);
                    if victims.is_empty() {
                        continue;
                    }
                    let live = world.live_of(&victims);
                    let files = world.store.count_files().unwrap();
                    let merge = world.store.merge(&victims, &live).unwrap();
                    prop_assert_eq!(merge.statistics.chunks_after, live.len() as u64);
                    prop_assert_eq!(merge.statistics.files_before.containers, victims.len() as u64);
                    let expected = files.changed(&merge.statistics.files_before, &merge.statistics.files_after);
                    prop_assert_eq!(merge.container().is_some(), !live.is_empty());
                    if abandon {
                        world.store.abandon_merge(merge);
                    } else {
                        world.log_merge(&victims, &live, merge);
                        prop_assert_eq!(world.store.count_files().unwrap(), expected);
                    }
                }
                Step::Trim => world.trim(),
                Step::Reopen => {
                    let model = world.model.clone();
                    drop(world);
                    world = World::open(&ground, model, &options, Access::ReadWrite).unwrap();
                }
                Step::Check => world.check(&ground),
            }
        }
        world.check(&ground);
    }
}

#[test]
fn m0_20_addresses_stay_valid_when_merged_containers_are_merged_again_and_after_each_restart() {
    let ground = start();
    let (mut world, mut victims) = written(&ground, 3);
    for round in 0..3 {
        world.merge(&victims).unwrap();
        world.check(&ground);
        // The next process has nothing but the files: the log has forgotten the merge.
        world.trim();
        let model = world.model.clone();
        drop(world);
        world = World::open(&ground, model, &without_caches(), Access::ReadWrite).unwrap();
        world.check(&ground);
        let merged = *world.model.forwards.values().next_back().unwrap();
        // A list of its slots names the chunks as recipes do.
        let listed: Vec<_> = world.store.slots(merged).unwrap().into_iter().map(|(address, _)| address).collect();
        assert!(world.needed_of(merged).iter().all(|needed| listed.contains(needed)));
        let dead: Vec<_> = world.needed_of(merged).into_iter().skip(round).step_by(4).collect();
        world.forget(&dead);
        let other = world.sealed().into_iter().find(|id| *id != merged);
        victims = std::iter::once(merged).chain(other).collect();
    }
    assert!(world.model.forwards.len() >= 4 && !world.model.needed.is_empty());
}

#[test]
fn m0_20_chunks_lie_in_the_order_given_with_their_kinds_and_the_figures_are_right() {
    let ground = start();
    let (mut world, victims) = written(&ground, 3);
    let before: Vec<_> = victims.iter().map(|victim| world.store.verify_container(*victim, false, None).unwrap()).collect();
    let slots: Vec<_> = victims.iter().flat_map(|victim| world.store.slots(*victim).unwrap()).collect();
    let mut live = world.live_of(&victims);
    live.reverse();
    let files = world.store.count_files().unwrap();
    let merge = world.store.merge(&victims, &live).unwrap();
    let target = merge.container().unwrap();
    // It is not known before the log has it.
    assert!(!world.store.containers().unwrap().contains(target) && world.store.container_of(victims[0]).unwrap() == victims[0]);
    let statistics = world.log_merge(&victims, &live, merge);
    world.check(&ground);
    let merged = world.store.slots(victims[1]).unwrap();
    assert_eq!(merged, world.store.slots(target).unwrap());
    assert_eq!(merged.iter().map(|(address, slot)| (*address, slot.fingerprint)).collect::<Vec<_>>(), live);
    for (address, slot) in &merged {
        let (_, old) = slots.iter().find(|(old, _)| old == address).unwrap();
        assert_eq!((slot.kind, slot.length_bytes), (old.kind, old.length_bytes));
    }
    let after = world.store.verify_container(target, true, None).unwrap();
    let expected = MergeStatistics {
        files_before: statistics.files_before,
        files_after: statistics.files_after,
        chunks_before: before.iter().map(|report| report.chunks).sum(),
        chunks_after: live.len() as u64,
        raw_bytes_before: before.iter().map(|report| report.raw_bytes).sum(),
        raw_bytes_after: live.iter().map(|(address, _)| world.model.needed[address].1.len() as u64).sum(),
        stored_bytes_before: before.iter().map(|report| report.stored_bytes).sum(),
        stored_bytes_after: after.stored_bytes,
    };
    assert_eq!(statistics, expected);
    assert_eq!(files.changed(&statistics.files_before, &statistics.files_after), world.store.count_files().unwrap());
    assert_eq!((after.chunks, after.raw_bytes), (expected.chunks_after, expected.raw_bytes_after));
    assert!(after.frames <= after.raw_bytes / 1024 + 1, "frames are as full as others");
}

#[test]
fn m0_20_what_cannot_be_merged_is_refused_and_changes_nothing() {
    let ground = start();
    let (mut world, victims) = written(&ground, 2);
    let live = world.live_of(&victims[..2]);
    let operations = ground.operations();
    let open: Vec<_> = world.store.containers().unwrap().iter().filter(|id| !world.store.is_sealed(*id)).collect();
    let elsewhere = world.model.files.iter().copied().find(|id| id.partition() == 1).unwrap();
    let twice: Vec<_> = live.iter().chain(&live[..1]).copied().collect();
    let too_many = vec![live[0]; MAX_SLOTS + 1];
    for (victims, live, why) in [
        (&[][..], &[][..], "no container was given"),
        (&[victims[0], victims[0]], &live, "is named twice"),
        (&[victims[0], elsewhere], &live, "different partitions"),
        (&open[..1], &[], "is not sealed"),
        (&victims[2..3], &live, "in none of them"),
        (&victims[..2], &twice, "live twice"),
        (&victims[..2], &too_many, "at most 65535"),
    ] {
        match world.store.merge(victims, live) {
            Err(error @ StorageError::Merge { .. }) => assert!(error.to_string().contains(why), "{why}: {error}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    let wrong = (live[0].0, live[1].1);
    assert!(world.store.merge(&victims[..2], &[wrong]).unwrap_err().is_damage(), "another chunk's name");
    assert_eq!(ground.operations(), operations);
    let merge = world.store.merge(&victims[..2], &live).unwrap();
    assert!(matches!(world.store.merge(&victims[1..3], &[]), Err(StorageError::Merge { .. })), "in a merge");
    world.log_merge(&victims[..2], &live, merge);
    assert!(matches!(world.store.merge(&victims[1..3], &[]), Err(StorageError::Merge { .. })), "merged before");
    world.check(&ground);
}

#[test]
fn m0_20_merged_containers_of_several_windows_are_right() {
    let ground = start();
    let options = StorageOptions { container_bytes: 8 << 20, frame_bytes: 64 << 10, ..small() };
    let mut world = World::open(&ground, Model::default(), &options, Access::ReadWrite).unwrap();
    for _ in 0..14 {
        world.write(&[1 << 20, 900_000, 3 << 20]).unwrap();
    }
    let victims = world.sealed();
    let raw_bytes = world.merge(&victims).unwrap().raw_bytes_after;
    assert!(raw_bytes > 20 << 20, "{raw_bytes}");
    world.check(&ground);
}

#[test]
fn m0_20_a_damaged_live_chunk_is_named_and_its_container_stays() {
    let ground = start();
    let (mut world, victims) = written(&ground, 40);
    let live = world.live_of(&victims);
    // Two frames: not all of their chunks are dead.
    let damage = || [200, 6000].into_iter().for_each(|offset| ground.corrupt(&path(victims[1]), offset, 1).unwrap());
    damage();
    let files_before = files(&ground);
    let error = world.store.merge(&victims, &live).unwrap_err();
    let text = error.to_string();
    assert!(error.is_damage() && text.contains(&victims[1].to_string()), "{error}");
    assert!(live.iter().any(|(address, fingerprint)| text.contains(&format!("chunk {fingerprint} at {address}"))), "{error}");
    assert_eq!(files(&ground), files_before);
    let others = [victims[0], victims[2]];
    world.merge(&others).unwrap();
    damage();
    world.check(&ground);
    world.merge(&victims[1..2]).unwrap();
    world.check(&ground);
}

#[test]
fn m0_20_a_damaged_forward_is_found_and_never_leads_to_wrong_bytes() {
    let ground = start();
    let (mut world, victims) = written(&ground, 2);
    world.merge(&victims[..2]).unwrap();
    world.merge(&victims[2..4]).unwrap();
    let model = world.model.clone();
    drop(world);
    let forward = |id: ContainerId| format!("{}.forward", path(id));
    let (address, (fingerprint, _)) = model.needed.iter().find(|(address, _)| address.container() == victims[0]).unwrap();
    // The log no longer says anything of them, and nothing of them is in memory.
    let mut later = model.clone();
    later.log.trim(None);
    for change in 0..FORWARD_BYTES as u64 + 4 {
        let ground = ground.snapshot(CrashPolicy::KeepAll);
        match change.checked_sub(FORWARD_BYTES as u64) {
            None => ground.corrupt(&forward(victims[0]), change, 1 << (change % 8)).unwrap(),
            Some(0) => ground.open(&forward(victims[0]), Access::ReadWrite).unwrap().set_len(511).unwrap(),
            Some(1) => ground.open(&forward(victims[0]), Access::ReadWrite).unwrap().write_at(512, &[0]).unwrap(),
            Some(2) => ground.remove(&forward(victims[0])).unwrap(),
            _ => ground.rename(&forward(victims[2]), &forward(victims[0])).unwrap(),
        }
        let store = World::open(&ground, later.clone(), &without_caches(), Access::Read).unwrap().store;
        assert!(store.verify_forward(victims[0]).unwrap_err().is_damage(), "{change}");
        assert!(store.load(&[(*address, *fingerprint)], &mut Vec::new()).unwrap_err().is_damage(), "{change}");
    }
    // A forward that leads to a container that has nothing of it, or that is not there.
    for target in [model.forwards[&victims[2]], ContainerId::new(0, 4000)] {
        let ground = ground.snapshot(CrashPolicy::KeepAll);
        let bytes = Forward { container: victims[0], target, store: options().store }.encode();
        ground.open(&forward(victims[0]), Access::ReadWrite).unwrap().write_at(0, &bytes).unwrap();
        let store = World::open(&ground, later.clone(), &without_caches(), Access::Read).unwrap().store;
        assert!(store.verify_forward(victims[0]).unwrap_err().is_damage());
        assert!(store.load(&[(*address, *fingerprint)], &mut Vec::new()).unwrap_err().is_damage());
    }
    // If the last record in the log does not say that the merge was finished, a damaged forward is rewritten.
    ground.corrupt(&forward(victims[2]), 30, 1).unwrap();
    World::open(&ground, model.clone(), &without_caches(), Access::ReadWrite).unwrap().check(&ground);
}

#[test]
fn m0_20_numbers_of_removed_containers_are_not_given_out_again() {
    let ground = start();
    let mut model = Model::default();
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let mut world = World::open(&ground, model, &small(), Access::ReadWrite).unwrap();
        for _ in 0..16 {
            world.write(&[700, 1900, 2500]).unwrap();
        }
        let victims = world.sealed();
        for victim in &victims {
            assert!(seen.insert(*victim), "{victim} was given out twice");
        }
        world.forget(&world.model.needed.keys().copied().collect::<Vec<_>>());
        world.merge(&victims).unwrap();
        world.check(&ground);
        model = world.model.clone();
        // The log has forgotten them, and the open containers are gone with it.
        model.log.batches.clear();
        model.files.clear();
        drop(world);
        for (path, _, _) in files(&ground) {
            ground.remove(&path).unwrap();
        }
    }
    assert!(seen.len() > 10);
}

/// Readers of all kinds, and a writer, run beside merge after merge: none ever meets an error or wrong bytes.
fn readers_beside_merges(ground: std::sync::Arc<dyn Ground>, options: &StorageOptions, rounds: usize) {
    ContainerStore::create(&*ground, DIRECTORY, 2).unwrap();
    let mut log = Log::default();
    let store = open(ground.clone(), &log, 2, options, Access::ReadWrite).unwrap();
    let (mut needed, mut next_name) = (Chunks::new(), 0);
    for _ in 0..30 {
        append_noise(&mut store.writer(), &mut next_name, &[700, 1900, 2500, 300], &mut needed).unwrap();
        flush(&store, &mut log, Scope::Everything).unwrap();
    }
    // All other chunks there die.
    needed.retain(|address, _| address.slot() % 2 == 0);
    // The others get more chunks from the writer.
    let homes: BTreeSet<ContainerId> = needed.keys().map(|address| address.container()).filter(|id| store.is_sealed(*id)).collect();
    let homes: Vec<ContainerId> = homes.into_iter().collect();
    let (done, read, log, added) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(log), Mutex::new(Chunks::new()));
    std::thread::scope(|scope| {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _over = Over(&done);
        let reader = |reader: usize| {
            let (store, needed, homes, done, read) = (&store, &needed, &homes, &done, &read);
            scope.spawn(move || {
                let mut at = reader;
                while !done.load(Relaxed) {
                    check(store, needed);
                    let home = homes[at % homes.len()];
                    at += 1;
                    assert!(store.catalog(home).unwrap().slots.len() <= MAX_SLOTS);
                    let slots = store.slots(home).unwrap();
                    assert!(needed.keys().filter(|address| address.container() == home).all(|of| slots.iter().any(|(slot, _)| slot == of)));
                    assert!(store.verify_container(home, true, None).unwrap().damage.is_empty());
                    store.container_of(home).unwrap();
                    read.fetch_add(1, Relaxed);
                }
            })
        };
        let readers = [reader(0), reader(1), reader(2)];
        let short_reads = scope.spawn(|| {
            let mut slices = Vec::new();
            while !done.load(Relaxed) {
                for (address, (fingerprint, bytes)) in &needed {
                    slices.clear();
                    store.load_short(&[(*address, *fingerprint)], &mut slices).unwrap();
                    assert!(slices[0][..] == bytes[..]);
                }
            }
        });
        scope.spawn(|| {
            let (mut writer, mut chunks) = (store.writer(), Chunks::new());
            while !done.load(Relaxed) {
                append(&mut writer, &mut next_name, &[900, 100, 3000], &mut chunks).unwrap();
                let mut log = log.lock();
                flush(&store, &mut log, Scope::Everything).unwrap();
                let point = store.trim_point(log.end());
                log.trim(Some(point));
            }
            *added.lock() = chunks;
        });
        for round in 0..rounds {
            let mut files: BTreeSet<ContainerId> = homes.iter().map(|home| store.container_of(*home).unwrap()).collect();
            files.retain(|id| usize::from(id.partition()) == round % 2);
            let files: Vec<_> = files.into_iter().collect();
            // Sometimes all into one, sometimes two by two.
            for victims in files.chunks(if round % 3 == 2 { files.len().max(1) } else { 2 }) {
                let is_here = |address: &Address| victims.contains(&store.container_of(*address).unwrap());
                let live: Vec<_> =
                    needed.iter().filter(|(address, _)| is_here(address)).map(|(address, (name, _))| (*address, *name)).collect();
                let merge = store.merge(victims, &live).unwrap();
                let (start, end) = log.lock().append(vec![merge.record()]);
                store.merged(merge, start, end);
            }
            // Each reader makes progress before the next round.
            let before = read.load(Relaxed);
            let is_over = || short_reads.is_finished() || readers.iter().any(|reader| reader.is_finished());
            while read.load(Relaxed) < before + 2 && !is_over() {
                std::thread::yield_now();
            }
        }
    });
    assert!(!store.has_pending_merges());
    // A worker may be about to drop the last frame that it wrote.
    let begun = std::time::Instant::now();
    while !open_files_without_name().is_empty() && begun.elapsed() < std::time::Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!(open_files_without_name(), Vec::<String>::new(), "their room is not given back");
    needed.append(&mut added.lock());
    check(&store, &needed);
    drop(store);
    let store = open(ground, &log.lock(), 2, options, Access::ReadWrite).unwrap();
    check(&store, &needed);
    check_all(&store, &needed);
}

/// Returns the container files that this process has open although they were removed.
fn open_files_without_name() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = entries.filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()));
    names.filter(|name| name.contains(DIRECTORY) && name.ends_with("(deleted)")).collect()
}

#[test]
fn m0_20_readers_are_never_disturbed_by_merges() {
    readers_beside_merges(std::sync::Arc::new(SimulatedGround::new(1)), &without_caches(), 30);
    readers_beside_merges(std::sync::Arc::new(SimulatedGround::new(1)), &small(), 30);
}

#[test]
fn m0_20_readers_are_never_disturbed_by_merges_on_a_real_file_system() {
    let folder = tempfile::tempdir().unwrap();
    readers_beside_merges(std::sync::Arc::new(LocalGround::open(folder.path()).unwrap()), &without_caches(), 12);
}
