//! One object: what is here of it, and how the rest is fetched.
//!
//! # What is fetched
//! 1. A read of the first bytes alone fetches a little more: the header of a container, which is read after the end.
//! 2. The first other read fetches what it wants, extended to [`RANGE_BYTES`]. A random read needs no more.
//! 3. The second one fetches the rest, in one request. So does one that goes on where the bytes here end, or that takes
//!    a quarter of the object. Objects larger than [`PIECE_BYTES`] are fetched in pieces.
//!
//! # Single flight
//! Whoever wants bytes that are on their way waits for them. A fetch that fails fails for all who wait, so nobody waits
//! for several timeouts in sequence.
//!
//! # Where bytes are
//! A fetched piece goes to the cache on disk (`cache`). Without one, and for ranges, there is a bounded place in memory
//! ([`Held`](crate::ground::fetching::Held)). An object whose piece was dropped there is read in ranges from then on:
//! with more objects in use than there is memory for, this costs no more than having no memory.
//!
//! # Changes
//! If the object is changed or removed, everything here is spoiled. What was fetched before is not kept after that
//! ([`State::spoils`]).

use crate::error::failed_because;
use crate::ground::cache::CacheFile;
use crate::ground::fetching::Permit;
use crate::ground::objects::{Objects, TAIL_BYTES};
use bytes::Bytes;
use onefold_ground::{GroundError, Result};
use parking_lot::{Condvar, Mutex};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::OnceLock;

/// A read of no more than these first bytes is one of a header,
const HEADER_BYTES: u64 = 512;
/// and fetches these.
pub(super) const HEAD_BYTES: u64 = 64 << 10;
/// Bytes that the first read fetches at least.
pub(super) const RANGE_BYTES: u64 = 256 << 10;
/// A read of this part of a piece fetches all of it.
const MUCH: u64 = 4;
/// An object is fetched in pieces of this size. The last one may have half as much on top.
pub(super) const PIECE_BYTES: u64 = 8 << 20;

/// Returns the number of pieces of an object.
pub(super) fn pieces(length: u64) -> usize {
    ((length + PIECE_BYTES / 2 - 1) / PIECE_BYTES).max(1) as usize
}

/// Returns where a piece lies.
pub(super) fn piece(length: u64, number: usize) -> Range<u64> {
    let start = number as u64 * PIECE_BYTES;
    start..if number + 1 == pieces(length) { length } else { start + PIECE_BYTES }
}

/// An object. All who have it open share it.
#[derive(Debug)]
pub(super) struct Object {
    path: String,
    length: u64,
    /// Whether others may have it open too, in this process and later.
    is_shared: bool,
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug)]
struct State {
    pieces: Vec<Piece>,
    /// Other bytes in memory, by where they begin.
    ranges: Vec<(u64, Bytes)>,
    flights: Vec<Arc<Flight>>,
    /// Reads of what the opening did not bring, up to two.
    reads: u32,
    /// Whether a piece in memory was read since somebody looked for room.
    is_used: bool,
    /// Whether the memory was too small for a piece.
    is_crowded: bool,
    /// How often the object was changed or removed.
    spoils: u32,
}

#[derive(Clone, Debug)]
enum Piece {
    /// Nobody has looked into the cache.
    Unknown,
    Absent,
    Memory(Bytes),
    Disk(Arc<CacheFile>),
}

/// Bytes on their way.
#[derive(Debug)]
struct Flight {
    range: Range<u64>,
    /// How it ended. `None` in it: nobody worked on it.
    outcome: OnceLock<Option<std::result::Result<Bytes, Failed>>>,
}

/// Why a fetch failed.
#[derive(Debug)]
struct Failed {
    kind: ErrorKind,
    why: String,
}

impl Failed {
    fn new(error: &GroundError) -> Failed {
        let why = match error {
            GroundError::Io { source, .. } => source.to_string(),
            error @ GroundError::TooLong { .. } => error.to_string(),
        };
        Failed { kind: error.kind(), why }
    }
}

/// What a read has to do.
enum Step {
    Done,
    Copy(Bytes),
    Read(Arc<CacheFile>),
    Wait(Arc<Flight>),
    Fetch(Plan),
}

/// A fetch that others wait for.
struct Plan {
    landing: Landing,
    /// The piece, if it is a whole one.
    whole: Option<usize>,
    /// What is here of its beginning and its end.
    before: Option<Bytes>,
    after: Option<(u64, Bytes)>,
    spoils: u32,
}

/// Ends a flight, whatever happens.
struct Landing {
    object: Arc<Object>,
    flight: Arc<Flight>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let _ = self.flight.outcome.set(None);
        let mut state = self.object.state.lock();
        state.flights.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        self.object.landed.notify_all();
    }
}

impl State {
    fn spoil(&mut self) {
        self.spoils += 1;
        self.pieces.fill(Piece::Absent);
        self.ranges.clear();
        self.is_crowded = false;
        // What is on its way is from before.
        self.flights.clear();
    }

    /// Copies what the ranges have of the beginning and the end of a range. Returns what is missing.
    fn copy_ranges(&self, range: &Range<u64>, buffer: &mut [u8]) -> Range<u64> {
        let mut missing = range.clone();
        loop {
            let before = missing.clone();
            for (start, bytes) in &self.ranges {
                let there = (*start).max(missing.start)..(start + bytes.len() as u64).min(missing.end);
                if there.is_empty() || (there.start != missing.start && there.end != missing.end) {
                    continue;
                }
                let at = (there.start - range.start) as usize;
                let length = (there.end - there.start) as usize;
                let from = (there.start - start) as usize;
                buffer[at..at + length].copy_from_slice(&bytes[from..from + length]);
                if there.start == missing.start { missing.start = there.end } else { missing.end = there.start }
            }
            if missing == before || missing.is_empty() {
                return missing;
            }
        }
    }
}

impl Object {
    pub(super) fn new(path: &str, length: u64, is_shared: bool) -> Arc<Object> {
        let pieces = vec![if is_shared { Piece::Unknown } else { Piece::Absent }; pieces(length)];
        let state = State { pieces, ranges: Vec::new(), flights: Vec::new(), reads: 0, is_used: false, is_crowded: false, spoils: 0 };
        Arc::new(Object { path: path.to_owned(), length, is_shared, state: Mutex::new(state), landed: Condvar::new() })
    }

    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// Uses a file of the cache as its first piece. `None`: it has another length.
    pub(super) fn with_file(self: Arc<Object>, file: CacheFile) -> Option<Arc<Object>> {
        let has_length = piece(self.length, 0) == (0..file.len());
        self.state.lock().pieces[0] = Piece::Disk(Arc::new(file));
        has_length.then_some(self)
    }

    /// Forgets everything. It never goes to the cache again, as it may have another length now.
    pub(super) fn spoil(self: &Arc<Object>, objects: &Objects) {
        self.state.lock().spoil();
        objects.held.forget(self, 0, u64::MAX);
    }

    /// Drops the bytes in memory that begin at `start`: there is no room for them. Returns false if it keeps them, as
    /// they were read since the last call.
    pub(super) fn drop_part(&self, start: u64, may_spare: bool) -> bool {
        let mut state = self.state.lock();
        let number = (start / PIECE_BYTES) as usize;
        let is_piece = start.is_multiple_of(PIECE_BYTES) && matches!(state.pieces.get(number), Some(Piece::Memory(_)));
        if is_piece && std::mem::take(&mut state.is_used) && may_spare {
            return false;
        }
        state.ranges.retain(|(other, _)| *other != start);
        if is_piece {
            state.pieces[number] = Piece::Absent;
            state.is_crowded = true;
        }
        true
    }

    /// Reads a range that lies within the object.
    pub(super) fn read(self: &Arc<Object>, objects: &Objects, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.for_each_piece(offset, buffer, |number, range, buffer| self.read_piece(objects, number, range, buffer).map(|()| true))?;
        Ok(())
    }

    /// Does the same if that needs no wait for a device or a request. Returns whether it does not.
    pub(super) fn try_read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let tried = self.for_each_piece(offset, buffer, |number, range, buffer| {
            let state = self.state.lock();
            let start = piece(self.length, number).start;
            match state.pieces[number].clone() {
                Piece::Memory(bytes) => copy(&bytes, start, &range, buffer),
                Piece::Disk(file) => {
                    drop(state);
                    return Ok(file.try_read(range.start - start, buffer));
                }
                _ => return Ok(state.copy_ranges(&range, buffer).is_empty()),
            }
            Ok(true)
        });
        matches!(tried, Ok(true))
    }

    /// Passes on the parts of a range by piece, until one is not read.
    fn for_each_piece(
        &self,
        mut offset: u64,
        mut buffer: &mut [u8],
        mut read: impl FnMut(usize, Range<u64>, &mut [u8]) -> Result<bool>,
    ) -> Result<bool> {
        while !buffer.is_empty() {
            let number = ((offset / PIECE_BYTES) as usize).min(pieces(self.length) - 1);
            let end = piece(self.length, number).end.min(offset + buffer.len() as u64);
            let (now, rest) = buffer.split_at_mut((end - offset) as usize);
            if !read(number, offset..end, now)? {
                return Ok(false);
            }
            (offset, buffer) = (end, rest);
        }
        Ok(true)
    }

    fn read_piece(self: &Arc<Object>, objects: &Objects, number: usize, range: Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let start = piece(self.length, number).start;
        let mut is_counted = false;
        loop {
            match self.step(objects, number, &range, buffer, &mut is_counted) {
                Step::Done => return Ok(()),
                Step::Copy(bytes) => {
                    copy(&bytes, start, &range, buffer);
                    return Ok(());
                }
                Step::Read(file) => {
                    if file.read(range.start - start, buffer) {
                        return Ok(());
                    }
                    self.drop_file(objects, number, &file);
                }
                Step::Wait(flight) => {
                    if let Some(bytes) = self.wait(objects, &flight)?
                        && flight.range.start <= range.start
                        && range.end <= flight.range.end
                    {
                        copy(&bytes, flight.range.start, &range, buffer);
                        return Ok(());
                    }
                }
                Step::Fetch(plan) => {
                    let fetched = plan.landing.flight.range.clone();
                    let bytes = self.fetch(objects, plan)?;
                    // What is not among these bytes was here, and was copied.
                    let there = fetched.start.max(range.start)..fetched.end.min(range.end);
                    let at = (there.start - range.start) as usize;
                    copy(&bytes, fetched.start, &there, &mut buffer[at..at + (there.end - there.start) as usize]);
                    return Ok(());
                }
            }
        }
    }

    /// Finds out what a read has to do. Copies what the ranges have.
    fn step(self: &Arc<Object>, objects: &Objects, number: usize, range: &Range<u64>, buffer: &mut [u8], is_counted: &mut bool) -> Step {
        let mut state = self.state.lock();
        self.look_into_cache(objects, &mut state, number);
        let is_header = range.end <= HEADER_BYTES;
        let is_tail = range.start + TAIL_BYTES as u64 >= self.length;
        if matches!(state.pieces[number], Piece::Memory(_) | Piece::Disk(_)) {
            // Was it worth while to fetch all of it?
            let is_much = MUCH * (range.end - range.start) >= self.length;
            if state.reads < 2 && !is_header && !is_tail && !*is_counted {
                *is_counted = true;
                state.reads = if is_much { 2 } else { state.reads + 1 };
                if state.reads == 2 {
                    objects.count_whole();
                }
            }
        }
        match state.pieces[number].clone() {
            Piece::Memory(bytes) => {
                state.is_used = true;
                return Step::Copy(bytes);
            }
            Piece::Disk(file) => return Step::Read(file),
            Piece::Unknown | Piece::Absent => {}
        }
        let missing = state.copy_ranges(range, buffer);
        if missing.is_empty() {
            return Step::Done;
        }
        let on_its_way = |flight: &&Arc<Flight>| flight.range.start < missing.end && missing.start < flight.range.end;
        if let Some(flight) = state.flights.iter().find(on_its_way) {
            return Step::Wait(flight.clone());
        }
        if is_header {
            let end = HEAD_BYTES.min(piece(self.length, number).end);
            return Step::Fetch(self.plan_range(&mut state, missing, end));
        }
        let goes_on = state.ranges.iter().any(|(start, bytes)| start + bytes.len() as u64 == missing.start);
        let whole = piece(self.length, number);
        let is_much = MUCH * (missing.end - missing.start) >= whole.end - whole.start;
        if !state.is_crowded && (state.reads > 0 || goes_on || is_much) {
            if state.reads < 2 {
                state.reads = 2;
                objects.count_whole();
            }
            return Step::Fetch(self.plan_whole(&mut state, number));
        }
        if !*is_counted {
            *is_counted = true;
            state.reads = (state.reads + 1).min(2);
        }
        let end = (missing.start + RANGE_BYTES).min(whole.end);
        Step::Fetch(self.plan_range(&mut state, missing, end))
    }

    fn look_into_cache(&self, objects: &Objects, state: &mut State, number: usize) {
        if !matches!(state.pieces[number], Piece::Unknown) {
            return;
        }
        let range = piece(self.length, number);
        let file = objects.cache.as_ref().and_then(|cache| cache.open(&self.path, number));
        let file = file.filter(|file| file.object_bytes == self.length && file.len() == range.end - range.start);
        state.pieces[number] = file.map_or(Piece::Absent, |file| Piece::Disk(Arc::new(file)));
    }

    /// Plans a fetch of what is missing and more, up to `end` or to what is here or on its way.
    fn plan_range(self: &Arc<Object>, state: &mut State, missing: Range<u64>, end: u64) -> Plan {
        let taken = state.ranges.iter().map(|(start, _)| *start).chain(state.flights.iter().map(|flight| flight.range.start));
        let end = taken.filter(|start| *start >= missing.end).fold(end.max(missing.end), u64::min);
        let landing = self.take_off(state, missing.start..end);
        Plan { landing, whole: None, before: None, after: None, spoils: state.spoils }
    }

    fn plan_whole(self: &Arc<Object>, state: &mut State, number: usize) -> Plan {
        let range = piece(self.length, number);
        let before = state.ranges.iter().find(|(start, _)| *start == range.start).map(|(_, bytes)| bytes.clone());
        let is_end = |(start, bytes): &&(u64, Bytes)| *start > range.start && start + bytes.len() as u64 == range.end;
        let after = state.ranges.iter().find(is_end).cloned();
        let landing = self.take_off(state, range);
        Plan { landing, whole: Some(number), before, after, spoils: state.spoils }
    }

    fn take_off(self: &Arc<Object>, state: &mut State, range: Range<u64>) -> Landing {
        let flight = Arc::new(Flight { range, outcome: OnceLock::new() });
        state.flights.push(flight.clone());
        Landing { object: self.clone(), flight }
    }

    /// Fetches what was planned, and keeps it. Returns the bytes of the flight's range.
    fn fetch(self: &Arc<Object>, objects: &Objects, plan: Plan) -> Result<Bytes> {
        let Plan { landing, whole, before, after, spoils } = plan;
        let permit: Option<Permit<'_>> = whole.map(|_| objects.permits.take());
        let range = landing.flight.range.clone();
        let start = range.start + before.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let end = after.as_ref().map_or(range.end, |(start, _)| *start).max(start);
        let fetched = if start == end { Ok(Vec::new()) } else { objects.bucket.get_range(&self.path, start, (end - start) as usize) };
        let joined = fetched.map(|fetched| join(&range, before, fetched, after));
        let shared = joined.as_ref().cloned().map_err(Failed::new);
        let _ = landing.flight.outcome.set(Some(shared));
        if let Ok(bytes) = &joined {
            match whole {
                Some(number) => {
                    // They need not wait until it is on disk.
                    self.wake();
                    self.keep_piece(objects, number, bytes.clone(), spoils);
                }
                None => self.keep_range(objects, range.start, bytes.clone(), spoils),
            }
        }
        drop((landing, permit));
        // Somebody else has removed it. The next opening has to find that.
        if joined.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof)) {
            self.spoil(objects);
            objects.forget(&self.path);
        }
        joined
    }

    fn wake(&self) {
        let _state = self.state.lock();
        self.landed.notify_all();
    }

    /// Waits for a flight. `None`: nobody worked on it.
    fn wait(&self, objects: &Objects, flight: &Flight) -> Result<Option<Bytes>> {
        let mut state = self.state.lock();
        while flight.outcome.get().is_none() {
            self.landed.wait(&mut state);
        }
        drop(state);
        match flight.outcome.get() {
            Some(Some(Ok(bytes))) => Ok(Some(bytes.clone())),
            Some(Some(Err(Failed { kind, why }))) => Err(failed_because("read", &objects.bucket.describe(&self.path), *kind, why.clone())),
            _ => Ok(None),
        }
    }

    /// Keeps a range in memory, if nothing was spoiled since the object counted `spoils`.
    pub(super) fn keep_range(self: &Arc<Object>, objects: &Objects, start: u64, bytes: Bytes, spoils: u32) {
        let length = bytes.len();
        {
            let mut state = self.state.lock();
            let number = ((start / PIECE_BYTES) as usize).min(state.pieces.len() - 1);
            let is_here = matches!(state.pieces[number], Piece::Memory(_) | Piece::Disk(_));
            if state.spoils != spoils || is_here || state.ranges.iter().any(|(other, _)| *other == start) {
                return;
            }
            state.ranges.push((start, bytes));
        }
        objects.held.add(self, start, length);
    }

    /// Keeps a piece: on disk, or in memory. The same holds for `spoils`.
    pub(super) fn keep_piece(self: &Arc<Object>, objects: &Objects, number: usize, bytes: Bytes, spoils: u32) {
        let range = piece(self.length, number);
        {
            let mut state = self.state.lock();
            if state.spoils != spoils {
                return;
            }
            state.ranges.retain(|(start, bytes)| *start < range.start || start + bytes.len() as u64 > range.end);
            state.pieces[number] = Piece::Memory(bytes.clone());
        }
        objects.held.forget(self, range.start, range.end);
        objects.held.add(self, range.start, bytes.len());
        let cache = objects.cache.as_ref().filter(|_| self.is_shared && spoils == 0);
        let Some((cache, written)) =
            cache.and_then(|cache| Some((cache, cache.write(&self.path, number, self.length, std::slice::from_ref(&bytes))?)))
        else {
            return;
        };
        let is_kept = {
            let mut state = self.state.lock();
            match state.spoils {
                0 => {
                    // Under the lock: what spoils the object waits, and then removes the file.
                    let kept = cache.keep(written).map(|file| state.pieces[number] = Piece::Disk(Arc::new(file)));
                    state.is_crowded &= kept.is_none();
                    kept.is_some()
                }
                _ => {
                    cache.abandon(written);
                    false
                }
            }
        };
        if is_kept {
            objects.held.forget(self, range.start, range.end);
        }
    }

    /// Stops using a damaged file of the cache.
    fn drop_file(&self, objects: &Objects, number: usize, file: &Arc<CacheFile>) {
        tracing::debug!(path = self.path, number, "a cached piece is damaged");
        let mut state = self.state.lock();
        if matches!(&state.pieces[number], Piece::Disk(other) if Arc::ptr_eq(other, file)) {
            state.pieces[number] = Piece::Absent;
            if let Some(cache) = &objects.cache {
                cache.remove_piece(&self.path, number);
            }
        }
    }

    /// Begins to fetch the pieces of a range. A hint.
    pub(super) fn read_ahead(self: &Arc<Object>, objects: &Arc<Objects>, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.length);
        // A header is not worth while.
        if end <= HEAD_BYTES || offset >= end {
            return;
        }
        for number in (offset / PIECE_BYTES) as usize..pieces(self.length) {
            if piece(self.length, number).start >= end {
                break;
            }
            let mut state = self.state.lock();
            self.look_into_cache(objects, &mut state, number);
            let whole = piece(self.length, number);
            let is_here = matches!(state.pieces[number], Piece::Memory(_) | Piece::Disk(_));
            let is_coming = state.flights.iter().any(|flight| flight.range == whole);
            if is_here || is_coming || state.is_crowded {
                continue;
            }
            let plan = self.plan_whole(&mut state, number);
            drop(state);
            let (object, objects) = (self.clone(), objects.clone());
            objects.background.clone().start(Box::new(move || drop(object.fetch(&objects, plan))));
        }
    }
}

/// Copies a range of bytes that begin at `start`.
fn copy(bytes: &[u8], start: u64, range: &Range<u64>, buffer: &mut [u8]) {
    let from = (range.start - start) as usize;
    buffer.copy_from_slice(&bytes[from..from + buffer.len()]);
}

/// Joins fetched bytes with those that were here.
fn join(range: &Range<u64>, before: Option<Bytes>, fetched: Vec<u8>, after: Option<(u64, Bytes)>) -> Bytes {
    if before.is_none() && after.is_none() {
        return fetched.into();
    }
    let mut whole = Vec::with_capacity((range.end - range.start) as usize);
    whole.extend_from_slice(before.as_ref().map_or(&[], |bytes| &bytes[..]));
    whole.extend_from_slice(&fetched);
    if let Some((start, bytes)) = &after {
        // Both may overlap.
        let have = range.start + whole.len() as u64;
        whole.extend_from_slice(&bytes[(have - start) as usize..]);
    }
    whole.into()
}
