//! Several volumes as they were at one moment, for somebody who reads them while others go on writing to them, resize, roll back and delete them.
//!
//! What is frozen has layers like a snapshot and no record: nobody sees it in lists, and after a crash its layers are superfluous ones, which cleaning
//! takes in or drops as it does any others.
//!
//! Invariants:
//! * All volumes are of one moment: their gates are held together.
//! * As long as a [`Frozen`] lives, its layers have a user ([`Volumes::users`]), so that no cleaning changes what they show.

use crate::error::{Result, VolumeError};
use crate::record::{Record, VolumeKind};
use crate::volume::Volume;
use crate::volumes::{Restructuring, VolumeInfo, Volumes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Volumes as they were at one moment. Dropping it gives back what it holds.
#[derive(Debug)]
pub struct Frozen<'v> {
    volumes: &'v Volumes,
    /// By number, with what is known of the volume that it is of.
    members: BTreeMap<u32, (VolumeInfo, Arc<Volume>)>,
    /// Whether the members are volumes of their own, with users of layers that were counted.
    is_counted: bool,
}

impl Volumes {
    /// Freezes the volumes, snapshots and clones that `wanted` names, at one moment between call and return. Everything whose write had returned before the
    /// call is in it; a write meanwhile is in it or not, block by block. Clients wait for what they wrote since it began to be written out.
    /// Reads of what is frozen compare fingerprints; in a store that is open for reading, they do so if those of its volumes do.
    pub fn frozen(&self, wanted: &dyn Fn(&VolumeInfo) -> bool) -> Result<Frozen<'_>> {
        let chosen = || -> Vec<(Arc<Volume>, VolumeInfo)> {
            // Without the lock of the structure one may have been deleted meanwhile.
            self.list().into_iter().filter(wanted).filter_map(|info| Some((self.get(&info.name).ok()?, info))).collect()
        };
        if !self.shared.engine.is_writable() {
            // Nobody changes them.
            let members = chosen().into_iter().map(|(volume, info)| (info.number, (info, volume))).collect();
            return Ok(Frozen { volumes: self, members, is_counted: false });
        }
        self.shared.engine.check_room()?;
        // Most of what waits in memory goes out before anybody has to wait.
        for (volume, _) in chosen() {
            match volume.write_out_all() {
                Err(VolumeError::Deleted { .. }) => {}
                written => written?,
            }
        }
        let _structure = self.structure.lock();
        let mut chosen = chosen();
        chosen.sort_by_key(|(volume, _)| volume.number);
        // Nobody else holds two gates, so nobody who has one waits for another.
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
            // A size may have changed since the list was read.
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
    /// What is known of the volumes that were frozen, by number: as they were then.
    pub fn list(&self) -> impl Iterator<Item = &VolumeInfo> {
        self.members.values().map(|(info, _)| info)
    }

    /// The content that a volume had, by the volume's number; read-only.
    pub fn get(&self, number: u32) -> Option<&Arc<Volume>> {
        self.members.get(&number).map(|(_, volume)| volume)
    }

    /// The volumes of the store.
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
