//! Copies ranges without moving data: only mappings are copied.
//!
//! [`Space::capture`] records what a range contains at one moment. [`Space::place`] gives a range of any space of
//! the store the same content. Blocks that are placed whole get the same pieces, wherever the block borders of the
//! source are. Only partial blocks at the two ends are read and written.
//!
//! Invariants:
//! * A [`Content`] never changes, whatever happens to its space. It holds an in-flight guard from before its mappings
//!   were looked up, so none of its chunks is removed. That holds back the removal of all unused chunks, so do not keep
//!   it for long.
//! * A block is placed in one transaction, with the references that it gains and loses.

use crate::at::{At, Part};
use crate::error::{Result, SpaceError};
use crate::space::Space;
use crate::write_out::{Locked, batch_blocks};
use onefold_engine::{Engine, InFlight, Piece};
use std::sync::Arc;

/// A batch has this many times the blocks of a write-out, because it carries no data.
const BATCH_FACTOR: usize = 4;
/// Bytes that [`Space::copy_from`] captures at a time.
const COPY_BYTES: u64 = 64 << 20;

/// The content of a range of a space at one moment.
#[derive(Debug)]
pub struct Content {
    engine: Arc<Engine>,
    verify: bool,
    /// The parts of the blocks of the range, in order, without gaps.
    runs: Vec<Run>,
    length: u64,
    memory_bytes: usize,
    _in_flight: InFlight,
}

#[derive(Debug)]
struct Run {
    /// First byte within the content.
    at: u64,
    /// First byte within the known bytes of the block.
    start: u64,
    length: u64,
    known: Known,
}

#[derive(Debug)]
enum Known {
    /// The pieces of the whole block. Empty for zeros.
    Pieces(Arc<Vec<Piece>>),
    /// The block had unstored writes: its bytes within the range.
    Bytes(Vec<u8>),
}

impl Content {
    /// Its length, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Fills `out` from byte `from` on.
    pub fn read(&self, from: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        for (run, start, length) in self.within(from, out.len() as u64) {
            let target = &mut out[done..done + length as usize];
            done += target.len();
            match &run.known {
                Known::Pieces(pieces) if pieces.is_empty() => target.fill(0),
                Known::Pieces(pieces) => self.engine.read(pieces, start, target, self.verify)?,
                Known::Bytes(bytes) => target.copy_from_slice(&bytes[start as usize..(start + length) as usize]),
            }
        }
        Ok(())
    }

    /// Returns the runs of a part of the content, each with its first byte and its number of bytes.
    fn within(&self, from: u64, length: u64) -> impl Iterator<Item = (&Run, u64, u64)> {
        let end = from + length;
        let first = self.runs.partition_point(|run| run.at + run.length <= from);
        self.runs[first..].iter().take_while(move |run| run.at < end).map(move |run| {
            let (start, stop) = (from.max(run.at), end.min(run.at + run.length));
            (run, run.start + (start - run.at), stop - start)
        })
    }

    /// Returns the pieces of a part, empty for zeros. Returns `None` if some of it is not stored.
    fn pieces(&self, from: u64, length: u64) -> Option<Vec<Piece>> {
        let mut out = Vec::new();
        for (run, start, length) in self.within(from, length) {
            match &run.known {
                Known::Bytes(_) => return None,
                Known::Pieces(pieces) if pieces.is_empty() => append(&mut out, Piece::Zeros { length }),
                Known::Pieces(pieces) => cut(pieces, start, length).for_each(|piece| append(&mut out, piece)),
            }
        }
        if out.iter().all(|piece| piece.fingerprint().is_none()) {
            out.clear();
        }
        Some(out)
    }
}

/// Returns the pieces of `length` bytes from byte `start` on.
pub(crate) fn cut(pieces: &[Piece], start: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = start + length;
    let mut at = 0;
    pieces.iter().filter_map(move |piece| {
        let first = at;
        at += piece.length();
        let (from, to) = (first.max(start), at.min(end));
        (from < to).then(|| match *piece {
            Piece::Zeros { .. } => Piece::Zeros { length: to - from },
            // Chunk lengths, and offsets in chunks, have 32 bits.
            Piece::Chunk { fingerprint, address, offset, .. } => {
                Piece::Chunk { fingerprint, address, offset: offset + (from - first) as u32, length: (to - from) as u32 }
            }
        })
    })
}

/// Appends a piece. Joins it with the last one if it continues it.
pub(crate) fn append(out: &mut Vec<Piece>, piece: Piece) {
    match (out.last_mut(), piece) {
        (Some(Piece::Zeros { length }), Piece::Zeros { length: more }) => *length += more,
        (
            Some(Piece::Chunk { fingerprint, address, offset, length }),
            Piece::Chunk { fingerprint: other, address: other_address, offset: other_offset, length: more },
        ) if *fingerprint == other && *address == other_address && *offset + *length == other_offset => *length += more,
        _ => out.push(piece),
    }
}

impl Space {
    /// Captures the content of a range. Every write that returned before the call is in it. A concurrent write is in it
    /// or not, block by block.
    pub fn capture(&self, at: At, length: u64) -> Result<Content> {
        let engine = self.shared.engine.clone();
        // Taken before the first lookup, so that whatever is found stays.
        let in_flight = engine.in_flight();
        self.write_out_range(at, length)?;
        let mut content =
            Content { engine, verify: self.shared.options.verify, runs: Vec::new(), length, memory_bytes: 0, _in_flight: in_flight };
        for part in self.parts(at, length) {
            let run = self.take_down(part, content.runs.last().map_or(0, |run| run.at + run.length))?;
            content.memory_bytes += size_of::<Run>()
                + match &run.known {
                    Known::Pieces(pieces) => pieces.capacity() * size_of::<Piece>(),
                    Known::Bytes(bytes) => bytes.len(),
                };
            content.runs.push(run);
        }
        self.shared.tidy(self);
        Ok(content)
    }

    fn take_down(&self, part: Part, at: u64) -> Result<Run> {
        let gate = self.enter(part)?;
        let cell = self.cells.get(part.block);
        let buffer = cell.read(self.shared.profile());
        let length = part.length as u64;
        Ok(match &*buffer {
            None => Run { at, start: part.start as u64, length, known: Known::Pieces(self.mapping(&gate, part.block, &cell)?.pieces) },
            Some(buffer) if buffer.is_cleared() => Run { at, start: 0, length, known: Known::Pieces(Arc::default()) },
            Some(_) => {
                let mut bytes = vec![0; part.length];
                self.read_locked(&gate, part, &cell, &buffer, &mut bytes)?;
                Run { at, start: 0, length, known: Known::Bytes(bytes) }
            }
        })
    }

    /// Gives `length` bytes at a place the content from byte `from` on, like a [write](Space::write) of these bytes.
    pub fn place(&self, at: At, content: &Content, from: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        if from.checked_add(length).is_none_or(|end| end > content.length) {
            let (name, end_bytes) = (self.name(), content.length);
            return Err(SpaceError::OutOfRange { name, offset_bytes: from, length_bytes: length, end_bytes });
        }
        let is_own = Arc::ptr_eq(&content.engine, &self.shared.engine);
        let mut mapped: Vec<(u64, Vec<Piece>)> = Vec::new();
        let mut from = from;
        for part in self.parts(at, length) {
            let is_whole = is_own && part.length == self.block_bytes();
            match if is_whole { content.pieces(from, part.length as u64) } else { None } {
                Some(pieces) => mapped.push((part.block, pieces)),
                None => {
                    self.place_mapped(&mut mapped)?;
                    let mut bytes = vec![0; part.length];
                    content.read(from, &mut bytes)?;
                    self.change_part(part, |buffer| buffer.write(part.start, &bytes))?;
                }
            }
            if mapped.len() == BATCH_FACTOR * batch_blocks(self.block_bytes()) {
                self.place_mapped(&mut mapped)?;
            }
            from += part.length as u64;
        }
        self.place_mapped(&mut mapped)?;
        self.shared.tidy(self);
        Ok(())
    }

    /// Gives sorted blocks new mappings in one transaction. Drops their unstored writes.
    fn place_mapped(&self, mapped: &mut Vec<(u64, Vec<Piece>)>) -> Result<()> {
        let Some(last) = mapped.last() else { return Ok(()) };
        let gate = self.enter(Part::whole(last.0, self.block_bytes()))?;
        let top = &*self.top(&gate)?;
        let (blocks, pieces): (Vec<u64>, Vec<Vec<Piece>>) = mapped.drain(..).unzip();
        let cells: Vec<_> = blocks.iter().map(|block| self.cells.get(*block)).collect();
        // In ascending order, like everywhere that locks several blocks.
        let mut locked: Vec<Locked<'_>> =
            blocks.iter().zip(&cells).map(|(block, cell)| Locked::new(*block, cell, cell.write(self.shared.profile()))).collect();
        for entry in &mut locked {
            self.look_up_old(&gate, entry, true)?;
        }
        let result = self.replace(top, &locked, pieces);
        // Older writes in memory must not cover the new content.
        for entry in locked.iter_mut().filter(|_| result.is_ok()) {
            if entry.buffer.take().is_some() {
                self.count_removed(entry.block);
            }
        }
        drop(locked);
        self.shared.notify_written_out();
        result
    }

    /// Copies `length` bytes of `source`, which may be this space, from `source_at` to `at`. The result is the same as
    /// if all bytes were read before any is written, unless either range is written to meanwhile. Errors: a part may
    /// have been copied.
    pub fn copy_from(&self, at: At, source: &Space, source_at: At, length: u64) -> Result<()> {
        self.check_writable()?;
        let block_bytes = u64::from(self.block_size());
        let steps = length.div_ceil(COPY_BYTES);
        // Source bytes that are still to be copied must not be overwritten.
        let is_backward = source.number == self.number && source_at.within(block_bytes) < at.within(block_bytes);
        for step in 0..steps {
            let start = if is_backward { steps - 1 - step } else { step } * COPY_BYTES;
            let content = source.capture(source_at.plus(start), COPY_BYTES.min(length - start))?;
            self.place(at.plus(start), &content, 0, content.length())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::{BLOCK, create, delete, options, read};
    use crate::testing::TestStore;
    use crate::testing::bytes;
    use onefold_engine::Address;
    use onefold_fingerprint::Fingerprint;

    const BLOCK_BYTES: usize = BLOCK as usize;

    #[test]
    fn pieces_are_cut_and_become_one_again() {
        let chunk = |name: u8, offset, length| Piece::Chunk {
            fingerprint: Fingerprint::from_digest(&[name; 20]),
            address: Address::from_bits(u64::from(name)),
            offset,
            length,
        };
        let pieces = [chunk(1, 0, 100), Piece::Zeros { length: 50 }, chunk(2, 7, 100)];
        assert_eq!(cut(&pieces, 40, 120).collect::<Vec<_>>(), [chunk(1, 40, 60), Piece::Zeros { length: 50 }, chunk(2, 7, 10)]);
        let mut again = Vec::new();
        for (start, length) in [(0, 30), (30, 90), (120, 130)] {
            cut(&pieces, start, length).for_each(|piece| append(&mut again, piece));
        }
        assert_eq!(again, pieces);
    }

    #[test]
    fn a_copy_stores_nothing_new_wherever_its_blocks_begin() {
        let mut store = TestStore::new();
        let spaces = store.spaces(options());
        let data = bytes(1, 6 * BLOCK_BYTES);
        let (source, target) =
            (create(&spaces, "a", data.len() as u64, BLOCK).unwrap(), create(&spaces, "b", data.len() as u64, 2 * BLOCK).unwrap());
        source.write(At::byte(0), &data).unwrap();
        spaces.flush().unwrap();
        let unique = store.unique_bytes();
        target.copy_from(At::byte(0), &source, At::byte(4096), 4 * BLOCK as u64).unwrap();
        spaces.flush().unwrap();
        assert_eq!(store.unique_bytes(), unique);
        assert!(read(&target, 0, 4 * BLOCK_BYTES) == data[4096..4096 + 4 * BLOCK_BYTES]);
        store.check_counts(&[&source, &target]);
    }

    #[test]
    fn a_content_stays_what_it_was() {
        let mut store = TestStore::new();
        let spaces = store.spaces(options());
        let data = bytes(2, 3 * BLOCK_BYTES);
        let space = create(&spaces, "a", data.len() as u64, BLOCK).unwrap();
        space.write(At::byte(0), &data).unwrap();
        let content = space.capture(At::byte(100), 2 * u64::from(BLOCK)).unwrap();
        space.write(At::byte(0), &bytes(3, 3 * BLOCK_BYTES)).unwrap();
        spaces.flush().unwrap();
        let other = create(&spaces, "b", data.len() as u64, BLOCK).unwrap();
        delete(&spaces, "a").unwrap();
        assert!(spaces.resume_deletions(&|| true).unwrap());
        other.place(At::byte(0), &content, 0, content.length()).unwrap();
        assert!(read(&other, 0, 2 * BLOCK_BYTES) == data[100..100 + 2 * BLOCK_BYTES]);
        assert!(other.place(At::byte(0), &content, 1, content.length()).is_err());
        drop(content);
        spaces.flush().unwrap();
        store.check_counts(&[&other]);
    }
}
