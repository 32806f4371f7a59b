//! One space: reading, writing, flushing at any alignment (M0.16). Zeros are in [`crate::sparse`], the end is in
//! [`crate::end`], entries are in [`crate::entries`].
//!
//! Invariants:
//! * A read returns the newest data that this process wrote there, flushed or not.
//! * After [`Space::flush`] has returned, earlier writes survive a crash. Before that, any part of them may.
//! * Each stored block has a mapping of exactly one block. Bytes of the last block after the space's end are zeros.
//! * No request reads or writes behind the end, whoever moves it meanwhile. Everything else about the length of what an
//!   owner keeps in the blocks is the owner's business.
//! * Block `u64::MAX` is never used, so every range of blocks has an end.
//! * Writes go to the space's own layer; the layers below never change. A read-only space has no layer of its own.
//!
//! Locks, in the order in which they are taken: the structure of all spaces ([`crate::spaces`]); the gate (shared by
//! requests, exclusive for a change of the end or the layers); cells in ascending order of their blocks, or the lock of
//! entries; the number of mappings of a layer. Then the list of dirty blocks and the table of layers, each held only
//! for one lookup or change. Never wait for memory while holding any of them.

use crate::at::{At, Part, parts};
use crate::buffer::{Base, Buffer};
use crate::cells::{Cell, Cells, Mapping};
use crate::dirty::DirtyList;
use crate::error::{Result, SpaceError};
use crate::mapping::decode_mapping;
use crate::record::{Record, SpaceKind, space_key};
use crate::shared::Shared;
use crate::spaces::SpaceInfo;
use crate::streams::Streams;
use onefold_engine::chain::Chain;
use onefold_engine::components::OBJECT_INDEX;
use onefold_engine::{Change, Engine, Piece};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::ops::Range;
use std::sync::Arc;

/// A client may ask for a whole volume of 1 EiB. Beyond this limit, the caches would evict the first bytes for the
/// last.
const PREFETCH_BYTES: u64 = 32 << 20;

/// An open space. Many threads may call all methods at once.
#[derive(Debug)]
pub struct Space {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u32,
    pub(crate) partition: u16,
    pub(crate) gate: RwLock<Gate>,
    pub(crate) cells: Cells,
    pub(crate) dirty: Mutex<DirtyList>,
    /// Held by every change of entries in the space's own layer.
    pub(crate) entries: Mutex<()>,
    pub(crate) streams: Streams,
    pub(crate) chain: Option<Chain>,
    /// Whether reads compare the fingerprints of what they read.
    pub(crate) verify: bool,
    block_bytes: u32,
    kind: SpaceKind,
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
        if self.is_deleted { Err(SpaceError::Deleted { name: self.record.name.clone() }) } else { Ok(()) }
    }

    fn check(&self, part: Part) -> Result<()> {
        self.check_live()?;
        let block_bytes = u64::from(self.record.block_bytes);
        match self.record.end_bytes {
            Some(end_bytes) if !part.is_before(end_bytes, block_bytes) => Err(SpaceError::OutOfRange {
                name: self.record.name.clone(),
                offset_bytes: part.block.saturating_mul(block_bytes).saturating_add(part.start as u64),
                length_bytes: part.length as u64,
                end_bytes,
            }),
            _ => Ok(()),
        }
    }
}

impl Space {
    pub(crate) fn new(shared: Arc<Shared>, number: u32, partition: u16, record: Record) -> Result<Arc<Space>> {
        let verify = shared.options.verify;
        Space::with(shared, number, partition, record, verify)
    }

    /// Returns a space that verifies fingerprints on reads or not, independent of the other spaces.
    pub(crate) fn with(shared: Arc<Shared>, number: u32, partition: u16, record: Record, verify: bool) -> Result<Arc<Space>> {
        let chain = if record.chain.is_empty() { None } else { Some(shared.engine.chain(&record.chain)?) };
        let space = Arc::new(Space {
            number,
            partition,
            cells: Cells::new(shared.cached_bytes.clone()),
            dirty: Mutex::default(),
            entries: Mutex::new(()),
            streams: Streams::new(shared.options.streams),
            chain,
            verify,
            block_bytes: record.block_bytes,
            kind: record.kind,
            is_read_only: record.is_read_only,
            gate: RwLock::new(Gate { record, is_deleted: false }),
            shared,
        });
        space.shared.register(number, &space);
        Ok(space)
    }

    /// The name.
    pub fn name(&self) -> String {
        self.gate.read().record.name.clone()
    }

    /// The number. No other space ever has it, whatever the names.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns what kind of space it is.
    pub fn kind(&self) -> SpaceKind {
        self.kind
    }

    /// Returns the byte at which it ends, if it has an end.
    pub fn end_bytes(&self) -> Option<u64> {
        self.gate.read().record.end_bytes
    }

    /// Like [`Space::end_bytes`]. Errors: the space is deleted.
    pub fn live_end_bytes(&self) -> Result<Option<u64>> {
        let gate = self.gate.read();
        gate.check_live()?;
        Ok(gate.record.end_bytes)
    }

    /// Returns the block size in bytes. Writes of whole aligned blocks are the fastest.
    pub fn block_size(&self) -> u32 {
        self.block_bytes
    }

    /// Returns whether it never changes: a snapshot or a read-only clone.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the bytes of the blocks in the space's own layer: its data that it does not share with its origin. For
    /// a snapshot: what changed since the previous snapshot. Each entry counts as a block, so this says little of a
    /// filesystem.
    pub fn own_bytes(&self) -> u64 {
        let layer = self.gate.read().record.layer;
        let mappings = self.shared.layers.get(layer).map_or(0, |node| *node.mappings.lock());
        mappings.saturating_mul(u64::from(self.block_bytes))
    }

    /// Returns whether it has the same layer as another space: nothing was stored in either since they parted.
    pub fn shares_layer(&self, other: &Space) -> bool {
        // One lock at a time: the other may be this one.
        let own = self.gate.read().record.layer;
        own == other.gate.read().record.layer
    }

    /// Returns the memory of writes that are not stored yet, in bytes.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.lock().bytes()
    }

    /// Returns the number and the record.
    pub fn info(&self) -> SpaceInfo {
        SpaceInfo { number: self.number, record: self.gate.read().record.clone() }
    }

    /// Returns the engine of the store.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// Returns what messages call it.
    pub(crate) fn called(&self) -> String {
        self.kind.called(self.number)
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    pub(crate) fn shrink_cache(&self, limit_bytes: usize) {
        self.cells.shrink(limit_bytes);
    }

    /// Fills `out` with the bytes at a place.
    pub fn read(&self, at: At, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        for part in self.parts(at, out.len() as u64) {
            let target = &mut out[done..done + part.length];
            done += part.length;
            let gate = self.enter(part)?;
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

    /// Writes `data` at a place. Visible at once, durable after [`Space::flush`]. If the buffers are full, writes out
    /// other blocks first. Errors: writing out failed (a full disk); earlier writes are kept. A write across blocks
    /// that fails may have been taken in part.
    pub fn write(&self, at: At, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let mut done = 0;
        for part in self.parts(at, data.len() as u64) {
            let source = &data[done..done + part.length];
            done += part.length;
            self.change_part(part, |buffer| buffer.write(part.start, source))?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Writes out what was written to the blocks of a range. It is durable with the next flush of the engine.
    pub fn write_out_range(&self, at: At, length: u64) -> Result<()> {
        let block_bytes = u64::from(self.block_bytes);
        self.write_out_within(at.within(block_bytes).0..at.plus(length).next_block(block_bytes))
    }

    /// Makes every earlier write durable. After an error (a full disk), the writes are kept and readable, and a later
    /// flush makes them durable. Discards become durable even on a full disk, because they free room.
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
    pub fn write_out_all(&self) -> Result<()> {
        self.write_out_within(0..u64::MAX)
    }

    fn write_out_within(&self, blocks: Range<u64>) -> Result<()> {
        let (cleared, others) = self.dirty_blocks(blocks);
        self.write_out(&cleared)?;
        self.write_out(&others)?;
        self.shared.tidy(self);
        Ok(())
    }

    /// Returns the dirty ones of these blocks: first the blocks of zeros, which need no room and go first, then the
    /// others.
    fn dirty_blocks(&self, blocks: Range<u64>) -> (Vec<u64>, Vec<u64>) {
        let dirty = self.dirty.lock().range(blocks.start, blocks.end, usize::MAX);
        let (cleared, others): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|(_, is_cleared)| *is_cleared);
        let blocks = |list: Vec<(u64, bool)>| list.into_iter().map(|(block, _)| block).collect();
        (blocks(cleared), blocks(others))
    }

    /// Writes out everything that is not stored yet. The caller holds the gate exclusively, so nothing is written
    /// meanwhile.
    pub(crate) fn write_out_rest(&self, gate: &Gate) -> Result<()> {
        let (cleared, others) = self.dirty_blocks(0..u64::MAX);
        self.write_out_gated(gate, &cleared)?;
        self.write_out_gated(gate, &others)
    }

    /// Brings the first 32 MiB of a range into the caches, so that reading it soon is fast.
    pub fn prefetch(&self, at: At, length: u64) -> Result<()> {
        let mut scratch = vec![0; self.block_bytes()];
        for part in self.parts(at, length.min(PREFETCH_BYTES)) {
            let gate = self.enter(part)?;
            self.read_part(&gate, part, &mut scratch[..part.length])?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Returns the change that writes this record of the space to the object index.
    pub(crate) fn change(&self, record: &Record) -> Change {
        (self.partition, space_key(self.number), Some(record.encode()))
    }

    /// Ends the space's life in this process: every later request fails, and unstored writes are dropped.
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

    /// Waits until a change of a part fits into memory, then makes it, if the part is still before the end.
    pub(crate) fn change_part(&self, part: Part, change: impl FnOnce(&mut Buffer)) -> Result<()> {
        self.make_room(part.length)?;
        let gate = self.enter(part)?;
        self.check_known(&gate, part)?;
        self.change_gated(part.block, change);
        Ok(())
    }

    /// Zeroes whole blocks. On a full disk this frees room: once `is_full`, the given blocks are zeroed in memory,
    /// beyond the limit if needed. Then all blocks of zeros are written out, and no others.
    pub(crate) fn clear_blocks(&self, blocks: &[u64], is_full: &mut bool) -> Result<()> {
        for block in blocks {
            if !*is_full {
                match self.make_room(0) {
                    Err(error) if error.is_full() => *is_full = true,
                    made => made?,
                }
            }
            let _gate = self.enter(Part::whole(*block, self.block_bytes()))?;
            self.change_gated(*block, |buffer| *buffer = Buffer::new(Base::Zeros));
        }
        if *is_full { self.write_out(&self.dirty_blocks(0..u64::MAX).0) } else { Ok(()) }
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

    /// Lets in a request for a part of a block, unless it lies behind the end, which may have moved meanwhile.
    pub(crate) fn enter(&self, part: Part) -> Result<RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read();
        gate.check(part)?;
        Ok(gate)
    }

    /// Refuses changes of a read-only space.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only { Err(SpaceError::ReadOnly { name: self.name() }) } else { Ok(()) }
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
            .map_err(|reason| SpaceError::Damaged { object: format!("the mapping of block {block} of {}", self.called()), reason })
    }

    /// Splits a range into parts, one per block.
    pub(crate) fn parts(&self, at: At, length: u64) -> impl Iterator<Item = Part> + use<> {
        parts(at, length, u64::from(self.block_bytes))
    }
}
