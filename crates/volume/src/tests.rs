//! Volumes on a store: a disk that is a `Vec<u8>` says what they must return, a recount of all mappings what the usage
//! counts must be.

use super::*;
use crate::testing::VolumeStore;
use onefold_blocks::testing::{TestStore, bytes};
use onefold_blocks::{NewSpace, Owner, SpaceKind};
use onefold_engine::components::CHUNKING;
use onefold_ground::CrashPolicy;
use proptest::prelude::*;
use std::sync::Arc;

const BLOCK: u32 = MIN_BLOCK_BYTES;
const SIZE: usize = 6 * BLOCK as usize + 5000;

fn options() -> VolumesOptions {
    VolumesOptions { dirty_bytes: 3 * BLOCK as usize, mapping_cache_bytes: 4000, streams: 2, verify: true }
}

fn read(volume: &Volume, offset: usize, length: usize) -> Vec<u8> {
    let mut out = vec![0xee; length];
    volume.read(offset as u64, &mut out).unwrap();
    out
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, length: usize, seed: u64, is_durable: bool },
    Zero { at: usize, length: usize },
    Update { at: usize, length: usize, seed: u64, is_wanted: bool },
    Flush,
    Resize(usize),
    Read { at: usize, length: usize },
    Reopen,
}

/// Ranges of a disk: small, around the ends of blocks, or long.
fn range() -> impl Strategy<Value = (usize, usize)> {
    let block = BLOCK as usize;
    prop_oneof![
        (0..SIZE, 0usize..9000),
        (0usize..6, 0usize..3).prop_map(move |(first, count)| (first * block, count * block)),
        (0..SIZE, 0..SIZE),
        (1usize..6, 0usize..600, 0usize..1200).prop_map(move |(edge, before, length)| (edge * block - before, length)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), 0u64..5, proptest::bool::weighted(0.1)).prop_map(|((at, length), seed, is_durable)| Step::Write { at, length, seed, is_durable }),
        3 => range().prop_map(|(at, length)| Step::Zero { at, length }),
        2 => (range(), 0u64..5, any::<bool>()).prop_map(|((at, length), seed, is_wanted)| Step::Update { at, length, seed, is_wanted }),
        1 => Just(Step::Flush),
        1 => (1usize..SIZE).prop_map(Step::Resize),
        3 => range().prop_map(|(at, length)| Step::Read { at, length }),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn m0_16_a_volume_is_a_disk(steps in proptest::collection::vec(step(), 1..25)) {
        let mut store = TestStore::new();
        let mut volumes = store.volumes(options());
        volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
        let mut volume = volumes.get("disk").unwrap();
        let mut model = vec![0u8; SIZE];
        for step in steps {
            let clip = |at: usize, length: usize| (at.min(model.len()), length.min(model.len() - at.min(model.len())));
            match step {
                Step::Write { at, length, seed, is_durable } => {
                    let (at, length) = clip(at, length);
                    let data = bytes(seed, length);
                    model[at..at + length].copy_from_slice(&data);
                    if is_durable { volume.write_durable(at as u64, &data).unwrap() } else { volume.write(at as u64, &data).unwrap() }
                }
                Step::Zero { at, length } => {
                    let (at, length) = clip(at, length);
                    model[at..at + length].fill(0);
                    if length % 2 == 0 { volume.discard(at as u64, length as u64).unwrap() } else { volume.write_zeroes(at as u64, length as u64).unwrap() }
                }
                Step::Update { at, length, seed, is_wanted } => {
                    // As much as the buffers hold at a time.
                    let (at, length) = clip(at, length.min(2 * BLOCK as usize));
                    let mut found = Vec::new();
                    let change = &mut |range: &mut [u8]| {
                        found.extend_from_slice(range);
                        range.copy_from_slice(&bytes(seed, length));
                        is_wanted
                    };
                    prop_assert_eq!(volume.update(at as u64, length, change).unwrap(), is_wanted);
                    prop_assert_eq!(&found[..], &model[at..at + length]);
                    if is_wanted {
                        model[at..at + length].copy_from_slice(&bytes(seed, length));
                    }
                }
                Step::Flush => volume.flush().unwrap(),
                Step::Resize(size) => {
                    volumes.resize("disk", size as u64).unwrap();
                    model.resize(size, 0);
                    prop_assert_eq!(volume.size(), size as u64);
                }
                Step::Read { at, length } => {
                    let (at, length) = clip(at, length);
                    prop_assert!(read(&volume, at, length) == model[at..at + length]);
                }
                Step::Reopen => {
                    volume.flush().unwrap();
                    drop((volume, volumes));
                    store.reopen();
                    volumes = store.volumes(options());
                    volume = volumes.get("disk").unwrap();
                }
            }
            prop_assert!(volume.dirty_bytes() <= options().dirty_bytes + BLOCK as usize, "{} dirty", volume.dirty_bytes());
        }
        prop_assert!(read(&volume, 0, model.len()) == model);
        check_status(&volume, &model);
        volume.flush().unwrap();
        prop_assert_eq!(volume.dirty_bytes(), 0);
        prop_assert!(read(&volume, 0, model.len()) == model);
        check_status(&volume, &model);
        store.check_volumes([&volume]);
    }
}

/// Extents cover the range, and holes are zeros.
fn check_status(volume: &Volume, model: &[u8]) {
    for (at, length) in [(0, model.len()), (model.len() / 3, model.len() / 2)] {
        let extents = volume.status(at as u64, length as u64, usize::MAX).unwrap();
        let mut place = at;
        for extent in &extents {
            let end = place + extent.length as usize;
            assert!(extent.length > 0);
            assert!(!extent.is_hole || model[place..end].iter().all(|byte| *byte == 0));
            place = end;
        }
        assert_eq!(place, at + length);
        assert!(extents.windows(2).all(|pair| pair[0].is_hole != pair[1].is_hole));
        if let Some(first) = extents.first() {
            assert_eq!(volume.status(at as u64, length as u64, 1).unwrap(), [*first]);
        }
    }
}

#[test]
fn m0_16_the_same_data_deduplicates_however_it_is_cut_into_requests() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let data = bytes(7, 5 * BLOCK as usize);
    let first = volumes.create("first", data.len() as u64, BLOCK, None).unwrap();
    first.write(0, &data).unwrap();
    first.flush().unwrap();
    let unique = store.unique_bytes();
    assert!(unique >= data.len() as u64);
    for (name, request) in [("small", 3001), ("pages", 4096), ("large", 200_000)] {
        let volume = volumes.create(name, data.len() as u64, BLOCK, None).unwrap();
        let mut starts: Vec<usize> = (0..data.len()).step_by(request).collect();
        // Backwards, and every third one first.
        starts.reverse();
        starts.sort_by_key(|start| (start / request) % 3);
        for start in starts {
            let end = (start + request).min(data.len());
            volume.write(start as u64, &data[start..end]).unwrap();
        }
        volume.flush().unwrap();
        assert!(read(&volume, 0, data.len()) == data);
        assert_eq!(store.unique_bytes(), unique, "requests of {request} bytes");
    }
    store.check_volumes(&["first", "small", "pages", "large"].map(|name| volumes.get(name).unwrap()));
}

#[test]
fn threads_that_write_and_read_at_once_see_whole_requests() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    std::thread::scope(|scope| {
        // Each thread has its own sectors of every block, so that blocks are shared and data is not.
        for thread in 0..4usize {
            let volume = &volume;
            scope.spawn(move || {
                let mut mine = vec![0u8; SIZE / 512];
                for round in 0..400u64 {
                    let random = bytes(round * 4 + thread as u64 + 99, 8);
                    let sector = (u32::from_le_bytes(random[..4].try_into().unwrap()) as usize % (SIZE / 512 / 4)) * 4 + thread;
                    assert_eq!(read(volume, sector * 512, 512), vec![mine[sector]; 512]);
                    mine[sector] = random[5];
                    volume.write(sector as u64 * 512, &[random[5]; 512]).unwrap();
                    if round % 50 == thread as u64 {
                        volume.flush().unwrap();
                    }
                }
                for (sector, value) in mine.iter().enumerate().filter(|(sector, _)| sector % 4 == thread) {
                    assert_eq!(read(volume, sector * 512, 512), vec![*value; 512]);
                }
            });
        }
    });
    volume.flush().unwrap();
    store.check_volumes([&volume]);
}

#[test]
fn zeros_are_not_stored_and_discarded_blocks_give_their_references_back() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let volume = volumes.create("disk", 1 << 50, BLOCK, None).unwrap();
    volume.write(0, &vec![0; 3 * BLOCK as usize]).unwrap();
    volume.write_zeroes(0, 1 << 50).unwrap();
    volume.flush().unwrap();
    assert_eq!(store.references(), 0);
    assert_eq!(volume.status(0, 1 << 50, 10).unwrap(), [Extent { length: 1 << 50, is_hole: true }]);
    let far = (1 << 49) + 7;
    volume.write(far, &bytes(1, 300_000)).unwrap();
    volume.flush().unwrap();
    assert!(store.references() > 0);
    volume.discard(100, (1 << 50) - 100).unwrap();
    assert_eq!(read(&volume, far as usize, 300_000), vec![0; 300_000]);
    volume.flush().unwrap();
    assert_eq!(store.references(), 0);
}

#[test]
fn a_deleted_volume_is_gone_at_once_and_its_references_are_given_back() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let data = bytes(3, 4 * BLOCK as usize);
    let kept = volumes.create("kept", SIZE as u64, BLOCK, None).unwrap();
    let gone = volumes.create("gone", SIZE as u64, BLOCK, None).unwrap();
    for volume in [&kept, &gone] {
        volume.write(0, &data).unwrap();
        volume.flush().unwrap();
    }
    gone.write(10, b"never stored").unwrap();
    volumes.delete("gone").unwrap();
    assert!(matches!(volumes.get("gone"), Err(VolumeError::NotFound { .. })));
    assert!(matches!(gone.read(0, &mut [0; 10]), Err(VolumeError::Deleted { .. })));
    assert!(matches!(gone.write(0, &[0; 10]), Err(VolumeError::Deleted { .. })));
    assert!(matches!(volumes.delete("gone"), Err(VolumeError::NotFound { .. })));
    // The name is free at once; the new volume is another one.
    let again = volumes.create("gone", SIZE as u64, BLOCK, None).unwrap();
    assert_eq!(read(&again, 0, 4096), vec![0; 4096]);
    assert!(!volumes.resume_deletions(&|| false).unwrap());
    drop((kept, gone, again, volumes));
    store.reopen();
    let volumes = store.volumes(VolumesOptions::default());
    assert_eq!(volumes.list().iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["gone", "kept"]);
    assert!(volumes.resume_deletions(&|| true).unwrap());
    let kept = volumes.get("kept").unwrap();
    assert!(read(&kept, 0, data.len()) == data);
    store.check_volumes([&kept]);
}

#[test]
fn what_a_volume_cannot_have_is_refused() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let create = |name: &str, size, block| volumes.create(name, size, block, None);
    assert!(matches!(create("", 1, BLOCK), Err(VolumeError::Name { .. })));
    assert!(matches!(create("a/b", 1, BLOCK), Err(VolumeError::Name { .. })));
    assert!(matches!(create("disk", 0, BLOCK), Err(VolumeError::Size { .. })));
    assert!(matches!(create("disk", u64::MAX, BLOCK), Err(VolumeError::Size { .. })));
    assert!(matches!(create("disk", 1, BLOCK / 2), Err(VolumeError::BlockSize { .. })));
    assert!(matches!(create("disk", 1, BLOCK + 1), Err(VolumeError::BlockSize { .. })));
    assert!(matches!(volumes.create("disk", 1, BLOCK, Some("no such filter".into())), Err(VolumeError::Engine(_))));
    assert!(volumes.list().is_empty());
    let volume = create("disk", 1000, DEFAULT_BLOCK_BYTES).unwrap();
    assert!(matches!(create("disk", 1000, BLOCK), Err(VolumeError::Exists { .. })));
    assert!(Arc::ptr_eq(&volume.blocks, &volumes.get("disk").unwrap().blocks));
    for (offset, length) in [(1000, 1), (0, 1001), (u64::MAX, 2)] {
        assert!(matches!(volume.write(offset, &vec![1; length]), Err(VolumeError::OutOfRange { size_bytes: 1000, .. })));
        assert!(matches!(volume.read(offset, &mut vec![1; length]), Err(VolumeError::OutOfRange { .. })));
        assert!(matches!(volume.discard(offset, length as u64), Err(VolumeError::OutOfRange { .. })));
        assert!(matches!(volume.status(offset, length as u64, 1), Err(VolumeError::OutOfRange { .. })));
        assert!(matches!(volume.prefetch(offset, length as u64), Err(VolumeError::OutOfRange { .. })));
    }
    volume.write(1000, &[]).unwrap();
    volume.write(999, &[7]).unwrap();
    assert_eq!(read(&volume, 990, 10), [0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
}

#[test]
fn a_prefetch_of_the_largest_volume_looks_at_its_beginning_only() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", crate::MAX_VOLUME_BYTES, BLOCK, None).unwrap();
    // Block by block it would never end.
    volume.prefetch(1, crate::MAX_VOLUME_BYTES - 1).unwrap();
}

#[test]
fn what_is_done_but_not_durable_is_said_to_be_done() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", u64::from(BLOCK), BLOCK, None).unwrap();
    let fail = || store.ground.fail_operation(0, std::io::ErrorKind::Other);
    fail();
    let resized = volume.resize(2 * u64::from(BLOCK));
    assert!(matches!(resized, Err(VolumeError::NotDurable { what: "has its new size", .. })), "{resized:?}");
    assert_eq!(volume.size(), 2 * u64::from(BLOCK));
    volumes.snapshot("disk", "before").unwrap();
    fail();
    let rolled_back = volumes.rollback("disk", "before");
    assert!(matches!(rolled_back, Err(VolumeError::NotDurable { what: "is rolled back", .. })), "{rolled_back:?}");
    fail();
    let deleted = volumes.delete("disk");
    assert!(matches!(deleted, Err(VolumeError::NotDurable { what: "is deleted", .. })), "{deleted:?}");
    assert!(matches!(volumes.get("disk"), Err(VolumeError::NotFound { .. })));
    // Whatever is made durable next takes it along.
    volumes.flush().unwrap();
    drop((volume, volumes));
    store.reopen();
    assert!(matches!(store.volumes(options()).get("disk"), Err(VolumeError::NotFound { .. })));
}

#[test]
fn a_flush_on_a_full_disk_fails_keeps_the_data_and_succeeds_when_there_is_room() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", 200 * u64::from(BLOCK), BLOCK, None).unwrap();
    store.ground.set_capacity(store.ground.used_bytes() + (3 << 20));
    let data = bytes(5, 190 * BLOCK as usize);
    let mut written = 0;
    let is_full = |error: &VolumeError| matches!(error, VolumeError::Engine(error) if error.is_full());
    for (block, part) in data.chunks(BLOCK as usize / 2).enumerate() {
        match volume.write(block as u64 * u64::from(BLOCK / 2), part) {
            Ok(()) => written += part.len(),
            Err(error) => {
                assert!(is_full(&error), "{error}");
                break;
            }
        }
    }
    let error = volume.flush().unwrap_err();
    assert!(is_full(&error), "{error}");
    assert!(volume.flush().is_err());
    assert!(written > 1 << 20, "{written} bytes taken");
    assert!(read(&volume, 0, written) == data[..written]);
    store.ground.set_capacity(1 << 40);
    volume.flush().unwrap();
    assert_eq!(volume.dirty_bytes(), 0);
    assert!(read(&volume, 0, written) == data[..written]);
    store.check_volumes([&volume]);
    drop((volume, volumes));
    store.reopen();
    let volume = store.volumes(options()).get("disk").unwrap();
    assert!(read(&volume, 0, written) == data[..written]);
    store.check_volumes([&volume]);
}

#[test]
fn a_discard_on_a_full_disk_tries_once_to_write_out_other_blocks() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", 10_000 * u64::from(BLOCK), BLOCK, None).unwrap();
    let data = bytes(5, 40 * BLOCK as usize);
    volume.write(0, &data).unwrap();
    volume.flush().unwrap();
    store.ground.set_capacity(store.ground.used_bytes());
    // Until the buffers are full, too.
    let mut written = Vec::new();
    for length in [BLOCK as usize / 2, 512, 1] {
        while volume.write((100 + written.len() as u64) * u64::from(BLOCK), &bytes(written.len() as u64, length)).is_ok() {
            written.push(length);
        }
    }
    let cut_bytes = |store: &mut TestStore| store.engine().unwrap().profile().usage(&CHUNKING).bytes;
    let before = cut_bytes(&mut store);
    volume.discard(u64::from(BLOCK), 38 * u64::from(BLOCK)).unwrap();
    let more = cut_bytes(&mut store) - before;
    assert!(more <= (options().dirty_bytes + BLOCK as usize) as u64, "{more} bytes were cut");
    assert!(read(&volume, BLOCK as usize, 38 * BLOCK as usize).iter().all(|byte| *byte == 0));
    for (number, length) in written.into_iter().enumerate() {
        assert!(read(&volume, (100 + number) * BLOCK as usize, length) == bytes(number as u64, length));
    }
    store.ground.set_capacity(1 << 40);
    volume.flush().unwrap();
    store.check_volumes([&volume]);
}

/// Sectors with a value each; after a crash a sector has its value of the last flush or one that was written since.
#[test]
fn what_was_flushed_survives_a_crash_at_any_time() {
    const SECTORS: usize = 4 * BLOCK as usize / 512;
    for seed in 0..40u64 {
        let mut store = TestStore::new();
        store.volumes(options()).create("disk", SECTORS as u64 * 512, BLOCK, None).unwrap();
        let mut durable = vec![0u8; SECTORS];
        for round in 0..4 {
            let mut random = bytes(seed * 10 + round, 100_000).into_iter();
            let mut next = move || u16::from_le_bytes([random.next().unwrap(), random.next().unwrap()]) as usize;
            let mut possible: Vec<Vec<u8>> = durable.iter().map(|value| vec![*value]).collect();
            store.ground.crash_after_operations(next() as u64 % 150);
            if let Ok(engine) = store.engine() {
                let volumes = Volumes::open(engine, options()).unwrap();
                let volume = volumes.get("disk").unwrap();
                for _ in 0..60 {
                    let (first, count, value) = (next() % SECTORS, 1 + next() % 200, next() as u8);
                    let count = count.min(SECTORS - first);
                    possible[first..first + count].iter_mut().for_each(|values| values.push(value));
                    if volume.write(first as u64 * 512, &vec![value; count * 512]).is_err() {
                        break;
                    }
                    if next() % 8 == 0 {
                        if volume.flush().is_err() {
                            break;
                        }
                        possible.iter_mut().for_each(|values| *values = vec![*values.last().unwrap()]);
                    }
                }
            }
            store.crash([CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed }][(seed as usize + round as usize) % 3]);
            let volumes = store.volumes(options());
            let volume = volumes.get("disk").unwrap();
            let found = read(&volume, 0, SECTORS * 512);
            for (sector, bytes) in found.chunks(512).enumerate() {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: sector {sector} is torn");
                assert!(
                    possible[sector].contains(&bytes[0]),
                    "seed {seed}: sector {sector} is {}, not of {:?}",
                    bytes[0],
                    possible[sector]
                );
                durable[sector] = bytes[0];
            }
            store.check_volumes([&volume]);
            drop((volume, volumes));
            store.crash(CrashPolicy::DropAll);
        }
    }
}

#[test]
fn the_bound_of_the_buffers_holds_for_all_volumes_together() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let all: Vec<_> = (0..4).map(|number| volumes.create(&format!("disk {number}"), SIZE as u64, BLOCK, None).unwrap()).collect();
    // Small pieces of many blocks: none is ever whole, so only pressure writes them out.
    for at in (0..SIZE - 3000).step_by(9001) {
        for (number, volume) in all.iter().enumerate() {
            volume.write(at as u64, &bytes((at + number) as u64, 3000)).unwrap();
            let dirty: usize = all.iter().map(|volume| volume.dirty_bytes()).sum();
            assert!(dirty <= options().dirty_bytes, "{dirty} bytes");
        }
    }
    for (number, volume) in all.iter().enumerate() {
        for at in (0..SIZE - 3000).step_by(9001) {
            assert!(read(volume, at, 3000) == bytes((at + number) as u64, 3000));
        }
    }
    volumes.flush().unwrap();
    assert!(all.iter().all(|volume| volume.dirty_bytes() == 0));
    store.check_volumes(&all);
}

#[test]
fn an_update_is_one_step_for_all_who_use_the_volume() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    // A counter that lies across two blocks.
    let place = u64::from(BLOCK) - 4;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let add = &mut |bytes: &mut [u8]| {
                        let count = u64::from_le_bytes(bytes.try_into().unwrap()) + 1;
                        bytes.copy_from_slice(&count.to_le_bytes());
                        true
                    };
                    assert!(volume.update(place, 8, add).unwrap());
                }
            });
        }
        scope.spawn(|| (0..20).for_each(|_| volume.flush().unwrap()));
    });
    assert_eq!(read(&volume, place as usize, 8), 400u64.to_le_bytes());
    assert!(volume.update(SIZE as u64 - 4, 8, &mut |_| true).is_err());
}
#[test]
fn a_durable_write_survives_a_power_failure_and_no_flush_is_needed() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let volume = volumes.create("disk", 4 * u64::from(BLOCK), BLOCK, None).unwrap();
    let data = bytes(1, 9000);
    volume.write_durable(1234, &data).unwrap();
    drop((volume, volumes));
    store.reopen();
    let volume = store.volumes(options()).get("disk").unwrap();
    assert!(read(&volume, 1234, data.len()) == data);
}

#[test]
fn what_only_the_larger_volume_has_is_joined_with_what_differs_before_it() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let block = u64::from(BLOCK);
    let small = volumes.create("small", 3 * block, BLOCK, None).unwrap();
    let large = volumes.create("large", 5 * block, BLOCK, None).unwrap();
    let diff = |wanted: usize| {
        let mut found = Vec::new();
        let visit = &mut |range: std::ops::Range<u64>| {
            found.push((range.start / block, range.end / block));
            found.len() < wanted
        };
        volumes.diff(&small, &large, visit).unwrap();
        found
    };
    assert_eq!(diff(9), [(3, 5)]);
    large.write(0, &bytes(1, BLOCK as usize)).unwrap();
    large.write(2 * block, &bytes(2, BLOCK as usize)).unwrap();
    assert_eq!(diff(9), [(0, 1), (2, 5)]);
    assert_eq!(diff(1), [(0, 1)]);
}

#[test]
fn filesystems_are_no_volumes() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    for name in ["home", "disk"] {
        let new = NewSpace { name, kind: SpaceKind::Filesystem, end_bytes: None, block_bytes: BLOCK, chain: None };
        volumes.spaces().create(new).unwrap().submit_entries(vec![(vec![1], Some(vec![2]))]).unwrap();
        volumes.spaces().snapshot(Owner::Filesystems, name, &format!("{name}.then")).unwrap();
    }
    let check = |volumes: &Volumes| {
        let names: Vec<String> = volumes.list().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["disk"]);
        assert_eq!(volumes.get("disk").unwrap().info().kind, VolumeKind::Volume);
        assert_eq!(volumes.frozen(&|_| true).unwrap().list().count(), 1);
        let missing = |name: &str| matches!(volumes.get(name), Err(VolumeError::NotFound { .. }));
        assert!(missing("home") && missing("home.then") && missing("disk.then"));
        assert!(volumes.delete("home").is_err() && volumes.rename("home", "other").is_err() && volumes.snapshot("home", "other").is_err());
    };
    check(&volumes);
    volumes.flush().unwrap();
    drop(volumes);
    store.reopen();
    let volumes = store.volumes(options());
    check(&volumes);
    // Their layers stay when volumes go.
    volumes.delete("disk").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    let then = volumes.spaces().get(Owner::Filesystems, "disk.then").unwrap();
    assert_eq!(then.entry(&[1]).unwrap(), Some(vec![2]));
}

#[test]
fn frozen_volumes_are_known_by_number_and_as_of_that_moment() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    volumes.create("other", SIZE as u64, BLOCK, None).unwrap();
    let data = bytes(1, SIZE);
    disk.write(0, &data).unwrap();
    let info = disk.info();
    let frozen = volumes.frozen(&|info| info.name == "disk").unwrap();
    disk.resize(1).unwrap();
    volumes.delete("disk").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert!(frozen.list().eq([&info]));
    let content = frozen.get(info.number).unwrap();
    assert!(read(content, 0, SIZE) == data);
    assert!(matches!(content.write(0, &[1]), Err(VolumeError::ReadOnly { .. })));
    assert!(frozen.get(info.number + 1).is_none());
    drop(frozen);
    assert!(volumes.resume_deletions(&|| true).unwrap());
    volumes.flush().unwrap();
    assert_eq!(store.references(), 0);
}

#[test]
fn a_content_is_placed_within_its_bounds_and_those_of_the_volume() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let [source, target] = ["a", "b"].map(|name| volumes.create(name, SIZE as u64, BLOCK, None).unwrap());
    let data = bytes(1, SIZE);
    source.write(0, &data).unwrap();
    let content = source.capture(1000, 3 * u64::from(BLOCK)).unwrap();
    source.discard(0, SIZE as u64).unwrap();
    assert_eq!(content.length(), 3 * u64::from(BLOCK));
    target.place(7, &content, 5, 2 * u64::from(BLOCK)).unwrap();
    assert!(read(&target, 7, 2 * BLOCK as usize) == data[1005..1005 + 2 * BLOCK as usize]);
    let is_out_of_range = |result: Result<()>| matches!(result, Err(VolumeError::OutOfRange { .. }));
    assert!(is_out_of_range(target.place(0, &content, 1, content.length())));
    assert!(is_out_of_range(target.place(SIZE as u64, &content, 0, 1)));
    assert!(is_out_of_range(target.copy_from(0, &source, SIZE as u64, 1)));
    assert!(is_out_of_range(target.copy_from(SIZE as u64, &source, 0, 1)));
    assert!(source.capture(SIZE as u64, 1).is_err());
}

#[test]
fn errors_say_that_it_is_a_volume() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let disk = volumes.create("disk", u64::from(BLOCK), BLOCK, None).unwrap();
    let other = volumes.create("other", u64::from(BLOCK), 2 * BLOCK, None).unwrap();
    let snapshot = volumes.snapshot("disk", "s").unwrap();
    let of_other = volumes.snapshot("other", "t").unwrap();
    let said = |result: Result<()>| result.unwrap_err().to_string();
    assert_eq!(said(volumes.get("none").map(drop)), "there is no volume \"none\"");
    assert_eq!(said(volumes.rename("disk", "other")), "a volume \"other\" already exists");
    assert_eq!(said(volumes.rename("disk", "a/b")), "\"a/b\" cannot be the name of a volume: it has a /");
    assert_eq!(said(snapshot.write(0, &[1])), "volume \"s\" is read-only");
    assert_eq!(said(volumes.rollback("disk", "other")), "volume \"other\" is not a snapshot");
    assert_eq!(said(volumes.rollback("disk", "t")), "\"t\" is not a snapshot of volume \"disk\"");
    assert_eq!(said(disk.resize(0)), "the size is 0 bytes; it must be from 1 byte to 1 EiB");
    let block = "the block size is 1 bytes; it must be a power of two from 64 KiB to 1 MiB";
    assert_eq!(said(volumes.create("new", 1, 1, None).map(drop)), block);
    let beyond = "a request for 1 bytes at offset 65536 exceeds volume \"disk\", which has 65536 bytes";
    assert_eq!(said(disk.read(u64::from(BLOCK), &mut [0])), beyond);
    let sizes = "volume \"disk\" has blocks of 65536 bytes, volume \"other\" of 131072 bytes: volumes with different block sizes \
        cannot be compared";
    assert_eq!(said(volumes.diff(&disk, &other, &mut |_| true)), sizes);
    volumes.delete("disk").unwrap();
    assert_eq!(said(disk.write(0, &[1])), "volume \"disk\" is deleted");
    drop(of_other);
}
