//! The figures of a store, and the counters behind them while it is open.

use crate::Result;
use crate::containers::file;
use crate::containers::forward::FORWARD_BYTES;
use crate::containers::parity::parity_folder;
use crate::containers::store::ContainerStore;
use onefold_ground::Access;
use std::sync::atomic::Ordering::Relaxed;

/// Figures of a store since it was opened, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Container numbers given out since the store was created.
    pub containers: u64,
    /// Containers that are not sealed now.
    pub open_containers: u64,
    /// Containers created.
    pub created_containers: u64,
    /// Containers sealed.
    pub sealed_containers: u64,
    /// Frames compressed, here or before they came.
    pub frames: u64,
    /// Of these, frames stored plain.
    pub plain_frames: u64,
    /// Of these, frames stored as they came.
    pub came_frames: u64,
    /// Bytes of these frames before compression.
    pub raw_bytes: u64,
    /// Bytes of these frames after compression.
    pub stored_bytes: u64,
    /// Bytes of frames on their way to disk now: raw ones, and compressed ones of frames that came compressed.
    pub in_flight_bytes: u64,
    /// Raw bytes of frames that still take chunks.
    pub open_frame_bytes: u64,
    /// Raw bytes of full frames that no prepare has made durable yet.
    pub unsynced_bytes: u64,
    /// Frames that loads found in the cache.
    pub frame_hits: u64,
    /// Frames that loads had to read.
    pub frame_misses: u64,
    /// Bytes in the frame cache now.
    pub frame_cache_bytes: u64,
    /// Catalogs found in the cache.
    pub catalog_hits: u64,
    /// Catalogs that had to be read.
    pub catalog_misses: u64,
    /// Bytes in the catalog cache now.
    pub catalog_cache_bytes: u64,
}

/// Files of containers that will not change any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFigures {
    /// Container files.
    pub containers: u64,
    /// The sum of their lengths.
    pub container_bytes: u64,
    /// Forwards to containers that others were merged into.
    pub forwards: u64,
}

impl FileFigures {
    /// Adds a container file of this length.
    pub(crate) fn add(&mut self, length_bytes: u64) {
        self.containers += 1;
        self.container_bytes += length_bytes;
    }

    /// Returns what is there after some files have gone and others have come.
    pub fn changed(&self, gone: &FileFigures, come: &FileFigures) -> FileFigures {
        let change = |here: u64, gone: u64, come: u64| here.saturating_add(come).saturating_sub(gone);
        FileFigures {
            containers: change(self.containers, gone.containers, come.containers),
            container_bytes: change(self.container_bytes, gone.container_bytes, come.container_bytes),
            forwards: change(self.forwards, gone.forwards, come.forwards),
        }
    }

    /// Returns the bytes that all these files have.
    pub fn bytes(&self) -> u64 {
        self.container_bytes.saturating_add(self.forwards.saturating_mul(FORWARD_BYTES as u64))
    }
}

impl ContainerStore {
    /// Counts the files of sealed containers, and the forwards. Opens each of them: call it only where nobody counted
    /// them before.
    pub fn count_files(&self) -> Result<FileFigures> {
        let mut figures = FileFigures { forwards: self.forwards()?.len() as u64, ..FileFigures::default() };
        for container in self.containers()?.iter().filter(|container| self.is_sealed(*container)) {
            match self.shared.ground.open(&file::path(&self.shared.directory, container), Access::Read) {
                Ok(file) => figures.add(file.len()?),
                // It was merged meanwhile.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(figures)
    }

    /// Returns the sum of the lengths of all parity files. Opens those of folders whose parity has changed since the
    /// last call; the first one opens each.
    pub fn parity_bytes(&self) -> Result<u64> {
        let shared = &self.shared;
        shared.protection.bytes(&**shared, |folder| {
            let path = parity_folder(&shared.directory, folder);
            let names = if shared.ground.exists(&path)? { shared.ground.list(&path)? } else { Vec::new() };
            // A file may be replaced meanwhile.
            let length = |name: &str| shared.ground.open(&format!("{path}/{name}"), Access::Read).and_then(|file| file.len());
            Ok(names.iter().map(|entry| length(&entry.name).unwrap_or(0)).sum())
        })
    }

    /// Returns the number of containers that are not sealed, and the sum of the lengths of their files.
    pub fn unsealed_files(&self) -> Result<(u64, u64)> {
        let open = self.shared.unsealed.all();
        let mut bytes = 0;
        for container in &open {
            match self.shared.ground.open(&container.path, Access::Read) {
                Ok(file) => bytes += file.len()?,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((open.len() as u64, bytes))
    }

    /// Returns the raw bytes of full frames that no [`prepare`](Self::prepare) has made durable yet. When there are
    /// many, it is time for one.
    pub fn unsynced_bytes(&self) -> u64 {
        self.shared.counters.unsynced_bytes()
    }

    /// Returns the store's figures.
    pub fn statistics(&self) -> Statistics {
        let shared = &self.shared;
        let counters = &shared.counters;
        let numbers = shared.placement.given_out_count();
        let open = shared.unsealed.all();
        let open_frame_bytes = open.iter().map(|container| container.state.lock().open.raw.len() as u64).sum();
        Statistics {
            containers: numbers,
            open_containers: open.len() as u64,
            created_containers: counters.created.load(Relaxed),
            sealed_containers: counters.sealed.load(Relaxed),
            frames: counters.frames.load(Relaxed),
            plain_frames: counters.plain_frames.load(Relaxed),
            came_frames: counters.came_frames.load(Relaxed),
            raw_bytes: counters.raw_bytes.load(Relaxed),
            stored_bytes: counters.stored_bytes.load(Relaxed),
            in_flight_bytes: shared.flow.in_flight_bytes() as u64,
            open_frame_bytes,
            unsynced_bytes: counters.unsynced_bytes(),
            frame_hits: shared.frames.hits(),
            frame_misses: shared.frames.misses(),
            frame_cache_bytes: shared.frames.used_bytes() as u64,
            catalog_hits: shared.caches.catalog_hits(),
            catalog_misses: shared.caches.catalog_misses(),
            catalog_cache_bytes: shared.caches.catalog_bytes() as u64,
        }
    }
}
