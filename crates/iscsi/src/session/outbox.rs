//! What waits to be sent, and its way out.

use super::Session;
use crate::pdu::Outgoing;
use crate::transport::{Spelled, spell, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

/// Answers, but for data that was read, that may wait for the initiator to take them, bytes.
pub(super) const OUT_BYTES: usize = 1 << 20;
/// PDUs that are written with one call of the system, and whose memory is given back together.
const AT_ONCE: usize = 32;

/// What waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Bytes that nothing else bounds.
    bytes: AtomicUsize,
    /// Whether the initiator has taken something since somebody looked.
    has_moved: AtomicBool,
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
}

/// A PDU on its way.
pub(super) struct Sent {
    pdu: Spelled,
    /// Whether it counts in [`Outbox::bytes`].
    is_counted: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Writes what comes until nobody can send any more, or the connection is gone.
pub(super) async fn write_all(mut output: impl AsyncWrite + Unpin, mut outgoing: mpsc::UnboundedReceiver<Sent>, outbox: Arc<Outbox>) {
    let mut batch = Vec::new();
    while outgoing.recv_many(&mut batch, AT_ONCE).await > 0 {
        if write(&mut output, batch.iter().map(|sent| &sent.pdu), || outbox.has_moved.store(true, Ordering::Relaxed)).await.is_err() {
            break;
        }
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

    /// Sends a PDU of a command. Its data counts against the session's memory by a permit, which is given back when the last PDU has left, or else (`is_counted`)
    /// as what waits to be sent.
    pub(super) fn send_holding(&mut self, mut pdu: Outgoing, permit: Option<OwnedSemaphorePermit>, is_counted: bool) {
        let last = self.last_command();
        pdu.finish(&mut self.begun.status_number, self.begun.expected_command, last);
        let pdu = spell(pdu, &self.begun.parameters);
        if is_counted {
            self.outbox.bytes.fetch_add(pdu.bytes(), Ordering::Relaxed);
        }
        // When the writer is gone the session ends.
        let _ = self.out.send(Sent { pdu, is_counted, _permit: permit });
    }
}
