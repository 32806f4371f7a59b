//! Finds the differences between two spaces from their mappings. Reads no data, and skips the layers that both share.

use crate::at::At;
use crate::error::{Result, SpaceError};
use crate::mapping::decode_mapping;
use crate::space::Space;
use crate::spaces::Spaces;
use onefold_engine::Piece;
use std::ops::Range;

impl Spaces {
    /// Passes the ranges in which `length` bytes at the same place of two spaces differ to `visit`, in order, until it
    /// returns false. Ranges count from the base block, and may touch. Ranges with the same mappings are equal. A
    /// reported range may still be equal, if the same bytes are cut into other chunks. If a space is written to
    /// meanwhile, each block is compared at a moment of its own. Returns whether `visit` wanted all of them.
    pub fn diff(&self, first: &Space, second: &Space, at: At, length: u64, visit: &mut dyn FnMut(Range<u64>) -> bool) -> Result<bool> {
        let pair = [first, second];
        let [first_bytes, second_bytes] = pair.map(|space| space.block_size());
        if first_bytes != second_bytes {
            let (first, second) = (first.name(), second.name());
            return Err(SpaceError::OtherBlocks { first, first_bytes, second, second_bytes });
        }
        pair.iter().try_for_each(|space| space.write_out_range(at, length))?;
        let block_bytes = u64::from(first_bytes);
        let (begin, end) = (at.offset_bytes, at.offset_bytes + length);
        let (mut next, blocks) = (at.within(block_bytes).0, at.plus(length).next_block(block_bytes));
        while next < blocks {
            let layers = pair.map(|space| space.gate.read().record.layer);
            let (candidates, further) = self.shared.layers.candidates(layers, next, blocks)?;
            for block in candidates.into_keys() {
                let [one, two] = [self.pieces(layers[0], block, first_bytes)?, self.pieces(layers[1], block, first_bytes)?];
                let start = (block - at.base) * block_bytes;
                for range in differing(&one, &two, block_bytes) {
                    let range = (start + range.start).max(begin)..(start + range.end).min(end);
                    if !range.is_empty() && !visit(range) {
                        return Ok(false);
                    }
                }
            }
            next = further;
        }
        Ok(true)
    }

    fn pieces(&self, layer: u32, block: u64, block_bytes: u32) -> Result<Vec<Piece>> {
        let Some((layer, value)) = self.shared.layers.find(layer, block)? else { return Ok(Vec::new()) };
        decode_mapping(&value, self.shared.engine.digest_bytes(), block_bytes)
            .map_err(|reason| SpaceError::Damaged { object: format!("the mapping of block {block} in layer {layer}"), reason })
    }
}

/// Returns the ranges of a block in which two mappings differ.
fn differing(one: &[Piece], two: &[Piece], block_bytes: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let (mut left, mut right) = (Cursor::new(one, block_bytes), Cursor::new(two, block_bytes));
    let mut at = 0;
    while at < block_bytes {
        let length = left.rest().min(right.rest()).clamp(1, block_bytes - at);
        if left.place() != right.place() {
            ranges.push(at..at + length);
        }
        at += length;
        left.advance(length);
        right.advance(length);
    }
    ranges
}

/// A place in a mapping.
struct Cursor<'p> {
    pieces: &'p [Piece],
    /// Bytes into the first piece.
    within: u64,
    /// Bytes after the last piece, which are zeros.
    behind: u64,
}

impl<'p> Cursor<'p> {
    fn new(pieces: &'p [Piece], block_bytes: u64) -> Cursor<'p> {
        Cursor { pieces, within: 0, behind: block_bytes }
    }

    fn rest(&self) -> u64 {
        self.pieces.first().map_or(self.behind, |piece| piece.length() - self.within)
    }

    /// Returns the chunk and the byte in it, or `None` for zeros.
    fn place(&self) -> Option<(onefold_fingerprint::Fingerprint, u64)> {
        match self.pieces.first()? {
            Piece::Chunk { fingerprint, offset, .. } => Some((*fingerprint, u64::from(*offset) + self.within)),
            Piece::Zeros { .. } => None,
        }
    }

    fn advance(&mut self, length: u64) {
        self.within += length;
        while let Some(piece) = self.pieces.first().filter(|piece| self.within >= piece.length()) {
            self.within -= piece.length();
            self.pieces = &self.pieces[1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::Address;
    use onefold_fingerprint::Fingerprint;

    #[test]
    fn pieces_are_compared_wherever_they_are_cut() {
        let chunk = |name: u8, offset, length| Piece::Chunk {
            fingerprint: Fingerprint::from_digest(&[name; 20]),
            address: Address::from_bits(u64::from(name)),
            offset,
            length,
        };
        let zeros = |length| Piece::Zeros { length };
        let ranges = |ends: &[(u64, u64)]| ends.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
        assert_eq!(differing(&[], &[zeros(100)], 100), []);
        assert_eq!(differing(&[chunk(1, 0, 100)], &[chunk(1, 0, 40), chunk(1, 40, 60)], 100), []);
        assert_eq!(differing(&[chunk(1, 0, 100)], &[chunk(1, 0, 40), chunk(1, 41, 60)], 100), ranges(&[(40, 100)]));
        assert_eq!(differing(&[zeros(50), chunk(1, 0, 50)], &[chunk(2, 0, 10), zeros(40), chunk(1, 0, 50)], 100), ranges(&[(0, 10)]));
        assert_eq!(differing(&[chunk(1, 0, 50)], &[], 100), ranges(&[(0, 50)]));
    }
}
