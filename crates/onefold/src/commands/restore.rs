//! `onefold restore`.

use super::place::{self, Place, Wanted};
use super::{Talk, catalog_path};
use crate::cli::{DamagedFile, OverwriteWhen, Restore};
use crate::console::Terminal;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::{Shown, Watch};
use crate::units::{counted, duration, number, printable, rate, size};
use onefold_catalog::Backup;
use onefold_client::{ClientError, Damaged, Overwrite, RestoreOptions, RestoreOutcome};
use onefold_engine::Mode;
use serde_json::json;
use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Restores files of a backup.
pub fn run(options: &Restore, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    // Shown once the backup is held: until then, writers of the store may have to wait.
    let said = RefCell::new(Vec::new());
    let say = |text: &str| said.borrow_mut().push(text.to_owned());
    let place = match place::server(&options.store.directory, &options.store.connection)? {
        Some(mut server) => Place::There(server.connect(&Terminal::stopped_by(talk, interrupt.clone()))?),
        None => {
            let wanted = Wanted { directory: &options.store.directory, mode: Mode::Snapshot, command: "restore", wait: None };
            Place::open(&wanted, &interrupt, talk, &say)?
        }
    };
    let found = place.find(&options.backup, &|text| {
        if !talk.quiet {
            say(text)
        }
    });
    let held = found.and_then(|meant| place.hold(&meant.backup).map(|()| meant));
    said.take().iter().for_each(note);
    let meant = held?;
    let backup = &meant.backup;
    let _watching = place.watch(&interrupt, "stopped by a signal: the restore is not complete");
    let client_options = client_options(options);
    let began = Instant::now();
    let mut watch = Watch::new(talk, interrupt, Shown::of(talk, options.progress, options.format.json));
    if options.dry_run && !options.format.json {
        watch = watch.listing_plan();
    }
    let restored = onefold_client::restore(&*place.repository(), backup, &client_options, &watch);
    watch.finish();
    let outcome = restored.map_err(|error| match error {
        ClientError::Cancelled => {
            Failure::interrupted("stopped by a signal: the restore is not complete").advise("run it again: it skips what is already there")
        }
        error @ ClientError::Connection(_) => Failure::from(error).advise("run it again: it skips what is already there"),
        error => Failure::from(error),
    })?;
    let time = began.elapsed();
    let mut output = Output::new();
    if options.format.json {
        output.json(&json!({
            "backup": backup.id.to_string(),
            "backup_errors": backup.statistics.errors,
            "dry_run": options.dry_run,
            "files": outcome.files,
            "files_kept": outcome.kept_files,
            "files_in_the_way": outcome.in_the_way,
            "files_damaged": outcome.damaged_files,
            "directories": outcome.directories,
            "others": outcome.others,
            "deleted": outcome.deleted,
            "bytes": outcome.written_bytes,
            "seconds": time.as_secs_f64(),
            "errors": outcome.errors,
            "warnings": outcome.warnings,
            "problems": watch.problems_json(),
            "partial": !outcome.is_complete(),
        }))?;
    } else if !talk.quiet {
        print(&mut output, options, backup, &outcome, time)?;
    }
    output.finish()?;
    drop(meant);
    place.close()?;
    Ok(if outcome.is_complete() { Exit::Done } else { Exit::Partial })
}

fn client_options(options: &Restore) -> RestoreOptions {
    RestoreOptions {
        target: options.target.clone(),
        paths: options.paths.iter().map(|path| catalog_path(path)).collect(),
        include: options.include.clone(),
        exclude: options.exclude.clone(),
        strip_components: options.strip_components,
        overwrite: match options.overwrite {
            OverwriteWhen::Never => Overwrite::Never,
            OverwriteWhen::IfChanged => Overwrite::IfChanged,
            OverwriteWhen::Always => Overwrite::Always,
        },
        damaged: match options.damaged {
            DamagedFile::Skip => Damaged::Skip,
            DamagedFile::Zero => Damaged::Zero,
            DamagedFile::Fail => Damaged::Fail,
        },
        delete: options.delete,
        dry_run: options.dry_run,
        store_directory: place::local_directory(&options.store.directory),
    }
}

fn print(output: &mut Output, options: &Restore, backup: &Backup, outcome: &RestoreOutcome, time: Duration) -> Result<()> {
    let (id, target) = (backup.id.short(), printable(options.target.as_os_str().as_bytes()));
    match options.dry_run {
        true => output.line(format_args!("would restore backup {id} to {target}; nothing was changed"))?,
        false => output.line(format_args!("restored backup {id} to {target}"))?,
    }
    let written = match outcome.others {
        0 => number(outcome.files),
        others => format!("{} and {}", number(outcome.files), counted(others, "link or device", "links and devices")),
    };
    let directories = counted(outcome.directories, "directory", "directories");
    output.line(format_args!("  files    {written} written, in {directories}"))?;
    if outcome.kept_files > 0 {
        output.line(format_args!("  kept     {} that {} equal already", number(outcome.kept_files), was_or_were(outcome.kept_files)))?;
    }
    if outcome.deleted > 0 {
        output.line(format_args!("  deleted  {}", counted(outcome.deleted, "file or directory", "files and directories")))?;
    }
    let amount = size(outcome.written_bytes);
    match options.dry_run {
        true => output.line(format_args!("  bytes    {amount}"))?,
        false => output.line(format_args!("  written  {amount} in {}, {}", duration(time), rate(outcome.written_bytes, time)))?,
    }
    if outcome.errors == 0 {
        return Ok(());
    }
    let what = counted(outcome.errors, "file or directory is", "files or directories are");
    output.line(format_args!("  PARTIAL  {what} not as in the backup: see the errors above"))?;
    if outcome.damaged_files > 0 {
        let what = counted(outcome.damaged_files, "file has", "files have");
        output.line(format_args!("           {what} zeros in place of lost bytes and the name NAME.onefold-damaged"))?;
    }
    if outcome.in_the_way > 0 {
        let what = counted(outcome.in_the_way, "file that differs is in the way", "files that differ are in the way");
        let how = "--overwrite if-changed or always replaces files, and nothing replaces a directory";
        output.line(format_args!("           {what}: {how}"))?;
    }
    Ok(())
}

fn was_or_were(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}
