//! Finds chunks in blocks without asking the block table: by their names.
//!
//! Another process may be writing to the store. Then the table's pages change while this one reads them, and say
//! nothing that it could rely on. A chunk that a reader holds is in its block all the same, as nobody removes it. Or
//! the table is damaged, and a new one is made. Only the length of a chunk is not known: most chunks are as long as a
//! block, and behind the others there are zeros.

use crate::arena::block::{Block, address_of_block, block_of_address};
use crate::arena::reader::lasting;
use crate::arena::store::ArenaStore;
use crate::{Address, ChunkKind, Result, Slice};
use onefold_fingerprint::Fingerprint;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks that are looked at together.
const PIECE_BLOCKS: u64 = 256;

/// A name that a chunk at the beginning of a block could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PossibleName {
    /// The name.
    pub name: Fingerprint,
    /// The length of that chunk, bytes.
    pub length_bytes: u32,
    /// Whether it is the name of a metadata chunk.
    pub is_metadata: bool,
}

/// Gets the address of a block, the lost chunk that the block table has there, and the bytes. Returns whether to go on.
pub type WithoutChunk<'a> = dyn FnMut(Address, Option<Block>, &[u8]) -> bool + 'a;

impl ArenaStore {
    /// From now on chunks are found by their names if the block table does not have them: because another process may
    /// write to the store, or because the table is being rebuilt. Call only before replay, in a store that is open for
    /// reading.
    pub fn load_by_names(&self) {
        self.loads_by_names.store(true, Relaxed);
    }

    /// Loads chunks by their names alone, if this is to be done.
    pub(crate) fn load_by_content(&self, wanted: &[(Address, Fingerprint)]) -> Option<Result<Vec<Slice>>> {
        let by_names = self.loads_by_names.load(Relaxed);
        by_names.then(|| wanted.iter().map(|(address, name)| self.find(*address, name)).collect())
    }

    fn find(&self, address: Address, name: &Fingerprint) -> Result<Slice> {
        let block = block_of_address(address).ok_or_else(|| self.no_block(address))?;
        let start = block * self.block_bytes();
        let bytes = match self.read_bytes(start..start + self.block_bytes()) {
            Ok(bytes) => Arc::new(bytes),
            Err(error) => return Err(self.damaged(block, lasting(error)?)),
        };
        let found = self.possible_names(&bytes).find(|possible| possible.name == *name);
        match found {
            Some(PossibleName { length_bytes, .. }) => Ok(Slice::new(bytes, 0..length_bytes as usize)),
            None => Err(self.damaged(block, "it has another chunk, or its bytes have changed".to_owned())),
        }
    }

    /// Returns all names that the bytes of a block allow.
    pub fn possible_names<'a>(&self, block: &'a [u8]) -> impl Iterator<Item = PossibleName> + use<'a> {
        let algorithm = self.options.fingerprint;
        possible_lengths(block).flat_map(move |length| {
            let chunk = &block[..length];
            let possible = |name, is_metadata| PossibleName { name, length_bytes: length as u32, is_metadata };
            [possible(algorithm.fingerprint(chunk), false), possible(algorithm.metadata(chunk), true)]
        })
    }

    /// Returns the length of a data chunk of zeros that has this name. Blocks without a chunk are zeros more often than
    /// not, so the names are computed once.
    fn length_of_zeros(&self, name: &Fingerprint) -> Option<u32> {
        let names = self.names_of_zeros.get_or_init(|| {
            let zeros = vec![0; self.block_bytes() as usize];
            (1..=zeros.len()).map(|length| (self.options.fingerprint.fingerprint(&zeros[..length]), length as u32)).collect()
        });
        names.get(name).copied()
    }

    /// Returns the length of a chunk if the bytes at this address have its name, whatever the block table says. Errors:
    /// they say nothing about the chunk.
    pub fn length_at(&self, address: Address, name: &Fingerprint, kind: ChunkKind) -> Result<Option<u32>> {
        let Some(block) = block_of_address(address).filter(|block| *block < self.blocks()) else { return Ok(None) };
        let start = block * self.block_bytes();
        let bytes = match self.read_bytes(start..start + self.block_bytes()) {
            Ok(bytes) => bytes,
            Err(error) => return lasting(error).map(|_| None),
        };
        let is_metadata = kind != ChunkKind::Data;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(if is_metadata { None } else { self.length_of_zeros(name) });
        }
        let algorithm = self.options.fingerprint;
        let name_of = |chunk: &[u8]| if is_metadata { algorithm.metadata(chunk) } else { algorithm.fingerprint(chunk) };
        Ok(possible_lengths(&bytes).find(|length| name_of(&bytes[..*length]) == *name).map(|length| length as u32))
    }

    /// Returns the chunk that the block table has in a block, lost or not.
    pub fn held_in(&self, block: u64) -> Result<Option<Block>> {
        let mut held = Vec::new();
        self.table.blocks(&[block], &mut held)?;
        Ok(held.first().copied().flatten())
    }

    /// Returns the number of blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.space.lock().blocks
    }

    /// Passes each block for which the table has no chunk or a lost one, and its bytes, unless it is all zeros or
    /// cannot be read, as long as `visit` returns true.
    pub fn each_without_chunk(&self, visit: &mut WithoutChunk<'_>) -> Result<()> {
        let (blocks, mut held) = (self.blocks(), Vec::new());
        for first in (0..blocks).step_by(PIECE_BLOCKS as usize) {
            let count = PIECE_BLOCKS.min(blocks - first);
            held.clear();
            self.table.run(first, count as usize, &mut held)?;
            let is_without = |held: &Option<Block>| held.is_none_or(|held| held.is_lost);
            for (block, held) in (first..).zip(&held).filter(|(_, held)| is_without(held)) {
                let start = block * self.block_bytes();
                let bytes = match self.read_bytes(start..start + self.block_bytes()) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        lasting(error)?;
                        continue;
                    }
                };
                if bytes.iter().any(|byte| *byte != 0) && !visit(address_of_block(block), *held, &bytes) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Returns the lengths that a chunk at the beginning of a block can have: behind it there are only zeros.
fn possible_lengths(block: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let shortest = block.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
    std::iter::once(block.len()).chain(shortest..block.len())
}
