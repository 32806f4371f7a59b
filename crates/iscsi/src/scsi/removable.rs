//! Removable media: ejects and loads the medium (START STOP UNIT, SBC-3 section 5.25), and prevents its removal
//! (PREVENT ALLOW MEDIUM REMOVAL, SBC-3 section 5.15).
//!
//! Invariants:
//! * The medium moves only when no command uses it and all earlier writes are durable.
//! * While an initiator prevents it, the medium moves neither out nor in. The prevention ends with the nexus, with a
//!   reset, and with a PREEMPT AND ABORT of the nexus.
//! * While the medium is out, no command reads or writes it, nor does a copy of another unit.
//! * It is back in after a restart.

use super::block;
use super::caller::Caller;
use super::opcodes::{Access, Definition};
use super::reservation::{Nexus, Refusal};
use super::sense::{Code, Key, Sense};
use super::unit::LogicalUnit;

/// In byte 4 of START STOP UNIT: LOEJ and START.
const LOAD_OR_EJECT: u8 = 0x02;
const START: u8 = 0x01;

impl LogicalUnit {
    /// Returns whether a START STOP UNIT moves the medium, in or out.
    pub(super) fn moves_medium(&self, cdb: &[u8]) -> bool {
        self.is_removable && has_no_power_condition(cdb) && cdb[4] & LOAD_OR_EJECT != 0
    }

    /// Executes a START STOP UNIT that moves the medium.
    pub(super) fn move_medium(&self, caller: Caller<'_>, definition: &'static Definition, cdb: &[u8]) -> Result<Vec<u8>, Refusal> {
        // An initiator that may not do this must not delay others.
        self.judge(caller.nexus, Ok(definition))?;
        let _medium = self.use_medium_alone(caller.patience)?;
        self.judge(caller.nexus, Ok(definition))?;
        block::go_on(&|| caller.patience.is_over())?;
        let mut state = self.state.lock();
        if !state.tray.prevented_by.is_empty() {
            return Err(Sense::new(Key::IllegalRequest, Code::MEDIUM_REMOVAL_PREVENTED).into());
        }
        if cdb[4] & START != 0 {
            if std::mem::take(&mut state.tray.is_out) {
                // The initiator that loaded it knows already.
                state.attend_others(caller.nexus, Code::NOT_READY_TO_READY_CHANGE);
            }
            return Ok(Vec::new());
        }
        if state.tray.is_out {
            return Ok(Vec::new());
        }
        // No prevention can come in between, because PREVENT waits for the medium too.
        drop(state);
        self.disk().flush().map_err(|error| block::failed_to_write(&error, 0))?;
        // A command that was aborted meanwhile must have no effect. A flush may take a while.
        block::go_on(&|| caller.patience.is_over())?;
        self.state.lock().tray.is_out = true;
        caller.tokens.cancel(self.number());
        Ok(Vec::new())
    }

    /// Executes a START STOP UNIT that leaves the medium where it is.
    pub(super) fn start_or_stop(&self, cdb: &[u8]) -> Result<(), Sense> {
        if !has_no_power_condition(cdb) {
            return Ok(());
        }
        if cdb[4] & LOAD_OR_EJECT != 0 {
            return Err(Sense::invalid_field(4, Some(1)));
        }
        if cdb[4] & START != 0 {
            return self.state.lock().tray.check();
        }
        // A network disk does not stop for one of its hosts. It only makes earlier writes durable (SBC-3 section 5.25).
        self.disk().flush().map_err(|error| block::failed_to_write(&error, 0))
    }

    /// PREVENT ALLOW MEDIUM REMOVAL. Media that are not removable ignore it.
    pub(super) fn prevent_or_allow(&self, nexus: &Nexus, cdb: &[u8]) -> Result<(), Refusal> {
        if !self.is_removable {
            return Ok(());
        }
        let mut state = self.state.lock();
        if cdb[4] & 1 != 0 {
            // Allowing is always permitted, preventing is not (SBC-3 table 13).
            if !state.reservations.allows(nexus, Access::Write) {
                return Err(Refusal::Conflict);
            }
            state.tray.prevented_by.insert(nexus.clone());
            return Ok(());
        }
        if state.tray.prevented_by.contains(nexus) {
            drop(state);
            // It takes effect when earlier writes are on the medium.
            self.disk().flush().map_err(|error| block::failed_to_write(&error, 0))?;
            self.state.lock().tray.lose_nexus(nexus);
        }
        Ok(())
    }
}

/// Returns whether there is no power condition. With one, LOEJ and START have no meaning.
fn has_no_power_condition(cdb: &[u8]) -> bool {
    cdb[4] >> 4 == 0
}

#[cfg(test)]
mod tests {
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, Others, nexus, options, send_among, send_as, send_to, sense_of};
    use super::super::{DiskError, Reply, Status, Tokens, UnitOptions};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const READY: [u8; 6] = [0; 6];
    const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 0x02, 0];
    const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 0x03, 0];
    const START_ONLY: [u8; 6] = [0x1b, 0, 0, 0, 0x01, 0];
    const STOP_ONLY: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
    const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
    const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];
    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const GOOD: (u8, u8, u8) = (0, 0, 0);
    const NO_MEDIUM: (u8, u8, u8) = (2, 0x3a, 0);
    const PREVENTED: (u8, u8, u8) = (5, 0x53, 2);

    fn removable(disk: &Arc<MemoryDisk>) -> LogicalUnit {
        let unit = LogicalUnit::new(disk.clone(), UnitOptions { is_removable: true, ..options() }, Box::new(|_| Ok(())));
        for name in ["a", "b"] {
            unit.join(&nexus(name));
            assert_eq!(sense_of(&send_as(&unit, name, &READY, &[])), (6, 0x29, 0));
        }
        unit
    }

    fn ask(unit: &LogicalUnit, name: &str, cdb: &[u8]) -> (u8, u8, u8) {
        let reply = send_as(unit, name, cdb, &[]);
        assert_ne!(reply.status, Status::ReservationConflict);
        sense_of(&reply)
    }

    #[test]
    fn what_is_out_cannot_be_used_until_it_is_in_again() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let unit = removable(&disk);
        assert_eq!(send_as(&unit, "a", &[0x12, 0, 0, 0, 96, 0], &[]).data[1], 0x80);
        let write = |name: &str| sense_of(&send_as(&unit, name, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]));
        assert_eq!(write("a"), GOOD);
        assert_eq!(disk.flushes.load(Ordering::Relaxed), 0);
        assert_eq!(ask(&unit, "a", &EJECT), GOOD);
        assert_eq!(disk.flushes.load(Ordering::Relaxed), 1, "what was written is durable before");
        for name in ["a", "b"] {
            assert_eq!([ask(&unit, name, &READY), ask(&unit, name, &READ), write(name)], [NO_MEDIUM; 3]);
            assert_eq!(ask(&unit, name, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), NO_MEDIUM);
            assert_eq!(ask(&unit, name, &START_ONLY), NO_MEDIUM);
            assert_eq!(ask(&unit, name, &[0x12, 0, 0, 0, 96, 0]), GOOD);
            assert_eq!(ask(&unit, name, &[0x1a, 0, 0x3f, 0, 255, 0]), GOOD);
            let said = send_as(&unit, name, &[0x03, 0, 0, 0, 252, 0], &[]).data;
            assert_eq!((said[2], said[12], said[13]), NO_MEDIUM);
        }
        assert_eq!(ask(&unit, "a", &EJECT), GOOD, "it is out already");
        assert_eq!(ask(&unit, "a", &LOAD), GOOD);
        assert_eq!(ask(&unit, "a", &READY), GOOD);
        assert_eq!([ask(&unit, "b", &READY), ask(&unit, "b", &READY)], [(6, 0x28, 0), GOOD], "the others hear of it");
        assert_eq!(ask(&unit, "a", &LOAD), GOOD);
        assert_eq!(ask(&unit, "b", &READY), GOOD, "nothing has changed");
        assert_eq!(send_as(&unit, "b", &READ, &[]).data, [7; 512]);
    }

    #[test]
    fn without_load_or_eject_the_medium_stays() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let unit = removable(&disk);
        for cdb in [STOP_ONLY, START_ONLY, [0x1b, 1, 0, 0, 0x12, 0], [0x1b, 0, 0, 0, 0x32, 0]] {
            assert_eq!([ask(&unit, "a", &cdb), ask(&unit, "a", &READY)], [GOOD; 2], "{cdb:02x?}");
        }
        let fixed = super::super::testing::unit(&disk);
        assert_eq!(sense_of(&send_as(&fixed, "a", &EJECT, &[])), (5, 0x24, 0));
        assert_eq!(sense_of(&send_as(&fixed, "a", &PREVENT, &[])), GOOD);
        assert_eq!(send_as(&fixed, "a", &[0x12, 0, 0, 0, 96, 0], &[]).data[1], 0);
    }

    #[test]
    fn as_long_as_one_initiator_prevents_it_nobody_moves_the_medium() {
        let unit = removable(&MemoryDisk::new(MAPPED_BYTES));
        let is_free = |unit: &LogicalUnit| match ask(unit, "b", &EJECT) {
            GOOD => {
                assert_eq!(ask(unit, "b", &LOAD), GOOD);
                // The attention of the other.
                let _ = send_as(unit, "a", &READY, &[]);
                true
            }
            sense => {
                assert_eq!(sense, PREVENTED);
                assert_eq!(ask(unit, "b", &READY), GOOD);
                false
            }
        };
        let settle = || ["a", "b"].map(|name| while send_as(&unit, name, &READY, &[]).status != Status::Good {});
        assert!(is_free(&unit));
        assert_eq!(ask(&unit, "a", &PREVENT), GOOD);
        assert!(!is_free(&unit));
        assert_eq!(ask(&unit, "b", &ALLOW), GOOD);
        assert!(!is_free(&unit), "one cannot allow it for another");
        assert_eq!([ask(&unit, "b", &PREVENT), ask(&unit, "a", &ALLOW)], [GOOD; 2]);
        assert!(!is_free(&unit));
        assert_eq!(ask(&unit, "b", &ALLOW), GOOD);
        assert!(is_free(&unit));

        assert_eq!(ask(&unit, "a", &PREVENT), GOOD);
        unit.reset();
        settle();
        assert!(is_free(&unit), "a reset ends it");

        assert_eq!(ask(&unit, "a", &PREVENT), GOOD);
        unit.leave(&nexus("a"));
        assert!(is_free(&unit), "the end of the nexus ends it");

        assert_eq!([ask(&unit, "b", &EJECT), ask(&unit, "b", &PREVENT), ask(&unit, "b", &LOAD)], [GOOD, GOOD, PREVENTED]);
        assert_eq!([ask(&unit, "b", &ALLOW), ask(&unit, "b", &LOAD)], [GOOD; 2]);
    }

    #[test]
    fn who_is_preempted_prevents_nothing_any_more_and_who_is_kept_out_does_not_begin() {
        let unit = removable(&MemoryDisk::new(MAPPED_BYTES));
        let out = |name: &str, action: u8, kind: u8, key: u64, new_key: u64| -> Reply {
            let list = [&key.to_be_bytes()[..], &new_key.to_be_bytes(), &[0; 8]].concat();
            send_to(&unit, &Others::default(), &Tokens::default(), name, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
        };
        for (name, key) in [("a", 1), ("b", 2)] {
            assert_eq!(out(name, 0, 0, 0, key).status, Status::Good);
        }
        assert_eq!(out("b", 1, 1, 2, 0).status, Status::Good);
        assert_eq!(send_as(&unit, "a", &PREVENT, &[]).status, Status::ReservationConflict);
        assert_eq!([ask(&unit, "a", &ALLOW), ask(&unit, "b", &PREVENT)], [GOOD; 2]);
        assert_eq!(out("a", 5, 1, 1, 2).status, Status::Good);
        assert_eq!(ask(&unit, "a", &EJECT), GOOD);
    }

    #[test]
    fn what_cannot_be_made_durable_stays_in() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let unit = removable(&disk);
        *disk.fails.lock() = Some(DiskError::Io("no".into()));
        assert_eq!(ask(&unit, "a", &EJECT), (4, 0x44, 0));
        *disk.fails.lock() = None;
        assert_eq!(ask(&unit, "a", &READY), GOOD);
    }

    #[test]
    fn copies_do_not_reach_a_medium_that_is_out_and_its_tokens_are_gone() {
        let unit = Arc::new(removable(&MemoryDisk::new(MAPPED_BYTES)));
        let tokens = Tokens::default();
        assert_eq!(unit.admit_copy(&nexus("a"), Access::Read), Ok(()));
        assert_eq!(sense_of(&send_among(&unit, &[], &tokens, "a", &EJECT, &[])), GOOD);
        assert_eq!(unit.admit_copy(&nexus("a"), Access::Read).unwrap_err().code, Code::MEDIUM_NOT_PRESENT);
    }

    #[test]
    fn it_moves_when_those_who_use_it_have_ended() {
        let unit = removable(&MemoryDisk::new(MAPPED_BYTES));
        let in_use = unit.share_medium();
        std::thread::scope(|scope| {
            let ejecting = scope.spawn(|| ask(&unit, "a", &EJECT));
            // Whoever comes behind the one that waits, waits too, so that it is not kept waiting for ever; what needs
            // no medium does not.
            assert_eq!(ask(&unit, "b", &[0x12, 0, 0, 0, 96, 0]), GOOD);
            assert!(!ejecting.is_finished());
            drop(in_use);
            assert_eq!(ejecting.join().unwrap(), GOOD);
        });
        assert_eq!(ask(&unit, "b", &READY), NO_MEDIUM);
    }
}
