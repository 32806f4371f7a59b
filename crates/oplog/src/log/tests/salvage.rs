//! What is had of a damaged log: every valid batch in order, and nothing else.

use super::*;
use crate::{Remnants, replace_log, salvage_batches};
use onefold_ground::Access;

fn salvage(ground: &SimulatedGround) -> (Remnants, Replayed) {
    let mut found = Vec::new();
    let remnants =
        salvage_batches(ground, DIRECTORY, &STORE, &mut |start, end, batch| found.push((start, end, batch.records.clone()))).unwrap();
    (remnants, found)
}

fn filled() -> (SimulatedGround, Replayed, Vec<Position>) {
    let ground = SimulatedGround::new(1);
    let committed = fill(&create(&ground), 22);
    let starts = names(&ground).iter().filter_map(|name| parse_name(name, "log")).collect();
    (ground, committed, starts)
}

#[test]
fn of_a_whole_log_everything_is_had() {
    let (ground, committed, _) = filled();
    let (remnants, found) = salvage(&ground);
    assert_eq!(found, committed);
    assert_eq!((remnants.batches, remnants.epoch, remnants.holes, remnants.problems), (22, 1, vec![], vec![]));
    assert!(remnants.end == committed[21].1 && remnants.reach >= remnants.end);
}

#[test]
fn m0_17_only_damaged_batches_are_missing() {
    for (index, at) in [(0, 60), (3, 0), (7, 100), (20, 9)] {
        let (ground, committed, starts) = filled();
        let (start, end, _) = committed[index];
        let segment = starts[starts.partition_point(|of| *of <= start) - 1];
        ground.corrupt(&segment_path(DIRECTORY, segment), SEGMENT_HEADER_BYTES + start.0 - segment.0 + at, 1).unwrap();
        let (remnants, found) = salvage(&ground);
        assert_eq!(remnants.holes, [(start, end)]);
        let rest: Replayed = committed.into_iter().enumerate().filter(|(of, _)| *of != index).map(|(_, batch)| batch).collect();
        assert_eq!(found, rest);
    }
}

#[test]
fn headers_and_segments_may_be_gone() {
    let (_, committed, starts) = filled();
    for (index, start) in starts.iter().enumerate() {
        let next = starts.get(index + 1).copied().unwrap_or(Position(u64::MAX));
        let path = segment_path(DIRECTORY, *start);
        let (ground, ..) = filled();
        ground.open(&path, Access::ReadWrite).unwrap().write_at(0, &[0; 4096]).unwrap();
        let (remnants, found) = salvage(&ground);
        assert_eq!(found, committed);
        assert_eq!(remnants.problems.len(), 1);
        ground.remove(&path).unwrap();
        let (_, found) = salvage(&ground);
        let rest: Replayed = committed.iter().filter(|batch| batch.0 < *start || batch.0 >= next).cloned().collect();
        assert_eq!(found, rest);
        let (ground, ..) = filled();
        ground.open(&path, Access::ReadWrite).unwrap().set_len(9).unwrap();
        assert_eq!(salvage(&ground).1, rest);
    }
}

#[test]
fn a_segment_that_the_device_cannot_read_is_a_hole_and_one_failed_read_is_none() {
    let (_, committed, starts) = filled();
    for (index, start) in starts.iter().enumerate() {
        let next = starts.get(index + 1).copied().unwrap_or(Position(u64::MAX));
        let (ground, ..) = filled();
        ground.make_unreadable(&segment_path(DIRECTORY, *start)).unwrap();
        let (remnants, found) = salvage(&ground);
        let rest: Replayed = committed.iter().filter(|batch| batch.0 < *start || batch.0 >= next).cloned().collect();
        assert_eq!(found, rest);
        assert_eq!(remnants.problems.len(), 2, "{:?}", remnants.problems);
    }
    let (ground, ..) = filled();
    ground.fail_read(2, std::io::ErrorKind::OutOfMemory);
    assert!(salvage_batches(&ground, DIRECTORY, &STORE, &mut |_, _, _| {}).is_err());
}

#[test]
fn a_new_log_starts_behind_the_old_one_which_is_kept() {
    let (ground, committed, starts) = filled();
    let start = Position(committed[21].1.0 + (1 << 20));
    for _ in 0..2 {
        replace_log(&share(&ground), DIRECTORY, "log/damaged-1", STORE, SMALL, 7, start).unwrap();
    }
    assert_eq!(ground.list("log/damaged-1").unwrap().iter().filter(|entry| entry.name.ends_with(".log")).count(), starts.len());
    let ground = ground.restart(CrashPolicy::DropAll);
    assert!(matches!(open(&ground, 6), Err(LogError::StaleEpoch { .. })));
    let log = open(&ground, 8).unwrap();
    assert_eq!((log.start(), log.end()), (start, start));
    let batch = commit(&log, 1, 100);
    assert_eq!(replay(&log, start).unwrap(), [batch]);
}
