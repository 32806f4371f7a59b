//! Writing what a compaction keeps: several tables at once, in one pass over the frames of the merged ones. A frame of
//! a younger table has chunks for most of them.

use super::cutting::Source;
use super::{Output, again};
use crate::levels::options::LevelsOptions;
use crate::levels::table::{Entry, FRAME_HEADER_BYTES, Place, Table, TableWriter};
use crate::levels::work::Counters;
use crate::{Result, StorageError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of frames that are read together.
const READ_BYTES: u64 = 1 << 20;
/// Tables that are written at once, if their frames are small.
const MOST_TABLES: usize = 16;
/// The memory for the open frames of all tables that are written at once.
const BUFFER_BYTES: usize = 64 << 20;

/// Returns how many tables are written at once.
pub(super) fn tables_at_once(options: &LevelsOptions) -> usize {
    // One of random and one of sequential data, before and after compression.
    let of_table = 2 * (options.frame_bytes as usize + options.sequential_frame_bytes as usize);
    (BUFFER_BYTES / of_table).clamp(1, MOST_TABLES)
}

/// A key that a compaction keeps.
pub(super) struct Kept {
    /// The number of its table among those that are merged.
    pub(super) source: u32,
    /// The number of its new table among those that are written at once.
    pub(super) part: u32,
    pub(super) entry: Entry,
}

impl Kept {
    fn place(&self) -> Option<&Place> {
        self.entry.1.as_ref()
    }

    fn length_bytes(&self) -> u64 {
        self.place().map_or(0, |place| u64::from(place.length_bytes))
    }

    /// Returns where its frame is: the table, and the place. `None`: it is a tombstone.
    fn frame(&self) -> Option<(u32, u64)> {
        self.place().map(|place| (self.source, place.frame))
    }
}

/// Puts keys into the order in which they are written: the oldest table first, each in the order of its frames.
pub(super) fn sort(kept: &mut [Kept]) {
    kept.sort_unstable_by_key(|key| (Reverse(key.source), key.place().map(|place| (place.frame, place.offset_bytes))));
}

/// Writes tables of these keys of `tables`, which are merged. What cannot be read is left out, if that is what a repair
/// wants. Returns false if `go_on` ended it.
pub(super) fn write(
    output: &Output<'_>,
    tables: &[&Table],
    mut keys: Vec<Vec<Source>>,
    go_on: &dyn Fn() -> bool,
    made: &mut Vec<Table>,
) -> Result<bool> {
    while !keys.is_empty() {
        let later = keys.split_off(keys.len().min(tables_at_once(output.options)));
        let of_part = |(part, keys): (u32, Vec<Source>)| keys.into_iter().map(move |(source, entry)| Kept { source, part, entry });
        let Some(written) = write_at_once(output, tables, (0..).zip(keys).flat_map(of_part).collect(), go_on)? else { return Ok(false) };
        made.extend(written);
        keys = later;
    }
    Ok(true)
}

fn write_at_once(output: &Output<'_>, tables: &[&Table], mut kept: Vec<Kept>, go_on: &dyn Fn() -> bool) -> Result<Option<Vec<Table>>> {
    sort(&mut kept);
    if output.drops_damage() {
        // The number of keys has to be known before.
        kept = readable(output, tables, kept)?;
    }
    let parts = kept.iter().map(|key| key.part as usize + 1).max().unwrap_or(0);
    let mut keys = vec![0; parts];
    kept.iter().for_each(|key| keys[key.part as usize] += 1);
    let mut new = NewTables::new(output);
    for (keys, space) in keys.into_iter().zip(space_of(&kept, parts)) {
        let id = (output.new_id)();
        let path = (output.path_of)(id);
        let writer = TableWriter::new(output.ground, &path, id, keys, output.options)?.of_merge();
        // New data finds the disk full before reclamation does: what is kept for that is not for merges.
        new.begin(writer, |writer| writer.allocate(space))?;
    }
    new.fill(tables, &kept, go_on)
}

/// Returns about how much space the frames of each new table need. The keys are in the order of their frames. If it is
/// too little, the writer asks for more.
fn space_of(kept: &[Kept], parts: usize) -> Vec<u64> {
    let (mut space, mut of_frame) = (vec![0; parts], vec![0; parts]);
    for chunks in kept.chunk_by(|one, other| one.frame() == other.frame()) {
        let Some(frame_bytes) = chunks[0].place().map(|place| u64::from(place.frame_bytes)) else { continue };
        let length_bytes: u64 = chunks.iter().map(Kept::length_bytes).sum();
        chunks.iter().for_each(|chunk| of_frame[chunk.part as usize] += chunk.length_bytes());
        for chunk in chunks {
            let part = chunk.part as usize;
            space[part] += match std::mem::take(&mut of_frame[part]) {
                0 => 0,
                bytes if bytes == length_bytes => frame_bytes,
                // As it compresses with the others, and a little more.
                bytes => frame_bytes * bytes / length_bytes * 9 / 8 + FRAME_HEADER_BYTES as u64,
            };
        }
    }
    space
}

/// Tables that are written at once. If this is dropped, their files go.
pub(super) struct NewTables<'a, 'o> {
    output: &'a Output<'o>,
    writers: Vec<TableWriter<'o>>,
    paths: Vec<String>,
}

impl<'a, 'o> NewTables<'a, 'o> {
    pub(super) fn new(output: &'a Output<'o>) -> NewTables<'a, 'o> {
        NewTables { output, writers: Vec::new(), paths: Vec::new() }
    }

    /// Adds a table, which gets its space.
    pub(super) fn begin(&mut self, writer: TableWriter<'o>, get_space: impl FnOnce(&mut TableWriter<'o>) -> Result<()>) -> Result<()> {
        self.paths.push(writer.path().to_owned());
        self.writers.push(writer);
        self.writers.last_mut().map_or(Ok(()), get_space)
    }

    /// Writes these keys of `tables`, which are in the order of their frames, each into the table of its part. `None`:
    /// `go_on` ended it.
    pub(super) fn fill(mut self, tables: &[&Table], kept: &[Kept], go_on: &dyn Fn() -> bool) -> Result<Option<Vec<Table>>> {
        let mut reader = FrameReader::new(self.output.counters);
        let mut left = kept;
        while let Some(first) = left.first() {
            if !go_on() {
                return Ok(None);
            }
            let Some(place) = first.place() else {
                self.writers[first.part as usize].push_tombstone(first.entry.0);
                left = &left[1..];
                continue;
            };
            let (chunks, rest) = left.split_at(left.iter().take_while(|key| key.frame() == first.frame()).count());
            let table = tables[first.source as usize];
            let copied = reader.frame(table, first.source, place, left).and_then(|bytes| self.copy(table, bytes, place.frame, chunks));
            if copied.as_ref().is_err_and(StorageError::is_damage) {
                (self.output.damaged)(table.id);
            }
            copied?;
            left = rest;
        }
        let mut written = Vec::with_capacity(self.writers.len());
        for writer in self.writers.drain(..) {
            if !go_on() {
                return Ok(None);
            }
            written.push(writer.finish(self.output.room)?);
        }
        Counters::add(&self.output.counters.merge_written_bytes, written.iter().map(|table| table.length_bytes).sum());
        self.paths.clear();
        Ok(Some(written))
    }

    /// Appends chunks of a frame. What is whole, and not much too small, is not compressed again.
    fn copy(&mut self, table: &Table, bytes: &[u8], at: u64, chunks: &[Kept]) -> Result<()> {
        let part = chunks[0].part;
        if chunks.iter().all(|chunk| chunk.part == part) {
            let length_bytes = chunks.iter().map(Kept::length_bytes).sum();
            let entries = chunks.iter().map(|chunk| &chunk.entry);
            if self.writers[part as usize].push_frame(table.stored_frame(bytes, at)?, length_bytes, entries)? {
                return Ok(());
            }
        }
        let frame = table.decode_frame(bytes, at)?;
        for chunk in chunks {
            if let (name, Some(place)) = &chunk.entry {
                self.writers[chunk.part as usize].push(*name, place.kind, place.is_sequential, &table.slice(&frame, place)?)?;
            }
        }
        Ok(())
    }
}

impl Drop for NewTables<'_, '_> {
    fn drop(&mut self) {
        self.paths.iter().for_each(|path| self.output.give_up(path));
    }
}

/// Returns the keys whose chunks can be read, of keys in the order of their frames. Parts of which nothing is left are
/// none.
fn readable(output: &Output<'_>, tables: &[&Table], kept: Vec<Kept>) -> Result<Vec<Kept>> {
    let (mut at, mut frame, mut readable) = (None, None, Vec::with_capacity(kept.len()));
    for key in kept {
        if let Some(place) = key.place() {
            let table = tables[key.source as usize];
            if at != key.frame() {
                frame = output.unless_damaged(table, again(|| table.frame(place)))?;
                at = key.frame();
            }
            if frame.as_ref().is_none_or(|frame| table.slice(frame, place).is_err()) {
                continue;
            }
        }
        readable.push(key);
    }
    let parts: BTreeSet<u32> = readable.iter().map(|key| key.part).collect();
    let numbers: BTreeMap<u32, u32> = parts.into_iter().zip(0..).collect();
    readable.iter_mut().for_each(|key| key.part = numbers[&key.part]);
    Ok(readable)
}

/// Reads chunks in the order of their frames, several frames at once.
struct FrameReader<'a> {
    counters: &'a Counters,
    table: u32,
    at: u64,
    bytes: Vec<u8>,
}

impl<'a> FrameReader<'a> {
    fn new(counters: &'a Counters) -> FrameReader<'a> {
        FrameReader { counters, table: 0, at: 0, bytes: Vec::new() }
    }

    /// Returns the bytes of the frame of a chunk, with its header. `coming` are the chunks from this one on.
    fn frame(&mut self, table: &Table, number: u32, place: &Place, coming: &[Kept]) -> Result<&[u8]> {
        if self.table != number {
            *self = FrameReader { table: number, ..FrameReader::new(self.counters) };
        }
        let end = place.frame + u64::from(place.frame_bytes);
        if place.frame < self.at || end > self.at + self.bytes.len() as u64 {
            // As far as frames lie one behind the other, or nearly so.
            let mut until = end;
            for next in coming {
                let Some(next) = next.place().filter(|_| next.source == number) else { break };
                let next_end = next.frame + u64::from(next.frame_bytes);
                if next_end > place.frame + READ_BYTES || next.frame > until + READ_BYTES / 8 {
                    break;
                }
                until = until.max(next_end);
            }
            self.at = place.frame;
            self.bytes.resize((until - place.frame) as usize, 0);
            Counters::add(&self.counters.merge_read_bytes, self.bytes.len() as u64);
            match table.frames(self.at, &mut self.bytes) {
                // What is damaged may be another frame, or one that nobody wants.
                Err(error) if error.is_damage() && until > end => {
                    self.bytes.truncate(place.frame_bytes as usize);
                    table.frames(self.at, &mut self.bytes)?;
                }
                read => read?,
            }
        }
        let start = (place.frame - self.at) as usize;
        Ok(&self.bytes[start..start + place.frame_bytes as usize])
    }
}
