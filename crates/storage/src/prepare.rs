//! Making containers durable: what is synced, and what the log is to hold of them.
//!
//! Every [`Prepared`] starts from what the log is *known* to hold, never from what another one is about to log. So one that is abandoned
//! needs no undoing, and two at the same time only say some things twice, which replay allows.

use crate::open::{Cursor, OpenContainer, Seal};
use crate::records::{ContainerRecord, OpenChunks, frame_committed, frame_data};
use crate::store::{ContainerStore, Shared};
use crate::workers::Job;
use crate::{Address, Catalog, ChunkKind, Result, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::profile::Component;
use onefold_ground::{File, parent};
use onefold_oplog::{Position, Record};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All chunks; those of open frames go into the log with their bytes. For a flush.
    Everything,
    /// Full frames only. For the background: it keeps the unsynced data bounded.
    FullFrames,
}

/// Records for one log batch, and the chunks that they make durable. It is either [committed](ContainerStore::committed) or
/// [abandoned](ContainerStore::abandoned); dropping it is abandoning it.
#[derive(Debug, Default)]
#[must_use]
pub struct Prepared {
    /// For the log, all in one batch, in this order.
    pub records: Vec<Record>,
    /// The chunks that the log did not have before.
    pub chunks: Vec<(Fingerprint, Address, ChunkKind)>,
    changes: Vec<Change>,
}

impl Prepared {
    /// Whether there is nothing to log.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// What the log will have of one container.
#[derive(Debug)]
struct Change {
    container: Arc<OpenContainer>,
    logged: Cursor,
    seals: bool,
    checkpoint: bool,
}

/// One container at the moment of the call.
struct Target {
    container: Arc<OpenContainer>,
    /// Frames handed over.
    frames: usize,
    open: OpenPart,
}

/// What of the open frame is wanted.
enum OpenPart {
    Nothing,
    /// Its chunks that the log does not have.
    Data(Option<Record>, Vec<(Fingerprint, Address, ChunkKind)>),
    /// All its chunks.
    Checkpoint(OpenChunks),
}

impl ContainerStore {
    /// Makes durable what was appended before the call, as far as `scope` says, except for the log: waits for frames on the way, writes
    /// what could not be written before, finishes full containers, syncs. The records are to be logged next.
    ///
    /// On [`StorageError::CannotWrite`] nothing is lost and the call may be repeated.
    pub fn prepare(&self, scope: Scope) -> Result<Prepared> {
        self.prepare_containers(scope == Scope::Everything, None)
    }

    /// Records that replace all earlier ones of those containers whose oldest needed batch starts before `position`, so that the log can be
    /// trimmed up to there once they are [committed](Self::committed). Full containers are left to [`prepare`](Self::prepare), which seals them.
    pub fn checkpoint_before(&self, position: Position) -> Result<Prepared> {
        self.prepare_containers(true, Some(position))
    }

    /// The batch with these records, from `start` to `end`, is durable in the log.
    pub fn committed(&self, prepared: Prepared, start: Position, end: Position) {
        debug_assert!(start <= end);
        for change in prepared.changes {
            let mut state = change.container.state.lock();
            if change.seals {
                let catalog = state.catalog.clone();
                drop(state);
                self.shared.remember_catalog(&catalog);
                if self.shared.open.write().remove(&change.container.id).is_some() {
                    self.shared.counters.sealed.fetch_add(1, Relaxed);
                }
                continue;
            }
            // A checkpoint that was overtaken by other records does not replace those.
            if change.checkpoint && state.logged.is_within(change.logged) {
                state.oldest = Some(start);
            }
            state.oldest.get_or_insert(start);
            state.logged = state.logged.max(change.logged);
        }
    }

    /// The log does not have these records: the next prepare returns them again.
    pub fn abandoned(&self, prepared: Prepared) {
        drop(prepared);
    }

    /// The start of the oldest batch that is needed to spell an unsealed container. `None`: the log holds nothing that is needed here.
    pub fn oldest_needed(&self) -> Option<Position> {
        self.shared.open.read().values().filter_map(|container| container.state.lock().oldest).min()
    }

    fn prepare_containers(&self, open_frames: bool, checkpoint_before: Option<Position>) -> Result<Prepared> {
        let shared = &self.shared;
        if !shared.writable.load(Relaxed) {
            return Err(StorageError::ReadOnly);
        }
        let containers: Vec<_> = shared.open.read().values().cloned().collect();
        let mut targets = Vec::with_capacity(containers.len());
        for container in containers {
            if let Some(target) = self.target(&container, open_frames, checkpoint_before) {
                targets.push(target);
            }
        }
        if !targets.is_empty() {
            shared.settle(&targets)?;
        }
        let mut prepared = Prepared::default();
        for target in targets {
            match target.open {
                OpenPart::Checkpoint(open) => prepared.add_checkpoint(target.container, target.frames, open, shared.options.digest_bytes),
                OpenPart::Data(record, chunks) => {
                    prepared.add(target.container, target.frames, record, chunks, shared.options.digest_bytes)
                }
                OpenPart::Nothing => prepared.add(target.container, target.frames, None, Vec::new(), shared.options.digest_bytes),
            }
        }
        Ok(prepared)
    }

    /// What is to be done for a container; takes the bytes of its open frame as they are now.
    fn target(&self, container: &Arc<OpenContainer>, open_frames: bool, checkpoint_before: Option<Position>) -> Option<Target> {
        let shared = &self.shared;
        let mut state = container.state.lock();
        if checkpoint_before.is_some_and(|position| state.full || state.oldest.is_none_or(|oldest| oldest >= position)) {
            return None;
        }
        // A full frame stays open when it could not be handed over.
        let is_left = state.file.is_some() && state.open.raw.len() >= shared.options.frame_bytes as usize;
        if let Some((number, raw)) = is_left.then(|| state.hand_over()).flatten() {
            drop(state);
            shared.flow.lock().in_flight_bytes += raw.len();
            self.send(Job { container: container.clone(), number, raw });
            state = container.state.lock();
        }
        let frames = state.open_number();
        let first_slot = state.open_first_slot();
        let open = if checkpoint_before.is_some() {
            OpenPart::Checkpoint(OpenChunks {
                frame: frames as u32,
                first_slot: first_slot as u32,
                slots: state.open.slots.clone(),
                raw: state.open.raw.clone(),
            })
        } else if open_frames {
            let known = state.logged.slots.saturating_sub(first_slot);
            let slots = state.open.slots.get(known..).unwrap_or_default();
            let record = slots.first().map(|first| {
                let raw = &state.open.raw[first.offset_bytes as usize..];
                frame_data(container.id, frames as u32, (first_slot + known) as u32, slots, raw, shared.options.digest_bytes)
            });
            OpenPart::Data(record, chunks_of(&container.id, first_slot + known, slots))
        } else {
            OpenPart::Nothing
        };
        Some(Target { container: container.clone(), frames, open })
    }
}

impl Prepared {
    /// Full frames, seal and new chunks of the open frame.
    fn add(
        &mut self,
        container: Arc<OpenContainer>,
        frames: usize,
        data: Option<Record>,
        data_chunks: Vec<(Fingerprint, Address, ChunkKind)>,
        digest_bytes: usize,
    ) {
        let records_before = self.records.len();
        let state = container.state.lock();
        let known = state.logged;
        for frame in state.catalog.frames.iter().take(frames).skip(known.frames) {
            let slots = state.catalog.slots_of(frame);
            self.records.push(frame_committed(container.id, frame, slots, digest_bytes));
            let new = known.slots.saturating_sub(frame.first_slot as usize).min(slots.len());
            self.chunks.extend(chunks_of(&container.id, frame.first_slot as usize + new, &slots[new..]));
        }
        let full_slots = state.catalog.frames.get(frames).map_or(state.catalog.slots.len(), |next| next.first_slot as usize);
        let slots = data_chunks.last().map_or(known.slots.max(full_slots), |(_, address, _)| usize::from(address.slot()) + 1);
        let logged = Cursor { frames, slots };
        let seals = state.full && state.seal == Seal::Synced && state.catalog.frames.len() == frames;
        self.records.extend(data);
        self.chunks.extend(data_chunks);
        if seals {
            self.records.push(ContainerRecord::ContainerSealed { container: container.id }.encode(digest_bytes));
        } else if self.records.len() == records_before && state.oldest.is_none() {
            // The log names every file that is there, so that after a crash those that it does not name can only be newer.
            self.records.push(frame_data(container.id, frames as u32, full_slots as u32, &[], &[], digest_bytes));
        }
        drop(state);
        if self.records.len() > records_before {
            self.changes.push(Change { container, logged, seals, checkpoint: false });
        }
    }

    /// All that the log must know of a container.
    fn add_checkpoint(&mut self, container: Arc<OpenContainer>, frames: usize, open: OpenChunks, digest_bytes: usize) {
        let state = container.state.lock();
        let first_slot = open.first_slot as usize;
        let catalog = Catalog {
            container: container.id,
            frames: state.catalog.frames[..frames].to_vec(),
            slots: state.catalog.slots[..first_slot].to_vec(),
        };
        let known = state.logged.slots;
        drop(state);
        let logged = Cursor { frames, slots: first_slot + open.slots.len() };
        let record = ContainerRecord::ContainerCheckpoint { catalog, open };
        self.chunks.extend(record.chunks().into_iter().skip(known));
        self.records.push(record.encode(digest_bytes));
        self.changes.push(Change { container, logged, seals: false, checkpoint: true });
    }
}

fn chunks_of(container: &crate::ContainerId, first_slot: usize, slots: &[Slot]) -> Vec<(Fingerprint, Address, ChunkKind)> {
    let place = |(at, slot): (usize, &Slot)| (slot.fingerprint, Address::new(*container, (first_slot + at) as u16), slot.kind);
    slots.iter().enumerate().map(place).collect()
}

impl Shared {
    /// Brings the targets' frames into their files, and the files to disk.
    fn settle(&self, targets: &[Target]) -> Result<()> {
        let _settling = self.settling.lock();
        self.write_failed_frames()?;
        self.wait_for_frames(targets)?;
        let mut unsynced = Vec::new();
        let mut folders = BTreeSet::new();
        for target in targets {
            let mut state = target.container.state.lock();
            let Some(file) = state.file.clone() else { continue };
            let complete = state.full && state.pending.is_empty() && state.catalog.frames.len() == target.frames;
            if complete && state.seal == Seal::None {
                self.profile
                    .time(Component::StorageWrite, 0, || state.write_footer(self.options.digest_bytes))
                    .map_err(StorageError::cannot_write)?;
            }
            if state.synced_frames < target.frames || state.seal == Seal::Written {
                if !state.name_synced {
                    folders.insert(parent(&target.container.path).to_owned());
                }
                let synced_bytes: u64 = state.catalog.frames[state.synced_frames..].iter().map(|frame| u64::from(frame.raw_bytes)).sum();
                self.counters.unsynced_bytes.fetch_sub(synced_bytes, Relaxed);
                unsynced.push(Unsynced { container: target.container.clone(), file, frames: state.catalog.frames.len(), seal: state.seal });
            }
        }
        self.profile
            .time(Component::StorageWrite, 0, || {
                sync_all(&unsynced).and_then(|()| folders.iter().try_for_each(|folder| self.ground.sync_directory(folder)))
            })
            .map_err(|error| {
                self.poison(&error.to_string());
                StorageError::Poisoned { why: error.to_string().into() }
            })?;
        for Unsynced { container, frames, seal, .. } in unsynced {
            let mut state = container.state.lock();
            state.name_synced = true;
            state.synced_frames = state.synced_frames.max(frames);
            if seal == Seal::Written {
                state.seal = Seal::Synced;
            }
        }
        Ok(())
    }

    /// Tries failed writes again; writers may go on when they are done.
    fn write_failed_frames(&self) -> Result<()> {
        {
            let mut flow = self.flow.lock();
            flow.check_poison()?;
            if flow.failed.take().is_none() {
                return Ok(());
            }
        }
        let containers: Vec<_> = self.open.read().values().cloned().collect();
        for container in containers {
            let result = container.state.lock().write_failed_again();
            match result {
                Ok(released) => self.release_flow(released),
                Err(source) => {
                    let source = Arc::new(source);
                    self.flow.lock().failed = Some(source.clone());
                    self.flow_changed.notify_all();
                    return Err(StorageError::CannotWrite { source });
                }
            }
        }
        self.flow_changed.notify_all();
        Ok(())
    }

    fn wait_for_frames(&self, targets: &[Target]) -> Result<()> {
        let mut flow = self.flow.lock();
        for target in targets {
            while target.container.state.lock().catalog.frames.len() < target.frames {
                flow.check()?;
                self.flow_changed.wait(&mut flow);
            }
        }
        flow.check_poison()
    }
}

/// A file to be synced, and what of it will be synced then.
struct Unsynced {
    container: Arc<OpenContainer>,
    file: Arc<dyn File>,
    frames: usize,
    seal: Seal,
}

/// Syncs many files, some at a time: the file system then commits its journal once for several.
fn sync_all(files: &[Unsynced]) -> onefold_ground::Result<()> {
    const THREADS: usize = 4;
    if files.len() <= 1 {
        return files.iter().try_for_each(|unsynced| unsynced.file.sync());
    }
    let queue = Mutex::new(files.iter());
    let work = || -> onefold_ground::Result<()> {
        loop {
            let next = queue.lock().next();
            match next {
                Some(unsynced) => unsynced.file.sync()?,
                None => return Ok(()),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..THREADS.min(files.len())).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for thread in threads {
            match thread.join() {
                Ok(joined) => result = result.and(joined),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}
