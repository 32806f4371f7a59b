//! The counters of the server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The commands that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read,
    /// `NBD_CMD_WRITE`.
    Write,
    /// `NBD_CMD_FLUSH`.
    Flush,
    /// `NBD_CMD_TRIM`.
    Trim,
    /// `NBD_CMD_CACHE`.
    Cache,
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`.
    BlockStatus,
    /// A command that is not in the protocol.
    Unknown,
}

impl Command {
    /// All commands, in the order of [`MetricsSnapshot::requests`].
    pub const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
        Command::Unknown,
    ];

    /// Returns the name for labels.
    pub fn name(self) -> &'static str {
        match self {
            Command::Read => "read",
            Command::Write => "write",
            Command::Flush => "flush",
            Command::Trim => "trim",
            Command::Cache => "cache",
            Command::WriteZeroes => "write_zeroes",
            Command::BlockStatus => "block_status",
            Command::Unknown => "unknown",
        }
    }
}

/// The shared counters of a server. All of them only grow, except the open connections.
#[derive(Debug, Default)]
pub struct Metrics {
    open_connections: AtomicU64,
    connections: AtomicU64,
    refused_connections: AtomicU64,
    failed_negotiations: AtomicU64,
    requests: [AtomicU64; Command::ALL.len()],
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsSnapshot {
    /// Connections that are open now.
    pub open_connections: u64,
    /// Connections served since the start, including open ones.
    pub connections: u64,
    /// Connections closed at once because there were too many.
    pub refused_connections: u64,
    /// Connections that ended during negotiation because of garbage, a timeout or a TLS failure.
    pub failed_negotiations: u64,
    /// Requests by command, in the order of [`Command::ALL`].
    pub requests: [u64; Command::ALL.len()],
    /// Requests answered with an error.
    pub errors: u64,
    /// Bytes of successful reads.
    pub read_bytes: u64,
    /// Bytes of successful writes.
    pub written_bytes: u64,
}

impl Metrics {
    /// Returns the counters now.
    pub fn snapshot(&self) -> MetricsSnapshot {
        MetricsSnapshot {
            open_connections: self.open_connections.load(Relaxed),
            connections: self.connections.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            failed_negotiations: self.failed_negotiations.load(Relaxed),
            requests: std::array::from_fn(|command| self.requests[command].load(Relaxed)),
            errors: self.errors.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
        }
    }

    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.open_connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn disconnected(&self) {
        self.open_connections.fetch_sub(1, Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused_connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn negotiation_failed(&self) {
        self.failed_negotiations.fetch_add(1, Relaxed);
    }

    pub(crate) fn requested(&self, command: Command) {
        self.requests[command as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }
}
