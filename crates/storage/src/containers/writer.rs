//! Writes chunks: a stream's chunks lie one after the other, in containers that only this stream fills.

use crate::containers::file;
use crate::containers::job::Job;
use crate::containers::open::{Fit, Limits, OpenContainer, Stopped};
use crate::containers::placement::Next;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, Codec, CompressedFrame, ContainerId, HEADER_BYTES, Header, MAX_CHUNK_BYTES, NewChunk, Result, StorageError};
use onefold_ground::{Access, File};
use onefold_oplog::Position;
use std::sync::Arc;

/// A writing stream. Dropping it leaves its container to the next stream.
#[derive(Debug)]
pub struct Writer {
    store: Arc<ContainerStore>,
    container: Option<Arc<OpenContainer>>,
    pub(crate) is_sequential: bool,
}

impl ContainerStore {
    /// Returns a new writing stream. It takes a container with its first chunk: one that is not full and has no writer,
    /// or a new one.
    pub fn writer(self: &Arc<Self>) -> Writer {
        Writer { store: self.clone(), container: None, is_sequential: false }
    }
}

impl Writer {
    /// Declares that the data will be read from beginning to end. It goes into large frames, which compress better.
    /// Without this, frames are small, so that reading a single chunk decompresses little.
    pub fn sequential(mut self) -> Writer {
        self.is_sequential = true;
        self
    }

    /// Stores chunks one after the other and returns their addresses. They can be loaded at once. They are durable when
    /// the log has the records of a later [`ContainerStore::prepare`]. Waits while `in_flight_bytes` are on the way.
    ///
    /// On an error some of the chunks may be stored. Nothing refers to them, and they may be stored again.
    pub fn append(&mut self, chunks: &[NewChunk<'_>]) -> Result<Vec<Address>> {
        self.append_joined(chunks, 0)
    }

    /// Does the same with the chunks of a frame that came compressed, and stores it as it came: nothing is compressed
    /// again. This needs a [sequential](Self::sequential) writer, and a frame that
    /// * is compressed as the store's frames of such writers are, and has become smaller,
    /// * has the bytes of these chunks, one after the other, and no others,
    /// * has between a quarter and one and a half times the bytes of the store's frames. So a container is not filled
    ///   with small frames, and reading a chunk does not decompress much more than usual.
    ///
    /// Other frames, and those that do not fit behind what the writer appended before, are stored as chunks are.
    pub fn append_frame(&mut self, chunks: &[NewChunk<'_>], frame: &CompressedFrame<'_>) -> Result<Vec<Address>> {
        if !self.takes(chunks, frame) {
            return self.append(chunks);
        }
        let store = self.store.clone();
        store.shared.check_writable()?;
        loop {
            let container = self.container()?;
            let limits = store.shared.limits(true);
            let (fit, open_bytes) = {
                let state = container.state.lock();
                (state.fit(chunks.len(), frame, &limits), state.open.raw.len())
            };
            match fit {
                Fit::Now => {
                    // Nobody else appends to the container meanwhile, so it still fits, unless a commit closes it.
                    store.shared.flow.reserve(frame.in_flight_bytes(), || store.shared.write_failed_frames())?;
                    let mut slots = Vec::with_capacity(chunks.len());
                    let handed_over = {
                        let mut state = container.state.lock();
                        (!state.full).then(|| state.hand_over_compressed(chunks, frame, &mut slots))
                    };
                    let Some((number, job)) = handed_over else {
                        store.shared.flow.release(frame.in_flight_bytes());
                        continue;
                    };
                    store.send(Job::new(&container, number, job));
                    return Ok(slots.iter().map(|slot| Address::new(container.id, *slot)).collect());
                }
                Fit::BehindOpen => store.hand_over(&container, open_bytes, false)?,
                Fit::ContainerFull => {
                    store.hand_over(&container, open_bytes, true)?;
                    self.container = None;
                }
                Fit::WithOpen => return self.append_joined(chunks, open_bytes + frame.raw.len()),
                Fit::Never => return self.append(chunks),
            }
        }
    }

    /// Returns whether a frame may be stored as it came.
    fn takes(&self, chunks: &[NewChunk<'_>], frame: &CompressedFrame<'_>) -> bool {
        let options = &self.store.shared.options;
        let frame_bytes = options.sequential_frame_bytes as usize;
        let is_of_this_store = frame.codec == options.sequential_compression.codec() && frame.codec != Codec::Plain;
        let is_sized = (frame_bytes / 4..=frame_bytes + frame_bytes / 2).contains(&frame.raw.len());
        let is_short = chunks.iter().all(|chunk| chunk.data.len() <= MAX_CHUNK_BYTES);
        self.is_sequential && is_of_this_store && is_sized && is_short && frame.stored.len() < frame.raw.len() && frame.has(chunks)
    }

    /// Returns the container that takes the next chunk.
    fn container(&mut self) -> Result<Arc<OpenContainer>> {
        match &self.container {
            Some(container) => Ok(container.clone()),
            None => Ok(self.container.insert(self.store.shared.take_container()?).clone()),
        }
    }

    /// Appends chunks. A frame takes at least `least_bytes` before it is full.
    fn append_joined(&mut self, chunks: &[NewChunk<'_>], least_bytes: usize) -> Result<Vec<Address>> {
        if let Some(chunk) = chunks.iter().find(|chunk| chunk.data.len() > MAX_CHUNK_BYTES) {
            return Err(StorageError::ChunkTooLong { length_bytes: chunk.data.len(), limit_bytes: MAX_CHUNK_BYTES });
        }
        let store = self.store.clone();
        store.shared.check_writable()?;
        let mut addresses = Vec::with_capacity(chunks.len());
        let mut slots = Vec::new();
        while addresses.len() < chunks.len() {
            let container = self.container()?;
            slots.clear();
            let mut limits = store.shared.limits(self.is_sequential);
            limits.frame_bytes = limits.frame_bytes.max(least_bytes);
            let (stopped, open_bytes) = {
                let mut state = container.state.lock();
                let stopped = state.accept(&chunks[addresses.len()..], &limits, &mut slots);
                (stopped, state.open.raw.len())
            };
            addresses.extend(slots.iter().map(|slot| Address::new(container.id, *slot)));
            if stopped == Stopped::Taken {
                break;
            }
            if let Err(error) = store.hand_over(&container, open_bytes, stopped == Stopped::ContainerFull) {
                // The chunks taken so far are safe in the open frame. The next call reports the error.
                return if addresses.len() == chunks.len() { Ok(addresses) } else { Err(error) };
            }
            if stopped == Stopped::ContainerFull {
                self.container = None;
            }
        }
        Ok(addresses)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(container) = self.container.take() {
            self.store.shared.give_back(&container);
        }
    }
}

impl ContainerStore {
    /// Hands the open frame to the workers, after waiting for its turn. With `last` the container takes no more.
    fn hand_over(&self, container: &Arc<OpenContainer>, open_bytes: usize, last: bool) -> Result<()> {
        self.shared.flow.reserve(open_bytes, || self.shared.write_failed_frames())?;
        let (handed_over, is_complete) = {
            let mut state = container.state.lock();
            state.full |= last;
            (state.hand_over(), state.is_complete())
        };
        match handed_over {
            Some((number, frame)) => self.send(Job::new(container, number, frame)),
            // A flush was faster.
            None => self.shared.flow.release(open_bytes),
        }
        if is_complete && self.shared.options.whole_files {
            self.shared.puts.add(container);
        }
        Ok(())
    }

    /// Passes a frame that is counted as in flight to the workers.
    pub(crate) fn send(&self, job: Job) {
        self.shared.counters.handed_over(job.raw.len() as u64);
        let jobs = self.jobs.as_ref().expect("the channel is there until the store is dropped");
        if jobs.send(job).is_err() {
            self.shared.flow.poison("the storage workers have ended");
        }
    }
}

impl Shared {
    fn limits(&self, is_sequential: bool) -> Limits {
        let frame_bytes = if is_sequential { self.options.sequential_frame_bytes } else { self.options.frame_bytes };
        Limits {
            container_bytes: u64::from(self.options.container_bytes),
            frame_bytes: frame_bytes as usize,
            least_frame_bytes: self.options.frame_bytes.min(self.options.sequential_frame_bytes) as usize / 4,
            is_sequential,
            digest_bytes: self.options.digest_bytes(),
            // However well the last frames compressed, never more than four times the raw data that fits uncompressed.
            stored_per_1024: self.flow.stored_per_1024().max(256),
        }
    }

    fn give_back(&self, container: &OpenContainer) {
        if !container.state.lock().full {
            self.placement.leave(container.id);
        }
    }

    /// Gives a writer its next container, with its file open.
    fn take_container(&self) -> Result<Arc<OpenContainer>> {
        loop {
            let id = match self.placement.next()? {
                Next::Open(id) => id,
                Next::New(partition) => match self.new_container(partition) {
                    // It was left just now.
                    Err(StorageError::NotOpened { .. }) => continue,
                    made => return made,
                },
            };
            let Some(container) = self.unsealed.get(id).filter(|container| !container.state.lock().full) else { continue };
            let opened = self.open_for_writing(&container);
            match opened {
                Ok(()) => return Ok(container),
                Err(error @ StorageError::Damaged { .. }) => {
                    // Its chunks stay readable as far as the file is. It is only not continued.
                    tracing::warn!(%error, "a container's file is damaged, so nothing is appended to it; a check lists what is lost");
                }
                Err(error) => {
                    self.give_back(&container);
                    return Err(error);
                }
            }
        }
    }

    fn new_container(&self, partition: u16) -> Result<Arc<OpenContainer>> {
        let id = self.placement.begin_creation(partition)?;
        let mut claim = self.merging.claim_nothing();
        let created = self.hold_log(&claim);
        let container = self.create_container(id, created, &mut claim.has_file);
        match &container {
            Ok(container) => {
                // From here on it holds the log itself.
                self.unsealed.insert(container.clone());
                self.merging.release(&claim);
            }
            Err(_) => {
                // The file goes durably before the log may be trimmed. If a crash brought it back later, nothing would
                // tell what it is.
                self.merging.claim_target(&mut claim, id);
                self.give_up(claim);
            }
        }
        self.placement.end_creation(id);
        container
    }

    fn create_container(&self, id: ContainerId, created: Position, has_file: &mut bool) -> Result<Arc<OpenContainer>> {
        let container = Arc::new(OpenContainer::new(id, file::path(&self.directory, id)));
        let folder = file::folder(&self.directory, id);
        self.ground.create_directory(&folder).map_err(StorageError::cannot_write)?;
        // Only under a new name: a file that already has this name is not ours to cut.
        let file = self.ground.create(&container.path).map_err(StorageError::cannot_write)?;
        *has_file = true;
        self.start_file(id, created, &*file).map_err(StorageError::cannot_write)?;
        {
            let mut state = container.state.lock();
            state.file = Some(file);
            // A file that only this process has needs no log to tell what it is.
            state.created = (!self.options.whole_files).then_some(created);
        }
        self.counters.created();
        Ok(container)
    }

    /// Returns the header of a container that is not merged.
    pub(crate) fn header(&self, container: ContainerId, created: Position) -> Header {
        Header {
            digest_bytes: self.options.digest_bytes() as u8,
            container,
            store: self.options.store,
            epoch: self.owners.epoch_of(container),
            created: created.0,
            merged: false,
        }
    }

    /// Writes the header and reserves the space of a container without frames.
    pub(crate) fn start_file(&self, container: ContainerId, created: Position, file: &dyn File) -> onefold_ground::Result<()> {
        // First, because this is where new data finds a full disk: a write could use the space that is kept for freeing
        // more.
        self.reserve_room(HEADER_BYTES as u64, file)?;
        file.write_at(0, &self.header(container, created).encode())
    }

    /// Reserves the space of a container behind `end`, unless most of it will stay a hole, or its place is elsewhere.
    fn reserve_room(&self, end: u64, file: &dyn File) -> onefold_ground::Result<()> {
        let room = u64::from(self.options.container_bytes).saturating_sub(end);
        if room > 0 && !self.options.discards_data && !self.options.whole_files { file.allocate(end, room) } else { Ok(()) }
    }

    /// Opens the file of a container that the log describes, and reserves its space again.
    fn open_for_writing(&self, container: &OpenContainer) -> Result<()> {
        let mut state = container.state.lock();
        if state.file.is_some() {
            return Ok(());
        }
        let fresh = state.catalog.frames.is_empty();
        let end = state.end_bytes();
        let file = match self.ground.open(&container.path, Access::ReadWrite) {
            Ok(file) => file,
            Err(error) if error.is_not_found() && fresh => {
                // The log has its first chunks, but the crash took the file, which nothing needed yet.
                let folder = file::folder(&self.directory, container.id);
                self.ground.create_directory(&folder).map_err(StorageError::cannot_write)?;
                self.ground.create(&container.path).map_err(StorageError::cannot_write)?
            }
            Err(error) if error.is_not_found() => return Err(self.damaged(container.id, None, None, "the file is missing")),
            Err(error) => return Err(StorageError::cannot_write(error)),
        };
        let length = file.len()?;
        if !fresh && length < end {
            let why = format!("the file has {length} bytes, but its frames end at {end}");
            return Err(self.damaged(container.id, None, None, why));
        }
        // Behind the committed frames lies what a crash left: frames that no log record names, maybe a footer.
        let kept = if fresh { end } else { state.page_end_bytes() };
        file.set_len(kept).map_err(StorageError::cannot_write)?;
        if fresh {
            let created = self.log_end.get();
            self.start_file(container.id, created, &*file).map_err(StorageError::cannot_write)?;
        } else {
            self.reserve_room(kept, &*file).map_err(StorageError::cannot_write)?;
        }
        // If the log names frames, the file's name is synced.
        state.name_synced = !fresh;
        state.file = Some(file);
        Ok(())
    }
}
