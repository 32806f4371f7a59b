//! Several volumes as of one moment, for readers, while others write to them, resize, roll back or delete them.

use crate::error::Result;
use crate::info::VolumeInfo;
use crate::volume::Volume;
use crate::volumes::Volumes;
use onefold_blocks::{Owner, SpaceInfo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Volumes as of one moment. Dropping it releases its layers.
#[derive(Debug)]
pub struct Frozen<'v> {
    volumes: &'v Volumes,
    /// By number, with the info of the volume that was frozen.
    members: BTreeMap<u32, (VolumeInfo, Arc<Volume>)>,
    /// Keeps the layers.
    _spaces: onefold_blocks::Frozen<'v>,
}

impl Volumes {
    /// Freezes the volumes, snapshots and clones that `wanted` accepts, at one moment during the call. Every write that
    /// returned before the call is included. A concurrent write is included or not, block by block. Clients wait while
    /// recent writes are written out. Reads of frozen volumes compare fingerprints. In a store that is open for
    /// reading, they do so only if its volumes do.
    pub fn frozen(&self, wanted: &dyn Fn(&VolumeInfo) -> bool) -> Result<Frozen<'_>> {
        let spaces = self
            .spaces()
            .frozen(&|info| info.record.kind.owner() == Owner::Volumes && wanted(&VolumeInfo::of(info.number, &info.record)))?;
        let member = |info: &SpaceInfo| {
            let content = spaces.get(info.number)?.clone();
            Some((info.number, (VolumeInfo::of(info.number, &info.record), Arc::new(Volume { blocks: content }))))
        };
        Ok(Frozen { volumes: self, members: spaces.list().filter_map(member).collect(), _spaces: spaces })
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
}
