//! The arena as a [`ChunkStore`].

use crate::arena::block::{Block, UNIT_BLOCKS, address_of_block, container_of_unit, first_block, unit_of_block, unit_of_origin};
use crate::arena::records::BLOCKS_STORED;
use crate::arena::store::ArenaStore;
use crate::{
    Address, Answering, ChunkStore, ChunkWriter, CommittedSlots, ContainerId, ContainerReport, ContainerSet, ContainerStore, FileFigures,
    FrameVisitor, Origin, Prepared, Result, Scope, ScrubThreads, Scrubbed, Slice, Slot, StorageError, Usage,
};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, ReadBuffer};
use onefold_oplog::{Effects, PartitionClass, Position, Pressure, Record};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The block table is asked for this many blocks at once.
const PIECE_BLOCKS: u64 = 4096;

/// Appends what some blocks hold, as [`BlockTable::run`](crate::BlockTable::run) does.
type Run<'a> = dyn FnMut(u64, usize, &mut Vec<Option<Block>>) -> Result<()> + 'a;

fn addresses_of(chunks: &[(Address, Fingerprint)]) -> Vec<Address> {
    chunks.iter().map(|(address, _)| *address).collect()
}

impl ChunkStore for ArenaStore {
    fn new_writer(self: Arc<Self>) -> Box<dyn ChunkWriter> {
        Box::new(self.writer())
    }

    fn longest_chunk_bytes(&self) -> usize {
        self.options.block_bytes as usize
    }

    fn load(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_all(wanted, true, out)
    }

    fn load_short(&self, wanted: &[(Address, Fingerprint)], out: &mut Vec<Slice>) -> Result<()> {
        self.load_all(wanted, false, out)
    }

    /// Both scopes are the same here: a buffer that is not full is written like a full one, and takes no more room.
    fn prepare(&self, _scope: Scope) -> Result<Prepared> {
        self.prepare_all()
    }

    fn committed(&self, prepared: Prepared, _start: Position, end: Position) {
        self.moments.committed(&prepared);
        self.note_committed(&prepared, end);
    }

    fn abandoned(&self, prepared: Prepared) {
        drop(prepared);
    }

    fn unsynced_bytes(&self) -> u64 {
        self.pending.unsynced_bytes()
    }

    /// All of them are counted when they are prepared.
    fn open_bytes(&self) -> u64 {
        0
    }

    fn usage(&self, _counted: Option<FileFigures>) -> Result<Usage> {
        let disk_bytes = match self.device {
            Some(_) => self.used_blocks()?.saturating_mul(self.block_bytes()),
            None => self.file.allocated_bytes()?,
        };
        Ok(Usage { units: self.units()?.len() as u64, disk_bytes })
    }

    fn damaged_owners(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn begin_removal(&self, chunks: &[(Address, Fingerprint)]) -> Result<Vec<Record>> {
        self.retire(&addresses_of(chunks))?;
        Ok(Vec::new())
    }

    fn abandon_removal(&self, chunks: &[(Address, Fingerprint)]) {
        if let Err(error) = self.keep(&addresses_of(chunks)) {
            tracing::warn!(%error, "blocks whose removal was given up stay as they are until the store is opened again");
        }
    }

    fn free_again(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        if self.device.is_some() {
            // This directory may be a copy that is older than the device: what it takes for free may be used.
            return Ok(());
        }
        let units = self.space.lock().blocks.div_ceil(UNIT_BLOCKS) as u32;
        (0..units).take_while(|_| go_on()).try_for_each(|unit| self.give_back(unit))
    }

    fn removed(&self, chunks: &[(Address, Fingerprint)]) {
        if let Err(error) = self.free(&addresses_of(chunks)) {
            tracing::warn!(%error, "blocks of removed chunks stay unused until the store is opened again");
        }
    }

    /// Only looks at the records: what blocks hold is in the block table, which is a view of its own.
    fn apply(&self, _end: Position, effects: &Effects<'_>) -> Result<()> {
        let is_other = |record: &&Record| record.partition.class == PartitionClass::Container && record.kind != BLOCKS_STORED;
        match effects.replayed.iter().find(is_other) {
            Some(record) => Err(StorageError::Record { kind: record.kind, why: "the chunks of this store are in an arena".to_owned() }),
            None => Ok(()),
        }
    }

    /// A block that was written and never logged is free, and nothing tells so but the block table. There is nothing to
    /// find out.
    fn recovered(&self, _log_start: Position, log_end: Position) -> Result<()> {
        self.begin_writing(log_end);
        Ok(())
    }

    /// No record is needed here.
    fn position(&self) -> Position {
        self.log_end.get()
    }

    fn required_end(&self) -> Position {
        self.log_end.get()
    }

    fn pressure(&self) -> Pressure {
        Pressure::Idle
    }

    fn step(&self) -> Result<bool> {
        Ok(false)
    }

    fn checkpoint_before(&self, _position: Position) -> Result<Prepared> {
        Ok(Prepared::default())
    }

    fn trim_point(&self, target: Position) -> Position {
        target
    }

    /// Makes durable how far a device is. The part of a file that was never written takes no room.
    fn leave(&self) {
        if let Some(Err(error)) = self.device.as_ref().map(|device| device.sync()) {
            tracing::warn!(%error, "the block device may not know how far its blocks are");
        }
    }

    fn units(&self) -> Result<ContainerSet> {
        let mut units = ContainerSet::default();
        // Pending chunks first, then the table: a commit in between shows a unit twice, and not at all otherwise.
        let mut next = Some(0);
        while let Some(block) = next.and_then(|block| self.pending.next_from(block)) {
            let unit = unit_of_block(block);
            units.insert(container_of_unit(unit));
            next = first_block(unit).checked_add(UNIT_BLOCKS);
        }
        for unit in 0..self.table.units()? {
            let is_used = match self.table.used(unit) {
                Ok(used) => used > 0,
                // It may have chunks.
                Err(StorageError::Table { is_damage: true, .. }) => true,
                Err(error) => return Err(error),
            };
            if is_used {
                units.insert(container_of_unit(unit));
            }
        }
        Ok(units)
    }

    /// Each unit counts for its own chunks.
    fn answering<'a>(&'a self, units: &'a ContainerSet, _forwards: &ContainerSet) -> Result<Answering<'a>> {
        Ok(Answering::without_forwards(units))
    }

    fn verify(
        &self,
        unit: ContainerId,
        read_data: bool,
        _buffer: &mut ReadBuffer,
        visit: &mut FrameVisitor<'_>,
    ) -> Result<ContainerReport> {
        self.verify_unit(unit, read_data, visit)
    }

    fn scrub(
        &self,
        units: &[ContainerId],
        threads: &ScrubThreads,
        stop: &AtomicBool,
        found: &mut dyn FnMut(ContainerId, Scrubbed),
        waiting: &mut dyn FnMut(),
    ) -> usize {
        threads.in_order(units, stop, &|unit, _| self.scrub_unit(unit), found, waiting)
    }

    fn unit_of(&self, origin: Origin) -> Result<ContainerId> {
        self.unit(origin).map(container_of_unit)
    }

    fn has_chunks_of(&self, origin: Origin) -> Result<bool> {
        let Some(unit) = unit_of_origin(origin) else { return Ok(false) };
        let first = first_block(unit);
        Ok(self.pending.count(first..first + UNIT_BLOCKS) > 0 || self.table.used(unit)? > 0)
    }

    fn chunks_beside(&self, origin: Origin) -> Result<(ContainerId, Vec<(Address, Slot)>)> {
        let unit = self.unit(origin)?;
        let chunks = self.chunks_in(unit, &mut |first, count, held| self.table.run(first, count, held))?;
        Ok((container_of_unit(unit), chunks))
    }

    fn known_chunks_of(&self, unit: ContainerId, damaged: &mut Vec<StorageError>) -> Result<Vec<(Address, Slot)>> {
        let unit = self.unit(unit.into())?;
        self.chunks_in(unit, &mut |first, count, held| self.run_in_parts(first, count, held, damaged))
    }

    /// Units are not filled from their first slot on, so a number of slots cannot tell which blocks had chunks at a
    /// moment. Instead, metadata chunks that are committed later are noted as long as somebody has the result. Of data
    /// chunks an index tells as of the moment.
    fn committed_slots(&self) -> CommittedSlots {
        self.moments.begin()
    }

    fn as_containers(self: Arc<Self>) -> Option<Arc<ContainerStore>> {
        None
    }
}

impl ArenaStore {
    /// Returns the chunks of a unit: those in memory, and those in the block table, which is asked by `run`.
    fn chunks_in(&self, unit: u32, run: &mut Run<'_>) -> Result<Vec<(Address, Slot)>> {
        let first = first_block(unit);
        let slot = |fingerprint, kind, length_bytes| Slot { fingerprint, kind, frame: 0, offset_bytes: 0, length_bytes };
        let pending = self.pending.stored_in(first..first + UNIT_BLOCKS).into_iter();
        let mut slots: BTreeMap<u64, Slot> =
            pending.map(|stored| (stored.block, slot(stored.fingerprint, stored.kind, stored.length_bytes))).collect();
        let mut held = Vec::new();
        for piece in (first..first + UNIT_BLOCKS).step_by(PIECE_BLOCKS as usize) {
            held.clear();
            run(piece, PIECE_BLOCKS as usize, &mut held)?;
            for (block, held) in (piece..).zip(&held).filter_map(|(block, held)| Some((block, held.as_ref()?))) {
                slots.insert(block, slot(held.fingerprint, held.kind, held.length_bytes));
            }
        }
        Ok(slots.into_iter().map(|(block, slot)| (address_of_block(block), slot)).collect())
    }

    fn unit(&self, origin: Origin) -> Result<u32> {
        unit_of_origin(origin).ok_or_else(|| self.no_block(origin.address(0)))
    }
}
