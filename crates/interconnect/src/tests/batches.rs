use super::harness::*;
use crate::Options;
use onefold_engine::{Claim, OtherNodes};

#[test]
fn m4_7_claims_of_several_streams_go_in_one_message_of_128_names() {
    // Nothing but the number of names ends the wait.
    let pair = pair(Options { gather: MINUTE, ..patient() });
    pair.owner.claims.close();
    let others = pair.asking.others();
    let claim = |from: u64| {
        let others = others.clone();
        std::thread::spawn(move || {
            let mut claims = Vec::new();
            others.claim(&wanted(&names(from..from + 32)), &mut claims).unwrap();
            assert_eq!(claims, vec![Claim::Mine; 32]);
        })
    };
    // An idle connection sends at once.
    let mut streams = vec![claim(0)];
    until("the first one is at work", || pair.owner.claims.waiting() == 1);
    streams.extend((1..5).map(|stream| claim(stream * 32)));
    until("the second message is sent", || pair.asking.statistics().of("claim").sent.messages == 2);
    pair.owner.claims.open();
    streams.into_iter().for_each(|stream| stream.join().unwrap());
    let statistics = pair.asking.statistics();
    assert_eq!((statistics.of("claim").sent.messages, statistics.claimed_names), (2, 32 + 128));
    assert_eq!(statistics.of("claimed").received.messages, 2);
}

#[test]
fn m4_7_a_claim_does_not_wait_for_others_longer_than_it_should() {
    let pair = pair(patient());
    pair.owner.claims.close();
    let others = pair.asking.others();
    let claim = |from: u64| {
        let others = others.clone();
        std::thread::spawn(move || others.claim(&wanted(&names(from..from + 1)), &mut Vec::new()).unwrap())
    };
    let first = claim(0);
    until("the first one is at work", || pair.owner.claims.waiting() == 1);
    let second = claim(1);
    // Its owner is busy, and nobody joins it.
    until("it is sent all the same", || pair.asking.statistics().of("claim").sent.messages == 2);
    pair.owner.claims.open();
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn m4_7_a_claim_that_waits_for_others_goes_when_the_one_before_it_is_answered() {
    let pair = pair(Options { gather: MINUTE, ..patient() });
    pair.owner.claims.close();
    let others = pair.asking.others();
    let claim = |from: u64| {
        let others = others.clone();
        std::thread::spawn(move || others.claim(&wanted(&names(from..from + 1)), &mut Vec::new()).unwrap())
    };
    let first = claim(0);
    until("the first one is at work", || pair.owner.claims.waiting() == 1);
    let rest = [claim(1), claim(2), claim(3)];
    until("they wait", || others.queued(1) == 3);
    pair.owner.claims.open();
    first.join().unwrap();
    rest.into_iter().for_each(|stream| stream.join().unwrap());
    assert_eq!(pair.asking.statistics().of("claim").sent.messages, 2);
}
