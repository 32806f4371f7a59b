//! A levelled store as a whole, and as a [`ChunkStore`].

mod loading;
mod repair;
mod verifying;

use crate::containers::Moments;
use crate::levels::cache::FrameCache;
use crate::levels::filter::Room;
use crate::levels::flushers::Flushers;
use crate::levels::key::{Unit, address_of, unit_bits};
use crate::levels::options::LevelsOptions;
use crate::levels::partition::{Copied, MAX_EPOCH, Merged, Partition};
use crate::levels::records::{CHUNKS_DROPPED, CHUNKS_HELD, TABLE_WRITTEN, chunks_dropped, decode, decode_dropped};
use crate::levels::runs::Runs;
use crate::levels::work::{Counters, LevelsWork};
use crate::{
    Address, Answering, ChunkStore, ChunkWriter, CommittedSlots, CompressedFrame, ContainerId, ContainerReport, ContainerSet,
    ContainerStore, FileFigures, FrameVisitor, NewChunk, Origin, Prepared, Result, Scope, ScrubThreads, Scrubbed, Slice, Slot,
    StorageError, Usage,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Profile;
use onefold_ground::{Access, Ground, ReadBuffer, Readers};
use onefold_oplog::{Effects, PartitionClass, Position, Pressure, Record};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Reads that loads have in flight beside those of their own threads, all together.
const READS: usize = 32;

/// An open levelled store.
#[derive(Debug)]
pub struct LevelsStore {
    ground: Arc<dyn Ground>,
    directory: String,
    partitions: Vec<Partition>,
    options: Arc<LevelsOptions>,
    profile: Arc<Profile>,
    access: Access,
    /// Set when the replay is over and the store is open for writing.
    is_writable: AtomicBool,
    /// Into how many bits of units the keys of each partition are divided, during this opening.
    unit_bits: Vec<u32>,
    frames: FrameCache,
    /// Where frames were read lately.
    runs: Runs,
    readers: Readers,
    /// Threads that make tables of full memtables.
    flushers: Option<Flushers>,
    /// Who wants to know which metadata chunks are committed from now on.
    moments: Moments,
    counters: Arc<Counters>,
}

/// How the levels of a partition stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelFigures {
    /// Tables.
    pub tables: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Tombstones in them.
    pub tombstones: u64,
    /// Bytes of the chunks before compression.
    pub raw_bytes: u64,
    /// Bytes of the files.
    pub stored_bytes: u64,
    /// Bytes before compression from which the level is compacted.
    pub capacity_bytes: u64,
}

/// How a partition stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionFigures {
    /// Its number.
    pub number: u16,
    /// The directory that its new tables go to, for people.
    pub directory: String,
    /// Tables.
    pub tables: u64,
    /// Bytes of the chunks before compression, those in memory too.
    pub raw_bytes: u64,
    /// Bytes of the files.
    pub stored_bytes: u64,
    /// Streams that write to it.
    pub streams: u64,
    /// Bytes that are free on the disk of the directory.
    pub free_bytes: u64,
    /// Tables that are in another directory: a move has not ended.
    pub tables_elsewhere: u64,
    /// Bytes of their files.
    pub bytes_elsewhere: u64,
}

impl LevelsStore {
    /// Creates an empty store of that many partitions. It is durable on return. A call that a crash has ended may be
    /// repeated.
    pub fn create(ground: &dyn Ground, directory: &str, partitions: u16, options: &LevelsOptions) -> Result<()> {
        options.check()?;
        (0..partitions).try_for_each(|number| Partition::create(ground, directory, number, options))
    }

    /// Opens it for the owner with this epoch. A partition that was opened for writing with a greater one is refused.
    pub fn open(
        ground: Arc<dyn Ground>,
        directory: &str,
        partitions: u16,
        epoch: u64,
        options: LevelsOptions,
        profile: Arc<Profile>,
        access: Access,
    ) -> Result<Arc<LevelsStore>> {
        options.check()?;
        if epoch > MAX_EPOCH {
            return Err(StorageError::Option { option: "epoch", value: epoch.to_string(), allowed: "32 bits" });
        }
        let room = Room::new(options.filter_bytes);
        let options = Arc::new(options);
        let counters: Arc<Counters> = Arc::default();
        let takes = (access == Access::ReadWrite).then_some(epoch);
        let open = |number| Partition::open(ground.clone(), directory, number, options.clone(), takes, room.clone(), counters.clone());
        let partitions = (0..partitions).map(open).collect::<Result<Vec<Partition>>>()?;
        let chunks = |partition: &Partition| partition.version().levels.iter().flatten().map(|table| table.entries).sum();
        let (flushers, frames) = (options.flushers, FrameCache::new(options.frame_cache_bytes));
        Ok(Arc::new_cyclic(|store| LevelsStore {
            frames,
            runs: Runs::default(),
            readers: Readers::new(READS),
            flushers: Flushers::start(flushers, store),
            unit_bits: partitions.iter().map(|partition| unit_bits(chunks(partition))).collect(),
            ground,
            directory: directory.to_owned(),
            partitions,
            options,
            profile,
            access,
            is_writable: AtomicBool::new(false),
            moments: Moments::default(),
            counters,
        }))
    }

    /// Makes tables of the full memtables of a partition. What fails is tried again when it is needed.
    pub(crate) fn write_sealed(&self, partition: usize) {
        if let Err(error) = self.partitions[partition].write_sealed() {
            tracing::debug!(%error, "a full memtable could not be written");
        }
    }

    /// Does the long part of a compaction, if one is due: in the partition with the most young tables, if it can.
    /// Reading and writing go on meanwhile. It asks `go_on` now and then. Each partition does one at a time; another
    /// thread may do one of another partition.
    ///
    /// Returns `None` if nothing is due that no other thread does, or if `go_on` ended it.
    pub fn merge(&self, go_on: &dyn Fn() -> bool) -> Result<Option<Merged<'_>>> {
        self.check_writable()?;
        let mut failed = None;
        let mut partitions: Vec<&Partition> = self.partitions.iter().collect();
        partitions.sort_by_key(|partition| std::cmp::Reverse(partition.version().levels.first().map_or(0, Vec::len)));
        for partition in partitions {
            match partition.merge(go_on) {
                Ok(Some(merged)) => return Ok(Some(merged)),
                Ok(None) => {}
                // The others need not wait for it.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Writes a table again without what younger ones shadow, if there is one for which that is worth while. It needs
    /// space for that table alone, and may take it from the [reserve](onefold_ground::ReservedGround): for a disk that
    /// is so full that no merge can be done. Returns whether it did.
    pub fn shrink(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.check_writable()?;
        let mut failed = None;
        for partition in &self.partitions {
            match partition.shrink(go_on) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    /// Does a whole compaction, if one is due. Returns whether it did. Call only if nobody opens the store meanwhile.
    pub fn compact(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let Some(merged) = self.merge(go_on)? else { return Ok(false) };
        merged.install()?;
        Ok(true)
    }

    /// Takes a record of the batch at `start`. With `has_holes`, the log may lack others before it.
    fn replay(&self, start: Position, record: &Record, has_holes: bool) -> Result<()> {
        if record.partition.class != PartitionClass::Container {
            return Ok(());
        }
        let digest_bytes = self.options.digest_bytes();
        let refused = |why: &str| StorageError::Record { kind: record.kind, why: why.to_owned() };
        let partition = self.partitions.get(record.partition.number as usize).ok_or_else(|| refused("the store has no such partition"))?;
        if start < partition.replayed_from {
            return Ok(());
        }
        match record.kind {
            CHUNKS_HELD | TABLE_WRITTEN => partition.replay(start, record.kind, decode(record, digest_bytes, true)?, has_holes),
            CHUNKS_DROPPED => {
                decode_dropped(record, digest_bytes)?.iter().for_each(|name| partition.replay_removal(start, name));
                Ok(())
            }
            _ => Err(refused("the chunks of this store are in levels of tables")),
        }
    }

    /// Returns the bytes of the largest table. To [shrink](LevelsStore::shrink) any, a full disk needs so much space.
    pub fn largest_table_bytes(&self) -> u64 {
        let largest = |partition: &Partition| partition.version().levels.iter().flatten().map(|table| table.length_bytes).max();
        self.partitions.iter().filter_map(largest).max().unwrap_or(0)
    }

    /// Returns how each partition stands, and where it is (M2.10).
    pub fn partitions(&self) -> Result<Vec<PartitionFigures>> {
        let figures = |partition: &Partition| {
            let version = partition.version();
            let tables = || version.levels.iter().flatten();
            let elsewhere = partition.elsewhere();
            Ok(PartitionFigures {
                number: partition.number,
                directory: partition.place(),
                tables: tables().count() as u64,
                raw_bytes: partition.raw_bytes(),
                stored_bytes: tables().map(|table| table.length_bytes).sum(),
                streams: partition.streams.load(Ordering::Relaxed) as u64,
                free_bytes: partition.space()?.free_bytes,
                tables_elsewhere: elsewhere.len() as u64,
                bytes_elsewhere: elsewhere.iter().map(|table| table.length_bytes).sum(),
            })
        };
        self.partitions.iter().map(figures).collect()
    }

    fn partition(&self, number: u16) -> Result<&Partition> {
        self.partitions.get(usize::from(number)).ok_or(StorageError::NotOpened { partition: number })
    }

    /// Begins to move a partition: new tables go to a directory of its own in `to`, which exists. `None`: to the
    /// store's own directory. Call it while nobody opens the store.
    pub fn begin_move(&self, number: u16, to: Option<&Path>) -> Result<()> {
        self.check_writable()?;
        self.partition(number)?.go_to(to)
    }

    /// Copies the next table that has to move, beside everything else. `None`: there is none that the log names, or
    /// `go_on` ended it.
    pub fn copy_next(&self, number: u16, go_on: &dyn Fn() -> bool) -> Result<Option<Copied<'_>>> {
        self.check_writable()?;
        self.partition(number)?.copy_next(go_on)
    }

    /// Ends a move, and leaves directories without tables. Returns false if a table is still elsewhere. Call it while
    /// nobody opens the store.
    pub fn end_move(&self, number: u16) -> Result<bool> {
        self.check_writable()?;
        self.partition(number)?.leave_homes()
    }

    /// Returns how much each partition has, bytes before compression.
    pub fn partition_bytes(&self) -> Vec<u64> {
        self.partitions.iter().map(Partition::raw_bytes).collect()
    }

    /// Returns the bytes before compression for which this many levels have room, in all partitions (M2.9).
    pub fn capacity_bytes(&self, levels: usize) -> u64 {
        self.options.capacity_bytes(levels).saturating_mul(self.partitions.len() as u64)
    }

    /// Returns how urgent a compaction is: due ([`Pressure::Behind`]), or so late that writers should wait
    /// ([`Pressure::Full`]).
    pub fn compaction_pressure(&self) -> Pressure {
        self.partitions.iter().map(Partition::compaction_pressure).max().unwrap_or(Pressure::Idle)
    }

    /// Does the same by the young tables alone. It is cheap enough for each write.
    pub fn backlog(&self) -> Pressure {
        self.partitions.iter().map(Partition::backlog).max().unwrap_or(Pressure::Idle)
    }

    /// Returns how many young tables a partition has at most beyond those from which writers wait.
    pub fn excess(&self) -> usize {
        self.partitions.iter().map(Partition::excess).max().unwrap_or(0)
    }

    /// Returns what the store has done since it was opened.
    pub fn work(&self) -> LevelsWork {
        self.counters.work()
    }

    /// Returns how the levels of all partitions stand together.
    pub fn levels(&self) -> Vec<LevelFigures> {
        let mut levels: Vec<LevelFigures> = Vec::new();
        for partition in &self.partitions {
            for (level, tables) in partition.version().levels.iter().enumerate() {
                levels.resize(levels.len().max(level + 1), LevelFigures::default());
                let figures = &mut levels[level];
                figures.capacity_bytes = self.options.level_bytes(level).saturating_mul(self.partitions.len() as u64);
                for table in tables {
                    figures.tables += 1;
                    figures.chunks += table.entries - table.tombstones;
                    figures.tombstones += table.tombstones;
                    figures.raw_bytes += table.raw_bytes;
                    figures.stored_bytes += table.length_bytes;
                }
            }
        }
        levels
    }

    fn check_writable(&self) -> Result<()> {
        if self.is_writable.load(Ordering::Relaxed) { Ok(()) } else { Err(StorageError::ReadOnly) }
    }

    fn partition_of(&self, address: Address) -> Result<&Partition> {
        let number = address.container().partition();
        let partition = self.partitions.get(usize::from(number)).filter(|_| Unit::of(address.origin(), 0).is_some());
        partition.ok_or_else(|| self.not_there(address, "no chunk of this store has such an address"))
    }

    fn not_there(&self, address: Address, why: &str) -> StorageError {
        let path = self.ground.describe(&self.directory);
        StorageError::NotThere { path, container: address.container(), address, why: why.to_owned() }
    }

    fn unit(&self, origin: Origin) -> Result<(&Partition, Unit)> {
        let partition = self.partition_of(origin.address(0))?;
        let unit = Unit::of(origin, self.unit_bits[usize::from(partition.number)]);
        Ok((partition, unit.ok_or_else(|| self.not_there(origin.address(0), "it has no unit"))?))
    }

    /// Returns the slots of a unit.
    fn slots(&self, origin: Origin, damaged: &mut dyn FnMut(StorageError) -> Result<()>) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        let (partition, unit) = self.unit(origin)?;
        let chunks = partition.chunks(unit.prefixes(), damaged)?;
        let slot = |(fingerprint, kind, length_bytes)| {
            let address = address_of(partition.number, &fingerprint);
            (address, Slot { fingerprint, kind, frame: 0, offset_bytes: 0, length_bytes })
        };
        Ok((unit.id(), chunks.into_iter().map(slot).collect()))
    }
}

/// A writing stream: its chunks go to one partition, so that they stay together.
#[derive(Debug)]
struct LevelsWriter {
    store: Arc<LevelsStore>,
    partition: usize,
    is_sequential: bool,
}

impl Drop for LevelsWriter {
    fn drop(&mut self) {
        self.store.partitions[self.partition].streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ChunkWriter for LevelsWriter {
    fn be_sequential(&mut self) {
        self.is_sequential = true;
    }

    fn append(&mut self, chunks: &[NewChunk<'_>]) -> Result<Vec<Address>> {
        self.store.check_writable()?;
        let limit_bytes = crate::MAX_CHUNK_BYTES;
        if let Some(chunk) = chunks.iter().find(|chunk| chunk.data.len() > limit_bytes) {
            return Err(StorageError::ChunkTooLong { length_bytes: chunk.data.len(), limit_bytes });
        }
        let partition = &self.store.partitions[self.partition];
        let appended = partition.append(chunks, self.is_sequential);
        // Behind it: see `LevelsStore::keep`.
        self.store.frames.forget(chunks.iter().map(|chunk| &chunk.fingerprint));
        if partition.waiting() > 0
            && let Some(flushers) = &self.store.flushers
        {
            flushers.wake(self.partition);
        }
        appended
    }

    fn append_frame(&mut self, chunks: &[NewChunk<'_>], _frame: &CompressedFrame<'_>) -> Result<Vec<Address>> {
        self.append(chunks)
    }
}

impl ChunkStore for LevelsStore {
    /// A stream goes to the partition with the fewest streams, and among these to the one with the least in it (M2.10).
    /// One whose disk is nearly full comes last.
    fn new_writer(self: Arc<Self>) -> Box<dyn ChunkWriter> {
        let is_full = |partition: &Partition| partition.space().is_ok_and(|space| space.free_bytes < partition.most_waiting_bytes());
        let load = |partition: &Partition| (is_full(partition), partition.streams.load(Ordering::Relaxed), partition.raw_bytes());
        let partition = (0..self.partitions.len()).min_by_key(|number| load(&self.partitions[*number])).unwrap_or(0);
        self.partitions[partition].streams.fetch_add(1, Ordering::Relaxed);
        Box::new(LevelsWriter { store: self, partition, is_sequential: false })
    }

    fn longest_chunk_bytes(&self) -> usize {
        crate::MAX_CHUNK_BYTES
    }

    fn load(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_into(wanted, true, out)
    }

    fn load_short(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_into(wanted, false, out)
    }

    fn prepare(&self, scope: Scope) -> Result<Prepared> {
        self.check_writable()?;
        let mut prepared = Prepared::default();
        self.partitions.iter().try_for_each(|partition| partition.prepare(scope, &mut prepared))?;
        Ok(prepared)
    }

    fn committed(&self, prepared: Prepared, start: Position, end: Position) {
        self.moments.committed(&prepared);
        self.partitions.iter().for_each(|partition| partition.committed(&prepared.levels, start, end));
    }

    fn abandoned(&self, prepared: Prepared) {
        drop(prepared);
    }

    fn begin_removal(&self, chunks: &[(Address, Fingerprint)]) -> Result<Vec<Record>> {
        self.check_writable()?;
        // All of them, or none.
        let mut dropped: BTreeMap<u16, Vec<Fingerprint>> = BTreeMap::new();
        for (address, name) in chunks {
            dropped.entry(self.partition_of(*address)?.number).or_default().push(*name);
        }
        let digest_bytes = self.options.digest_bytes();
        let record = |(number, names): (u16, Vec<Fingerprint>)| {
            names.iter().for_each(|name| self.partitions[usize::from(number)].begin_removal(*name));
            chunks_dropped(number, &names, digest_bytes)
        };
        Ok(dropped.into_iter().map(record).collect())
    }

    fn abandon_removal(&self, chunks: &[(Address, Fingerprint)]) {
        for (address, name) in chunks {
            if let Ok(partition) = self.partition_of(*address) {
                partition.abandon_removal(name);
            }
        }
    }

    fn removed(&self, chunks: &[(Address, Fingerprint)]) {
        self.frames.forget(chunks.iter().map(|(_, name)| name));
        for (address, name) in chunks {
            if let Ok(partition) = self.partition_of(*address) {
                partition.removed(name);
            }
        }
    }

    fn unsynced_bytes(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.unsynced_bytes()).sum()
    }

    fn open_bytes(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.unlogged_bytes()).sum()
    }

    fn usage(&self, _counted: Option<FileFigures>) -> Result<Usage> {
        let levels = self.levels();
        let sum = |of: fn(&LevelFigures) -> u64| levels.iter().map(of).sum();
        Ok(Usage { units: sum(|level| level.tables), disk_bytes: sum(|level| level.stored_bytes) })
    }

    fn damaged_owners(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn apply(&self, _end: Position, effects: &Effects<'_>) -> Result<()> {
        effects.replayed.iter().try_for_each(|record| self.replay(effects.start, record, false))
    }

    fn recovered(&self, _log_start: Position, log_end: Position) -> Result<()> {
        // In all of them, before one removes a file.
        self.partitions.iter().try_for_each(|partition| partition.check_log_end(log_end, self.access))?;
        if self.access == Access::ReadWrite {
            self.partitions.iter().try_for_each(Partition::take_homes)?;
        }
        self.partitions.iter().try_for_each(|partition| partition.recovered(log_end, self.access))?;
        self.is_writable.store(self.access == Access::ReadWrite, Ordering::Relaxed);
        Ok(())
    }

    fn position(&self) -> Position {
        self.partitions.iter().map(Partition::position).min().unwrap_or_default()
    }

    fn required_end(&self) -> Position {
        self.partitions.iter().map(Partition::required_end).max().unwrap_or_default()
    }

    fn pressure(&self) -> Pressure {
        if self.partitions.iter().any(Partition::is_behind) { Pressure::Behind } else { Pressure::Idle }
    }

    fn step(&self) -> Result<bool> {
        for partition in self.partitions.iter().filter(|partition| partition.is_behind()) {
            if partition.list()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns nothing: the tables may have chunks that no batch had, so they go into an ordinary commit.
    fn checkpoint_before(&self, position: Position) -> Result<Prepared> {
        self.partitions.iter().try_for_each(|partition| partition.let_go_of(position))?;
        Ok(Prepared::default())
    }

    fn trim_point(&self, target: Position) -> Position {
        target.min(self.position())
    }

    fn leave(&self) {
        for partition in &self.partitions {
            drop(partition.give_space_back());
            if let Err(error) = partition.list() {
                tracing::warn!(%error, "the manifest of a partition could not be written; the next opening reads the log instead");
            }
        }
    }

    fn units(&self) -> Result<ContainerSet> {
        let mut units = ContainerSet::default();
        for (partition, bits) in self.partitions.iter().zip(&self.unit_bits) {
            for unit in Unit::all(partition.number, *bits) {
                units.insert(unit.id());
            }
        }
        Ok(units)
    }

    /// Each unit counts for its own chunks.
    fn answering<'a>(&'a self, units: &'a ContainerSet, _forwards: &ContainerSet) -> Result<Answering<'a>> {
        Ok(Answering::without_forwards(units))
    }

    /// With `read_data` it reads the tables whose first key is in the unit: so all units together read each table once,
    /// in the order of the file.
    fn verify(
        &self,
        unit: ContainerId,
        read_data: bool,
        _buffer: &mut ReadBuffer,
        visit: &mut FrameVisitor<'_>,
    ) -> Result<ContainerReport> {
        let (partition, of) = self.unit(unit.into())?;
        let mut damage = Vec::new();
        let chunks = partition.chunks(of.prefixes(), &mut |error| {
            damage.push(error);
            Ok(())
        })?;
        let mut report = ContainerReport {
            container: unit,
            sealed: true,
            homes: Vec::new(),
            frames: 0,
            chunks: chunks.len() as u64,
            raw_bytes: chunks.iter().map(|(_, _, length_bytes)| u64::from(*length_bytes)).sum(),
            stored_bytes: 0,
            damage,
        };
        if read_data {
            let version = partition.version();
            let bits = self.unit_bits[usize::from(partition.number)];
            let mine = version.levels.iter().flatten().filter(|table| Unit::of_key(partition.number, &table.first, bits) == of);
            for table in mine {
                self.verify_table(partition, table, &mut report, visit)?;
            }
        }
        Ok(report)
    }

    fn scrub(
        &self,
        units: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        let look = |unit: ContainerId, buffer: &mut ReadBuffer| {
            let mut read_bytes = 0;
            let verified = self.verify(unit, true, buffer, &mut |chunks| {
                read_bytes += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
            });
            Scrubbed { read_bytes, damage: verified.map_or_else(|error| vec![error], |report| report.damage) }
        };
        threads.in_order(units, stop, &look, found, waiting)
    }

    fn unit_of(&self, origin: Origin) -> Result<ContainerId> {
        Ok(self.unit(origin)?.1.id())
    }

    fn has_chunks_of(&self, origin: Origin) -> Result<bool> {
        Ok(!self.slots(origin, &mut |_| Ok(()))?.1.is_empty())
    }

    fn is_present(&self, _origin: Origin, _units: &ContainerSet, _forwards: &ContainerSet) -> bool {
        // Every key has a place. Whether a chunk is there is another question.
        true
    }

    fn chunks_beside(&self, origin: Origin) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        self.slots(origin, &mut Err)
    }

    fn known_chunks_of(&self, unit: ContainerId, damaged: &mut Vec<StorageError>) -> Result<Vec<(Address, Slot)>> {
        let slots = self.slots(unit.into(), &mut |error| {
            damaged.push(error);
            Ok(())
        });
        Ok(slots?.1)
    }

    /// Chunks have no numbers by which a moment could be told: see [`Moments`].
    fn committed_slots(&self) -> CommittedSlots {
        self.moments.begin()
    }

    fn as_containers(self: Arc<Self>) -> Option<Arc<ContainerStore>> {
        None
    }
}
