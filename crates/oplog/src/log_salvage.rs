//! Salvages what is left of a damaged log and puts a new log in its place (`docs/decisions/0021-salvage.md`).
//!
//! Salvage takes every batch with a valid checksum at the position that it names, in order, even after a hole. Owner
//! epochs never fall from one taken batch to the next. The payload of a lost batch could fake a batch only if its
//! writer knew the store's random name.

use crate::batch::ALIGNMENT_BYTES;
use crate::log::{LogOptions, POSITIONS_END};
use crate::segment::{Cursor, SEGMENT_HEADER_BYTES, parse_name, segment_path};
use crate::segment_log::SegmentLog;
use crate::{Batch, LogError, Position, Record, Result};
use onefold_ground::Ground;
use std::sync::Arc;

/// The result of a scan of all segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remnants {
    /// Number of valid batches.
    pub batches: u64,
    /// Where the first of them starts.
    pub start: Position,
    /// Where the last of them ends.
    pub end: Position,
    /// Lost parts of the log: between valid batches, or before the first one of a segment.
    pub holes: Vec<(Position, Position)>,
    /// Problems with the segment files themselves.
    pub problems: Vec<String>,
    /// The highest owner epoch in segment headers and batches.
    pub epoch: u64,
    /// No batch that was ever in these segments ends after this position.
    pub reach: Position,
}

/// Returns where the log in `directory` starts, from the names of its segments. `None`: it has no segments, so nobody
/// can tell.
pub fn first_segment(ground: &dyn Ground, directory: &str) -> Result<Option<Position>> {
    Ok(segment_starts(ground, directory)?.first().copied())
}

/// Passes every valid batch of the log in `directory` to `visit`, in order. A segment without a valid header is read by
/// its name.
pub fn salvage_batches(
    ground: &dyn Ground,
    directory: &str,
    store: &[u8; 16],
    visit: &mut dyn FnMut(Position, Position, &Batch),
) -> Result<Remnants> {
    let starts = segment_starts(ground, directory)?;
    let mut found = Remnants::default();
    // Where the next batch is expected. Nothing precedes the first segment.
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
                // The bad sector is somewhere in the read-ahead. Without read-ahead it is in the batch itself.
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
            found.problems.push(format!("{path}: the device cannot read {unreadable} places, which may have batches"));
        }
        // A segment ends at the `follows` of the next one. A jump from there is no hole.
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

/// Returns where the segment at `start` ends, from the header of the segment at `next`. If that header is unreadable,
/// there may or may not be a jump. Then everything missing before it counts as a hole.
fn end_before(ground: &dyn Ground, directory: &str, start: Position, next: Position, store: &[u8; 16]) -> Result<Position> {
    match Cursor::open(ground, directory, next, store) {
        Ok(cursor) => Ok(cursor.segment().follows.max(start)),
        Err(LogError::Damaged { .. }) => Ok(next),
        Err(LogError::Ground(error)) if error.is_lasting() => Ok(next),
        Err(error) => Err(error),
    }
}

/// Guesses the records of lost batches between two places of one segment, as far as they can be decoded. They have no
/// valid checksum. Use them only to tell a person what may have been lost.
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
        // The segment belongs to another store.
        Err(LogError::Damaged { .. }) => Ok(guessed),
        guess => guess.map(|()| guessed),
    }
}

/// Moves all segments of a log into the directory `into`, which it creates, and starts an empty log at `start`. `start`
/// must lie after every position that any part of the store has seen, and be a multiple of [`ALIGNMENT_BYTES`]. Durable
/// on return. If it is cut short, it may be repeated with the same `into` and `start`, until somebody has written to
/// the new log.
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
    SegmentLog::create_at(ground, directory, store, options, epoch, start)
}

fn segment_starts(ground: &dyn Ground, directory: &str) -> Result<Vec<Position>> {
    let entries = match ground.list(directory) {
        Err(error) if error.is_not_found() => Vec::new(),
        entries => entries?,
    };
    // No log reaches a position near the end of the number range.
    let starts = entries.iter().filter_map(|entry| parse_name(&entry.name, "log"));
    Ok(starts.filter(|start| start.0.is_multiple_of(ALIGNMENT_BYTES) && start.0 < POSITIONS_END).collect())
}

impl Cursor {
    /// Returns how many bytes of batches fit into the file.
    fn room_bytes(&self) -> u64 {
        self.file_bytes().saturating_sub(SEGMENT_HEADER_BYTES)
    }

    /// Returns whether a batch can start at the cursor.
    fn has_room(&self) -> bool {
        self.offset() + ALIGNMENT_BYTES <= self.file_bytes().next_multiple_of(ALIGNMENT_BYTES)
    }
}
