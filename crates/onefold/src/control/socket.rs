//! Where the daemon of a store listens: the Unix socket `control` in the store's directory. A command that finds the
//! store finds the socket.
//!
//! A socket's address holds 107 bytes. A longer path goes through the directory, which is opened first:
//! `/proc/self/fd/N/control` means the same file and is short.

use onefold_ground::Permissions;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The name of the socket in a store.
pub(super) const NAME: &str = "control";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// The address of a socket, with what must stay open while it is used.
#[derive(Debug)]
pub(super) struct Address {
    /// A path that is short enough.
    pub path: PathBuf,
    address: SocketAddrUnix,
    _directory: Option<OwnedFd>,
}

/// Returns the address of a store's socket. `None`: there is no such directory.
pub(super) fn address(directory: &Path) -> io::Result<Option<Address>> {
    let path = directory.join(NAME);
    match SocketAddrUnix::new(&path) {
        Ok(address) => Ok(Some(Address { path, address, _directory: None })),
        Err(Errno::NAMETOOLONG) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = match rustix::fs::open(directory, flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(None),
                opened => opened?,
            };
            let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", opened.as_raw_fd()));
            let address = SocketAddrUnix::new(&path)?;
            Ok(Some(Address { path, address, _directory: Some(opened) }))
        }
        Err(error) => Err(error.into()),
    }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Returns whether members of a group may use the daemon, according to the mode of the store's directory.
pub(super) fn is_shared(directory: &Path) -> io::Result<bool> {
    Ok(Permissions::below(&std::fs::metadata(directory)?).let_group_write())
}

/// Listens. The caller holds the store's lock alone, so an existing socket is left from a daemon that was killed.
pub(super) fn listen(directory: &Path) -> io::Result<UnixListener> {
    remove(directory)?;
    let socket = socket()?;
    // Set before the socket has a name, so that others can never connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = address(directory)?.ok_or(ErrorKind::NotFound)?;
    rustix::net::bind(&socket, &address.address)?;
    // The umask has taken its part of the mode.
    let mode = if is_shared(directory)? { Permissions::SHARED.file } else { Permissions::PRIVATE.file };
    std::fs::set_permissions(directory.join(NAME), std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket, if there is one.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    let path = directory.join(NAME);
    match std::fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(&path),
        Ok(_) => Err(io::Error::new(ErrorKind::AlreadyExists, "its place is taken by something that is not a socket")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Connects to the daemon. `None`: no daemon listens there.
pub(super) fn connect(directory: &Path) -> io::Result<Option<UnixStream>> {
    let Some(address) = address(directory)? else { return Ok(None) };
    let socket = socket()?;
    match rustix::net::connect(&socket, &address.address) {
        Ok(()) => Ok(Some(socket.into())),
        // It does not exist, a killed daemon left it, or it is not a socket.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTSOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meets(directory: &Path) {
        let listener = listen(directory).unwrap();
        let mode = std::fs::symlink_metadata(directory.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(connect(directory).unwrap().is_some());
        drop(listener);
        assert!(connect(directory).unwrap().is_none(), "the socket of a daemon that was killed");
        drop(listen(directory).unwrap());
        remove(directory).unwrap();
        assert!(connect(directory).unwrap().is_none());
    }

    #[test]
    fn a_socket_is_found_whatever_the_length_of_its_path() {
        let place = tempfile::tempdir().unwrap();
        meets(place.path());
        let deep = place.path().join("d".repeat(100)).join("e".repeat(200));
        std::fs::create_dir_all(&deep).unwrap();
        meets(&deep);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join(NAME), "text").unwrap();
        assert!(listen(place.path()).unwrap_err().to_string().contains("not a socket"));
        assert!(connect(place.path()).unwrap().is_none());
        assert_eq!(std::fs::read(place.path().join(NAME)).unwrap(), b"text");
    }
}
