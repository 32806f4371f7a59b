//! The task of a session: what it waits for, and how it ends.

use super::outbox::{Outbox, write_all};
use super::task::Task;
use super::work::Sender;
use super::{Begun, End, Session, Then, WORKERS};
use crate::memory::{Memory, Progress};
use crate::negotiation::{Parameters, RECEIVE_SEGMENT_BYTES};
use crate::pdu::Incoming;
use crate::scsi::MAX_TRANSFER_BYTES;
use crate::shared::Shared;
use crate::target::Control;
use crate::transport::read;
use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// PDUs taken in a row before anything else gets its turn.
const IN_ROW: usize = 64;

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
    let memory = Arc::new(Memory::new(limits.session_bytes.max(MAX_TRANSFER_BYTES), &shared.memory));
    let mut session = Session {
        shared,
        begun,
        sender,
        tasks: HashMap::new(),
        next_serial: 0,
        queue: VecDeque::new(),
        waiting: Vec::new(),
        managing: Vec::new(),
        resets: JoinSet::new(),
        memory,
        lone_commands: 0,
        workers: Arc::new(Semaphore::new(WORKERS)),
        events,
        out,
        outbox: outbox.clone(),
        more_text: None,
        next_transfer_tag: 1,
        spare: Vec::new(),
        received_bytes: 0,
        early: HashMap::new(),
        early_bytes: 0,
        ping: None,
        is_leaving: false,
        has_left: false,
        joined: HashMap::new(),
    };
    session.join_all();
    let mut quiet_since = Instant::now();
    let (is_discovery, discovery_end) = (session.begun.target.is_none(), quiet_since + limits.discovery);
    let mut alarm = pin!(sleep_until(quiet_since + limits.idle.min(limits.patience)));
    let mut progress = Progress::new(limits.patience, limits.session_bytes, quiet_since.into_std());
    let mut look = pin!(sleep_until(quiet_since + progress.interval()));
    let mut is_written = false;
    let mut in_row = 0;
    let end = loop {
        // The order matters: finished commands make room, and answers written together cost less. No branch starves the
        // others for long. Commands and answers are bounded; without room for answers no further PDUs are read; and
        // PDUs that need no answer are limited in a row.
        let has_room = outbox.has_room();
        let done = tokio::select! {
            biased;
            control = session.begun.control.recv() => session.told(control.unwrap_or(Control::Close)),
            Some(event) = happened.recv() => session.happened(event),
            (input, room, pdu) = &mut reading, if has_room && in_row < IN_ROW => {
                in_row += 1;
                quiet_since = Instant::now();
                session.spare = room;
                let done = match pdu {
                    Ok(pdu) => session.take(pdu),
                    Err(error) => {
                        tracing::debug!(initiator = who, %error, "the connection ended");
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
                    // Something arrived since it was set.
                    alarm.as_mut().reset(until);
                    continue;
                }
                quiet_since = now;
                alarm.as_mut().reset(now + limits.idle.min(limits.patience));
                // An initiator that takes what we send is there, however slow it is.
                if outbox.has_moved() { Ok(()) } else { session.ping() }
            }
            () = &mut look => {
                let now = Instant::now();
                look.as_mut().reset(now + progress.interval());
                let moved_bytes = session.received_bytes + outbox.taken_bytes();
                let is_too_slow = progress.is_too_slow(now.into_std(), moved_bytes, session.waits_since());
                if is_too_slow && session.memory.is_used() && session.memory.others_wait() { Err(End::Stalled) } else { Ok(()) }
            }
            () = tokio::task::yield_now(), if in_row >= IN_ROW => {
                in_row = 0;
                Ok(())
            }
        };
        if let Err(end) = done {
            break end;
        }
        if session.has_left {
            break End::Over;
        }
    };
    match end {
        End::Wrong(why) => tracing::warn!(initiator = who, "closed the connection: {why}"),
        End::Stalled => {
            tracing::warn!(
                initiator = who,
                "closed the connection: other sessions wait for memory that it has reserved, and it neither sends nor takes its data"
            );
        }
        End::Over => {}
    }
    // Running commands end before the nexus is gone and another may take its place.
    session.end_tasks(&|_| true);
    // A reset that has not begun never begins. Waiters for the end of this session's tasks still wait.
    session.waiting.retain(|waiting| matches!(waiting.then, Then::Say(_)));
    while !session.tasks.is_empty() {
        tokio::select! {
            Some(event) = happened.recv() => drop(session.happened(event)),
            () = &mut writing, if !is_written => is_written = true,
        }
    }
    session.resets.shutdown().await;
    session.leave();
    // Earlier answers go out, as far as the other side takes them. The session's place is free already.
    let _flushing = session.shared.sessions.flush();
    drop(session);
    if !is_written && !matches!(end, End::Stalled) {
        let _ = tokio::time::timeout(limits.patience, writing).await;
    }
}

/// Reads the next PDU. `room` is for the data of a command that arrived before. It is returned if unused.
async fn next<R: AsyncRead + Unpin>(mut input: R, parameters: Parameters, mut room: Vec<u8>) -> (R, Vec<u8>, std::io::Result<Incoming>) {
    let pdu = read(&mut input, &parameters, RECEIVE_SEGMENT_BYTES, &mut room).await;
    (input, room, pdu)
}

impl Session {
    /// Returns since when room has been held for data that the initiator has not sent or taken.
    fn waits_since(&self) -> Option<std::time::Instant> {
        let of_tasks = self.tasks.values().filter_map(Task::awaits_data_since).min();
        of_tasks.into_iter().chain(self.outbox.waits_since()).min()
    }
}
