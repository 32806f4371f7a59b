//! The bytes of a generation, generated while they are read.

use crate::noise::Key;
use crate::op::Op;
use crate::pool::Pool;
use crate::script::Script;
use crate::state::State;
use std::io::Read;

/// The origin of some bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    key: Key,
    at: u64,
    length: u64,
}

/// A place in a generation, and in all earlier generations whose data it has. All of these places only move forward.
#[derive(Debug)]
pub(crate) struct Generation {
    script: Script,
    doing: Op,
    unique: Key,
    unique_at: u64,
    pooled: Key,
    pool: Pool,
    source: Option<Box<Generation>>,
}

impl Generation {
    pub(crate) fn new(script: Script, pool: Pool, unique: Key, pooled: Key, source: Option<Box<Generation>>) -> Generation {
        Generation { script, doing: Op::Unique(0), unique, unique_at: 0, pooled, pool, source }
    }

    /// Returns the next piece, of at most `limit` bytes. `limit` is not 0. Returns `None` at the end.
    fn next(&mut self, limit: u64) -> Option<Piece> {
        loop {
            match &mut self.doing {
                Op::Unique(0) | Op::Internal(0) | Op::Copy(0) | Op::Skip(0) => {
                    self.doing = self.script.next()?;
                    if matches!(self.doing, Op::Internal(_)) {
                        self.pool.begin_run();
                    }
                }
                Op::Unique(left) => {
                    let length = limit.min(*left);
                    *left -= length;
                    let piece = Piece { key: self.unique, at: self.unique_at, length };
                    self.unique_at += length;
                    return Some(piece);
                }
                Op::Internal(left) => {
                    let piece = self.pool.next(limit.min(*left));
                    *left -= piece.length;
                    return Some(Piece { key: self.pooled, at: piece.at, length: piece.length });
                }
                Op::Copy(left) => {
                    let piece = self.source.as_mut()?.next(limit.min(*left))?;
                    *left -= piece.length;
                    return Some(piece);
                }
                Op::Skip(left) => {
                    let piece = self.source.as_mut()?.next(*left)?;
                    *left -= piece.length;
                }
            }
        }
    }
}

/// The bytes of a workload. Its [`Read`] never fails.
#[derive(Debug)]
pub struct Stream {
    generation: Generation,
}

impl Stream {
    pub(crate) fn new(generation: Generation) -> Stream {
        Stream { generation }
    }

    /// Writes the next bytes into `out` and returns how many. It writes fewer than `out` has room for only at the end.
    pub fn fill(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            let Some(piece) = self.generation.next((out.len() - filled) as u64) else { break };
            let end = filled + piece.length as usize;
            piece.key.fill(piece.at, &mut out[filled..end]);
            filled = end;
        }
        filled
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.fill(out))
    }
}

/// The fingerprints of a stream, one by one.
#[derive(Debug)]
pub struct Fingerprints {
    stream: Stream,
    buffer: Vec<u8>,
    read: usize,
}

impl Fingerprints {
    pub(crate) fn new(stream: Stream) -> Fingerprints {
        Fingerprints { stream, buffer: Vec::new(), read: 0 }
    }
}

impl Iterator for Fingerprints {
    type Item = [u8; 32];

    fn next(&mut self) -> Option<[u8; 32]> {
        if self.read == self.buffer.len() {
            self.buffer.resize(32 << 10, 0);
            let filled = self.stream.fill(&mut self.buffer);
            self.buffer.truncate(filled);
            self.read = 0;
        }
        let fingerprint = *self.buffer[self.read..].first_chunk()?;
        self.read += fingerprint.len();
        Some(fingerprint)
    }
}

/// Consecutive bytes in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The origin of the bytes.
    pub state: State,
    /// Offset in the stream, in bytes.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub length: u64,
}

/// The runs of a stream. Adjacent runs have different states.
#[derive(Debug)]
pub struct Runs {
    script: Script,
    run: Option<Run>,
}

impl Runs {
    pub(crate) fn new(script: Script) -> Runs {
        Runs { script, run: None }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        loop {
            let (state, length) = match self.script.next() {
                Some(Op::Unique(length)) => (State::Unique, length),
                Some(Op::Internal(length)) => (State::Internal, length),
                Some(Op::Copy(length)) => (State::Temporal, length),
                Some(Op::Skip(_)) => continue,
                None => return self.run.take(),
            };
            if length == 0 {
                continue;
            }
            match &mut self.run {
                Some(run) if run.state == state => run.length += length,
                run => {
                    let offset = run.map_or(0, |run| run.offset + run.length);
                    if let Some(ended) = run.replace(Run { state, offset, length }) {
                        return Some(ended);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_takes_little_memory_and_none_for_its_size() {
        // This is all the memory: only the previous generation is on the heap.
        assert!(size_of::<Generation>() <= 512, "{}", size_of::<Generation>());
    }
}
