//! One master, step by step.

use super::*;
use crate::{Counts, Released, Restated};
use onefold_oplog::{Partition, PartitionClass};

const SESSION_MS: u64 = 3000;

fn present(node: u32, opening: u64) -> Present {
    Present { node: NodeNumber(node), opening: Opening(opening) }
}

/// A table in which each of three nodes has one partition of the chunk index, and the next one follows.
fn table() -> Table {
    let counts = Counts { chunk_index: 3, objects: 0, containers: 0 };
    let mut table = Table { nodes: ALL.to_vec(), ..Table::first(counts, NodeNumber(0), 5) };
    for (at, assigned) in (0..).zip(&mut table.partitions) {
        assigned.lineage[0].node = NodeNumber(at);
        assigned.follower = Some(NodeNumber((at + 1) % 3));
    }
    table.check().unwrap();
    table
}

fn view(alive: &[Present]) -> MasterEvent {
    let alive = alive.iter().map(|present| (present.node, present.opening)).collect();
    MasterEvent::View(View { alive, is_master: true, table: Some(0) })
}

fn report(present: Present) -> Report {
    let Present { node, opening } = present;
    Report { node, opening, table: Some(0), is_leaving: false, released: Vec::new(), restated: Vec::new() }
}

const ALL: [Present; 3] = [
    Present { node: NodeNumber(0), opening: Opening(1) },
    Present { node: NodeNumber(1), opening: Opening(1) },
    Present { node: NodeNumber(2), opening: Opening(1) },
];

/// A master that saw all nodes alive.
fn master() -> Master {
    let mut master = Master::new(SESSION_MS);
    assert_eq!(master.handle(10, view(&ALL)), [MasterEffect::FindTable { hint: 0 }]);
    assert_eq!(master.handle(20, MasterEvent::Table(table())), []);
    master
}

fn prepared(node: u32, table: u64, end: u64) -> MasterEvent {
    MasterEvent::Prepared(Prepared { node: NodeNumber(node), opening: Opening(1), table, end: Position(end) })
}

/// Loses node 1, and tells where its log ended.
fn lose(master: &mut Master) -> Vec<MasterEffect> {
    assert_eq!(master.handle(30, view(&[ALL[0], ALL[2]])), [MasterEffect::Close { node: NodeNumber(1) }]);
    assert_eq!(master.handle(40, MasterEvent::Tick), [], "nothing is given away before the log is closed");
    master.handle(50, MasterEvent::Closed { node: NodeNumber(1), end: Position(40_960) })
}

fn put(effects: &[MasterEffect]) -> &Table {
    let [MasterEffect::Put(table)] = effects else { panic!("{effects:?}") };
    table.check().unwrap();
    table
}

#[test]
fn m4_3_a_lost_nodes_partitions_go_to_their_followers_behind_the_end_of_its_closed_log() {
    let mut master = master();
    let order = Order::Prepare { table: 0, at_least: Position(40_960) };
    assert_eq!(lose(&mut master), [MasterEffect::Send { node: NodeNumber(2), order }]);
    // Answers for another table, of another opening, and before the end do not count.
    assert_eq!(master.handle(60, prepared(2, 1, 45_056)), []);
    assert_eq!(master.handle(60, prepared(2, 0, 36_864)), []);
    let effects = master.handle(70, prepared(2, 0, 45_056));
    let next = put(&effects).clone();
    next.follows(&table()).unwrap();
    let closed = Link { node: NodeNumber(1), since: Position(0), upto: Some(Position(40_960)) };
    assert_eq!(next.partitions[1].lineage, [closed, Link { node: NodeNumber(2), since: Position(45_056), upto: None }]);
    assert_eq!((next.partitions[1].epoch, next.nodes), (6, vec![ALL[0], ALL[2]]));
    assert_eq!(next.partitions[0].epoch, 5, "what is not lost stays");
    let effects = master.handle(80, MasterEvent::Put { number: 1, outcome: Outcome::Done });
    assert_eq!(effects[0], MasterEffect::Announce { number: 1 });
}

/// Unsafe order 45.
#[test]
fn a_node_that_this_session_never_saw_is_gone_only_after_a_whole_session() {
    let mut master = Master::new(SESSION_MS);
    master.handle(10, view(&[ALL[0], ALL[2]]));
    assert_eq!(master.handle(20, MasterEvent::Table(table())), []);
    assert_eq!(master.handle(3009, MasterEvent::Tick), []);
    // The coordinator is empty, then knows it again.
    let effects = master.handle(3010, MasterEvent::Tick);
    assert_eq!(effects, [MasterEffect::Close { node: NodeNumber(1) }]);
    let mut master = Master::new(SESSION_MS);
    master.handle(10, view(&[ALL[0], ALL[2]]));
    master.handle(20, MasterEvent::Table(table()));
    assert_eq!(master.handle(1000, view(&ALL)), []);
    assert_eq!(master.handle(9000, MasterEvent::Tick), []);
    assert_eq!(master.handle(9100, view(&[ALL[0], ALL[2]])), [MasterEffect::Close { node: NodeNumber(1) }]);
}

/// Unsafe orders 5 and 6.
#[test]
fn whoever_wins_the_number_counts_and_an_unknown_put_is_repeated() {
    let mut master = master();
    lose(&mut master);
    let effects = master.handle(70, prepared(2, 0, 45_056));
    let own = put(&effects).clone();
    let again = master.handle(80, MasterEvent::Put { number: 1, outcome: Outcome::Unknown });
    assert_eq!(put(&again), &own);
    // Another master gave it to node 0.
    let mut winner = own.clone();
    winner.partitions[1].lineage[1].node = NodeNumber(0);
    winner.partitions[1].follower = Some(NodeNumber(2));
    winner.check().unwrap();
    master.handle(90, MasterEvent::Put { number: 1, outcome: Outcome::Taken(winner.clone()) });
    assert_eq!(master.table(), Some(&winner));
    assert_eq!(master.handle(95, MasterEvent::Put { number: 1, outcome: Outcome::Done }), [], "a late answer says nothing new");
    assert_eq!(master.table(), Some(&winner));
}

/// Unsafe order 7.
#[test]
fn the_next_master_does_what_is_left_of_a_take_over() {
    // The log is closed by now, and the table names its node.
    let mut second = Master::new(SESSION_MS);
    second.handle(10, view(&[ALL[0], ALL[2]]));
    second.handle(20, MasterEvent::Table(table()));
    assert_eq!(second.handle(4000, MasterEvent::Tick), [MasterEffect::Close { node: NodeNumber(1) }]);
    assert_eq!(second.handle(4100, MasterEvent::NotClosed { node: NodeNumber(1) }), [MasterEffect::Close { node: NodeNumber(1) }]);
    let effects = second.handle(4200, MasterEvent::Closed { node: NodeNumber(1), end: Position(40_960) });
    assert!(matches!(effects[..], [MasterEffect::Send { node: NodeNumber(2), .. }]), "{effects:?}");
}

/// Unsafe order 8.
#[test]
fn a_node_that_opens_its_log_again_gets_its_partitions_by_a_new_ownership() {
    let mut master = master();
    let again = present(1, 4);
    let effects = master.handle(30, view(&[ALL[0], again, ALL[2]]));
    let next = put(&effects);
    next.follows(&table()).unwrap();
    assert_eq!(next.opening(NodeNumber(1)), Some(Opening(4)));
    assert_eq!((next.partitions[1].epoch, next.partitions[1].lineage.len()), (6, 1));
    // An old coordinator speaks of an earlier opening: that owns nothing.
    let mut master = Master::new(SESSION_MS);
    master.handle(10, view(&[ALL[0], present(1, 0), ALL[2]]));
    master.handle(20, MasterEvent::Table(table()));
    assert_eq!(master.handle(5000, MasterEvent::Tick), [MasterEffect::Close { node: NodeNumber(1) }]);
}

/// Unsafe order 48.
#[test]
fn the_first_table_is_followed_by_one_that_speaks_of_an_opening_that_was_alive() {
    let mut master = Master::new(SESSION_MS);
    let first = Table::first(Counts { chunk_index: 2, objects: 1, containers: 1 }, NodeNumber(0), 5);
    master.handle(10, view(&ALL[..1]));
    assert_eq!(master.handle(20, MasterEvent::Table(first.clone())), []);
    let effects = master.handle(10 + SESSION_MS, MasterEvent::Tick);
    let next = put(&effects);
    next.follows(&first).unwrap();
    assert_eq!(next.nodes, ALL[..1]);
    assert!(next.partitions.iter().all(|assigned| assigned.epoch == 6));
}

/// Unsafe order 46.
#[test]
fn a_closed_log_takes_nothing_from_an_opening_whose_session_goes_on() {
    let mut master = master();
    assert_eq!(master.handle(30, view(&[ALL[0], ALL[2]])), [MasterEffect::Close { node: NodeNumber(1) }]);
    // While the log is being closed, the node opens it again, and another master gives it its partitions.
    let again = present(1, 4);
    let mut other = table();
    other.number = 1;
    other.nodes[1] = again;
    other.partitions[1].epoch = 6;
    master.handle(40, view(&[ALL[0], again, ALL[2]]));
    assert_eq!(master.handle(50, MasterEvent::Put { number: 1, outcome: Outcome::Taken(other) }), []);
    let effects = master.handle(60, MasterEvent::Closed { node: NodeNumber(1), end: Position(40_960) });
    let order = Order::OpenAgain { opening: Opening(4) };
    assert_eq!(effects, [MasterEffect::Send { node: NodeNumber(1), order }], "it may answer reads");
    let effects = master.handle(70, view(&[ALL[0], ALL[2]]));
    assert!(matches!(effects[..], [MasterEffect::Send { node: NodeNumber(2), order: Order::Prepare { table: 1, .. } }]), "{effects:?}");
}

/// Unsafe orders 9 and 10.
#[test]
fn the_lineage_goes_on_behind_every_owner_also_behind_one_that_never_served() {
    let mut master = master();
    lose(&mut master);
    let next = put(&master.handle(70, prepared(2, 0, 45_056))).clone();
    master.handle(80, MasterEvent::Put { number: 1, outcome: Outcome::Done });
    assert_eq!(master.handle(90, view(&[ALL[0]])), [MasterEffect::Close { node: NodeNumber(2) }]);
    master.handle(100, MasterEvent::Closed { node: NodeNumber(2), end: Position(49_152) });
    let effects = master.handle(110, prepared(0, 1, 53_248));
    let last = put(&effects);
    last.follows(&next).unwrap();
    let nodes: Vec<(u32, u64, Option<u64>)> =
        last.partitions[1].lineage.iter().map(|link| (link.node.0, link.since.0, link.upto.map(|upto| upto.0))).collect();
    assert_eq!(nodes, [(1, 0, Some(40_960)), (2, 45_056, Some(49_152)), (0, 53_248, None)]);
}

#[test]
fn a_node_that_joins_gets_partitions_by_plan_one_after_the_other() {
    let mut master = Master::new(SESSION_MS);
    let counts = Counts { chunk_index: 4, objects: 0, containers: 0 };
    let mut now = Table { nodes: vec![ALL[0]], ..Table::first(counts, NodeNumber(0), 5) };
    master.handle(10, view(&[ALL[0]]));
    assert_eq!(master.handle(20, MasterEvent::Table(now.clone())), []);
    assert_eq!(master.handle(30, view(&ALL[..2])), [], "it has not told that it can");
    now = put(&master.handle(40, MasterEvent::Report(report(ALL[1])))).clone();
    assert_eq!(now.opening(NodeNumber(1)), Some(Opening(1)));
    assert!(now.partitions.iter().all(|assigned| assigned.owner() == NodeNumber(0) && assigned.follower == Some(NodeNumber(1))));
    let partition = Partition { class: PartitionClass::ChunkIndex, number: 0 };
    let effects = master.handle(50, MasterEvent::Put { number: 1, outcome: Outcome::Done });
    let release = MasterEffect::Send { node: NodeNumber(0), order: Order::Release { partition, epoch: 5 } };
    assert_eq!(effects, [MasterEffect::Announce { number: 1 }, release.clone()]);
    // The coordinator says nothing of the new table yet.
    assert_eq!(master.handle(60, MasterEvent::Tick), [MasterEffect::Announce { number: 1 }]);
    let MasterEvent::View(seen) = view(&ALL[..2]) else { unreachable!() };
    assert_eq!(master.handle(70, MasterEvent::View(View { table: Some(1), ..seen })), []);
    assert_eq!(master.handle(50 + SESSION_MS / 4, MasterEvent::Tick), [release], "it is asked again");
    let released = Released { partition, epoch: 5, upto: Position(8192) };
    let effects = master.handle(900, MasterEvent::Report(Report { released: vec![released], ..report(ALL[0]) }));
    assert_eq!(effects, [MasterEffect::Send { node: NodeNumber(1), order: Order::Prepare { table: 1, at_least: Position(8192) } }]);
    let effects = master.handle(910, prepared(1, 1, 8192));
    let next = put(&effects).clone();
    next.follows(&now).unwrap();
    assert_eq!(
        (next.partitions[0].owner(), next.partitions[0].epoch, next.partitions[0].follower),
        (NodeNumber(1), 6, Some(NodeNumber(0)))
    );
    // What it has got stays there until it is restated; the next one moves.
    let effects = master.handle(920, MasterEvent::Put { number: 2, outcome: Outcome::Done });
    let partition = Partition { number: 1, ..partition };
    assert_eq!(effects[1], MasterEffect::Send { node: NodeNumber(0), order: Order::Release { partition, epoch: 5 } });
}

#[test]
fn short_lineages_are_written_down_together_after_a_while() {
    let mut master = master();
    let partition = |number| Partition { class: PartitionClass::ChunkIndex, number };
    let restated = |number| Restated { partition: partition(number), epoch: 5, since: Position(8192) };
    for node in [0, 2] {
        let restated = vec![restated(node), Restated { epoch: 4, ..restated(1) }];
        let report = Report { restated, ..report(ALL[usize::from(node)]) };
        assert_eq!(master.handle(1000, MasterEvent::Report(report)), []);
    }
    let effects = master.handle(1000 + SESSION_MS * PATIENCE_SESSIONS, MasterEvent::Tick);
    let next = put(&effects);
    let since: Vec<u64> = next.partitions.iter().map(|assigned| assigned.lineage[0].since.0).collect();
    assert_eq!(since, [8192, 0, 8192]);
    assert!(next.partitions.iter().all(|assigned| assigned.epoch == 5), "it is the same ownership");
}

#[test]
fn a_node_that_leaves_loses_its_partitions_and_then_its_place() {
    let mut master = master();
    let leaving = Report { is_leaving: true, ..report(ALL[1]) };
    let effects = master.handle(100, MasterEvent::Report(leaving.clone()));
    let partition = Partition { class: PartitionClass::ChunkIndex, number: 1 };
    assert!(effects.contains(&MasterEffect::Send { node: NodeNumber(1), order: Order::Release { partition, epoch: 5 } }), "{effects:?}");
    let released = vec![Released { partition, epoch: 5, upto: Position(8192) }];
    let effects = master.handle(200, MasterEvent::Report(Report { released, ..leaving }));
    let [MasterEffect::Send { node, order: Order::Prepare { .. } }] = effects[..] else { panic!("{effects:?}") };
    let effects = master.handle(300, prepared(node.0, 0, 8192));
    let next = put(&effects);
    assert_eq!(next.nodes, [ALL[0], ALL[2]]);
    assert!(next.partitions.iter().all(|assigned| assigned.owner() != NodeNumber(1) && assigned.follower != Some(NodeNumber(1))));
}

#[test]
fn a_node_that_does_not_answer_gets_nothing_for_a_while() {
    let mut master = master();
    lose(&mut master);
    let effects = master.handle(51 + SESSION_MS, MasterEvent::Tick);
    assert!(matches!(effects[..], [MasterEffect::Send { node: NodeNumber(0), .. }]), "{effects:?}");
    assert!(matches!(master.handle(52 + SESSION_MS, prepared(0, 0, 45_056))[..], [MasterEffect::Put(_)]));
}

#[test]
fn whoever_is_not_master_does_nothing() {
    let mut master = Master::new(SESSION_MS);
    let MasterEvent::View(seen) = view(&ALL) else { unreachable!() };
    master.handle(10, MasterEvent::View(View { is_master: false, ..seen.clone() }));
    master.handle(20, MasterEvent::Table(table()));
    assert_eq!(master.handle(30, MasterEvent::View(View { is_master: false, alive: BTreeMap::new(), table: Some(0) })), []);
    assert_eq!(master.handle(9000, MasterEvent::Tick), []);
    // It saw them alive in its session: now that it is master, it need not wait.
    let effects = master.handle(9010, view(&[ALL[0], ALL[2]]));
    assert_eq!(effects, [MasterEffect::Close { node: NodeNumber(1) }]);
}
