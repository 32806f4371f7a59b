//! A log in segment files of a directory: open, replay, commit, trim. The head of the crate argues why it is safe.

use crate::batch::{ALIGNMENT_BYTES, BATCH_MAX_BYTES, encode_batch};
use crate::log::{Log, LogOptions, Opening, POSITIONS_END, Visit};
use crate::segment::{Cursor, Remains, SEGMENT_HEADER_BYTES, Segment, encode_header, parse_name, segment_path, spare_path};
use crate::{LogError, Position, Record, Result};
use onefold_ground::{Access, File, Ground, GroundError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Old segments kept for reuse.
const SPARES_MAX: usize = 2;
/// A log is long from this size on: the next opening reads it.
const LONG_BYTES: u64 = 16 << 20;
/// A larger buffer is freed after a batch.
const BUFFER_KEPT_BYTES: usize = 8 << 20;
/// An open log in segment files.
#[derive(Debug)]
pub struct SegmentLog {
    ground: Arc<dyn Ground>,
    directory: String,
    store: [u8; 16],
    options: LogOptions,
    is_writable: bool,
    /// Held while a batch is written and synced. That orders the batches.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All segments, ascending. Never empty.
    segments: VecDeque<Segment>,
    end: Position,
    /// The epoch of this owner; when reading, the highest in the log.
    epoch: u64,
    /// The last segment. None when reading, or before the first segment.
    writer: Option<Writer>,
    /// Files that may become segments. Their names are durable. So no write can hit an old segment that a crash could
    /// bring back.
    spares: Vec<String>,
    is_poisoned: bool,
    buffer: Vec<u8>,
    /// Size at which the log is full.
    full_at_bytes: u64,
}

/// The segment being written.
#[derive(Debug)]
struct Writer {
    file: Arc<dyn File>,
    file_bytes: u64,
    /// Whether bytes other than zeros may lie past the end. Then the next batch opens another segment.
    has_remains: bool,
}

impl SegmentLog {
    /// Creates an empty log at position 0 in `directory`, and creates the directory if needed. `store` is the start of
    /// the store's name.
    pub fn create(ground: &Arc<dyn Ground>, directory: &str, store: [u8; 16], options: LogOptions) -> Result<()> {
        SegmentLog::create_at(ground, directory, store, options, 0, Position(0))
    }

    /// Does the same at another position, for the owner of `epoch`.
    pub(crate) fn create_at(
        ground: &Arc<dyn Ground>,
        directory: &str,
        store: [u8; 16],
        options: LogOptions,
        epoch: u64,
        start: Position,
    ) -> Result<()> {
        ground.create_directory(directory)?;
        if ground.list(directory)?.iter().any(|entry| parse_name(&entry.name, "log").is_some()) {
            return Err(LogError::Exists { path: ground.describe(directory) });
        }
        let log = SegmentLog {
            ground: Arc::clone(ground),
            directory: directory.to_owned(),
            store,
            options,
            is_writable: true,
            state: Mutex::new(State {
                segments: VecDeque::new(),
                end: start,
                epoch,
                writer: None,
                spares: Vec::new(),
                is_poisoned: false,
                buffer: Vec::new(),
                full_at_bytes: options.full_at_bytes(0),
            }),
        };
        log.open_segment(&mut log.state.lock(), start, 0)
    }

    /// Opens the log and finds its start and end. Drops a torn tail. Errors: bytes that were durable are missing. It
    /// reads the last segment to its end and only the headers of the others: [`Log::replay`] finds damage in those.
    pub fn open(ground: Arc<dyn Ground>, directory: &str, store: [u8; 16], options: LogOptions, opening: Opening) -> Result<SegmentLog> {
        if let Opening::ReadWrite { .. } = opening {
            // A process that died may have left names that are not durable yet. Make them durable before anything
            // builds on them.
            ground.sync_directory(directory)?;
        }
        let entries = ground.list(directory)?;
        let named = |extension| entries.iter().filter_map(move |entry| parse_name(&entry.name, extension));
        let (segments, mut cursor) = check_headers(&*ground, directory, named("log"), &store)?;
        let mut last_batch = cursor.at()..cursor.at();
        while let Ok(batch) = cursor.next()? {
            last_batch = batch.position..cursor.at();
        }
        let remains = cursor.remains()?;
        if let Remains::Proof(offset_bytes) = remains {
            return Err(cursor.damaged(format!("a durable batch is missing: the batch at byte {offset_bytes} follows it")));
        }
        let mut state = State {
            segments,
            end: cursor.at(),
            epoch: cursor.epoch(),
            writer: None,
            spares: Vec::new(),
            is_poisoned: false,
            buffer: Vec::new(),
            full_at_bytes: 0,
        };
        state.full_at_bytes = options.full_at_bytes(state.used_bytes());
        if let Opening::ReadWrite { epoch } = opening {
            if epoch < state.epoch {
                return Err(LogError::StaleEpoch { given: epoch, found: state.epoch });
            }
            state.epoch = epoch;
            let start = state.segments.back().expect("check_headers refuses a log without segments").start;
            let file = ground.open(&segment_path(directory, start), Access::ReadWrite)?;
            let (offset, length) = (SEGMENT_HEADER_BYTES + (last_batch.start.0 - start.0), last_batch.end.0 - last_batch.start.0);
            settle(&*ground, &segment_path(directory, start), &*file, offset, length)?;
            // A segment that was cut to its content gets its full size again, if there is space now.
            let wanted_bytes = options.segment_bytes_within_limit(SEGMENT_HEADER_BYTES);
            let file_bytes = match file.len()? {
                short if short < wanted_bytes && remains == Remains::Blank && file.allocate(0, wanted_bytes).is_ok() => file.len()?,
                length => length,
            };
            state.writer = Some(Writer { file_bytes, file, has_remains: remains != Remains::Blank });
            state.spares = named("spare").map(|start| spare_path(directory, start)).collect();
            for spare in state.spares.split_off(state.spares.len().min(SPARES_MAX)) {
                ground.remove(&spare)?;
            }
        }
        let is_writable = matches!(opening, Opening::ReadWrite { .. });
        Ok(SegmentLog { ground, directory: directory.to_owned(), store, options, is_writable, state: Mutex::new(state) })
    }

    /// Returns the number of segments.
    pub fn segments(&self) -> usize {
        self.state.lock().segments.len()
    }

    fn commit_as(&self, beyond_limit: bool, records: &[Record]) -> Result<(Position, Position)> {
        let mut state = self.writable()?;
        let start = state.end;
        if records.is_empty() {
            return Ok((start, start));
        }
        let bound = records.iter().map(Record::length_bound_bytes).sum::<u64>();
        if bound > BATCH_MAX_BYTES {
            return Err(LogError::TooLarge { length_bytes: bound, limit_bytes: BATCH_MAX_BYTES });
        }
        let mut buffer = std::mem::take(&mut state.buffer);
        buffer.clear();
        encode_batch(&mut buffer, records, start, &self.store, state.epoch);
        let limit_bytes = if beyond_limit { u64::MAX } else { state.full_at_bytes };
        let written = self.write_batch(&mut state, &buffer, limit_bytes);
        if buffer.capacity() <= BUFFER_KEPT_BYTES {
            state.buffer = buffer;
        }
        written.map(|()| (start, state.end))
    }

    fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes_within_limit(SEGMENT_HEADER_BYTES)
    }

    fn writable(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        if !self.is_writable {
            return Err(LogError::ReadOnly);
        }
        let state = self.state.lock();
        if state.is_poisoned { Err(LogError::Poisoned) } else { Ok(state) }
    }

    /// Writes and syncs an encoded batch at the end.
    fn write_batch(&self, state: &mut State, batch: &[u8], limit_bytes: u64) -> Result<()> {
        let length_bytes = batch.len() as u64;
        // The last segment cannot be trimmed. If one batch fills a long segment alone, one more batch must open the
        // next.
        let can_be_trimmed = state.used_bytes() > self.options.limit_bytes && state.segments.len() > 1;
        if can_be_trimmed && state.used_bytes() + length_bytes > limit_bytes {
            return Err(LogError::Full { used_bytes: state.used_bytes(), limit_bytes });
        }
        let fits = |writer: &Writer| {
            // A file may be larger than segments are now, from another setting. Do not fill it further than a segment.
            let is_empty = state.end_offset() == SEGMENT_HEADER_BYTES;
            let room = if is_empty { writer.file_bytes } else { writer.file_bytes.min(self.segment_bytes()) };
            !writer.has_remains && state.end_offset() + length_bytes <= room
        };
        if !state.writer.as_ref().is_some_and(fits) {
            self.open_segment(state, state.end, length_bytes)?;
        }
        let offset = state.end_offset();
        let writer = state.writer.as_mut().expect("a segment was opened");
        if let Err(error) = writer.file.write_at(offset, batch) {
            writer.has_remains = true;
            return Err(error.into());
        }
        let synced = writer.file.sync();
        state.poison_unless(synced)?;
        state.end.0 += length_bytes;
        Ok(())
    }

    /// Opens a segment at `start`, the end of the log or later, with space for a batch of `batch_bytes`. A full disk
    /// needs space for this batch only: the batch may be one that frees space. An error that does not poison changed
    /// nothing.
    fn open_segment(&self, state: &mut State, start: Position, batch_bytes: u64) -> Result<()> {
        let least_bytes = SEGMENT_HEADER_BYTES + batch_bytes;
        // The new segment replaces one without a batch at the same place, and keeps its `follows`.
        let replaced = state.segments.back().filter(|last| last.start == start);
        let segment = Segment { start, follows: replaced.map_or(state.end, |last| last.follows) };
        let path = segment_path(&self.directory, start);
        let (spare, file) = self.take_spare(state)?;
        let prepared = allocate_segment(&*file, self.segment_bytes().max(least_bytes), least_bytes).and_then(|file_bytes| {
            file.write_at(0, &encode_header(&self.store, state.epoch, segment))?;
            Ok(file_bytes)
        });
        let file_bytes = match prepared {
            Ok(file_bytes) => file_bytes,
            Err(error) => {
                // Free the space: others may need it on a full disk, and a retry starts from scratch anyway.
                let _ = self.ground.remove(&spare);
                return Err(error.into());
            }
        };
        let synced = file.sync();
        state.poison_unless(synced)?;
        if let Err(error) = self.ground.rename(&spare, &path) {
            state.spares.push(spare);
            return Err(error.into());
        }
        let synced = self.ground.sync_directory(&self.directory);
        state.poison_unless(synced)?;
        state.enter_segment(segment, file, file_bytes);
        Ok(())
    }

    /// Returns a file to become a segment: a spare or a new one.
    fn take_spare(&self, state: &mut State) -> Result<(String, Arc<dyn File>)> {
        if let Some(spare) = state.spares.pop() {
            let file = self.ground.open(&spare, Access::ReadWrite)?;
            return Ok((spare, file));
        }
        let spare = spare_path(&self.directory, state.end);
        match self.ground.remove(&spare) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let file = self.ground.create(&spare)?;
        Ok((spare, file))
    }
}

impl Log for SegmentLog {
    fn start(&self) -> Position {
        self.state.lock().first_position()
    }

    fn end(&self) -> Position {
        self.state.lock().end
    }

    fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    fn is_over_limit(&self) -> bool {
        self.used_bytes() > self.options.limit_bytes
    }

    fn parts(&self) -> usize {
        self.segments()
    }

    fn is_long(&self) -> bool {
        self.used_bytes() > LONG_BYTES
    }

    fn applied_at_most(&self) -> Position {
        self.end()
    }

    fn replay(&self, from: Position, visit: &mut Visit<'_>) -> Result<()> {
        let (segments, end) = {
            let state = self.state.lock();
            (state.segments.clone(), state.end)
        };
        let start = segments[0].follows;
        if from < start {
            return Err(LogError::BeforeStart { from, start });
        }
        if from > end {
            return Err(LogError::PastEnd { from, end });
        }
        let first = segments.partition_point(|segment| segment.follows <= from) - 1;
        if from > segments[first].follows && from < segments[first].start {
            return Err(LogError::NotABoundary { from });
        }
        for (index, Segment { start, .. }) in segments.iter().enumerate().skip(first) {
            let limit = segments.get(index + 1).map_or(end, |next| next.follows);
            if from >= limit {
                continue;
            }
            let mut cursor = Cursor::open(&*self.ground, &self.directory, *start, &self.store)?;
            if from > *start {
                seek_batch(&mut cursor, from)?;
            }
            while cursor.at() < limit {
                let position = cursor.at();
                let batch = cursor.next()?.map_err(|why| cursor.damaged(format!("{why}, but the log continues after it")))?;
                if cursor.at() > limit {
                    return Err(cursor.damaged("the previous batch reaches into the next segment"));
                }
                if visit(position, cursor.at(), &batch.records).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn has_history(&self) -> bool {
        false
    }

    fn replay_history(&self, _visit: &mut Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn commit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(false, records)
    }

    fn commit_beyond_limit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(true, records)
    }

    fn commit_last(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_beyond_limit(records)
    }

    fn was_ended(&self) -> bool {
        false
    }

    fn jump_to(&self, position: Position) -> Result<()> {
        if !position.0.is_multiple_of(ALIGNMENT_BYTES) || position.0 >= POSITIONS_END {
            return Err(LogError::NotABoundary { from: position });
        }
        let mut state = self.writable()?;
        if position <= state.end {
            return Ok(());
        }
        self.open_segment(&mut state, position, 0)
    }

    fn has_parts_before(&self, upto: Position) -> bool {
        self.state.lock().segments.get(1).is_some_and(|second| second.follows <= upto)
    }

    fn trim(&self, upto: Position) -> Result<()> {
        let mut state = self.writable()?;
        let mut recycled = Vec::new();
        let mut is_changed = false;
        while state.segments.len() > 1 && state.segments[1].follows <= upto {
            let start = state.segments[0].start;
            let path = segment_path(&self.directory, start);
            let has_room = state.spares.len() + recycled.len() < SPARES_MAX;
            if has_room && self.ground.open(&path, Access::Read)?.len()? == self.segment_bytes() {
                let spare = spare_path(&self.directory, start);
                self.ground.rename(&path, &spare)?;
                recycled.push(spare);
            } else {
                self.ground.remove(&path)?;
            }
            state.segments.pop_front();
            is_changed = true;
        }
        if is_changed {
            let synced = self.ground.sync_directory(&self.directory);
            state.poison_unless(synced)?;
            state.spares.append(&mut recycled);
            if state.used_bytes() <= self.options.limit_bytes {
                state.full_at_bytes = self.options.full_at_bytes(0);
            }
        }
        Ok(())
    }

    fn verify(&self) -> Vec<String> {
        // There is no other machine, and the opening has read it.
        Vec::new()
    }

    fn tidy(&self) -> Result<bool> {
        Ok(false)
    }

    fn release_room(&self) {
        let Ok(mut state) = self.writable() else { return };
        for spare in std::mem::take(&mut state.spares) {
            let _ = self.ground.remove(&spare);
        }
        let end_offset = state.end_offset();
        if let Some(writer) = state.writer.as_mut().filter(|writer| writer.file_bytes > end_offset)
            && writer.file.set_len(end_offset).is_ok()
        {
            writer.file_bytes = end_offset;
        }
    }
}

impl State {
    /// Returns the position from which everything is in the log or was never written.
    fn first_position(&self) -> Position {
        self.segments[0].follows
    }

    fn used_bytes(&self) -> u64 {
        self.end.0 - self.first_position().0 - self.segments.iter().map(Segment::gap_bytes).sum::<u64>()
    }

    /// Returns the offset of the log's end in the last segment's file.
    fn end_offset(&self) -> u64 {
        SEGMENT_HEADER_BYTES + self.end.0 - self.segments.back().map_or(self.end.0, |last| last.start.0)
    }

    /// Poisons the log after a failed sync: the state on disk is unknown.
    fn poison_unless(&mut self, synced: std::result::Result<(), GroundError>) -> Result<()> {
        self.is_poisoned |= synced.is_err();
        synced.map_err(LogError::NotSynced)
    }

    /// Continues in a segment that starts at the end or later.
    fn enter_segment(&mut self, segment: Segment, file: Arc<dyn File>, file_bytes: u64) {
        let end_offset = self.end_offset();
        let left = self.writer.replace(Writer { file, file_bytes, has_remains: false });
        self.end = segment.start;
        if self.segments.back() == Some(&segment) {
            return; // It replaced one without a batch.
        }
        if let Some(left) = left.filter(|left| left.has_remains) {
            // Bytes past the segment's last batch mean nothing. A segment left early has most of its space there.
            let _ = left.file.set_len(end_offset);
        }
        self.segments.push_back(segment);
    }
}

/// Reserves space for a segment: `wanted_bytes`, or `least_bytes` on a full disk. Returns how much that is.
fn allocate_segment(file: &dyn File, wanted_bytes: u64, least_bytes: u64) -> std::result::Result<u64, GroundError> {
    match file.allocate(0, wanted_bytes) {
        Err(error) if error.is_full() => {
            file.set_len(0)?;
            file.allocate_from_reserve(0, least_bytes)?;
            Ok(least_bytes)
        }
        allocated => allocated.map(|()| wanted_bytes),
    }
}

/// Checks the headers of all segments. Returns the segments, and the cursor of the last one.
fn check_headers(
    ground: &dyn Ground,
    directory: &str,
    starts: impl Iterator<Item = Position>,
    store: &[u8; 16],
) -> Result<(VecDeque<Segment>, Cursor)> {
    let mut epoch = 0;
    let mut last = None;
    let mut segments: VecDeque<Segment> = VecDeque::new();
    for start in starts {
        let cursor = Cursor::open(ground, directory, start, store)?;
        let segment = cursor.segment();
        if let Some(before) = segments.back().filter(|before| segment.follows < before.start) {
            let why = format!(
                "the segment's header says that it follows segment {:016x}, but the previous segment starts at {:016x}",
                segment.follows.0, before.start.0
            );
            return Err(cursor.damaged(why));
        }
        segments.push_back(segment);
        if cursor.epoch() < epoch {
            return Err(cursor.damaged(format!("the segment has owner epoch {}, the previous one has {epoch}", cursor.epoch())));
        }
        epoch = cursor.epoch();
        last = Some(cursor);
    }
    let why = || LogError::Damaged { path: ground.describe(directory), offset_bytes: 0, why: "no segment of the log exists".to_owned() };
    Ok((segments, last.ok_or_else(why)?))
}

/// Moves the cursor to the batch at `from`.
fn seek_batch(cursor: &mut Cursor, from: Position) -> Result<()> {
    let start = cursor.at();
    let epoch_of_segment = cursor.epoch();
    if cursor.seek(from) && cursor.next()?.is_ok() {
        cursor.rewind(from, epoch_of_segment);
        return Ok(());
    }
    // No batch starts there. Either it is lost, or this is not the start of a batch.
    cursor.rewind(start, epoch_of_segment);
    while cursor.at() < from {
        if let Err(why) = cursor.next()? {
            return Err(cursor.damaged(format!("{why}, but the log continues after it")));
        }
    }
    if cursor.at() == from {
        Err(cursor.damaged("a batch is missing, but the log continues after it"))
    } else {
        Err(LogError::NotABoundary { from })
    }
}

/// Makes a batch durable, whatever happened to earlier syncs. Rewrites it only if the device may lack it. An
/// acknowledged batch is on the device, and a power cut during a rewrite would lose it.
fn settle(ground: &dyn Ground, path: &str, file: &dyn File, offset: u64, length: u64) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let mut bytes = vec![0; length as usize];
    // If the segment was cut to its content, its last batch may lack a part of its padding.
    let present = (file.len()?.saturating_sub(offset)).min(length) as usize;
    file.read_at(offset, &mut bytes[..present])?;
    file.sync()?;
    if present == bytes.len() && ground.device_holds(path, offset, &bytes)? {
        return Ok(());
    }
    file.write_at(offset, &bytes)?;
    Ok(file.sync()?)
}

#[cfg(test)]
mod tests;
