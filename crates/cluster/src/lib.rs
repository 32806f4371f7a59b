//! Who owns which partition of a store that several nodes have open (M4.1 to M4.3, M4.8; `docs/cluster.md`).
//!
//! * [`Table`]: for each partition its owner, follower, epoch and lineage, and the nodes that take part.
//! * [`Tables`]: the chain of tables in the bucket. The newest one is the truth.
//! * [`Member`]: what a node does: it takes a number, opens its log, takes partitions over, serves them, and stops when
//!   it hears nothing.
//! * [`Master`]: what the node does that writes the tables: it closes the logs of nodes that are gone, gives their
//!   partitions to others, and moves partitions by plan.
//!
//! # Why at most one node answers for a partition
//! 1. *An ownership belongs to one opening of a log, and to one session.* A node that opens its log again, or makes a
//!    new session, has nothing until a table names the new opening.
//! 2. *A table takes a partition from its owner in three cases only*: the owner has released it and answers no more;
//!    the session of the owner's opening has ended, and its log is closed; or the same node has opened its log again
//!    after that session ended. So a table never surprises an owner that answers.
//! 3. *An owner stops before its session ends*: two thirds of it after it last asked with success, by its own clock.
//! 4. *A session has ended if the master saw it alive, in a session of its own, and then did not.* One that it never
//!    saw may have been lost with the coordinator's data: then the master waits for a whole session.
//!
//! Member and master are state machines: an event and the node's own time go in, effects come out. They have no
//! threads, no clock and no sockets. `tests/simulation.rs` runs many of them in a simulated world.
//!
//! This crate must never know what a chunk, a container or an object is.

mod assignment;
mod error;
mod master;
mod member;
mod messages;
mod table;
mod tables;

pub use error::{ClusterError, Result};
pub use master::{Master, MasterEffect, MasterEvent, Outcome, View};
pub use member::{Member, MemberEffect, MemberEvent, Phase, Right};
pub use messages::{Order, Prepared, Released, Report, Restated};
pub use table::{Assigned, Counts, Held, Link, NodeNumber, Opening, Present, Table};
pub use tables::{PutTable, Search, Tables};
