//! State shared by all sessions of a server.

use crate::denials::Denials;
use crate::limits::Limits;
use crate::memory::SharedMemory;
use crate::scsi::{Buffers, MAX_TRANSFER_BYTES, Tokens};
use crate::target::{Sessions, Targets};
use onefold_pool::Pool;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize};
use tokio::sync::Semaphore;

/// Commands executed at a time, of all sessions.
const WORKERS: usize = 64;
/// Threads for commands that work, and for commands that only wait and have given their place among the workers to
/// others. So every command with a place has a thread.
const THREADS: usize = 512;

/// State shared by all sessions, and by connections in their login.
pub(crate) struct Shared {
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) workers: Arc<Semaphore>,
    /// Places for commands that only wait.
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) memory: Arc<SharedMemory>,
    pub(crate) pool: Pool,
    /// Commands under way, of all sessions.
    pub(crate) commands: AtomicUsize,
    pub(crate) tokens: Tokens,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) portals: Vec<Portal>,
    pub(crate) next_handle: AtomicU16,
    /// Connections in their login, by address.
    pub(crate) half_open: Mutex<HashMap<IpAddr, usize>>,
    pub(crate) denials: Mutex<Denials>,
}

pub(crate) struct Portal {
    /// Portal group. Each portal has its own, so that each is a path of its own.
    pub(crate) group: u16,
    pub(crate) address: SocketAddr,
    pub(crate) advertised: Option<String>,
}

impl Shared {
    pub(crate) fn new(targets: Arc<dyn Targets>, limits: Limits, portals: Vec<Portal>) -> Shared {
        Shared {
            targets,
            limits,
            sessions: Arc::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
            waiters: Arc::new(Semaphore::new(THREADS - WORKERS)),
            memory: Arc::new(SharedMemory::new(limits.bytes.max(MAX_TRANSFER_BYTES.into()))),
            pool: Pool::new("iscsi", THREADS),
            commands: AtomicUsize::new(0),
            tokens: Tokens::default(),
            buffers: Arc::default(),
            portals,
            next_handle: AtomicU16::new(1),
            half_open: Mutex::default(),
            denials: Mutex::default(),
        }
    }

    /// Returns the addresses of all portals with their groups, for an initiator that has connected to `own`. If a
    /// portal listens on all addresses of the machine, returns the address that this initiator can reach.
    pub(crate) fn portals(&self, own: SocketAddr) -> Vec<String> {
        let address = |portal: &Portal| match &portal.advertised {
            Some(advertised) => advertised.clone(),
            None if portal.address.ip().is_unspecified() => SocketAddr::new(own.ip(), portal.address.port()).to_string(),
            None => portal.address.to_string(),
        };
        self.portals.iter().map(|portal| format!("{},{}", address(portal), portal.group)).collect()
    }
}
