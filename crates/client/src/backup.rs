//! Backing up Linux file trees.
//!
//! ```text
//! walk (1 thread)  --events, in the order of the tree-------->  assemble (caller)  -> metadata stream -> record
//!      \--jobs: files to read--> read (2 threads) --entries-->/
//!                                   \-> data streams
//! ```
//! The walk lists and asks for attributes, and takes over what did not change from the backup before. Files that are new or changed go to the
//! readers in batches: small ones are stored together, large ones flow through a buffer; each reader waits for the disk
//! while the other computes. The assembler waits for the entries in the order of the tree and builds the directories
//! from the leaves up.
//!
//! # Invariants
//! * The record is committed last: a backup that was interrupted is not visible, and its chunks make the next one cheap.
//! * Queues are bounded. The walk hands its unfinished batch over before it waits, so nobody waits for a file that nobody reads.
//! * A file is taken over unread only if type, size, mtime, ctime, inode and device are those of the backup before. A file
//!   that changed so recently that a further change could keep its ctime is read only after the clock has moved on.

use crate::assemble::assemble;
use crate::monitor::{Counter, Monitor, Problem, Severity, Watch};
use crate::read::Reader;
use crate::walk::{Walk, Wanted};
use crate::{ClientError, Excludes, Result, source};
use onefold_catalog::{Backup, BackupId, Catalog, CatalogError, Statistics, components};
use onefold_engine::InFlight;
use parking_lot::Mutex;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Threads that read and store files.
const READERS: usize = 2;
/// Events on their way from the walk to the assembler.
const EVENTS: usize = 8192;
/// Batches of files on their way to the readers.
const BATCHES: usize = 2;

/// What to back up and how.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// The backup group.
    pub name: String,
    /// The machine, as it will be shown.
    pub host: String,
    /// The person, as it will be shown.
    pub user: String,
    /// Files and directories; relative ones are made absolute.
    pub paths: Vec<PathBuf>,
    /// Words to find it by ([`onefold_catalog::is_valid_tag`]), sorted, each once.
    pub tags: Vec<String>,
    /// Patterns of what to leave out ([`Excludes`]).
    pub excludes: Vec<String>,
    /// Keep to the file system of each path; directories where another one is mounted are stored empty.
    pub one_file_system: bool,
    /// Read every file, even those that look as they did.
    pub force_read: bool,
    /// The backup to compare with; `None`: the newest of the same name, host and paths.
    pub parent: Option<Backup>,
    /// The directory of the store, which is never backed up into itself.
    pub store_directory: Option<PathBuf>,
}

/// How a backup ended.
#[derive(Clone, Debug)]
pub struct BackupOutcome {
    /// What was committed.
    pub backup: Backup,
    /// The backup it was compared with.
    pub parent: Option<BackupId>,
    /// Files and directories that are missing because they could not be read.
    pub errors: u64,
    /// Files that changed or vanished meanwhile.
    pub warnings: u64,
}

impl BackupOutcome {
    /// Whether everything that was asked for is in the backup.
    pub fn is_complete(&self) -> bool {
        self.errors == 0
    }
}

/// Makes a backup; durable when this returns.
pub fn backup(catalog: &Catalog, options: &BackupOptions, monitor: &dyn Monitor) -> Result<BackupOutcome> {
    let started_ns = catalog.engine().date_ns();
    crate::raise_open_file_limit();
    let excludes = Excludes::new(&options.excludes)?;
    let paths = absolute_paths(&options.paths)?;
    let is_parent = |backup: &Backup| match &options.parent {
        // It may have been removed since the caller found it.
        Some(parent) => backup.id == parent.id,
        None => backup.name == options.name && backup.host == options.host && backup.paths == paths,
    };
    let (_in_flight, parent) = find_parent(catalog, is_parent, monitor)?;
    let store = match &options.store_directory {
        Some(path) => {
            let found = source::find(rustix::fs::CWD, path.as_os_str().as_bytes(), true);
            Some(found.map_err(|error| ClientError::io("find the store", path.as_os_str().as_bytes(), error))?.identity())
        }
        None => None,
    };

    let watch = Watch::new(monitor);
    let engine = catalog.engine();
    let stored_before = engine.stored_bytes();
    let metadata = Mutex::new(engine.stream());
    let (event_sender, events) = crossbeam_channel::bounded(EVENTS);
    let (job_sender, jobs) = crossbeam_channel::bounded(BATCHES);
    let (entry_sender, entries) = crossbeam_channel::unbounded();

    let root = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..READERS {
            let (jobs, entries) = (jobs.clone(), entry_sender.clone());
            let mut reader = Reader::new(engine, &metadata, &watch);
            threads.push(scope.spawn(move || reader.run(&jobs, &entries)));
        }
        drop((jobs, entry_sender));
        let walk = Walk {
            engine,
            watch: &watch,
            excludes: &excludes,
            one_file_system: options.one_file_system,
            force_read: options.force_read,
            store,
            events: event_sender,
            jobs: job_sender,
        };
        let (wanted, earlier) = (Wanted::new(&paths), parent.as_ref().map(|parent| &parent.root));
        threads.push(scope.spawn(move || walk.run(&wanted, earlier)));
        let root = assemble(engine, &metadata, &watch, events, entries);
        if root.is_err() {
            watch.stop();
        }
        let results: Vec<Result<()>> =
            threads.into_iter().map(|thread| thread.join().expect("the threads of a backup do not panic")).collect();
        // What failed first is what the others stumbled over; that a queue closed tells nothing.
        results.into_iter().collect::<Result<()>>()?;
        root
    })?
    .ok_or(ClientError::Cancelled)?;
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    refuse_empty(&watch)?;

    watch.count(Counter::AddedBytes, metadata.into_inner().added_bytes());
    if watch.get(Counter::AddedBytes) > 0 {
        // How small the last frames became is known when they are written.
        engine.flush()?;
    }

    let mut id = [0; 16];
    crate::random_bytes(&mut id)?;
    let mut record = Backup {
        id: BackupId::from_bytes(id),
        sequence: 0,
        seen_ns: 0,
        name: options.name.clone(),
        host: options.host.clone(),
        user: options.user.clone(),
        started_ns,
        finished_ns: engine.date_ns(),
        tags: options.tags.clone(),
        paths,
        options: options_json(options),
        root,
        statistics: Statistics { stored_bytes: engine.stored_bytes().saturating_sub(stored_before), ..statistics(&watch) },
    };
    catalog.commit_backup(&mut record)?;
    Ok(BackupOutcome {
        backup: record,
        parent: parent.map(|parent| parent.id),
        errors: watch.get(Counter::Errors),
        warnings: watch.get(Counter::Warnings),
    })
}

/// Finds the newest backup that `is_parent` accepts. What it has does not go as long as the guard is held, which was there before it was looked
/// for: to be kept until the record of the new backup is there.
fn find_parent(catalog: &Catalog, is_parent: impl Fn(&Backup) -> bool, monitor: &dyn Monitor) -> Result<(InFlight, Option<Backup>)> {
    let in_flight = catalog.engine().in_flight();
    let parent = match catalog.newest(is_parent) {
        // Damage to an old backup is no reason to have no new one: without a parent, every file is read.
        Err(error @ CatalogError::Damaged { .. }) => {
            let reason = format!("every file is read, as the backups before cannot all be: {error}");
            monitor.problem(&Problem { path: b"/".to_vec(), reason, severity: Severity::Warning });
            None
        }
        found => found?,
    };
    Ok((in_flight, parent))
}

/// A backup without any file is nobody's wish, unless there are none.
fn refuse_empty(watch: &Watch<'_>) -> Result<()> {
    let (excluded, errors) = (watch.get(Counter::Excluded), watch.get(Counter::Errors));
    let has_files = watch.get(Counter::Files) + watch.get(Counter::Others) > 0;
    let reason = match (errors, excluded) {
        (0, 0) if watch.get(Counter::Directories) > 0 => return Ok(()),
        _ if has_files => return Ok(()),
        (0, 0) => "none of the paths is there any more",
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

fn options_json(options: &BackupOptions) -> String {
    serde_json::json!({
        "excludes": options.excludes,
        "one_file_system": options.one_file_system,
        "force_read": options.force_read,
    })
    .to_string()
}

/// Absolute, without `.` and `..`, sorted, each once.
fn absolute_paths(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    if paths.is_empty() {
        return Err(ClientError::NothingToBackUp { reason: "no path was given".to_owned() });
    }
    let mut absolute = Vec::new();
    for path in paths {
        if path.as_os_str().is_empty() {
            return Err(ClientError::NothingToBackUp { reason: "a path is empty".to_owned() });
        }
        let path = std::path::absolute(path).map_err(|error| ClientError::io("find", path.as_os_str().as_bytes(), error))?;
        absolute.push(clean(&path));
    }
    absolute.sort();
    absolute.dedup();
    Ok(absolute)
}

/// Takes `..` away with the component before it, as a person reads it.
fn clean(path: &Path) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for component in components(path.as_os_str().as_bytes()) {
        match component {
            b".." => {
                kept.pop();
            }
            _ => kept.push(component),
        }
    }
    let mut clean = vec![b'/'];
    clean.extend_from_slice(&kept.join(&b'/'));
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tally;
    use onefold_engine::{Descriptor, Engine, Hints, Mode, Settings, UnusedCursor};
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
        // What nothing refers to, and what would go if it could.
        engine.stream().write_runs(&[b"a chunk that no backup has"], Hints::default()).unwrap();
        engine.flush().unwrap();
        engine.maintain(true).unwrap();
        let (mut unused, mut cursor) = (Vec::new(), Some(UnusedCursor::default()));
        while let Some(from) = cursor {
            let (found, next) = engine.unused(from, 100, &mut Vec::new()).unwrap();
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

    #[test]
    fn paths_become_absolute_and_clean() {
        let paths = ["/a/../b/./c/", "//b//c", "/..", "/x"].map(PathBuf::from);
        assert_eq!(absolute_paths(&paths).unwrap(), [&b"/"[..], b"/b/c", b"/x"]);
        let relative = absolute_paths(&[PathBuf::from("x")]).unwrap();
        assert!(relative[0].starts_with(b"/") && relative[0].ends_with(b"/x"));
        assert!(absolute_paths(&[]).is_err() && absolute_paths(&[PathBuf::new()]).is_err());
    }
}
