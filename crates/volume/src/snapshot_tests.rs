//! Snapshots and clones by example (M0.7, M0.21); against a model: `snapshot_model.rs`.

use super::*;
use crate::testing::TestStore;
use crate::tests::{BLOCK, bytes, options, read};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

const BLOCK_BYTES: usize = BLOCK as usize;
const SIZE: usize = 5 * BLOCK_BYTES + 3000;

fn write_blocks(volume: &Volume, blocks: Range<usize>, seed: u64) {
    for block in blocks {
        volume.write((block * BLOCK_BYTES) as u64, &bytes(seed + block as u64, BLOCK_BYTES)).unwrap();
    }
}

#[test]
fn m0_21_a_snapshot_has_what_was_written_before_it_and_costs_no_mapping() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", 100 * u64::from(BLOCK), BLOCK, None).unwrap();
    write_blocks(&disk, 0..50, 7);
    let snapshot = volumes.snapshot("disk", "monday").unwrap();
    let references = store.references();
    write_blocks(&disk, 3..4, 1000);
    assert!(read(&snapshot, 3 * BLOCK_BYTES, BLOCK_BYTES) == bytes(10, BLOCK_BYTES));
    assert!(read(&disk, 3 * BLOCK_BYTES, BLOCK_BYTES) == bytes(1003, BLOCK_BYTES));
    volumes.flush().unwrap();
    let clone = volumes.make_clone("monday", "copy", false).unwrap();
    assert_eq!((disk.own_bytes(), clone.own_bytes(), snapshot.own_bytes()), (u64::from(BLOCK), 0, 50 * u64::from(BLOCK)));
    assert!(store.references() - references < 40, "only the block that was written anew has new references");
    let infos: Vec<_> =
        volumes.list().into_iter().map(|info| (info.name, info.kind, info.is_read_only, info.origin.map(|of| of.name))).collect();
    let of = |name: &str| Some(name.to_owned());
    assert_eq!(
        infos,
        [
            ("copy".into(), VolumeKind::Clone, false, of("monday")),
            ("disk".into(), VolumeKind::Volume, false, None),
            ("monday".into(), VolumeKind::Snapshot, true, of("disk"))
        ]
    );
    store.check_counts(&[("", &disk), ("", &snapshot), ("", &clone)]);
}

#[test]
fn what_nobody_else_has_is_counted_before_anybody_cleans_up() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", 100 * u64::from(BLOCK), BLOCK, None).unwrap();
    write_blocks(&disk, 0..50, 7);
    volumes.flush().unwrap();
    let clone = volumes.make_clone("disk", "clone", false).unwrap();
    write_blocks(&clone, 0..1, 900);
    volumes.flush().unwrap();
    let block = u64::from(BLOCK);
    assert_eq!((volumes.held_alone(&disk), volumes.held_alone(&clone)), (0, block), "each has the other to keep what they share");
    volumes.delete("disk").unwrap();
    assert_eq!((clone.own_bytes(), volumes.held_alone(&clone)), (block, 51 * block));
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(volumes.held_alone(&clone), 50 * block);
    // Whoever reads it as it was at a moment keeps nobody from being asked before it goes.
    let frozen = volumes.frozen(&|_| true).unwrap();
    assert_eq!(volumes.held_alone(&clone), 50 * block);
    drop(frozen);
}

#[test]
fn m0_21_what_only_larger_volumes_showed_goes_with_them() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    write_blocks(&disk, 0..5, 7);
    volumes.snapshot("disk", "large").unwrap();
    disk.resize(2 * u64::from(BLOCK)).unwrap();
    let small = volumes.snapshot("disk", "small").unwrap();
    volumes.delete("large").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(small.own_bytes(), 5 * u64::from(BLOCK), "the disk lies upon the same layer");
    volumes.delete("disk").unwrap();
    // Cut short, and finished later.
    let looks = Cell::new(0);
    let is_done = volumes.resume_deletions(&|| {
        looks.set(looks.get() + 1);
        looks.get() < 2
    });
    assert!(!is_done.unwrap());
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(small.own_bytes(), 2 * u64::from(BLOCK));
    assert!(read(&small, BLOCK_BYTES, BLOCK_BYTES) == bytes(8, BLOCK_BYTES));
    store.check_counts(&[("", &small)]);
}

#[test]
fn m0_21_what_a_larger_volume_shows_stays_while_its_record_is_damaged() {
    let mut store = TestStore::new();
    let engine = &store.engine().unwrap();
    let open = || Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volumes = open();
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    write_blocks(&disk, 0..5, 7);
    volumes.snapshot("disk", "large").unwrap();
    disk.resize(2 * u64::from(BLOCK)).unwrap();
    volumes.snapshot("disk", "small").unwrap();
    volumes.delete("disk").unwrap();
    drop((disk, volumes));
    let put = |of: u16, key: &[u8], value: Vec<u8>| {
        engine.submit(onefold_engine::Transaction { changes: vec![(of, key.to_vec(), Some(value))], references: vec![] }).unwrap();
        engine.flush().unwrap();
    };
    let records = (0..2u16).flat_map(|of| engine.range(of, b"v", b"w", 99).unwrap().into_iter().map(move |object| (of, object)));
    let is_large = |value: &[u8]| value.windows(5).any(|name| name == b"large");
    let (of, (key, value)) = records.into_iter().find(|(_, (_, value))| is_large(value)).unwrap();
    put(of, &key, vec![0; 9]);
    let volumes = open();
    assert!(!volumes.damaged().is_empty());
    volumes.resume_deletions(&|| true).unwrap();
    drop(volumes);
    put(of, &key, value);
    let volumes = open();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    let large = volumes.get("large").unwrap();
    assert!(read(&large, 4 * BLOCK_BYTES, BLOCK_BYTES) == bytes(11, BLOCK_BYTES));
    volumes.delete("large").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(volumes.get("small").unwrap().own_bytes(), 2 * u64::from(BLOCK));
}

#[test]
fn snapshots_of_a_volume_at_rest_make_no_chain() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    write_blocks(&disk, 0..2, 7);
    for number in 0..10 {
        volumes.snapshot("disk", &format!("s{number}")).unwrap();
    }
    assert_eq!(volumes.shared.layers.all().len(), 2);
}

#[test]
fn m0_21_the_layers_of_deleted_snapshots_are_taken_in_by_the_smaller_into_the_larger() {
    for (first, second) in [(40, 3), (3, 40)] {
        let mut store = TestStore::new();
        let volumes = store.volumes(VolumesOptions::default());
        let disk = volumes.create("disk", 100 * u64::from(BLOCK), BLOCK, None).unwrap();
        write_blocks(&disk, 0..first, 7);
        volumes.snapshot("disk", "s").unwrap();
        write_blocks(&disk, 2..2 + second, 500);
        volumes.flush().unwrap();
        volumes.delete("s").unwrap();
        // One step to begin, one for each map of a few blocks, one to end: not one for each of many. It is asked before
        // the first and after each.
        let steps = Cell::new(0);
        let go_on = || {
            steps.set(steps.get() + 1);
            // It may take its time: nobody waits for it.
            assert!(volumes.structure.try_lock().is_some());
            true
        };
        assert!(volumes.resume_deletions(&go_on).unwrap());
        assert_eq!(steps.get(), 1 + 3);
        assert_eq!(volumes.shared.layers.all().len(), 1);
        assert!(read(&disk, 0, 2 * BLOCK_BYTES) == [bytes(7, BLOCK_BYTES), bytes(8, BLOCK_BYTES)].concat());
        assert!(read(&disk, 2 * BLOCK_BYTES, BLOCK_BYTES) == bytes(502, BLOCK_BYTES));
        store.check_counts(&[("", &disk)]);
    }
}

#[test]
fn m0_7_an_image_that_is_rewritten_onto_a_clone_asks_no_chunk_index() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let verdicts = |store: &mut TestStore, filter: &str| {
        let filters = store.engine().unwrap().statistics().unwrap().activity.filters;
        filters.get(filter).map_or(0, |verdicts| verdicts.iter().sum::<u64>())
    };
    let chain = || Some("block-index,chunk-index".to_owned());
    let disk = volumes.create("image", 64 * u64::from(BLOCK), BLOCK, chain()).unwrap();
    write_blocks(&disk, 0..64, 7);
    volumes.flush().unwrap();
    let new = verdicts(&mut store, "chunk-index");
    let clone = volumes.make_clone("image", "next run", false).unwrap();
    // The image of the next run: one block in sixteen is another.
    write_blocks(&clone, 0..64, 7);
    for block in (0..64).step_by(16) {
        write_blocks(&clone, block..block + 1, 9000);
    }
    volumes.flush().unwrap();
    let asked = verdicts(&mut store, "chunk-index") - new;
    assert!(asked * 10 <= new, "{asked} of {new} chunks were asked for");
    assert_eq!(clone.own_bytes(), 4 * u64::from(BLOCK));
    // Without a clone each chunk is asked for.
    let fresh = volumes.create("fresh", 64 * u64::from(BLOCK), BLOCK, chain()).unwrap();
    write_blocks(&fresh, 0..64, 7);
    volumes.flush().unwrap();
    assert!(verdicts(&mut store, "chunk-index") - new - asked >= new * 9 / 10);
}

#[test]
fn m0_21_a_thousand_snapshots_of_a_volume_are_read_and_deleted() {
    let mut store = TestStore::new();
    let mut volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", 8 * u64::from(BLOCK), BLOCK, None).unwrap();
    for number in 0..1000u64 {
        disk.write(number % 8 * u64::from(BLOCK) + 512 * (number / 8), &number.to_le_bytes()).unwrap();
        volumes.snapshot("disk", &format!("s{number:04}")).unwrap();
    }
    drop((disk, volumes));
    store.reopen();
    volumes = store.volumes(VolumesOptions::default());
    let last = volumes.get("s0999").unwrap();
    for number in (0..1000u64).step_by(7) {
        let at = (number % 8 * u64::from(BLOCK) + 512 * (number / 8)) as usize;
        assert_eq!(read(&last, at, 8), number.to_le_bytes());
        if number > 0 {
            let before = volumes.get(&format!("s{:04}", number - 1)).unwrap();
            assert_eq!(read(&before, at, 8), [0; 8]);
        }
    }
    for number in 0..1000 {
        volumes.delete(&format!("s{number:04}")).unwrap();
    }
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(volumes.shared.layers.all().len(), 1);
    store.check_counts(&[("", &volumes.get("disk").unwrap())]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    let other = volumes.create("other", SIZE as u64, 2 * BLOCK, None).unwrap();
    let snapshot = volumes.snapshot("disk", "s").unwrap();
    volumes.snapshot("other", "other s").unwrap();
    assert!(matches!(volumes.snapshot("disk", "s"), Err(VolumeError::Exists { .. })));
    assert!(matches!(volumes.snapshot("disk", "a/b"), Err(VolumeError::Name { .. })));
    assert!(matches!(volumes.snapshot("none", "t"), Err(VolumeError::NotFound { .. })));
    assert!(matches!(volumes.snapshot("s", "t"), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(snapshot.write(0, b"x"), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(snapshot.discard(0, 1), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(snapshot.resize(1), Err(VolumeError::ReadOnly { .. })));
    snapshot.flush().unwrap();
    assert!(matches!(volumes.rollback("s", "s"), Err(VolumeError::ReadOnly { .. })));
    assert!(matches!(volumes.rollback("disk", "other"), Err(VolumeError::NoSnapshot { .. })));
    assert!(matches!(volumes.rollback("disk", "other s"), Err(VolumeError::Unrelated { .. })));
    assert!(matches!(volumes.diff(&disk, &volumes.get("other").unwrap(), &mut |_| true), Err(VolumeError::OtherBlocks { .. })));
    disk.write(0, b"new").unwrap();
    volumes.rollback("disk", "s").unwrap();
    assert_eq!(read(&disk, 0, 3), [0; 3]);
    volumes.rollback("disk", "s").unwrap();
    drop(other);
}

#[test]
fn what_a_shrunk_volume_has_lost_stays_lost_in_its_layers() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let disk = volumes.create("disk", SIZE as u64, BLOCK, None).unwrap();
    disk.write(0, &vec![7; SIZE]).unwrap();
    volumes.snapshot("disk", "s").unwrap();
    disk.resize(BLOCK_BYTES as u64 + 10).unwrap();
    let mut expected = vec![0; SIZE];
    expected[..BLOCK_BYTES + 10].fill(7);
    volumes.snapshot("disk", "small").unwrap();
    disk.resize(SIZE as u64).unwrap();
    assert!(read(&disk, 0, SIZE) == expected);
    let clone = volumes.make_clone("small", "copy", false).unwrap();
    clone.resize(SIZE as u64).unwrap();
    assert!(read(&clone, 0, SIZE) == expected);
    volumes.delete("s").unwrap();
    volumes.delete("small").unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert!(read(&disk, 0, SIZE) == expected);
    assert!(read(&clone, 0, SIZE) == expected);
    store.check_counts(&[("", &disk), ("", &clone)]);
}

#[test]
fn m0_21_clients_that_write_while_layers_come_and_go_see_whole_blocks() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let blocks = 16usize;
    let disk = volumes.create("disk", (blocks * BLOCK_BYTES) as u64, BLOCK, None).unwrap();
    let stopping = std::sync::atomic::AtomicBool::new(false);
    let is_stopping = || stopping.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..2usize {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..150u64 {
                    let block = (round as usize * 5 % (blocks / 2)) * 2 + thread;
                    let at = block * BLOCK_BYTES;
                    if round % 5 == 4 {
                        disk.discard(at as u64, u64::from(BLOCK)).unwrap();
                        assert!(read(disk, at, BLOCK_BYTES).iter().all(|byte| *byte == 0));
                    } else {
                        let value = 1 + (round % 200) as u8;
                        disk.write(at as u64, &vec![value; BLOCK_BYTES]).unwrap();
                        assert!(read(disk, at, BLOCK_BYTES).iter().all(|byte| *byte == value), "block {block}");
                    }
                    if round % 16 == 3 {
                        disk.flush().unwrap();
                    }
                }
            });
        }
        let cleaner = scope.spawn(|| {
            while !is_stopping() {
                volumes.resume_deletions(&|| !is_stopping()).unwrap();
                std::thread::yield_now();
            }
        });
        for number in 0..40 {
            let name = format!("s{number}");
            let snapshot = volumes.snapshot("disk", &name).unwrap();
            let first = read(&snapshot, 0, blocks * BLOCK_BYTES);
            for block in first.chunks(BLOCK_BYTES) {
                assert!(block.iter().all(|byte| *byte == block[0]), "a block is torn in {name}");
            }
            if number % 3 == 0 {
                let clone = volumes.make_clone(&name, &format!("c{number}"), false).unwrap();
                clone.write(0, &[99; 100]).unwrap();
                assert!(read(&clone, 100, blocks * BLOCK_BYTES - 100) == first[100..]);
            }
            if number >= 4 {
                let old = volumes.get(&format!("s{}", number - 4)).unwrap();
                drop(read(&old, 0, blocks * BLOCK_BYTES));
                volumes.delete(&format!("s{}", number - 4)).unwrap();
            }
            assert!(read(&snapshot, 0, blocks * BLOCK_BYTES) == first, "{name} has changed");
        }
        stopping.store(true, std::sync::atomic::Ordering::Relaxed);
        cleaner.join().unwrap();
    });
    volumes.flush().unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    let all: Vec<(String, Arc<Volume>)> =
        volumes.list().into_iter().map(|info| (info.name.clone(), volumes.get(&info.name).unwrap())).collect();
    let all: Vec<_> = all.iter().map(|(name, volume)| (name.as_str(), volume)).collect();
    store.check_counts(&all);
}

#[test]
fn m0_21_volumes_are_frozen_at_one_moment_while_clients_write() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let [first, second] = ["first", "second"].map(|name| volumes.create(name, 4 * u64::from(BLOCK), BLOCK, None).unwrap());
    let stopping = std::sync::atomic::AtomicBool::new(false);
    let rounds = std::sync::atomic::AtomicU64::new(0);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1u64.. {
                if stopping.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                // Who has seen the second has seen the first.
                first.write(round % 4 * u64::from(BLOCK), &round.to_le_bytes()).unwrap();
                second.write(round % 4 * u64::from(BLOCK), &round.to_le_bytes()).unwrap();
                rounds.store(round, std::sync::atomic::Ordering::Relaxed);
            }
        });
        for _ in 0..100 {
            let before = rounds.load(std::sync::atomic::Ordering::Relaxed);
            while rounds.load(std::sync::atomic::Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let frozen = volumes.frozen(&|_| true);
            let Ok(frozen) = frozen else { break };
            let newest = |volume: &Arc<Volume>| {
                let content = frozen.get(volume.number).unwrap();
                let rounds = (0..4).map(|block| u64::from_le_bytes(read(content, block * BLOCK_BYTES, 8).try_into().unwrap()));
                rounds.max().unwrap()
            };
            seen.push((newest(&first), newest(&second)));
        }
        stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(seen.len(), 100);
    assert!(seen.iter().all(|(first, second)| first == second || *first == second + 1), "{seen:?}");
}

#[test]
fn m0_21_a_volume_that_is_resized_while_its_layers_are_merged_shows_nothing_of_what_it_lost() {
    let mut store = TestStore::new();
    let volumes = store.volumes(VolumesOptions::default());
    let (small, large) = (3 * BLOCK_BYTES + 100, 40 * BLOCK_BYTES);
    let disk = volumes.create("disk", large as u64, BLOCK, None).unwrap();
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            for round in 0..60u8 {
                disk.write(0, &vec![round + 1; large]).unwrap();
                disk.resize(small as u64).unwrap();
                disk.resize(large as u64).unwrap();
                let found = read(&disk, 0, large);
                assert!(found[..small].iter().all(|byte| *byte == round + 1), "round {round}");
                assert!(found[small..].iter().all(|byte| *byte == 0), "round {round}");
            }
        });
        while !resizer.is_finished() {
            volumes.snapshot("disk", "s").unwrap();
            volumes.delete("s").unwrap();
            volumes.resume_deletions(&|| true).unwrap();
        }
    });
    volumes.flush().unwrap();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    store.check_counts(&[("disk", &disk)]);
}

#[test]
fn a_damaged_record_keeps_nobody_from_the_other_volumes_and_no_layer_goes_until_it_is_whole_again() {
    let mut store = TestStore::new();
    let engine = &store.engine().unwrap();
    let open = || Volumes::open(engine.clone(), VolumesOptions::default()).unwrap();
    let volumes = open();
    let block = u64::from(crate::record::MIN_BLOCK_BYTES);
    let base = volumes.create("base", 4 * block, crate::record::MIN_BLOCK_BYTES, None).unwrap();
    base.write(0, &[1; 5000]).unwrap();
    base.flush().unwrap();
    volumes.snapshot("base", "then").unwrap();
    volumes.create("other", 4 * block, crate::record::MIN_BLOCK_BYTES, None).unwrap();
    base.write(0, &[2; 5000]).unwrap();
    base.flush().unwrap();
    let put = |of: u16, key: &[u8], value: Vec<u8>| {
        engine.submit(onefold_engine::Transaction { changes: vec![(of, key.to_vec(), Some(value))], references: vec![] }).unwrap();
        engine.flush().unwrap();
    };
    drop((base, volumes));
    let objects = |kind: u8| {
        (0..2u16).flat_map(move |of| engine.range(of, &[kind], &[kind + 1], 99).unwrap().into_iter().map(move |object| (of, object)))
    };
    let records: Vec<_> = [b'v', b'l'].into_iter().flat_map(objects).collect();
    assert_eq!(records.len(), 3 + 3);
    for (of, (key, value)) in &records {
        put(*of, key, vec![0; 9]);
        let volumes = open();
        assert!(!volumes.damaged().is_empty());
        let names: Vec<String> = volumes.list().into_iter().map(|info| info.name).collect();
        assert!(!names.is_empty() && names.len() < 3, "{key:?} {names:?}");
        for name in names {
            let mut bytes = vec![0; 5000];
            volumes.get(&name).unwrap().read(0, &mut bytes).unwrap();
            let expected = ["other", "then", "base"].iter().position(|of| *of == name).unwrap() as u8;
            assert!(bytes == vec![expected; 5000], "{name}");
        }
        // Nothing is dropped that the damaged one may need.
        volumes.resume_deletions(&|| true).unwrap();
        drop(volumes);
        put(*of, key, value.clone());
    }
    let volumes = open();
    assert_eq!(volumes.damaged(), [] as [String; 0]);
    let mut bytes = vec![0; 5000];
    volumes.get("then").unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 5000]);
    drop(volumes);
    // Deleted beside a damaged record, a volume leaves its layer behind, which goes when all is whole.
    let (of, (key, value)) = &records[0];
    put(*of, key, vec![0; 9]);
    let volumes = open();
    let left: Vec<String> = volumes.list().into_iter().map(|info| info.name).collect();
    left.iter().for_each(|name| volumes.delete(name).unwrap());
    volumes.resume_deletions(&|| true).unwrap();
    assert_eq!(objects(b'l').count(), 3);
    drop(volumes);
    put(*of, key, value.clone());
    let volumes = open();
    assert!(volumes.resume_deletions(&|| true).unwrap());
    assert_eq!(volumes.list().len(), 1);
    let mut bytes = vec![0; 5000];
    volumes.list().iter().for_each(|info| volumes.get(&info.name).unwrap().read(0, &mut bytes).unwrap());
    assert_eq!(bytes, [2; 5000]);
    assert_eq!(objects(b'l').count(), 1);
}

#[test]
fn numbers_that_objects_have_are_not_given_out_again_whatever_is_said_to_be_next() {
    let mut store = TestStore::new();
    let volumes = store.volumes(options());
    let block = BLOCK as usize;
    volumes.create("one", 4 * block as u64, BLOCK, None).unwrap().write(0, &bytes(1, 4 * block)).unwrap();
    volumes.snapshot("one", "moment").unwrap();
    volumes.create("two", 4 * block as u64, BLOCK, None).unwrap().write(0, &bytes(2, 4 * block)).unwrap();
    volumes.flush().unwrap();
    for said in [None, Some(1), Some(5)] {
        let engine = store.engine().unwrap();
        // As after a repair that found an older value.
        let change = (0, b"n".to_vec(), said.map(crate::record::encode_number));
        engine.submit(onefold_engine::Transaction { changes: vec![change], references: Vec::new() }).unwrap();
        let volumes = store.volumes(options());
        let new = volumes.create("new", 4 * block as u64, BLOCK, None).unwrap();
        assert!(read(&new, 0, 4 * block).iter().all(|byte| *byte == 0));
        new.write(0, &bytes(3, 4 * block)).unwrap();
        volumes.flush().unwrap();
        drop((new, volumes, engine));
        store.reopen();
        let volumes = store.volumes(options());
        for (name, seed) in [("one", 1), ("moment", 1), ("two", 2), ("new", 3)] {
            assert!(read(&volumes.get(name).unwrap(), 0, 4 * block) == bytes(seed, 4 * block), "{name} {said:?}");
        }
        volumes.delete("new").unwrap();
    }
}
