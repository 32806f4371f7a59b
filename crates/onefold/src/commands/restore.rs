//! `onefold restore`.

use super::chosen::chosen;
use super::{Talk, catalog_path};
use crate::cli::{OverwriteWhen, Restore};
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::{Shown, Watch};
use crate::store::{SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::units::{counted, duration, number, rate, size};
use onefold_catalog::Catalog;
use onefold_client::{ClientError, Overwrite, RestoreOptions};
use serde_json::json;
use std::time::Instant;

/// Brings files of a backup back.
pub fn run(options: &Restore, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    let ground = ground(&options.store.directory)?;
    let settings = read_settings(&options.store.directory.join(SETTINGS_FILE), true)?;
    let store = Store::open_as_of_now(ground, settings, "restore", &|text| note(text)).map_err(cannot_open)?;
    let catalog = Catalog::new(store.engine.clone());
    let _in_flight = store.engine.in_flight();
    let backup = chosen(&catalog, &options.backup, &|text| {
        if !talk.quiet {
            note(text)
        }
    })?;
    catalog.hold(&[&backup])?;
    let client_options = RestoreOptions {
        target: options.target.clone(),
        root: Vec::new(),
        paths: options.paths.iter().map(|path| catalog_path(path)).collect(),
        overwrite: match options.overwrite {
            OverwriteWhen::Never => Overwrite::Never,
            OverwriteWhen::IfChanged => Overwrite::IfChanged,
            OverwriteWhen::Always => Overwrite::Always,
        },
    };
    let began = Instant::now();
    let watch = Watch::new(talk, interrupt, Shown::of(talk, false, false));
    let restored = onefold_client::restore(&catalog, &backup, &client_options, &watch);
    watch.finish();
    let outcome = restored.map_err(|error| match error {
        ClientError::Cancelled => Failure::interrupted("stopped by a signal: the restore is not complete")
            .advise("run it again with --overwrite if-changed: what is there already is left as it is"),
        error => Failure::from(error),
    })?;
    let time = began.elapsed();
    let mut output = Output::new();
    if options.format.json {
        output.json(&json!({
            "backup": backup.id.to_string(),
            "backup_errors": backup.statistics.errors,
            "files": outcome.files,
            "files_kept": outcome.kept_files,
            "directories": outcome.directories,
            "others": outcome.others,
            "bytes": outcome.written_bytes,
            "seconds": time.as_secs_f64(),
            "errors": outcome.errors,
            "warnings": outcome.warnings,
            "problems": watch.problems_json(),
            "partial": !outcome.is_complete(),
        }))?;
    } else if !talk.quiet {
        output.line(format_args!("restored backup {} to {}", backup.id.short(), options.target.display()))?;
        output.line(format_args!(
            "  files    {} in {}, {} were the same already",
            number(outcome.files),
            counted(outcome.directories, "directory", "directories"),
            number(outcome.kept_files)
        ))?;
        output.line(format_args!(
            "  written  {} in {}, {}",
            size(outcome.written_bytes),
            duration(time),
            rate(outcome.written_bytes, time)
        ))?;
        if outcome.errors > 0 {
            let what = counted(outcome.errors, "file or directory was", "files or directories were");
            output.line(format_args!("  PARTIAL  {what} not restored: see the errors above"))?;
            if options.overwrite == OverwriteWhen::Never {
                output.line("           what exists is left alone; --overwrite if-changed or always replaces it")?;
            }
        }
    }
    output.finish()?;
    store.close()?;
    Ok(if outcome.is_complete() { Exit::Done } else { Exit::Partial })
}
