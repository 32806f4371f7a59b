//! The end of a space. Blocks behind it have no meaning: they are dropped, and hidden if a layer below has them.

use crate::at::At;
use crate::buffer::{Base, Buffer};
use crate::error::{Result, SpaceError};
use crate::layer::Layer;
use crate::mapping::{mapping_key, mappings_end};
use crate::record::{Record, check_end};
use crate::space::{Gate, Space};
use onefold_engine::{Change, DeletionPermit, EngineError, Transaction};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Space {
    /// Moves the end. Durable on return. Data behind the new end is gone: if the end moves up again, there are zeros.
    ///
    /// `permit` is the engine's answer whether anything may be deleted. Ask before you take any lock, as the permit's
    /// rule demands: only behind the gate is it known whether the end moves down. Errors: the end moves down, and the
    /// answer was no.
    pub fn set_end(&self, end_bytes: u64, permit: std::result::Result<DeletionPermit<'_>, EngineError>) -> Result<()> {
        check_end(self.kind(), Some(end_bytes))?;
        self.check_writable()?;
        let mut gate = self.gate.write();
        gate.check_live()?;
        let old_bytes = gate.record.end_bytes.unwrap_or(u64::MAX);
        let _permit = if end_bytes < old_bytes { Some(permit?) } else { permit.ok() };
        let mut transaction = Transaction { changes: self.give_up_behind(&gate, end_bytes.min(old_bytes))?, references: Vec::new() };
        if end_bytes > old_bytes {
            if !transaction.changes.is_empty() {
                self.shared.engine.submit(std::mem::take(&mut transaction))?;
                self.shared.engine.flush()?;
            }
            // Leftovers of a move that a crash interrupted must not reappear.
            self.clear_from(&gate, old_bytes)?;
        }
        let record = Record { end_bytes: Some(end_bytes), ..gate.record.clone() };
        let gives_up = !transaction.changes.is_empty();
        let mut top = self.top(&gate)?;
        let blocks = record.end_block();
        if blocks < top.layer.overlap_blocks {
            // Whatever the layers below have after the end is hidden from now on.
            top = Arc::new(top.with(Layer { overlap_blocks: blocks, ..top.layer.clone() }));
            transaction.changes.push(top.change(*top.mappings.lock()));
        }
        transaction.changes.push(self.change(&record));
        self.shared.engine.submit(transaction)?;
        self.shared.layers.replace(&[(top.number, Some(top))]);
        gate.record = record;
        if end_bytes < old_bytes {
            self.cells.forget_all();
            if gives_up {
                // Lost ranges are known again once this is committed.
                self.shared.engine.flush()?;
            }
            self.clear_from(&gate, end_bytes)?;
        }
        let name = gate.record.name.clone();
        drop(gate);
        self.shared.engine.flush().map_err(|error| SpaceError::NotDurable { name, what: "has its new size", error: error.into() })
    }

    /// Returns the changes that give up lost mappings of blocks that begin at byte `from` or later. The caller holds
    /// the gate exclusively.
    fn give_up_behind(&self, gate: &Gate, from: u64) -> Result<Vec<Change>> {
        let first = At::byte(from).next_block(self.block_bytes() as u64);
        let top = self.top(gate)?;
        let maps: BTreeSet<u32> = top.layer.maps().collect();
        let give_up = |map| self.shared.engine.give_up_lost(top.partition, &mapping_key(map, first), &mappings_end(map)).transpose();
        Ok(maps.into_iter().filter_map(give_up).collect::<std::result::Result<_, _>>()?)
    }

    /// Clears everything from byte `from` on, whatever the end. The caller holds the gate exclusively.
    fn clear_from(&self, gate: &Gate, from: u64) -> Result<()> {
        let block_bytes = self.block_bytes();
        let (block, start) = At::byte(from).within(block_bytes as u64);
        let start = start as usize;
        if start > 0 {
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
        let mut at = At::byte(from).next_block(block_bytes as u64);
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
}
