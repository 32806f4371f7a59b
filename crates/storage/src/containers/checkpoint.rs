//! Keeps the log short: an open container whose oldest record is far back is written again at the head of the log.
//!
//! A checkpoint only repeats what the log has of a container. It makes no chunk durable, and syncs nothing.
//!
//! In a store with whole files there are no checkpoints: they would send the frames again. Such a container is closed,
//! and the next commit seals it.

use crate::Prepared;
use crate::containers::open::{Cursor, OpenContainer, State};
use crate::containers::prepare::Change;
use crate::containers::records::{ContainerRecord, OpenChunks};
use crate::containers::store::{ContainerStore, Shared};
use crate::{Catalog, Result, StorageError};
use onefold_oplog::Position;
use std::sync::Arc;

impl ContainerStore {
    /// Returns records that replace all earlier ones of those containers whose oldest needed batch starts before
    /// `position`. Once they are [committed](Self::committed), the log can be trimmed up to there. They have no new
    /// chunks. Full containers are left to [`prepare`](Self::prepare), which seals them.
    ///
    /// In a store with whole files the result is empty. The next prepare, of whatever scope, then has what must be
    /// logged: it seals those containers, also with chunks that are new.
    ///
    /// If merges hold the log before `position`, only those containers are written that let it be trimmed up to there.
    /// So nothing is written again and again in vain.
    pub fn checkpoint_before(&self, position: Position) -> Result<Prepared> {
        if !self.shared.mode.is_writable() {
            return Err(StorageError::ReadOnly);
        }
        let containers = self.shared.unsealed.all();
        let position = self.shared.merging.oldest_log().map_or(position, |held| held.min(position));
        let mut prepared = Prepared::default();
        if self.shared.options.whole_files {
            let is_old = |container: &&Arc<OpenContainer>| container.state.lock().oldest.is_some_and(|oldest| oldest < position);
            containers.iter().filter(is_old).for_each(|container| self.close(container));
            self.shared.placement.renew_numbers(position);
            return Ok(prepared);
        }
        for container in containers {
            if let Some((change, record)) = self.shared.checkpoint(&container, position)? {
                prepared.records.push(record.encode(self.shared.options.digest_bytes()));
                prepared.changes.push(change);
            }
        }
        Ok(prepared)
    }
}

impl Shared {
    /// Returns the start of the oldest batch that is needed to describe an unsealed container, to tell that its file
    /// was never committed, or to tell which numbers are used.
    pub(crate) fn oldest_of_open(&self) -> Option<Position> {
        let needed = |container: &Arc<OpenContainer>| {
            let state = container.state.lock();
            state.oldest.or(state.created)
        };
        let oldest = self.unsealed.with_all(|containers| containers.filter_map(needed).min());
        oldest.into_iter().chain(self.placement.numbers_since()).min()
    }

    fn checkpoint(&self, container: &Arc<OpenContainer>, position: Position) -> Result<Option<(Change, ContainerRecord)>> {
        let mut state = container.state.lock();
        if state.full || state.oldest.is_none_or(|oldest| oldest >= position) {
            return Ok(None);
        }
        let logged = state.logged;
        let first_slot = first_slot_of(&state.catalog, logged.frames);
        let catalog = Catalog {
            container: container.id,
            frames: state.catalog.frames[..logged.frames].to_vec(),
            slots: state.catalog.slots[..first_slot].to_vec(),
            homes: None,
        };
        let open = self.logged_open_chunks(container, &state, logged, first_slot)?;
        // From here on the container is not sealed until this checkpoint is in the log, or is given up.
        let change = Change::checkpoint(container.clone(), &mut state, logged);
        drop(state);
        Ok(Some((change, ContainerRecord::ContainerCheckpoint { catalog, open })))
    }

    /// Returns what the log has of the frame behind the committed ones. That frame may have been written since, which
    /// the log does not know yet.
    fn logged_open_chunks(&self, container: &OpenContainer, state: &State, logged: Cursor, first_slot: usize) -> Result<OpenChunks> {
        let count = logged.slots - first_slot;
        let mut open = OpenChunks { frame: logged.frames as u32, first_slot: first_slot as u32, slots: Vec::new(), raw: Vec::new() };
        if count == 0 {
            return Ok(open);
        }
        if let Some(frame) = state.catalog.frames.get(logged.frames) {
            let stored = self.read_stored(container.id, Some(frame.number), u64::from(frame.offset_bytes), frame.stored_bytes as usize)?;
            open.raw = self.unpack(container.id, frame, &stored)?;
            open.slots = state.catalog.slots_of(frame)[..count].to_vec();
        } else if let Some(pending) = state.pending.front() {
            open.slots = pending.slots[..count].to_vec();
            open.raw = pending.raw.to_vec();
        } else {
            open.slots = state.open.slots[..count].to_vec();
            open.raw = state.open.raw.clone();
        }
        let raw_bytes: usize = open.slots.iter().map(|slot| slot.length_bytes as usize).sum();
        open.raw.truncate(raw_bytes);
        Ok(open)
    }
}

fn first_slot_of(catalog: &Catalog, frame: usize) -> usize {
    catalog.frames.get(frame).map_or(catalog.slots.len(), |frame| frame.first_slot as usize)
}
