//! Changes of objects that are durable when they are answered, or are not made.

use crate::error::{Result, TargetError};
use onefold_engine::{Change, Engine, Transaction};

/// Makes these changes. Durable on return. After an error they are reverted, except after [`TargetError::NotDurable`].
///
/// If a flush fails, its transaction stays in the engine's queue, and the next flush by anybody makes it durable. So
/// after a restart the change would exist although it was answered with an error. To prevent that, the old values are
/// submitted after it: of several changes of one object in a batch, the last counts. The caller makes sure that nobody
/// else changes these objects meanwhile.
pub(crate) fn make_durable(engine: &Engine, changes: Vec<Change>) -> Result<()> {
    let before = |(partition, key, _): &Change| Ok((*partition, key.clone(), engine.get(*partition, key)?));
    let before = changes.iter().map(before).collect::<Result<Vec<Change>>>()?;
    let make = |changes| engine.submit(Transaction { changes, references: Vec::new() }).and_then(|()| engine.flush());
    let Err(error) = make(changes) else { return Ok(()) };
    if !is_as(engine, &before) {
        // This need not be flushed: nothing that is flushed later comes before it.
        let _ = make(before.clone());
    }
    Err(if is_as(engine, &before) { TargetError::Engine(error) } else { TargetError::NotDurable(error) })
}

/// Returns whether objects have these values, including submitted values that are not durable yet.
fn is_as(engine: &Engine, values: &[Change]) -> bool {
    values.iter().all(|(partition, key, value)| engine.get(*partition, key).is_ok_and(|found| found == *value))
}

#[cfg(test)]
mod tests {
    use crate::{
        KeptReservations, KeptSanitize, Target, TargetError, change, keep_reservations, keep_sanitize, kept_reservations, kept_sanitize,
        known,
    };
    use onefold_engine::{Descriptor, Engine, Mode, Settings};
    use onefold_ground::{CrashPolicy, SimulatedGround};
    use std::io::ErrorKind;
    use std::sync::Arc;

    fn open(ground: &SimulatedGround) -> Arc<Engine> {
        Engine::open(Arc::new(ground.clone()), Settings::default(), Mode::ReadWrite, "test").unwrap()
    }

    #[test]
    fn m0_1_what_was_answered_with_an_error_is_not_there_after_a_restart() {
        let ground = SimulatedGround::new(1);
        Engine::create(&(Arc::new(ground.clone()) as _), &Descriptor::new().unwrap()).unwrap();
        let engine = open(&ground);
        change(&engine, |known| known.add(Target { name: "iqn.a".into(), ..Target::default() })).unwrap();
        let sanitize = KeptSanitize { pattern: vec![1; 512], ..KeptSanitize::default() };
        let works: [&dyn Fn() -> Result<(), TargetError>; 4] = [
            &|| keep_sanitize(&engine, 3, Some(&sanitize)),
            &|| keep_reservations(&engine, 3, Some(&KeptReservations::default())),
            &|| change(&engine, |known| known.add(Target { name: "iqn.b".into(), ..Target::default() })),
            &|| change(&engine, |known| known.remove("iqn.a").map(drop)),
        ];
        for (number, work) in works.iter().enumerate() {
            ground.fail_operation(0, ErrorKind::Other);
            assert!(matches!(work(), Err(TargetError::Engine(_))), "{number}");
        }
        // A later flush takes everything along that waits.
        keep_sanitize(&engine, 4, Some(&sanitize)).unwrap();
        drop(engine);
        let engine = open(&ground.restart(CrashPolicy::DropAll));
        assert_eq!(kept_sanitize(&engine, 4).unwrap(), Some(sanitize));
        assert_eq!((kept_sanitize(&engine, 3).unwrap(), kept_reservations(&engine, 3).unwrap()), (None, None));
        let names: Vec<String> = known(&engine).unwrap().made().map(|target| target.name.clone()).collect();
        assert_eq!(names, ["iqn.a"]);
        engine.close().unwrap();
    }
}
