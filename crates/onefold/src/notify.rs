//! Tells the service manager that the daemon is ready, and that it stops (`sd_notify(3)`): a datagram to the socket
//! that `NOTIFY_SOCKET` names.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// The environment variable that names the socket: a path, or `@` and an abstract name.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// Where to say it. `None`: no service manager listens.
#[derive(Clone, Debug)]
pub struct Notifier(Option<OsString>);

impl Notifier {
    /// Returns the one of this process.
    pub fn of_environment() -> Notifier {
        Notifier(std::env::var_os(VARIABLE).filter(|name| !name.is_empty()))
    }

    /// The daemon serves.
    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// The daemon stops.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, what: &str) {
        if let Some(name) = &self.0
            && let Err(error) = send(name, what)
        {
            tracing::warn!("cannot tell the service manager {what}: {error}");
        }
    }
}

fn send(name: &OsStr, what: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, what.as_bytes(), SendFlags::NOSIGNAL, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn hears(receiver: &UnixDatagram, name: &OsStr) {
        let notifier = Notifier(Some(name.to_owned()));
        notifier.ready();
        notifier.stopping();
        let mut buffer = [0; 64];
        for expected in ["READY=1", "STOPPING=1"] {
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected.as_bytes());
        }
    }

    #[test]
    fn the_service_manager_hears_it_at_a_path_and_at_an_abstract_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        hears(&UnixDatagram::bind(&path).unwrap(), path.as_os_str());
        let name = format!("onefold-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        hears(&UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&format!("@{name}")));
        Notifier(None).ready();
        Notifier(Some(place.path().join("nobody").into())).ready();
    }
}
