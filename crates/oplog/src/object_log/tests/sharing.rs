//! Tests that a shared log is opened by nodes only.

use super::*;

fn take_as_node(bucket: &MemoryBucket, directory: &SimulatedGround) -> Result<ObjectLog> {
    let place = LogPlace { is_of_node: true, ..place(Arc::new(bucket.clone()), directory) };
    ObjectLog::look_for_taking(place, SMALL, Arc::new(Settings))?.with_piece_bytes(60).taken(1, &[], &mut never_wait)
}

#[test]
fn a_shared_log_is_opened_by_nodes_only_whatever_others_knew_before() {
    for is_trimmed in [false, true] {
        let (bucket, here, knows_it) = (made(), directory(), directory());
        let mut expected = fill(&take(&bucket, &knows_it).unwrap(), 1);
        let log = take_as_node(&bucket, &here).unwrap();
        // They have looked and are slow.
        let late_writer = look_for_taking(&bucket, &knows_it).unwrap();
        let late_reader = look_for_taking(&bucket, &directory()).unwrap();
        log.share().unwrap();
        let manifests = || bucket.names().iter().filter(|name| name.starts_with("manifests/")).count();
        let count = manifests();
        log.share().unwrap();
        assert_eq!(manifests(), count);
        expected.extend(fill(&log, 2));
        if is_trimmed {
            log.trim(log.end()).unwrap();
        }
        let is_refused = |opened: Result<ObjectLog>| matches!(opened, Err(LogError::Shared { .. }));
        assert!(is_refused(late_reader.for_reading()));
        assert!(is_refused(late_writer.taken(1, &[], &mut never_wait)));
        for place in [&knows_it, &directory()] {
            assert!(is_refused(take(&bucket, place)) && is_refused(look(&bucket, place)));
        }
        // Who was refused may have put a fence, and nothing else.
        let log = take_as_node(&bucket, &here).unwrap();
        assert_eq!(values(&log), expected);
        log.share().unwrap();
        log.commit(&[set(1, 9)]).unwrap();
        expected.insert(1, 9);
        assert_eq!(values(&take_as_node(&bucket, &directory()).unwrap()), expected);
    }
}

#[test]
fn a_log_is_shared_although_answers_are_lost_or_a_former_owner_trims_it() {
    for failure in [Failure::Before, Failure::After] {
        let bucket = made();
        let log = take_as_node(&bucket, &directory()).unwrap();
        let expected = fill(&log, 1);
        bucket.fail_at_change(bucket.changes(), failure);
        assert!(log.share().is_err());
        log.share().unwrap();
        assert_eq!(values(&log), expected);
        assert!(matches!(take(&bucket, &directory()), Err(LogError::Shared { .. })));
    }
    let bucket = made();
    let former = take(&bucket, &directory()).unwrap();
    let expected = fill(&former, 1);
    let log = take_as_node(&bucket, &directory()).unwrap();
    // Its manifest comes first, and names nothing that the fence is before.
    former.trim(former.end()).unwrap();
    log.share().unwrap();
    assert_eq!(values(&log), expected);
    assert!(former.trim(former.end()).is_ok() || former.commit(&[]).is_err());
    assert!(matches!(take(&bucket, &directory()), Err(LogError::Shared { .. })));
    assert_eq!(values(&take_as_node(&bucket, &directory()).unwrap()), expected);
}
