//! The object index on files with damaged bytes: it gives an error that names the file, or the right answer, and never
//! panics.

use super::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_oplog::Ownership;
use std::collections::BTreeMap;

const OPTIONS: ObjectIndexOptions = ObjectIndexOptions { cache_bytes: 64 << 10, pending_bytes: 4 << 20 };
const FILE: &str = "objects/0000.redb";

fn open(ground: &SimulatedGround, access: Access) -> Result<ObjectIndex> {
    ObjectIndex::open(Arc::new(ground.clone()), "objects", &Ownership::all(1, 9), OPTIONS, access)
}

/// Makes a store after several commits. Returns it with its content.
fn filled() -> (SimulatedGround, BTreeMap<Vec<u8>, Vec<u8>>) {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    ObjectIndex::create(&shared, "objects", 1).unwrap();
    let index = open(&ground, Access::ReadWrite).unwrap();
    let mut model = BTreeMap::new();
    for commit in 0..6u64 {
        let changes: Vec<Change> = (0..120u64)
            .map(|key| (0, (key * 5 % 97 + commit).to_be_bytes().to_vec(), Some(vec![commit as u8; 200 + key as usize * 4])))
            .collect();
        index.apply(Position(512 * (commit + 1)), 0, &changes).unwrap();
        index.persist().unwrap();
        model.extend(changes.into_iter().map(|(_, key, value)| (key, value.unwrap())));
    }
    drop(index);
    (ground.restart(CrashPolicy::KeepAll), model)
}

/// Opens, reads, verifies and writes. Checks that everything it reads is right. Returns whether it saw damage.
fn use_it(ground: &SimulatedGround, model: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str) -> bool {
    let is_named = |error: &IndexError| {
        assert!(error.to_string().contains(FILE), "{what}: {error}");
        true
    };
    let mut is_seen = false;
    for access in [Access::Read, Access::ReadWrite] {
        let index = match open(ground, access) {
            Ok(index) => index,
            Err(error) => {
                assert!(error.is_damage() || matches!(error, IndexError::Ground(_)), "{what}: {error:?}");
                is_seen |= is_named(&error);
                continue;
            }
        };
        // A header one commit older is a valid state too, if the log goes on from there.
        if index.position() != Position(512 * 6) {
            assert_eq!(index.position(), Position(512 * 5), "{what}");
            continue;
        }
        match index.range(0, &[], &[255; 9], usize::MAX) {
            Ok(found) => assert!(found.into_iter().eq(model.clone()), "{what}"),
            Err(error) => is_seen |= is_named(&error),
        }
        for (key, value) in model.iter().step_by(10) {
            match index.get(0, key) {
                Ok(found) => assert!(found.as_ref() == Some(value), "{what}"),
                Err(error) => is_seen |= is_named(&error),
            }
        }
        let damaged = index.verify();
        assert!(!is_seen || !damaged.is_empty(), "{what}: seen by reading, not by verify");
        is_seen |= !damaged.is_empty();
        assert!(damaged.is_empty() || index.has_met_damage(), "{what}: not noted");
        assert!(is_seen || !index.has_met_damage(), "{what}: noted, but nobody saw it");
        if access == Access::ReadWrite {
            let changes: Vec<Change> = model.keys().map(|key| (0, key.clone(), Some(vec![1]))).collect();
            index.apply(Position(512 * 7), 0, &changes).unwrap();
            if let Err(error) = index.persist() {
                is_seen |= is_named(&error);
            }
            assert!(index.range(0, &[], &[255; 9], usize::MAX).map_or_else(|error| is_named(&error), |found| found.len() == model.len()));
        }
    }
    is_seen
}

fn length(ground: &SimulatedGround) -> u64 {
    ground.open(FILE, Access::Read).unwrap().len().unwrap()
}

#[test]
fn a_flipped_byte_anywhere_is_never_read_as_data() {
    let (ground, model) = filled();
    let mut seen = 0;
    let places: Vec<u64> = (0..length(&ground)).step_by(4608 * 3 + 1111).collect();
    for at in &places {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.corrupt(FILE, *at, 0x10).unwrap();
        seen += usize::from(use_it(&damaged, &model, &format!("byte {at}")));
    }
    assert!(seen > 0 && seen < places.len(), "{seen} of {}", places.len());
}

#[test]
fn a_zeroed_page_is_never_read_as_data() {
    let (ground, model) = filled();
    for at in (0..length(&ground)).step_by(4608 * 5) {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.open(FILE, Access::ReadWrite).unwrap().write_at(at, &[0; 4608]).unwrap();
        use_it(&damaged, &model, &format!("zeros at {at}"));
    }
}

#[test]
fn a_truncated_zeroed_or_deleted_file_is_refused() {
    let (ground, model) = filled();
    let length = length(&ground);
    for kept in [0, 1, 4096, 4608, 9216, 20_000, length / 2, length - 4608, length - 1] {
        let damaged = ground.snapshot(CrashPolicy::KeepAll);
        damaged.open(FILE, Access::ReadWrite).unwrap().set_len(kept).unwrap();
        assert!(use_it(&damaged, &model, &format!("cut to {kept}")));
        assert!(open(&damaged, Access::ReadWrite).is_err(), "cut to {kept}");
    }
    let damaged = ground.snapshot(CrashPolicy::KeepAll);
    damaged.open(FILE, Access::ReadWrite).unwrap().write_at(0, &vec![0; length as usize]).unwrap();
    assert!(use_it(&damaged, &model, "zeros"));
    damaged.remove(FILE).unwrap();
    assert!(use_it(&damaged, &model, "deleted"));
}
