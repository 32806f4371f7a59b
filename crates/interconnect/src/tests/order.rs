use super::harness::*;
use crate::Options;
use crate::frame::Frame;
use crate::greeting::{VERSION, Welcome, kinds as greetings};
use crate::lanes::Lane;
use crate::messages::{Message, kinds};
use onefold_engine::{Claim, Delivery, EngineError, OtherNodes};
use onefold_oplog::Position;
use onefold_storage::ContainerId;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_claim_overtakes_deliveries_and_bulk_that_wait_to_be_sent() {
    let book = Arc::new(Book::default());
    let asking = node(&book, 0, patient());
    let answering = identity(1);
    book.fingerprints.write().insert(1, answering.fingerprint());
    let others = asking.others();
    let mut threads = Vec::new();
    let mut spawn = |work: Box<dyn FnOnce(&crate::Nodes) + Send>, count: usize| {
        let of = others.clone();
        threads.push(std::thread::spawn(move || work(&of)));
        until("it waits", || others.queued(1) == count);
    };
    // There is no connection yet.
    spawn(Box::new(|others| others.seal(ContainerId::new(1, 1)).unwrap()), 1);
    spawn(Box::new(|others| assert!(others.deliver(0, &Delivery { upto: Position(4096), ..Delivery::default() }).is_ok())), 2);
    spawn(Box::new(|others| others.wait(&name(1), Instant::now() + MINUTE)), 3);
    spawn(Box::new(|others| others.claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap()), 4);
    let listener = listener();
    book.addresses.write().insert(1, listener.local_addr().unwrap().to_string());
    let mut raw = accept(&answering, listener);
    assert_eq!(raw.read().unwrap().kind, greetings::HELLO);
    let welcome = Welcome { version: VERSION, store: STORE, node: 1, opening: 1 };
    raw.send(&Frame { kind: greetings::WELCOME, id: 0, payload: welcome.encode() });
    let frames: Vec<Frame> = (0..4).map(|_| raw.read().unwrap()).collect();
    assert_eq!(frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [kinds::CLAIM, kinds::WAIT, kinds::DELIVER, kinds::SEAL]);
    // Answers may come in any order.
    for (frame, answer) in
        frames.iter().zip([Message::Claimed(vec![Claim::Mine]), Message::Done, Message::Delivered(Position(4096)), Message::Done]).rev()
    {
        raw.request(frame.id, &answer);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn deliveries_waits_and_seals_that_take_long_hold_up_no_claim() {
    let pair = pair(patient());
    let owner = pair.owner.clone();
    [&owner.deliveries, &owner.waits, &owner.seals].into_iter().for_each(Gate::close);
    let others = pair.asking.others();
    let mut threads = Vec::new();
    for number in 0..30 {
        let of = others.clone();
        threads.push(std::thread::spawn(move || of.wait(&name(number), Instant::now() + MINUTE)));
        let of = others.clone();
        threads.push(std::thread::spawn(move || of.seal(ContainerId::new(0, number as u32)).unwrap()));
        let of = others.clone();
        let delivery = Delivery { upto: Position(number), ..Delivery::default() };
        threads.push(std::thread::spawn(move || assert!(of.deliver(0, &delivery).is_ok())));
    }
    let most = |lane: Lane| (lane.width(), lane.window());
    until("as many are at work as may be", || {
        (owner.waits.waiting(), owner.deliveries.waiting(), owner.seals.waiting())
            == (most(Lane::Waits).0, most(Lane::Deliveries).0, most(Lane::Bulk).0)
    });
    others.claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap();
    // The rest waits at its sender.
    let sent = pair.asking.statistics();
    let counts = ["wait", "deliver", "seal"].map(|kind| sent.of(kind).sent.messages as usize);
    assert_eq!(counts, [most(Lane::Waits).1, most(Lane::Deliveries).1, most(Lane::Bulk).1]);
    [&owner.deliveries, &owner.waits, &owner.seals].into_iter().for_each(Gate::open);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_full_queue_stops_its_senders_until_their_deadline() {
    let pair = pair(Options { deliver: Duration::from_secs(3), ..patient() });
    pair.owner.deliveries.close();
    let others = pair.asking.others();
    others.begin().unwrap();
    let threads: Vec<_> = (0..10)
        .map(|number| {
            let of = others.clone();
            std::thread::spawn(move || of.deliver(0, &Delivery { upto: Position(number), ..Delivery::default() }))
        })
        .collect();
    let most = Lane::Deliveries.capacity();
    until("one is at work", || pair.owner.deliveries.waiting() == 1);
    for thread in threads {
        let error = thread.join().unwrap().unwrap_err();
        assert!(matches!(&error, EngineError::OtherNode { why } if why.contains("node 1: no answer in time")), "{error}");
    }
    assert!(others.most_queued(1, Lane::Deliveries) <= most);
    // What nobody waits for any more is not sent.
    assert_eq!((others.queued(1), pair.asking.statistics().of("deliver").sent.messages), (0, 1));
    pair.owner.deliveries.open();
}

#[test]
fn claims_that_are_answered_when_nobody_waits_for_them_are_given_back_behind_them() {
    let pair = pair(Options { claim: Duration::from_secs(3), ..patient() });
    pair.asking.others().begin().unwrap();
    pair.owner.claims.close();
    let chunks = names(0..4);
    let error = pair.asking.others().claim(&wanted(&chunks), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("node 1"), "{error}");
    pair.owner.claims.open();
    until("they are given back", || pair.owner.asked.lock().len() == 3);
    let asked = pair.owner.asked.lock().split_off(1);
    let sorted = |asked: &Asked| match asked {
        Asked::Claim(0, names) | Asked::Release(0, names) => {
            let mut names = names.clone();
            names.sort();
            names
        }
        other => panic!("{other:?}"),
    };
    let mut expected = chunks;
    expected.sort();
    assert!(matches!(&asked[..], [Asked::Claim(..), Asked::Release(..)]));
    assert!(asked.iter().all(|asked| sorted(asked) == expected));
}

#[test]
fn m4_4_a_claim_behind_a_release_of_the_same_chunk_comes_behind_it() {
    let pair = pair(patient());
    let others = pair.asking.others();
    for _ in 0..200 {
        others.claim(&wanted(&names(0..3)), &mut Vec::new()).unwrap();
        others.release(&names(0..3));
    }
    others.claim(&wanted(&names(0..3)), &mut Vec::new()).unwrap();
    let asked = pair.owner.asked.lock().clone();
    let expected = |at: usize, asked: &Asked| matches!(asked, Asked::Claim(..)) == at.is_multiple_of(2);
    assert!(asked.iter().enumerate().all(|(at, asked)| expected(at, asked)) && asked.len() == 401);
}
