//! Backing up Linux file trees.
//!
//! ```text
//! walk (1 thread)  --events, in the order of the tree-------->  assemble (caller)  -> metadata stream -> record
//!      \--jobs: files to read--> read (2 threads) --entries-->/
//!                                   \-> data streams
//! ```
//! The walk lists names, reads attributes, and reuses everything unchanged from the previous backup. New and changed
//! files go to the readers in batches. Small files are stored together, large ones flow through a buffer. Each reader
//! waits for the disk while the other computes. The assembler waits for the entries in tree order and builds the
//! directories from the leaves up.
//!
//! If somebody watches the progress, a second walk that reads nothing runs ahead of the first and counts the work.
//!
//! # Invariants
//! * The record is committed last: an interrupted backup is not visible, and its chunks make the next one cheap.
//! * Queues are bounded. The walk hands its unfinished batch over before it waits, so nobody waits for a file that
//!   nobody reads.
//! * A file is reused unread only if type, size, mtime, ctime, inode and device equal those in the previous backup. A
//!   file that changed so recently that a further change could keep its ctime is read only after the clock has moved
//!   on.

use crate::assemble::assemble;
use crate::job::Job;
use crate::marker::Markers;
use crate::monitor::{Counter, Monitor, Problem, Severity, Watch};
use crate::options::{BackupOptions, BackupOutcome, Parent, Rehearsal, clean, cleaned, common_directory};
use crate::read::Reader;
use crate::repository::{Comparable, Compared, Making, NewFile, Repository};
use crate::state::State;
use crate::walk::{Event, Walk, Wanted};
use crate::{ClientError, Excludes, Result, source};
use crossbeam_channel::Sender;
use onefold_catalog::{Attributes, Details, Entry, Statistics, components};
use onefold_engine::Recipe;
use rustix::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads that read and store files.
const READERS: usize = 2;
/// Events on their way from the walk to the assembler.
const EVENTS: usize = 8192;
/// The number of the only file of a backup from a stream.
const STREAM: u64 = 1;
/// Batches of files on their way to the readers.
const BATCHES: usize = 2;

/// Everything known about a backup before it begins.
struct Plan<'a> {
    options: &'a BackupOptions,
    excludes: Excludes,
    /// All wanted paths, sorted.
    wanted: Vec<Vec<u8>>,
    /// The paths that the record will name.
    paths: Vec<Vec<u8>>,
    compared: Box<dyn Compared + 'a>,
    /// Device and inode of the store's directory.
    store: Option<(u64, u64)>,
}

impl<'a> Plan<'a> {
    fn new(repository: &'a dyn Repository, options: &'a BackupOptions, monitor: &dyn Monitor) -> Result<Plan<'a>> {
        onefold_ground::raise_open_file_limit();
        let excludes = Excludes::new(&options.excludes)?;
        let mut paths = cleaned(&options.paths)?;
        let listed = cleaned(&options.listed_paths)?;
        let mut wanted = [&paths[..], &listed].concat();
        paths.extend(common_directory(&listed));
        for paths in [&mut paths, &mut wanted] {
            paths.sort();
            paths.dedup();
        }
        if wanted.is_empty() {
            return Err(ClientError::NothingToBackUp { reason: "no path was given".to_owned() });
        }
        let compared =
            repository.compare(&Comparable { name: &options.name, host: &options.host, paths: &paths, parent: &options.parent })?;
        if let Some(damage) = compared.damage() {
            let reason = format!("reading every file, because an earlier backup cannot be read: {damage}");
            monitor.problem(&Problem::new(b"/", reason, Severity::Warning));
        }
        let store = match &options.store_directory {
            Some(path) => {
                let found = source::find(rustix::fs::CWD, path.as_os_str().as_bytes(), true);
                Some(found.map_err(|error| ClientError::io("find the store", path.as_os_str().as_bytes(), error))?.identity())
            }
            None => None,
        };
        Ok(Plan { options, excludes, wanted, paths, compared, store })
    }

    fn walk<'w>(&'w self, watch: &'w Watch<'w>, events: Sender<Event>, jobs: Sender<Vec<Job>>) -> Walk<'w> {
        Walk {
            compared: &*self.compared,
            watch,
            excludes: &self.excludes,
            one_file_system: self.options.one_file_system,
            force_read: self.options.force_read,
            read_special: self.options.read_special,
            markers: Markers { caches: self.options.exclude_caches, names: &self.options.exclude_if_present },
            is_scan: false,
            is_scanned: false,
            // The cache may have been created since.
            left_out: self.store.into_iter().chain(self.own_directory()).collect(),
            events,
            jobs,
        }
    }

    /// Returns device and inode of the directory that the client writes to meanwhile.
    fn own_directory(&self) -> Option<(u64, u64)> {
        let path = self.compared.own_directory()?;
        source::find(rustix::fs::CWD, path.as_os_str().as_bytes(), true).ok().map(|found| found.identity())
    }

    /// Walks only to count, for the progress display.
    fn scan(&self, watch: &Watch<'_>, is_over: &AtomicBool) -> Result<()> {
        let ahead = Ahead { watch, is_over };
        let counting = Watch::new(&ahead);
        let ((events, _), (jobs, _)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded(1));
        let walk = Walk { is_scan: true, ..self.walk(&counting, events, jobs) };
        walk.run(&Wanted::new(&self.wanted))?;
        if !ahead.cancelled() {
            watch.monitor().has_totals();
        }
        Ok(())
    }
}

/// Passes on only what a scan found. The walk that follows reports everything else.
struct Ahead<'a> {
    watch: &'a Watch<'a>,
    is_over: &'a AtomicBool,
}

impl Monitor for Ahead<'_> {
    fn count(&self, counter: Counter, increment: u64) {
        if matches!(counter, Counter::Found | Counter::FoundBytes) {
            self.watch.monitor().count(counter, increment);
        }
    }

    fn problem(&self, _problem: &Problem) {}

    fn cancelled(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.watch.should_stop()
    }
}

/// Makes a backup. Durable on return.
pub fn backup(repository: &dyn Repository, options: &BackupOptions, monitor: &dyn Monitor) -> Result<BackupOutcome> {
    let plan = Plan::new(repository, options, monitor)?;
    let watch = Watch::new(monitor);
    let making = &*plan.compared.begin()?;
    let (event_sender, events) = crossbeam_channel::bounded(EVENTS);
    let (job_sender, jobs) = crossbeam_channel::bounded(BATCHES);
    let (entry_sender, entries) = crossbeam_channel::unbounded();
    let is_over = AtomicBool::new(false);
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(Reader::new(making.contents()?, plan.compared.recalls(), &watch));
    }

    let root = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for reader in readers {
            let (jobs, entries) = (jobs.clone(), entry_sender.clone());
            threads.push(scope.spawn(move || reader.run(&jobs, &entries)));
        }
        drop((jobs, entry_sender));
        let is_scanned = monitor.wants_totals();
        if is_scanned {
            threads.push(scope.spawn(|| plan.scan(&watch, &is_over)));
        }
        let walk = Walk { is_scanned, ..plan.walk(&watch, event_sender, job_sender) };
        let wanted = Wanted::new(&plan.wanted);
        threads.push(scope.spawn(move || walk.run(&wanted)));
        let root = assemble(making, &watch, events, entries);
        if root.is_err() {
            watch.stop();
        }
        is_over.store(true, Ordering::Relaxed);
        let results: Vec<Result<()>> =
            threads.into_iter().map(|thread| thread.join().expect("the threads of a backup do not panic")).collect();
        // Readers that stop on request end their channels early.
        if watch.cancelled() {
            return Err(ClientError::Cancelled);
        }
        // The first failure is the cause; "a queue closed" explains nothing.
        results.into_iter().collect::<Result<()>>()?;
        root
    })?
    .ok_or(ClientError::Cancelled)?
    .root;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    refuse_empty(&watch)?;
    let outcome = commit(making, options, &watch, root, plan.paths.clone())?;
    Ok(BackupOutcome { parent: plan.compared.earlier().map(|earlier| earlier.id), ..outcome })
}

/// Says what a backup would do. Reads no file and writes nothing.
pub fn rehearse(repository: &dyn Repository, options: &BackupOptions, monitor: &dyn Monitor) -> Result<Rehearsal> {
    let plan = Plan::new(repository, options, monitor)?;
    let watch = Watch::new(monitor);
    let (event_sender, events) = crossbeam_channel::bounded(EVENTS);
    let (job_sender, jobs) = crossbeam_channel::unbounded();
    std::thread::scope(|scope| {
        let walk = plan.walk(&watch, event_sender, job_sender);
        let wanted = Wanted::new(&plan.wanted);
        let walking = scope.spawn(move || walk.run(&wanted));
        for event in events {
            count(&watch, &event);
            for job in jobs.try_iter().flatten() {
                watch.count(Counter::DataBytes, job.size_bytes);
                watch.count(Counter::DoneBytes, job.size_bytes);
            }
        }
        jobs.try_iter().flatten().for_each(|job| watch.count(Counter::DataBytes, job.size_bytes));
        walking.join().expect("a walk does not panic")
    })?;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    refuse_empty(&watch)?;
    let mut statistics = statistics(&watch);
    statistics.logical_bytes += statistics.read_bytes;
    Ok(Rehearsal { parent: plan.compared.earlier().map(|earlier| earlier.id), statistics, warnings: watch.get(Counter::Warnings) })
}

/// Counts what an event would add.
fn count(watch: &Watch<'_>, event: &Event) {
    match event {
        Event::Enter { .. } => {}
        Event::Leave { .. } => watch.count(Counter::Directories, 1),
        Event::Same { earlier, size_bytes } => crate::assemble::count(watch, &earlier.entry, *size_bytes, State::Same),
        Event::Ready { entry, size_bytes, earlier } => {
            let state = if earlier.is_some() { State::Changed } else { State::New };
            crate::assemble::count(watch, entry, *size_bytes, state);
        }
        Event::Reading { earlier, .. } => {
            watch.count(Counter::Files, 1);
            watch.count(if earlier.is_some() { Counter::ChangedFiles } else { Counter::NewFiles }, 1);
        }
    }
}

/// Makes a backup of one file, whose content comes from an open file or pipe: everything that comes, or nothing.
pub fn backup_stream(
    repository: &dyn Repository,
    options: &BackupOptions,
    file: &OwnedFd,
    path: &Path,
    monitor: &dyn Monitor,
) -> Result<BackupOutcome> {
    let path = clean(&Path::new("/").join(path));
    let names: Vec<&[u8]> = components(&path).collect();
    let Some((name, directories)) = names.split_last() else {
        return Err(ClientError::NothingToBackUp { reason: "the name of the file is empty".to_owned() });
    };
    let compared = repository.compare(&Comparable { name: &options.name, host: &options.host, paths: &[], parent: &Parent::None })?;
    let watch = Watch::new(monitor);
    let making = &*compared.begin()?;
    let mut reader = Reader::new(making.contents()?, compared.recalls(), &watch);
    let content = reader.everything_from(file, NewFile { ticket: STREAM, path: &path[1..], earlier: None })?;
    let content = content.map_err(|error| ClientError::io("read", "standard input", error))?;
    reader.close()?;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    let size_bytes = content.recipe().map_or(0, |recipe| recipe.length);
    if size_bytes == 0 {
        return Err(ClientError::NothingToBackUp { reason: "nothing came from standard input".to_owned() });
    }
    watch.count(Counter::Files, 1);
    watch.count(Counter::NewFiles, 1);
    watch.count(Counter::LogicalBytes, size_bytes);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let now = making.started_ns();
    let attributes = |mode| Attributes { mode, uid, gid, mtime_ns: now, ctime_ns: now, links: 1, ..Attributes::default() };
    let mut tree = making.tree()?;
    for name in directories {
        tree.enter(name.to_vec(), attributes(0o700), None)?;
    }
    tree.put(Entry { name: name.to_vec(), attributes: attributes(0o600), content }, Some(STREAM), None)?;
    for _ in directories {
        tree.leave(false)?;
    }
    watch.count(Counter::Directories, names.len() as u64);
    let root = tree.finish()?.root;
    commit(making, options, &watch, root, vec![path.clone()])
}

/// Makes the record. Durable on return.
fn commit(making: &dyn Making, options: &BackupOptions, watch: &Watch<'_>, root: Recipe, paths: Vec<Vec<u8>>) -> Result<BackupOutcome> {
    let backup = making.commit(
        root,
        Details {
            name: options.name.clone(),
            host: options.host.clone(),
            user: options.user.clone(),
            tags: options.tags.clone(),
            paths,
            options: options.to_json(),
            statistics: statistics(watch),
        },
    )?;
    watch.count(Counter::AddedBytes, backup.statistics.added_bytes.saturating_sub(watch.get(Counter::AddedBytes)));
    Ok(BackupOutcome { backup, parent: None, errors: watch.get(Counter::Errors), warnings: watch.get(Counter::Warnings) })
}

/// Refuses a backup without any file, unless there are none to back up.
fn refuse_empty(watch: &Watch<'_>) -> Result<()> {
    let (excluded, errors) = (watch.get(Counter::Excluded), watch.get(Counter::Errors));
    let has_files = watch.get(Counter::Files) + watch.get(Counter::Others) > 0;
    let reason = match (errors, excluded) {
        (0, 0) if watch.get(Counter::Directories) > 0 => return Ok(()),
        _ if has_files => return Ok(()),
        (0, 0) => "none of the paths exists any more",
        (0, _) => "everything is excluded",
        _ => "no file could be read",
    };
    Err(ClientError::NothingToBackUp { reason: reason.to_owned() })
}

fn statistics(watch: &Watch<'_>) -> Statistics {
    Statistics {
        files: watch.get(Counter::Files),
        directories: watch.get(Counter::Directories),
        others: watch.get(Counter::Others),
        new_files: watch.get(Counter::NewFiles),
        changed_files: watch.get(Counter::ChangedFiles),
        unmodified_files: watch.get(Counter::UnmodifiedFiles),
        logical_bytes: watch.get(Counter::LogicalBytes),
        read_bytes: watch.get(Counter::DataBytes),
        added_bytes: watch.get(Counter::AddedBytes),
        errors: watch.get(Counter::Errors),
        ..Statistics::default()
    }
}
