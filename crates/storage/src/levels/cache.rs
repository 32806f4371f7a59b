//! Decompressed frames that were read lately.
//!
//! A frame names its chunks, so that whoever reads one chunk finds those beside it here, without asking pages of keys:
//! a restore asks for one key for each frame, or for each read of several frames, and not for each chunk. A name stands
//! for one content, so what is here never gets wrong, wherever a compaction moves the chunk.

use crate::Slice;
use onefold_fingerprint::Fingerprint;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What a name takes beside the bytes of its chunk.
const NAME_BYTES: usize = 96;

/// A decompressed frame, and where its chunks are in it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Name, offset and length, in the order of the frame.
    pub(crate) chunks: Vec<(Fingerprint, u32, u32)>,
}

impl Frame {
    fn used_bytes(&self) -> usize {
        self.bytes.len() + self.chunks.len() * NAME_BYTES
    }

    /// Returns a chunk.
    pub(crate) fn find(&self, name: &Fingerprint) -> Option<Slice> {
        let (_, offset, length) = self.chunks.iter().find(|(chunk, ..)| chunk == name)?;
        Some(self.slice(*offset, *length))
    }

    fn slice(&self, offset: u32, length: u32) -> Slice {
        Slice::new(self.bytes.clone(), offset as usize..(offset + length) as usize)
    }
}

/// The cache. The frame that came first goes first, unless it was asked for since.
#[derive(Debug)]
pub(crate) struct FrameCache {
    inner: Mutex<Inner>,
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    frames: HashMap<u64, (Frame, bool)>,
    /// Which frame has a chunk, and where.
    names: HashMap<Fingerprint, (u64, u32, u32)>,
    order: VecDeque<u64>,
    next: u64,
    used_bytes: usize,
}

impl FrameCache {
    pub(crate) fn new(limit_bytes: usize) -> FrameCache {
        FrameCache { inner: Mutex::default(), limit_bytes }
    }

    /// Returns a chunk.
    pub(crate) fn get(&self, name: &Fingerprint) -> Option<Slice> {
        let mut inner = self.inner.lock();
        let (number, offset, length) = *inner.names.get(name)?;
        let (frame, is_used) = inner.frames.get_mut(&number)?;
        *is_used = true;
        Some(frame.slice(offset, length))
    }

    /// Forgets chunks that were removed, or are stored again because a copy looked bad.
    pub(crate) fn forget<'a>(&self, names: impl Iterator<Item = &'a Fingerprint>) {
        let mut inner = self.inner.lock();
        if !inner.names.is_empty() {
            for name in names {
                inner.names.remove(name);
            }
        }
    }

    /// Keeps a frame, and drops others for it.
    pub(crate) fn put(&self, frame: &Frame) {
        let bytes = frame.used_bytes();
        if bytes > self.limit_bytes {
            return;
        }
        let mut inner = self.inner.lock();
        // Somebody else may have read it meanwhile.
        if frame.chunks.iter().all(|(name, ..)| inner.names.contains_key(name)) {
            return;
        }
        while inner.used_bytes + bytes > self.limit_bytes {
            let Some(number) = inner.order.pop_front() else { break };
            match inner.frames.remove(&number) {
                Some((old, true)) => {
                    inner.frames.insert(number, (old, false));
                    inner.order.push_back(number);
                }
                Some((old, false)) => {
                    inner.used_bytes -= old.used_bytes();
                    for (name, ..) in &old.chunks {
                        if inner.names.get(name).is_some_and(|(of, ..)| *of == number) {
                            inner.names.remove(name);
                        }
                    }
                }
                None => {}
            }
        }
        let number = inner.next;
        inner.next += 1;
        inner.used_bytes += bytes;
        for (name, offset, length) in &frame.chunks {
            inner.names.insert(*name, (number, *offset, *length));
        }
        inner.frames.insert(number, (frame.clone(), false));
        inner.order.push_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_fingerprint::Algorithm;

    fn frame(first: u32, chunks: u32) -> Frame {
        let name = |number: u32| Algorithm::Blake3.fingerprint(&number.to_le_bytes());
        let bytes = (first..first + chunks).flat_map(u32::to_le_bytes).collect();
        Frame { bytes: Arc::new(bytes), chunks: (0..chunks).map(|at| (name(first + at), at * 4, 4)).collect() }
    }

    #[test]
    fn frames_are_found_by_any_chunk_and_stay_within_the_limit() {
        let one = frame(0, 3);
        let cache = FrameCache::new(3 * one.used_bytes());
        for first in [0, 10, 20] {
            cache.put(&frame(first, 3));
        }
        let get = |number: u32| cache.get(&frame(number, 1).chunks[0].0);
        assert_eq!(get(1).unwrap()[..], 1u32.to_le_bytes());
        cache.put(&frame(30, 3));
        // The first one was asked for, so the second one went.
        assert!(get(0).is_some() && get(10).is_none() && get(22).is_some() && get(31).is_some());
        // A frame that has a chunk of another one.
        cache.put(&frame(32, 3));
        assert_eq!(get(32).unwrap()[..], 32u32.to_le_bytes());
        for first in (100..200).step_by(3) {
            cache.put(&frame(first, 3));
        }
        let inner = cache.inner.lock();
        assert_eq!(inner.used_bytes, 3 * one.used_bytes());
        assert_eq!((inner.frames.len(), inner.order.len(), inner.names.len()), (3, 3, 9));
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let cache = FrameCache::new(0);
        cache.put(&frame(0, 3));
        assert!(cache.get(&frame(0, 1).chunks[0].0).is_none());
    }
}
