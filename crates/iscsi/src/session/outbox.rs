//! PDUs waiting to be sent, and the task that sends them.

use super::Session;
use crate::memory::Room;
use crate::pdu::{NO_TAG, Outgoing, opcode};
use crate::transport::{Spelled, spell, write};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

/// Bytes of answers that may wait for the initiator to take them, without the data of reads.
pub(super) const OUT_BYTES: usize = 1 << 20;
/// PDUs written with one system call, whose memory is released together.
const AT_ONCE: usize = 32;

/// The PDUs waiting to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// PDUs that have not left yet.
    pdus: AtomicUsize,
    /// Bytes that no other limit covers.
    bytes: AtomicUsize,
    /// Whether the initiator has taken anything since the last check, except our question whether it is there.
    has_moved: AtomicBool,
    /// Bytes that it has taken, as far as they included data of commands.
    taken_bytes: AtomicU64,
    /// Since when the current PDU has been waiting to be written. `None`: nothing waits.
    waits_since: Mutex<Option<Instant>>,
    /// Signalled when there is room again.
    pub(super) room: Notify,
}

impl Outbox {
    /// Returns whether everything has left.
    pub(super) fn is_empty(&self) -> bool {
        self.pdus.load(Ordering::Relaxed) == 0
    }

    /// Whether there is room for answers.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < OUT_BYTES
    }

    /// Returns whether the initiator has taken anything since the last call.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }

    /// Returns the bytes that the initiator has taken, as far as they included data of commands.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Returns since when something has been waiting for the initiator to take it.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        *self.waits_since.lock()
    }
}

/// A PDU on its way.
pub(super) struct Sent {
    pdu: Spelled,
    /// Whether it counts in [`Outbox::bytes`].
    is_counted: bool,
    /// Whether it only asks whether the initiator is there. Then it says nothing that the system takes it.
    is_ping: bool,
    since: Instant,
    _room: Option<Room>,
}

/// Writes PDUs as they come until all senders are gone or the connection is gone.
pub(super) async fn write_all(mut output: impl AsyncWrite + Unpin, mut outgoing: mpsc::UnboundedReceiver<Sent>, outbox: Arc<Outbox>) {
    let mut batch = Vec::new();
    while outgoing.recv_many(&mut batch, AT_ONCE).await > 0 {
        *outbox.waits_since.lock() = batch.first().map(|sent: &Sent| sent.since);
        let says_something = batch.iter().any(|sent| !sent.is_ping);
        let has_data = batch.iter().any(|sent| !sent.is_counted);
        let moved = |bytes: usize| {
            if has_data {
                outbox.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            if says_something {
                outbox.has_moved.store(true, Ordering::Relaxed);
            }
        };
        if write(&mut output, batch.iter().map(|sent| &sent.pdu), moved).await.is_err() {
            break;
        }
        *outbox.waits_since.lock() = None;
        let counted: usize = batch.iter().filter(|sent| sent.is_counted).map(|sent| sent.pdu.bytes()).sum();
        outbox.bytes.fetch_sub(counted, Ordering::Relaxed);
        outbox.pdus.fetch_sub(batch.len(), Ordering::Relaxed);
        if counted > 0 {
            outbox.room.notify_one();
        }
        batch.clear();
    }
    let _ = output.shutdown().await;
}

impl Session {
    pub(super) fn send(&mut self, pdu: Outgoing) {
        self.send_holding(pdu, None, true);
    }

    /// Sends a PDU of a command. The room of its data is released when the last PDU has left. Without room
    /// (`is_counted`), the data counts as waiting to be sent.
    pub(super) fn send_holding(&mut self, mut pdu: Outgoing, room: Option<Room>, is_counted: bool) {
        let last = self.last_command();
        let is_ping = pdu.header[0] == opcode::NOP_IN && pdu.header[16..20] == NO_TAG.to_be_bytes();
        pdu.finish(&mut self.begun.status_number, self.begun.expected_command, last);
        let pdu = spell(pdu, &self.begun.parameters);
        if is_counted {
            self.outbox.bytes.fetch_add(pdu.bytes(), Ordering::Relaxed);
        }
        self.outbox.pdus.fetch_add(1, Ordering::Relaxed);
        // If the writer is gone, the session ends.
        let _ = self.out.send(Sent { pdu, is_counted, is_ping, since: Instant::now(), _room: room });
    }
}
