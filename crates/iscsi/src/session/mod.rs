//! A session in full feature phase: one connection, one task that has all its state, one that reads, one that writes.
//!
//! # Invariants
//! - Memory: data of commands under way is at most [`Limits::session_bytes`], beside [`Limits::queue_depth`] first bursts and the PDUs being read.
//!   An R2T is sent, and a read begun, only when there is room; what waits for room waits for commands of its own session only.
//! - Commands outside of the window that the initiator was told are dropped, as RFC 7143 section 4.2.2.1 wants.
//! - A task that is ended by task management has no effect after the answer: those that run are waited for, their responses are not sent.

mod commands;
mod management;
mod requests;

use crate::Shared;
use crate::login::Visitor;
use crate::negotiation::{Parameters, RECEIVE_SEGMENT_BYTES};
use crate::pdu::{Incoming, NO_TAG, Outgoing, StatusNumber, opcode, reason};
use crate::scsi::{LogicalUnit, MAX_TRANSFER_BYTES, Nexus, Port, Reply};
use crate::target::{Control, Place, Target};
use crate::transport::{read, spell};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Bounds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands under way.
    pub queue_depth: u32,
    /// Data of commands under way, bytes: at least that of the longest command.
    pub session_bytes: u32,
    /// Sessions at a time.
    pub sessions: usize,
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
            sessions: 256,
            logins: 128,
            logins_of_address: 32,
            idle: Duration::from_secs(30),
            patience: Duration::from_secs(15),
            farewell: Duration::from_secs(5),
        }
    }
}

/// Permits are of so many bytes.
const PERMIT_BYTES: u32 = 4096;
/// PDUs that were read and wait.
const READ_AHEAD: usize = 4;

/// What a login brought.
pub(crate) struct Begun {
    pub(crate) parameters: Parameters,
    pub(crate) target: Option<Arc<Target>>,
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
    /// A reset is done.
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
    Say(oneshot::Sender<()>),
    Reset { task_tag: u32, lun: Option<u16>, is_cold: bool },
}

/// Why a session ends.
enum End {
    /// The initiator has logged out, or is to be gone.
    Over,
    /// What it sends cannot be.
    Wrong(&'static str),
}

type Bytes = (Vec<u8>, Option<OwnedSemaphorePermit>);

struct Session {
    shared: Arc<Shared>,
    begun: Begun,
    tasks: HashMap<u32, Task>,
    /// Commands that came and are not started, in their order.
    queue: VecDeque<u32>,
    waiting: Vec<Waiting>,
    memory: Arc<Semaphore>,
    events: mpsc::UnboundedSender<Event>,
    out: mpsc::UnboundedSender<Bytes>,
    next_transfer_tag: u32,
    /// Commands that came before others that were sent before them.
    early: HashMap<u32, Incoming>,
    ping: Option<u32>,
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
    let (pdus, mut incoming) = mpsc::channel(READ_AHEAD);
    let (events, mut happened) = mpsc::unbounded_channel();
    let (out, outgoing) = mpsc::unbounded_channel();
    let reader = tokio::spawn(read_all(input, parameters, pdus));
    let writer = tokio::spawn(write_all(output, outgoing));
    let memory = Arc::new(Semaphore::new((limits.session_bytes.max(2 * MAX_TRANSFER_BYTES) / PERMIT_BYTES) as usize));
    let mut session = Session {
        shared,
        begun,
        tasks: HashMap::new(),
        queue: VecDeque::new(),
        waiting: Vec::new(),
        memory,
        events,
        out,
        next_transfer_tag: 1,
        early: HashMap::new(),
        ping: None,
        joined: HashMap::new(),
    };
    session.join_all();
    let mut quiet_since = tokio::time::Instant::now();
    let end = loop {
        let patience = if session.ping.is_some() { limits.patience } else { limits.idle };
        let done = tokio::select! {
            pdu = incoming.recv() => {
                quiet_since = tokio::time::Instant::now();
                match pdu {
                    Some(Ok(pdu)) => session.take(pdu),
                    Some(Err(error)) => {
                        tracing::debug!(initiator = who, %error, "the connection ends");
                        Err(End::Over)
                    }
                    None => Err(End::Over),
                }
            }
            event = happened.recv() => match event {
                Some(event) => session.happened(event),
                None => Err(End::Over),
            },
            control = session.begun.control.recv() => session.told(control.unwrap_or(Control::Close)),
            () = tokio::time::sleep_until(quiet_since + patience) => {
                quiet_since = tokio::time::Instant::now();
                session.ping()
            }
        };
        if let Err(end) = done {
            break end;
        }
    };
    if let End::Wrong(why) = end {
        tracing::warn!(initiator = who, "the connection is closed: {why}");
    }
    reader.abort();
    // What runs ends before the nexus is gone and somebody else may take its place.
    session.memory.close();
    session.end_tasks(&|_| true);
    while !session.tasks.is_empty()
        && let Some(event) = happened.recv().await
    {
        let _ = session.happened(event);
    }
    session.leave();
    // What was answered before goes out, as far as the other side takes it.
    drop(session);
    let abort = writer.abort_handle();
    if tokio::time::timeout(limits.patience, writer).await.is_err() {
        abort.abort();
    }
}

async fn read_all(mut input: impl AsyncRead + Unpin, parameters: Parameters, pdus: mpsc::Sender<std::io::Result<Incoming>>) {
    loop {
        let pdu = read(&mut input, &parameters, RECEIVE_SEGMENT_BYTES).await;
        let is_end = pdu.is_err();
        if pdus.send(pdu).await.is_err() || is_end {
            return;
        }
    }
}

async fn write_all(mut output: impl AsyncWrite + Unpin, mut outgoing: mpsc::UnboundedReceiver<Bytes>) {
    while let Some((bytes, _permit)) = outgoing.recv().await {
        if output.write_all(&bytes).await.is_err() {
            return;
        }
        if outgoing.is_empty() && output.flush().await.is_err() {
            return;
        }
    }
    let _ = output.shutdown().await;
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

    /// Last CmdSN that the initiator may send.
    fn last_command(&self) -> u32 {
        let room = self.limits().queue_depth.saturating_sub(self.tasks.len() as u32);
        self.begun.expected_command.wrapping_add(room).wrapping_sub(1)
    }

    fn send(&mut self, pdu: Outgoing) {
        self.send_holding(pdu, None);
    }

    fn send_holding(&mut self, mut pdu: Outgoing, permit: Option<OwnedSemaphorePermit>) {
        let last = self.last_command();
        pdu.finish(&mut self.begun.status_number, self.begun.expected_command, last);
        // When the writer is gone the connection is, and the reader says so.
        let _ = self.out.send((spell(pdu, &self.begun.parameters), permit));
    }

    fn reject(&mut self, why: u8, of: &Incoming) {
        let mut pdu = Outgoing::new(opcode::REJECT, 0x80, NO_TAG, StatusNumber::Own);
        pdu.header[2] = why;
        pdu.data = of.header.0.to_vec();
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
                pdu.put(42, &(self.limits().patience.as_secs() as u16).to_be_bytes());
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
        let code = pdu.header.opcode();
        if code == opcode::DATA_OUT {
            return self.data_out(&pdu);
        }
        if code == opcode::SNACK {
            self.reject(reason::COMMAND_NOT_SUPPORTED, &pdu);
            return Ok(());
        }
        if pdu.header.is_immediate() {
            return self.command(pdu);
        }
        let ahead = pdu.header.command_number().wrapping_sub(self.begun.expected_command);
        let window = self.last_command().wrapping_sub(self.begun.expected_command).wrapping_add(1);
        if ahead >= window || window > self.limits().queue_depth {
            return Ok(());
        }
        if ahead > 0 {
            self.early.insert(pdu.header.command_number(), pdu);
            return Ok(());
        }
        let mut next = Some(pdu);
        while let Some(pdu) = next {
            self.begun.expected_command = self.begun.expected_command.wrapping_add(1);
            self.command(pdu)?;
            next = self.early.remove(&self.begun.expected_command);
        }
        Ok(())
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
            opcode::LOGOUT => self.logout(&pdu),
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
