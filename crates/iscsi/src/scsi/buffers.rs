//! Reusable memory for the data of long commands. The system clears new memory page by page, which takes longer than
//! copying as much.

use parking_lot::Mutex;

/// Shorter data comes from the allocator, which reuses such memory itself.
const MIN_BYTES: usize = 64 << 10;
/// The most bytes kept for reuse.
const KEPT_BYTES: usize = 16 << 20;

/// Unused buffers, some megabytes at most.
#[derive(Debug, Default)]
pub struct Buffers {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// Returns an empty buffer with this capacity.
    pub fn empty(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.find(bytes).unwrap_or_default();
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer
    }

    /// Returns a buffer of this length with any content. All of it must be written before it is shown to anyone.
    pub fn full(&self, bytes: usize) -> Vec<u8> {
        match self.find(bytes) {
            Some(mut buffer) => {
                buffer.resize(bytes, 0);
                buffer
            }
            None => vec![0; bytes],
        }
    }

    /// Returns a used buffer with this capacity and not much more, so that a short command does not keep the memory of
    /// a long one.
    fn find(&self, bytes: usize) -> Option<Vec<u8>> {
        if bytes < MIN_BYTES {
            return None;
        }
        let mut kept = self.kept.lock();
        let at = kept.buffers.iter().rposition(|buffer| (bytes..=bytes * 2).contains(&buffer.capacity()))?;
        let buffer = kept.buffers.swap_remove(at);
        kept.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Takes a buffer back. If there are too many, drops the oldest.
    pub fn give_back(&self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if !(MIN_BYTES..=KEPT_BYTES).contains(&bytes) {
            return;
        }
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        while kept.bytes + bytes > KEPT_BYTES {
            let oldest = kept.buffers.remove(0);
            kept.bytes -= oldest.capacity();
            gone.push(oldest);
        }
        kept.bytes += bytes;
        kept.buffers.push(buffer);
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_used_again_and_never_too_much_is_kept() {
        let buffers = Buffers::default();
        let mut first = buffers.full(1 << 20);
        assert!(first.iter().all(|byte| *byte == 0));
        first.fill(7);
        let place = first.as_ptr();
        buffers.give_back(first);
        let short = buffers.full(100 << 10);
        assert_ne!(short.as_ptr(), place, "too large for that");
        let again = buffers.full(600 << 10);
        assert_eq!((again.as_ptr(), again.len()), (place, 600 << 10));
        buffers.give_back(again);
        let empty = buffers.empty(1 << 20);
        assert_eq!((empty.as_ptr(), empty.len()), (place, 0));
        for megabytes in 0..40 {
            buffers.give_back(vec![0; megabytes << 20]);
            buffers.give_back(vec![0; 100]);
            let kept = buffers.kept.lock();
            assert_eq!(kept.bytes, kept.buffers.iter().map(Vec::capacity).sum::<usize>());
            assert!(kept.bytes <= KEPT_BYTES);
        }
    }
}
