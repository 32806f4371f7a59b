//! The backup or volume that the command line names.

use crate::failure::{Failure, Result};
use crate::units::{counted, local_time, printable};
use onefold_catalog::{Backup, Catalog, Found};
use onefold_ground::words::nearest;
use onefold_volume::{Volume, VolumeError, Volumes};
use std::sync::Arc;

/// Looks up the requested backup. Says so if it is partial, or if a newer one was skipped because it is partial.
pub(super) fn chosen(catalog: &Catalog, asked: &str, note: &dyn Fn(&str)) -> Result<Backup> {
    let Found { backup, newer_partial } = catalog.look_up(asked)?;
    say_what_is_meant(&backup, newer_partial.as_ref(), note);
    Ok(backup)
}

/// Says if a backup is partial, or if a newer one was skipped because it is partial.
pub(super) fn say_what_is_meant(backup: &Backup, newer_partial: Option<&Backup>, note: &dyn Fn(&str)) {
    if let Some(partial) = newer_partial {
        note(&format!(
            "note: using {}, the newest complete backup; a newer one, {}, is partial: {} from it. `latest-any` selects that one",
            facts(backup),
            facts(partial),
            missing(partial)
        ));
    } else if backup.is_partial() {
        note(&format!("warning: backup {} is partial: {} from it", facts(backup), missing(backup)));
    }
}

fn facts(backup: &Backup) -> String {
    format!("{} of {} ({})", backup.id.short(), printable(backup.name.as_bytes()), local_time(backup.started_ns))
}

/// Returns what is missing from a partial backup.
pub(super) fn missing(backup: &Backup) -> String {
    counted(backup.statistics.errors, "file or directory is missing", "files or directories are missing")
}

/// Returns the volume of a name. If there is none, the error suggests the nearest name.
pub(super) fn chosen_volume(volumes: &Volumes, name: &str) -> Result<Arc<Volume>> {
    volumes.get(name).map_err(|error| {
        let list = volumes.list();
        match nearest(name, list.iter().map(|info| info.name.as_str())) {
            Some(near) if matches!(error, VolumeError::NotFound { .. }) => Failure::failed(error)
                .advise(format!("did you mean {}? `onefold volume list` lists the volumes", printable(near.as_bytes()))),
            _ => Failure::from(error),
        }
    })
}
