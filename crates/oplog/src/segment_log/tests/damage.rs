//! Damage to durable bytes, and torn tails, which never were durable.

use super::*;

fn is_damaged<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result, Err(LogError::Damaged { .. }))
}

/// Creates a log of several segments. Returns it with its content.
fn filled() -> (SimulatedGround, Replayed) {
    let ground = SimulatedGround::new(1);
    let committed = fill(&create(&ground), 22);
    (ground, committed)
}

/// Returns the file of a position and the offset in it.
fn place(ground: &SimulatedGround, position: Position) -> (String, u64) {
    let starts: Vec<Position> = names(ground).iter().filter_map(|name| parse_name(name, "log")).collect();
    let start = starts[starts.partition_point(|start| *start <= position) - 1];
    (segment_path(DIRECTORY, start), SEGMENT_HEADER_BYTES + position.0 - start.0)
}

#[test]
fn m0_17_a_changed_byte_in_any_batch_but_the_last_is_found() {
    let (_, committed) = filled();
    for (index, (start, end, records)) in committed.iter().enumerate().take(committed.len() - 1) {
        for at in [0, 9, 40, 60, 64, 64 + records[0].payload.len() as u64] {
            let (ground, _) = filled();
            let (path, offset) = place(&ground, *start);
            ground.corrupt(&path, offset + at, 0x10).unwrap();
            let found = open(&ground, 2).and_then(|log| replay(&log, *start));
            assert!(is_damaged(found), "batch {index}, byte {at}");
            // Damage in batches that a consumer has applied does not stop it, unless it is in the last segment.
            if let Ok(log) = open(&ground, 2) {
                assert_eq!(replay(&log, *end).unwrap(), committed[index + 1..]);
            }
        }
    }
}

#[test]
fn m0_17_a_changed_last_batch_looks_like_a_torn_tail_and_a_consumer_that_had_it_knows_better() {
    let (ground, committed) = filled();
    let (start, end, _) = committed.last().unwrap();
    let (path, offset) = place(&ground, *start);
    ground.corrupt(&path, offset + 100, 1).unwrap();
    let log = open(&ground, 2).unwrap();
    assert_eq!(log.end(), *start);
    assert!(matches!(replay(&log, *end), Err(LogError::PastEnd { .. })));
}

#[test]
fn m0_17_a_lost_segment_is_found() {
    let (ground, committed) = filled();
    let segments: Vec<String> = names(&ground).into_iter().filter(|name| name.ends_with(".log")).collect();
    assert!(segments.len() > 3);
    let disk = ground.restart(CrashPolicy::DropAll);
    for (index, name) in segments.iter().enumerate() {
        let ground = disk.restart(CrashPolicy::DropAll);
        ground.remove(&format!("{DIRECTORY}/{name}")).unwrap();
        let log = open(&ground, 2).unwrap();
        match replay(&log, Position(0)) {
            Err(LogError::BeforeStart { .. }) => assert_eq!(index, 0, "the head is lost"),
            Err(LogError::Damaged { .. }) => assert!(index > 0 && index < segments.len() - 1, "the middle is lost"),
            Ok(found) => {
                assert_eq!(index, segments.len() - 1, "the tail is lost");
                assert_eq!(found, committed[..found.len()]);
                assert!(matches!(replay(&log, committed.last().unwrap().1), Err(LogError::PastEnd { .. })));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let ground = disk.restart(CrashPolicy::DropAll);
    for name in &segments {
        ground.remove(&format!("{DIRECTORY}/{name}")).unwrap();
    }
    assert!(is_damaged(open(&ground, 2)));
}

#[test]
fn a_changed_header_of_a_segment_is_found_at_opening() {
    let (disk, _) = filled();
    for name in names(&disk.restart(CrashPolicy::DropAll)) {
        let ground = disk.restart(CrashPolicy::DropAll);
        ground.corrupt(&format!("{DIRECTORY}/{name}"), 20, 1).unwrap();
        assert!(is_damaged(open(&ground, 2)));
    }
    let other = SegmentLog::open(share(&disk.restart(CrashPolicy::DropAll)), DIRECTORY, [0; 16], SMALL, Opening::ReadOnly);
    assert!(other.unwrap_err().to_string().contains("another store"));
}

#[test]
fn a_segment_that_starts_inside_a_batch_is_found() {
    let ground = SimulatedGround::new(1);
    commit(&create(&ground), 1, 2 * ALIGNMENT_BYTES as usize);
    let inside = Position(ALIGNMENT_BYTES);
    let file = ground.create(&segment_path(DIRECTORY, inside)).unwrap();
    file.write_at(0, &encode_header(&STORE, 1, Segment { start: inside, follows: inside })).unwrap();
    assert!(is_damaged(open(&ground, 2).and_then(|log| replay(&log, Position(0)))));
}

#[test]
fn a_truncated_segment_is_found() {
    let (disk, committed) = filled();
    for length in [0, 4095, 4096, 4100, 6000, 8192] {
        let ground = disk.restart(CrashPolicy::DropAll);
        ground.open(&format!("{DIRECTORY}/{}", names(&ground)[1]), Access::ReadWrite).unwrap().set_len(length).unwrap();
        assert!(is_damaged(open(&ground, 2).and_then(|log| replay(&log, committed[0].0))), "{length}");
    }
}

#[test]
fn m0_17_a_torn_tail_is_dropped_and_its_remains_are_never_replayed() {
    // The torn batch holds an image. If the first batch after opening overwrote it, the image would come next.
    for torn in [0, 64, 511, 1023, 1100] {
        for next_bytes in [10, 400, 440, 500, 900] {
            let ground = SimulatedGround::new(1);
            let log = create(&ground);
            let mut committed = vec![commit(&log, 1, 100)];
            let start = log.end();
            log.commit(&[record_with_image(start, 9)]).unwrap();
            drop(log);
            let (path, offset) = place(&ground, start);
            let ground = ground.restart(CrashPolicy::DropAll);
            ground.corrupt(&path, offset + torn, 0xff).unwrap();
            let log = open(&ground, 2).unwrap();
            assert_eq!(replay(&log, Position(0)).unwrap(), committed);
            committed.push(commit(&log, 3, next_bytes));
            for policy in [CrashPolicy::DropAll, CrashPolicy::KeepAll] {
                let log = open(&ground.restart(policy), 3).unwrap();
                assert_eq!(replay(&log, Position(0)).unwrap(), committed, "torn at {torn}");
            }
        }
    }
}

#[test]
fn m0_17_stale_batches_of_an_earlier_owner_are_neither_replayed_nor_proof_of_damage() {
    let disk = SimulatedGround::new(1);
    let mut committed = vec![commit(&create(&disk), 1, 100)];
    let log = open(&disk, 2).unwrap();
    committed.push(commit(&log, 2, 100));
    let at = Position(log.end().0 + 2 * ALIGNMENT_BYTES);
    for (epoch, is_damage) in [(1, false), (2, true), (3, true)] {
        let ground = disk.restart(CrashPolicy::DropAll);
        let mut stale = Vec::new();
        encode_batch(&mut stale, &[record(99, 50)], at, &STORE, epoch);
        let (path, offset) = place(&ground, at);
        ground.open(&path, Access::ReadWrite).unwrap().write_at(offset, &stale).unwrap();
        match open(&ground, 4) {
            Err(LogError::Damaged { .. }) => assert!(is_damage),
            Ok(log) => {
                assert!(!is_damage);
                assert_eq!(replay(&log, Position(0)).unwrap(), committed);
                let (first, second) = (commit(&log, 3, 400), commit(&log, 4, 400));
                let found = replay(&open(&ground.restart(CrashPolicy::KeepAll), 5).unwrap(), Position(0)).unwrap();
                assert_eq!(found, [committed[0].clone(), committed[1].clone(), first, second]);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_reading_error_is_an_error_and_not_the_end_of_the_log() {
    let (ground, committed) = filled();
    let reads = ground.reads();
    open(&ground, 2).unwrap();
    for read in 0..ground.reads() - reads {
        ground.fail_read(read, std::io::ErrorKind::Other);
        assert!(matches!(open(&ground, 3), Err(LogError::Ground(_))));
    }
    let log = open(&ground, 3).unwrap();
    ground.fail_read(1, std::io::ErrorKind::Other);
    assert!(matches!(replay(&log, Position(0)), Err(LogError::Ground(_))));
    assert_eq!(replay(&log, Position(0)).unwrap(), committed);
}
