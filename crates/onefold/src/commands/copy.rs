//! `onefold copy`: backups and volumes into another store.

mod volumes;

use super::{Request, Talk, find_doer, init};
use crate::bucket;
use crate::cli::Copy;
use crate::console::{Keeping, Terminal};
use crate::control::Ran;
use crate::failure::{Exit, Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Output, note};
use crate::progress::bar;
use crate::settings;
use crate::store::{SETTINGS_FILE, Store, cannot_open, ground, read_settings};
use crate::units::{counted, duration, printable, size};
use crate::waiting::{InUse, Waiting};
use indicatif::ProgressBar;
use onefold_catalog::{Backup, BackupId, Catalog, CatalogError};
use onefold_copy::{BackupOutcome, Backups, CopyError, Moved, Problem};
use onefold_engine::{Descriptor, Engine, EngineError, Mode, random_name};
use onefold_fs::Filesystems;
use onefold_ground::words::nearest;
use onefold_volume::Volumes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use volumes::Reply;

pub use volumes::CopyVolumes;

/// Shows the progress, and stops the work when a signal comes.
struct Watch {
    bar: ProgressBar,
    interrupt: Interrupt,
}

impl onefold_copy::Monitor for Watch {
    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.came()
    }
}

/// The result.
#[derive(Default)]
struct Done {
    copied: Vec<Backup>,
    there: u64,
    /// Backups that were not copied, each with its first problems.
    damaged: Vec<(Backup, Vec<Problem>)>,
    moved: Moved,
    volumes: Reply,
    /// Why some backups or volumes could not even be listed, and filesystems.
    left_out: Vec<String>,
}

impl Done {
    fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.volumes.problems.is_empty() && self.left_out.is_empty()
    }

    fn leave_out(&mut self, problem: String) {
        if !self.left_out.contains(&problem) {
            note(format_args!("error: left out: {problem}"));
            self.left_out.push(problem);
        }
    }
}

/// Copies what the options name. First come the backups, as of a moment, beside any writer of the store. Then come the
/// volumes, as of a moment. A daemon that has the store open copies them, otherwise this process. Between the two steps
/// neither store is open: a command that waits for one store never holds the other.
pub fn run(options: &Copy, talk: Talk) -> Result<Exit> {
    let interrupt = Interrupt::watch()?;
    let began = Instant::now();
    let directory = &options.store.directory;
    let source = Store::open(directory, Mode::Snapshot, "copy")?;
    let chosen = choose(options, &source)?;
    let destination = open_destination(options, &source, &interrupt, talk)?;
    let total = chosen.backups.iter().map(|backup| backup.statistics.logical_bytes).sum();
    let watch = Watch { bar: bar(talk, total), interrupt: interrupt.clone() };
    let mut done = Done::default();
    chosen.left_out.iter().for_each(|problem| done.leave_out(problem.clone()));
    let to_store = destination.engine.descriptor().store;
    let mut copied = if talk.quiet { Ok(()) } else { warn_of_newer(options, &chosen, &destination) };
    copied = copied.and_then(|()| copy_all_backups(&source, &destination, &chosen, &watch, &mut done));
    copied = copied.and(source.close()).and(destination.close());
    if copied.is_ok() && !chosen.volumes.is_empty() {
        copied = copy_all_volumes(options, &chosen, to_store, talk, &watch, &mut done);
    }
    watch.bar.finish_and_clear();
    copied?;
    report(options, talk, &done, began.elapsed())?;
    Ok(if done.is_whole() { Exit::Done } else { Exit::Partial })
}

/// What to copy.
struct Chosen {
    /// The oldest first.
    backups: Vec<Backup>,
    /// Until when they are protected.
    protected: HashMap<BackupId, i64>,
    /// Names.
    volumes: Vec<String>,
    /// All backups of the source, chosen or not.
    known: HashSet<BackupId>,
    /// The greatest sequence of each name in the source.
    newest: HashMap<String, u64>,
    /// Whether everything was asked for.
    is_whole: bool,
    /// Damage that kept backups or volumes from being chosen, and filesystems.
    left_out: Vec<String>,
}

fn choose(options: &Copy, source: &Store) -> Result<Chosen> {
    let catalog = Catalog::new(source.engine.clone());
    let is_whole = options.backups.is_empty() && options.names.is_empty() && options.volumes.is_empty();
    let wanted: HashSet<_> = options.backups.iter().map(|asked| Ok(catalog.find(asked)?.id)).collect::<Result<_>>()?;
    let (mut backups, damage) = catalog.list_sound()?;
    // Backups named by their ids were found.
    let damage = damage.filter(|_| is_whole || !options.names.is_empty());
    let mut left_out: Vec<String> = damage.iter().map(CatalogError::to_string).collect();
    if let Some(name) = options.names.iter().find(|name| !backups.iter().any(|backup| backup.name == **name)) {
        let failure = Failure::failed(format!("no backups have the name `{}`", printable(name.as_bytes())));
        let near = nearest(name, backups.iter().map(|backup| backup.name.as_str())).map(|near| printable(near.as_bytes()));
        return Err(near.map_or(failure.clone(), |near| failure.advise(format!("did you mean `{near}`?"))));
    }
    let known = backups.iter().map(|backup| backup.id).collect();
    let newest = backups.iter().map(|backup| (backup.name.clone(), backup.sequence)).collect();
    backups.retain(|backup| is_whole || wanted.contains(&backup.id) || options.names.contains(&backup.name));
    let protected = catalog.protected()?;
    let mut volumes = options.volumes.clone();
    if is_whole || !volumes.is_empty() {
        let opened = Volumes::open(source.engine.clone(), source.volumes_options())?;
        for name in &options.volumes {
            super::chosen::chosen_volume(&opened, name)?;
        }
        if is_whole {
            volumes = opened.list().into_iter().map(|info| info.name).collect();
            left_out.extend_from_slice(opened.damaged());
            let others = Filesystems::of(Arc::clone(opened.spaces()), source.filesystem_options()).list();
            left_out
                .extend(others.iter().map(|info| format!("filesystem {}: filesystems are not copied", printable(info.name.as_bytes()))));
        }
    }
    // From here on, only their chunks are read, so no writer waits.
    catalog.hold(&backups.iter().collect::<Vec<_>>())?;
    Ok(Chosen { backups, protected, volumes, known, newest, is_whole, left_out })
}

/// Opens the other store. Creates it first if the options ask for that.
fn open_destination(options: &Copy, source: &Store, interrupt: &Interrupt, talk: Talk) -> Result<Store> {
    let directory = &options.to;
    let is_empty = match bucket::has_store(directory)? {
        Some(has_store) => !has_store,
        None => std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none()),
    };
    if options.init && is_empty {
        let descriptor = Descriptor { store: random_name()?, ..source.engine.descriptor().clone() };
        // The copy has as many containers, so it needs as many hooks.
        let sampled_index_bytes = (!descriptor.profile.is_exact()).then_some(source.settings.engine.sampled_index_bytes as u64);
        init::create(
            directory,
            &descriptor,
            &settings::template(&sampled_index_bytes.map(settings::sampled_index).into_iter().collect::<Vec<_>>()),
            None,
            None,
        )?;
        if !talk.quiet {
            note(format_args!("made store {}", bucket::shown(directory)));
        }
    } else if is_empty {
        return Err(Failure::cannot_run(format!("there is no store at {}", bucket::shown(directory)))
            .advise("--init creates one with the settings of this store; `onefold init` creates one with other settings"));
    }
    // This comes before it is opened for writing, which would wait for the source.
    if Engine::descriptor_of(&*ground(directory)?)?.store == source.engine.descriptor().store {
        return Err(Failure::cannot_run(format!("{} is the same store, or a copy of its files", bucket::shown(directory)))
            .advise("copy into another store, made with `onefold init` or --init"));
    }
    Store::open_when_free(directory, Mode::ReadWrite, "copy", &mut Waiting::until(options.store.wait, interrupt, talk.quiet))
}

/// Warns of backups that exist only in the destination and are newer than all backups of their name in the source.
fn warn_of_newer(options: &Copy, chosen: &Chosen, destination: &Store) -> Result<()> {
    let names: HashSet<&str> = chosen.backups.iter().map(|backup| backup.name.as_str()).collect();
    let mut newest: BTreeMap<String, Backup> = BTreeMap::new();
    let visited = Catalog::new(destination.engine.clone()).visit(&mut |backup| {
        let known = newest.get(&backup.name).map(|known| known.sequence);
        if names.contains(backup.name.as_str())
            && !chosen.known.contains(&backup.id)
            && backup.sequence > known.unwrap_or(chosen.newest[&backup.name])
        {
            newest.insert(backup.name.clone(), backup);
        }
    });
    match visited {
        // A damaged record does not stop the copy.
        Err(CatalogError::Damaged { .. }) => {}
        visited => visited?,
    }
    for (name, backup) in newest {
        note(format_args!(
            "warning: {} has a newer backup of `{}` that this store lacks, {}: `latest` and `forget` prefer it there",
            bucket::shown(&options.to),
            printable(name.as_bytes()),
            backup.id.short()
        ));
    }
    Ok(())
}

fn copy_all_backups(source: &Store, destination: &Store, chosen: &Chosen, watch: &Watch, done: &mut Done) -> Result<()> {
    let mut backups = Backups::new(&source.engine, &destination.engine);
    for backup in &chosen.backups {
        let name = format!("{} {}", backup.id.short(), printable(backup.name.as_bytes()));
        watch.bar.set_message(name.clone());
        let protected_until_ns = chosen.protected.get(&backup.id).copied();
        match backups.copy(backup, protected_until_ns, watch).map_err(|error| failed(error, done))? {
            BackupOutcome::There => done.there += 1,
            BackupOutcome::Copied => done.copied.push(backup.clone()),
            BackupOutcome::Damaged(problems) => {
                for Problem { what, reason } in &problems {
                    note(format_args!("backup {name}: error: /{}: {reason}", printable(what)));
                }
                done.damaged.push((backup.clone(), problems));
            }
        }
        done.moved = backups.moved();
    }
    Ok(())
}

/// Copies the volumes. A daemon that has this store open does that, otherwise this process. Neither store is locked
/// while this waits for the other: two stores may be copied into each other.
fn copy_all_volumes(options: &Copy, chosen: &Chosen, to_store: [u8; 16], talk: Talk, watch: &Watch, done: &mut Done) -> Result<()> {
    watch.bar.finish_and_clear();
    let terminal = Terminal::stopped_by(talk, watch.interrupt.clone());
    let from = &options.store.directory;
    let to = std::path::absolute(&options.to).map_err(|error| Failure::failed(format!("the current directory is not known: {error}")))?;
    let command = CopyVolumes { from: from.clone(), to, to_store, volumes: chosen.volumes.clone() };
    let (ground, settings) = (ground(from)?, read_settings(&from.join(SETTINGS_FILE), true)?);
    let mut waiting = Waiting::new(options.store.wait, &terminal, talk.quiet);
    let copied = waiting.open(|| {
        let doer = find_doer(&command, &ground, &settings, &terminal)??;
        let kept = Keeping::new(&terminal);
        if let Ran::NotBegun(_) = doer.run(Request::CopyVolumes(command.clone()), talk, &kept)? {
            return Err(NotCopied::InUse("a daemon that is ending".to_owned()));
        }
        let reply: Reply =
            serde_json::from_slice(&kept.take()).map_err(|error| Failure::failed(format!("the daemon's answer: {error}")))?;
        if let Some(holder) = reply.in_use.clone() { Err(NotCopied::InUse(holder)) } else { Ok(reply) }
    });
    match copied {
        Ok(reply) => done.volumes = reply,
        Err(_) if watch.interrupt.came() => return Err(failed(CopyError::Cancelled, done)),
        // The backups were copied, so the command could run.
        Err(NotCopied::Failed(failure)) if failure.exit == Exit::CannotRun => {
            leave_out_volumes(chosen, done, &failure.message, failure.advice.as_deref());
            return Ok(());
        }
        Err(NotCopied::Failed(failure)) => return Err(failure),
        Err(NotCopied::InUse(holder)) => {
            let reason =
                format!("a daemon can copy them, or a command while no process writes to the stores: {holder} has one of them open");
            leave_out_volumes(chosen, done, &reason, Some("--wait waits for it"));
            return Ok(());
        }
    }
    for (name, reason) in &done.volumes.problems {
        note(format_args!("volume {}: error: {reason}", printable(name.as_bytes())));
    }
    if chosen.is_whole {
        std::mem::take(&mut done.volumes.damaged).into_iter().for_each(|problem| done.leave_out(problem));
    }
    Ok(())
}

fn leave_out_volumes(chosen: &Chosen, done: &mut Done, reason: &str, advice: Option<&str>) {
    let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
    note(format_args!("volumes: error: {reason}{advice}"));
    done.volumes.problems = chosen.volumes.iter().map(|name| (name.clone(), reason.to_owned())).collect();
}

/// Why no volume was copied.
enum NotCopied {
    /// Another process has one of the stores open.
    InUse(String),
    Failed(Failure),
}

impl InUse for NotCopied {
    fn holder(&self) -> Option<String> {
        match self {
            NotCopied::InUse(holder) => Some(holder.clone()),
            NotCopied::Failed(_) => None,
        }
    }
}

impl From<Failure> for NotCopied {
    fn from(failure: Failure) -> NotCopied {
        NotCopied::Failed(failure)
    }
}

impl From<EngineError> for NotCopied {
    fn from(error: EngineError) -> NotCopied {
        // The backups were copied, so the command could run.
        error.holder().map_or_else(|| NotCopied::Failed(Failure { exit: Exit::Failed, ..cannot_open(error) }), NotCopied::InUse)
    }
}

fn failed(error: CopyError, done: &Done) -> Failure {
    match error {
        CopyError::Engine(error) => error.into(),
        CopyError::Catalog(error) => error.into(),
        CopyError::Volume(error) => error.into(),
        CopyError::Source(reason) => Failure::failed(format!("the source cannot be read: {reason}")),
        CopyError::Cancelled => Failure::interrupted(format!(
            "stopped by a signal: {} copied, the rest is not",
            counted(done.copied.len() as u64, "backup is", "backups are")
        ))
        .advise("run it again: it skips what is already there"),
    }
}

fn report(options: &Copy, talk: Talk, done: &Done, time: Duration) -> Result<()> {
    let mut output = Output::new();
    let volumes = &done.volumes;
    if options.format.json {
        let backup = |backup: &Backup| json!({"id": backup.id.to_string(), "name": backup.name});
        let mut problems: Vec<Value> = Vec::new();
        for (backup, found) in &done.damaged {
            problems.extend(found.iter().map(|problem| {
                json!({"backup": backup.id.to_string(), "volume": null, "path": String::from_utf8_lossy(&problem.what), "reason": problem.reason})
            }));
        }
        let left_out = |reason| json!({"backup": null, "volume": null, "path": null, "reason": reason});
        problems.extend(done.left_out.iter().map(left_out));
        problems.extend(
            volumes.problems.iter().map(|(volume, reason)| json!({"backup": null, "volume": volume, "path": null, "reason": reason})),
        );
        output.json(&json!({
            "copied": done.copied.iter().map(backup).collect::<Vec<_>>(),
            "there": done.there,
            "not_copied": done.damaged.iter().map(|(damaged, _)| backup(damaged)).collect::<Vec<_>>(),
            "volumes_copied": volumes.copied,
            "volumes_there": volumes.there,
            "read_bytes": done.moved.read_bytes + volumes.read_bytes,
            "known_bytes": done.moved.known_bytes,
            "seconds": time.as_secs_f64(),
            "problems": problems,
            "partial": !done.is_whole(),
        }))?;
    } else if !talk.quiet {
        let there = if done.there > 0 { format!(", {} there already", done.there) } else { String::new() };
        output.line(format_args!(
            "copied {}{there}, to {}",
            counted(done.copied.len() as u64, "backup", "backups"),
            bucket::shown(&options.to)
        ))?;
        if !volumes.copied.is_empty() || !volumes.there.is_empty() {
            let there = if volumes.there.is_empty() { String::new() } else { format!(", {} left as they are there", volumes.there.len()) };
            output.line(format_args!(
                "  volumes  {}{there}",
                counted(volumes.copied.len() as u64, "volume or snapshot", "volumes and snapshots")
            ))?;
        }
        let read = done.moved.read_bytes + volumes.read_bytes;
        output.line(format_args!(
            "  data     {} read in {}, {} not read as it is there",
            size(read),
            duration(time),
            size(done.moved.known_bytes)
        ))?;
        if !done.is_whole() {
            let mut missing = Vec::new();
            for (count, one, many) in [(done.damaged.len(), "backup", "backups"), (volumes.problems.len(), "volume", "volumes")] {
                missing.extend((count > 0).then(|| counted(count as u64, one, many)));
            }
            missing.extend((!done.left_out.is_empty()).then(|| "what is left out".to_owned()));
            output.line(format_args!("  PARTIAL  not copied: {}; see the errors above", missing.join(", ")))?;
        }
    }
    output.finish()
}
