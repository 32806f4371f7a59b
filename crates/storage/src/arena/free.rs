//! Frees blocks: after the removal of their chunks, and after a crash that came before the holes.
//!
//! A block goes through these states, and only in this order:
//! 1. *Used*: the block table has its chunk.
//! 2. *Retired* ([`ArenaStore::retire`]): the removal is about to be logged. The table may lose the chunk at any
//!    moment, but readers that found it before may still load it.
//! 3. *Free* ([`ArenaStore::free`]): the removal is durable, and nobody is left who found the chunk. The room goes back
//!    to the device first, and only then may the block be given out. In the other order a hole could take the bytes of
//!    the next chunk.
//!
//! Retired blocks are known in memory only. After a crash nobody is left who found their chunks, and the table tells
//! which of them are free.

use crate::arena::block::{block_of_address, first_block, unit_of_block};
use crate::arena::space::Removal;
use crate::arena::store::ArenaStore;
use crate::{Address, Result, StorageError};
use std::ops::Range;

/// Blocks that are freed, or looked at, at once: what others wait for meanwhile is bounded.
const PIECE_BLOCKS: u64 = 4096;

impl ArenaStore {
    /// Call before the batch that removes the chunks of these blocks is applied to the block table. Until
    /// [`free`](Self::free) or [`keep`](Self::keep) the blocks are given to nobody, whatever the table says.
    ///
    /// Errors: a block has no committed chunk. Then none of them is retired.
    pub fn retire(&self, blocks: &[Address]) -> Result<()> {
        self.check_writable()?;
        let blocks = self.blocks_of(blocks)?;
        let mut space = self.space.lock();
        self.check(&blocks, |block, in_table| match in_table {
            _ if self.pending.contains(block) => Err("its chunk is not committed yet"),
            true => Ok(()),
            false => Err("it has no chunk"),
        })?;
        space.retired.extend(blocks.into_iter().map(|block| (block, Removal::Begun)));
        Ok(())
    }

    /// Call when retired blocks keep their chunks: their removal was given up and is not in the log.
    pub fn keep(&self, blocks: &[Address]) -> Result<()> {
        let blocks = self.blocks_of(blocks)?;
        let mut space = self.space.lock();
        self.check(&blocks, |_, in_table| if in_table { Ok(()) } else { Err("it has lost its chunk") })?;
        blocks.iter().for_each(|block| {
            space.retired.remove(block);
        });
        Ok(())
    }

    /// Frees retired blocks. Call only when the removal of their chunks is durable, nobody is left who found them
    /// before, and every [`Prepared`](crate::Prepared) that names them is committed or gone.
    ///
    /// Errors: a block is not retired, or still has a chunk. Then none of them is freed. Holes that cannot be made cost
    /// only their room.
    pub fn free(&self, blocks: &[Address]) -> Result<()> {
        self.check_writable()?;
        let blocks = self.blocks_of(blocks)?;
        {
            let mut space = self.space.lock();
            self.check(&blocks, |block, in_table| match (in_table, space.retired.get(&block)) {
                (true, _) => Err("the index still has its chunk"),
                (false, Some(Removal::Begun)) => Ok(()),
                (false, Some(Removal::Freeing)) => Err("another thread frees it"),
                (false, None) => Err("it is not retired"),
            })?;
            // From here on it is this call alone that frees them. A hole that came later could take the next chunk.
            space.retired.extend(blocks.iter().map(|block| (*block, Removal::Freeing)));
        }
        for piece in blocks.chunks(PIECE_BLOCKS as usize) {
            for run in piece.chunk_by(|left, right| left + 1 == *right) {
                self.punch(run[0]..run[0] + run.len() as u64);
            }
            let mut space = self.space.lock();
            for block in piece {
                space.retired.remove(block);
                space.make_free(*block);
            }
        }
        Ok(())
    }

    /// Makes holes of all free blocks of a unit again. For a unit in which a crash may have come between a durable
    /// removal, or a write that was never logged, and the holes. Writers wait while a piece of it is done.
    pub fn give_back(&self, unit: u32) -> Result<()> {
        self.check_writable()?;
        let first = first_block(unit);
        let mut next = first;
        loop {
            // Nobody is given a block meanwhile.
            let space = self.space.lock();
            let end = (next + PIECE_BLOCKS).min(space.blocks);
            if next >= end || unit_of_block(next) != unit {
                return Ok(());
            }
            let window = space.open_window(self, unit, next..end)?;
            for run in window.free_runs() {
                self.punch(run);
            }
            next = end;
        }
    }

    /// Returns the blocks at these addresses, ascending, each once.
    fn blocks_of(&self, addresses: &[Address]) -> Result<Vec<u64>> {
        let block = |address: &Address| block_of_address(*address).ok_or_else(|| self.no_block(*address));
        let mut blocks = addresses.iter().map(block).collect::<Result<Vec<u64>>>()?;
        blocks.sort_unstable();
        blocks.dedup();
        Ok(blocks)
    }

    /// Asks for each block whether it fits, from whether the block table has a chunk for it.
    fn check(&self, blocks: &[u64], fits: impl Fn(u64, bool) -> std::result::Result<(), &'static str>) -> Result<()> {
        let mut held = Vec::with_capacity(blocks.len());
        self.table.blocks(blocks, &mut held)?;
        for (block, held) in blocks.iter().zip(&held) {
            fits(*block, held.is_some()).map_err(|why| StorageError::BlockState { path: self.describe(), block: *block, why })?;
        }
        Ok(())
    }

    /// Makes a hole of a run of blocks. Call only when nobody is given them meanwhile.
    fn punch(&self, run: Range<u64>) {
        let block_bytes = self.block_bytes();
        if let Err(error) = self.holes.punch(&*self.file, run.start * block_bytes, (run.end - run.start) * block_bytes) {
            tracing::debug!(%error, "free blocks keep their room on the device");
        }
    }
}
