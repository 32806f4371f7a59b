//! After a restart, brings together what the log knows of containers and what a crash left in their directories.

use crate::containers::file;
use crate::containers::numbers::{NUMBERS_AHEAD, Used, decode_numbers, decode_reserved};
use crate::containers::open::OpenContainer;
use crate::containers::replay::{Fate, Recovery};
use crate::containers::sealed::Bytes;
use crate::containers::store::{ContainerStore, Shared};
use crate::{
    ContainerId, ContainerRecord, FOOTER_BYTES, FRAME_STORED, Footer, HEADER_BYTES, Header, NUMBERS_RESERVED, NUMBERS_USED, Result,
    StorageError,
};
use onefold_ground::{Access, File, GroundError, checksum, parent};
use onefold_oplog::{Position, Record};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// The kinds of files that no record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// It was never committed.
    Leftover,
    /// It has no bytes. It may be a leftover, or a sealed container that lost all its bytes.
    Empty,
    /// It was committed, or is damaged.
    Committed,
    /// There is no such file: a list of a bucket may have what was just deleted.
    Gone,
}

impl ContainerStore {
    /// Takes one record of the container class, from the batch that begins at `start`. The caller passes all of them,
    /// in the order of the log from its start, before [`recovered`](Self::recovered). A record that was taken before
    /// does no harm. A record of a partition that is not opened is skipped: the log may be older than the partition's
    /// move to another owner.
    pub fn replay(&self, start: Position, record: &Record) -> Result<()> {
        let shared = &self.shared;
        let refused = |why: &str| StorageError::Record { kind: record.kind, why: why.to_owned() };
        if !shared.options.whole_files && matches!(record.kind, FRAME_STORED | NUMBERS_USED | NUMBERS_RESERVED) {
            return Err(refused("this store is not in a bucket"));
        }
        if record.kind == NUMBERS_USED {
            return self.replay_numbers(decode_numbers(record)?);
        }
        if record.kind == NUMBERS_RESERVED {
            let partition = decode_reserved(record)?;
            let mut recovery = shared.replay.recovery.lock();
            let highest = recovery.as_mut().and_then(|recovery| recovery.highest.get_mut(&partition));
            highest.into_iter().for_each(|highest| *highest = highest.saturating_add(NUMBERS_AHEAD));
            return Ok(());
        }
        let record_read = ContainerRecord::decode(record, shared.options.digest_bytes())?;
        let id = record_read.container();
        let mut recovery = shared.replay.recovery.lock();
        let recovery = recovery.as_mut().ok_or_else(|| refused("replay has ended"))?;
        if u32::from(id.partition()) >= shared.owners.total() {
            return Err(refused("the partition does not exist"));
        }
        let Some(highest) = recovery.highest.get_mut(&id.partition()) else { return Ok(()) };
        *highest = (*highest).max(id.number());
        if let ContainerRecord::ContainersMerged { target, finished, forwarded, removed } = record_read {
            recovery.finished = recovery.finished.max(finished);
            *highest = target.iter().chain(&forwarded).chain(&removed).map(|id| id.number()).fold(*highest, u32::max);
            recovery.sealed.extend(target.iter().chain(&forwarded).chain(&removed));
            recovery.fates.extend(forwarded.iter().map(|id| (*id, Fate { answers: target, target, position: start })));
            recovery.fates.extend(removed.iter().map(|id| (*id, Fate { answers: None, target, position: start })));
            return Ok(());
        }
        if recovery.sealed.contains(&id) {
            return Ok(());
        }
        if let ContainerRecord::ContainerSealed { .. } = record_read {
            recovery.sealed.insert(id);
            recovery.stored.remove(&id);
            shared.unsealed.remove(id);
            return Ok(());
        }
        let container = shared.unsealed.get_or_insert(id, || OpenContainer::new(id, file::path(&shared.directory, id)));
        let mut state = container.state.lock();
        let result = match record_read {
            ContainerRecord::ContainerCheckpoint { catalog, open } => state.replay_checkpoint(catalog, &open, start),
            // The log may begin in the middle of a container that it seals or replaces further on. So the decision
            // waits for its end.
            _ if state.broken.is_some() => Ok(()),
            ContainerRecord::FrameCommitted { frame, slots, stored, .. } => match stored {
                None => state.replay_frame(frame, slots),
                Some(stored) if checksum(&stored) != frame.checksum => Err(format!("the bytes of frame {} are damaged", frame.number)),
                Some(stored) => {
                    let number = frame.number;
                    state.replay_frame(frame, slots).map(|()| drop(recovery.stored.entry(id).or_default().insert(number, stored)))
                }
            },
            ContainerRecord::FrameData { chunks, .. } => state.replay_data(&chunks),
            ContainerRecord::ContainerSealed { .. } | ContainerRecord::ContainersMerged { .. } => Ok(()),
        };
        if let Err(why) = result {
            state.broken = Some(why);
        }
        state.oldest.get_or_insert(start);
        Ok(())
    }

    fn replay_numbers(&self, used: Used) -> Result<()> {
        let mut recovery = self.shared.replay.recovery.lock();
        let partition = used.last.partition();
        if let Some(recovery) = recovery.as_mut()
            && let Some(highest) = recovery.highest.get_mut(&partition)
        {
            *highest = (*highest).max(used.last.number());
            let settled = recovery.settled.entry(partition).or_default();
            *settled = (*settled).max(used.settled);
        }
        Ok(())
    }

    /// Says that the owner before this one had ended its work: it put no container that the log does not name. So
    /// [`recovered`](Self::recovered) need not look for leftovers.
    pub fn expect_no_leftovers(&self) {
        self.shared.replay.recovery.lock().iter_mut().for_each(|recovery| recovery.is_complete = true);
    }

    /// Ends the replay. Unsealed containers are kept for the next writers. In a store with whole files they get none
    /// (`whole.rs`). Files that no record names and that were never sealed are removed, or skipped by a reader: a crash
    /// came before their first commit. The log goes from `log_start` to `log_end`.
    ///
    /// How is such a file told from a sealed one whose end is damaged and whose records were trimmed? Its header says
    /// where the log ended when it was created, and a record that names a container comes behind that place. So every
    /// container that was created at or behind the start of the log, and was ever committed, is named in the log. The
    /// log is not trimmed past the place of an uncommitted file ([`ContainerStore::oldest_needed`]). That holds for
    /// containers of this owner; others are left alone (`owner.rs`).
    pub fn recovered(&self, log_start: Position, log_end: Position) -> Result<()> {
        let shared = &self.shared;
        let Some(mut recovery) = shared.replay.recovery.lock().take() else { return Ok(()) };
        let containers = shared.unsealed.all();
        self.check_spelled()?;
        let unsealed = containers.iter().map(|container| container.id);
        let next_number = |partition| recovery.next_number(partition);
        if shared.options.whole_files && !shared.mode.is_for_reading() {
            shared.placement.resume_whole(next_number, unsealed, log_start);
        } else {
            shared.placement.resume(next_number, unsealed);
        }
        if let Some(bucket) = shared.ground.bucket().filter(|_| !recovery.is_complete && !shared.mode.is_for_reading()) {
            recovery.list_unsettled(&*bucket, &shared.directory)?;
        }
        // The log of a bucket has its own proof that it has not lost its end.
        if !shared.options.whole_files {
            shared.check_log_end(&recovery.newest, log_end)?;
        }
        shared.log_end.set(log_end);
        if shared.options.whole_files {
            shared.restore_files(std::mem::take(&mut recovery.stored), false)?;
        }
        if shared.mode.follows_writers() {
            // Files come and go meanwhile, and the disk itself says what became of them.
            return Ok(());
        }
        let (mut leftovers, mut empty, mut committed) = (HashSet::new(), HashSet::new(), Vec::new());
        for (partition, numbers) in &recovery.newest {
            let mut has_higher = false;
            // From the highest downwards.
            for number in numbers {
                let id = ContainerId::new(*partition, *number);
                let is_settled = recovery.settled.get(partition).is_some_and(|settled| number <= settled);
                let is_named = is_settled || recovery.sealed.contains(&id) || shared.unsealed.contains(id);
                match if is_named { Unnamed::Committed } else { shared.unnamed(id, log_start)? } {
                    Unnamed::Gone => {}
                    Unnamed::Leftover => drop(leftovers.insert(id)),
                    // Nobody misses it, but its number must not be given out again: others may refer to its old
                    // content.
                    Unnamed::Empty if has_higher => drop(leftovers.insert(id)),
                    Unnamed::Empty => drop(empty.insert(id)),
                    Unnamed::Committed => {
                        has_higher = true;
                        committed.push(id);
                    }
                }
            }
        }
        if !shared.mode.is_for_reading() {
            if shared.options.whole_files && !recovery.is_complete {
                let unsealed = containers.iter().map(|container| container.id);
                shared.void.find(&recovery, unsealed.chain(committed).chain(recovery.forwarded.iter().copied()));
            }
            shared.settle_names(&recovery)?;
            shared.remove_leftovers(&leftovers)?;
            *shared.replay.leftovers.lock() = empty;
            shared.resume_merges(&recovery.fates, recovery.finished, log_start)?;
            shared.owners.rebuild(&*shared.ground, &shared.directory, |partition| recovery.next_number(partition))?;
            shared.mode.begin_writing();
            shared.finish_or_warn();
        } else {
            shared.resume_merges(&recovery.fates, recovery.finished, log_start)?;
            leftovers.extend(empty);
            *shared.replay.leftovers.lock() = leftovers;
        }
        Ok(())
    }
}

impl Shared {
    /// Makes the present names durable. The earlier process may have been killed after a removal or a rename and before
    /// the sync. Then the state that this opening saw would change back when the power fails, and the log would no
    /// longer know of it.
    fn settle_names(&self, recovery: &Recovery) -> Result<()> {
        let merged = recovery.fates.iter().filter(|(_, fate)| fate.position >= recovery.finished);
        let merged: BTreeSet<String> = merged.map(|(id, _)| file::folder(&self.directory, *id)).collect();
        for folder in recovery.folders.union(&merged) {
            match self.ground.sync_directory(folder) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that the log has not lost its end. When a container was made, the log was durable up to the position in
    /// its header. A log that ends before it has lost its end. Only the newest file of each partition is checked.
    fn check_log_end(&self, newest: &BTreeMap<u16, Vec<u32>>, log_end: Position) -> Result<()> {
        let files = newest.iter().filter_map(|(partition, numbers)| Some(ContainerId::new(*partition, *numbers.first()?)));
        // The header of another owner's container names the end of that owner's log.
        for container in files.filter(|container| self.owners.is_own(*container) != Some(false)) {
            let header = match self.check_header(container) {
                Err(error) if !error.is_damage() => return Err(error),
                header => header.ok(),
            };
            // A later owner knows more of the log than this opening, which has lost the store.
            let is_later = |header: &Header| self.options.whole_files && header.epoch > self.owners.epoch_of(container);
            if let Some(header) = header.filter(|header| header.created > log_end.0 && !is_later(header)) {
                let why = format!(
                    "it was created when the log ended at {}, but now the log ends at {}: the end of the log is lost",
                    header.created, log_end.0
                );
                return Err(StorageError::Log { container, why });
            }
        }
        Ok(())
    }

    /// Finds the files that are not what the merges in the log make of them, and has them replaced. Without writing, it
    /// only makes readers know it.
    ///
    /// Files go only if the container that the merge made in their place is sound. If it is damaged, nothing is lost as
    /// long as the old files are there. An error that may pass ends the opening. The log stays as it is, so the next
    /// opening finishes the merge.
    fn resume_merges(&self, fates: &HashMap<ContainerId, Fate>, finished: Position, log_start: Position) -> Result<()> {
        let mut sound: HashMap<ContainerId, bool> = HashMap::new();
        // By new container, so that all files of a merge are replaced in the order that `replace.rs` needs.
        let mut merges: BTreeMap<Option<ContainerId>, [Vec<ContainerId>; 2]> = BTreeMap::new();
        let (mut left, mut begun) = (Vec::new(), HashSet::new());
        for (id, fate) in fates.iter().filter(|(_, fate)| fate.position >= finished) {
            if !self.is_replaced(*id, fate.answers)? {
                left.push((id, fate));
            } else if fate.answers.is_some() {
                // Nothing of the others was needed.
                begun.extend(last_target(fates, *fate));
            }
        }
        for (id, fate) in left {
            let unsound = match last_target(fates, *fate) {
                Some(target) if !self.is_sound_once(target, !begun.contains(&target), &mut sound)? => Some(target),
                _ => None,
            };
            if let Some(bad) = unsound {
                tracing::error!(container = %id, merged = %bad, "a merged container is damaged, so the container that was merged into it \
                    is kept");
                continue;
            }
            merges.entry(fate.target).or_default()[usize::from(fate.answers.is_none())].push(*id);
        }
        for (target, mut ids) in merges {
            ids.iter_mut().for_each(|ids| ids.sort_unstable());
            self.resume(log_start, target, ids, !self.mode.is_for_reading());
        }
        Ok(())
    }

    /// Returns whether the files are what a merge makes of a container.
    fn is_replaced(&self, id: ContainerId, answers: Option<ContainerId>) -> Result<bool> {
        if self.ground.exists(&file::path(&self.directory, id))? {
            return Ok(false);
        }
        match answers {
            Some(target) => Ok(matches!(self.read_forward(id), Ok(Some(found)) if found == target)),
            None => Ok(!self.ground.exists(&file::forward_path(&self.directory, id))?),
        }
    }

    /// Asks [`is_merge_sound`](Self::is_merge_sound) once for each container.
    fn is_sound_once(&self, target: ContainerId, may_be_moved: bool, known: &mut HashMap<ContainerId, bool>) -> Result<bool> {
        if let Some(is_sound) = known.get(&target) {
            return Ok(*is_sound);
        }
        let is_sound = self.is_merge_sound(target, may_be_moved)?;
        known.insert(target, is_sound);
        Ok(is_sound)
    }

    /// Returns whether a merged container is what it must be: false if it was read and is something else, or is not
    /// there. For writers any other failure is an error, even one of the device. It may be a loose cable, and the next
    /// steps cannot be undone. With `may_be_moved` the store can do without the container for now.
    fn is_merge_sound(&self, container: ContainerId, may_be_moved: bool) -> Result<bool> {
        let path = file::path(&self.directory, container);
        let unreadable = |source| StorageError::MergedUnreadable { path: self.ground.describe(&path), container, may_be_moved, source };
        let file = match self.ground.open(&path, Access::Read) {
            Ok(file) => Watched { file, failed: RefCell::default() },
            Err(error) if error.is_not_found() => return Ok(false),
            Err(_) if self.mode.is_for_reading() => return Ok(false),
            Err(error) => return Err(unreadable(error)),
        };
        let catalog = self.catalog_in(container, &file);
        match (catalog, file.failed.into_inner()) {
            (Ok(_), _) => Ok(true),
            (Err(_), Some(error)) if !self.mode.is_for_reading() => Err(unreadable(error)),
            // Readers change nothing, and meet the failure when they need the container.
            (Err(_), Some(_)) => Ok(false),
            (Err(error), None) => {
                if error.is_damage() {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Removes the files durably: one that came back after the next commit would no longer be known as a leftover.
    fn remove_leftovers(&self, leftovers: &HashSet<ContainerId>) -> Result<()> {
        let mut folders = BTreeSet::new();
        for container in leftovers {
            let path = file::path(&self.directory, *container);
            tracing::info!(%container, "removing a container file that was never committed");
            self.ground.remove(&path)?;
            folders.insert(parent(&path).to_owned());
        }
        for folder in folders {
            self.ground.sync_directory(&folder)?;
        }
        Ok(())
    }

    /// Finds out what a file is that nothing knows of. It was never committed if its header says that it was made at or
    /// behind the start of the log. Header and footer lie in one sector each, which is written at once, so a crash
    /// leaves each whole or as zeros. Without a header the footer says it. Without either there was no seal, and only
    /// sealed containers can be missing in the log. A file that is none of these is damaged and stays.
    pub(crate) fn unnamed(&self, container: ContainerId, log_start: Position) -> Result<Unnamed> {
        if self.owners.is_own(container) != Some(true) {
            // It may be in the log of the earlier owner.
            return Ok(Unnamed::Committed);
        }
        let file = match self.ground.open(&file::path(&self.directory, container), Access::Read) {
            Err(error) if error.is_not_found() && self.options.whole_files => return Ok(Unnamed::Gone),
            file => file?,
        };
        let length = file.len()?;
        let mut footer = [0; FOOTER_BYTES];
        let mut header = [0; HEADER_BYTES];
        let has_footer = length >= (HEADER_BYTES + FOOTER_BYTES) as u64;
        let has_footer = has_footer && !self.options.whole_files;
        let read = match length {
            0 => return Ok(Unnamed::Empty),
            // No crash leaves part of a sector.
            _ if length < HEADER_BYTES as u64 => return Ok(Unnamed::Committed),
            _ if has_footer => file.read_at(length - FOOTER_BYTES as u64, &mut footer).and_then(|()| file.read_at(0, &mut header)),
            _ => file.read_at(0, &mut header),
        };
        match read {
            Err(error) if error.is_lasting() => {
                tracing::warn!(%container, %error, "a container file cannot be read");
                return Ok(Unnamed::Committed);
            }
            read => read?,
        }
        let is_leftover = if self.options.whole_files {
            // Objects are whole. One of a later owner may be named in the log behind what this opening has read.
            let is_earlier = |header: &Header| self.mode.is_for_reading() || header.epoch <= self.owners.epoch_of(container);
            Header::decode(&header).is_ok_and(|header| header.created >= log_start.0 && is_earlier(&header))
        } else if header != [0; HEADER_BYTES] {
            Header::decode(&header).is_ok_and(|header| header.created >= log_start.0)
        } else {
            match Footer::decode(&footer) {
                Ok(footer) => footer.created >= log_start.0,
                Err(_) => !file::resembles_footer(&footer),
            }
        };
        Ok(if is_leftover { Unnamed::Leftover } else { Unnamed::Committed })
    }
}

/// Returns the container that has the chunks of a merge now, after all later merges.
fn last_target(fates: &HashMap<ContainerId, Fate>, mut fate: Fate) -> Option<ContainerId> {
    loop {
        let target = fate.target?;
        match fates.get(&target) {
            // Numbers only grow from merge to merge, so this comes to an end.
            Some(later) if later.target.is_none_or(|later| later > target) => fate = *later,
            _ => return Some(target),
        }
    }
}

/// A file that records the first read that the ground refused.
struct Watched {
    file: Arc<dyn File>,
    failed: RefCell<Option<GroundError>>,
}

impl Bytes for Watched {
    fn length(&self) -> onefold_ground::Result<u64> {
        self.file.length()
    }

    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>> {
        match self.file.range(offset, length) {
            // A file that is too short is no failure.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                self.failed.replace(Some(error));
                Err(GroundError::Io { operation: "read", path: String::new(), source: io::ErrorKind::InvalidData.into() })
            }
            read => read,
        }
    }
}
