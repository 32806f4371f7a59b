//! What a node keeps of itself on its machine: its number, its certificate, and the key.
//!
//! All of it is in one file, which only the owner of the process can read. It is replaced as a whole. It is durable
//! before the number is asked for in the bucket: so a number that was taken is never lost with its key.

use crate::{NodeError, Result};
use onefold_cluster::NodeNumber;
use onefold_interconnect::Identity;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const HEAD: &str = "onefold-identity 1";
/// Nobody but the owner reads it.
const MODE: u32 = 0o600;
const NAME: &str = "identity.pem";
const NEW_NAME: &str = "identity.pem.new";

/// A number with what proves that it is this node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnIdentity {
    pub(crate) node: NodeNumber,
    /// Certificate and key (PEM).
    pem: String,
}

impl OwnIdentity {
    /// Makes a key and a certificate for a number.
    pub(crate) fn make(node: NodeNumber, store: &[u8; 16]) -> Result<OwnIdentity> {
        let (certificate, key) = Identity::make(node.0, store)?;
        Ok(OwnIdentity { node, pem: format!("{}\n{}\n", certificate.trim_end(), key.trim_end()) })
    }

    /// Returns certificate and key, as connections need them.
    pub(crate) fn parse(&self) -> Result<Identity> {
        Ok(Identity::from_pem(&self.pem, &self.pem)?)
    }
}

/// The directory of a node.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    directory: PathBuf,
    store: [u8; 16],
}

impl Home {
    /// Uses a directory, which it makes if there is none.
    pub(crate) fn new(directory: &Path, store: [u8; 16]) -> Result<Home> {
        std::fs::create_dir_all(directory).map_err(|source| NodeError::Local { path: directory.to_owned(), source })?;
        Ok(Home { directory: directory.to_owned(), store })
    }

    fn head(&self, node: NodeNumber) -> String {
        format!("{HEAD}\nstore {:032x}\nnode {node}\n", u128::from_be_bytes(self.store))
    }

    /// Returns what was kept. Whether the number is really this node's, the bucket says.
    ///
    /// Errors: the file cannot be read, is damaged, or is of another store.
    pub(crate) fn load(&self) -> Result<Option<OwnIdentity>> {
        let path = self.directory.join(NAME);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|source| NodeError::Local { path: path.clone(), source })?,
        };
        let damaged = |why: &str| NodeError::Damaged { path: path.display().to_string(), why: why.to_owned() };
        let number = text.lines().nth(2).and_then(|line| line.strip_prefix("node ")).and_then(|number| number.parse::<u32>().ok());
        let node = NodeNumber(number.ok_or_else(|| damaged("it has no number of a node"))?);
        let Some(pem) = text.strip_prefix(&self.head(node)) else {
            return Err(damaged("it is of another store, or of another version"));
        };
        let identity = OwnIdentity { node, pem: pem.to_owned() };
        identity.parse().map_err(|error| damaged(&error.to_string()))?;
        Ok(Some(identity))
    }

    /// Keeps an identity in place of the one before. Durable on return.
    pub(crate) fn keep(&self, identity: &OwnIdentity) -> Result<()> {
        let (path, new) = (self.directory.join(NAME), self.directory.join(NEW_NAME));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(&new)?;
            // The file may have been there, with other rights.
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.write_all(self.head(identity.node).as_bytes())?;
            file.write_all(identity.pem.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| NodeError::Local { path: path.clone(), source })
    }

    /// Forgets the number: the node has left, or its log is closed.
    pub(crate) fn forget(&self) -> Result<()> {
        let path = self.directory.join(NAME);
        let removed = match std::fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| File::open(&self.directory)?.sync_all()),
        };
        removed.map_err(|source| NodeError::Local { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_for_its_owner_only_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(&directory.path().join("node"), [1; 16]).unwrap();
        assert_eq!(home.load().unwrap(), None);
        let identity = OwnIdentity::make(NodeNumber(3), &[1; 16]).unwrap();
        home.keep(&identity).unwrap();
        assert_eq!(home.load().unwrap().as_ref(), Some(&identity));
        let path = directory.path().join("node").join(NAME);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        // Whatever was left there before.
        std::fs::write(directory.path().join("node").join(NEW_NAME), "x").unwrap();
        let other = OwnIdentity::make(NodeNumber(4), &[1; 16]).unwrap();
        home.keep(&other).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        let loaded = home.load().unwrap().unwrap();
        assert_eq!((loaded.node, loaded.parse().unwrap().fingerprint()), (NodeNumber(4), other.parse().unwrap().fingerprint()));
        home.forget().unwrap();
        home.forget().unwrap();
        assert_eq!(home.load().unwrap(), None);
    }

    #[test]
    fn a_file_of_another_store_or_a_damaged_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path(), [1; 16]).unwrap();
        home.keep(&OwnIdentity::make(NodeNumber(3), &[1; 16]).unwrap()).unwrap();
        let error = Home::new(directory.path(), [2; 16]).unwrap().load().unwrap_err().to_string();
        assert!(error.contains("another store"), "{error}");
        let path = directory.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [&text[..40], "", &text.replace("BEGIN", "BEGUN"), &text.replace("node 3", "node -3")] {
            std::fs::write(&path, damaged).unwrap();
            assert!(matches!(home.load(), Err(NodeError::Damaged { .. })), "{damaged:?}");
        }
    }
}
