//! Objects that are read: which ones are known, and how they are opened.
//!
//! * All who have a container or a parity file open share it (`object.rs`), so they share its requests.
//! * An opening fetches the end of an object, where footers and catalogs are. If an earlier process has cached the
//!   object, it fetches nothing. If the objects before were read whole, or if somebody expects that of this one, it
//!   fetches the whole object with one request, and keeps it piece by piece.
//! * Other names change (forwards, owners, marks). Each opening of one asks the bucket.
//! * An object keeps its content, unless this process puts another one or removes it. Then [`Objects::forget`] spoils
//!   everything here.

use crate::ground::cache::Cache;
use crate::ground::fetching::{Background, Held, Permits};
use crate::ground::object::{Object, PIECE_BYTES, piece, pieces};
use bytes::Bytes;
use onefold_ground::{Bucket, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

/// Bytes at the end of an object that its opening reads: footer and catalog are there.
pub(super) const TAIL_BYTES: usize = 256 << 10;
/// Bytes of objects in memory: ends, ranges, and pieces that are not on disk.
pub(super) const HELD_BYTES: usize = 64 << 20;
/// Longer objects are fetched when they are opened only if somebody will read all of them,
const MOST_EAGER_BYTES: u64 = PIECE_BYTES + PIECE_BYTES / 2;
/// and not even then if they are longer than this.
const MOST_EXPECTED_BYTES: u64 = 64 << 20;
/// Objects that are remembered although nobody has them open.
const KNOWN: usize = 128;
/// Openings fetch whole objects from this score on,
const EAGER_SCORE: i32 = 4;
/// which ends here. An opening takes one away; an object that is read whole adds [`WHOLE_SCORE`]. Many readers open
/// theirs before one of them is read.
const MOST_SCORE: i32 = 20;
const WHOLE_SCORE: i32 = 2;

/// Returns whether an object is shared and cached: a container or a parity file. Forwards and owners change.
pub(super) fn is_cacheable(path: &str) -> bool {
    let (top, name) = (path.split('/').next(), path.rsplit('/').next());
    matches!(top, Some("containers" | "parity"))
        && name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'))
}

/// All objects of a ground.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) cache: Option<Cache>,
    pub(super) held: Held,
    pub(super) permits: Permits,
    pub(super) background: Arc<Background>,
    /// How much speaks for fetching whole objects.
    score: AtomicI32,
    /// Length of the longest object so far.
    longest_bytes: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    slots: HashMap<String, (u64, Arc<Slot>)>,
    clock: u64,
}

/// The place of one shared object.
#[derive(Debug, Default)]
struct Slot {
    /// The lock is held while the object is opened or spoiled.
    object: Mutex<Option<Arc<Object>>>,
    /// Whether somebody will read all of it.
    is_expected: AtomicBool,
    /// Whether a hint to fetch it waits for a thread, or is worked on.
    is_coming: AtomicBool,
}

/// A hint to fetch an object. However it ends, nobody waits for it any longer.
struct Hint(Arc<Slot>);

impl Hint {
    fn new(slot: Arc<Slot>) -> Hint {
        slot.is_coming.store(true, Relaxed);
        Hint(slot)
    }
}

impl Drop for Hint {
    fn drop(&mut self) {
        self.0.is_coming.store(false, Relaxed);
    }
}

impl Objects {
    pub(super) fn new(bucket: Arc<dyn Bucket>, cache: Option<Cache>, held_bytes: usize) -> Objects {
        let (permits, background, score, known) = (Permits::default(), Arc::default(), AtomicI32::new(0), Mutex::default());
        let longest_bytes = AtomicU64::new(0);
        Objects { bucket, cache, held: Held::new(held_bytes), permits, background, score, longest_bytes, known }
    }

    /// Returns the slot of an object. Forgets those that nobody uses if there are too many.
    fn slot(&self, path: &str) -> Arc<Slot> {
        let mut known = self.known.lock();
        known.clock += 1;
        let now = known.clock;
        if let Some((used, slot)) = known.slots.get_mut(path) {
            *used = now;
            return slot.clone();
        }
        if known.slots.len() >= KNOWN {
            known.forget_half();
        }
        let slot: Arc<Slot> = Arc::default();
        known.slots.insert(path.to_owned(), (now, slot.clone()));
        slot
    }

    /// Opens an object.
    pub(super) fn open(&self, path: &str) -> Result<Arc<Object>> {
        if !is_cacheable(path) {
            return self.open_end(path, false);
        }
        let slot = self.slot(path);
        let mut opened = slot.object.lock();
        if let Some(object) = &*opened {
            return Ok(object.clone());
        }
        let score = self.score.fetch_update(Relaxed, Relaxed, |score| Some((score - 1).max(0))).unwrap_or_default();
        let object = match self.open_cached(path) {
            None if slot.is_expected.load(Relaxed) => self.open_whole(path, MOST_EXPECTED_BYTES)?,
            None if score >= EAGER_SCORE => self.open_whole(path, MOST_EAGER_BYTES)?,
            cached => cached,
        };
        let object = object.map_or_else(|| self.open_end(path, true), Ok)?;
        *opened = Some(object.clone());
        Ok(object)
    }

    /// Opens an object whose first piece is in the cache.
    fn open_cached(&self, path: &str) -> Option<Arc<Object>> {
        let file = self.cache.as_ref()?.open(path, 0)?;
        Object::new(path, file.object_bytes, true).with_file(file)
    }

    /// Opens and fetches an object, with one request. `None`: it has more than `most_bytes`, or may have, as others
    /// have.
    fn open_whole(&self, path: &str, most_bytes: u64) -> Result<Option<Arc<Object>>> {
        if self.longest_bytes.load(Relaxed) > most_bytes {
            return Ok(None);
        }
        let _permit = self.permits.take();
        let mut coming: Option<Coming> = None;
        let read = self.bucket.get_as_it_comes(path, &mut |length, bytes| {
            self.note_length(path, length);
            if length > most_bytes {
                return false;
            }
            coming.get_or_insert_with(|| Coming::new(Object::new(path, length, true))).add(self, bytes);
            true
        });
        if let (Err(error), Some(cache)) = (&read, &self.cache)
            && error.kind() != ErrorKind::TimedOut
        {
            // What has come may be of an object that is no longer there.
            cache.remove(path);
        }
        read.map(|()| coming.map(|coming| coming.object))
    }

    /// Notes how long containers are.
    fn note_length(&self, path: &str, length: u64) {
        if path.starts_with("containers/") {
            self.longest_bytes.fetch_max(length, Relaxed);
        }
    }

    /// Says that all of an object will be read soon: it is fetched with one request. A hint.
    pub(super) fn expect(self: &Arc<Objects>, path: &str) {
        // Without a cache, it might be dropped before it is read.
        if !is_cacheable(path) || self.cache.as_ref().is_none_or(|cache| !cache.keeps(MOST_EXPECTED_BYTES)) {
            return;
        }
        let slot = self.slot(path);
        let is_here = slot.object.try_lock().is_none_or(|object| object.is_some());
        if slot.is_expected.swap(true, Relaxed) || is_here {
            return;
        }
        let (objects, path, hint) = (self.clone(), path.to_owned(), Hint::new(slot));
        // Whoever reads it finds out what went wrong.
        self.background.start_hint(Box::new(move || {
            // Somebody who needs it may have come first.
            let is_taken = hint.0.object.try_lock().is_none_or(|object| object.is_some());
            // A container that was merged or removed says nothing of the others.
            if !is_taken && objects.open(&path).is_err_and(|error| !error.is_not_found()) {
                objects.background.forget_queued();
            }
        }));
    }

    /// Returns whether an object that was expected is not here yet, and a hint or somebody else will bring it.
    pub(super) fn is_coming(&self, path: &str) -> bool {
        let Some(slot) = self.known.lock().slots.get(path).map(|(_, slot)| slot.clone()) else { return false };
        match slot.object.try_lock() {
            Some(object) => object.is_none() && slot.is_coming.load(Relaxed),
            None => slot.is_expected.load(Relaxed),
        }
    }

    /// Opens an object by its end.
    fn open_end(&self, path: &str, is_shared: bool) -> Result<Arc<Object>> {
        let (tail, length) = self.bucket.get_end(path, TAIL_BYTES)?;
        self.note_length(path, length);
        let (object, tail) = (Object::new(path, length, is_shared), Bytes::from(tail));
        if tail.len() as u64 == length {
            object.keep_piece(self, 0, tail, 0);
        } else {
            object.keep_range(self, length - tail.len() as u64, tail, 0);
        }
        Ok(object)
    }

    /// Counts an object that is read whole.
    pub(super) fn count_whole(&self) {
        let _ = self.score.fetch_update(Relaxed, Relaxed, |score| Some((score + WHOLE_SCORE).min(MOST_SCORE)));
    }

    /// Spoils what is here of an object. Call after it was changed or removed in the bucket, even if that failed.
    pub(super) fn forget(&self, path: &str) {
        if is_cacheable(path) {
            self.forget_opened(&mut self.slot(path).object.lock(), path);
        }
    }

    fn forget_opened(&self, opened: &mut Option<Arc<Object>>, path: &str) {
        if let Some(object) = opened.take() {
            object.spoil(self);
        }
        if let Some(cache) = &self.cache {
            cache.remove(path);
        }
    }

    /// Caches the content of an object that was just put. It is in pieces.
    pub(super) fn put(&self, path: &str, content: &[Bytes]) {
        if !is_cacheable(path) {
            return;
        }
        // Nobody can open, remove or replace it before this is done.
        let slot = self.slot(path);
        let mut opened = slot.object.lock();
        self.forget_opened(&mut opened, path);
        let Some(cache) = &self.cache else { return };
        let length = length_of(content);
        for number in 0..pieces(length) {
            if let Some(written) = cache.write(path, number, length, &cut(content, &piece(length, number))) {
                cache.keep(written);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held.bytes()
    }
}

/// An object whose bytes are coming.
struct Coming {
    object: Arc<Object>,
    number: usize,
    piece: Vec<u8>,
}

impl Coming {
    fn new(object: Arc<Object>) -> Coming {
        Coming { object, number: 0, piece: Vec::new() }
    }

    /// Adds the next bytes. Keeps each piece when it is complete.
    fn add(&mut self, objects: &Objects, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let range = piece(self.object.len(), self.number);
            let length = (range.end - range.start) as usize;
            if self.piece.is_empty() {
                self.piece.reserve_exact(length);
            }
            let (now, rest) = bytes.split_at(bytes.len().min(length - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = rest;
            if self.piece.len() == length {
                self.object.keep_piece(objects, self.number, std::mem::take(&mut self.piece).into(), 0);
                self.number += 1;
            }
        }
    }
}

/// Returns the length of a content in pieces.
pub(super) fn length_of(content: &[Bytes]) -> u64 {
    content.iter().map(|piece| piece.len() as u64).sum()
}

/// Cuts a range from a content in pieces.
fn cut(content: &[Bytes], range: &Range<u64>) -> Vec<Bytes> {
    let mut start = 0;
    let mut part = |piece: &Bytes| {
        let within = |at: u64| at.saturating_sub(start).min(piece.len() as u64) as usize;
        let part = piece.slice(within(range.start)..within(range.end));
        start += piece.len() as u64;
        (!part.is_empty()).then_some(part)
    };
    content.iter().filter_map(&mut part).collect()
}

impl Known {
    /// Forgets the half of the objects that was used least recently, if nobody uses them.
    fn forget_half(&mut self) {
        let mut used: Vec<u64> = self.slots.values().map(|(used, _)| *used).collect();
        used.sort_unstable();
        let middle = used[used.len() / 2];
        let is_in_use = |slot: &Arc<Slot>| {
            Arc::strong_count(slot) > 1
                || slot.object.try_lock().is_none_or(|object| object.as_ref().is_some_and(|object| Arc::strong_count(object) > 1))
        };
        self.slots.retain(|_, (used, slot)| *used > middle || is_in_use(slot));
    }
}

#[cfg(test)]
mod tests;
