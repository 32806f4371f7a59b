//! A volume as the disk of a logical unit.

use onefold_engine::EngineError;
use onefold_iscsi::scsi::{Content, Disk, DiskError, Extent, Space, place_bytes};
use onefold_volume::{Volume, VolumeError};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A volume.
#[derive(Debug)]
pub(super) struct VolumeDisk {
    volume: Arc<Volume>,
    /// Its size, bytes. The volume itself may take minutes to answer while it shrinks or a snapshot is made.
    size: AtomicU64,
    /// Whether changes are refused although the volume could take them. A target may be set to this while it is in use.
    is_protected: AtomicBool,
    /// Initiators get a warning when less than this part of the store's device is free, percent.
    low_space_percent: u64,
}

type Result<T> = std::result::Result<T, DiskError>;

impl VolumeDisk {
    pub(super) fn new(volume: Arc<Volume>, size: u64, is_protected: bool, low_space_percent: u64) -> VolumeDisk {
        VolumeDisk { volume, size: AtomicU64::new(size), is_protected: AtomicBool::new(is_protected), low_space_percent }
    }

    /// Records the volume's new size.
    pub(super) fn resized(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    pub(super) fn protect(&self, is_protected: bool) {
        self.is_protected.store(is_protected, Ordering::Relaxed);
    }

    fn change<T>(&self, change: impl FnOnce(&Volume) -> onefold_volume::Result<T>) -> Result<T> {
        if self.read_only() {
            return Err(DiskError::ReadOnly);
        }
        change(&self.volume).map_err(refused)
    }
}

fn refused(error: VolumeError) -> DiskError {
    match &error {
        VolumeError::Engine(engine) if engine.is_full() => DiskError::NoSpace,
        VolumeError::Engine(EngineError::ReadOnly) | VolumeError::ReadOnly { .. } => DiskError::ReadOnly,
        VolumeError::OutOfRange { .. } => DiskError::OutOfRange,
        _ => {
            // Sense data have no field for a reason, so the log gets it.
            tracing::error!("a command of an initiator fails: {error}");
            if error.is_damage() { DiskError::Damaged(error.to_string()) } else { DiskError::Io(error.to_string()) }
        }
    }
}

impl Disk for VolumeDisk {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read_only(&self) -> bool {
        self.volume.is_read_only() || self.is_protected.load(Ordering::Relaxed)
    }

    fn block_bytes(&self) -> u32 {
        self.volume.block_size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.volume.read(offset, out).map_err(refused)
    }

    fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.change(|volume| if fua { volume.write_durable(offset, data) } else { volume.write(offset, data) })
    }

    fn update(&self, offset: u64, length: usize, fua: bool, change: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<bool> {
        self.change(|volume| {
            let is_changed = volume.update(offset, length, change)?;
            if fua {
                volume.flush()?;
            }
            Ok(is_changed)
        })
    }

    fn flush(&self) -> Result<()> {
        // A read-only volume has nothing to flush. Its writes from before it was protected must still be flushed.
        if self.volume.is_read_only() { Ok(()) } else { self.volume.flush().map_err(refused) }
    }

    fn zero(&self, offset: u64, length: u64) -> Result<()> {
        self.change(|volume| volume.write_zeroes(offset, length))
    }

    fn unmap(&self, offset: u64, length: u64) -> Result<()> {
        self.change(|volume| volume.discard(offset, length))
    }

    fn prefetch(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.prefetch(offset, length).map_err(refused)
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        let extents = self.volume.status(offset, length, limit).map_err(refused)?;
        if extents.is_empty() {
            // An unknown extent counts as mapped. Then it is read, and nothing is taken for zeros.
            return Ok(vec![Extent { length, mapped: true }]);
        }
        Ok(extents.into_iter().map(|extent| Extent { length: extent.length, mapped: !extent.is_hole }).collect())
    }

    fn space(&self) -> Option<Space> {
        let space = self.volume.space().ok()?;
        let used_bytes = space.total_bytes.saturating_sub(space.free_bytes);
        Some(Space { used_bytes, available_bytes: space.free_bytes, low_bytes: space.total_bytes / 100 * self.low_space_percent })
    }

    fn capture(&self, offset: u64, length: u64) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(VolumeContent(self.volume.capture(offset, length).map_err(refused)?)))
    }

    fn place(&self, offset: u64, content: &dyn Content, from: u64, length: u64) -> Result<()> {
        match (content as &dyn Any).downcast_ref::<VolumeContent>() {
            Some(content) => self.change(|volume| volume.place(offset, &content.0, from, length)),
            None => place_bytes(self, offset, content, from, length),
        }
    }
}

/// A range of a volume as it was. Copying it moves mappings only.
#[derive(Debug)]
struct VolumeContent(onefold_volume::Content);

impl Content for VolumeContent {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    fn read(&self, from: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(from, out).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::{Descriptor, Engine, Mode, Settings};
    use onefold_ground::{Ground, SimulatedGround};
    use onefold_volume::{Volumes, VolumesOptions};

    #[test]
    fn zeros_that_a_full_store_cannot_take_are_an_error_and_unmapping_is_none() {
        let ground = SimulatedGround::new(1);
        let shared: Arc<dyn Ground> = Arc::new(ground.clone());
        Engine::create(&shared, &Descriptor::new().unwrap()).unwrap();
        let settings = Settings { background: false, workers: 1, ..Settings::default() };
        let engine = Engine::open(shared, settings, Mode::ReadWrite, "test").unwrap();
        let volumes = Volumes::open(engine, VolumesOptions { dirty_bytes: 1 << 20, ..VolumesOptions::default() }).unwrap();
        volumes.create("disk", 1 << 40, 256 << 10, None).unwrap();
        let disk = VolumeDisk::new(volumes.get("disk").unwrap(), 1 << 40, false, 5);
        let mut old = vec![0; 4096];
        onefold_ground::fill_random(&mut old).unwrap();
        disk.write(0, &old, true).unwrap();
        ground.set_capacity(ground.used_bytes());
        // Goes on until the buffers are full too.
        let mut noise = vec![0; 256 << 10];
        onefold_ground::fill_random(&mut noise).unwrap();
        let mut block = 0u64;
        for length in [256 << 10, 512] {
            let refused = loop {
                block += 1;
                // Makes all parts different.
                noise.chunks_mut(512).for_each(|part| part[..8].copy_from_slice(&block.to_le_bytes()));
                if let Err(error) = disk.write(block << 18, &noise[..length], false) {
                    break error;
                }
            };
            assert_eq!(refused, DiskError::NoSpace);
        }

        disk.unmap(0, 2048).unwrap();
        assert_eq!(disk.zero(0, 2048), Err(DiskError::NoSpace));
        let mut found = vec![0; 4096];
        disk.read(0, &mut found).unwrap();
        assert_eq!(found, old);
        // A whole block of zeros needs no space.
        disk.zero(0, 256 << 10).unwrap();
        disk.read(0, &mut found).unwrap();
        assert_eq!(found, [0; 4096]);
    }
}
