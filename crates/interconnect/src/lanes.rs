//! Lanes: what may hold up what. A connection has a queue for each, and sends from the first one that may send.
//!
//! | lane | requests | under way at once | at work at once |
//! |---|---|---|---|
//! | claims | claim, release, hurry, begin, and those of the membership | 16 | 1, in the order in which they came |
//! | waits | wait | 16 | 16 |
//! | deliveries | deliver | 1 | 1 |
//! | bulk | seal, collect, remove, dead, reclaim | 4 | 2 |
//!
//! Claims and waits are the first of the three queues of `docs/cluster.md`: a wait may take a second at its owner, so
//! it has a window of its own.
//!
//! # Why claims are worked on one after the other
//! A stream gives a claim back, and another stream of the same node claims the chunk again. If the owner took the two
//! in the other order, it would end a claim that is held, and give it to a second node.

use crate::messages::kinds;

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Claims,
    Waits,
    Deliveries,
    Bulk,
}

/// How many lanes there are.
pub(crate) const LANES: usize = 4;

impl Lane {
    /// All of them, the most urgent one first.
    pub(crate) const ALL: [Lane; LANES] = [Lane::Claims, Lane::Waits, Lane::Deliveries, Lane::Bulk];

    /// Returns the lane of a request. `None`: it is an answer.
    pub(crate) fn of(kind: u8) -> Option<Lane> {
        match kind {
            kinds::CLAIM | kinds::RELEASE | kinds::HURRY | kinds::BEGIN => Some(Lane::Claims),
            kinds::REPORT | kinds::ORDER | kinds::PREPARED => Some(Lane::Claims),
            kinds::WAIT => Some(Lane::Waits),
            kinds::DELIVER => Some(Lane::Deliveries),
            kinds::SEAL | kinds::COLLECT | kinds::REMOVE | kinds::DEAD | kinds::RECLAIM => Some(Lane::Bulk),
            _ => None,
        }
    }

    /// Returns how many requests may have no answer yet. More are a breach of the protocol.
    pub(crate) fn window(self) -> usize {
        [16, 16, 1, 4][self as usize]
    }

    /// Returns how many requests of a peer are at work at once.
    pub(crate) fn width(self) -> usize {
        [1, 16, 1, 2][self as usize]
    }

    /// Returns how many requests may wait to be sent. Then senders wait.
    pub(crate) fn capacity(self) -> usize {
        [256, 256, 4, 64][self as usize]
    }
}
