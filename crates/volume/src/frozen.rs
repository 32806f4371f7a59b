//! Several volumes as of one moment, for readers, while others write to them, resize, roll back or delete them.
//!
//! A frozen volume has layers like a snapshot but no record. No list shows it. After a crash its layers are
//! superfluous, and cleaning takes them in or drops them like any others.
//!
//! Invariants:
//! * All volumes are of the same moment, because their gates are held together.
//! * As long as a [`Frozen`] lives, its layers have a user ([`Volumes::users`]), so cleaning does not change what they
//!   show.

use crate::error::{Result, VolumeError};
use crate::info::VolumeInfo;
use crate::record::{Record, VolumeKind};
use crate::volume::Volume;
use crate::volumes::{Restructuring, Volumes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Volumes as of one moment. Dropping it releases its layers.
#[derive(Debug)]
pub struct Frozen<'v> {
    volumes: &'v Volumes,
    /// By number, with the info of the volume that was frozen.
    members: BTreeMap<u32, (VolumeInfo, Arc<Volume>)>,
    /// Whether the members are volumes of their own, which count as users of their layers.
    is_counted: bool,
}

impl Volumes {
    /// Freezes the volumes, snapshots and clones that `wanted` accepts, at one moment during the call. Every write that
    /// returned before the call is included. A concurrent write is included or not, block by block. Clients wait while
    /// recent writes are written out. Reads of frozen volumes compare fingerprints. In a store that is open for
    /// reading, they do so only if its volumes do.
    pub fn frozen(&self, wanted: &dyn Fn(&VolumeInfo) -> bool) -> Result<Frozen<'_>> {
        let chosen = || -> Vec<(Arc<Volume>, VolumeInfo)> {
            // Without the lock of the structure, a volume may have been deleted meanwhile.
            self.list().into_iter().filter(wanted).filter_map(|info| Some((self.get(&info.name).ok()?, info))).collect()
        };
        if !self.shared.engine.is_writable() {
            // Nobody changes these volumes.
            let members = chosen().into_iter().map(|(volume, info)| (info.number, (info, volume))).collect();
            return Ok(Frozen { volumes: self, members, is_counted: false });
        }
        self.shared.engine.check_room()?;
        // Write out most of the buffered data before anyone has to wait.
        for (volume, _) in chosen() {
            match volume.write_out_all() {
                Err(VolumeError::Deleted { .. }) => {}
                written => written?,
            }
        }
        let _structure = self.structure.lock();
        let mut chosen = chosen();
        chosen.sort_by_key(|(volume, _)| volume.number);
        // Nobody else holds two gates, so no holder of a gate waits for another gate.
        let mut gates: Vec<_> = chosen.iter().map(|(volume, _)| volume.gate.write()).collect();
        chosen.iter().zip(&gates).try_for_each(|((volume, _), gate)| volume.write_out_rest(gate))?;
        let count = u32::try_from(2 * chosen.len()).map_err(|_| VolumeError::NoNumberLeft)?;
        let (first, next) = self.numbers(count)?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        let (mut members, mut records) = (BTreeMap::new(), Vec::new());
        for (number, ((volume, info), gate)) in (first..).step_by(2).zip(chosen.iter().zip(&gates)) {
            let (shown, record) = self.freeze(volume, gate, number + 1, &mut change)?;
            let content = Record { layer: shown.number, kind: VolumeKind::Clone, is_read_only: true, ..gate.record.clone() };
            let content = Volume::with(self.shared.clone(), number, volume.partition, content, true)?;
            // The size may have changed since the list was read.
            let info = VolumeInfo { origin: info.origin.clone(), ..VolumeInfo::of(volume.number, &gate.record) };
            members.insert(volume.number, (info, content));
            records.push(record);
        }
        if !chosen.is_empty() {
            change.submit(&self.shared)?;
        }
        for ((volume, _), (gate, record)) in chosen.iter().zip(gates.iter_mut().zip(records)) {
            self.insert(volume.clone(), &record);
            gate.record = record;
        }
        let frozen = Frozen { volumes: self, members, is_counted: true };
        let mut counts = self.frozen.lock();
        frozen.layers().for_each(|layer| *counts.entry(layer).or_default() += 1);
        drop(counts);
        Ok(frozen)
    }
}

impl Frozen<'_> {
    /// Returns the info of the frozen volumes as of that moment, by number.
    pub fn list(&self) -> impl Iterator<Item = &VolumeInfo> {
        self.members.values().map(|(info, _)| info)
    }

    /// Returns the content of a volume as of that moment, by the volume's number. It is read-only.
    pub fn get(&self, number: u32) -> Option<&Arc<Volume>> {
        self.members.get(&number).map(|(_, volume)| volume)
    }

    /// Returns the volumes of the store.
    pub fn volumes(&self) -> &Volumes {
        self.volumes
    }

    fn layers(&self) -> impl Iterator<Item = u32> {
        self.members.values().map(|(_, volume)| volume.gate.read().record.layer)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        for (_, volume) in self.members.values() {
            volume.close(&mut volume.gate.write());
        }
        let _structure = self.volumes.structure.lock();
        let mut counts = self.volumes.frozen.lock();
        for layer in self.layers() {
            if let Some(count) = counts.get_mut(&layer) {
                *count -= 1;
            }
        }
        counts.retain(|_, count| *count > 0);
        drop(counts);
        self.volumes.notify_work();
    }
}
