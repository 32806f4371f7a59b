//! One member, step by step.

use super::*;
use crate::Counts;

const SESSION_MS: u64 = 3000;
const CHUNKS: Partition = Partition { class: PartitionClass::ChunkIndex, number: 0 };
const OBJECTS: Partition = Partition { class: PartitionClass::ObjectIndex, number: 0 };
const ME: Present = Present { node: NodeNumber(4), opening: Opening(7) };

fn table(number: u64, present: Present) -> Arc<Table> {
    let counts = Counts { chunk_index: 1, objects: 1, containers: 0 };
    Arc::new(Table { number, nodes: vec![present], ..Table::first(counts, present.node, number + 1) })
}

/// A member that is in, and whose partitions wait for what the lineage says.
fn adopting() -> Member {
    let mut member = Member::new(SESSION_MS);
    assert_eq!(member.handle(MemberEvent::Numbered(ME.node)), [MemberEffect::OpenLog(ME.node)]);
    assert_eq!(member.phase(), Phase::Out);
    assert_eq!(member.handle(MemberEvent::Opened(ME.opening)), [MemberEffect::Join(ME), MemberEffect::FindTable { hint: 0 }]);
    assert_eq!(member.phase(), Phase::Joining);
    member.handle(MemberEvent::Heard { opening: ME.opening, asked_ms: 1000 });
    let effects = member.handle(MemberEvent::Table(table(3, ME)));
    assert!(matches!(effects[0], MemberEffect::Hold(_)), "{effects:?}");
    assert_eq!(effects.iter().filter(|effect| matches!(effect, MemberEffect::Apply { epoch: 4, .. })).count(), 2);
    assert_eq!(member.phase(), Phase::In);
    member
}

fn serving() -> Member {
    let mut member = adopting();
    for partition in [CHUNKS, OBJECTS] {
        assert_eq!(member.handle(MemberEvent::Applied { partition, epoch: 4 }), [MemberEffect::LogAdopted { partition, epoch: 4 }]);
        member.handle(MemberEvent::Adopted { partition, epoch: 4 });
    }
    member.handle(MemberEvent::Collected { partition: CHUNKS, epoch: 4 });
    member
}

#[test]
fn m4_8_a_partition_is_answered_for_when_it_is_applied_adopted_and_collected() {
    let mut member = adopting();
    let right = |member: &Member, partition| member.may_answer(partition, 1500);
    for partition in [CHUNKS, OBJECTS] {
        assert_eq!(right(&member, partition), Right::Wait);
        // What belongs to another ownership changes nothing.
        assert_eq!(member.handle(MemberEvent::Applied { partition, epoch: 3 }), []);
        member.handle(MemberEvent::Applied { partition, epoch: 4 });
        assert!(right(&member, partition) == Right::Wait && !member.may_log(partition));
    }
    let effects = member.handle(MemberEvent::Adopted { partition: CHUNKS, epoch: 4 });
    assert_eq!(effects, [MemberEffect::Collect { partition: CHUNKS, epoch: 4 }]);
    assert!(right(&member, CHUNKS) == Right::Reads && member.may_log(CHUNKS));
    member.handle(MemberEvent::Collected { partition: CHUNKS, epoch: 4 });
    assert_eq!(member.handle(MemberEvent::Adopted { partition: OBJECTS, epoch: 4 }), []);
    assert_eq!([CHUNKS, OBJECTS].map(|partition| right(&member, partition)), [Right::All; 2]);
    assert_eq!(right(&member, Partition { number: 1, ..CHUNKS }), Right::Refuse);
}

/// Unsafe orders 3, 27 and 30.
#[test]
fn m4_1_a_node_stops_at_two_thirds_of_a_session_after_it_asked_and_goes_on_when_it_is_heard() {
    let mut member = serving();
    assert_eq!(member.may_answer(CHUNKS, 2999), Right::All);
    assert_eq!(member.may_answer(CHUNKS, 3000), Right::Stopped);
    assert!(member.may_log(CHUNKS), "its log stops it");
    // An answer that came late says when it was asked for.
    member.handle(MemberEvent::Heard { opening: ME.opening, asked_ms: 1100 });
    assert_eq!([3099, 3100].map(|now_ms| member.may_answer(CHUNKS, now_ms)), [Right::All, Right::Stopped]);
    member.handle(MemberEvent::Heard { opening: ME.opening, asked_ms: 900 });
    assert_eq!(member.may_answer(CHUNKS, 3099), Right::All);
    // The coordinator was away for long: the same table holds.
    member.handle(MemberEvent::Heard { opening: ME.opening, asked_ms: 90_000 });
    assert_eq!(member.may_answer(CHUNKS, 90_100), Right::All);
}

/// Unsafe order 8.
#[test]
fn what_a_table_gave_to_a_former_opening_is_not_served() {
    let mut member = Member::new(SESSION_MS);
    member.handle(MemberEvent::Numbered(ME.node));
    member.handle(MemberEvent::Opened(Opening(9)));
    member.handle(MemberEvent::Heard { opening: Opening(9), asked_ms: 1000 });
    let effects = member.handle(MemberEvent::Table(table(3, ME)));
    assert!(matches!(&effects[..], [MemberEffect::Hold(held)] if held.len() == 2), "{effects:?}");
    assert!(member.may_answer(OBJECTS, 1001) == Right::Refuse && !member.may_trim());
    let effects = member.handle(MemberEvent::Table(table(4, Present { opening: Opening(9), ..ME })));
    assert!(effects.iter().any(|effect| matches!(effect, MemberEffect::Apply { partition: OBJECTS, epoch: 5, .. })));
    assert!(member.may_trim());
}

#[test]
fn a_node_that_waits_with_a_closed_log_is_told_to_open_it_again() {
    let mut member = serving();
    assert_eq!(member.handle(MemberEvent::Order(Order::OpenAgain { opening: Opening(6) })), []);
    let effects = member.handle(MemberEvent::Order(Order::OpenAgain { opening: ME.opening }));
    assert_eq!(effects.last(), Some(&MemberEffect::OpenLog(ME.node)));
    assert_eq!(member.may_answer(CHUNKS, 1001), Right::Stopped);
}

#[test]
fn a_node_that_no_table_names_leaves_at_once() {
    let mut member = Member::new(SESSION_MS);
    member.handle(MemberEvent::Numbered(ME.node));
    member.handle(MemberEvent::Opened(ME.opening));
    member.handle(MemberEvent::Table(table(3, Present { node: NodeNumber(5), opening: Opening(1) })));
    assert_eq!(member.handle(MemberEvent::Leave), [MemberEffect::Left]);
    assert_eq!(member.phase(), Phase::Out);
    // One that has missed the table that took its last partition.
    let mut member = serving();
    member.handle(MemberEvent::Leave);
    let effects = member.handle(MemberEvent::Table(table(5, Present { node: NodeNumber(5), opening: Opening(1) })));
    assert!(effects.contains(&MemberEffect::Drop { partition: CHUNKS }), "{effects:?}");
    assert_eq!((effects.last(), member.phase()), (Some(&MemberEffect::Left), Phase::Out));
    // One whose log is closed has nothing either.
    let mut member = serving();
    member.handle(MemberEvent::Leave);
    assert_eq!(member.handle(MemberEvent::Closed).last(), Some(&MemberEffect::Left));
}

/// Unsafe order 44.
#[test]
fn an_opening_ends_with_its_session() {
    let mut member = serving();
    assert_eq!(member.handle(MemberEvent::Over(Opening(6))), []);
    let effects = member.handle(MemberEvent::Over(ME.opening));
    assert!(
        effects.contains(&MemberEffect::Drop { partition: CHUNKS }) && effects.contains(&MemberEffect::OpenLog(ME.node)),
        "{effects:?}"
    );
    assert!(member.may_answer(CHUNKS, 1001) == Right::Stopped && !member.may_log(CHUNKS));
    member.handle(MemberEvent::Opened(Opening(9)));
    // A late answer of the former session says nothing.
    member.handle(MemberEvent::Heard { opening: ME.opening, asked_ms: 1000 });
    assert_eq!(member.may_answer(CHUNKS, 1001), Right::Stopped);
    member.handle(MemberEvent::Heard { opening: Opening(9), asked_ms: 1000 });
    assert_eq!(member.may_answer(CHUNKS, 1001), Right::Refuse, "the table speaks of the former opening");
    assert_eq!(member.handle(MemberEvent::Closed), [MemberEffect::TakeNumber]);
    assert_eq!(member.present(), None);
}

#[test]
fn a_table_that_no_longer_speaks_of_an_opening_ends_it() {
    let other = Present { node: NodeNumber(5), opening: Opening(1) };
    for next in [other, Present { opening: Opening(8), ..ME }] {
        let mut member = serving();
        let effects = member.handle(MemberEvent::Table(table(4, next)));
        assert!(effects.contains(&MemberEffect::OpenLog(ME.node)), "{effects:?}");
        assert_eq!(member.may_answer(CHUNKS, 1001), Right::Stopped);
    }
    // An older table changes nothing.
    let mut member = serving();
    assert_eq!(member.handle(MemberEvent::Table(table(2, other))), []);
    assert_eq!(member.may_answer(CHUNKS, 1001), Right::All);
}

#[test]
fn m4_2_a_released_partition_waits_until_a_table_names_its_next_owner() {
    let mut member = serving();
    let release = |partition, epoch| MemberEvent::Order(Order::Release { partition, epoch });
    assert_eq!(member.handle(release(OBJECTS, 3)), []);
    assert_eq!(member.handle(release(OBJECTS, 4)), [MemberEffect::Release { partition: OBJECTS, epoch: 4 }]);
    assert!(member.may_answer(OBJECTS, 1001) == Right::Wait && !member.may_log(OBJECTS));
    assert_eq!(member.handle(release(OBJECTS, 4)), [], "it is under way");
    let released = Released { partition: OBJECTS, epoch: 4, upto: Position(8192) };
    for event in [MemberEvent::Released(released), MemberEvent::Tick] {
        let effects = member.handle(event);
        assert!(matches!(&effects[..], [MemberEffect::Report(report)] if report.released == [released]), "{effects:?}");
    }
    let mut next = (*table(4, ME)).clone();
    let other = Present { node: NodeNumber(5), opening: Opening(1) };
    next.nodes.push(other);
    next.partitions.iter_mut().for_each(|assigned| assigned.epoch = 4);
    let assigned = &mut next.partitions[1];
    (assigned.epoch, assigned.follower) = (5, Some(ME.node));
    assigned.lineage[0].upto = Some(Position(8192));
    assigned.lineage.push(Link { node: other.node, since: Position(8192), upto: None });
    next.check().unwrap();
    let effects = member.handle(MemberEvent::Table(Arc::new(next)));
    assert_eq!(effects[1..], [MemberEffect::Drop { partition: OBJECTS }, MemberEffect::Follow { partition: OBJECTS }]);
    // Others build on what this log has of it (unsafe order 11).
    assert!(matches!(&effects[0], MemberEffect::Hold(held) if held.len() == 2), "{effects:?}");
    assert_eq!([OBJECTS, CHUNKS].map(|partition| member.may_answer(partition, 1001)), [Right::Refuse, Right::All]);
}

/// Unsafe order 47.
#[test]
fn a_log_is_cut_where_restating_began_until_a_table_says_so() {
    let mut member = serving();
    assert_eq!(member.to_restate().count(), 0, "its lineage is short");
    let restated = Restated { partition: CHUNKS, epoch: 4, since: Position(8192) };
    assert_eq!(member.handle(MemberEvent::Restated(restated)), [], "it was not begun");
    assert_eq!(member.handle(MemberEvent::Restating(restated)), []);
    assert_eq!(member.handle(MemberEvent::Restating(restated)), [MemberEffect::Uncut(Position(8192))], "it is under way");
    let effects = member.handle(MemberEvent::Restated(restated));
    assert!(matches!(&effects[..], [MemberEffect::Report(report)] if report.restated == [restated]), "{effects:?}");
    let mut next = (*table(4, ME)).clone();
    next.partitions.iter_mut().for_each(|assigned| assigned.epoch = 4);
    let effects = member.handle(MemberEvent::Table(Arc::new(next.clone())));
    assert!(!effects.contains(&MemberEffect::Uncut(Position(8192))), "{effects:?}");
    next.number = 5;
    next.partitions[0].lineage[0].since = Position(8192);
    let effects = member.handle(MemberEvent::Table(Arc::new(next)));
    assert!(effects.contains(&MemberEffect::Uncut(Position(8192))), "{effects:?}");
    assert!(matches!(&member.handle(MemberEvent::Tick)[..], [MemberEffect::Report(report)] if report.restated.is_empty()));
}

/// Unsafe order 50.
#[test]
fn a_log_is_cut_where_its_end_was_told_until_the_next_table_is_known() {
    let mut member = serving();
    let prepare = |at_least| MemberEvent::Order(Order::Prepare { table: 3, at_least: Position(at_least) });
    assert_eq!(member.handle(prepare(4096)), [MemberEffect::Jump { table: 3, at_least: Position(4096) }]);
    let told = member.handle(MemberEvent::Jumped { table: 3, end: Position(8192) });
    assert!(matches!(told[..], [MemberEffect::Prepared(_)]), "{told:?}");
    assert_eq!(member.handle(prepare(8192)), told, "the same again");
    assert_eq!(member.handle(prepare(12_288)), [MemberEffect::Jump { table: 3, at_least: Position(12_288) }]);
    member.handle(MemberEvent::Jumped { table: 3, end: Position(12_288) });
    let mut next = (*table(4, ME)).clone();
    next.partitions.iter_mut().for_each(|assigned| assigned.epoch = 4);
    let effects = member.handle(MemberEvent::Table(Arc::new(next)));
    let uncut = [8192, 12_288].map(|position| MemberEffect::Uncut(Position(position)));
    assert!(matches!(effects[0], MemberEffect::Hold(_)) && effects[1..] == uncut, "{effects:?}");
    // For a table that another one follows already, there is nothing to wait for.
    let effects = member.handle(MemberEvent::Jumped { table: 3, end: Position(16_384) });
    assert_eq!(effects[1..], [MemberEffect::Uncut(Position(16_384))]);
}

#[test]
fn a_node_prepares_its_log_when_the_master_asks_and_leaves_when_nothing_is_left() {
    let mut member = serving();
    let prepare = Order::Prepare { table: 3, at_least: Position(4096) };
    assert_eq!(member.handle(MemberEvent::Order(prepare)), [MemberEffect::Jump { table: 3, at_least: Position(4096) }]);
    let effects = member.handle(MemberEvent::Jumped { table: 3, end: Position(8192) });
    let answer = Prepared { node: ME.node, opening: ME.opening, table: 3, end: Position(8192) };
    assert_eq!(effects, [MemberEffect::Prepared(answer)]);
    assert!(matches!(&member.handle(MemberEvent::Leave)[..], [MemberEffect::Report(report)] if report.is_leaving));
    assert_eq!(member.phase(), Phase::Stopping);
    // All that it had was taken, then the node itself.
    let mut next = (*table(4, ME)).clone();
    let other = Present { node: NodeNumber(5), opening: Opening(1) };
    next.nodes.push(other);
    for assigned in &mut next.partitions {
        (assigned.epoch, assigned.lineage[0].node) = (6, other.node);
    }
    member.handle(MemberEvent::Table(Arc::new(next.clone())));
    assert_eq!(member.phase(), Phase::Stopping);
    next.number = 5;
    next.nodes.remove(0);
    assert_eq!(member.handle(MemberEvent::Table(Arc::new(next))), [MemberEffect::Left]);
    assert_eq!(member.phase(), Phase::Out);
}

#[test]
fn a_number_of_a_newer_table_is_looked_for_once_and_one_of_nothing_is_forgotten() {
    let mut member = serving();
    assert_eq!(member.handle(MemberEvent::Heads { number: 3 }), []);
    assert_eq!(member.handle(MemberEvent::Heads { number: 900 }), [MemberEffect::FindTable { hint: 900 }]);
    assert_eq!(member.handle(MemberEvent::Heads { number: 901 }), [], "the search is under way");
    assert_eq!(member.handle(MemberEvent::Table(table(3, ME))), [], "there is none");
    assert_eq!(member.handle(MemberEvent::Heads { number: 4 }), [MemberEffect::FindTable { hint: 4 }]);
}
