//! The configuration of a server: where to listen, whom to trust, and its limits.

use crate::wire::MAX_PAYLOAD_BYTES;
use crate::{NbdError, Result};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The configuration of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; at least one address. The port registered for NBD is 10809.
    pub listen: Vec<Listen>,
    /// Encryption of TCP connections. Connections through Unix sockets may use it too, but never have to.
    pub tls: Tls,
    /// Whether to serve clients on other machines that do not use TLS.
    pub allow_plain_off_loopback: bool,
    /// Limits and timeouts.
    pub limits: Limits,
    /// Mode of Unix sockets, independent of the umask.
    pub socket_mode: u32,
}

impl Config {
    /// Returns the configuration for one address, without TLS, with the default limits.
    pub fn new(listen: Listen) -> Config {
        Config { listen: vec![listen], tls: Tls::Off, allow_plain_off_loopback: false, limits: Limits::default(), socket_mode: 0o600 }
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP. With port 0 the system chooses a port.
    Tcp(SocketAddr),
    /// A Unix socket. A file left behind by a dead server is replaced. [`Config::socket_mode`] decides who may connect.
    Unix(PathBuf),
}

/// A listening address, with the port that the system chose.
pub type LocalAddress = Listen;

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Whether connections are encrypted (TLS 1.2 and 1.3 with X.509 certificates).
#[derive(Clone, Debug)]
pub enum Tls {
    /// Never.
    Off,
    /// If the client wants it. A client on another machine must use it, unless [`Config::allow_plain_off_loopback`].
    Optional(TlsFiles),
    /// TCP clients must use it.
    Required(TlsFiles),
}

/// The files of a server with TLS, in PEM format.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, followed by the certificates between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities. If given, clients must show a certificate signed by one of them.
    pub client_authorities: Option<PathBuf>,
}

/// Limits of a server. With them, clients can slow each other down but cannot bring the server down.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time. Further ones are closed as soon as they are accepted. 256.
    pub connections: usize,
    /// Requests of one connection that run or wait for their reply to be sent. Further ones are not read. 1 to 4096;
    /// 32.
    pub requests_per_connection: usize,
    /// Requests of all connections that run at the same time, each on a thread. 1 to 512; 32.
    pub parallel_requests: usize,
    /// Payload bytes that the requests of one connection hold in memory. At least [`MAX_PAYLOAD_BYTES`]; 64 MiB.
    pub bytes_per_connection: usize,
    /// Payload bytes that all requests together hold in memory, beyond `reserved_bytes_per_connection`. At least
    /// [`MAX_PAYLOAD_BYTES`]; 256 MiB.
    pub bytes: usize,
    /// Payload bytes that each connection may hold even if others use all `bytes`, so requests up to this size always
    /// proceed. At least 256 KiB, at most `bytes_per_connection`; 256 KiB.
    pub reserved_bytes_per_connection: usize,
    /// The time from the start of a connection to the choice of an export. 10 s.
    pub negotiation_timeout: Duration,
    /// How long a client may send nothing of a payload, or take nothing of a reply. The whole transfer may take this
    /// long plus one second per 256 KiB. 30 s.
    pub transfer_timeout: Duration,
    /// At shutdown, how long requests in flight may take, and then again flushing the exports. 30 s.
    pub shutdown_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 256,
            requests_per_connection: 32,
            parallel_requests: 32,
            bytes_per_connection: 64 << 20,
            bytes: 256 << 20,
            reserved_bytes_per_connection: 256 << 10,
            negotiation_timeout: Duration::from_secs(10),
            transfer_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// Refuses limits that cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |name, value: usize, low: usize, high: usize, must| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(NbdError::Limit { name, value: value as u64, must }) }
        };
        let largest = MAX_PAYLOAD_BYTES as usize;
        within("connections", self.connections, 1, 1 << 20, "1 to 1048576")?;
        within("requests_per_connection", self.requests_per_connection, 1, 4096, "1 to 4096")?;
        within("parallel_requests", self.parallel_requests, 1, 512, "1 to 512")?;
        within("bytes_per_connection", self.bytes_per_connection, largest, 1 << 40, "32 MiB to 1 TiB")?;
        within("bytes", self.bytes, largest, 1 << 40, "32 MiB to 1 TiB")?;
        let reserved = self.reserved_bytes_per_connection;
        within("reserved_bytes_per_connection", reserved, 256 << 10, self.bytes_per_connection, "256 KiB to bytes_per_connection")
    }

    /// Returns how long the transfer of `bytes` may take.
    pub(crate) fn transfer(&self, bytes: usize) -> Duration {
        self.transfer_timeout + Duration::from_millis((bytes / 262) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_cannot_work_are_refused_by_name() {
        assert!(Limits::default().check().is_ok());
        let refused = Limits { bytes: 1 << 20, ..Limits::default() }.check().unwrap_err();
        assert!(refused.to_string().contains("bytes is 1048576"), "{refused}");
        assert!(Limits { connections: 0, ..Limits::default() }.check().is_err());
        assert!(Limits { parallel_requests: 513, ..Limits::default() }.check().is_err());
    }

    #[test]
    fn a_large_transfer_may_take_longer() {
        let limits = Limits::default();
        assert_eq!(limits.transfer(0), Duration::from_secs(30));
        assert_eq!(limits.transfer(32 << 20).as_secs(), 30 + 128);
    }
}
