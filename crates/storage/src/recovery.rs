//! After a restart: what the log knows of containers, and what a crash left in their directories.

use crate::groups::highest_member;
use crate::open::OpenContainer;
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, ContainerRecord, FOOTER_BYTES, Footer, HEADER_BYTES, Header, Result, StorageError, file};
use onefold_ground::{Access, Ground, parent};
use onefold_oplog::{Position, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Files below the highest number that are looked at for what a crash left: many times what is created between two flushes.
const LEFTOVER_FILES: usize = 512;

/// What replay needs and later nobody.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Containers that the log seals, or that take part in a merge.
    sealed: HashSet<ContainerId>,
    /// What merges in the log made of containers; the last one counts.
    fates: HashMap<ContainerId, Fate>,
    /// Merges in batches before this have their files replaced.
    finished: Position,
    /// By partition: the highest number known.
    pub(crate) highest: Vec<u32>,
    /// By partition: the files with the highest numbers.
    newest: Vec<Vec<u32>>,
}

/// What a merge made of a container.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// Which container answers to it; `None`: none any more.
    answers: Option<ContainerId>,
    /// The new container of the merge; `None`: there was none.
    target: Option<ContainerId>,
    /// Where the batch of the merge starts.
    position: Position,
}

impl Recovery {
    /// Lists the two highest folders of each partition that have files: containers are numbered upwards.
    pub(crate) fn start(ground: &dyn Ground, containers: &str, partitions: u16) -> Result<Recovery> {
        let mut recovery =
            Recovery { sealed: HashSet::new(), fates: HashMap::new(), finished: Position(0), highest: Vec::new(), newest: Vec::new() };
        for partition in 0..partitions {
            let directory = file::partition_directory(containers, partition);
            let folders = ground.list(&directory)?;
            let folders = folders.iter().rev().filter(|entry| entry.is_directory && file::folder_start(&entry.name).is_some());
            let mut numbers = Vec::new();
            let (mut highest, mut with_files) = (0, 0);
            for folder in folders {
                // The numbers before a folder are used, even if it is empty.
                highest = highest.max(file::folder_start(&folder.name).unwrap_or(0).saturating_sub(1));
                let files = ground.list(&format!("{directory}/{}", folder.name))?;
                numbers.extend(files.iter().filter_map(|entry| file::number(&entry.name)));
                let used = files.iter().filter_map(|entry| file::number(&entry.name).or_else(|| file::forward_number(&entry.name))).max();
                highest = highest.max(used.unwrap_or(0));
                with_files += u32::from(used.is_some());
                if with_files == 2 {
                    break;
                }
            }
            highest = highest.max(highest_member(ground, containers, partition)?);
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.truncate(LEFTOVER_FILES);
            recovery.highest.push(highest);
            recovery.newest.push(numbers);
        }
        Ok(recovery)
    }
}

impl ContainerStore {
    /// Takes one record of the container class, from the batch that begins at `start`. All of them are passed, in the order of the log from
    /// its start, before [`recovered`](Self::recovered). A record that was taken before does no harm.
    pub fn replay(&self, start: Position, record: &Record) -> Result<()> {
        let shared = &self.shared;
        let refused = |why: &str| StorageError::Record { kind: record.kind, why: why.to_owned() };
        let record_read = ContainerRecord::decode(record, shared.options.digest_bytes)?;
        let id = record_read.container();
        let mut recovery = shared.recovery.lock();
        let recovery = recovery.as_mut().ok_or_else(|| refused("replay is over"))?;
        let highest = recovery.highest.get_mut(usize::from(id.partition())).ok_or_else(|| refused("there is no such partition"))?;
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
            shared.open.write().remove(&id);
            return Ok(());
        }
        let new = || Arc::new(OpenContainer::new(id, file::path(&shared.directory, id)));
        let container = shared.open.write().entry(id).or_insert_with(new).clone();
        let mut state = container.state.lock();
        let result = match record_read {
            ContainerRecord::ContainerCheckpoint { catalog, open } => state.replay_checkpoint(catalog, &open, start),
            // The log may begin in the middle of a container that it seals or replaces further on: that is decided at its end.
            _ if state.broken.is_some() => Ok(()),
            ContainerRecord::FrameCommitted { frame, slots, .. } => state.replay_frame(frame, slots),
            ContainerRecord::FrameData { chunks, .. } => state.replay_data(&chunks),
            ContainerRecord::ContainerSealed { .. } | ContainerRecord::ContainersMerged { .. } => Ok(()),
        };
        if let Err(why) = result {
            state.broken = Some(why);
        }
        state.oldest.get_or_insert(start);
        Ok(())
    }

    /// Replay is over. Containers that are not sealed are kept for the next writers; files that no record names and that were never
    /// sealed are removed (or, for a reader, passed over): a crash came before their first commit. The log goes from `log_start` to `log_end`.
    ///
    /// How such a file is told from a sealed one whose end is damaged and whose records were trimmed: its header says where the log ended when
    /// it was created, and a record that names a container comes behind that place. So whatever was created at or behind the
    /// start of the log and was ever committed is named in the log. The log is not trimmed past the place of a file that was not
    /// committed yet ([`ContainerStore::oldest_needed`]).
    pub fn recovered(&self, log_start: Position, log_end: Position) -> Result<()> {
        let shared = &self.shared;
        let Some(recovery) = shared.recovery.lock().take() else { return Ok(()) };
        let containers: Vec<_> = shared.open.read().values().cloned().collect();
        self.check_spelled()?;
        {
            let mut placement = shared.placement.lock();
            for (next, highest) in placement.next_numbers.iter_mut().zip(&recovery.highest) {
                *next = highest.saturating_add(1);
            }
            for container in &containers {
                placement.idle[usize::from(container.id.partition())].push_back(container.id);
            }
        }
        shared.check_log_end(&recovery.newest, log_end)?;
        shared.log_end.store(log_end.0, Relaxed);
        let mut leftovers = HashSet::new();
        for (partition, numbers) in recovery.newest.iter().enumerate() {
            for number in numbers {
                let id = ContainerId::new(partition as u16, *number);
                if !recovery.sealed.contains(&id) && !shared.open.read().contains_key(&id) && shared.is_leftover(id, log_start)? {
                    leftovers.insert(id);
                }
            }
        }
        if shared.access == Access::ReadWrite {
            shared.remove_leftovers(&leftovers)?;
            shared.resume_merges(&recovery.fates, recovery.finished, log_start)?;
            shared.writable.store(true, Relaxed);
            shared.finish_or_warn();
        } else {
            shared.resume_merges(&recovery.fates, recovery.finished, log_start)?;
            *shared.leftovers.lock() = leftovers;
        }
        Ok(())
    }
}

impl Shared {
    /// A container was made when the log had been durable up to the position in its header: a log that ends before it has lost its end. The newest
    /// file of each partition is looked at.
    fn check_log_end(&self, newest: &[Vec<u32>], log_end: Position) -> Result<()> {
        let files =
            newest.iter().enumerate().filter_map(|(partition, numbers)| Some(ContainerId::new(partition as u16, *numbers.first()?)));
        for container in files {
            if let Some(header) = self.check_header(container).ok().filter(|header| header.created > log_end.0) {
                let why =
                    format!("it was made when the log ended at {}, but the log ends at {}: its end is lost", header.created, log_end.0);
                return Err(StorageError::Log { container, why });
            }
        }
        Ok(())
    }

    /// Finds out which files are not what the merges in the log make of them, and has them replaced; without writing, has readers know it.
    ///
    /// Files go only if the container is sound that the merge made in their place. If it is not, nothing is lost yet that is still there.
    fn resume_merges(&self, fates: &HashMap<ContainerId, Fate>, finished: Position, log_start: Position) -> Result<()> {
        let mut sound: HashMap<ContainerId, bool> = HashMap::new();
        let mut forwarded: BTreeMap<ContainerId, Vec<ContainerId>> = BTreeMap::new();
        let mut removed = Vec::new();
        for (id, fate) in fates.iter().filter(|(_, fate)| fate.position >= finished) {
            if self.is_replaced(*id, fate.answers)? {
                continue;
            }
            if let Some(bad) = self.unsound_target(fates, *fate, &mut sound) {
                tracing::error!(container = %id, merged = %bad, "what a container was merged into cannot be read; the old file stays");
                continue;
            }
            match fate.answers {
                Some(target) => forwarded.entry(target).or_default().push(*id),
                None => removed.push(*id),
            }
        }
        let writable = self.access == Access::ReadWrite;
        for (target, mut forwarded) in forwarded {
            forwarded.sort_unstable();
            self.resume(log_start, Some(target), forwarded, Vec::new(), writable);
        }
        if !removed.is_empty() {
            removed.sort_unstable();
            self.resume(log_start, None, Vec::new(), removed, writable);
        }
        Ok(())
    }

    /// Whether the files are what a merge makes of a container.
    fn is_replaced(&self, id: ContainerId, answers: Option<ContainerId>) -> Result<bool> {
        if self.ground.exists(&file::path(&self.directory, id))? {
            return Ok(false);
        }
        match answers {
            Some(target) => Ok(matches!(self.read_forward(id), Ok(Some(found)) if found == target)),
            None => Ok(!self.ground.exists(&file::forward_path(&self.directory, id))?),
        }
    }

    /// The container that has the chunks of a merge now, if it cannot be read.
    fn unsound_target(
        &self,
        fates: &HashMap<ContainerId, Fate>,
        mut fate: Fate,
        sound: &mut HashMap<ContainerId, bool>,
    ) -> Option<ContainerId> {
        loop {
            let target = fate.target?;
            match fates.get(&target) {
                // Numbers only grow from merge to merge, so this comes to an end.
                Some(later) if later.target.is_none_or(|later| later > target) => fate = *later,
                _ => {
                    let is_sound = *sound.entry(target).or_insert_with(|| self.read_catalog(target).is_ok());
                    return (!is_sound).then_some(target);
                }
            }
        }
    }

    /// Removes the files durably: one that came back after the next commit would not be known as a leftover any more.
    fn remove_leftovers(&self, leftovers: &HashSet<ContainerId>) -> Result<()> {
        let mut folders = BTreeSet::new();
        for container in leftovers {
            let path = file::path(&self.directory, *container);
            tracing::info!(%container, "removing a container file from before its first commit");
            self.ground.remove(&path)?;
            folders.insert(parent(&path).to_owned());
        }
        for folder in folders {
            self.ground.sync_directory(&folder)?;
        }
        Ok(())
    }

    /// Whether a file that nothing knows of was never committed: its header says that it was made at or behind the start of the log. The
    /// sectors of header and footer are written at once, so a crash leaves each whole or as zeros. Without a header the footer says it; without
    /// either there was no seal, and only what is sealed can be missing in the log. What is neither is damaged and stays.
    pub(crate) fn is_leftover(&self, container: ContainerId, log_start: Position) -> Result<bool> {
        let file = self.ground.open(&file::path(&self.directory, container), Access::Read)?;
        let length = file.len()?;
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 {
            return Ok(true);
        }
        let mut footer = [0; FOOTER_BYTES];
        let mut header = [0; HEADER_BYTES];
        let read = file.read_at(length - FOOTER_BYTES as u64, &mut footer).and_then(|()| file.read_at(0, &mut header));
        if let Err(error) = read {
            tracing::warn!(%container, %error, "a container file cannot be read");
            return Ok(false);
        }
        if header == [0; HEADER_BYTES] {
            return Ok(match Footer::decode(&footer) {
                Ok(footer) => footer.created >= log_start.0,
                Err(_) => !file::resembles_footer(&footer),
            });
        }
        Ok(Header::decode(&header).is_ok_and(|header| header.created >= log_start.0))
    }
}
