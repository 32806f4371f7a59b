//! Executes commands: the checks of the unit, then what the command asks for. The files of the commands have the
//! longer ones.
//!
//! INQUIRY, REPORT LUNS and a few others are answered while a sanitize runs or the medium moves. All others share the
//! medium, or have it alone.

use super::block;
use super::caller::Caller;
use super::inquiry::{self, Port};
use super::opcodes::{Definition, Operation};
use super::provisioning;
use super::reply::{Reply, Status, truncated};
use super::report::{port_groups, report_luns, report_opcodes};
use super::reservation::{Nexus, Refusal};
use super::sense::{Code, Key, Sense};
use super::third_party::{self, ListId};
use super::unit::LogicalUnit;
use super::{u16_at, u32_at};
use std::collections::VecDeque;

/// The longest parameter list of copies, in bytes.
const MAX_LIST_BYTES: u32 = 8 << 10;

impl LogicalUnit {
    /// Returns the bytes that a command receives from the initiator, according to its CDB.
    pub fn data_out_bytes(&self, cdb: &[u8]) -> usize {
        let Ok(definition) = Definition::of(cdb) else { return 0 };
        let cdb = &cdb[..definition.usage.len()];
        match definition.operation {
            Operation::ModeSelect => {
                if cdb[0] == 0x15 {
                    cdb[4].into()
                } else {
                    u16_at(cdb, 7).into()
                }
            }
            Operation::PersistentReserveOut => u32_at(cdb, 5).min(1 << 16) as usize,
            Operation::SendDiagnostic => u16_at(cdb, 3).into(),
            // Only overwrite has parameters.
            Operation::Sanitize if cdb[1] & 0x1f == 0x01 => u16_at(cdb, 7).into(),
            Operation::ExtendedCopy | Operation::PopulateToken | Operation::WriteUsingToken => u32_at(cdb, 10).min(MAX_LIST_BYTES) as usize,
            operation => block::data_out_bytes(operation, cdb, &self.geometry()),
        }
    }

    /// Returns the bytes that a command reads from the medium to send them, according to its CDB. They take memory even
    /// if the initiator wants fewer.
    pub fn data_in_bytes(&self, cdb: &[u8]) -> usize {
        let Ok(definition) = Definition::of(cdb) else { return 0 };
        block::data_in_bytes(definition.operation, &cdb[..definition.usage.len()], &self.geometry())
    }

    /// Returns whether a command only reads, and at most `limit` bytes.
    pub fn is_short_read(&self, cdb: &[u8], limit: usize) -> bool {
        Definition::of(cdb).is_ok_and(|definition| {
            let cdb = &cdb[..definition.usage.len()];
            block::is_plain_read(definition.operation, cdb) && block::data_in_bytes(definition.operation, cdb, &self.geometry()) <= limit
        })
    }

    /// Executes a command. `data` is what the initiator sent, perhaps only the first part of what the CDB announced.
    /// `announced` is how much it would send.
    pub fn execute(&self, caller: Caller<'_>, cdb: &[u8], data: &[u8], announced: u32) -> Reply {
        let definition = Definition::of(cdb);
        let perform = |definition: &Definition| {
            // Transports may pad CDBs.
            let cdb = &cdb[..definition.usage.len()];
            // Data to compare, or to write many times, must be exactly as intended.
            let is_exact = matches!(definition.operation, Operation::CompareAndWrite | Operation::WriteSame);
            if is_exact && self.data_out_bytes(cdb) as u32 != announced {
                return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_CDB).into());
            }
            let done = self.perform(definition, caller, cdb, data);
            self.watch_space(definition);
            done
        };
        let asks_only = definition.as_ref().is_ok_and(|definition| definition.is_allowed_in_sanitize());
        let done = match definition {
            _ if !asks_only && self.waits_for_former() => Err(Refusal::Busy),
            Ok(definition) if definition.operation == Operation::Sanitize => self.sanitize(caller, definition, cdb, data),
            Ok(definition) if definition.operation == Operation::StartStopUnit && self.moves_medium(cdb) => {
                self.move_medium(caller, definition, cdb)
            }
            // A PERSISTENT RESERVE OUT does not use the medium, and may have to wait for commands that do.
            Ok(definition) if asks_only || definition.operation == Operation::PersistentReserveOut => {
                self.judge(caller.nexus, Ok(definition)).and_then(perform)
            }
            definition => {
                // A sanitize, or a command that moves the medium, may wait long for earlier commands. Later commands
                // must not use up threads by waiting behind it.
                let medium = if self.is_medium_wanted() { None } else { self.medium.try_read() };
                medium.ok_or(Refusal::Busy).and_then(|_medium| self.judge(caller.nexus, definition).and_then(perform))
            }
        };
        match done {
            Ok(data) => Reply::with(data),
            Err(Refusal::Conflict) => Reply { status: Status::ReservationConflict, data: Vec::new(), sense: Vec::new() },
            Err(Refusal::Check(sense)) => self.check_condition(sense),
            Err(Refusal::Busy) => Reply { status: Status::Busy, data: Vec::new(), sense: Vec::new() },
        }
    }

    fn sanitize(&self, caller: Caller<'_>, definition: &'static Definition, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
        // A command without permission, or with errors, must not delay others.
        self.judge(caller.nexus, Ok(definition))?;
        if definition.action != Some(0x1f) {
            self.sanitizer.parse(cdb, data, &self.geometry())?;
        }
        let medium = self.use_medium_alone(caller.patience)?;
        self.judge(caller.nexus, Ok(definition))?;
        if definition.action == Some(0x1f) {
            self.sanitizer.leave_failure(cdb)?;
            return Ok(Vec::new());
        }
        let sanitize = self.sanitizer.parse(cdb, data, &self.geometry())?;
        // A command that was aborted before it began must not begin.
        block::go_on(&|| caller.patience.is_over())?;
        self.sanitizer.begin(sanitize)?;
        caller.tokens.cancel(self.identity.number);
        drop(medium);
        let is_immediate = cdb[1] & 0x80 != 0;
        if !is_immediate {
            self.sanitizer.wait(&|| caller.patience.is_over())?;
        }
        Ok(Vec::new())
    }

    /// Returns CHECK CONDITION with this sense data, in the selected format.
    pub fn check_condition(&self, sense: Sense) -> Reply {
        let descriptors = self.state.lock().parameters.descriptor_sense;
        Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(descriptors) }
    }

    fn perform(&self, definition: &Definition, caller: Caller<'_>, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let geometry = self.geometry();
        let medium = self.medium_of(geometry);
        let nothing = |done: Result<(), Sense>| done.map(|()| Vec::new()).map_err(Refusal::from);
        let is_over = || caller.patience.is_over() || self.has_stopped();
        let some = |out: Vec<u8>, room: usize| Ok(truncated(out, room));
        match definition.operation {
            Operation::TestUnitReady => Ok(Vec::new()),
            Operation::PreventAllow => self.prevent_or_allow(caller.nexus, cdb).map(|()| Vec::new()),
            Operation::RequestSense => some(self.request_sense(caller.nexus, cdb), cdb[4].into()),
            Operation::Inquiry => some(self.inquiry(cdb, caller.port)?, u16_at(cdb, 3).into()),
            Operation::ModeSense => {
                let out = self.state.lock().parameters.sense(cdb, &geometry, self.disk().read_only(), self.low_bytes())?;
                some(out, if cdb[0] == 0x1a { cdb[4].into() } else { u16_at(cdb, 7).into() })
            }
            Operation::ModeSelect => {
                let mut state = self.state.lock();
                let next = state.parameters.select(cdb, data, &geometry, self.low_bytes())?;
                if next != state.parameters {
                    state.parameters = next;
                    state.attend_others(caller.nexus, Code::MODE_PARAMETERS_CHANGED);
                }
                Ok(Vec::new())
            }
            Operation::StartStopUnit => nothing(self.start_or_stop(cdb)),
            Operation::SendDiagnostic => {
                // The default self-test: a unit that answers is in order.
                let is_self_test = cdb[1] & 0xe7 == 0x04;
                nothing(if is_self_test || cdb[1] == 0 { Ok(()) } else { Err(Sense::invalid_field(1, Some(7))) })
            }
            Operation::LogSense => some(provisioning::log_sense(cdb, self.disk())?, u16_at(cdb, 7).into()),
            Operation::ReportLuns => some(report_luns(cdb, caller.luns)?, u32_at(cdb, 6) as usize),
            Operation::ReportTargetPortGroups => some(port_groups(&self.ports, cdb)?, u32_at(cdb, 6) as usize),
            Operation::ReportOpcodes => some(report_opcodes(cdb)?, u32_at(cdb, 6) as usize),
            Operation::ReportTaskManagement => {
                // Abort task, abort and clear task set, logical unit reset; target resets.
                let out = if cdb[2] & 0x80 == 0 { vec![0xda, 0x01, 0, 0] } else { [&[0xda, 0x01, 0, 12][..], &[0; 12]].concat() };
                some(out, u32_at(cdb, 6) as usize)
            }
            Operation::PersistentReserveIn => some(self.persistent_in(cdb)?, u16_at(cdb, 7).into()),
            Operation::PersistentReserveOut => self.persistent_out(caller, cdb, data),
            Operation::Reserve => self.reserve(caller.nexus).map(|()| Vec::new()),
            Operation::Release => self.state.lock().reservations.release(caller.nexus).map(|()| Vec::new()),
            Operation::ReadCapacity10 => Ok(block::read_capacity_10(cdb, &geometry)?),
            Operation::ReadCapacity16 => some(block::read_capacity_16(&geometry), u32_at(cdb, 10) as usize),
            Operation::GetLbaStatus => some(medium.lba_status(cdb)?, u32_at(cdb, 10) as usize),
            Operation::ReadDefectData => {
                // There are no defects, in the requested format.
                let asked = if cdb[0] == 0x37 { cdb[2] } else { cdb[1] };
                let (out, room) = if cdb[0] == 0x37 {
                    (vec![0, asked & 0x1f, 0, 0], u16_at(cdb, 7) as usize)
                } else {
                    (vec![0, asked & 0x1f, 0, 0, 0, 0, 0, 0], u32_at(cdb, 6) as usize)
                };
                some(out, room)
            }
            Operation::Read => Ok(medium.read_command(cdb, caller.buffers)?),
            operation @ (Operation::Write | Operation::WriteAtomic | Operation::WriteAndVerify) => {
                nothing(medium.write_command(operation, cdb, data))
            }
            Operation::Verify => nothing(medium.verify(cdb, data)),
            Operation::OrWrite => nothing(medium.or_write(cdb, data)),
            Operation::CompareAndWrite => nothing(medium.compare_and_write(cdb, data)),
            Operation::Prefetch => nothing(medium.prefetch(cdb)),
            Operation::SynchronizeCache => nothing(medium.synchronize(cdb)),
            Operation::Unmap => nothing(medium.unmap(data, &is_over)),
            Operation::WriteSame => nothing(medium.write_same(cdb, data, &is_over)),
            Operation::ExtendedCopy => self.extended_copy(caller, cdb, data),
            operation @ (Operation::PopulateToken | Operation::WriteUsingToken) => self.use_token(operation, caller, cdb, data),
            Operation::CopyStatus => {
                let id = ListId { nexus: caller.nexus.clone(), is_token: false, number: cdb[2].into() };
                some(self.copies.lock().status(&id)?, u32_at(cdb, 10) as usize)
            }
            Operation::TokenInformation => {
                let id = ListId { nexus: caller.nexus.clone(), is_token: true, number: u32_at(cdb, 2) };
                some(self.copies.lock().token_information(&id)?, u32_at(cdb, 10) as usize)
            }
            Operation::CopyParameters => some(third_party::parameters(&geometry), u32_at(cdb, 10) as usize),
            Operation::Sanitize => unreachable!("it is done by `execute`, which keeps others from the medium"),
        }
    }

    /// Checks the space after a command that may have used some.
    fn watch_space(&self, definition: &Definition) {
        if definition.changes_medium() && self.watched.lock().is_due() {
            self.look_at_space();
        }
    }

    pub(super) fn look_at_space(&self) {
        if let Some(space) = self.disk().space()
            && self.watched.lock().note(space)
        {
            self.tell_all(Code::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
        }
    }

    /// Returns the threshold of free space below which initiators are warned.
    fn low_bytes(&self) -> Option<u64> {
        self.disk().space().map(|space| space.low_bytes)
    }

    fn request_sense(&self, nexus: &Nexus, cdb: &[u8]) -> Vec<u8> {
        let mut state = self.state.lock();
        let pending = state.attentions.get_mut(nexus).and_then(VecDeque::pop_front);
        let sense = match pending {
            Some(code) => Sense::new(Key::UnitAttention, code),
            None => self.sanitizer.check().and_then(|()| state.tray.check()).err().unwrap_or(Sense::new(Key::NoSense, Code::NONE)),
        };
        sense.encode(cdb[1] & 1 != 0)
    }

    fn inquiry(&self, cdb: &[u8], port: &Port) -> Result<Vec<u8>, Sense> {
        match (cdb[1] & 1 != 0, cdb[2]) {
            (true, page) => inquiry::page(page, &self.identity, port, &self.geometry(), self.low_bytes().is_some()),
            (false, 0) => Ok(inquiry::standard(&self.identity, self.is_removable)),
            (false, _) => Err(Sense::invalid_field(2, None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Forever, MAPPED_BYTES, MemoryDisk, options, send, send_as, send_patiently, sense_of, unit};
    use super::super::{Disk, UnitOptions};
    use super::*;
    use std::sync::atomic::Ordering;

    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

    #[test]
    fn short_reads_are_told_from_all_others() {
        let unit = unit(&MemoryDisk::new(4 * MAPPED_BYTES));
        let is_short = |cdb: &[u8]| unit.is_short_read(cdb, 4096);
        assert!(is_short(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0]) && is_short(&[0x08, 0, 0, 0, 8, 0]));
        assert!(!is_short(&[0x28, 0, 0, 0, 0, 0, 0, 0, 9, 0]), "too long");
        assert!(!is_short(&[0x28, 8, 0, 0, 0, 0, 0, 0, 8, 0]), "with FUA it writes");
        assert!(!is_short(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0]) && !is_short(&[0; 6]) && !is_short(&[0xff]) && !is_short(&[]));
    }

    #[test]
    fn commands_behind_a_sanitize_that_waits_take_no_threads() {
        let unit = unit(&MemoryDisk::new(MAPPED_BYTES));
        assert_eq!(send(&unit, &READ, &[]).status, Status::Good);
        let medium = unit.medium.write();
        assert_eq!(send(&unit, &READ, &[]).status, Status::Busy);
        assert_eq!(send(&unit, &[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good, "what does not use the medium goes on");
        drop(medium);
        assert_eq!(send(&unit, &READ, &[]).status, Status::Good);
    }

    #[test]
    fn one_sanitize_at_a_time_waits_for_the_commands_before_it() {
        const ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
        let unit = unit(&MemoryDisk::new(MAPPED_BYTES));
        // A command that uses the medium is still running.
        let before = unit.share_medium();
        assert_eq!(sense_of(&send(&unit, &[0x48, 0x02, 0, 0, 0, 0, 0, 0, 1, 0], &[])), (5, 0x24, 0), "what is wrong does not wait");
        assert_eq!(send_as(&unit, "b", &[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
        assert_eq!(send(&unit, &ERASE, &[]).status, Status::ReservationConflict, "nor who may not");
        assert_eq!(send_as(&unit, "b", &[0x17, 0, 0, 0, 0, 0], &[]).status, Status::Good);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| send(&unit, &ERASE, &[]));
            while unit.medium.try_read().is_some() {
                std::thread::yield_now();
            }
            assert_eq!(send_as(&unit, "b", &ERASE, &[]).status, Status::Busy);
            drop(before);
            assert_eq!(waiting.join().unwrap().status, Status::Good);
        });
    }

    #[test]
    fn a_sanitize_or_an_eject_that_is_ended_while_it_waits_does_nothing() {
        let disk = MemoryDisk::new(MAPPED_BYTES);
        disk.write(0, &[7; 512], false).unwrap();
        let unit = LogicalUnit::new(disk.clone(), UnitOptions { is_removable: true, ..options() }, Box::new(|_| Ok(())));
        for cdb in [&[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0x1b, 0, 0, 0, 0x02, 0]] {
            let before = unit.share_medium();
            let patience = Forever::default();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| send_patiently(&unit, &patience, cdb));
                while !unit.is_medium_wanted() {
                    std::thread::yield_now();
                }
                patience.0.store(true, Ordering::Relaxed);
                // It ends though the medium is still used.
                assert_eq!(sense_of(&waiting.join().unwrap()), (0x0b, 0, 0));
            });
            drop(before);
            assert_eq!(send(&unit, &READ, &[]).data, [7; 512], "{cdb:?}");
            // Nor when it is ended the moment that it has the medium.
            assert_eq!(sense_of(&send_patiently(&unit, &patience, cdb)), (0x0b, 0, 0));
            assert_eq!(send(&unit, &READ, &[]).data, [7; 512], "{cdb:?}");
        }
    }
}
