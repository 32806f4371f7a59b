//! Snapshots and clones by example (M0.7, M0.21); against a model: `snapshot_model.rs`.

use super::*;
use crate::disks::{BLOCK, create, delete, options, read, resize, roll_back};
use crate::testing::TestStore;
use crate::testing::bytes;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

const BLOCK_BYTES: usize = BLOCK as usize;
const SIZE: usize = 5 * BLOCK_BYTES + 3000;

fn write_blocks(space: &Space, blocks: Range<usize>, seed: u64) {
    for block in blocks {
        space.write(At::byte((block * BLOCK_BYTES) as u64), &bytes(seed + block as u64, BLOCK_BYTES)).unwrap();
    }
}

#[test]
fn m0_21_a_snapshot_has_what_was_written_before_it_and_costs_no_mapping() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", 100 * u64::from(BLOCK), BLOCK).unwrap();
    write_blocks(&disk, 0..50, 7);
    let snapshot = spaces.snapshot(Owner::Volumes, "disk", "monday").unwrap();
    let references = store.references();
    write_blocks(&disk, 3..4, 1000);
    assert!(read(&snapshot, 3 * BLOCK_BYTES, BLOCK_BYTES) == bytes(10, BLOCK_BYTES));
    assert!(read(&disk, 3 * BLOCK_BYTES, BLOCK_BYTES) == bytes(1003, BLOCK_BYTES));
    spaces.flush().unwrap();
    let clone = spaces.make_clone(Owner::Volumes, "monday", "copy", false).unwrap();
    assert_eq!((disk.own_bytes(), clone.own_bytes(), snapshot.own_bytes()), (u64::from(BLOCK), 0, 50 * u64::from(BLOCK)));
    assert!(store.references() - references < 40, "only the block that was written anew has new references");
    let infos: Vec<_> = spaces
        .list()
        .into_iter()
        .map(|info| (info.record.name, info.record.kind, info.record.is_read_only, info.record.origin.map(|of| of.name)))
        .collect();
    let of = |name: &str| Some(name.to_owned());
    assert_eq!(
        infos,
        [
            ("copy".into(), SpaceKind::Clone, false, of("monday")),
            ("disk".into(), SpaceKind::Volume, false, None),
            ("monday".into(), SpaceKind::Snapshot, true, of("disk"))
        ]
    );
    store.check_counts(&[&disk, &snapshot, &clone]);
}

#[test]
fn what_nobody_else_has_is_counted_before_anybody_cleans_up() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", 100 * u64::from(BLOCK), BLOCK).unwrap();
    write_blocks(&disk, 0..50, 7);
    spaces.flush().unwrap();
    let clone = spaces.make_clone(Owner::Volumes, "disk", "clone", false).unwrap();
    write_blocks(&clone, 0..1, 900);
    spaces.flush().unwrap();
    let block = u64::from(BLOCK);
    assert_eq!((spaces.held_alone(&disk), spaces.held_alone(&clone)), (0, block), "each has the other to keep what they share");
    delete(&spaces, "disk").unwrap();
    assert_eq!((clone.own_bytes(), spaces.held_alone(&clone)), (block, 51 * block));
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(spaces.held_alone(&clone), 50 * block);
    // Whoever reads it as it was at a moment keeps nobody from being asked before it goes.
    let frozen = spaces.frozen(&|_| true).unwrap();
    assert_eq!(spaces.held_alone(&clone), 50 * block);
    drop(frozen);
}

#[test]
fn m0_21_what_only_larger_spaces_showed_goes_with_them() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", SIZE as u64, BLOCK).unwrap();
    write_blocks(&disk, 0..5, 7);
    spaces.snapshot(Owner::Volumes, "disk", "large").unwrap();
    resize(&disk, 2 * u64::from(BLOCK)).unwrap();
    let small = spaces.snapshot(Owner::Volumes, "disk", "small").unwrap();
    delete(&spaces, "large").unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(small.own_bytes(), 5 * u64::from(BLOCK), "the disk lies upon the same layer");
    delete(&spaces, "disk").unwrap();
    // Cut short, and finished later.
    let looks = Cell::new(0);
    let is_done = spaces.resume_deletions(&|| {
        looks.set(looks.get() + 1);
        looks.get() < 2
    });
    assert!(!is_done.unwrap());
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(small.own_bytes(), 2 * u64::from(BLOCK));
    assert!(read(&small, BLOCK_BYTES, BLOCK_BYTES) == bytes(8, BLOCK_BYTES));
    store.check_counts(&[&small]);
}

#[test]
fn m0_21_what_a_larger_space_shows_stays_while_its_record_is_damaged() {
    let mut store = TestStore::new();
    let engine = &store.engine().unwrap();
    let open = || Spaces::open(engine.clone(), SpacesOptions::default()).unwrap();
    let spaces = open();
    let disk = create(&spaces, "disk", SIZE as u64, BLOCK).unwrap();
    write_blocks(&disk, 0..5, 7);
    spaces.snapshot(Owner::Volumes, "disk", "large").unwrap();
    resize(&disk, 2 * u64::from(BLOCK)).unwrap();
    spaces.snapshot(Owner::Volumes, "disk", "small").unwrap();
    delete(&spaces, "disk").unwrap();
    drop((disk, spaces));
    let put = |of: u16, key: &[u8], value: Vec<u8>| {
        engine.submit(onefold_engine::Transaction { changes: vec![(of, key.to_vec(), Some(value))], references: vec![] }).unwrap();
        engine.flush().unwrap();
    };
    let records = (0..2u16).flat_map(|of| engine.range(of, b"v", b"w", 99).unwrap().into_iter().map(move |object| (of, object)));
    let is_large = |value: &[u8]| value.windows(5).any(|name| name == b"large");
    let (of, (key, value)) = records.into_iter().find(|(_, (_, value))| is_large(value)).unwrap();
    put(of, &key, vec![0; 9]);
    let spaces = open();
    assert!(!spaces.damaged().is_empty());
    spaces.resume_deletions(&|| true).unwrap();
    drop(spaces);
    put(of, &key, value);
    let spaces = open();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    let large = spaces.get(Owner::Volumes, "large").unwrap();
    assert!(read(&large, 4 * BLOCK_BYTES, BLOCK_BYTES) == bytes(11, BLOCK_BYTES));
    delete(&spaces, "large").unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(spaces.get(Owner::Volumes, "small").unwrap().own_bytes(), 2 * u64::from(BLOCK));
}

#[test]
fn snapshots_of_a_space_at_rest_make_no_chain() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", SIZE as u64, BLOCK).unwrap();
    write_blocks(&disk, 0..2, 7);
    for number in 0..10 {
        spaces.snapshot(Owner::Volumes, "disk", &format!("s{number}")).unwrap();
    }
    assert_eq!(spaces.shared.layers.all().len(), 2);
}

#[test]
fn m0_21_the_layers_of_deleted_snapshots_are_taken_in_by_the_smaller_into_the_larger() {
    for (first, second) in [(40, 3), (3, 40)] {
        let mut store = TestStore::new();
        let spaces = store.spaces(SpacesOptions::default());
        let disk = create(&spaces, "disk", 100 * u64::from(BLOCK), BLOCK).unwrap();
        write_blocks(&disk, 0..first, 7);
        spaces.snapshot(Owner::Volumes, "disk", "s").unwrap();
        write_blocks(&disk, 2..2 + second, 500);
        spaces.flush().unwrap();
        delete(&spaces, "s").unwrap();
        // One step to begin, one for each map of a few blocks, one to end: not one for each of many. It is asked before
        // the first and after each.
        let steps = Cell::new(0);
        let go_on = || {
            steps.set(steps.get() + 1);
            // It may take its time: nobody waits for it.
            assert!(spaces.structure.try_lock().is_some());
            true
        };
        assert!(spaces.resume_deletions(&go_on).unwrap());
        assert_eq!(steps.get(), 1 + 3);
        assert_eq!(spaces.shared.layers.all().len(), 1);
        assert!(read(&disk, 0, 2 * BLOCK_BYTES) == [bytes(7, BLOCK_BYTES), bytes(8, BLOCK_BYTES)].concat());
        assert!(read(&disk, 2 * BLOCK_BYTES, BLOCK_BYTES) == bytes(502, BLOCK_BYTES));
        store.check_counts(&[&disk]);
    }
}

#[test]
fn m0_7_an_image_that_is_rewritten_onto_a_clone_asks_no_chunk_index() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let verdicts = |store: &mut TestStore, filter: &str| {
        let filters = store.engine().unwrap().statistics().unwrap().activity.filters;
        filters.get(filter).map_or(0, |verdicts| verdicts.iter().sum::<u64>())
    };
    let chained = |name| {
        let chain = Some("block-index,chunk-index".to_owned());
        let end_bytes = Some(64 * u64::from(BLOCK));
        spaces.create(NewSpace { name, kind: SpaceKind::Volume, end_bytes, block_bytes: BLOCK, chain }).unwrap()
    };
    let disk = chained("image");
    write_blocks(&disk, 0..64, 7);
    spaces.flush().unwrap();
    let new = verdicts(&mut store, "chunk-index");
    let clone = spaces.make_clone(Owner::Volumes, "image", "next run", false).unwrap();
    // The image of the next run: one block in sixteen is another.
    write_blocks(&clone, 0..64, 7);
    for block in (0..64).step_by(16) {
        write_blocks(&clone, block..block + 1, 9000);
    }
    spaces.flush().unwrap();
    let asked = verdicts(&mut store, "chunk-index") - new;
    assert!(asked * 10 <= new, "{asked} of {new} chunks were asked for");
    assert_eq!(clone.own_bytes(), 4 * u64::from(BLOCK));
    // Without a clone each chunk is asked for.
    let fresh = chained("fresh");
    write_blocks(&fresh, 0..64, 7);
    spaces.flush().unwrap();
    assert!(verdicts(&mut store, "chunk-index") - new - asked >= new * 9 / 10);
}

#[test]
fn m0_21_a_thousand_snapshots_of_a_space_are_read_and_deleted() {
    let mut store = TestStore::new();
    let mut spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", 8 * u64::from(BLOCK), BLOCK).unwrap();
    for number in 0..1000u64 {
        disk.write(At::byte(number % 8 * u64::from(BLOCK) + 512 * (number / 8)), &number.to_le_bytes()).unwrap();
        spaces.snapshot(Owner::Volumes, "disk", &format!("s{number:04}")).unwrap();
    }
    drop((disk, spaces));
    store.reopen();
    spaces = store.spaces(SpacesOptions::default());
    let last = spaces.get(Owner::Volumes, "s0999").unwrap();
    for number in (0..1000u64).step_by(7) {
        let at = (number % 8 * u64::from(BLOCK) + 512 * (number / 8)) as usize;
        assert_eq!(read(&last, at, 8), number.to_le_bytes());
        if number > 0 {
            let before = spaces.get(Owner::Volumes, &format!("s{:04}", number - 1)).unwrap();
            assert_eq!(read(&before, at, 8), [0; 8]);
        }
    }
    for number in 0..1000 {
        delete(&spaces, &format!("s{number:04}")).unwrap();
    }
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(spaces.shared.layers.all().len(), 1);
    store.check_counts(&[&spaces.get(Owner::Volumes, "disk").unwrap()]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", SIZE as u64, BLOCK).unwrap();
    let other = create(&spaces, "other", SIZE as u64, 2 * BLOCK).unwrap();
    let snapshot = spaces.snapshot(Owner::Volumes, "disk", "s").unwrap();
    spaces.snapshot(Owner::Volumes, "other", "other s").unwrap();
    assert!(matches!(spaces.snapshot(Owner::Volumes, "disk", "s"), Err(SpaceError::Exists { .. })));
    assert!(matches!(spaces.snapshot(Owner::Volumes, "disk", "a/b"), Err(SpaceError::Name { .. })));
    assert!(matches!(spaces.snapshot(Owner::Volumes, "none", "t"), Err(SpaceError::NotFound { .. })));
    assert!(matches!(spaces.snapshot(Owner::Volumes, "s", "t"), Err(SpaceError::ReadOnly { .. })));
    assert!(matches!(snapshot.write(At::byte(0), b"x"), Err(SpaceError::ReadOnly { .. })));
    assert!(matches!(snapshot.discard(At::byte(0), 1), Err(SpaceError::ReadOnly { .. })));
    assert!(matches!(resize(&snapshot, 1), Err(SpaceError::ReadOnly { .. })));
    snapshot.flush().unwrap();
    assert!(matches!(roll_back(&spaces, "s", "s"), Err(SpaceError::ReadOnly { .. })));
    assert!(matches!(roll_back(&spaces, "disk", "other"), Err(SpaceError::NoSnapshot { .. })));
    assert!(matches!(roll_back(&spaces, "disk", "other s"), Err(SpaceError::Unrelated { .. })));
    assert!(matches!(
        spaces.diff(&disk, &spaces.get(Owner::Volumes, "other").unwrap(), At::byte(0), 1, &mut |_| true),
        Err(SpaceError::OtherBlocks { .. })
    ));
    disk.write(At::byte(0), b"new").unwrap();
    roll_back(&spaces, "disk", "s").unwrap();
    assert_eq!(read(&disk, 0, 3), [0; 3]);
    roll_back(&spaces, "disk", "s").unwrap();
    drop(other);
}

#[test]
fn what_a_shrunk_space_has_lost_stays_lost_in_its_layers() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let disk = create(&spaces, "disk", SIZE as u64, BLOCK).unwrap();
    disk.write(At::byte(0), &vec![7; SIZE]).unwrap();
    spaces.snapshot(Owner::Volumes, "disk", "s").unwrap();
    resize(&disk, BLOCK_BYTES as u64 + 10).unwrap();
    let mut expected = vec![0; SIZE];
    expected[..BLOCK_BYTES + 10].fill(7);
    spaces.snapshot(Owner::Volumes, "disk", "small").unwrap();
    resize(&disk, SIZE as u64).unwrap();
    assert!(read(&disk, 0, SIZE) == expected);
    let clone = spaces.make_clone(Owner::Volumes, "small", "copy", false).unwrap();
    resize(&clone, SIZE as u64).unwrap();
    assert!(read(&clone, 0, SIZE) == expected);
    delete(&spaces, "s").unwrap();
    delete(&spaces, "small").unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert!(read(&disk, 0, SIZE) == expected);
    assert!(read(&clone, 0, SIZE) == expected);
    store.check_counts(&[&disk, &clone]);
}

#[test]
fn m0_21_clients_that_write_while_layers_come_and_go_see_whole_blocks() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let blocks = 16usize;
    let disk = create(&spaces, "disk", (blocks * BLOCK_BYTES) as u64, BLOCK).unwrap();
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
                        disk.discard(At::byte(at as u64), u64::from(BLOCK)).unwrap();
                        assert!(read(disk, at, BLOCK_BYTES).iter().all(|byte| *byte == 0));
                    } else {
                        let value = 1 + (round % 200) as u8;
                        disk.write(At::byte(at as u64), &vec![value; BLOCK_BYTES]).unwrap();
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
                spaces.resume_deletions(&|| !is_stopping()).unwrap();
                std::thread::yield_now();
            }
        });
        for number in 0..40 {
            let name = format!("s{number}");
            let snapshot = spaces.snapshot(Owner::Volumes, "disk", &name).unwrap();
            let first = read(&snapshot, 0, blocks * BLOCK_BYTES);
            for block in first.chunks(BLOCK_BYTES) {
                assert!(block.iter().all(|byte| *byte == block[0]), "a block is torn in {name}");
            }
            if number % 3 == 0 {
                let clone = spaces.make_clone(Owner::Volumes, &name, &format!("c{number}"), false).unwrap();
                clone.write(At::byte(0), &[99; 100]).unwrap();
                assert!(read(&clone, 100, blocks * BLOCK_BYTES - 100) == first[100..]);
            }
            if number >= 4 {
                let old = spaces.get(Owner::Volumes, &format!("s{}", number - 4)).unwrap();
                drop(read(&old, 0, blocks * BLOCK_BYTES));
                delete(&spaces, &format!("s{}", number - 4)).unwrap();
            }
            assert!(read(&snapshot, 0, blocks * BLOCK_BYTES) == first, "{name} has changed");
        }
        stopping.store(true, std::sync::atomic::Ordering::Relaxed);
        cleaner.join().unwrap();
    });
    spaces.flush().unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    let all = spaces.all();
    let all: Vec<&Space> = all.iter().map(|space| &**space).collect();
    store.check_counts(&all);
}

#[test]
fn m0_21_spaces_are_frozen_at_one_moment_while_clients_write() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let [first, second] = ["first", "second"].map(|name| create(&spaces, name, 4 * u64::from(BLOCK), BLOCK).unwrap());
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
                first.write(At::byte(round % 4 * u64::from(BLOCK)), &round.to_le_bytes()).unwrap();
                second.write(At::byte(round % 4 * u64::from(BLOCK)), &round.to_le_bytes()).unwrap();
                rounds.store(round, std::sync::atomic::Ordering::Relaxed);
            }
        });
        for _ in 0..100 {
            let before = rounds.load(std::sync::atomic::Ordering::Relaxed);
            while rounds.load(std::sync::atomic::Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            let frozen = spaces.frozen(&|_| true);
            let Ok(frozen) = frozen else { break };
            let newest = |space: &Arc<Space>| {
                let content = frozen.get(space.number).unwrap();
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
fn m0_21_a_space_that_is_resized_while_its_layers_are_merged_shows_nothing_of_what_it_lost() {
    let mut store = TestStore::new();
    let spaces = store.spaces(SpacesOptions::default());
    let (small, large) = (3 * BLOCK_BYTES + 100, 40 * BLOCK_BYTES);
    let disk = create(&spaces, "disk", large as u64, BLOCK).unwrap();
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            for round in 0..60u8 {
                disk.write(At::byte(0), &vec![round + 1; large]).unwrap();
                resize(&disk, small as u64).unwrap();
                resize(&disk, large as u64).unwrap();
                let found = read(&disk, 0, large);
                assert!(found[..small].iter().all(|byte| *byte == round + 1), "round {round}");
                assert!(found[small..].iter().all(|byte| *byte == 0), "round {round}");
            }
        });
        while !resizer.is_finished() {
            spaces.snapshot(Owner::Volumes, "disk", "s").unwrap();
            delete(&spaces, "s").unwrap();
            spaces.resume_deletions(&|| true).unwrap();
        }
    });
    spaces.flush().unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    store.check_counts(&[&disk]);
}

#[test]
fn a_damaged_record_keeps_nobody_from_the_other_spaces_and_no_layer_goes_until_it_is_whole_again() {
    let mut store = TestStore::new();
    let engine = &store.engine().unwrap();
    let open = || Spaces::open(engine.clone(), SpacesOptions::default()).unwrap();
    let spaces = open();
    let block = u64::from(crate::record::MIN_BLOCK_BYTES);
    let base = create(&spaces, "base", 4 * block, crate::record::MIN_BLOCK_BYTES).unwrap();
    base.write(At::byte(0), &[1; 5000]).unwrap();
    base.flush().unwrap();
    spaces.snapshot(Owner::Volumes, "base", "then").unwrap();
    create(&spaces, "other", 4 * block, crate::record::MIN_BLOCK_BYTES).unwrap();
    base.write(At::byte(0), &[2; 5000]).unwrap();
    base.flush().unwrap();
    let put = |of: u16, key: &[u8], value: Vec<u8>| {
        engine.submit(onefold_engine::Transaction { changes: vec![(of, key.to_vec(), Some(value))], references: vec![] }).unwrap();
        engine.flush().unwrap();
    };
    drop((base, spaces));
    let objects = |kind: u8| {
        (0..2u16).flat_map(move |of| engine.range(of, &[kind], &[kind + 1], 99).unwrap().into_iter().map(move |object| (of, object)))
    };
    let records: Vec<_> = [b'v', b'l'].into_iter().flat_map(objects).collect();
    assert_eq!(records.len(), 3 + 3);
    for (of, (key, value)) in &records {
        put(*of, key, vec![0; 9]);
        let spaces = open();
        assert!(!spaces.damaged().is_empty());
        let names: Vec<String> = spaces.list().into_iter().map(|info| info.record.name).collect();
        assert!(!names.is_empty() && names.len() < 3, "{key:?} {names:?}");
        for name in names {
            let mut bytes = vec![0; 5000];
            spaces.get(Owner::Volumes, &name).unwrap().read(At::byte(0), &mut bytes).unwrap();
            let expected = ["other", "then", "base"].iter().position(|of| *of == name).unwrap() as u8;
            assert!(bytes == vec![expected; 5000], "{name}");
        }
        // Nothing is dropped that the damaged one may need.
        spaces.resume_deletions(&|| true).unwrap();
        drop(spaces);
        put(*of, key, value.clone());
    }
    let spaces = open();
    assert_eq!(spaces.damaged(), [] as [String; 0]);
    let mut bytes = vec![0; 5000];
    spaces.get(Owner::Volumes, "then").unwrap().read(At::byte(0), &mut bytes).unwrap();
    assert_eq!(bytes, [1; 5000]);
    drop(spaces);
    // Deleted beside a damaged record, a space leaves its layer behind, which goes when all is whole.
    let (of, (key, value)) = &records[0];
    put(*of, key, vec![0; 9]);
    let spaces = open();
    let left: Vec<String> = spaces.list().into_iter().map(|info| info.record.name).collect();
    left.iter().for_each(|name| delete(&spaces, name).unwrap());
    spaces.resume_deletions(&|| true).unwrap();
    assert_eq!(objects(b'l').count(), 3);
    drop(spaces);
    put(*of, key, value.clone());
    let spaces = open();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(spaces.list().len(), 1);
    let mut bytes = vec![0; 5000];
    spaces.list().iter().for_each(|info| spaces.get(Owner::Volumes, &info.record.name).unwrap().read(At::byte(0), &mut bytes).unwrap());
    assert_eq!(bytes, [2; 5000]);
    assert_eq!(objects(b'l').count(), 1);
}

#[test]
fn a_space_of_an_unknown_kind_keeps_its_layers_whoever_opens_the_store() {
    let mut store = TestStore::new();
    let engine = &store.engine().unwrap();
    let open = || Spaces::open(engine.clone(), options()).unwrap();
    let spaces = open();
    let data = bytes(1, 2 * BLOCK_BYTES);
    create(&spaces, "known", SIZE as u64, BLOCK).unwrap();
    let foreign = create(&spaces, "foreign", SIZE as u64, BLOCK).unwrap();
    foreign.write(At::byte(0), &data).unwrap();
    spaces.make_clone(Owner::Volumes, "foreign", "shared", false).unwrap();
    let (partition, key, value) = foreign.change(&foreign.info().record);
    drop((foreign, spaces));
    let mut value = value.unwrap();
    let put = |value: &[u8]| {
        let changes = vec![(partition, key.clone(), Some(value.to_vec()))];
        engine.submit(onefold_engine::Transaction { changes, references: vec![] }).unwrap();
        engine.flush().unwrap();
    };
    // Version, name, end, block size and layer come before the kind.
    let kind = 1 + 1 + "foreign".len() + 8 + 4 + 4;
    assert_eq!(std::mem::replace(&mut value[kind], 9), 0);
    put(&value);
    let spaces = open();
    assert_eq!(spaces.damaged().len(), 1);
    let layers = spaces.shared.layers.all().len();
    ["known", "shared"].iter().for_each(|name| delete(&spaces, name).unwrap());
    spaces.resume_deletions(&|| true).unwrap();
    assert_eq!(spaces.shared.layers.all().len(), layers);
    drop(spaces);
    value[kind] = 0;
    put(&value);
    let spaces = open();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    let foreign = spaces.get(Owner::Volumes, "foreign").unwrap();
    assert!(read(&foreign, 0, data.len()) == data);
    assert_eq!(spaces.shared.layers.all().len(), 1);
    store.check_counts(&[&foreign]);
}

#[test]
fn numbers_that_objects_have_are_not_given_out_again_whatever_is_said_to_be_next() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let block = BLOCK as usize;
    create(&spaces, "one", 4 * block as u64, BLOCK).unwrap().write(At::byte(0), &bytes(1, 4 * block)).unwrap();
    spaces.snapshot(Owner::Volumes, "one", "moment").unwrap();
    create(&spaces, "two", 4 * block as u64, BLOCK).unwrap().write(At::byte(0), &bytes(2, 4 * block)).unwrap();
    spaces.flush().unwrap();
    for said in [None, Some(1), Some(5)] {
        let engine = store.engine().unwrap();
        // As after a repair that found an older value.
        let change = (0, b"n".to_vec(), said.map(crate::record::encode_number));
        engine.submit(onefold_engine::Transaction { changes: vec![change], references: Vec::new() }).unwrap();
        let spaces = store.spaces(options());
        let new = create(&spaces, "new", 4 * block as u64, BLOCK).unwrap();
        assert!(read(&new, 0, 4 * block).iter().all(|byte| *byte == 0));
        new.write(At::byte(0), &bytes(3, 4 * block)).unwrap();
        spaces.flush().unwrap();
        drop((new, spaces, engine));
        store.reopen();
        let spaces = store.spaces(options());
        for (name, seed) in [("one", 1), ("moment", 1), ("two", 2), ("new", 3)] {
            assert!(read(&spaces.get(Owner::Volumes, name).unwrap(), 0, 4 * block) == bytes(seed, 4 * block), "{name} {said:?}");
        }
        delete(&spaces, "new").unwrap();
    }
}

#[test]
fn what_was_frozen_is_kept_as_a_snapshot_unless_its_space_is_gone() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let disk = create(&spaces, "disk", u64::from(BLOCK), BLOCK).unwrap();
    disk.write(At::byte(0), &[1; 10]).unwrap();
    let frozen = spaces.frozen(&|info| info.number == disk.number()).unwrap();
    disk.write(At::byte(0), &[2; 10]).unwrap();
    let kept = spaces.keep(&frozen, disk.number(), "kept").unwrap().unwrap();
    assert!(spaces.keep(&frozen, disk.number(), "kept").is_err(), "the name is taken");
    assert!(spaces.keep(&frozen, kept.number(), "other").unwrap().is_none());
    drop(frozen);
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!((read(&kept, 0, 10), read(&disk, 0, 10)), (vec![1; 10], vec![2; 10]));
    spaces.flush().unwrap();
    store.check_counts(&[&disk, &kept]);
    drop((disk, kept, spaces));
    store.reopen();
    let spaces = store.spaces(options());
    let info = spaces.get(Owner::Volumes, "kept").unwrap().info();
    assert_eq!((info.record.kind, info.record.is_read_only), (SpaceKind::Snapshot, true));
    assert_eq!(info.record.origin.unwrap().name, "disk");
    assert_eq!(read(&spaces.get(Owner::Volumes, "kept").unwrap(), 0, 10), [1; 10]);
    let number = spaces.get(Owner::Volumes, "disk").unwrap().number();
    let frozen = spaces.frozen(&|info| info.number == number).unwrap();
    delete(&spaces, "disk").unwrap();
    assert!(spaces.keep(&frozen, number, "late").unwrap().is_none());
}
