//! Where a compaction cuts: which keys make a table together.
//!
//! A table has its chunks in the order of their arrival. If a new table had the end of one old table and the beginning
//! of the next, it would have first the chunks of the one and then those of the other: a stream in two pieces. The next
//! compaction would make four of it. So a new table begins where a table of the lower level begins, unless one of the
//! two is small. If that makes it too large, its range is divided: all parts keep their order.

use super::writing::tables_at_once;
use crate::levels::options::LevelsOptions;
use crate::levels::table::{Entry, Table};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

/// Keys that a table has at most.
const MAX_KEYS: u64 = 1 << 19;
/// A range with so many keys ends, wherever it is. A compaction keeps some 200 bytes of each key in memory, of as many
/// at most.
const MOST_KEYS: usize = 1 << 20;
/// With so many keys, tables are written.
const MANY_KEYS: usize = 1 << 19;
/// So many tables of the level after the next overlap with a new table at most.
const OVERLAP_TABLES: u64 = 10;
/// A range of less than one of so many parts of a full table is joined with the next.
const SMALL: u64 = 4;

/// A key that a compaction keeps, with the number of its table among those that are merged.
pub(super) type Source = (u32, Entry);

/// Keys, divided into tables.
pub(super) struct Cutter<'a> {
    options: &'a LevelsOptions,
    /// Tables of the lower level that begin behind the last key.
    lower: &'a [Arc<Table>],
    /// Tables of the level after it that end behind the last key.
    beyond: &'a [Arc<Table>],
    /// Keys that have no table yet, in their order.
    range: Vec<Source>,
    bytes: u64,
    /// The bytes of the tables of the level after the lower one that lie in this range.
    overlap_bytes: u64,
    /// The keys of each table.
    tables: Vec<Vec<Source>>,
    keys: usize,
    /// How many tables the last range became.
    last: usize,
}

impl<'a> Cutter<'a> {
    pub(super) fn new(options: &'a LevelsOptions, lower: &'a [Arc<Table>], beyond: &'a [Arc<Table>]) -> Cutter<'a> {
        Cutter { options, lower, beyond, range: Vec::new(), bytes: 0, overlap_bytes: 0, tables: Vec::new(), keys: 0, last: 0 }
    }

    /// Ends the range before this key, the next one, if a table of the lower level begins there.
    pub(super) fn cut_before(&mut self, name: &Fingerprint) {
        let mut begins = false;
        while let Some((table, rest)) = self.lower.split_first()
            && table.first <= *name
        {
            (self.lower, begins) = (rest, true);
        }
        while let Some((table, rest)) = self.beyond.split_first()
            && table.last < *name
        {
            self.beyond = rest;
            self.overlap_bytes += if self.range.is_empty() { 0 } else { table.raw_bytes };
        }
        let is_large = self.bytes >= self.options.table_bytes / SMALL
            || self.range.len() as u64 >= MAX_KEYS / SMALL
            || self.overlap_bytes >= overlap_limit(self.options) / SMALL;
        if begins && is_large || self.range.len() >= MOST_KEYS {
            self.cut();
        }
    }

    /// Takes a key.
    pub(super) fn push(&mut self, source: usize, entry: Entry) {
        self.bytes += self.bytes_of(&entry);
        self.range.push((source as u32, entry));
    }

    fn bytes_of(&self, (_, place): &Entry) -> u64 {
        self.options.key_bytes() + place.map_or(0, |place| u64::from(place.length_bytes))
    }

    /// Ends the range: it becomes one table, or several of about the same size.
    pub(super) fn cut(&mut self) {
        // With room to grow.
        let tables = |size: u64, most: u64| if size <= most { 1 } else { size.saturating_mul(4).div_ceil(most.saturating_mul(3)) };
        let by_bytes = tables(self.bytes, self.options.table_bytes);
        let by_keys = tables(self.range.len() as u64, MAX_KEYS);
        let count = by_bytes.max(by_keys).max(tables(self.overlap_bytes, overlap_limit(self.options)));
        let (mut at, mut last) = (0, None);
        self.keys += self.range.len();
        let before = self.tables.len();
        for (source, entry) in std::mem::take(&mut self.range) {
            let part = u128::from(at) * u128::from(count) / u128::from(self.bytes);
            at += self.bytes_of(&entry);
            if last.replace(part) != Some(part) {
                self.tables.push(Vec::new());
            }
            if let Some(keys) = self.tables.last_mut() {
                keys.push((source, entry));
            }
        }
        (self.bytes, self.overlap_bytes, self.last) = (0, 0, self.tables.len() - before);
    }

    /// Returns whether the tables should be written now.
    pub(super) fn has_many(&self) -> bool {
        let are_many = self.keys >= MANY_KEYS || self.keys + self.range.len() >= MOST_KEYS;
        // One more range would be too much.
        !self.tables.is_empty() && (are_many || self.tables.len() + self.last > tables_at_once(self.options))
    }

    /// Returns the keys of each table so far.
    pub(super) fn take(&mut self) -> Vec<Vec<Source>> {
        self.keys = 0;
        std::mem::take(&mut self.tables)
    }
}

/// Returns the raw bytes of the level after the next with which one table may overlap: it is merged with them later.
pub(super) fn overlap_limit(options: &LevelsOptions) -> u64 {
    OVERLAP_TABLES.saturating_mul(options.table_bytes)
}
