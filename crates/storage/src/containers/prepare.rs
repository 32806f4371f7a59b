//! Makes containers durable: what to sync, and what the log must hold of them.
//!
//! Every [`Prepared`] starts from what the log is *known* to hold, never from what another one is about to log. So an
//! abandoned one needs no undoing. Two at the same time only say some things twice, which replay allows.
//!
//! In a store with whole files only sealed files are synced: they are put. Of the others the log gets the frames with
//! their bytes. So every container is sealed either by this batch or not at all, as far as the log says.

use crate::components::STORAGE_WRITE;
use crate::containers::job::Job;
use crate::containers::open::{Cursor, OpenContainer, Seal, State};
use crate::containers::records::{ContainerRecord, frame_committed, frame_data, frame_stored};
use crate::containers::store::{ContainerStore, Shared};
use crate::containers::whole::StoredFrames;
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
    /// In a store with whole files, a batch of [`Scope::Everything`] carries at most about 16 MiB: containers are
    /// sealed early if it would be more.
    ///
    /// On [`StorageError::CannotWrite`] nothing is lost and the call may be repeated.
    pub fn prepare(&self, scope: Scope) -> Result<Prepared> {
        let shared = &self.shared;
        if !shared.mode.is_writable() {
            return Err(StorageError::ReadOnly);
        }
        let containers = shared.unsealed.all();
        containers.iter().for_each(|container| self.hand_over_left(container));
        if shared.options.whole_files && scope == Scope::Everything {
            self.close_largest(&containers);
        }
        let targets = self.targets(scope);
        if shared.options.whole_files {
            shared.settle_whole(&targets)?
        } else {
            shared.settle(&targets)?
        }
        let mut prepared = Prepared::default();
        for target in targets {
            let stored = if shared.options.whole_files { Some(shared.frames_to_store(&target)?) } else { None };
            prepared.add(target, stored, shared.options.digest_bytes());
        }
        shared.add_numbers(&mut prepared);
        Ok(prepared)
    }

    /// Returns whether the log has everything that this opening made, once the next batch of [`Scope::Everything`] is
    /// in it: no file is left over that a later opening has to look for.
    pub fn has_settled(&self) -> bool {
        let unsealed: BTreeSet<ContainerId> = self.shared.unsealed.all().iter().map(|container| container.id).collect();
        self.shared.placement.has_settled_all_but(|container| unsealed.contains(&container))
    }

    /// Call when the batch with these records, from `start` to `end`, is durable in the log.
    pub fn committed(&self, prepared: Prepared, start: Position, end: Position) {
        debug_assert!(start <= end);
        self.shared.log_end.set(end);
        self.shared.placement.logged_numbers(&prepared.numbers, start);
        for change in &prepared.changes {
            let mut state = change.container.state.lock();
            if change.seals {
                let catalog = state.catalog.clone();
                drop(state);
                self.shared.placement.settled(std::iter::once(&change.container.id));
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
    ///
    /// In a store with whole files, containers of earlier owners stay as they are: such an owner may have put the
    /// container with more chunks in this frame.
    fn hand_over_left(&self, container: &Arc<OpenContainer>) {
        if self.shared.options.whole_files && !self.shared.placement.is_own(container.id) {
            return;
        }
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
            if self.shared.options.whole_files && scope == Scope::FullFrames {
                // Frames of the others would be sent twice.
                states.retain(|(_, state)| state.full);
            }
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
    /// Adds full frames, the seal, and new chunks of the open frame. In a store with whole files, `stored` are the
    /// bytes of its frames that the log lacks, unless the container is sealed.
    fn add(&mut self, target: Target, stored: Option<StoredFrames>, digest_bytes: usize) {
        let Target { container, frames, data, chunks } = target;
        let records_before = self.records.len();
        let state = container.state.lock();
        if state.is_adopted {
            self.add_adopted(&state, digest_bytes);
            let logged = state.logged;
            drop(state);
            self.changes.push(Change { container, logged, seals: true, checkpoint: false });
            return;
        }
        let known = state.logged;
        let seals = state.seals_with(frames);
        for frame in state.catalog.frames.iter().take(frames).skip(known.frames) {
            let slots = state.catalog.slots_of(frame);
            let new = known.slots.saturating_sub(frame.first_slot as usize).min(slots.len());
            let record = match stored.as_ref().filter(|_| !seals) {
                None => frame_committed(container.id, new as u32, frame, slots, digest_bytes),
                Some(stored) => frame_stored(container.id, new as u32, frame, slots, &stored[&frame.number], digest_bytes),
            };
            self.records.push(record);
            self.raw_bytes += u64::from(frame.raw_bytes);
            self.stored_bytes += u64::from(frame.stored_bytes);
            self.chunks.extend(chunks_of(container.id, frame.first_slot as usize + new, &slots[new..]));
        }
        let full_slots = state.catalog.frames.get(frames).map_or(state.catalog.slots.len(), |next| next.first_slot as usize);
        let slots = chunks.last().map_or(known.slots.max(full_slots), |(_, address, _)| usize::from(address.slot()) + 1);
        let logged = Cursor { frames, slots };
        self.records.extend(data);
        self.chunks.extend(chunks);
        if seals {
            self.add_seal(&state, digest_bytes);
        } else if stored.is_none() && self.records.len() == records_before && state.oldest.is_none() {
            // The log names every file that is there. So after a crash, files that it does not name can only be newer.
            self.records.push(frame_data(container.id, frames as u32, full_slots as u32, &[], &[], digest_bytes));
        }
        drop(state);
        if self.records.len() > records_before {
            self.changes.push(Change { container, logged, seals, checkpoint: false });
        }
    }

    fn add_seal(&mut self, state: &State, digest_bytes: usize) {
        self.records.push(ContainerRecord::ContainerSealed { container: state.catalog.container }.encode(digest_bytes));
        self.sealed.add(state.file.as_ref().and_then(|file| file.len().ok()).unwrap_or_else(|| state.end_bytes()));
    }

    /// Adds the seal of a container whose file somebody else put. The log has all its chunks that anybody may use.
    fn add_adopted(&mut self, state: &State, digest_bytes: usize) {
        let (catalog, known) = (&state.catalog, state.logged);
        for frame in catalog.frames.iter().skip(known.frames) {
            self.raw_bytes += u64::from(frame.raw_bytes);
            self.stored_bytes += u64::from(frame.stored_bytes);
        }
        self.surplus.extend(chunks_of(catalog.container, known.slots, catalog.slots.get(known.slots..).unwrap_or_default()));
        self.add_seal(state, digest_bytes);
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
                in_threads(&unsynced, |unsynced| unsynced.file.sync())
                    .and_then(|()| folders.iter().try_for_each(|folder| self.ground.sync_directory(folder)))
            })
            .map_err(|error| {
                self.flow.poison(&error.to_string());
                StorageError::Poisoned { why: error.to_string().into() }
            })?;
        for Unsynced { container, frames, seal, .. } in unsynced {
            let mut state = container.state.lock();
            state.name_synced = true;
            self.note_synced(&mut state, frames);
            if seal == Seal::Written {
                state.seal = Seal::Synced;
            }
        }
        Ok(())
    }

    /// Brings the targets' frames into their files, and puts the files that are complete.
    fn settle_whole(&self, targets: &[Target]) -> Result<()> {
        let _settling = self.flow.settle_alone();
        self.write_failed_frames()?;
        self.wait_for_frames(targets)?;
        let is_complete = |target: &&Target| {
            let state = target.container.state.lock();
            state.is_complete() && state.catalog.frames.len() == target.frames
        };
        let complete: Vec<_> = targets.iter().filter(is_complete).collect();
        in_threads(&complete, |target| self.put_or_wait(&target.container))?;
        // The batch has all of them: in sealed containers, or with their bytes.
        for target in targets {
            self.note_synced(&mut target.container.state.lock(), target.frames);
        }
        Ok(())
    }

    /// Notes that a prepare has seen to the first frames of a container.
    fn note_synced(&self, state: &mut State, frames: usize) {
        let synced = state.catalog.frames.get(state.synced_frames..frames).unwrap_or_default();
        self.counters.synced(synced.iter().map(|frame| u64::from(frame.raw_bytes)).sum());
        state.synced_frames = state.synced_frames.max(frames);
    }

    /// Returns the bytes of a target's frames that the log has to carry: none if the batch seals the container.
    fn frames_to_store(&self, target: &Target) -> Result<StoredFrames> {
        let (frames, file) = {
            let state = target.container.state.lock();
            if state.seals_with(target.frames) {
                return Ok(StoredFrames::new());
            }
            let unlogged = state.catalog.frames.get(state.logged.frames..target.frames).unwrap_or_default();
            (unlogged.to_vec(), state.file.clone())
        };
        // Others append and read meanwhile. Nothing of what is in the file changes.
        file.map_or(Ok(StoredFrames::new()), |file| self.stored_frames(target.container.id, &frames, &*file))
    }

    /// Adds what the batch has to say, or may say, of used numbers.
    fn add_numbers(&self, prepared: &mut Prepared) {
        let used = self.placement.used_numbers(!prepared.records.is_empty());
        prepared.records.extend(used.iter().map(|used| used.encode()));
        prepared.numbers = used;
    }

    /// Retries failed writes. Writers may go on when they are done.
    pub(crate) fn write_failed_frames(&self) -> Result<()> {
        if !self.flow.take_failure()? {
            return Ok(());
        }
        let containers = self.unsealed.all();
        for container in containers {
            let (result, is_complete) = {
                let mut state = container.state.lock();
                (state.write_failed_again(), state.is_complete())
            };
            match result {
                Ok(released) => {
                    self.flow.release(released);
                    if is_complete && released > 0 && self.options.whole_files {
                        self.puts.add(&container);
                    }
                }
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

/// Does some work with many things, some at a time. With syncs the file system commits its journal once for several.
/// Returns the first error that a thread met, and begins nothing in that thread after it.
pub(crate) fn in_threads<T: Sync, E: Send>(
    things: &[T],
    work: impl Fn(&T) -> std::result::Result<(), E> + Sync,
) -> std::result::Result<(), E> {
    const THREADS: usize = 4;
    if things.len() <= 1 {
        return things.iter().try_for_each(work);
    }
    let queue = Mutex::new(things.iter());
    let work = || -> std::result::Result<(), E> {
        loop {
            let next = queue.lock().next();
            match next {
                Some(thing) => work(thing)?,
                None => return Ok(()),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..THREADS.min(things.len())).map(|_| scope.spawn(work)).collect();
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
