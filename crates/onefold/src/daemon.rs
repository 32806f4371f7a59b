//! What the daemon serves, for commands that run beside it.

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
    /// Volumes over iSCSI, if they are served so.
    pub iscsi: Option<Arc<Iscsi>>,
}

impl Daemon {
    /// The volumes.
    pub fn volumes(&self) -> &Arc<Volumes> {
        self.exports.volumes()
    }

    /// Does something to a volume that no client has open; none can open one meanwhile.
    pub fn on_unused<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.exports.on_unused(name, || match &self.iscsi {
            Some(iscsi) => iscsi.on_unused(name, work),
            None => work(),
        })
    }

    /// A command may have changed volumes or targets: clients see it from now on.
    pub fn changed(&self) -> Result<()> {
        self.iscsi.as_ref().map_or(Ok(()), |iscsi| iscsi.refresh())
    }
}
