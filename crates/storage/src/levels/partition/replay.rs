//! Brings a partition to the end of the log.

use super::shrinking::NEW;
use super::{COUNTER_BITS, Partition, State, UNNAMED, id_of, open_one, table_path};
use crate::levels::manifest;
use crate::levels::memtable::Memtable;
use crate::levels::records::{CHUNKS_HELD, Decoded, Named, TABLE_WRITTEN};
use crate::levels::table::Table;
use crate::levels::version::LostTable;
use crate::{Result, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Access;
use onefold_oplog::Position;
use std::collections::BTreeSet;
use std::sync::Arc;

fn epoch_of(number: u64) -> u64 {
    number >> COUNTER_BITS
}

impl Partition {
    /// Takes a record in a replay. With `has_holes`, the log may lack records before it: chunks of several memtables
    /// then become one.
    pub(crate) fn replay(&self, start: Position, kind: u8, decoded: Decoded, has_holes: bool) -> Result<()> {
        let mut state = self.state.lock();
        for named in &decoded.named {
            state.open.revive(&named.name);
        }
        if decoded.memtable <= state.flushed {
            return Ok(());
        }
        match kind {
            CHUNKS_HELD => {
                if state.open.id != decoded.memtable {
                    // The table of a memtable is logged before the chunks of the next one. But a later owner goes on
                    // with the memtable that it found in the log, under a number of its own.
                    let goes_on = decoded.memtable > state.open.id && epoch_of(decoded.memtable) != epoch_of(state.open.id);
                    if !goes_on && !has_holes && state.open.chunks().next().is_some() {
                        let why = format!("the log has chunks of memtable {} before the table of {}", decoded.memtable, state.open.id);
                        return Err(StorageError::Record { kind, why });
                    }
                    state.open.id = decoded.memtable;
                    state.next = state.next.max(decoded.memtable.saturating_add(1));
                }
                let Some(bytes) = decoded.bytes else { return Ok(()) };
                let mut at = 0;
                for Named { name, kind, is_sequential, length_bytes } in decoded.named {
                    let end = at + length_bytes as usize;
                    state.open.put(name, kind, is_sequential, Slice::new(bytes.clone(), at..end));
                    at = end;
                }
                state.open.all_logged();
                state.open.need(start);
            }
            TABLE_WRITTEN => {
                let (partition, number) = (self.number, decoded.memtable);
                if number < self.version().unordered {
                    // The repair took what tables there were. This one is among them, or was compacted before.
                    self.take_table(&mut state, number, start);
                    return Ok(());
                }
                match self.open_named(number) {
                    Ok(table) => self.change(|version| version.add(Arc::new(table))),
                    Err(StorageError::SortedTable { path, why }) => {
                        self.change(|version| version.lost.push(LostTable { partition, number, level: 0, path, why }));
                    }
                    Err(error) => return Err(error),
                }
                self.take_table(&mut state, number, start);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a table that the log names. Memtables up to its number are in it, but for tombstones: these may be later.
    fn take_table(&self, state: &mut State, id: u64, start: Position) {
        state.next = state.next.max(id.saturating_add(1));
        if state.open.id <= id {
            let tombstones: Vec<Fingerprint> = state.open.tombstones().collect();
            let needs = state.open.needs.filter(|_| !tombstones.is_empty());
            state.open = Memtable::new(UNNAMED);
            state.open.needs = needs;
            tombstones.into_iter().for_each(|name| state.open.remove(name, true));
        }
        state.unlisted.push((id, start));
        state.flushed = state.flushed.max(id);
    }

    /// Removes a chunk in a replay. It always leaves a tombstone, found or not: the memtable that has the chunk may
    /// have become a table before the removal, and the log names that table later.
    pub(crate) fn replay_removal(&self, start: Position, name: &Fingerprint) {
        let mut state = self.state.lock();
        state.open.remove(*name, true);
        state.open.need(start);
    }

    /// Refuses a log that ends before the manifest was written: it has lost its end.
    pub(crate) fn check_log_end(&self, log_end: Position, access: Access) -> Result<()> {
        let listed_end = self.state.lock().listed_end;
        if listed_end <= log_end {
            // Whoever only reads removes nothing.
            return if access == Access::ReadWrite { self.homes.read().check_log_end(&*self.ground, log_end) } else { Ok(()) };
        }
        let path = self.ground.describe(&manifest::path(&self.directory));
        Err(StorageError::LogTooShort { path, known: listed_end.0, log_end: log_end.0 })
    }

    /// Writes down that this owner uses the homes.
    pub(crate) fn take_homes(&self) -> Result<()> {
        let epoch = self.state.lock().epoch;
        self.homes.read().take(&*self.ground, epoch, None)
    }

    /// Ends the replay. A writer removes files that nobody knows: a crash came before they were logged, or behind a
    /// compaction.
    pub(crate) fn recovered(&self, log_end: Position, access: Access) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.log_end = log_end;
            if access != Access::ReadWrite {
                return Ok(());
            }
            let later = epoch_of(state.next);
            if later > state.epoch {
                let path = self.ground.describe(&self.directory);
                return Err(StorageError::Fenced { path, stored_epoch: later, epoch: state.epoch });
            }
            state.number_own();
        }
        let version = self.version();
        let lost: BTreeSet<u64> = version.lost.iter().map(|lost| lost.number).collect();
        let known: BTreeSet<&str> = version.levels.iter().flatten().map(|table| &*table.path).collect();
        let mut homes = self.homes.write();
        let all = homes.all();
        if all.len() > 1 {
            // A process that was killed while a table moved may have left a name that is not durable.
            all.iter().try_for_each(|home| self.ground.sync_directory(home))?;
        }
        for home in all {
            for entry in self.ground.list(&home)? {
                let path = format!("{home}/{}", entry.name);
                let is_unknown = |id: u64| !known.contains(&*path) && !lost.contains(&id);
                if id_of(&entry.name).is_some_and(is_unknown) || entry.name.ends_with(NEW) {
                    self.ground.remove(&path)?;
                }
            }
        }
        // A move may have ended just before it could.
        homes.leave_empty(&*self.ground).map(drop)
    }

    /// Opens a table that the log names.
    fn open_named(&self, id: u64) -> Result<Table> {
        let homes = self.homes.read();
        let mut paths = Vec::new();
        for home in homes.all() {
            let path = table_path(&home, id);
            if self.ground.exists(&path)? {
                paths.push(path);
            }
        }
        open_one(&*self.ground, &homes.current(), Some(&paths), id, &self.options, &self.room)
    }
}
