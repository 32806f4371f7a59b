//! Volumes as exports of the NBD server.

use crate::erasure::check_not_being_erased;
use crate::failure::{Failure, Result};
use crate::units::{counted, printable, size};
use onefold_engine::{Engine, EngineError};
use onefold_nbd::{Export, ExportError, ExportInfo, Exports, Extent};
use onefold_volume::{Volume, VolumeError, VolumeInfo, VolumeKind, Volumes};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All volumes of a store.
#[derive(Debug)]
pub struct VolumeExports {
    engine: Arc<Engine>,
    volumes: Arc<Volumes>,
    read_only: bool,
    uses: Arc<Uses>,
}

/// How many connections have a volume open, by its name.
#[derive(Debug, Default)]
struct Uses(Mutex<HashMap<String, u64>>);

impl Uses {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        // The table is complete whenever its lock is free, even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VolumeExports {
    /// Exports each volume under its name. With `read_only`, no volume can be changed.
    pub fn new(engine: Arc<Engine>, volumes: Arc<Volumes>, read_only: bool) -> VolumeExports {
        VolumeExports { engine, volumes, read_only, uses: Arc::default() }
    }

    /// Returns the volumes.
    pub fn volumes(&self) -> &Arc<Volumes> {
        &self.volumes
    }

    /// Runs `work` on a volume that no client has open. No client can open it meanwhile.
    pub fn on_unused<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let uses = self.uses.lock();
        match uses.get(name) {
            Some(count) => {
                let clients = counted(*count, "client has", "clients have");
                Err(Failure::failed(format!("volume {} is in use: {clients} it open over NBD", printable(name.as_bytes())))
                    .advise("disconnect them first, for example with `nbd-client -d /dev/nbd0`"))
            }
            None => work(),
        }
    }
}

impl Exports for VolumeExports {
    fn list(&self) -> Vec<ExportInfo> {
        let info = |volume: VolumeInfo| ExportInfo { name: volume.name, description: size(volume.size) };
        self.volumes.list().into_iter().map(info).collect()
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Export>> {
        // The default export: names of volumes are never empty, so it is the only volume or none.
        // Snapshots do not count, so that making one breaks no client.
        let mut only = if name.is_empty() { self.volumes.list() } else { Vec::new() };
        only.retain(|info| info.kind != VolumeKind::Snapshot);
        let name = match only.as_slice() {
            [info] => &info.name,
            _ => name,
        };
        let mut uses = self.uses.lock();
        // A volume that must be erased is not shown: data written now would be erased too.
        if let Err(failure) = check_not_being_erased(&self.engine, &self.volumes, name) {
            tracing::error!("cannot open volume {name:?}: {}", failure.message);
            return None;
        }
        match self.volumes.get(name) {
            Ok(volume) => {
                *uses.entry(name.to_owned()).or_default() += 1;
                let usage = Use { name: name.to_owned(), of: Arc::clone(&self.uses) };
                let read_only = self.read_only || volume.is_read_only();
                Some(Arc::new(VolumeExport { volume, read_only, _use: usage }))
            }
            Err(VolumeError::NotFound { .. }) => None,
            Err(error) => {
                tracing::error!("cannot open volume {name:?}: {error}");
                None
            }
        }
    }
}

/// A connection that has a volume open.
#[derive(Debug)]
struct Use {
    name: String,
    of: Arc<Uses>,
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut uses = self.of.lock();
        if let Some(count) = uses.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                uses.remove(&self.name);
            }
        }
    }
}

#[derive(Debug)]
struct VolumeExport {
    volume: Arc<Volume>,
    read_only: bool,
    _use: Use,
}

fn refused(error: VolumeError) -> ExportError {
    match &error {
        VolumeError::Engine(engine) if engine.is_full() => ExportError::NoSpace,
        VolumeError::Engine(EngineError::ReadOnly) | VolumeError::ReadOnly { .. } => ExportError::ReadOnly,
        VolumeError::OutOfRange { .. } => ExportError::OutOfRange,
        _ => ExportError::Io(error.to_string()),
    }
}

impl VolumeExport {
    fn change(&self, change: impl FnOnce(&Volume) -> onefold_volume::Result<()>) -> std::result::Result<(), ExportError> {
        if self.read_only {
            return Err(ExportError::ReadOnly);
        }
        change(&self.volume).map_err(refused)
    }
}

impl Export for VolumeExport {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn preferred_block_bytes(&self) -> u32 {
        self.volume.block_size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ExportError> {
        self.volume.read(offset, out).map_err(refused)
    }

    fn write(&self, offset: u64, data: &[u8], fua: bool) -> std::result::Result<(), ExportError> {
        self.change(|volume| if fua { volume.write_durable(offset, data) } else { volume.write(offset, data) })
    }

    fn flush(&self) -> std::result::Result<(), ExportError> {
        // A read-only volume has nothing to flush.
        if self.read_only { Ok(()) } else { self.volume.flush().map_err(refused) }
    }

    fn trim(&self, offset: u64, length: u64, fua: bool) -> std::result::Result<(), ExportError> {
        self.change(|volume| volume.discard(offset, length))?;
        if fua { self.flush() } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, length: u64, _may_trim: bool, fua: bool) -> std::result::Result<(), ExportError> {
        // Zeros never take space here, with or without trimming, and no later write is guaranteed to find space. So
        // both kinds of request are the same.
        self.change(|volume| volume.write_zeroes(offset, length))?;
        if fua { self.flush() } else { Ok(()) }
    }

    fn cache(&self, offset: u64, length: u64) -> std::result::Result<(), ExportError> {
        self.volume.prefetch(offset, length).map_err(refused)
    }

    fn status(&self, offset: u64, length: u64, limit_extents: usize) -> std::result::Result<Vec<Extent>, ExportError> {
        let extents = self.volume.status(offset, length, limit_extents).map_err(refused)?;
        Ok(extents.into_iter().map(|extent| Extent { length: extent.length, hole: extent.is_hole, zero: extent.is_hole }).collect())
    }
}
