//! A logical unit: judges commands in the order that the standards want, keeps what initiators set, and does the rest of the commands.
//!
//! # Order of judging (SAM-5 section 5.14, SPC-4 section 5.13)
//! The CDB; unit attentions; reservations; write protection; then the command itself. INQUIRY, REPORT LUNS and REQUEST SENSE take no unit
//! attention, as those need them who find out what happened.

use super::block::{self, Medium, Range};
use super::inquiry::{self, Identity, Port};
use super::mode::Parameters;
use super::opcodes::{COMMANDS, Definition, Operation};
use super::reservation::{MAX_REGISTRATIONS, Nexus, Refusal, Request, Reservations, TYPE_MASK};
use super::sense::{Code, Key, Sense};
use super::{Disk, Geometry, u16_at, u32_at, u64_at};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Status of a command (SAM-5 table 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// Sense data say more.
    CheckCondition = 0x02,
    /// Too much to do; to be tried again.
    Busy = 0x08,
    /// Somebody else has reserved the unit.
    ReservationConflict = 0x18,
    /// No room for one more command.
    TaskSetFull = 0x28,
    /// Another initiator has ended it.
    TaskAborted = 0x40,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// Data for the initiator, as many as the CDB has room for.
    pub data: Vec<u8>,
    /// Sense data, as bytes; empty if there are none.
    pub sense: Vec<u8>,
}

impl Reply {
    fn with(data: Vec<u8>) -> Reply {
        Reply { status: Status::Good, data, sense: Vec::new() }
    }
}

/// Who sends a command, and by which port.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Initiator port and target port.
    pub nexus: &'a Nexus,
    /// The target port.
    pub port: &'a Port,
    /// The LUNs that this initiator sees, ascending.
    pub luns: &'a [u16],
}

/// What a unit is made with.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Who it is.
    pub identity: Identity,
    /// Bytes of a logical block: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Target ports by which it can be reached.
    pub ports: Vec<u16>,
    /// Reservations of before.
    pub reservations: Reservations,
}

/// Keeps reservations over restarts: called with each change, before it is answered.
pub type Keep = Box<dyn Fn(&Reservations) -> Result<(), String> + Send + Sync>;

/// Unit attentions of one nexus; further ones would say nothing new.
const MAX_ATTENTIONS: usize = 8;

/// A logical unit.
pub struct LogicalUnit {
    disk: Arc<dyn Disk>,
    identity: Identity,
    logical: u32,
    ports: Vec<u16>,
    keep: Keep,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    parameters: Parameters,
    reservations: Reservations,
    /// Nexuses that are there.
    nexuses: BTreeSet<Nexus>,
    attentions: HashMap<Nexus, VecDeque<Code>>,
}

impl State {
    fn attend(&mut self, nexus: &Nexus, code: Code) {
        if self.nexuses.contains(nexus) {
            let pending = self.attentions.entry(nexus.clone()).or_default();
            if pending.len() < MAX_ATTENTIONS && !pending.contains(&code) {
                pending.push_back(code);
            }
        }
    }

    fn attend_others(&mut self, nexus: &Nexus, code: Code) {
        let others: Vec<Nexus> = self.nexuses.iter().filter(|other| *other != nexus).cloned().collect();
        others.iter().for_each(|other| self.attend(other, code));
    }
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LogicalUnit").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl LogicalUnit {
    /// A unit on a disk.
    pub fn new(disk: Arc<dyn Disk>, options: UnitOptions, keep: Keep) -> LogicalUnit {
        let UnitOptions { identity, logical_block_bytes: logical, ports, reservations } = options;
        LogicalUnit { disk, identity, logical, ports, keep, state: Mutex::new(State { reservations, ..State::default() }) }
    }

    /// Its sizes, now.
    pub fn geometry(&self) -> Geometry {
        Geometry { size: self.disk.size(), logical: self.logical, mapped: self.disk.block_bytes() }
    }

    /// A nexus has come.
    pub fn join(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        if state.nexuses.insert(nexus.clone()) {
            state.attend(nexus, Code::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        }
    }

    /// A nexus is gone.
    pub fn leave(&self, nexus: &Nexus) {
        let mut state = self.state.lock();
        state.nexuses.remove(nexus);
        state.attentions.remove(nexus);
        state.reservations.lose_nexus(nexus);
    }

    /// The unit is reset: all hear of it.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.parameters = Parameters::default();
        state.reservations.reset();
        let all: Vec<Nexus> = state.nexuses.iter().cloned().collect();
        all.iter().for_each(|nexus| state.attend(nexus, Code::BUS_DEVICE_RESET_FUNCTION));
    }

    /// Something happened that all initiators should know of.
    pub fn tell_all(&self, code: Code) {
        let mut state = self.state.lock();
        let all: Vec<Nexus> = state.nexuses.iter().cloned().collect();
        all.iter().for_each(|nexus| state.attend(nexus, code));
    }

    /// Bytes that a command takes from the initiator, by what its CDB says.
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
            operation => block::data_out_bytes(operation, cdb, &self.geometry()),
        }
    }

    /// Does a command. `data` is what the initiator sent, of what the CDB announced perhaps only the first part; `announced` is how much it
    /// would send.
    pub fn execute(&self, caller: Caller<'_>, cdb: &[u8], data: &[u8], announced: u32) -> Reply {
        // What carries CDBs may pad them.
        let perform = |definition: &Definition| {
            let cdb = &cdb[..definition.usage.len()];
            // What is compared, or written many times, must be what was meant.
            let is_exact = matches!(definition.operation, Operation::CompareAndWrite | Operation::WriteSame);
            if is_exact && self.data_out_bytes(cdb) as u32 != announced {
                return Err(Sense::new(Key::IllegalRequest, Code::INVALID_FIELD_IN_CDB).into());
            }
            self.perform(definition, caller, cdb, data)
        };
        match self.judge(caller, cdb).and_then(perform) {
            Ok(data) => Reply::with(data),
            Err(Refusal::Conflict) => Reply { status: Status::ReservationConflict, data: Vec::new(), sense: Vec::new() },
            Err(Refusal::Check(sense)) => self.check_condition(sense),
        }
    }

    /// CHECK CONDITION with these sense data, in the format that is set.
    pub fn check_condition(&self, sense: Sense) -> Reply {
        let descriptors = self.state.lock().parameters.descriptor_sense;
        Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(descriptors) }
    }

    fn judge(&self, caller: Caller<'_>, cdb: &[u8]) -> Result<&'static Definition, Refusal> {
        let definition = Definition::of(cdb);
        let operation = definition.as_ref().map(|definition| definition.operation);
        let mut state = self.state.lock();
        if !matches!(operation, Ok(Operation::Inquiry | Operation::ReportLuns | Operation::RequestSense))
            && let Some(code) = state.attentions.get_mut(caller.nexus).and_then(VecDeque::pop_front)
        {
            return Err(Sense::new(Key::UnitAttention, code).into());
        }
        let definition = definition?;
        if !state.reservations.allows(caller.nexus, definition.access) {
            return Err(Refusal::Conflict);
        }
        let changes_medium = matches!(
            definition.operation,
            Operation::Write
                | Operation::WriteAtomic
                | Operation::WriteAndVerify
                | Operation::OrWrite
                | Operation::CompareAndWrite
                | Operation::Unmap
                | Operation::WriteSame
        );
        if changes_medium && (state.parameters.write_protect || self.disk.read_only()) {
            return Err(Sense::new(Key::DataProtect, Code::WRITE_PROTECTED).into());
        }
        Ok(definition)
    }

    fn perform(&self, definition: &Definition, caller: Caller<'_>, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let geometry = self.geometry();
        let medium = Medium { disk: &*self.disk, geometry };
        let nothing = |done: Result<(), Sense>| done.map(|()| Vec::new()).map_err(Refusal::from);
        let some = |out: Vec<u8>, room: usize| Ok(truncated(out, room));
        match definition.operation {
            Operation::TestUnitReady | Operation::PreventAllow => Ok(Vec::new()),
            Operation::RequestSense => some(self.request_sense(caller.nexus, cdb), cdb[4].into()),
            Operation::Inquiry => some(self.inquiry(cdb, caller.port)?, u16_at(cdb, 3).into()),
            Operation::ModeSense => {
                let out = self.state.lock().parameters.sense(cdb, &geometry, self.disk.read_only())?;
                some(out, if cdb[0] == 0x1a { cdb[4].into() } else { u16_at(cdb, 7).into() })
            }
            Operation::ModeSelect => {
                let mut state = self.state.lock();
                let next = state.parameters.select(cdb, data, &geometry)?;
                if next != state.parameters {
                    state.parameters = next;
                    state.attend_others(caller.nexus, Code::MODE_PARAMETERS_CHANGED);
                }
                Ok(Vec::new())
            }
            Operation::StartStopUnit => {
                // A disk in a network does not stop for one of its hosts; what it was told before is made durable (SBC-3 section 5.25).
                let is_stop = cdb[4] >> 4 == 0 && cdb[4] & 1 == 0;
                if cdb[4] >> 4 == 0 && cdb[4] & 2 != 0 {
                    return Err(Sense::invalid_field(4, Some(1)).into());
                }
                nothing(if is_stop { self.disk.flush().map_err(|error| block::failed_to_write(&error, 0)) } else { Ok(()) })
            }
            Operation::SendDiagnostic => {
                // The default self-test finds a unit that answers in order.
                let is_self_test = cdb[1] & 0xe7 == 0x04;
                nothing(if is_self_test || cdb[1] == 0 { Ok(()) } else { Err(Sense::invalid_field(1, Some(7))) })
            }
            Operation::LogSense => some(log_sense(cdb)?, u16_at(cdb, 7).into()),
            Operation::ReportLuns => some(report_luns(cdb, caller.luns)?, u32_at(cdb, 6) as usize),
            Operation::ReportTargetPortGroups => some(self.port_groups(cdb)?, u32_at(cdb, 6) as usize),
            Operation::ReportOpcodes => some(report_opcodes(cdb)?, u32_at(cdb, 6) as usize),
            Operation::ReportTaskManagement => {
                // Abort task and task set, clear task set, logical unit reset; target resets.
                let out = if cdb[2] & 0x80 == 0 { vec![0xda, 0x01, 0, 0] } else { [&[0xda, 0x01, 0, 12][..], &[0; 12]].concat() };
                some(out, u32_at(cdb, 6) as usize)
            }
            Operation::PersistentReserveIn => some(self.persistent_in(caller.nexus, cdb)?, u16_at(cdb, 7).into()),
            Operation::PersistentReserveOut => self.persistent_out(caller.nexus, cdb, data),
            Operation::Reserve => self.state.lock().reservations.reserve(caller.nexus).map(|()| Vec::new()),
            Operation::Release => self.state.lock().reservations.release(caller.nexus).map(|()| Vec::new()),
            Operation::ReadCapacity10 => Ok(block::read_capacity_10(cdb, &geometry)?),
            Operation::ReadCapacity16 => some(block::read_capacity_16(&geometry), u32_at(cdb, 10) as usize),
            Operation::GetLbaStatus => some(medium.lba_status(cdb)?, u32_at(cdb, 10) as usize),
            Operation::ReadDefectData => {
                // There are no defects, in the format that was asked for.
                let asked = if cdb[0] == 0x37 { cdb[2] } else { cdb[1] };
                let (out, room) = if cdb[0] == 0x37 {
                    (vec![0, asked & 0x1f, 0, 0], u16_at(cdb, 7) as usize)
                } else {
                    (vec![0, asked & 0x1f, 0, 0, 0, 0, 0, 0], u32_at(cdb, 6) as usize)
                };
                some(out, room)
            }
            Operation::Read => Ok(medium.read(Range::of(definition.operation, cdb))?),
            operation @ (Operation::Write | Operation::WriteAtomic | Operation::WriteAndVerify) => {
                nothing(medium.write_command(operation, cdb, data))
            }
            Operation::Verify => nothing(medium.verify(cdb, data)),
            Operation::OrWrite => nothing(medium.or_write(cdb, data)),
            Operation::CompareAndWrite => nothing(medium.compare_and_write(cdb, data)),
            Operation::Prefetch => nothing(medium.prefetch(cdb)),
            Operation::SynchronizeCache => nothing(medium.synchronize(cdb)),
            Operation::Unmap => nothing(medium.unmap(data)),
            Operation::WriteSame => nothing(medium.write_same(cdb, data)),
        }
    }

    fn request_sense(&self, nexus: &Nexus, cdb: &[u8]) -> Vec<u8> {
        let pending = self.state.lock().attentions.get_mut(nexus).and_then(VecDeque::pop_front);
        let sense = pending.map_or(Sense::new(Key::NoSense, Code::NONE), |code| Sense::new(Key::UnitAttention, code));
        sense.encode(cdb[1] & 1 != 0)
    }

    fn inquiry(&self, cdb: &[u8], port: &Port) -> Result<Vec<u8>, Sense> {
        match (cdb[1] & 1 != 0, cdb[2]) {
            (true, page) => inquiry::page(page, &self.identity, port, &self.geometry()),
            (false, 0) => Ok(inquiry::standard(&self.identity)),
            (false, _) => Err(Sense::invalid_field(2, None)),
        }
    }

    /// All ports are in one group, which is active (SPC-4 section 6.36).
    fn port_groups(&self, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
        let is_extended = match cdb[1] >> 5 {
            0 => false,
            1 => true,
            _ => return Err(Sense::invalid_field(1, Some(7))),
        };
        // Preferred, active/optimized; supports active/optimized only.
        let mut groups = Vec::new();
        for port in &self.ports {
            let [high, low] = port.to_be_bytes();
            groups.extend_from_slice(&[0x80, 0x01, high, low, 0, 2, 0, 1, 0, 0, high, low]);
        }
        let head: &[u8] = if is_extended { &[0x10, 0, 0, 0] } else { &[] };
        let length = (head.len() + groups.len()) as u32;
        Ok([&length.to_be_bytes()[..], head, &groups].concat())
    }

    fn persistent_in(&self, nexus: &Nexus, cdb: &[u8]) -> Result<Vec<u8>, Refusal> {
        let state = self.state.lock();
        let reservations = &state.reservations;
        if !reservations.allows_persistent_in(nexus) {
            return Err(Refusal::Conflict);
        }
        let generation = reservations.generation().to_be_bytes();
        let with_length = |body: Vec<u8>| [&generation[..], &(body.len() as u32).to_be_bytes(), &body].concat();
        Ok(match cdb[1] & 0x1f {
            0x00 => with_length(reservations.keys().flat_map(u64::to_be_bytes).collect()),
            0x01 => with_length(reservations.reservation().map_or_else(Vec::new, |reservation| {
                let key = reservations.holders_key().to_be_bytes();
                [&key[..], &[0, 0, 0, 0, 0, reservation.kind as u8, 0, 0]].concat()
            })),
            0x02 => {
                // Compatible with RESERVE and RELEASE no; all target ports no; kept over power loss yes, types are listed.
                let kept = u8::from(reservations.is_kept());
                vec![0, 8, 0x01, 0x80 | kept, TYPE_MASK[0], TYPE_MASK[1], 0, 0]
            }
            _ => {
                let mut body = Vec::new();
                for (other, key) in reservations.registrations() {
                    let transport = transport_id(&other.initiator);
                    let is_holder = reservations.is_holder(other);
                    body.extend_from_slice(&key.to_be_bytes());
                    let kind = reservations.reservation().filter(|_| is_holder).map_or(0, |reservation| reservation.kind as u8);
                    body.extend_from_slice(&[0, 0, 0, 0, u8::from(is_holder), kind, 0, 0, 0, 0]);
                    body.extend_from_slice(&other.target_port.to_be_bytes());
                    body.extend_from_slice(&(transport.len() as u32).to_be_bytes());
                    body.extend_from_slice(&transport);
                }
                with_length(body)
            }
        })
    }

    fn persistent_out(&self, nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Refusal> {
        if u32_at(cdb, 5) != 24 || data.len() < 24 {
            return Err(Sense::new(Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let flags = data[20];
        // Registering for others (SPEC_I_PT) or for all ports (ALL_TG_PT) is not offered, as the capabilities say.
        if flags & 0x0c != 0 && matches!(cdb[1] & 0x1f, 0x00 | 0x06) {
            return Err(Sense::invalid_parameter(20).into());
        }
        let request = Request {
            action: cdb[1] & 0x1f,
            scope: cdb[2] >> 4,
            kind: cdb[2] & 0x0f,
            key: u64_at(data, 0),
            new_key: u64_at(data, 8),
            keep: flags & 1 != 0,
        };
        let mut state = self.state.lock();
        let mut next = state.reservations.clone();
        let heard = next.change(nexus, request)?;
        if next.kept() != state.reservations.kept()
            && let Err(_why) = (self.keep)(&next)
        {
            return Err(Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE).into());
        }
        debug_assert!(next.keys().count() <= MAX_REGISTRATIONS);
        state.reservations = next;
        heard.into_iter().for_each(|(other, code)| state.attend(&other, code));
        Ok(Vec::new())
    }
}

/// The answer of a target to a command for a LUN that has no unit (SPC-4 section 4.3.2, SAM-5 section 5.11).
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

/// The answer to a command that the target failed to do.
pub fn failed() -> Reply {
    let sense = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
    Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) }
}

/// The answer to a command of whose data some did not arrive.
pub fn lost_data() -> Reply {
    let sense = Sense::new(Key::AbortedCommand, Code::PROTOCOL_SERVICE_CRC_ERROR);
    Reply { status: Status::CheckCondition, data: Vec::new(), sense: sense.encode(false) }
}

fn truncated(mut out: Vec<u8>, room: usize) -> Vec<u8> {
    out.truncate(room);
    out
}

/// TransportID of an iSCSI initiator port (SPC-4 section 7.6.4.6).
fn transport_id(name: &str) -> Vec<u8> {
    let mut text = name.as_bytes().to_vec();
    text.resize((text.len() / 4 * 4 + 4).max(20), 0);
    // Protocol 5; with an ISID the name has format 1.
    let format = if name.contains(",i,0x") { 0x45 } else { 0x05 };
    [&[format, 0][..], &(text.len() as u16).to_be_bytes(), &text].concat()
}

/// REPORT LUNS (SPC-4 section 6.33): flat space addressing above 255.
fn report_luns(cdb: &[u8], luns: &[u16]) -> Result<Vec<u8>, Sense> {
    if u32_at(cdb, 6) < 16 {
        return Err(Sense::invalid_field(6, None));
    }
    let shown: &[u16] = match cdb[2] {
        0x00 | 0x02 => luns,
        // There are no well-known units, and none below others.
        0x01 | 0x10 | 0x11 | 0x12 => &[],
        _ => return Err(Sense::invalid_field(2, None)),
    };
    let mut out = ((shown.len() * 8) as u32).to_be_bytes().to_vec();
    out.extend_from_slice(&[0; 4]);
    for lun in shown {
        let [high, low] = if *lun < 256 { lun.to_be_bytes() } else { (lun | 0x4000).to_be_bytes() };
        out.extend_from_slice(&[high, low, 0, 0, 0, 0, 0, 0]);
    }
    Ok(out)
}

/// REPORT SUPPORTED OPERATION CODES (SPC-4 section 6.35).
fn report_opcodes(cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    /// Nominal and recommended timeouts are not said: zeros.
    const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let with_timeouts = cdb[2] & 0x80 != 0;
    let (options, opcode, action) = (cdb[2] & 7, cdb[3], u16_at(cdb, 4));
    if options == 0 {
        let mut out = vec![0; 4];
        for command in COMMANDS {
            let flags = u8::from(with_timeouts) << 1 | u8::from(command.action.is_some());
            out.extend_from_slice(&[command.opcode, 0, 0, command.action.unwrap_or_default(), 0, flags, 0, command.usage.len() as u8]);
            out.extend_from_slice(&TIMEOUTS[..if with_timeouts { 12 } else { 0 }]);
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        return Ok(out);
    }
    let of_opcode = || COMMANDS.iter().filter(|command| command.opcode == opcode);
    let has_actions = of_opcode().any(|command| command.action.is_some());
    let by_action = || of_opcode().find(|command| command.action.map(u16::from) == Some(action));
    let found = match options {
        1 if has_actions => return Err(Sense::invalid_field(2, Some(2))),
        1 => of_opcode().next(),
        2 if !has_actions && of_opcode().next().is_some() => return Err(Sense::invalid_field(2, Some(2))),
        2 => by_action(),
        3 if has_actions => by_action(),
        3 if action == 0 => of_opcode().next(),
        3 => None,
        _ => return Err(Sense::invalid_field(2, Some(2))),
    };
    let Some(command) = found else { return Ok(vec![0, 1, 0, 0]) };
    let usage = command.usage_data();
    let mut out = vec![0, u8::from(with_timeouts) << 7 | 3, 0, usage.len() as u8];
    out.extend_from_slice(&usage);
    out.extend_from_slice(&TIMEOUTS[..if with_timeouts { 12 } else { 0 }]);
    Ok(out)
}

/// LOG SENSE: the list of pages, which has itself only.
fn log_sense(cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    match (cdb[2] & 0x3f, cdb[3]) {
        (0x00, 0x00) => Ok(vec![0x00, 0, 0, 1, 0x00]),
        (0x00, 0xff) => Ok(vec![0x40, 0xff, 0, 4, 0x00, 0x00, 0x00, 0xff]),
        (0x00, _) => Err(Sense::invalid_field(3, None)),
        _ => Err(Sense::invalid_field(2, Some(5))),
    }
}
