//! Salvage of a damaged log returns every valid batch in order, and nothing else.

use super::*;
use crate::{ALIGNMENT_BYTES, Remnants, guess_records, replace_log, salvage_batches};
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

#[test]
fn a_start_at_which_no_log_can_begin_is_refused_before_anything_is_moved() {
    let (ground, committed, _) = filled();
    let before = names(&ground);
    let start = Position(committed[21].1.0 + ALIGNMENT_BYTES / 2);
    let refused = replace_log(&share(&ground), DIRECTORY, "log/damaged-1", STORE, SMALL, 7, start);
    assert!(matches!(refused, Err(LogError::NotABoundary { from }) if from == start));
    assert_eq!(names(&ground), before);
}

#[test]
fn nothing_is_guessed_of_a_segment_of_another_store_or_of_one_that_is_cut_off() {
    let (_, committed, starts) = filled();
    let (path, next) = (segment_path(DIRECTORY, starts[1]), starts[2]);
    let guess = |ground: &SimulatedGround| guess_records(ground, DIRECTORY, &STORE, starts[1], next).unwrap();
    let lost: Vec<Record> =
        committed.iter().filter(|batch| (starts[1]..next).contains(&batch.0)).flat_map(|batch| batch.2.clone()).collect();
    let (ground, ..) = filled();
    assert_eq!(guess(&ground), lost);
    let file = ground.open(&path, Access::ReadWrite).unwrap();
    file.write_at(0, &encode_header(&[8; 16], 1, Segment { start: starts[1], follows: starts[1] })).unwrap();
    assert_eq!(guess(&ground), []);
    for length_bytes in [100, SEGMENT_HEADER_BYTES - 1, SEGMENT_HEADER_BYTES] {
        let (ground, ..) = filled();
        ground.open(&path, Access::ReadWrite).unwrap().set_len(length_bytes).unwrap();
        assert_eq!(guess(&ground), []);
        assert_eq!(guess_records(&ground, DIRECTORY, &STORE, Position(starts[1].0 + ALIGNMENT_BYTES), next).unwrap(), []);
    }
    let (ground, ..) = filled();
    ground.make_unreadable(&path).unwrap();
    assert_eq!(guess(&ground), []);
    ground.fail_read(1, std::io::ErrorKind::OutOfMemory);
    assert!(guess_records(&ground, DIRECTORY, &STORE, starts[1], next).is_err());
}
