//! The process of one node of an exact cluster (M4.1 to M4.3, M4.8; `docs/cluster.md`).
//!
//! [`Node`] does what a [`Member`](onefold_cluster::Member) and a [`Master`](onefold_cluster::Master) want: it takes a
//! number, opens its log, holds a session with the coordinator, answers other nodes, takes partitions over and gives
//! them away. Faces ask it for the engine, and whether they may answer.
//!
//! ```text
//! process     the event loop: the seat with member and master, their effects, their events
//! jobs        what takes long: tables, logs, taking over, collecting, restating; each on a thread of its own
//! opening     one opening of the log: engine, interconnect, server
//! shared      what whoever answers asks: rights, owners, addresses (Directory and Rights of the interconnect)
//! record      nodes/N/node in the bucket: who has a number
//! identity    number, certificate and key on this machine
//! context     what loop and jobs have in common
//! ```
//!
//! # Invariants
//! * *Member and clock are asked after a request has come.* Nothing else says that it may be answered.
//! * *An opening ends before the next one begins*: its right to answer and its session at once, then its server, its
//!   connections, its engine.
//! * *What came of a former opening is dropped*: an answer, a job, a message. A table counts, whoever found it.
//! * *A number is durable here before it is asked for in the bucket*, with the key that belongs to it.
//!
//! No node reads along with an owner yet: a new owner reads the logs from the bucket.
//!
//! This crate must never know what a volume or a backup is.

mod context;
mod error;
mod identity;
mod jobs;
mod opening;
mod overview;
mod process;
mod record;
mod shared;

pub use error::{NodeError, Result};
pub use overview::Overview;

use context::Context;
use identity::Home;
use onefold_cluster::{NodeNumber, Opening, Phase, Right};
use onefold_coordinator::{Coordinator, CoordinatorError, Faces, Listed, Process as _};
use onefold_engine::{Descriptor, Engine, Settings};
use onefold_ground::{Bucket, Ground};
use onefold_interconnect::{Options, Reclaim};
use onefold_oplog::Partition;
use process::{Event, Process, Rest};
use record::Records;
use shared::Shared;
use std::collections::BTreeMap;
use std::fmt;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Returns the ground of a node's engine: a directory for its local state, with the bucket. Each number has one of its
/// own.
pub type Grounds = dyn Fn(NodeNumber) -> onefold_ground::Result<Arc<dyn Ground>> + Send + Sync;

/// How a node takes part.
#[derive(Clone)]
pub struct NodeSettings {
    /// The store.
    pub descriptor: Descriptor,
    /// The bucket that has it.
    pub bucket: Arc<dyn Bucket>,
    /// Where its engines have their local state.
    pub grounds: Arc<Grounds>,
    /// The directory for its number and its key. It belongs to this node only.
    pub directory: PathBuf,
    /// Its name, for people: at most 255 bytes.
    pub name: String,
    /// Where it listens: host and port. Port 0: one that is free.
    pub listen: String,
    /// Where others reach it: host and port. `None`: where it listens.
    pub address: Option<String>,
    /// Where clients reach it.
    pub faces: Faces,
    /// Who says who is there. Its sessions have the same length at all nodes.
    pub coordinator: Arc<dyn Coordinator>,
    /// How its engines are opened. The node sets the share. Its clocks are the node's.
    pub engine: Settings,
    /// How long it waits for other nodes.
    pub interconnect: Options,
    /// How it frees space, when another node asks for that.
    pub reclaim: Arc<Reclaim>,
}

impl fmt::Debug for NodeSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeSettings")
            .field("name", &self.name)
            .field("directory", &self.directory)
            .field("listen", &self.listen)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// How a node is at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its number, while its log is open.
    pub node: Option<NodeNumber>,
    /// Where it is in its life.
    pub phase: Phase,
    /// The opening of its log.
    pub opening: Option<Opening>,
    /// Whether it has heard from the coordinator lately. If not, it answers nothing.
    pub hears: bool,
    /// Whether it is the master, as the coordinator said last.
    pub is_master: bool,
    /// The number of the newest table that it knows.
    pub table: Option<u64>,
    /// The partitions by owner, by that table.
    pub owned: BTreeMap<NodeNumber, Vec<Partition>>,
    /// The partitions that it answers for now.
    pub served: Vec<Partition>,
    /// The nodes that are alive, as the coordinator said last.
    pub alive: BTreeMap<NodeNumber, Listed>,
    /// What does not work at the moment.
    pub trouble: Option<String>,
}

/// A node of a cluster. Dropping it ends it as a crash would: nothing is written, and its session ends in the
/// background.
pub struct Node {
    context: Arc<Context>,
    /// Taken when it ends.
    thread: Option<JoinHandle<Rest>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Node").field("settings", &self.context.settings).finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a node. It takes part as soon as it can; [`Node::status`] says how far it is.
    ///
    /// Errors: a setting is not usable, its directory cannot be used, or it cannot listen. Whatever fails later is
    /// retried, but for what [`Node::failure`] says.
    pub fn start(settings: NodeSettings) -> Result<Node> {
        record::check_name(settings.name.as_bytes()).map_err(|why| NodeError::Setting { what: "the name of the node", why })?;
        let listening = |source| NodeError::Listen { address: settings.listen.clone(), source };
        let listener = TcpListener::bind(&settings.listen).map_err(listening)?;
        let address = match &settings.address {
            Some(address) => address.clone(),
            None => listener.local_addr().map_err(listening)?.to_string(),
        };
        let store = settings.descriptor.store;
        let home = Home::new(&settings.directory, store)?;
        let (events, queue) = channel();
        let records = Records::new(settings.bucket.clone(), store);
        let shared = Shared::new(records, settings.engine.time.clone(), settings.coordinator.session_ms(), events);
        let context = Arc::new(Context::new(settings, Arc::new(shared), home, listener, address));
        let process = Process::new(context.clone())?;
        let run = move || process.run(&queue);
        let starting = |source| NodeError::Io { action: "cannot start a thread", source };
        let thread = std::thread::Builder::new().name("node".to_owned()).spawn(run).map_err(starting)?;
        Ok(Node { context, thread: Some(thread) })
    }

    /// Returns where other nodes reach it.
    pub fn address(&self) -> &str {
        &self.context.address
    }

    /// Returns the engine of the present opening. `None`: there is none now.
    ///
    /// Do not keep it: the log is opened again only when nobody has the engine before it.
    pub fn engine(&self) -> Option<Arc<Engine>> {
        self.context.engine.lock().clone()
    }

    /// Returns what may be done with a request for a partition that came before this call. The answer may be given
    /// whenever it is ready.
    pub fn may_serve(&self, partition: Partition) -> Right {
        self.context.shared.right(partition)
    }

    /// Returns the owner of a partition by the newest table that is known here, and where it is reached. Without an
    /// address it is not there. `None`: no table is known, or there is no such partition.
    pub fn owner_of(&self, partition: Partition) -> Option<(NodeNumber, Option<String>)> {
        let state = self.context.shared.state.lock();
        let owner = state.table.as_ref()?.get(partition)?.owner();
        Some((owner, state.alive.get(&owner).map(|listed| listed.address.clone())))
    }

    /// Returns how it is.
    pub fn status(&self) -> Status {
        let shared = &self.context.shared;
        let (member, state) = (shared.member.lock(), shared.state.lock());
        let now_ms = shared.now_ms();
        let mut owned: BTreeMap<NodeNumber, Vec<Partition>> = BTreeMap::new();
        let partitions = || state.table.iter().flat_map(|table| &table.partitions);
        for assigned in partitions() {
            owned.entry(assigned.owner()).or_default().push(assigned.partition);
        }
        let is_served = |partition: &Partition| process::answers(member.may_answer(*partition, now_ms));
        let present = member.present();
        Status {
            node: present.map(|present| present.node),
            phase: member.phase(),
            opening: present.map(|present| present.opening),
            hears: member.hears(now_ms),
            is_master: state.is_master,
            table: state.table.as_ref().map(|table| table.number),
            owned,
            served: partitions().map(|assigned| assigned.partition).filter(is_served).collect(),
            alive: state.alive.clone(),
            trouble: state.trouble.clone(),
        }
    }

    /// Returns why the node has ended by itself: it cannot get a session with the coordinator. It answers nothing any
    /// more, and does not try again. `None`: it goes on.
    pub fn failure(&self) -> Option<CoordinatorError> {
        self.context.shared.state.lock().failure.clone()
    }

    /// Has the node leave the cluster: its partitions go to others, one after the other, what it has logged for others
    /// is delivered, and its number is forgotten. Waits for that, for `limit` at most. Returns whether it has left. If
    /// not, it goes on leaving. The last node of a store never leaves: nobody could take its partitions.
    pub fn leave(&self, limit: Duration) -> bool {
        self.context.shared.send(Event::Leave);
        let until = Instant::now() + limit;
        let mut has_left = self.context.has_left.lock();
        while !*has_left {
            if self.context.left.wait_until(&mut has_left, until).timed_out() {
                break;
            }
        }
        *has_left
    }

    /// Ends the process of a node: what was written is flushed, and its session ends at once. So others take its
    /// partitions over without waiting for that. Then it comes back with a new number; with the same one if it was
    /// alone.
    pub fn stop(mut self) {
        let Some(Rest { log, session }) = self.end() else { return };
        if let Some(Err(error)) = log.map(opening::OpenLog::close) {
            tracing::warn!(%error, "the store could not be closed");
        }
        if let Some(session) = session {
            session.leave();
        }
    }

    fn end(&mut self) -> Option<Rest> {
        let thread = self.thread.take()?;
        self.context.shared.send(Event::End);
        match thread.join() {
            Ok(rest) => Some(rest),
            Err(_) => {
                tracing::error!("the event loop of the node has panicked");
                None
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.end());
    }
}
