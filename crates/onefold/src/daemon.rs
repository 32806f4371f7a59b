//! The faces of the daemon, for commands that run beside it.

use crate::export::VolumeExports;
use crate::failure::Result;
use crate::iscsi::Iscsi;
use onefold_volume::Volumes;
use std::sync::Arc;

/// The faces of a daemon.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Volumes over NBD.
    pub exports: Arc<VolumeExports>,
    /// Volumes over iSCSI, if the daemon serves it.
    pub iscsi: Option<Arc<Iscsi>>,
}

impl Daemon {
    /// Returns the volumes.
    pub fn volumes(&self) -> &Arc<Volumes> {
        self.exports.volumes()
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
