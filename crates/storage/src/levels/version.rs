//! What a partition has below its open memtable.

use crate::levels::memtable::{Found, Held, Memtable};
use crate::levels::pages::Pages;
use crate::levels::table::{Place, Table};
use crate::{Result, Slice, StorageError};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

/// Where a chunk was found.
pub(crate) enum At {
    Memory(Slice),
    Table { table: Arc<Table>, place: Place },
}

/// A table of the manifest or the log that cannot be opened. Its chunks are lost, unless its file comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostTable {
    /// The partition.
    pub partition: u16,
    /// The number of the table.
    pub number: u64,
    /// Its level.
    pub level: usize,
    /// The path of its file, for people.
    pub path: String,
    /// What is wrong.
    pub why: String,
}

impl LostTable {
    pub(crate) fn error(&self) -> StorageError {
        StorageError::SortedTable { path: self.path.clone(), why: self.why.clone() }
    }
}

/// Everything but the open memtable. It never changes: it is replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    /// Young to old.
    pub(crate) sealed: Vec<Arc<Memtable>>,
    /// Tables of level 0 are young to old, those of other levels in the order of their keys.
    pub(crate) levels: Vec<Vec<Arc<Table>>>,
    /// Tables of level 0 with smaller numbers are in no order: their tombstones do not count.
    pub(crate) unordered: u64,
    /// As long as there are any, levels are not compacted: their tombstones and their order still count.
    pub(crate) lost: Vec<LostTable>,
}

impl Version {
    /// Looks for a chunk. Call when the open memtable does not have it.
    ///
    /// A table that is damaged there may have had it, or a tombstone. The search goes on in older ones: what has the
    /// name is the right chunk, and whether it was removed is in the index. If there is none, the damage is the answer.
    /// The same is true of a lost table, which may have had any key.
    pub(crate) fn find(&self, name: &Fingerprint, pages: &mut Pages) -> Result<Option<At>> {
        match self.find_sealed(name) {
            Some(Found::Chunk(held)) => return Ok(Some(At::Memory(held.bytes.clone()))),
            Some(Found::Removed) => return Ok(None),
            None => {}
        }
        let mut damaged = None;
        for (level, table) in self.candidates(name) {
            match table.find(name, pages) {
                Ok(Some(Some(place))) => return Ok(Some(At::Table { table: table.clone(), place })),
                Ok(Some(None)) if level == 0 && table.id < self.unordered => {}
                Ok(Some(None)) => {
                    let is_younger = |lost: &&LostTable| lost.level < level || level == 0 && lost.level == 0 && lost.number > table.id;
                    let damaged = damaged.or_else(|| self.lost.iter().find(is_younger).map(LostTable::error));
                    return damaged.map_or(Ok(None), Err);
                }
                Ok(None) => {}
                Err(error) if error.is_damage() => drop(damaged.get_or_insert(error)),
                Err(error) => return Err(error),
            }
        }
        damaged.or_else(|| self.lost.first().map(LostTable::error)).map_or(Ok(None), Err)
    }

    fn find_sealed(&self, name: &Fingerprint) -> Option<Found<&Held>> {
        self.sealed.iter().find_map(|memtable| memtable.find(name))
    }

    /// Returns the tables that may have a key, from memory alone, with their levels, young to old.
    fn candidates<'a, 'n>(&'a self, name: &'n Fingerprint) -> impl Iterator<Item = (usize, &'a Arc<Table>)> + use<'a, 'n> {
        let of_level = move |(level, tables): (usize, &'a Vec<Arc<Table>>)| {
            let (from, most) = match level {
                0 => (0, tables.len()),
                _ => (tables.partition_point(|table| table.last < *name), 1),
            };
            tables[from..].iter().take(most).map(move |table| (level, table))
        };
        self.levels.iter().enumerate().flat_map(of_level).filter(|(_, table)| table.may_have(name))
    }

    /// Returns the table that a search for this key asks first. `None`: a sealed memtable has it, or nothing.
    pub(crate) fn first(&self, name: &Fingerprint) -> Option<&Arc<Table>> {
        if self.find_sealed(name).is_some() { None } else { self.candidates(name).next().map(|(_, table)| table) }
    }

    /// Returns the tables that a search for this key asks until it has found it, and the page of each. For a key of a
    /// sealed memtable it asks none.
    pub(crate) fn pages<'a>(&'a self, name: &'a Fingerprint) -> impl Iterator<Item = (&'a Arc<Table>, usize)> {
        let is_sealed = self.find_sealed(name).is_some();
        self.candidates(name).filter(move |_| !is_sealed).map(|(_, table)| (table, table.page_of(name)))
    }

    /// Returns whether there may be a chunk of this name, or a tombstone, from memory alone.
    pub(crate) fn may_have(&self, name: &Fingerprint) -> bool {
        self.find_sealed(name).is_some() || !self.lost.is_empty() || self.candidates(name).next().is_some()
    }

    /// Puts a table in the place of the one with the same number.
    pub(crate) fn put_in_place(&mut self, table: Arc<Table>) {
        for (level, tables) in self.levels.iter_mut().enumerate() {
            let Some(old) = tables.iter_mut().find(|old| old.id == table.id) else { continue };
            *old = table;
            if level > 0 {
                // One without keys has no place among the others.
                tables.sort_unstable_by_key(|table| table.first);
            }
            return;
        }
    }

    /// Adds the youngest table.
    pub(crate) fn add(&mut self, table: Arc<Table>) {
        if self.levels.is_empty() {
            self.levels.push(Vec::new());
        }
        self.levels[0].insert(0, table);
    }
}
