//! The faces of the daemon, for commands that run beside it.

use crate::export::VolumeExports;
use crate::failure::Result;
use crate::iscsi::Iscsi;
use crate::mounts::Mounts;
use crate::network::Network;
use onefold_volume::Volumes;
use parking_lot::Mutex;
use std::sync::Arc;

/// The faces of a daemon.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Volumes over NBD.
    pub exports: Arc<VolumeExports>,
    /// Volumes over iSCSI, if the daemon serves it.
    pub iscsi: Option<Arc<Iscsi>>,
    /// Mounted filesystems.
    pub mounts: Arc<Mounts>,
    /// Backups over the network, while the daemon serves them.
    network: Arc<Mutex<Option<Network>>>,
}

impl Daemon {
    /// Returns the faces of a daemon that serves no backups over the network yet.
    pub fn new(exports: Arc<VolumeExports>, iscsi: Option<Arc<Iscsi>>, mounts: Arc<Mounts>) -> Daemon {
        Daemon { exports, iscsi, mounts, network: Arc::default() }
    }

    /// Returns the volumes.
    pub fn volumes(&self) -> &Arc<Volumes> {
        self.exports.volumes()
    }

    /// Returns the server of backups, if there is one.
    pub fn network(&self) -> Option<Network> {
        self.network.lock().clone()
    }

    /// Sets the server of backups.
    pub fn set_network(&self, network: Option<Network>) {
        // Dropped after the lock is free: its end may look here.
        let before = std::mem::replace(&mut *self.network.lock(), network);
        drop(before);
    }

    /// Runs `work` on a volume that no client has open. No client can open it meanwhile.
    pub fn on_unused<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.exports.on_unused(name, || match &self.iscsi {
            Some(iscsi) => iscsi.on_unused(name, work),
            None => work(),
        })
    }

    /// Shows clients the changes that a command may have made to volumes or targets.
    pub fn changed(&self) -> Result<()> {
        self.iscsi.as_ref().map_or(Ok(()), |iscsi| iscsi.refresh())
    }
}
