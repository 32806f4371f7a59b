//! Append-only mode on a simulated disk.

mod common;

use common::{DEFAULT_CHAIN, descriptor, open, settings, store, try_open};
use onefold_engine::{Engine, EngineError, Mode, Transaction};
use onefold_ground::CrashPolicy;

const SECRET: &[u8] = b"open sesame";

fn is_refused(engine: &Engine) -> bool {
    match engine.permit_deletion("delete anything") {
        Ok(_) => false,
        Err(EngineError::AppendOnly { what: "delete anything" }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn deletions_are_refused_until_the_secret_is_given_and_crashes_change_nothing() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    assert!(!is_refused(&engine));
    assert_eq!(engine.append_only_since().unwrap(), None);
    assert!(matches!(engine.switch_append_only_off(SECRET), Err(EngineError::Invalid { .. })));
    engine.switch_append_only_on(SECRET).unwrap();
    assert!(is_refused(&engine));
    drop(engine);

    let ground = ground.restart(CrashPolicy::DropAll);
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    assert!(is_refused(&engine), "it was durable when switching on returned");
    assert!(engine.append_only_since().unwrap().is_some());
    for wrong in [&b"open sesamE"[..], b"", b"open sesame\n", &[b'x'; 5000]] {
        assert!(matches!(engine.switch_append_only_off(wrong), Err(EngineError::WrongSecret)));
        assert!(is_refused(&engine));
    }
    // Nobody takes the mode over with a secret of their own.
    assert!(matches!(engine.switch_append_only_on(b"another secret"), Err(EngineError::Invalid { .. })));
    assert!(matches!(engine.switch_append_only_off(b"another secret"), Err(EngineError::WrongSecret)));
    engine.switch_append_only_off(SECRET).unwrap();
    assert!(!is_refused(&engine));
    drop(engine);

    let engine = open(&ground.restart(CrashPolicy::DropAll), settings(DEFAULT_CHAIN));
    assert!(!is_refused(&engine));
}

#[test]
fn a_crash_while_it_is_switched_leaves_it_on_or_off() {
    for to in [true, false] {
        for operation in 1.. {
            let ground = store(&descriptor());
            let engine = open(&ground, settings(DEFAULT_CHAIN));
            if !to {
                engine.switch_append_only_on(SECRET).unwrap();
            }
            ground.crash_after_operations(operation);
            let switched = if to { engine.switch_append_only_on(SECRET) } else { engine.switch_append_only_off(SECRET) };
            let crashed = ground.is_crashed();
            drop(engine);
            let engine = open(&ground.restart(CrashPolicy::DropAll), settings(DEFAULT_CHAIN));
            let is_on = is_refused(&engine);
            if switched.is_ok() {
                assert_eq!(is_on, to, "operation {operation}");
            }
            if is_on {
                engine.switch_append_only_off(SECRET).unwrap();
            }
            if !crashed {
                break;
            }
        }
    }
}

#[test]
fn secrets_that_are_too_short_or_too_long_are_refused() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    for length in [0, 7, 1025] {
        let error = engine.switch_append_only_on(&vec![b'x'; length]).unwrap_err().to_string();
        assert!(error.contains(&format!("{length} bytes")) && error.contains("from 8 to 1024"), "{error}");
    }
    assert!(!is_refused(&engine));
}

#[test]
fn who_only_reads_sees_the_mode_and_cannot_change_it() {
    let ground = store(&descriptor());
    let engine = open(&ground, settings(DEFAULT_CHAIN));
    engine.switch_append_only_on(SECRET).unwrap();
    engine.close().unwrap();
    drop(engine);
    let reader = try_open(&ground, settings(DEFAULT_CHAIN), Mode::ReadOnly).unwrap();
    assert!(is_refused(&reader));
    assert!(matches!(reader.switch_append_only_off(SECRET), Err(EngineError::ReadOnly)));
    assert!(matches!(reader.switch_append_only_on(SECRET), Err(EngineError::ReadOnly)));
}

#[test]
fn a_state_that_cannot_be_read_lets_nobody_delete() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let garbage = Transaction { changes: vec![(0, b"a".to_vec(), Some(vec![1, 2, 3]))], references: Vec::new() };
    engine.submit(garbage).unwrap();
    assert!(matches!(engine.permit_deletion("delete anything"), Err(EngineError::Wire { .. })));
    assert!(matches!(engine.switch_append_only_off(SECRET), Err(EngineError::Wire { .. })));
}

#[test]
fn no_deletion_is_submitted_behind_the_switch() {
    let engine = open(&store(&descriptor()), settings(DEFAULT_CHAIN));
    let key = |number: u32| [b"w", number.to_be_bytes().as_slice()].concat();
    let there = (0..10_000).map(|number| (0, key(number), Some(vec![1])));
    engine.submit(Transaction { changes: there.collect(), references: Vec::new() }).unwrap();
    let (left_at_switch, left_at_end) = std::thread::scope(|scope| {
        let deleter = scope.spawn(|| {
            for number in 0..10_000 {
                let Ok(_permit) = engine.permit_deletion("delete anything") else { return };
                engine.submit(Transaction { changes: vec![(0, key(number), None)], references: Vec::new() }).unwrap();
            }
        });
        let left = || engine.range(0, b"w", b"x", 10_000).unwrap().len();
        engine.switch_append_only_on(SECRET).unwrap();
        let left_at_switch = left();
        deleter.join().unwrap();
        (left_at_switch, left())
    });
    assert_eq!(left_at_switch, left_at_end);
}
