//! Shrinking a table: it is written again, under its own number, without chunks that were removed since.
//!
//! A merge needs space for all that it merges. This needs space for one table, and frees more than it takes. It is for
//! a full disk.

use super::writing::{Kept, NewTables, sort};
use super::{Keys, Output};
use crate::Result;
use crate::levels::table::{Table, TableWriter};
use crate::levels::version::Version;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A table is worth shrinking if one of this many of its bytes is shadowed.
pub(crate) const WORTH: u64 = 20;

/// What a table has that counts, and what not.
pub(crate) struct Shadowed<'a> {
    table: &'a Arc<Table>,
    kept: Vec<Kept>,
    /// Entries that do not count.
    pub(crate) entries: u64,
    /// Their bytes, before compression.
    bytes: u64,
}

/// Finds the entries of a table that no search reaches any more, as a younger table has a tombstone of the name, and
/// tombstones under which there is nothing. `None`: `go_on` ended it.
///
/// Such an entry never counts again as long as its table exists. A compaction that took the tombstone out would have to
/// take this one too. A younger copy of a chunk shadows nothing here: nobody has looked whether it can be read. Nor
/// does a table that is `unusable`: it is damaged, or the log does not name it.
pub(crate) fn shadowed<'a>(
    output: &Output<'_>,
    version: &Version,
    level: usize,
    table: &'a Arc<Table>,
    unusable: &BTreeSet<u64>,
    go_on: &dyn Fn() -> bool,
) -> Result<Option<Shadowed<'a>>> {
    let usable = |other: &&Arc<Table>| !unusable.contains(&other.id);
    let young = version.levels.first().map_or(&[][..], |young| young);
    let younger = young.iter().take_while(|other| level > 0 || other.id != table.id).filter(usable);
    let mut groups: Vec<(u64, Vec<Arc<Table>>)> = younger.map(|other| (version.unordered, vec![other.clone()])).collect();
    for tables in version.levels.iter().take(level).skip(1) {
        let tables = tables.iter().filter(|other| other.overlaps(&table.first, &table.last)).filter(usable);
        groups.push((0, tables.cloned().collect()));
    }
    let keys = |(unordered, tables)| Keys::new(output, tables, 0, unordered).starting_at(&table.first);
    let mut others: Vec<Keys<'_>> = groups.iter().map(|(unordered, tables)| keys((*unordered, tables))).collect();
    let mut heads = others.iter_mut().map(Keys::next).collect::<Result<Vec<_>>>()?;
    let older = young.iter().skip_while(|other| other.id != table.id).skip(1).filter(|_| level == 0);
    let below: Vec<&Arc<Table>> = older.chain(version.levels.iter().skip(level + 1).flatten()).collect();
    let own = std::slice::from_ref(table);
    let mut keys = Keys::new(output, own, 0, if level == 0 { version.unordered } else { 0 });
    let (mut kept, mut bytes) = (Vec::new(), 0);
    while let Some((_, (name, place))) = keys.next()? {
        if !go_on() {
            return Ok(None);
        }
        let mut is_shadowed = place.is_none() && !below.iter().any(|table| table.may_have(&name));
        for (other, head) in others.iter_mut().zip(&mut heads) {
            while head.as_ref().is_some_and(|(_, (key, _))| *key < name) {
                *head = other.next()?;
            }
            is_shadowed |= head.as_ref().is_some_and(|(_, (key, place))| *key == name && place.is_none());
        }
        if is_shadowed {
            bytes += place.map_or(0, |place| u64::from(place.length_bytes));
        } else {
            kept.push(Kept { source: 0, part: 0, entry: (name, place) });
        }
    }
    Ok(Some(Shadowed { entries: table.entries - kept.len() as u64, table, kept, bytes }))
}

impl Shadowed<'_> {
    /// Returns whether writing the table again frees enough.
    pub(crate) fn is_worth(&self, key_bytes: u64) -> bool {
        let shadowed = self.bytes + self.entries * key_bytes;
        self.entries > 0 && shadowed * WORTH >= self.table.raw_bytes + self.table.entries * key_bytes
    }

    /// Writes the table without them to `path`. It is synced. `None`: `go_on` ended it.
    pub(crate) fn write(mut self, output: &Output<'_>, path: &str, go_on: &dyn Fn() -> bool) -> Result<Option<Table>> {
        sort(&mut self.kept);
        let writer = TableWriter::new(output.ground, path, self.table.id, self.kept.len() as u64, output.options)?.in_place_of(self.table);
        // As its chunks compress together, and a little more. If that is not enough, writing asks for more.
        let left = self.table.raw_bytes - self.bytes;
        let estimate = u128::from(self.table.frame_bytes()) * u128::from(left + left / 8) / u128::from(self.table.raw_bytes.max(1));
        let mut new = NewTables::new(output);
        new.begin(writer, |writer| writer.allocate_from_reserve(estimate as u64))?;
        let Some(table) = new.fill(&[self.table], &self.kept, go_on)?.and_then(|mut tables| tables.pop()) else { return Ok(None) };
        match table.sync() {
            Ok(()) => Ok(Some(table)),
            Err(error) => {
                output.give_up(path);
                Err(error)
            }
        }
    }
}
