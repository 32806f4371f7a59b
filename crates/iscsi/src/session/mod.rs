//! A session in full feature phase: one connection, and one task that has all its state, reads and writes. The threads
//! of the pool execute the commands. So a command that waits for nothing is handed over twice: from the task to a
//! thread and back. Everything ready at the same time is taken together and answered with one system call. If an
//! initiator sends one command at a time, the task itself executes short reads.
//!
//! # Invariants
//! - Memory: the data of commands under way has room ([`crate::memory`]), within [`Limits::session_bytes`] of the
//!   session and [`Limits::bytes`] of all sessions. Besides, a session has at most: [`FIRST_BYTES`] that came before
//!   there was room for them; [`EARLY_BYTES`] of commands that came before their turn; the PDU being read and room for
//!   the next one; [`outbox::OUT_BYTES`] of answers that the initiator does not take, after which no more PDUs are
//!   read. While a command compares or combines, its data is there twice. The server also keeps some buffers of long
//!   commands for reuse by all sessions ([`crate::scsi::Buffers`]).
//! - An R2T is sent, and a read begins, only when there is room. A command that holds memory never waits for one that
//!   needs memory: a command behind an ordered one gets none.
//! - An initiator that makes others wait for memory must make progress with its own ([`crate::memory::Progress`]), or
//!   its session ends.
//! - The number of immediate commands is limited separately, because the window does not limit them. Unanswered task
//!   management functions count as such commands.
//! - Commands outside the window that the initiator was told are dropped, as RFC 7143 section 4.2.2.1 demands.
//! - A task that is ended by task management or a logout has no effect after the answer. Running tasks are waited for,
//!   and their responses are not sent. Tasks that wait for room or for a thread have not begun and are not waited for.
//! - MaxCmdSN never goes back, because immediate commands have places of their own. It advances when a command arrives,
//!   and again when it is over.

mod commands;
mod management;
mod outbox;
mod requests;
mod serve;
mod task;
mod work;

use crate::chap::Account;
use crate::limits::Limits;
use crate::login::Visitor;
use crate::memory::{Memory, Room};
use crate::negotiation::Parameters;
use crate::pdu::{Incoming, NO_TAG, Outgoing, StatusNumber, opcode, reason};
use crate::scsi::{LogicalUnit, Nexus, Port, Reply};
use crate::shared::Shared;
use crate::target::{Control, Place, Target};
use outbox::{Outbox, Sent};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use task::Task;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use work::Sender;

pub(crate) use serve::serve;

/// Commands of one session executed at a time.
const WORKERS: usize = 16;
/// Bytes of data of one session that came with commands before there was room for them.
const FIRST_BYTES: usize = 4 << 20;
/// Bytes of data of one session that came with commands before earlier commands arrived.
const EARLY_BYTES: usize = 1 << 20;
/// The most immediate commands, which are not counted in the window, and immediate task management functions.
const IMMEDIATE: usize = 16;

/// The result of a login.
pub(crate) struct Begun {
    pub(crate) parameters: Parameters,
    pub(crate) target: Option<Arc<Target>>,
    /// The account with which the initiator proved itself.
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

/// Results of the work on commands. Commands are identified by [`Task::serial`], because their tags are reused.
enum Event {
    /// There is memory for the data of a command.
    Room { tag: u32, serial: u64, room: Room },
    /// A command is done.
    Done { tag: u32, serial: u64, reply: Reply, room: Option<Room> },
    /// A reset is done, or the tasks of all initiators have ended.
    Reset { task_tag: u32, is_cold: bool },
}

/// Waits until ended tasks are over.
struct Waiting {
    tasks: Vec<u32>,
    then: Then,
}

enum Then {
    Answer(u32),
    LogOut(u32),
    Say(oneshot::Sender<()>),
    /// End the tasks of other initiators on a unit too.
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

/// The reason why a session ends.
enum End {
    /// The initiator has logged out, or must go.
    Over,
    /// The initiator broke the protocol.
    Wrong(&'static str),
    /// Others wait for memory that it holds and does not use.
    Stalled,
}

struct Session {
    shared: Arc<Shared>,
    begun: Begun,
    /// The sender, shared with the threads that execute its commands.
    sender: Arc<Sender>,
    tasks: HashMap<u32, Task>,
    /// Number of the next command.
    next_serial: u64,
    /// Commands that have not started, in order.
    queue: VecDeque<u32>,
    waiting: Vec<Waiting>,
    /// Tags of unanswered task management functions, and whether they are immediate.
    managing: Vec<(u32, bool)>,
    /// Functions that concern other sessions too. They end with this session, finished or not.
    resets: JoinSet<()>,
    memory: Arc<Memory>,
    /// The number of consecutive commands that each came when the answer to the one before had left.
    lone_commands: u32,
    /// The session's share of the workers, so that it cannot block all others.
    workers: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
    out: mpsc::UnboundedSender<Sent>,
    outbox: Arc<Outbox>,
    /// The rest of an answer to a text request, and the tag with which the initiator may ask for it.
    more_text: Option<(u32, Vec<u8>)>,
    next_transfer_tag: u32,
    /// Room for the next Data-Out, reused. It goes into no command and no answer.
    spare: Vec<u8>,
    /// Bytes of data that the initiator has sent.
    received_bytes: u64,
    /// Commands that arrived before earlier ones, and the bytes of their data.
    early: HashMap<u32, Incoming>,
    early_bytes: usize,
    ping: Option<u32>,
    /// The initiator is logging out: nothing more is taken from it.
    is_leaving: bool,
    /// The logout was answered.
    has_left: bool,
    /// The units that know this nexus, by LUN. Units come and go during a session.
    joined: HashMap<u16, Arc<LogicalUnit>>,
}

impl Session {
    fn join_all(&mut self) {
        let Some(target) = self.begun.target.clone() else { return };
        for (number, unit) in &*target.units.read() {
            self.join(*number, unit);
        }
    }

    /// Makes this nexus known to a unit. A unit that it replaces forgets the nexus.
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

    /// Returns how many more commands the initiator may send.
    fn window(&self) -> u32 {
        let commands = self.tasks.values().filter(|task| !task.is_immediate).count();
        let functions = self.managing.iter().filter(|(_, is_immediate)| !is_immediate).count();
        self.limits().window(self.begun.target.is_none()).saturating_sub((commands + functions) as u32)
    }

    /// Returns the last CmdSN that the initiator may send.
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
                // Event 1: log out within this many seconds.
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

    /// Handles a PDU.
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
            // On one connection nothing is overtaken, unless the initiator has lost count.
            return if self.early_bytes > EARLY_BYTES { Err(End::Wrong("too many commands arrived after a missing one")) } else { Ok(()) };
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

    /// Handles an immediate command. The window does not limit these, so their number is limited here.
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
            opcode::LOGIN => Err(End::Wrong("a login request came in a session that is already logged in")),
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
