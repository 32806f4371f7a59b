//! Ways to files of an experiment: a filesystem of the store that this process mounts, and a passthrough to the disk.

use crate::mounts::Mounts;
use crate::settings::{FileMount, Settings};
use crate::store::Store;
use onefold_experiment::run::{Durable, FILES, Served, Service, Trees, Way, WayError};
use onefold_fs::Filesystems;
use onefold_fuse::{is_mounted, unmount};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The name of the filesystem.
const NAME: &str = "bench";
/// Where it is mounted.
const MOUNTED: &str = "mounted";
/// A FUSE filesystem that shows a directory at another place.
const PASSTHROUGH: &str = "bindfs";
/// How long its mount may take.
const START_TIME: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(10);

/// Returns the directory to mount at.
fn place(store: &Served<'_>) -> Result<PathBuf, String> {
    let place = store.directory.join(MOUNTED);
    match std::fs::create_dir(&place) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(format!("{}: {error}", place.display())),
        _ => Ok(place),
    }
}

/// A mounted filesystem of the store.
pub(super) struct FilesystemService {
    trees: Trees,
    mounts: Mounts,
}

impl FilesystemService {
    /// Creates it if it is missing, and mounts it. The error completes a sentence that begins with "cannot".
    pub(super) fn start(store: &Served<'_>, settings: &Settings) -> Result<FilesystemService, String> {
        let place = place(store)?;
        let options = Store { engine: store.engine.clone(), settings: settings.clone() }.filesystem_options();
        let filesystems = Filesystems::of(store.volumes.spaces().clone(), options);
        if !filesystems.list().iter().any(|info| info.name == NAME) {
            filesystems.create(NAME, None, (0, 0)).map_err(|error| error.to_string())?;
        }
        let mounts = Mounts::new(filesystems, &store.directory.join("store"));
        let wanted = FileMount { name: NAME.to_owned(), place: place.clone(), allows_others: false, is_read_only: false };
        mounts.mount(&wanted).map_err(|failure| failure.message)?;
        Ok(FilesystemService { trees: Trees::new(&place, store.file_bytes, Durable::Each), mounts })
    }
}

impl Service for FilesystemService {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        self.trees.connect(volume)
    }
}

impl Drop for FilesystemService {
    fn drop(&mut self) {
        if let Err(failure) = self.mounts.end(&|place| tracing::warn!("{} is in use", place.display())) {
            tracing::error!("the filesystem of an experiment was not unmounted: {}", failure.message);
        }
    }
}

/// A directory of the disk, shown at another place by a FUSE filesystem that only passes on.
pub(super) struct PassthroughService {
    trees: Trees,
    place: PathBuf,
    process: Child,
}

impl PassthroughService {
    /// Mounts it. The error completes a sentence that begins with "cannot".
    pub(super) fn start(store: &Served<'_>) -> Result<PassthroughService, String> {
        let place = place(store)?;
        let mut command = Command::new(PASSTHROUGH);
        command.args(["-f", "--multithreaded"]).arg(store.directory.join(FILES)).arg(&place);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = started.map_err(|error| format!("run {PASSTHROUGH}, which passes on to the disk: {error}"))?;
        let trees = Trees::new(&place, store.file_bytes, Durable::Each);
        let service = PassthroughService { trees, place, process };
        let until = Instant::now() + START_TIME;
        while !is_mounted(&service.place) {
            if Instant::now() > until {
                return Err(format!("{PASSTHROUGH} does not mount {}", service.place.display()));
            }
            std::thread::sleep(STEP);
        }
        Ok(service)
    }
}

impl Service for PassthroughService {
    fn connect(&self, volume: &str) -> Result<Box<dyn Way>, WayError> {
        self.trees.connect(volume)
    }
}

impl Drop for PassthroughService {
    fn drop(&mut self) {
        let unmounted = if is_mounted(&self.place) { unmount(&self.place).map_err(|error| error.to_string()) } else { Err(String::new()) };
        if let Err(why) = unmounted {
            tracing::debug!("{PASSTHROUGH} is killed: {why}");
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
