//! Keeps decompressed frames for reading, and lets only one thread at a time read a frame.
//!
//! Each method takes the lock last and alone.

use crate::cache::Lru;
use crate::{ContainerId, Frame};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

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
}

/// The work of a caller for frames that are not in the cache.
pub(crate) struct Share<'a> {
    /// The right to read `mine`.
    pub(crate) claims: Claims<'a>,
    /// Frames that this caller reads and publishes.
    pub(crate) mine: Vec<Needed>,
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
            inner: Mutex::new(Frames { cached: Lru::new(limit_bytes), loading: HashSet::new() }),
            changed: Condvar::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Passes frames that are in the cache to `give`, and shares out the others: one caller reads each. Waits while
    /// others read all that is left. With `counts`, hits and misses are counted.
    pub(crate) fn share(&self, needed: Vec<Needed>, counts: bool, mut give: impl FnMut(&Needed, &Arc<Vec<u8>>)) -> Share<'_> {
        let mut share = Share { claims: Claims { cache: self, keys: HashSet::new() }, mine: Vec::new(), waiting: Vec::new() };
        let mut hits = 0;
        let mut inner = self.inner.lock();
        for frame in needed {
            let key = frame.key();
            if let Some(cached) = inner.cached.get(&key) {
                hits += 1;
                give(&frame, &cached);
            } else if inner.loading.insert(key) {
                share.claims.keys.insert(key);
                share.mine.push(frame);
            } else {
                share.waiting.push(frame);
            }
        }
        if counts {
            self.hits.fetch_add(hits, Relaxed);
            self.misses.fetch_add((share.mine.len() + share.waiting.len()) as u64, Relaxed);
        }
        if share.mine.is_empty() && !share.waiting.is_empty() {
            while share.waiting.iter().all(|needed| inner.loading.contains(&needed.key())) {
                self.changed.wait(&mut inner);
            }
        }
        drop(inner);
        share
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
