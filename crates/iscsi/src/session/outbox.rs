//! What waits to be sent, and its way out.

use super::Session;
use super::memory::Room;
use crate::pdu::{NO_TAG, Outgoing, opcode};
use crate::transport::{Spelled, spell, write};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

/// Answers, but for data that was read, that may wait for the initiator to take them, bytes.
pub(super) const OUT_BYTES: usize = 1 << 20;
/// PDUs that are written with one call of the system, and whose memory is given back together.
const AT_ONCE: usize = 32;

/// What waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Bytes that nothing else bounds.
    bytes: AtomicUsize,
    /// Whether the initiator has taken something since somebody looked, the question whether it is there left aside.
    has_moved: AtomicBool,
    /// Bytes that it has taken, where data of commands were among them.
    taken_bytes: AtomicU64,
    /// Since when what is being written waits to be; none: nothing waits.
    waits_since: Mutex<Option<Instant>>,
    /// There is room again.
    pub(super) room: Notify,
}

impl Outbox {
    /// Whether there is room for answers.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < OUT_BYTES
    }

    /// Whether the initiator has taken something since this was asked.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }

    /// Bytes that the initiator has taken, where data of commands were among them.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Since when something waits for the initiator to take it.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        *self.waits_since.lock()
    }
}

/// A PDU on its way.
pub(super) struct Sent {
    pdu: Spelled,
    /// Whether it counts in [`Outbox::bytes`].
    is_counted: bool,
    /// Whether it only asks whether somebody is there: that the system takes it says nothing.
    is_ping: bool,
    since: Instant,
    _room: Option<Room>,
}

/// Writes what comes until nobody can send any more, or the connection is gone.
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

    /// Sends a PDU of a command. For its data there is room, which is given back when the last PDU has left, or else (`is_counted`) they count
    /// as what waits to be sent.
    pub(super) fn send_holding(&mut self, mut pdu: Outgoing, room: Option<Room>, is_counted: bool) {
        let last = self.last_command();
        let is_ping = pdu.header[0] == opcode::NOP_IN && pdu.header[16..20] == NO_TAG.to_be_bytes();
        pdu.finish(&mut self.begun.status_number, self.begun.expected_command, last);
        let pdu = spell(pdu, &self.begun.parameters);
        if is_counted {
            self.outbox.bytes.fetch_add(pdu.bytes(), Ordering::Relaxed);
        }
        // When the writer is gone the session ends.
        let _ = self.out.send(Sent { pdu, is_counted, is_ping, since: Instant::now(), _room: room });
    }
}
