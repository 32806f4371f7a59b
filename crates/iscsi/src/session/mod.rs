//! A session in full feature phase: one connection, one task that has all its state, reads and writes; commands are done by the threads of the pool.
//! So a command that does not wait for anything is handed over twice, from the task to a thread and back; what is ready at a time is
//! taken in one go, and answered with one call of the system. Short reads of who sends one command at a time are done by the task itself.
//!
//! # Invariants
//! - Memory: data of commands under way have room ([`memory`]), within [`Limits::session_bytes`] of the session and [`Limits::bytes`] of all of them. Beside that
//!   a session has at most [`FIRST_BYTES`] that came before there was room for them, [`EARLY_BYTES`] of commands that came before their turn, the PDU that is
//!   read and room for the next one, and answers of [`outbox::OUT_BYTES`] that the initiator does not take: then no more PDUs are read.
//!   While a command compares or combines, its data are there twice. The server keeps some buffers of long commands for the next ones
//!   ([`crate::scsi::Buffers`]), of all sessions.
//! - An R2T is sent, and a read begun, only when there is room. Who has room waits for no one who waits for room: a command behind an ordered one gets none.
//! - An initiator that keeps others waiting for memory must go on with what it has ([`memory::Progress`]), or its session ends.
//! - Of commands that are delivered at once (immediate) there are few: their number is not bounded by the window. Task management functions that
//!   are not answered yet are commands in this respect.
//! - Commands outside of the window that the initiator was told are dropped, as RFC 7143 section 4.2.2.1 wants.
//! - A task that is ended by task management, or by a logout, has no effect after the answer: those that run are waited for, their responses are not sent.
//!   Those that wait for room, or for a thread, have not begun and are not waited for.
//! - MaxCmdSN never goes back, as immediate commands have places of their own: it advances when a command comes, and again when it is over.

mod commands;
mod limits;
mod management;
mod memory;
mod outbox;
mod requests;
mod serve;
mod task;
mod work;

use crate::Shared;
use crate::chap::Account;
use crate::login::Visitor;
use crate::negotiation::Parameters;
use crate::pdu::{Incoming, NO_TAG, Outgoing, StatusNumber, opcode, reason};
use crate::scsi::{LogicalUnit, Nexus, Port, Reply};
use crate::target::{Control, Place, Target};
use memory::{Memory, Room};
use outbox::{Outbox, Sent};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use task::Task;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use work::Sender;

pub use limits::Limits;
pub(crate) use memory::SharedMemory;
pub(crate) use serve::serve;

/// Commands of one session that are worked on at a time.
const WORKERS: usize = 16;
/// Permits of memory are of so many bytes.
const PERMIT_BYTES: u32 = 4096;
/// Data of one session that came with commands before there was room for them, bytes.
const FIRST_BYTES: usize = 4 << 20;
/// Data of one session that came with commands before those that were sent before them, bytes.
const EARLY_BYTES: usize = 1 << 20;
/// Immediate commands, which are beside those of the window, and immediate task management functions.
const IMMEDIATE: usize = 16;

/// What a login brought.
pub(crate) struct Begun {
    pub(crate) parameters: Parameters,
    pub(crate) target: Option<Arc<Target>>,
    /// With which account the initiator has proved who it is.
    pub(crate) proved: Option<Account>,
    pub(crate) visitor: Visitor,
    pub(crate) nexus: Nexus,
    pub(crate) port: Port,
    pub(crate) place: Place,
    /// The target's part of the session's identifier (TSIH).
    pub(crate) handle: u16,
    pub(crate) control: mpsc::UnboundedReceiver<Control>,
    pub(crate) expected_command: u32,
    pub(crate) status_number: u32,
}

/// What comes back from the work on commands, which are named by [`Task::serial`]: their tags come again.
enum Event {
    /// There is memory for the data of a command.
    Room { tag: u32, serial: u64, room: Room },
    /// A command is done.
    Done { tag: u32, serial: u64, reply: Reply, room: Option<Room> },
    /// A reset is done, or the tasks of all have ended.
    Reset { task_tag: u32, is_cold: bool },
}

/// Somebody waits until tasks that were ended are over.
struct Waiting {
    tasks: Vec<u32>,
    then: Then,
}

enum Then {
    Answer(u32),
    LogOut(u32),
    Say(oneshot::Sender<()>),
    /// The tasks of others on a unit end too.
    Clear {
        task_tag: u32,
        lun: Option<u16>,
    },
    Reset {
        task_tag: u32,
        lun: Option<u16>,
        is_cold: bool,
    },
}

/// Why a session ends.
enum End {
    /// The initiator has logged out, or is to be gone.
    Over,
    /// What it sends cannot be.
    Wrong(&'static str),
    /// Others wait for memory that it has and does not use.
    Stalled,
}

struct Session {
    shared: Arc<Shared>,
    begun: Begun,
    /// The same, for the threads that do its commands.
    sender: Arc<Sender>,
    tasks: HashMap<u32, Task>,
    /// Number of the next command.
    next_serial: u64,
    /// Commands that came and are not started, in their order.
    queue: VecDeque<u32>,
    waiting: Vec<Waiting>,
    /// Tags of task management functions that are not answered yet, and whether they are immediate.
    managing: Vec<(u32, bool)>,
    /// Those that concern other sessions too. They end with this one: what is not done then is not done.
    resets: JoinSet<()>,
    memory: Arc<Memory>,
    /// Commands that came one behind the other, each when the one before was over.
    lone_commands: u32,
    /// Its share of those who work: one session does not keep all others waiting.
    workers: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
    out: mpsc::UnboundedSender<Sent>,
    outbox: Arc<Outbox>,
    /// The rest of an answer to a text request, and the tag under which the initiator may ask for it.
    more_text: Option<(u32, Vec<u8>)>,
    next_transfer_tag: u32,
    /// Room for the next Data-Out: that of one before. It goes into no command and no answer.
    spare: Vec<u8>,
    /// Bytes of data that the initiator has sent.
    received_bytes: u64,
    /// Commands that came before others that were sent before them, and the bytes of their data.
    early: HashMap<u32, Incoming>,
    early_bytes: usize,
    ping: Option<u32>,
    /// The initiator wants to log out: nothing more is taken from it.
    is_leaving: bool,
    /// That was answered.
    has_left: bool,
    /// The units that know of this nexus, by LUN. Units come and go while a session lasts.
    joined: HashMap<u16, Arc<LogicalUnit>>,
}

impl Session {
    fn join_all(&mut self) {
        let Some(target) = self.begun.target.clone() else { return };
        for (number, unit) in &*target.units.read() {
            self.join(*number, unit);
        }
    }

    /// Makes this nexus known to a unit. One that was in its place before forgets it.
    fn join(&mut self, number: u16, unit: &Arc<LogicalUnit>) {
        if self.joined.get(&number).is_some_and(|joined| Arc::ptr_eq(joined, unit)) {
            return;
        }
        unit.join(&self.begun.nexus);
        if let Some(old) = self.joined.insert(number, unit.clone()) {
            old.leave(&self.begun.nexus);
        }
    }

    fn leave(&self) {
        self.joined.values().for_each(|unit| unit.leave(&self.begun.nexus));
    }

    fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Commands that the initiator may send beside those under way.
    fn window(&self) -> u32 {
        let commands = self.tasks.values().filter(|task| !task.is_immediate).count();
        let functions = self.managing.iter().filter(|(_, is_immediate)| !is_immediate).count();
        self.limits().window(self.begun.target.is_none()).saturating_sub((commands + functions) as u32)
    }

    /// Last CmdSN that the initiator may send.
    fn last_command(&self) -> u32 {
        self.begun.expected_command.wrapping_add(self.window()).wrapping_sub(1)
    }

    fn reject(&mut self, why: u8, of: &Incoming) {
        let mut pdu = Outgoing::new(opcode::REJECT, 0x80, NO_TAG, StatusNumber::Own);
        pdu.header[2] = why;
        pdu.data = of.header.0.to_vec().into();
        self.send(pdu);
    }

    fn ping(&mut self) -> Result<(), End> {
        if self.ping.is_some() {
            return Err(End::Wrong("the initiator does not answer"));
        }
        let tag = self.transfer_tag();
        self.ping = Some(tag);
        let mut pdu = Outgoing::new(opcode::NOP_IN, 0x80, NO_TAG, StatusNumber::Next);
        pdu.put_u32(20, tag);
        self.send(pdu);
        Ok(())
    }

    fn transfer_tag(&mut self) -> u32 {
        let tag = self.next_transfer_tag;
        self.next_transfer_tag = if tag >= NO_TAG - 1 { 1 } else { tag + 1 };
        tag
    }

    fn told(&mut self, control: Control) -> Result<(), End> {
        match control {
            Control::Close => return Err(End::Over),
            Control::AskToLogOut => {
                let mut pdu = Outgoing::new(opcode::ASYNC, 0x80, NO_TAG, StatusNumber::Own);
                // Event 1: log out within so many seconds.
                pdu.header[36] = 1;
                let seconds = self.limits().farewell.as_millis().div_ceil(1000).min(u16::MAX.into()) as u16;
                pdu.put(42, &seconds.to_be_bytes());
                self.send(pdu);
            }
            Control::Abort { lun, done } => {
                let tasks = self.end_tasks(&|task| lun.is_none() || task.number == lun);
                self.wait_for(tasks, Then::Say(done));
                self.go_on_all();
            }
        }
        Ok(())
    }

    /// Takes a PDU.
    fn take(&mut self, pdu: Incoming) -> Result<(), End> {
        if self.is_leaving {
            return Ok(());
        }
        let code = pdu.header.opcode();
        if code == opcode::DATA_OUT {
            let done = self.data_out(&pdu);
            if pdu.data.capacity() > self.spare.capacity() {
                self.spare = pdu.data;
            }
            return done;
        }
        if code == opcode::SNACK {
            self.reject(reason::COMMAND_NOT_SUPPORTED, &pdu);
            return Ok(());
        }
        if pdu.header.is_immediate() {
            return self.immediate(pdu);
        }
        let ahead = pdu.header.command_number().wrapping_sub(self.begun.expected_command);
        if ahead >= self.window() {
            return Ok(());
        }
        if ahead > 0 {
            self.early_bytes += pdu.data.len();
            let before = self.early.insert(pdu.header.command_number(), pdu);
            self.early_bytes -= before.map_or(0, |pdu| pdu.data.len());
            // On one connection nothing is overtaken, unless its initiator has lost count.
            return if self.early_bytes > EARLY_BYTES {
                Err(End::Wrong("too much comes before a command that is missing"))
            } else {
                Ok(())
            };
        }
        let mut next = Some(pdu);
        while let Some(pdu) = next.filter(|_| !self.is_leaving) {
            self.begun.expected_command = self.begun.expected_command.wrapping_add(1);
            self.command(pdu)?;
            next = self.early.remove(&self.begun.expected_command);
            self.early_bytes -= next.as_ref().map_or(0, |pdu| pdu.data.len());
        }
        Ok(())
    }

    /// A command that the window does not bound: of those that stay, there are few.
    fn immediate(&mut self, pdu: Incoming) -> Result<(), End> {
        let is_full = match pdu.header.opcode() {
            opcode::SCSI_COMMAND => self.tasks.values().filter(|task| task.is_immediate).count() >= IMMEDIATE,
            opcode::TASK_MANAGEMENT => self.managing.iter().filter(|(_, is_immediate)| *is_immediate).count() >= IMMEDIATE,
            _ => false,
        };
        if is_full {
            self.reject(reason::IMMEDIATE_COMMAND, &pdu);
            return Ok(());
        }
        self.command(pdu)
    }

    fn command(&mut self, pdu: Incoming) -> Result<(), End> {
        match pdu.header.opcode() {
            opcode::NOP_OUT => {
                self.nop(pdu);
                Ok(())
            }
            opcode::SCSI_COMMAND if self.begun.target.is_some() => self.scsi(pdu),
            opcode::TASK_MANAGEMENT if self.begun.target.is_some() => {
                self.manage(&pdu);
                Ok(())
            }
            opcode::TEXT => {
                self.text(&pdu);
                Ok(())
            }
            opcode::LOGOUT => {
                self.logout(&pdu);
                Ok(())
            }
            opcode::LOGIN => Err(End::Wrong("a login in a session that is logged in")),
            opcode::SCSI_COMMAND | opcode::TASK_MANAGEMENT => {
                self.reject(reason::PROTOCOL_ERROR, &pdu);
                Ok(())
            }
            _ => {
                self.reject(reason::COMMAND_NOT_SUPPORTED, &pdu);
                Ok(())
            }
        }
    }
}
