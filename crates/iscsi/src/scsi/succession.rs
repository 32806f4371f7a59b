//! Units that replace others, when a volume is attached again with another LUN or other settings.
//!
//! Invariants:
//! * A stopped unit begins nothing any more: later commands fail, and so does the next step of a command under way.
//!   Only a WRITE USING TOKEN under way continues to its end.
//! * Whatever a unit did before it was stopped is over before a command of its replacement uses the disk or changes
//!   reservations. So an erasure, an eject or a PREEMPT AND ABORT comes after everything the former unit did. Nobody
//!   waits for that: commands are BUSY meanwhile.

use super::sense::{Code, Key, Sense};
use super::unit::{Former, LogicalUnit};
use parking_lot::Mutex;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

impl LogicalUnit {
    /// Returns the unit as the replacement of these units, which were [stopped](Self::stop).
    pub fn in_place_of(mut self, units: Vec<Weak<LogicalUnit>>) -> LogicalUnit {
        let is_any = AtomicBool::new(!units.is_empty());
        self.former = Former { units: Mutex::new(units), is_any };
        self
    }

    /// Ends background work, before the disk is closed or another unit takes over. A stored sanitize continues with
    /// that unit, or after a restart. This unit begins no sanitize and no other command any more, and stores no
    /// reservations. Commands under way may last a while longer.
    pub fn stop(&self) {
        self.sanitizer.stop();
        // Waits for a change that is being stored.
        drop(self.changing.lock());
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.sanitizer.has_stopped()
    }

    /// Errors: the unit was stopped, and the command came too late.
    pub(super) fn check_unstopped(&self) -> Result<(), Sense> {
        if self.has_stopped() { Err(Sense::new(Key::NotReady, Code::NOT_READY)) } else { Ok(()) }
    }

    /// Returns whether a command of a former unit may still use the disk.
    pub(super) fn waits_for_former(&self) -> bool {
        if !self.former.is_any.load(Ordering::Acquire) {
            return false;
        }
        let mut units = self.former.units.lock();
        // A running command holds the unit.
        units.retain(|unit| unit.upgrade().is_some_and(|unit| unit.is_used()));
        self.former.is_any.store(!units.is_empty(), Ordering::Release);
        !units.is_empty()
    }

    /// Returns whether a command or a copy uses the medium.
    fn is_used(&self) -> bool {
        self.medium.try_write().is_none() || self.steps.is_any()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::super::opcodes::Access;
    use super::super::testing::{MAPPED_BYTES, MemoryDisk, nexus, send, sense_of, unit};
    use super::*;
    use std::sync::Arc;

    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
    const REGISTER: [u8; 10] = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];

    #[test]
    fn commands_that_come_after_the_end_of_a_unit_do_nothing() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let unit = unit(&disk);
        unit.stop();
        let list = [&[0; 8][..], &1u64.to_be_bytes(), &[0; 8]].concat();
        for (cdb, data) in [(&READ[..], &[][..]), (&WRITE, &[7; 512]), (&ERASE, &[]), (&REGISTER, &list), (&[0; 6], &[])] {
            assert_eq!(sense_of(&send(&unit, cdb, data)), (2, 0x04, 0), "{cdb:?}");
        }
        assert_eq!(disk.mapped_blocks(), 0);
        assert_eq!(unit.admit_copy(&nexus("a"), Access::Read).unwrap_err().code, Code::NOT_READY);
        assert_eq!(send(&unit, &INQUIRY, &[]).status, Status::Good);
    }

    #[test]
    fn nothing_is_done_before_the_last_command_of_the_former_unit_is_over() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        let (first, second) = (Arc::new(unit(&disk)), Arc::new(unit(&disk)));
        let list = [&[0; 8][..], &1u64.to_be_bytes(), &[0; 8]].concat();
        let commands = [(&READ[..], &[][..]), (&WRITE, &[7; 512]), (&ERASE, &[]), (&REGISTER, &list)];
        [&first, &second].iter().for_each(|unit| unit.stop());
        let (command, step) = (first.share_medium(), second.share_step());
        let unit = unit(&disk).in_place_of([&first, &second].map(Arc::downgrade).into());
        let are_busy = || {
            for (cdb, data) in commands {
                assert_eq!(send(&unit, cdb, data).status, Status::Busy, "{cdb:?}");
            }
            assert_eq!(unit.admit_copy(&nexus("a"), Access::Write).unwrap_err().code, Code::NOT_READY);
            assert_eq!(send(&unit, &INQUIRY, &[]).status, Status::Good);
        };
        are_busy();
        drop(command);
        are_busy();
        drop(step);
        for (cdb, data) in commands {
            assert_eq!(send(&unit, cdb, data).status, Status::Good, "{cdb:?}");
        }
        assert_eq!(unit.admit_copy(&nexus("a"), Access::Write), Ok(()));
    }
}
