//! The volumes of a store: creates, finds, resizes and deletes them by name.
//!
//! A volume is open once in a process: all [`Volume`]s of a name stand on the same space.

use crate::error::Result;
use crate::info::VolumeInfo;
use crate::volume::Volume;
use onefold_blocks::{NewSpace, Owner, SpaceKind, Spaces, SpacesOptions};
use onefold_engine::Engine;
use std::sync::Arc;
use std::time::Duration;

/// The volumes of a store.
#[derive(Debug)]
pub struct Volumes {
    spaces: Arc<Spaces>,
}

impl Volumes {
    /// Reads the list of volumes. Volumes with damaged records or layers are left out; [`Volumes::damaged`] reports
    /// them.
    pub fn open(engine: Arc<Engine>, options: SpacesOptions) -> Result<Volumes> {
        Ok(Volumes::of(Arc::new(Spaces::open(engine, options)?)))
    }

    /// Returns the volumes among these spaces. A process opens the spaces of a store once, and all owners share them.
    pub fn of(spaces: Arc<Spaces>) -> Volumes {
        Volumes { spaces }
    }

    /// Returns the spaces of the store, of all kinds.
    pub fn spaces(&self) -> &Arc<Spaces> {
        &self.spaces
    }

    /// Returns the damage of volumes and layers that cannot be used. As long as there is any, no layer is given up,
    /// because one of them may need it.
    pub fn damaged(&self) -> &[String] {
        self.spaces.damaged()
    }

    /// Creates a volume of zeros. Durable on return. `block_size` is a power of two from 64 KiB to 1 MiB
    /// ([`crate::DEFAULT_BLOCK_BYTES`] is the usual choice). `chain` names the filters of its own chain.
    pub fn create(&self, name: &str, size: u64, block_size: u32, chain: Option<String>) -> Result<Arc<Volume>> {
        let new = NewSpace { name, kind: SpaceKind::Volume, end_bytes: Some(size), block_bytes: block_size, chain };
        Ok(Arc::new(Volume { blocks: self.spaces.create(new)? }))
    }

    /// All volumes, sorted by name.
    pub fn list(&self) -> Vec<VolumeInfo> {
        let spaces = self.spaces.list();
        spaces
            .iter()
            .filter(|info| info.record.kind.owner() == Owner::Volumes)
            .map(|info| VolumeInfo::of(info.number, &info.record))
            .collect()
    }

    /// Returns the volume with this name.
    pub fn get(&self, name: &str) -> Result<Arc<Volume>> {
        Ok(Arc::new(Volume { blocks: self.spaces.get(Owner::Volumes, name)? }))
    }

    /// Changes the size of a volume; see [`Volume::resize`].
    pub fn resize(&self, name: &str, size: u64) -> Result<()> {
        self.get(name)?.resize(size)
    }

    /// Renames a volume. Durable on return. Its snapshots and clones still know it by its number.
    pub fn rename(&self, name: &str, new: &str) -> Result<()> {
        Ok(self.spaces.rename(Owner::Volumes, name, new)?)
    }

    /// Writes out everything written to all volumes and makes it durable.
    pub fn flush(&self) -> Result<()> {
        Ok(self.spaces.flush()?)
    }

    /// Deletes a volume. On return it is gone for all clients, durably. [`Volumes::resume_deletions`] frees the data
    /// that only this volume held. Its snapshots and clones stay. Errors: append-only mode refuses it. After
    /// [`crate::VolumeError::NotDurable`] it is gone, but may reappear after a crash.
    pub fn delete(&self, name: &str) -> Result<()> {
        let permit = self.spaces.engine().permit_deletion("delete volumes")?;
        Ok(self.spaces.delete(Owner::Volumes, name, permit)?)
    }

    /// Returns the bytes of the blocks that no other volume needs. Deleting this volume frees them.
    pub fn held_alone(&self, volume: &Volume) -> u64 {
        self.spaces.held_alone(&volume.blocks)
    }

    /// Creates a read-only snapshot of a volume as of one moment during the call. Durable on return. Every write that
    /// returned before the call is in it. A concurrent write is in it or not, block by block.
    pub fn snapshot(&self, volume: &str, name: &str) -> Result<Arc<Volume>> {
        Ok(Arc::new(Volume { blocks: self.spaces.snapshot(Owner::Volumes, volume, name)? }))
    }

    /// Creates a volume that begins as a copy of a snapshot, or of another volume as of one moment. Durable on return.
    pub fn make_clone(&self, source: &str, name: &str, is_read_only: bool) -> Result<Arc<Volume>> {
        Ok(Arc::new(Volume { blocks: self.spaces.make_clone(Owner::Volumes, source, name, is_read_only)? }))
    }

    /// Gives a volume the content and size of a snapshot (or a read-only clone) of it or of its origin. Durable on
    /// return. Later writes are gone, for connected clients too. Other snapshots of the volume stay. Errors:
    /// append-only mode refuses it.
    pub fn rollback(&self, volume: &str, snapshot: &str) -> Result<()> {
        let permit = self.spaces.engine().permit_deletion("roll volumes back")?;
        Ok(self.spaces.rollback(Owner::Volumes, volume, snapshot, permit)?)
    }

    /// Drops the mappings that only deleted volumes held, and shortens chains of layers, including leftovers of earlier
    /// runs, until `go_on` returns false. Returns whether nothing is left to do. Anything else may be called meanwhile,
    /// and nobody waits while `go_on` takes its time between two steps.
    pub fn resume_deletions(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        Ok(self.spaces.resume_deletions(go_on)?)
    }

    /// Returns whether another caller waits for [`Volumes::resume_deletions`] to finish.
    pub fn is_cleaning_wanted(&self) -> bool {
        self.spaces.is_cleaning_wanted()
    }

    /// Waits, for at most `timeout`, until something was deleted or rolled back since [`Volumes::resume_deletions`]
    /// last looked. Returns whether something was.
    pub fn wait_for_work(&self, timeout: Duration) -> bool {
        self.spaces.wait_for_work(timeout)
    }
}
