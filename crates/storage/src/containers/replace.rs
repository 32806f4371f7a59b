//! Finishes a merge that is in the log: puts forwards in the place of old files (M0.20). Until then the merge holds
//! what `merging.rs` describes.
//!
//! # Why a crash loses nothing
//! The log has the record before any file changes, and keeps it until all have changed. So recovery knows all ids
//! concerned and repeats the steps, whichever were done. It does so only if the merged container can be read. If it
//! finds that container damaged, the old files stay.
//!
//! The *victims* of a merge are containers with files of their own. A victim may be a merged container itself: then the
//! forwards of its homes lead to it. [`Shared::replace`] takes these steps:
//! 1. Parity that counts on one of the victims is replaced, durably (`groups.rs`).
//! 2. Files without a needed chunk go: victims that were never merged and that the record calls removed, and forwards
//!    of dead homes. Nothing leads to them, so the order does not matter. This needs no space, and on a full disk it
//!    frees the space for step 3.
//! 3. A forward to the merged container is written for every id that lives on: written beside, synced, renamed, and
//!    then its folder synced.
//! 4. The other victims go. This includes merged ones, which the record calls removed although other ids found needed
//!    chunks in them until step 3.
//! 5. Folders are synced, and only then is the record released.
//!
//! At each moment the durable files answer for every needed chunk without any help from the log:
//! * *Before 3 is durable*, an id answers with its own file, or its forward leads to the old merged container. Both are
//!   there until 4. A forward that was already renamed leads to the new merged container, which was synced before the
//!   record was written.
//! * *After 3 is durable*, every id has a forward to the new container. An own file that 4 did not remove yet comes
//!   first, and has the same chunks.
//!
//! A killed process may leave names as they are in memory but not on the device. So an opening for writing first syncs
//! the folders that records name. Only then does it look which steps are done (`recovery.rs`): what it sees cannot
//! change back when the power fails later. Two merges in the log never touch the same files at once. The later one took
//! its victims when the files of the earlier one were replaced.
//!
//! # Merges in doubt
//! If writing the record of a merge failed, the log may have it, and the next opening may find it. So its files and its
//! hold on the log stay. (Without the new file, the next opening would keep the old ones. But the batch of the record
//! deletes their dead slots, so removed chunks would count as stored.) Once the log takes another batch, no opening
//! finds the failed one any more. Then the merge is given up, and its containers may be merged again.

use crate::containers::file;
use crate::containers::forward::Forward;
use crate::containers::merge::Merge;
use crate::containers::merging::{Claim, Replacement};
use crate::containers::prepare::in_threads;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, HEADER_BYTES, Header, Result, StorageError};
use onefold_ground::{Access, Bucket, GroundError, Put, parent};
use onefold_oplog::Position;
use std::collections::BTreeSet;
use std::io;

/// Forwards written before the first of them is synced. All their files are open together.
const FORWARDS_AT_ONCE: usize = 64;
/// How often a put of a forward looks at one that somebody else put meanwhile.
const FORWARD_TRIES: usize = 16;
/// Bytes of a damaged forward that a put still replaces.
const FORWARD_LIMIT_BYTES: u64 = 1 << 20;

impl ContainerStore {
    /// Call when the batch with the record of the merge, from `start` to `end`, is durable in the log. Readers find the
    /// chunks in the new container from now on, and the files are replaced. If some of that fails (a full disk), it is
    /// not lost: [`finish_merges`](Self::finish_merges) retries it, and so does the next opening.
    pub fn merged(&self, merge: Merge, start: Position, end: Position) {
        self.merge_logged(merge, start, end);
        self.shared.finish_or_warn();
    }

    /// Does the first half of [`merged`](Self::merged), which writes nothing. The other half is
    /// [`finish_merges`](Self::finish_merges).
    pub fn merge_logged(&self, merge: Merge, start: Position, end: Position) {
        let shared = &self.shared;
        shared.log_end.reach(end);
        let Merge { mut claim, target, forwarded, removed, .. } = merge;
        shared.merging.logged(&mut claim, start);
        let replacement = Replacement { claim, target, forwarded, removed };
        shared.switch(&replacement);
        target.iter().for_each(|target| shared.placement.named(*target));
        shared.placement.settled(target.iter());
        target.iter().for_each(|target| shared.protection.sealed(*target));
        shared.merging.add_pending(replacement);
    }

    /// Call when the log does not have the record of the merge and never will. Removes the new file; the old containers
    /// may be merged again.
    pub fn abandon_merge(&self, merge: Merge) {
        self.shared.give_up(merge.claim);
    }

    /// Call when writing the record of the merge failed, so the log may or may not have it. As soon as the log takes
    /// another batch, it does not ([`Log::commit`](onefold_oplog::Log::commit)), and
    /// [`finish_merges`](Self::finish_merges) gives the merge up. If it takes none, the next opening finds out.
    pub fn doubt_merge(&self, merge: Merge) {
        self.shared.merging.add_doubtful(merge.claim, self.shared.log_end.get());
    }

    /// Returns whether some merges are in doubt until the log takes another batch.
    pub fn has_doubtful_merges(&self) -> bool {
        self.shared.merging.has_doubtful(self.shared.log_end.get())
    }

    /// Replaces the files of merges in the log that could not be replaced before. Does nothing if there are none.
    pub fn finish_merges(&self) -> Result<()> {
        self.shared.finish_merges()
    }

    /// Rewrites the forwards of `containers`, which are missing or damaged. They lead to the merged container `target`,
    /// which has their chunks. Durable on return.
    pub fn repair_forwards(&self, containers: &[ContainerId], target: ContainerId) -> Result<()> {
        let shared = &self.shared;
        shared.check_repairable()?;
        let _one = shared.merging.hold_files();
        if shared.rehearse_forwards(containers, target) {
            return Ok(());
        }
        let mut folders = BTreeSet::new();
        for container in containers {
            shared.ground.create_directory(&file::folder(&shared.directory, *container)).map_err(StorageError::cannot_write)?;
        }
        shared.write_forwards(containers, target, &mut folders)?;
        shared.sync_folders(&folders)?;
        shared.forwards.forget(containers.iter());
        shared.retire(containers.iter());
        Ok(())
    }

    /// Does some work while no file is on its way to its place: no forward, and no file of a repair or of parity.
    pub fn between_placements<T>(&self, work: impl FnOnce() -> T) -> T {
        let _no_parity = self.shared.protection.make_alone();
        let _nothing_else = self.shared.merging.hold_files();
        work()
    }

    /// Keeps the number of a container from ever being given out again, though its file is lost or may go. Durable on
    /// return.
    pub fn keep_number(&self, container: ContainerId) -> Result<()> {
        self.shared.keep_number(container)
    }

    /// Returns whether merges wait for [`finish_merges`](Self::finish_merges).
    pub fn has_pending_merges(&self) -> bool {
        self.shared.merging.has_pending(self.shared.log_end.get())
    }

    /// Returns the start of the oldest batch that is needed here; `None`: the log holds nothing that is needed. It is
    /// needed
    /// * to describe an unsealed container,
    /// * to tell that a file was never committed, or
    /// * to replace the files of merged containers.
    pub fn oldest_needed(&self) -> Option<Position> {
        self.shared.merging.oldest_log().into_iter().chain(self.shared.oldest_of_open()).min()
    }

    /// Returns up to where the log may be trimmed, at most to `target`. The headers of files created later say so.
    pub fn trim_point(&self, target: Position) -> Position {
        self.shared.merging.trim(target, || self.shared.oldest_of_open())
    }
}

impl Shared {
    fn finish_merges(&self) -> Result<()> {
        let _one_at_a_time = self.merging.hold_files();
        self.merging.settled(self.log_end.get()).into_iter().for_each(|claim| self.set_aside(claim));
        let mut result = Ok(());
        // No two of them concern the same files. On a full disk one may free the space that another needs.
        for next in self.merging.pending() {
            self.flow.check_poison()?;
            match self.replace(&next) {
                Ok(()) => self.replaced(&next),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn replaced(&self, replacement: &Replacement) {
        self.forwards.set_done(replacement.ids());
        // A reader that opened one of the files before it went has put it into the cache by now, or never will.
        self.retire(replacement.ids());
        self.placement.settled(replacement.ids());
        self.merging.replaced(replacement);
    }

    pub(crate) fn finish_or_warn(&self) {
        if let Err(error) = self.finish_merges() {
            tracing::warn!(%error, "files of merged containers could not be replaced; will retry");
        }
    }

    /// Takes containers for a merge.
    pub(crate) fn claim(&self, victims: &[ContainerId]) -> Result<Claim> {
        self.merging.claim(victims, |victim| {
            // Asked under the lock of claims. So whoever leaves a partition waits for this merge, or refuses it.
            if !self.placement.takes(victim.partition()) {
                return Ok(Some("is in a partition of another owner, or goes to one"));
            }
            if self.unsealed.contains(victim) {
                return Ok(Some("is not sealed"));
            }
            Ok((self.stable(|| self.answering(victim))? != victim).then_some("is already merged"))
        })
    }

    /// Returns a position at or before the end of the log, for the header of a new file. The log is not trimmed past it
    /// until the claim is released.
    pub(crate) fn hold_log(&self, claim: &Claim) -> Position {
        self.merging.hold_log(claim, || self.log_end.get())
    }

    /// Releases the hold of a merge that will not be in the log. Its file, if there is one, goes first.
    pub(crate) fn give_up(&self, claim: Claim) {
        self.set_aside(claim);
        self.finish_or_warn();
    }

    /// Does the first half of [`give_up`](Self::give_up), which writes nothing.
    fn set_aside(&self, claim: Claim) {
        let Some(target) = claim.unlogged_file() else {
            self.placement.settled(claim.target().iter());
            return self.merging.release(&claim);
        };
        let replacement = Replacement { claim, target: None, forwarded: Vec::new(), removed: vec![target] };
        self.switch(&replacement);
        self.merging.add_pending(replacement);
    }

    /// Makes readers find chunks where the log says that they are.
    fn switch(&self, replacement: &Replacement) {
        let forwarded = replacement.forwarded.iter().map(|id| (*id, replacement.target));
        self.forwards.set_logged(forwarded.chain(replacement.removed.iter().map(|id| (*id, None))));
        self.retire(replacement.ids());
    }

    /// Takes over a merge that the log, which starts at `log_start`, has from before this opening. With `writable`,
    /// [`Shared::finish_merges`] will replace its files. Otherwise only readers learn of it.
    pub(crate) fn resume(&self, log_start: Position, target: Option<ContainerId>, ids: [Vec<ContainerId>; 2], writable: bool) {
        self.merging.resume(writable.then_some(log_start), target, ids, |replacement| self.switch(replacement));
    }

    /// Replaces the files. May be repeated, even after it came only half-way.
    fn replace(&self, replacement: &Replacement) -> Result<()> {
        let Replacement { claim, target, forwarded, removed } = replacement;
        // A file that the log never knew: its number may be given out again.
        if target.is_none() && !claim.has_file {
            self.keep_numbers(removed)?;
        }
        self.leave_parity(replacement.ids())?;
        let mut folders = BTreeSet::new();
        let mut victims = forwarded.clone();
        for id in removed {
            self.remove_if_there(&file::forward_path(&self.directory, *id), &mut folders)?;
            if target.is_some() && self.may_answer_for_others(*id)? {
                victims.push(*id);
            } else {
                self.remove_if_there(&file::path(&self.directory, *id), &mut folders)?;
            }
        }
        if let Some(target) = target {
            forwarded.chunks(FORWARDS_AT_ONCE).try_for_each(|some| self.write_forwards(some, *target, &mut folders))?;
        }
        self.sync_folders(&folders)?;
        folders.clear();
        for id in victims {
            self.remove_if_there(&file::path(&self.directory, id), &mut folders)?;
        }
        self.sync_folders(&folders)
    }

    /// Returns whether a container is a merged one, so forwards may lead to it. Also returns `true` if its header
    /// cannot be read.
    fn may_answer_for_others(&self, id: ContainerId) -> Result<bool> {
        let file = match self.ground.open(&file::path(&self.directory, id), Access::Read) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut header = [0; HEADER_BYTES];
        Ok(file.read_at(0, &mut header).is_err() || Header::decode(&header).map_or(true, |header| header.merged))
    }

    pub(crate) fn remove_if_there(&self, path: &str, folders: &mut BTreeSet<String>) -> Result<()> {
        match self.ground.remove(path) {
            Ok(()) => drop(folders.insert(parent(path).to_owned())),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(StorageError::cannot_write(error)),
        }
        Ok(())
    }

    /// Puts whole forwards in their places. They are durable when their folders are synced. All are written before the
    /// first is synced, so that the syncs find the work done or do it together. Each gets its name only when its
    /// content is durable.
    fn write_forwards(&self, containers: &[ContainerId], target: ContainerId, folders: &mut BTreeSet<String>) -> Result<()> {
        if self.options.whole_files
            && let Some(bucket) = self.ground.bucket()
        {
            return in_threads(containers, |container| self.put_forward(&*bucket, *container, target));
        }
        let mut written = Vec::with_capacity(containers.len());
        for container in containers {
            let path = file::forward_path(&self.directory, *container);
            folders.insert(parent(&path).to_owned());
            if matches!(self.read_forward(*container), Ok(Some(found)) if found == target) {
                continue;
            }
            let temporary = format!("{path}.new");
            self.remove_if_there(&temporary, folders)?;
            let bytes = Forward { container: *container, target, store: self.options.store }.encode();
            let file = self.ground.create(&temporary).map_err(StorageError::cannot_write)?;
            file.write_at(0, &bytes).map_err(StorageError::cannot_write)?;
            file.start_writeback(0, bytes.len() as u64);
            written.push((file, temporary, path));
        }
        for (file, _, _) in &written {
            file.sync().map_err(StorageError::cannot_write)?;
        }
        for (_, temporary, path) in &written {
            self.ground.rename(temporary, path).map_err(StorageError::cannot_write)?;
        }
        Ok(())
    }

    /// Puts a forward in a bucket, unless a later merge has put one. Durable on return.
    ///
    /// A former owner may come here late, with a merge that others have finished long ago and merged again. It finds
    /// their forward by its target: what a container is merged into is merged again only when its own merge is
    /// finished, and the new container then gets its number. So from merge to merge the targets of an id grow, also
    /// from owner to owner (`numbers.rs`).
    fn put_forward(&self, bucket: &dyn Bucket, container: ContainerId, target: ContainerId) -> Result<()> {
        let path = file::forward_path(&self.directory, container);
        let forward = Forward { container, target, store: self.options.store };
        let bytes = forward.encode();
        for _ in 0..FORWARD_TRIES {
            if bucket.put_new(&path, &bytes).map_err(StorageError::cannot_write)? == Put::Done {
                return Ok(());
            }
            let present = match bucket.get(&path, FORWARD_LIMIT_BYTES) {
                Ok(present) => present,
                // It was removed just now.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(StorageError::cannot_write(error)),
            };
            let is_later = |found: Forward| (found.container, found.store) == (container, forward.store) && found.target >= target;
            if Forward::decode(&present).is_ok_and(is_later)
                || bucket.replace(&path, &present, &bytes).map_err(StorageError::cannot_write)? == Put::Done
            {
                return Ok(());
            }
        }
        let source = io::Error::new(io::ErrorKind::ResourceBusy, "others change it all the time");
        Err(StorageError::cannot_write(GroundError::Io { operation: "write", path: self.ground.describe(&path), source }))
    }

    /// Keeps a number used: this opening does not give it out, and the next folder says to later ones that the numbers
    /// before it were used.
    fn keep_number(&self, container: ContainerId) -> Result<()> {
        if let Some(above) = file::folder_above(&self.directory, container) {
            self.ground.create_directory(&above).map_err(StorageError::cannot_write)?;
        }
        self.placement.skip_to(container);
        Ok(())
    }

    /// Keeps the numbers of removed files used. The next opening counts on from the highest number that it finds. If
    /// that file may go without another in its place, the next folder says that the numbers before it were used.
    fn keep_numbers(&self, removed: &[ContainerId]) -> Result<()> {
        let partitions: BTreeSet<u16> = removed.iter().map(|id| id.partition()).collect();
        for partition in partitions {
            let Some(number) = self.placement.last_number(partition) else { continue };
            let last = ContainerId::new(partition, number);
            let top = file::folder(&self.directory, last);
            if removed.iter().any(|id| file::folder(&self.directory, *id) == top)
                && let Some(above) = file::folder_above(&self.directory, last)
            {
                let created = self.ground.create_directory(&above).or_else(|error| {
                    if error.is_full() {
                        self.empty_files(removed)?;
                        return self.ground.create_directory(&above);
                    }
                    Err(error)
                });
                created.map_err(StorageError::cannot_write)?;
            }
        }
        Ok(())
    }

    /// Frees the space of files that are about to be removed.
    fn empty_files(&self, removed: &[ContainerId]) -> onefold_ground::Result<()> {
        for id in removed {
            match self.ground.open(&file::path(&self.directory, *id), Access::ReadWrite) {
                Ok(file) => file.set_len(0)?,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Syncs directories. After a failed sync it is unknown which names are on disk, so nothing is written any more.
    pub(crate) fn sync_folders(&self, folders: &BTreeSet<String>) -> Result<()> {
        folders.iter().try_for_each(|folder| self.ground.sync_directory(folder)).map_err(|error| {
            self.flow.poison(&error.to_string());
            StorageError::Poisoned { why: error.to_string().into() }
        })
    }
}
