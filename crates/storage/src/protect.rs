//! Making parity: sealed containers that have none are grouped, and the exclusive or of their files is written beside them.
//!
//! A container goes into a group only when all of it was read and found whole, so that parity is never made of what is rotten. The file is written whole
//! and synced under another name, then renamed; groups that it replaces go afterwards. A crash or a full disk at any point leaves what was there.

use crate::parity::{
    BLOCK_BYTES, MAX_MEMBERS, Member, ParityHeader, add, block_length, blocks, data_offset, parity_directory, parity_path,
};
use crate::scrub::Window;
use crate::store::{ContainerStore, Shared};
use crate::{ContainerId, Result, StorageError, file};
use onefold_ground::{Access, File, checksum};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Blocks of the parity that are made at a time: with as much of a member, what it needs of memory.
const STRIPE_BLOCKS: usize = 16;

/// A member while its group is made.
struct Source {
    container: ContainerId,
    file: Arc<dyn File>,
    length_bytes: u64,
}

impl ContainerStore {
    /// Makes parity for one group of `size` containers (2 to 16) that have none. With `all` also for fewer; they are
    /// grouped anew, with others, when there are more. Returns how many containers are in the new group; `None`: there is nothing to do. The
    /// calling thread does all the work. Damage of a container leaves it without parity and is no error.
    pub fn make_parity(&self, size: usize, all: bool) -> Result<Option<usize>> {
        let shared = &self.shared;
        shared.check_writable()?;
        let _one_at_a_time = shared.protecting.lock();
        let size = size.clamp(2, MAX_MEMBERS);
        shared.know_containers_without(self)?;
        loop {
            let Some(candidates) = shared.candidates(size, all)? else { return Ok(None) };
            let sources = shared.whole_ones(&candidates)?;
            // Those that are not whole are not asked for again.
            if sources.len() < candidates.len() {
                continue;
            }
            return shared.write_group(&sources).map(Some);
        }
    }
}

impl Shared {
    /// Lists, once, the sealed containers that are in no group.
    fn know_containers_without(&self, store: &ContainerStore) -> Result<()> {
        let _nothing_goes = self.replacing.lock();
        let was_known = self.with_groups(|groups| {
            let was_known = groups.without.is_some();
            // Those that are sealed from here on are put into the list by whoever seals them.
            groups.without.get_or_insert_default();
            Ok(was_known)
        })?;
        if was_known {
            return Ok(());
        }
        let listed = store.containers();
        let sealed: Vec<ContainerId> = listed.iter().flatten().copied().filter(|container| store.is_sealed(*container)).collect();
        self.with_groups(|groups| {
            if listed.is_err() {
                groups.without = None;
            }
            let without: Vec<ContainerId> = sealed.into_iter().filter(|container| groups.group_of(*container).is_none()).collect();
            groups.without.iter_mut().for_each(|known| known.extend(&without));
            Ok(())
        })?;
        listed.map(drop)
    }

    /// The containers of the next group: of one partition, those without parity and those of groups that are too small.
    fn candidates(&self, size: usize, all: bool) -> Result<Option<Vec<ContainerId>>> {
        self.with_groups(|groups| {
            let Some(without) = &groups.without else { return Ok(None) };
            let partitions: BTreeSet<u16> = without.iter().map(|container| container.partition()).collect();
            for partition in partitions {
                let mut chosen: Vec<ContainerId> = without
                    .iter()
                    .copied()
                    .filter(|container| container.partition() == partition && !groups.unsound.contains(container))
                    .take(size)
                    .collect();
                let new = chosen.len();
                if new < size {
                    // The small groups are the ones made last.
                    let small = groups.all().filter(|(group, members)| group.partition() == partition && members.len() < size);
                    for (group, members) in small.collect::<Vec<_>>().into_iter().rev() {
                        let members = members.iter().map(|number| ContainerId::new(group.partition(), *number));
                        if chosen.len() + members.len() <= size && members.clone().all(|member| !groups.unsound.contains(&member)) {
                            chosen.extend(members);
                        }
                    }
                }
                if new > 0 && (chosen.len() >= size || all) {
                    chosen.sort_unstable();
                    return Ok(Some(chosen));
                }
            }
            Ok(None)
        })
    }

    /// Reads containers and keeps those that are whole.
    fn whole_ones(&self, containers: &[ContainerId]) -> Result<Vec<Source>> {
        let mut whole = Vec::with_capacity(containers.len());
        for container in containers {
            match self.whole_one(*container) {
                Ok(source) => whole.push(source),
                Err(error) => {
                    // One that was merged meanwhile is not looked at again either.
                    if self.stable(|| self.answering(*container)).is_ok_and(|answering| answering == *container) {
                        tracing::warn!(%container, %error, "no parity is made of a container that cannot be read");
                    }
                    self.with_groups(|groups| {
                        groups.unsound.insert(*container);
                        Ok(())
                    })?;
                }
            }
        }
        Ok(whole)
    }

    fn whole_one(&self, container: ContainerId) -> Result<Source> {
        let opened = self.ground.open(&file::path(&self.directory, container), Access::Read);
        let file = opened.map_err(|error| self.read_error(container, None, error))?;
        let length_bytes = file.len()?;
        let mut damage = Vec::new();
        self.verify_bytes(container, None, &Window::of(file.clone()), &mut damage)?;
        match damage.pop() {
            Some(damage) => Err(damage),
            None => Ok(Source { container, file, length_bytes }),
        }
    }

    /// Writes the parity file of a new group and puts it in its place. Returns how many members it has: none if one of them was merged meanwhile.
    fn write_group(&self, sources: &[Source]) -> Result<usize> {
        let Some(first) = sources.first() else { return Ok(0) };
        let partition = first.container.partition();
        let group = self.with_groups(|groups| groups.next_group(partition))?;
        let folder = self.make_parity_folder(group)?;
        let directory = parity_directory(&self.directory, partition);
        let temporary = format!("{directory}/{:08x}.new", group.number());
        let written = self.create_beside(&temporary).and_then(|file| self.write_parity(group, sources, &*file));
        let placed = written.and_then(|()| {
            let _nothing_goes = self.replacing.lock();
            self.place_group(group, sources, &temporary, &folder)
        });
        if !matches!(placed, Ok(true)) {
            let _ = self.ground.remove(&temporary);
        }
        placed.map(|is_placed| if is_placed { sources.len() } else { 0 })
    }

    fn write_parity(&self, group: ContainerId, sources: &[Source], file: &dyn File) -> Result<()> {
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
            for (source, member) in sources.iter().zip(&mut members) {
                let length = stripe.clone().map(|block| block_length(source.length_bytes, block)).sum();
                bytes.resize(length, 0);
                let read = source.file.read_at((first * BLOCK_BYTES) as u64, &mut bytes);
                read.map_err(|error| self.read_error(source.container, None, error))?;
                member.checksums.extend(bytes.chunks(BLOCK_BYTES).map(checksum));
                add(&mut sum, &bytes);
            }
            checksums.extend(sum.chunks(BLOCK_BYTES).map(checksum));
            let place = offset + (first * BLOCK_BYTES) as u64;
            file.write_at(place, &sum).map_err(StorageError::cannot_write)?;
            file.start_writeback(place, sum.len() as u64);
        }
        let header = ParityHeader { group, store: self.options.store, members, checksums };
        file.write_at(0, &header.encode()).map_err(StorageError::cannot_write)?;
        file.sync().map_err(StorageError::cannot_write)
    }

    /// Puts a parity file in its place, durably, unless one of its members went meanwhile. Nothing goes while this is done.
    fn place_group(&self, group: ContainerId, sources: &[Source], temporary: &str, folder: &str) -> Result<bool> {
        for source in sources {
            if !self.stable(|| self.answering(source.container)).is_ok_and(|answering| answering == source.container) {
                return Ok(false);
            }
        }
        let members: Vec<u32> = sources.iter().map(|source| source.container.number()).collect();
        self.ground.rename(temporary, &parity_path(&self.directory, group, &members)).map_err(StorageError::cannot_write)?;
        let older = self.with_groups(|groups| Ok(groups.insert(group, members)))?;
        let above = parity_directory(&self.directory, group.partition());
        self.sync_folders(&BTreeSet::from([folder.to_owned(), above]))?;
        self.remove_groups(&older)?;
        Ok(true)
    }
}
