//! Makes parity: groups sealed containers that have none, and writes the exclusive or of their files beside them.
//!
//! A container goes into a group only if all of it was read and found sound. So parity is never made of rotten data.
//! The file is written whole and synced under another name, then renamed. Groups that it replaces go afterwards. A
//! crash or a full disk at any point leaves what was there.

use crate::parity::{
    BLOCK_BYTES, MAX_MEMBERS, Member, ParityHeader, add, block_length, blocks, data_offset, parity_directory, parity_path,
};
use crate::repair::Repair;
use crate::scrub::WHOLE_BYTES;
use crate::sealed::Bytes;
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, StorageError, file};
use onefold_ground::{Access, File, GroundError, checksum};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of the parity that are made at a time. With as much of a member, that is the memory it needs.
const STRIPE_BLOCKS: usize = 16;

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
    /// Makes parity for one group of `size` containers (2 to 16) that have none. With `all`, also for fewer; they are
    /// grouped again, with others, when there are more. Returns how many containers are in the new group; `None`: there
    /// is nothing to do.
    ///
    /// The calling thread does all the work. Damage of a container leaves it without parity and is no error.
    pub fn make_parity(&self, size: usize, all: bool) -> Result<Option<usize>> {
        let shared = &self.shared;
        shared.check_writable()?;
        let _one_at_a_time = shared.protection.make_alone();
        let size = size.clamp(2, MAX_MEMBERS);
        shared.know_containers_without(self)?;
        {
            // Left by a crash, or by a removal that failed.
            let _nothing_goes = shared.merging.hold_files();
            shared.remove_groups(&shared.with_groups(|groups| Ok(groups.unneeded()))?)?;
        }
        loop {
            let Some(candidates) = shared.candidates(size, all)? else { return Ok(None) };
            let gathered = shared.whole_ones(&candidates)?;
            // The others are unfit now, and are not chosen again.
            if gathered.sources.len() < candidates.len() {
                continue;
            }
            return shared.write_group(&gathered).map(Some);
        }
    }
}

impl Shared {
    /// Lists, once, the sealed containers that are in no group.
    fn know_containers_without(&self, store: &ContainerStore) -> Result<()> {
        let _nothing_goes = self.merging.hold_files();
        if !self.with_groups(|groups| Ok(groups.begin_list()))? {
            return Ok(());
        }
        let listed = store.containers();
        let sealed: Vec<ContainerId> =
            listed.iter().flat_map(|listed| listed.iter()).filter(|container| store.is_sealed(*container)).collect();
        self.with_groups(|groups| {
            match &listed {
                Ok(_) => groups.end_list(sealed),
                Err(_) => groups.abandon_list(),
            }
            Ok(())
        })?;
        listed.map(drop)
    }

    /// Chooses the containers of the next group, all of one partition:
    /// * containers without parity, or with parity that is to be replaced, and
    /// * containers of groups that are too small.
    fn candidates(&self, size: usize, all: bool) -> Result<Option<Vec<ContainerId>>> {
        self.with_groups(|groups| {
            for partition in self.owners.partitions() {
                let mut chosen = groups.wanting(partition, size);
                if chosen.is_empty() {
                    continue;
                }
                if chosen.len() < size {
                    // The small groups are the ones made last.
                    let is_small = |group: &(ContainerId, &[u32])| group.0.partition() == partition && group.1.len() < size;
                    for (group, _) in groups.all().filter(is_small).collect::<Vec<_>>().into_iter().rev() {
                        let members = groups.members_counting_on(group);
                        let may_go = !groups.is_outdated(group) && members.iter().all(|member| groups.is_fit(*member));
                        if may_go && chosen.len() + members.len() <= size {
                            chosen.extend(members);
                        }
                    }
                }
                if chosen.len() >= size || all {
                    chosen.sort_unstable();
                    chosen.dedup();
                    return Ok(Some(chosen));
                }
            }
            Ok(None)
        })
    }

    /// Reads containers and keeps the sound ones. First rebuilds damaged ones that have parity.
    fn whole_ones(&self, containers: &[ContainerId]) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        for container in containers {
            let container = *container;
            if self.forwards.is_logged(container) {
                // A merge is about to take its file.
                self.note_groups(|groups| groups.set_unfit(container))?;
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
                    self.note_groups(|groups| groups.set_unfit(container))?;
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
    fn write_group(&self, gathered: &Gathered) -> Result<usize> {
        let sources = &gathered.sources[..];
        let Some(first) = sources.first() else { return Ok(0) };
        let partition = first.container.partition();
        let group = self.with_groups(|groups| groups.next_group(partition))?;
        let folder = self.make_parity_folder(group)?;
        let directory = parity_directory(&self.directory, partition);
        let temporary = format!("{directory}/{:08x}.new", group.number());
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

    fn write_parity(&self, group: ContainerId, gathered: &Gathered, file: &dyn File) -> Result<()> {
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

    /// Puts a parity file in its place, durably, unless one of its members went meanwhile. Nothing goes while this is
    /// done.
    fn place_group(&self, group: ContainerId, sources: &[Source], temporary: &str, folder: &str) -> Result<bool> {
        for source in sources {
            if !self.stable(|| self.answering(source.container)).is_ok_and(|answering| answering == source.container) {
                self.note_groups(|groups| groups.set_unfit(source.container))?;
                return Ok(false);
            }
        }
        let members: Vec<u32> = sources.iter().map(|source| source.container.number()).collect();
        self.ground.rename(temporary, &parity_path(&self.directory, group, &members)).map_err(StorageError::cannot_write)?;
        self.put_in_place(group, members, folder)?;
        Ok(true)
    }

    /// Makes the name of a new group's parity file durable. Then removes the groups that nobody counts on any more.
    pub(crate) fn put_in_place(&self, group: ContainerId, members: Vec<u32>, folder: &str) -> Result<()> {
        self.note_groups(|groups| groups.insert(group, members))?;
        let above = parity_directory(&self.directory, group.partition());
        self.sync_folders(&BTreeSet::from([folder.to_owned(), above]))?;
        self.remove_groups(&self.with_groups(|groups| Ok(groups.unneeded()))?)
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
