//! Zeros, holes and sizes of a volume. Zeros are not stored: a block of zeros has no mapping. A discarded block loses
//! its mapping, or gets one that hides the layers below. The cost of all this follows the stored data, not the size of
//! the range.

use crate::buffer::{Base, Buffer};
use crate::error::{Result, VolumeError};
use crate::layer::Layer;
use crate::layers::STEP_OBJECTS;
use crate::mapping::{encode_zeros, mapping_key, mappings_end};
use crate::record::{Record, check_size};
use crate::volume::{Gate, Part, Volume};
use onefold_engine::{Change, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A run of a volume that has data or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, bytes.
    pub length: u64,
    /// Whether nothing is stored for it: it reads as zeros.
    pub is_hole: bool,
}

/// The mapped blocks after which a status request ends. A question about a terabyte must not keep a thread busy for
/// seconds.
const STATUS_BLOCKS: usize = 4096;

/// What is known of a block that is not a hole.
enum Present {
    /// Data in memory, newer than what is stored.
    Buffer { is_cleared: bool },
    /// An encoded mapping.
    Mapping(Vec<u8>),
}

impl Volume {
    /// Zeroes a range and frees its stored data. The cost of whole blocks follows their stored data.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        // Whole blocks first: on a full disk, the rest may need their space.
        self.clear_whole_blocks(offset, length)?;
        self.zero_edges(offset, length)
    }

    /// Discards a range, which reads as zeros from now on. On a full disk this may hold only for the whole blocks in
    /// it, because partial blocks would have to be stored again.
    pub fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.clear_whole_blocks(offset, length)?;
        match self.zero_edges(offset, length) {
            Err(error) if error.is_full() => Ok(()),
            done => done,
        }
    }

    /// Returns the blocks that lie wholly within a range.
    fn whole_blocks(&self, offset: u64, length: u64) -> Range<u64> {
        let block_bytes = self.block_bytes() as u64;
        offset.div_ceil(block_bytes)..(offset + length) / block_bytes
    }

    fn clear_whole_blocks(&self, offset: u64, length: u64) -> Result<()> {
        self.check_writable()?;
        self.check(offset, length)?;
        let whole = self.whole_blocks(offset, length);
        let mut is_full = false;
        self.for_each_present(whole.start, whole.end, |blocks| self.clear_blocks(blocks, &mut is_full))?;
        self.shared.tidy(self);
        Ok(())
    }

    fn zero_edges(&self, offset: u64, length: u64) -> Result<()> {
        let (whole, block_bytes) = (self.whole_blocks(offset, length), self.block_bytes() as u64);
        // Without whole blocks there is one edge.
        let (start, end) = if whole.is_empty() { (offset, offset) } else { (whole.start * block_bytes, whole.end * block_bytes) };
        for part in self.parts(offset, start - offset).chain(self.parts(end, offset + length - end)) {
            self.zero_part(part)?;
        }
        self.shared.tidy(self);
        Ok(())
    }

    /// Zeroes a part of a block, unless the block is all zeros already.
    fn zero_part(&self, part: Part) -> Result<()> {
        {
            let gate = self.enter(part.end(self.block_bytes()))?;
            let cell = self.cells.get(part.block);
            let buffer = cell.read(self.shared.profile());
            let is_zeros = match &*buffer {
                Some(buffer) => buffer.is_cleared(),
                None => self.mapping(&gate, part.block, &cell)?.pieces.is_empty(),
            };
            if is_zeros {
                return Ok(());
            }
        }
        self.change_part(part, |buffer| buffer.write_zeros(part.start, part.length))
    }

    /// Returns up to `limit` extents from `offset` on, within `length` bytes. They may cover less than `length` if
    /// there are more extents, or very many blocks to examine.
    pub fn status(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.check(offset, length)?;
        let block_bytes = self.block_bytes() as u64;
        let end = offset + length;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        let mut push = |to: u64, is_hole: bool| {
            let to = to.min(end);
            if to <= at {
                return true;
            }
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.is_hole == is_hole => last.length += to - at,
                _ if count >= limit => return false,
                _ => extents.push(Extent { length: to - at, is_hole }),
            }
            at = to;
            true
        };
        let mut block = offset / block_bytes;
        let blocks_end = end.div_ceil(block_bytes);
        let mut looked_at = 0;
        'steps: while block < blocks_end && looked_at < STATUS_BLOCKS {
            let (present, next) = match self.present(&self.gate.read(), block, blocks_end) {
                // Data lost in a repair is not a hole: reading it is an error.
                Err(error) if error.is_lost() => {
                    looked_at += 1;
                    block += 1;
                    if push(block * block_bytes, false) { continue } else { break }
                }
                present => present?,
            };
            looked_at += present.len();
            for (number, present) in present {
                if !push(number * block_bytes, true) {
                    break 'steps;
                }
                let goes_on = match present {
                    Present::Buffer { is_cleared } => push((number + 1) * block_bytes, is_cleared),
                    Present::Mapping(value) => {
                        let mut to = number * block_bytes;
                        self.decode(number, &value)?.iter().all(|piece| {
                            to += piece.length();
                            push(to, piece.fingerprint().is_none())
                        })
                    }
                };
                if !goes_on {
                    break 'steps;
                }
            }
            if !push(next * block_bytes, true) {
                break;
            }
            block = next;
        }
        Ok(extents)
    }

    /// Changes the size. Durable on return. Data beyond the new end is gone: if the volume grows again, it shows zeros
    /// there. In append-only mode a volume can only grow.
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        check_size(size_bytes)?;
        self.check_writable()?;
        // Requested before the gate, as the permit's rule demands. Only behind the gate is it known whether it is
        // needed.
        let permit = self.shared.engine.permit_deletion("make volumes smaller");
        let mut gate = self.gate.write();
        gate.check_live()?;
        let old_bytes = gate.record.size_bytes;
        let _permit = if size_bytes < old_bytes { Some(permit?) } else { permit.ok() };
        let mut transaction = Transaction { changes: self.give_up_behind(&gate, size_bytes.min(old_bytes))?, references: Vec::new() };
        if size_bytes > old_bytes {
            if !transaction.changes.is_empty() {
                self.shared.engine.submit(std::mem::take(&mut transaction))?;
                self.shared.engine.flush()?;
            }
            // Leftovers of a resize that a crash interrupted must not reappear.
            self.clear_from(&gate, old_bytes)?;
        }
        let record = Record { size_bytes, ..gate.record.clone() };
        let gives_up = !transaction.changes.is_empty();
        let mut top = self.top(&gate)?;
        let blocks = size_bytes.div_ceil(u64::from(self.block_size()));
        if blocks < top.layer.overlap_blocks {
            // Whatever the layers below have after the end is hidden from now on.
            top = Arc::new(top.with(Layer { overlap_blocks: blocks, ..top.layer.clone() }));
            transaction.changes.push(top.change(*top.mappings.lock()));
        }
        transaction.changes.push(self.change(&record));
        self.shared.engine.submit(transaction)?;
        self.shared.layers.replace(&[(top.number, Some(top))]);
        gate.record = record;
        if size_bytes < old_bytes {
            self.cells.forget_all();
            if gives_up {
                // Lost ranges are known again once this is committed.
                self.shared.engine.flush()?;
            }
            self.clear_from(&gate, size_bytes)?;
        }
        let name = gate.record.name.clone();
        drop(gate);
        self.shared.engine.flush().map_err(|error| VolumeError::NotDurable { name, what: "has its new size", error: error.into() })
    }

    /// Returns the changes that give up lost mappings of blocks that begin at byte `from` or later. The caller holds
    /// the gate exclusively.
    fn give_up_behind(&self, gate: &Gate, from: u64) -> Result<Vec<Change>> {
        let first = from.div_ceil(self.block_bytes() as u64);
        let top = self.top(gate)?;
        let maps: BTreeSet<u32> = top.layer.maps().collect();
        let give_up = |map| self.shared.engine.give_up_lost(top.partition, &mapping_key(map, first), &mappings_end(map)).transpose();
        Ok(maps.into_iter().filter_map(give_up).collect::<std::result::Result<_, _>>()?)
    }

    /// Clears everything from byte `from` on, whatever the size. The caller holds the gate exclusively.
    fn clear_from(&self, gate: &Gate, from: u64) -> Result<()> {
        let block_bytes = self.block_bytes();
        let start = (from % block_bytes as u64) as usize;
        let first = from.div_ceil(block_bytes as u64);
        if start > 0 {
            let block = from / block_bytes as u64;
            let is_present = {
                let cell = self.cells.get(block);
                let buffer = cell.read(self.shared.profile());
                buffer.is_some()
                    || match self.mapping(gate, block, &cell) {
                        Ok(mapping) => !mapping.pieces.is_empty(),
                        // The whole block stays an error until it is written as a whole.
                        Err(error) if error.is_lost() => false,
                        Err(error) => return Err(error),
                    }
            };
            if is_present {
                self.change_gated(block, |buffer| buffer.write_zeros(start, block_bytes - start));
                self.write_out_gated(gate, &[block])?;
            }
        }
        let mut at = first;
        while at < u64::MAX {
            let (present, next) = self.present(gate, at, u64::MAX)?;
            let blocks: Vec<u64> = present.into_iter().map(|(block, _)| block).collect();
            for block in &blocks {
                self.change_gated(*block, |buffer| *buffer = Buffer::new(Base::Zeros));
            }
            self.write_out_gated(gate, &blocks)?;
            at = next;
        }
        Ok(())
    }

    /// Runs `work` for the blocks from `first` up to but not including `last` that are stored, dirty or unknown: up to
    /// [`STEP_OBJECTS`] of them at a time.
    fn for_each_present(&self, first: u64, last: u64, mut work: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
        let mut at = first;
        while at < last {
            // Not held longer, because the work takes the gate itself.
            let present = self.present(&self.gate.read(), at, last);
            at = match present {
                // There may be stored blocks.
                Err(error) if error.is_lost() => {
                    work(&[at])?;
                    at + 1
                }
                present => {
                    let (present, next) = present?;
                    work(&present.into_iter().map(|(block, _)| block).collect::<Vec<_>>())?;
                    next
                }
            };
        }
        Ok(())
    }

    /// Returns the first blocks from `first` up to but not including `last` that are stored or dirty, sorted, and the
    /// block at which to continue.
    fn present(&self, gate: &Gate, first: u64, last: u64) -> Result<(Vec<(u64, Present)>, u64)> {
        // Dirty blocks first: a block written out meanwhile is then found among the stored ones.
        let dirty = self.dirty.lock().range(first, last, STEP_OBJECTS);
        let (stored, mut next) = self.shared.layers.mapped(gate.record.layer, first, last)?;
        if let Some((block, _)) = dirty.get(STEP_OBJECTS - 1) {
            next = next.min(block + 1);
        }
        let zeros = encode_zeros(self.block_size(), self.shared.engine.digest_bytes());
        let stored = stored.into_iter().filter(|(_, value)| *value != zeros);
        let mut present: BTreeMap<u64, Present> = stored.map(|(block, value)| (block, Present::Mapping(value))).collect();
        present.extend(dirty.into_iter().map(|(block, is_cleared)| (block, Present::Buffer { is_cleared })));
        Ok((present.into_iter().take_while(|(block, _)| *block < next).collect(), next))
    }
}
