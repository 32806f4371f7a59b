use super::*;

fn nexus(name: &str) -> Nexus {
    Nexus { initiator: format!("iqn.2026-01.example:{name}"), target_port: 1 }
}

fn register(unit: &mut Reservations, nexus: &Nexus, key: u64) {
    unit.change(nexus, Request { new_key: key, ..Request::default() }).unwrap();
}

fn reserve(unit: &mut Reservations, nexus: &Nexus, key: u64, kind: u8) -> Result<Vec<Attention>, Refusal> {
    unit.change(nexus, Request { action: 1, key, kind, ..Request::default() })
}

#[test]
fn registering_needs_the_right_key() {
    let (mut unit, a) = (Reservations::default(), nexus("a"));
    assert_eq!(unit.change(&a, Request { key: 5, new_key: 1, ..Request::default() }), Err(Refusal::Conflict));
    register(&mut unit, &a, 1);
    assert_eq!(unit.change(&a, Request { key: 5, new_key: 2, ..Request::default() }), Err(Refusal::Conflict));
    unit.change(&a, Request { action: 6, key: 5, new_key: 2, ..Request::default() }).unwrap();
    assert_eq!(unit.keys().collect::<Vec<_>>(), [2]);
    assert_eq!(unit.generation(), 2);
    unit.change(&a, Request { key: 2, new_key: 0, ..Request::default() }).unwrap();
    assert_eq!(unit.keys().count(), 0);
}

#[test]
fn each_type_lets_through_whom_it_should() {
    let (holder, registrant, stranger) = (nexus("holder"), nexus("registrant"), nexus("stranger"));
    // Type, then what a registrant and a stranger may: read, write.
    let table = [
        (1, [true, false], [true, false]),
        (3, [false, false], [false, false]),
        (5, [true, true], [true, false]),
        (6, [true, true], [false, false]),
        (7, [true, true], [true, false]),
        (8, [true, true], [false, false]),
    ];
    for (kind, of_registrant, of_stranger) in table {
        let mut unit = Reservations::default();
        register(&mut unit, &holder, 1);
        register(&mut unit, &registrant, 2);
        reserve(&mut unit, &holder, 1, kind).unwrap();
        for (at, access) in [Access::Read, Access::Write].into_iter().enumerate() {
            assert!(unit.allows(&holder, access));
            assert_eq!(unit.allows(&registrant, access), of_registrant[at], "type {kind}");
            assert_eq!(unit.allows(&stranger, access), of_stranger[at], "type {kind}");
        }
        assert!(unit.allows(&stranger, Access::Free));
        let again = reserve(&mut unit, &registrant, 2, kind);
        assert_eq!(again.is_ok(), kind >= 7, "type {kind}");
    }
    assert!(reserve(&mut Reservations::default(), &stranger, 1, 1).is_err());
}

#[test]
fn who_shared_a_reservation_hears_that_it_is_gone() {
    let (a, b) = (nexus("a"), nexus("b"));
    for (kind, hears) in [(1, false), (5, true)] {
        let mut unit = Reservations::default();
        register(&mut unit, &a, 1);
        register(&mut unit, &b, 2);
        reserve(&mut unit, &a, 1, kind).unwrap();
        let release = Request { action: 2, key: 1, kind, ..Request::default() };
        assert!(unit.change(&a, Request { kind: 3, ..release }).is_err());
        assert_eq!(unit.change(&b, Request { key: 2, ..release }), Ok(vec![]));
        let heard = unit.change(&a, release).unwrap();
        assert_eq!(heard, if hears { vec![(b.clone(), Code::RESERVATIONS_RELEASED)] } else { vec![] });
        assert_eq!(unit.reservation(), None);
    }
}

#[test]
fn preempting_takes_registrations_and_the_reservation() {
    let (a, b, c) = (nexus("a"), nexus("b"), nexus("c"));
    let mut unit = Reservations::default();
    for (nexus, key) in [(&a, 1), (&b, 2), (&c, 2)] {
        register(&mut unit, nexus, key);
    }
    reserve(&mut unit, &b, 2, 3).unwrap();
    let preempt = Request { action: 4, key: 1, new_key: 2, kind: 1, ..Request::default() };
    let heard = unit.change(&a, preempt).unwrap();
    assert_eq!(heard, [(b.clone(), Code::REGISTRATIONS_PREEMPTED), (c.clone(), Code::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(unit.reservation(), Some(&Reservation { kind: Type::WriteExclusive, holder: a.clone() }));
    assert_eq!(unit.change(&a, preempt), Err(Refusal::Conflict), "nobody has that key");
    assert!(unit.change(&a, Request { new_key: 0, ..preempt }).is_err());
    register(&mut unit, &b, 7);
    assert_eq!(unit.change(&b, Request { action: 3, key: 7, ..Request::default() }), Ok(vec![(a, Code::RESERVATIONS_PREEMPTED)]));
    assert_eq!((unit.keys().count(), unit.reservation()), (0, None));
}

#[test]
fn a_reservation_of_all_registrants_goes_with_the_last() {
    let (a, b) = (nexus("a"), nexus("b"));
    let mut unit = Reservations::default();
    register(&mut unit, &a, 1);
    register(&mut unit, &b, 2);
    reserve(&mut unit, &a, 1, 8).unwrap();
    assert_eq!(unit.holders_key(), 0);
    unit.change(&a, Request { key: 1, ..Request::default() }).unwrap();
    assert!(unit.is_holder(&b) && !unit.is_holder(&a));
    unit.change(&b, Request { key: 2, ..Request::default() }).unwrap();
    assert_eq!(unit.reservation(), None);
}

#[test]
fn the_older_reservations_keep_others_out_until_the_nexus_is_gone() {
    let (a, b) = (nexus("a"), nexus("b"));
    let mut unit = Reservations::default();
    unit.reserve(&a).unwrap();
    assert_eq!(unit.reserve(&b), Err(Refusal::Conflict));
    assert!(!unit.allows(&b, Access::Read) && unit.allows(&a, Access::Write) && unit.allows(&b, Access::Free));
    unit.release(&b).unwrap();
    assert!(!unit.allows(&b, Access::Read));
    unit.lose_nexus(&a);
    unit.reserve(&b).unwrap();
    unit.reset();
    register(&mut unit, &a, 1);
    assert_eq!(unit.reserve(&b), Err(Refusal::Conflict));
}
