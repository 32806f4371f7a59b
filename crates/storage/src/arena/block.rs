//! Blocks: their numbers and addresses, and what is known of them.

use crate::{Address, ChunkKind, ContainerId, Origin, Result};
use onefold_fingerprint::Fingerprint;
use std::fmt::Debug;

/// Blocks of a unit: as many as an address has slots.
pub const UNIT_BLOCKS: u64 = 1 << 16;
/// Block numbers are below this: unit 2^32 - 2 is the last whose address fits into partition 0.
pub const MAX_BLOCKS: u64 = u32::MAX as u64 * UNIT_BLOCKS;
/// The greatest size of a block, and so the greatest length of a chunk.
pub const MAX_BLOCK_BYTES: u32 = 64 << 10;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The name of its chunk.
    pub fingerprint: Fingerprint,
    /// What the chunk holds.
    pub kind: ChunkKind,
    /// The length of the chunk, from 1 to the size of a block.
    pub length_bytes: u32,
    /// Whether the bytes are known to be damaged.
    pub is_lost: bool,
}

/// Knows what blocks hold, durably and in memory. It is kept beside the fingerprints (the deduplication information
/// area of M1.5).
///
/// A block is *used* from the moment the batch with its [`BLOCKS_STORED`](crate::BLOCKS_STORED) record is applied until
/// the moment the batch that removes its chunk is. The arena asks while it holds its own locks, so an implementation
/// must not call the arena, nor wait for a thread that does.
pub trait BlockTable: Debug + Send + Sync {
    /// Appends what these blocks hold; `None`: the block is free. The wanted blocks ascend.
    fn blocks(&self, wanted: &[u64], out: &mut Vec<Option<Block>>) -> Result<()>;
    /// Appends what `count` blocks from `first` on hold.
    fn run(&self, first: u64, count: usize, out: &mut Vec<Option<Block>>) -> Result<()>;
    /// Returns how many blocks of a unit are used.
    fn used(&self, unit: u32) -> Result<u32>;
    /// Returns one past the last unit that has used blocks.
    fn units(&self) -> Result<u32>;
}

/// Returns the address of a block. Block 0 is the first of container 1 of partition 0, so that no block has address 0.
pub fn address_of_block(block: u64) -> Address {
    debug_assert!(block < MAX_BLOCKS);
    Address::from_bits(block + UNIT_BLOCKS)
}

/// Returns the block at an address; `None`: no block can have this address.
pub fn block_of_address(address: Address) -> Option<u64> {
    address.bits().checked_sub(UNIT_BLOCKS).filter(|block| *block < MAX_BLOCKS)
}

/// Returns the unit of a block. Call only with a block number below [`MAX_BLOCKS`].
pub(crate) fn unit_of_block(block: u64) -> u32 {
    (block / UNIT_BLOCKS) as u32
}

/// Returns the first block of a unit.
pub(crate) fn first_block(unit: u32) -> u64 {
    u64::from(unit) * UNIT_BLOCKS
}

/// Returns the name of a unit in addresses.
pub(crate) fn container_of_unit(unit: u32) -> ContainerId {
    address_of_block(first_block(unit)).container()
}

/// Returns the unit whose chunks have this origin; `None`: it is no unit.
pub(crate) fn unit_of_origin(origin: Origin) -> Option<u32> {
    block_of_address(origin.address(0)).map(unit_of_block)
}

/// Packs kind and length of a chunk into 18 bits, for a table with 24: length - 1 in the lower 16, the kind above.
///
/// Panics: the length is not from 1 to 65,536.
pub fn encode_note(kind: ChunkKind, length_bytes: u32) -> u32 {
    assert!((1..=MAX_BLOCK_BYTES).contains(&length_bytes), "a block holds 1 to 65,536 bytes, not {length_bytes}");
    u32::from(kind as u8) << 16 | (length_bytes - 1)
}

/// Unpacks kind and length of a chunk; `None`: this is no note.
pub fn decode_note(note: u32) -> Option<(ChunkKind, u32)> {
    let kind = u8::try_from(note >> 16).ok().and_then(ChunkKind::from_number)?;
    Some((kind, (note & 0xffff) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_units_of_blocks_lead_back() {
        for block in [0, 1, 65_535, 65_536, 1 << 40, MAX_BLOCKS - 1] {
            let address = address_of_block(block);
            assert!(address.bits() != 0);
            assert_eq!(block_of_address(address), Some(block));
            assert_eq!(address.container().partition(), 0);
            assert_eq!(unit_of_origin(address.origin()), Some(unit_of_block(block)));
            assert_eq!(container_of_unit(unit_of_block(block)), address.container());
            assert_eq!(first_block(unit_of_block(block)) + u64::from(address.slot()), block);
        }
        let nowhere = [0, 1, 65_535, MAX_BLOCKS + UNIT_BLOCKS, u64::MAX];
        assert!(nowhere.iter().all(|bits| block_of_address(Address::from_bits(*bits)).is_none()));
        assert_eq!(unit_of_origin(Origin::from_bits(0)), None);
        assert_eq!(unit_of_origin(Origin::from_bits(1 << 32)), None, "another partition");
    }

    #[test]
    fn notes_keep_kind_and_length_in_24_bits() {
        for kind in [ChunkKind::Data, ChunkKind::Recipe, ChunkKind::Directory] {
            for length_bytes in [1, 2, 4096, 65_535, 65_536] {
                let note = encode_note(kind, length_bytes);
                assert!(note < 1 << 24);
                assert_eq!(decode_note(note), Some((kind, length_bytes)));
            }
        }
        assert!([3 << 16, 1 << 18, 1 << 24, u32::MAX].iter().all(|note| decode_note(*note).is_none()));
    }
}
