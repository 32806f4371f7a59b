//! Restoring a backup, or parts of it.
//!
//! ```text
//! walk of the backup (caller)  --files-->  write (2 threads)
//! walk that runs ahead and counts what there is to do (1 thread), where only parts are wanted
//! ```
//! The caller walks the backup and makes directories and everything without data. Files go to the writers in batches,
//! large files in ranges, both in the order in which they were stored, unless a bucket brings later ones first. Further
//! names of hard links come last.
//!
//! # Invariants
//! * Nothing is written outside of the target, and nothing into the store ([`target`](crate::target)).
//! * A file gets its name only when all its bytes are there and their fingerprints are verified. A damaged file gets
//!   another name, or none ([`Damaged`]); the rest continues.
//! * No power cut leaves a file with its name, size and time but without its bytes. Large files, and files with holes,
//!   are synced before they get their names. For other files the file system must write the bytes before the size
//!   (`docs/decisions/0040-restores-around-damage.md`).
//! * With [`Overwrite::Never`] nothing existing is touched, with two exceptions: directories are entered and get their
//!   attributes, and [`RestoreOptions::delete`] removes names.
//! * A directory that only leads to wanted names is made when something comes into it.

mod delete;
mod existing;
mod link;
mod links;
pub(crate) mod options;
mod walk;

use crate::batches::{Adding, Batches};
use crate::monitor::{Counter, Monitor, Watch};
use crate::repository::{Reading, Repository};
use crate::select::{Selection, Verdict};
use crate::target::{Directory, Keepout, Powers};
use crate::write::{Output, Writer};
use crate::{ClientError, Result, source};
use delete::Deleter;
use onefold_catalog::{Backup, Content, DirectoryReader, MAX_DEPTH, components, join};
use onefold_engine::Recipe;
use options::RestoreOptions;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use walk::Walk;

/// The outcome of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// Regular files written, including further names of hard links.
    pub files: u64,
    /// Directories made or entered.
    pub directories: u64,
    /// Symlinks, devices, fifos, sockets written.
    pub others: u64,
    /// Existing files of any kind that were equal and were kept.
    pub kept_files: u64,
    /// Existing files of any kind that differ and were kept. Each is an error.
    pub in_the_way: u64,
    /// Files restored with zeros in place of lost bytes. Each is an error.
    pub damaged_files: u64,
    /// Names deleted.
    pub deleted: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Missing things.
    pub errors: u64,
    /// Things restored, but not in every detail.
    pub warnings: u64,
}

impl RestoreOutcome {
    /// Returns whether everything requested is in the target.
    pub fn is_complete(&self) -> bool {
        self.errors == 0
    }
}

/// Restores a backup. Everything written is synced on return.
pub fn restore(repository: &dyn Repository, backup: &Backup, options: &RestoreOptions, monitor: &dyn Monitor) -> Result<RestoreOutcome> {
    onefold_ground::raise_open_file_limit();
    // If the backup is forgotten meanwhile, its chunks stay until it is restored.
    let reading = repository.read(backup)?;
    let watch = Watch::new(monitor);
    let selection = Selection::new(&reading, &options.paths, &options.include, &options.exclude)?;
    let store = Keepout::new(options.store_directory.as_deref())?;
    store.refuse_target(&options.target)?;
    let powers = Powers::new();
    let output = Output::new(&reading, &watch, &powers, options, store);
    let deleter = match options.delete {
        true => Some(Deleter::new(&output, &selection, backup)?),
        false => None,
    };
    if options.delete && options.strip_components > 0 {
        refuse_several_roots(&reading, options, &selection)?;
    }
    let target = open_target(options)?;
    let (links, file_systems) = (Vec::new(), HashMap::new());
    let mut walk = Walk { options, selection: &selection, output: &output, deleter, links, target, file_systems };
    let should_stop = || watch.should_stop();
    let batches = Batches::new(&*reading.chunks, &should_stop, reading.batches_ahead);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if selection.is_everything() {
            reading.chunks.reads_all();
            let known = &backup.statistics;
            watch.count(Counter::Found, known.files + known.others);
            watch.count(Counter::FoundBytes, known.logical_bytes);
            watch.has_totals();
        } else {
            scope.spawn(|| count_ahead(&reading, &selection, &watch, &is_over));
        }
        let mut threads = Vec::new();
        for _ in 0..reading.readers {
            threads.push(scope.spawn(|| Writer::new(&output).run(&batches)));
        }
        let walked = walk.run(Adding::new(&batches));
        let written: Vec<Result<()>> =
            threads.into_iter().map(|thread| thread.join().expect("the threads of a restore do not panic")).collect();
        let ended = written.into_iter().collect::<Result<()>>().and(walked).and_then(|()| walk.hard_links());
        is_over.store(true, Ordering::Relaxed);
        ended
    })?;
    if let Some(error) = reading.chunks.broken() {
        return Err(error.into());
    }
    powers.set_last_flags(&watch);
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    for pattern in selection.unmatched() {
        watch.error(pattern, "nothing in this backup matches");
    }
    for file_system in walk.file_systems.values() {
        rustix::fs::syncfs(file_system).map_err(|error| ClientError::io("sync", target_name(options), error))?;
    }
    Ok(RestoreOutcome {
        files: watch.get(Counter::Files),
        directories: watch.get(Counter::Directories),
        others: watch.get(Counter::Others),
        kept_files: watch.get(Counter::KeptFiles),
        in_the_way: watch.get(Counter::InTheWay),
        damaged_files: watch.get(Counter::DamagedFiles),
        deleted: watch.get(Counter::Deleted),
        written_bytes: watch.get(Counter::DataBytes),
        errors: watch.get(Counter::Errors),
        warnings: watch.get(Counter::Warnings),
    })
}

fn target_name(options: &RestoreOptions) -> &[u8] {
    options.target.as_os_str().as_bytes()
}

/// Opens the target, and creates it if it does not exist. `None`: a dry run would create it.
fn open_target(options: &RestoreOptions) -> Result<Option<Arc<Directory>>> {
    let name = target_name(options);
    if options.dry_run && !options.target.exists() {
        return Ok(None);
    }
    if !options.dry_run {
        std::fs::create_dir_all(&options.target).map_err(|error| ClientError::io("create", name, error))?;
    }
    let opened = source::open(rustix::fs::CWD, name, rustix::fs::OFlags::DIRECTORY);
    opened.and_then(|target| Directory::new(target, Vec::new())).map(Some).map_err(|error| ClientError::io("open", name, error))
}

/// A visitor of the walk. It gets a path, its content, and whether it is wanted. It ends the walk, or says whether to
/// enter a directory.
type Visit<'a> = dyn FnMut(&[u8], &Content, bool) -> ControlFlow<(), bool> + 'a;

/// Walks the wanted part of a backup. Unreadable entries are left out.
fn for_each_wanted(reading: &Reading, selection: &Selection, visit: &mut Visit<'_>) -> ControlFlow<()> {
    let reader = |recipe: &Recipe| DirectoryReader::new(&reading.chunks, recipe).with_incomplete();
    let mut levels = vec![(Vec::new(), selection.root(), reader(&reading.backup.root))];
    while let Some((path, reach, entries)) = levels.last_mut() {
        let Some(entry) = entries.next() else {
            levels.pop();
            continue;
        };
        let Ok(entry) = entry else { continue };
        let path = join(path, &entry.name);
        let is_directory = matches!(entry.content, Content::Directory { .. });
        let (is_wanted, reach) = match selection.judge(*reach, &path, is_directory) {
            Verdict::Wanted(reach) => (true, reach),
            Verdict::OnTheWay(reach) => (false, reach),
            Verdict::Unwanted => continue,
        };
        let enters = visit(&path, &entry.content, is_wanted)?;
        if enters
            && let Content::Directory { recipe } = &entry.content
            && levels.len() < MAX_DEPTH
        {
            levels.push((path, reach, reader(recipe)));
        }
    }
    ControlFlow::Continue(())
}

/// Counts the work, ahead of those who do it.
fn count_ahead(reading: &Reading, selection: &Selection, watch: &Watch<'_>, is_over: &AtomicBool) {
    let counted = for_each_wanted(reading, selection, &mut |_, content, is_wanted| {
        if is_wanted && !matches!(content, Content::Directory { .. }) {
            watch.count(Counter::Found, 1);
            if let Content::File { size_bytes, .. } = content {
                watch.count(Counter::FoundBytes, *size_bytes);
            }
        }
        if is_over.load(Ordering::Relaxed) || watch.should_stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(true) }
    });
    if counted.is_continue() {
        watch.has_totals();
    }
}

/// Refuses a restore in which two directories become one: each would lose what it does not share with the other.
fn refuse_several_roots(reading: &Reading, options: &RestoreOptions, selection: &Selection) -> Result<()> {
    let mut roots: Vec<Vec<u8>> = Vec::new();
    let _ = for_each_wanted(reading, selection, &mut |path, content, _| {
        let depth = components(path).count();
        if depth == options.strip_components && matches!(content, Content::Directory { .. }) {
            roots.push(path.to_vec());
        }
        // Entries below the roots are not read.
        if roots.len() < 2 { ControlFlow::Continue(depth < options.strip_components) } else { ControlFlow::Break(()) }
    });
    match &roots[..] {
        [first, second, ..] => {
            let [first, second] = [first, second].map(|path| String::from_utf8_lossy(path).into_owned());
            let why = format!("/{first} and /{second} would both become the target; each would lose the files that only the other has");
            Err(ClientError::Refused { why })
        }
        _ => Ok(()),
    }
}
