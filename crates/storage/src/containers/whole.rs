//! Containers of a store with whole files (decision 0068): what becomes of those that are not sealed.
//!
//! The file of such a container exists only in the process that fills it, and the log has all that is committed of it.
//! After a restart the replay gives it a file again, with the bytes that the log has of its frames.
//!
//! # Why an unsealed container of an earlier owner is sealed as it is
//! An owner that died, or lost the store, may have put the container under its number, with more frames than the log
//! has, and this put may arrive at any time. So an opening for writing does not continue it. When the log is to be
//! trimmed behind its records, it is closed with exactly what the log has, and put. Whoever comes first with the number
//! wins, and either content will do:
//! 1. Frames and chunks are only ever appended, and an owner puts a container only when it has all of them. So its
//!    object has each logged frame with the same bytes at the same place, and each logged chunk in the same slot.
//! 2. No two owners give out one number (`numbers.rs`). So all contents that can be under the number come from the
//!    owner that filled the container, or from later owners that closed it. The latter found the same in the log as
//!    this one does: its records are before their fences.
//! 3. What the object has beyond that was never acknowledged, and its addresses were given to nobody else. The batch
//!    that seals the container says that it is dead ([`Prepared::surplus`](crate::Prepared::surplus)).
//!
//! So an object that is there already is *adopted*: its catalog takes the place of what the log has. This is checked
//! when a put finds its name taken. No object needs to be deleted or replaced for it.

use crate::containers::file;
use crate::containers::job::Job;
use crate::containers::open::{OpenContainer, OpenFrame, Seal, State};
use crate::containers::store::{ContainerStore, Shared};
use crate::{Catalog, ContainerId, Frame, Result, StorageError};
use onefold_ground::{Access, File};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of frames and chunks that one batch carries, about. A batch that needed more is preceded by puts.
const BATCH_BYTES: u64 = 16 << 20;
/// What a container has that the log lacks, from which on it is cheaper to put it than to send it in the log now, and
/// in a container later.
const WORTH_A_PUT_BYTES: u64 = 512 << 10;

/// The stored bytes of frames, by their numbers.
pub(crate) type StoredFrames = BTreeMap<u32, Vec<u8>>;

impl ContainerStore {
    /// Closes a container: it takes no more chunks and is sealed with those that it has. Its writer finds out with the
    /// next chunk.
    pub(crate) fn close(&self, container: &Arc<OpenContainer>) {
        let mut state = container.state.lock();
        if state.full {
            return;
        }
        state.full = true;
        let handed_over = state.hand_over();
        let is_complete = state.is_complete();
        drop(state);
        if let Some((number, frame)) = handed_over {
            self.shared.flow.add(frame.raw.len());
            self.send(Job::new(container, number, frame));
        } else if is_complete {
            self.shared.puts.add(container);
        }
    }

    /// Closes a container, so that the next commit puts it. Returns whether it was not sealed.
    pub fn close_container(&self, container: ContainerId) -> bool {
        let unsealed = self.shared.unsealed.get(container);
        unsealed.iter().for_each(|container| self.close(container));
        unsealed.is_some()
    }

    /// Closes the largest containers until the others have little enough for one batch.
    pub(crate) fn close_largest(&self, containers: &[Arc<OpenContainer>]) {
        let mut largest: Vec<(u64, &Arc<OpenContainer>)> =
            containers.iter().map(|container| (unlogged_bytes(container), container)).collect();
        largest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut sum: u64 = largest.iter().map(|(bytes, _)| bytes).sum();
        for (bytes, container) in largest {
            if sum <= BATCH_BYTES {
                break;
            }
            self.close(container);
            sum -= bytes;
        }
    }

    /// Closes the containers that hold so much that it is cheaper to seal them with the next commit than to send it
    /// twice. Call it when all is written that will be for now. Does nothing in a store without whole files.
    pub fn close_worthy(&self) {
        if self.shared.options.whole_files {
            let containers = self.shared.unsealed.all();
            containers
                .iter()
                .filter(|container| unlogged_bytes(container) >= WORTH_A_PUT_BYTES)
                .for_each(|container| self.close(container));
        }
    }
}

fn unlogged_bytes(container: &OpenContainer) -> u64 {
    let state = container.state.lock();
    if state.full { 0 } else { state.unlogged_bytes() }
}

impl Shared {
    /// Gives the unsealed containers their files again. `stored` are the frames that the log has. With all bytes at
    /// hand nobody asks for an object. A reader that is going to seal them (`for_sealing`) must know of objects that
    /// are there, and makes no file in their place.
    pub(crate) fn restore_files(&self, mut stored: HashMap<ContainerId, StoredFrames>, for_sealing: bool) -> Result<()> {
        for container in self.unsealed.all() {
            let frames = stored.remove(&container.id).unwrap_or_default();
            let mut state = container.state.lock();
            let lacking = state.catalog.frames.iter().map(|frame| frame.number).find(|number| !frames.contains_key(number));
            let has_object = match (self.mode.is_for_reading(), lacking) {
                (true, None) => state.catalog.frames.is_empty() || for_sealing && self.is_covered(&state)?,
                (true, Some(_)) => self.is_covered(&state)?,
                (false, None) => false,
                (false, Some(frame)) => {
                    if !self.adopt_if_there(&mut state)? {
                        let why = format!("the log does not have the bytes of frame {frame}, and there is no file");
                        return Err(StorageError::Log { container: container.id, why });
                    }
                    true
                }
            };
            if !has_object {
                state.file = Some(self.restore_file(&container, &state, &frames).map_err(StorageError::cannot_write)?);
            }
        }
        Ok(())
    }

    fn restore_file(&self, container: &OpenContainer, state: &State, stored: &StoredFrames) -> onefold_ground::Result<Arc<dyn File>> {
        self.ground.create_directory(&file::folder(&self.directory, container.id))?;
        let file = self.ground.create(&container.path)?;
        self.start_file(container.id, self.log_end.get(), &*file)?;
        for frame in &state.catalog.frames {
            if let Some(bytes) = stored.get(&frame.number) {
                file.write_at(u64::from(frame.offset_bytes), bytes)?;
            }
        }
        Ok(file)
    }

    /// Returns the object of a container, and its catalog. `None`: there is no object.
    fn object(&self, container: ContainerId) -> Result<Option<(Arc<dyn File>, Catalog)>> {
        let file = match self.ground.open(&file::path(&self.directory, container), Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(self.read_error(container, None, error)),
        };
        // A file that only a process has is no object. A ground that served an earlier opening may still have some of
        // it.
        if let Some(bucket) = self.ground.bucket()
            && bucket.length(&file::path(&self.directory, container))? != Some(file.len()?)
        {
            return Ok(None);
        }
        let catalog = self.catalog_in(container, &file)?;
        Ok(Some((file, catalog)))
    }

    /// Returns whether readers find the logged frames of a container in its object. If it is damaged, they use what the
    /// log has.
    fn is_covered(&self, state: &State) -> Result<bool> {
        match self.object(state.catalog.container) {
            Ok(object) => Ok(object.is_some_and(|(_, catalog)| covers(&catalog, state).is_ok())),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn adopt_if_there(&self, state: &mut State) -> Result<bool> {
        let container = state.catalog.container;
        let Some((file, catalog)) = self.object(container)? else { return Ok(false) };
        covers(&catalog, state).map_err(|why| StorageError::Log { container, why })?;
        tracing::info!(%container, "a container that an earlier process put before its batch is sealed as it is");
        self.adopt(state, file, catalog);
        Ok(true)
    }

    /// Adopts the object that a put found under its name. Errors: it is not of this container. Then another process
    /// writes to this store, and this one writes no more.
    pub(crate) fn adopt_taken(&self, container: &OpenContainer) -> Result<()> {
        self.caches.forget_file(container.id);
        let object = self.object(container.id)?;
        let mut state = container.state.lock();
        let covered = match &object {
            // The name was taken by a put that failed.
            None => return Err(self.missing(container.id)),
            Some(_) if state.logged.slots < state.slots().len() => Err("it has chunks that no batch names".to_owned()),
            Some((_, catalog)) => covers(catalog, &state),
        };
        if let Err(why) = covered {
            let why = format!("{}: another process wrote container {}: {why}", self.ground.describe(&container.path), container.id);
            // A thread that waits for a put holds the flow, and looks at the container.
            drop(state);
            self.flow.poison(&why);
            return Err(StorageError::Poisoned { why: why.into() });
        }
        if let Some((file, catalog)) = object {
            let frames = state.logged.frames as u32..state.catalog.frames.len() as u32;
            self.adopt(&mut state, file, catalog);
            drop(state);
            // Readers that found a frame in the old catalog look again.
            self.retire([container.id].iter());
            self.frames.forget(container.id, frames);
        }
        Ok(())
    }

    /// Makes an object the content of a container. It has all that the log has of it.
    fn adopt(&self, state: &mut State, file: Arc<dyn File>, catalog: Catalog) {
        let synced: u64 = state.catalog.frames[state.synced_frames..].iter().map(|frame| u64::from(frame.raw_bytes)).sum();
        self.counters.synced(synced);
        state.synced_frames = catalog.frames.len();
        state.catalog = Arc::new(catalog);
        state.open = OpenFrame::default();
        state.file = Some(file);
        (state.full, state.seal, state.is_adopted) = (true, Seal::Synced, true);
    }

    /// Reads frames of a container back from its file, for the log.
    pub(crate) fn stored_frames(&self, container: ContainerId, frames: &[Frame], file: &dyn File) -> Result<StoredFrames> {
        let read = |frame: &Frame| {
            let mut bytes = vec![0; frame.stored_bytes as usize];
            file.read_at(u64::from(frame.offset_bytes), &mut bytes)
                .map_err(|error| self.read_error(container, Some(frame.number), error))?;
            self.check_stored(container, frame, &bytes)?;
            Ok((frame.number, bytes))
        };
        frames.iter().map(read).collect()
    }
}

/// Checks that an object has all that the log has of a container. `Err` says what does not fit.
fn covers(object: &Catalog, state: &State) -> std::result::Result<(), String> {
    let logged = &state.catalog.frames[..state.logged.frames.min(state.catalog.frames.len())];
    if object.homes.is_some() || !object.frames.starts_with(logged) {
        return Err("its file does not have the frames that the log has".to_owned());
    }
    let slots = state.slots();
    let has = |at: usize| {
        let (found, known) = (object.slots.get(at)?, &slots[at]);
        Some((found.fingerprint, found.kind, found.length_bytes) == (known.fingerprint, known.kind, known.length_bytes))
    };
    match (0..slots.len()).find(|at| has(*at) != Some(true)) {
        Some(slot) => Err(format!("its file has another chunk in slot {slot} than the log")),
        None => Ok(()),
    }
}
