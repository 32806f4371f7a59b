//! Several spaces as of one moment, for readers, while others write to them, resize, roll back or delete them.
//!
//! A frozen space has layers like a snapshot but no record. No list shows it. After a crash its layers are
//! superfluous, and cleaning takes them in or drops them like any others.
//!
//! Invariants:
//! * All spaces are of the same moment, because their gates are held together.
//! * As long as a [`Frozen`] lives, its layers have a user ([`Spaces::users`]), so cleaning does not change what they
//!   show.

use crate::error::{Result, SpaceError};
use crate::record::Record;
use crate::space::Space;
use crate::spaces::{Restructuring, SpaceInfo, Spaces};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Spaces as of one moment. Dropping it releases its layers.
#[derive(Debug)]
pub struct Frozen<'s> {
    spaces: &'s Spaces,
    /// By number, with the info of the space that was frozen.
    members: BTreeMap<u32, (SpaceInfo, Arc<Space>)>,
    /// Whether the members are spaces of their own, which count as users of their layers.
    is_counted: bool,
}

impl Spaces {
    /// Freezes the spaces, snapshots and clones that `wanted` accepts, at one moment during the call. Every write that
    /// returned before the call is included. A concurrent write is included or not, block by block. Clients wait while
    /// recent writes are written out. Reads of frozen spaces compare fingerprints. In a store that is open for
    /// reading, they do so only if its spaces do.
    pub fn frozen(&self, wanted: &dyn Fn(&SpaceInfo) -> bool) -> Result<Frozen<'_>> {
        let chosen = || -> Vec<(Arc<Space>, SpaceInfo)> {
            // Without the lock of the structure, a space may have been deleted meanwhile.
            self.listed().into_iter().filter(|(_, info)| wanted(info)).collect()
        };
        if !self.shared.engine.is_writable() {
            // Nobody changes these spaces.
            let members = chosen().into_iter().map(|(space, info)| (info.number, (info, space))).collect();
            return Ok(Frozen { spaces: self, members, is_counted: false });
        }
        self.shared.engine.check_room()?;
        // Write out most of the buffered data before anyone has to wait.
        for (space, _) in chosen() {
            match space.write_out_all() {
                Err(SpaceError::Deleted { .. }) => {}
                written => written?,
            }
        }
        let _structure = self.structure.lock();
        let mut chosen = chosen();
        chosen.sort_by_key(|(space, _)| space.number);
        // Nobody else holds two gates, so no holder of a gate waits for another gate.
        let mut gates: Vec<_> = chosen.iter().map(|(space, _)| space.gate.write()).collect();
        chosen.iter().zip(&gates).try_for_each(|((space, _), gate)| space.write_out_rest(gate))?;
        let count = u32::try_from(2 * chosen.len()).map_err(|_| SpaceError::NoNumberLeft)?;
        let (first, next) = self.numbers(count)?;
        let mut change = Restructuring::default();
        next.into_iter().for_each(|next| change.change(next));
        let (mut members, mut records) = (BTreeMap::new(), Vec::new());
        for (number, ((space, info), gate)) in (first..).step_by(2).zip(chosen.iter().zip(&gates)) {
            let (shown, record) = self.freeze(space, gate, number + 1, &mut change)?;
            let content = Record { layer: shown.number, is_read_only: true, ..gate.record.clone() };
            let content = Space::with(self.shared.clone(), number, space.partition, content, true)?;
            // The end may have moved since the list was read.
            let info = SpaceInfo { number: space.number, record: Record { origin: info.record.origin.clone(), ..gate.record.clone() } };
            members.insert(space.number, (info, content));
            records.push(record);
        }
        if !chosen.is_empty() {
            change.submit(&self.shared)?;
        }
        for ((space, _), (gate, record)) in chosen.iter().zip(gates.iter_mut().zip(records)) {
            self.insert(space.clone(), &record);
            gate.record = record;
        }
        let frozen = Frozen { spaces: self, members, is_counted: true };
        let mut counts = self.frozen.lock();
        frozen.layers().for_each(|layer| *counts.entry(layer).or_default() += 1);
        drop(counts);
        Ok(frozen)
    }
}

impl Frozen<'_> {
    /// Returns the info of the frozen spaces as of that moment, by number.
    pub fn list(&self) -> impl Iterator<Item = &SpaceInfo> {
        self.members.values().map(|(info, _)| info)
    }

    /// Returns the content of a space as of that moment, by the space's number. It is read-only.
    pub fn get(&self, number: u32) -> Option<&Arc<Space>> {
        self.members.get(&number).map(|(_, space)| space)
    }

    /// Returns the spaces of the store.
    pub fn spaces(&self) -> &Spaces {
        self.spaces
    }

    fn layers(&self) -> impl Iterator<Item = u32> {
        self.members.values().map(|(_, space)| space.gate.read().record.layer)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        for (_, space) in self.members.values() {
            space.close(&mut space.gate.write());
        }
        let _structure = self.spaces.structure.lock();
        let mut counts = self.spaces.frozen.lock();
        for layer in self.layers() {
            if let Some(count) = counts.get_mut(&layer) {
                *count -= 1;
            }
        }
        counts.retain(|_, count| *count > 0);
        drop(counts);
        self.spaces.notify_work();
    }
}
