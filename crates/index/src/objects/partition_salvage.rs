//! A partition made anew from what is left of it: whole pages of its database, and the second copy of its objects.
//!
//! The old file is renamed, not removed. The new one is complete and durable under a name of its own ([`MADE`]) before it takes the old one's, so a salvage
//! that was cut short goes on from there.

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

/// What is added to the name of a partition's file while the new one is complete and has not its place yet.
const MADE: &str = ".salvaged";
/// The same while it is made.
const MAKING: &str = ".salvaging";
/// Bytes of objects in one transaction.
const BATCH_BYTES: usize = 8 << 20;

/// How much it matters that objects are what was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// What cannot be read of objects that only the database has becomes a lost range: reading it is an error until it is written anew. Of those that
    /// have a second copy only one will do that is as new as the log's start.
    Needed,
    /// What cannot be read, and is in no copy, is as if it had never been. An older copy will do.
    Helpful,
}

/// What a salvage made of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedPartition {
    /// Objects read from the old file.
    pub objects: u64,
    /// Objects taken from the second copy; `None`: there is none.
    pub copied: Option<u64>,
    /// Ranges of keys that cannot be read and that no copy has, by how much they matter.
    pub lost: Vec<(Vec<u8>, Vec<u8>, Need)>,
    /// What is wrong with the second copy. It is written anew with the file.
    pub copy_problem: Option<String>,
    /// Up to where the log is applied in what was read of the old file, if that is before the log's start: what changed between is not in it.
    pub older: Option<Position>,
}

/// How partitions are made anew.
pub struct Salvage<'a> {
    /// Where the store is.
    pub ground: &'a Arc<dyn Ground>,
    /// The directory of the object index.
    pub directory: &'a str,
    /// The owner that writes.
    pub epoch: u64,
    /// Where the log starts: the new file is applied up to there, so a replay brings everything to its end that the log has.
    pub position: Position,
    /// Whether the log is whole and was never trimmed: then a replay brings everything back, and nothing is lost.
    pub has_whole_log: bool,
    /// How much it matters that keys are lost, by their first byte.
    pub content: &'a dyn Fn(u8) -> Need,
    /// What is added to the name of the old file, which is kept beside the new one.
    pub aside: &'a str,
    /// Whether to change nothing.
    pub dry_run: bool,
}

impl std::fmt::Debug for Salvage<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Salvage").field("position", &self.position).finish_non_exhaustive()
    }
}

/// Makes the file of a partition anew, and its second copy. It may be repeated. An error if objects that belong in the second copy are lost, and there is no
/// copy, or an older one than they may be taken from.
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
        // Before the file has its place: it has lost ranges that the copy, which may be needed next, does not know.
        copy::write(&**ground, &copy::file_name(directory, partition), &file)?;
        drop(file);
        ground.rename(&making, &made)?;
        ground.sync_directory(parent(&made))?;
        put_in_place(&**ground, &made, &path, aside)?;
    }
    Ok(done)
}

/// Whether a salvage of the file of a partition has not put the new file into its place yet.
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

/// The new file while it is filled.
struct Output {
    /// `None` in a dry run.
    file: Option<PartitionFile>,
    objects: Objects,
    bytes: usize,
    /// What the next transaction says that the file is applied up to: 0 until all is in it.
    position: Position,
    log_start: Position,
    done: SalvagedPartition,
    /// What this salvage cannot read.
    lost: Vec<KeyRange>,
    /// What nobody knows: what earlier ones could not read and nobody wrote since, and what this one adds.
    ranges: LostRanges,
    failed: Option<IndexError>,
    /// The copy and the log together say what its objects are.
    has_fresh_copy: bool,
    /// Nobody knows up to where the log is applied in the old file.
    is_of_unknown_time: bool,
}

/// What is wrong with a copy of position `of`, where the log starts behind it.
pub(super) fn outdated_copy(of: Position, log_start: Position) -> String {
    format!("of position {} of the log, which starts at {}: it does not know what changed between", of.0, log_start.0)
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

    /// What the copy has takes the place of what the old file has, which may be older or younger: the log brings both to the same end. So only what is lost is
    /// taken from it, unless the old file is, or may be, older than the log's start. An older copy is for what nothing hangs on: what was deleted since is in it.
    fn add_copied(&mut self, copied: &Option<Copied>, path: &str, has_whole_log: bool, content: &dyn Fn(u8) -> Need) -> Result<()> {
        let lost = std::mem::take(&mut self.lost);
        let is_superseded = self.is_superseded();
        let is_lost = |key: &[u8]| is_superseded || lost.iter().any(|(from, to)| from.as_slice() <= key && key < to.as_slice());
        for (from, to) in lost.iter().filter(|_| !has_whole_log).flat_map(by_kind) {
            let content = content(from[0]);
            if copy::has(&from) {
                let why = match copied {
                    None => "damaged or missing too".to_owned(),
                    Some(copied) if content == Need::Needed && !self.has_fresh_copy => outdated_copy(copied.position, self.log_start),
                    Some(_) => continue,
                };
                let what = format!(
                    "objects {:?} of it cannot be read, and their second copy is {why}. Put one of the two back from a copy of the store",
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

    /// Whether the copy has all of its objects newer than the old file does, or may have.
    fn is_superseded(&self) -> bool {
        self.has_fresh_copy && (self.is_of_unknown_time || self.done.older.is_some())
    }

    /// An object of the new file.
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

/// The parts of a range of keys by the first byte of the keys, of the kinds that there are.
fn by_kind(range: &KeyRange) -> Vec<KeyRange> {
    let (from, to) = range;
    (b'a'..=b'z').map(|kind| (from.clone().max(vec![kind]), to.clone().min(vec![kind + 1]))).filter(|(from, to)| from < to).collect()
}

impl Visitor for Output {
    fn object(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        // Of an older file too: what was lost then and written since is not in it.
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
