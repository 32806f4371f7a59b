//! What a node's process asks of the coordinator of its cluster (M4.3; `docs/cluster.md`, "Membership").
//!
//! * [`Coordinator`]: begins sessions, one for each opening of a log. It tells the process what happens by [`Event`]s.
//! * [`Seat`]: member, master and session of a node, tied together. A process has one, and a loop around it: that of
//!   `crates/node`.
//! * [`ZooKeeper`]: the coordinator of a cluster at work.
//! * [`MemoryCoordinator`]: one in memory, for tests. Its time passes when the test says so, and it fails on demand.
//!
//! # What a process may rely on
//! 1. *A session belongs to one opening.* It ends with [`Session::leave`], or with [`Event::Over`]. Nothing is told of
//!    it afterwards.
//! 2. *[`Event::Heard`] comes only behind a write of the coordinator.* An answer to a read proves little: a server of
//!    the coordinator that is cut off from the others goes on answering reads, while they end the session.
//! 3. *A view comes behind such a write, too, and before its `Heard`.* So a process that hears has a view that is not
//!    older than what it heard. Views of one session never go back in time.
//! 4. *Views come only while the session has its ephemeral node.* What cannot be read never looks like an absent node:
//!    then no view comes, but [`Event::Damaged`].
//!
//! # What a process must do
//! Give a master events only while its member hears ([`Member::hears`](onefold_cluster::Member::hears)), first the
//! newest view. A view says who is master as of its own moment. A process that was cut off has an old one, and another
//! master may be at work. A [`Seat`] does that.
//!
//! What the coordinator says is a hint (decision 0069): the tables in the bucket decide. The one thing that a cluster
//! relies on is that a session does not end early. So both ends must agree on how long it is, and it has at least eight
//! ticks of the coordinator.
//!
//! This crate must never know what a table says, nor what a partition is.

mod content;
mod error;
mod memory;
mod seat;
mod zookeeper;

pub use content::{Faces, Listed};
pub use error::{CoordinatorError, Result};
pub use memory::{MemoryCoordinator, MemoryData};
pub use seat::{Effect, Seat};
pub use zookeeper::{Credentials, ZooKeeper, ZooKeeperOptions};

use onefold_cluster::{NodeNumber, Opening, Present, View};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An opening that begins its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// The node and its opening.
    pub present: Present,
    /// Where other nodes reach it: host and port.
    pub address: String,
    /// Where clients reach it.
    pub faces: Faces,
    /// The newest table that it knows.
    pub table: Option<u64>,
}

/// What happens in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session does not end before its whole length has passed since `asked_ms` of the process's clock.
    Heard {
        /// Whose session it is.
        opening: Opening,
        /// When a request was sent that the coordinator answered, or earlier.
        asked_ms: u64,
    },
    /// What the coordinator says, as of one moment. The first one of a session comes when it has its ephemeral node.
    View {
        /// Whose session it is.
        opening: Opening,
        /// For the master.
        view: View,
        /// The nodes that are alive, as they describe themselves.
        nodes: BTreeMap<NodeNumber, Listed>,
    },
    /// The coordinator has a higher number than the one that was announced. It stays. Either another master wrote a
    /// newer table; then a search finds it. Or the bucket is older than the coordinator's data: then somebody must
    /// delete the number there. Is told once for each pair of numbers.
    Ahead {
        /// Whose session it is.
        opening: Opening,
        /// What was announced.
        announced: u64,
        /// What the coordinator says.
        found: u64,
    },
    /// The coordinator has something that no node of this version wrote. Is told when it changes.
    Damaged {
        /// Whose session it is.
        opening: Opening,
        /// What is wrong.
        error: CoordinatorError,
    },
    /// The session has ended, or cannot begin. If the error [is final](CoordinatorError::is_final), the next one would
    /// end in the same way.
    Over {
        /// Whose session it is.
        opening: Opening,
        /// Why.
        error: CoordinatorError,
    },
}

impl Event {
    /// Returns whose session it is.
    pub fn opening(&self) -> Opening {
        match *self {
            Event::Heard { opening, .. }
            | Event::View { opening, .. }
            | Event::Ahead { opening, .. }
            | Event::Damaged { opening, .. }
            | Event::Over { opening, .. } => opening,
        }
    }
}

/// The process of a node, as its coordinator sees it.
pub trait Process: Send + Sync {
    /// Returns the time of the process's own clock. It must go on while the machine sleeps.
    fn now_ms(&self) -> u64;

    /// Takes an event. It comes from a thread of the session, in order; the next heartbeat waits for the return.
    fn tell(&self, event: Event);
}

/// Begins sessions.
pub trait Coordinator: Send + Sync {
    /// Returns how long a session goes on without an answer.
    fn session_ms(&self) -> u64;

    /// Begins the session of an opening, its only one, and makes its ephemeral node. If there is one of an earlier
    /// session, waits until that has ended. Returns at once; what becomes of it is told to the process.
    ///
    /// Errors: the address cannot be written down.
    fn join(&self, joining: Joining, process: Arc<dyn Process>) -> Result<Box<dyn Session>>;
}

/// A session. When it is dropped, it ends in the background.
pub trait Session: Send + Sync {
    /// Says that the table is at this number. The number never falls. Ends when a view says so, or [`Event::Ahead`].
    fn announce(&self, number: u64);

    /// Says that the node knows this table.
    fn knows(&self, table: u64);

    /// Ends the session, and waits until the coordinator knows, for as long as a session at most. Call it from no
    /// event.
    fn leave(self: Box<Self>);
}
