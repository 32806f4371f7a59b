//! What a node has sent and received, by kind of message (M4.7, M4.11).

use crate::frame::Frame;
use crate::messages::kinds;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many messages, and how many bytes with their heads, before encryption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What was sent and received of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfKind {
    /// The kind, as in `docs/protocol.md`.
    pub kind: &'static str,
    /// From this node.
    pub sent: Traffic,
    /// To this node.
    pub received: Traffic,
}

/// The counts of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// By kind of message.
    pub kinds: Vec<OfKind>,
    /// Names in the claims that were sent.
    pub claimed_names: u64,
    /// Connections that were made.
    pub connections: u64,
}

impl Statistics {
    /// Returns the counts of a kind. Panics: there is no such kind.
    pub fn of(&self, kind: &str) -> OfKind {
        *self.kinds.iter().find(|of| of.kind == kind).expect("a kind of message")
    }

    /// Returns how many names a claim had on average (M4.7).
    pub fn names_per_claim(&self) -> f64 {
        let claims = self.of("claim").sent.messages;
        if claims == 0 { 0.0 } else { self.claimed_names as f64 / claims as f64 }
    }
}

/// The counters of a node.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sent: [Pair; kinds::ALL.len()],
    received: [Pair; kinds::ALL.len()],
    pub(crate) claimed_names: AtomicU64,
    pub(crate) connections: AtomicU64,
}

#[derive(Debug, Default)]
struct Pair {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Pair {
    fn add(&self, frame: &Frame) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.bytes(), Ordering::Relaxed);
    }

    fn get(&self) -> Traffic {
        Traffic { messages: self.messages.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl Counters {
    pub(crate) fn sent(&self, frame: &Frame) {
        if let Some(at) = place(frame.kind) {
            self.sent[at].add(frame);
        }
    }

    pub(crate) fn received(&self, frame: &Frame) {
        if let Some(at) = place(frame.kind) {
            self.received[at].add(frame);
        }
    }

    pub(crate) fn get(&self) -> Statistics {
        let of = |at: usize| OfKind { kind: kinds::ALL[at].1, sent: self.sent[at].get(), received: self.received[at].get() };
        Statistics {
            kinds: (0..kinds::ALL.len()).map(of).collect(),
            claimed_names: self.claimed_names.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }
}

fn place(kind: u8) -> Option<usize> {
    kinds::ALL.iter().position(|(known, _)| *known == kind)
}
