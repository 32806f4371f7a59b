//! The backup that was named on the command line.

use crate::failure::Result;
use crate::units::{counted, local_time, printable};
use onefold_catalog::{Backup, Catalog, Found};

/// Looks up the requested backup. Says so if it is partial, or if a newer one was skipped because it is partial.
pub(super) fn chosen(catalog: &Catalog, asked: &str, note: &dyn Fn(&str)) -> Result<Backup> {
    let Found { backup, newer_partial } = catalog.look_up(asked)?;
    if let Some(partial) = newer_partial {
        note(&format!(
            "note: {} is taken, the newest complete backup; a newer one, {}, is partial: {} from it. `latest-any` takes that one",
            facts(&backup),
            facts(&partial),
            missing(&partial)
        ));
    } else if backup.is_partial() {
        note(&format!("warning: backup {} is partial: {} from it", facts(&backup), missing(&backup)));
    }
    Ok(backup)
}

fn facts(backup: &Backup) -> String {
    format!("{} of {} ({})", backup.id.short(), printable(backup.name.as_bytes()), local_time(backup.started_ns))
}

/// Returns what is missing from a partial backup.
pub(super) fn missing(backup: &Backup) -> String {
    counted(backup.statistics.errors, "file or directory is missing", "files or directories are missing")
}
