//! Data that repeats within a generation: which piece of which buffer comes next.

use crate::noise::{Key, unit};
use std::sync::OnceLock;

/// The number of buffers in the papers' pool, and their length in bytes: 64 MiB in total.
const BUFFERS: usize = 2048;
const BUFFER_BYTES: u64 = 32 << 10;
/// The mean index of the picked buffer, before indexes past the last buffer are redrawn.
#[cfg(test)]
pub(crate) const MEAN_INDEX: f64 = 256.0;
/// e^(-1/256): the ratio of the probabilities of one buffer and the previous one. It is a constant so that all machines
/// round it alike.
const FALL: f64 = 0.996_101_369_470_117_5;
/// Length in bytes of the pattern of the 2009 generator.
const PATTERN_BYTES: u64 = 1 << 20;
/// Length in bytes of a block in the block sets, and how often it appears in its file.
const BLOCK_BYTES: u64 = 4096;
const BLOCKS_OF_A_FILE: u64 = 1024;

/// How buffers are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Picks any of 2048 buffers repeatedly, the first ones far more often than the last. Every run begins with a new
    /// pick, and every buffer is read from its beginning.
    Exponential,
    /// Repeats one pattern endlessly, continuing from run to run.
    Pattern,
    /// Repeats a block 1024 times, then the next block.
    BlockOfFile,
}

/// The pool of one generation.
#[derive(Debug)]
pub(crate) struct Pool {
    reuse: Reuse,
    draws: Key,
    /// Number of the next pick.
    picks: u64,
    /// The buffer being read: its number, the bytes read of it, and the bytes left.
    buffer: u64,
    read: u64,
    left: u64,
}

/// A piece of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolPiece {
    pub(crate) buffer: u64,
    /// The offset in the buffer, and the offset in the pool.
    pub(crate) offset: u64,
    pub(crate) at: u64,
    pub(crate) length: u64,
}

impl Pool {
    pub(crate) fn new(reuse: Reuse, draws: Key) -> Pool {
        Pool { reuse, draws, picks: 0, buffer: 0, read: 0, left: 0 }
    }

    /// Begins a run.
    pub(crate) fn begin_run(&mut self) {
        if self.reuse == Reuse::Exponential {
            self.left = 0;
        }
    }

    /// Returns the next piece, of at most `limit` bytes.
    pub(crate) fn next(&mut self, limit: u64) -> PoolPiece {
        let buffer_bytes = match self.reuse {
            Reuse::Exponential => BUFFER_BYTES,
            Reuse::Pattern => PATTERN_BYTES,
            Reuse::BlockOfFile => BLOCK_BYTES,
        };
        if self.left == 0 {
            self.buffer = match self.reuse {
                Reuse::Exponential => pick(unit(self.draws.word(self.picks))),
                Reuse::Pattern => 0,
                Reuse::BlockOfFile => self.picks / BLOCKS_OF_A_FILE,
            };
            self.picks += 1;
            (self.read, self.left) = (0, buffer_bytes);
        }
        let length = limit.min(self.left);
        let piece = PoolPiece { buffer: self.buffer, offset: self.read, at: self.buffer * buffer_bytes + self.read, length };
        self.read += length;
        self.left -= length;
        piece
    }
}

/// Returns the buffer for `share`, from 0 to 1: an exponential distribution of mean 256, rounded down, conditional on
/// being one of the 2048. The papers' generator redraws instead, which gives the same distribution.
fn pick(share: f64) -> u64 {
    static BELOW: OnceLock<Vec<f64>> = OnceLock::new();
    let below = BELOW.get_or_init(|| {
        let falls = std::iter::successors(Some(1.0), |power| Some(power * FALL));
        let below: Vec<f64> = falls.take(BUFFERS + 1).map(|power| 1.0 - power).collect();
        let all = below[BUFFERS];
        below.into_iter().map(|one| one / all).collect()
    });
    // The first value is 0 and the last is 1, so the result is one of the buffers.
    below.partition_point(|end| *end <= share).saturating_sub(1).min(BUFFERS - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_picked_with_falling_probability() {
        assert!((FALL - (-1.0 / MEAN_INDEX).exp()).abs() < 1e-15);
        assert_eq!((pick(0.0), pick(1.0 - f64::EPSILON)), (0, 2047));
        // Half of all picks fall on the first ln(2) * 256 buffers, or slightly fewer because the tail is cut.
        assert!((176..178).contains(&pick(0.5)), "{}", pick(0.5));
    }

    #[test]
    fn every_run_of_the_pool_begins_with_a_buffer_and_the_pattern_goes_on() {
        let key = Key::derive(&[1]);
        let mut pool = Pool::new(Reuse::Exponential, key);
        for _ in 0..10 {
            pool.begin_run();
            let pieces: Vec<PoolPiece> = [20_000, 20_000, 40_000].into_iter().map(|limit| pool.next(limit)).collect();
            let places: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.offset, piece.length)).collect();
            assert_eq!(places, [(0, 20_000), (20_000, 12_768), (0, 32_768)]);
            assert!(pieces.iter().all(|piece| piece.at == piece.buffer * 32_768 + piece.offset));
        }
        let mut pattern = Pool::new(Reuse::Pattern, key);
        for begin in [0, 700_000] {
            pattern.begin_run();
            assert_eq!((pattern.next(700_000).at, begin), (begin, begin));
        }
        assert_eq!(pattern.next(10).at, 0);
    }
}
