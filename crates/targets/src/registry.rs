//! All targets of a store: reading them, and changing them in one step.

use crate::durable::make_durable;
use crate::error::{Result, TargetError};
use crate::keys::{PARTITION, RESERVATIONS, SANITIZE, TARGET, key, number};
use crate::record::{DEFAULT_TARGET, FILE_TARGET, Target};
use crate::reservations::KeptReservations;
use crate::sanitize::KeptSanitize;
use onefold_engine::{Engine, Transaction};
use parking_lot::Mutex;
use std::collections::HashSet;

/// Held from the read of targets until the change is durable or reverted. Also held while a volume is deleted that must
/// not be in any target.
///
/// Conditional transactions ([`Engine::submit_if`]) cannot replace it yet. Three things have to change together for
/// that:
/// * A volume may be deleted only if no target has it, including targets made meanwhile. So a deletion needs one object
///   to expect that every change of targets renews. And as an attached volume must not be gone, a deletion has to renew
///   it too.
/// * The list of volumes in memory loses a volume after its deletion is submitted. An attach in between reads the
///   renewed object and finds the volume still listed. It would have to expect the volume's record too, which only the
///   volumes know.
/// * After a failed flush changes are reverted (`durable.rs`). That is right only while nobody has built on them.
static CHANGING: Mutex<()> = Mutex::new(());

/// The targets that a store has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Readable targets, by number. The target with all volumes is among them if it has LUNs.
    pub targets: Vec<Target>,
    /// Damage. While there is any, access rights are unknown: a target with all volumes must not be shown.
    pub damaged: Vec<String>,
    last_number: u32,
}

impl Known {
    /// Returns the targets that somebody created.
    pub fn made(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(|target| target.number != DEFAULT_TARGET)
    }

    /// Returns the target of a name.
    pub fn find(&self, name: &str) -> Result<&Target> {
        self.made().find(|target| target.name == name).ok_or_else(|| TargetError::NotFound { name: name.to_owned() })
    }

    /// Returns the target of a name, for a change.
    pub fn find_mut(&mut self, name: &str) -> Result<&mut Target> {
        let mut made = self.targets.iter_mut().filter(|target| target.number != DEFAULT_TARGET);
        made.find(|target| target.name == name).ok_or_else(|| TargetError::NotFound { name: name.to_owned() })
    }

    /// Adds a target and gives it its number.
    pub fn add(&mut self, target: Target) -> Result<()> {
        if self.made().any(|other| other.name == target.name) {
            return Err(TargetError::Exists { name: target.name });
        }
        let number = self.last_number.checked_add(1).filter(|number| *number < FILE_TARGET).ok_or(TargetError::NoNumber)?;
        self.last_number = number;
        self.targets.push(Target { number, ..target });
        Ok(())
    }

    /// Removes a target.
    pub fn remove(&mut self, name: &str) -> Result<Target> {
        let number = self.find(name)?.number;
        let at = self.targets.iter().position(|target| target.number == number).expect("it was found");
        Ok(self.targets.remove(at))
    }

    /// Returns the LUNs of the target with all volumes.
    pub fn default_target(&mut self) -> &mut Target {
        let at = self.targets.iter().position(|target| target.number == DEFAULT_TARGET).unwrap_or_else(|| {
            self.targets.insert(0, Target::default());
            0
        });
        &mut self.targets[at]
    }

    /// Returns the LUN of a volume and its target's name, if it is in a target that somebody created.
    pub fn attached(&self, volume: u32) -> Option<(u16, &str)> {
        self.made().find_map(|target| target.lun_of(volume).map(|lun| (lun, target.name.as_str())))
    }

    fn check(&self) -> Result<()> {
        self.targets.iter().try_for_each(Target::check)
    }
}

/// Returns the targets of a store.
pub fn known(engine: &Engine) -> Result<Known> {
    let mut known = Known::default();
    engine.for_each_object(TARGET, &mut |key, value| {
        let Some(number) = number(key) else {
            known.damaged.push(format!("the object index has a target whose key has {} bytes", key.len()));
            return;
        };
        if number == FILE_TARGET {
            known.damaged.push(format!("the object index has a target with the impossible number {number}"));
            return;
        }
        known.last_number = known.last_number.max(number);
        match Target::decode(number, value) {
            Ok(target) => known.targets.push(target),
            Err(error) => known.damaged.push(error.to_string()),
        }
    })?;
    Ok(known)
}

/// Returns the damage of targets and of the state of logical units, for check.
pub fn damaged(engine: &Engine) -> Result<Vec<String>> {
    let mut wrong = known(engine)?.damaged;
    type Decode = fn(u32, &[u8]) -> Result<()>;
    let of_volumes: [(u8, &str, Decode); 2] = [
        (RESERVATIONS, "reservations", |volume, value| KeptReservations::decode(volume, value).map(drop)),
        (SANITIZE, "erasure", |volume, value| KeptSanitize::decode(volume, value).map(drop)),
    ];
    for (prefix, what, decode) in of_volumes {
        engine.for_each_object(prefix, &mut |key, value| match number(key) {
            Some(volume) => {
                wrong.extend(decode(volume, value).err().map(|error| format!("{error}; the volume is not shown over iSCSI")));
            }
            None => wrong.push(format!("the object index has an object for the {what} of a volume whose key has {} bytes", key.len())),
        })?;
    }
    Ok(wrong)
}

/// Changes targets. Everything that `work` has changed when it returns is durable on return. After an error other than
/// [`TargetError::NotDurable`], nothing is changed.
pub fn change<T, E: From<TargetError>>(
    engine: &Engine,
    work: impl FnOnce(&mut Known) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let _changing = CHANGING.lock();
    let before = known(engine)?;
    let mut after = before.clone();
    let done = work(&mut after)?;
    after.check()?;
    let gone = before.targets.iter().filter(|old| after.targets.iter().all(|new| new.number != old.number));
    let mut changes: Vec<_> = gone.map(|old| (PARTITION, key(TARGET, old.number), None)).collect();
    let new = after.targets.iter().filter(|new| !before.targets.contains(new));
    changes.extend(new.map(|new| (PARTITION, key(TARGET, new.number), Some(new.encode()))));
    if !changes.is_empty() {
        make_durable(engine, changes)?;
    }
    Ok(done)
}

/// Drops the state of volumes that are not among these: they were deleted, and their numbers are never used again.
/// Durable with the next flush.
pub fn forget_others(engine: &Engine, volumes: &HashSet<u32>) -> Result<()> {
    let mut changes = Vec::new();
    for prefix in [RESERVATIONS, SANITIZE] {
        engine.for_each_object(prefix, &mut |key, _| {
            if number(key).is_some_and(|number| !volumes.contains(&number)) {
                changes.push((PARTITION, key.to_vec(), None));
            }
        })?;
    }
    if changes.is_empty() { Ok(()) } else { Ok(engine.submit(Transaction { changes, references: Vec::new() })?) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;
    use onefold_engine::{Descriptor, Mode, Settings};
    use onefold_ground::{Ground, LocalGround};
    use std::sync::Arc;

    fn open(directory: &tempfile::TempDir) -> Arc<Engine> {
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
        Engine::open(ground, Settings::default(), Mode::ReadWrite, "test").unwrap()
    }

    fn store() -> (tempfile::TempDir, Arc<Engine>) {
        let directory = tempfile::tempdir().unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path()).unwrap());
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        let engine = open(&directory);
        (directory, engine)
    }

    fn named(name: &str) -> Target {
        Target { name: name.to_owned(), ..Target::default() }
    }

    #[test]
    fn targets_are_there_after_a_restart_and_errors_change_nothing() {
        let (directory, engine) = store();
        change(&engine, |known| known.add(named("iqn.a")).and_then(|()| known.add(named("iqn.b")))).unwrap();
        let unit = Unit { volume: 3, block_bytes: 512, is_read_only: false, is_removable: true };
        change(&engine, |known| known.find_mut("iqn.b").map(|target| target.units.insert(4, unit))).unwrap();
        change(&engine, |known| -> Result<()> {
            known.default_target().units.insert(0, unit);
            Ok(())
        })
        .unwrap();
        let failed: Result<()> = change(&engine, |known| {
            known.remove("iqn.a")?;
            known.add(named("iqn.b"))
        });
        assert!(matches!(failed, Err(TargetError::Exists { .. })));
        engine.close().unwrap();
        drop(engine);
        let engine = open(&directory);
        let found = known(&engine).unwrap();
        assert_eq!(found.made().map(|target| target.name.as_str()).collect::<Vec<_>>(), ["iqn.a", "iqn.b"]);
        assert_eq!((found.attached(3), found.attached(4)), (Some((4, "iqn.b")), None));
        assert_eq!(found.targets[0].units.len(), 1, "the LUNs of the default target");
        change(&engine, |known| known.remove("iqn.a").map(drop)).unwrap();
        change(&engine, |known| known.add(named("iqn.c"))).unwrap();
        let numbers: Vec<u32> = known(&engine).unwrap().made().map(|target| target.number).collect();
        assert_eq!(numbers, [2, 3]);
        engine.close().unwrap();
    }

    #[test]
    fn a_record_that_cannot_be_read_is_told_of_and_kept() {
        let (_directory, engine) = store();
        change(&engine, |known| known.add(named("iqn.a"))).unwrap();
        engine.submit(Transaction { changes: vec![(PARTITION, key(TARGET, 1), Some(vec![9, 9]))], references: Vec::new() }).unwrap();
        change(&engine, |known| known.add(named("iqn.b"))).unwrap();
        let found = known(&engine).unwrap();
        assert_eq!(found.made().map(|target| target.number).collect::<Vec<_>>(), [2]);
        assert_eq!(found.damaged.len(), 1);
        crate::keep_reservations(&engine, 5, Some(&crate::KeptReservations::default())).unwrap();
        assert_eq!(damaged(&engine).unwrap().len(), 1);
        let broken = [b"r", b"e"].map(|prefix| (PARTITION, [&prefix[..], &5u32.to_be_bytes()].concat(), Some(vec![9])));
        engine.submit(Transaction { changes: broken.to_vec(), references: Vec::new() }).unwrap();
        let wrong = damaged(&engine).unwrap();
        assert!(wrong.len() == 3 && wrong[1].contains("reservations of volume 5") && wrong[2].contains("erasure of volume 5"), "{wrong:?}");
        forget_others(&engine, &HashSet::new()).unwrap();
        assert_eq!(damaged(&engine).unwrap().len(), 1, "what is kept of a volume that is gone goes too");
        engine.close().unwrap();
    }

    #[test]
    fn numbers_that_no_target_can_have_are_damage_and_none_is_given_twice() {
        let (_directory, engine) = store();
        let put = |number: u32| {
            let changes = vec![(PARTITION, key(TARGET, number), Some(named(&format!("iqn.{number}")).encode()))];
            engine.submit(Transaction { changes, references: Vec::new() }).unwrap();
        };
        put(FILE_TARGET);
        let found = known(&engine).unwrap();
        assert!(found.targets.is_empty() && found.damaged.len() == 1, "{found:?}");
        change(&engine, |known| known.add(named("iqn.a"))).unwrap();
        assert_eq!(known(&engine).unwrap().find("iqn.a").unwrap().number, 1);
        put(FILE_TARGET - 2);
        change(&engine, |known| known.add(named("iqn.b"))).unwrap();
        assert_eq!(known(&engine).unwrap().find("iqn.b").unwrap().number, FILE_TARGET - 1);
        let full: Result<()> = change(&engine, |known| known.add(named("iqn.c")));
        assert!(matches!(full, Err(TargetError::NoNumber)), "{full:?}");
        engine.close().unwrap();
    }
}
