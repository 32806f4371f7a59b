//! One volume: reading, writing, flushing at any alignment (M0.16). Zeros and sizes are in [`crate::sparse`].
//!
//! Invariants:
//! * A read returns the newest data that this process wrote there, flushed or not.
//! * After [`Volume::flush`] has returned, earlier writes survive a crash. Before that, any part of them may.
//! * Each stored block has a mapping of exactly one block. Bytes of the last block after the volume's end are zeros.
//!
//! * Writes go to the volume's own layer; the layers below never change. A read-only volume has no layer of its own.
//!
//! Locks, in the order in which they are taken: the structure of all volumes ([`crate::volumes`]); the gate (shared by
//! requests, exclusive for a change of size or layers); cells in ascending order of their blocks; the number of
//! mappings of a layer. Then the list of dirty blocks and the table of layers, each held only for one lookup or change.
//! Never wait for memory while holding any of them.

use crate::buffer::{BUFFER_BYTES, Base, Buffer};
use crate::cells::{Cell, Cells, Mapping};
use crate::dirty::DirtyList;
use crate::error::{Result, VolumeError};
use crate::mapping::decode_mapping;
use crate::record::{Record, volume_key};
use crate::shared::Shared;
use crate::volumes::VolumeInfo;
use crate::write_out::{Streams, batch_blocks};
use onefold_engine::chain::Chain;
use onefold_engine::components::OBJECT_INDEX;
use onefold_engine::{Change, Piece};
use onefold_ground::Space;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;

/// A client may ask for a whole volume of 1 EiB. Beyond this limit, the caches would evict the first bytes for the
/// last.
const PREFETCH_BYTES: u64 = 32 << 20;

/// An open volume. Many threads may call all methods at once.
#[derive(Debug)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
    pub(crate) partition: u16,
    pub(crate) gate: RwLock<Gate>,
    pub(crate) cells: Cells,
    pub(crate) dirty: Mutex<DirtyList>,
    pub(crate) streams: Streams,
    pub(crate) chain: Option<Chain>,
    /// Whether reads compare the fingerprints of what they read.
    pub(crate) verify: bool,
    block_bytes: u32,
    is_read_only: bool,
}

/// State that changes only while no request runs.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) record: Record,
    pub(crate) is_deleted: bool,
}

impl Gate {
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.is_deleted { Err(VolumeError::Deleted { name: self.record.name.clone() }) } else { Ok(()) }
    }

    fn check(&self, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.check_live()?;
        let name = || self.record.name.clone();
        let size_bytes = self.record.size_bytes;
        if offset_bytes.checked_add(length_bytes).is_none_or(|end| end > size_bytes) {
            return Err(VolumeError::OutOfRange { name: name(), offset_bytes, length_bytes, size_bytes });
        }
        Ok(())
    }
}

impl Volume {
    pub(crate) fn new(shared: Arc<Shared>, number: u32, partition: u16, record: Record) -> Result<Arc<Volume>> {
        let verify = shared.options.verify;
        Volume::with(shared, number, partition, record, verify)
    }

    /// Returns a volume that verifies fingerprints on reads or not, independent of the other volumes.
    pub(crate) fn with(shared: Arc<Shared>, number: u32, partition: u16, record: Record, verify: bool) -> Result<Arc<Volume>> {
        let chain = if record.chain.is_empty() { None } else { Some(shared.engine.chain(&record.chain)?) };
        let volume = Arc::new(Volume {
            number,
            partition,
            cells: Cells::new(shared.cached_bytes.clone()),
            dirty: Mutex::default(),
            streams: Streams::new(shared.options.streams),
            chain,
            verify,
            block_bytes: record.block_bytes,
            is_read_only: record.is_read_only,
            gate: RwLock::new(Gate { record, is_deleted: false }),
            shared,
        });
        volume.shared.register(number, &volume);
        Ok(volume)
    }

    /// The name.
    pub fn name(&self) -> String {
        self.gate.read().record.name.clone()
    }

    /// The size, bytes.
    pub fn size(&self) -> u64 {
        self.gate.read().record.size_bytes
    }

    /// Returns the block size in bytes. Writes of whole aligned blocks are the fastest.
    pub fn block_size(&self) -> u32 {
        self.block_bytes
    }

    /// Returns whether it never changes: a snapshot or a read-only clone.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the bytes of the blocks in the volume's own layer: its data that it does not share with its origin. For
    /// a snapshot: what changed since the previous snapshot.
    pub fn own_bytes(&self) -> u64 {
        let layer = self.gate.read().record.layer;
        let mappings = self.shared.layers.get(layer).map_or(0, |node| *node.mappings.lock());
        mappings.saturating_mul(u64::from(self.block_bytes))
    }

    /// Returns the space on the store's device.
    pub fn space(&self) -> Result<Space> {
        Ok(self.shared.engine.space()?)
    }

    /// Returns the memory of writes that are not stored yet, in bytes.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.lock().bytes()
    }

    /// Returns the info of the volume.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo::of(self.number, &self.gate.read().record)
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    pub(crate) fn shrink_cache(&self, limit_bytes: usize) {
        self.cells.shrink(limit_bytes);
    }

    /// Fills `out` from `offset` on.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len() as u64)?;
        let mut done = 0;
        for part in self.parts(offset, out.len() as u64) {
            let target = &mut out[done..done + part.length];
            done += part.length;
            let gate = self.enter(part.end(self.block_bytes()))?;
            self.read_part(&gate, part, target)?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    fn read_part(&self, gate: &Gate, part: Part, out: &mut [u8]) -> Result<()> {
        let cell = self.cells.get(part.block);
        let buffer = cell.read(self.shared.profile());
        self.read_locked(gate, part, &cell, &buffer, out)
    }

    /// Reads a part of a block whose cell the caller has locked. `buffer` is the cell's buffer.
    pub(crate) fn read_locked(&self, gate: &Gate, part: Part, cell: &Cell, buffer: &Option<Buffer>, out: &mut [u8]) -> Result<()> {
        let end = part.start + part.length;
        if buffer.as_ref().is_some_and(|buffer| buffer.covers(part.start, end)) {
            out.fill(0);
        } else {
            let pieces = self.mapping(gate, part.block, cell)?.pieces;
            if pieces.is_empty() {
                out.fill(0);
            } else {
                self.shared.engine.read(&pieces, part.start as u64, out, self.verify)?;
            }
        }
        if let Some(buffer) = buffer {
            buffer.overlay(part.start, out);
        }
        Ok(())
    }

    /// Writes `data` at `offset`. Visible at once, durable after [`Volume::flush`]. If the buffers are full, writes out
    /// other blocks first. Errors: writing out failed (a full disk); earlier writes are kept. A write across blocks
    /// that fails may have been taken in part.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.check(offset, data.len() as u64)?;
        let mut done = 0;
        for part in self.parts(offset, data.len() as u64) {
            let source = &data[done..done + part.length];
            done += part.length;
            self.change_part(part, |buffer| buffer.write(part.start, source))?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Like [`Volume::write`], but durable on return (FUA).
    pub fn write_durable(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(offset, data)?;
        let blocks: Vec<u64> = self.parts(offset, data.len() as u64).map(|part| part.block).collect();
        self.write_out(&blocks)?;
        Ok(self.shared.engine.flush()?)
    }

    /// Makes every earlier write durable. After an error (a full disk), the writes are kept and readable, and a later
    /// flush makes them durable. Discards become durable even on a full disk, because they free space.
    pub fn flush(&self) -> Result<()> {
        match self.write_out_all() {
            Err(error) if error.is_full() => {
                self.shared.engine.flush()?;
                Err(error)
            }
            written => {
                written?;
                Ok(self.shared.engine.flush()?)
            }
        }
    }

    /// Writes out every earlier write. It is durable with the next flush of the engine.
    pub(crate) fn write_out_all(&self) -> Result<()> {
        let (cleared, others) = self.dirty_blocks();
        self.write_out(&cleared)?;
        self.write_out(&others)?;
        self.shared.tidy(self);
        Ok(())
    }

    /// Returns the dirty blocks: first the blocks of zeros, which need no space and go first, then the others.
    fn dirty_blocks(&self) -> (Vec<u64>, Vec<u64>) {
        let dirty = self.dirty.lock().range(0, u64::MAX, usize::MAX);
        let (cleared, others): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|(_, is_cleared)| *is_cleared);
        let blocks = |list: Vec<(u64, bool)>| list.into_iter().map(|(block, _)| block).collect();
        (blocks(cleared), blocks(others))
    }

    /// Writes out everything that is not stored yet. The caller holds the gate exclusively, so nothing is written
    /// meanwhile.
    pub(crate) fn write_out_rest(&self, gate: &Gate) -> Result<()> {
        let (cleared, others) = self.dirty_blocks();
        self.write_out_gated(gate, &cleared)?;
        self.write_out_gated(gate, &others)
    }

    /// Brings the first 32 MiB of a range into the caches, so that reading it soon is fast.
    pub fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.check(offset, length)?;
        let mut scratch = vec![0; self.block_bytes()];
        for part in self.parts(offset, length.min(PREFETCH_BYTES)) {
            let gate = self.enter(part.end(self.block_bytes()))?;
            self.read_part(&gate, part, &mut scratch[..part.length])?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Returns the change that writes this record of the volume to the object index.
    pub(crate) fn change(&self, record: &Record) -> Change {
        (self.partition, volume_key(self.number), Some(record.encode()))
    }

    /// Ends the volume's life in this process: every later request fails, and unstored writes are dropped.
    pub(crate) fn close(&self, gate: &mut Gate) {
        gate.is_deleted = true;
        self.forget_written();
        self.shared.unregister(self.number);
    }

    /// Drops unstored writes and all mappings in memory. The caller holds the gate exclusively.
    pub(crate) fn forget_written(&self) {
        let dirty = self.dirty.lock().range(0, u64::MAX, usize::MAX);
        for (block, _) in dirty {
            let cell = self.cells.get(block);
            let mut buffer = cell.write(self.shared.profile());
            *buffer = None;
            self.count_removed(block);
        }
        self.cells.forget_all();
        self.shared.notify_written_out();
    }

    /// Waits until a change of a part fits into memory, then makes it, if the part is still inside the volume.
    pub(crate) fn change_part(&self, part: Part, change: impl FnOnce(&mut Buffer)) -> Result<()> {
        self.make_room(part.length)?;
        let gate = self.enter(part.end(self.block_bytes()))?;
        self.check_known(&gate, part)?;
        self.change_gated(part.block, change);
        Ok(())
    }

    /// Zeroes whole blocks. On a full disk this frees space: once `is_full`, the given blocks are zeroed in memory,
    /// beyond the limit if needed. Then all blocks of zeros are written out, and no others.
    pub(crate) fn clear_blocks(&self, blocks: &[u64], is_full: &mut bool) -> Result<()> {
        for block in blocks {
            if !*is_full {
                match self.make_room(0) {
                    Err(error) if error.is_full() => *is_full = true,
                    made => made?,
                }
            }
            let _gate = self.enter((block + 1) * self.block_bytes() as u64)?;
            self.change_gated(*block, |buffer| *buffer = Buffer::new(Base::Zeros));
        }
        if *is_full { self.write_out(&self.dirty_blocks().0) } else { Ok(()) }
    }

    /// Refuses a part of a block if the rest of the block is lost. A lost block must be written or zeroed as a whole.
    /// Otherwise the part would be taken but could never be stored.
    fn check_known(&self, gate: &Gate, part: Part) -> Result<()> {
        if part.length == self.block_bytes() || !self.shared.engine.has_lost() {
            return Ok(());
        }
        let cell = self.cells.get(part.block);
        let place = cell.write(self.shared.profile());
        if place.is_some() { Ok(()) } else { self.mapping(gate, part.block, &cell).map(drop) }
    }

    pub(crate) fn change_gated(&self, block: u64, change: impl FnOnce(&mut Buffer)) {
        let cell = self.cells.get(block);
        self.change_locked(block, &mut cell.write(self.shared.profile()), change);
    }

    /// Changes a block whose cell the caller has locked.
    pub(crate) fn change_locked(&self, block: u64, place: &mut Option<Buffer>, change: impl FnOnce(&mut Buffer)) {
        let buffer = place.get_or_insert_with(|| Buffer::new(Base::Stored));
        change(buffer);
        let after = buffer.memory_bytes();
        let is_whole = buffer.is_cleared() || buffer.whole(self.block_bytes()).is_some();
        let before = self.dirty.lock().update(block, after, is_whole, buffer.is_cleared());
        self.shared.count_dirty(before, after);
    }

    /// Counts a block whose buffer is gone. The caller holds its cell.
    pub(crate) fn count_removed(&self, block: u64) {
        let before = self.dirty.lock().remove(block);
        self.shared.count_dirty(before, 0);
    }

    /// Waits until `length` more bytes fit into the buffers, and writes out until they do. The caller holds no lock.
    pub(crate) fn make_room(&self, length: usize) -> Result<()> {
        let limit = self.shared.options.dirty_bytes;
        let wanted = length + BUFFER_BYTES;
        let batch = batch_blocks(self.block_bytes());
        loop {
            let used = self.shared.dirty_bytes();
            if used == 0 || used + wanted <= limit {
                break;
            }
            let mut picked = self.dirty.lock().pick(batch, false);
            let own = !picked.is_empty();
            let other = if own { None } else { self.shared.dirtiest() };
            let volume = other.as_deref().unwrap_or(self);
            if !own {
                picked = volume.dirty.lock().pick(batch_blocks(volume.block_bytes()), false);
            }
            if picked.is_empty() {
                // Other threads are writing all of it out.
                self.shared.wait_for_others();
            } else {
                volume.write_out_picked(&picked)?;
            }
        }
        // Whole blocks get no cheaper by waiting. Writing them early leaves less for the flush.
        let picked = {
            let mut dirty = self.dirty.lock();
            if dirty.whole_bytes() > limit / 4 { dirty.pick(batch, true) } else { Vec::new() }
        };
        if !picked.is_empty()
            && let Err(error) = self.write_out_picked(&picked)
        {
            // No caller asked for this. The blocks stay dirty, and the next flush reports the error.
            tracing::debug!(volume = self.number, %error, "blocks could not be written out early");
        }
        Ok(())
    }

    fn write_out_picked(&self, picked: &[u64]) -> Result<()> {
        let result = self.write_out(picked);
        // The blocks of batches that were not reached.
        self.dirty.lock().unpick(picked);
        result
    }

    /// Lets in a request for a part of the volume up to `end`, unless the volume has shrunk meanwhile.
    pub(crate) fn enter(&self, end: u64) -> Result<RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read();
        gate.check(0, end)?;
        Ok(gate)
    }

    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<()> {
        self.gate.read().check(offset, length)
    }

    /// Refuses changes of a read-only volume.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only { Err(VolumeError::ReadOnly { name: self.name() }) } else { Ok(()) }
    }

    /// Returns the current mapping of a block. The caller has locked the block's cell and holds the gate.
    pub(crate) fn mapping(&self, gate: &Gate, block: u64, cell: &Cell) -> Result<Mapping> {
        if let Some(mapping) = cell.mapping() {
            return Ok(mapping);
        }
        let found = self.shared.profile().time(&OBJECT_INDEX, 0, || self.shared.layers.find(gate.record.layer, block))?;
        let mapping = match found {
            Some((layer, value)) => Mapping { pieces: Arc::new(self.decode(block, &value)?), layer },
            None => Mapping::default(),
        };
        self.cells.remember(cell, mapping.clone());
        Ok(mapping)
    }

    pub(crate) fn decode(&self, block: u64, value: &[u8]) -> Result<Vec<Piece>> {
        decode_mapping(value, self.shared.engine.digest_bytes(), self.block_bytes)
            .map_err(|reason| VolumeError::Damaged { object: format!("the mapping of block {block} of volume {}", self.number), reason })
    }

    /// Splits a range into parts, one per block.
    pub(crate) fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Part> + use<> {
        let block_bytes = u64::from(self.block_bytes);
        let (mut at, end) = (offset, offset + length);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let start = at % block_bytes;
            let length = (block_bytes - start).min(end - at);
            let block = at / block_bytes;
            at += length;
            Some(Part { block, start: start as usize, length: length as usize })
        })
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
    pub(crate) fn end(self, block_bytes: usize) -> u64 {
        self.block * block_bytes as u64 + (self.start + self.length) as u64
    }
}
