//! A session in full feature phase: one connection, one task that has all its state, reads and writes; commands are done by the threads of the pool.
//! So a command that does not wait for anything is handed over twice, from the task to a thread and back; what is ready at a time is
//! taken in one go, and answered with one call of the system.
//!
//! # Invariants
//! - Memory: data of commands under way is at most [`Limits::session_bytes`], beside [`Limits::queue_depth`] first bursts, the PDUs being read, and answers of
//!   [`outbox::OUT_BYTES`] that the initiator does not take: then no more PDUs are read. While a command compares, its data are there twice.
//!   Beside that the server keeps some buffers of long commands for the next ones ([`crate::scsi::Buffers`]), of all sessions.
//!   An R2T is sent, and a read begun, only when there is room; what waits for room waits for commands of its own session only.
//! - Of commands that are delivered at once (immediate) there are few: their number is not bounded by the window.
//! - Commands outside of the window that the initiator was told are dropped, as RFC 7143 section 4.2.2.1 wants.
//! - A task that is ended by task management, or by a logout, has no effect after the answer: those that run are waited for, their responses are not sent.
//! - MaxCmdSN never goes back, as immediate commands have places of their own: it advances when a command comes, and again when it is over.

mod commands;
mod management;
mod outbox;
mod requests;

use crate::Shared;
use crate::chap::Account;
use crate::login::Visitor;
use crate::negotiation::{Parameters, RECEIVE_SEGMENT_BYTES};
use crate::pdu::{Incoming, NO_TAG, Outgoing, StatusNumber, opcode, reason};
use crate::scsi::{LogicalUnit, MAX_TRANSFER_BYTES, Nexus, Port, Reply};
use crate::target::{Control, Place, Target};
use crate::transport::read;
use commands::Sender;
use outbox::{Outbox, Sent, write_all};
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Bounds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands under way.
    pub queue_depth: u32,
    /// Data of commands under way, bytes: at least that of the longest command.
    pub session_bytes: u32,
    /// Commands of all sessions that are under way; to further ones the answer is TASK SET FULL.
    pub commands: usize,
    /// Sessions at a time, discovery sessions left aside.
    pub sessions: usize,
    /// Discovery sessions at a time: initiators prove nothing in them.
    pub discoveries: usize,
    /// Those of them from one address.
    pub discoveries_of_address: usize,
    /// A discovery session ends after so long.
    pub discovery: Duration,
    /// Connections in their login at a time.
    pub logins: usize,
    /// Those of them from one address.
    pub logins_of_address: usize,
    /// A connection on which nothing comes for so long is asked whether somebody is there.
    pub idle: Duration,
    /// For a login, and for an answer of an initiator that was asked.
    pub patience: Duration,
    /// How long initiators may take to log out when the server ends.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue_depth: 64,
            session_bytes: 32 << 20,
            commands: 8192,
            sessions: 256,
            discoveries: 32,
            discoveries_of_address: 8,
            discovery: Duration::from_secs(60),
            logins: 128,
            logins_of_address: 32,
            idle: Duration::from_secs(30),
            patience: Duration::from_secs(15),
            farewell: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// Commands that a session may have under way. In one for discovery there is nothing to gain by several.
    pub(crate) fn window(&self, is_discovery: bool) -> u32 {
        if is_discovery { 1 } else { self.queue_depth }
    }
}

/// Commands of one session that are worked on at a time.
const WORKERS: usize = 16;
/// Permits are of so many bytes.
const PERMIT_BYTES: u32 = 4096;
/// Immediate commands, which are beside those of the window, and task management functions that wait.
const IMMEDIATE: usize = 16;

/// A command under way, among those of all sessions.
pub(crate) struct CommandPlace(Arc<Shared>);

impl CommandPlace {
    fn enter(shared: &Arc<Shared>) -> Option<CommandPlace> {
        let is_full = shared.commands.fetch_add(1, Ordering::Relaxed) >= shared.limits.commands;
        let place = CommandPlace(shared.clone());
        (!is_full).then_some(place)
    }
}

impl Drop for CommandPlace {
    fn drop(&mut self) {
        self.0.commands.fetch_sub(1, Ordering::Relaxed);
    }
}

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

/// What comes back from the work on commands.
enum Event {
    /// There is memory for the data of a command.
    Room(u32, OwnedSemaphorePermit),
    /// A command is done.
    Done(u32, Reply, Option<OwnedSemaphorePermit>),
    /// A reset is done, or the tasks of all have ended.
    Reset { task_tag: u32, is_cold: bool },
}

/// A command under way.
struct Task {
    lun: u64,
    number: Option<u16>,
    unit: Option<Arc<LogicalUnit>>,
    cdb: Vec<u8>,
    is_read: bool,
    is_write: bool,
    is_ordered: bool,
    is_immediate: bool,
    expected_bytes: u32,
    /// What the command takes by its CDB.
    needed_bytes: u32,
    /// Data from the initiator, as far as wanted; and how many bytes of it have come, wanted or not.
    data: Vec<u8>,
    wanted_bytes: u32,
    received_bytes: u32,
    /// Data-Out without R2T that may still come.
    unsolicited: Option<Sequence>,
    requested_bytes: u32,
    requests: HashMap<u32, Sequence>,
    request_number: u32,
    permit: Option<OwnedSemaphorePermit>,
    is_running: bool,
    is_ended: bool,
    /// Its place among the commands of all sessions.
    place: Option<CommandPlace>,
    /// The same for the thread that does it.
    ended: Arc<AtomicBool>,
}

impl Task {
    /// Nobody wants its answer any more.
    fn end(&mut self) {
        self.is_ended = true;
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Data-Out PDUs that belong together.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    next_number: u32,
    offset: u32,
    end: u32,
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
}

struct Session {
    shared: Arc<Shared>,
    begun: Begun,
    /// The same, for the threads that do its commands.
    sender: Arc<Sender>,
    tasks: HashMap<u32, Task>,
    /// Commands that came and are not started, in their order.
    queue: VecDeque<u32>,
    waiting: Vec<Waiting>,
    memory: Arc<Semaphore>,
    /// Its share of those who work: one session does not keep all others waiting.
    workers: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
    out: mpsc::UnboundedSender<Sent>,
    outbox: Arc<Outbox>,
    /// The rest of an answer to a text request, and the tag under which the initiator may ask for it.
    more_text: Option<(u32, Vec<u8>)>,
    next_transfer_tag: u32,
    /// Room for the data of the next PDU: that of one before, unless it was kept.
    spare: Vec<u8>,
    /// Commands that came before others that were sent before them.
    early: HashMap<u32, Incoming>,
    ping: Option<u32>,
    /// The initiator wants to log out: nothing more is taken from it.
    is_leaving: bool,
    /// That was answered.
    has_left: bool,
    /// The units that know of this nexus, by LUN. Units come and go while a session lasts.
    joined: HashMap<u16, Arc<LogicalUnit>>,
}

/// Serves a session until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    begun: Begun,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin + Send + 'static,
) {
    let limits = shared.limits;
    let (parameters, who) = (begun.parameters, begun.visitor.initiator.clone());
    let (events, mut happened) = mpsc::unbounded_channel();
    let (out, outgoing) = mpsc::unbounded_channel();
    let outbox = Arc::new(Outbox::default());
    let mut writing = pin!(write_all(output, outgoing, outbox.clone()));
    let mut reading = pin!(next(input, parameters, Vec::new()));
    let sender = Arc::new(Sender::new(&shared, &begun));
    let memory = Arc::new(Semaphore::new((limits.session_bytes.max(MAX_TRANSFER_BYTES) / PERMIT_BYTES) as usize));
    let mut session = Session {
        shared,
        begun,
        sender,
        spare: Vec::new(),
        tasks: HashMap::new(),
        queue: VecDeque::new(),
        waiting: Vec::new(),
        memory,
        workers: Arc::new(Semaphore::new(WORKERS)),
        events,
        out,
        outbox: outbox.clone(),
        more_text: None,
        next_transfer_tag: 1,
        early: HashMap::new(),
        ping: None,
        is_leaving: false,
        has_left: false,
        joined: HashMap::new(),
    };
    session.join_all();
    let mut quiet_since = Instant::now();
    let (is_discovery, discovery_end) = (session.begun.target.is_none(), quiet_since + limits.discovery);
    let mut alarm = pin!(sleep_until(quiet_since + limits.idle.min(limits.patience)));
    let mut is_written = false;
    let end = loop {
        // In this order: what is over makes room, and what is written together costs less. None can keep the others waiting for long: commands and
        // answers are bounded, and without answers no further PDUs come.
        let has_room = outbox.has_room();
        let done = tokio::select! {
            biased;
            control = session.begun.control.recv() => session.told(control.unwrap_or(Control::Close)),
            Some(event) = happened.recv() => session.happened(event),
            (input, pdu) = &mut reading, if has_room => {
                quiet_since = Instant::now();
                let done = match pdu {
                    Ok(pdu) => session.take(pdu),
                    Err(error) => {
                        tracing::debug!(initiator = who, %error, "the connection ends");
                        Err(End::Over)
                    }
                };
                reading.set(next(input, parameters, std::mem::take(&mut session.spare)));
                done
            }
            () = &mut writing => {
                is_written = true;
                Err(End::Over)
            }
            () = outbox.room.notified(), if !has_room => Ok(()),
            () = sleep_until(discovery_end), if is_discovery => Err(End::Over),
            () = &mut alarm => {
                let now = Instant::now();
                let until = quiet_since + if session.ping.is_some() { limits.patience } else { limits.idle };
                if now < until {
                    // Something came since it was set.
                    alarm.as_mut().reset(until);
                    continue;
                }
                quiet_since = now;
                alarm.as_mut().reset(now + limits.idle.min(limits.patience));
                // Who takes what we send is there, however slowly.
                if outbox.has_moved() { Ok(()) } else { session.ping() }
            }
        };
        if let Err(end) = done {
            break end;
        }
        if session.has_left {
            break End::Over;
        }
    };
    if let End::Wrong(why) = end {
        tracing::warn!(initiator = who, "the connection is closed: {why}");
    }
    // What runs ends before the nexus is gone and somebody else may take its place.
    session.end_tasks(&|_| true);
    session.memory.close();
    while !session.tasks.is_empty() {
        tokio::select! {
            Some(event) = happened.recv() => drop(session.happened(event)),
            () = &mut writing, if !is_written => is_written = true,
        }
    }
    session.leave();
    // What was answered before goes out, as far as the other side takes it.
    drop(session);
    if !is_written {
        let _ = tokio::time::timeout(limits.patience, writing).await;
    }
}

/// Reads the next PDU, its data into `room`.
async fn next<R: AsyncRead + Unpin>(mut input: R, parameters: Parameters, room: Vec<u8>) -> (R, std::io::Result<Incoming>) {
    let pdu = read(&mut input, &parameters, RECEIVE_SEGMENT_BYTES, room).await;
    (input, pdu)
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
        let taken = self.tasks.values().filter(|task| !task.is_immediate).count();
        self.limits().window(self.begun.target.is_none()).saturating_sub(taken as u32)
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
            self.spare = pdu.data;
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
            if pdu.data.len() > self.begun.parameters.first_burst_bytes as usize {
                return Err(End::Wrong("more data came with a command than was agreed on"));
            }
            self.early.insert(pdu.header.command_number(), pdu);
            return Ok(());
        }
        let mut next = Some(pdu);
        while let Some(pdu) = next.filter(|_| !self.is_leaving) {
            self.begun.expected_command = self.begun.expected_command.wrapping_add(1);
            self.command(pdu)?;
            next = self.early.remove(&self.begun.expected_command);
        }
        Ok(())
    }

    /// A command that the window does not bound: of those that stay, there are few.
    fn immediate(&mut self, pdu: Incoming) -> Result<(), End> {
        let is_full = match pdu.header.opcode() {
            opcode::SCSI_COMMAND => self.tasks.values().filter(|task| task.is_immediate).count() >= IMMEDIATE,
            opcode::TASK_MANAGEMENT => self.waiting.len() >= IMMEDIATE,
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
