use super::harness::*;
use crate::frame::Frame;
use crate::greeting::{Hello, VERSION, Welcome, codes, kinds};
use crate::tls::Identity;
use onefold_engine::OtherNodes;
use onefold_remote::transport::decode_reason;
use std::sync::Arc;

/// Returns the error of a claim, which comes long before its deadline.
fn refused(asking: &crate::Interconnect) -> String {
    asking.others().claim(&wanted(&names(0..1)), &mut Vec::new()).unwrap_err().to_string()
}

#[test]
fn an_owner_with_another_certificate_than_the_buckets_is_not_asked() {
    let pair = pair(patient());
    pair.book.fingerprints.write().insert(1, identity(1).fingerprint());
    let why = refused(&pair.asking);
    assert!(why.contains("node 1") && why.contains("certificate"), "{why}");
    assert!(pair.owner.asked.lock().is_empty());
}

#[test]
fn an_owner_whose_certificate_names_another_node_is_not_asked() {
    let book = Arc::new(Book::default());
    let asking = node(&book, 0, patient());
    let second = identity(2);
    book.fingerprints.write().insert(1, second.fingerprint());
    let answering = with_identity(&book, 1, second, patient());
    let owner = Arc::new(Noting::default());
    let _server = serve(&book, 1, &answering, &owner);
    let why = refused(&asking);
    assert!(why.contains("node 1") && why.contains("certificate"), "{why}");
    assert!(owner.asked.lock().is_empty());
}

#[test]
fn whoever_asks_with_a_certificate_that_is_not_the_nodes_is_refused() {
    let pair = pair(patient());
    // Another one than the bucket's, and one with another name.
    let unknown = with_identity(&pair.book, 0, identity(0), patient());
    let why = refused(&unknown);
    assert!(why.contains("refused this node") && why.contains("not that of node 0"), "{why}");
    let third = identity(3);
    pair.book.fingerprints.write().insert(0, third.fingerprint());
    let misnamed = with_identity(&pair.book, 0, third, patient());
    let why = refused(&misnamed);
    assert!(why.contains("not that of node 0"), "{why}");
    assert!(pair.owner.asked.lock().is_empty());
}

#[test]
fn another_version_store_or_node_and_an_old_connection_are_refused_with_a_reason() {
    let pair = pair(patient());
    let own = identity(0);
    pair.book.fingerprints.write().insert(0, own.fingerprint());
    let answer = |hello: Hello| {
        let frame = connect(&own, &pair.book, 1).hello(hello);
        if frame.kind == kinds::WELCOME { (0, String::new()) } else { decode_reason(&frame.payload).unwrap() }
    };
    let usual = hello(1);
    let (code, text) = answer(Hello { version: 9, ..usual });
    assert!(code == codes::VERSION && text.contains("version 1") && text.contains('9'), "{text}");
    let (code, text) = answer(Hello { store: [9; 16], ..usual });
    assert!(code == codes::STORE && text.contains("another store"), "{text}");
    let (code, text) = answer(Hello { to: 2, ..usual });
    assert!(code == codes::NODE && text.contains("this is node 1, not node 2"), "{text}");
    assert_eq!(answer(Hello { from: 1, ..usual }).0, codes::NODE);
    assert_eq!(answer(Hello { from: 7, ..usual }).0, codes::CERTIFICATE);
    assert_eq!(answer(Hello { connection: 5, ..usual }).0, 0);
    assert_eq!(answer(Hello { connection: 5, ..usual }).0, codes::STALE);
    assert_eq!(answer(Hello { opening: 0, connection: 6, ..usual }).0, codes::STALE);
    assert_eq!(answer(Hello { opening: 2, connection: 1, ..usual }).0, 0);
    // What comes first is a greeting.
    let mut raw = connect(&own, &pair.book, 1);
    raw.send(&Frame { kind: kinds::WELCOME, id: 0, payload: Vec::new() });
    assert_eq!(decode_reason(&raw.read().unwrap().payload).unwrap().0, codes::GREETING);
    assert!(raw.read().is_none());
}

#[test]
fn a_welcome_of_another_version_store_or_node_is_not_believed() {
    let book = Arc::new(Book::default());
    let asking = node(&book, 0, patient());
    let welcome = Welcome { version: VERSION, store: STORE, node: 1, opening: 1 };
    let wrong = [
        (Welcome { version: 9, ..welcome }, "version 9"),
        (Welcome { store: [9; 16], ..welcome }, "another store"),
        (Welcome { node: 2, ..welcome }, "node 2"),
    ];
    for (welcome, expected) in wrong {
        let (answering, listener) = (identity(1), listener());
        book.fingerprints.write().insert(1, answering.fingerprint());
        book.addresses.write().insert(1, listener.local_addr().unwrap().to_string());
        let other = std::thread::spawn(move || {
            let mut raw = accept(&answering, listener);
            raw.read().unwrap();
            raw.send(&Frame { kind: kinds::WELCOME, id: 0, payload: welcome.encode() });
        });
        let why = refused(&asking);
        assert!(why.contains(expected), "{why}");
        other.join().unwrap();
    }
}

#[test]
fn a_node_that_has_not_opened_its_log_neither_asks_nor_answers() {
    let book = Arc::new(Book::default());
    let asking = node(&book, 0, patient());
    let (certificate, key) = Identity::make(1, &STORE).unwrap();
    let own = Identity::from_pem(&certificate, &key).unwrap();
    book.fingerprints.write().insert(1, own.fingerprint());
    let setup = crate::Setup { store: STORE, digest_bytes: 32, node: 1, identity: own, directory: book.clone(), options: patient() };
    let answering = crate::Interconnect::new(setup, INDEX).unwrap();
    let owner = Arc::new(Noting::default());
    let _server = serve(&book, 1, &answering, &owner);
    let others = asking.others();
    let waiting = std::thread::spawn(move || others.claim(&wanted(&names(0..1)), &mut Vec::new()));
    let others = asking.others();
    until("it was refused", || others.trouble(1).is_some_and(|why| why.contains("has not opened its log")));
    // What an engine asks while it opens fails at once.
    book.addresses.write().insert(0, "127.0.0.1:1".to_owned());
    let why = answering.others().begin().unwrap_err().to_string();
    assert!(why.contains("has not opened its log"), "{why}");
    answering.opened(1);
    waiting.join().unwrap().unwrap();
}
