//! Checks one container: verifies every checksum, decompresses every frame, and passes on every chunk.

use crate::components::STORAGE_READ;
use crate::containers::scrub::{WHOLE_BYTES, Window};
use crate::containers::sealed::Bytes;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, Catalog, ChunkKind, ContainerId, Result, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::ReadBuffer;
use std::borrow::Cow;
use std::sync::Arc;

/// The findings of a check of one container.
#[derive(Debug)]
pub struct ContainerReport {
    /// The container.
    pub container: ContainerId,
    /// Whether it is sealed. If it is not, the frames in its file are checked against what the log says.
    pub sealed: bool,
    /// If it is merged: the containers whose chunks it has, ascending.
    pub homes: Vec<ContainerId>,
    /// Frames in its file.
    pub frames: u64,
    /// Chunks in these frames, and chunks that only the log has.
    pub chunks: u64,
    /// Bytes of the frames before compression.
    pub raw_bytes: u64,
    /// Bytes of the frames after compression.
    pub stored_bytes: u64,
    /// Each is [`StorageError::Damaged`].
    pub damage: Vec<StorageError>,
}

/// Called for every chunk that could be read.
pub type ChunkVisitor<'a> = dyn FnMut(Address, Fingerprint, ChunkKind, &[u8]) + 'a;

/// A chunk of a frame that could be read.
#[derive(Clone, Copy, Debug)]
pub struct ChunkRead<'a> {
    /// Where it is known to be.
    pub address: Address,
    /// Its name.
    pub fingerprint: Fingerprint,
    /// What it holds.
    pub kind: ChunkKind,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Called for every frame that could be read, with its chunks.
pub type FrameVisitor<'a> = dyn FnMut(&[ChunkRead<'_>]) + 'a;

impl ContainerStore {
    /// Does [`verify_frames`](Self::verify_frames), but passes on one chunk at a time.
    pub fn verify_container(
        &self,
        container: ContainerId,
        read_data: bool,
        visit: Option<&mut ChunkVisitor<'_>>,
    ) -> Result<ContainerReport> {
        let mut buffer = ReadBuffer::default();
        let Some(visit) = visit else { return self.verify_frames(container, read_data, &mut buffer, None) };
        let mut each = |chunks: &[ChunkRead<'_>]| {
            chunks.iter().for_each(|chunk| visit(chunk.address, chunk.fingerprint, chunk.kind, chunk.bytes));
        };
        self.verify_frames(container, read_data, &mut buffer, Some(&mut each))
    }

    /// Checks header, footer and catalog of a container, or of the one that it was merged into. With `read_data` it
    /// also checks all frames and passes their chunks to `visit`, so the caller can recompute fingerprints. It reads
    /// past all caches, those of the system too, into `buffer` if the file has at most 16 MiB.
    ///
    /// Damage is in the report; an error is what prevented the check. If the container is merged during the check, the
    /// check begins again, and may pass on chunks twice.
    pub fn verify_frames(
        &self,
        container: ContainerId,
        read_data: bool,
        buffer: &mut ReadBuffer,
        mut visit: Option<&mut FrameVisitor<'_>>,
    ) -> Result<ContainerReport> {
        loop {
            let generation = self.shared.forwards.generation();
            let report = self.verify_once(container, read_data, buffer, visit.as_deref_mut())?;
            if !report.damage.is_empty() {
                // As in `load`: after a failed sync, this may be no damage.
                self.shared.flow.check_poison()?;
            }
            if report.damage.is_empty() || self.shared.forwards.is_unmoved_since(generation) {
                return Ok(report);
            }
        }
    }

    fn verify_once(
        &self,
        container: ContainerId,
        read_data: bool,
        buffer: &mut ReadBuffer,
        mut visit: Option<&mut FrameVisitor<'_>>,
    ) -> Result<ContainerReport> {
        let mut report = ContainerReport {
            container,
            sealed: true,
            homes: Vec::new(),
            frames: 0,
            chunks: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            damage: Vec::new(),
        };
        let shared = &self.shared;
        let open = shared.unsealed.get(container);
        // If all of a sealed file is read, it is read once.
        let mut window: Option<Window> = None;
        let mut bytes: Option<&dyn Bytes> = None;
        // Chunks in no frame of the file, and their bytes if there is a visitor: writers wait while they are copied.
        let (mut unwritten, mut in_memory) = (0, Vec::new());
        let catalog = match open {
            Some(open) => {
                report.sealed = false;
                let catalog = {
                    let state = open.state.lock();
                    unwritten = state.open_first_slot() + state.open.slots.len() - state.catalog.slots.len();
                    if read_data && visit.is_some() {
                        in_memory = state.in_memory();
                    }
                    state.catalog.clone()
                };
                // Without committed frames there may be no file yet.
                let header = if catalog.frames.is_empty() { Ok(()) } else { shared.check_header(container).map(drop) };
                keep_damage(&mut report, header)?;
                Some(catalog)
            }
            None => {
                let catalog = shared.answering(container).and_then(|container| {
                    if !read_data {
                        return shared.read_catalog(container);
                    }
                    window = shared.read_past_cache(container, buffer)?;
                    let whole: &dyn Bytes = match &window {
                        Some(window) => window,
                        None => &*buffer,
                    };
                    shared.catalog_in(container, *bytes.insert(whole))
                });
                keep_damage(&mut report, catalog)?.map(Arc::new)
            }
        };
        if let Some(catalog) = catalog {
            report.homes = catalog.homes.as_ref().map_or(Vec::new(), |homes| homes.containers().to_vec());
            report.frames = catalog.frames.len() as u64;
            report.chunks = (catalog.slots.len() + unwritten) as u64;
            report.raw_bytes = catalog.frames.iter().map(|frame| u64::from(frame.raw_bytes)).sum();
            report.stored_bytes = catalog.frames.iter().map(|frame| u64::from(frame.stored_bytes)).sum();
            if read_data {
                shared.verify_frames(&catalog, bytes, visit.as_deref_mut(), &mut report)?;
            }
            let mut first_slot = catalog.slots.len();
            for (slots, raw) in in_memory.iter().filter(|(slots, _)| !slots.is_empty()) {
                let Some(visit) = visit.as_deref_mut() else { break };
                visit(&chunks_of(slots, raw, |at| Address::new(container, (first_slot + at) as u16)));
                first_slot += slots.len();
            }
        }
        Ok(report)
    }
}

impl Shared {
    /// Reads a sealed file, past all caches, into `buffer`. If it is too long for that, returns a window for reading it
    /// in parts.
    fn read_past_cache(&self, container: ContainerId, buffer: &mut ReadBuffer) -> Result<Option<Window>> {
        let opened = self.open_past_cache(container).and_then(|file| Ok((file.len()?, file)));
        let (length, file) = opened.map_err(|error| self.read_error(container, None, error))?;
        if length > WHOLE_BYTES {
            return Ok(Some(Window::of(file)));
        }
        let read = self.profile.time(&STORAGE_READ, length, || buffer.read(&*file, 0, length as usize).map(drop));
        read.map_err(|error| self.read_error(container, None, error)).map(|()| None)
    }

    /// Reads all frames of a catalog, from `bytes` or else from the file.
    fn verify_frames(
        &self,
        catalog: &Catalog,
        bytes: Option<&dyn Bytes>,
        mut visit: Option<&mut FrameVisitor<'_>>,
        report: &mut ContainerReport,
    ) -> Result<()> {
        for frame in &catalog.frames {
            let (number, offset, length) = (Some(frame.number), u64::from(frame.offset_bytes), frame.stored_bytes as usize);
            let stored = match bytes {
                Some(bytes) => self.read_from(bytes, catalog.container, number, offset, length),
                None => self.read_stored(catalog.container, number, offset, length).map(Cow::Owned),
            };
            let raw = stored.and_then(|stored| self.unpack(catalog.container, frame, &stored));
            let (Some(raw), Some(visit)) = (keep_damage(report, raw)?, visit.as_deref_mut()) else { continue };
            visit(&chunks_of(catalog.slots_of(frame), &raw, |at| catalog.address(frame.first_slot as usize + at)));
        }
        Ok(())
    }
}

/// Returns the chunks of a frame.
fn chunks_of<'a>(slots: &[Slot], raw: &'a [u8], address: impl Fn(usize) -> Address) -> Vec<ChunkRead<'a>> {
    let chunk = |(at, slot): (usize, &Slot)| {
        let start = slot.offset_bytes as usize;
        let bytes = &raw[start..start + slot.length_bytes as usize];
        ChunkRead { address: address(at), fingerprint: slot.fingerprint, kind: slot.kind, bytes }
    };
    slots.iter().enumerate().map(chunk).collect()
}

/// Puts damage into the report; other errors end the check.
fn keep_damage<T>(report: &mut ContainerReport, result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ StorageError::Damaged { .. }) => {
            report.damage.push(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
