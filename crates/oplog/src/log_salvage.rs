//! What of a damaged log can still be had, and a new log in its place (`docs/decisions/0021-salvage.md`).
//!
//! Every batch with a valid checksum at the place that it names is taken, in order, also behind a hole. Owner epochs never fall from one taken batch to
//! the next. A place inside the payload of a lost batch could hold the image of a batch only if whoever wrote that data knew the store's random name.

use crate::batch::ALIGNMENT_BYTES;
use crate::log::{Log, LogOptions, POSITIONS_END};
use crate::segment::{Cursor, SEGMENT_HEADER_BYTES, parse_name, segment_path};
use crate::{Batch, LogError, Position, Record, Result};
use onefold_ground::Ground;
use std::sync::Arc;

/// What a look at all segments found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remnants {
    /// Valid batches.
    pub batches: u64,
    /// Where the first of them starts.
    pub start: Position,
    /// Where the last of them ends.
    pub end: Position,
    /// Parts of the log between valid batches, or before the first one in its segment, that are lost.
    pub holes: Vec<(Position, Position)>,
    /// What is wrong with segments as files.
    pub problems: Vec<String>,
    /// The greatest owner epoch in headers of segments and in batches.
    pub epoch: u64,
    /// No batch that ever was in these segments reaches behind this place.
    pub reach: Position,
}

/// Where the log in `directory` starts, as the names of its segments say; `None`: there are none, and nobody can tell.
pub fn first_segment(ground: &dyn Ground, directory: &str) -> Result<Option<Position>> {
    Ok(segment_starts(ground, directory)?.first().copied())
}

/// Passes every valid batch of the log in `directory` to `visit`, in order. Segments without a valid header are read as their name says.
pub fn salvage_batches(
    ground: &dyn Ground,
    directory: &str,
    store: &[u8; 16],
    visit: &mut dyn FnMut(Position, Position, &Batch),
) -> Result<Remnants> {
    let starts = segment_starts(ground, directory)?;
    let mut found = Remnants::default();
    // Where the next batch is expected; nothing is before the first segment.
    let mut expected = starts.first().copied().unwrap_or_default();
    found.end = expected;
    for (index, start) in starts.iter().enumerate() {
        let next = starts.get(index + 1).map(|next| end_before(ground, directory, *start, *next, store)).transpose()?;
        let (mut cursor, problem) = match Cursor::open_damaged(ground, directory, *start, store) {
            Ok(opened) => opened,
            Err(LogError::Damaged { path, why, .. }) => {
                found.problems.push(format!("{path}: {why}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        found.problems.extend(problem.map(|why| format!("{}: {why}", ground.describe(&segment_path(directory, *start)))));
        found.epoch = found.epoch.max(cursor.epoch());
        cursor.rewind(*start, found.epoch);
        found.reach = found.reach.max(Position(start.0 + cursor.room_bytes()));
        let mut unreadable = 0;
        let mut is_narrow = false;
        while cursor.has_room() && next.is_none_or(|next| cursor.at() < next) {
            let (at, epoch) = (cursor.at(), cursor.epoch());
            let batch = match cursor.next() {
                Ok(Ok(batch)) if next.is_none_or(|next| cursor.at() <= next) => batch,
                Ok(_) | Err(LogError::Damaged { .. }) => {
                    cursor.rewind(Position(at.0 + ALIGNMENT_BYTES), epoch);
                    continue;
                }
                // Somewhere in what was read ahead; when no more is read than the batch has, it is in it.
                Err(LogError::Ground(error)) if error.is_lasting() => {
                    let behind = if is_narrow { ALIGNMENT_BYTES } else { 0 };
                    unreadable += u64::from(is_narrow);
                    is_narrow = true;
                    cursor.read_narrowly();
                    cursor.rewind(Position(at.0 + behind), epoch);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if at > expected {
                found.holes.push((expected, at));
            }
            if found.batches == 0 {
                found.start = at;
            }
            found.batches += 1;
            found.epoch = found.epoch.max(batch.epoch);
            visit(at, cursor.at(), &batch);
            expected = cursor.at();
            found.end = expected;
        }
        if unreadable > 0 {
            let path = ground.describe(&segment_path(directory, *start));
            found.problems.push(format!("{path}: at {unreadable} places there may be batches that the device cannot read"));
        }
        // A segment ends where the next one says that it follows. What the log jumps over from there is no hole.
        if let (Some(end), Some(next)) = (next, starts.get(index + 1)) {
            if end > expected {
                found.holes.push((expected, end));
            }
            expected = expected.max(*next);
        }
    }
    found.reach = found.reach.max(found.end);
    Ok(found)
}

/// Where the segment at `start` ends, as the header of the one at `next` says. One that cannot be read may be behind a jump or not: then what is missing before it
/// counts as a hole.
fn end_before(ground: &dyn Ground, directory: &str, start: Position, next: Position, store: &[u8; 16]) -> Result<Position> {
    match Cursor::open(ground, directory, next, store) {
        Ok(cursor) => Ok(cursor.segment().follows.max(start)),
        Err(LogError::Damaged { .. }) => Ok(next),
        Err(LogError::Ground(error)) if error.is_lasting() => Ok(next),
        Err(error) => Err(error),
    }
}

/// The records of lost batches between two places of one segment, as far as they can be understood: they do not have their checksum, so they are good for telling a
/// person what may have been lost, and for nothing else.
pub fn guess_records(ground: &dyn Ground, directory: &str, store: &[u8; 16], from: Position, to: Position) -> Result<Vec<Record>> {
    let mut guessed = Vec::new();
    let Some(start) = segment_starts(ground, directory)?.into_iter().rfind(|start| *start <= from) else { return Ok(guessed) };
    let mut guess = || {
        let (mut cursor, _) = Cursor::open_damaged(ground, directory, start, store)?;
        let mut at = from;
        while at < to && cursor.seek(at) {
            match cursor.guess()? {
                Some((records, end)) if end > at => {
                    guessed.extend(records);
                    at = end;
                }
                _ => break,
            }
        }
        Ok(())
    };
    match guess() {
        Err(LogError::Ground(error)) if error.is_lasting() => Ok(guessed),
        // The segment is another store's.
        Err(LogError::Damaged { .. }) => Ok(guessed),
        guess => guess.map(|()| guessed),
    }
}

/// Moves all segments of a log into the directory `into`, which is made, and starts an empty log at `start`, behind every position that any part
/// of the store has seen and at a multiple of [`ALIGNMENT_BYTES`]. Durable on return. Cut short it may be repeated with the same `into` and `start`, until
/// somebody has written to the new log.
pub fn replace_log(
    ground: &Arc<dyn Ground>,
    directory: &str,
    into: &str,
    store: [u8; 16],
    options: LogOptions,
    epoch: u64,
    start: Position,
) -> Result<()> {
    if !start.0.is_multiple_of(ALIGNMENT_BYTES) {
        return Err(LogError::NotABoundary { from: start });
    }
    if segment_starts(&**ground, directory)? == [start] {
        return Ok(ground.sync_directory(directory)?);
    }
    ground.create_directory(into)?;
    for entry in ground.list(directory)?.into_iter().filter(|entry| !entry.is_directory) {
        if parse_name(&entry.name, "log").is_some() || parse_name(&entry.name, "spare").is_some() {
            ground.rename(&format!("{directory}/{}", entry.name), &format!("{into}/{}", entry.name))?;
        }
    }
    ground.sync_directory(into)?;
    ground.sync_directory(directory)?;
    Log::create_at(ground, directory, store, options, epoch, start)
}

fn segment_starts(ground: &dyn Ground, directory: &str) -> Result<Vec<Position>> {
    let entries = match ground.list(directory) {
        Err(error) if error.is_not_found() => Vec::new(),
        entries => entries?,
    };
    // A start near the end of all numbers is no position that a log reaches.
    let starts = entries.iter().filter_map(|entry| parse_name(&entry.name, "log"));
    Ok(starts.filter(|start| start.0.is_multiple_of(ALIGNMENT_BYTES) && start.0 < POSITIONS_END).collect())
}

impl Cursor {
    /// How many bytes of batches the file has room for.
    fn room_bytes(&self) -> u64 {
        self.file_bytes().saturating_sub(SEGMENT_HEADER_BYTES)
    }

    /// Whether a batch can begin where the cursor is.
    fn has_room(&self) -> bool {
        self.offset() + ALIGNMENT_BYTES <= self.file_bytes().next_multiple_of(ALIGNMENT_BYTES)
    }
}
