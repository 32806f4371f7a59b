//! Writes the container that others are merged into. A frame whose chunks are all needed, in the order in which they
//! lie, is copied as it is. Of other frames, the needed chunks are compressed again.

use super::Planned;
use crate::components::STORAGE_WRITE;
use crate::containers::compression::Compressors;
use crate::containers::file;
use crate::containers::frame_cache::Needed;
use crate::containers::open::catalog_and_footer;
use crate::containers::reader::is_near;
use crate::containers::store::Shared;
use crate::{Catalog, Codec, ContainerId, Frame, HEADER_BYTES, Header, Homes, Result, Slot, StorageError};
use onefold_ground::{File, checksum};
use onefold_oplog::Position;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Raw bytes copied at a time. With the frames read for them, that is the memory of a merge besides catalogs.
const WINDOW_BYTES: usize = 16 << 20;

/// Chunks that are copied in the same way.
struct Part {
    chunks: Range<usize>,
    /// All chunks of one frame, in its order, and nothing else: copied as it is, without compressing again.
    is_whole_frame: bool,
}

/// Decides how to copy chunks. Frames of less than `least_bytes` are not kept as they are.
fn parts(chunks: &[Planned], least_bytes: u32) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(first) = chunks.get(at) {
        let frame = first.frame();
        let of_frame = chunks[at..].iter().zip(frame.first_slot as usize..);
        let there = of_frame.take_while(|(chunk, slot)| chunk.catalog.container == first.catalog.container && chunk.position == *slot);
        let is_whole_frame = frame.raw_bytes >= least_bytes && there.take(frame.slots as usize).count() == frame.slots as usize;
        let end = if is_whole_frame { at + frame.slots as usize } else { at + 1 };
        parts.push(Part { chunks: at..end, is_whole_frame });
        at = end;
    }
    parts
}

/// The new container while it is written.
pub(super) struct Output<'a> {
    target: Target<'a>,
    compressors: Compressors,
    /// Bytes of the frame that is being filled.
    raw: Vec<u8>,
    /// Whether the bytes come from a frame of a sequential writer.
    is_sequential: bool,
}

/// Its file.
struct Target<'a> {
    shared: &'a Shared,
    file: Arc<dyn File>,
    catalog: Catalog,
    /// Chunks of the next frame.
    slots: Vec<Slot>,
    /// Where the frames end.
    end_bytes: u64,
}

impl<'a> Output<'a> {
    /// Begins container `id` in its new file.
    pub(super) fn begin(shared: &'a Shared, file: Arc<dyn File>, id: ContainerId, created: Position) -> Result<Output<'a>> {
        let options = &shared.options;
        let header = Header {
            digest_bytes: options.digest_bytes() as u8,
            container: id,
            store: options.store,
            epoch: shared.owners.epoch_of(id),
            created: created.0,
            merged: true,
        };
        file.write_at(0, &header.encode()).map_err(StorageError::cannot_write)?;
        let target = Target { shared, file, catalog: Catalog::new(id), slots: Vec::new(), end_bytes: HEADER_BYTES as u64 };
        Ok(Output { target, compressors: Compressors::new(options), raw: Vec::new(), is_sequential: false })
    }

    /// Appends chunks, some MiB at a time.
    pub(super) fn copy_all(&mut self, chunks: &[Planned]) -> Result<()> {
        let parts = parts(chunks, self.target.shared.options.frame_bytes / 2);
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |part: &&Part| {
                bytes += chunks[part.chunks.clone()].iter().map(|chunk| chunk.slot.length_bytes as usize).sum::<usize>();
                bytes <= WINDOW_BYTES
            };
            let (window, behind) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = behind;
            self.copy(chunks, window)?;
        }
        Ok(())
    }

    /// Appends the chunks of some parts. Each frame that has some of them is read once, in the order of the files.
    fn copy(&mut self, all: &[Planned], parts: &[Part]) -> Result<()> {
        let base = parts[0].chunks.start;
        let chunks = &all[base..parts[parts.len() - 1].chunks.end];
        // The place of each chunk that does not come with its frame.
        let mut starts = vec![None; chunks.len()];
        let mut raw_bytes = 0;
        for at in parts.iter().filter(|part| !part.is_whole_frame).flat_map(|part| part.chunks.clone()) {
            starts[at - base] = Some(raw_bytes);
            raw_bytes += all[at].slot.length_bytes as usize;
        }
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|at| (chunks[*at].catalog.container, chunks[*at].frame().offset_bytes, chunks[*at].slot.frame));
        let is_same_frame = |a: &usize, b: &usize| {
            let (a, b) = (&chunks[*a], &chunks[*b]);
            (a.catalog.container, a.slot.frame) == (b.catalog.container, b.slot.frame)
        };
        let needed: Vec<Needed> = order
            .chunk_by(is_same_frame)
            .map(|of_frame| {
                let first = &chunks[of_frame[0]];
                let range = |at: usize| {
                    let start = chunks[at].slot.offset_bytes as usize;
                    start..start + chunks[at].slot.length_bytes as usize
                };
                let users = of_frame.iter().map(|at| (*at, range(*at))).collect();
                Needed { container: first.catalog.container, frame: first.frame().clone(), users }
            })
            .collect();
        let mut bytes = vec![0; raw_bytes];
        // Whole frames, by their first chunk.
        let mut frames: HashMap<usize, Vec<u8>> = HashMap::new();
        for run in needed.chunk_by(is_near) {
            let copied = self.target.shared.read_stored_run(run, |needed, stored| {
                let (first, _) = needed.users[0];
                if starts[first].is_none() {
                    self.target.shared.check_stored(needed.container, &needed.frame, &stored)?;
                    frames.insert(first, stored.into_owned());
                    return Ok(());
                }
                let frame = self.target.shared.unpack(needed.container, &needed.frame, &stored)?;
                for (at, range) in &needed.users {
                    let start = starts[*at].expect("of a frame that does not come as it is, no chunk does");
                    bytes[start..][..range.len()].copy_from_slice(&frame[range.clone()]);
                }
                Ok(())
            });
            copied.map_err(|error| name_chunk(error, chunks))?;
        }
        for part in parts {
            let first = part.chunks.start - base;
            match frames.remove(&first) {
                Some(stored) => self.append_frame(&all[part.chunks.clone()], &stored).map_err(|error| name_chunk(error, chunks))?,
                None => {
                    let (slot, start) = (&chunks[first].slot, starts[first].expect("it does not come with its frame"));
                    self.begin_like(chunks[first].frame())?;
                    self.append(slot, &bytes[start..][..slot.length_bytes as usize]);
                    if self.raw.len() >= self.frame_bytes() {
                        self.close_frame()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends a frame as it is. If too little lies before it to be a frame of its own, appends its chunks instead.
    fn append_frame(&mut self, chunks: &[Planned], stored: &[u8]) -> Result<()> {
        let first = &chunks[0];
        let frame = first.frame();
        let frame_bytes = self.frame_bytes();
        let is_small = self.raw.len() < frame_bytes / 4 && self.raw.len() + frame.raw_bytes as usize <= frame_bytes + frame_bytes / 2;
        if !self.target.slots.is_empty() && is_small {
            let raw = self.target.shared.unpack(first.catalog.container, frame, stored)?;
            for Planned { slot, .. } in chunks {
                self.append(slot, &raw[slot.offset_bytes as usize..][..slot.length_bytes as usize]);
            }
            // Then the next frame can come as it is.
            return self.close_frame();
        }
        if !self.target.slots.is_empty() {
            self.close_frame()?;
        }
        let number = self.target.catalog.frames.len() as u16;
        self.target.slots.extend(chunks.iter().map(|chunk| Slot { frame: number, ..chunk.slot }));
        self.target.write_frame(frame.codec, frame.raw_bytes, frame.checksum, stored)
    }

    /// Prepares for chunks from `frame`: chunks of small frames do not go into large ones, nor the other way round.
    fn begin_like(&mut self, frame: &Frame) -> Result<()> {
        // Only a frame of a sequential writer, or one of a few very long chunks, is this long.
        let is_sequential = frame.raw_bytes >= 2 * self.target.shared.options.frame_bytes;
        if is_sequential != self.is_sequential {
            // A small remainder is not worth a frame of its own.
            if self.raw.len() >= self.frame_bytes() / 4 {
                self.close_frame()?;
            }
            self.is_sequential = is_sequential;
        }
        Ok(())
    }

    /// Returns the number of raw bytes at which the frame that is being filled is closed.
    fn frame_bytes(&self) -> usize {
        let options = &self.target.shared.options;
        (if self.is_sequential { options.sequential_frame_bytes } else { options.frame_bytes }) as usize
    }

    fn append(&mut self, slot: &Slot, bytes: &[u8]) {
        let (frame, offset_bytes) = (self.target.catalog.frames.len() as u16, self.raw.len() as u32);
        self.target.slots.push(Slot { frame, offset_bytes, ..*slot });
        self.raw.extend_from_slice(bytes);
    }

    /// Compresses the frame and writes it.
    fn close_frame(&mut self) -> Result<()> {
        let raw = &self.raw;
        let (codec, stored) = self.compressors.compress(self.is_sequential, raw, &self.target.shared.profile);
        self.target.write_frame(codec, raw.len() as u32, checksum(stored), stored)?;
        self.raw.clear();
        Ok(())
    }

    /// Writes catalog and footer, and makes the file durable. Returns the catalog and the length of the file.
    pub(super) fn finish(mut self, homes: Homes, created: Position) -> Result<(Catalog, u64)> {
        if !self.target.slots.is_empty() {
            self.close_frame()?;
        }
        let Target { shared, file, mut catalog, end_bytes, .. } = self.target;
        catalog.homes = Some(homes);
        let tail = catalog_and_footer(&catalog, end_bytes, Some(created), shared.options.digest_bytes());
        file.write_at(end_bytes, &tail).and_then(|()| file.sync()).map_err(StorageError::cannot_write)?;
        // Other files may have their names in that directory: after a failed sync it is unknown which names are there.
        shared.sync_folders(&BTreeSet::from([file::folder(&shared.directory, catalog.container)]))?;
        // Old files go because this one is right. So it is read as everybody else will read it.
        let read = shared.read_catalog(catalog.container)?;
        if read != catalog {
            return Err(shared.damaged(catalog.container, None, None, "its bytes differ from what was just written"));
        }
        Ok((catalog, end_bytes + tail.len() as u64))
    }
}

impl Target<'_> {
    /// Writes a frame that has the chunks of `slots`.
    fn write_frame(&mut self, codec: Codec, raw_bytes: u32, checksum: u64, stored: &[u8]) -> Result<()> {
        let shared = self.shared;
        let frame = Frame {
            number: self.catalog.frames.len() as u32,
            first_slot: self.catalog.slots.len() as u32,
            slots: self.slots.len() as u32,
            offset_bytes: self.end_bytes as u32,
            stored_bytes: stored.len() as u32,
            raw_bytes,
            codec,
            checksum,
        };
        shared
            .profile
            .time(&STORAGE_WRITE, stored.len() as u64, || self.file.write_at(self.end_bytes, stored))
            .map_err(StorageError::cannot_write)?;
        self.file.start_writeback(self.end_bytes, stored.len() as u64);
        self.end_bytes = frame.end_bytes();
        self.catalog.push(frame, &self.slots);
        self.slots.clear();
        Ok(())
    }
}

/// Adds to the error the name of a chunk that is lost with its frame.
fn name_chunk(error: StorageError, chunks: &[Planned]) -> StorageError {
    let StorageError::Damaged { path, container, frame: Some(frame), slot: None, why } = error else { return error };
    let is_in_it = |chunk: &&Planned| chunk.catalog.container == container && u32::from(chunk.slot.frame) == frame;
    let chunk = chunks.iter().find(is_in_it).map(|chunk| format!("chunk {} at {}: ", chunk.slot.fingerprint, chunk.home));
    StorageError::Damaged { path, container, frame: Some(frame), slot: None, why: format!("{}{why}", chunk.unwrap_or_default()) }
}
