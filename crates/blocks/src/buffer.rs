//! The bytes written to one block that are not stored yet.

use std::collections::BTreeMap;

/// What lies below the pieces that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The bytes of the block's mapping.
    Stored,
    /// Zeros: the whole block was discarded or zeroed.
    Zeros,
}

/// The pieces written to a block; the newest write wins. They never overlap or touch: adjacent pieces are joined.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: Base,
    pieces: BTreeMap<usize, Vec<u8>>,
    bytes: usize,
}

/// Memory of a piece besides its bytes, rounded up.
const PIECE_BYTES: usize = 64;
/// Memory of a buffer besides its pieces: its entries in the maps of blocks, rounded up.
pub(crate) const BUFFER_BYTES: usize = 320;

impl Buffer {
    pub(crate) fn new(base: Base) -> Buffer {
        Buffer { base, pieces: BTreeMap::new(), bytes: 0 }
    }

    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// Memory, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        BUFFER_BYTES + self.bytes
    }

    /// Returns whether the block is all zeros because nothing was written on top of its zeros.
    pub(crate) fn is_cleared(&self) -> bool {
        self.base == Base::Zeros && self.pieces.is_empty()
    }

    /// Returns the whole block, if all of it was written.
    pub(crate) fn whole(&self, block_bytes: usize) -> Option<&[u8]> {
        self.pieces.get(&0).filter(|piece| piece.len() == block_bytes).map(Vec::as_slice)
    }

    /// Returns whether all of `start .. end` was written or lies on zeros, so that the stored bytes do not matter.
    pub(crate) fn covers(&self, start: usize, end: usize) -> bool {
        self.base == Base::Zeros || self.pieces.range(..=start).next_back().is_some_and(|(at, piece)| at + piece.len() >= end)
    }

    /// Stores `data` at `at`.
    pub(crate) fn write(&mut self, at: usize, data: &[u8]) {
        self.put(at, data.len(), |piece, from| {
            let (over, behind) = data.split_at(data.len().min(piece.len() - from));
            piece[from..from + over.len()].copy_from_slice(over);
            piece.extend_from_slice(behind);
        });
    }

    /// Stores `length` zeros at `at`.
    pub(crate) fn write_zeros(&mut self, at: usize, length: usize) {
        self.put(at, length, |piece, from| {
            let over = length.min(piece.len() - from);
            piece[from..from + over].fill(0);
            piece.resize(piece.len() + length - over, 0);
        });
    }

    /// Lets `fill` put `length` bytes into the piece, from a place in it or at its end.
    fn put(&mut self, at: usize, length: usize, fill: impl FnOnce(&mut Vec<u8>, usize)) {
        if length == 0 {
            return;
        }
        // The piece that begins at or before `at` and reaches it grows, and absorbs all pieces that it then meets.
        let start = match self.pieces.range(..=at).next_back() {
            Some((start, piece)) if start + piece.len() >= at => *start,
            _ => at,
        };
        let mut piece = self.take(start).unwrap_or_default();
        fill(&mut piece, at - start);
        while let Some(next) = self.pieces.range(start..=start + piece.len()).next().map(|(next, _)| *next) {
            let swallowed = self.take(next).expect("found above");
            let covered = start + piece.len() - next;
            if let Some(rest) = swallowed.get(covered..) {
                piece.extend_from_slice(rest);
            }
        }
        self.bytes += PIECE_BYTES + piece.capacity();
        self.pieces.insert(start, piece);
    }

    fn take(&mut self, start: usize) -> Option<Vec<u8>> {
        let piece = self.pieces.remove(&start)?;
        self.bytes -= PIECE_BYTES + piece.capacity();
        Some(piece)
    }

    /// Copies what was written of `start .. start + out.len()` over `out`.
    pub(crate) fn overlay(&self, start: usize, out: &mut [u8]) {
        let end = start + out.len();
        let first = self.pieces.range(..=start).next_back().map_or(start, |(at, _)| *at);
        for (at, piece) in self.pieces.range(first..end) {
            let (from, to) = ((*at).max(start), (at + piece.len()).min(end));
            if from < to {
                out[from - start..to - start].copy_from_slice(&piece[from - at..to - at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_newest_bytes_win(zeros: bool, writes in proptest::collection::vec((0usize..200, 0usize..60, any::<u8>()), 0..20), start in 0usize..250, length in 0usize..50) {
            let mut buffer = Buffer::new(if zeros { Base::Zeros } else { Base::Stored });
            let mut model = vec![None; 300];
            for (at, length, value) in writes {
                if value == 0 {
                    buffer.write_zeros(at, length);
                } else {
                    buffer.write(at, &vec![value; length]);
                }
                model[at..at + length].fill(Some(value));
                let bytes: usize = buffer.pieces.values().map(|piece| PIECE_BYTES + piece.capacity()).sum();
                prop_assert_eq!(buffer.bytes, bytes);
                let touching = buffer.pieces.iter().zip(buffer.pieces.keys().skip(1)).any(|((at, piece), next)| at + piece.len() >= *next);
                prop_assert!(!touching);
            }
            let mut out = vec![9; length];
            buffer.overlay(start, &mut out);
            let expected: Vec<u8> = model[start..start + length].iter().map(|byte| byte.unwrap_or(9)).collect();
            prop_assert_eq!(out, expected);
            if length > 0 {
                prop_assert_eq!(buffer.covers(start, start + length), zeros || model[start..start + length].iter().all(Option::is_some));
            }
        }
    }
}
