//! A session: its channels, the frames between them and the present link, and its end.
//!
//! Threads that use channels and the tasks that pump a link meet here, under one lock.
//!
//! Invariants:
//! * Only the link of the newest generation takes frames or brings them.
//! * A frame gets its number when a link takes it. Channels take turns, so a channel with much to send delays no other.
//! * A client gives channels rising numbers. A frame for a closed channel is dropped, up to what was under way.

use super::budget::Share;
use super::channel::Channel;
use super::error::{ChannelError, codes};
use super::frame::{Frame, Header, Violation, decode_ack, decode_credit, decode_reason, encode_reason, is_data, is_numbered, kinds};
use super::lane::{Lane, Next, Room};
use super::sequence::{ImpossibleCount, Sequence};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// An acknowledgement follows after so many bytes, or at the next step of the clock.
pub(super) const ACK_BYTES: u64 = 256 << 10;
/// A link takes frames in batches of about so many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// The most frames of a batch.
const BATCH_FRAMES: usize = 512;
/// Frames without a cost that are kept until they are acknowledged. A client opens channels up to half of it.
const MOST_SMALL_FRAMES: usize = 4096;
/// What may still come for a channel that is closed, beside what its window allows.
const LATE_BYTES: u64 = 16 << 10;
/// What a late frame counts beside its payload.
const LATE_FRAME_BYTES: u64 = 64;

/// What both ends agreed on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) payload_bytes: usize,
    pub(super) window_bytes: u64,
    pub(super) channels: usize,
    pub(super) keep_alive: Duration,
    /// The peer may open channels.
    pub(super) is_server: bool,
}

impl Settings {
    /// Returns after how long a silence a link is given up.
    pub(super) fn silence(&self) -> Duration {
        self.keep_alive * 3
    }
}

/// One end of a session.
pub(super) struct Core {
    state: Mutex<State>,
    settings: Settings,
    /// Wakes the writer of the present link.
    pub(super) outbound: Notify,
    /// `true` once the session ended.
    ended: watch::Sender<bool>,
    /// The generation of the present link.
    newest: watch::Sender<u64>,
    /// Wakes [`Core::drain`].
    drained: parking_lot::Condvar,
    /// Bytes of frames, on all links.
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
}

struct State {
    lanes: HashMap<u32, Lane>,
    /// Channels that have frames to send.
    ready: VecDeque<u32>,
    /// Frames that go first: credits, and cancellations of channels that never existed.
    urgent: VecDeque<Frame>,
    sequence: Sequence<Frame>,
    /// Frames without a cost that wait or are kept.
    small: usize,
    /// Bytes that arrived since the last acknowledgement.
    unacknowledged: u64,
    generation: u64,
    is_linked: bool,
    /// The channel that was opened last.
    newest: u32,
    /// What may still arrive for channels that are closed.
    late: u64,
    share: Share,
    ended: Option<ChannelError>,
    /// The payload of the frame that ends the session.
    notice: Option<Vec<u8>>,
}

/// What a link should write.
pub(super) enum Taken {
    Frames {
        frames: Vec<Frame>,
        ack: Option<u64>,
        is_owing: bool,
    },
    /// The session ended. The payload is for the peer.
    End(Option<Vec<u8>>),
    /// There is a newer link.
    Stale,
}

/// What a frame led to.
pub(super) enum Arrival {
    Nothing,
    Opened { service: u8, opening: Vec<u8>, channel: Channel },
    Ended,
    Stale,
}

impl Core {
    pub(super) fn new(settings: Settings, share: Share) -> Arc<Core> {
        let state = State {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            urgent: VecDeque::new(),
            sequence: Sequence::default(),
            small: 0,
            unacknowledged: 0,
            generation: 0,
            is_linked: false,
            newest: 0,
            late: LATE_BYTES,
            share,
            ended: None,
            notice: None,
        };
        Arc::new(Core {
            state: Mutex::new(state),
            settings,
            outbound: Notify::new(),
            ended: watch::Sender::new(false),
            newest: watch::Sender::new(0),
            drained: parking_lot::Condvar::new(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    // The session.

    /// Begins a new link: the peer has `count` frames. Returns its generation and how many frames this end has.
    ///
    /// Errors: the count is impossible. Then the present link goes on.
    pub(super) fn attach(&self, count: u64) -> Result<(u64, u64), ImpossibleCount> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut forgotten = Vec::new();
        state.sequence.link(count, |frame| forgotten.push(frame))?;
        state.forget(&forgotten);
        state.generation += 1;
        state.is_linked = true;
        state.unacknowledged = 0;
        self.newest.send_replace(state.generation);
        self.outbound.notify_one();
        Ok((state.generation, state.sequence.received()))
    }

    /// Notes that a link broke. Returns whether the session is without a link now and goes on.
    pub(super) fn detach(&self, generation: u64) -> bool {
        let mut state = self.state.lock();
        if state.generation != generation {
            return false;
        }
        state.is_linked = false;
        state.ended.is_none()
    }

    /// Returns how many frames this end has.
    pub(super) fn received(&self) -> u64 {
        self.state.lock().sequence.received()
    }

    /// Returns whether this link is the present one, and broken.
    pub(super) fn is_abandoned(&self, generation: u64) -> bool {
        let state = self.state.lock();
        state.generation == generation && !state.is_linked && state.ended.is_none()
    }

    /// Returns whether there is a link.
    pub(super) fn is_linked(&self) -> bool {
        self.state.lock().is_linked
    }

    /// Returns how many channels are open.
    pub(super) fn channels(&self) -> usize {
        self.state.lock().lanes.values().filter(|lane| lane.is_open()).count()
    }

    /// Returns why the session ended.
    pub(super) fn ended(&self) -> Option<ChannelError> {
        self.state.lock().ended.clone()
    }

    /// Returns when the session ended.
    pub(super) async fn until_ended(&self) {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as `self`.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Returns when there is a newer link.
    pub(super) async fn until_superseded(&self, generation: u64) {
        let mut newest = self.newest.subscribe();
        // The sender lives as long as `self`.
        let _ = newest.wait_for(|newest| *newest > generation).await;
    }

    /// Ends the session. All channels report `error`; the peer gets the notice if there is a link.
    pub(super) fn end(&self, error: ChannelError, notice: Option<(u16, &str)>) {
        let mut state = self.state.lock();
        self.end_locked(&mut state, error, notice);
    }

    fn end_locked(&self, state: &mut State, error: ChannelError, notice: Option<(u16, &str)>) {
        if state.ended.is_some() {
            return;
        }
        state.notice = notice.map(|(code, text)| encode_reason(code, text));
        state.urgent = VecDeque::new();
        state.ready = VecDeque::new();
        state.sequence.clear();
        for lane in state.lanes.values_mut() {
            lane.fail(&error);
        }
        let ids: Vec<u32> = state.lanes.keys().copied().collect();
        ids.into_iter().for_each(|id| state.reap(id));
        state.ended = Some(error);
        self.ended.send_replace(true);
        self.drained.notify_all();
        self.outbound.notify_one();
    }

    /// Waits until the peer has all frames, the session ends, or the time is over.
    pub(super) fn drain(&self, until: Instant) {
        let mut state = self.state.lock();
        while state.ended.is_none() && !state.is_drained() {
            if self.drained.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    // The link.

    /// Takes frames to write. `step`: the clock says that an acknowledgement is due.
    pub(super) fn take(&self, generation: u64, step: bool) -> Taken {
        let mut state = self.state.lock();
        if state.generation != generation {
            // This link may have taken the wake-up of the newer one.
            self.outbound.notify_one();
            return Taken::Stale;
        }
        if state.ended.is_some() {
            return Taken::End(state.notice.take());
        }
        let mut frames = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && frames.len() < BATCH_FRAMES {
            let Some(frame) = state.take() else { break };
            bytes += frame.payload.len();
            frames.push(frame);
        }
        if state.is_drained() {
            // What was ready may have been a channel that had nothing to send any more.
            self.drained.notify_all();
        }
        let is_due = state.sequence.is_owing() && (step || state.unacknowledged >= ACK_BYTES);
        let ack = is_due.then(|| {
            state.unacknowledged = 0;
            state.sequence.tell()
        });
        Taken::Frames { frames, ack, is_owing: state.sequence.is_owing() }
    }

    /// Checks the head of a frame before its payload is read.
    pub(super) fn check(&self, header: Header) -> Result<(), Violation> {
        if !is_data(header.kind) {
            return Ok(());
        }
        let state = self.state.lock();
        match state.lanes.get(&header.channel) {
            Some(lane) => lane.check(header.length as usize, self.settings.payload_bytes),
            None if header.channel > state.newest => Err(Violation::new(codes::CHANNEL, "a message names a channel that nobody opened")),
            None if u64::from(header.length) > state.late => Err(Violation::new(codes::WINDOW, "a closed channel gets too much")),
            None => Ok(()),
        }
    }

    /// Takes in a frame.
    pub(super) fn arrived(self: &Arc<Core>, generation: u64, header: Header, payload: Vec<u8>) -> Result<Arrival, Violation> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.generation != generation {
            return Ok(Arrival::Stale);
        }
        if state.ended.is_some() {
            return Ok(Arrival::Ended);
        }
        if is_numbered(header.kind) {
            // A greeting may have told the peer without resetting the bytes.
            let owed = if state.sequence.is_owing() { state.unacknowledged } else { 0 };
            state.sequence.receive();
            state.unacknowledged = owed + payload.len() as u64 + LATE_FRAME_BYTES;
            if owed == 0 || (owed < ACK_BYTES && state.unacknowledged >= ACK_BYTES) {
                self.outbound.notify_one();
            }
        }
        match header.kind {
            kinds::ACK => {
                let count = decode_ack(&payload).ok_or_else(malformed)?;
                let mut forgotten = Vec::new();
                let result = state.sequence.acknowledge(count, |frame| forgotten.push(frame));
                result.map_err(|error| Violation::new(codes::NUMBERS, error.to_string()))?;
                state.forget(&forgotten);
                if state.is_drained() {
                    self.drained.notify_all();
                }
                // The payloads are freed without the lock.
                drop(guard);
                drop(forgotten);
                return Ok(Arrival::Nothing);
            }
            kinds::END => {
                let (code, text) = decode_reason(&payload).ok_or_else(malformed)?;
                let error = if code == codes::DONE { ChannelError::Closed } else { ChannelError::Ended { code, text } };
                self.end_locked(state, error, None);
                return Ok(Arrival::Ended);
            }
            kinds::OPEN => return self.opened(&mut guard, header.channel, payload),
            kinds::PING => {}
            _ => state.arrived(header, payload, self.settings.payload_bytes)?,
        }
        if state.small > MOST_SMALL_FRAMES {
            return Err(Violation::new(codes::UNACKNOWLEDGED, "too many frames are not acknowledged"));
        }
        Ok(Arrival::Nothing)
    }

    fn opened(self: &Arc<Core>, state: &mut MutexGuard<'_, State>, id: u32, mut payload: Vec<u8>) -> Result<Arrival, Violation> {
        if !self.settings.is_server {
            return Err(Violation::new(codes::KIND, "a server opened a channel"));
        }
        if id <= state.newest {
            return Err(Violation::new(codes::CHANNEL, format!("channel {id} was opened after channel {}", state.newest)));
        }
        state.newest = id;
        let is_full = state.lanes.values().filter(|lane| lane.counts()).count() >= self.settings.channels;
        let place = if is_full { Err(codes::CHANNELS) } else { state.share.open(self.settings.window_bytes).ok_or(codes::BUSY) };
        let guaranteed = match place {
            Ok(guaranteed) => guaranteed,
            Err(code) => {
                state.late = state.late.saturating_add(self.settings.window_bytes + LATE_BYTES);
                state.push_urgent(Frame::new(kinds::CANCEL, id, encode_reason(code, "there is no room for another channel")));
                self.outbound.notify_one();
                return if state.small > MOST_SMALL_FRAMES {
                    Err(Violation::new(codes::UNACKNOWLEDGED, "too many frames are not acknowledged"))
                } else {
                    Ok(Arrival::Nothing)
                };
            }
        };
        let lane = Lane::new(guaranteed, self.settings.window_bytes);
        let channel = Channel::new(Arc::clone(self), id, Arc::clone(&lane.signals));
        state.lanes.insert(id, lane);
        let opening = payload.split_off(1);
        Ok(Arrival::Opened { service: payload[0], opening, channel })
    }

    // Channels.

    /// Opens a channel.
    pub(super) fn open(self: &Arc<Core>, service: u8, opening: &[u8]) -> Result<Channel, ChannelError> {
        let mut state = self.state.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let refused = |code, text: &str| Err(ChannelError::Cancelled { code, text: text.to_owned() });
        if state.lanes.values().filter(|lane| lane.is_open()).count() >= self.settings.channels {
            return refused(codes::CHANNELS, "the session has too many channels");
        }
        if state.small > MOST_SMALL_FRAMES / 2 {
            return refused(codes::BUSY, "too much waits for the server");
        }
        let Some(id) = state.newest.checked_add(1) else { return refused(codes::CHANNELS, "the session is used up") };
        let Some(guaranteed) = state.share.open(self.settings.window_bytes) else {
            return refused(codes::BUSY, "the budget of memory is used up");
        };
        state.newest = id;
        let mut payload = Vec::with_capacity(1 + opening.len());
        payload.push(service);
        payload.extend_from_slice(opening);
        let mut lane = Lane::new(guaranteed, self.settings.window_bytes);
        let signals = Arc::clone(&lane.signals);
        lane.outgoing.push_back(Frame::new(kinds::OPEN, id, payload));
        state.lanes.insert(id, lane);
        state.small += 1;
        self.make_ready(&mut state, id);
        drop(state);
        Ok(Channel::new(Arc::clone(self), id, signals))
    }

    /// Queues a message, and waits for room. One thread at a time.
    pub(super) fn send(&self, channel: &Channel, kind: u8, payload: Vec<u8>) -> Result<(), ChannelError> {
        let id = channel.id();
        let mut payload = Some(payload);
        let mut at = 0;
        let mut guard = self.state.lock();
        loop {
            let state = &mut *guard;
            let lane = state.lanes.get_mut(&id).ok_or(ChannelError::Closed)?;
            let left = payload.as_ref().map_or(0, |payload| payload.len() - at);
            match lane.room(left, &mut state.share)? {
                Room::Wait => {
                    channel.signals().sendable.wait(&mut guard);
                    continue;
                }
                Room::Part(length) => {
                    let whole = payload.as_ref().map_or(&[][..], |payload| &payload[at..]);
                    lane.send(Frame::new(kinds::PART, id, whole[..length].to_vec()));
                    at += length;
                    self.make_ready(&mut guard, id);
                }
                Room::All => {
                    let mut rest = payload.take().unwrap_or_default();
                    if at > 0 {
                        rest = rest[at..].to_vec();
                    }
                    lane.send(Frame::new(kinds::MESSAGE | kind, id, rest));
                    self.make_ready(&mut guard, id);
                    return Ok(());
                }
            }
        }
    }

    /// Returns the next message. `until`: `None` waits for ever.
    pub(super) fn receive(&self, channel: &Channel, until: Option<Instant>) -> Result<Next, ChannelError> {
        let id = channel.id();
        let mut guard = self.state.lock();
        loop {
            let state = &mut *guard;
            let lane = state.lanes.get_mut(&id).ok_or(ChannelError::Closed)?;
            let next = lane.next(&mut state.share);
            if let Some(due) = lane.take_due() {
                state.push_urgent(Frame::new(kinds::CREDIT, id, due.to_le_bytes().to_vec()));
                self.outbound.notify_one();
            }
            match next? {
                Next::Wait => {}
                next => return Ok(next),
            }
            match until {
                None => channel.signals().receivable.wait(&mut guard),
                Some(until) if Instant::now() >= until => return Ok(Next::Wait),
                Some(until) => {
                    channel.signals().receivable.wait_until(&mut guard, until);
                }
            }
        }
    }

    /// Returns why nothing can be sent on a channel any more.
    pub(super) fn broken(&self, id: u32) -> Option<ChannelError> {
        self.state.lock().lanes.get(&id).map_or(Some(ChannelError::Closed), |lane| lane.send_error.clone())
    }

    /// Changes a channel and looks for what it sends then.
    pub(super) fn change(&self, id: u32, change: impl FnOnce(&mut Lane)) {
        let mut state = self.state.lock();
        let Some(lane) = state.lanes.get_mut(&id) else { return };
        let before = lane.small();
        change(lane);
        let after = lane.small();
        state.small = state.small + after - before;
        self.make_ready(&mut state, id);
        state.reap(id);
    }

    fn make_ready(&self, state: &mut State, id: u32) {
        if state.ended.is_some() {
            return;
        }
        if let Some(lane) = state.lanes.get_mut(&id)
            && !lane.outgoing.is_empty()
            && !lane.is_ready
        {
            lane.is_ready = true;
            state.ready.push_back(id);
            if state.ready.len() == 1 {
                self.outbound.notify_one();
            }
        }
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl State {
    /// Returns whether the peer has everything.
    fn is_drained(&self) -> bool {
        self.ready.is_empty() && self.urgent.is_empty() && self.sequence.kept() == 0
    }

    /// Returns the next frame for the link: what it must repeat, what is urgent, what channels send, in turns.
    fn take(&mut self) -> Option<Frame> {
        if !self.sequence.is_waiting() {
            let frame = match self.urgent.pop_front() {
                Some(frame) => frame,
                None => self.take_of_channels()?,
            };
            self.sequence.number(frame);
        }
        self.sequence.write().cloned()
    }

    fn take_of_channels(&mut self) -> Option<Frame> {
        while let Some(id) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            let frame = lane.outgoing.pop_front();
            lane.is_ready = !lane.outgoing.is_empty();
            if lane.is_ready {
                self.ready.push_back(id);
            }
            if let Some(frame) = frame {
                lane.taken(frame.kind);
                return Some(frame);
            }
        }
        None
    }

    fn push_urgent(&mut self, frame: Frame) {
        self.urgent.push_back(frame);
        self.small += 1;
    }

    /// Takes in a numbered frame of a channel.
    fn arrived(&mut self, header: Header, payload: Vec<u8>, payload_limit: usize) -> Result<(), Violation> {
        let id = header.channel;
        let Some(lane) = self.lanes.get_mut(&id) else { return self.arrived_late(id, payload.len()) };
        match header.kind {
            kinds::FINISH => lane.finished()?,
            kinds::CANCEL => {
                let (code, text) = decode_reason(&payload).ok_or_else(malformed)?;
                let before = lane.small();
                lane.cancelled(code, text);
                self.small -= before - lane.small();
            }
            kinds::CREDIT => lane.credit(u64::from(decode_credit(&payload).ok_or_else(malformed)?))?,
            kind => {
                lane.check(payload.len(), payload_limit)?;
                lane.arrived(kind, payload);
            }
        }
        self.reap(id);
        Ok(())
    }

    fn arrived_late(&mut self, id: u32, length: usize) -> Result<(), Violation> {
        if id > self.newest {
            return Err(Violation::new(codes::CHANNEL, format!("a frame names channel {id}, which nobody opened")));
        }
        let late = self.late.checked_sub(length as u64 + LATE_FRAME_BYTES);
        self.late = late.ok_or_else(|| Violation::new(codes::WINDOW, "closed channels get too many frames"))?;
        Ok(())
    }

    /// Counts frames that the peer has.
    fn forget(&mut self, frames: &[Frame]) {
        for frame in frames {
            let cost = frame.cost();
            if cost == 0 {
                self.small -= 1;
            } else if let Some(lane) = self.lanes.get_mut(&frame.channel) {
                lane.release(cost, &mut self.share);
            }
            self.reap(frame.channel);
        }
    }

    /// Forgets a channel that is over.
    fn reap(&mut self, id: u32) {
        if self.lanes.get(&id).is_some_and(Lane::is_over)
            && let Some(lane) = self.lanes.remove(&id)
        {
            self.share.close(lane.guaranteed, lane.windows());
            self.late = self.late.saturating_add(lane.granted() + LATE_BYTES);
        }
    }
}

fn malformed() -> Violation {
    Violation::new(codes::FRAME, "the payload of a frame is malformed")
}

#[cfg(test)]
mod tests;
