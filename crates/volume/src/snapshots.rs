//! Snapshots, clones and rollback: new layers on top of old ones (M0.7, M0.21). The cost does not depend on the size of
//! a volume.

use crate::error::{Result, VolumeError};
use crate::layers::{Node, missing};
use crate::record::{Origin, Record, VolumeKind, check_name};
use crate::volume::{Gate, Volume};
use crate::volumes::{Restructuring, Volumes, new_layer, now_ns};
use std::sync::Arc;

impl Volumes {
    /// Creates a read-only snapshot of a volume as of one moment during the call. Durable on return. Every write that
    /// returned before the call is in it. A concurrent write is in it or not, block by block.
    pub fn snapshot(&self, volume: &str, name: &str) -> Result<Arc<Volume>> {
        self.derive(volume, name, VolumeKind::Snapshot, true)
    }

    /// Creates a volume that begins as a copy of a snapshot, or of another volume as of one moment. Durable on return.
    pub fn make_clone(&self, source: &str, name: &str, is_read_only: bool) -> Result<Arc<Volume>> {
        self.derive(source, name, VolumeKind::Clone, is_read_only)
    }

    fn derive(&self, source: &str, name: &str, kind: VolumeKind, is_read_only: bool) -> Result<Arc<Volume>> {
        check_name(name)?;
        self.shared.engine.check_room()?;
        self.check_free(name)?;
        let source = self.get(source)?;
        if kind == VolumeKind::Snapshot {
            source.check_writable()?;
        }
        // Write out most of the buffered data before anyone has to wait.
        source.write_out_all()?;
        let structure = self.structure.lock();
        self.check_free(name)?;
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
            kind,
            is_read_only,
            origin: Some(Origin { number: source.number, name: gate.record.name.clone() }),
            created_ns: now_ns(),
            ..gate.record.clone()
        };
        if !is_read_only {
            let node = new_layer(number + 2, below.partition, below.number, record.blocks(), record.block_bytes);
            record.layer = node.number;
            change.put(node);
        }
        let new = Volume::new(self.shared.clone(), number, below.partition, record.clone())?;
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

    /// Makes sure that a layer with the volume's current content never changes: the volume's own layer, which gets a
    /// new one above it. Returns that layer and the volume's record at that moment. The caller holds the gate
    /// exclusively.
    pub(crate) fn freeze(&self, volume: &Volume, gate: &Gate, new: u32, change: &mut Restructuring) -> Result<(Arc<Node>, Record)> {
        let record = gate.record.clone();
        let top = volume.top(gate)?;
        if volume.is_read_only() {
            return Ok((top, record));
        }
        if *top.mappings.lock() == 0 && top.layer.parent != 0 && top.layer.overlap_blocks >= record.blocks() {
            // Nothing was written since the last time, so the layer below shows the same.
            let below = top.layer.parent;
            let parent = self.shared.layers.get(below).ok_or_else(|| missing(format!("the record of layer {}", top.number), below))?;
            return Ok((parent, record));
        }
        change.put(new_layer(new, top.partition, top.number, record.blocks(), record.block_bytes));
        let record = Record { layer: new, ..record };
        change.change(volume.change(&record));
        Ok((top, record))
    }

    /// Gives a volume the content and size of a snapshot (or a read-only clone) of it or of its origin. Durable on
    /// return. Later writes are gone, for connected clients too. Other snapshots of the volume stay. Errors:
    /// append-only mode refuses it.
    pub fn rollback(&self, volume: &str, snapshot: &str) -> Result<()> {
        let _permit = self.shared.engine.permit_deletion("roll volumes back")?;
        let structure = self.structure.lock();
        let (volume, snapshot) = (self.get(volume)?, self.get(snapshot)?);
        volume.check_writable()?;
        if !snapshot.is_read_only() {
            return Err(VolumeError::NoSnapshot { name: snapshot.name() });
        }
        let target = snapshot.gate.read().record.clone();
        let mut gate = volume.gate.write();
        let name = gate.record.name.clone();
        let layers = &self.shared.layers;
        if layers.bottom(gate.record.layer)? != layers.bottom(target.layer)? {
            return Err(VolumeError::Unrelated { name, snapshot: target.name });
        }
        let (number, next) = self.numbers(1)?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        self.release(gate.record.layer, &mut change);
        change.put(new_layer(number, volume.partition, target.layer, target.blocks(), target.block_bytes));
        let record = Record { layer: number, size_bytes: target.size_bytes, ..gate.record.clone() };
        change.change(volume.change(&record));
        change.submit(&self.shared)?;
        self.insert(volume.clone(), &record);
        gate.record = record;
        volume.forget_written();
        drop(gate);
        drop(structure);
        self.notify_work();
        self.shared.engine.flush().map_err(|error| VolumeError::NotDurable { name, what: "is rolled back", error: error.into() })
    }
}
