//! Rebuilds a partition from its remains: the intact pages of its database, and the second copy of its objects.
//!
//! It renames the old file and does not remove it. The new file is complete and durable under a name of its own
//! ([`MADE`]) before it takes the old name. So a salvage that was cut short continues from there.

use super::blocks::Blocks;
use super::copy::{self, Copied};
use super::database::PartitionFile;
use super::file_name;
use super::lost::{self, LostRanges};
use super::tiers::Objects;
use super::tree::{Database, END, KeyRange, Visitor};
use crate::error::{IndexError, Result};
use onefold_ground::{Access, Ground, parent};
use onefold_oplog::Position;
use std::io;
use std::sync::Arc;

/// Suffix of the new file's name once it is complete, until it takes its place.
const MADE: &str = ".salvaged";
/// Suffix of the new file's name while it is being written.
const MAKING: &str = ".salvaging";
/// Bytes of objects per transaction.
const BATCH_BYTES: usize = 8 << 20;

/// How much it matters that objects are the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Unreadable keys that only the database has become a lost range: reading it fails until it is rewritten. Objects
    /// with a second copy need one that is at least as new as the log's start.
    Needed,
    /// Unreadable keys without a copy count as never written. An older copy will do.
    Helpful,
}

/// The result of salvaging a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedPartition {
    /// Objects read from the old file.
    pub objects: u64,
    /// Objects taken from the second copy; `None`: there is none.
    pub copied: Option<u64>,
    /// Ranges of keys that are unreadable and in no copy, by how much they matter.
    pub lost: Vec<(Vec<u8>, Vec<u8>, Need)>,
    /// What is wrong with the second copy. It is rewritten with the file.
    pub copy_problem: Option<String>,
    /// The old file's log position, as read from it, if it is before the log's start. Changes in between are missing.
    pub older: Option<Position>,
}

/// How to salvage partitions.
pub struct Salvage<'a> {
    /// Where the store is.
    pub ground: &'a Arc<dyn Ground>,
    /// The directory of the object index.
    pub directory: &'a str,
    /// The epoch of the writing owner.
    pub epoch: u64,
    /// The start of the log. The new file counts as applied up to there, so a replay brings everything to the log's
    /// end.
    pub position: Position,
    /// Whether the log is complete and was never trimmed. Then a replay brings everything back, and nothing is lost.
    pub has_whole_log: bool,
    /// How much lost keys matter, by their first byte. Not asked of keys of lost ranges, which are always needed.
    pub content: &'a dyn Fn(u8) -> Need,
    /// Suffix for the name of the old file, which stays beside the new one.
    pub aside: &'a str,
    /// Whether to change nothing.
    pub dry_run: bool,
}

impl std::fmt::Debug for Salvage<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Salvage").field("position", &self.position).finish_non_exhaustive()
    }
}

/// Rebuilds the file of a partition and its second copy. May be repeated. Errors: objects that belong in the second
/// copy are lost, and there is no copy, or only one that is too old.
pub fn salvage_partition(salvage: &Salvage<'_>, partition: u16) -> Result<SalvagedPartition> {
    let Salvage { ground, directory, epoch, position, has_whole_log, content, aside, dry_run } = *salvage;
    let path = file_name(directory, partition);
    let (made, making) = (format!("{path}{MADE}"), format!("{path}{MAKING}"));
    if ground.exists(&made)? {
        if !dry_run {
            put_in_place(&**ground, &made, &path, aside)?;
        }
        return Ok(SalvagedPartition::default());
    }
    let mut done = SalvagedPartition::default();
    let copied = match copy::open(&**ground, &copy::file_name(directory, partition)) {
        Ok(copied) => copied,
        Err(IndexError::Ground(error)) if !error.is_lasting() => return Err(error.into()),
        Err(error) => {
            done.copy_problem = Some(error.to_string());
            None
        }
    };
    let file = if dry_run {
        None
    } else {
        if ground.exists(&making)? {
            ground.remove(&making)?;
        }
        PartitionFile::create(ground, &making)?;
        Some(PartitionFile::open(ground, making.clone(), Access::ReadWrite, epoch, BATCH_BYTES)?.0)
    };
    let outdated = copied.as_ref().filter(|copied| copied.position < position);
    if let Some(copied) = outdated {
        done.copy_problem = Some(format!("the second copy is {}", outdated_copy(copied.position, position)));
    }
    let mut output = Output {
        file,
        objects: Objects::new(),
        bytes: 0,
        position: Position(0),
        log_start: position,
        done,
        lost: Vec::new(),
        ranges: LostRanges::default(),
        failed: None,
        has_fresh_copy: copied.is_some() && outdated.is_none(),
        is_of_unknown_time: false,
    };
    output.read_old(ground, &path)?;
    output.add_copied(&copied, &ground.describe(&path), has_whole_log, content)?;
    output.position = position;
    output.write()?;
    let done = output.done;
    if let Some(file) = output.file {
        // Write the copy before the file takes its place. The file has lost ranges, and the copy may be needed next and
        // must know them.
        copy::write(&**ground, &copy::file_name(directory, partition), &file)?;
        drop(file);
        ground.rename(&making, &made)?;
        ground.sync_directory(parent(&made))?;
        put_in_place(&**ground, &made, &path, aside)?;
    }
    Ok(done)
}

/// Returns whether a salvage of a partition's file has not yet put the new file in place.
pub(super) fn is_unfinished(ground: &dyn Ground, path: &str) -> Result<bool> {
    Ok(ground.exists(&format!("{path}{MADE}"))?)
}

fn put_in_place(ground: &dyn Ground, made: &str, path: &str, aside: &str) -> Result<()> {
    if ground.exists(path)? {
        ground.rename(path, &format!("{path}.{aside}"))?;
    }
    ground.rename(made, path)?;
    Ok(ground.sync_directory(parent(path))?)
}

/// The new file while it fills.
struct Output {
    /// `None` in a dry run.
    file: Option<PartitionFile>,
    objects: Objects,
    bytes: usize,
    /// The applied position that the next transaction writes; 0 until everything is in the file.
    position: Position,
    log_start: Position,
    done: SalvagedPartition,
    /// Ranges that this salvage cannot read.
    lost: Vec<KeyRange>,
    /// Ranges that nobody knows: those that earlier salvages could not read and nobody wrote since, and those that this
    /// one adds.
    ranges: LostRanges,
    failed: Option<IndexError>,
    /// The copy and the log together give the state of its objects.
    has_fresh_copy: bool,
    /// The log position of the old file is unknown.
    is_of_unknown_time: bool,
}

/// Says what is wrong with a copy of position `of` when the log starts after it.
pub(super) fn outdated_copy(of: Position, log_start: Position) -> String {
    format!("of log position {}, but the log starts at {}: the changes between are missing", of.0, log_start.0)
}

impl Output {
    fn read_old(&mut self, ground: &Arc<dyn Ground>, path: &str) -> Result<()> {
        let failed = |source: io::Error| IndexError::Database { path: ground.describe(path), source: redb::Error::Io(source) };
        let blocks = match ground.open(path, Access::Read) {
            Ok(file) => Blocks::open_damaged(file).map_err(failed)?,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let database = blocks.as_ref().map_or(Ok(None), Database::open).map_err(failed)?;
        let walked = match database {
            Some(database) => {
                let position = database.meta("position").map_err(failed)?.map(Position);
                self.done.older = position.filter(|position| *position < self.log_start);
                self.is_of_unknown_time = position.is_none();
                database.walk_objects(self)
            }
            None => {
                self.lost((Vec::new(), END.to_vec()));
                Ok(())
            }
        };
        match self.failed.take() {
            Some(error) => Err(error),
            None => walked.map_err(failed),
        }
    }

    /// Adds the copy's objects to those of the old file. The copy may be older or newer than the old file, but the log
    /// brings both to the same end. So it takes only lost objects from the copy, unless the old file is, or may be,
    /// older than the log's start. An older copy serves only objects that nothing depends on: it still has objects that
    /// were deleted since.
    fn add_copied(&mut self, copied: &Option<Copied>, path: &str, has_whole_log: bool, content: &dyn Fn(u8) -> Need) -> Result<()> {
        let lost = std::mem::take(&mut self.lost);
        let is_superseded = self.is_superseded();
        let is_lost = |key: &[u8]| is_superseded || lost.iter().any(|(from, to)| from.as_slice() <= key && key < to.as_slice());
        for (from, to) in lost.iter().filter(|_| !has_whole_log).flat_map(by_kind) {
            // Without a lost range, its keys would look absent.
            let content = if from[0] == lost::PREFIX { Need::Needed } else { content(from[0]) };
            if copy::has(&from) {
                let why = match copied {
                    None => "also damaged or missing".to_owned(),
                    Some(copied) if content == Need::Needed && !self.has_fresh_copy => outdated_copy(copied.position, self.log_start),
                    Some(_) => continue,
                };
                let what = format!(
                    "its objects {:?} cannot be read, and their second copy is {why}. Restore one of the two files from a copy of the store",
                    char::from(from[0])
                );
                return Err(IndexError::ObjectIndexDamaged { path: path.to_owned(), what });
            }
            if content == Need::Needed {
                self.ranges.add(from.clone(), to.clone());
            }
            self.done.lost.push((from, to, content));
        }
        if let Some(copied) = copied {
            let mut count = 0;
            copied.for_each(&mut |key, value| {
                if !is_lost(key) {
                    return Ok(());
                }
                if key.first() == Some(&lost::PREFIX) {
                    self.ranges.note(key, value);
                    return Ok(());
                }
                count += 1;
                self.keep(key, value)
            })?;
            self.done.copied = Some(count);
        }
        self.objects.extend(self.ranges.iter().map(|(from, to)| lost::encode(from, to)).map(|(key, value)| (key, Some(value))));
        Ok(())
    }

    /// Returns whether all objects of the copy are, or may be, newer than in the old file.
    fn is_superseded(&self) -> bool {
        self.has_fresh_copy && (self.is_of_unknown_time || self.done.older.is_some())
    }

    /// Adds an object to the new file.
    fn keep(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        self.bytes += key.len() + value.len();
        self.objects.insert(key.to_vec(), Some(value.to_vec()));
        if self.bytes < BATCH_BYTES { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<()> {
        let objects = std::mem::take(&mut self.objects);
        self.bytes = 0;
        match &self.file {
            Some(file) => file.write(&objects, self.position),
            None => Ok(()),
        }
    }
}

/// Splits a range of keys by first byte, over the existing kinds.
fn by_kind(range: &KeyRange) -> Vec<KeyRange> {
    let (from, to) = range;
    let kinds = std::iter::once(lost::ANY_LENGTH).chain(b'a'..=b'z');
    kinds.map(|kind| (from.clone().max(vec![kind]), to.clone().min(vec![kind + 1]))).filter(|(from, to)| from < to).collect()
}

impl Visitor for Output {
    fn object(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        // Also from an older file: it lacks objects that were lost then and written since.
        if key.first() == Some(&lost::PREFIX) {
            self.ranges.note(key, value);
            return Ok(());
        }
        if self.is_superseded() && copy::has(key) {
            return Ok(());
        }
        self.done.objects += 1;
        self.keep(key, value).map_err(|error| {
            let text = error.to_string();
            self.failed = Some(error);
            io::Error::other(text)
        })
    }

    fn lost(&mut self, range: KeyRange) {
        self.lost.push(range);
    }
}
