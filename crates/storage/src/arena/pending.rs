//! Chunks that the log does not have yet, and the bytes of those that are not in the file yet.
//!
//! Bytes wait in *buffers*: runs of consecutive blocks, each filled by one writer. A thread that finds a buffer full
//! writes it, and so does one that needs its bytes on disk. A buffer that could not be written keeps its bytes, and is
//! written again later.
//!
//! Every chunk gets a *serial number* in the order in which chunks were appended. What was appended before a moment is
//! a range of serial numbers.

use crate::arena::records::Stored;
use crate::arena::store::ArenaStore;
use crate::components::STORAGE_WRITE;
use crate::{NewChunk, Result, StorageError};
use onefold_ground::GroundError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The number of a buffer. No two buffers have the same.
pub(crate) type BufferId = u64;

/// The chunks on their way into the log.
#[derive(Debug)]
pub(crate) struct Pending {
    state: Mutex<State>,
    changed: Condvar,
    /// One thread at a time makes chunks durable.
    settling: Mutex<()>,
    block_bytes: usize,
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    chunks: BTreeMap<u64, PendingChunk>,
    buffers: BTreeMap<BufferId, Buffer>,
    next_serial: u64,
    next_buffer: BufferId,
    /// Bytes in buffers, and those that writers are about to put there.
    buffered_bytes: usize,
    /// Chunks with smaller serial numbers are synced.
    synced: u64,
    /// Whether something was written since the last sync.
    is_unsynced: bool,
    poisoned: Option<Arc<str>>,
}

/// A chunk that the log does not have yet.
#[derive(Clone, Copy, Debug)]
struct PendingChunk {
    stored: Stored,
    serial: u64,
    /// `None`: its bytes are in the file.
    buffer: Option<BufferId>,
}

/// Consecutive blocks that are not in the file yet.
#[derive(Debug)]
struct Buffer {
    first_block: u64,
    first_serial: u64,
    /// Shared only while it is being written.
    bytes: Arc<Vec<u8>>,
    state: BufferState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferState {
    /// It takes more chunks.
    Open,
    /// A thread writes it.
    Writing,
    /// It could not be written.
    Failed,
}

/// A pending chunk as a reader finds it.
pub(crate) enum Found {
    /// Its bytes.
    Bytes(Stored, Vec<u8>),
    /// They are in the file.
    InFile(Stored),
}

impl State {
    fn check_poison(&self) -> Result<()> {
        match &self.poisoned {
            Some(why) => Err(StorageError::Poisoned { why: why.clone() }),
            None => Ok(()),
        }
    }

    fn find(&self, is_wanted: impl Fn(&Buffer) -> bool) -> Option<BufferId> {
        self.buffers.iter().find(|(_, buffer)| is_wanted(buffer)).map(|(id, _)| *id)
    }
}

impl Pending {
    pub(crate) fn new(block_bytes: usize, limit_bytes: usize) -> Pending {
        Pending { state: Mutex::default(), changed: Condvar::new(), settling: Mutex::new(()), block_bytes, limit_bytes }
    }

    pub(crate) fn check_poison(&self) -> Result<()> {
        self.state.lock().check_poison()
    }

    /// Returns how many pending chunks are in these blocks.
    pub(crate) fn count(&self, blocks: Range<u64>) -> u64 {
        self.state.lock().chunks.range(blocks).count() as u64
    }

    /// Visits the blocks with pending chunks.
    pub(crate) fn each_in(&self, blocks: Range<u64>, mut visit: impl FnMut(u64)) {
        self.state.lock().chunks.range(blocks).for_each(|(block, _)| visit(*block));
    }

    /// Returns the pending chunks of these blocks.
    pub(crate) fn stored_in(&self, blocks: Range<u64>) -> Vec<Stored> {
        self.state.lock().chunks.range(blocks).map(|(_, chunk)| chunk.stored).collect()
    }

    /// Returns the first block with a pending chunk, from a block on.
    pub(crate) fn next_from(&self, block: u64) -> Option<u64> {
        self.state.lock().chunks.range(block..).next().map(|(block, _)| *block)
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.state.lock().chunks.contains_key(&block)
    }

    /// Looks for many blocks at one moment.
    pub(crate) fn find(&self, blocks: impl Iterator<Item = u64>, mut visit: impl FnMut(u64, Option<Found>)) {
        let state = self.state.lock();
        for block in blocks {
            let found = state.chunks.get(&block).map(|chunk| {
                let buffer = chunk.buffer.and_then(|id| state.buffers.get(&id));
                match buffer {
                    Some(buffer) => {
                        let start = (block - buffer.first_block) as usize * self.block_bytes;
                        Found::Bytes(chunk.stored, buffer.bytes[start..start + chunk.stored.length_bytes as usize].to_vec())
                    }
                    None => Found::InFile(chunk.stored),
                }
            });
            visit(block, found);
        }
    }

    /// Waits until there is room for a chunk, and reserves room for at most `most` chunks. Returns for how many. Writes
    /// buffers of whichever writer if that makes room.
    pub(crate) fn reserve_room(&self, store: &ArenaStore, most: usize) -> Result<usize> {
        let mut state = self.state.lock();
        loop {
            state.check_poison()?;
            let room = self.limit_bytes.saturating_sub(state.buffered_bytes) / self.block_bytes;
            if room > 0 {
                let count = room.min(most);
                state.buffered_bytes += count * self.block_bytes;
                return Ok(count);
            }
            match state.find(|buffer| buffer.state != BufferState::Writing) {
                Some(id) => {
                    drop(state);
                    self.write_out(store, id)?;
                    state = self.state.lock();
                }
                // Those who write, or are about to fill a buffer, say when they are done.
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Releases room that was not used.
    pub(crate) fn release_room(&self, count: usize) {
        if count > 0 {
            self.state.lock().buffered_bytes -= count * self.block_bytes;
            self.changed.notify_all();
        }
    }

    /// Puts chunks into a run of blocks, one each, for which room was reserved. `buffer` is the one that the writer
    /// fills. Notes the buffers that are to be written now.
    pub(crate) fn insert(
        &self,
        first_block: u64,
        chunks: &[NewChunk<'_>],
        run_blocks: usize,
        buffer: &mut Option<BufferId>,
        full: &mut Vec<BufferId>,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (block, chunk) in (first_block..).zip(chunks) {
            let serial = state.next_serial;
            state.next_serial += 1;
            let id = self.buffer_for(state, block, serial, run_blocks, buffer, full);
            let filled = state.buffers.get_mut(&id).expect("buffer_for returns one that is there");
            let bytes = Arc::get_mut(&mut filled.bytes).expect("only a buffer that is being written is shared");
            bytes.extend_from_slice(chunk.data);
            bytes.resize(bytes.len().next_multiple_of(self.block_bytes), 0);
            if bytes.len() >= run_blocks * self.block_bytes {
                full.push(id);
                *buffer = None;
            }
            let stored = Stored { block, fingerprint: chunk.fingerprint, kind: chunk.kind, length_bytes: chunk.data.len() as u32 };
            let before = state.chunks.insert(block, PendingChunk { stored, serial, buffer: Some(id) });
            assert!(before.is_none(), "block {block} was given out twice");
        }
        self.changed.notify_all();
    }

    /// Returns the writer's buffer if this block comes next in it, or else a new one.
    fn buffer_for(
        &self,
        state: &mut State,
        block: u64,
        serial: u64,
        run_blocks: usize,
        buffer: &mut Option<BufferId>,
        full: &mut Vec<BufferId>,
    ) -> BufferId {
        // Others may have written it meanwhile.
        let open = buffer.and_then(|id| state.buffers.get(&id).filter(|found| found.state == BufferState::Open).map(|found| (id, found)));
        if let Some((id, found)) = open {
            if found.first_block + (found.bytes.len() / self.block_bytes) as u64 == block {
                return id;
            }
            full.push(id);
        }
        let id = state.next_buffer;
        state.next_buffer += 1;
        let bytes = Arc::new(Vec::with_capacity(run_blocks * self.block_bytes));
        state.buffers.insert(id, Buffer { first_block: block, first_serial: serial, bytes, state: BufferState::Open });
        *buffer = Some(id);
        id
    }

    /// Writes a buffer, unless somebody else does. After an error it keeps its bytes.
    pub(crate) fn write_out(&self, store: &ArenaStore, id: BufferId) -> Result<()> {
        let (first_block, bytes) = {
            let mut state = self.state.lock();
            state.check_poison()?;
            match state.buffers.get_mut(&id).filter(|buffer| buffer.state != BufferState::Writing) {
                Some(buffer) => {
                    buffer.state = BufferState::Writing;
                    (buffer.first_block, buffer.bytes.clone())
                }
                None => return Ok(()),
            }
        };
        let (offset, length) = (first_block * self.block_bytes as u64, bytes.len() as u64);
        let written = store.profile.time(&STORAGE_WRITE, length, || store.file.write_at(offset, &bytes));
        drop(bytes);
        self.written(id, &written);
        written.map_err(StorageError::cannot_write)?;
        store.file.start_writeback(offset, length);
        Ok(())
    }

    fn written(&self, id: BufferId, result: &std::result::Result<(), GroundError>) {
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                let buffer = state.buffers.remove(&id).expect("only its writing thread removes a buffer");
                let blocks = (buffer.bytes.len() / self.block_bytes) as u64;
                for (_, chunk) in state.chunks.range_mut(buffer.first_block..buffer.first_block + blocks) {
                    chunk.buffer = None;
                }
                state.buffered_bytes -= buffer.bytes.len();
                state.is_unsynced = true;
            }
            Err(_) => {
                let buffer = state.buffers.get_mut(&id).expect("only its writing thread removes a buffer");
                buffer.state = BufferState::Failed;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Retries failed writes. The error is a current one.
    pub(crate) fn write_failed(&self, store: &ArenaStore) -> Result<()> {
        loop {
            let failed = {
                let state = self.state.lock();
                state.check_poison()?;
                state.find(|buffer| buffer.state == BufferState::Failed)
            };
            match failed {
                Some(id) => self.write_out(store, id)?,
                None => return Ok(()),
            }
        }
    }

    /// Makes all chunks durable that were appended before the call, and returns the first serial number behind them.
    /// The guard keeps others from doing the same.
    pub(crate) fn settle(&self, store: &ArenaStore) -> Result<(u64, MutexGuard<'_, ()>)> {
        let settling = self.settling.lock();
        let end = self.state.lock().next_serial;
        self.write_before(store, end)?;
        self.sync(store, end)?;
        Ok((end, settling))
    }

    /// Writes all buffers that have chunks with serial numbers before `end`, and waits for those that others write.
    fn write_before(&self, store: &ArenaStore, end: u64) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            state.check_poison()?;
            if let Some(id) = state.find(|buffer| buffer.first_serial < end && buffer.state != BufferState::Writing) {
                drop(state);
                self.write_out(store, id)?;
                state = self.state.lock();
            } else if state.find(|buffer| buffer.first_serial < end).is_some() {
                self.changed.wait(&mut state);
            } else {
                return Ok(());
            }
        }
    }

    /// Syncs the file if something was written. All buffers with serial numbers before `end` are. Call only with
    /// `settling` held.
    fn sync(&self, store: &ArenaStore, end: u64) -> Result<()> {
        // What is written from here on counts as not synced.
        let is_needed = std::mem::take(&mut self.state.lock().is_unsynced);
        let synced = if is_needed { store.profile.time(&STORAGE_WRITE, 0, || store.file.sync()) } else { Ok(()) };
        let mut state = self.state.lock();
        if let Err(error) = synced {
            let why: Arc<str> = error.to_string().into();
            tracing::error!(why = &*why, "the store writes no more blocks");
            state.poisoned.get_or_insert(why);
            drop(state);
            self.changed.notify_all();
            return self.check_poison();
        }
        state.synced = state.synced.max(end);
        Ok(())
    }

    /// Asks the system whether it has lost something that was written: if so, a sync fails, and poisons.
    pub(crate) fn check_written(&self, store: &ArenaStore) -> Result<()> {
        let _settling = self.settling.lock();
        let end = self.state.lock().synced;
        self.sync(store, end)?;
        self.check_poison()
    }

    /// Returns the chunks with serial numbers before `end`, by block, with these numbers.
    pub(crate) fn before(&self, end: u64) -> Vec<(Stored, u64)> {
        let state = self.state.lock();
        state.chunks.values().filter(|chunk| chunk.serial < end).map(|chunk| (chunk.stored, chunk.serial)).collect()
    }

    /// Notes that the log and the block table have these blocks.
    pub(crate) fn committed(&self, blocks: &[(u64, u64)]) {
        let mut state = self.state.lock();
        for (block, serial) in blocks {
            if state.chunks.get(block).is_some_and(|chunk| chunk.serial == *serial) {
                state.chunks.remove(block);
            }
        }
    }

    /// Returns the bytes of chunks that are not synced.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.next_serial - state.synced) * self.block_bytes as u64
    }

    /// Returns the bytes in buffers, and how many chunks are pending.
    pub(crate) fn figures(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.buffered_bytes, state.chunks.len())
    }
}
