//! Snapshots, clones and rollback: new layers on top of old ones (M0.7, M0.21). The cost does not depend on the size of
//! a space.

use crate::error::{Result, SpaceError};
use crate::frozen::Frozen;
use crate::layers::{Node, missing};
use crate::record::{Origin, Owner, Record, check_name};
use crate::space::{Gate, Space};
use crate::spaces::{Restructuring, Spaces, new_layer, now_ns};
use onefold_engine::DeletionPermit;
use std::sync::Arc;

impl Spaces {
    /// Creates a read-only snapshot of a space as of one moment during the call. Durable on return. Every write that
    /// returned before the call is in it. A concurrent write is in it or not, block by block.
    pub fn snapshot(&self, owner: Owner, space: &str, name: &str) -> Result<Arc<Space>> {
        self.derive(owner, space, name, true, true)
    }

    /// Creates a space that begins as a copy of a snapshot, or of another space as of one moment. Durable on return.
    pub fn make_clone(&self, owner: Owner, source: &str, name: &str, is_read_only: bool) -> Result<Arc<Space>> {
        self.derive(owner, source, name, false, is_read_only)
    }

    fn derive(&self, owner: Owner, source: &str, name: &str, is_snapshot: bool, is_read_only: bool) -> Result<Arc<Space>> {
        check_name(name)?;
        self.shared.engine.check_room()?;
        self.check_free(owner, name)?;
        let source = self.get(owner, source)?;
        if is_snapshot {
            source.check_writable()?;
        }
        // Write out most of the buffered data before anyone has to wait.
        source.write_out_all()?;
        let structure = self.structure.lock();
        self.check_free(owner, name)?;
        let mut gate = source.gate.write();
        gate.check_live()?;
        source.write_out_rest(&gate)?;
        let (number, next) = self.numbers(3)?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        let (below, source_record) = self.freeze(&source, &gate, number + 1, &mut change)?;
        let mut record = Record {
            name: name.to_owned(),
            layer: below.number,
            kind: if is_snapshot { source.kind().of_snapshot() } else { source.kind().of_clone() },
            is_read_only,
            origin: Some(Origin { number: source.number, name: gate.record.name.clone() }),
            created_ns: now_ns(),
            ..gate.record.clone()
        };
        if !is_read_only {
            let node = new_layer(number + 2, below.partition, below.number, record.end_block(), record.block_bytes);
            record.layer = node.number;
            change.put(node);
        }
        let new = Space::new(self.shared.clone(), number, below.partition, record.clone())?;
        change.change(new.change(&record));
        change.submit(&self.shared)?;
        self.insert(source.clone(), &source_record);
        self.insert(new.clone(), &record);
        gate.record = source_record;
        drop(gate);
        drop(structure);
        self.shared.engine.flush()?;
        Ok(new)
    }

    /// Makes a snapshot of what a space was when it was frozen. Durable on return. `None`: the space was deleted since,
    /// or is none of the frozen ones.
    pub fn keep(&self, frozen: &Frozen<'_>, number: u32, name: &str) -> Result<Option<Arc<Space>>> {
        check_name(name)?;
        self.shared.engine.check_room()?;
        let structure = self.structure.lock();
        // A snapshot of a deleted space would belong to nobody.
        let Some(space) = self.all().into_iter().find(|space| space.number == number) else { return Ok(None) };
        let Some(content) = frozen.get(number) else { return Ok(None) };
        self.check_free(space.kind().owner(), name)?;
        let (new_number, next) = self.numbers(1)?;
        let record = Record {
            name: name.to_owned(),
            kind: space.kind().of_snapshot(),
            is_read_only: true,
            origin: Some(Origin { number, name: space.name() }),
            created_ns: now_ns(),
            ..content.gate.read().record.clone()
        };
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        let new = Space::new(self.shared.clone(), new_number, content.partition, record.clone())?;
        change.change(new.change(&record));
        change.submit(&self.shared)?;
        self.insert(new.clone(), &record);
        drop(structure);
        self.shared.engine.flush()?;
        Ok(Some(new))
    }

    /// Makes sure that a layer with the space's current content never changes: the space's own layer, which gets a
    /// new one above it. Returns that layer and the space's record at that moment. The caller holds the gate
    /// exclusively.
    pub(crate) fn freeze(&self, space: &Space, gate: &Gate, new: u32, change: &mut Restructuring) -> Result<(Arc<Node>, Record)> {
        let record = gate.record.clone();
        let top = space.top(gate)?;
        if space.is_read_only() {
            return Ok((top, record));
        }
        if *top.mappings.lock() == 0 && top.layer.parent != 0 && top.layer.overlap_blocks >= record.end_block() {
            // Nothing was written since the last time, so the layer below shows the same.
            let below = top.layer.parent;
            let parent = self.shared.layers.get(below).ok_or_else(|| missing(format!("the record of layer {}", top.number), below))?;
            return Ok((parent, record));
        }
        change.put(new_layer(new, top.partition, top.number, record.end_block(), record.block_bytes));
        let record = Record { layer: new, ..record };
        change.change(space.change(&record));
        Ok((top, record))
    }

    /// Gives a space the content and the end of a snapshot (or a read-only clone) of it or of its origin. Durable on
    /// return. Later writes are gone, for connected clients too. Other snapshots of the space stay.
    pub fn rollback(&self, owner: Owner, space: &str, snapshot: &str, _permit: DeletionPermit<'_>) -> Result<()> {
        let structure = self.structure.lock();
        let (space, snapshot) = (self.get(owner, space)?, self.get(owner, snapshot)?);
        space.check_writable()?;
        if !snapshot.is_read_only() {
            return Err(SpaceError::NoSnapshot { name: snapshot.name() });
        }
        let target = snapshot.gate.read().record.clone();
        let mut gate = space.gate.write();
        let name = gate.record.name.clone();
        let layers = &self.shared.layers;
        if layers.bottom(gate.record.layer)? != layers.bottom(target.layer)? {
            return Err(SpaceError::Unrelated { name, snapshot: target.name });
        }
        let (number, next) = self.numbers(1)?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        self.release(gate.record.layer, &mut change);
        change.put(new_layer(number, space.partition, target.layer, target.end_block(), target.block_bytes));
        let record = Record { layer: number, end_bytes: target.end_bytes, ..gate.record.clone() };
        change.change(space.change(&record));
        change.submit(&self.shared)?;
        self.insert(space.clone(), &record);
        gate.record = record;
        space.forget_written();
        drop(gate);
        drop(structure);
        self.notify_work();
        self.shared.engine.flush().map_err(|error| SpaceError::NotDurable { name, what: "is rolled back", error: error.into() })
    }
}
