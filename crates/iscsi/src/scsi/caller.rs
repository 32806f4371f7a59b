//! The sender of a command, and the surroundings in which a unit executes it.

use super::Buffers;
use super::inquiry::Port;
use super::patience::Patience;
use super::reservation::Nexus;
use super::tokens::Tokens;
use super::unit::LogicalUnit;
use std::sync::Arc;

/// The sender of a command, and the port it uses.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // It is made for one command and has nothing of its own.
pub struct Caller<'a> {
    /// Initiator port and target port.
    pub nexus: &'a Nexus,
    /// The target port.
    pub port: &'a Port,
    /// The LUNs that this initiator sees, ascending.
    pub luns: &'a [u16],
    /// How a long command waits.
    pub patience: &'a dyn Patience,
    /// Other units.
    pub peers: &'a dyn Peers,
    /// The tokens of the server.
    pub tokens: &'a Tokens,
    /// Buffers for data that is read.
    pub buffers: &'a Buffers,
}

/// The surroundings of a unit: other units, and commands of other sessions.
pub trait Peers: Send + Sync {
    /// Returns the unit with this number ([`Identity::number`](super::Identity::number)), if it is in a target that the
    /// initiator may use with the proofs it has given.
    fn unit(&self, number: u64) -> Option<Arc<LogicalUnit>>;

    /// Ends these nexuses' commands on a unit. Returns when they are over, or when `is_over` says that nobody waits for
    /// that any more.
    fn abort(&self, number: u64, nexuses: &[Nexus], is_over: &dyn Fn() -> bool);
}
