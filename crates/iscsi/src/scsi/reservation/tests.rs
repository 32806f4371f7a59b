use super::*;
use proptest::prelude::*;

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
fn who_is_not_registered_does_not_change_what_is_kept() {
    let (mut unit, a, b) = (Reservations::default(), nexus("a"), nexus("b"));
    unit.change(&a, Request { new_key: 1, keep: true, ..Request::default() }).unwrap();
    let before = unit.clone();
    for action in [0, 6] {
        assert_eq!(unit.change(&b, Request { action, ..Request::default() }), Ok(vec![]));
        assert_eq!(unit, before);
    }
    let empty = &mut Reservations::default();
    empty.change(&b, Request { keep: true, ..Request::default() }).unwrap();
    assert_eq!(*empty, Reservations::default());
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Change(Request),
    Reserve,
    Release,
    Leave,
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(0u8), Just(1), Just(2), Just(3), Just(5), Just(6), Just(7), Just(8), Just(9)];
    let request = (0u8..9, kind, 0u64..4, 0u64..4, any::<bool>());
    prop_oneof![
        12 => request.prop_map(|(action, kind, key, new_key, keep)| Step::Change(Request { action, scope: 0, kind, key, new_key, keep })),
        1 => Just(Step::Reserve),
        1 => Just(Step::Release),
        1 => Just(Step::Leave),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_initiators_do_who_holds_a_unit_is_registered_and_who_loses_it_hears_of_it(steps in proptest::collection::vec((0usize..4, step()), 1..40)) {
        let all = ["a", "b", "c", "d"].map(nexus);
        let mut unit = Reservations::default();
        for (who, step) in steps {
            let (own, before) = (&all[who], unit.clone());
            match step {
                Step::Change(request) => match unit.change(own, request) {
                    Err(_) => prop_assert_eq!(&unit, &before, "what is refused changes nothing"),
                    Ok(heard) => {
                        prop_assert!(request.action != 7 && request.action != 8);
                        prop_assert!(heard.iter().all(|(other, _)| other != own), "who does it knows it");
                        // Who is not registered can only register, and only with the right key.
                        let key = before.registrations.get(own);
                        prop_assert!(matches!(request.action, 0 | 6) || key == Some(&request.key));
                        prop_assert!(request.action != 0 || key.copied().unwrap_or_default() == request.key);
                        for other in before.registrations.keys().filter(|other| *other != own && !unit.registrations.contains_key(other)) {
                            let codes = [Code::REGISTRATIONS_PREEMPTED, Code::RESERVATIONS_PREEMPTED];
                            prop_assert!(heard.iter().any(|(who, code)| who == other && codes.contains(code)), "{other:?} lost its registration");
                        }
                    }
                },
                Step::Reserve => drop(unit.reserve(own)),
                Step::Release => drop(unit.release(own)),
                Step::Leave => unit.lose_nexus(own),
                Step::Reset => unit.reset(),
            }
            if let Some(reservation) = &unit.reservation {
                prop_assert!(unit.registrations.keys().any(|other| unit.is_holder(other)));
                prop_assert!(reservation.kind.is_of_all() || unit.registrations.contains_key(&reservation.holder));
            }
            prop_assert!(unit.legacy.is_none() || unit.registrations.is_empty(), "both kinds of reservations never meet");
            for other in &all {
                prop_assert!(unit.allows(other, Access::Free) && unit.allows(other, Access::Own));
                prop_assert!(!unit.is_holder(other) || unit.allows(other, Access::Write));
                prop_assert!(unit.allows(other, Access::Read) || !unit.allows(other, Access::Write));
            }
            prop_assert!(all.iter().any(|other| unit.allows(other, Access::Write)), "somebody can always write");
        }
    }
}
