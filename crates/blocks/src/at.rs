//! Where requests begin, and their parts in each block.

/// A place in a space: `offset_bytes` after the first byte of block `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The block from which bytes are counted.
    pub base: u64,
    /// Bytes after the beginning of that block.
    pub offset_bytes: u64,
}

impl At {
    /// Returns a place relative to block `base`.
    pub const fn new(base: u64, offset_bytes: u64) -> At {
        At { base, offset_bytes }
    }

    /// Returns a place relative to block 0.
    pub const fn byte(offset_bytes: u64) -> At {
        At { base: 0, offset_bytes }
    }

    /// Returns the place `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> At {
        At { base: self.base, offset_bytes: self.offset_bytes + bytes }
    }

    /// Returns the block, and the byte in it.
    pub(crate) fn within(self, block_bytes: u64) -> (u64, u64) {
        (self.base + self.offset_bytes / block_bytes, self.offset_bytes % block_bytes)
    }

    /// Returns the first block that begins here or later.
    pub(crate) fn next_block(self, block_bytes: u64) -> u64 {
        self.base + self.offset_bytes.div_ceil(block_bytes)
    }
}

/// The part of a request that lies in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) block: u64,
    /// First byte within the block.
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl Part {
    /// Returns a whole block.
    pub(crate) fn whole(block: u64, block_bytes: usize) -> Part {
        Part { block, start: 0, length: block_bytes }
    }

    /// Returns whether the part lies before byte `end_bytes` of the space.
    pub(crate) fn is_before(self, end_bytes: u64, block_bytes: u64) -> bool {
        // The furthest blocks begin at bytes that a u64 cannot count.
        let first_byte = u128::from(self.block) * u128::from(block_bytes);
        first_byte + (self.start + self.length) as u128 <= u128::from(end_bytes)
    }
}

/// Splits `length` bytes into parts, one per block.
pub(crate) fn parts(at: At, length: u64, block_bytes: u64) -> impl Iterator<Item = Part> + use<> {
    let (mut next, end) = (at.offset_bytes, at.offset_bytes + length);
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let (block, start) = At { offset_bytes: next, ..at }.within(block_bytes);
        let length = (block_bytes - start).min(end - next);
        next += length;
        Some(Part { block, start: start as usize, length: length as usize })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_borders_of_blocks_from_its_base_on() {
        let cut = |at, length| parts(at, length, 100).map(|part| (part.block, part.start, part.length)).collect::<Vec<_>>();
        assert_eq!(cut(At::new(7, 150), 200), [(8, 50, 50), (9, 0, 100), (10, 0, 50)]);
        assert_eq!(cut(At::byte(100), 100), [(1, 0, 100)]);
        assert_eq!(cut(At::byte(5), 0), []);
        assert_eq!((At::new(7, 100).next_block(100), At::new(7, 101).next_block(100)), (8, 9));
    }

    #[test]
    fn a_part_is_before_the_end_to_the_byte_and_the_furthest_block_is_behind_it() {
        let is_before = |block, end_bytes| Part { block, start: 10, length: 20 }.is_before(end_bytes, 100);
        assert!(is_before(3, 330) && is_before(3, 400) && is_before(0, 30));
        assert!(!is_before(3, 329) && !is_before(4, 400) && !is_before(0, 29));
        assert!(!is_before(u64::MAX, u64::MAX));
    }
}
