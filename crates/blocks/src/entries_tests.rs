//! Entries by example; against a model: `entries_model.rs`.

use super::*;
use crate::disks::{BLOCK, create, create_filesystem, options};
use crate::testing::TestStore;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const OWNER: Owner = Owner::Filesystems;

fn put(key: u32, value: u32) -> (Vec<u8>, Option<Vec<u8>>) {
    (key.to_be_bytes().to_vec(), Some(value.to_be_bytes().to_vec()))
}

fn keys_in_layers(spaces: &Spaces) -> Vec<u64> {
    spaces.shared.layers.all().iter().map(|node| *node.mappings.lock()).collect()
}

#[test]
fn a_filesystem_has_no_end_and_a_name_of_its_own() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    create(&spaces, "same", u64::from(BLOCK), BLOCK).unwrap();
    let filesystem = create_filesystem(&spaces, "same").unwrap();
    assert_eq!((filesystem.end_bytes(), filesystem.kind().name()), (None, "filesystem"));
    filesystem.write(At::new(1 << 50, 9), b"far").unwrap();
    assert!(filesystem.set_end(5, spaces.engine().permit_deletion("resize")).is_err());
    spaces.snapshot(OWNER, "same", "then").unwrap();
    spaces.flush().unwrap();
    drop((filesystem, spaces));
    store.reopen();
    let spaces = store.spaces(options());
    let kinds: Vec<_> = spaces.list().into_iter().map(|info| (info.record.name, info.record.kind)).collect();
    let expected = [
        ("same".to_owned(), SpaceKind::Volume),
        ("same".to_owned(), SpaceKind::Filesystem),
        ("then".to_owned(), SpaceKind::FilesystemSnapshot),
    ];
    assert_eq!(kinds, expected);
    let mut found = [0; 3];
    spaces.get(OWNER, "then").unwrap().read(At::new(1 << 50, 9), &mut found).unwrap();
    assert_eq!(&found, b"far");
    assert!(matches!(spaces.get(Owner::Volumes, "then"), Err(SpaceError::NotFound { .. })));
}

#[test]
fn a_space_with_only_changed_entries_is_not_taken_for_unchanged() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let filesystem = create_filesystem(&spaces, "f").unwrap();
    filesystem.submit_entries(vec![put(1, 1)]).unwrap();
    let first = spaces.snapshot(OWNER, "f", "first").unwrap();
    filesystem.submit_entries(vec![put(1, 2)]).unwrap();
    let second = spaces.snapshot(OWNER, "f", "second").unwrap();
    filesystem.submit_entries(vec![(put(1, 0).0, None)]).unwrap();
    let third = spaces.snapshot(OWNER, "f", "third").unwrap();
    let value = |space: &Space| space.entry(&1u32.to_be_bytes()).unwrap().map(|value| value[3]);
    assert_eq!([value(&first), value(&second), value(&third), value(&filesystem)], [Some(1), Some(2), None, None]);
    let layers = spaces.shared.layers.all().len();
    spaces.snapshot(OWNER, "f", "fourth").unwrap();
    assert_eq!(spaces.shared.layers.all().len(), layers, "nothing was written since");
}

#[test]
fn a_removed_entry_leaves_something_behind_only_where_it_hides_something() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let filesystem = create_filesystem(&spaces, "f").unwrap();
    let remove = |key: u32| vec![(put(key, 0).0, None)];
    filesystem.submit_entries(vec![put(1, 1), put(2, 2)]).unwrap();
    filesystem.submit_entries(remove(1)).unwrap();
    filesystem.submit_entries(remove(1)).unwrap();
    assert_eq!(keys_in_layers(&spaces), [1]);
    spaces.snapshot(OWNER, "f", "then").unwrap();
    filesystem.submit_entries(vec![put(1, 1)]).unwrap();
    filesystem.submit_entries(remove(1)).unwrap();
    assert_eq!(keys_in_layers(&spaces), [1, 0]);
    filesystem.submit_entries(remove(2)).unwrap();
    filesystem.submit_entries(remove(2)).unwrap();
    assert_eq!(keys_in_layers(&spaces), [1, 1]);
    spaces.delete(OWNER, "then", spaces.engine().permit_deletion("delete").unwrap()).unwrap();
    assert!(spaces.resume_deletions(&|| true).unwrap());
    assert_eq!(keys_in_layers(&spaces), [0]);
    // Of several changes of a key the last one counts.
    filesystem.submit_entries(vec![put(1, 1), (put(1, 0).0, None), put(1, 3)]).unwrap();
    assert_eq!(filesystem.entry(&1u32.to_be_bytes()).unwrap(), Some(3u32.to_be_bytes().to_vec()));
    assert_eq!(keys_in_layers(&spaces), [1]);
}

#[test]
fn a_hundred_thousand_entries_are_one_change() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let filesystem = create_filesystem(&spaces, "f").unwrap();
    let value = |key: u32| vec![key as u8 | 1; 100];
    let count = 100_000u32;
    filesystem.submit_entries((0..count).map(|key| (key.to_be_bytes().to_vec(), Some(value(key)))).collect()).unwrap();
    filesystem.flush().unwrap();
    spaces.snapshot(OWNER, "f", "then").unwrap();
    filesystem.submit_entries((0..count).filter(|key| key % 2 == 0).map(|key| (key.to_be_bytes().to_vec(), None)).collect()).unwrap();
    filesystem.flush().unwrap();
    drop((filesystem, spaces));
    store.reopen();
    let spaces = store.spaces(options());
    for (name, step) in [("then", 1), ("f", 2)] {
        let space = spaces.get(OWNER, name).unwrap();
        for key in (0..count).step_by(997) {
            let expected = (step == 1 || key % 2 == 1).then(|| value(key));
            assert_eq!(space.entry(&key.to_be_bytes()).unwrap(), expected, "{key} of {name}");
        }
    }
    assert_eq!(keys_in_layers(&spaces), [u64::from(count), u64::from(count / 2)]);
}

#[test]
fn a_change_with_one_entry_that_cannot_be_stored_is_refused_as_a_whole() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let filesystem = create_filesystem(&spaces, "f").unwrap();
    let long = vec![0; MAX_ENTRY_KEY_BYTES + 1];
    assert!(filesystem.submit_entries(vec![put(1, 1), (long, None)]).is_err());
    assert!(filesystem.submit_entries(vec![put(1, 1), (Vec::new(), Some(Vec::new()))]).is_err());
    assert_eq!(filesystem.entry(&1u32.to_be_bytes()).unwrap(), None);
    let largest = vec![(vec![0xff; MAX_ENTRY_KEY_BYTES], Some(vec![7; MAX_ENTRY_VALUE_BYTES]))];
    filesystem.submit_entries(largest.clone()).unwrap();
    filesystem.flush().unwrap();
    drop((filesystem, spaces));
    store.reopen();
    let filesystem = store.spaces(options()).get(OWNER, "f").unwrap();
    assert_eq!(filesystem.entry(&largest[0].0).unwrap(), largest[0].1);
}

/// While two maps of a layer become one, in either direction, readers see every entry and writers lose none.
#[test]
fn entries_keep_their_values_while_others_write_and_layers_are_merged() {
    let mut store = TestStore::new();
    let spaces = store.spaces(options());
    let number = |key: &[u8]| u32::from_be_bytes(key.try_into().unwrap());
    for round in 0..60u32 {
        let filesystem = create_filesystem(&spaces, "f").unwrap();
        let is_upper_larger = round % 2 == 0;
        let (lower, upper) = if is_upper_larger { (40, 60) } else { (60, 40) };
        // Even keys are in the snapshot, odd ones above it. Both are written again or removed beside the merge.
        let mut known: BTreeMap<u32, u32> = (0..lower).map(|key| (2 * key, 0)).collect();
        filesystem.submit_entries((0..lower).map(|key| put(2 * key, 0)).collect()).unwrap();
        spaces.snapshot(OWNER, "f", "then").unwrap();
        filesystem.submit_entries((0..upper).map(|key| put(2 * key + 1, 0)).collect()).unwrap();
        known.extend((0..upper).map(|key| (2 * key + 1, 0)));
        spaces.delete(OWNER, "then", spaces.engine().permit_deletion("delete").unwrap()).unwrap();
        // Nobody writes these.
        let steady: Vec<u32> = known.keys().copied().filter(|key| key % 3 == 0).collect();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let mut next = Some(Vec::new());
                    let mut found = Vec::new();
                    while let Some(from) = next {
                        let (page, further) = filesystem.entries(&from, &[0xff; 4], 7).unwrap();
                        found.extend(page.iter().map(|(key, _)| number(key)).filter(|key| key % 3 == 0));
                        next = further;
                    }
                    assert_eq!(found, steady);
                    steady.iter().for_each(|key| assert_eq!(filesystem.entry(&key.to_be_bytes()).unwrap(), put(*key, 0).1));
                }
            });
            let cleaner = scope.spawn(|| spaces.resume_deletions(&|| true).unwrap());
            let written: Vec<u32> = known.keys().rev().copied().filter(|key| key % 3 != 0).collect();
            for (at, key) in written.into_iter().enumerate() {
                let value = (at % 4 != 0).then_some(round + 1);
                filesystem.submit_entries(vec![(put(key, 0).0, value.and_then(|value| put(key, value).1))]).unwrap();
                match value {
                    Some(value) => drop(known.insert(key, value)),
                    None => drop(known.remove(&key)),
                }
            }
            assert!(cleaner.join().unwrap());
            is_done.store(true, Ordering::Relaxed);
        });
        let (mut found, mut next) = (BTreeMap::new(), Some(Vec::new()));
        while let Some(from) = next {
            let (page, further) = filesystem.entries(&from, &[0xff; 4], 99).unwrap();
            found.extend(page.into_iter().map(|(key, value)| (number(&key), number(&value))));
            next = further;
        }
        assert_eq!(found, known, "round {round}");
        assert_eq!(keys_in_layers(&spaces), [known.len() as u64]);
        spaces.delete(OWNER, "f", spaces.engine().permit_deletion("delete").unwrap()).unwrap();
        assert!(spaces.resume_deletions(&|| true).unwrap());
    }
}
