//! Volumes that are being erased. Whoever opens or changes a volume asks here first.

use crate::failure::{Failure, Result};
use crate::units::printable;
use onefold_engine::Engine;
use onefold_targets::kept_sanitize;
use onefold_volume::Volumes;

/// Refuses to change a volume's size or content during an erasure. Otherwise the erasure would fail for good, or miss
/// data that was not there when it began.
pub fn check_not_being_erased(engine: &Engine, volumes: &Volumes, name: &str) -> Result<()> {
    let number = volumes.list().into_iter().find(|info| info.name == name).map(|info| info.number);
    let Some(kept) = number.map(|number| kept_sanitize(engine, number)).transpose()?.flatten() else { return Ok(()) };
    let name = printable(name.as_bytes());
    Err(if kept.has_failed {
        Failure::failed(format!("an erasure (SANITIZE) of volume {name} has failed"))
            .advise("let an initiator erase it again or clear the failure, for example with `sg_sanitize`; or delete the volume")
    } else {
        Failure::failed(format!("volume {name} is being erased (SANITIZE)"))
            .advise("wait until that is done (it continues while the volume is served over iSCSI), or delete the volume")
    })
}
