//! The log as its owner uses it: open, replay, commit, trim. The argument why it is safe stands at the head of the crate.

use crate::batch::{ALIGNMENT_BYTES, BATCH_MAX_BYTES, encode_batch};
use crate::segment::{Cursor, Remains, SEGMENT_HEADER_BYTES, Segment, encode_header, parse_name, segment_path, spare_path};
use crate::{LogError, Position, Record, Result};
use onefold_ground::{Access, File, Ground, GroundError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Old segments that are kept for reuse.
const SPARES_MAX: usize = 2;
/// A larger buffer is given back after a batch.
const BUFFER_KEPT_BYTES: usize = 8 << 20;
/// Limits at which the log takes no more.
const FULL_AT: u64 = 2;
/// No log comes here.
pub(crate) const POSITIONS_END: u64 = 1 << 62;
/// Segments that the limit has room for, at least.
const SEGMENTS_MIN: u64 = 4;

/// The sizes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment file; a batch that needs more gets a segment of its own size. At least 8 KiB are used, and at most a quarter
    /// of the limit: the log is given back in whole segments, so with larger ones it could never get below it. Default 64 MiB.
    pub segment_bytes: u64,
    /// From this size on the log wants to be trimmed ([`Log::is_over_limit`]); at twice this size (of a log that was longer when it was
    /// opened: at one limit more than that) it takes no more ([`LogError::Full`]), save for what lets it be trimmed
    /// ([`Log::commit_beyond_limit`]). A batch of any size is taken below the limit. Default 512 MiB.
    pub limit_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, limit_bytes: 512 << 20 }
    }
}

impl LogOptions {
    fn segment_bytes_within_limit(&self) -> u64 {
        self.segment_bytes.min(self.limit_bytes / SEGMENTS_MIN).max(2 * SEGMENT_HEADER_BYTES)
    }

    /// A log that was left longer, under another limit, must take what is written until its users let it be trimmed.
    fn full_at_bytes(&self, opened_with_bytes: u64) -> u64 {
        self.limit_bytes.saturating_mul(FULL_AT).max(opened_with_bytes.saturating_add(self.limit_bytes))
    }
}

/// What a log is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// By its owner, for replaying and writing.
    ReadWrite {
        /// The owner epoch: greater than that of every earlier owner.
        epoch: u64,
    },
    /// For replaying. Nothing on disk changes, a torn tail stays where it is.
    ReadOnly,
}

/// What [`Log::replay`] calls for each batch: with its position, the position after it, and its records. `Break` ends the replay.
pub type Visit<'a> = dyn FnMut(Position, Position, &[Record]) -> ControlFlow<()> + 'a;

/// An open log.
#[derive(Debug)]
pub struct Log {
    ground: Arc<dyn Ground>,
    directory: String,
    store: [u8; 16],
    options: LogOptions,
    is_writable: bool,
    /// Held while a batch is written and synced: that is what makes one batch follow the other.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All segments, ascending. There is always one.
    segments: VecDeque<Segment>,
    end: Position,
    /// The epoch of this owner; for a reader the greatest in the log.
    epoch: u64,
    /// The last segment; none when reading, or before the first segment.
    writer: Option<Writer>,
    /// Files that may become segments. Their names are durable, so that no old segment is overwritten that a crash could bring back.
    spares: Vec<String>,
    is_poisoned: bool,
    buffer: Vec<u8>,
    /// Size at which the log takes no more.
    full_at_bytes: u64,
}

/// The segment that is written to.
#[derive(Debug)]
struct Writer {
    file: Arc<dyn File>,
    file_bytes: u64,
    /// Something that is not zeros may lie behind the end: the next batch opens another segment.
    has_remains: bool,
}

impl Log {
    /// Creates an empty log at position 0 in `directory`, which is made if need be. `store` is the start of the store's name.
    pub fn create(ground: &Arc<dyn Ground>, directory: &str, store: [u8; 16], options: LogOptions) -> Result<()> {
        Log::create_at(ground, directory, store, options, 0, Position(0))
    }

    /// The same at another position, by the owner of `epoch`.
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
        let log = Log {
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

    /// Opens the log and finds its start and end. A torn tail is dropped; bytes that were durable and are not there any more are an
    /// error. The last segment is read to its end, of the others the headers: [`Log::replay`] finds damage in them.
    pub fn open(ground: Arc<dyn Ground>, directory: &str, store: [u8; 16], options: LogOptions, opening: Opening) -> Result<Log> {
        if let Opening::ReadWrite { .. } = opening {
            // A process that died may have left names that are not durable yet. Nothing may be built on them before they are.
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
            return Err(cursor.damaged(format!("a batch that was durable is gone, as the one at byte {offset_bytes} shows")));
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
            // A segment that was cut to its content goes on at its full size, if there is room now.
            let wanted_bytes = options.segment_bytes_within_limit();
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
        Ok(Log { ground, directory: directory.to_owned(), store, options, is_writable, state: Mutex::new(state) })
    }

    /// The position from which on all batches are there. The first of them is here, or where the log [jumps](Log::jump_to) to from here.
    pub fn start(&self) -> Position {
        self.state.lock().first_position()
    }

    /// The position that the next batch gets.
    pub fn end(&self) -> Position {
        self.state.lock().end
    }

    /// The owner epoch of this opening; of one for reading, the greatest in the log.
    pub fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// Bytes of the batches from start to end, without what the log jumped over.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Whether the log is larger than its limit, so that what holds its start should be moved.
    pub fn is_over_limit(&self) -> bool {
        self.used_bytes() > self.options.limit_bytes
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.state.lock().segments.len()
    }

    /// Passes the batches from `from` (the start of a batch, the end of one, or the end of the log) on to `visit`, in order. Batches that are committed meanwhile are not passed on; what is replayed must not be trimmed meanwhile.
    pub fn replay(&self, from: Position, visit: &mut Visit<'_>) -> Result<()> {
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
                let batch = cursor.next()?.map_err(|why| cursor.damaged(format!("{why}, although the log goes on")))?;
                if cursor.at() > limit {
                    return Err(cursor.damaged("the batch before this place reaches into the next segment"));
                }
                if visit(position, cursor.at(), &batch.records).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Writes the records as one batch, which is durable on return; returns its position and the one after it. No records: no batch.
    ///
    /// After an error the batch may still be found when the log is opened again, or not: never a part of it, and never after the next
    /// one that succeeded. When there was no room ([`LogError::is_full`]) the same may be tried again.
    pub fn commit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(false, records)
    }

    /// Like [`Log::commit`], for records that let the log be trimmed: a full log takes them too, or it would stay full for ever. The caller
    /// sees to it that the log is trimmed behind it.
    pub fn commit_beyond_limit(&self, records: &[Record]) -> Result<(Position, Position)> {
        self.commit_as(true, records)
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
        encode_batch(&mut buffer, records, start, &self.store, state.epoch);
        let limit_bytes = if beyond_limit { u64::MAX } else { state.full_at_bytes };
        let written = self.write_batch(&mut state, &buffer, limit_bytes);
        if buffer.capacity() <= BUFFER_KEPT_BYTES {
            state.buffer = buffer;
        }
        written.map(|()| (start, state.end))
    }

    /// Makes the next batch begin at `position`, unless the end of the log is there or behind it already: durable on return. What lies between holds
    /// no batch and never will. `position` is a multiple of [`ALIGNMENT_BYTES`](crate::ALIGNMENT_BYTES) below 2^62. For whoever goes on behind another log
    /// (an adopter): what it writes from now on is later than all that was written before that position, in whatever log.
    ///
    /// An error that does not close the log changed nothing; after one that does, the next opening finds the log at either place.
    pub fn jump_to(&self, position: Position) -> Result<()> {
        if !position.0.is_multiple_of(ALIGNMENT_BYTES) || position.0 >= POSITIONS_END {
            return Err(LogError::NotABoundary { from: position });
        }
        let mut state = self.writable()?;
        if position <= state.end {
            return Ok(());
        }
        self.open_segment(&mut state, position, 0)
    }

    /// Whether [`Log::trim`] would give up a segment.
    pub fn has_segments_before(&self, upto: Position) -> bool {
        self.state.lock().segments.get(1).is_some_and(|second| second.follows <= upto)
    }

    /// Gives up the segments that end at or before `upto`: they are kept for reuse or removed. All that is before `upto` must be
    /// durable elsewhere.
    pub fn trim(&self, upto: Position) -> Result<()> {
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

    /// Gives back the room that is kept for further batches, for a log that is closed: the next opening reserves it again. Failing harms
    /// nothing but the free space.
    pub fn release_room(&self) {
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

    fn segment_bytes(&self) -> u64 {
        self.options.segment_bytes_within_limit()
    }

    fn writable(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        if !self.is_writable {
            return Err(LogError::ReadOnly);
        }
        let state = self.state.lock();
        if state.is_poisoned { Err(LogError::Poisoned) } else { Ok(state) }
    }

    /// Writes and syncs a spelled batch at the end.
    fn write_batch(&self, state: &mut State, batch: &[u8], limit_bytes: u64) -> Result<()> {
        let length_bytes = batch.len() as u64;
        // The last segment cannot be trimmed: behind a batch that fills a long one alone, one more must open the next.
        let can_be_trimmed = state.used_bytes() > self.options.limit_bytes && state.segments.len() > 1;
        if can_be_trimmed && state.used_bytes() + length_bytes > limit_bytes {
            return Err(LogError::Full { used_bytes: state.used_bytes(), limit_bytes });
        }
        let fits = |writer: &Writer| {
            // A file that is larger than segments are now (another setting made it) is not filled further than they are.
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

    /// Opens a segment at `start`, the end of the log or behind it, with room for a batch of `batch_bytes`: on a full disk for this batch only, as it may be one
    /// that frees room. On an error that does not poison, nothing changed.
    fn open_segment(&self, state: &mut State, start: Position, batch_bytes: u64) -> Result<()> {
        let least_bytes = SEGMENT_HEADER_BYTES + batch_bytes;
        // A segment without a batch is replaced by one at the same place, and what it says of the place before it goes on.
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
                // Room that was reserved in vain is given back, whoever fills the disk may need it; the next try starts anew anyway.
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

    /// A file that is to become a segment: one that is kept for that, or a new one.
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

impl State {
    /// Everything from here on is in the log, or was never written.
    fn first_position(&self) -> Position {
        self.segments[0].follows
    }

    fn used_bytes(&self) -> u64 {
        self.end.0 - self.first_position().0 - self.segments.iter().map(Segment::gap_bytes).sum::<u64>()
    }

    /// Where the end of the log is in the last segment's file.
    fn end_offset(&self) -> u64 {
        SEGMENT_HEADER_BYTES + self.end.0 - self.segments.back().map_or(self.end.0, |last| last.start.0)
    }

    /// After a sync that failed nobody knows what is on disk.
    fn poison_unless(&mut self, synced: std::result::Result<(), GroundError>) -> Result<()> {
        self.is_poisoned |= synced.is_err();
        Ok(synced?)
    }

    /// Goes on in a segment that starts at the end or behind it.
    fn enter_segment(&mut self, segment: Segment, file: Arc<dyn File>, file_bytes: u64) {
        let end_offset = self.end_offset();
        let left = self.writer.replace(Writer { file, file_bytes, has_remains: false });
        self.end = segment.start;
        if self.segments.back() == Some(&segment) {
            return; // It has replaced one that had no batch.
        }
        if let Some(left) = left.filter(|left| left.has_remains) {
            // What lies behind the segment's last batch is nothing. A segment left early has most of its room there.
            let _ = left.file.set_len(end_offset);
        }
        self.segments.push_back(segment);
    }
}

/// Reserves room for a segment: `wanted_bytes`, or on a full disk `least_bytes`. Returns how much it is.
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

/// Checks the headers of all segments; returns the segments, and the cursor of the last one.
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
            let why =
                format!("the segment says that it follows {:016x}, the one before it starts at {:016x}", segment.follows.0, before.start.0);
            return Err(cursor.damaged(why));
        }
        segments.push_back(segment);
        if cursor.epoch() < epoch {
            return Err(cursor.damaged(format!("the segment has owner epoch {}, the one before it {epoch}", cursor.epoch())));
        }
        epoch = cursor.epoch();
        last = Some(cursor);
    }
    let why = || LogError::Damaged { path: ground.describe(directory), offset_bytes: 0, why: "there is no segment of the log".to_owned() };
    Ok((segments, last.ok_or_else(why)?))
}

/// Goes to the batch at `from`.
fn seek_batch(cursor: &mut Cursor, from: Position) -> Result<()> {
    let start = cursor.at();
    let epoch_of_segment = cursor.epoch();
    if cursor.seek(from) && cursor.next()?.is_ok() {
        cursor.rewind(from, epoch_of_segment);
        return Ok(());
    }
    // There is none: is it lost, or is this not the start of one?
    cursor.rewind(start, epoch_of_segment);
    while cursor.at() < from {
        if let Err(why) = cursor.next()? {
            return Err(cursor.damaged(format!("{why}, although the log goes on")));
        }
    }
    if cursor.at() == from {
        Err(cursor.damaged("a batch is gone, although the log goes on"))
    } else {
        Err(LogError::NotABoundary { from })
    }
}

/// Makes a batch durable whatever happened to earlier syncs. It is written again only if the device may not have it: an acknowledged batch is on the device,
/// and a power cut during the write would cost it.
fn settle(ground: &dyn Ground, path: &str, file: &dyn File, offset: u64, length: u64) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let mut bytes = vec![0; length as usize];
    // The last batch of a segment that was cut to its content may lack a part of its padding.
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
