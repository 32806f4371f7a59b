//! A partition of a levelled store: a memtable, and levels of sorted tables.
//!
//! # What is where
//! A chunk goes through these places, and a search asks them in this order, so that the youngest answer counts:
//! 1. the open memtable;
//! 2. *sealed* memtables, which are full and not written yet, young to old;
//! 3. the tables of level 0, each of which was a memtable, young to old;
//! 4. one table of each further level, whose tables share no keys.
//!
//! # What survives a crash
//! A chunk is durable when the log has it: with its bytes ([`CHUNKS_HELD`](super::CHUNKS_HELD)), or by naming it in a
//! table that was synced before ([`TABLE_WRITTEN`](super::TABLE_WRITTEN)). A table that the manifest lists needs
//! nothing from the log. So the log is needed from the oldest of these on: bytes that are in no logged table,
//! tombstones that are in none, tables that are not listed.
//!
//! Removals are in the log too. A replay makes tombstones of all of them: the chunk may be in a table that the log
//! names later. Where a chunk was stored again, the log has that later batch, and the tombstone is taken back when the
//! replay comes there, whether or not the chunk itself is skipped.
//!
//! # Dangerous interleavings
//! * *A memtable is sealed while it is searched.* The open memtable is asked first, then the list of the others is
//!   taken. In the other order a chunk that moves on would be missed.
//! * *A chunk is appended while a prepare runs.* What a prepare names is decided under one lock: full tables, and the
//!   unlogged chunks of the open memtable, whose bytes go into its record. If that memtable becomes a table meanwhile,
//!   the commit tells the table which of its chunks the log has.
//! * *A partition is opened while a compaction is installed.* The opening could read the old manifest and miss a table.
//!   The engine's lock of the views keeps them apart.
//! * *A compaction runs while tables are added.* It replaces just its own tables; those of level 0 that came later stay
//!   in front.
//! * *A compaction runs while a chunk is removed or stored again.* Both go to the memtable, which is younger than all
//!   tables. One name has one change at a time, as its claim in the engine sees to it.
//! * *A crash during a compaction.* The manifest has the old tables or the new ones. The others are removed by the next
//!   opening.
//! * *A table cannot be opened.* It stays in the manifest as lost, and its file stays: the next opening may read it.
//!   The partition is not compacted meanwhile. A tombstone that is dropped today would be missed above the table
//!   tomorrow.
//! * *A table is removed while it is read.* Readers have it open. Its file goes when the manifest no longer lists it.

mod compacting;
mod damage;
mod homes;
mod listing;
mod moving;
mod replay;
mod salvage;
mod shrinking;
mod space;

pub use compacting::Merged;
pub(crate) use homes::Homes;
pub use moving::Copied;

use crate::levels::filter::Room;
use crate::levels::key::address_of;
use crate::levels::manifest::Manifest;
use crate::levels::memtable::{Found, Held, KEY_BYTES, Memtable};
use crate::levels::options::LevelsOptions;
use crate::levels::pages::Pages;
use crate::levels::records::{Named, chunks_held, table_written};
use crate::levels::table::{Place, Table, TableWriter};
use crate::levels::version::{At, LostTable, Version};
use crate::levels::work::Counters;
use crate::{Address, ChunkKind, Compressor, NewChunk, Prepared, Result, Scope, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{Ground, parent};
use onefold_oplog::Position;
use parking_lot::{Mutex, RwLock};
use space::Space;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// So many full memtables wait for the threads that write them. Then who fills another one does it.
const MAY_WAIT: usize = 2;
/// Numbers of tables and memtables begin with the epoch of their owner, so that two owners never use one.
const COUNTER_BITS: u32 = 32;
/// The greatest epoch that a number can begin with.
pub(crate) const MAX_EPOCH: u64 = u64::MAX >> COUNTER_BITS;
/// The number of the open memtable during a replay, as long as it has no chunks. It is smaller than all numbers.
const UNNAMED: u64 = 0;

/// What a batch of the log will have of a partition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The chunks of a memtable up to this number, with their bytes.
    Held { partition: u16, memtable: u64, upto: usize },
    /// A table.
    Table { partition: u16, id: u64 },
}

/// A table that the log does not name yet.
#[derive(Debug)]
struct Unlogged {
    table: Arc<Table>,
    named: Vec<Option<Named>>,
    /// The log has the bytes of the first ones.
    logged: usize,
    needs: Option<Position>,
    is_synced: bool,
}

/// What compactions remember, in memory.
#[derive(Debug, Default)]
struct Progress {
    /// For each level, the last key that was compacted.
    cursors: Vec<Fingerprint>,
    /// Tables that were not worth shrinking, and from how many tombstones on they may be.
    barren: HashMap<u64, u64>,
}

#[derive(Debug)]
struct State {
    open: Memtable,
    /// Old to young.
    unlogged: Vec<Unlogged>,
    /// Logged tables that the manifest does not list, with the start of the batch that names them.
    unlisted: Vec<(u64, Position)>,
    /// Of the sealed memtables: which of their chunks are logged, and what they need.
    sealed: HashMap<u64, (usize, Option<Position>)>,
    /// Chunks that are being removed, and where the log ended before.
    removing: HashMap<Fingerprint, Position>,
    /// Tombstones of tables that were logged since the opening.
    tombstones: u64,
    /// How heavy the open memtable may get with the space that it has.
    space: u64,
    /// Every memtable up to this number is in a logged table, or empty.
    flushed: u64,
    next: u64,
    epoch: u64,
    log_end: Position,
    /// Where the manifest ends.
    listed_end: Position,
    poisoned: Option<Arc<str>>,
}

impl State {
    /// Begins to use numbers of the own epoch. The open memtable gets one too: so no table is ever written under the
    /// number of another owner.
    fn number_own(&mut self) {
        self.next = self.next.max(self.epoch << COUNTER_BITS).max(UNNAMED + 1);
        self.open.id = self.take_number();
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        assert_eq!(number >> COUNTER_BITS, self.epoch, "no opening lives long enough to use up its numbers");
        self.next += 1;
        number
    }
}

#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) number: u16,
    ground: Arc<dyn Ground>,
    /// Where the manifests are.
    directory: String,
    homes: RwLock<Homes>,
    pub(crate) options: Arc<LevelsOptions>,
    /// Where a replay begins: the tables of the manifest have everything before.
    pub(crate) replayed_from: Position,
    state: Mutex<State>,
    version: RwLock<Arc<Version>>,
    /// Held while a memtable becomes a table: they become tables in order.
    flushing: Mutex<()>,
    /// Files for the tables of memtables, by their numbers.
    spaces: Mutex<HashMap<u64, Space>>,
    /// Held while the manifest is replaced.
    listing: Mutex<()>,
    /// Held while tables are compacted or shrunk.
    compacting: Mutex<Progress>,
    /// Tables in which damage was met. Compactions leave them out.
    damaged: Mutex<BTreeSet<u64>>,
    /// Room for filters, of the whole store.
    room: Room,
    counters: Arc<Counters>,
    /// Writing streams that go here.
    pub(crate) streams: AtomicUsize,
}

pub(crate) fn directory_of(directory: &str, number: u16) -> String {
    format!("{directory}/{number:04x}")
}

/// Returns the path of a table in a directory.
fn table_path(directory: &str, id: u64) -> String {
    format!("{directory}/{id:016x}.table")
}

/// Returns the number of a table from the name of its file.
fn id_of(name: &str) -> Option<u64> {
    name.strip_suffix(".table").filter(|digits| digits.len() == 16).and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

impl Partition {
    pub(crate) fn create(ground: &dyn Ground, directory: &str, number: u16, options: &LevelsOptions) -> Result<()> {
        let directory = directory_of(directory, number);
        ground.create_directory(&directory)?;
        Manifest::new().write(ground, &directory, options)
    }

    pub(crate) fn open(
        ground: Arc<dyn Ground>,
        directory: &str,
        number: u16,
        options: Arc<LevelsOptions>,
        takes: Option<u64>,
        room: Room,
        counters: Arc<Counters>,
    ) -> Result<Partition> {
        let directory = directory_of(directory, number);
        let mut attempts = 0;
        let (manifest, homes, version) = loop {
            let mut manifest = Manifest::read(&*ground, &directory, &options)?;
            let homes = Homes::find(&*ground, &directory, number, &options)?;
            if let Some(epoch) = takes {
                check_fence(&*ground, &directory, &options, epoch)?;
                homes.check_owners(&*ground, manifest.epoch)?;
                manifest.epoch = epoch;
                // Also if it is the same: both have to be equal before a file is removed.
                manifest.write(&*ground, &directory, &options)?;
            }
            let version = open_tables(&*ground, &homes, number, &manifest, &options, &room);
            let is_whole = version.as_ref().is_ok_and(|version| version.lost.is_empty());
            if !is_whole && takes.is_none() && attempts < 10 && Manifest::read(&*ground, &directory, &options)? != manifest {
                // A writer has compacted meanwhile.
                attempts += 1;
                continue;
            }
            break (manifest, homes, version?);
        };
        let state = State {
            open: Memtable::new(UNNAMED),
            unlogged: Vec::new(),
            unlisted: Vec::new(),
            sealed: HashMap::new(),
            removing: HashMap::new(),
            tombstones: 0,
            space: 0,
            flushed: manifest.flushed,
            next: manifest.next,
            epoch: manifest.epoch,
            log_end: manifest.log_end,
            listed_end: manifest.log_end,
            poisoned: None,
        };
        Ok(Partition {
            number,
            ground,
            directory,
            homes: RwLock::new(homes),
            options,
            replayed_from: manifest.needed,
            state: Mutex::new(state),
            version: RwLock::new(Arc::new(version)),
            flushing: Mutex::default(),
            spaces: Mutex::default(),
            listing: Mutex::new(()),
            compacting: Mutex::default(),
            damaged: Mutex::default(),
            room,
            counters,
            streams: AtomicUsize::new(0),
        })
    }

    /// Returns the bytes before compression of all chunks that are here, removed ones that are not compacted yet too.
    pub(crate) fn raw_bytes(&self) -> u64 {
        let open = self.state.lock().open.raw_bytes();
        let version = self.version();
        let sealed: u64 = version.sealed.iter().map(|memtable| memtable.raw_bytes()).sum();
        open + sealed + version.levels.iter().flatten().map(|table| table.raw_bytes).sum::<u64>()
    }

    /// Returns where a new table goes.
    fn new_table_path(&self, id: u64) -> String {
        table_path(&self.homes.read().current(), id)
    }

    pub(crate) fn version(&self) -> Arc<Version> {
        self.version.read().clone()
    }

    /// Replaces the version. Call only with the state locked.
    fn change(&self, change: impl FnOnce(&mut Version)) {
        let mut version = (**self.version.read()).clone();
        change(&mut version);
        *self.version.write() = Arc::new(version);
    }

    /// Refuses to go on if a later owner has opened the partition.
    fn check_fence(&self) -> Result<()> {
        let epoch = self.state.lock().epoch;
        check_fence(&*self.ground, &self.directory, &self.options, epoch)
    }

    pub(crate) fn check_poison(&self) -> Result<()> {
        match &self.state.lock().poisoned {
            Some(why) => Err(StorageError::Poisoned { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Stores chunks, and writes a table when there are enough of them.
    pub(crate) fn append(&self, chunks: &[NewChunk<'_>], is_sequential: bool) -> Result<Vec<Address>> {
        self.check_poison()?;
        // A table that could not be written keeps its chunks in memory. No more are taken until that succeeds.
        if self.waiting() > self.may_wait() {
            self.write_sealed()?;
        }
        let mut addresses = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let bytes = Slice::from_vec(chunk.data.to_vec());
            let is_full = loop {
                let mut state = self.state.lock();
                if state.open.weight_bytes() + bytes.len() as u64 + KEY_BYTES <= state.space {
                    state.open.put(chunk.fingerprint, chunk.kind, is_sequential, bytes);
                    break self.seal_if_full(&mut state);
                }
                drop(state);
                self.get_space(chunk.data.len() as u64)?;
            };
            addresses.push(address_of(self.number, &chunk.fingerprint));
            if is_full
                && self.waiting() > self.may_wait()
                && let Err(error) = self.write_sealed()
            {
                // The chunks taken so far are safe in memory. The next call reports the error.
                return if addresses.len() == chunks.len() { Ok(addresses) } else { Err(error) };
            }
        }
        Ok(addresses)
    }

    /// Returns how many memtables are full.
    pub(crate) fn waiting(&self) -> usize {
        self.version.read().sealed.len()
    }

    /// Returns how many of them others may write.
    fn may_wait(&self) -> usize {
        if self.options.flushers == 0 { 0 } else { MAY_WAIT }
    }

    /// Returns the most bytes that wait in memory: full memtables, one that is being written, and the open one.
    pub(crate) fn most_waiting_bytes(&self) -> u64 {
        (self.may_wait() as u64 + 2) * u64::from(self.options.memtable_bytes)
    }

    fn seal_if_full(&self, state: &mut State) -> bool {
        let is_full = state.open.weight_bytes() >= u64::from(self.options.memtable_bytes);
        if is_full {
            self.seal(state);
        }
        is_full
    }

    fn seal(&self, state: &mut State) {
        let id = state.take_number();
        let full = std::mem::replace(&mut state.open, Memtable::new(id));
        state.sealed.insert(full.id, (full.logged, full.needs));
        state.space = 0;
        self.change(|version| version.sealed.insert(0, Arc::new(full)));
    }

    /// Makes tables of all sealed memtables, the oldest first.
    pub(crate) fn write_sealed(&self) -> Result<()> {
        let _one = self.flushing.lock();
        loop {
            let Some(memtable) = self.version.read().sealed.last().cloned() else { return Ok(()) };
            let table = Arc::new(self.write_table(&memtable)?);
            let mut state = self.state.lock();
            let (logged, needs) = state.sealed.remove(&memtable.id).unwrap_or_default();
            state.unlogged.push(Unlogged { table: table.clone(), named: memtable.named(), logged, needs, is_synced: false });
            self.change(|version| {
                version.sealed.pop();
                version.add(table);
            });
        }
    }

    /// Writes the table of a memtable.
    fn write_table(&self, memtable: &Memtable) -> Result<Table> {
        let Space { file, new_path, path, bytes } = self.take_space(memtable)?;
        let write = || -> Result<Table> {
            let ground = &*self.ground;
            let writer = TableWriter::into_file(ground, file, &new_path, memtable.id, memtable.keys(), &self.options);
            let mut writer = writer.of_memtable(memtable.weight_bytes(), bytes);
            for Held { name, kind, is_sequential, bytes, .. } in memtable.chunks() {
                writer.push(*name, *kind, *is_sequential, bytes)?;
            }
            memtable.tombstones().for_each(|name| writer.push_tombstone(name));
            let mut table = writer.finish(&self.room)?;
            // No part of a table ever has its name.
            table.rename(ground, &path)?;
            Ok(table)
        };
        let table = write().inspect_err(|_| self.give_up(&new_path))?;
        Counters::add(&self.counters.flushed_bytes, table.length_bytes);
        Ok(table)
    }

    /// Looks for a chunk (M2.7).
    pub(crate) fn find(&self, name: &Fingerprint) -> Result<Option<At>> {
        match self.find_in_memory(name) {
            Some(Found::Chunk(bytes)) => Ok(Some(At::Memory(bytes))),
            Some(Found::Removed) => Ok(None),
            None => self.version().find(name, &mut Pages::default()),
        }
    }

    /// Looks for a chunk in the open memtable.
    pub(crate) fn find_in_memory(&self, name: &Fingerprint) -> Option<Found<Slice>> {
        match self.state.lock().open.find(name)? {
            Found::Chunk(held) => Some(Found::Chunk(held.bytes.clone())),
            Found::Removed => Some(Found::Removed),
        }
    }

    /// Returns those chunks of a frame of this table that something younger may have.
    pub(crate) fn in_something_younger(&self, table: &Table, chunks: &[(Fingerprint, u32, u32)]) -> Vec<Fingerprint> {
        let is_open: Vec<bool> = {
            let state = self.state.lock();
            chunks.iter().map(|(name, ..)| state.open.find(name).is_some()).collect()
        };
        // Taken behind that: it has what has left the open memtable meanwhile.
        let version = self.version();
        let is_first = |name: &Fingerprint| version.first(name).is_some_and(|first| std::ptr::eq(&**first, table));
        let younger = chunks.iter().zip(is_open).filter(|((name, ..), is_open)| *is_open || !is_first(name));
        younger.map(|((name, ..), _)| *name).collect()
    }

    /// Returns what a levelled store has to log now, in the order of the log.
    pub(crate) fn prepare(&self, scope: Scope, prepared: &mut Prepared) -> Result<()> {
        self.check_poison()?;
        self.write_sealed()?;
        let mut held = Vec::new();
        let (memtable, upto, tables) = loop {
            let state = self.state.lock();
            if scope == Scope::Everything && !self.version.read().sealed.is_empty() {
                drop(state);
                self.write_sealed()?;
                continue;
            }
            let mut upto = 0;
            if scope == Scope::Everything {
                let (chunks, all) = state.open.unlogged();
                held.extend(chunks.map(|chunk| (chunk.named(), chunk.bytes.clone())));
                upto = all;
            }
            let tables: Vec<(Arc<Table>, bool)> = state.unlogged.iter().map(|one| (one.table.clone(), one.is_synced)).collect();
            break (state.open.id, upto, tables);
        };
        self.sync(tables.iter().filter(|(_, is_synced)| !is_synced).map(|(table, _)| &**table))?;
        if !tables.is_empty() {
            let State { epoch, log_end, .. } = *self.state.lock();
            self.homes.read().note_log_end(&*self.ground, epoch, log_end)?;
        }
        let digest_bytes = self.options.digest_bytes();
        {
            let mut state = self.state.lock();
            for (table, _) in &tables {
                let Some(one) = state.unlogged.iter_mut().find(|one| one.table.id == table.id) else { continue };
                one.is_synced = true;
                let named: Vec<Named> = one.named[one.logged.min(one.named.len())..].iter().filter_map(|named| *named).collect();
                prepared.records.push(table_written(self.number, table.id, &named, digest_bytes));
                prepared.levels.push(Change::Table { partition: self.number, id: table.id });
                let raw_bytes: u64 = named.iter().map(|named| u64::from(named.length_bytes)).sum();
                prepared.raw_bytes += raw_bytes;
                // As its chunks compress together. What the log had of them was counted before.
                prepared.stored_bytes += share(table.length_bytes, raw_bytes, table.raw_bytes);
                self.note(&named, prepared);
            }
        }
        if !held.is_empty() {
            let mut compressor = Compressor::new(self.options.compression);
            let stored = chunks_held(self.number, memtable, &held, digest_bytes, &mut compressor, &mut prepared.records);
            prepared.stored_bytes += stored;
            prepared.raw_bytes += held.iter().map(|(named, _)| u64::from(named.length_bytes)).sum::<u64>();
            let named: Vec<Named> = held.iter().map(|(named, _)| *named).collect();
            self.note(&named, prepared);
            prepared.levels.push(Change::Held { partition: self.number, memtable, upto });
        }
        Ok(())
    }

    fn note(&self, named: &[Named], prepared: &mut Prepared) {
        prepared.chunks.extend(named.iter().map(|named| (named.name, address_of(self.number, &named.name), named.kind)));
    }

    fn sync<'a>(&self, tables: impl Iterator<Item = &'a Table>) -> Result<()> {
        let mut synced = Ok(());
        let mut directories = BTreeSet::new();
        for table in tables {
            directories.insert(parent(&table.path));
            synced = synced.and_then(|()| table.sync());
        }
        for directory in directories {
            synced = synced.and_then(|()| Ok(self.ground.sync_directory(directory)?));
        }
        if let Err(error) = synced {
            // What a failed sync lost may look written. Nobody writes here from now on.
            let why: Arc<str> = error.to_string().into();
            tracing::error!(why = &*why, "the store writes no more tables");
            self.state.lock().poisoned.get_or_insert(why);
            return self.check_poison();
        }
        Ok(())
    }

    pub(crate) fn committed(&self, changes: &[Change], start: Position, end: Position) {
        if changes.iter().any(|change| matches!(change, Change::Table { partition, .. } if *partition == self.number)) {
            let epoch = self.state.lock().epoch;
            self.homes.read().note_committed(&*self.ground, epoch, end);
        }
        let mut state = self.state.lock();
        state.log_end = end;
        for change in changes {
            match *change {
                Change::Held { partition, memtable, upto } if partition == self.number => {
                    let earliest = |needs: Option<Position>| Some(needs.map_or(start, |needs| needs.min(start)));
                    if state.open.id == memtable {
                        state.open.logged = state.open.logged.max(upto);
                        state.open.need(start);
                    } else if let Some((logged, needs)) = state.sealed.get_mut(&memtable) {
                        (*logged, *needs) = ((*logged).max(upto), earliest(*needs));
                    } else if let Some(one) = state.unlogged.iter_mut().find(|one| one.table.id == memtable) {
                        (one.logged, one.needs) = (one.logged.max(upto), earliest(one.needs));
                    }
                }
                Change::Table { partition, id } if partition == self.number => {
                    if let Some(at) = state.unlogged.iter().position(|one| one.table.id == id) {
                        let tombstones = state.unlogged.remove(at).table.tombstones;
                        state.tombstones += tombstones;
                    }
                    state.unlisted.push((id, start));
                    state.flushed = state.flushed.max(id);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn begin_removal(&self, name: Fingerprint) {
        let mut state = self.state.lock();
        let log_end = state.log_end;
        state.removing.insert(name, log_end);
    }

    pub(crate) fn abandon_removal(&self, name: &Fingerprint) {
        self.state.lock().removing.remove(name);
    }

    /// Removes a chunk whose removal is in the log.
    pub(crate) fn removed(&self, name: &Fingerprint) {
        // The claim of the caller keeps others from storing it meanwhile. But its memtable may be sealed.
        let open = self.state.lock().open.id;
        let is_below = self.version().may_have(name);
        let mut state = self.state.lock();
        let begun = state.removing.remove(name);
        // A tombstone is right in any case.
        let is_below = is_below || state.open.id != open;
        if is_below {
            let needs = begun.unwrap_or(state.log_end);
            state.open.need(needs);
        }
        state.open.remove(*name, is_below);
        let is_full = self.seal_if_full(&mut state);
        drop(state);
        if is_full && let Err(error) = self.write_sealed() {
            tracing::debug!(%error, "a memtable of removals waits for the next flush");
        }
    }

    /// Seals the open memtable if it needs the log before `position`, and lists tables that do. The next prepare has
    /// its table.
    pub(crate) fn let_go_of(&self, position: Position) -> Result<()> {
        {
            let mut state = self.state.lock();
            if state.open.needs.is_some_and(|needs| needs < position) {
                self.seal(&mut state);
            }
        }
        self.list().map(drop)
    }

    /// Returns the bytes of full memtables that no prepare has made durable.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        let state = self.state.lock();
        let sealed: u64 = self.version.read().sealed.iter().map(|memtable| memtable.raw_bytes()).sum();
        sealed + state.unlogged.iter().map(|one| one.table.raw_bytes).sum::<u64>()
    }

    /// Returns the bytes of all chunks that the log does not have.
    pub(crate) fn unlogged_bytes(&self) -> u64 {
        let open: u64 = self.state.lock().open.unlogged().0.map(|chunk| chunk.bytes.len() as u64).sum();
        open + self.unsynced_bytes()
    }

    /// Returns the live chunks with these prefixes, in the order of their names. Pages that cannot be read are passed
    /// to `damaged`.
    pub(crate) fn chunks(
        &self,
        prefixes: std::ops::RangeInclusive<u64>,
        damaged: &mut dyn FnMut(StorageError) -> Result<()>,
    ) -> Result<Vec<(Fingerprint, ChunkKind, u32)>> {
        let mut found: HashMap<Fingerprint, Option<(ChunkKind, u32)>> = HashMap::new();
        let is_mine = |name: &Fingerprint| prefixes.contains(&name.prefix());
        let mut take = |memtable: &Memtable| {
            for held in memtable.chunks().filter(|held| is_mine(&held.name)) {
                found.entry(held.name).or_insert(Some((held.kind, held.bytes.len() as u32)));
            }
            for name in memtable.tombstones().filter(is_mine) {
                found.entry(name).or_insert(None);
            }
        };
        // The open one first: see "Dangerous interleavings".
        take(&self.state.lock().open);
        let version = self.version();
        version.sealed.iter().for_each(|memtable| take(memtable));
        version.lost.iter().try_for_each(|lost| damaged(lost.error()))?;
        for (level, table) in version.levels.iter().enumerate().flat_map(|(level, tables)| tables.iter().map(move |table| (level, table))) {
            let visit = &mut |name, place: Option<Place>| {
                if place.is_none() && level == 0 && table.id < version.unordered {
                    return;
                }
                found.entry(name).or_insert(place.map(|place| (place.kind, place.length_bytes)));
            };
            let damaged = &mut |error| {
                self.note_damaged(table.id);
                damaged(error)
            };
            table.range(prefixes.clone(), damaged, visit)?;
        }
        let mut chunks: Vec<_> = found.into_iter().filter_map(|(name, held)| held.map(|(kind, length)| (name, kind, length))).collect();
        chunks.sort_unstable_by_key(|(name, ..)| *name);
        Ok(chunks)
    }
}

/// Refuses to go on if a later owner has opened the partition.
fn check_fence(ground: &dyn Ground, directory: &str, options: &LevelsOptions, epoch: u64) -> Result<()> {
    let stored_epoch = Manifest::stored_epoch(ground, directory, options)?;
    if stored_epoch <= epoch {
        return Ok(());
    }
    Err(StorageError::Fenced { path: ground.describe(directory), stored_epoch, epoch })
}

/// Opens the tables of a manifest. One that cannot be opened is lost, and does not keep the others from being read.
fn open_tables(
    ground: &dyn Ground,
    homes: &Homes,
    partition: u16,
    manifest: &Manifest,
    options: &LevelsOptions,
    room: &Room,
) -> Result<Version> {
    let mut version = Version { unordered: manifest.unordered, ..Version::default() };
    let paths = homes.tables(ground)?;
    // Young levels first: their filters are asked most.
    for (level, numbers) in manifest.levels.iter().enumerate() {
        let mut tables = Vec::with_capacity(numbers.len());
        for number in numbers {
            match open_one(ground, &homes.current(), paths.get(number), *number, options, room) {
                Ok(table) => tables.push(Arc::new(table)),
                Err(StorageError::SortedTable { path, why }) => {
                    version.lost.push(LostTable { partition, number: *number, level, path, why });
                }
                Err(error) => return Err(error),
            }
        }
        if level > 0 {
            // One that was lost has no place among the others.
            tables.sort_unstable_by_key(|table| table.first);
        }
        version.levels.push(tables);
    }
    Ok(version)
}

/// Opens a table, from the first of these paths that has it whole. If there is none, it should be in the home.
fn open_one(ground: &dyn Ground, home: &str, paths: Option<&Vec<String>>, id: u64, options: &LevelsOptions, room: &Room) -> Result<Table> {
    let mut paths = paths.into_iter().flatten();
    let first = paths.next().cloned().unwrap_or_else(|| table_path(home, id));
    let mut opened = Table::open(ground, &first, id, options, room);
    for path in paths {
        match opened {
            Err(StorageError::SortedTable { .. }) => opened = Table::open(ground, path, id, options, room).or(opened),
            opened => return opened,
        }
    }
    opened
}

/// Returns `of * part / whole`.
fn share(of: u64, part: u64, whole: u64) -> u64 {
    (u128::from(of) * u128::from(part) / u128::from(whole.max(1))) as u64
}
