//! The result of a command: status, data and sense data. Also the answers that need no unit.

use super::caller::Caller;
use super::inquiry;
use super::opcodes::{Definition, Operation};
use super::report::report_luns;
use super::sense::{Code, Key, Sense};
use super::{u16_at, u32_at};

/// Status of a command (SAM-5 table 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The command is done.
    Good = 0x00,
    /// The sense data says more.
    CheckCondition = 0x02,
    /// Too much load, and the initiator has no command under way. Retry after a while.
    Busy = 0x08,
    /// Another initiator has reserved the unit.
    ReservationConflict = 0x18,
    /// No room for one more command. Retry when another command has ended.
    TaskSetFull = 0x28,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// Data for the initiator, at most as much as the CDB allows.
    pub data: Vec<u8>,
    /// Sense data, as bytes; empty if there are none.
    pub sense: Vec<u8>,
}

impl Reply {
    pub(super) fn with(data: Vec<u8>) -> Reply {
        Reply { status: Status::Good, data, sense: Vec::new() }
    }
}

/// Returns the target's answer to a command for a LUN without a unit (SPC-4 section 4.3.2, SAM-5 section 5.11).
pub fn without_unit(caller: Caller<'_>, cdb: &[u8]) -> Reply {
    let none = Sense::new(Key::IllegalRequest, Code::LOGICAL_UNIT_NOT_SUPPORTED);
    let check = |sense: Sense| Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) };
    match Definition::of(cdb).map(|definition| definition.operation) {
        Ok(Operation::Inquiry) if cdb[1] & 1 == 0 => {
            let mut data = vec![0; 36];
            (data[0], data[2], data[3], data[4]) = (inquiry::NO_UNIT, 0x06, 0x02, 31);
            Reply::with(truncated(data, u16_at(cdb, 3).into()))
        }
        Ok(Operation::RequestSense) => Reply::with(truncated(none.encode(cdb[1] & 1 != 0), cdb[4].into())),
        Ok(Operation::ReportLuns) => match report_luns(cdb, caller.luns) {
            Ok(data) => Reply::with(truncated(data, u32_at(cdb, 6) as usize)),
            Err(sense) => check(sense),
        },
        _ => check(none),
    }
}

/// Returns the answer to a command that the target failed to execute.
pub fn failed() -> Reply {
    let sense = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
    Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) }
}

/// Returns the answer to a command that lost some of its data on the way.
pub fn lost_data() -> Reply {
    let sense = Sense::new(Key::AbortedCommand, Code::PROTOCOL_SERVICE_CRC_ERROR);
    Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) }
}

/// Returns the answer to a command that announces data in both directions.
pub fn bidirectional() -> Reply {
    let sense = Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) }
}

pub(super) fn truncated(mut out: Vec<u8>, room: usize) -> Vec<u8> {
    out.truncate(room);
    out
}
