//! `onefold backup`.

use super::Talk;
use crate::cli::Backup;
use crate::clocks;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Watch;
use crate::store::Store;
use crate::units::{counted, duration, number, printable, rate, size, utc_time};
use crate::waiting::Waiting;
use onefold_catalog::Catalog;
use onefold_client::{BackupOptions, BackupOutcome, ClientError};
use onefold_engine::Mode;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Backs up.
pub fn run(options: &Backup, talk: Talk) -> Result<Exit> {
    refuse_only_missing(&options.paths)?;
    let interrupt = Interrupt::watch()?;
    let store = Store::open_when_free(
        &options.store.directory,
        Mode::ReadWrite,
        "backup",
        &mut Waiting::until(options.store.wait, &interrupt, talk.quiet),
    )?;
    let client_options = BackupOptions {
        name: options.name.clone(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        user: user(),
        paths: options.paths.clone(),
        tags: sorted(options.tags.clone()),
        excludes: options.exclude.clone(),
        one_file_system: options.one_file_system,
        force_read: options.force_read,
        parent: None,
        store_directory: Some(options.store.directory.clone()),
    };
    let watch = Watch::new(talk, interrupt);
    let catalog = Catalog::new(store.engine.clone());
    if let Some(doubt) = clocks::doubt_of_backup(&catalog) {
        watch.warn(&doubt);
    }
    let made = onefold_client::backup(&catalog, &client_options, &watch);
    drop(catalog);
    watch.finish();
    // Whatever happened: what was stored so far is kept, so that a repeated backup is quick.
    let closed = store.close();
    let outcome = made.map_err(|error| match error {
        ClientError::Cancelled => Failure::interrupted("stopped by a signal: no backup was made")
            .advise("run it again: what was stored so far is found again and makes it quicker"),
        error => Failure::from(error),
    })?;
    closed?;
    let mut output = Output::new();
    if options.format.json {
        output.json(&to_json(&outcome, watch.problems_json()))?;
    } else if !talk.quiet {
        print(&mut output, &outcome)?;
    }
    output.finish()?;
    Ok(if outcome.is_complete() { Exit::Done } else { Exit::Partial })
}

fn sorted(mut tags: Vec<String>) -> Vec<String> {
    tags.sort();
    tags.dedup();
    tags
}

/// Of several paths one may be missing: that is said and the rest is backed up. An empty backup is nobody's wish.
fn refuse_only_missing(paths: &[PathBuf]) -> Result<()> {
    let missing = |path: &PathBuf| std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if !paths.iter().all(missing) {
        return Ok(());
    }
    let names: Vec<String> = paths.iter().map(|path| printable(path.as_os_str().as_bytes())).collect();
    Err(Failure::cannot_run(format!("nothing to back up: there is no {}", names.join(", no ")))
        .advise("look for a typing error in the paths"))
}

/// Who makes the backup, for the list of backups: a name if the environment has one, else the number.
fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok().filter(|name| !name.is_empty()));
    named.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string())
}

fn time(outcome: &BackupOutcome) -> Duration {
    let spent = outcome.backup.finished_ns.saturating_sub(outcome.backup.started_ns);
    Duration::from_nanos(u64::try_from(spent).unwrap_or(0))
}

fn to_json(outcome: &BackupOutcome, problems: Value) -> Value {
    let backup = &outcome.backup;
    let statistics = &backup.statistics;
    json!({
        "id": backup.id.to_string(),
        "name": backup.name,
        "sequence": backup.sequence,
        "tags": backup.tags,
        "parent": outcome.parent.map(|id| id.to_string()),
        "started": utc_time(backup.started_ns),
        "finished": utc_time(backup.finished_ns),
        "seconds": time(outcome).as_secs_f64(),
        "files": statistics.files,
        "files_new": statistics.new_files,
        "files_changed": statistics.changed_files,
        "files_unmodified": statistics.unmodified_files,
        "directories": statistics.directories,
        "others": statistics.others,
        "logical_bytes": statistics.logical_bytes,
        "read_bytes": statistics.read_bytes,
        "added_bytes": statistics.added_bytes,
        "stored_bytes": statistics.stored_bytes,
        "errors": outcome.errors,
        "warnings": outcome.warnings,
        "problems": problems,
        "partial": !outcome.is_complete(),
    })
}

fn print(output: &mut Output, outcome: &BackupOutcome) -> Result<()> {
    let backup = &outcome.backup;
    let statistics = &backup.statistics;
    let time = time(outcome);
    output.line(format_args!("backup {} of {}", backup.id, printable(backup.name.as_bytes())))?;
    output.line(format_args!(
        "  files    {} new, {} changed, {} unmodified, in {}",
        number(statistics.new_files),
        number(statistics.changed_files),
        number(statistics.unmodified_files),
        counted(statistics.directories, "directory", "directories"),
    ))?;
    output.line(format_args!(
        "  read     {} of {} in {}, {}",
        size(statistics.read_bytes),
        size(statistics.logical_bytes),
        duration(time),
        rate(statistics.read_bytes, time)
    ))?;
    let compressed = match statistics.added_bytes {
        0 => String::new(),
        _ => format!(", {} compressed", size(statistics.stored_bytes)),
    };
    // Of tiny files the tree may take more than they have: then there is nothing to boast of.
    let ratio = match statistics.added_bytes {
        added if added == 0 || added >= statistics.logical_bytes => String::new(),
        added => format!(", {:.1} times less", statistics.logical_bytes as f64 / added as f64),
    };
    output.line(format_args!("  added    {}{compressed}{ratio}", size(statistics.added_bytes)))?;
    if outcome.errors > 0 {
        let what = counted(outcome.errors, "file or directory is missing", "files or directories are missing");
        output.line(format_args!("  PARTIAL  {what} from this backup: see the errors above"))?;
    }
    Ok(())
}
