//! Writes chunks: each gets the next free block. A stream's chunks lie one behind the other as far as there is room.

use crate::arena::block::address_of_block;
use crate::arena::pending::BufferId;
use crate::arena::space::WriterId;
use crate::arena::store::ArenaStore;
use crate::{Address, ChunkWriter, CompressedFrame, NewChunk, Result, StorageError};
use std::sync::Arc;

/// Consecutive blocks are written together up to this many bytes,
const RUN_BYTES: usize = 256 << 10;
/// and those of a sequential stream up to this many.
const SEQUENTIAL_RUN_BYTES: usize = 1 << 20;

/// A writing stream.
#[derive(Debug)]
pub struct ArenaWriter {
    store: Arc<ArenaStore>,
    id: WriterId,
    buffer: Option<BufferId>,
    run_bytes: usize,
}

impl ArenaStore {
    /// Returns a new writing stream.
    pub fn writer(self: &Arc<Self>) -> ArenaWriter {
        ArenaWriter { store: self.clone(), id: self.name_writer(), buffer: None, run_bytes: RUN_BYTES }
    }
}

impl ArenaWriter {
    /// Blocks that are written together: a part of the bytes in flight, so that other streams have room too.
    fn run_blocks(&self) -> usize {
        let options = &self.store.options;
        (self.run_bytes.min(options.in_flight_bytes / 4) / options.block_bytes as usize).max(1)
    }

    /// Gives blocks to the first chunks. Notes the buffers that are to be written now. Returns how many chunks it took.
    fn place(&mut self, chunks: &[NewChunk<'_>], addresses: &mut Vec<Address>, full: &mut Vec<BufferId>) -> Result<usize> {
        let store = &*self.store;
        let run_blocks = self.run_blocks();
        let room = store.pending.reserve_room(store, chunks.len().min(run_blocks))?;
        let mut space = store.space.lock();
        let run = match space.take(store, self.id, room as u64, run_blocks as u64) {
            Ok(run) => run,
            Err(error) => {
                store.pending.release_room(room);
                return Err(error);
            }
        };
        let taken = (run.end - run.start) as usize;
        // Before the lock goes: from here on the pending chunks say that the blocks are used.
        store.pending.insert(run.start, &chunks[..taken], run_blocks, &mut self.buffer, full);
        drop(space);
        store.pending.release_room(room - taken);
        addresses.extend(run.map(address_of_block));
        Ok(taken)
    }

    fn check(&self, chunks: &[NewChunk<'_>]) -> Result<()> {
        let limit_bytes = self.store.options.block_bytes as usize;
        for chunk in chunks {
            if chunk.data.len() > limit_bytes {
                return Err(StorageError::ChunkTooLong { length_bytes: chunk.data.len(), limit_bytes });
            }
            if chunk.data.is_empty() {
                return Err(StorageError::ChunkEmpty);
            }
        }
        Ok(())
    }
}

impl ChunkWriter for ArenaWriter {
    fn be_sequential(&mut self) {
        self.run_bytes = SEQUENTIAL_RUN_BYTES;
    }

    fn append(&mut self, chunks: &[NewChunk<'_>]) -> Result<Vec<Address>> {
        self.check(chunks)?;
        let store = self.store.clone();
        store.check_writable()?;
        store.pending.write_failed(&store)?;
        let mut addresses = Vec::with_capacity(chunks.len());
        while addresses.len() < chunks.len() {
            let mut full = Vec::new();
            self.place(&chunks[addresses.len()..], &mut addresses, &mut full)?;
            for id in full {
                if let Err(error) = store.pending.write_out(&store, id) {
                    // The chunks taken so far are safe in memory. The next call reports the error.
                    return if addresses.len() == chunks.len() { Ok(addresses) } else { Err(error) };
                }
            }
        }
        Ok(addresses)
    }

    fn append_frame(&mut self, chunks: &[NewChunk<'_>], _frame: &CompressedFrame<'_>) -> Result<Vec<Address>> {
        self.append(chunks)
    }
}

impl Drop for ArenaWriter {
    fn drop(&mut self) {
        // What it has buffered is written by the next prepare.
        self.store.space.lock().release(self.id);
    }
}
