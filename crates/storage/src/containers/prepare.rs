//! Makes containers durable: what to sync, and what the log must hold of them.
//!
//! Every [`Prepared`] starts from what the log is *known* to hold, never from what another one is about to log. So an
//! abandoned one needs no undoing. Two at the same time only say some things twice, which replay allows.

use crate::components::STORAGE_WRITE;
use crate::containers::job::Job;
use crate::containers::open::{Cursor, OpenContainer, Seal, State};
use crate::containers::records::{ContainerRecord, frame_committed, frame_data};
use crate::containers::store::{ContainerStore, Shared};
use crate::{Address, ChunkKind, ContainerId, Prepared, Result, Scope, Slot, StorageError};
use onefold_fingerprint::Fingerprint;
use onefold_ground::{File, parent};
use onefold_oplog::{Position, Record};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the log will have of one container.
#[derive(Debug)]
pub(crate) struct Change {
    container: Arc<OpenContainer>,
    logged: Cursor,
    seals: bool,
    checkpoint: bool,
}

impl Change {
    /// Makes a checkpoint. The container is not sealed until the checkpoint is dropped: a checkpoint behind the seal
    /// would open the container again.
    pub(crate) fn checkpoint(container: Arc<OpenContainer>, state: &mut State, logged: Cursor) -> Change {
        state.checkpoints += 1; // taken back by Drop, which locks the state
        Change { container, logged, seals: false, checkpoint: true }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.checkpoint {
            self.container.state.lock().checkpoints -= 1;
        }
    }
}

/// One container at the moment of the call.
struct Target {
    container: Arc<OpenContainer>,
    /// Frames handed over.
    frames: usize,
    /// The log record FrameData of the open frame's chunks that the log does not have, and these chunks.
    data: Option<Record>,
    chunks: Vec<(Fingerprint, Address, ChunkKind)>,
}

impl ContainerStore {
    /// Makes durable what was appended before the call, as far as `scope` says, except for the log. It waits for frames
    /// on their way, retries failed writes, finishes full containers, and syncs. The caller logs the records next.
    ///
    /// On [`StorageError::CannotWrite`] nothing is lost and the call may be repeated.
    pub fn prepare(&self, scope: Scope) -> Result<Prepared> {
        let shared = &self.shared;
        if !shared.mode.is_writable() {
            return Err(StorageError::ReadOnly);
        }
        let containers = shared.unsealed.all();
        containers.iter().for_each(|container| self.hand_over_left(container));
        let targets = self.targets(scope);
        shared.settle(&targets)?;
        let mut prepared = Prepared::default();
        for target in targets {
            prepared.add(target, shared.options.digest_bytes());
        }
        Ok(prepared)
    }

    /// Call when the batch with these records, from `start` to `end`, is durable in the log.
    pub fn committed(&self, prepared: Prepared, start: Position, end: Position) {
        debug_assert!(start <= end);
        self.shared.log_end.set(end);
        for change in &prepared.changes {
            let mut state = change.container.state.lock();
            if change.seals {
                let catalog = state.catalog.clone();
                drop(state);
                self.shared.caches.keep_catalog(&catalog);
                if self.shared.unsealed.remove(change.container.id) {
                    self.shared.counters.sealed();
                    self.shared.protection.sealed(change.container.id);
                }
                continue;
            }
            // A checkpoint does not replace other records that overtook it.
            if change.checkpoint && state.logged.is_within(change.logged) {
                state.oldest = Some(start);
            }
            state.oldest.get_or_insert(start);
            state.logged = state.logged.max(change.logged);
        }
    }

    /// Call when the log does not have these records. The next prepare returns them again.
    pub fn abandoned(&self, prepared: Prepared) {
        drop(prepared);
    }

    /// Hands over a full frame that stayed open because that was impossible before. Also hands over a sequential
    /// writer's frame that has as much as a small frame: otherwise its bytes would go through the log.
    fn hand_over_left(&self, container: &Arc<OpenContainer>) {
        let mut state = container.state.lock();
        let options = &self.shared.options;
        let is_left = state.file.is_some() && state.open.raw.len() >= options.frame_bytes.min(options.sequential_frame_bytes) as usize;
        if let Some((number, frame)) = is_left.then(|| state.hand_over()).flatten() {
            drop(state);
            self.shared.flow.add(frame.raw.len());
            self.send(Job::new(container, number, frame));
        }
    }

    /// Returns the work for all containers, as of one moment. A metadata chunk refers to chunks that were appended to
    /// other containers before it, and must not become durable without them. So while this looks at the containers,
    /// nobody appends, and no container is added.
    ///
    /// Apart from this, a thread that holds the state of a container asks neither for the state of another nor for the
    /// list of containers.
    fn targets(&self, scope: Scope) -> Vec<Target> {
        self.shared.unsealed.with_all(|containers| {
            let mut states: Vec<_> = containers.map(|container| (container, container.state.lock())).collect();
            states.iter_mut().for_each(|(_, state)| state.end_round());
            states.iter().map(|(container, state)| self.target(container, state, scope)).collect()
        })
    }

    /// Returns the work for a container. Takes the bytes of its open frame as they are now.
    fn target(&self, container: &Arc<OpenContainer>, state: &State, scope: Scope) -> Target {
        let frames = state.open_number();
        let first_slot = state.open_first_slot();
        let mut target = Target { container: container.clone(), frames, data: None, chunks: Vec::new() };
        if scope == Scope::Everything {
            let known = state.logged.slots.saturating_sub(first_slot);
            let slots = state.open.slots.get(known..).unwrap_or_default();
            if let Some(first) = slots.first() {
                let raw = &state.open.raw[first.offset_bytes as usize..];
                let first_slot = first_slot + known;
                let digest_bytes = self.shared.options.digest_bytes();
                target.data = Some(frame_data(container.id, frames as u32, first_slot as u32, slots, raw, digest_bytes));
                target.chunks = chunks_of(container.id, first_slot, slots);
            }
        }
        target
    }
}

impl Prepared {
    /// Adds full frames, the seal, and new chunks of the open frame.
    fn add(&mut self, target: Target, digest_bytes: usize) {
        let Target { container, frames, data, chunks } = target;
        let records_before = self.records.len();
        let state = container.state.lock();
        let known = state.logged;
        for frame in state.catalog.frames.iter().take(frames).skip(known.frames) {
            let slots = state.catalog.slots_of(frame);
            let new = known.slots.saturating_sub(frame.first_slot as usize).min(slots.len());
            self.records.push(frame_committed(container.id, new as u32, frame, slots, digest_bytes));
            self.raw_bytes += u64::from(frame.raw_bytes);
            self.stored_bytes += u64::from(frame.stored_bytes);
            self.chunks.extend(chunks_of(container.id, frame.first_slot as usize + new, &slots[new..]));
        }
        let full_slots = state.catalog.frames.get(frames).map_or(state.catalog.slots.len(), |next| next.first_slot as usize);
        let slots = chunks.last().map_or(known.slots.max(full_slots), |(_, address, _)| usize::from(address.slot()) + 1);
        let logged = Cursor { frames, slots };
        let seals = state.full && state.checkpoints == 0 && state.seal == Seal::Synced && state.catalog.frames.len() == frames;
        self.records.extend(data);
        self.chunks.extend(chunks);
        if seals {
            self.records.push(ContainerRecord::ContainerSealed { container: container.id }.encode(digest_bytes));
            self.sealed.add(state.file.as_ref().and_then(|file| file.len().ok()).unwrap_or_else(|| state.end_bytes()));
        } else if self.records.len() == records_before && state.oldest.is_none() {
            // The log names every file that is there. So after a crash, files that it does not name can only be newer.
            self.records.push(frame_data(container.id, frames as u32, full_slots as u32, &[], &[], digest_bytes));
        }
        drop(state);
        if self.records.len() > records_before {
            self.changes.push(Change { container, logged, seals, checkpoint: false });
        }
    }
}

fn chunks_of(container: ContainerId, first_slot: usize, slots: &[Slot]) -> Vec<(Fingerprint, Address, ChunkKind)> {
    let place = |(at, slot): (usize, &Slot)| (slot.fingerprint, Address::new(container, (first_slot + at) as u16), slot.kind);
    slots.iter().enumerate().map(place).collect()
}

impl Shared {
    /// Brings the targets' frames into their files, and the files to disk.
    fn settle(&self, targets: &[Target]) -> Result<()> {
        let _settling = self.flow.settle_alone();
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
                    .time(&STORAGE_WRITE, 0, || state.write_footer(self.options.digest_bytes()))
                    .map_err(StorageError::cannot_write)?;
            }
            if state.synced_frames < target.frames || state.seal == Seal::Written {
                let is_outgrown = state.page_end_bytes() > u64::from(self.options.container_bytes);
                if state.seal == Seal::None && (is_outgrown || self.options.discards_data) {
                    // What the log names lies within the file, and the file ends with a page. When a file grows, XFS
                    // rewrites the page in which it ended. No frame has its place behind this, so no frame that is
                    // being written is cut.
                    file.set_len(state.page_end_bytes()).map_err(StorageError::cannot_write)?;
                }
                if !state.name_synced {
                    folders.insert(parent(&target.container.path).to_owned());
                }
                unsynced.push(Unsynced { container: target.container.clone(), file, frames: state.catalog.frames.len(), seal: state.seal });
            }
        }
        self.profile
            .time(&STORAGE_WRITE, 0, || {
                sync_all(&unsynced).and_then(|()| folders.iter().try_for_each(|folder| self.ground.sync_directory(folder)))
            })
            .map_err(|error| {
                self.flow.poison(&error.to_string());
                StorageError::Poisoned { why: error.to_string().into() }
            })?;
        for Unsynced { container, frames, seal, .. } in unsynced {
            let mut state = container.state.lock();
            state.name_synced = true;
            let synced = state.catalog.frames.get(state.synced_frames..frames).unwrap_or_default();
            let synced_bytes: u64 = synced.iter().map(|frame| u64::from(frame.raw_bytes)).sum();
            self.counters.synced(synced_bytes);
            state.synced_frames = state.synced_frames.max(frames);
            if seal == Seal::Written {
                state.seal = Seal::Synced;
            }
        }
        Ok(())
    }

    /// Retries failed writes. Writers may go on when they are done.
    pub(crate) fn write_failed_frames(&self) -> Result<()> {
        if !self.flow.take_failure()? {
            return Ok(());
        }
        let containers = self.unsealed.all();
        for container in containers {
            let result = container.state.lock().write_failed_again();
            match result {
                Ok(released) => self.flow.release(released),
                Err(source) => {
                    let source = Arc::new(source);
                    self.flow.fail(source.clone());
                    return Err(StorageError::CannotWrite { source });
                }
            }
        }
        self.flow.retried();
        Ok(())
    }

    fn wait_for_frames(&self, targets: &[Target]) -> Result<()> {
        for target in targets {
            let is_written = || target.container.state.lock().catalog.frames.len() >= target.frames;
            self.flow.wait_until(is_written, || self.write_failed_frames())?;
        }
        self.flow.check_poison()
    }
}

/// A file to sync, and what will be synced of it then.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewChunk, StorageOptions};
    use onefold_ground::profile::Profile;
    use onefold_ground::{Access, SimulatedGround};
    use onefold_oplog::Ownership;
    use std::time::{Duration, Instant};

    fn name(number: u8) -> Fingerprint {
        Fingerprint::from_digest(&[number; 32])
    }

    #[test]
    fn a_commit_looks_at_all_containers_at_one_moment() {
        let ground = Arc::new(SimulatedGround::new(1));
        ContainerStore::create(&*ground, "containers", 1).unwrap();
        let (options, profile) = (StorageOptions::default(), Arc::new(Profile::default()));
        let store = ContainerStore::open(ground, "containers", &Ownership::all(1, 1), options, Access::ReadWrite, profile).unwrap();
        store.recovered(Position(0), Position(0)).unwrap();
        let mut writers = [store.writer(), store.writer()];
        for (number, writer) in writers.iter_mut().enumerate() {
            let chunk = NewChunk { fingerprint: name(number as u8), kind: ChunkKind::Data, data: &[1; 100] };
            writer.append(&[chunk]).unwrap();
        }
        let containers = store.shared.unsealed.all();
        assert_eq!(containers.len(), 2);
        let targets = std::thread::scope(|scope| {
            // The commit has to wait for the last container,
            let last = containers[1].state.lock();
            let commit = scope.spawn(|| store.targets(Scope::Everything));
            let deadline = Instant::now() + Duration::from_secs(10);
            // and keeps all threads from the first one until it has the last.
            while !containers[0].state.is_locked() {
                assert!(Instant::now() < deadline, "the commit has looked at the first container already, and others append to it");
                std::thread::yield_now();
            }
            for _ in 0..1000 {
                assert!(containers[0].state.is_locked(), "somebody may append to the first container before the last one is looked at");
                assert!(store.shared.unsealed.is_locked(), "somebody may add a container");
                std::thread::yield_now();
            }
            drop(last);
            commit.join().unwrap()
        });
        let chunks: Vec<_> = targets.iter().flat_map(|target| &target.chunks).map(|(name, _, _)| *name).collect();
        assert_eq!(chunks, [name(0), name(1)]);
    }
}
