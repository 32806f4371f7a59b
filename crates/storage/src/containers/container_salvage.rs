//! Closes containers when the log that describes them is given up (`docs/decisions/0021-salvage.md`).
//!
//! An unsealed container has its catalog, and the chunks of its open frame, in the log only. When the log is damaged,
//! all containers that it describes are sealed with what its valid records say. So the new log need not know of them,
//! and none of their addresses is given out again.
//!
//! The records of a damaged log may be older than the files. Since then a container may have been sealed, been merged,
//! or got more frames. So
//! * a container that can be read as it is, or that has a forward, is left alone;
//! * nothing that a file has behind the known frames is overwritten: catalog and footer go behind its end;
//! * every frame is read first. Chunks of unreadable frames are reported and no longer stored. If nothing is left,
//!   there is no container.

use crate::containers::file;
use crate::containers::open::{OpenContainer, PAGE_BYTES, State, catalog_and_footer};
use crate::containers::recovery::Unnamed;
use crate::containers::store::{ContainerStore, Shared};
use crate::{Codec, ContainerId, FOOTER_BYTES, Frame, HEADER_BYTES, Header, Result, StorageError};
use onefold_ground::{Access, checksum, parent};
use onefold_oplog::Position;
use std::collections::BTreeSet;

/// What happened to the containers that the log described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Containers that were not sealed before and are now, with the number of their chunks.
    pub sealed: Vec<(ContainerId, usize)>,
    /// Of these: containers of which only a first part is known, and why.
    pub cut: Vec<(ContainerId, String)>,
    /// Of the sealed ones: chunks in frames that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Containers of which nothing can be read, with the number of chunks that they are known to have had. Unsealed
    /// files of theirs are set aside.
    pub gone: Vec<(ContainerId, usize)>,
    /// Unsealed files that no valid record names: their content is no longer known.
    pub unknown: Vec<ContainerId>,
}

/// Chunks that are in the catalog of a container but cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The container.
    pub container: ContainerId,
    /// Their slots and lengths, bytes.
    pub slots: Vec<(usize, u32)>,
    /// Sum of the lengths of all chunks of the container, bytes.
    pub of_bytes: u64,
}

impl ContainerStore {
    /// Returns the greatest owner epoch and the furthest log position that headers of container files name. The epochs
    /// of partitions count too.
    pub fn furthest(&self) -> Result<(u64, Position)> {
        let mut furthest = (self.shared.owners.greatest_epoch(&*self.shared.ground, &self.shared.directory)?, Position(0));
        for container in self.shared.list(file::number, &|_| 0)?.iter() {
            if let Ok(header) = self.shared.check_header(container) {
                furthest = (furthest.0.max(header.epoch), furthest.1.max(Position(header.created)));
            }
        }
        Ok(furthest)
    }

    /// Checks that the records replayed so far describe every unsealed container.
    pub fn check_spelled(&self) -> Result<()> {
        for container in self.shared.unsealed.all() {
            if let Some(why) = &container.state.lock().broken {
                return Err(StorageError::Log { container: container.id, why: why.clone() });
            }
        }
        Ok(())
    }

    /// Ends a replay of what is left of a damaged log that starts at `log_start`. Call it in place of
    /// [`recovered`](Self::recovered), in a store that was opened for reading, and open the store again afterwards.
    ///
    /// It seals every container that the log describes, as the owner of `epoch`. It moves files that the log does not
    /// describe into the directory `aside`. Durable on return; may be repeated.
    ///
    /// With `dry_run` it changes nothing and returns what would be done. Before the real run, the caller ensures that
    /// [unreadable](Closed::unreadable) chunks do not count as stored.
    pub fn close_damaged(&self, epoch: u64, log_start: Position, aside: &str, dry_run: bool) -> Result<Closed> {
        let shared = &self.shared;
        if shared.options.whole_files {
            // Their files exist only in this process: nothing is changed by that.
            let stored = shared.replay.recovery.lock().as_mut().map(|recovery| std::mem::take(&mut recovery.stored));
            shared.restore_files(stored.unwrap_or_default(), true)?;
        }
        let mut closed = Closed::default();
        let (mut folders, mut set_aside) = (BTreeSet::new(), Vec::new());
        for container in shared.unsealed.all() {
            let state = container.state.lock();
            if shared.is_forwarded(container.id)? || shared.is_readable(container.id)? {
                continue;
            }
            let (slots, unreadable) = (state.slots(), shared.unreadable_slots(&state)?);
            if unreadable.len() == slots.len() {
                // A container that was sealed may still be rebuilt from others of its group, so its file stays.
                let has_file = shared.ground.exists(&container.path)?;
                set_aside.extend((has_file && !shared.was_sealed(container.id)?).then_some(container.id));
                closed.gone.extend((has_file || !slots.is_empty()).then_some((container.id, slots.len())));
                continue;
            }
            closed.sealed.push((container.id, slots.len()));
            closed.cut.extend(state.broken.clone().map(|why| (container.id, why)));
            if !unreadable.is_empty() {
                let of_bytes = slots.iter().map(|slot| u64::from(slot.length_bytes)).sum();
                closed.unreadable.push(Unreadable { container: container.id, slots: unreadable, of_bytes });
            }
            if !dry_run {
                shared.seal_damaged(&container, &state, epoch)?;
                folders.insert(parent(&container.path).to_owned());
            }
        }
        shared.sync_folders(&folders)?;
        for container in shared.list(file::number, &|_| 0)?.iter() {
            let is_spelled = shared.unsealed.contains(container);
            if !is_spelled
                && !shared.is_forwarded(container)?
                && !shared.was_sealed(container)?
                && shared.unnamed(container, log_start)? != Unnamed::Committed
            {
                closed.unknown.push(container);
            }
        }
        if !dry_run {
            set_aside.extend(&closed.unknown);
            shared.move_aside(&set_aside, aside)?;
            // Numbers that only lost records name must not be given out again: a folder uses up all numbers before it.
            for (partition, highest) in shared.replay.end() {
                let above = file::folder_above(&shared.directory, ContainerId::new(partition, highest.max(1)));
                above.map_or(Ok(()), |folder| shared.ground.create_directory(&folder))?;
            }
        }
        Ok(closed)
    }
}

impl Shared {
    /// Returns whether a container has a file with a whole catalog. Either it was sealed, and the record of that is
    /// lost; or an earlier run of this got so far.
    fn is_readable(&self, container: ContainerId) -> Result<bool> {
        match self.read_catalog(container) {
            Ok(_) => Ok(true),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the slots whose frames cannot be read from the file, with the lengths of their chunks.
    fn unreadable_slots(&self, state: &State) -> Result<Vec<(usize, u32)>> {
        let mut slots = Vec::new();
        for frame in &state.catalog.frames {
            let read = self
                .read_stored(state.catalog.container, Some(frame.number), u64::from(frame.offset_bytes), frame.stored_bytes as usize)
                .and_then(|stored| self.unpack(state.catalog.container, frame, &stored));
            match read {
                Ok(_) => {}
                Err(error) if error.is_damage() => {
                    let first = frame.first_slot as usize;
                    let of_frame = state.catalog.slots_of(frame).iter().enumerate();
                    slots.extend(of_frame.map(|(at, slot)| (first + at, slot.length_bytes)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(slots)
    }

    /// Writes the open frame, the catalog and the footer behind everything that the file has.
    fn seal_damaged(&self, container: &OpenContainer, state: &State, epoch: u64) -> Result<()> {
        let id = container.id;
        self.ground.create_directory(parent(&container.path))?;
        let exists = self.ground.exists(&container.path)?;
        let file = if exists { self.ground.open(&container.path, Access::ReadWrite)? } else { self.ground.create(&container.path)? };
        match self.check_header(id) {
            Ok(_) => {}
            Err(error) if error.is_damage() => {
                let header = Header {
                    digest_bytes: self.options.digest_bytes() as u8,
                    container: id,
                    store: self.options.store,
                    epoch,
                    created: 0,
                    merged: false,
                };
                file.write_at(0, &header.encode())?;
            }
            Err(error) => return Err(error),
        }
        // Behind the known frames there may be others, whose records are lost. None of their pages is written again:
        // after each commit the file ends with a page, or within a page that has nothing committed. XFS writes that one
        // again.
        let mut end = state.end_bytes().max(file.len()?).next_multiple_of(PAGE_BYTES);
        let mut catalog = (*state.catalog).clone();
        if !state.open.slots.is_empty() {
            let raw = &state.open.raw;
            let frame = Frame {
                number: catalog.frames.len() as u32,
                first_slot: catalog.slots.len() as u32,
                slots: state.open.slots.len() as u32,
                offset_bytes: u32::try_from(end).map_err(|_| self.damaged(id, None, None, "the file is too long"))?,
                stored_bytes: raw.len() as u32,
                raw_bytes: raw.len() as u32,
                codec: Codec::Plain,
                checksum: checksum(raw),
            };
            file.write_at(end, raw)?;
            end = frame.end_bytes();
            catalog.push(frame, &state.open.slots);
        }
        let tail = catalog_and_footer(&catalog, end, None, self.options.digest_bytes());
        file.write_at(end, &tail)?;
        file.set_len(end + tail.len() as u64)?;
        file.sync()?;
        self.caches.forget_file(id);
        // The log that described the container goes once this is right. So the file is read as everybody else will read
        // it.
        if self.read_catalog(id)? == catalog { Ok(()) } else { Err(self.damaged(id, None, None, "its bytes differ from those written")) }
    }

    /// Returns whether a merge has put a forward in the place of the container's file, or beside it.
    pub(crate) fn is_forwarded(&self, container: ContainerId) -> Result<bool> {
        Ok(self.ground.exists(&file::forward_path(&self.directory, container))?)
    }

    /// Returns whether a file was sealed, though it may have been damaged since: it ends with a footer, or something
    /// like one.
    fn was_sealed(&self, container: ContainerId) -> Result<bool> {
        let file = self.file_for_reading(container)?;
        let length = file.len()?;
        let mut footer = [0; FOOTER_BYTES];
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Ok(false);
        }
        Ok(file.read_at(length - FOOTER_BYTES as u64, &mut footer).is_err() || file::resembles_footer(&footer))
    }

    fn move_aside(&self, containers: &[ContainerId], aside: &str) -> Result<()> {
        if containers.is_empty() {
            return Ok(());
        }
        self.ground.create_directory(aside)?;
        let mut folders = BTreeSet::new();
        for container in containers {
            let path = file::path(&self.directory, *container);
            self.ground.rename(&path, &format!("{aside}/container-{:04x}-{:08x}", container.partition(), container.number()))?;
            self.caches.forget_file(*container);
            folders.insert(parent(&path).to_owned());
        }
        self.ground.sync_directory(aside)?;
        self.sync_folders(&folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkKind, NewChunk, Scope, StorageOptions};
    use onefold_fingerprint::Algorithm;
    use onefold_ground::profile::Profile;
    use onefold_ground::{CrashPolicy, Ground, SimulatedGround};
    use onefold_oplog::{Ownership, Record};
    use std::sync::Arc;

    const OPTIONS: fn() -> StorageOptions =
        || StorageOptions { container_bytes: 64 << 10, frame_bytes: 2 << 10, workers: 1, ..StorageOptions::default() };

    fn open(ground: &SimulatedGround, access: Access) -> Arc<ContainerStore> {
        ContainerStore::open(Arc::new(ground.clone()), "containers", &Ownership::all(1, 1), OPTIONS(), access, Arc::new(Profile::default()))
            .unwrap()
    }

    /// A container of several flushes, unsealed, and the records of each flush.
    fn written() -> (SimulatedGround, Vec<Vec<Record>>, Vec<Vec<u8>>) {
        let ground = SimulatedGround::new(1);
        ContainerStore::create(&ground, "containers", 1).unwrap();
        let store = open(&ground, Access::ReadWrite);
        store.recovered(Position(0), Position(0)).unwrap();
        let mut writer = store.writer();
        let (mut batches, mut chunks) = (Vec::new(), Vec::new());
        for flush in 0..6u64 {
            let chunk: Vec<u8> = (0..1500u64).map(|at| (at.wrapping_mul(flush + 7) >> 2) as u8).collect();
            writer.append(&[NewChunk { fingerprint: Algorithm::Blake3.fingerprint(&chunk), kind: ChunkKind::Data, data: &chunk }]).unwrap();
            chunks.push(chunk);
            let prepared = store.prepare(Scope::Everything).unwrap();
            batches.push(prepared.records.clone());
            store.committed(prepared, Position(flush * 512), Position(flush * 512 + 512));
        }
        drop((writer, store));
        (ground.restart(CrashPolicy::KeepAll), batches, chunks)
    }

    /// Salvages with the batches that are left. Returns the chunks that can be read then.
    fn salvage(ground: &SimulatedGround, batches: &[Vec<Record>], left: impl Fn(usize) -> bool) -> (Closed, Vec<Vec<u8>>) {
        let mut closed = Closed::default();
        for dry_run in [true, false, false] {
            let store = open(ground, Access::Read);
            for (at, batch) in batches.iter().enumerate().filter(|(at, _)| left(*at)) {
                batch.iter().for_each(|record| store.replay(Position(at as u64 * 512), record).unwrap());
            }
            let found = store.close_damaged(2, Position(0), "aside", dry_run).unwrap();
            if closed == Closed::default() {
                closed = found;
            } else if dry_run {
                assert_eq!(closed, found);
            }
        }
        let store = open(ground, Access::ReadWrite);
        store.recovered(Position(1 << 20), Position(1 << 20)).unwrap();
        let mut read = Vec::new();
        for container in store.containers().unwrap().iter() {
            assert!(store.verify_container(container, true, None).unwrap().damage.is_empty());
            for (address, slot) in store.slots(container).unwrap() {
                let mut out = Vec::new();
                store.load(&[(address, slot.fingerprint)], &mut out).unwrap();
                read.push(out[0].to_vec());
            }
        }
        // The next container has a number that no lost record can name.
        let mut writer = store.writer();
        let chunk = b"another".as_slice();
        let fingerprint = Algorithm::Blake3.fingerprint(chunk);
        let address = writer.append(&[NewChunk { fingerprint, kind: ChunkKind::Data, data: chunk }]).unwrap();
        assert!(address[0].container().number() > 4095);
        (closed, read)
    }

    #[test]
    fn a_container_that_the_log_spells_is_sealed_with_all_its_chunks() {
        let (ground, batches, chunks) = written();
        let (closed, read) = salvage(&ground, &batches, |_| true);
        assert_eq!(closed, Closed { sealed: vec![(ContainerId::new(0, 1), 6)], ..Closed::default() });
        assert_eq!(read, chunks);
    }

    #[test]
    fn what_is_before_a_hole_is_kept_and_what_is_not_spelled_is_set_aside() {
        let mut cut = 0;
        for hole in 0..5 {
            let (ground, batches, chunks) = written();
            let (closed, read) = salvage(&ground, &batches, |at| at != hole);
            assert_eq!(closed.sealed.len(), 1);
            // A later record of a whole frame may repeat what the lost one said of it.
            assert!(if closed.cut.is_empty() { read == chunks } else { read.len() <= hole + 1 && chunks.starts_with(&read) }, "{hole}");
            cut += closed.cut.len();
        }
        assert!(cut > 0);
        let (ground, batches, _) = written();
        let (closed, read) = salvage(&ground, &batches, |_| false);
        assert_eq!((closed.unknown, read), (vec![ContainerId::new(0, 1)], vec![]));
        assert!(ground.exists("aside/container-0000-00000001").unwrap());
    }

    const PATH: &str = "containers/0000/00000/00000001";

    /// Replays `batches` and closes.
    fn close(ground: &SimulatedGround, batches: &[Vec<Record>], log_start: Position, dry_run: bool) -> Closed {
        let store = open(ground, Access::Read);
        batches.iter().flatten().for_each(|record| store.replay(Position(0), record).unwrap());
        store.close_damaged(2, log_start, "aside", dry_run).unwrap()
    }

    #[test]
    fn nothing_behind_the_frames_that_are_known_is_overwritten_when_the_end_of_the_log_is_lost() {
        let (ground, batches, chunks) = written();
        let before = onefold_ground::read_file(&ground, PATH, 1 << 20).unwrap();
        let (closed, read) = salvage(&ground, &batches, |at| at < 3);
        assert_eq!((closed.sealed.len(), closed.cut.len()), (1, 0));
        assert!(read.len() >= 3 && chunks.starts_with(&read));
        let after = onefold_ground::read_file(&ground, PATH, 1 << 20).unwrap();
        assert!(after.starts_with(&before) && after.len() > before.len());
    }

    #[test]
    fn a_drive_that_loses_the_sectors_it_was_writing_takes_no_committed_frame_along() {
        for operation in 0.. {
            let (ground, batches, chunks) = written();
            // All that the store wrote is durable, and the file ends with the page of a frame, as a commit leaves it.
            let file = ground.open(PATH, Access::ReadWrite).unwrap();
            let replayed = open(&ground, Access::Read);
            batches.iter().flatten().for_each(|record| replayed.replay(Position(0), record).unwrap());
            let end = replayed.shared.unsealed.all()[0].state.lock().end_bytes();
            assert!(!end.is_multiple_of(4096));
            file.set_len(end.next_multiple_of(4096)).unwrap();
            file.sync().unwrap();
            ground.sync_directory("containers/0000/00000").unwrap();
            ground.crash_after_operations(operation);
            let closed = replayed.close_damaged(2, Position(0), "aside", false);
            let ground = ground.restart(CrashPolicy::LoseSectors { sector_bytes: 4096 });
            assert_eq!(salvage(&ground, &batches, |_| true).1, chunks, "{operation}");
            if closed.is_ok() {
                break;
            }
        }
    }

    #[test]
    fn no_file_is_made_for_a_container_that_a_merge_replaced_or_removed_in_the_lost_part_of_the_log() {
        for forwarded in [true, false] {
            let (ground, batches, _) = written();
            ground.remove(PATH).unwrap();
            let forward = format!("{PATH}.forward");
            if forwarded {
                ground.create(&forward).unwrap();
            }
            // The first batches describe frames, of which nothing is left.
            let frames_only: Vec<Vec<Record>> =
                batches.iter().map(|batch| batch.iter().filter(|record| record.kind == 1).cloned().collect()).collect();
            let closed = close(&ground, &frames_only, Position(0), false);
            assert!(closed.sealed.is_empty() && closed.gone.is_empty() == forwarded, "{closed:?}");
            assert!(!ground.exists(PATH).unwrap());
        }
    }

    #[test]
    fn chunks_in_frames_that_cannot_be_read_are_told_and_the_others_are_kept() {
        let (ground, batches, _) = written();
        ground.corrupt(PATH, HEADER_BYTES as u64 + 10, 0x40).unwrap();
        let planned = close(&ground, &batches, Position(0), true);
        let closed = close(&ground, &batches, Position(0), false);
        assert_eq!(planned, closed);
        let [unreadable] = &closed.unreadable[..] else { panic!("{closed:?}") };
        assert_eq!((unreadable.container, unreadable.of_bytes), (ContainerId::new(0, 1), 6 * 1500));
        assert!(!unreadable.slots.is_empty() && unreadable.slots.len() < 6 && unreadable.slots.iter().all(|(_, length)| *length == 1500));
        let store = open(&ground, Access::ReadWrite);
        store.recovered(Position(1 << 20), Position(1 << 20)).unwrap();
        for (number, (address, slot)) in store.slots(ContainerId::new(0, 1)).unwrap().into_iter().enumerate() {
            let is_read = store.load(&[(address, slot.fingerprint)], &mut Vec::new()).is_ok();
            assert_eq!(is_read, !unreadable.slots.iter().any(|(slot, _)| *slot == number));
        }
    }

    #[test]
    fn a_file_without_footer_that_is_older_than_the_log_stays() {
        let (ground, _, _) = written();
        let closed = close(&ground, &[], Position(512), false);
        assert_eq!((closed, ground.exists(PATH).unwrap()), (Closed::default(), true));
    }
}
