//! The commands: operation codes, the meaningful bits of their CDBs, and their effect on data and reservations. This is
//! the only table: it serves to recognise commands, to check CDBs, and to answer REPORT SUPPORTED OPERATION CODES.

use super::sense::{Code, Key, Sense};

/// What to do.
#[allow(missing_docs)] // The names are those of SPC-4 and SBC-3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    StartStopUnit,
    PreventAllow,
    SendDiagnostic,
    LogSense,
    ReportLuns,
    ReportTargetPortGroups,
    ReportOpcodes,
    ReportTaskManagement,
    PersistentReserveIn,
    PersistentReserveOut,
    Reserve,
    Release,
    ReadCapacity10,
    ReadCapacity16,
    GetLbaStatus,
    ReadDefectData,
    Read,
    Write,
    WriteAtomic,
    WriteAndVerify,
    Verify,
    OrWrite,
    Sanitize,
    ExtendedCopy,
    PopulateToken,
    WriteUsingToken,
    CopyStatus,
    CopyParameters,
    TokenInformation,
    CompareAndWrite,
    Prefetch,
    SynchronizeCache,
    Unmap,
    WriteSame,
}

/// How others' reservations restrict a command (SPC-4 table 65, SBC-3 table 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: always allowed.
    Free,
    /// It reads the medium.
    Read,
    /// It changes the medium or the unit.
    Write,
    /// PERSISTENT RESERVE OUT and similar commands decide for themselves.
    Own,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The first byte of the CDB.
    pub opcode: u8,
    /// The SERVICE ACTION field, for operation codes that have one.
    pub action: Option<u8>,
    /// What it does.
    pub operation: Operation,
    /// How reservations restrict it.
    pub access: Access,
    /// The CDB USAGE DATA: the meaningful bits of the CDB. It is as long as the CDB.
    pub usage: &'static [u8],
}

const fn command(opcode: u8, operation: Operation, access: Access, usage: &'static [u8]) -> Definition {
    Definition { opcode, action: None, operation, access, usage }
}

const fn action(opcode: u8, action: u8, operation: Operation, access: Access, usage: &'static [u8]) -> Definition {
    Definition { opcode, action: Some(action), operation, access, usage }
}

const F: u8 = 0xff;
/// GROUP NUMBER.
const G: u8 = 0x3f;
/// DPO and FUA.
const DF: u8 = 0x18;

/// All commands, by operation code and service action.
pub const COMMANDS: &[Definition] = {
    use Access::{Free, Own, Read as R, Write as W};
    use Operation::*;
    &[
        command(0x00, TestUnitReady, Free, &[0x00, 0, 0, 0, 0, 0]),
        command(0x03, RequestSense, Free, &[0x03, 1, 0, 0, F, 0]),
        command(0x08, Read, R, &[0x08, 0x1f, F, F, F, 0]),
        command(0x0a, Write, W, &[0x0a, 0x1f, F, F, F, 0]),
        command(0x12, Inquiry, Free, &[0x12, 1, F, F, F, 0]),
        command(0x15, ModeSelect, W, &[0x15, 0x11, 0, 0, F, 0]),
        command(0x16, Reserve, Own, &[0x16, 0, 0, 0, 0, 0]),
        command(0x17, Release, Own, &[0x17, 0, 0, 0, 0, 0]),
        command(0x1a, ModeSense, R, &[0x1a, 0x08, F, F, F, 0]),
        command(0x1b, StartStopUnit, W, &[0x1b, 1, 0, 0x0f, 0xf7, 0]),
        command(0x1d, SendDiagnostic, W, &[0x1d, 0xf7, 0, F, F, 0]),
        command(0x1e, PreventAllow, Free, &[0x1e, 0, 0, 0, 1, 0]),
        command(0x25, ReadCapacity10, Free, &[0x25, 0, F, F, F, F, 0, 0, 1, 0]),
        command(0x28, Read, R, &[0x28, DF, F, F, F, F, G, F, F, 0]),
        command(0x2a, Write, W, &[0x2a, DF, F, F, F, F, G, F, F, 0]),
        command(0x2e, WriteAndVerify, W, &[0x2e, 0x16, F, F, F, F, G, F, F, 0]),
        command(0x2f, Verify, R, &[0x2f, 0x16, F, F, F, F, G, F, F, 0]),
        command(0x34, Prefetch, R, &[0x34, 2, F, F, F, F, G, F, F, 0]),
        command(0x35, SynchronizeCache, W, &[0x35, 6, F, F, F, F, G, F, F, 0]),
        command(0x37, ReadDefectData, R, &[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, 0]),
        command(0x41, WriteSame, W, &[0x41, 0x08, F, F, F, F, G, F, F, 0]),
        command(0x42, Unmap, W, &[0x42, 0, 0, 0, 0, 0, G, F, F, 0]),
        action(0x48, 0x01, Sanitize, W, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x48, 0x02, Sanitize, W, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x48, 0x1f, Sanitize, W, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, 0]),
        command(0x4d, LogSense, Free, &[0x4d, 1, F, F, 0, F, F, F, F, 0]),
        command(0x55, ModeSelect, W, &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0]),
        command(0x56, Reserve, Own, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        command(0x57, Release, Own, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        command(0x5a, ModeSense, R, &[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0]),
        action(0x5e, 0x00, PersistentReserveIn, Own, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x5e, 0x01, PersistentReserveIn, Own, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x5e, 0x02, PersistentReserveIn, Own, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x5e, 0x03, PersistentReserveIn, Own, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, 0]),
        action(0x5f, 0x00, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x01, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x02, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x03, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x04, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x05, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x5f, 0x06, PersistentReserveOut, Own, &[0x5f, 0x1f, F, 0, 0, F, F, F, F, 0]),
        action(0x83, 0x00, ExtendedCopy, W, &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0]),
        action(0x83, 0x10, PopulateToken, R, &[0x83, 0x1f, 0, 0, 0, 0, F, F, F, F, F, F, F, F, G, 0]),
        action(0x83, 0x11, WriteUsingToken, W, &[0x83, 0x1f, 0, 0, 0, 0, F, F, F, F, F, F, F, F, G, 0]),
        action(0x84, 0x00, CopyStatus, R, &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0]),
        action(0x84, 0x03, CopyParameters, Free, &[0x84, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0]),
        action(0x84, 0x07, TokenInformation, R, &[0x84, 0x1f, F, F, F, F, 0, 0, 0, 0, F, F, F, F, 0, 0]),
        command(0x88, Read, R, &[0x88, DF, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x89, CompareAndWrite, W, &[0x89, DF, F, F, F, F, F, F, F, F, 0, 0, 0, F, G, 0]),
        command(0x8a, Write, W, &[0x8a, DF, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x8b, OrWrite, W, &[0x8b, DF, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x8e, WriteAndVerify, W, &[0x8e, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x8f, Verify, R, &[0x8f, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x90, Prefetch, R, &[0x90, 2, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x91, SynchronizeCache, W, &[0x91, 6, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x93, WriteSame, W, &[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        command(0x9c, WriteAtomic, W, &[0x9c, DF, F, F, F, F, F, F, F, F, F, F, F, F, G, 0]),
        action(0x9e, 0x10, ReadCapacity16, Free, &[0x9e, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 1, 0]),
        action(0x9e, 0x12, GetLbaStatus, R, &[0x9e, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0]),
        command(0xa0, ReportLuns, Free, &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0]),
        action(0xa3, 0x0a, ReportTargetPortGroups, Free, &[0xa3, 0x3f, 0, 0, 0, 0, F, F, F, F, 0, 0]),
        action(0xa3, 0x0c, ReportOpcodes, Free, &[0xa3, 0x1f, 0x87, F, F, F, F, F, F, F, 0, 0]),
        action(0xa3, 0x0d, ReportTaskManagement, Free, &[0xa3, 0x1f, 0x80, 0, 0, 0, F, F, F, F, 0, 0]),
        command(0xa8, Read, R, &[0xa8, DF, F, F, F, F, F, F, F, F, G, 0]),
        command(0xaa, Write, W, &[0xaa, DF, F, F, F, F, F, F, F, F, G, 0]),
        command(0xae, WriteAndVerify, W, &[0xae, 0x16, F, F, F, F, F, F, F, F, G, 0]),
        command(0xaf, Verify, R, &[0xaf, 0x16, F, F, F, F, F, F, F, F, G, 0]),
        command(0xb7, ReadDefectData, R, &[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, 0]),
    ]
};

impl Definition {
    /// Returns the command of a CDB. Errors: the command is unknown, or the CDB is too short or has a bit set that has
    /// no meaning.
    pub fn of(cdb: &[u8]) -> Result<&'static Definition, Sense> {
        let opcode = cdb.first().copied().unwrap_or_default();
        let mut of_opcode = COMMANDS.iter().filter(|command| command.opcode == opcode).peekable();
        let Some(first) = of_opcode.peek() else {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_COMMAND_OPERATION_CODE));
        };
        let wanted = first.action.map(|_| cdb.get(1).copied().unwrap_or_default() & 0x1f);
        let found = of_opcode.find(|command| command.action == wanted).ok_or(Sense::invalid_field(1, Some(4)))?;
        if cdb.len() < found.usage.len() {
            return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        for (at, (byte, usage)) in cdb.iter().zip(found.usage).enumerate().skip(1) {
            let wrong = byte & !usage;
            if wrong != 0 {
                return Err(Sense::invalid_field(at as u16, Some(wrong.ilog2() as u8)));
            }
        }
        Ok(found)
    }

    /// Returns whether it changes the medium of its unit, which a protected unit refuses.
    pub fn changes_medium(&self) -> bool {
        matches!(
            self.operation,
            Operation::Write
                | Operation::WriteAtomic
                | Operation::WriteAndVerify
                | Operation::OrWrite
                | Operation::CompareAndWrite
                | Operation::Unmap
                | Operation::WriteSame
                | Operation::Sanitize
                | Operation::WriteUsingToken
        )
    }

    /// Returns whether it needs the medium. Only commands that report about the unit, or set how it is used, do not
    /// (SBC-3 section 4.4).
    pub fn needs_medium(&self) -> bool {
        !matches!(
            self.operation,
            Operation::RequestSense
                | Operation::Inquiry
                | Operation::ModeSelect
                | Operation::ModeSense
                | Operation::StartStopUnit
                | Operation::PreventAllow
                | Operation::SendDiagnostic
                | Operation::LogSense
                | Operation::ReportLuns
                | Operation::ReportTargetPortGroups
                | Operation::ReportOpcodes
                | Operation::ReportTaskManagement
                | Operation::PersistentReserveIn
                | Operation::PersistentReserveOut
                | Operation::Reserve
                | Operation::Release
                | Operation::CopyStatus
                | Operation::CopyParameters
                | Operation::TokenInformation
        )
    }

    /// Returns whether it is allowed during a sanitize or after a failed one: commands that report about the unit, and
    /// touch neither the medium nor how it is used (SBC-3 section 4.11.2).
    pub fn is_allowed_in_sanitize(&self) -> bool {
        matches!(
            self.operation,
            Operation::Inquiry
                | Operation::RequestSense
                | Operation::ReportLuns
                | Operation::ReportOpcodes
                | Operation::ReportTaskManagement
                | Operation::ReportTargetPortGroups
                | Operation::LogSense
                | Operation::PersistentReserveIn
        )
    }

    /// Returns the CDB usage data (SPC-4 section 6.35.3): the bits in use, with operation code and service action as
    /// they are.
    pub fn usage_data(&self) -> Vec<u8> {
        let mut usage = self.usage.to_vec();
        if let Some(action) = self.action {
            usage[1] = usage[1] & 0xe0 | action;
        }
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        for command in COMMANDS {
            assert_eq!(command.usage[0], command.opcode);
            let bytes = match command.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("group {group}"),
            };
            assert_eq!(command.usage.len(), bytes, "{command:?}");
            let mut cdb = vec![0; bytes];
            cdb[0] = command.opcode;
            cdb[1] = command.action.unwrap_or_default();
            let found = Definition::of(&cdb).unwrap();
            assert_eq!((found.opcode, found.action), (command.opcode, command.action));
            assert!(Definition::of(&cdb[..bytes - 1]).is_err());
        }
        let keys: Vec<_> = COMMANDS.iter().map(|command| (command.opcode, command.action)).collect();
        assert!(keys.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn what_means_nothing_must_be_zero() {
        let read10 = [0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(Definition::of(&read10).unwrap_err(), Sense::invalid_field(1, Some(5)));
        assert_eq!(Definition::of(&[0xff]).unwrap_err().code, Code::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(Definition::of(&[0x5e, 4, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err(), Sense::invalid_field(1, Some(4)));
    }
}
