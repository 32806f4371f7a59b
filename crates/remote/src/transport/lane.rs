//! A channel as its session sees it: what waits in both directions, and how much may.
//!
//! Each direction has a window in bytes. A message or part costs its length and [`OVERHEAD_BYTES`].
//!
//! Invariants:
//! * Receiving: `granted` + queued + `due` = `window`. Consuming turns queued bytes into due ones; a credit frame turns
//!   due bytes into granted ones. The window belongs to the session's share of the budget.
//! * A credit is due once a quarter of the window is, and a sender needs at most [`LEAST_PART_BYTES`] of it. So a
//!   sender that waits gets credit as soon as the receiver consumes.
//! * Sending: `retained` (waiting or not acknowledged) <= `allowance`, whatever the peer grants.

use super::budget::{MOST_WINDOW_BYTES, Share};
use super::channel::Message;
use super::error::{ChannelError, codes};
use super::frame::{Frame, OVERHEAD_BYTES, Violation, cost, encode_reason, kinds};
use parking_lot::Condvar;
use std::collections::VecDeque;
use std::sync::Arc;

/// A part is sent only if it can be so long, or if it is all that is left.
pub(super) const LEAST_PART_BYTES: u64 = 16 << 10;
/// More credit than this is a violation.
const MOST_CREDIT_BYTES: u64 = 1 << 32;

/// Wakes the threads that use a channel. Both wait with the lock of the session.
#[derive(Default)]
pub(super) struct Signals {
    pub(super) sendable: Condvar,
    pub(super) receivable: Condvar,
}

/// What arrived and waits for the receiver.
struct Piece {
    kind: u8,
    payload: Vec<u8>,
}

/// What a sender gets to know.
pub(super) enum Room {
    /// All that is left of the message can be sent.
    All,
    /// A part of so many bytes can be sent.
    Part(usize),
    /// It must wait.
    Wait,
}

/// What a receiver gets to know.
pub(super) enum Next {
    Message(Message),
    Finished,
    Wait,
}

/// A channel of a session.
pub(super) struct Lane {
    pub(super) signals: Arc<Signals>,
    /// So much of the first windows is of the guarantee of the session.
    pub(super) guaranteed: u64,
    /// The first window. None is ever smaller.
    least: u64,
    /// A channel handle exists.
    pub(super) is_held: bool,
    /// The session will look for frames here.
    pub(super) is_ready: bool,

    /// Frames that have no number yet.
    pub(super) outgoing: VecDeque<Frame>,
    /// Bytes that the peer lets this end send.
    credit: u64,
    /// Bytes that wait or are not acknowledged.
    retained: u64,
    /// The bound of `retained`.
    allowance: u64,
    /// A part was sent, but not the last one.
    is_within: bool,
    finish_queued: bool,
    finish_taken: bool,
    pub(super) send_error: Option<ChannelError>,

    incoming: VecDeque<Piece>,
    /// The parts of a message that were consumed.
    partial: Vec<u8>,
    /// The bytes of a message whose last part has not arrived.
    arriving: usize,
    granted: u64,
    window: u64,
    due: u64,
    /// Bytes consumed since the window changed.
    consumed: u64,
    peer_finished: bool,
    receive_error: Option<ChannelError>,
}

impl Lane {
    pub(super) fn new(guaranteed: u64, window: u64) -> Lane {
        Lane {
            signals: Arc::default(),
            guaranteed,
            least: window,
            is_held: true,
            is_ready: false,
            outgoing: VecDeque::new(),
            credit: window,
            retained: 0,
            allowance: window,
            is_within: false,
            finish_queued: false,
            finish_taken: false,
            send_error: None,
            incoming: VecDeque::new(),
            partial: Vec::new(),
            arriving: 0,
            granted: window,
            window,
            due: 0,
            consumed: 0,
            peer_finished: false,
            receive_error: None,
        }
    }

    /// Returns what the lane takes of the budget.
    pub(super) fn windows(&self) -> u64 {
        self.window + self.allowance
    }

    /// Returns how many waiting frames have no cost.
    pub(super) fn small(&self) -> usize {
        self.outgoing.iter().filter(|frame| frame.cost() == 0).count()
    }

    /// Returns what the peer may still send.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns whether something may still be sent or received.
    pub(super) fn is_open(&self) -> bool {
        let cancelled = self.send_error.is_some() && self.receive_error.is_some() && self.outgoing.is_empty();
        !self.is_finished() && !cancelled
    }

    /// Returns whether the channel counts for the limit of a session: also while its service has not noticed that it
    /// was cancelled, because that takes a thread.
    pub(super) fn counts(&self) -> bool {
        !self.is_finished() && (self.is_open() || self.is_held)
    }

    fn is_finished(&self) -> bool {
        self.finish_taken && self.peer_finished
    }

    /// Returns whether the session can forget the channel.
    pub(super) fn is_over(&self) -> bool {
        let sent = self.send_error.is_some() || self.finish_taken;
        let received = self.receive_error.is_some() || self.peer_finished;
        !self.is_held && self.outgoing.is_empty() && self.retained == 0 && sent && received
    }

    // Sending.

    /// Returns how much of a message with `left` bytes can be sent now.
    pub(super) fn room(&mut self, left: usize, share: &mut Share) -> Result<Room, ChannelError> {
        loop {
            if let Some(error) = &self.send_error {
                return Err(error.clone());
            }
            if self.finish_queued {
                return Err(ChannelError::Finished);
            }
            let allowed = self.allowance - self.retained;
            let room = self.credit.min(allowed);
            if room >= cost(left) {
                return Ok(Room::All);
            }
            if allowed < self.credit && self.allowance < MOST_WINDOW_BYTES {
                let more = self.allowance.min(MOST_WINDOW_BYTES - self.allowance);
                if share.grow(more) {
                    self.allowance += more;
                    continue;
                }
            }
            let part = room.saturating_sub(OVERHEAD_BYTES);
            return Ok(if part >= LEAST_PART_BYTES { Room::Part(part as usize) } else { Room::Wait });
        }
    }

    /// Queues a message or a part.
    pub(super) fn send(&mut self, frame: Frame) {
        let cost = frame.cost();
        self.credit -= cost;
        self.retained += cost;
        self.is_within = frame.kind == kinds::PART;
        self.outgoing.push_back(frame);
    }

    /// Adds what the peer grants.
    pub(super) fn credit(&mut self, bytes: u64) -> Result<(), Violation> {
        self.credit += bytes;
        if self.credit > MOST_CREDIT_BYTES {
            return Err(Violation::new(codes::WINDOW, "a channel has more credit than 4 GiB"));
        }
        self.signals.sendable.notify_all();
        Ok(())
    }

    /// Notes that a frame got its number.
    pub(super) fn taken(&mut self, kind: u8) {
        if kind == kinds::FINISH {
            self.finish_taken = true;
        }
    }

    /// Notes that the peer has a message, or that it is dropped.
    pub(super) fn release(&mut self, cost: u64, share: &mut Share) {
        self.retained -= cost;
        while self.allowance > self.least && self.retained <= self.allowance / 2 && share.is_crowded() {
            let less = (self.allowance / 2).min(self.allowance - self.least);
            self.allowance -= less;
            share.shrink(less);
        }
        self.signals.sendable.notify_all();
    }

    /// Queues the end of sending. Returns `false` if that is impossible within a message: then cancel.
    pub(super) fn finish(&mut self, id: u32) -> bool {
        if self.send_error.is_some() || self.finish_queued {
            return true;
        }
        if self.is_within {
            return false;
        }
        self.finish_queued = true;
        self.outgoing.push_back(Frame::new(kinds::FINISH, id, Vec::new()));
        self.signals.sendable.notify_all();
        true
    }

    // Both directions.

    /// Drops both directions and tells the peer.
    pub(super) fn cancel(&mut self, id: u32, code: u16, text: &str) {
        let over = |finished: bool, error: &Option<ChannelError>| finished || error.is_some();
        if over(self.finish_taken, &self.send_error) && over(self.peer_finished, &self.receive_error) {
            self.drop_incoming();
            return;
        }
        let error = ChannelError::Cancelled { code, text: text.to_owned() };
        self.drop_outgoing();
        self.outgoing.push_back(Frame::new(kinds::CANCEL, id, encode_reason(code, text)));
        self.send_error.get_or_insert_with(|| error.clone());
        self.receive_error.get_or_insert(error);
        self.drop_incoming();
        self.wake();
    }

    /// Notes that no handle is left: cancels what is not finished.
    pub(super) fn abandon(&mut self, id: u32) {
        self.is_held = false;
        if self.send_error.is_some() || !self.finish_queued {
            self.cancel(id, codes::CANCELLED, "the other end dropped the channel");
        } else if !self.peer_finished && self.receive_error.is_none() {
            // What was sent still arrives, and then the peer learns that nobody reads its messages.
            self.outgoing.push_back(Frame::new(kinds::CANCEL, id, encode_reason(codes::DONE, "")));
            self.receive_error = Some(ChannelError::Closed);
        }
        self.drop_incoming();
    }

    /// Notes that the peer cancelled. What it finished before can still be received.
    pub(super) fn cancelled(&mut self, code: u16, text: String) {
        let error = ChannelError::Cancelled { code, text };
        self.drop_outgoing();
        self.send_error.get_or_insert_with(|| error.clone());
        if !self.peer_finished {
            self.receive_error.get_or_insert(error);
            self.drop_incoming();
        }
        self.wake();
    }

    /// Notes that the session ended.
    pub(super) fn fail(&mut self, error: &ChannelError) {
        self.outgoing = VecDeque::new();
        self.retained = 0;
        self.send_error.get_or_insert_with(|| error.clone());
        if !self.peer_finished {
            self.receive_error.get_or_insert_with(|| error.clone());
            self.drop_incoming();
        }
        self.wake();
    }

    /// Drops the messages that have no number. The opening of the channel must still be sent.
    fn drop_outgoing(&mut self) {
        let dropped: u64 = self.outgoing.iter().map(Frame::cost).sum();
        self.retained -= dropped;
        self.outgoing.retain(|frame| frame.kind == kinds::OPEN);
    }

    fn drop_incoming(&mut self) {
        self.incoming = VecDeque::new();
        self.partial = Vec::new();
    }

    fn wake(&self) {
        self.signals.sendable.notify_all();
        self.signals.receivable.notify_all();
    }

    // Receiving.

    /// Checks a message or part before memory is allocated for it.
    pub(super) fn check(&self, length: usize, payload_limit: usize) -> Result<(), Violation> {
        if cost(length) > self.granted {
            return Err(Violation::new(codes::WINDOW, "a channel exceeds its window"));
        }
        if self.arriving + length > payload_limit {
            return Err(Violation::new(codes::FRAME, "the parts of a message exceed the limit of payloads"));
        }
        if self.peer_finished {
            return Err(Violation::new(codes::CHANNEL, "a message follows the end of its channel"));
        }
        Ok(())
    }

    /// Takes in a message or part that was checked.
    pub(super) fn arrived(&mut self, kind: u8, payload: Vec<u8>) {
        self.granted -= cost(payload.len());
        self.arriving = if kind == kinds::PART { self.arriving + payload.len() } else { 0 };
        if self.receive_error.is_none() {
            self.incoming.push_back(Piece { kind, payload });
            self.signals.receivable.notify_one();
        }
    }

    /// Notes that the peer sends nothing more.
    pub(super) fn finished(&mut self) -> Result<(), Violation> {
        if self.arriving > 0 || self.peer_finished {
            return Err(Violation::new(codes::CHANNEL, "a channel ends within a message, or twice"));
        }
        self.peer_finished = true;
        self.signals.receivable.notify_all();
        Ok(())
    }

    /// Returns the next message.
    pub(super) fn next(&mut self, share: &mut Share) -> Result<Next, ChannelError> {
        while let Some(piece) = self.incoming.pop_front() {
            self.consume(cost(piece.payload.len()), share);
            if self.partial.is_empty() {
                self.partial = piece.payload;
            } else {
                self.partial.extend_from_slice(&piece.payload);
            }
            if piece.kind != kinds::PART {
                let payload = std::mem::take(&mut self.partial);
                return Ok(Next::Message(Message { kind: piece.kind & !kinds::MESSAGE, payload }));
            }
        }
        match &self.receive_error {
            Some(error) => Err(error.clone()),
            None if self.peer_finished => Ok(Next::Finished),
            None => Ok(Next::Wait),
        }
    }

    /// Frees a part of the window. It grows if the receiver waits for the link, and shrinks if others need memory.
    fn consume(&mut self, cost: u64, share: &mut Share) {
        self.due += cost;
        self.consumed += cost;
        if self.window > self.least && share.is_crowded() {
            let withheld = self.due.min(self.window - self.least);
            self.due -= withheld;
            self.window -= withheld;
            share.shrink(withheld);
        } else if self.incoming.is_empty() && self.consumed >= self.window && self.window < MOST_WINDOW_BYTES {
            let more = self.window.min(MOST_WINDOW_BYTES - self.window);
            if share.grow(more) {
                self.window += more;
                self.due += more;
            }
            self.consumed = 0;
        }
    }

    /// Returns the bytes for a credit frame, if one is due.
    pub(super) fn take_due(&mut self) -> Option<u32> {
        if self.due < self.window / 4 || self.peer_finished || self.receive_error.is_some() {
            return None;
        }
        let due = std::mem::take(&mut self.due);
        self.granted += due;
        Some(due as u32)
    }
}
