//! The object index on a disk that crashes at every sync, fails at every operation and fills up: it always agrees with
//! the log.

use super::*;
use onefold_ground::{CrashPolicy, SimulatedGround};
use onefold_oplog::Ownership;
use std::collections::BTreeMap;
use std::io::ErrorKind;

const OPTIONS: ObjectIndexOptions = ObjectIndexOptions { cache_bytes: 64 << 10, pending_bytes: 1 << 20 };

pub(super) fn open(ground: &SimulatedGround, access: Access, epoch: u64) -> Result<ObjectIndex> {
    ObjectIndex::open(Arc::new(ground.clone()), "objects", &Ownership::all(1, epoch), OPTIONS, access)
}

pub(super) fn created() -> SimulatedGround {
    let ground = SimulatedGround::new(1);
    let shared: Arc<dyn Ground> = Arc::new(ground.clone());
    ObjectIndex::create(&shared, "objects", 1).unwrap();
    ground
}

pub(super) type Log = Vec<(Position, Vec<Change>)>;

/// Makes batch `number` of the log: it overwrites, deletes and adds.
pub(super) fn batch(number: u64) -> (Position, Vec<Change>) {
    let changes = (0..40u64).map(|key| {
        let value = (!(key + number).is_multiple_of(5)).then(|| vec![number as u8; 300 + (key * 37 % 900) as usize]);
        (0, ((key * 7 + number * 3) % 90).to_be_bytes().to_vec(), value)
    });
    (Position((number + 1) * 512), changes.collect())
}

/// Runs an index: applies batches, with a persist after every second one that may fail. Returns the log.
fn live(index: &ObjectIndex, batches: u64) -> (Log, Result<()>) {
    let mut log = Log::new();
    let mut result = Ok(());
    for number in 0..batches {
        let (end, changes) = batch(number);
        index.stage(number + 1, &changes).unwrap();
        index.apply(end, number + 1, &changes).unwrap();
        log.push((end, changes));
        if number % 2 == 1 {
            result = result.and(index.persist());
        }
    }
    (log, result)
}

pub(super) fn check(index: &ObjectIndex, log: &Log) {
    let mut model = BTreeMap::new();
    for (_, key, value) in log.iter().flat_map(|(_, changes)| changes).cloned() {
        match value {
            Some(value) => model.insert(key, value),
            None => model.remove(&key),
        };
    }
    let found = index.range(0, &[], &[255; 9], usize::MAX).unwrap();
    assert!(found == model.into_iter().collect::<Vec<_>>());
}

/// Opens after a crash, first read-only, then for writing. Replays the log, persists and opens again.
fn check_after_crash(ground: &SimulatedGround, log: &Log) {
    let operations = ground.operations();
    let reader = open(ground, Access::Read, 0).unwrap();
    assert!(reader.position() <= log.last().map_or(Position(0), |(end, _)| *end));
    log.iter().for_each(|(end, changes)| reader.apply(*end, 0, changes).unwrap());
    check(&reader, log);
    drop(reader);
    assert_eq!(ground.operations(), operations, "a reader writes nothing");
    let index = open(ground, Access::ReadWrite, 2).unwrap();
    log.iter().for_each(|(end, changes)| index.apply(*end, 0, changes).unwrap());
    check(&index, log);
    index.persist().unwrap();
    drop(index);
    let index = open(ground, Access::ReadWrite, 3).unwrap();
    assert_eq!(index.position(), log.last().map_or(Position(0), |(end, _)| *end));
    check(&index, log);
    assert_eq!(index.verify(), []);
}

#[test]
fn m0_16_a_crash_at_any_sync_loses_nothing_that_the_log_has() {
    let ground = created();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    let before = ground.syncs();
    live(&index, 8).1.unwrap();
    let syncs = ground.syncs() - before;
    assert!(syncs >= 8, "{syncs}");
    for crash in 0..syncs {
        for policy in
            [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed: crash }, CrashPolicy::Random { seed: !crash }]
        {
            let ground = created();
            let index = open(&ground, Access::ReadWrite, 1).unwrap();
            ground.crash_after_syncs(crash);
            let (log, result) = live(&index, 8);
            assert!(result.is_err() && ground.is_crashed());
            drop(index);
            check_after_crash(&ground.restart(policy), &log);
        }
    }
}

#[test]
fn after_an_operation_failed_everything_is_readable_and_the_next_persist_succeeds() {
    let ground = created();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    let before = ground.operations();
    live(&index, 4).1.unwrap();
    let operations = ground.operations() - before;
    for failing in 0..operations {
        let ground = created();
        let index = open(&ground, Access::ReadWrite, 1).unwrap();
        ground.fail_operation(failing, ErrorKind::Other);
        let (log, _) = live(&index, 4);
        check(&index, &log);
        index.persist().unwrap();
        assert_eq!((index.pending_bytes(), index.position()), (0, log.last().unwrap().0), "operation {failing}");
        check(&index, &log);
        drop(index);
        check_after_crash(&ground.restart(CrashPolicy::Random { seed: failing }), &log);
    }
}

#[test]
fn a_full_disk_loses_nothing_and_the_index_goes_on_when_there_is_room() {
    let ground = created();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    ground.set_capacity(ground.used_bytes() + 8192);
    let mut log = Log::new();
    for number in 0..60 {
        // New keys each time, so that the database must grow.
        let (end, mut changes) = batch(number);
        changes.iter_mut().for_each(|(_, key, value)| {
            key.push(number as u8);
            *value = Some(vec![number as u8; 3000]);
        });
        index.apply(end, 0, &changes).unwrap();
        log.push((end, changes));
    }
    let error = index.persist().unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(index.pending_bytes() > 0);
    check(&index, &log);
    assert!(index.persist().unwrap_err().is_full());
    ground.set_capacity(1 << 30);
    index.persist().unwrap();
    check(&index, &log);
    drop(index);
    check_after_crash(&ground.restart(CrashPolicy::DropAll), &log);
}

#[test]
fn a_read_that_fails_once_is_tried_again() {
    let ground = created();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    let (log, result) = live(&index, 8);
    result.unwrap();
    drop(index);
    let index = open(&ground, Access::ReadWrite, 2).unwrap();
    ground.fail_read(0, ErrorKind::Other);
    check(&index, &log);
}

/// Removes every second of many objects, spread over all pages. One transaction would copy nearly all pages at once.
#[test]
fn on_a_full_disk_removals_are_persisted_in_steps_that_need_little_room() {
    let changes = |value: &dyn Fn(u32) -> Option<Vec<u8>>, step| -> Vec<Change> {
        (0..2000u32).step_by(step).map(|key| (0, key.to_be_bytes().to_vec(), value(key))).collect()
    };
    let ground = created();
    let index = open(&ground, Access::ReadWrite, 1).unwrap();
    let made = (Position(512), changes(&|key| Some(vec![key as u8; 1000]), 1));
    index.apply(made.0, 0, &made.1).unwrap();
    index.persist().unwrap();
    // Enough for one small transaction. All at once needs more than a megabyte.
    ground.set_capacity(ground.used_bytes() + (400 << 10));
    let removed = (Position(1024), changes(&|_| None, 2));
    index.apply(removed.0, 0, &removed.1).unwrap();
    index.persist().unwrap();
    assert_eq!((index.pending_bytes(), index.position()), (0, removed.0));
    let log = vec![made, removed];
    check(&index, &log);
    drop(index);
    check_after_crash(&ground.restart(CrashPolicy::DropAll), &log);
}
