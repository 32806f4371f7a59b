//! The files that the server keeps in its store: a certificate of its own with the key, and the access log.
//!
//! The store's ground makes them. So they belong to the owner of the store, also if root starts the server once.

use crate::failure::{Failure, Result};
use onefold_ground::{Ground, replace_file};
use onefold_remote::accounts::AccessLog;
use onefold_remote::transport::new_certificate;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CERTIFICATE: &str = "backup.pem";
const KEY: &str = "backup.key";
const LOGS: &str = "logs";

/// Returns the files of the store's own certificate and its key. They are made on first use, for a server at these
/// addresses.
///
/// The key is written first. So a key without a certificate was never used, and is replaced.
pub(super) fn certificate(directory: &Path, ground: &dyn Ground, addresses: &[SocketAddr]) -> Result<(PathBuf, PathBuf)> {
    if !ground.exists(CERTIFICATE)? {
        let (certificate, key) = new_certificate(&names(addresses))
            .map_err(|error| Failure::cannot_run(format!("cannot make a certificate: {error}")).advise("give one of your own"))?;
        write_key(directory, ground, key.as_bytes())?;
        replace_file(ground, CERTIFICATE, certificate.as_bytes())?;
    }
    Ok((directory.join(CERTIFICATE), directory.join(KEY)))
}

/// Writes the key. Nobody but its owner may read it, whoever may use the store.
fn write_key(directory: &Path, ground: &dyn Ground, key: &[u8]) -> Result<()> {
    if ground.exists(KEY)? {
        ground.remove(KEY)?;
    }
    let file = ground.create(KEY)?;
    let path = directory.join(KEY);
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(|error| Failure::of_file("protect", &path, error))?;
    file.write_at(0, key)?;
    file.sync()?;
    Ok(())
}

/// Returns the names of a certificate that is made here.
fn names(addresses: &[SocketAddr]) -> Vec<String> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_name = |name: &String| {
        !name.is_empty() && name.len() <= 253 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    let mut names: Vec<String> = Some(host).filter(is_name).into_iter().collect();
    names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    names.extend(addresses.iter().map(SocketAddr::ip).filter(|address| !address.is_unspecified()).map(|address| address.to_string()));
    let mut known = std::collections::HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    names
}

/// Opens the access log in the directory that the settings name, otherwise in the store.
pub(super) fn access_log(directory: &Path, ground: &dyn Ground, elsewhere: Option<&Path>) -> Result<Arc<AccessLog>> {
    let place = elsewhere.map_or_else(|| directory.join(LOGS), Path::to_owned);
    let made = match elsewhere {
        None => {
            ground.create_directory(LOGS)?;
            Ok(())
        }
        Some(place) => match std::fs::DirBuilder::new().mode(0o700).create(place) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        },
    };
    let log = made.and_then(|()| AccessLog::open(&place)).map_err(|error| {
        Failure::cannot_run(format!("cannot write the access log in {}: {error}", place.display()))
            .advise("[backup] logs names another directory, and access_log = false turns it off")
    })?;
    Ok(Arc::new(log))
}
