//! Deletes names from restored directories that the backup does not have.
//!
//! # Invariants
//! * Only directories that were backed up completely, and are wanted completely, lose names; never the directories
//!   above them.
//! * A directory of which only the marker was backed up loses nothing. Nor does a directory that `--one-file-system`
//!   may have left empty.
//! * A directory of the backup that cannot be read to its end loses nothing.
//! * Names that the user or the backup has excluded stay. So does everything mounted there, also if the look into it
//!   mounted it, and every store. So does anything that may be a store and cannot be read.
//! * A directory of the backup that is a mount point loses nothing. Nor does a directory that is a store of which the
//!   backup knows nothing.

use crate::glob::Excludes;
use crate::marker::CACHE_TAG;
use crate::monitor::{Counter, Plan};
use crate::select::Selection;
use crate::source::{self, Found, Listing};
use crate::target::{Directory, let_owner_in, open_directory, os};
use crate::write::Output;
use crate::{ClientError, Result};
use onefold_catalog::{Backup, DirectoryReader, components, join};
use onefold_engine::{DESCRIPTOR, DESCRIPTOR_BEGINNING, DESCRIPTOR_COPY, Recipe};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType};
use std::collections::HashSet;

/// Directories that nest deeper than this are left alone.
const MAX_DEPTH: usize = 1000;

/// Files that a store begins with.
const DESCRIPTORS: [&str; 2] = [DESCRIPTOR, DESCRIPTOR_COPY];

/// Deletes names.
pub(crate) struct Deleter<'a> {
    output: &'a Output<'a>,
    selection: &'a Selection,
    /// What the backup left out: its absence from the backup proves nothing.
    left_out: Excludes,
    /// Names of marker files because of which everything else in a directory was left out.
    markers: Vec<Vec<u8>>,
    /// Mount points of other file systems are empty in the backup.
    one_file_system: bool,
    paths: &'a [Vec<u8>],
}

impl<'a> Deleter<'a> {
    /// Errors: the backup is partial, is one of a list of files, or does not say what it left out. In each case it
    /// cannot tell what did not exist.
    pub(crate) fn new(output: &'a Output<'a>, selection: &'a Selection, backup: &'a Backup) -> Result<Deleter<'a>> {
        if backup.is_partial() {
            let why = format!("backup {} is partial: files that it lacks would be deleted", backup.id.short());
            return Err(ClientError::Refused { why });
        }
        let LeftOut { excludes, markers, one_file_system } = left_out(&backup.options).map_err(|why| {
            let why = format!("backup {} cannot tell what to delete: {why}; restore it without --delete", backup.id.short());
            ClientError::Refused { why }
        })?;
        Ok(Deleter { output, selection, left_out: excludes, markers, one_file_system, paths: &backup.paths })
    }

    /// Deletes from a directory of the target what the directory `recipe` of the backup does not have.
    pub(crate) fn clean(&self, recipe: &Recipe, directory: &Directory, path: &[u8]) {
        let path_names: Vec<&[u8]> = components(path).collect();
        let is_below = |above: &Vec<u8>| components(above).enumerate().all(|(at, name)| path_names.get(at) == Some(&name));
        if !self.paths.iter().any(is_below) {
            return;
        }
        let watch = self.output.watch;
        if directory.is_mount_point() {
            // The backup may have the mount point without anything in it.
            return watch.warn(path, "a file system is mounted there: nothing in this directory is deleted");
        }
        let mut names = HashSet::new();
        for entry in DirectoryReader::new(&self.output.reading.chunks, recipe) {
            match entry {
                Ok(entry) => names.insert(entry.name),
                // The walk meets this damage too, and reports it.
                Err(_) => return,
            };
        }
        if self.may_lack_everything(&names, path) {
            return;
        }
        let listing = match Listing::read(&directory.file) {
            Ok(listing) => listing,
            Err(error) => return watch.error(path, format_args!("cannot list it, so nothing is deleted from it: {error}")),
        };
        // The backup may be older than the store, or it may be in the store, which leaves itself out.
        if DESCRIPTORS.iter().all(|name| !names.contains(name.as_bytes())) {
            match is_store(&directory.file, &listing) {
                Ok(false) => {}
                Ok(true) => return watch.error(path, "it is a store: nothing is deleted from this directory"),
                Err(error) => {
                    let why = format_args!("cannot tell whether it is a store, so nothing is deleted from it: {error}");
                    return watch.error(path, why);
                }
            }
        }
        for name in (0..).map_while(|at| listing.get(at)).filter(|name| !names.contains(*name)) {
            if watch.should_stop() {
                return;
            }
            self.remove(&directory.file, name, join(path, name), directory.device(), 0);
        }
    }

    /// Returns whether a directory of the backup with these names may lack everything else: because another file system
    /// was mounted there, or because of a marker, which may itself be excluded.
    fn may_lack_everything(&self, names: &HashSet<Vec<u8>>, path: &[u8]) -> bool {
        if self.one_file_system && names.is_empty() {
            return true;
        }
        self.markers.iter().any(|marker| match names.len() {
            0 => self.left_out.matches(&join(path, marker)),
            length => length == 1 && names.contains(marker),
        })
    }

    /// Deletes a name with everything below it. Returns whether it is gone.
    fn remove(&self, above: &OwnedFd, name: &[u8], path: Vec<u8>, device: u64, depth: usize) -> bool {
        let watch = self.output.watch;
        if self.selection.excludes(&path) || self.left_out.matches(&path) || watch.should_stop() {
            return false;
        }
        let found = match source::find(above, name, false) {
            Ok(found) => found,
            Err(error) => {
                watch.error(&path, format_args!("cannot delete it: {error}"));
                return false;
            }
        };
        let is_directory = found.kind == FileType::Directory;
        if is_directory {
            let is_kept = |found: &Found| {
                let reason = if self.output.store.is_found(found) {
                    "it is the directory of the store"
                } else if found.is_mount_point(device) {
                    "a file system is mounted there"
                } else if depth >= MAX_DEPTH {
                    "it is nested too deeply"
                } else {
                    return false;
                };
                watch.error(&path, format_args!("not deleted: {reason}"));
                true
            };
            if is_kept(&found) {
                return false;
            }
            let opened = open_directory(above, name)
                .and_then(|directory| Ok((source::find_open(&directory)?, Listing::read(&directory)?, directory)));
            let (found, listing, directory) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    watch.error(&path, format_args!("cannot delete it: {error}"));
                    return false;
                }
            };
            // Opening it may have mounted a file system there.
            if is_kept(&found) {
                return false;
            }
            match is_store(&directory, &listing) {
                Ok(false) => {}
                Ok(true) => {
                    watch.error(&path, "not deleted: it is a store");
                    return false;
                }
                Err(error) => {
                    watch.error(&path, format_args!("not deleted: cannot tell whether it is a store: {error}"));
                    return false;
                }
            }
            // Only now: whatever is kept keeps its mode.
            if !self.output.dry_run {
                let_owner_in(&directory);
            }
            let mut is_empty = true;
            for name in (0..).map_while(|at| listing.get(at)) {
                is_empty &= self.remove(&directory, name, join(&path, name), device, depth + 1);
            }
            if !is_empty {
                return false;
            }
        }
        if self.output.dry_run {
            watch.planned(Plan::Delete, &path);
        } else {
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            if let Err(error) = rustix::fs::unlinkat(above, os(name), flags) {
                watch.error(&path, format_args!("cannot delete it: {error}"));
                return false;
            }
        }
        watch.count(Counter::Deleted, 1);
        true
    }
}

/// Returns whether a directory with these names is a store. Backups do not have the store that they are in, and a copy
/// of it does not know where it is. Errors: a possible descriptor cannot be read.
fn is_store(directory: &OwnedFd, listing: &Listing) -> rustix::io::Result<bool> {
    for name in DESCRIPTORS.map(str::as_bytes) {
        if listing.contains(name) && source::begins_with(directory, name, DESCRIPTOR_BEGINNING.as_bytes())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a backup left out of its directories.
struct LeftOut {
    excludes: Excludes,
    markers: Vec<Vec<u8>>,
    one_file_system: bool,
}

/// Reads the options with which a backup was made. Every key that decides must be there. Errors: why they do not say
/// what was left out.
fn left_out(options: &str) -> std::result::Result<LeftOut, String> {
    let options: serde_json::Value = serde_json::from_str(options).map_err(|error| format!("its options cannot be read: {error}"))?;
    let flag = |key: &str| options[key].as_bool().ok_or_else(|| format!("its options lack `{key}`"));
    let texts = |key: &str| {
        let texts = options[key].as_array().and_then(|texts| texts.iter().map(|text| text.as_str()).collect::<Option<Vec<&str>>>());
        texts.ok_or_else(|| format!("its options lack `{key}`"))
    };
    if flag("listed")? {
        return Err("it has only the files of a list (--files-from), not everything in their directories".to_owned());
    }
    let mut markers = texts("exclude_if_present")?;
    if markers.iter().any(|name| name.contains(char::REPLACEMENT_CHARACTER)) {
        return Err("a name given with --exclude-if-present is not UTF-8".to_owned());
    }
    if flag("exclude_caches")? {
        markers.push(CACHE_TAG);
    }
    let excludes = Excludes::new(&texts("excludes")?).map_err(|error| error.to_string())?;
    let markers = markers.into_iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(LeftOut { excludes, markers, one_file_system: flag("one_file_system")? })
}
