//! The object index (M0.16): an ordered map of objects, key bytes -> value bytes. The layers above define what an
//! object is (a block mapping, a volume, a backup).
//!
//! It is a view of the operations log. A change goes through three tiers:
//! * [Staged](ObjectIndex::stage): visible, volatile.
//! * [Applied](ObjectIndex::apply): the log holds it durably.
//! * [Persisted](ObjectIndex::persist): in the partition's database. One sorted transaction persists many changes,
//!   later.
//!
//! No request waits for a database write.
//!
//! Invariants:
//! * The database of a partition holds exactly the log's state at the position that the same transaction writes. After
//!   a full disk some objects may be newer; replaying the log from that position writes the same again.
//! * Reads see one moment of a partition: they take all tiers and the database's snapshot under one lock.
//! * Memory: applied changes that are not persisted are counted. The writer of the log waits while
//!   [`ObjectIndex::is_over_limit`].

mod adopting;
mod backend;
mod blocks;
mod changes;
mod copy;
mod database;
mod lost;
mod moment;
mod partition_salvage;
mod tiers;
mod tree;

pub use adopting::{NewObjects, RemovedObjects};
pub use changes::{decode_changes, encode_changes};
pub use moment::Moment;
pub use partition_salvage::{Need, Salvage, SalvagedPartition, salvage_partition};

use crate::error::{IndexError, Result};
use backend::Fault;
use database::{PartitionFile, Snapshot};
use lost::LostRanges;
use onefold_ground::{Access, Ground};
pub use onefold_oplog::Change;
use onefold_oplog::{Owned, Ownership, PartitionSet, Position};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tiers::Tiers;

/// Memory of an object index, over all partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectIndexOptions {
    /// Cache of the databases, bytes.
    pub cache_bytes: usize,
    /// Bound of changes applied but not persisted, bytes.
    pub pending_bytes: usize,
}

impl Default for ObjectIndexOptions {
    fn default() -> ObjectIndexOptions {
        ObjectIndexOptions { cache_bytes: 32 << 20, pending_bytes: 32 << 20 }
    }
}

/// A partition whose file is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPartition {
    /// The file.
    pub path: String,
    /// What is wrong.
    pub why: String,
}

/// The result of verifying a partition's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The file is as it was written.
    Whole,
    /// The file is damaged.
    Damaged(DamagedPartition),
    /// The verification was stopped early.
    Stopped,
}

/// How often a verification asks whether to go on.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The open object index of a store.
#[derive(Debug)]
pub struct ObjectIndex {
    ground: Arc<dyn Ground>,
    directory: String,
    partitions: PartitionSet<Partition>,
    access: Access,
    own_partition: u16,
    cache_bytes: usize,
    pending_limit_bytes: usize,
    pending: Pending,
    persisting: Mutex<()>,
}

/// Memory of the changes that all partitions have applied and not persisted: those that are opened, those that are
/// made, and removed ones that somebody still uses. Kept separately so that reading it takes no lock.
#[derive(Clone, Debug, Default)]
struct Pending(Arc<AtomicUsize>);

impl Pending {
    fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.0.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.0.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Partition {
    file: PartitionFile,
    pending: Pending,
    tiers: RwLock<Tiers>,
    /// As of what is applied. Lock it after `tiers`.
    lost: RwLock<Arc<LostRanges>>,
    /// Whether there are any. If not, nobody takes the lock.
    has_lost: AtomicBool,
    /// Position of the last second copy that this opening wrote. Locked while one is written.
    copied: Mutex<Option<Position>>,
}

/// Returns the changes of each partition that has some, in their order.
fn by_partition(changes: &[Change]) -> BTreeMap<u16, Vec<&Change>> {
    let mut found: BTreeMap<u16, Vec<&Change>> = BTreeMap::new();
    changes.iter().for_each(|change| found.entry(change.0).or_default().push(change));
    found
}

/// Returns the path of a partition's file in the directory of the object index.
fn file_name(directory: &str, partition: u16) -> String {
    format!("{directory}/{partition:04x}.redb")
}

impl Partition {
    fn open(
        ground: &Arc<dyn Ground>,
        directory: &str,
        owned: Owned,
        access: Access,
        cache_bytes: usize,
        pending: &Pending,
    ) -> Result<Partition> {
        let path = file_name(directory, owned.number as u16);
        let (file, position) = PartitionFile::open(ground, path, access, owned.epoch, cache_bytes)?;
        let mut lost = LostRanges::default();
        file.snapshot()?.range(&[lost::PREFIX], &[lost::PREFIX + 1], &mut |key, value| {
            lost.note(key, value);
            true
        })?;
        let has_lost = AtomicBool::new(!lost.is_empty());
        let (tiers, lost) = (RwLock::new(Tiers::at(position)), RwLock::new(Arc::new(lost)));
        Ok(Partition { file, pending: pending.clone(), tiers, lost, has_lost, copied: Mutex::new(None) })
    }

    /// Applies its share of a batch.
    fn apply(&self, end: Position, sequence: u64, own: &[&Change]) {
        let mut tiers = self.tiers.write();
        let before = tiers.pending_bytes();
        for (_, key, value) in own {
            tiers.apply(end, sequence, key, value);
        }
        if !tiers.had(end) {
            self.find_again(&mut own.iter().copied(), |key, value| tiers.apply(end, sequence, key, value));
        }
        tiers.advance(end);
        self.pending.change(before, tiers.pending_bytes());
    }

    /// Writes what is applied into the database. Durable on return.
    fn persist(&self) -> Result<()> {
        let Some(frozen) = self.tiers.write().freeze() else { return Ok(()) };
        let mut result = self.file.write(&frozen.objects, frozen.position);
        // Lost ranges change together, so they must not be split over several transactions.
        if result.as_ref().is_err_and(IndexError::is_full) && !self.has_lost.load(Ordering::Acquire) {
            result = self.file.write_in_steps(&frozen.objects, frozen.position);
        }
        drop(frozen);
        let mut tiers = self.tiers.write();
        let before = tiers.pending_bytes();
        let written = match result {
            Ok(()) => tiers.thaw(),
            Err(_) => {
                tiers.refreeze();
                None
            }
        };
        self.pending.change(before, tiers.pending_bytes());
        drop(tiers);
        drop(written);
        result
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.pending.change(self.tiers.get_mut().pending_bytes(), 0);
    }
}

impl ObjectIndex {
    /// Creates an empty object index of `partitions` files in a new `directory`, durable on return.
    pub fn create(ground: &Arc<dyn Ground>, directory: &str, partitions: u16) -> Result<()> {
        ground.create_directory(directory)?;
        for partition in 0..partitions {
            PartitionFile::create(ground, &file_name(directory, partition))?;
        }
        Ok(ground.sync_directory(directory)?)
    }

    /// Opens some partitions of an object index. With [`Access::Read`] it writes nothing, and epochs do not matter.
    /// Otherwise it refuses a partition that a later owner has written to.
    pub fn open(
        ground: Arc<dyn Ground>,
        directory: &str,
        ownership: &Ownership,
        options: ObjectIndexOptions,
        access: Access,
    ) -> Result<ObjectIndex> {
        let cache_bytes = options.cache_bytes / ownership.owned().len().max(1);
        let pending = Pending::default();
        let partitions = ownership
            .owned()
            .iter()
            .map(|owned| Partition::open(&ground, directory, *owned, access, cache_bytes, &pending))
            .collect::<Result<Vec<_>>>()?;
        Ok(ObjectIndex {
            ground,
            directory: directory.to_owned(),
            partitions: PartitionSet::new(ownership, partitions),
            access,
            own_partition: 0,
            cache_bytes: options.cache_bytes,
            pending_limit_bytes: options.pending_bytes,
            pending,
            persisting: Mutex::new(()),
        })
    }

    /// Sets the partition for what the index's owner notes of itself. Without it, this is partition 0.
    pub fn with_own_partition(self, own_partition: u16) -> ObjectIndex {
        ObjectIndex { own_partition, ..self }
    }

    /// Returns the partition for what the index's owner notes of itself.
    pub fn own_partition(&self) -> u16 {
        self.own_partition
    }

    /// Returns the owner epoch in a partition's file.
    pub fn epoch(ground: &Arc<dyn Ground>, directory: &str, partition: u16) -> Result<u64> {
        PartitionFile::open(ground, file_name(directory, partition), Access::Read, 0, 1 << 20)?.0.epoch()
    }

    /// Returns the opened partition of this number. Errors: it is not opened.
    fn partition(&self, partition: u16) -> Result<Arc<Partition>> {
        self.check_number(partition)?;
        self.partitions.get(partition.into()).ok_or_else(|| self.not_opened(partition))
    }

    fn not_opened(&self, partition: u16) -> IndexError {
        IndexError::NotOpened { path: self.ground.describe(&self.directory), partition: u32::from(partition) }
    }

    /// Checks that the store has a partition of this number.
    fn check_number(&self, partition: u16) -> Result<()> {
        let partitions = self.partitions.total();
        if u32::from(partition) < partitions { Ok(()) } else { Err(IndexError::NoPartition { partition, partitions }) }
    }

    /// Returns the opened partitions with their numbers.
    fn numbered(&self) -> impl Iterator<Item = (u16, Arc<Partition>)> {
        let partitions = self.partitions.now();
        let numbered: Vec<_> = partitions.numbered().map(|(number, partition)| (number as u16, partition.clone())).collect();
        numbered.into_iter()
    }

    /// Makes changes visible before they are durable. `sequence` grows from call to call and is at least 1. The changes
    /// of one partition become visible together. An error changes nothing.
    pub fn stage(&self, sequence: u64, changes: &[Change]) -> Result<()> {
        self.each(changes, |tiers, own| {
            for (_, key, value) in own {
                tiers.stage(sequence, key, value);
            }
        })
    }

    /// Applies the batch of the log that ends at `end`, which is durable. `changes` are all its changes of objects, in
    /// its order. Call once for each batch, even without changes, in the order of the log.
    ///
    /// Everything staged with at most `sequence` leaves the volatile tier. If a later version of a key is staged, that
    /// version stays visible. In a replay `sequence` is 0, and a partition skips a batch that it held when it was
    /// opened. Changes in partitions that are not opened are skipped too: the log may be older than their move to
    /// another owner.
    pub fn apply(&self, end: Position, sequence: u64, changes: &[Change]) -> Result<()> {
        changes.iter().try_for_each(|(partition, ..)| self.check_number(*partition))?;
        let by_partition = by_partition(changes);
        for (number, partition) in self.partitions.now().numbered() {
            let own = by_partition.get(&(number as u16)).map_or(&[][..], |own| own);
            partition.apply(end, sequence, own);
        }
        Ok(())
    }

    /// Runs `work` once for each partition that has changes, under its lock.
    fn each<'c>(&self, changes: &'c [Change], work: impl Fn(&mut Tiers, &mut dyn Iterator<Item = &'c Change>)) -> Result<()> {
        let by_partition = by_partition(changes).into_iter();
        let found = by_partition.map(|(number, own)| Ok((self.partition(number)?, own))).collect::<Result<Vec<_>>>()?;
        for (partition, own) in found {
            work(&mut partition.tiers.write(), &mut own.into_iter());
        }
        Ok(())
    }

    /// Writes everything applied before the call into the databases, in one transaction per partition. Durable on
    /// return. Everything else may be called meanwhile; a second call waits for the first. After an error the changes
    /// of failed partitions stay in memory and visible, and a later call writes them.
    pub fn persist(&self) -> Result<()> {
        let _one_at_a_time = self.persisting.lock();
        let mut result = Ok(());
        for partition in self.partitions.now().iter() {
            if let Err(error) = self.persist_partition(partition) {
                tracing::warn!(partition = %partition.file.describe(), %error, "the object index could not write its changes to its file");
                result = result.and(Err(error));
            }
        }
        result
    }

    fn persist_partition(&self, partition: &Partition) -> Result<()> {
        if self.access == Access::Read {
            return Err(IndexError::ReadOnly { path: partition.file.describe() });
        }
        partition.persist()
    }

    /// Writes the second copies of the vital objects, as persisted, where the copies are older. Durable on return.
    /// Persisting goes on meanwhile.
    pub fn copy_objects(&self) -> Result<()> {
        for (number, partition) in self.numbered() {
            if self.access == Access::Read {
                return Err(IndexError::ReadOnly { path: partition.file.describe() });
            }
            let persisted = partition.tiers.read().persisted();
            let mut copied = partition.copied.lock();
            if *copied != Some(persisted) {
                *copied = Some(copy::write(&*self.ground, &copy::file_name(&self.directory, number), &partition.file)?);
            }
        }
        Ok(())
    }

    /// Writes the second copies that are older than the start of the log. The disk had no room for them when the log
    /// was trimmed, and then the process ended. Damaged copies are left to a check and to the next trim.
    pub fn renew_copies(&self, log_start: Position) -> Result<()> {
        let position = |number| copy::position(&*self.ground, &copy::file_name(&self.directory, number));
        let is_behind = self.numbered().any(|(number, _)| position(number).is_some_and(|position| position < log_start));
        if is_behind { self.copy_objects() } else { Ok(()) }
    }

    /// Reads all of a partition's file. Returns what keeps the file from being used, and up to where the log is applied
    /// in it, if that can be read.
    pub fn problem_of(ground: &Arc<dyn Ground>, directory: &str, partition: u16) -> Result<(Option<String>, Option<Position>)> {
        let path = file_name(directory, partition);
        if partition_salvage::is_unfinished(&**ground, &path)? {
            return Ok((Some("its salvage was interrupted".to_owned()), None));
        }
        let (file, position) = match PartitionFile::open(ground, path, Access::Read, 0, 4 << 20) {
            Ok(opened) => opened,
            Err(IndexError::Ground(error)) if error.is_not_found() => return Ok((Some("the file is missing".to_owned()), None)),
            Err(error) if error.is_lasting() => return Ok((Some(error.to_string()), None)),
            Err(error) => return Err(error),
        };
        match file.examine(Position(0)..=Position(u64::MAX), Fault::default()) {
            Ok(found) => Ok((found, Some(position))),
            // A shortage of memory or descriptors must not condemn a sound file.
            Err(error) if error.is_lasting() => Ok((Some(error.to_string()), Some(position))),
            Err(error) => Err(error),
        }
    }

    /// Returns what is wrong with the second copies, for a log that starts at `log_start`. A trimmed log needs copies
    /// at least as new as its start.
    pub fn damaged_copies(&self, log_start: Position) -> Vec<String> {
        let problem = |number| {
            let name = copy::file_name(&self.directory, number);
            let path = self.ground.describe(&name);
            match copy::open(&*self.ground, &name) {
                Ok(Some(copied)) if copied.position < log_start => {
                    Some(format!("{path} is {}", partition_salvage::outdated_copy(copied.position, log_start)))
                }
                Ok(None) if log_start > Position(0) => Some(format!("{path} is missing")),
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            }
        };
        self.numbered().filter_map(|(number, _)| problem(number)).collect()
    }

    /// Returns the position of a partition's second copy. `None`: there is no readable one.
    pub fn copied_position(ground: &dyn Ground, directory: &str, partition: u16) -> Option<Position> {
        copy::open(ground, &copy::file_name(directory, partition)).ok().flatten().map(|copied| copied.position)
    }

    /// Reads the files of all partitions, bypassing all caches, including the system's. Returns the damaged ones.
    /// Persisting waits meanwhile.
    pub fn verify(&self) -> Vec<DamagedPartition> {
        let verified = self.numbered().map(|(number, _)| self.verify_partition(number, &|| true));
        verified.filter_map(|verified| if let Verified::Damaged(damaged) = verified { Some(damaged) } else { None }).collect()
    }

    /// Does the same for one partition, as long as `go_on` returns true. It asks ten times a second.
    pub fn verify_partition(&self, partition: u16, go_on: &dyn Fn() -> bool) -> Verified {
        let _no_persist = self.persisting.lock();
        let Ok(partition) = self.partition(partition) else { return Verified::Whole };
        let partition = &*partition;
        // A transaction whose commit failed may be there all the same. Then the file is ahead of the known persisted
        // position.
        let known = {
            let tiers = partition.tiers.read();
            tiers.persisted()..=tiers.applied()
        };
        let stop = Fault::default();
        // The database reads its file in one go: only failing reads can stop it.
        let (found, was_stopped) = std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let reads = stop.clone();
            scope.spawn(move || sender.send(partition.file.verify(known, reads)));
            let mut was_stopped = false;
            loop {
                match receiver.recv_timeout(ASK_EVERY) {
                    Ok(found) => return (found, was_stopped),
                    Err(RecvTimeoutError::Timeout) if !was_stopped && !go_on() => {
                        was_stopped = true;
                        stop.set();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return (Some("the database panicked while it was read".to_owned()), false),
                }
            }
        });
        match found {
            None => Verified::Whole,
            Some(_) if was_stopped => Verified::Stopped,
            Some(why) => Verified::Damaged(DamagedPartition { path: partition.file.describe(), why }),
        }
    }

    /// Returns whether this opening met damage of a file.
    pub fn has_met_damage(&self) -> bool {
        self.partitions.now().iter().any(|partition| partition.file.has_met_damage())
    }

    /// Returns the length of a partition's file in bytes; 0 if it is unknown.
    pub fn file_bytes(&self, partition: u16) -> u64 {
        self.partition(partition).map_or(0, |partition| partition.file.length_bytes())
    }

    /// Returns the position up to which all partitions are persisted. The log must keep everything from here on.
    /// Without partitions it need not keep anything.
    pub fn position(&self) -> Position {
        self.partitions.now().iter().map(|partition| partition.tiers.read().persisted()).min().unwrap_or(Position::MAX)
    }

    /// Returns the furthest position of a partition. A log that ends before it has lost its tail.
    pub fn furthest_position(&self) -> Position {
        self.partitions.now().iter().map(|partition| partition.tiers.read().persisted()).max().unwrap_or_default()
    }

    /// Returns the memory of changes applied but not persisted, bytes.
    pub fn pending_bytes(&self) -> usize {
        self.pending.0.load(Ordering::Relaxed)
    }

    /// Returns the memory of changes staged but not applied, bytes. The caller of [`ObjectIndex::stage`] bounds it by
    /// flushing the log.
    pub fn volatile_bytes(&self) -> usize {
        self.partitions.now().iter().map(|partition| partition.tiers.read().volatile_bytes()).sum()
    }

    /// Returns whether it is time for [`ObjectIndex::persist`]: half of the bound is used. Never true with
    /// [`Access::Read`].
    pub fn wants_persist(&self) -> bool {
        self.access == Access::ReadWrite && self.pending_bytes() >= self.pending_limit_bytes / 2
    }

    /// Returns whether the index is over its bound. Then wait for a persist before applying more. Never true with
    /// [`Access::Read`].
    pub fn is_over_limit(&self) -> bool {
        self.access == Access::ReadWrite && self.pending_bytes() > self.pending_limit_bytes
    }

    /// Returns the values of objects, all of one moment. Cheaper than one by one. Errors: a key is lost.
    pub fn get_many(&self, partition: u16, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let partition = self.partition(partition)?;
        partition.read(|| {
            let tiers = partition.tiers.read();
            let in_memory: Vec<Option<Option<Vec<u8>>>> = keys.iter().map(|key| tiers.get(key).cloned()).collect();
            let snapshot = partition.file.snapshot()?;
            let known = keys.iter().map(|key| partition.check_lost(key, None)).collect::<Vec<_>>();
            drop(tiers);
            let missing = keys.iter().zip(&in_memory).filter(|(_, found)| found.is_none()).map(|(key, _)| &key[..]);
            let mut stored = snapshot.get_many(missing)?.into_iter();
            let value = |(found, known): (Option<Option<Vec<u8>>>, Result<()>)| match found {
                Some(value) => Ok(value),
                None => stored.next().flatten().map_or_else(|| known.map(|()| None), |value| Ok(Some(value))),
            };
            in_memory.into_iter().zip(known).map(value).collect()
        })
    }

    /// Returns the value of an object.
    pub fn get(&self, partition: u16, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let partition = self.partition(partition)?;
        partition.read(|| {
            let tiers = partition.tiers.read();
            if let Some(value) = tiers.get(key) {
                return Ok(value.clone());
            }
            let snapshot = partition.file.snapshot()?;
            let known = partition.check_lost(key, None);
            drop(tiers);
            match snapshot.get(key)? {
                Some(value) => Ok(Some(value)),
                None => known.map(|()| None),
            }
        })
    }

    /// Returns whether there are lost ranges.
    pub fn has_lost(&self) -> bool {
        self.partitions.now().iter().any(|partition| partition.has_lost.load(Ordering::Acquire))
    }

    /// Returns the lost ranges of a partition, cut to `from <= key < to`.
    pub fn lost_within(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let Some(lost) = self.partition(partition)?.lost_now() else { return Ok(Vec::new()) };
        let cut = |(first, end): (&[u8], &[u8])| (first.max(from).to_vec(), end.min(to).to_vec());
        Ok(lost.iter().map(cut).filter(|(first, end)| first < end).collect())
    }

    /// Returns the first lost range, cut to `from <= key < to`.
    pub fn first_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(lost) = self.partition(partition)?.lost_now() else { return Ok(None) };
        Ok(lost.within(from, to).map(|(first, end)| (first.max(from).to_vec(), end.min(to).to_vec())))
    }

    /// Returns a change that, once applied, makes lost keys with `from <= key < to` known again: keys without a value
    /// then have none. `None`: none of them is lost. Call only when the keys are unreferenced.
    pub fn give_up_lost(&self, partition: u16, from: &[u8], to: &[u8]) -> Result<Option<Change>> {
        let lost = self.partition(partition)?.lost_now();
        Ok(lost.filter(|lost| lost.within(from, to).is_some()).map(|_| {
            let (key, value) = lost::give_up(from, to);
            (partition, key, Some(value))
        }))
    }

    /// Returns up to `limit` objects with `from <= key < to`, sorted by key, as of one moment. Errors: one of them may
    /// be lost.
    pub fn range(&self, partition: u16, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let partition = self.partition(partition)?;
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        partition.read(|| {
            let tiers = partition.tiers.read();
            let memory = tiers.range(from, to, limit);
            let snapshot = partition.file.snapshot()?;
            let lost = partition.lost_now();
            drop(tiers);
            let found = laid_over(memory, &snapshot, from, to, limit)?;
            check_range(lost.as_deref(), || partition.file.describe(), &found, from, to, limit)?;
            Ok(found)
        })
    }
}

/// Fails if the result of a range read, up to `limit` objects, skips lost keys.
fn check_range(
    lost: Option<&LostRanges>,
    path: impl Fn() -> String,
    found: &[(Vec<u8>, Vec<u8>)],
    from: &[u8],
    to: &[u8],
    limit: usize,
) -> Result<()> {
    let Some(lost) = lost else { return Ok(()) };
    let last = found.last().filter(|_| found.len() == limit).map(|(last, _)| [last, &[0][..]].concat());
    lost.check(&path(), from, last.as_deref().unwrap_or(to))
}

/// Lays memory's state of a range over the database's: up to `limit` objects, sorted by key.
fn laid_over(
    memory: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    snapshot: &Snapshot,
    from: &[u8],
    to: &[u8],
    limit: usize,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut memory = memory.into_iter().peekable();
    let mut found = Vec::new();
    let take_until = |memory: &mut std::iter::Peekable<std::vec::IntoIter<_>>, found: &mut Vec<_>, end: Option<&[u8]>| {
        while let Some((key, value)) =
            memory.next_if(|(key, _): &(Vec<u8>, Option<Vec<u8>>)| found.len() < limit && end.is_none_or(|end| key.as_slice() < end))
        {
            found.extend(value.map(|value| (key, value)));
        }
    };
    snapshot.range(from, to, &mut |key, value| {
        take_until(&mut memory, &mut found, Some(key));
        if found.len() == limit {
            return false;
        }
        match memory.next_if(|(newer, _)| newer == key) {
            Some((key, newer)) => found.extend(newer.map(|value| (key, value))),
            None => found.push((key.to_vec(), value.to_vec())),
        }
        found.len() < limit
    })?;
    take_until(&mut memory, &mut found, None);
    Ok(found)
}

impl Partition {
    /// Updates lost ranges from the changes of a batch: keys that they write, delete or give up are known again. Passes
    /// the resulting changes to `apply`.
    fn find_again(&self, changes: &mut dyn Iterator<Item = &Change>, mut apply: impl FnMut(&[u8], &Option<Vec<u8>>)) {
        for (_, key, value) in changes {
            let is_of_ranges = key.first() == Some(&lost::PREFIX);
            if is_of_ranges {
                // It was meant for the ranges and is not an object.
                apply(key, &None);
            }
            if !self.has_lost.load(Ordering::Acquire) {
                continue;
            }
            let (from, to) = match is_of_ranges {
                true => (&key[1..], lost::given_up(value.as_deref())),
                false => (key.as_slice(), Some(lost::successor(key))),
            };
            let Some(to) = to else { continue };
            let mut lost = self.lost.write();
            if lost.within(from, &to).is_some() {
                let lost = Arc::make_mut(&mut lost);
                lost.cut(from, &to).iter().for_each(|(key, value)| apply(key, value));
                self.has_lost.store(!lost.is_empty(), Ordering::Release);
            }
        }
    }

    /// Returns the lost ranges, if there are any.
    fn lost_now(&self) -> Option<Arc<LostRanges>> {
        self.has_lost.load(Ordering::Acquire).then(|| self.lost.read().clone())
    }

    /// Fails if a key with `from <= key < to` is lost; without `to`, if `from` is.
    fn check_lost(&self, from: &[u8], to: Option<&[u8]>) -> Result<()> {
        if !self.has_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        let behind = [from, &[0]].concat();
        self.lost.read().check(&self.file.describe(), from, to.unwrap_or(&behind))
    }

    /// Runs a read, and retries it once if the database failed meanwhile and was reopened.
    fn read<T>(&self, read: impl Fn() -> Result<T>) -> Result<T> {
        match read() {
            Err(IndexError::Database { .. }) if self.file.has_failed() => read(),
            result => result,
        }
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod partition_salvage_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;
