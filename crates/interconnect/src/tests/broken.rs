use super::harness::*;
use crate::Options;
use crate::frame::Frame;
use crate::lanes::Lane;
use crate::messages::{Message, kinds};
use onefold_engine::{Claim, OtherNodes};
use onefold_remote::transport::{Header, encode_header};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// A pair with a line between them.
fn lined(options: Options) -> (Pair, Line) {
    let pair = pair(options);
    let line = Line::to(pair.server.as_ref().unwrap().address().to_string());
    pair.book.addresses.write().insert(1, line.address.to_string());
    (pair, line)
}

#[test]
fn a_connection_cut_within_a_request_gives_an_error_and_the_next_call_connects_again() {
    let (pair, line) = lined(patient());
    pair.owner.claims.close();
    let others = pair.asking.others();
    let asking = others.clone();
    let waiting = std::thread::spawn(move || asking.claim(&wanted(&names(0..1)), &mut Vec::new()));
    until("it is at work", || pair.owner.claims.waiting() == 1);
    line.cut();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("node 1: the connection was lost"), "{error}");
    pair.owner.claims.open();
    let mut claims = Vec::new();
    others.claim(&wanted(&names(0..1)), &mut claims).unwrap();
    assert_eq!((claims, pair.asking.statistics().connections), (vec![Claim::Mine], 2));
}

#[test]
fn releases_whose_answers_are_lost_are_sent_again_first_thing_on_the_next_connection() {
    let (pair, line) = lined(patient());
    let others = pair.asking.others();
    let chunks = names(0..3);
    others.claim(&wanted(&chunks), &mut Vec::new()).unwrap();
    line.lose_answers(true);
    others.release(&chunks);
    until("they have come", || pair.owner.asked.lock().len() == 2);
    line.cut();
    line.lose_answers(false);
    // Nobody calls: the releases alone need a connection.
    until("they have come again", || pair.owner.asked.lock().len() == 3);
    others.claim(&wanted(&chunks), &mut Vec::new()).unwrap();
    let asked = pair.owner.asked.lock().clone();
    assert!(matches!(&asked[..], [Asked::Claim(..), Asked::Release(..), Asked::Release(..), Asked::Claim(..)]), "{asked:?}");
}

#[test]
fn nothing_of_a_lost_connection_is_done_behind_the_next_one() {
    let (pair, line) = lined(Options { gather: Duration::ZERO, ..patient() });
    pair.owner.claims.close();
    let others = pair.asking.others();
    let claim = |number: u64| {
        let of = others.clone();
        std::thread::spawn(move || of.claim(&wanted(&names(number..number + 1)), &mut Vec::new()))
    };
    let first = claim(0);
    until("the first one is at work", || pair.owner.claims.waiting() == 1);
    let second = claim(1);
    until("the second one has come", || pair.answering.statistics().of("claim").received.messages == 2);
    line.cut();
    assert!(first.join().unwrap().is_err() && second.join().unwrap().is_err());
    // Both are given back, on a connection that waits until the first one is done.
    let third = claim(2);
    pair.owner.claims.open();
    third.join().unwrap().unwrap();
    let asked = pair.owner.asked.lock().clone();
    let place = |wanted: &dyn Fn(&Asked) -> bool| asked.iter().position(wanted);
    let claimed = |number| place(&|asked| matches!(asked, Asked::Claim(0, names) if names.contains(&name(number))));
    let released = |number| place(&|asked| matches!(asked, Asked::Release(0, names) if names.contains(&name(number))));
    assert_eq!(claimed(1), None, "{asked:?}");
    assert!(claimed(0) < released(0) && released(1).is_some(), "{asked:?}");
}

#[test]
fn a_stranger_that_says_nothing_or_nonsense_is_let_go_and_keeps_nobody_out() {
    let pair = pair(Options { greeting: Duration::from_millis(500), strangers: 4, ..patient() });
    let address = pair.server.as_ref().unwrap().address();
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    for mut stream in silent {
        stream.set_read_timeout(Some(MINUTE)).unwrap();
        assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0, "it is let go");
    }
    let mut nonsense = TcpStream::connect(address).unwrap();
    nonsense.set_read_timeout(Some(MINUTE)).unwrap();
    let _ = nonsense.write_all(&[0x55; 100_000]);
    let mut rest = Vec::new();
    // An alert, or nothing.
    let _ = nonsense.read_to_end(&mut rest);
    assert!(rest.len() < 100);
    pair.asking.others().claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap();
}

#[test]
fn a_node_that_breaks_the_protocol_loses_its_connection() {
    // Not because it is silent.
    let pair = pair(Options { silence: 5 * MINUTE, ping: 5 * MINUTE, ..patient() });
    let own = identity(0);
    pair.book.fingerprints.write().insert(0, own.fingerprint());
    let mut number = 0;
    let mut greeted = || {
        number += 1;
        let mut raw = connect(&own, &pair.book, 1);
        assert_eq!(raw.hello(hello(number)).kind, crate::greeting::kinds::WELCOME);
        raw
    };
    // A length that nothing may have: it is refused by the head.
    let mut raw = greeted();
    raw.send_bytes(&encode_header(Header { length: u32::MAX, kind: kinds::CLAIM, channel: 1 }));
    assert!(raw.read().is_none());
    // A kind that is none, an answer, and a payload that is malformed.
    for frame in [(0x7f, vec![]), (kinds::DONE, Message::Done.encode(0, 32)), (kinds::CLAIM, vec![0, 32, 200])] {
        let mut raw = greeted();
        raw.send(&Frame { kind: frame.0, id: 1, payload: frame.1 });
        assert!(raw.read().is_none());
    }
    // More than the window.
    pair.owner.deliveries.close();
    let mut raw = greeted();
    for id in 0..=Lane::Deliveries.window() as u32 {
        raw.request(id + 1, &Message::Deliver { partition: 0, epoch: 1, delivery: Default::default() });
    }
    assert!(raw.read().is_none());
    pair.owner.deliveries.open();
    // Every other connection works.
    let mut raw = greeted();
    raw.request(7, &Message::Begin);
    let answer = raw.read().unwrap();
    assert_eq!((answer.id, answer.kind), (7, kinds::DONE));
}

#[test]
fn a_node_that_stops_within_a_frame_loses_its_connection() {
    let pair = pair(Options { silence: Duration::from_millis(500), ping: Duration::from_millis(100), ..patient() });
    let own = identity(0);
    pair.book.fingerprints.write().insert(0, own.fingerprint());
    let mut raw = connect(&own, &pair.book, 1);
    raw.hello(hello(1));
    raw.send_bytes(&encode_header(Header { length: 400 << 20, kind: kinds::DELIVER, channel: 1 }));
    raw.send_bytes(&[0; 100]);
    assert!(raw.read().is_none());
}

#[test]
fn two_nodes_that_have_nothing_to_say_keep_their_connection() {
    let pair = pair(Options { silence: Duration::from_secs(5), ping: Duration::from_millis(50), ..patient() });
    let others = pair.asking.others();
    others.claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    others.claim(&wanted(&names(1..2)), &mut Vec::new()).unwrap();
    assert_eq!(pair.asking.statistics().connections, 1);
}

#[test]
fn an_answer_to_another_request_or_to_none_is_not_taken() {
    let book = Arc::new(Book::default());
    let asking = node(&book, 0, Options { pause: Duration::from_millis(20), ..patient() });
    let welcome = crate::greeting::Welcome { version: crate::greeting::VERSION, store: STORE, node: 1, opening: 1 };
    type Answer = fn(&Frame) -> (u32, Message);
    let wrong: [Answer; 4] = [
        |request| (request.id + 1, Message::Claimed(vec![Claim::Mine])),
        |request| (request.id, Message::Claimed(vec![Claim::Mine; 2])),
        |request| (request.id, Message::Done),
        |request| (request.id, Message::Begin),
    ];
    for answer in wrong {
        let (answering, listener) = (identity(1), listener());
        book.fingerprints.write().insert(1, answering.fingerprint());
        book.addresses.write().insert(1, listener.local_addr().unwrap().to_string());
        let other = std::thread::spawn(move || {
            let mut raw = accept(&answering, listener);
            raw.read().unwrap();
            raw.send(&Frame { kind: crate::greeting::kinds::WELCOME, id: 0, payload: welcome.encode() });
            loop {
                let request = raw.read().expect("a claim comes");
                if request.kind == kinds::CLAIM {
                    let (id, message) = answer(&request);
                    raw.request(id, &message);
                    break;
                }
                // What was claimed before is given back.
                raw.request(request.id, &Message::Done);
            }
            assert!(raw.read().is_none(), "the connection ends");
        });
        let error = asking.others().claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("the connection was lost: "), "{error}");
        other.join().unwrap();
    }
}
