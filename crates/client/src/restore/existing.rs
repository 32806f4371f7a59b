//! Existing names in the target: equal to the backup, to be replaced, or in the way.

use super::options::Overwrite;
use crate::monitor::{Counter, Plan};
use crate::source::{self, Found};
use crate::target::{Directory, Place, os, set_attributes};
use crate::write::Output;
use onefold_catalog::{Attributes, Content, Entry};
use rustix::fd::AsFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

impl Output<'_> {
    /// Returns whether a name may be written, and if so whether it replaces something: `Some(replace)`. `None`: the
    /// existing file is kept, as equal or in the way, which has been counted and reported.
    pub(crate) fn may_write(&self, directory: &Directory, entry: &Entry, path: &[u8]) -> Option<bool> {
        if directory.is_new() {
            return Some(false);
        }
        let found = self.found(directory, &entry.name, path)?;
        let Some(found) = found else { return Some(false) };
        if found.kind == FileType::Directory {
            self.in_the_way(path, "its place is taken by a directory");
            return None;
        }
        if self.overwrite != Overwrite::Always && self.is_equal(directory, entry, &found) {
            self.keep(directory, entry, &found, path);
            return None;
        }
        self.replaces(path, "already exists and differs")
    }

    /// Answers the same for a further name of the file `first`.
    pub(crate) fn may_link(&self, directory: &Directory, name: &[u8], path: &[u8], first: (u64, u64)) -> Option<bool> {
        let found = self.found(directory, name, path)?;
        let Some(found) = found else { return Some(false) };
        if found.kind == FileType::Directory {
            self.in_the_way(path, "its place is taken by a directory");
            return None;
        }
        if found.identity() == first {
            self.watch.count(Counter::KeptFiles, 1);
            return None;
        }
        self.replaces(path, "already exists as a separate file, but in the backup it is another name of a file")
    }

    /// Reports what a dry run would do with a file, link or device. `directory` is `None` if it would be new.
    pub(crate) fn plan(&self, directory: Option<&Directory>, entry: &Entry, path: &[u8]) {
        let replace = match directory {
            Some(directory) => self.may_write(directory, entry, path),
            None => Some(false),
        };
        let Some(replace) = replace else { return };
        self.watch.planned(if replace { Plan::Replace } else { Plan::Create }, path);
        match &entry.content {
            Content::File { size_bytes, .. } => {
                self.watch.count(Counter::Files, 1);
                self.watch.count(Counter::DataBytes, *size_bytes);
                self.watch.count(Counter::LogicalBytes, *size_bytes);
            }
            _ => self.watch.count(Counter::Others, 1),
        }
    }

    /// Returns what exists under a name. `Some(None)`: nothing. `None`: unknown, which has been reported.
    fn found(&self, directory: &Directory, name: &[u8], path: &[u8]) -> Option<Option<Found>> {
        match source::find(&directory.file, name, false) {
            Ok(found) => Some(Some(found)),
            Err(Errno::NOENT) => Some(None),
            Err(error) => {
                self.watch.error(path, format_args!("cannot look at what is in its place: {error}"));
                None
            }
        }
    }

    /// Returns whether a kept file gets the attributes of the backup.
    fn sets_attributes(&self) -> bool {
        self.overwrite != Overwrite::Never
    }

    fn replaces(&self, path: &[u8], reason: &str) -> Option<bool> {
        if self.overwrite == Overwrite::Never {
            self.in_the_way(path, reason);
            return None;
        }
        Some(true)
    }

    fn in_the_way(&self, path: &[u8], reason: &str) {
        self.watch.count(Counter::InTheWay, 1);
        self.watch.error(path, reason);
    }

    /// Returns whether the existing file needs no restoring: a file with the same size and modification time, a link to
    /// the same place, the same device. If root would set the backup's attributes on it, it must also have the same
    /// owner. Anyone can give a file a size and a time. Root would hand such a file to the owner in the backup, with
    /// whatever its maker put into it.
    fn is_equal(&self, directory: &Directory, entry: &Entry, found: &Found) -> bool {
        let owner = |attributes: &Attributes| (attributes.uid, attributes.gid);
        if self.sets_attributes() && self.powers.is_root() && owner(&found.attributes) != owner(&entry.attributes) {
            return false;
        }
        let is_device = |kind, major, minor| found.kind == kind && (found.major, found.minor) == (major, minor);
        match &entry.content {
            Content::File { size_bytes, .. } => {
                found.kind == FileType::RegularFile
                    && found.size_bytes == *size_bytes
                    && found.attributes.mtime_ns == entry.attributes.mtime_ns
            }
            Content::Symlink { target } => {
                found.kind == FileType::Symlink
                    && rustix::fs::readlinkat(&directory.file, os(&entry.name), Vec::new()).is_ok_and(|found| found.as_bytes() == target)
            }
            Content::CharacterDevice { major, minor } => is_device(FileType::CharacterDevice, *major, *minor),
            Content::BlockDevice { major, minor } => is_device(FileType::BlockDevice, *major, *minor),
            Content::Fifo => found.kind == FileType::Fifo,
            Content::Socket => found.kind == FileType::Socket,
            Content::Directory { .. } | Content::HardLink { .. } => false,
        }
    }

    /// Keeps an equal file. If files may be changed, it gets its attributes.
    fn keep(&self, directory: &Directory, entry: &Entry, found: &Found, path: &[u8]) {
        if self.sets_attributes() && !self.dry_run {
            let is_file = matches!(entry.content, Content::File { .. });
            let open = || source::open(&directory.file, &entry.name, OFlags::NOFOLLOW | OFlags::NONBLOCK).ok();
            let opened = if is_file { open() } else { None };
            let is_other = |file| source::find_open(file).map_or(true, |now| now.identity() != found.identity());
            // Its owner may not be able to open it; root is.
            if is_file && opened.as_ref().map_or(self.powers.is_root(), is_other) {
                return self.watch.error(path, "something else took its place meanwhile");
            }
            let place = match &opened {
                Some(file) => Place::Open(file.as_fd()),
                None => Place::Name(&directory.file, &entry.name),
            };
            set_attributes(&place, &entry.attributes, false, path, self.powers, self.watch);
        }
        if let Content::File { size_bytes, .. } = entry.content {
            self.watch.count(Counter::LogicalBytes, size_bytes);
        }
        self.watch.count(Counter::KeptFiles, 1);
        self.remember(&entry.attributes, path, path, false);
    }
}
