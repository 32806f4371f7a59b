//! Channels: messages in both directions, for ordinary threads.

use super::Result;
use super::core::Core;
use super::error::{ChannelError, codes};
use super::lane::{Next, Signals};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A message of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it is, for the service: 0 to 127.
    pub kind: u8,
    /// Its content.
    pub payload: Vec<u8>,
}

/// What [`Channel::receive_until`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// The next message.
    Message(Message),
    /// The other end finished, and everything that it sent was received.
    Finished,
    /// Nothing came in time.
    Timeout,
}

/// One end of a channel. Clones are the same channel. One thread may send while another one receives.
///
/// Receiving a message frees its part of the window, so the peer can send more. The message in hand is the memory
/// of the receiver. When the last clone is dropped, the channel is cancelled, except for what was finished.
#[derive(Clone)]
pub struct Channel(Arc<Handle>);

struct Handle {
    core: Arc<Core>,
    id: u32,
    signals: Arc<Signals>,
    /// Keeps the parts of a message together.
    sending: Mutex<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let id = self.id;
        self.core.change(id, |lane| lane.abandon(id));
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Channel({})", self.0.id)
    }
}

impl Channel {
    pub(super) fn new(core: Arc<Core>, id: u32, signals: Arc<Signals>) -> Channel {
        Channel(Arc::new(Handle { core, id, signals, sending: Mutex::new(()) }))
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id
    }

    pub(super) fn signals(&self) -> &Signals {
        &self.0.signals
    }

    /// Returns the longest payload of a message.
    pub fn payload_limit(&self) -> usize {
        self.0.core.settings().payload_bytes
    }

    /// Returns the window that the channel began with. It is never smaller, in either direction.
    pub fn least_window_bytes(&self) -> usize {
        self.0.core.settings().window_bytes as usize
    }

    /// Sends a message. Waits until the window of the peer and the memory of this end have room for it.
    ///
    /// Errors: the channel was finished or cancelled, the session ended, the kind exceeds 127, or the payload exceeds
    /// [`Channel::payload_limit`].
    pub fn send(&self, kind: u8, payload: Vec<u8>) -> Result<(), ChannelError> {
        if kind > 127 {
            return Err(ChannelError::Kind { kind });
        }
        let limit = self.payload_limit();
        if payload.len() > limit {
            return Err(ChannelError::TooLarge { length_bytes: payload.len(), limit_bytes: limit });
        }
        let _alone = self.0.sending.lock();
        self.0.core.send(self, kind, payload)
    }

    /// Waits for the next message. `None`: the other end finished.
    pub fn receive(&self) -> Result<Option<Message>, ChannelError> {
        match self.0.core.receive(self, None)? {
            Next::Message(message) => Ok(Some(message)),
            Next::Finished | Next::Wait => Ok(None),
        }
    }

    /// Waits for the next message until a moment.
    pub fn receive_until(&self, until: Instant) -> Result<Received, ChannelError> {
        Ok(match self.0.core.receive(self, Some(until))? {
            Next::Message(message) => Received::Message(message),
            Next::Finished => Received::Finished,
            Next::Wait => Received::Timeout,
        })
    }

    /// Returns the next message if it is there.
    pub fn try_receive(&self) -> Result<Received, ChannelError> {
        self.receive_until(Instant::now())
    }

    /// Returns why nothing can be sent any more: the channel was cancelled, or its session ended.
    pub fn broken(&self) -> Option<ChannelError> {
        self.0.core.broken(self.0.id)
    }

    /// Says that nothing more will be sent. What was sent still arrives. Within a message of another thread it cancels.
    pub fn finish(&self) {
        let id = self.0.id;
        self.0.core.change(id, |lane| {
            if !lane.finish(id) {
                lane.cancel(id, codes::CANCELLED, "the channel ended within a message");
            }
        });
    }

    /// Drops both directions. The other end gets [`ChannelError::Cancelled`].
    pub fn cancel(&self) {
        self.cancel_with(codes::CANCELLED, "");
    }

    /// Drops both directions and tells the other end why.
    pub fn cancel_with(&self, code: u16, text: &str) {
        let id = self.0.id;
        self.0.core.change(id, |lane| lane.cancel(id, code, text));
    }
}
