//! Writes dirty blocks to the store.
//!
//! A batch of blocks is locked in ascending order. Each block is completed with stored bytes where it was not written.
//! Then the blocks are chunked and stored through one writing stream. One transaction replaces the old mappings with
//! the new ones and states their references. Only then do the buffers go. After an error, all blocks of the batch are
//! dirty and readable as before.

use crate::buffer::{BUFFER_BYTES, Base, Buffer};
use crate::cells::{Cell, Mapping};
use crate::error::{Result, SpaceError};
use crate::layers::{Node, missing};
use crate::mapping::{encode_mapping, encode_zeros, group, mapping_key};
use crate::space::{Gate, Space};
use onefold_engine::chain::is_zero;
use onefold_engine::{Hints, Piece, Reference, Transaction};
use parking_lot::RwLockWriteGuard;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest total size of the blocks in a batch, unless it is a single block. Limits the memory besides the buffers.
const BATCH_BYTES: usize = 2 << 20;

/// Returns the number of blocks in one batch.
pub(crate) fn batch_blocks(block_bytes: usize) -> usize {
    (BATCH_BYTES / block_bytes).max(1)
}

/// The new content of a block.
enum NewBlock<'a> {
    Zeros,
    Bytes(Cow<'a, [u8]>),
}

impl Space {
    /// Writes out the dirty ones of the given blocks. The caller holds no cell.
    pub(crate) fn write_out(&self, blocks: &[u64]) -> Result<()> {
        let gate = self.gate.read();
        if gate.is_deleted {
            return Ok(());
        }
        self.write_out_gated(&gate, blocks)
    }

    /// Writes out the given blocks in batches, on several threads if there are many. The caller holds the gate.
    pub(crate) fn write_out_gated(&self, gate: &Gate, blocks: &[u64]) -> Result<()> {
        let batches: Vec<&[u64]> = blocks.chunks(batch_blocks(self.block_bytes())).collect();
        let threads = self.streams.limit.min(batches.len());
        if threads <= 1 {
            return batches.into_iter().try_for_each(|batch| self.write_out_batch(gate, batch));
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.write_out_batch(gate, batch) {
                    // The other threads stop after their current batch.
                    next.store(batches.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
            let mut result = work();
            for helper in helpers {
                let other = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(other);
            }
            result
        })
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
            let space = other.as_deref().unwrap_or(self);
            if !own {
                picked = space.dirty.lock().pick(batch_blocks(space.block_bytes()), false);
            }
            if picked.is_empty() {
                // Other threads are writing all of it out.
                self.shared.wait_for_others();
            } else {
                space.write_out_picked(&picked)?;
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
            tracing::debug!(space = self.number, %error, "blocks could not be written out early");
        }
        Ok(())
    }

    fn write_out_picked(&self, picked: &[u64]) -> Result<()> {
        let result = self.write_out(picked);
        // The blocks of batches that were not reached.
        self.dirty.lock().unpick(picked);
        result
    }

    /// Writes out one batch of sorted blocks. Afterwards all of them are clean, or after an error none.
    fn write_out_batch(&self, gate: &Gate, blocks: &[u64]) -> Result<()> {
        debug_assert!(blocks.is_sorted(), "locks are taken in ascending order");
        let cells: Vec<(u64, Arc<Cell>)> = blocks.iter().map(|block| (*block, self.cells.get(*block))).collect();
        let mut locked: Vec<Locked<'_>> = Vec::with_capacity(cells.len());
        for (block, cell) in &cells {
            let buffer = cell.write(self.shared.profile());
            if buffer.is_some() {
                locked.push(Locked::new(*block, cell, buffer));
            }
        }
        let result = self.store(gate, &mut locked);
        if result.is_ok() {
            for entry in &mut locked {
                *entry.buffer = None;
                self.count_removed(entry.block);
            }
        }
        drop(locked);
        self.dirty.lock().unpick(blocks);
        self.shared.notify_written_out();
        result
    }

    /// Stores the blocks and submits their new mappings, which go to the space's own layer.
    fn store(&self, gate: &Gate, locked: &mut [Locked<'_>]) -> Result<()> {
        let top = &*self.top(gate)?;
        // Held from before the old mappings are read until the new ones are submitted.
        let _in_flight = self.shared.engine.in_flight();
        for entry in locked.iter_mut() {
            let is_whole = entry.is_whole(self.block_bytes());
            self.look_up_old(gate, entry, is_whole)?;
        }
        let contents = locked.iter().map(|entry| self.content(entry)).collect::<Result<Vec<_>>>()?;
        let runs: Vec<&[u8]> =
            contents.iter().filter_map(|content| if let NewBlock::Bytes(bytes) = content { Some(&**bytes) } else { None }).collect();
        let mut stored = if runs.is_empty() {
            Vec::new()
        } else {
            let overwritten: Vec<Piece> = locked.iter().flat_map(|entry| entry.old.pieces.iter().copied()).collect();
            let hints = Hints { overwritten: &overwritten, chain: self.chain.as_ref() };
            let mut loan = self.streams.borrow(&self.shared.engine);
            let stream = loan.stream.as_mut().expect("a loan has its stream until it is dropped");
            stream.write_runs(&runs, hints)?
        }
        .into_iter();
        let new = locked
            .iter()
            .zip(&contents)
            .map(|(entry, content)| match content {
                NewBlock::Zeros => Ok(Vec::new()),
                NewBlock::Bytes(_) => self.checked(entry.block, stored.next()),
            })
            .collect::<Result<Vec<_>>>()?;
        drop(contents);
        self.replace(top, locked, new)
    }

    /// Looks up the old mapping of a block before it changes. `is_whole`: the block will be written whole.
    pub(crate) fn look_up_old(&self, gate: &Gate, entry: &mut Locked<'_>, is_whole: bool) -> Result<()> {
        match self.mapping(gate, entry.block, entry.cell) {
            Ok(mapping) => entry.old = mapping,
            // A block that is written whole does not need its old content. From then on it is known again.
            Err(error) if error.is_lost() && is_whole => entry.is_lost = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Replaces the mappings of locked blocks. The caller has held an in-flight guard since before it looked up the new
    /// references.
    pub(crate) fn replace(&self, top: &Node, locked: &[Locked<'_>], new: Vec<Vec<Piece>>) -> Result<()> {
        let mut transaction = Transaction::default();
        let mut mappings: Vec<Mapping> = Vec::with_capacity(locked.len());
        let mut more_mappings = 0;
        for (entry, new) in locked.iter().zip(new) {
            if new == *entry.old.pieces && !entry.is_lost {
                mappings.push(entry.old.clone());
                continue;
            }
            let own = self.own_mappings(top, entry)?;
            let others = top.layer.merging.map(|other| other.map).into_iter();
            let others: Vec<u32> = others.filter(|map| entry.is_lost || own.iter().any(|(of, _)| of == map)).collect();
            transaction.references.extend(Reference::of(&new, group(top.layer.map), 1));
            own.iter().for_each(|(map, pieces)| transaction.references.extend(Reference::of(pieces, group(*map), -1)));
            let digest_bytes = self.shared.engine.digest_bytes();
            let value = if !new.is_empty() {
                Some(encode_mapping(&new, digest_bytes))
            } else if self.shared.layers.shows_through(top.number, entry.block)? {
                Some(encode_zeros(self.block_size(), digest_bytes))
            } else {
                None
            };
            more_mappings += i64::from(value.is_some()) - own.len() as i64;
            let layer = if value.is_some() { top.number } else { 0 };
            transaction.changes.push((self.partition, mapping_key(top.layer.map, entry.block), value));
            transaction.changes.extend(others.into_iter().map(|map| (self.partition, mapping_key(map, entry.block), None)));
            mappings.push(Mapping { pieces: Arc::new(new), layer });
        }
        if !transaction.changes.is_empty() {
            Reference::merge(&mut transaction.references);
            self.submit_mappings(top, transaction, more_mappings)?;
        }
        for (entry, mapping) in locked.iter().zip(mappings) {
            self.cells.remember(entry.cell, mapping);
        }
        Ok(())
    }

    /// Returns the layer that the space writes to. Its shape does not change while the caller holds the gate.
    pub(crate) fn top(&self, gate: &Gate) -> Result<Arc<Node>> {
        let layer = gate.record.layer;
        self.shared.layers.get(layer).ok_or_else(|| missing(format!("the record of {}", self.called()), layer))
    }

    /// Returns the mappings of a block in the space's own layer, with their maps. They will be replaced. While the
    /// layer takes in its parent, there may be two, of which one hides the other.
    fn own_mappings(&self, top: &Node, entry: &Locked<'_>) -> Result<Vec<(u32, Vec<Piece>)>> {
        let Some(other) = top.layer.merging else {
            let is_own = entry.old.layer == top.number;
            return Ok(is_own.then(|| (top.layer.map, entry.old.pieces.to_vec())).into_iter().collect());
        };
        let mut own = Vec::new();
        for map in [top.layer.map, other.map] {
            match self.shared.engine.get(self.partition, &mapping_key(map, entry.block)) {
                Ok(Some(value)) => own.push((map, self.decode(entry.block, &value)?)),
                Ok(None) => {}
                Err(error) if entry.is_lost && error.is_lost() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(own)
    }

    /// Submits changes of mappings or entries with the layer's new number of keys.
    pub(crate) fn submit_mappings(&self, top: &Node, mut transaction: Transaction, more: i64) -> Result<()> {
        if more == 0 {
            return Ok(self.shared.engine.submit(transaction)?);
        }
        let mut mappings = top.mappings.lock();
        let after = mappings.saturating_add_signed(more);
        transaction.changes.push(top.change(after));
        self.shared.engine.submit(transaction)?;
        *mappings = after;
        Ok(())
    }

    /// Returns the bytes of a dirty block.
    fn content<'e>(&self, entry: &'e Locked<'_>) -> Result<NewBlock<'e>> {
        let Some(buffer) = entry.buffer.as_ref() else { return Ok(NewBlock::Zeros) };
        if buffer.is_cleared() {
            return Ok(NewBlock::Zeros);
        }
        let bytes = match buffer.whole(self.block_bytes()) {
            Some(whole) => Cow::Borrowed(whole),
            None => {
                let mut bytes = vec![0; self.block_bytes()];
                if buffer.base() == Base::Stored && !entry.old.pieces.is_empty() {
                    self.shared.engine.read(&entry.old.pieces, 0, &mut bytes, false)?;
                }
                buffer.overlay(0, &mut bytes);
                Cow::Owned(bytes)
            }
        };
        Ok(if is_zero(&bytes) { NewBlock::Zeros } else { NewBlock::Bytes(bytes) })
    }

    /// Checks that the pieces that the engine returned for a block spell exactly one block, before anything relies on
    /// them.
    fn checked(&self, block: u64, pieces: Option<Vec<Piece>>) -> Result<Vec<Piece>> {
        let pieces = pieces.unwrap_or_default();
        let length: u64 = pieces.iter().map(Piece::length).sum();
        if length != self.block_bytes() as u64 {
            let reason = format!("the engine stored only {length} of {} bytes", self.block_bytes());
            return Err(SpaceError::Damaged { object: format!("block {block} of {}", self.called()), reason });
        }
        Ok(pieces)
    }
}

/// A block of a batch, locked.
pub(crate) struct Locked<'a> {
    pub(crate) block: u64,
    cell: &'a Cell,
    pub(crate) buffer: RwLockWriteGuard<'a, Option<Buffer>>,
    old: Mapping,
    /// The old content of the block is unknown: there may be a mapping or not.
    is_lost: bool,
}

impl<'a> Locked<'a> {
    pub(crate) fn new(block: u64, cell: &'a Cell, buffer: RwLockWriteGuard<'a, Option<Buffer>>) -> Locked<'a> {
        Locked { block, cell, buffer, old: Mapping::default(), is_lost: false }
    }

    /// Returns whether the buffer has all bytes of the block.
    fn is_whole(&self, block_bytes: usize) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| buffer.covers(0, block_bytes))
    }
}
