//! Further names of files, made after the first ones.

use super::link::Link;
use super::walk::Walk;
use crate::Result;
use crate::damage::damaged_name;
use crate::monitor::Counter;
use crate::source;
use crate::target::{Directory, give_name, let_owner_in, open_directory, os, temporary_name};
use crate::write::{Restored, Writer};
use onefold_catalog::{CatalogError, Content, Entry, components, is_valid_name};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, Timestamps};
use rustix::io::Errno;
use std::sync::Arc;

impl Walk<'_> {
    /// Makes the further names of files. The first ones exist by now.
    pub(super) fn hard_links(&mut self) -> Result<()> {
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
        let directory = match self.open(above).and_then(|directory| Directory::new(directory, above.to_vec())) {
            Ok(directory) => directory,
            Err(error) => {
                output.watch.error(&link.path, format_args!("cannot open its directory: {error}"));
                return Ok(());
            }
        };
        let before = let_owner_in(&directory.file);
        let known = output.restored.lock().get(&link.first).cloned();
        match known {
            Some(known) => self.link_to(&known, &directory, name, link)?,
            None => self.in_place_of_first(&directory, name, link)?,
        }
        // The directory had its attributes already, and the new name has changed its time.
        if let Some(before) = before {
            if before.attributes.mode & 0o300 != 0o300 {
                let _ = rustix::fs::fchmod(&directory.file, Mode::from_raw_mode(before.attributes.mode.into()));
            }
            let time = source::timespec(before.attributes.mtime_ns);
            let _ = rustix::fs::futimens(&directory.file, &Timestamps { last_access: time, last_modification: time });
        }
        Ok(())
    }

    fn link_to(&self, known: &Restored, directory: &Arc<Directory>, name: &[u8], link: &Link) -> Result<()> {
        let output = self.output;
        // A further name of a damaged file refers to the file that was made of it.
        let name = if known.is_damaged { damaged_name(name) } else { name.to_vec() };
        let temporary = temporary_name()?;
        let (above, first) = split(&known.path);
        let made = self.open(above).and_then(|first_directory| {
            let identity = source::find(&first_directory, first, false)?.identity();
            let Some(replace) = output.may_link(directory, &name, &link.path, identity) else { return Ok(false) };
            rustix::fs::linkat(&first_directory, os(first), &directory.file, os(&temporary), AtFlags::empty())?;
            give_name(&directory.file, &temporary, &name, replace)?;
            // Renaming onto another name of the same file does nothing, and leaves the temporary name.
            match rustix::fs::unlinkat(&directory.file, os(&temporary), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(true),
                Err(error) => Err(error),
            }
        });
        match made {
            Ok(true) if known.is_damaged => {
                let reason = format!("is another name of a file that is partly lost: restored as {}", String::from_utf8_lossy(&name));
                output.watch.error(&link.path, reason);
            }
            Ok(true) => output.watch.count(Counter::Files, 1),
            Ok(false) => {}
            Err(error) => {
                output.watch.error(&link.path, format_args!("cannot link it to {}: {error}", String::from_utf8_lossy(&known.path)));
            }
        }
        Ok(())
    }

    /// Makes this name the first one, because the first name was not restored or not requested.
    fn in_place_of_first(&self, directory: &Arc<Directory>, name: &[u8], link: &Link) -> Result<()> {
        let output = self.output;
        let first = match self.output.reading.lookup(&link.first) {
            Ok(Some(first)) if !matches!(first.content, Content::HardLink { .. } | Content::Directory { .. }) => first,
            Ok(_) | Err(CatalogError::PathNotFound { .. } | CatalogError::NotADirectory { .. }) => {
                output.watch.error(&link.path, "the backup lacks the first name of this file");
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
        if let Some(made) = restored.get(&link.path).cloned() {
            restored.insert(link.first.clone(), made);
        }
        Ok(())
    }

    /// Opens a directory of the target by its path in the backup, following no link.
    fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let target = self.target.as_ref().ok_or(Errno::NOENT)?;
        let mut directory = open_directory(&target.file, b".")?;
        for component in components(path).skip(self.options.strip_components) {
            if !is_valid_name(component) {
                return Err(Errno::INVAL);
            }
            directory = open_directory(&directory, component)?;
        }
        Ok(directory)
    }
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}
