//! Tests the log's promises on a disk that crashes.

mod crash;
mod damage;
mod jumps;
mod log_salvage;
mod trials;

use super::*;
use crate::batch::ALIGNMENT_BYTES;
use crate::{Partition, PartitionClass};
use onefold_ground::{CrashPolicy, SimulatedGround};
use std::ops::ControlFlow;

const STORE: [u8; 16] = *b"the store's name";
const DIRECTORY: &str = "log";
/// A header and 24 KiB: a few batches fill a segment.
const SMALL: LogOptions = LogOptions { segment_bytes: 28 << 10, limit_bytes: 1 << 20 };

type Replayed = Vec<(Position, Position, Vec<Record>)>;

fn record(tag: u64, length_bytes: usize) -> Record {
    let payload = (0..length_bytes as u64).map(|at| (at.wrapping_mul(131) ^ tag.wrapping_mul(0x9e37_79b9)) as u8).collect();
    Record { kind: tag as u8, partition: Partition { class: PartitionClass::Container, number: tag as u16 }, payload }
}

fn share(ground: &SimulatedGround) -> Arc<dyn Ground> {
    Arc::new(ground.clone())
}

fn create(ground: &SimulatedGround) -> SegmentLog {
    SegmentLog::create(&share(ground), DIRECTORY, STORE, SMALL).unwrap();
    open(ground, 1).unwrap()
}

fn open(ground: &SimulatedGround, epoch: u64) -> Result<SegmentLog> {
    SegmentLog::open(share(ground), DIRECTORY, STORE, SMALL, Opening::ReadWrite { epoch })
}

fn replay(log: &SegmentLog, from: Position) -> Result<Replayed> {
    let mut found = Vec::new();
    log.replay(from, &mut |start, end, records| {
        found.push((start, end, records.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Commits one record and returns what its replay must show.
fn commit(log: &SegmentLog, tag: u64, length_bytes: usize) -> (Position, Position, Vec<Record>) {
    let records = vec![record(tag, length_bytes)];
    let (start, end) = log.commit(&records).unwrap();
    (start, end, records)
}

fn fill(log: &SegmentLog, batches: u64) -> Replayed {
    (0..batches).map(|tag| commit(log, tag, 1500)).collect()
}

/// Returns a record for a batch at `start`. The batch's second page is the image of a batch that belongs there. The
/// image claims only that everything before `start` was durable.
fn record_with_image(start: Position, epoch: u64) -> Record {
    let mut image = Vec::new();
    encode_batch(&mut image, &[record(99, 50)], Position(start.0 + ALIGNMENT_BYTES), &STORE, epoch);
    image[16..24].copy_from_slice(&start.0.to_le_bytes());
    // The payload is one record: kind, class, number, length, 50 bytes.
    let checked = [&image[..56], &image[64..64 + 5 + 50]].concat();
    image[56..64].copy_from_slice(&onefold_ground::checksum(&checked).to_le_bytes());
    assert_eq!(crate::parse_batch(&image).unwrap().durable, start);
    // Before it come the headers of the batch (64) and of the record (6).
    let mut record = record(2, ALIGNMENT_BYTES as usize - 64 - 6);
    record.payload.extend(&image);
    record.payload.extend([5; 300]);
    record
}

fn names(ground: &SimulatedGround) -> Vec<String> {
    ground.list(DIRECTORY).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn m0_17_committed_batches_are_replayed_in_order_after_a_restart() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let committed = fill(&log, 20);
    assert!(log.segments() > 2);
    assert_eq!(replay(&log, log.start()).unwrap(), committed);
    let ground = ground.restart(CrashPolicy::DropAll);
    for log in [open(&ground, 2).unwrap(), SegmentLog::open(share(&ground), DIRECTORY, STORE, SMALL, Opening::ReadOnly).unwrap()] {
        assert_eq!((log.start(), log.end()), (Position(0), committed.last().unwrap().1));
        assert_eq!(log.used_bytes(), log.end().0);
        assert_eq!(replay(&log, log.start()).unwrap(), committed);
    }
}

#[test]
fn m0_17_replay_starts_at_any_batch_and_nowhere_else() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let committed = fill(&log, 20);
    for (index, (start, ..)) in committed.iter().enumerate() {
        assert_eq!(replay(&log, *start).unwrap(), committed[index..]);
        assert!(matches!(replay(&log, Position(start.0 + 512)), Err(LogError::NotABoundary { .. })));
        assert!(matches!(replay(&log, Position(start.0 + 1)), Err(LogError::NotABoundary { .. })));
    }
    assert_eq!(replay(&log, log.end()).unwrap(), []);
    assert!(matches!(replay(&log, Position(log.end().0 + ALIGNMENT_BYTES)), Err(LogError::PastEnd { .. })));
    let mut seen = 0;
    let mut visit = |_, _, _: &[Record]| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    log.replay(Position(0), &mut visit).unwrap();
    assert_eq!(seen, 3);
}

#[test]
fn a_commit_costs_one_sync_and_none_when_there_is_nothing_to_say() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let (syncs, operations) = (ground.syncs(), ground.operations());
    commit(&log, 1, 1000);
    assert_eq!((ground.syncs() - syncs, ground.operations() - operations), (1, 2));
    assert_eq!(log.commit(&[]).unwrap(), (log.end(), log.end()));
    assert_eq!(ground.syncs() - syncs, 1);
}

#[test]
fn m0_17_trimmed_segments_are_recycled_and_their_old_content_is_not_replayed() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let mut committed = Vec::new();
    for tag in 0..200 {
        committed.push(commit(&log, tag, 300 + (tag as usize * 37) % 2000));
        if tag % 10 == 9 {
            log.trim(log.end()).unwrap();
            assert_eq!(log.segments(), 1);
            assert!(names(&ground).len() <= 1 + SPARES_MAX);
        }
    }
    assert!(log.start() > Position(0) && matches!(replay(&log, Position(0)), Err(LogError::BeforeStart { .. })));
    committed.retain(|(start, ..)| *start >= log.start());
    for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll] {
        let ground = ground.restart(policy);
        let log = open(&ground, 2).unwrap();
        assert_eq!(replay(&log, log.start()).unwrap(), committed);
        let more = commit(&log, 1000, 100);
        assert_eq!(replay(&log, log.start()).unwrap().last(), Some(&more));
    }
}

#[test]
fn trimming_keeps_what_is_not_applied() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let committed = fill(&log, 20);
    for (index, (start, ..)) in committed.iter().enumerate() {
        log.trim(*start).unwrap();
        assert_eq!(replay(&log, *start).unwrap(), committed[index..]);
    }
}

#[test]
fn a_batch_larger_than_a_segment_gets_its_own() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let committed = [commit(&log, 1, 100_000), commit(&log, 2, 10), commit(&log, 3, 50_000), commit(&log, 4, 50_000)];
    let ground = ground.restart(CrashPolicy::DropAll);
    let log = open(&ground, 2).unwrap();
    assert_eq!(replay(&log, Position(0)).unwrap(), committed);
    log.trim(log.end()).unwrap();
    assert_eq!(log.segments(), 1);
}

#[test]
fn a_batch_beyond_the_largest_is_refused_and_changes_nothing() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let mut record = record(1, 0);
    record.payload = vec![0; BATCH_MAX_BYTES as usize];
    assert!(matches!(log.commit(&[record]), Err(LogError::TooLarge { .. })));
    assert_eq!(log.end(), Position(0));
}

#[test]
fn m0_17_a_log_at_its_limit_says_so_and_at_twice_the_limit_takes_no_more_until_it_is_trimmed() {
    let ground = SimulatedGround::new(1);
    create(&ground);
    let options = LogOptions { limit_bytes: 50_000, ..SMALL };
    let log = SegmentLog::open(share(&ground), DIRECTORY, STORE, options, Opening::ReadWrite { epoch: 2 }).unwrap();
    let full = loop {
        match log.commit(&[record(1, 2000)]) {
            Ok((_, end)) => assert_eq!(log.is_over_limit(), end.0 > 50_000),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, LogError::Full { used_bytes: 97_281..=100_000, limit_bytes: 100_000 }) && full.is_full(), "{full}");
    log.trim(log.end()).unwrap();
    commit(&log, 2, 2000);
}

#[test]
fn m0_17_a_full_log_takes_what_lets_it_be_trimmed() {
    let ground = SimulatedGround::new(1);
    let options = LogOptions { limit_bytes: 50_000, ..SMALL };
    drop(create(&ground));
    let log = SegmentLog::open(share(&ground), DIRECTORY, STORE, options, Opening::ReadWrite { epoch: 2 }).unwrap();
    while log.commit(&[record(1, 1500)]).is_ok() {}
    let (checkpoint, _) = log.commit_beyond_limit(&[record(2, 20_000)]).unwrap();
    assert!(log.commit(&[record(3, 10)]).unwrap_err().is_full());
    log.trim(checkpoint).unwrap();
    assert!(!log.is_over_limit());
    commit(&log, 4, 1500);
}

#[test]
fn m0_17_a_log_left_long_under_a_greater_limit_is_written_on_and_a_large_batch_is_taken_below_the_limit() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    while log.used_bytes() < 500_000 {
        commit(&log, 1, 1500);
    }
    drop(log);
    let options = LogOptions { limit_bytes: 50_000, ..SMALL };
    let log = SegmentLog::open(share(&ground), DIRECTORY, STORE, options, Opening::ReadWrite { epoch: 2 }).unwrap();
    let (_, end, _) = commit(&log, 2, 1500);
    while log.commit(&[record(1, 1500)]).is_ok() {}
    assert!((540_000..=560_000).contains(&log.used_bytes()), "{} bytes", log.used_bytes());
    log.trim(end).unwrap();
    assert!(log.used_bytes() <= 80_000, "{} bytes", log.used_bytes());
    log.trim(log.end()).unwrap();
    commit(&log, 3, 300_000);
    assert!(log.commit(&[record(4, 10)]).unwrap_err().is_full());
    log.trim(log.end()).unwrap();
    commit(&log, 5, 1500);
}

#[test]
fn m0_17_segments_made_larger_than_the_limit_allows_do_not_keep_the_log_from_being_trimmed() {
    let ground = SimulatedGround::new(1);
    SegmentLog::create(&share(&ground), DIRECTORY, STORE, LogOptions { segment_bytes: 8 << 20, limit_bytes: 1 << 30 }).unwrap();
    let options = LogOptions { segment_bytes: 8 << 20, limit_bytes: 64 << 10 };
    let log = SegmentLog::open(share(&ground), DIRECTORY, STORE, options, Opening::ReadWrite { epoch: 1 }).unwrap();
    for tag in 0..200 {
        let (_, end, _) = commit(&log, tag, 1500);
        if log.is_over_limit() {
            log.trim(end).unwrap();
            assert!(log.used_bytes() <= 20 << 10, "{} bytes are left", log.used_bytes());
        }
    }
}

#[test]
fn m0_17_a_full_disk_is_noticed_when_a_segment_is_opened_and_the_log_goes_on_when_there_is_room() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    ground.set_capacity(ground.used_bytes() + 4096);
    let mut committed = Vec::new();
    let error = loop {
        let records = vec![record(committed.len() as u64, 20_000)];
        match log.commit(&records) {
            Ok((start, end)) => committed.push((start, end, records)),
            Err(error) => break error,
        }
    };
    assert!(error.is_full() && committed.len() == 1, "{error}");
    assert!(log.commit(&[record(7, 20_000)]).unwrap_err().is_full());
    assert_eq!(log.end(), committed.last().unwrap().1);
    assert_eq!(ground.space().unwrap().free_bytes, 4096, "room that was reserved in vain is given back");
    committed.push(commit(&log, 8, 10));
    ground.set_capacity(u64::MAX);
    committed.push(commit(&log, 9, 20_000));
    assert_eq!(replay(&log, Position(0)).unwrap(), committed);
    let log = open(&ground.restart(CrashPolicy::DropAll), 2).unwrap();
    assert_eq!(replay(&log, Position(0)).unwrap(), committed);
}

#[test]
fn a_write_that_failed_is_tried_again_at_the_same_position_and_its_remains_are_out_of_the_log() {
    for seed in 0..50 {
        let ground = SimulatedGround::new(seed);
        let log = create(&ground);
        let mut committed = vec![];
        if seed % 2 == 0 {
            committed.push(commit(&log, 1, 100));
        }
        ground.fail_operation(0, std::io::ErrorKind::StorageFull);
        assert!(log.commit(&[record_with_image(log.end(), 1)]).unwrap_err().is_full());
        for tag in [3, 4] {
            committed.push(commit(&log, tag, 100));
            for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll, CrashPolicy::Random { seed }] {
                let log = open(&ground.snapshot(policy), 2).unwrap();
                assert_eq!(replay(&log, Position(0)).unwrap(), committed);
            }
        }
    }
}

#[test]
fn m0_17_a_sync_that_failed_closes_the_log_until_it_is_opened_again() {
    let mut accepted = 0;
    for seed in 0..50 {
        let ground = SimulatedGround::new(seed);
        let log = create(&ground);
        let mut committed = vec![commit(&log, 1, 100)];
        // Also if the error says that the disk is full, what the next opening finds is unknown.
        let kind = if seed % 2 == 0 { std::io::ErrorKind::Other } else { std::io::ErrorKind::StorageFull };
        ground.fail_operation(1, kind);
        let doubtful = vec![record(2, 3000)];
        assert!(matches!(log.commit(&doubtful), Err(error @ LogError::NotSynced(_)) if !error.is_full()));
        assert!(matches!(log.commit(&doubtful), Err(LogError::Poisoned)));
        assert!(matches!(log.trim(log.end()), Err(LogError::Poisoned)));
        drop(log);
        // The page cache may show the batch while the disk lacks it. Opening makes the batches it accepts durable.
        let log = open(&ground, 2).unwrap();
        if log.end() > committed[0].1 {
            committed.push((committed[0].1, log.end(), doubtful));
            accepted += 1;
        }
        assert_eq!(replay(&log, Position(0)).unwrap(), committed);
        committed.push(commit(&log, 3, 100));
        let log = open(&ground.restart(CrashPolicy::DropAll), 3).unwrap();
        assert_eq!(replay(&log, Position(0)).unwrap(), committed);
    }
    assert!((5..45).contains(&accepted), "{accepted} of 50 were still seen");
}

#[test]
fn a_closed_log_takes_the_room_of_its_batches_and_goes_on_at_full_size() {
    let ground = SimulatedGround::new(1);
    let mut log = create(&ground);
    let mut committed = fill(&log, 20);
    log.trim(log.end()).unwrap();
    committed.retain(|(start, ..)| *start >= log.start());
    for epoch in 2..6 {
        log.release_room();
        let files = ground.list(DIRECTORY).unwrap();
        assert_eq!(files.len(), 1, "{files:?}");
        let bytes = ground.open(&format!("{DIRECTORY}/{}", files[0].name), Access::Read).unwrap().len().unwrap();
        assert_eq!(bytes, SEGMENT_HEADER_BYTES + log.used_bytes());
        log = open(&ground, epoch).unwrap();
        assert_eq!(replay(&log, log.start()).unwrap(), committed);
        committed.push(commit(&log, epoch, 100));
        assert_eq!(log.segments(), 1, "the segment goes on");
    }
}

#[test]
fn reading_changes_nothing_on_disk() {
    let ground = SimulatedGround::new(1);
    let committed = fill(&create(&ground), 10);
    let operations = ground.operations();
    let log = SegmentLog::open(share(&ground), DIRECTORY, STORE, SMALL, Opening::ReadOnly).unwrap();
    assert_eq!(replay(&log, Position(0)).unwrap(), committed);
    assert!(matches!(log.commit(&[record(1, 1)]), Err(LogError::ReadOnly)));
    assert!(matches!(log.trim(log.end()), Err(LogError::ReadOnly)));
    assert_eq!(ground.operations(), operations);
}

#[test]
fn an_owner_whose_epoch_has_passed_is_refused() {
    let ground = SimulatedGround::new(1);
    create(&ground);
    commit(&open(&ground, 7).unwrap(), 1, 100);
    assert!(matches!(open(&ground, 6), Err(LogError::StaleEpoch { given: 6, found: 7 })));
    assert_eq!(open(&ground, 8).unwrap().epoch(), 8);
}

#[test]
fn a_log_is_created_once() {
    let ground = SimulatedGround::new(1);
    create(&ground);
    assert!(matches!(SegmentLog::create(&share(&ground), DIRECTORY, STORE, SMALL), Err(LogError::Exists { .. })));
}

#[test]
fn many_threads_commit_at_once_and_every_batch_is_there() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = &log;
            scope.spawn(move || (0..50).for_each(|tag| drop(commit(log, thread * 100 + tag, 200))));
        }
    });
    let mut tags: Vec<u16> = replay(&log, Position(0)).unwrap().iter().map(|(_, _, records)| records[0].partition.number).collect();
    tags.sort_unstable();
    let expected: Vec<u16> = (0..4).flat_map(|thread| (0..50).map(move |tag| thread * 100 + tag)).collect();
    assert_eq!(tags, expected);
}

#[test]
fn m0_17_the_log_works_on_a_local_directory() {
    let directory = tempfile::tempdir().unwrap();
    let ground: Arc<dyn Ground> = Arc::new(onefold_ground::LocalGround::open(directory.path()).unwrap());
    SegmentLog::create(&ground, DIRECTORY, STORE, SMALL).unwrap();
    let mut committed = Vec::new();
    for epoch in 1..5 {
        let log = SegmentLog::open(Arc::clone(&ground), DIRECTORY, STORE, SMALL, Opening::ReadWrite { epoch }).unwrap();
        committed.extend((0..12).map(|tag| commit(&log, tag, 1500)));
        log.trim(committed[committed.len() - 5].0).unwrap();
        committed.retain(|(start, ..)| *start >= log.start());
        assert_eq!(replay(&log, log.start()).unwrap(), committed);
    }
    let log = SegmentLog::open(ground, DIRECTORY, STORE, SMALL, Opening::ReadOnly).unwrap();
    assert_eq!(replay(&log, log.start()).unwrap(), committed);
}
