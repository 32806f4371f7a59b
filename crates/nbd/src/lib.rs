//! The NBD server: one of the faces of a store.
//!
//! The protocol is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>, with its extension `EXTENDED_HEADERS`. What is
//! served stands behind the traits [`Exports`] and [`Export`]; this crate must never know what a volume, a chunk or a store is.
//!
//! # How a request goes
//! 1. [`Server::run`] accepts a connection if there is a free place, or closes it at once.
//! 2. `handshake` moves bytes, [`haggling`] decides: options, TLS, which export. All of it within the negotiation timeout.
//! 3. `transmission` reads request after request. [`request`] decides from the header alone what is wrong with it, before any memory
//!    is taken; then the request waits for its share of memory and for a worker, and runs on a thread of the pool (`execute`).
//! 4. Replies are written in the order in which requests finish.
//!
//! # Invariants
//! - Memory is bounded: the sum of write payloads and unsent read data is at most [`Limits::bytes`] for the server, plus
//!   [`Limits::reserved_bytes_per_connection`] for each connection; so a client that neither sends nor reads what it announced
//!   cannot keep small requests of others from running.
//! - A reply to a write, trim or write-zeroes is sent after the export has returned; a flush reply after [`Export::flush`] has.
//! - What a client sends can end its own connection and nothing else.
//! - [`options`], [`haggling`], [`request`] and [`reply`] do no I/O, so they can be tested and fuzzed on bytes.

pub mod client;
mod config;
mod execute;
mod export;
mod handshake;
mod limits;
mod listener;
mod metrics;
mod server;
mod tls;
mod transmission;
mod wire;

pub mod haggling;
pub mod options;
pub mod reply;
pub mod request;
pub mod style;

pub use config::{Config, Limits, Listen, LocalAddress, Tls, TlsFiles};
pub use export::{Export, ExportError, ExportInfo, Exports, Extent};
pub use metrics::{Command, Metrics, MetricsSnapshot};
pub use server::Server;
pub use wire::{Errno, MAX_PAYLOAD_BYTES};

use std::io;
use std::path::PathBuf;

/// What can go wrong with the server itself; what goes wrong with a client ends its connection and is logged.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// Nothing to listen on.
    #[error("the NBD server has no address to listen on")]
    NoAddress,
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or path.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Anyone on the network could read and change the exports.
    #[error("{address} is not a loopback address: NBD without TLS there must be allowed explicitly")]
    PlainOffLoopback {
        /// The address.
        address: String,
    },
    /// A certificate or key cannot be used.
    #[error("cannot use {path} for TLS: {reason}")]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Certificate and key are readable but do not work together.
    #[error("cannot set up TLS: {reason}")]
    Tls {
        /// Why not.
        reason: String,
    },
    /// A limit is outside of what works.
    #[error("{name} is {value}, but must be {must}")]
    Limit {
        /// Which one.
        name: &'static str,
        /// What was asked.
        value: u64,
        /// The range.
        must: &'static str,
    },
    /// At shutdown, an export could not be made durable.
    #[error("{failed} of {exports} NBD exports could not be flushed at shutdown: {reason}")]
    Flush {
        /// How many were flushed without success.
        failed: usize,
        /// How many were in use.
        exports: usize,
        /// The first failure.
        reason: String,
    },
}

/// A result of the server.
pub type Result<T> = std::result::Result<T, NbdError>;
