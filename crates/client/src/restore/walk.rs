//! The walk of a restore: goes through the backup, makes directories and everything without data, and hands files to
//! the writers.

use super::delete::Deleter;
use super::link::Link;
use super::options::RestoreOptions;
use crate::batches::Adding;
use crate::monitor::Counter;
use crate::select::{Reach, Selection, Verdict};
use crate::target::{Directory, NoEntry, Place, give_name, os, set_attributes, temporary_name};
use crate::write::{Batch, Output, Queue};
use crate::{ClientError, Result};
use onefold_catalog::{Attributes, Chunks, Content, DirectoryReader, Entry, MAX_DEPTH, components, is_valid_name, join};
use onefold_engine::Recipe;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::collections::{HashMap, hash_map};
use std::sync::Arc;

pub(super) struct Walk<'a> {
    pub(super) options: &'a RestoreOptions,
    pub(super) selection: &'a Selection,
    pub(super) output: &'a Output<'a>,
    pub(super) deleter: Option<Deleter<'a>>,
    pub(super) links: Vec<Link>,
    /// `None`: a dry run would make it.
    pub(super) target: Option<Arc<Directory>>,
    /// The file systems that were written to, by device, each with one of its directories.
    pub(super) file_systems: HashMap<u64, OwnedFd>,
}

/// A directory of the backup during its restore.
struct Level {
    place: At,
    entries: DirectoryReader<dyn Chunks>,
    /// Path in the backup.
    path: Vec<u8>,
    reach: Reach,
}

/// The place of a directory in the target.
enum At {
    Open(Arc<Directory>),
    /// The directory only leads to wanted names. It is made when something comes into it.
    Waiting(Attributes),
    /// A dry run would make it.
    Absent,
}

impl<'a> Walk<'a> {
    pub(super) fn run(&mut self, batches: Adding<'_, Batch>) -> Result<()> {
        let output = self.output;
        let mut queue = output.queue(batches);
        if let Some(target) = self.target.clone().filter(|_| !self.options.dry_run) {
            self.will_sync(&target).map_err(|error| ClientError::io("open", super::target_name(self.options), error))?;
        }
        let root = Level {
            place: self.target.clone().map_or(At::Absent, At::Open),
            entries: DirectoryReader::new(&output.reading.chunks, &output.reading.backup.root).with_incomplete(),
            path: Vec::new(),
            reach: self.selection.root(),
        };
        let mut levels = vec![root];
        while let Some(level) = levels.last_mut() {
            if output.watch.should_stop() {
                break;
            }
            let Some(entry) = level.entries.next() else {
                levels.pop().into_iter().for_each(|level| level.release(output));
                continue;
            };
            match entry {
                Ok(entry) => self.entry(&mut levels, &mut queue, entry)?,
                Err(error) => output.watch.error(&level.path, format_args!("a part of this directory cannot be read: {error}")),
            }
        }
        levels.into_iter().rev().for_each(|level| level.release(output));
        queue.finish()
    }

    fn entry(&mut self, levels: &mut Vec<Level>, queue: &mut Queue<'_>, entry: Entry) -> Result<()> {
        let output = self.output;
        let Some(level) = levels.last() else { return Ok(()) };
        let path = join(&level.path, &entry.name);
        if !is_valid_name(&entry.name) {
            output.watch.error(&path, "refused: its name in the backup is not a valid file name");
            return Ok(());
        }
        let is_directory = matches!(entry.content, Content::Directory { .. });
        let (is_wanted, reach) = match self.selection.judge(level.reach, &path, is_directory) {
            Verdict::Wanted(reach) => (true, reach),
            Verdict::OnTheWay(reach) => (false, reach),
            Verdict::Unwanted => return Ok(()),
        };
        output.watch.current(&path);
        let depth = components(&path).count();
        if let Content::Directory { recipe } = &entry.content {
            return self.directory(levels, &entry, recipe, path, (is_wanted, reach, depth));
        }
        if depth <= self.options.strip_components {
            output.watch.warn(&path, "left out: no name is left after removing that many components");
            return Ok(());
        }
        let Some(directory) = self.open_all(levels) else { return Ok(()) };
        let Some(directory) = directory.filter(|_| !self.options.dry_run) else {
            let directory = levels.last().and_then(|level| level.place.open());
            let content = match &entry.content {
                // A further name equals the existing file if its first name would be equal there.
                Content::HardLink { path: first } => output.reading.lookup(first).ok().flatten().map(|first| first.content),
                _ => None,
            };
            let entry = Entry { content: content.unwrap_or(entry.content), ..entry };
            output.plan(directory.map(|directory| &**directory), &entry, &path);
            return Ok(());
        };
        match &entry.content {
            Content::File { .. } => queue.file(&directory, entry, path)?,
            Content::HardLink { path: first } => self.links.push(Link { path, first: first.clone(), attributes: entry.attributes }),
            _ => self.special(&directory, &entry, &path)?,
        }
        Ok(())
    }

    fn directory(
        &mut self,
        levels: &mut Vec<Level>,
        entry: &Entry,
        recipe: &Recipe,
        path: Vec<u8>,
        (is_wanted, reach, depth): (bool, Reach, usize),
    ) -> Result<()> {
        let output = self.output;
        if levels.len() >= MAX_DEPTH {
            output.watch.error(&path, "is nested too deeply");
            return Ok(());
        }
        let is_stripped = depth <= self.options.strip_components;
        let place = if is_stripped { self.target.clone().map_or(At::Absent, At::Open) } else { At::Waiting(entry.attributes.clone()) };
        levels.push(Level { place, entries: DirectoryReader::new(&output.reading.chunks, recipe).with_incomplete(), path, reach });
        if is_wanted && !is_stripped && !self.open_level(levels, true) {
            return Ok(());
        }
        if is_wanted
            && depth >= self.options.strip_components
            && let (Some(deleter), Some(level)) = (&self.deleter, levels.last())
            && let At::Open(directory) = &level.place
            && !directory.is_new()
        {
            deleter.clean(recipe, directory, &level.path);
        }
        Ok(())
    }

    /// Makes all directories that waited for something to come into them. `None`: that failed and has been reported,
    /// and the levels are gone. `Some(None)`: a dry run would make the last.
    fn open_all(&mut self, levels: &mut Vec<Level>) -> Option<Option<Arc<Directory>>> {
        for depth in 1..levels.len() {
            if matches!(levels[depth].place, At::Waiting(_)) {
                let behind = levels.split_off(depth + 1);
                if !self.open_level(levels, false) {
                    return None;
                }
                levels.extend(behind);
            }
        }
        Some(levels.last().and_then(|level| level.place.open().cloned()))
    }

    /// Makes or enters the directory of the last level. If that fails, it is reported, and the level is gone.
    fn open_level(&mut self, levels: &mut Vec<Level>, is_wanted: bool) -> bool {
        let output = self.output;
        if is_wanted {
            // The levels above come first.
            let last = levels.pop();
            if self.open_all(levels).is_none() {
                return false;
            }
            levels.extend(last);
        }
        let (above, level) = match &mut levels[..] {
            [.., above, level] => (above.place.open(), level),
            _ => return false,
        };
        let At::Waiting(attributes) = &level.place else { return true };
        let name = level.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let entered = match above {
            None => Ok(None),
            Some(above) if self.options.dry_run => match above.look_into(name, level.path.clone(), &output.store) {
                Err(NoEntry::System(Errno::NOENT)) => Ok(None),
                entered => entered.map(Some),
            },
            Some(above) => {
                let entered = above.enter(name, level.path.clone(), attributes.clone(), is_wanted, &output.store);
                entered.and_then(|directory| Ok(self.will_sync(&directory).map(|()| Some(directory))?))
            }
        };
        match entered {
            Ok(directory) => {
                output.watch.count(Counter::Directories, 1);
                level.place = directory.map_or(At::Absent, At::Open);
                true
            }
            Err(error) => {
                output.watch.error(&level.path, error);
                levels.pop();
                false
            }
        }
    }

    /// Keeps an open directory of each file system, for the sync at the end.
    fn will_sync(&mut self, directory: &Directory) -> rustix::io::Result<()> {
        if let hash_map::Entry::Vacant(new) = self.file_systems.entry(directory.device()) {
            new.insert(rustix::io::fcntl_dupfd_cloexec(&directory.file, 0)?);
        }
        Ok(())
    }

    /// Restores links, devices, fifos and sockets.
    pub(super) fn special(&self, directory: &Arc<Directory>, entry: &Entry, path: &[u8]) -> Result<()> {
        let output = self.output;
        let Some(replace) = output.may_write(directory, entry, path) else { return Ok(()) };
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
                output.remember(&entry.attributes, path, path, false);
            }
            Err(error) => output.watch.error(path, format_args!("cannot give it its name: {error}")),
        }
        Ok(())
    }
}

impl At {
    fn open(&self) -> Option<&Arc<Directory>> {
        match self {
            At::Open(directory) => Some(directory),
            At::Waiting(_) | At::Absent => None,
        }
    }
}

impl Level {
    fn release(self, output: &Output<'_>) {
        if let At::Open(directory) = self.place {
            directory.release(output.powers, output.watch);
        }
    }
}
