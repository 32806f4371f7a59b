use super::harness::*;
use crate::messages::{MOST_COLLECTED, Membership};
use crate::{CallError, Refusal};
use onefold_cluster::{NodeNumber, Opening, Order, Prepared, Report};
use onefold_engine::{Candidate, Claim, Delivery, EngineError, OtherNodes, PruneOptions, RemovalAnswer, RemovalStep};
use onefold_oplog::{Partition, PartitionClass, Position};
use onefold_storage::{Address, ContainerId};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn what_a_node_has_claimed_is_collected_in_as_many_answers_as_it_takes() {
    let pair = pair(patient());
    let claimed = names(0..(2 * MOST_COLLECTED as u64 + 5));
    for count in [0, 1, MOST_COLLECTED, 2 * MOST_COLLECTED + 5] {
        *pair.owner.claimed.lock() = claimed[..count].to_vec();
        let mut expected = claimed[..count].to_vec();
        expected.sort_unstable();
        assert!(pair.asking.others().collect(1, 0, 1, MINUTE).unwrap() == expected, "{count}");
    }
    let asked = pair.owner.asked.lock().len();
    assert_eq!(asked, 1 + 1 + 2 + 3, "a full answer may have more behind it");
}

#[test]
fn m4_4_a_message_of_every_kind_arrives_and_is_answered() {
    let pair = pair(patient());
    let others = pair.asking.others();
    let chunks = names(0..40);
    others.begin().unwrap();
    let mut claims = Vec::new();
    others.claim(&wanted(&chunks), &mut claims).unwrap();
    assert_eq!(claims, vec![Claim::Mine; 40]);
    others.wait(&chunks[0], Instant::now() + MINUTE);
    others.hurry(1);
    others.release(&chunks[..3]);
    let delivery =
        Delivery { behind: Some(Position(0)), upto: Position(4096), places: vec![(chunks[1], 77)], deltas: vec![(chunks[1], -2)] };
    assert_eq!(others.deliver(5, &delivery).unwrap(), Position(4096));
    others.seal(ContainerId::new(3, 9)).unwrap();
    let copies: Vec<Candidate> = (6..10).map(|at| Candidate { fingerprint: chunks[at], address: Address::from_bits(at as u64) }).collect();
    let doom = RemovalStep::Doom { removal: 9, copies: copies.clone() };
    assert_eq!(others.remove(1, &doom).unwrap(), RemovalAnswer::Doomed(vec![false, false, true, true]));
    assert_eq!(others.remove(1, &RemovalStep::Settle { removal: 9 }).unwrap(), RemovalAnswer::NotYet);
    others.dead(2, &copies).unwrap();
    let options = PruneOptions { max_unused: 0.05, max_fill: 1.0, dry_run: true };
    assert_eq!(others.reclaim(1, 1, options).unwrap(), None);
    assert_eq!(others.reclaim(1, 7, options).unwrap().unwrap().chunks, 7);
    pair.owner.claimed.lock().clone_from(&chunks);
    let mut sorted = chunks.clone();
    sorted.sort_unstable();
    assert_eq!(others.collect(1, 5, 7, MINUTE).unwrap(), sorted);
    let report =
        Report { node: NodeNumber(0), opening: Opening(1), table: None, is_leaving: true, released: Vec::new(), restated: Vec::new() };
    let prepared = Prepared { node: NodeNumber(0), opening: Opening(1), table: 3, end: Position(8192) };
    let messages =
        [Membership::Report(report.clone()), Membership::Order(Order::OpenAgain { opening: Opening(4) }), Membership::Prepared(prepared)];
    messages.iter().for_each(|message| others.tell(1, message.clone()));
    // Nobody speaks for another node.
    others.tell(1, Membership::Report(Report { node: NodeNumber(2), ..report }));
    until("all has come", || pair.owner.asked.lock().len() == 14);
    let asked = pair.owner.asked.lock().clone();
    assert_eq!(asked[0], Asked::Begin(0));
    assert!(matches!(&asked[1], Asked::Claim(0, names) if names.len() == 40));
    for expected in [Asked::Wait(0, chunks[0]), Asked::Hurry, Asked::Release(0, chunks[..3].to_vec())] {
        assert!(asked.contains(&expected), "{expected:?}");
    }
    for expected in [Asked::Deliver(0, 5, 1, delivery), Asked::Seal(ContainerId::new(3, 9), 1), Asked::Collect(0, 5, 7)] {
        assert!(asked.contains(&expected), "{expected:?}");
    }
    for expected in [Asked::Remove(0, doom), Asked::Dead(2, 1, copies)] {
        assert!(asked.contains(&expected), "{expected:?}");
    }
    assert!(messages.iter().all(|message| asked.contains(&Asked::Membership(0, message.clone()))));
    // One connection, and for each request a message there and one back.
    until("all is answered", || pair.asking.statistics().of("done").received.messages == 9);
    let (asking, answering) = (pair.asking.statistics(), pair.answering.statistics());
    assert_eq!((asking.connections, answering.connections), (1, 0));
    for (kind, count) in [
        ("claim", 1),
        ("wait", 1),
        ("hurry", 1),
        ("release", 1),
        ("deliver", 1),
        ("seal", 1),
        ("collect", 1),
        ("begin", 1),
        ("remove", 2),
        ("dead", 1),
        ("reclaim", 2),
    ]
    .into_iter()
    .chain([("report", 2)])
    {
        assert_eq!((asking.of(kind).sent.messages, answering.of(kind).received), (count, asking.of(kind).sent), "{kind}");
    }
    for (kind, count) in [("claimed", 1), ("delivered", 1), ("collected", 1), ("removing", 2), ("reclaimed", 2), ("refused", 1)] {
        assert_eq!((answering.of(kind).sent.messages, asking.of(kind).received), (count, answering.of(kind).sent), "{kind}");
    }
    assert_eq!((asking.claimed_names, asking.names_per_claim()), (40, 40.0));
}

#[test]
fn m4_4_answers_come_in_the_order_of_the_chunks_from_all_owners() {
    let pair = pair(patient());
    let third = node(&pair.book, 2, patient());
    let owner = std::sync::Arc::new(Noting::default());
    let _server = serve(&pair.book, 2, &third, &owner);
    for number in 0..4 {
        pair.book.owners.write().insert(Partition { class: PartitionClass::ChunkIndex, number }, (2, 1));
    }
    // More than one message holds.
    let chunks = names(0..3000);
    let mut claims = Vec::new();
    pair.asking.others().claim(&wanted(&chunks), &mut claims).unwrap();
    assert_eq!(claims.len(), 3000);
    let is_there =
        |owner: &Noting, name| owner.asked.lock().iter().any(|asked| matches!(asked, Asked::Claim(0, names) if names.contains(name)));
    for name in chunks.iter().step_by(97) {
        let at_third = onefold_index::ChunkIndex::partition_of(name, INDEX) < 4;
        assert_eq!((is_there(&pair.owner, name), is_there(&owner, name)), (!at_third, at_third));
    }
    assert!(pair.asking.statistics().of("claim").sent.messages >= 4);
}

#[test]
fn m4_4_an_owner_that_is_not_there_is_named_and_the_others_are_given_their_claims_back() {
    let pair = pair(crate::Options { claim: Duration::from_secs(3), ..patient() });
    pair.asking.others().begin().unwrap();
    for number in 0..4 {
        pair.book.owners.write().insert(Partition { class: PartitionClass::ChunkIndex, number }, (2, 1));
    }
    let chunks = names(0..20);
    let error = pair.asking.others().claim(&wanted(&chunks), &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, EngineError::OtherNode { why } if why.contains("node 2") && why.contains("not there")), "{error}");
    let released = |name| pair.owner.asked.lock().iter().any(|asked| matches!(asked, Asked::Release(0, names) if names.contains(name)));
    let of_first = |name: &&onefold_fingerprint::Fingerprint| onefold_index::ChunkIndex::partition_of(name, INDEX) >= 4;
    until("they are given back", || chunks.iter().filter(of_first).all(released));
}

#[test]
fn m4_8_nobody_waits_for_a_node_that_is_gone_when_another_one_has_its_partitions() {
    let pair = pair(patient());
    let all: Vec<_> = (0..INDEX as u16).map(|number| Partition { class: PartitionClass::ChunkIndex, number }).collect();
    pair.book.owners.write().extend(all.iter().map(|partition| (*partition, (2, 1))));
    let delivery = Delivery { behind: Some(Position(0)), upto: Position(4096), ..Delivery::default() };
    let begin = Instant::now();
    std::thread::scope(|threads| {
        let asking = threads.spawn(|| {
            let mut claims = Vec::new();
            pair.asking.others().claim(&wanted(&names(0..20)), &mut claims).unwrap();
            claims
        });
        let delivering = threads.spawn(|| pair.asking.others().deliver(3, &delivery).unwrap());
        until("they wait", || pair.asking.others().queued(2) > 1);
        pair.book.owners.write().extend(all.iter().map(|partition| (*partition, (1, 2))));
        assert_eq!(asking.join().unwrap(), vec![Claim::Mine; 20]);
        assert_eq!(delivering.join().unwrap(), Position(4096));
    });
    assert!(begin.elapsed() < MINUTE / 2);
    assert!(pair.owner.asked.lock().iter().any(|asked| matches!(asked, Asked::Deliver(0, 3, 2, _))));
}

#[test]
fn a_refused_claim_tells_of_the_newer_table_and_goes_to_the_new_owner() {
    // The directories of two nodes that know different tables.
    let pair = pair(patient());
    pair.book.table.store(4, Ordering::SeqCst);
    *pair.owner.refusal.lock() = Some(Refusal::NotOwned);
    let third = node(&pair.book, 2, patient());
    let owner = std::sync::Arc::new(Noting::default());
    let _server = serve(&pair.book, 2, &third, &owner);
    let behind = std::sync::Arc::new(Book::default());
    *behind.fingerprints.write() = pair.book.fingerprints.read().clone();
    *behind.addresses.write() = pair.book.addresses.read().clone();
    let fourth = identity(3);
    pair.book.fingerprints.write().insert(3, fourth.fingerprint());
    let fourth = with_identity(&behind, 3, fourth, patient());
    let others = fourth.others();
    let waiting = std::thread::spawn(move || others.claim(&wanted(&names(0..1)), &mut Vec::new()));
    until("it has heard of it", || behind.heard.lock().contains(&4));
    for number in 0..INDEX as u16 {
        behind.owners.write().insert(Partition { class: PartitionClass::ChunkIndex, number }, (2, 2));
    }
    waiting.join().unwrap().unwrap();
    assert!(owner.has(&Asked::Claim(3, names(0..1))));
}

#[test]
fn an_owner_that_is_not_ready_is_asked_again_and_one_that_refuses_is_not() {
    let pair = pair(patient());
    *pair.owner.refusal.lock() = Some(Refusal::Later("adopting".to_owned()));
    let others = pair.asking.others();
    let asking = others.clone();
    let waiting = std::thread::spawn(move || asking.claim(&wanted(&names(0..1)), &mut Vec::new()));
    until("it is asked again", || pair.owner.asked.lock().len() > 2);
    *pair.owner.refusal.lock() = None;
    waiting.join().unwrap().unwrap();
    *pair.owner.refusal.lock() = Some(Refusal::Refused("the disk is full".to_owned()));
    let error = others.claim(&wanted(&names(1..2)), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("node 1: it refused: the disk is full"), "{error}");
}

#[test]
fn a_node_that_stops_fails_its_calls_at_once() {
    let pair = pair(patient());
    pair.owner.claims.close();
    let others = pair.asking.others();
    let asking = others.clone();
    let waiting = std::thread::spawn(move || asking.claim(&wanted(&names(0..1)), &mut Vec::new()));
    until("it is at work", || pair.owner.claims.waiting() == 1);
    drop(pair.asking);
    assert!(waiting.join().unwrap().is_err());
    let error = others.claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains(&CallError::Stopped.to_string()), "{error}");
    pair.owner.claims.open();
}
