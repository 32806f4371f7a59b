//! The destination of `volume export`: never anything that somebody may still need.
//!
//! Invariants:
//! * An existing file is overwritten only with `--force`. A device is overwritten only with `--force`, and only while
//!   nobody else has it: never a mounted one.
//! * Before the first byte is written, it is known that all of them fit on the device.
//! * Nothing is written into the store's directory.

use crate::failure::{Failure, Result};
use crate::units::{printable, size};
use rustix::fs::{OFlags, SeekFrom};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// An open file or device.
pub(super) enum Destination {
    /// A new file.
    New(File),
    /// An existing file, truncated.
    Overwritten(File),
    /// A block device, opened exclusively.
    Device(File),
}

fn name(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Refuses existing files that must not be overwritten.
pub(super) fn check(path: &Path, force: bool) -> Result<Option<Metadata>> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_file("look at", path, error)),
    };
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::cannot_run(format!("{} is neither a file nor a block device", name(path)))
            .advise("write to a pipe or the like through standard output: onefold volume export NAME - > FILE"));
    }
    if !force {
        let what = if kind.is_file() { "already exists" } else { "is a block device; its content would be lost" };
        return Err(Failure::cannot_run(format!("{} {what}", name(path))).advise("give a new name, or --force to overwrite it"));
    }
    Ok(Some(found))
}

/// Refuses the store's directory and any file in it.
pub(super) fn check_outside(store: &Path, path: &Path) -> Result<()> {
    let Ok(store) = store.canonicalize() else { return Ok(()) };
    let absolute = std::path::absolute(path).map_err(|error| Failure::of_file("find", path, error))?;
    // For a path that does not exist, its nearest existing directory counts.
    let found = absolute.ancestors().find_map(|place| place.canonicalize().ok());
    if found.is_some_and(|found| found.starts_with(&store)) {
        return Err(Failure::cannot_run(format!("{} is in the store itself, {}", name(path), store.display()))
            .advise("nothing else may be written into a store; give a place elsewhere"));
    }
    Ok(())
}

impl Destination {
    /// Opens the destination. If this fails, nothing existing is touched.
    pub(super) fn open(path: &Path, force: bool, volume_bytes: u64) -> Result<Destination> {
        let Some(found) = check(path, force)? else {
            let file = File::options().write(true).create_new(true).open(path).map_err(|error| Failure::of_file("create", path, error))?;
            return Ok(Destination::New(file));
        };
        if found.is_file() {
            let file = File::options().write(true).truncate(true).open(path).map_err(|error| Failure::of_file("open", path, error))?;
            return Ok(Destination::Overwritten(file));
        }
        // Linux opens a device exclusively only while it is not mounted and no other part of the system uses it
        // (open(2)).
        let flags = OFlags::EXCL.bits() as i32;
        let file = File::options().write(true).custom_flags(flags).open(path).map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => Failure::failed(format!("{} is in use: it is mounted, or part of a mounted device", name(path)))
                .advise("unmount it first; `lsblk` and `findmnt` show what uses it"),
            _ => Failure::of_file("open", path, error),
        })?;
        let device_bytes =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|error| Failure::of_file("read the length of", path, error))?;
        if device_bytes < volume_bytes {
            let (has, needs) = (size(device_bytes), size(volume_bytes));
            return Err(Failure::failed(format!("{} is too small: it has {has}, the volume {needs}", name(path)))
                .advise("nothing was written; give a larger device"));
        }
        Ok(Destination::Device(file))
    }

    pub(super) fn file(&self) -> &File {
        match self {
            Destination::New(file) | Destination::Overwritten(file) | Destination::Device(file) => file,
        }
    }

    pub(super) fn is_device(&self) -> bool {
        matches!(self, Destination::Device(_))
    }

    /// Discards an incomplete export: half an image must not be taken for a complete one.
    pub(super) fn give_up(self, path: &Path) {
        match self {
            Destination::New(_) => drop(std::fs::remove_file(path)),
            Destination::Overwritten(file) => drop(file.set_len(0)),
            Destination::Device(_) => {}
        }
    }
}
