//! Restoring a backup, parts of it, or one file.
//!
//! ```text
//! walk of the backup (caller)  --files-->  write (2 threads)
//! ```
//! The caller walks the backup and makes directories and whatever has no data; files go to the writers in batches, large files in
//! ranges, both in the order in which they were stored. Further names of hard links come last.
//!
//! # Invariants
//! * Nothing is written outside of the target ([`target`](crate::target)).
//! * A file gets its name only when all its bytes are there and their fingerprints were verified. A damaged one is reported
//!   and left out; the rest goes on.
//! * With [`Overwrite::Never`] nothing that exists is touched, except that directories are entered and get their attributes.

use crate::monitor::{Counter, Monitor, Watch};
use crate::target::{Directory, Place, Powers, give_name, let_owner_in, open_directory, os, set_attributes, temporary_name};
use crate::write::{Output, Writer};
use crate::{ClientError, Result, source};
use onefold_catalog::{
    Attributes, Backup, Catalog, CatalogError, Content, DirectoryReader, Entry, MAX_DEPTH, PieceReader, components, is_valid_name, join,
};
use onefold_engine::{Piece, Recipe};
use rustix::fs::{AtFlags, FileType, Mode, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Threads that read the store and write files.
const WRITERS: usize = 2;
/// Batches on their way to the writers.
const BATCHES: usize = 4;
/// How much `dump` reads at a time.
const DUMP_BYTES: u64 = 4 << 20;

/// What happens to what exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// It stays, and is listed as an error.
    #[default]
    Never,
    /// Files whose size or time of change differ are replaced; the others only get their attributes.
    IfChanged,
    /// It is replaced. A directory is never replaced by something else.
    Always,
}

/// What to restore, and where to.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The directory to write to; created if it is not there.
    pub target: PathBuf,
    /// A directory of the backup whose content becomes the content of the target; empty for the root.
    pub root: Vec<u8>,
    /// What to restore, as paths below `root`; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// What happens to what exists.
    pub overwrite: Overwrite,
}

/// How a restore ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// Regular files written, further names of hard links included.
    pub files: u64,
    /// Directories made or entered.
    pub directories: u64,
    /// Symlinks, devices, fifos, sockets.
    pub others: u64,
    /// Existing files that were equal and were kept ([`Overwrite::IfChanged`]).
    pub kept_files: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// What is missing.
    pub errors: u64,
    /// What is there, but not in every detail.
    pub warnings: u64,
}

impl RestoreOutcome {
    /// Whether everything that was asked for is in the target.
    pub fn is_complete(&self) -> bool {
        self.errors == 0
    }
}

/// Restores a backup. What is written is synced when this returns.
pub fn restore(catalog: &Catalog, backup: &Backup, options: &RestoreOptions, monitor: &dyn Monitor) -> Result<RestoreOutcome> {
    crate::raise_open_file_limit();
    // The backup may be forgotten meanwhile: what it needs stays until it is restored.
    let _in_flight = catalog.engine().in_flight();
    let watch = Watch::new(monitor);
    let root = catalog.directory(backup, &options.root)?;
    for path in &options.paths {
        catalog.lookup(backup, &join(&options.root, path))?;
    }
    let target_name = options.target.as_os_str().as_bytes();
    std::fs::create_dir_all(&options.target).map_err(|error| ClientError::io("create", target_name, error))?;
    let target = source::open(rustix::fs::CWD, target_name, rustix::fs::OFlags::DIRECTORY)
        .map_err(|error| ClientError::io("open", target_name, error))?;
    let synced = target.try_clone().map_err(|error| ClientError::io("open", target_name, error))?;

    let powers = Powers::new();
    let (sender, batches) = crossbeam_channel::bounded(BATCHES);
    let output = Output::new(catalog.engine(), &watch, &powers, options.overwrite);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..WRITERS {
            let (mut writer, batches) = (Writer::new(&output), batches.clone());
            threads.push(scope.spawn(move || writer.run(&batches)));
        }
        drop(batches);
        let mut walk = Walk {
            catalog,
            backup,
            options,
            output: &output,
            links: Vec::new(),
            target: Directory::new(target, options.root.clone(), None, None),
        };
        let walked = walk.run(&root, sender);
        let written: Vec<Result<()>> =
            threads.into_iter().map(|thread| thread.join().expect("the threads of a restore do not panic")).collect();
        written.into_iter().collect::<Result<()>>()?;
        walked?;
        walk.hard_links()
    })?;
    powers.set_last_flags(&watch);
    if watch.cancelled() {
        return Err(ClientError::Cancelled);
    }
    rustix::fs::syncfs(&synced).map_err(|error| ClientError::io("sync", target_name, error))?;
    Ok(RestoreOutcome {
        files: watch.get(Counter::Files),
        directories: watch.get(Counter::Directories),
        others: watch.get(Counter::Others),
        kept_files: watch.get(Counter::KeptFiles),
        written_bytes: watch.get(Counter::DataBytes),
        errors: watch.get(Counter::Errors),
        warnings: watch.get(Counter::Warnings),
    })
}

/// Writes the bytes of one file of a backup, verified; returns how many.
pub fn dump(catalog: &Catalog, backup: &Backup, path: &[u8], out: &mut dyn Write) -> Result<u64> {
    let _in_flight = catalog.engine().in_flight();
    let not_a_file = |kind| ClientError::NotAFile { path: String::from_utf8_lossy(path).into_owned(), kind };
    let mut entry = catalog.lookup(backup, path)?.ok_or_else(|| not_a_file("directory"))?;
    if let Content::HardLink { path: first } = &entry.content {
        entry = catalog.lookup(backup, first)?.ok_or_else(|| not_a_file("directory"))?;
    }
    let Content::File { recipe, .. } = &entry.content else { return Err(not_a_file(entry.content.kind())) };
    let write = |out: &mut dyn Write, bytes: &[u8]| out.write_all(bytes).map_err(|error| ClientError::io("write", path, error));
    let mut pieces = Vec::new();
    let mut length = 0;
    let mut total = 0;
    let mut buffer = Vec::new();
    let mut reader = PieceReader::new(catalog.engine(), recipe);
    loop {
        let next = reader.next().transpose()?;
        // Zeros are written without a buffer of their size.
        let ends = next.is_none_or(|piece| matches!(piece, Piece::Zeros { .. }) || length + piece.length() > DUMP_BYTES);
        if ends && length > 0 {
            buffer.resize(length as usize, 0);
            catalog.engine().read(&pieces, 0, &mut buffer, true)?;
            write(out, &buffer)?;
            total += length;
            pieces.clear();
            length = 0;
        }
        match next {
            None => return Ok(total),
            Some(Piece::Zeros { length }) => {
                let zeros = vec![0; length.min(1 << 16) as usize];
                let mut left = length;
                while left > 0 {
                    let step = left.min(zeros.len() as u64);
                    write(out, &zeros[..step as usize])?;
                    left -= step;
                }
                total += length;
            }
            Some(piece) => {
                length += piece.length();
                pieces.push(piece);
            }
        }
    }
}

/// A further name, to be made when all first names are there.
struct Link {
    /// Path in the backup.
    path: Vec<u8>,
    first: Vec<u8>,
    attributes: Attributes,
}

struct Walk<'a> {
    catalog: &'a Catalog,
    backup: &'a Backup,
    options: &'a RestoreOptions,
    output: &'a Output<'a>,
    links: Vec<Link>,
    target: Arc<Directory>,
}

/// A directory of the backup that is being restored.
struct Level {
    directory: Arc<Directory>,
    entries: DirectoryReader,
    /// Path in the backup.
    path: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn run(&mut self, root: &Recipe, batches: crossbeam_channel::Sender<crate::write::Batch>) -> Result<()> {
        let output = self.output;
        let mut queue = output.queue(batches);
        let engine = self.catalog.engine();
        let mut levels =
            vec![Level { directory: self.target.clone(), entries: DirectoryReader::new(engine, root), path: normal(&self.options.root) }];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
            if output.watch.should_stop() {
                break;
            }
            let Some(entry) = level.entries.next() else {
                if let Some(level) = levels.pop() {
                    level.directory.release(output.powers, output.watch);
                }
                continue;
            };
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    output.watch.error(&level.path, format_args!("a part of this directory cannot be read: {error}"));
                    continue;
                }
            };
            let path = join(&level.path, &entry.name);
            if !is_valid_name(&entry.name) {
                output.watch.error(&path, "this name in the store cannot be a file's: refused");
                continue;
            }
            let Some(is_whole) = self.wants(&path) else { continue };
            output.watch.current(&path);
            match &entry.content {
                Content::Directory { recipe } => {
                    if depth >= MAX_DEPTH {
                        output.watch.error(&path, "is nested too deep");
                        continue;
                    }
                    let attributes = is_whole.then(|| entry.attributes.clone());
                    match level.directory.enter(&entry.name, path.clone(), attributes) {
                        Ok(directory) => {
                            output.watch.count(Counter::Directories, 1);
                            let entries = DirectoryReader::new(engine, recipe);
                            levels.push(Level { directory, entries, path });
                        }
                        Err(Errno::NOTDIR | Errno::LOOP) => output.watch.error(&path, "something that is not a directory is in its place"),
                        Err(error) => output.watch.error(&path, format_args!("cannot create the directory: {error}")),
                    }
                }
                Content::File { .. } => queue.file(&level.directory, entry, path)?,
                Content::HardLink { path: first } => {
                    self.links.push(Link { path, first: first.clone(), attributes: entry.attributes });
                }
                _ => self.special(&level.directory, &entry, &path)?,
            }
        }
        for level in levels.into_iter().rev() {
            level.directory.release(output.powers, output.watch);
        }
        queue.finish()
    }

    /// Whether a path is to be restored: `Some(true)` with its attributes, `Some(false)` only as the way to one that is.
    fn wants(&self, path: &[u8]) -> Option<bool> {
        if self.options.paths.is_empty() {
            return Some(true);
        }
        let depth_of_root = components(&self.options.root).count();
        let path: Vec<&[u8]> = components(path).skip(depth_of_root).collect();
        let mut on_the_way = false;
        for wanted in &self.options.paths {
            let wanted: Vec<&[u8]> = components(wanted).collect();
            if path.starts_with(&wanted) {
                return Some(true);
            }
            on_the_way |= wanted.starts_with(&path);
        }
        on_the_way.then_some(false)
    }

    /// Links, devices, fifos, sockets.
    fn special(&self, directory: &Arc<Directory>, entry: &Entry, path: &[u8]) -> Result<()> {
        let output = self.output;
        let replace = match output.may_write(directory, &entry.name, path) {
            Some(replace) => replace,
            None => return Ok(()),
        };
        let temporary = temporary_name()?;
        let mode = Mode::RUSR | Mode::WUSR;
        let make = |kind, device| rustix::fs::mknodat(&directory.file, os(&temporary), kind, mode, device);
        let made = match &entry.content {
            Content::Symlink { target } => rustix::fs::symlinkat(os(target), &directory.file, os(&temporary)),
            Content::CharacterDevice { major, minor } => make(FileType::CharacterDevice, rustix::fs::makedev(*major, *minor)),
            Content::BlockDevice { major, minor } => make(FileType::BlockDevice, rustix::fs::makedev(*major, *minor)),
            Content::Fifo => make(FileType::Fifo, 0),
            Content::Socket => make(FileType::Socket, 0),
            Content::File { .. } | Content::Directory { .. } | Content::HardLink { .. } => return Ok(()),
        };
        if let Err(error) = made {
            output.watch.error(path, format_args!("cannot create the {}: {error}", entry.content.kind()));
            return Ok(());
        }
        let place = Place::Name(&directory.file, &temporary);
        set_attributes(&place, &entry.attributes, directory.inherits_acl(), path, output.powers, output.watch);
        match give_name(&directory.file, &temporary, &entry.name, replace) {
            Ok(()) => {
                output.watch.count(Counter::Others, 1);
                if entry.attributes.links > 1 {
                    output.restored.lock().insert(path.to_vec(), path.to_vec());
                }
            }
            Err(error) => output.watch.error(path, format_args!("cannot give it its name: {error}")),
        }
        Ok(())
    }

    /// Makes the further names of files, now that the first ones are there.
    fn hard_links(&mut self) -> Result<()> {
        for link in std::mem::take(&mut self.links) {
            if self.output.watch.should_stop() {
                break;
            }
            self.hard_link(&link)?;
        }
        Ok(())
    }

    fn hard_link(&self, link: &Link) -> Result<()> {
        let output = self.output;
        let (above, name) = split(&link.path);
        let directory = match self.open(above) {
            Ok(directory) => directory,
            Err(error) => {
                output.watch.error(&link.path, format_args!("cannot open its directory: {error}"));
                return Ok(());
            }
        };
        let directory = Directory::new(directory, above.to_vec(), None, None);
        let before = let_owner_in(&directory.file);
        let known = output.restored.lock().get(&link.first).cloned();
        match known {
            Some(known) => self.link_to(&known, &directory, name, link)?,
            None => self.in_place_of_first(&directory, name, link)?,
        }
        // The directory had its attributes already; the new name has moved its time.
        if let Some(before) = before {
            if before.attributes.mode & 0o300 != 0o300 {
                let _ = rustix::fs::fchmod(&directory.file, Mode::from_raw_mode(before.attributes.mode.into()));
            }
            let time = source::timespec(before.attributes.mtime_ns);
            let _ = rustix::fs::futimens(&directory.file, &Timestamps { last_access: time, last_modification: time });
        }
        Ok(())
    }

    fn link_to(&self, known: &[u8], directory: &Arc<Directory>, name: &[u8], link: &Link) -> Result<()> {
        let output = self.output;
        let Some(replace) = output.may_write(directory, name, &link.path) else { return Ok(()) };
        let temporary = temporary_name()?;
        let (above, first) = split(known);
        let made = self.open(above).and_then(|first_directory| {
            rustix::fs::linkat(&first_directory, os(first), &directory.file, os(&temporary), AtFlags::empty())?;
            give_name(&directory.file, &temporary, name, replace)?;
            // Renaming onto another name of the same file does nothing and leaves the temporary one.
            match rustix::fs::unlinkat(&directory.file, os(&temporary), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            }
        });
        match made {
            Ok(()) => output.watch.count(Counter::Files, 1),
            Err(error) => output.watch.error(&link.path, format_args!("cannot link it to {}: {error}", String::from_utf8_lossy(known))),
        }
        Ok(())
    }

    /// The first name was not restored, or not asked for: this one becomes the first.
    fn in_place_of_first(&self, directory: &Arc<Directory>, name: &[u8], link: &Link) -> Result<()> {
        let output = self.output;
        let first = match self.catalog.lookup(self.backup, &link.first) {
            Ok(Some(first)) if !matches!(first.content, Content::HardLink { .. } | Content::Directory { .. }) => first,
            Ok(_) | Err(CatalogError::PathNotFound { .. } | CatalogError::NotADirectory { .. }) => {
                output.watch.error(&link.path, "the backup has no first name of this file");
                return Ok(());
            }
            Err(error) => {
                output.watch.error(&link.path, error);
                return Ok(());
            }
        };
        let entry = Entry { name: name.to_vec(), attributes: link.attributes.clone(), content: first.content };
        output.restored.lock().remove(&link.path);
        match &entry.content {
            Content::File { .. } => Writer::new(output).one(directory, entry, link.path.clone())?,
            _ => self.special(directory, &entry, &link.path)?,
        }
        let mut restored = output.restored.lock();
        if restored.contains_key(&link.path) {
            restored.insert(link.first.clone(), link.path.clone());
        }
        Ok(())
    }

    /// Opens a directory of the target by its path in the backup, following no link.
    fn open(&self, path: &[u8]) -> rustix::io::Result<rustix::fd::OwnedFd> {
        let depth_of_root = components(&self.options.root).count();
        let mut directory = open_directory(&self.target.file, b".")?;
        for component in components(path).skip(depth_of_root) {
            if !is_valid_name(component) {
                return Err(Errno::INVAL);
            }
            directory = open_directory(&directory, component)?;
        }
        Ok(directory)
    }
}

fn normal(path: &[u8]) -> Vec<u8> {
    components(path).collect::<Vec<_>>().join(&b'/')
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Where each first name of a file with several was restored to.
pub(crate) type Restored = HashMap<Vec<u8>, Vec<u8>>;
