//! Zeros and holes of a space. Zeros are not stored: a block of zeros has no mapping. A discarded block loses
//! its mapping, or gets one that hides the layers below. The cost of all this follows the stored data, not the size of
//! the range.

use crate::at::{At, Part};
use crate::error::Result;
use crate::layers::STEP_OBJECTS;
use crate::mapping::encode_zeros;
use crate::space::{Gate, Space};
use std::collections::BTreeMap;
use std::ops::Range;

/// A run of a space that has data or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, bytes.
    pub length: u64,
    /// Whether nothing is stored for it: it reads as zeros.
    pub is_hole: bool,
}

/// The mapped blocks after which a request for extents ends. A question about a terabyte must not keep a thread busy
/// for seconds.
const EXTENTS_BLOCKS: usize = 4096;

/// What is known of a block that is not a hole.
pub(crate) enum Present {
    /// Data in memory, newer than what is stored.
    Buffer { is_cleared: bool },
    /// An encoded mapping.
    Mapping(Vec<u8>),
}

/// Extents that are being collected, in order.
struct Extents {
    found: Vec<Extent>,
    limit: usize,
    /// The place up to which they reach: a block, and a byte in it.
    block: u64,
    within: u64,
    /// Bytes of the range from there on.
    left: u64,
    block_bytes: u64,
}

impl Extents {
    /// Adds what lies before byte `within` of a block. Returns false if there is no room for it.
    fn until(&mut self, block: u64, within: u64, is_hole: bool) -> bool {
        // A piece may end where the next block begins.
        let (block, within) = (block + within / self.block_bytes, within % self.block_bytes);
        if (block, within) <= (self.block, self.within) || self.left == 0 {
            return true;
        }
        // A range of blocks may have more bytes than a number can have.
        let distance = u128::from(block - self.block) * u128::from(self.block_bytes) + u128::from(within) - u128::from(self.within);
        let length = u64::try_from(distance).unwrap_or(u64::MAX).min(self.left);
        let count = self.found.len();
        match self.found.last_mut() {
            Some(last) if last.is_hole == is_hole => last.length += length,
            _ if count >= self.limit => return false,
            _ => self.found.push(Extent { length, is_hole }),
        }
        self.left -= length;
        (self.block, self.within) = (block, within);
        true
    }
}

impl Space {
    /// Zeroes a range and frees its stored data. The cost of whole blocks follows their stored data.
    pub fn write_zeroes(&self, at: At, length: u64) -> Result<()> {
        // Whole blocks first: on a full disk, the rest may need their room.
        self.clear_whole_blocks(at, length)?;
        self.zero_edges(at, length)
    }

    /// Discards a range, which reads as zeros from now on. On a full disk this may hold only for the whole blocks in
    /// it, because partial blocks would have to be stored again.
    pub fn discard(&self, at: At, length: u64) -> Result<()> {
        self.clear_whole_blocks(at, length)?;
        match self.zero_edges(at, length) {
            Err(error) if error.is_full() => Ok(()),
            done => done,
        }
    }

    /// Returns the blocks that lie wholly within a range.
    fn whole_blocks(&self, at: At, length: u64) -> Range<u64> {
        let block_bytes = self.block_bytes() as u64;
        at.next_block(block_bytes)..at.plus(length).within(block_bytes).0
    }

    fn clear_whole_blocks(&self, at: At, length: u64) -> Result<()> {
        self.check_writable()?;
        let whole = self.whole_blocks(at, length);
        let mut is_full = false;
        self.for_each_present(whole.start, whole.end, |blocks| self.clear_blocks(blocks, &mut is_full))?;
        self.shared.tidy(self);
        Ok(())
    }

    fn zero_edges(&self, at: At, length: u64) -> Result<()> {
        let block_bytes = self.block_bytes() as u64;
        let whole = self.whole_blocks(at, length);
        // Without whole blocks there is one edge.
        let (before, behind) = if whole.is_empty() {
            (0, length)
        } else {
            (at.offset_bytes.next_multiple_of(block_bytes) - at.offset_bytes, (at.offset_bytes + length) % block_bytes)
        };
        for part in self.parts(at, before).chain(self.parts(at.plus(length - behind), behind)) {
            self.zero_part(part)?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Zeroes a part of a block, unless the block is all zeros already.
    fn zero_part(&self, part: Part) -> Result<()> {
        {
            let gate = self.enter(part)?;
            let cell = self.cells.get(part.block);
            let buffer = cell.read(self.shared.profile());
            let is_zeros = match &*buffer {
                Some(buffer) => buffer.is_cleared(),
                None => self.mapping(&gate, part.block, &cell)?.pieces.is_empty(),
            };
            if is_zeros {
                return Ok(());
            }
        }
        self.change_part(part, |buffer| buffer.write_zeros(part.start, part.length))
    }

    /// Returns up to `limit` extents of `length` bytes at a place. They may cover less than `length` if there are more
    /// extents, or very many blocks to examine.
    pub fn extents(&self, at: At, length: u64, limit: usize) -> Result<Vec<Extent>> {
        let block_bytes = self.block_bytes() as u64;
        let (mut block, start) = at.within(block_bytes);
        let blocks_end = at.plus(length).next_block(block_bytes);
        let mut extents = Extents { found: Vec::new(), limit, block, within: start, left: length, block_bytes };
        let mut looked_at = 0;
        'steps: while block < blocks_end && looked_at < EXTENTS_BLOCKS {
            let (present, next) = match self.present(&self.gate.read(), block, blocks_end) {
                // Data lost in a repair is not a hole: reading it is an error.
                Err(error) if error.is_lost() => {
                    looked_at += 1;
                    block += 1;
                    if extents.until(block, 0, false) { continue } else { break }
                }
                present => present?,
            };
            looked_at += present.len();
            for (number, present) in present {
                if !extents.until(number, 0, true) {
                    break 'steps;
                }
                let goes_on = match present {
                    Present::Buffer { is_cleared } => extents.until(number + 1, 0, is_cleared),
                    Present::Mapping(value) => {
                        let mut to = 0;
                        self.decode(number, &value)?.iter().all(|piece| {
                            to += piece.length();
                            extents.until(number, to, piece.fingerprint().is_none())
                        })
                    }
                };
                if !goes_on {
                    break 'steps;
                }
            }
            if !extents.until(next, 0, true) {
                break;
            }
            block = next;
        }
        Ok(extents.found)
    }

    /// Runs `work` for the blocks from `first` up to but not including `last` that are stored, dirty or unknown: up to
    /// [`STEP_OBJECTS`] of them at a time.
    fn for_each_present(&self, first: u64, last: u64, mut work: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
        let mut at = first;
        while at < last {
            // Not held longer, because the work takes the gate itself.
            let present = self.present(&self.gate.read(), at, last);
            at = match present {
                // There may be stored blocks.
                Err(error) if error.is_lost() => {
                    work(&[at])?;
                    at + 1
                }
                present => {
                    let (present, next) = present?;
                    work(&present.into_iter().map(|(block, _)| block).collect::<Vec<_>>())?;
                    next
                }
            };
        }
        Ok(())
    }

    /// Returns the first blocks from `first` up to but not including `last` that are stored or dirty, sorted, and the
    /// block at which to continue.
    pub(crate) fn present(&self, gate: &Gate, first: u64, last: u64) -> Result<(Vec<(u64, Present)>, u64)> {
        // Dirty blocks first: a block written out meanwhile is then found among the stored ones.
        let dirty = self.dirty.lock().range(first, last, STEP_OBJECTS);
        let (stored, mut next) = self.shared.layers.mapped(gate.record.layer, first, last)?;
        if let Some((block, _)) = dirty.get(STEP_OBJECTS - 1) {
            next = next.min(block + 1);
        }
        let zeros = encode_zeros(self.block_size(), self.shared.engine.digest_bytes());
        let stored = stored.into_iter().filter(|(_, value)| *value != zeros);
        let mut present: BTreeMap<u64, Present> = stored.map(|(block, value)| (block, Present::Mapping(value))).collect();
        present.extend(dirty.into_iter().map(|(block, is_cleared)| (block, Present::Buffer { is_cleared })));
        Ok((present.into_iter().take_while(|(block, _)| *block < next).collect(), next))
    }
}
