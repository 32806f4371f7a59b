//! Compaction (M2.8): tables of a level are merged with those of the next one that share keys with them.
//!
//! | younger | older | is the younger one a tombstone? | younger | older |
//! |---|---|---|---|---|
//! | alone | - | no | copied | - |
//! | alone | - | yes | dropped, if no level below may have the key | - |
//! | - | alone | - | - | copied |
//! | equal keys | | no | copied | dropped |
//! | equal keys | | yes | dropped, if no level below may have the key | dropped |
//!
//! That is the paper's Table 1, except that a tombstone stays as long as a level below may have its key. The paper
//! drops it with the first older one, and a second one would come back.
//!
//! Only keys are merged. Chunks are copied in the order in which each of the merged tables has them, the oldest table
//! first, so that what arrived together stays together as far as the ranges of keys allow.

use crate::levels::filter::Room;
use crate::levels::options::LevelsOptions;
use crate::levels::table::{Entry, Place, Table, TableWriter};
use crate::levels::version::Version;
use crate::{Result, Slice};
use onefold_fingerprint::Fingerprint;
use onefold_ground::Ground;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A level with so many tombstones is compacted: one for this many keys in it and below.
const KEYS_OF_TOMBSTONE: u64 = 20;
/// Bytes of frames that are read together.
const READ_BYTES: u64 = 1 << 20;

/// Tables to merge.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) level: usize,
    /// Young to old.
    upper: Vec<Arc<Table>>,
    /// Of the next level, in the order of their keys.
    lower: Vec<Arc<Table>>,
}

impl Task {
    /// Chooses what is due. `cursors` has for each level the last key that was compacted: the next table follows.
    pub(crate) fn choose(
        version: &Version,
        unlogged: &BTreeSet<u64>,
        options: &LevelsOptions,
        cursors: &mut Vec<Fingerprint>,
    ) -> Option<Task> {
        let levels = &version.levels;
        let young: Vec<Arc<Table>> = levels.first()?.iter().filter(|table| !unlogged.contains(&table.id)).cloned().collect();
        if !young.is_empty() && (young.len() >= options.tables as usize || has_many_tombstones(&young, &levels[1..])) {
            return Some(Task::of(version, 0, young));
        }
        for level in 1..levels.len() {
            let tables = &levels[level];
            let bytes: u64 = tables.iter().map(|table| table.raw_bytes).sum();
            let chosen = if bytes > options.level_bytes(level) {
                cursors.resize(cursors.len().max(level + 1), Fingerprint::from_digest(&[0; 32]));
                let after = tables.iter().find(|table| table.first > cursors[level]);
                after.or_else(|| tables.first())
            } else if has_many_tombstones(tables, &levels[level + 1..]) {
                tables.iter().max_by_key(|table| table.tombstones)
            } else {
                None
            };
            if let Some(table) = chosen {
                if let Some(cursor) = cursors.get_mut(level) {
                    *cursor = table.last;
                }
                return Some(Task::of(version, level, vec![table.clone()]));
            }
        }
        None
    }

    fn of(version: &Version, level: usize, upper: Vec<Arc<Table>>) -> Task {
        let below = version.levels.get(level + 1).map_or(&[][..], |tables| tables);
        // One range for all: what is written covers the gaps between them.
        let range = upper.iter().map(|table| table.first).min().zip(upper.iter().map(|table| table.last).max());
        let lower = below.iter().filter(|table| range.is_some_and(|(first, last)| table.overlaps(&first, &last)));
        Task { level, lower: lower.cloned().collect(), upper }
    }

    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Table> {
        self.upper.iter().chain(&self.lower).map(|table| &**table)
    }

    /// Returns the table that can go down as it is, if that is all there is to do.
    pub(crate) fn moved(&self) -> Option<Arc<Table>> {
        match &self.upper[..] {
            [table] if self.lower.is_empty() && self.level > 0 && table.tombstones == 0 => Some(table.clone()),
            _ => None,
        }
    }

    /// Puts the new tables in the place of the merged ones.
    pub(crate) fn replace(&self, version: &mut Version, tables: &[Arc<Table>]) {
        let gone: BTreeSet<u64> = self.inputs().map(|table| table.id).collect();
        while version.levels.len() < self.level + 2 {
            version.levels.push(Vec::new());
        }
        for level in [self.level, self.level + 1] {
            version.levels[level].retain(|table| !gone.contains(&table.id));
        }
        let below = &mut version.levels[self.level + 1];
        below.extend(tables.iter().cloned());
        below.sort_unstable_by_key(|table| table.first);
    }
}

fn has_many_tombstones(tables: &[Arc<Table>], below: &[Vec<Arc<Table>>]) -> bool {
    let tombstones: u64 = tables.iter().map(|table| table.tombstones).sum();
    let keys: u64 = tables.iter().chain(below.iter().flatten()).map(|table| table.entries).sum();
    tombstones > 0 && tombstones * KEYS_OF_TOMBSTONE >= keys
}

/// The keys of tables that share none, in order.
struct Keys<'a> {
    tables: &'a [Arc<Table>],
    /// The number of the first table among all.
    number: usize,
    at: usize,
    page: usize,
    entries: std::vec::IntoIter<Entry>,
}

impl Keys<'_> {
    /// Returns the next key, and the number of its table.
    fn next(&mut self) -> Result<Option<(usize, Entry)>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Ok(Some((self.number + self.at, entry)));
            }
            let Some(table) = self.tables.get(self.at) else { return Ok(None) };
            if self.page < table.pages() {
                self.entries = table.page(self.page)?.into_iter();
                self.page += 1;
            } else {
                (self.at, self.page) = (self.at + 1, 0);
            }
        }
    }
}

/// Where a merge puts its tables.
pub(crate) struct Output<'a> {
    pub(crate) ground: &'a dyn Ground,
    pub(crate) options: &'a LevelsOptions,
    pub(crate) room: &'a Room,
    /// Returns a new number.
    pub(crate) new_id: &'a dyn Fn() -> u64,
    /// Returns where the table of a number goes.
    pub(crate) path_of: &'a dyn Fn(u64) -> String,
}

impl Output<'_> {
    fn give_up(&self, path: &str) {
        if let Err(error) = self.ground.remove(path) {
            tracing::debug!(%error, "a table of a compaction that was given up stays until the next opening");
        }
    }
}

/// Merges tables. `None`: `go_on` ended it. Nothing of it stays then, nor after an error.
pub(crate) fn merge(output: &Output<'_>, task: &Task, version: &Version, go_on: &dyn Fn() -> bool) -> Result<Option<Vec<Table>>> {
    let mut made: Vec<Table> = Vec::new();
    let merged = merge_into(output, task, version, go_on, &mut made);
    if !matches!(merged, Ok(true)) {
        made.iter().for_each(|table| output.give_up(&table.path));
    }
    Ok(merged?.then_some(made))
}

fn merge_into(output: &Output<'_>, task: &Task, version: &Version, go_on: &dyn Fn() -> bool, made: &mut Vec<Table>) -> Result<bool> {
    // Young to old, as `inputs` has them.
    let tables: Vec<&Table> = task.inputs().collect();
    let keys = |tables, number| Keys { tables, number, at: 0, page: 0, entries: Vec::new().into_iter() };
    let mut sources: Vec<Keys<'_>> = (0..task.upper.len()).map(|number| keys(&task.upper[number..=number], number)).collect();
    sources.push(keys(&task.lower[..], task.upper.len()));
    let mut heads = sources.iter_mut().map(Keys::next).collect::<Result<Vec<_>>>()?;
    let below: Vec<&Arc<Table>> = version.levels.iter().skip(task.level + 2).flatten().collect();
    let table_bytes = output.options.table_bytes(task.level + 1);
    let (mut kept, mut kept_bytes): (Vec<(usize, Entry)>, u64) = (Vec::new(), 0);
    loop {
        // Of equal keys the first, as sources are young to old.
        let youngest = heads.iter().flatten().map(|(_, (name, _))| *name).min();
        let Some(name) = youngest else { break };
        let mut winner = None;
        for (source, head) in sources.iter_mut().zip(&mut heads) {
            if head.as_ref().is_some_and(|(_, (key, _))| *key == name) {
                let taken = std::mem::replace(head, source.next()?);
                winner = winner.or(taken);
            }
        }
        let Some((number, (name, place))) = winner else { break };
        if place.is_none() && !below.iter().any(|table| table.may_have(&name)) {
            continue;
        }
        kept_bytes += place.map_or(0, |place| u64::from(place.length_bytes));
        kept.push((number, (name, place)));
        if kept_bytes >= table_bytes {
            if !go_on() {
                return Ok(false);
            }
            made.push(write_part(output, &tables, std::mem::take(&mut kept))?);
            kept_bytes = 0;
        }
    }
    if !kept.is_empty() {
        made.push(write_part(output, &tables, kept)?);
    }
    Ok(true)
}

/// Writes a table of these keys of `tables`.
fn write_part(output: &Output<'_>, tables: &[&Table], mut kept: Vec<(usize, Entry)>) -> Result<Table> {
    let id = (output.new_id)();
    let path = (output.path_of)(id);
    let mut writer = TableWriter::new(output.ground, &path, id, kept.len() as u64, output.options)?;
    let mut fill = || -> Result<()> {
        let order =
            |(number, (_, place)): &(usize, Entry)| (std::cmp::Reverse(*number), place.map(|place| (place.frame, place.offset_bytes)));
        kept.sort_unstable_by_key(order);
        let mut reader = FrameReader::default();
        for (at, (number, (name, place))) in kept.iter().enumerate() {
            match place {
                None => writer.push_tombstone(*name),
                Some(place) => {
                    let bytes = reader.read(tables[*number], *number, place, &kept[at..])?;
                    writer.push(*name, place.kind, place.is_sequential, &bytes)?;
                }
            }
        }
        Ok(())
    };
    fill().and_then(|()| writer.finish(output.room)).inspect_err(|_| output.give_up(&path))
}

/// Reads chunks in the order of their frames, several frames at once.
#[derive(Default)]
struct FrameReader {
    table: usize,
    at: u64,
    bytes: Vec<u8>,
    frame: Option<(u64, Arc<Vec<u8>>)>,
}

impl FrameReader {
    fn read(&mut self, table: &Table, number: usize, place: &Place, coming: &[(usize, Entry)]) -> Result<Slice> {
        if self.table != number {
            *self = FrameReader { table: number, ..FrameReader::default() };
        }
        if let Some((at, frame)) = &self.frame
            && *at == place.frame
        {
            return table.slice(frame, place);
        }
        let end = place.frame + u64::from(place.frame_bytes);
        if place.frame < self.at || end > self.at + self.bytes.len() as u64 {
            // As far as frames lie one behind the other, or nearly so.
            let mut until = end;
            for (other, (_, next)) in coming {
                let Some(next) = next.filter(|_| *other == number) else { break };
                let next_end = next.frame + u64::from(next.frame_bytes);
                if next_end > place.frame + READ_BYTES || next.frame > until + READ_BYTES / 8 {
                    break;
                }
                until = until.max(next_end);
            }
            (self.at, self.frame) = (place.frame, None);
            self.bytes.resize((until - place.frame) as usize, 0);
            table.frames(self.at, &mut self.bytes)?;
        }
        let start = (place.frame - self.at) as usize;
        let frame = table.decode_frame(&self.bytes[start..start + place.frame_bytes as usize])?;
        let slice = table.slice(&frame, place)?;
        self.frame = Some((place.frame, frame));
        Ok(slice)
    }
}
