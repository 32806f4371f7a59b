//! Tests the promises of a log in a bucket: with dying processes, lost answers, old lists and several writers.

mod lineage;
mod model;
mod sharing;

use super::*;
use crate::{Partition, PartitionClass};
use onefold_bucket::{Failure, MemoryBucket};
use onefold_ground::{Ground, SimulatedGround};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const STORE: [u8; 16] = *b"the store's name";
/// A trim is worth its requests after some batches.
const SMALL: LogOptions = LogOptions { segment_bytes: 16 << 10, limit_bytes: 1 << 20 };

/// Records are `key, value`: the key gets the value. A value of 0 deletes it.
#[derive(Debug)]
struct Settings;

type Values = BTreeMap<u8, u8>;

fn set(key: u8, value: u8) -> Record {
    Record { kind: 1, partition: Partition { class: PartitionClass::ObjectIndex, number: 0 }, payload: vec![key, value] }
}

fn apply(values: &mut Values, records: &[Record]) {
    for record in records {
        match record.payload[..] {
            [key, 0] => drop(values.remove(&key)),
            [key, value] => drop(values.insert(key, value)),
            _ => panic!("{record:?}"),
        }
    }
}

impl Meaning for Settings {
    fn effects(&self, records: &[Record], out: &mut KeyedEffects) -> std::result::Result<(), String> {
        records.iter().for_each(|record| out.push(&record.payload[..1], &record.payload[1..]));
        Ok(())
    }

    fn compose(&self, _: &[u8], _: &[u8], newer: &[u8]) -> std::result::Result<Vec<u8>, String> {
        Ok(newer.to_vec())
    }

    fn is_nothing(&self, _: &[u8], effect: &[u8]) -> bool {
        effect == [0]
    }

    fn records(&self, effects: &KeyedEffects) -> std::result::Result<Vec<Record>, String> {
        Ok(effects.iter().map(|(key, value)| set(key[0], value[0])).collect())
    }
}

fn place(bucket: Arc<dyn Bucket>, directory: &SimulatedGround) -> LogPlace {
    directory.create_directory("log").unwrap();
    LogPlace {
        bucket,
        store: STORE,
        ground: Arc::new(directory.clone()),
        directory: "log".to_owned(),
        keeps_copies: true,
        owner: [7; 8],
        is_of_node: false,
    }
}

fn look(bucket: &MemoryBucket, directory: &SimulatedGround) -> Result<ObjectLog> {
    // Pieces of a few keys.
    Ok(ObjectLog::open(place(Arc::new(bucket.clone()), directory), SMALL, Arc::new(Settings))?.with_piece_bytes(60))
}

fn never_wait(_: Position) -> Result<Wait> {
    Ok(Wait::Over)
}

fn take(bucket: &MemoryBucket, directory: &SimulatedGround) -> Result<ObjectLog> {
    look_for_taking(bucket, directory)?.taken(1, &[], &mut never_wait)
}

/// Does the first half of an opening for writing. The fence comes later.
fn look_for_taking(bucket: &MemoryBucket, directory: &SimulatedGround) -> Result<ObjectLog> {
    let place = place(Arc::new(bucket.clone()), directory);
    Ok(ObjectLog::look_for_taking(place, SMALL, Arc::new(Settings))?.with_piece_bytes(60))
}

fn made() -> MemoryBucket {
    let bucket = MemoryBucket::new();
    ObjectLog::create(&bucket, STORE).unwrap();
    bucket
}

fn directory() -> SimulatedGround {
    SimulatedGround::new(1)
}

/// Returns what the history and the log say together.
fn values(log: &ObjectLog) -> Values {
    let mut values = Values::new();
    let end = Cell::new(Position(0));
    let mut visit = |start: Position, next: Position, records: &[Record]| {
        assert!(start >= end.get() && next > start, "{start:?} to {next:?} after {end:?}");
        end.set(next);
        apply(&mut values, records);
        ControlFlow::Continue(())
    };
    log.replay_history(&mut visit).unwrap();
    // A view that applies the history gets to where the log begins.
    assert_eq!(end.get(), log.start());
    log.replay(log.start(), &mut visit).unwrap();
    assert_eq!(end.get(), log.end());
    values
}

/// Looks at a log from a machine that never saw it.
fn elsewhere(bucket: &MemoryBucket) -> Values {
    values(&look(bucket, &directory()).unwrap())
}

#[test]
fn batches_are_found_here_and_elsewhere() {
    let (bucket, here) = (made(), directory());
    let mut expected = Values::new();
    for turn in 1..5 {
        let log = take(&bucket, &here).unwrap();
        assert_eq!(log.epoch(), u64::from(turn));
        for key in 0..3 {
            let records = [set(key, turn), set(turn * 8, key)];
            let (start, end) = log.commit(&records).unwrap();
            assert!(start < end && end == log.end());
            apply(&mut expected, &records);
        }
        assert_eq!(values(&log), expected);
    }
    assert_eq!(elsewhere(&bucket), expected);
    let log = look(&bucket, &here).unwrap();
    assert_eq!((values(&log), log.applied_at_most()), (expected, log.end()));
    assert!(matches!(log.commit(&[set(1, 1)]), Err(LogError::ReadOnly)));
}

#[test]
fn the_former_owner_acknowledges_nothing_more() {
    let (bucket, here, there) = (made(), directory(), directory());
    let first = take(&bucket, &here).unwrap();
    first.commit(&[set(1, 1)]).unwrap();
    let second = take(&bucket, &there).unwrap();
    assert!(second.epoch() > first.epoch());
    assert!(matches!(first.commit(&[set(1, 2)]), Err(LogError::Fenced { .. })));
    assert!(matches!(first.commit(&[set(1, 3)]), Err(LogError::Fenced { .. })));
    second.commit(&[set(2, 2)]).unwrap();
    assert_eq!(elsewhere(&bucket), Values::from([(1, 1), (2, 2)]));
    // Its trim changes nothing that the second one needs.
    let _ = first.trim(first.end());
    assert_eq!(values(&look(&bucket, &there).unwrap()), Values::from([(1, 1), (2, 2)]));
}

#[test]
fn a_trim_keeps_the_effects_and_the_next_openings_find_them() {
    let (bucket, here) = (made(), directory());
    let mut expected = Values::new();
    for turn in 0..12u8 {
        let log = take(&bucket, &here).unwrap();
        for step in 0..40u8 {
            let records = [set(step.wrapping_mul(turn + 3) % 90, (step % 5).saturating_mul(turn + 1))];
            log.commit(&records).unwrap();
            apply(&mut expected, &records);
        }
        let upto = if turn % 2 == 0 { log.end() } else { Position(log.end().0 - 5 * ALIGNMENT_BYTES) };
        log.trim(upto).unwrap();
        while log.tidy().unwrap() {}
        assert_eq!(log.start(), upto);
        assert_eq!(values(&log), expected);
        assert_eq!(elsewhere(&bucket), expected);
        let log = look(&bucket, &here).unwrap();
        assert_eq!((values(&log), log.applied_at_most()), (expected.clone(), log.end()));
    }
    // What nobody needs is gone.
    let names = bucket.names();
    assert!(names.iter().filter(|name| name.starts_with("log/")).count() < 20, "{names:?}");
    let runs = look(&bucket, &here).unwrap().runs().unwrap().runs;
    let pieces: usize = runs.iter().map(|run| run.parts.len()).sum();
    assert_eq!(names.iter().filter(|name| name.starts_with("history/")).count(), pieces + 1);
    assert!(runs.len() < 6 && pieces > 3);
}

#[test]
fn a_jump_leaves_a_hole_that_is_no_damage() {
    let (bucket, here) = (made(), directory());
    let log = take(&bucket, &here).unwrap();
    log.commit(&[set(1, 1)]).unwrap();
    let far = Position(1 << 40);
    log.jump_to(far).unwrap();
    assert_eq!(log.end(), far);
    log.jump_to(Position(ALIGNMENT_BYTES)).unwrap();
    assert!(matches!(log.jump_to(Position(far.0 + 1)), Err(LogError::NotABoundary { .. })));
    let (start, _) = log.commit(&[set(2, 2)]).unwrap();
    assert_eq!(start, far);
    assert_eq!(elsewhere(&bucket), Values::from([(1, 1), (2, 2)]));
    assert!(log.used_bytes() < 10 * ALIGNMENT_BYTES);
}

/// Opens, commits, trims and tidies until something fails. Returns what was acknowledged, and what may be there
/// besides.
fn work(bucket: &MemoryBucket, here: &SimulatedGround, seed: u8, known: &mut Values, doubtful: &mut Vec<Record>) -> Result<()> {
    let log = take(bucket, here)?;
    for step in 0..45u8 {
        let records = vec![set(step.wrapping_mul(seed | 1) % 50, step.wrapping_add(seed) % 7)];
        *doubtful = records.clone();
        log.commit(&records)?;
        apply(known, &records);
        doubtful.clear();
        if step % 20 == 10 {
            log.trim(Position(log.end().0 - 3 * ALIGNMENT_BYTES))?;
        }
    }
    log.trim(log.end())?;
    while log.tidy()? {}
    Ok(())
}

#[test]
fn copies_of_another_log_are_refused_and_damaged_ones_are_fetched_again() {
    let (bucket, here) = (made(), directory());
    let log = take(&bucket, &here).unwrap();
    (0..4).for_each(|key| assert!(log.commit(&[set(key, 1)]).is_ok()));
    let older = bucket.fork();
    log.commit(&[set(9, 9)]).unwrap();
    let expected = values(&log);
    drop(log);
    // The bucket was restored from before the last batch.
    let error = look(&older, &here).unwrap_err().to_string();
    assert!(error.contains("restored from an older version"), "{error}");
    // The same, and somebody wrote to it.
    take(&older, &directory()).unwrap().commit(&[set(8, 8)]).unwrap();
    assert!(look(&older, &here).is_err());
    // A damaged copy is worth nothing, and costs nothing.
    let copy = here.open("log/0000000000000003", onefold_ground::Access::ReadWrite).unwrap();
    copy.write_at(80, b"xx").unwrap();
    assert_eq!(values(&look(&bucket, &here).unwrap()), expected);
}

#[test]
fn damage_in_the_bucket_is_an_error_and_never_another_history() {
    let (bucket, here) = (made(), directory());
    let (mut known, mut doubtful) = (Values::new(), Vec::new());
    work(&bucket, &here, 3, &mut known, &mut doubtful).unwrap();
    let log = take(&bucket, &here).unwrap();
    for key in 0..5 {
        log.commit(&[set(key, 3)]).unwrap();
        apply(&mut known, &[set(key, 3)]);
    }
    drop(log);
    for name in bucket.names() {
        for what in 0..3 {
            let bucket = bucket.fork();
            match what {
                0 => assert!(bucket.corrupt(&name, |bytes| bytes[30] ^= 1)),
                1 => assert!(bucket.corrupt(&name, |bytes| bytes.truncate(bytes.len() - 1))),
                _ => assert!(bucket.remove(&name)),
            }
            let Ok(log) = look(&bucket, &directory()) else { continue };
            let mut found = Values::new();
            let mut visit = |_: Position, _: Position, records: &[Record]| {
                apply(&mut found, records);
                ControlFlow::Continue(())
            };
            let read = log.replay_history(&mut visit).and_then(|()| log.replay(log.start(), &mut visit));
            // The last batches may be gone without a trace: nobody here knows that they were there.
            let is_last = bucket.names().iter().all(|other| !other.starts_with("log/") || *other < name);
            let is_manifest = name.starts_with("manifests/");
            assert!(read.is_err() || found == known || is_last || is_manifest, "{name}, {what}");
        }
    }
}

type Happening = Box<dyn FnOnce() + Send>;

/// A bucket in which something happens just before a request.
struct Meanwhile {
    bucket: MemoryBucket,
    /// The request, the start of its name, and what happens.
    then: Mutex<Option<(&'static str, &'static str, Happening)>>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bucket.fmt(formatter)
    }
}

impl Meanwhile {
    fn new(bucket: &MemoryBucket) -> Arc<Meanwhile> {
        Arc::new(Meanwhile { bucket: bucket.clone(), then: Mutex::new(None) })
    }

    fn before(&self, request: &'static str, name: &'static str, happening: impl FnOnce() + Send + 'static) {
        *self.then.lock() = Some((request, name, Box::new(happening)));
    }

    fn at(&self, request: &str, name: &str) -> &MemoryBucket {
        let happening = self.then.lock().take_if(|(wanted, start, _)| *wanted == request && name.starts_with(*start));
        if let Some((_, _, happening)) = happening {
            happening();
        }
        &self.bucket
    }
}

impl Bucket for Meanwhile {
    fn put_new(&self, name: &str, content: &[u8]) -> onefold_ground::Result<Put> {
        self.at("put", name).put_new(name, content)
    }

    fn put_over(&self, name: &str, content: &[u8]) -> onefold_ground::Result<()> {
        self.at("put", name).put_over(name, content)
    }

    fn replace(&self, name: &str, old: &[u8], new: &[u8]) -> onefold_ground::Result<Put> {
        self.at("put", name).replace(name, old, new)
    }

    fn get(&self, name: &str, limit_bytes: u64) -> onefold_ground::Result<Vec<u8>> {
        self.at("get", name).get(name, limit_bytes)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> onefold_ground::Result<Vec<u8>> {
        self.at("get", name).get_range(name, offset, length)
    }

    fn get_end(&self, name: &str, length: usize) -> onefold_ground::Result<(Vec<u8>, u64)> {
        self.at("get", name).get_end(name, length)
    }

    fn length(&self, name: &str) -> onefold_ground::Result<Option<u64>> {
        self.at("get", name).length(name)
    }

    fn list(&self, prefix: &str, after: &str) -> onefold_ground::Result<onefold_ground::Listing> {
        self.at("list", prefix).list(prefix, after)
    }

    fn delete(&self, names: &[String]) -> onefold_ground::Result<()> {
        self.at("delete", "").delete(names)
    }

    fn describe(&self, name: &str) -> String {
        self.bucket.describe(name)
    }

    fn requests(&self) -> onefold_ground::Requests {
        self.bucket.requests()
    }
}

fn look_through(bucket: &Arc<Meanwhile>, directory: &SimulatedGround) -> Result<ObjectLog> {
    Ok(ObjectLog::open(place(bucket.clone(), directory), SMALL, Arc::new(Settings))?.with_piece_bytes(60))
}

/// Gives 40 keys a value, and returns what they have.
fn fill(log: &ObjectLog, value: u8) -> Values {
    for key in 0..40 {
        log.commit(&[set(key, value)]).unwrap();
    }
    (0..40).map(|key| (key, value)).collect()
}

#[test]
fn a_history_of_which_nothing_is_left_brings_a_view_to_the_start_of_the_log_all_the_same() {
    let (bucket, here) = (made(), directory());
    let log = take(&bucket, &here).unwrap();
    // The first run is empty, as is a later one.
    for _ in 0..40 {
        log.commit(&[set(1, 0)]).unwrap();
    }
    log.trim(log.end()).unwrap();
    assert_eq!(elsewhere(&bucket), Values::new());
    let expected = fill(&log, 3);
    log.trim(log.end()).unwrap();
    for _ in 0..40 {
        log.commit(&[]).unwrap();
    }
    log.trim(log.end()).unwrap();
    assert!(log.start() == log.end() && log.runs().unwrap().runs.iter().any(|run| run.parts.is_empty()));
    assert_eq!(elsewhere(&bucket), expected);
}

#[test]
fn openings_that_looked_at_the_same_moment_do_not_take_one_fence_for_two() {
    let bucket = made();
    let [mut first, mut second] = [(); 2].map(|()| look_for_taking(&bucket, &directory()).unwrap());
    first.fence(1, &[], &mut never_wait).unwrap();
    second.fence(1, &[], &mut never_wait).unwrap();
    assert!(second.epoch() > first.epoch());
    assert!(matches!(first.commit(&[set(1, 1)]), Err(LogError::Fenced { .. })));
    second.commit(&[set(2, 2)]).unwrap();
    assert_eq!(elsewhere(&bucket), Values::from([(2, 2)]));
}

#[test]
fn a_restored_bucket_is_known_by_the_last_copy_and_by_the_manifest() {
    let (bucket, here) = (made(), directory());
    let oldest = bucket.fork();
    let log = take(&bucket, &here).unwrap();
    log.commit(&[set(1, 1)]).unwrap();
    let older = bucket.fork();
    log.commit(&[set(2, 2)]).unwrap();
    // Somebody opened the older one: the number of the last batch is that of a fence.
    take(&older, &directory()).unwrap();
    assert!(look(&older, &here).is_err());
    // No batch is left, and both have a first manifest.
    fill(&log, 1);
    log.trim(log.end()).unwrap();
    let other = take(&oldest, &directory()).unwrap();
    fill(&other, 2);
    other.trim(other.end()).unwrap();
    assert!(look(&oldest, &here).is_err());
}

#[test]
fn a_batch_of_another_history_is_damage() {
    let bucket = made();
    let log = take(&bucket, &directory()).unwrap();
    log.commit(&[set(1, 1)]).unwrap();
    let other = bucket.fork();
    log.commit(&[set(2, 2)]).unwrap();
    log.commit(&[set(3, 3)]).unwrap();
    // A fence, and a batch of the same number, place and length as the last one.
    take(&other, &directory()).unwrap().commit(&[set(4, 4)]).unwrap();
    let last = batch::name(4);
    bucket.insert(&last, &other.content(&last).unwrap());
    assert!(look(&bucket, &directory()).is_err());
}

#[test]
fn a_batch_of_which_nobody_knows_closes_the_log() {
    for failure in [Failure::Before, Failure::After] {
        let bucket = made();
        let log = take(&bucket, &directory()).unwrap();
        bucket.fail_at_change(bucket.changes(), failure);
        assert!(matches!(log.commit(&[set(1, 1)]), Err(LogError::NotSynced(_))));
        assert!(matches!(log.commit(&[set(2, 2)]), Err(LogError::Poisoned)));
    }
}

#[test]
fn a_former_owner_that_sweeps_late_deletes_nothing_of_its_successor() {
    let bucket = made();
    let slow = Meanwhile::new(&bucket);
    let mut former = look_through(&slow, &directory()).unwrap();
    former.fence(1, &[], &mut never_wait).unwrap();
    let mut expected = fill(&former, 1);
    let (there, after) = (bucket.clone(), [set(1, 9)]);
    slow.before("list", "history/", move || {
        let log = take(&there, &directory()).unwrap();
        for key in 100..140 {
            log.commit(&[set(key, 2)]).unwrap();
        }
        log.trim(log.end()).unwrap();
        log.commit(&after).unwrap();
    });
    let _ = former.trim(former.end());
    expected.extend((100..140).map(|key| (key, 2)));
    expected.insert(1, 9);
    assert_eq!(elsewhere(&bucket), expected);
}

#[test]
fn a_log_that_is_trimmed_meanwhile_is_opened_and_its_old_history_is_not_called_damaged() {
    let bucket = made();
    let log = take(&bucket, &directory()).unwrap();
    let expected = fill(&log, 1);
    let slow = Meanwhile::new(&bucket);
    slow.before("list", "log/", move || {
        log.trim(log.end()).unwrap();
        log.commit(&[set(1, 1)]).unwrap();
    });
    let reader = look_through(&slow, &directory()).unwrap();
    assert_eq!(values(&reader), expected);
    let reader = look(&bucket, &directory()).unwrap();
    let log = take(&bucket, &directory()).unwrap();
    fill(&log, 2);
    log.trim(log.end()).unwrap();
    while log.tidy().unwrap() {}
    let read = reader.replay_history(&mut |_, _, _| ControlFlow::Continue(()));
    assert!(matches!(read, Err(LogError::Trimmed { .. })), "{read:?}");
}

#[test]
fn a_jump_is_durable_on_return_and_a_directory_without_copies_has_applied_nothing() {
    let (bucket, here) = (made(), directory());
    let log = take(&bucket, &here).unwrap();
    log.commit(&[set(1, 1)]).unwrap();
    log.jump_to(Position(1 << 40)).unwrap();
    assert_eq!(look(&bucket, &here).unwrap().applied_at_most(), Position(1 << 40));
    let elsewhere = look(&bucket, &directory()).unwrap();
    assert_eq!((elsewhere.end(), elsewhere.applied_at_most()), (Position(1 << 40), Position(0)));
}

#[test]
fn a_full_log_takes_only_what_lets_it_be_trimmed() {
    let bucket = made();
    let log = take(&bucket, &directory()).unwrap();
    let full = (0..2000).find_map(|_| log.commit(&[set(1, 1)]).err()).unwrap();
    assert!(matches!(full, LogError::Full { .. }) && log.is_over_limit() && log.used_bytes() <= 2 * SMALL.limit_bytes);
    log.commit_beyond_limit(&[set(2, 2)]).unwrap();
    log.trim(log.end()).unwrap();
    log.commit(&[set(3, 3)]).unwrap();
    assert_eq!(elsewhere(&bucket), Values::from([(1, 1), (2, 2), (3, 3)]));
}

#[test]
fn a_piece_in_place_of_another_is_damage_and_a_damaged_last_copy_is_fetched_again() {
    let (bucket, here) = (made(), directory());
    let log = take(&bucket, &here).unwrap();
    let expected = fill(&log, 1);
    let last = here.open(&format!("log/{:016x}", 41), onefold_ground::Access::ReadWrite).unwrap();
    last.write_at(80, b"xx").unwrap();
    assert_eq!(values(&look(&bucket, &here).unwrap()), expected);
    log.trim(log.end()).unwrap();
    let runs = log.runs().unwrap().runs;
    let [first, second, ..] = &runs[0].pieces().collect::<Vec<_>>()[..] else { panic!("{runs:?}") };
    bucket.insert(&first.name(), &bucket.content(&second.name()).unwrap());
    let read = look(&bucket, &directory()).unwrap().replay_history(&mut |_, _, _| ControlFlow::Continue(()));
    assert!(matches!(read, Err(LogError::Damaged { .. })), "{read:?}");
}

#[test]
fn what_a_failed_trim_left_goes_with_the_next_one() {
    for change in 0..12 {
        let bucket = made();
        let log = take(&bucket, &directory()).unwrap();
        fill(&log, 1);
        bucket.fail_at_change(bucket.changes() + change, Failure::Before);
        let _ = log.trim(log.end());
        bucket.calm();
        let expected = fill(&log, 2);
        log.trim(log.end()).unwrap();
        let names = bucket.names();
        assert_eq!(names.iter().filter(|name| name.starts_with("log/")).count(), 1, "change {change}: {names:?}");
        assert_eq!(elsewhere(&bucket), expected);
    }
}

#[test]
fn an_opening_with_copies_asks_three_times() {
    let (bucket, here) = (made(), directory());
    drop(take(&bucket, &here).unwrap());
    for turn in 0..3 {
        let before = bucket.steps();
        let log = take(&bucket, &here).unwrap();
        // The last copy, the fence, the next manifest.
        assert_eq!(bucket.steps() - before, 3, "turn {turn}");
        log.commit(&[set(1, 1)]).unwrap();
        let before = bucket.steps();
        look(&bucket, &here).unwrap();
        // The last copy, the batch behind it, the next manifest.
        assert_eq!(bucket.steps() - before, 3, "turn {turn}");
        if turn == 1 {
            fill(&log, 1);
            log.trim(log.end()).unwrap();
        }
        log.commit_last(&[]).unwrap();
    }
}

/// Opens for writing on another machine. Returns how often it was asked, with the error when it was asked more than
/// `patience` times.
fn take_elsewhere(bucket: &MemoryBucket, directory: &SimulatedGround, patience: usize) -> (usize, Result<ObjectLog>) {
    let mut asked = 0;
    let elsewhere = LogPlace { owner: [8; 8], ..place(Arc::new(bucket.clone()), directory) };
    let mut wait = |_| {
        asked += 1;
        if asked > patience { Err(LogError::Poisoned) } else { Ok(Wait::LookAgain) }
    };
    let looked = ObjectLog::look_for_taking(elsewhere, SMALL, Arc::new(Settings));
    let taken = looked.and_then(|log| log.taken(1, &[], &mut wait));
    (asked, taken)
}

#[test]
fn a_log_is_taken_from_somebody_elsewhere_only_when_they_have_ended_or_the_caller_says_so() {
    let (bucket, here, there) = (made(), directory(), directory());
    // Nobody was here.
    assert!(take_elsewhere(&bucket.fork(), &directory(), 0).1.is_ok());
    let log = take(&bucket, &here).unwrap();
    log.commit(&[set(1, 1)]).unwrap();
    for place in [&there, &directory()] {
        let (asked, refused) = take_elsewhere(&bucket, place, 2);
        assert!(asked == 3 && matches!(refused, Err(LogError::Poisoned)));
    }
    log.commit(&[set(1, 2)]).unwrap();
    // The owner went on writing: nobody has put a fence.
    log.commit_last(&[set(1, 3)]).unwrap();
    assert!(matches!(log.commit(&[set(1, 4)]), Err(LogError::ReadOnly)));
    let (asked, taken) = take_elsewhere(&bucket, &there, 0);
    let taken = taken.unwrap();
    assert!(asked == 0 && taken.was_ended());
    taken.commit(&[set(1, 5)]).unwrap();
    // The copies here end before the fence there.
    let mut asked = 0;
    let back = look_for_taking(&bucket, &here).unwrap().taken(1, &[], &mut |_| {
        asked += 1;
        if asked == 2 {
            taken.commit_last(&[])?;
        }
        if asked > 2 { Err(LogError::Poisoned) } else { Ok(Wait::LookAgain) }
    });
    let back = back.unwrap();
    assert!(asked == 2 && back.was_ended() && values(&back) == Values::from([(1, 5)]));
    // It dies, and comes back to its own place.
    drop(back);
    let again = look_for_taking(&bucket, &here).unwrap().taken(1, &[], &mut |_| Err(LogError::Poisoned));
    assert!(!again.unwrap().was_ended());
}

#[test]
fn a_reader_sees_all_that_was_acknowledged_before_it_began() {
    // The batch behind its last copy is trimmed and deleted while it looks.
    for moment in ["log/0000000000000003", "log/0000000000000004", "manifests/0000000000000001"] {
        let (bucket, here, there) = (made(), directory(), directory());
        let log = take(&bucket, &here).unwrap();
        log.commit(&[set(50, 1)]).unwrap();
        drop(log);
        look(&bucket, &there).unwrap();
        let log = take(&bucket, &here).unwrap();
        log.commit(&[set(50, 2)]).unwrap();
        let slow = Meanwhile::new(&bucket);
        slow.before("get", moment, move || {
            fill(&log, 1);
            log.trim(log.end()).unwrap();
        });
        let found = values(&look_through(&slow, &there).unwrap());
        assert_eq!(found.get(&50), Some(&2), "before {moment}");
    }
}

#[test]
fn a_reader_that_goes_on_from_an_earlier_look_sees_all_that_was_acknowledged_since() {
    for (value, moment) in (2..).zip([None, Some("log/0000000000000004"), Some("manifests/0000000000000001")]) {
        let (bucket, here, there) = (made(), directory(), directory());
        let log = take(&bucket, &here).unwrap();
        log.commit(&[set(50, 1)]).unwrap();
        let slow = Meanwhile::new(&bucket);
        let place = place(slow.clone(), &there);
        let looked = ObjectLog::look_for_taking(place, SMALL, Arc::new(Settings)).unwrap().with_piece_bytes(60);
        log.commit(&[set(50, value)]).unwrap();
        let trim = move || {
            fill(&log, 1);
            log.trim(log.end()).unwrap();
        };
        match moment {
            Some(moment) => slow.before("get", moment, trim),
            None => trim(),
        }
        let before = there.list("log").unwrap();
        let reader = looked.for_reading().unwrap();
        assert_eq!(values(&reader).get(&50), Some(&value), "before {moment:?}");
        // A writer may use the directory.
        assert_eq!(there.list("log").unwrap(), before);
    }
}
