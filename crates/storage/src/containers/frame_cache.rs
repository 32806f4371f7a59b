//! Keeps decompressed frames for reading, and lets only one thread at a time read a frame.
//!
//! Only whole frames are kept. A short read (`short_reads.rs`) leaves no bytes here, only a note: the next reader of
//! the same frame soon after reads the whole frame.
//!
//! Each method takes the lock last and alone.

use crate::containers::cache::Lru;
use crate::{Codec, ContainerId, Frame};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A call that needs more frames than this is no short one: its neighbours probably want the rest of the frames.
const SHORT_READ_FRAMES: usize = 4;
/// A short read takes at most this part of its frame. A fingerprint takes several times as long as the checksum of as
/// many bytes (decision 0052).
const LARGEST_SHARE: usize = 2;

/// The latest so many short reads are noted. A frame that is read twice within them is read as a whole. More notes
/// would promote frames of random reads, which nobody reads again before they are evicted; fewer would miss sequential
/// readers beside each other.
const NOTED_SHORT_READS: usize = 64;

type FrameKey = (ContainerId, u32);

/// Decompressed frames, and the keys of those being read.
#[derive(Debug)]
pub(crate) struct FrameCache {
    inner: Mutex<Frames>,
    changed: Condvar,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug)]
struct Frames {
    cached: Lru<FrameKey, Arc<Vec<u8>>>,
    loading: HashSet<FrameKey>,
    /// Frames of the latest short reads, oldest first.
    short: VecDeque<FrameKey>,
}

impl Frames {
    /// Notes a short read of a frame. Returns false, and notes nothing, if there was one lately.
    fn note_short(&mut self, key: FrameKey) -> bool {
        if self.short.contains(&key) {
            return false;
        }
        if self.short.len() == NOTED_SHORT_READS {
            self.short.pop_front();
        }
        self.short.push_back(key);
        true
    }
}

/// A frame to fetch, and the chunks that are wanted from it.
pub(crate) struct Needed {
    pub(crate) container: ContainerId,
    pub(crate) frame: Frame,
    /// (place in the caller's list, range in the raw frame).
    pub(crate) users: Vec<(usize, Range<usize>)>,
}

impl Needed {
    fn key(&self) -> FrameKey {
        (self.container, self.frame.number)
    }

    /// Returns the bytes of the frame from the first wanted chunk to the end of the last, if a short read can take
    /// them.
    pub(crate) fn short_range(&self) -> Option<Range<usize>> {
        let raw_bytes = self.frame.raw_bytes as usize;
        if self.frame.codec != Codec::Plain || self.frame.stored_bytes != self.frame.raw_bytes {
            return None;
        }
        let start = self.users.iter().map(|(_, range)| range.start).min()?;
        let end = self.users.iter().map(|(_, range)| range.end).max()?;
        (start <= end && end <= raw_bytes && end - start <= raw_bytes / LARGEST_SHARE).then_some(start..end)
    }
}

/// The work of a caller for frames that are not in the cache.
pub(crate) struct Share<'a> {
    /// The right to read `mine`.
    pub(crate) claims: Claims<'a>,
    /// Frames that this caller reads and publishes.
    pub(crate) mine: Vec<Needed>,
    /// Frames of which this caller reads the wanted chunks only.
    pub(crate) short: Vec<Needed>,
    /// Frames that others read. If `mine` is empty, one of these was just published or given up.
    pub(crate) waiting: Vec<Needed>,
}

/// Frames that a caller reads. If it is dropped (an error) before some are published, those are left to others.
pub(crate) struct Claims<'a> {
    cache: &'a FrameCache,
    keys: HashSet<FrameKey>,
}

impl FrameCache {
    pub(crate) fn new(limit_bytes: usize) -> FrameCache {
        FrameCache {
            inner: Mutex::new(Frames { cached: Lru::new(limit_bytes), loading: HashSet::new(), short: VecDeque::new() }),
            changed: Condvar::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Passes frames that are in the cache to `give`, and shares out the others: one caller reads each. Waits while
    /// others read all that is left. With `counts`, hits and misses are counted. With `may_be_short`, the caller does a
    /// short read of a frame if it wants little of it and nobody did one lately.
    pub(crate) fn share(
        &self,
        needed: Vec<Needed>,
        counts: bool,
        may_be_short: bool,
        mut give: impl FnMut(&Needed, &Arc<Vec<u8>>),
    ) -> Share<'_> {
        let claims = Claims { cache: self, keys: HashSet::new() };
        let mut share = Share { claims, mine: Vec::new(), short: Vec::new(), waiting: Vec::new() };
        let may_be_short = may_be_short && needed.len() <= SHORT_READ_FRAMES;
        let mut hits = 0;
        let mut inner = self.inner.lock();
        for frame in needed {
            let key = frame.key();
            if let Some(cached) = inner.cached.get(&key) {
                hits += 1;
                give(&frame, &cached);
            } else if inner.loading.contains(&key) {
                share.waiting.push(frame);
            } else if let Some(same) = share.short.iter_mut().find(|same| same.key() == key) {
                // In a merged container, chunks of two origins may lie in one frame.
                same.users.extend(frame.users);
            } else if may_be_short && frame.short_range().is_some() && inner.note_short(key) {
                share.short.push(frame);
            } else {
                inner.loading.insert(key);
                share.claims.keys.insert(key);
                share.mine.push(frame);
            }
        }
        if counts {
            self.hits.fetch_add(hits, Relaxed);
            self.misses.fetch_add((share.mine.len() + share.short.len() + share.waiting.len()) as u64, Relaxed);
        }
        if share.mine.is_empty() && share.short.is_empty() && !share.waiting.is_empty() {
            while share.waiting.iter().all(|needed| inner.loading.contains(&needed.key())) {
                self.changed.wait(&mut inner);
            }
        }
        drop(inner);
        share
    }

    /// Drops frames of a container.
    pub(crate) fn forget(&self, container: ContainerId, frames: Range<u32>) {
        let mut inner = self.inner.lock();
        frames.for_each(|frame| inner.cached.remove(&(container, frame)));
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.inner.lock().cached.used_bytes()
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }
}

impl Claims<'_> {
    /// Shares a frame that was read with everybody.
    pub(crate) fn publish(&mut self, needed: &Needed, frame: &Arc<Vec<u8>>) {
        let key = needed.key();
        self.keys.remove(&key);
        let mut inner = self.cache.inner.lock();
        inner.loading.remove(&key);
        inner.cached.insert(key, frame.clone(), frame.len());
        drop(inner);
        self.cache.changed.notify_all();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            let mut inner = self.cache.inner.lock();
            for key in &self.keys {
                inner.loading.remove(key);
            }
            drop(inner);
            self.cache.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_short_again_only_after_many_others() {
        let cache = FrameCache::new(1000);
        let mut frames = cache.inner.lock();
        let key = |number: u32| (ContainerId::new(0, 1), number);
        for number in 0..NOTED_SHORT_READS as u32 {
            assert!(frames.note_short(key(number)) && !frames.note_short(key(number)));
        }
        assert!(!frames.note_short(key(0)), "the oldest is still noted");
        assert!(frames.note_short(key(1000)) && frames.note_short(key(0)) && !frames.note_short(key(2)));
        assert_eq!(frames.short.len(), NOTED_SHORT_READS);
    }

    fn needed(codec: Codec, raw_bytes: u32, users: &[(usize, usize)]) -> Needed {
        let frame = Frame {
            number: 0,
            first_slot: 0,
            slots: users.len() as u32,
            offset_bytes: 64,
            stored_bytes: if codec == Codec::Plain { raw_bytes } else { raw_bytes / 2 },
            raw_bytes,
            codec,
            checksum: 0,
        };
        Needed { container: ContainerId::new(0, 1), frame, users: users.iter().map(|(start, end)| *start..*end).enumerate().collect() }
    }

    #[test]
    fn a_short_read_takes_at_most_half_of_a_plain_frame_and_nothing_behind_it() {
        let range = |users: &[(usize, usize)]| needed(Codec::Plain, 1000, users).short_range();
        assert_eq!(range(&[(300, 400), (100, 200)]), Some(100..400));
        assert_eq!((range(&[(0, 500)]), range(&[(0, 501)]), range(&[(0, 10), (600, 700)])), (Some(0..500), None, None));
        assert_eq!((range(&[(900, 1000)]), range(&[(900, 1001)]), range(&[(5000, 5001)])), (Some(900..1000), None, None));
        assert_eq!((range(&[(7, 7)]), range(&[])), (Some(7..7), None));
        for codec in [Codec::Lz4, Codec::Zstd, Codec::Zlib, Codec::Bzip2] {
            assert_eq!(needed(codec, 1000, &[(0, 10)]).short_range(), None);
        }
        let mut torn = needed(Codec::Plain, 1000, &[(0, 10)]);
        torn.frame.stored_bytes = 999;
        assert_eq!(torn.short_range(), None);
    }
}
