//! Messages between the nodes of an exact cluster (M4.4 to M4.7; `docs/cluster.md`, `docs/protocol.md` section 7).
//!
//! ```text
//! Interconnect            a node's end: the others (Nodes), what answers them (Server), what it counted
//! nodes, peer, connection requests of this node: by owner; in queues; over a connection that is made again
//! server, owner           requests of others: by lanes; what an engine answers
//! lanes                   what may hold up what
//! messages, greeting,     what a connection carries
//!   frame, tls
//! ```
//!
//! Each node makes one connection to each other node that it asks, with mutual TLS, and accepts theirs: requests go one
//! way on it, answers the other.
//!
//! # Invariants
//! * A peer has proved that it has the certificate of the node that it says it is (`tls`).
//! * A request is sent once. An error says that it may have been done, and who did not answer.
//! * Claims and releases of a node are done in the order in which they were queued, also across connections (`lanes`,
//!   `server`).
//! * Every queue is bounded, at both ends. Whoever does not keep to the windows loses the connection.
//! * Every length is checked before memory is allocated for it.
//!
//! This crate must never know what a volume or a backup is, and who should own what.

mod connection;
mod counters;
mod error;
pub mod frame;
pub mod greeting;
mod lanes;
pub mod messages;
mod nodes;
mod owner;
mod peer;
mod server;
mod setup;
#[cfg(test)]
mod tests;
mod tls;

pub use counters::{OfKind, Statistics, Traffic};
pub use error::{CallError, InterconnectError, Refusal, Result};
pub use nodes::Nodes;
pub use owner::{EngineOwner, Owner, Reclaim, Rights};
pub use server::Server;
pub use setup::{Directory, Options, Setup};
pub use tls::{Identity, node_name};

use counters::Counters;
use setup::Context;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use tokio::runtime::{Builder, Runtime};

/// The most requests of others that are at work at once, of all nodes together: 20 for each, and 64 nodes.
const MOST_AT_WORK: usize = 20 * 64;

/// A node's end of the interconnect. Dropping it ends everything.
#[derive(Debug)]
pub struct Interconnect {
    context: Arc<Context>,
    nodes: Arc<Nodes>,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl Interconnect {
    /// Starts it. Before [`Interconnect::opened`] nobody is let in, and what the engine asks of others fails at once.
    pub fn new(setup: Setup, index_partitions: u32) -> Result<Interconnect> {
        let builder = || Builder::new_multi_thread().worker_threads(2).max_blocking_threads(MOST_AT_WORK).enable_all().build();
        let runtime = builder().map_err(|source| InterconnectError::Io { action: "cannot start threads", source })?;
        let context = Arc::new(Context { setup, counters: Counters::default(), opening: OnceLock::new() });
        let nodes = Nodes::new(context.clone(), index_partitions, runtime.handle().clone());
        Ok(Interconnect { context, nodes, runtime: Some(runtime) })
    }

    /// Tells the number of this opening of the node's log. There is one in the life of an interconnect: a node that
    /// opens its log again begins with another one.
    pub fn opened(&self, opening: u64) {
        // A second call changes nothing.
        let _ = self.context.opening.set(opening);
    }

    /// Returns the other nodes, for the [share](onefold_engine::Share) of an engine.
    pub fn others(&self) -> Arc<Nodes> {
        self.nodes.clone()
    }

    /// Answers other nodes, until the server is dropped.
    pub fn serve(&self, listener: TcpListener, owner: Arc<dyn Owner>) -> Result<Server> {
        let runtime = self.runtime.as_ref().expect("it is there until this is dropped");
        Server::start(self.context.clone(), runtime.handle(), listener, owner)
    }

    /// Returns what was sent and received so far.
    pub fn statistics(&self) -> Statistics {
        self.context.counters.get()
    }
}

impl Drop for Interconnect {
    fn drop(&mut self) {
        self.nodes.stop();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
