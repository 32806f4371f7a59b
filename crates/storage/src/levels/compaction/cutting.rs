//! Where a compaction cuts: which keys make a table together.
//!
//! A table has its chunks in the order of their arrival. If a new table had the end of one old table and the beginning
//! of the next, it would have first the chunks of the one and then those of the other: a stream in two pieces. The next
//! compaction would make four of it. So a new table begins where a table of the lower level begins. If that makes it too
//! large, its range is divided: both parts keep their order.

use super::writing::Kept;
use crate::levels::options::LevelsOptions;
use crate::levels::table::{Entry, PLACE_BYTES, Table};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;

/// Keys from which no table grows further: a compaction keeps some 200 bytes of each in memory.
const MAX_KEYS: usize = 1 << 19;
/// Tables that are written at once, and keys in them, if they are several.
pub(super) const MOST_TABLES: u32 = 16;
const MOST_KEYS: usize = 1 << 19;
/// So many tables of the level after the next overlap with a new table at most.
const OVERLAP_TABLES: u64 = 10;
/// A table that is smaller than one of so many parts of a full one is joined with the next.
const SMALL: u64 = 4;

/// Keys in their order, divided into the tables that are written at once.
pub(super) struct Cutter<'a> {
    options: &'a LevelsOptions,
    /// Tables of the lower level that begin behind the last key.
    lower: &'a [Arc<Table>],
    overlap: Overlap<'a>,
    kept: Vec<Kept>,
    /// Those from here on have no table yet.
    begun: usize,
    /// Their bytes.
    bytes: u64,
    tables: u32,
}

impl<'a> Cutter<'a> {
    /// `beyond` are the tables of the level after the new ones.
    pub(super) fn new(options: &'a LevelsOptions, lower: &'a [Arc<Table>], beyond: &'a [Arc<Table>]) -> Cutter<'a> {
        let overlap = Overlap { left: beyond, limit_bytes: overlap_limit(options), bytes: 0 };
        Cutter { options, lower, overlap, kept: Vec::new(), begun: 0, bytes: 0, tables: 0 }
    }

    /// Cuts before this key, the next one, if a table ends there. Returns whether what is kept should be written now.
    pub(super) fn cut_before(&mut self, name: &Fingerprint) -> bool {
        let mut is_boundary = false;
        while let Some((table, rest)) = self.lower.split_first()
            && table.first <= *name
        {
            (self.lower, is_boundary) = (rest, true);
        }
        let keys = self.kept.len() - self.begun;
        let is_large = self.bytes >= self.options.table_bytes / SMALL;
        if self.overlap.ends_before(name, keys == 0) || is_boundary && is_large || keys >= MAX_KEYS {
            self.cut();
        }
        // As many at once as fit into memory: each frame of a younger table has chunks for all of them.
        self.begun == self.kept.len() && (self.tables >= MOST_TABLES || self.begun >= MOST_KEYS)
    }

    /// Takes a key.
    pub(super) fn push(&mut self, source: usize, entry: Entry) {
        self.bytes += self.bytes_of(&entry);
        self.kept.push(Kept { source: source as u32, part: 0, entry });
    }

    fn bytes_of(&self, (_, place): &Entry) -> u64 {
        let key_bytes = self.options.digest_bytes() + PLACE_BYTES;
        key_bytes as u64 + place.map_or(0, |place| u64::from(place.length_bytes))
    }

    /// Makes a table of the keys that have none, or several of about the same size.
    fn cut(&mut self) {
        let most = self.options.table_bytes;
        // With room to grow.
        let count = if self.bytes <= most { 1 } else { (self.bytes * 4).div_ceil(most * 3) };
        let (mut at, mut last) = (0, None);
        for number in self.begun..self.kept.len() {
            let share = u128::from(at) * u128::from(count) / u128::from(self.bytes);
            at += self.bytes_of(&self.kept[number].entry);
            if last.replace(share) != Some(share) {
                self.tables += 1;
            }
            self.kept[number].part = self.tables - 1;
        }
        (self.begun, self.bytes, self.overlap.bytes) = (self.kept.len(), 0, 0);
    }

    /// Returns the keys so far, each with its table.
    pub(super) fn take(&mut self) -> Vec<Kept> {
        self.cut();
        (self.begun, self.tables) = (0, 0);
        std::mem::take(&mut self.kept)
    }
}

/// Returns the raw bytes of the level after the next with which one table may overlap: it is merged with them later.
pub(super) fn overlap_limit(options: &LevelsOptions) -> u64 {
    OVERLAP_TABLES.saturating_mul(options.table_bytes)
}

/// Counts the tables of the level after the next that a new table overlaps.
struct Overlap<'a> {
    left: &'a [Arc<Table>],
    limit_bytes: u64,
    bytes: u64,
}

impl Overlap<'_> {
    /// Returns whether the new table ends before this key, the next one. It may be the first of all.
    fn ends_before(&mut self, name: &Fingerprint, is_empty: bool) -> bool {
        while let Some((table, rest)) = self.left.split_first()
            && table.last < *name
        {
            self.left = rest;
            self.bytes += table.raw_bytes;
        }
        let ends = !is_empty && self.bytes > self.limit_bytes;
        if ends || is_empty {
            self.bytes = 0;
        }
        ends
    }
}
