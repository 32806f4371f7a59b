//! Jumps: the log declares the positions that it skips. Anything else that is missing is damage.

use super::*;
use crate::salvage_batches;
use onefold_ground::Access;

const FAR: Position = Position(1 << 40);

fn gap() -> (Position, Position) {
    (Position(FAR.0 + 100 * ALIGNMENT_BYTES), Position(2 * FAR.0))
}

/// Creates a log that jumps twice, with several segments before, between and after. Also returns the log's ends before
/// the jumps.
fn filled() -> (SimulatedGround, Replayed, [Position; 2]) {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let mut committed = fill(&log, 10);
    let before = log.end();
    log.jump_to(FAR).unwrap();
    committed.extend(fill(&log, 10));
    let between = log.end();
    log.jump_to(gap().1).unwrap();
    committed.extend(fill(&log, 10));
    (ground, committed, [before, between])
}

fn read_only(ground: &SimulatedGround) -> SegmentLog {
    SegmentLog::open(share(ground), DIRECTORY, STORE, SMALL, Opening::ReadOnly).unwrap()
}

#[test]
fn batches_go_on_where_the_log_jumped_to_and_nothing_counts_as_used_between() {
    let (ground, committed, [before, between]) = filled();
    assert_eq!((committed[10].0, committed[20].0), (FAR, gap().1));
    let used_bytes = 30 * (committed[0].1.0 - committed[0].0.0);
    for log in [read_only(&ground), open(&ground, 2).unwrap()] {
        assert_eq!((log.start(), log.end(), log.used_bytes()), (Position(0), committed[29].1, used_bytes));
        assert_eq!(replay(&log, Position(0)).unwrap(), committed);
        // A view that has everything before a jump continues after it.
        for (from, first) in [(before, 10), (FAR, 10), (between, 20), (gap().1, 20), (committed[3].1, 4)] {
            assert_eq!(replay(&log, from).unwrap(), committed[first..]);
        }
        for from in [Position(before.0 + ALIGNMENT_BYTES), Position(FAR.0 - ALIGNMENT_BYTES), gap().0] {
            assert!(matches!(replay(&log, from), Err(LogError::NotABoundary { .. })), "{from:?}");
        }
    }
}

#[test]
fn what_is_before_a_jump_is_trimmed_by_whoever_has_it_applied() {
    let (ground, committed, [before, between]) = filled();
    let log = open(&ground, 2).unwrap();
    assert!(log.has_parts_before(before));
    log.trim(before).unwrap();
    assert_eq!(log.start(), before, "a view at the end of what went is not behind the log");
    drop(log);
    let log = open(&ground, 3).unwrap();
    assert_eq!((log.start(), replay(&log, before).unwrap()), (before, committed[10..].to_vec()));
    assert!(matches!(replay(&log, Position(before.0 - ALIGNMENT_BYTES)), Err(LogError::BeforeStart { .. })));
    log.trim(between).unwrap();
    assert_eq!((log.start(), replay(&log, gap().1).unwrap()), (between, committed[20..].to_vec()));
    assert!(log.used_bytes() < 1 << 20);
}

#[test]
fn a_log_jumps_from_anywhere_and_never_back() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let at = |pages: u64| Position(pages * ALIGNMENT_BYTES);
    for (to, end) in [(at(7), at(7)), (at(7), at(7)), (at(3), at(7)), (at(8), at(8))] {
        log.jump_to(to).unwrap();
        assert_eq!(log.end(), end);
    }
    for wrong in [Position(at(9).0 + 512), Position(1 << 62), Position(u64::MAX)] {
        assert!(matches!(log.jump_to(wrong), Err(LogError::NotABoundary { .. })));
    }
    drop(log);
    let log = open(&ground, 2).unwrap();
    assert_eq!((log.start(), log.end(), log.used_bytes(), replay(&log, Position(0)).unwrap()), (Position(0), at(8), 0, vec![]));
    let last = commit(&log, 1, 10);
    assert_eq!((last.0, replay(&log, Position(0)).unwrap()), (at(8), vec![last.clone()]));
    assert!(matches!(read_only(&ground).jump_to(at(99)), Err(LogError::ReadOnly)));
}

#[test]
fn a_segment_that_takes_the_place_of_an_empty_one_still_says_where_the_log_jumped_from() {
    let ground = SimulatedGround::new(1);
    let log = create(&ground);
    let first = commit(&log, 1, 100);
    log.jump_to(FAR).unwrap();
    // The failure leaves remains. So the next batch opens another segment at the same place.
    ground.fail_operation(0, std::io::ErrorKind::Other);
    log.commit(&[record(2, 100)]).unwrap_err();
    let second = commit(&log, 3, 100);
    drop(log);
    assert_eq!(replay(&open(&ground, 2).unwrap(), Position(0)).unwrap(), [first, second]);
}

#[test]
fn a_segment_that_is_lost_beside_a_jump_is_found() {
    let (ground, committed, [before, between]) = filled();
    let disk = ground.restart(CrashPolicy::DropAll);
    let segments: Vec<String> = names(&disk).into_iter().filter(|name| name.ends_with(".log")).collect();
    assert!(segments.len() > 5, "{segments:?}");
    for (index, name) in segments.iter().enumerate() {
        let ground = disk.restart(CrashPolicy::DropAll);
        ground.remove(&format!("{DIRECTORY}/{name}")).unwrap();
        let found = open(&ground, 2).and_then(|log| replay(&log, Position(0)));
        match found {
            Err(LogError::BeforeStart { .. }) => assert_eq!(index, 0, "the head is lost"),
            Err(LogError::Damaged { .. }) => assert!(index > 0 && index < segments.len() - 1, "{name}: the middle is lost"),
            Ok(found) => {
                assert_eq!(index, segments.len() - 1, "the tail is lost");
                assert_eq!(found, committed[..found.len()]);
            }
            Err(error) => panic!("{error}"),
        }
    }
    for lost in [before, between] {
        let ground = disk.restart(CrashPolicy::DropAll);
        let (start, ..) = committed.iter().find(|(_, end, _)| *end == lost).unwrap();
        let segment = segments.iter().filter_map(|name| parse_name(name, "log")).rfind(|segment| segment <= start).unwrap();
        ground.corrupt(&segment_path(DIRECTORY, segment), SEGMENT_HEADER_BYTES + start.0 - segment.0 + 100, 1).unwrap();
        let found = open(&ground, 2).and_then(|log| replay(&log, Position(0)));
        assert!(matches!(found, Err(LogError::Damaged { .. })), "the last batch before a jump is no torn tail");
    }
}

#[test]
fn a_segment_that_says_it_follows_what_it_cannot_is_damage() {
    let (ground, _, [before, _]) = filled();
    let path = segment_path(DIRECTORY, FAR);
    for (follows, is_found_at_once) in [(Position(0), true), (Position(before.0 + ALIGNMENT_BYTES), false), (FAR, false)] {
        let header = encode_header(&STORE, 1, Segment { start: FAR, follows });
        ground.open(&path, Access::ReadWrite).unwrap().write_at(0, &header).unwrap();
        let opened = open(&ground, 2);
        assert_eq!(opened.is_err(), is_found_at_once, "{follows:?}");
        assert!(matches!(opened.and_then(|log| replay(&log, Position(0))), Err(LogError::Damaged { .. })), "{follows:?}");
    }
}

#[test]
fn a_salvage_takes_a_jump_for_no_hole_and_what_is_missing_before_it_for_one() {
    let salvage = |ground: &SimulatedGround| {
        let mut found = Vec::new();
        let visit = &mut |start, end, batch: &crate::Batch| found.push((start, end, batch.records.clone()));
        let remnants = salvage_batches(ground, DIRECTORY, &STORE, visit).unwrap();
        (remnants, found)
    };
    let (ground, committed, [before, between]) = filled();
    let (remnants, found) = salvage(&ground);
    assert_eq!((remnants.holes, remnants.problems, found), (vec![], vec![], committed.clone()));
    assert!(remnants.end == committed[29].1 && remnants.reach >= remnants.end);
    // The last batch before the jump.
    let (start, ..) = committed[9];
    let segment = names(&ground).iter().filter_map(|name| parse_name(name, "log")).filter(|segment| *segment <= start).max().unwrap();
    ground.corrupt(&segment_path(DIRECTORY, segment), SEGMENT_HEADER_BYTES + start.0 - segment.0 + 100, 1).unwrap();
    let (remnants, found) = salvage(&ground);
    assert_eq!((remnants.holes, found.len()), (vec![(start, before)], 29));
    // Without its header nobody can tell whether a segment follows a jump or lost segments.
    ground.open(&segment_path(DIRECTORY, gap().1), Access::ReadWrite).unwrap().write_at(0, &[0; 4096]).unwrap();
    let (remnants, found) = salvage(&ground);
    assert_eq!((remnants.holes, found.len()), (vec![(start, before), (between, gap().1)], 29));
}
