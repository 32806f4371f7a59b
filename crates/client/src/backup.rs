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
use crate::named::NamedFiles;
use crate::options::{BackupOptions, BackupOutcome, Parent, Rehearsal, clean, cleaned, common_directory};
use crate::read::Reader;
use crate::walk::{Event, Walk, Wanted};
use crate::{ClientError, Excludes, Result, source};
use crossbeam_channel::Sender;
use onefold_catalog::{Attributes, Backup, BackupId, Catalog, CatalogError, Content, DirectoryWriter, Entry, Statistics, components};
use onefold_engine::{Engine, InFlight, Recipe, WriteStream};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads that read and store files.
const READERS: usize = 2;
/// Events on their way from the walk to the assembler.
const EVENTS: usize = 8192;
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
    parent: Option<Backup>,
    /// Device and inode of the store's directory.
    store: Option<(u64, u64)>,
    /// Keeps the chunks of the parent, and of all backups that it sees, until the backup's record is committed.
    in_flight: InFlight,
}

impl<'a> Plan<'a> {
    fn new(catalog: &Catalog, options: &'a BackupOptions, monitor: &dyn Monitor) -> Result<Plan<'a>> {
        crate::raise_open_file_limit();
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
        let is_parent = |backup: &Backup| match &options.parent {
            // It may have been removed since the caller found it.
            Parent::This(parent) => backup.id == *parent,
            Parent::Newest => backup.name == options.name && backup.host == options.host && backup.paths == paths,
            Parent::None => false,
        };
        let (in_flight, parent) = find_parent(catalog, is_parent, monitor)?;
        let store = match &options.store_directory {
            Some(path) => {
                let found = source::find(rustix::fs::CWD, path.as_os_str().as_bytes(), true);
                Some(found.map_err(|error| ClientError::io("find the store", path.as_os_str().as_bytes(), error))?.identity())
            }
            None => None,
        };
        Ok(Plan { options, excludes, wanted, paths, parent, store, in_flight })
    }

    fn walk<'w>(&'w self, engine: &'w Arc<Engine>, watch: &'w Watch<'w>, events: Sender<Event>, jobs: Sender<Vec<Job>>) -> Walk<'w> {
        Walk {
            engine,
            watch,
            excludes: &self.excludes,
            one_file_system: self.options.one_file_system,
            force_read: self.options.force_read,
            read_special: self.options.read_special,
            markers: Markers { caches: self.options.exclude_caches, names: &self.options.exclude_if_present },
            is_scan: false,
            is_scanned: false,
            store: self.store,
            events,
            jobs,
        }
    }

    /// Walks only to count, for the progress display.
    fn scan(&self, engine: &Arc<Engine>, watch: &Watch<'_>, is_over: &AtomicBool) -> Result<()> {
        let ahead = Ahead { watch, is_over };
        let counting = Watch::new(&ahead);
        let ((events, _), (jobs, _)) = (crossbeam_channel::bounded(1), crossbeam_channel::bounded(1));
        let walk = Walk { is_scan: true, ..self.walk(engine, &counting, events, jobs) };
        walk.run(&Wanted::new(&self.wanted), None)?;
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
pub fn backup(catalog: &Catalog, options: &BackupOptions, monitor: &dyn Monitor) -> Result<BackupOutcome> {
    let started_ns = catalog.engine().date_ns();
    let plan = Plan::new(catalog, options, monitor)?;
    let watch = Watch::new(monitor);
    let engine = catalog.engine();
    let id = new_id()?;
    let named = NamedFiles::new(catalog, id, &plan.in_flight)?;
    let stored_before = engine.stored_bytes();
    let metadata = Mutex::new(engine.stream());
    let (event_sender, events) = crossbeam_channel::bounded(EVENTS);
    let (job_sender, jobs) = crossbeam_channel::bounded(BATCHES);
    let (entry_sender, entries) = crossbeam_channel::unbounded();
    let is_over = AtomicBool::new(false);

    let root = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..READERS {
            let (jobs, entries) = (jobs.clone(), entry_sender.clone());
            let mut reader = Reader::new(engine, &metadata, &watch).with_names(named.as_ref());
            threads.push(scope.spawn(move || reader.run(&jobs, &entries)));
        }
        drop((jobs, entry_sender));
        let is_scanned = monitor.wants_totals();
        if is_scanned {
            threads.push(scope.spawn(|| plan.scan(engine, &watch, &is_over)));
        }
        let walk = Walk { is_scanned, ..plan.walk(engine, &watch, event_sender, job_sender) };
        let (wanted, earlier) = (Wanted::new(&plan.wanted), plan.parent.as_ref().map(|parent| &parent.root));
        threads.push(scope.spawn(move || walk.run(&wanted, earlier)));
        let root = assemble(engine, &metadata, &watch, events, entries);
        if root.is_err() {
            watch.stop();
        }
        is_over.store(true, Ordering::Relaxed);
        let results: Vec<Result<()>> =
            threads.into_iter().map(|thread| thread.join().expect("the threads of a backup do not panic")).collect();
        // The first failure is the cause; "a queue closed" explains nothing.
        results.into_iter().collect::<Result<()>>()?;
        root
    })?
    .ok_or(ClientError::Cancelled)?;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    refuse_empty(&watch)?;
    named.iter().for_each(NamedFiles::finish);
    let made = Made { id, started_ns, stored_before, root, paths: plan.paths, parent: plan.parent.map(|parent| parent.id) };
    commit(catalog, options, &watch, metadata.into_inner(), made)
}

/// Says what a backup would do. Reads no file and writes nothing.
pub fn rehearse(catalog: &Catalog, options: &BackupOptions, monitor: &dyn Monitor) -> Result<Rehearsal> {
    let plan = Plan::new(catalog, options, monitor)?;
    let watch = Watch::new(monitor);
    let (event_sender, events) = crossbeam_channel::bounded(EVENTS);
    let (job_sender, jobs) = crossbeam_channel::unbounded();
    std::thread::scope(|scope| {
        let walk = plan.walk(catalog.engine(), &watch, event_sender, job_sender);
        let (wanted, earlier) = (Wanted::new(&plan.wanted), plan.parent.as_ref().map(|parent| &parent.root));
        let walking = scope.spawn(move || walk.run(&wanted, earlier));
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
    Ok(Rehearsal { parent: plan.parent.map(|parent| parent.id), statistics, warnings: watch.get(Counter::Warnings) })
}

/// Counts what an event would add.
fn count(watch: &Watch<'_>, event: &Event) {
    match event {
        Event::Enter { .. } => {}
        Event::Leave { .. } => watch.count(Counter::Directories, 1),
        Event::Ready { entry, size_bytes, state } => crate::assemble::count(watch, entry, *size_bytes, *state),
        Event::Reading { earlier, .. } => {
            watch.count(Counter::Files, 1);
            watch.count(if earlier.is_some() { Counter::ChangedFiles } else { Counter::NewFiles }, 1);
        }
    }
}

/// Makes a backup of one file, whose content comes from an open file or pipe: everything that comes, or nothing.
pub fn backup_stream(
    catalog: &Catalog,
    options: &BackupOptions,
    file: &OwnedFd,
    path: &Path,
    monitor: &dyn Monitor,
) -> Result<BackupOutcome> {
    let engine = catalog.engine();
    let started_ns = engine.date_ns();
    let _in_flight = engine.in_flight();
    let path = clean(&Path::new("/").join(path));
    if components(&path).next().is_none() {
        return Err(ClientError::NothingToBackUp { reason: "the name of the file is empty".to_owned() });
    }
    let watch = Watch::new(monitor);
    let stored_before = engine.stored_bytes();
    let metadata = Mutex::new(engine.stream());
    let content = Reader::new(engine, &metadata, &watch).everything_from(file)?;
    let content = content.map_err(|error| ClientError::io("read", "standard input", error))?;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    let Content::File { size_bytes, .. } = content else { unreachable!("everything from a stream is a file") };
    if size_bytes == 0 {
        return Err(ClientError::NothingToBackUp { reason: "nothing came from standard input".to_owned() });
    }
    watch.count(Counter::Files, 1);
    watch.count(Counter::NewFiles, 1);
    watch.count(Counter::LogicalBytes, size_bytes);
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (mtime_ns, ctime_ns) = (started_ns, started_ns);
    let attributes = |mode| Attributes { mode, uid, gid, mtime_ns, ctime_ns, links: 1, ..Attributes::default() };
    let (mut content, mut mode) = (content, 0o600);
    let mut metadata = metadata.into_inner();
    for name in components(&path).collect::<Vec<_>>().into_iter().rev() {
        let mut directory = DirectoryWriter::new(engine.digest_bytes());
        directory.push(&mut metadata, &Entry { name: name.to_vec(), attributes: attributes(mode), content })?;
        (content, mode) = (Content::Directory { recipe: directory.finish(&mut metadata)? }, 0o700);
        watch.count(Counter::Directories, 1);
    }
    let Content::Directory { recipe: root } = content else { unreachable!("the path has a component") };
    let made = Made { id: new_id()?, started_ns, stored_before, root, paths: vec![path], parent: None };
    commit(catalog, options, &watch, metadata, made)
}

fn new_id() -> Result<BackupId> {
    let mut id = [0; 16];
    crate::random_bytes(&mut id)?;
    Ok(BackupId::from_bytes(id))
}

/// A finished backup without its record.
struct Made {
    id: BackupId,
    started_ns: i64,
    stored_before: u64,
    root: Recipe,
    paths: Vec<Vec<u8>>,
    parent: Option<BackupId>,
}

/// Makes the record. Durable on return.
fn commit(catalog: &Catalog, options: &BackupOptions, watch: &Watch<'_>, metadata: WriteStream, made: Made) -> Result<BackupOutcome> {
    let engine = catalog.engine();
    watch.count(Counter::AddedBytes, metadata.added_bytes());
    drop(metadata);
    if watch.get(Counter::AddedBytes) > 0 {
        // The compressed size of the last frames is known when they are written.
        engine.flush()?;
    }
    let mut record = Backup {
        id: made.id,
        sequence: 0,
        seen_ns: 0,
        name: options.name.clone(),
        host: options.host.clone(),
        user: options.user.clone(),
        started_ns: made.started_ns,
        finished_ns: engine.date_ns(),
        tags: options.tags.clone(),
        paths: made.paths,
        options: options.to_json(),
        root: made.root,
        statistics: Statistics { stored_bytes: engine.stored_bytes().saturating_sub(made.stored_before), ..statistics(watch) },
    };
    catalog.commit_backup(&mut record)?;
    Ok(BackupOutcome { backup: record, parent: made.parent, errors: watch.get(Counter::Errors), warnings: watch.get(Counter::Warnings) })
}

/// Finds the newest backup that `is_parent` accepts. Its chunks stay while the guard is held, which is taken before the
/// search. Hold it until the record of the new backup is committed.
fn find_parent(catalog: &Catalog, is_parent: impl Fn(&Backup) -> bool, monitor: &dyn Monitor) -> Result<(InFlight, Option<Backup>)> {
    let in_flight = catalog.engine().in_flight();
    let parent = match catalog.newest(is_parent) {
        // Damage to an old backup must not prevent a new one: without a parent, every file is read.
        Err(error @ CatalogError::Damaged { .. }) => {
            let reason = format!("reading every file, because an earlier backup cannot be read: {error}");
            monitor.problem(&Problem::new(b"/", reason, Severity::Warning));
            None
        }
        found => found?,
    };
    Ok((in_flight, parent))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tally;
    use onefold_engine::{Cursor, Descriptor, Engine, Hints, Mode, Settings};
    use onefold_ground::{Ground, LocalGround};
    use std::cell::Cell;
    use std::sync::Arc;

    #[test]
    fn what_a_parent_has_is_kept_from_before_it_is_looked_for() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("store")).unwrap();
        let ground: Arc<dyn Ground> = Arc::new(LocalGround::open(directory.path().join("store")).unwrap());
        Engine::create(&ground, &Descriptor::new().unwrap()).unwrap();
        let settings = Settings { background: false, ..Settings::default() };
        let engine = Engine::open(ground, settings, Mode::ReadWrite, "test").unwrap();
        let catalog = Catalog::new(engine.clone());
        std::fs::create_dir(directory.path().join("source")).unwrap();
        let options = BackupOptions { name: "group".into(), paths: vec![directory.path().join("source")], ..BackupOptions::default() };
        backup(&catalog, &options, &Tally::default()).unwrap();
        // A chunk that nothing refers to, and that would go if it could.
        engine.stream().write_runs(&[b"a chunk that no backup has"], Hints::default()).unwrap();
        engine.flush().unwrap();
        engine.maintain(true).unwrap();
        let (mut unused, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            let (found, next) = engine.candidates(from, 100, &mut Vec::new()).unwrap();
            unused.extend(found);
            cursor = next;
        }
        assert!(!unused.is_empty());
        let remove = || engine.remove_unused(&unused, &|_, _| Ok(Vec::new()), &|| false).unwrap();
        let was_asked = Cell::new(false);
        let is_parent = |_: &Backup| {
            was_asked.set(true);
            assert!(remove().was_busy, "a chunk of the parent may go while the parent is looked for");
            true
        };
        let (in_flight, parent) = find_parent(&catalog, is_parent, &Tally::default()).unwrap();
        assert!(was_asked.get() && parent.is_some());
        assert!(remove().was_busy, "a chunk of the parent may go now that it is found");
        drop(in_flight);
        assert_eq!(remove().chunks, unused.len() as u64);
    }
}
