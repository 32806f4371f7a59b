//! Makes parity: groups sealed containers that have none, and writes the exclusive or of their files beside them.
//!
//! A container goes into a group only if all of it was read and found sound. So parity is never made of rotten data.
//! The file is written whole and synced under another name, then renamed. Groups that it replaces go afterwards. A
//! crash or a full disk at any point leaves what was there.

use crate::containers::file;
use crate::containers::group_id::Folder;
use crate::containers::parity::{
    BLOCK_BYTES, MAX_MEMBERS, Member, ParityHeader, add, block_length, blocks, data_offset, new_parity_path, parity_directory, parity_path,
};
use crate::containers::repair::Repair;
use crate::containers::scrub::WHOLE_BYTES;
use crate::containers::sealed::Bytes;
use crate::containers::store::{ContainerStore, Shared};
use crate::{ContainerId, GroupId, Result, StorageError};
use onefold_ground::{Access, File, GroundError, checksum};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of the parity that are made at a time. With as much of a member, that is the memory it needs.
const STRIPE_BLOCKS: usize = 16;

/// Folders that one call looks at before it asks its caller again.
const FOLDERS_OF_A_CALL: usize = 16;

/// Blocks of a member that are read at a time to verify it.
const WINDOW_BLOCKS: usize = 64;

/// A member while its group is made. Parity is made of the very bytes that were verified:
/// * A file of the usual length is read once, and added when it was verified.
/// * Of a longer file, the checksum of each block is noted at its first reading. A different checksum at a later
///   reading is an error.
struct Source {
    container: ContainerId,
    file: Arc<dyn File>,
    length_bytes: u64,
    /// By block; `None`: not read yet.
    checksums: RefCell<Vec<Option<u64>>>,
    /// The whole file, if it is not too long, until it is added.
    whole: Option<Vec<u8>>,
    /// The blocks read last, and where they begin.
    window: RefCell<(u64, Vec<u8>)>,
}

/// Members of a group that is being made.
#[derive(Default)]
struct Gathered {
    sources: Vec<Source>,
    /// The exclusive or of the members whose whole bytes were in memory. It is as long as the longest of them, at most
    /// 16 MiB.
    sum: Vec<u8>,
    /// Members that are in the sum.
    added: BTreeSet<ContainerId>,
    /// Memory for the next member.
    memory: Vec<u8>,
}

impl Gathered {
    /// Takes a member that was found sound.
    fn take(&mut self, mut source: Source) {
        source.window.take();
        if let Some(whole) = source.whole.take() {
            let needed = blocks(source.length_bytes) * BLOCK_BYTES;
            if self.sum.len() < needed {
                self.sum.resize(needed, 0);
            }
            add(&mut self.sum, &whole);
            self.added.insert(source.container);
            self.memory = whole;
        }
        self.sources.push(source);
    }
}

impl ContainerStore {
    /// Makes parity for one group of `size` containers (2 to 16) of one folder that have none. With `all`, also for
    /// fewer; they are grouped again, with others, when there are more. Returns how many containers are in the new
    /// group, or 0 if it made none and may have work left. `None`: there is nothing to do.
    ///
    /// The calling thread does all the work. Damage of a container leaves it without parity and is no error.
    pub fn make_parity(&self, size: usize, all: bool) -> Result<Option<usize>> {
        let shared = &self.shared;
        shared.check_writable()?;
        let _one_at_a_time = shared.protection.make_alone();
        let size = size.clamp(2, MAX_MEMBERS);
        if shared.protection.begin() {
            let folders = shared.container_folders();
            shared.protection.add_unseen(folders.as_ref().ok().cloned());
            folders?;
        }
        for _ in 0..FOLDERS_OF_A_CALL {
            let Some(folder) = shared.protection.take_folder(all) else { return Ok(None) };
            let made = shared.protect_folder(folder, size, all);
            if !matches!(made, Ok(None)) {
                // There may be more, also after an error.
                shared.protection.changed(folder);
                return made;
            }
        }
        Ok(Some(0))
    }
}

impl Shared {
    /// Makes one group in a folder. `None`: there is nothing to do.
    fn protect_folder(&self, folder: Folder, size: usize, all: bool) -> Result<Option<usize>> {
        {
            // Left by a crash, or by a removal that failed.
            let _nothing_goes = self.merging.hold_files();
            self.remove_groups(folder, &self.with_groups(folder, |groups| Ok(groups.unneeded()))?)?;
        }
        loop {
            self.know_containers_without(folder)?;
            let Some(candidates) = self.candidates(folder, size, all)? else { return Ok(None) };
            let gathered = self.whole_ones(folder, &candidates)?;
            // The others are unfit now, and are not chosen again.
            if gathered.sources.len() < candidates.len() {
                continue;
            }
            return self.write_group(folder, &gathered).map(Some);
        }
    }

    /// Returns all folders of container files, and those of parity files.
    fn container_folders(&self) -> Result<Vec<Folder>> {
        let mut folders = self.protection.folders(self)?;
        for partition in self.owners.partitions() {
            let entries = self.ground.list(&file::partition_directory(&self.directory, partition))?;
            folders.extend(entries.iter().filter(|entry| entry.is_directory).filter_map(|entry| Folder::named(partition, &entry.name)));
        }
        Ok(folders)
    }

    /// Lists, once, the sealed containers of a folder that are in no group.
    fn know_containers_without(&self, folder: Folder) -> Result<()> {
        let _nothing_goes = self.merging.hold_files();
        while self.with_groups(folder, |groups| Ok(groups.begin_list()))? {
            let listed = self.sealed_of(folder);
            self.with_groups(folder, |groups| {
                match listed {
                    Ok(sealed) => groups.end_list(sealed),
                    Err(error) => {
                        groups.abandon_list();
                        return Err(error);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the sealed containers of a folder that have a file of their own.
    fn sealed_of(&self, folder: Folder) -> Result<Vec<ContainerId>> {
        // First: a container that is made meanwhile is not sealed, whatever the list of open ones says by then.
        let before = self.placement.given_out();
        let mut found = self.list_folder(folder, file::number)?;
        found.retain(|container| !before.is_not_made(*container) && !self.unsealed.contains(*container));
        found.retain(|container| !self.merging.is_unlogged(*container) && !self.replay.is_leftover(*container));
        found.retain(|container| !self.forwards.is_logged(*container));
        Ok(found)
    }

    /// Chooses the containers of the next group, all of one folder:
    /// * containers without parity, or with parity that is to be replaced, and
    /// * containers of groups that are too small. Also only these, if that joins groups.
    fn candidates(&self, folder: Folder, size: usize, all: bool) -> Result<Option<Vec<ContainerId>>> {
        self.with_groups(folder, |groups| {
            if !groups.is_listed() {
                // The folder was evicted meanwhile, with the list of its containers.
                groups.to_do.changed(folder);
                return Ok(None);
            }
            let mut chosen = groups.wanting(size);
            // What the new group joins. A container without parity is worth a group in any case.
            let mut parts = if chosen.is_empty() { 0 } else { 2 };
            for members in groups.small(size) {
                if chosen.len() + members.len() <= size {
                    chosen.extend(members);
                    parts += 1;
                }
            }
            if parts < 2 {
                return Ok(None);
            }
            if chosen.len() < size && !all {
                groups.to_do.leave_partial(folder);
                return Ok(None);
            }
            chosen.sort_unstable();
            chosen.dedup();
            Ok(Some(chosen))
        })
    }

    /// Reads containers and keeps the sound ones. First rebuilds damaged ones that have parity.
    fn whole_ones(&self, folder: Folder, containers: &[ContainerId]) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        for container in containers {
            let container = *container;
            if self.forwards.is_logged(container) {
                // A merge is about to take its file.
                self.note_groups(folder, |groups| groups.set_unfit(container))?;
                continue;
            }
            let memory = std::mem::take(&mut gathered.memory);
            let source = self.whole_one(container, memory).or_else(|error| match self.repair(container) {
                Ok(Repair::Repaired | Repair::Whole) => self.whole_one(container, Vec::new()),
                Ok(Repair::Impossible) => Err(error),
                Err(of_repair) => Err(of_repair),
            });
            match source {
                Ok(source) => gathered.take(source),
                Err(error) => {
                    tracing::warn!(%container, %error, "a container gets no parity because it cannot be read");
                    self.note_groups(folder, |groups| groups.set_unfit(container))?;
                }
            }
        }
        Ok(gathered)
    }

    fn whole_one(&self, container: ContainerId, mut memory: Vec<u8>) -> Result<Source> {
        let opened = self.ground.open(&file::path(&self.directory, container), Access::Read);
        let file = opened.map_err(|error| self.read_error(container, None, error))?;
        let length_bytes = file.len()?;
        let checksums = RefCell::new(vec![None; blocks(length_bytes)]);
        let mut source = Source { container, file, length_bytes, checksums, whole: None, window: RefCell::default() };
        if length_bytes <= WHOLE_BYTES {
            source.read(0..blocks(length_bytes), &mut memory).map_err(|error| self.read_error(container, None, error))?;
            source.whole = Some(memory);
        }
        let mut damage = Vec::new();
        self.verify_bytes(container, None, &source, &mut damage)?;
        match damage.pop() {
            Some(damage) => Err(damage),
            None => Ok(source),
        }
    }

    /// Writes the parity file of a new group and puts it in its place. Returns how many members it has: none if one of
    /// them was merged meanwhile.
    fn write_group(&self, folder: Folder, gathered: &Gathered) -> Result<usize> {
        let sources = &gathered.sources[..];
        let group = self.with_groups(folder, |groups| groups.next_group())?;
        let folder = self.make_parity_folder(group)?;
        let temporary = new_parity_path(&self.directory, group);
        let written = self.create_beside(&temporary).and_then(|file| self.write_parity(group, gathered, &*file));
        let placed = written.and_then(|()| {
            let _nothing_goes = self.merging.hold_files();
            self.place_group(group, sources, &temporary, &folder)
        });
        if !matches!(placed, Ok(true)) {
            let _ = self.ground.remove(&temporary);
        }
        placed.map(|is_placed| if is_placed { sources.len() } else { 0 })
    }

    fn write_parity(&self, group: GroupId, gathered: &Gathered, file: &dyn File) -> Result<()> {
        let sources = &gathered.sources[..];
        let offset = data_offset(sources.iter().map(|source| source.length_bytes));
        let most = sources.iter().map(|source| blocks(source.length_bytes)).max().unwrap_or(0);
        let mut members: Vec<Member> = sources
            .iter()
            .map(|source| Member { container: source.container, length_bytes: source.length_bytes, checksums: Vec::new() })
            .collect();
        let mut checksums = Vec::with_capacity(most);
        let mut sum = Vec::new();
        let mut bytes = Vec::new();
        for first in (0..most).step_by(STRIPE_BLOCKS) {
            let stripe = first..most.min(first + STRIPE_BLOCKS);
            sum.clear();
            sum.resize(stripe.len() * BLOCK_BYTES, 0);
            add(&mut sum, gathered.sum.get(first * BLOCK_BYTES..).unwrap_or_default());
            for source in sources.iter().filter(|source| !gathered.added.contains(&source.container)) {
                let read = source.read(stripe.clone(), &mut bytes);
                read.map_err(|error| self.read_error(source.container, None, error))?;
                add(&mut sum, &bytes);
            }
            checksums.extend(sum.chunks(BLOCK_BYTES).map(checksum));
            let place = offset + (first * BLOCK_BYTES) as u64;
            file.write_at(place, &sum).map_err(StorageError::cannot_write)?;
            file.start_writeback(place, sum.len() as u64);
        }
        for (source, member) in sources.iter().zip(&mut members) {
            member.checksums.extend(source.checksums.borrow().iter().flatten());
        }
        let header = ParityHeader { group, store: self.options.store, members, checksums };
        file.write_at(0, &header.encode()).map_err(StorageError::cannot_write)?;
        file.sync().map_err(StorageError::cannot_write)
    }

    /// Puts a parity file in its place, durably, unless one of its members or the partition went meanwhile. Nothing
    /// goes while this is done.
    fn place_group(&self, group: GroupId, sources: &[Source], temporary: &str, folder: &str) -> Result<bool> {
        if !self.owners.has(group.folder().partition()) {
            return Ok(false);
        }
        for source in sources {
            if !self.stable(|| self.answering(source.container)).is_ok_and(|answering| answering == source.container) {
                self.note_groups(group.folder(), |groups| groups.set_unfit(source.container))?;
                return Ok(false);
            }
        }
        let members: Vec<u32> = sources.iter().map(|source| source.container.number()).collect();
        self.ground.rename(temporary, &parity_path(&self.directory, group, &members)).map_err(StorageError::cannot_write)?;
        self.put_in_place(group, members, folder)?;
        Ok(true)
    }

    /// Makes the name of a new group's parity file durable. Then removes the groups that nobody counts on any more.
    pub(crate) fn put_in_place(&self, group: GroupId, members: Vec<u32>, folder: &str) -> Result<()> {
        self.note_groups(group.folder(), |groups| groups.insert(group, members))?;
        let above = parity_directory(&self.directory, group.folder().partition());
        self.sync_folders(&BTreeSet::from([folder.to_owned(), above]))?;
        let unneeded = self.with_groups(group.folder(), |groups| Ok(groups.unneeded()))?;
        self.remove_groups(group.folder(), &unneeded)
    }
}

impl Source {
    /// Reads blocks, as far as the file has them. Bytes that differ from those read before are an error.
    fn read(&self, wanted: Range<usize>, out: &mut Vec<u8>) -> onefold_ground::Result<()> {
        out.resize(wanted.clone().map(|block| block_length(self.length_bytes, block)).sum(), 0);
        self.file.read_at((wanted.start * BLOCK_BYTES) as u64, out)?;
        let mut checksums = self.checksums.borrow_mut();
        for (bytes, block) in out.chunks(BLOCK_BYTES).zip(wanted) {
            let found = checksum(bytes);
            if *checksums[block].get_or_insert(found) != found {
                let source = io::Error::new(io::ErrorKind::InvalidData, "it changed between two reads");
                return Err(GroundError::Io { operation: "read", path: format!("container {}", self.container), source });
            }
        }
        Ok(())
    }
}

impl Bytes for Source {
    fn length(&self) -> onefold_ground::Result<u64> {
        Ok(self.length_bytes)
    }

    fn range(&self, offset: u64, length: usize) -> onefold_ground::Result<Cow<'_, [u8]>> {
        let end = offset.saturating_add(length as u64);
        if end > self.length_bytes {
            let source = io::ErrorKind::UnexpectedEof.into();
            return Err(GroundError::Io { operation: "read", path: format!("container {}", self.container), source });
        }
        if let Some(whole) = &self.whole {
            return Ok(Cow::Borrowed(&whole[offset as usize..offset as usize + length]));
        }
        let mut window = self.window.borrow_mut();
        if offset < window.0 || end > window.0 + window.1.len() as u64 {
            let first = (offset / BLOCK_BYTES as u64) as usize;
            let behind = blocks(end).max(first + WINDOW_BLOCKS).min(blocks(self.length_bytes));
            let mut bytes = std::mem::take(&mut window.1);
            self.read(first..behind, &mut bytes)?;
            *window = ((first * BLOCK_BYTES) as u64, bytes);
        }
        let start = (offset - window.0) as usize;
        Ok(Cow::Owned(window.1[start..start + length].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_ground::{Ground, SimulatedGround};

    #[test]
    fn bytes_that_are_not_those_that_were_verified_go_into_no_parity() {
        let ground = SimulatedGround::new(1);
        let file = ground.create("file").unwrap();
        let length_bytes = 3 * BLOCK_BYTES as u64 + 5;
        file.write_at(0, &vec![7; length_bytes as usize]).unwrap();
        let checksums = RefCell::new(vec![None; blocks(length_bytes)]);
        let source = Source { container: ContainerId::new(0, 1), file, length_bytes, checksums, whole: None, window: RefCell::default() };
        assert_eq!(&source.range(BLOCK_BYTES as u64 - 1, 3).unwrap()[..], [7; 3]);
        assert!(source.range(length_bytes - 1, 2).is_err());
        ground.corrupt("file", BLOCK_BYTES as u64, 1).unwrap();
        let mut bytes = Vec::new();
        assert!(source.read(0..1, &mut bytes).is_ok() && source.read(2..4, &mut bytes).is_ok());
        assert!(source.read(0..2, &mut bytes).is_err() && source.read(1..2, &mut bytes).is_err());
    }
}
