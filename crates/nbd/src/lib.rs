//! The NBD server: one of the interfaces of a store.
//!
//! The protocol is `doc/proto.md` of <https://github.com/NetworkBlockDevice/nbd>, with its extension
//! `EXTENDED_HEADERS`. The traits [`Exports`] and [`Export`] stand for the served data. This crate must never know what
//! a volume, a chunk or a store is.
//!
//! # The path of a request
//! 1. [`Server::run`] accepts a connection if there is a free place, and closes it at once otherwise.
//! 2. `handshake` transfers bytes, and [`haggling`] decides: options, TLS, which export. All of this is within the
//!    negotiation timeout.
//! 3. `transmission` reads requests one by one. [`request`] finds errors from the header alone, before any memory is
//!    taken. Then the request waits for its share of memory and for a worker, and runs on a thread of the pool
//!    (`execute`).
//! 4. Replies are written in the order in which requests finish.
//!
//! # Invariants
//! - Memory is bounded. Write payloads and unsent read data together take at most [`Limits::bytes`] for the server,
//!   plus [`Limits::reserved_bytes_per_connection`] for each connection. So a client that neither sends nor reads what
//!   it announced cannot block small requests of others.
//! - A reply to a write, trim or write-zeroes is sent after the export has returned, and a flush reply after
//!   [`Export::flush`] has.
//! - Whatever a client sends, it can only end its own connection.
//! - [`options`], [`haggling`], [`request`] and [`reply`] do no I/O, so they can be tested and fuzzed on bytes.

pub mod client;
mod config;
mod context;
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

/// The errors of the server itself. Errors of a client end its connection and are logged.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// There is no address to listen on.
    #[error("the NBD server has no address to listen on")]
    NoAddress,
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or path.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// Without TLS, anyone on the network could read and change the exports.
    #[error("{address} is not a loopback address: NBD without TLS must be allowed explicitly there")]
    PlainOffLoopback {
        /// The address.
        address: String,
    },
    /// A certificate or key cannot be used.
    #[error("cannot use {path} for TLS: {reason}")]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Certificate and key are readable but do not work together.
    #[error("cannot set up TLS: {reason}")]
    Tls {
        /// The reason.
        reason: String,
    },
    /// A limit is outside its valid range.
    #[error("{name} is {value}; it must be {must}")]
    Limit {
        /// The limit.
        name: &'static str,
        /// The value asked for.
        value: u64,
        /// The range.
        must: &'static str,
    },
    /// At shutdown, an export could not be made durable.
    #[error("{failed} of {exports} NBD exports could not be flushed at shutdown: {reason}")]
    Flush {
        /// How many could not be flushed.
        failed: usize,
        /// How many were in use.
        exports: usize,
        /// The first failure.
        reason: String,
    },
}

/// A result of the server.
pub type Result<T> = std::result::Result<T, NbdError>;
