//! The listening sockets, and the connections they accept.

use crate::tls::Wire;
use crate::{Listen, NbdError, Result};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

/// Connections waiting to be accepted. The system may have a lower limit of its own.
const BACKLOG: i32 = 1024;

/// A TCP keepalive probe is sent when a connection was silent for this long ...
const KEEPALIVE_IDLE: std::time::Duration = std::time::Duration::from_secs(60);
/// ... and again after this long ...
const KEEPALIVE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
/// ... and the connection is closed after this many without an answer. Otherwise a client that lost power would keep
/// its place for ever.
const KEEPALIVE_PROBES: u32 = 6;

/// A listening socket.
pub(crate) struct Listener {
    address: Listen,
    socket: Socket,
    /// The socket file, removed with the listener.
    _file: Option<SocketFile>,
}

enum Socket {
    /// Not yet in a tokio runtime; see [`Listener::start`].
    Bound(Bound),
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
    Taken,
}

/// A connection.
pub(crate) enum Accepted {
    Tcp(tokio::net::TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Listener {
    pub fn bind(listen: &Listen, socket_mode: u32) -> Result<Listener> {
        let failed = |source| NbdError::Listen { address: listen.to_string(), source };
        let (address, bound, file) = match listen {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                // The standard library listens with a backlog of 128. Listening again changes it.
                rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
                (Listen::Tcp(listener.local_addr().map_err(failed)?), Bound::Tcp(listener), None)
            }
            Listen::Unix(path) => {
                remove_stale(path).map_err(failed)?;
                let listener = bind_unix(path, socket_mode).map_err(failed)?;
                let file = SocketFile::new(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
                (listen.clone(), Bound::Unix(listener), Some(file))
            }
        };
        Ok(Listener { address, socket: Socket::Bound(bound), _file: file })
    }

    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Joins the current tokio runtime.
    pub fn start(&mut self) -> Result<()> {
        let failed = |source| NbdError::Listen { address: self.address.to_string(), source };
        if let Socket::Bound(bound) = &mut self.socket {
            self.socket = match std::mem::replace(bound, Bound::Taken) {
                Bound::Tcp(listener) => Socket::Tcp(tokio::net::TcpListener::from_std(listener).map_err(failed)?),
                Bound::Unix(listener) => Socket::Unix(tokio::net::UnixListener::from_std(listener).map_err(failed)?),
                Bound::Taken => return Ok(()),
            };
        }
        Ok(())
    }

    pub fn poll_accept(&self, task: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match &self.socket {
            Socket::Bound(_) => Poll::Pending,
            Socket::Tcp(listener) => listener.poll_accept(task).map_ok(|(stream, peer)| Accepted::Tcp(stream, peer)),
            Socket::Unix(listener) => listener.poll_accept(task).map_ok(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

/// Creates a socket with its mode. At no moment before can others connect to it.
fn bind_unix(path: &Path, mode: u32) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket.into())
}

impl Accepted {
    /// Returns whether the client is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Accepted::Tcp(_, peer) => peer.ip().to_canonical().is_loopback(),
            Accepted::Unix(_) => true,
        }
    }

    /// Returns whether the connection came through a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, Accepted::Unix(_))
    }

    /// Returns the client, for the log.
    pub fn peer(&self) -> String {
        match self {
            Accepted::Tcp(_, peer) => peer.to_string(),
            Accepted::Unix(_) => "local".to_owned(),
        }
    }

    /// Returns the stream, tuned so that replies are sent at once and dead clients are noticed. If the system refuses
    /// an option, the stream works without it.
    pub fn into_stream(self) -> Box<dyn Wire> {
        match self {
            Accepted::Tcp(stream, _) => {
                let _ = stream.set_nodelay(true);
                let _ = sockopt::set_socket_keepalive(&stream, true);
                let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE);
                let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL);
                let _ = sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES);
                Box::new(stream)
            }
            Accepted::Unix(stream) => Box::new(stream),
        }
    }
}

/// Removes a socket without a listener. Leaves anything else, so that binding fails.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// The file of a Unix socket, removed when dropped if it is still the same.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
